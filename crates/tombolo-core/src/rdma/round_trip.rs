//! The round trip to a peer, measured (QOS §3.3: "to be estimated one day").

use super::config::Retransmission;
use super::transfer::MAX_PATHS;

/// Smoothed round trip and its variation, after RFC 6298. Every answer names the
/// transmission it answers, so repeated blocks may be measured too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrip {
    smoothed_ns: Option<u64>,
    variation_ns: u64,
    /// Timeouts in a row. Each doubles the timeout, or fewer do if several paths take turns.
    backoff: u32,
}

/// More doublings would pass any maximum.
const MAX_BACKOFF: u32 = 16;

impl RoundTrip {
    pub(crate) fn new() -> Self {
        Self { smoothed_ns: None, variation_ns: 0, backoff: 0 }
    }

    pub(crate) fn sample(&mut self, ns: u64) {
        self.backoff = 0;
        match self.smoothed_ns {
            None => {
                self.smoothed_ns = Some(ns);
                self.variation_ns = ns / 2;
            }
            Some(smoothed) => {
                let distance = smoothed.abs_diff(ns);
                self.variation_ns = self.variation_ns - self.variation_ns / 4 + distance / 4;
                self.smoothed_ns = Some(smoothed - smoothed / 8 + ns / 8);
            }
        }
    }

    /// As [`Self::sample`]. Returns whether timeouts by this rule, which are never shorter than `least_ns`,
    /// have become shorter.
    pub(crate) fn sample_shortens(&mut self, ns: u64, rule: Retransmission, least_ns: u64) -> bool {
        let least_ns = match rule {
            Retransmission::Fixed { .. } | Retransmission::Ticks { .. } => {
                self.sample(ns);
                return false;
            }
            Retransmission::Measured { min_ns, .. } => min_ns.max(least_ns),
        };
        let before_ns = self.unbounded_ns();
        self.sample(ns);
        before_ns > least_ns && self.unbounded_ns() < before_ns
    }

    /// The timeout without its bounds. `u64::MAX` before the first measurement and after a timeout.
    fn unbounded_ns(&self) -> u64 {
        match self.smoothed_ns {
            Some(smoothed) if self.backoff == 0 => {
                smoothed.saturating_add(self.variation_ns.saturating_mul(4))
            }
            _ => u64::MAX,
        }
    }

    /// Records a sign of life that measures nothing. Returns whether timeouts have become shorter.
    pub(crate) fn alive(&mut self) -> bool {
        std::mem::take(&mut self.backoff) > 0
    }

