//! Whether the peer is still there: asking after silence, giving up after asking in vain.
//!
//! Sans-I/O: told the time and whether something was heard, it says what to do.

use std::time::{Duration, Instant};

/// Silence, or time since the last question, after which to ask.
pub(super) const PING_AFTER: Duration = Duration::from_millis(300);
/// Silence after which the peer is lost.
pub(super) const LOST_AFTER: Duration = Duration::from_millis(1500);
/// Questions that must have gone unanswered, so that a node that was itself stopped for a while
/// does not blame the peer.
const MIN_UNANSWERED: u32 = 4;

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Quiet,
    /// Ask for a sign of life.
    Ping,
    /// Give up; so long nothing was heard.
    Silent(Duration),
}

#[derive(Debug)]
pub(super) struct KeepAlive {
    asked: Instant,
    /// When we last found that something was.
    heard: Instant,
    unanswered: u32,
}

impl KeepAlive {
    pub(super) fn new(now: Instant) -> Self {
        Self { asked: now, heard: now, unanswered: 0 }
    }

    /// What to do, and when to call again at the latest. Whether something was heard since the last time is
    /// all that is asked: to note when costs more than to receive it.
    pub(super) fn tick(&mut self, now: Instant, heard: bool) -> (Verdict, Instant) {
        if heard {
            self.heard = now;
            self.unanswered = 0;
        }
        let silence = now.saturating_duration_since(self.heard);
        if silence >= LOST_AFTER && self.unanswered >= MIN_UNANSWERED {
            return (Verdict::Silent(LOST_AFTER), now + PING_AFTER);
        }
        let ask_at = self.asked.max(self.heard) + PING_AFTER;
        if now < ask_at {
            return (Verdict::Quiet, self.next(ask_at, now));
        }
        self.asked = now;
        self.unanswered += 1;
        (Verdict::Ping, self.next(now + PING_AFTER, now))
    }

    fn next(&self, ask_at: Instant, now: Instant) -> Instant {
        let lost_at = self.heard + LOST_AFTER;
        if self.unanswered >= MIN_UNANSWERED && lost_at > now { ask_at.min(lost_at) } else { ask_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_every_300_ms_and_gives_up_after_1500() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::new(start);
        let mut now = start;
        let mut pings = 0;
        loop {
            let (verdict, next) = keep_alive.tick(now, false);
            match verdict {
                Verdict::Ping => pings += 1,
                Verdict::Quiet => {}
                Verdict::Silent(_) => break,
            }
            assert!(next > now);
            now = next;
        }
        assert_eq!(now - start, LOST_AFTER);
        assert_eq!(pings, 4);
    }

    #[test]
    fn an_answer_starts_it_anew_and_a_stopped_node_asks_first() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::new(start);
        let late = start + Duration::from_secs(60);
        assert_eq!(keep_alive.tick(late, false).0, Verdict::Ping);
        let heard = late + Duration::from_millis(10);
        let (verdict, next) = keep_alive.tick(heard, true);
        assert_eq!(verdict, Verdict::Quiet);
        assert_eq!(next, heard + PING_AFTER);
    }
}
