//! Splits a transfer into blocks that are aligned at the destination (QOS §3.2.2).
//!
//! Blocks are aligned at the *destination*, because a block must not straddle what the receiver treats as one
//! unit (a run of pages, a snoop filter's line). The first and the last block may be shorter.

/// The length of the block that starts `offset_bytes` into the transfer: to the
/// next boundary of the destination, or to the end. `block_bytes` is a power of two.
#[must_use]
pub fn block_length(destination_address: u64, size_bytes: u32, offset_bytes: u32, block_bytes: u32) -> u32 {
    let start = destination_address.wrapping_add(offset_bytes.into());
    let to_boundary = block_bytes - (start & (u64::from(block_bytes) - 1)) as u32;
    to_boundary.min(size_bytes - offset_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_unaligned_destination_shortens_first_and_last() {
        // 40,000 bytes to an address 6,384 bytes below a boundary: QOS Fig 3.4.
        let destination = 0x4_0000_4000 - 6384;
        assert_eq!(block_length(destination, 40_000, 0, 16384), 6384);
        assert_eq!(block_length(destination, 40_000, 6384, 16384), 16384);
        assert_eq!(block_length(destination, 40_000, 6384 + 2 * 16384, 16384), 848);
    }

    proptest! {
        #[test]
        fn blocks_tile_the_transfer(destination in 0..u64::MAX / 2, size in 0..1u32 << 20, shift in 8..15u32) {
            let block_bytes = 1 << shift;
            let mut offset = 0;
            loop {
                let length = block_length(destination, size, offset, block_bytes);
                prop_assert!(length <= block_bytes);
                let first = (destination + u64::from(offset)) / u64::from(block_bytes);
                let last = (destination + u64::from(offset + length.max(1) - 1)) / u64::from(block_bytes);
                prop_assert_eq!(first, last);
                offset += length;
                if offset == size { break }
                prop_assert!(length > 0);
            }
        }
    }
}
