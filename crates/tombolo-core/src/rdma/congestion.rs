//! How much may be under way to a peer at once (QOS abstract and ch. 6: "rate
//! limiting"; here a window).
//!
//! Two signals. *Delay*: the bytes that stand in a queue on the way are the
//! window times the part of the round trip that is not the shortest one seen;
//! they are kept between two marks, small enough for a socket's buffer, so that
//! in the ordinary case nothing is lost at all. *Loss*: the window shrinks by a
//! factor, once per round trip, and to the minimum after a timeout. It grows
//! fast (doubling) until the first signal, then by a step per round trip.
//!
//! Delay alone never shrinks the window below the upper mark: on a busy machine
//! most delay is the scheduler's, and a window that small could not queue more
//! than the mark anyway.

use super::time::Time;

/// Marks and bounds of the window, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionConfig {
    /// At the start, and the least it starts from after a timeout's recovery.
    pub initial_bytes: u64,
    /// Never less.
    pub min_bytes: u64,
    /// Never more.
    pub max_bytes: u64,
    /// Grow while fewer bytes than this seem to stand in queues.
    pub queue_low_bytes: u64,
    /// Shrink while more bytes than this seem to stand in queues.
    pub queue_high_bytes: u64,
    /// What one round trip adds.
    pub step_bytes: u64,
    /// How long the shortest round trip is believed.
    pub base_age_ns: u64,
}

impl Default for CongestionConfig {
    fn default() -> Self {
        Self {
            initial_bytes: 128 * 1024,
            min_bytes: 32 * 1024,
            max_bytes: 16 * 1024 * 1024,
            queue_low_bytes: 64 * 1024,
            queue_high_bytes: 128 * 1024,
            step_bytes: 4 * 1024,
            base_age_ns: 10_000_000_000,
        }
    }
}

/// The window towards one peer.
#[derive(Clone, Copy, Debug)]
pub struct Congestion {
    config: Option<CongestionConfig>,
    window_bytes: u64,
    /// Below it the window doubles per round trip.
    threshold_bytes: u64,
    /// Blocks sent before this do not shrink the window again.
    recovery_start: Time,
    /// Shortest round trip of this age and of the one before.
    base_ns: [u64; 2],
    base_since: Time,
    recent_ns: u64,
}

impl Congestion {
    /// A window in its initial state; `None` never limits.
    #[must_use]
    pub fn new(config: Option<CongestionConfig>) -> Self {
        Self {
            config,
            window_bytes: config.map_or(u64::MAX, |config| config.initial_bytes),
            threshold_bytes: u64::MAX,
            recovery_start: Time(0),
            base_ns: [u64::MAX; 2],
            base_since: Time(0),
            recent_ns: 0,
        }
    }

    /// Bytes that may be under way.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// `bytes` were acknowledged while `in_flight_bytes` (these included) were
    /// under way.
    pub fn acknowledged(&mut self, now: Time, bytes: u64, in_flight_bytes: u64, round_trip_ns: Option<u64>) {
        let Some(config) = self.config else { return };
        if let Some(ns) = round_trip_ns {
            self.measure(now, ns, config.base_age_ns);
        }
        let queued = self.queued_bytes();
        if queued > config.queue_high_bytes {
            if self.window_bytes < self.threshold_bytes {
                self.threshold_bytes = self.window_bytes;
            }
            let floor = config.queue_high_bytes.max(config.min_bytes);
            if self.window_bytes > floor {
                let less = self.share(bytes, config.step_bytes);
                self.window_bytes = self.window_bytes.saturating_sub(less).max(floor);
            }
            return;
        }
        // A window that was not used says nothing about the path.
        if in_flight_bytes.saturating_mul(2) < self.window_bytes {
            return;
        }
        if self.window_bytes < self.threshold_bytes {
            self.window_bytes += bytes;
        } else if queued < config.queue_low_bytes {
            self.window_bytes += self.share(bytes, config.step_bytes);
        }
        self.window_bytes = self.window_bytes.min(config.max_bytes);
    }

    /// A block sent at `sent_at` was lost, as later answers show.
    pub fn lost(&mut self, now: Time, sent_at: Time) {
        self.shrink(now, sent_at, |window, _| window / 10 * 7);
    }

