//! CRC32C of shared memory where it lies.
//!
//! A library takes a `&[u8]`, which memory that others may write is not. To copy it out first costs more
//! than the sum. So most of it is folded with volatile reads, 256 bytes at a time, into 256 bytes with the
//! same checksum (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
//! Intel 2009, with AVX-512's four multiplications at once); the library does the rest.

use crate::shared::SharedSpan;

/// What is folded into as much.
const STRIDE: usize = 256;
/// Below, nothing is gained.
const LEAST_BYTES: usize = 4 * STRIDE;

impl SharedSpan<'_> {
    /// The CRC32C of the bytes as they are read now, each once; they are copied out where this processor has no quick
    /// way to sum them where they are.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        self.crc32c().unwrap_or_else(|| crc_fast::crc32_iscsi(&self.to_vec()))
    }

    /// The CRC32C of the bytes as they are read now, each once. None: they are few, or this processor has no
    /// quick way; copy them out.
    #[must_use]
    pub fn crc32c(&self) -> Option<u32> {
        if self.len() < LEAST_BYTES {
            return None;
        }
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("vpclmulqdq")
        {
            // SAFETY: the processor has what it needs, as just seen.
            let folded = unsafe { wide::fold(*self) };
            let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
            digest.update(&folded);
            let mut rest = [0; STRIDE];
            let left = self.part(self.len() / STRIDE * STRIDE, self.len() % STRIDE)?;
            let count = left.copy_to(&mut rest);
            digest.update(&rest[..count]);
            return u32::try_from(digest.finalize()).ok();
        }
        None
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m512i, _mm512_clmulepi64_epi128, _mm512_set_epi64, _mm512_ternarylogic_epi64, _mm512_xor_si512,
    };

    use super::{LEAST_BYTES, STRIDE};
    use crate::shared::SharedSpan;

    /// Castagnoli's polynomial, without its highest power.
    const POLYNOMIAL: u32 = 0x1EDC_6F41;
    /// What stands for the sum of nothing, at the beginning.
    const START: i64 = 0xFFFF_FFFF;

    /// 64 bytes anywhere.
    #[repr(C, packed)]
    struct Anywhere(__m512i);

    /// x to that power, modulo the polynomial, as the multiplication wants it: mirrored, and a bit further.
    const fn power(exponent: u32) -> i64 {
        let (mut value, mut left) = (1_u32, exponent);
        while left > 0 {
            let carry = value >> 31 == 1;
            value <<= 1;
            if carry {
                value ^= POLYNOMIAL;
            }
            left -= 1;
        }
        (value.reverse_bits() as i64) << 1
    }

    /// As many bytes whose checksum, with what is left over behind them, is that of the span, which is of
    /// [`LEAST_BYTES`] or more.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) fn fold(span: SharedSpan<'_>) -> [u8; STRIDE] {
        const DISTANCE: u32 = STRIDE as u32 * 8;
        const LOW: i64 = power(DISTANCE + 32);
        const HIGH: i64 = power(DISTANCE - 32);
        let strides = span.len() / STRIDE;
        debug_assert!(span.len() >= LEAST_BYTES);
        let read = |stride: usize, lane: usize| -> __m512i {
            let place = span.as_ptr().wrapping_add(stride * STRIDE + lane * 64).cast::<Anywhere>();
            // SAFETY: the 64 bytes lie in the span, which stays mapped; whatever they are is a value. Others
            // may write them meanwhile, so they are read once, and not through a reference.
            unsafe { place.read_volatile() }.0
        };
        let by = _mm512_set_epi64(HIGH, LOW, HIGH, LOW, HIGH, LOW, HIGH, LOW);
        let start = _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, START);
        let mut lanes = [read(0, 0), read(0, 1), read(0, 2), read(0, 3)];
        lanes[0] = _mm512_xor_si512(lanes[0], start);
        for stride in 1..strides {
            for (number, lane) in lanes.iter_mut().enumerate() {
                let low = _mm512_clmulepi64_epi128::<0x00>(*lane, by);
                let high = _mm512_clmulepi64_epi128::<0x11>(*lane, by);
                *lane = _mm512_ternarylogic_epi64::<0x96>(low, high, read(stride, number));
            }
        }
        // The library begins with the same.
        lanes[0] = _mm512_xor_si512(lanes[0], start);
        let mut folded = [0; STRIDE];
        for (lane, bytes) in lanes.into_iter().zip(folded.chunks_exact_mut(64)) {
            // SAFETY: 64 bytes of ours, at any alignment.
            unsafe { bytes.as_mut_ptr().cast::<Anywhere>().write_unaligned(Anywhere(lane)) };
        }
        folded
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_sum_is_that_of_the_library(
            bytes in proptest::collection::vec(any::<u8>(), 0..20_000),
            skipped in 0..100_usize,
        ) {
            let bytes = &bytes[skipped.min(bytes.len())..];
            let expected = crc_fast::crc32_iscsi(bytes);
            match SharedSpan::from(bytes).crc32c() {
                Some(sum) => prop_assert_eq!(sum, expected),
                None => prop_assert!(bytes.len() < LEAST_BYTES || !has_a_quick_way()),
            }
        }
    }

    fn has_a_quick_way() -> bool {
        let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        flags.contains(" vpclmulqdq") && flags.contains(" avx512f")
    }
}
