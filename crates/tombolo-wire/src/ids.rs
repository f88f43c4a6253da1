//! Ids that cross the wire, each its own type so that one cannot stand for
//! another. The ones that grow for ever wrap around, and compare by distance.

/// A protection domain: which program's memory an address belongs to (QOS
/// §3.2.1; 16 bits as in FAULT §3.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Domain(pub u16);

/// On whose behalf a node writes: a number that the node with the destination has given, or [`Asker::SENDER`]. A number
/// stands for a third node, which has asked the writing one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Asker(pub u16);

impl Asker {
    /// The writing node itself.
    pub const SENDER: Self = Self(0);
}

/// A slot of the sender's table of pending transactions (QOS §3.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId(pub u16);

impl TransactionId {
    /// The slot as an index of a table.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Which occurrence of a transaction slot towards one peer: with the slot, it
/// names one block for ever (QOS §4.4, the sequence number).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Generation(pub u32);

impl Generation {
    /// The occurrence after this one; wraps.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether this occurrence came after `other`. Right as long as fewer than
    /// 2³¹ lie between them; a sender counts per peer, so a receiver misses none.
    #[must_use]
    pub fn is_after(self, other: Self) -> bool {
        let distance = self.0.wrapping_sub(other.0);
        distance != 0 && distance < 1 << 31
    }
}

/// Which transmission of a block: 0 is the first. Echoed by every answer, so
/// that a round trip is measured against the transmission it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attempt(pub u8);

impl Attempt {
    /// The next transmission; wraps, because only equality with the current and
    /// the one before is ever asked.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// A read, named by its requester; grows by one with each read to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequestId(pub u32);

impl RequestId {
    /// The id after this one; wraps.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// How far this id lies after `other`, or `None` if it lies before.
    #[must_use]
    pub fn after(self, other: Self) -> Option<u32> {
        let distance = self.0.wrapping_sub(other.0);
        (distance < 1 << 31).then_some(distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_compare_across_the_wrap() {
        assert!(Generation(0).is_after(Generation(u32::MAX)));
        assert!(!Generation(u32::MAX).is_after(Generation(0)));
        assert!(!Generation(7).is_after(Generation(7)));
        assert_eq!(Generation(u32::MAX).next(), Generation(0));
    }

    #[test]
    fn request_ids_measure_distance_across_the_wrap() {
        assert_eq!(RequestId(1).after(RequestId(u32::MAX)), Some(2));
        assert_eq!(RequestId(u32::MAX).after(RequestId(1)), None);
        assert_eq!(RequestId(5).after(RequestId(5)), Some(0));
    }
}