    /// A block sent at `sent_at` was not answered for a whole timeout.
    pub fn timed_out(&mut self, now: Time, sent_at: Time) {
        self.shrink(now, sent_at, |_, config| config.min_bytes);
    }

    fn shrink(&mut self, now: Time, sent_at: Time, to: impl Fn(u64, &CongestionConfig) -> u64) {
        let Some(config) = &self.config else { return };
        if sent_at < self.recovery_start {
            return;
        }
        self.recovery_start = now.after_ns(1);
        self.threshold_bytes = (self.window_bytes / 10 * 7).max(config.min_bytes);
        self.window_bytes = to(self.window_bytes, config).max(config.min_bytes);
    }

    /// The part of a step that `bytes` of a window's worth of bytes earn.
    fn share(&self, bytes: u64, step_bytes: u64) -> u64 {
        (bytes.saturating_mul(step_bytes) / self.window_bytes.max(1)).max(1)
    }

    fn measure(&mut self, now: Time, ns: u64, age_ns: u64) {
        if now.since_ns(self.base_since) > age_ns {
            self.base_ns = [u64::MAX, self.base_ns[0]];
            self.base_since = now;
        }
        self.base_ns[0] = self.base_ns[0].min(ns.max(1));
        self.recent_ns = match self.recent_ns {
            0 => ns,
            recent => recent - recent / 8 + ns / 8,
        };
    }

    fn queued_bytes(&self) -> u64 {
        let base = self.base_ns[0].min(self.base_ns[1]);
        if self.recent_ns <= base {
            return 0;
        }
        let waiting = u128::from(self.window_bytes) * u128::from(self.recent_ns - base);
        u64::try_from(waiting / u128::from(self.recent_ns)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 16 * 1024;

    /// A path of `rate` bytes per ns and `delay_ns`, with a buffer: returns the
    /// window and the number of losses after `rounds` round trips.
    fn run(buffer_bytes: u64, rounds: u64) -> (u64, u64) {
        let (delay_ns, rate) = (100_000, 1);
        let mut window = Congestion::new(Some(CongestionConfig::default()));
        let (mut now, mut losses) = (Time(1), 0);
        for _ in 0..rounds {
            let flight = window.window_bytes();
            let queue = flight.saturating_sub(delay_ns * rate);
            let trip_ns = delay_ns + queue.min(buffer_bytes) / rate;
            let sent_at = now;
            now = now.after_ns(trip_ns);
            if queue > buffer_bytes {
                losses += 1;
                window.lost(now, sent_at);
            }
            for _ in 0..flight / BLOCK {
                window.acknowledged(now, BLOCK, flight, Some(trip_ns));
            }
        }
        (window.window_bytes(), losses)
    }

    #[test]
    fn fills_the_path_without_loss_where_the_buffer_holds_the_mark() {
        let (window, losses) = run(256 * 1024, 1000);
        assert!(losses <= 1, "{losses} losses");
        assert!((100_000..400_000).contains(&window), "{window}");
    }

    #[test]
    fn lives_with_a_buffer_that_is_too_small() {
        let (window, losses) = run(16 * 1024, 1000);
        assert!(losses < 200, "{losses} losses");
        assert!(window >= 64 * 1024, "{window}");
    }

    #[test]
    fn shrinks_once_per_round_trip() {
        let mut window = Congestion::new(Some(CongestionConfig::default()));
        let before = window.window_bytes();
        window.lost(Time(1000), Time(10));
        let after = window.window_bytes();
        assert_eq!(after, before / 10 * 7);
        window.lost(Time(1010), Time(20));
        assert_eq!(window.window_bytes(), after);
        window.lost(Time(2000), Time(1500));
        assert!(window.window_bytes() < after);
        window.timed_out(Time(3000), Time(2500));
        assert_eq!(window.window_bytes(), CongestionConfig::default().min_bytes);
    }

    #[test]
    fn without_configuration_it_never_limits() {
        let mut window = Congestion::new(None);
        window.timed_out(Time(3000), Time(2500));
        assert_eq!(window.window_bytes(), u64::MAX);
    }
}
