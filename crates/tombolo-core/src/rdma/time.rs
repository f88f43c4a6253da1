//! Time, as the caller tells it.

/// Nanoseconds since an instant of the caller's choice. The engine never asks
/// for it; it may stand still, and if it runs backwards nothing worse happens
/// than a timer that fires late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The instant `ns` nanoseconds later.
    #[must_use]
    pub fn after_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`; 0 if that lies ahead.
    #[must_use]
    pub fn since_ns(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The time without what an engine has missed. Who is stopped for a while (a signal, a debugger, a frozen
/// machine) finds all its timers due at once, and what peers have answered still unread: of such a gap only
/// a part counts as time in which they were silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttendedClock {
    most_ns: u64,
    seen_at: Time,
    missed_ns: u64,
}

impl AttendedClock {
    /// Of one gap, `most_ns` count.
    pub(crate) fn new(most_ns: u64) -> Self {
        Self { most_ns, seen_at: Time(0), missed_ns: 0 }
    }

    /// The engine is run now. `due`: when it was to be run at the latest, if a timer runs; without one
    /// there is nothing to wait for, so it was to be run at once, or nothing is open.
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
            // Nothing was due for long, and then in time.
            (500, Some(495), 500),
            // A gap of a hundred, of which ten count.
            (620, Some(520), 530),
            // The timer that was missed is due still: the gap counts once.
            (625, Some(520), 535),
            (600, Some(520), 510),
            (630, Some(520), 540),
            // Stopped before it had handed out what there was.
            (730, None, 550),
        ] {
            clock.look(Time(now), due.map(Time));
            assert_eq!(clock.at(Time(now)), Time(shows), "at {now}");
        }
    }
}
