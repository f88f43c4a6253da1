//! How much may be under way to a peer at once, by one path (QOS abstract and
//! ch. 6: "rate limiting"; here a window).
//!
//! The window follows the delay, after Swift (Kumar et al., SIGCOMM 2020). The part of a round trip beyond the
//! shortest one seen is the *queueing delay*, and it has a target. Below the target, the window grows by a step
//! per round trip. Above the target, the window shrinks once per round trip, by a factor that grows with the
//! excess. All flows that share a queue see the same delay, so equal steps and equal factors make their windows
//! equal. A small window has a larger target, because many flows make a noisy queue. At the start, and after a
//! silence up to its earlier size, the window doubles per round trip.
//!
//! Differences from Swift, because here the delay is measured by processes that a scheduler may stop at any
//! time, not by network cards:
//!
//! - The current delay shrinks the window only down to `patient_bytes`. Below that, only *standing* delay
//!   counts, the least delay of several milliseconds: a scheduler's pauses come and go, a queue stays.
//! - The target never allows this flow more than `queue_bytes` in the queue, because the queue may be a
//!   socket's buffer.
//! - The shortest round trip is not known from the topology. If none as short was seen for a while, the flow
//!   *looks*: for some round trips it keeps next to nothing under way. All flows that share the queue see it
//!   get shorter then, so the next time they look together. A flow that started when there was a queue already
//!   then learns the round trip without it (as in BBR).
//! - Loss without delay means a bad line rather than a full queue. Up to a few percent of such loss does not
//!   shrink the window.

use super::time::Time;

/// Targets and bounds of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionConfig {
    /// The window at the start, and after a pause longer than `memory_ns`.
    pub initial_bytes: u64,
    /// Delay never shrinks the window below this (by default two blocks), and loss never below half of it.
    pub min_bytes: u64,
    /// The largest window.
    pub max_bytes: u64,
    /// What one round trip adds to the window.
    pub step_bytes: u64,
    /// The target of the queueing delay for a large window.
    pub target_ns: u64,
    /// How much higher the target is for a window of `min_bytes`. This addition falls with the square root of
    /// the window.
    pub small_target_ns: u64,
    /// Most bytes of this flow that may be in the queue.
    pub queue_bytes: u64,
    /// As `queue_bytes`, where the shortest round trip is below `near_ns`: a receiver that takes and answers
    /// many blocks at a time must not run dry meanwhile.
    pub near_queue_bytes: u64,
    /// The longest round trip of a peer that counts as near.
    pub near_ns: u64,
    /// A window below this is shrunk by standing delay only.
    pub patient_bytes: u64,
    /// Standing delay is the smallest delay in a period of this length.
    pub standing_ns: u64,
    /// The shortest round trip is measured anew if no round trip was as short for this time and for 200 round
    /// trips.
    pub look_ns: u64,
    /// An unused path is assumed to be unchanged for this long.
    pub memory_ns: u64,
    /// More lost blocks of a thousand than this shrink the window even without delay.
    pub loss_permille: u32,
}

impl Default for CongestionConfig {
    fn default() -> Self {
        Self {
            // Eight blocks, as `queue_bytes`: a burst at the start then fits into the queue.
            initial_bytes: 128 * 1024,
            // Two blocks of 16 KiB: one is answered while the other is on its way.
            min_bytes: 32 * 1024,
            // All 1024 transactions with blocks of 16 KiB: more cannot be under way.
            max_bytes: 16 * 1024 * 1024,
            // A quarter of a block. A bound, not a measurement.
            step_bytes: 4 * 1024,
            // Some wake-ups of a thread (20 to 50 us each, decision 3), and four times that for a small window.
            // A bound, not a measurement. The windows that result: tests/engine/congestion.rs.
            target_ns: 50_000,
            small_target_ns: 200_000,
            // Decision 8: with sockets' buffers of 208 KiB, one datagram in 15,000 was lost.
            queue_bytes: 128 * 1024,
            // Decision 8: with 128 KiB writes over loopback were slower by four to fourteen percent.
            near_queue_bytes: 512 * 1024,
            // Decision 8. Round trips over loopback are below, those of a wide-area network far above.
            near_ns: 200_000,
            // Decision 8: below, only delay that lasted for `standing_ns` counts, because a scheduler's pauses are
            // shorter.
            patient_bytes: 128 * 1024,
            standing_ns: 10_000_000,
            // A bound, not a measurement: 200 round trips of 1 ms. On longer paths the round trips decide.
            look_ns: 200_000_000,
            // A bound, not a measurement: as long as the default outage.
            memory_ns: 10_000_000_000,
            // Decision 8: BBR's second version tolerates two percent.
            loss_permille: 30,
        }
    }
}

