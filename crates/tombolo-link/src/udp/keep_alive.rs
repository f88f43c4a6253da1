//! Whether the peer is still there: asking after silence, suspecting it, giving up after asking in vain.
//!
//! ```text
//!            300 ms          1.5 s                     outage
//!  heard ──────┬───────────────┬──────────────────────────┬──────►
//!              │ pings, each   │ suspect: a pause, pings  │ lost
//!              │ 300 ms        │ go on                    │
//! ```
//!
//! Each side measures by its own clock. The connecting side says in its pings how long it waits, and the
//! listening side waits at least as long: the one that connected decides when the session ends, and what the
//! other holds for it is there until then. A side that hears nothing says so in its pings, so that both sides
//! pause also where only one direction is cut.
//!
//! Sans-I/O: it is given the time and what was heard, and says what to do.

use std::time::{Duration, Instant};
use tombolo_host::timing::link::{MAX_OUTAGE, PING_AFTER, SUSPECT_AFTER};

/// The number of pings that must have gone unanswered before a peer is lost, so that a node that was itself stopped for a while
/// does not blame the peer.
const MIN_UNANSWERED: u32 = 4;

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Quiet,
    /// Ask for a sign of life.
    Ping,
    /// Give up; nothing was heard for this long.
    Silent(Duration),
}

/// Which end of the session this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It says how long it waits, until the other side has repeated that.
    Connecting,
    /// It waits at least as long as the other side has said.
    Listening,
}

#[derive(Debug)]
pub(super) struct KeepAlive {
    end: End,
    /// How long this side itself wants to wait.
    own_outage: Duration,
    /// What the connecting side has said (at the listening side), or what was repeated to it.
    said_outage: Option<Duration>,
    asked: Instant,
    /// When we last found that something was.
    heard: Instant,
    unanswered: u32,
    /// Its last ping said that nothing of ours arrives there, and it has answered none of ours since.
    is_unheard: bool,
    /// When that was first seen.
    unheard_since: Option<Instant>,
}

impl KeepAlive {
    pub(super) fn new(end: End, own_outage: Duration, now: Instant) -> Self {
        Self {
            end,
            own_outage,
            said_outage: None,
            asked: now,
            heard: now,
            unanswered: 0,
            is_unheard: false,
            unheard_since: None,
        }
    }

    /// How long this side wants to wait from now on. True: the other side is to hear of that.
    pub(super) fn set_outage(&mut self, outage: Duration) -> bool {
        // Pings say it in milliseconds.
        let outage = Duration::from_millis(outage.min(MAX_OUTAGE).as_millis() as u64);
        self.own_outage = outage.clamp(SUSPECT_AFTER, MAX_OUTAGE);
        self.must_say()
    }

    /// Silence after which the peer is lost.
    fn outage(&self) -> Duration {
        match self.end {
            End::Connecting => self.own_outage,
            End::Listening => self.own_outage.max(self.said_outage.unwrap_or_default()),
        }
    }

    /// What a ping says of the outage.
    pub(super) fn outage_to_say(&self) -> Option<Duration> {
        (self.end == End::Connecting).then_some(self.own_outage)
    }

    /// A ping came. `unheard`: its sender hears nothing of us.
    pub(super) fn pinged(&mut self, outage: Option<Duration>, unheard: bool) {
        if self.end == End::Listening && outage.is_some() {
            self.said_outage = outage.map(|outage| outage.min(MAX_OUTAGE));
        }
        self.is_unheard = unheard;
    }

    /// A ping of ours was answered, with what it had said of the outage.
    pub(super) fn ponged(&mut self, outage: Option<Duration>) {
        self.is_unheard = false;
        if self.end == End::Connecting {
            self.said_outage = outage;
        }
    }

    /// Whether the other side may not know yet how long this one waits.
    fn must_say(&self) -> bool {
        self.end == End::Connecting && self.said_outage != Some(self.own_outage)
    }

