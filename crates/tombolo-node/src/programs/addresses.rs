//! The addresses of programs' memory. None is given twice in a life of the node, and hardly ever in two lives.

use tombolo_channel::NODE_ADDRESSES;

use crate::fabric::life::{self, NoRandomNumbers};

/// The addresses of a life begin below this one.
const LAST_FIRST_ADDRESS: u64 = 1 << 62;
/// The addresses of a life begin at a multiple of this.
const ALIGNMENT_BYTES: u64 = 1 << 21;
/// Gap between two pieces of memory: an address beyond the end of one piece is in no other.
const GAP_BYTES: u64 = 1 << 21;

/// The addresses that have not been given yet.
#[derive(Debug)]
pub(super) struct Addresses {
    next: u64,
}

impl Addresses {
    /// Chooses at random where the memory of programs begins in this life of the node. So an access to an address of an
    /// earlier life finds nothing: of 2^41 beginnings, two are hardly ever within reach of each other.
    pub(super) fn new() -> Result<Self, NoRandomNumbers> {
        let places = (LAST_FIRST_ADDRESS - NODE_ADDRESSES) / ALIGNMENT_BYTES;
        let place = u64::from_le_bytes(life::random()?) % places;
        Ok(Self { next: NODE_ADDRESSES + place * ALIGNMENT_BYTES })
    }

    /// Gives the address for memory of this size. Since no address is given again, a late access to a closed domain
    /// finds nothing in the next domain of its number. `None`: no addresses are left.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let end = self.next.checked_add(bytes)?.checked_next_multiple_of(GAP_BYTES)?;
        Some(std::mem::replace(&mut self.next, end.checked_add(GAP_BYTES)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_begin_at_different_addresses() {
        let addresses = [(); 100].map(|()| Addresses::new().unwrap().next);
        let range = NODE_ADDRESSES..LAST_FIRST_ADDRESS;
        assert!(addresses.iter().all(|at| range.contains(at) && at.is_multiple_of(ALIGNMENT_BYTES)));
        let far_apart = addresses.iter().filter(|at| at.abs_diff(addresses[0]) > 1 << 40).count();
        assert!(far_apart > 90, "{far_apart} of 99 are more than a TiB away from the first");
    }

    #[test]
    fn no_address_is_given_twice() {
        let mut addresses = Addresses { next: 0 };
        assert_eq!([addresses.take(1), addresses.take(GAP_BYTES)], [Some(0), Some(2 * GAP_BYTES)]);
        assert_eq!(addresses.take(u64::MAX - 3 * GAP_BYTES), None);
        assert_eq!(addresses.take(4096), Some(4 * GAP_BYTES), "a refused size takes none");
    }
}