impl CongestionConfig {
    /// The nearest configuration that can work.
    fn clamped(mut self) -> Self {
        self.max_bytes = self.max_bytes.clamp(2, MAX_WINDOW_BYTES);
        self.min_bytes = self.min_bytes.clamp(2, self.max_bytes);
        self.initial_bytes = self.initial_bytes.clamp(self.min_bytes, self.max_bytes);
        self.step_bytes = self.step_bytes.min(self.max_bytes);
        self.target_ns = self.target_ns.min(MAX_DELAY_NS);
        self.small_target_ns = self.small_target_ns.min(MAX_DELAY_NS);
        self
    }
}

/// Largest delay and largest window in calculations: their product fits into 64 bits.
const MAX_DELAY_NS: u64 = 1 << 38;
const MAX_WINDOW_BYTES: u64 = 1 << 25;
/// The largest loss rate: every block is lost.
const WHOLE: u32 = 1 << 16;

/// State before a supposed loss, restored if the block turns out to be only late.
#[derive(Clone, Copy, Debug)]
struct Undo {
    /// When the first of the blocks that were taken for lost was sent.
    sent_at: Time,
    window_bytes: u64,
    threshold_bytes: u64,
}

/// The window towards one peer by one path.
#[derive(Clone, Copy, Debug)]
pub struct Congestion {
    config: Option<CongestionConfig>,
    window_bytes: u64,
    /// Below it the window doubles per round trip.
    threshold_bytes: u64,
    /// Blocks sent before this do not shrink the window again.
    recovery_start: Time,
    /// Timeouts since the last answer.
    timeouts: u32,
    loss: LossRate,
    delay: Delay,
    /// Delay does not shrink the window again before this.
    shrink_at: Time,
    /// End of the current look for the shortest round trip: until then the window is `min_bytes`.
    look_until: Option<Time>,
    heard_at: Time,
    /// The window before a supposed loss shrank it.
    undo: Option<Undo>,
    /// When at least half of the window was under way the last time.
    used_at: Time,
}

impl Congestion {
    /// A window in its initial state; `None` never limits.
    #[must_use]
    pub fn new(config: Option<CongestionConfig>) -> Self {
        let config = config.map(CongestionConfig::clamped);
        Self {
            config,
            window_bytes: config.map_or(u64::MAX, |config| config.initial_bytes),
            threshold_bytes: u64::MAX,
            recovery_start: Time(0),
            timeouts: 0,
            loss: LossRate(0),
            delay: Delay::new(),
            shrink_at: Time(0),
            look_until: None,
            heard_at: Time(0),
            undo: None,
            used_at: Time(0),
        }
    }