    fn is_silent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) >= SUSPECT_AFTER && self.unanswered >= MIN_UNANSWERED
    }

    /// Whether nothing passes now, in one direction at least, as found at the last `tick`.
    pub(super) fn is_suspect(&self, now: Instant) -> bool {
        self.is_silent(now) || self.is_unheard
    }

    /// Whether a ping is to say that nothing is heard.
    pub(super) fn hears_nothing(&self, now: Instant) -> bool {
        self.is_silent(now)
    }

    /// What to do, and when to call again at the latest. Whether something was heard since the last time is
    /// all that is asked: to note when costs more than to receive it.
    pub(super) fn tick(&mut self, now: Instant, heard: bool) -> (Verdict, Instant) {
        if heard {
            self.heard = now;
            self.unanswered = 0;
        }
        let silence = now.saturating_duration_since(self.heard);
        if silence >= self.outage() && self.unanswered >= MIN_UNANSWERED {
            return (Verdict::Silent(self.outage()), now + PING_AFTER);
        }
        // Heard, and not hearing: nothing passes either.
        self.unheard_since = if self.is_unheard { self.unheard_since.or(Some(now)) } else { None };
        if self.unheard_since.is_some_and(|since| now.saturating_duration_since(since) >= self.outage()) {
            return (Verdict::Silent(self.outage()), now + PING_AFTER);
        }
        let since = if self.must_say() || self.is_unheard { self.asked } else { self.asked.max(self.heard) };
        let ask_at = since + PING_AFTER;
        if now < ask_at {
            return (Verdict::Quiet, self.next(ask_at, now));
        }
        self.asked = now;
        self.unanswered = self.unanswered.saturating_add(1);
        (Verdict::Ping, self.next(now + PING_AFTER, now))
    }

    fn next(&self, ask_at: Instant, now: Instant) -> Instant {
        if self.unanswered < MIN_UNANSWERED {
            return ask_at;
        }
        let changes = [SUSPECT_AFTER, self.outage()].map(|silence| self.heard + silence);
        changes.into_iter().filter(|at| *at > now).fold(ask_at, Instant::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTAGE: Duration = Duration::from_secs(10);

    /// Nothing is heard from `now` on: when it is suspect, when it is lost, and how often it was asked.
    fn silence(keep_alive: &mut KeepAlive, start: Instant) -> (Duration, Duration, u32) {
        let (mut now, mut pings, mut suspect) = (start, 0, None);
        loop {
            let (verdict, next) = keep_alive.tick(now, false);
            if keep_alive.is_suspect(now) && suspect.is_none() {
                suspect = Some(now - start);
            }
            match verdict {
                Verdict::Ping => pings += 1,
                Verdict::Quiet => {}
                Verdict::Silent(duration) => {
                    assert_eq!(duration, now - start);
                    return (suspect.unwrap(), now - start, pings);
                }
            }
            assert!(next > now);
            now = next;
        }
    }

    #[test]
    fn it_asks_every_300_ms_suspects_after_1500_and_gives_up_after_the_outage() {
        let start = Instant::now();
        for outage in [OUTAGE, SUSPECT_AFTER, Duration::from_secs(60)] {
            let mut keep_alive = KeepAlive::new(End::Listening, outage, start);
            let pings = (outage.as_millis() / 300) as u32;
            let expected = (SUSPECT_AFTER, outage, pings);
            let (suspect, lost, asked) = silence(&mut keep_alive, start);
            assert_eq!((suspect, lost), (expected.0, expected.1));
            assert!(asked.abs_diff(expected.2) <= 1, "{asked} pings in {outage:?}");
        }
    }

    #[test]
    fn an_answer_starts_it_anew_and_a_stopped_node_asks_first() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::new(End::Listening, OUTAGE, start);
        let late = start + Duration::from_secs(60);
        assert_eq!(keep_alive.tick(late, false).0, Verdict::Ping);
        assert!(!keep_alive.is_suspect(late));
        let heard = late + Duration::from_millis(10);
        let (verdict, next) = keep_alive.tick(heard, true);
        assert_eq!(verdict, Verdict::Quiet);
        assert_eq!(next, heard + PING_AFTER);
        // A suspect peer that is heard again is no longer suspect.
        let mut now = heard;
        while !keep_alive.is_suspect(now) {
            now = keep_alive.tick(now, false).1;
        }
        keep_alive.tick(now, true);
        assert!(!keep_alive.is_suspect(now));
    }

    #[test]
    fn the_connecting_side_decides_how_long_the_session_lives() {
        let start = Instant::now();
        let lost_after = |own: u64, said: u64| {
            let mut listening = KeepAlive::new(End::Listening, Duration::from_secs(own), start);
            listening.pinged(Some(Duration::from_secs(said)), false);
            silence(&mut listening, start).1.as_secs()
        };
        assert_eq!([lost_after(10, 60), lost_after(60, 10), lost_after(10, 2)], [60, 60, 10]);
        let mut connecting = KeepAlive::new(End::Connecting, Duration::from_secs(5), start);
        connecting.pinged(Some(Duration::from_secs(60)), false);
        assert_eq!(silence(&mut connecting, start).1.as_secs(), 5);
        // However long an outage a peer asks for, the link is lost in the end.
        let mut listening = KeepAlive::new(End::Listening, OUTAGE, start);
        listening.pinged(Some(Duration::MAX), false);
        assert_eq!(silence(&mut listening, start).1, MAX_OUTAGE);
    }

    #[test]
    fn the_outage_is_said_until_it_is_repeated() {
        let start = Instant::now();
        let mut connecting = KeepAlive::new(End::Connecting, OUTAGE, start);
        let (mut now, mut pings) = (start, 0);
        // Packets come all the time.
        for _ in 0..10 {
            now += PING_AFTER;
            pings += u32::from(connecting.tick(now, true).0 == Verdict::Ping);
        }
        assert_eq!(pings, 10);
        connecting.ponged(Some(OUTAGE));
        assert_eq!(connecting.tick(now + PING_AFTER, true).0, Verdict::Quiet);
        assert!(!connecting.set_outage(OUTAGE) && connecting.set_outage(OUTAGE * 2));
        assert_eq!(connecting.tick(now + PING_AFTER, true).0, Verdict::Ping, "it has changed");
    }

    #[test]
    fn where_only_one_direction_is_cut_both_sides_pause() {
        let now = Instant::now();
        let mut one = KeepAlive::new(End::Listening, OUTAGE, now);
        one.pinged(None, true);
        assert!(one.is_suspect(now));
        // It asks, to learn when that is over, though it hears the other.
        assert_eq!(one.tick(now + PING_AFTER, true).0, Verdict::Ping);
        one.ponged(None);
        assert!(!one.is_suspect(now + PING_AFTER));
    }
}
