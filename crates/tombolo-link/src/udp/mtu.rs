//! Path MTU discovery: how large a datagram may be, found out and kept true while the link lives.
//!
//! In the way of DPLPMTUD (RFC 8899): the only proof that a size passes is a padded datagram of that
//! size, a *probe*, whose arrival the peer says. What routers and the kernel say are hints, of which
//! size to try first, or to look again.
//!
//! ```text
//!  base size ──► search ── nothing larger passes ──► settled
//!              ▲   │  ▲                               │   │
//!     a probe  └───┘  └──────── some minutes ─────────┘   │
//!     arrives: its    ▲                                   │
//!     size is used    └─── base size: what is used passes no more, or the kernel refuses it
//! ```
//!
//! Right behind each probe goes a small one, its *witness*. Its answer without the probe's says that
//! the probe was lost, and not that the peer or the network is slow; neither's answer says nothing, and
//! both go again. A probe that is lost [`LOST_PROBES`] times, with its witnesses heard, is too large. Nothing is
//! concluded about congestion.
//!
//! While datagrams travel that not every host takes, the largest of them is checked in the same way; an
//! idle link sends nothing. Where a queue is full, small ones pass more easily than large ones: so each
//! answer also says how large a datagram has arrived lately, which is as good as a probe. Between two
//! ends on one machine nothing is checked: queues are full there at any time, and the kernel says at once
//! what it does not take.
//!
//! Sans-I/O: told the time and what came, it says what to send.

use std::time::{Duration, Instant};
use tombolo_host::timing::link::{
    MTU_CHECK_INTERVAL, MTU_PROBE_LATENESS, MTU_PROBE_TIMEOUT, MTU_RECOVERY_PAUSE,
};

/// UDP payload that every route carries which IPv6 may use.
const BASE_BYTES: usize = 1200;
/// The size where even that does not pass: the least that every host takes, less headers.
pub(super) const FLOOR_BYTES: usize = 528;
/// No size is below: witnesses are smaller.
const MIN_BYTES: usize = 128;

/// MTUs of common networks and tunnels, and some between, that a search tries.
const COMMON_MTUS: [usize; 24] = [
    1280, 1300, 1340, 1380, 1400, 1420, 1440, 1450, 1460, 1472, 1480, 1492, 1500, 2044, 3000, 4092, 4352,
    6000, 8000, 8900, 9000, 9216, 12_000, 16_384,
];

/// A probe that was lost this many times in a row is too large.
const LOST_PROBES: u32 = 4;

/// What a probe is to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// A larger size passes.
    Larger,
    /// The size in use still passes.
    Used,
}

/// A probe to send, padded to its size, and its witness after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) struct Probe {
    /// The number of both.
    pub(super) id: u32,
    pub(super) bytes: usize,
}

/// A size whose probes are on their way.
#[derive(Debug)]
struct Probing {
    goal: Goal,
    bytes: usize,
    /// The numbers of its probes so far.
    ids: (u32, u32),
    sent: Instant,
    pause: Duration,
    /// When a witness was heard that has not been judged yet.
    witnessed: Option<Instant>,
    /// The number of the last witness heard.
    heard_id: Option<u32>,
    lost: u32,
}

impl Probing {
    /// How many numbers before the first it is; None: not one of them.
    fn place(&self, id: u32) -> Option<u32> {
        let place = id.wrapping_sub(self.ids.0);
        (place <= self.ids.1.wrapping_sub(self.ids.0)).then_some(place)
    }
}

/// A search for a larger size.
#[derive(Debug)]
struct Search {
    /// The smallest size that does not pass, as far as known.
    too_large: usize,
    /// The size that the kernel has for the route was tried.
    hinted: bool,
}

/// What a link knows about its path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    /// What the kernel thinks that the route takes.
    pub(super) route_bytes: usize,
    /// Larger datagrams are of no use.
    pub(super) useful_bytes: usize,
    /// What IP and UDP put before a datagram.
    pub(super) headers_bytes: usize,
    /// Both ends are on this machine, as the kernel says.
    pub(super) local: bool,
    /// How long the size stays before a larger one is looked for again.
    pub(super) probe_again: Duration,
}

