//! What a port costs the thread that writes frames to it.
//!
//! A kernel takes a frame through the filters and the firewall of its receiver while it is written, in the thread that writes.
//! Whoever has a port makes those as long as they like: ten thousand rules take a millisecond a frame, during which no other
//! port is served. So a port whose frames take too much of the thread's time is written to by another thread, until that
//! was quick for some time.
//!
//! ```text
//!   direct ─► watched: a frame has taken longer than is usual
//!          ◄─ none has for WATCH_NS
//!   watched ─► aside: it has cost EXCESS_MAX_NS of processor time beyond what frames usually cost, and what it may go on
//!                     costing
//!           ◄─ nothing of it has taken long for its time, which doubles each time it comes back soon
//! ```
//!
//! A frame takes long also where other programs keep the processors busy. So the thread's processor time is measured, which
//! costs more than to look at the clock, and therefore of watched ports only.

use super::scheduler::PortId;

/// What any frame may take. (A short one takes 1 to 4 µs here, and one that wakes a program 10.)
const USUAL_NS: u64 = 20_000;
/// Bytes that take a nanosecond more each: copying a segment takes less than half of that.
const BYTES_PER_NS: u64 = 1;
/// A port may cost a part of the thread's time beyond what is usual: one of so many. The thread itself is interrupted, too.
const EXCESS_PARTS: u64 = 20;
/// How much of that may come at once.
pub const EXCESS_MAX_NS: u64 = 10_000_000;
/// How long a port is watched after a frame has taken long.
pub const WATCH_NS: u64 = 1_000_000_000;
/// How long a port is written to aside, the first time.
pub const ASIDE_MIN_NS: u64 = 1_000_000_000;
/// How long, whenever it was slow again.
pub const ASIDE_MAX_NS: u64 = 64_000_000_000;

/// What a frame of this length may take.
pub fn usual_ns(bytes: usize) -> u64 {
    USUAL_NS + bytes as u64 / BYTES_PER_NS
}

#[derive(Clone, Copy, Debug)]
struct Port {
    watched_until_ns: u64,
    /// What it has cost beyond the usual, less what it may go on costing, at this time.
    excess_ns: u64,
    at_ns: u64,
    /// It is written to aside until then.
    aside_until_ns: u64,
    /// For how long it is the next time.
    aside_ns: u64,
}

/// What all ports cost.
#[derive(Debug, Default)]
pub struct Effort(Vec<Option<Port>>);

impl Effort {
    fn port(&mut self, now_ns: u64, id: PortId) -> Option<&mut Port> {
        let index = usize::from(id.0);
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        let new = Port {
            watched_until_ns: 0,
            excess_ns: 0,
            at_ns: now_ns,
            aside_until_ns: 0,
            aside_ns: ASIDE_MIN_NS,
        };
        self.0.get_mut(index).map(|place| place.get_or_insert(new))
    }

    /// Whether [`Effort::spent`] is to be told the processor time of what is written to a port now; else
    /// [`Effort::took`] is told the time.
    pub fn is_watched(&self, now_ns: u64, id: PortId) -> bool {
        let port = self.0.get(usize::from(id.0)).and_then(Option::as_ref);
        port.is_some_and(|port| now_ns < port.watched_until_ns)
    }

    /// A frame of so many bytes was written to a port, at which others may have kept the thread from going on.
    pub fn took(&mut self, now_ns: u64, id: PortId, bytes: usize, took_ns: u64) {
        if took_ns > usual_ns(bytes)
            && let Some(port) = self.port(now_ns, id)
        {
            port.watched_until_ns = now_ns + WATCH_NS;
        }
    }

    /// A frame of so many bytes was written to a port, which has cost so much of a thread's processor time. True: the port is
    /// to be written to aside from now on.
    pub fn spent(&mut self, now_ns: u64, id: PortId, bytes: usize, cost_ns: u64) -> bool {
        let excess_ns = cost_ns.saturating_sub(usual_ns(bytes));
        if excess_ns == 0 {
            return false;
        }
        let Some(port) = self.port(now_ns, id) else { return false };
        port.watched_until_ns = now_ns + WATCH_NS;
        let passed_ns = now_ns.saturating_sub(port.at_ns);
        port.at_ns = now_ns;
        port.excess_ns = port.excess_ns.saturating_sub(passed_ns / EXCESS_PARTS) + excess_ns;
        if now_ns < port.aside_until_ns {
            port.aside_until_ns = now_ns + port.aside_ns;
            return false;
        }
        if port.excess_ns <= EXCESS_MAX_NS {
            return false;
        }
        // One that was quick for as long as the longest pause is as a new one.
        let was_long_ago = now_ns.saturating_sub(port.aside_until_ns) > ASIDE_MAX_NS;
        port.aside_ns = if port.aside_until_ns == 0 || was_long_ago {
            ASIDE_MIN_NS
        } else {
            (2 * port.aside_ns).min(ASIDE_MAX_NS)
        };
        port.excess_ns = 0;
        port.aside_until_ns = now_ns + port.aside_ns;
        true
    }

    /// Whether a port is to be written to aside.
    pub fn is_aside(&self, now_ns: u64, id: PortId) -> bool {
        let port = self.0.get(usize::from(id.0)).and_then(Option::as_ref);
        port.is_some_and(|port| now_ns < port.aside_until_ns)
    }

    /// A port has gone: the next of its number is another one.
    pub fn remove(&mut self, id: PortId) {
        if let Some(place) = self.0.get_mut(usize::from(id.0)) {
            *place = None;
        }
    }
}
