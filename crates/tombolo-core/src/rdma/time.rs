//! Time, as the caller tells it.

/// Nanoseconds since an instant of the caller's choice. The engine never reads a clock. Time may stand still.
/// If it runs backwards, timers fire late, and nothing worse happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The instant `ns` nanoseconds later.
    #[must_use]
    pub fn after_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`, 0 if `earlier` lies ahead.
    #[must_use]
    pub fn since_ns(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A clock that leaves out most of the time in which the engine was not run. After a node was stopped for a
/// while (by a signal, a debugger, a frozen machine), all its timers are due at once, and its peers' answers
/// are still unread. Only a part of such a gap counts as time in which the peers were silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttendedClock {
    most_ns: u64,
    seen_at: Time,
    missed_ns: u64,
}

impl AttendedClock {
    /// A clock for which at most `most_ns` of each gap count.
    pub(crate) fn new(most_ns: u64) -> Self {
        Self { most_ns, seen_at: Time(0), missed_ns: 0 }
    }

    /// Records that the engine is run now. `due` is when it was to be run at the latest. `None`: no timer runs,
    /// so either the engine was to be run again at once, or nothing is open.
    pub(crate) fn look(&mut self, now: Time, due: Option<Time>) {
        let since = due.map_or(self.seen_at, |due| due.max(self.seen_at));
        let gap_ns = now.since_ns(since);
        self.missed_ns += gap_ns.saturating_sub(self.most_ns);
        self.seen_at = self.seen_at.max(now);
    }

    /// What this clock shows at a time.
    pub(crate) fn at(&self, now: Time) -> Time {
        Time(now.0.saturating_sub(self.missed_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_gap_only_a_part_counts() {
        let mut clock = AttendedClock::new(10);
        for (now, due, shows) in [
            (10, None, 10),
            // Nothing was due for long, then the engine ran in time.
            (500, Some(495), 500),
            // A gap of a hundred, of which ten count.
            (620, Some(520), 530),
            // The missed timer is still due: the gap counts once.
            (625, Some(520), 535),
            (600, Some(520), 510),
            (630, Some(520), 540),
            // The engine was stopped before it had handed out all that was ready.
            (730, None, 550),
        ] {
            clock.look(Time(now), due.map(Time));
            assert_eq!(clock.at(Time(now)), Time(shows), "at {now}");
        }
    }
}