/// The size of datagrams, in bytes of UDP payload.
#[derive(Debug)]
pub(super) struct PathMtu {
    /// Sizes worth trying, ascending.
    sizes: Vec<usize>,
    floor: usize,
    base: usize,
    /// Larger datagrams are of no use.
    useful: usize,
    present: usize,
    probing: Option<Probing>,
    search: Option<Search>,
    /// When to search again, once settled.
    search_at: Instant,
    /// The next pause before that.
    pause: Duration,
    probe_again: Duration,
    /// The largest datagram that went since the last check, and may not pass any more; or 0.
    used: usize,
    local: bool,
    check_at: Instant,
    next_id: u32,
}

impl PathMtu {
    pub(super) fn new(path: Path, now: Instant) -> Self {
        let Path { route_bytes, useful_bytes, headers_bytes, local, probe_again } = path;
        let most = useful_bytes.max(MIN_BYTES);
        let route = route_bytes.clamp(MIN_BYTES, most);
        let (floor, base) = (route.min(FLOOR_BYTES), route.min(BASE_BYTES));
        let common = COMMON_MTUS.iter().map(|mtu| mtu.saturating_sub(headers_bytes));
        let mut sizes: Vec<usize> = common.chain([BASE_BYTES, most]).filter(|size| *size <= most).collect();
        sizes.sort_unstable();
        let search = (!local).then_some(Search { too_large: most + 1, hinted: false });
        Self {
            sizes,
            floor,
            base,
            useful: most,
            present: if local { route } else { base },
            probing: None,
            search,
            search_at: now + probe_again,
            pause: probe_again,
            probe_again,
            used: 0,
            local,
            check_at: now,
            next_id: 0,
        }
    }

    /// How large datagrams may be now.
    pub(super) fn present(&self) -> usize {
        self.present
    }

    /// The next probe to send, if any. Call after every other event, and when the deadline has passed;
    /// `route` says what the kernel thinks that the route takes now.
    pub(super) fn poll(&mut self, now: Instant, route: &dyn Fn() -> Option<usize>) -> Option<Probe> {
        if let Some(probing) = &mut self.probing {
            if probing.witnessed.is_some_and(|heard| now >= heard + MTU_PROBE_LATENESS) {
                (probing.witnessed, probing.pause) = (None, MTU_PROBE_TIMEOUT.0);
                probing.lost += 1;
                if probing.lost < LOST_PROBES {
                    return self.send(now);
                }
            } else if probing.witnessed.is_none() && now >= probing.sent + probing.pause {
                probing.pause = (probing.pause * 2).min(MTU_PROBE_TIMEOUT.1);
                return self.send(now);
            } else {
                return None;
            }
            let (goal, bytes) = (probing.goal, probing.bytes);
            self.probing = None;
            self.does_not_pass(goal, bytes);
        }
        let (goal, bytes) = self.next_probe(now, route)?;
        self.probing = Some(Probing {
            goal,
            bytes,
            ids: (self.next_id, self.next_id),
            sent: now,
            pause: MTU_PROBE_TIMEOUT.0,
            witnessed: None,
            heard_id: None,
            lost: 0,
        });
        self.send(now)
    }

    /// When to call `poll` at the latest, without an event before.
    pub(super) fn deadline(&self, now: Instant) -> Instant {
        match &self.probing {
            // Its answers do not wake the thread that runs the timers.
            Some(probing) => match probing.witnessed {
                Some(heard) => heard + MTU_PROBE_LATENESS,
                None => (probing.sent + probing.pause).min(now + MTU_PROBE_LATENESS),
            },
            None if self.search.is_some() => now,
            None if self.used > 0 => self.search_at.min(self.check_at),
            None => self.search_at,
        }
    }

    /// A datagram with packets went.
    pub(super) fn sent(&mut self, bytes: usize) {
        if bytes > self.floor && !self.local {
            self.used = self.used.max(bytes.min(self.present));
        }
    }

    /// The network says that a datagram was too large. Anyone can say that: the size is checked.
    pub(super) fn hinted(&mut self) {
        self.sent(self.present);
    }