    pub(crate) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF * MAX_PATHS as u32);
    }

    /// The smoothed round trip, if one was measured.
    pub(crate) fn smoothed_ns(&self) -> Option<u64> {
        self.smoothed_ns
    }

    /// How long an unanswered block waits if no timeout came before.
    pub(crate) fn first_timeout_ns(&self, rule: Retransmission) -> u64 {
        Self { backoff: 0, ..*self }.timeout_ns(rule)
    }

    /// How long a request waits that is sent by another of `paths` paths each time. Each path has its turn
    /// before the timeout doubles again.
    pub(crate) fn timeout_by_turns_ns(&self, rule: Retransmission, paths: u32) -> u64 {
        Self { backoff: self.backoff / paths.max(1), ..*self }.timeout_ns(rule)
    }

    /// How long an unanswered block waits.
    pub(crate) fn timeout_ns(&self, rule: Retransmission) -> u64 {
        match rule {
            Retransmission::Fixed { timeout_ns } => timeout_ns,
            Retransmission::Ticks { tick_ns, ticks } => tick_ns.saturating_mul(ticks.max(1).into()),
            Retransmission::Measured { initial_ns, min_ns, max_ns } => {
                let base = self.smoothed_ns.map_or(initial_ns, |smoothed| {
                    smoothed.saturating_add(self.variation_ns.saturating_mul(4)).max(min_ns)
                });
                base.saturating_mul(1 << self.backoff.min(MAX_BACKOFF)).min(max_ns)
            }
        }
    }

    /// How long to wait before the last block is sent again as a probe. `None` if timeouts are not measured,
    /// the round trip is unknown, or the last attempt timed out.
    pub(crate) fn probe_ns(&self, rule: Retransmission, least_ns: u64) -> Option<u64> {
        let Retransmission::Measured { .. } = rule else { return None };
        let smoothed = self.smoothed_ns.filter(|_| self.backoff == 0)?;
        let spread = smoothed.max(self.variation_ns.saturating_mul(4)).max(least_ns);
        Some(smoothed.saturating_add(spread))
    }

    /// How long after its transmission an overtaken block counts as lost. `None` if the round trip is unknown.
    pub(crate) fn overtaken_ns(&self, reorder_ns: u64) -> Option<u64> {
        self.smoothed_ns.map(|smoothed| smoothed.saturating_add((smoothed / 4).max(reorder_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::time::Time;

    #[test]
    fn follows_the_measurements_within_its_bounds() {
        let rule = Retransmission::Measured { initial_ns: 500, min_ns: 100, max_ns: 10_000 };
        let mut trip = RoundTrip::new();
        assert_eq!(trip.timeout_ns(rule), 500);
        trip.sample(1000);
        assert_eq!(trip.timeout_ns(rule), 3000);
        for _ in 0..100 {
            trip.sample(1000);
        }
        assert!(trip.timeout_ns(rule) < 1100);
        trip.back_off();
        assert!(trip.timeout_ns(rule) > 2000);
        for _ in 0..40 {
            trip.back_off();
        }
        assert_eq!(trip.timeout_ns(rule), 10_000);
        for _ in 0..100 {
            trip.sample(1);
        }
        assert_eq!(trip.timeout_ns(rule), 100);
    }

    #[test]
    fn it_says_when_timeouts_get_shorter() {
        let rule = Retransmission::Measured { initial_ns: 500, min_ns: 100, max_ns: 10_000 };
        let mut trip = RoundTrip::new();
        let shortens = |trip: &mut RoundTrip, ns| {
            let before = trip.timeout_ns(rule);
            let says = trip.sample_shortens(ns, rule, 0);
            assert!(says || trip.timeout_ns(rule) >= before);
            says
        };
        for ns in [1000, 900, 800, 2000, 500, 20, 20, 20, 20] {
            shortens(&mut trip, ns);
        }
        for _ in 0..100 {
            shortens(&mut trip, 20);
        }
        assert!(!shortens(&mut trip, 19), "it is as short as it gets");
        trip.back_off();
        assert!(shortens(&mut trip, 20));
        trip.back_off();
        assert!(trip.alive() && !trip.alive());
        let fixed = Retransmission::Fixed { timeout_ns: 7 };
        trip.back_off();
        assert!(!trip.sample_shortens(20, fixed, 0) && !trip.alive());
    }

    #[test]
    fn a_probe_waits_for_twice_the_round_trip_or_its_spread() {
        let rule = Retransmission::Measured { initial_ns: 500, min_ns: 100, max_ns: 10_000 };
        let mut trip = RoundTrip::new();
        assert_eq!(trip.probe_ns(rule, 10), None);
        trip.sample(1000);
        assert_eq!(trip.probe_ns(rule, 10), Some(3000));
        (0..100).for_each(|_| trip.sample(1000));
        assert_eq!(trip.probe_ns(rule, 10), Some(2000));
        assert_eq!(trip.probe_ns(rule, 5000), Some(6000));
        assert_eq!(trip.probe_ns(Retransmission::Fixed { timeout_ns: 7 }, 10), None);
        trip.back_off();
        assert_eq!(trip.probe_ns(rule, 10), None);
    }

    #[test]
    fn several_paths_have_a_turn_each_before_the_timeout_doubles() {
        let rule = Retransmission::Measured { initial_ns: 500, min_ns: 100, max_ns: 10_000 };
        let mut trip = RoundTrip::new();
        for doubled in [500, 1000, 2000] {
            for _ in 0..3 {
                assert_eq!(trip.timeout_by_turns_ns(rule, 3), doubled);
                trip.back_off();
            }
        }
        // With one path each timeout doubles it.
        assert_eq!(trip.timeout_by_turns_ns(rule, 0), trip.timeout_ns(rule));
        assert_eq!(trip.timeout_ns(rule), 10_000);
        assert_eq!(trip.first_timeout_ns(rule), 500);
    }

    #[test]
    fn the_documents_timeout_is_fixed() {
        let rule = Retransmission::Fixed { timeout_ns: 20_000_000 };
        let mut trip = RoundTrip::new();
        trip.sample(1_000_000_000);
        trip.back_off();
        assert_eq!(trip.timeout_ns(rule), 20_000_000);
        assert_eq!(rule.due(Time(5), 20_000_000), Time(20_000_005));
    }

    #[test]
    fn ticks_come_by_themselves() {
        let rule = Retransmission::Ticks { tick_ns: 1_000, ticks: 20 };
        let timeout_ns = RoundTrip::new().timeout_ns(rule);
        for (sent_at, due) in [(0, 20_000), (1, 20_000), (999, 20_000), (1_000, 21_000)] {
            assert_eq!(rule.due(Time(sent_at), timeout_ns), Time(due));
        }
        let never = Retransmission::Ticks { tick_ns: 0, ticks: 0 };
        assert_eq!(never.due(Time(7), RoundTrip::new().timeout_ns(never)), Time(7));
    }
}
