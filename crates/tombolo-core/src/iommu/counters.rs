//! What the IOMMU has done.

use super::job::{Absence, End};

/// Classes of a histogram of times: class `i` counts those below `2^i` µs, but for the class below it.
pub const TIME_CLASSES: usize = 24;

/// How many took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times(pub [u64; TIME_CLASSES]);

impl Times {
    pub(super) fn note(&mut self, ns: u64) {
        let class = (u64::BITS - (ns / 1000).leading_zeros()) as usize;
        self.0[class.min(TIME_CLASSES - 1)] += 1;
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// A time that this part of them (0 to 1) stays below, in µs; `None` if there are none.
    #[must_use]
    pub fn quantile_us(&self, part: f64) -> Option<u64> {
        let wanted = (self.count() as f64 * part).ceil() as u64;
        let mut sum = 0;
        let class = self.0.iter().position(|count| {
            sum += count;
            sum >= wanted.max(1)
        })?;
        Some(1 << class)
    }
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Accesses begun.
    pub accesses: u64,
    /// Attempts that met an absent page, by [`End`] and [`Absence`].
    pub faults: [[u64; Absence::COUNT]; End::COUNT],
    /// Accesses whose sender was refused until the page was there.
    pub paused: u64,
    /// Accesses that waited with their bytes.
    pub stalled: u64,
    /// Records that said what one of the last two of their source said.
    pub repeats_dropped: u64,
    /// Records for which there was no room.
    pub records_lost: u64,
    /// Times that pages were brought in.
    pub touches: u64,
    /// Pages that were brought in, or found there.
    pub pages_touched: u64,
    /// Of [`Self::touches`]: those that failed.
    pub touches_failed: u64,
    /// Accesses to memory that is not mapped, not allowed, or cannot be had.
    pub denied: u64,
    /// Accesses given up because a page did not come, or a copy did not end.
    pub timed_out: u64,
    /// Accesses sent away because too many pages of the domain are being brought.
    pub busy: u64,
    /// Of [`Self::touches`]: those by whoever attempted the access.
    pub brought: u64,
    /// Attempts that were withdrawn, as their pages took too long or nobody wanted them any more, or were to be.
    pub withdrawn: u64,
    /// Accesses that were ordered without looking for absent pages, which kept going away. What an attempt that may bring pages in does so
    /// of its own accord counts as [`Self::brought`] only.
    pub forced: u64,
    /// From a fault to the end of the access, or, if its sender was refused meanwhile, until that was told to come again; by [`End`] and
    /// [`Absence`].
    pub stall_times: [[Times; Absence::COUNT]; End::COUNT],
    /// From the beginning to the end of bringing pages in.
    pub touch_times: Times,
}

impl Counters {
    pub(super) fn note_stall(&mut self, end: End, kind: Absence, ns: u64) {
        self.stall_times[end as usize][kind as usize].note(ns);
    }

    /// How long faults at an end took, of all kinds.
    #[must_use]
    pub fn stall_times_at(&self, end: End) -> Times {
        let mut sum = Times::default();
        for times in &self.stall_times[end as usize] {
            for (sum, count) in sum.0.iter_mut().zip(times.0) {
                *sum += count;
            }
        }
        sum
    }

    /// Faults at an end, of all kinds.
    #[must_use]
    pub fn faults_at(&self, end: End) -> u64 {
        self.faults[end as usize].iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_powers_of_two() {
        let mut times = Times::default();
        assert_eq!(times.quantile_us(0.5), None);
        for us in [0, 1, 3, 100, 1 << 40] {
            times.note(us * 1000);
        }
        assert_eq!((times.count(), times.0[0], times.0[1], times.0[2], times.0[7]), (5, 1, 1, 1, 1));
        assert_eq!(
            (times.quantile_us(0.0), times.quantile_us(0.5), times.quantile_us(0.8)),
            (Some(1), Some(4), Some(128))
        );
    }
}
