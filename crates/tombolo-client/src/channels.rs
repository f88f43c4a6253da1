//! Which channels of a domain are free.

use std::sync::atomic::{AtomicU64, Ordering};

/// The channels for writes and for reads, a bit each. Any number of threads may call it at once.
#[derive(Debug)]
pub(crate) struct Channels {
    free: AtomicU64,
    /// Given back before their transfer ended.
    abandoned: AtomicU64,
}

impl Channels {
    /// All channels are free.
    pub(crate) fn new() -> Self {
        Self { free: AtomicU64::new(u64::MAX), abandoned: AtomicU64::new(0) }
    }

    /// Takes a free channel of those in the mask `kind`. `is_over` says whether the transfer of a channel has ended.
    pub(crate) fn take(&self, kind: u64, is_over: impl Fn(usize) -> bool) -> Option<usize> {
        loop {
            let free = self.free.load(Ordering::Acquire) & kind;
            if free == 0 {
                if self.reclaim(kind, &is_over) {
                    continue;
                }
                return None;
            }
            let bit = free & free.wrapping_neg();
            if self.free.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
                return Some(bit.trailing_zeros() as usize);
            }
        }
    }

    /// Frees the abandoned channels whose transfers have ended. True: there were some.
    fn reclaim(&self, kind: u64, is_over: &impl Fn(usize) -> bool) -> bool {
        let (mut found, mut left) = (false, self.abandoned.load(Ordering::Acquire) & kind);
        while left != 0 {
            let bit = left & left.wrapping_neg();
            left &= !bit;
            // Of several threads that see the end, one clears the bit.
            if is_over(bit.trailing_zeros() as usize)
                && self.abandoned.fetch_and(!bit, Ordering::AcqRel) & bit != 0
            {
                self.free.fetch_or(bit, Ordering::AcqRel);
                found = true;
            }
        }
        found
    }

    /// Gives a channel back. One whose transfer is not over is free when that has ended.
    pub(crate) fn give_back(&self, slot: usize, over: bool) {
        let list = if over { &self.free } else { &self.abandoned };
        list.fetch_or(1 << slot, Ordering::AcqRel);
    }

    /// The number of channels that are not free.
    pub(crate) fn used(&self) -> u32 {
        (!self.free.load(Ordering::Relaxed)).count_ones()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    const LOW: u64 = 0xFFFF_FFFF;

    #[test]
    fn each_kind_has_its_own_and_what_is_given_back_comes_again() {
        let channels = Channels::new();
        let taken: Vec<_> = std::iter::from_fn(|| channels.take(LOW, |_| false)).collect();
        assert_eq!(taken, (0..32).collect::<Vec<_>>());
        assert_eq!((channels.take(!LOW, |_| false), channels.used()), (Some(32), 33));
        channels.give_back(7, true);
        assert_eq!((channels.take(LOW, |_| false), channels.take(LOW, |_| true)), (Some(7), None));
    }

    #[test]
    fn one_given_back_early_is_free_when_its_transfer_is_over() {
        let channels = Channels::new();
        while channels.take(LOW, |_| false).is_some() {}
        channels.give_back(3, false);
        channels.give_back(9, false);
        assert_eq!(channels.take(LOW, |_| false), None);
        assert_eq!(channels.take(LOW, |slot| slot == 9), Some(9));
        assert_eq!(channels.take(LOW, |slot| slot == 9), None);
        assert_eq!(channels.take(!LOW, |_| true), Some(32));
        assert_eq!(channels.take(LOW, |_| true), Some(3));
    }

    #[test]
    fn no_channel_has_two_threads() {
        let channels = Channels::new();
        let holders: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (channels, holders) = (&channels, &holders);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        // Few of a kind, so that all are taken now and then.
                        let Some(slot) = channels.take(0b111, |_| true) else { continue };
                        assert_eq!(holders[slot].fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(holders[slot].fetch_sub(1, Ordering::SeqCst), 1);
                        channels.give_back(slot, (round + thread) % 3 != 0);
                    }
                });
            }
        });
        let left: Vec<_> = std::iter::from_fn(|| channels.take(0b111, |_| true)).collect();
        assert_eq!(left.len(), 3);
    }
}