    /// Bytes that may be under way.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        match (self.look_until, &self.config) {
            (Some(_), Some(config)) => config.min_bytes,
            _ => self.window_bytes,
        }
    }

    /// The shortest recent round trip, if one was measured.
    #[must_use]
    pub fn shortest_ns(&self) -> Option<u64> {
        Some(self.delay.base()).filter(|ns| *ns < u64::MAX)
    }

    /// Records that a block is sent while `in_flight_bytes` (without it) are under way. Call this for each
    /// block that is sent. After a short pause the path is assumed to be unchanged. If less than half of the
    /// window was used for longer than `memory_ns`, the window restarts at its initial size and doubles up to
    /// what it was.
    pub fn sent(&mut self, now: Time, in_flight_bytes: u64) {
        let (Some(config), 0) = (&self.config, in_flight_bytes) else { return };
        let CongestionConfig { initial_bytes, memory_ns, .. } = *config;
        if now.since_ns(self.heard_at) > memory_ns {
            self.delay = Delay::new();
        }
        if now.since_ns(self.used_at) > memory_ns {
            self.fill_again(initial_bytes);
        }
        self.heard_at = now;
    }

    /// Restarts the window at `initial_bytes`, from which it doubles up to what it was. Filling it at once
    /// would make a queue.
    fn fill_again(&mut self, initial_bytes: u64) {
        if self.window_bytes > initial_bytes {
            self.threshold_bytes = self.window_bytes;
            self.window_bytes = initial_bytes;
        }
    }

    /// Records that `bytes` were acknowledged while `in_flight_bytes` (these included) were under way.
    pub fn acknowledged(&mut self, now: Time, bytes: u64, in_flight_bytes: u64, round_trip_ns: Option<u64>) {
        let Some(config) = self.config else { return };
        self.heard_at = now;
        self.timeouts = 0;
        self.loss.arrived();
        // A window that was not used says nothing about the path.
        let is_used = in_flight_bytes.saturating_mul(2) >= self.window_bytes;
        if is_used {
            self.used_at = now;
        } else if now.since_ns(self.used_at) > config.memory_ns {
            // A light stream has no pause in which `sent` would notice that the window is unused.
            self.fill_again(config.initial_bytes);
        }
        if let Some(ns) = round_trip_ns {
            let news = self.delay.measure(now, ns, &config);
            self.look(now, is_used, &config);
            if let (Some(least_ns), true) = (news, self.window_bytes <= config.patient_bytes) {
                self.judge_standing(least_ns, is_used, &config);
            }
        }
        if self.look_until.is_some() {
            return;
        }
        let queue_ns = self.delay.queue_ns();
        match self.excess(queue_ns, self.delay.recent_ns, &config) {
            Some(cut) => {
                self.threshold_bytes = self.threshold_bytes.min(self.window_bytes);
                if self.window_bytes > config.patient_bytes && now >= self.shrink_at {
                    let left = self.window_bytes - cut;
                    self.window_bytes = left.max(config.patient_bytes);
                    self.shrink_at = now.after_ns(self.delay.recent_ns);
                }
            }
            None if is_used => {
                let more_bytes = if self.window_bytes < self.threshold_bytes {
                    bytes
                } else if queue_ns * 4 < self.target_ns(&config) {
                    // Almost no queue: other flows have left, or the path has become faster.
                    bytes * config.step_bytes.max(self.window_bytes / 32) / self.window_bytes
                } else {
                    bytes * config.step_bytes / self.window_bytes
                };
                self.window_bytes = (self.window_bytes + more_bytes.max(1)).min(config.max_bytes);
            }
            None => {}
        }
    }

    /// Number of bytes by which to shrink the window at this delay. `None` if the window is not too large.
    fn excess(&self, queue_ns: u64, trip_ns: u64, config: &CongestionConfig) -> Option<u64> {
        let queued_bytes = self.window_bytes * queue_ns / trip_ns.max(1);
        let is_near = self.delay.base() < config.near_ns;
        let most_bytes = if is_near { config.near_queue_bytes } else { config.queue_bytes };
        let over_bytes = queued_bytes.saturating_sub(most_bytes);
        // Compute the square root only if it may matter.
        let over_ns = match queue_ns > config.target_ns {
            true => queue_ns.saturating_sub(self.target_ns(config)),
            false => 0,
        };
        if over_ns == 0 && over_bytes == 0 {
            return None;
        }
        let by_delay = self.window_bytes * over_ns / trip_ns.max(1);
        // Swift's factors: four fifths of the excess, at most half of the window.
        Some((by_delay.max(over_bytes) / 5 * 4).min(self.window_bytes / 2))
    }

    fn target_ns(&self, config: &CongestionConfig) -> u64 {
        let windows = (config.min_bytes << 20) / self.window_bytes.max(1);
        let target_ns = config.target_ns + ((config.small_target_ns * windows.isqrt()) >> 10);
        target_ns.max(self.delay.base() / 8)
    }

    /// Adapts a small window to the standing delay, after the least delay of the last milliseconds was
    /// determined.
    fn judge_standing(&mut self, least_ns: u64, is_used: bool, config: &CongestionConfig) {
        let queue_ns = self.delay.beyond_base_ns(least_ns);
        match self.excess(queue_ns, least_ns, config) {
            Some(cut) => {
                self.threshold_bytes = self.threshold_bytes.min(self.window_bytes);
                self.window_bytes = (self.window_bytes - cut).max(config.min_bytes.min(self.window_bytes));
            }
            // Current delay may keep the window from growing, but must not do so for ever.
            None if is_used => {
                self.window_bytes = (self.window_bytes + config.step_bytes).min(config.max_bytes);
            }
            None => {}
        }
    }

    /// Begin or end a look for the shortest round trip.
    fn look(&mut self, now: Time, is_used: bool, config: &CongestionConfig) {
        let pause_ns = config.look_ns.max(200 * self.delay.recent_ns);
        match self.look_until {
            Some(until) if now >= until => {
                self.look_until = None;
                self.delay.looked(now);
                self.fill_again(config.initial_bytes);
            }
            None if now.since_ns(self.delay.base_at) > pause_ns => match is_used {
                true => self.look_until = Some(now.after_ns(3 * self.delay.recent_ns)),
                false => self.delay.looked(now),
            },
            _ => {}
        }
    }

    /// A block sent at `sent_at` was lost, as later answers show.
    pub fn lost(&mut self, now: Time, sent_at: Time) {
        let Some(config) = self.config else { return };
        self.loss.lost();
        let is_delayed = self.delay.queue_ns() * 2 > self.target_ns(&config);
        if is_delayed || self.loss.permille() > config.loss_permille {
            self.shrink(now, sent_at, self.window_bytes / 10 * 7);
        }
    }

    /// A block sent at `sent_at` was not answered for a whole timeout.
    pub fn timed_out(&mut self, now: Time, sent_at: Time) {
        self.loss.lost();
        // After one timeout, only the last of many blocks may be lost. If the following blocks are not answered
        // either, all are lost.
        let window_bytes = if self.timeouts == 0 { self.window_bytes / 10 * 7 } else { 0 };
        if self.shrink(now, sent_at, window_bytes) {
            self.timeouts += 1;
        }
    }

    /// Records that a block sent at `sent_at`, which was taken for lost, had arrived: its answer was late, or
    /// placing it took time. Restores the window from before the supposed loss.
    pub fn not_lost(&mut self, sent_at: Time) {
        self.loss.not_lost();
        let recovery_start = self.recovery_start;
        let undo = self.undo.take_if(|undo| (undo.sent_at..recovery_start).contains(&sent_at));
        if let Some(undo) = undo {
            self.window_bytes = self.window_bytes.max(undo.window_bytes);
            self.threshold_bytes = self.threshold_bytes.max(undo.threshold_bytes);
            self.timeouts = 0;
        }
    }

    fn shrink(&mut self, now: Time, sent_at: Time, window_bytes: u64) -> bool {
        let Some(config) = &self.config else { return false };
        if sent_at < self.recovery_start {
            return false;
        }
        // Several losses without an answer in between are one silence: keep the state from before the first.
        if self.timeouts == 0 || self.undo.is_none() {
            let Self { window_bytes, threshold_bytes, .. } = *self;
            self.undo = Some(Undo { sent_at, window_bytes, threshold_bytes });
        }
        let least_bytes = config.min_bytes / 2;
        self.recovery_start = now.after_ns(1);
        if self.timeouts == 0 {
            // Later in the same silence the window is no longer what the path carried (RFC 5681 §3.1).
            self.threshold_bytes = (self.window_bytes / 10 * 7).max(least_bytes);
        }
        self.window_bytes = window_bytes.max(least_bytes);
        true
    }
}