    /// The peer says that a probe, or its witness, of that size has arrived, and what the largest datagram
    /// was since it last said that. False: of no probe that is on its way.
    pub(super) fn arrived(&mut self, id: u32, bytes: usize, largest: usize, now: Instant) -> bool {
        let Some(probing) = &mut self.probing else { return false };
        let Some(place) = probing.place(id).filter(|_| bytes <= probing.bytes) else { return false };
        if bytes == probing.bytes || largest >= probing.bytes {
            if probing.goal == Goal::Larger {
                self.present = probing.bytes;
            }
            self.probing = None;
            (self.used, self.check_at) = (0, now + MTU_CHECK_INTERVAL);
            return true;
        }
        let again =
            probing.heard_id.and_then(|heard| probing.place(heard)).is_some_and(|heard| place <= heard);
        if again || bytes >= MIN_BYTES {
            return false;
        }
        probing.heard_id = Some(id);
        probing.witnessed.get_or_insert(now);
        true
    }

    /// The kernel does not take datagrams of that size.
    pub(super) fn refused(&mut self, bytes: usize) {
        self.probing.take_if(|probing| probing.bytes >= bytes);
        while self.present >= bytes && self.present > MIN_BYTES {
            if self.present <= self.floor {
                self.floor = (self.floor / 2).max(MIN_BYTES);
            }
            self.fall_below(self.present);
        }
        if let Some(search) = &mut self.search {
            search.too_large = search.too_large.min(bytes);
        }
    }

    fn send(&mut self, now: Instant) -> Option<Probe> {
        let probing = self.probing.as_mut()?;
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        (probing.ids.1, probing.sent) = (id, now);
        Some(Probe { id, bytes: probing.bytes })
    }

    /// The next probe.
    fn next_probe(&mut self, now: Instant, route: &dyn Fn() -> Option<usize>) -> Option<(Goal, usize)> {
        if self.used > 0 && now >= self.check_at {
            self.check_at = now + MTU_CHECK_INTERVAL;
            return Some((Goal::Used, std::mem::take(&mut self.used)));
        }
        if now >= self.search_at && self.search.is_none() {
            self.begin_search();
        }
        let larger = self.larger(route);
        if larger.is_none() && self.search.take().is_some() {
            self.search_at = now + self.pause;
            self.pause = (self.pause * 2).min(self.probe_again);
        }
        larger.map(|bytes| (Goal::Larger, bytes))
    }

    /// The next size of a search: what the route is said to take, then the middle of those left.
    fn larger(&mut self, route: &dyn Fn() -> Option<usize>) -> Option<usize> {
        let search = self.search.as_mut()?;
        let (present, too_large) = (self.present, search.too_large);
        let fits = |size: &usize| *size > present && *size < too_large;
        if !std::mem::replace(&mut search.hinted, true)
            && let Some(hint) = route().map(|hint| hint.min(self.useful)).filter(fits)
        {
            return Some(hint);
        }
        let left = self.sizes.iter().filter(|size| fits(size));
        left.clone().nth(left.count() / 2).copied()
    }

    fn does_not_pass(&mut self, goal: Goal, bytes: usize) {
        match (goal, &mut self.search) {
            (Goal::Larger, Some(search)) => search.too_large = search.too_large.min(bytes),
            (Goal::Larger, None) => {}
            (Goal::Used, _) => self.fall_below(bytes),
        }
    }

    /// The size to fall back to from one.
    fn below(&self, size: usize) -> usize {
        if size > self.base { self.base } else { self.floor }
    }

    /// Falls back to a size below this one, or to the floor.
    fn fall_below(&mut self, bytes: usize) {
        let before = self.present;
        while self.present >= bytes && self.present > self.floor {
            self.present = self.below(self.present);
        }
        if self.present < before {
            (self.used, self.pause) = (0, MTU_RECOVERY_PAUSE.min(self.probe_again));
            self.begin_search();
        }
    }

    fn begin_search(&mut self) {
        self.search = Some(Search { too_large: self.useful + 1, hinted: false });
    }
}

#[cfg(test)]
mod tests;
