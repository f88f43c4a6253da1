//! Counters and histograms of the IOMMU.

use super::job::{Absence, End};

/// Classes of a histogram of times. Class 0 counts times below 1 µs. Class `i` counts times from `2^(i-1)` µs to
/// below `2^i` µs. The last class also counts all longer times.
pub const TIME_CLASSES: usize = 24;

/// A histogram of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times(pub [u64; TIME_CLASSES]);

impl Times {
    pub(super) fn note(&mut self, ns: u64) {
        let class = (u64::BITS - (ns / 1000).leading_zeros()) as usize;
        self.0[class.min(TIME_CLASSES - 1)] += 1;
    }

    /// Number of times counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// An upper bound, in µs, of the fraction `part` (0 to 1) of the times, shortest first. `None` if there are
    /// none.
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
    /// Pauses: accesses whose sender was refused until the page is there.
    pub paused: u64,
    /// Accesses that waited for a page with their bytes.
    pub stalled: u64,
    /// Fault records that were dropped because they repeated a remembered record of their node.
    pub repeats_dropped: u64,
    /// Fault records for which the queue had no room.
    pub records_lost: u64,
    /// Touches: times that one or more pages were brought in.
    pub touches: u64,
    /// Pages that were brought in, or were there already.
    pub pages_touched: u64,
    /// Of [`Self::touches`]: touches that failed.
    pub touches_failed: u64,
    /// Accesses to memory that is not mapped, is not allowed, or cannot be had.
    pub denied: u64,
    /// Accesses given up because a page did not come in time, or a copy did not end in time.
    pub timed_out: u64,
    /// Accesses turned away because the domain has as many touches as it may.
    pub busy: u64,
    /// Of [`Self::touches`]: those by the attempt at the access itself.
    pub brought: u64,
    /// Attempts whose withdrawal was asked for, because their pages took too long or because nobody wants them any
    /// more.
    pub withdrawn: u64,
    /// Attempts that were told not to look for absent pages, because the pages kept leaving. An attempt that may
    /// bring pages in and does so counts as [`Self::brought`] only.
    pub forced: u64,
    /// Times from a fault to the end of its access, by [`End`] and [`Absence`]. If the sender was refused
    /// meanwhile: to when it was told to come again. If the attempt brought its pages in: from the beginning of the
    /// access.
    pub stall_times: [[Times; Absence::COUNT]; End::COUNT],
    /// Times from the beginning to the end of bringing pages in.
    pub touch_times: Times,
}

impl Counters {
    pub(super) fn note_stall(&mut self, end: End, kind: Absence, ns: u64) {
        self.stall_times[end as usize][kind as usize].note(ns);
    }

    /// Times of faults at an end, of all kinds of absence.
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

    /// Number of faults at an end, of all kinds of absence.
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