/// Round trips: the shortest, the recent average, and the shortest of the last few milliseconds.
#[derive(Clone, Copy, Debug)]
struct Delay {
    /// The shortest since the last look, and the shortest between the last two looks.
    base_ns: [u64; 2],
    /// When a round trip as short as that was last seen, or the last look ended.
    base_at: Time,
    recent_ns: u64,
    least_ns: u64,
    least_since: Time,
}

impl Delay {
    fn new() -> Self {
        Self {
            base_ns: [u64::MAX; 2],
            base_at: Time(0),
            recent_ns: 0,
            least_ns: u64::MAX,
            least_since: Time(0),
        }
    }

    /// Records a round trip. At the end of each period of a few milliseconds, returns the shortest of the
    /// period.
    fn measure(&mut self, now: Time, ns: u64, config: &CongestionConfig) -> Option<u64> {
        let ns = ns.clamp(1, MAX_DELAY_NS);
        if ns <= self.base() {
            self.base_at = now;
        }
        self.base_ns[0] = self.base_ns[0].min(ns);
        self.recent_ns = match self.recent_ns {
            0 => ns,
            recent => recent - recent / 8 + ns / 8,
        };
        self.least_ns = self.least_ns.min(ns);
        if now.since_ns(self.least_since) <= config.standing_ns.max(2 * self.recent_ns) {
            return None;
        }
        self.least_since = now;
        Some(std::mem::replace(&mut self.least_ns, u64::MAX))
    }

