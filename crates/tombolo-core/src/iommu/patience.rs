//! How long something may take before it is given up.

use crate::rdma::Time;

/// A chance lasts the timeout divided by this.
const PARTS: u64 = 4;
/// Most chances of one deadline.
const MAX: u8 = 4;

/// A deadline that allows for a stopped process. The process that drives the machine may have been stopped, and the
/// programs with it. Then everything under way seems to have taken too long, although its answers wait. So what is
/// due gets one more chance, and further chances as long as the deadline is noticed much too late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    since: Time,
    chances: u8,
}

impl Patience {
    pub(super) fn since(now: Time) -> Self {
        Self { since: now, chances: 0 }
    }

    /// When to call [`Self::is_over`].
    pub(super) fn due(&self, timeout_ns: u64) -> Time {
        self.since.after_ns(timeout_ns)
    }

    /// Postpones the deadline, if necessary, so that one chance is left from `now` on.
    pub(super) fn allow_another_chance(&mut self, now: Time, timeout_ns: u64) {
        self.since = self.since.max(Time(now.0.saturating_sub(timeout_ns - timeout_ns / PARTS)));
    }

    /// Whether to give up. If not, and the deadline has passed, one more chance begins.
    pub(super) fn is_over(&mut self, now: Time, timeout_ns: u64) -> bool {
        let due = self.due(timeout_ns);
        if now < due {
            return false;
        }
        let chance_ns = timeout_ns / PARTS;
        let is_late = now.since_ns(due) >= chance_ns;
        if self.chances > 0 && (!is_late || self.chances >= MAX) {
            return true;
        }
        self.chances += 1;
        self.since = Time(now.0.saturating_sub(timeout_ns - chance_ns));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_late_looks_again() {
        let mut patience = Patience::since(Time(1000));
        let is_over = |now| patience.is_over(Time(now), 100);
        assert_eq!([1099, 1100, 1124, 1125].map(is_over), [false, false, false, true]);
        let mut patience = Patience::since(Time(1000));
        let is_over = |now| patience.is_over(Time(now), 100);
        let looks = [5000, 5024, 6000, 7000, 8000, 9000];
        assert_eq!(looks.map(is_over), [false, false, false, false, false, true]);
    }
}