    fn looked(&mut self, now: Time) {
        self.base_ns = [u64::MAX, self.base_ns[0]];
        self.base_at = now;
    }

    fn base(&self) -> u64 {
        self.base_ns[0].min(self.base_ns[1])
    }

    fn beyond_base_ns(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.base())
    }

    fn queue_ns(&self) -> u64 {
        self.beyond_base_ns(self.recent_ns)
    }
}

/// Share of the last hundred blocks or so that was lost.
#[derive(Clone, Copy, Debug)]
struct LossRate(u32);

impl LossRate {
    fn arrived(&mut self) {
        self.0 -= self.0 / 128;
    }

    fn lost(&mut self) {
        self.0 += (WHOLE - self.0) / 128;
    }

    /// Takes the latest [`Self::lost`] back.
    fn not_lost(&mut self) {
        self.0 = self.0.saturating_sub((WHOLE - self.0) / 127);
    }

    fn permille(self) -> u32 {
        self.0 * 1000 / WHOLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_shrinks_once_per_round_trip_and_only_if_much_is_lost() {
        let mut window = Congestion::new(Some(CongestionConfig::default()));
        let before = window.window_bytes();
        window.lost(Time(1000), Time(10));
        assert_eq!(window.window_bytes(), before, "a single loss without delay");
        for _ in 0..10 {
            window.lost(Time(1000), Time(10));
        }
        let after = window.window_bytes();
        assert_eq!(after, before / 10 * 7);
        window.lost(Time(1010), Time(20));
        assert_eq!(window.window_bytes(), after);
        window.lost(Time(2000), Time(1500));
        assert!(window.window_bytes() < after);
    }

    #[test]
    fn the_second_silence_in_a_row_leaves_the_minimum() {
        let mut window = Congestion::new(Some(CongestionConfig::default()));
        let before = window.window_bytes();
        window.timed_out(Time(3000), Time(2500));
        assert_eq!(window.window_bytes(), before / 10 * 7);
        window.timed_out(Time(3000), Time(2600));
        assert_eq!(window.window_bytes(), before / 10 * 7, "the same silence");
        window.timed_out(Time(9000), Time(4000));
        assert_eq!(window.window_bytes(), CongestionConfig::default().min_bytes / 2);
    }

    #[test]
    fn after_a_silence_the_window_doubles_up_to_where_it_was() {
        let mut window = Congestion::new(Some(CongestionConfig::default()));
        let before = window.window_bytes();
        for start in [0, 10_000, 20_000] {
            window.timed_out(Time(start + 9000), Time(start + 4000));
        }
        assert_eq!(window.threshold_bytes, before / 10 * 7);
        let mut now = Time(100_000);
        while window.window_bytes() < before / 10 * 7 {
            let bytes = window.window_bytes();
            now = now.after_ns(100_000);
            window.acknowledged(now, bytes, bytes, Some(100_000));
            assert!(window.window_bytes() >= 2 * bytes, "not doubled from {bytes}");
        }
        // The next silence is another one.
        let before = window.window_bytes();
        window.timed_out(now.after_ns(9000), now.after_ns(4000));
        assert_eq!(window.threshold_bytes, before / 10 * 7);
    }

    #[test]
    fn a_light_stream_without_pauses_does_not_keep_a_large_window() {
        let config = CongestionConfig::default();
        let mut window = Congestion::new(Some(config));
        let mut now = Time(0);
        while window.window_bytes() < 4 * config.initial_bytes {
            let bytes = window.window_bytes();
            now = now.after_ns(100_000);
            window.acknowledged(now, bytes, bytes, Some(100_000));
        }
        let before = window.window_bytes();
        for minute in [false, true] {
            let end = now.after_ns(if minute { 60_000_000_000 } else { config.memory_ns / 2 });
            while now < end {
                // The next block is sent before the previous one is answered.
                now = now.after_ns(1_000_000);
                window.sent(now, 64);
                window.acknowledged(now, 64, 128, Some(100_000));
            }
            let left = if minute { config.initial_bytes } else { before };
            assert_eq!(window.window_bytes(), left, "a minute: {minute}");
        }
        assert_eq!(window.threshold_bytes, before, "it doubles when it is needed");
    }

    #[test]
    fn what_was_no_loss_is_taken_back() {
        let mut window = Congestion::new(Some(CongestionConfig::default()));
        let before = window.window_bytes();
        // Two silences without an answer between, the first block being late.
        window.timed_out(Time(3000), Time(2500));
        window.timed_out(Time(9000), Time(4000));
        assert!(window.window_bytes() < before);
        window.not_lost(Time(2500));
        assert_eq!((window.window_bytes(), window.loss.permille()), (before, LossRate(512).permille()));
        // A block sent before the one taken for lost, or after recovery began, restores nothing.
        window.timed_out(Time(20_000), Time(15_000));
        let after = window.window_bytes();
        window.not_lost(Time(14_000));
        window.not_lost(Time(30_000));
        assert_eq!(window.window_bytes(), after);
        let mut loss = LossRate(WHOLE / 3);
        loss.lost();
        loss.not_lost();
        assert!(loss.0.abs_diff(WHOLE / 3) <= 1);
    }

    #[test]
    fn without_configuration_it_never_limits() {
        let mut window = Congestion::new(None);
        window.timed_out(Time(3000), Time(2500));
        window.sent(Time(1 << 50), 0);
        assert_eq!(window.window_bytes(), u64::MAX);
    }

    #[test]
    fn no_configuration_is_too_odd() {
        for number in [0, 1, 2, 1 << 20, u64::MAX] {
            let config = CongestionConfig {
                initial_bytes: number,
                min_bytes: number,
                max_bytes: number,
                step_bytes: number,
                target_ns: number,
                small_target_ns: number,
                queue_bytes: number,
                near_queue_bytes: number,
                near_ns: number,
                patient_bytes: number,
                standing_ns: number,
                look_ns: number,
                memory_ns: number,
                loss_permille: number as u32,
            };
            let mut window = Congestion::new(Some(config));
            for round in 0..1000_u64 {
                let now = Time(round * 1_000_000);
                window.sent(now, 0);
                window.acknowledged(now, 1 << 14, 1 << 20, Some(1 + round % 7 * 1_000_000));
                match round % 5 {
                    0 => window.lost(now, now),
                    1 => window.timed_out(now, now),
                    _ => {}
                }
                assert!((1..=MAX_WINDOW_BYTES).contains(&window.window_bytes()), "{number}");
            }
        }
    }

    #[test]
    fn no_delay_is_too_long_to_count_with() {
        let mut window = Congestion::new(Some(CongestionConfig::default()));
        for number in 1..1000_u64 {
            window.acknowledged(Time(u64::MAX / 1000 * number), 1 << 14, 1 << 30, Some(u64::MAX / number));
        }
        assert!(window.window_bytes() >= CongestionConfig::default().min_bytes / 2);
    }
}
