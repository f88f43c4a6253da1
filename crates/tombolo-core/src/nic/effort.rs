//! What a port costs the thread that writes frames to it.
//!
//! While a frame is written, the kernel takes it through the receiver's filters and firewall, in the thread that writes. The
//! user of a port can make these as long as it likes: twenty thousand filters take 160 µs a frame, during which no other port
//! is served. So a port whose frames take too much of the thread's time is written to *aside*: by another thread, until its
//! frames have been quick for some time.
//!
//! ```text
//!   direct ─► watched: a frame has taken longer than is usual
//!          ◄─ none has for WATCH_NS
//!   watched ─► aside: it has cost EXCESS_MAX_NS of processor time beyond what frames usually cost, and what it may go on
//!                     costing; or all ports together have cost EXCESS_OF_ALL_MAX_NS, and it no less than the others
//!           ◄─ nothing of it has taken long for its time, which doubles each time it comes back soon
//! ```
//!
//! A frame also takes long while other programs keep the processors busy. So what counts is the thread's processor time.
//! Measuring it costs more than reading the clock, so it is measured for watched ports only.

use super::scheduler::PortId;

/// Time that any frame may take. Measured with iperf3, eight flows of TCP: of 960,000 short frames, 65 % take 1 to 2 µs, 1.8 %
/// more than 16 µs (an acknowledgement makes its receiver send) and 0.08 % more than 64 µs. Of 400,000 segments, 0.4 % take
/// more than 64 µs.
const USUAL_NS: u64 = 100_000;
/// Number of bytes for which a frame may take a nanosecond more. Copying a segment takes less than half of that time.
const BYTES_PER_NS: u64 = 1;
/// A port may cost one part in `EXCESS_PARTS` of the thread's time beyond what is usual, since the thread itself is
/// interrupted, too.
const EXCESS_PARTS: u64 = 20;
/// How much of that time a port may cost at once.
pub const EXCESS_MAX_NS: u64 = 10_000_000;
/// All ports together may cost one part in `EXCESS_OF_ALL_PARTS` of the thread's time beyond what is usual.
const EXCESS_OF_ALL_PARTS: u64 = 10;
/// How much of that time all ports together may cost at once.
pub const EXCESS_OF_ALL_MAX_NS: u64 = 2 * EXCESS_MAX_NS;
/// How long a port is watched after a frame has taken long.
pub const WATCH_NS: u64 = 1_000_000_000;
/// How long a port is written to aside, the first time.
pub const ASIDE_MIN_NS: u64 = 1_000_000_000;
/// The longest time that a port is written to aside: the time doubles each time that the port is slow again.
pub const ASIDE_MAX_NS: u64 = 64_000_000_000;

/// Time that a frame of this length may take.
pub fn usual_ns(bytes: usize) -> u64 {
    USUAL_NS + bytes as u64 / BYTES_PER_NS
}

/// Time spent beyond the usual (`ns`), as of `at_ns`. It shrinks as time passes.
#[derive(Clone, Copy, Debug, Default)]
struct Excess {
    ns: u64,
    at_ns: u64,
}

impl Excess {
    /// Adds time that was spent. Of the time that passes, one part in `parts` may be spent and does not count.
    fn add(&mut self, now_ns: u64, ns: u64, parts: u64) {
        self.ns = self.left(now_ns, parts) + ns;
        self.at_ns = now_ns;
    }

    fn left(self, now_ns: u64, parts: u64) -> u64 {
        self.ns.saturating_sub(now_ns.saturating_sub(self.at_ns) / parts)
    }
}

#[derive(Clone, Copy, Debug)]
struct Port {
    watched_until_ns: u64,
    excess: Excess,
    /// The port is written to aside until this time.
    aside_until_ns: u64,
    /// The length of the present or last time aside.
    aside_ns: u64,
}

/// What all ports cost.
#[derive(Debug, Default)]
pub struct Effort {
    ports: Vec<Option<Port>>,
    /// The excess of all ports together.
    excess: Excess,
}

impl Effort {
    fn port(&mut self, now_ns: u64, id: PortId) -> Option<&mut Port> {
        let index = usize::from(id.0);
        if self.ports.len() <= index {
            self.ports.resize(index + 1, None);
        }
        let new = Port {
            watched_until_ns: 0,
            excess: Excess { ns: 0, at_ns: now_ns },
            aside_until_ns: 0,
            aside_ns: ASIDE_MIN_NS,
        };
        self.ports.get_mut(index).map(|place| place.get_or_insert(new))
    }

    /// Whether a port is watched now. After a write to a watched port, call [`Effort::spent`] with the processor time that it
    /// cost, else [`Effort::took`] with the time that it took by the clock.
    pub fn is_watched(&self, now_ns: u64, id: PortId) -> bool {
        let port = self.ports.get(usize::from(id.0)).and_then(Option::as_ref);
        port.is_some_and(|port| now_ns < port.watched_until_ns)
    }

    /// Records that writing a frame of `bytes` to a port took `took_ns` by the clock. Other programs may have held the processor
    /// in that time.
    pub fn took(&mut self, now_ns: u64, id: PortId, bytes: usize, took_ns: u64) {
        if took_ns > usual_ns(bytes)
            && let Some(port) = self.port(now_ns, id)
        {
            port.watched_until_ns = now_ns + WATCH_NS;
        }
    }

    /// Records that writing a frame of `bytes` to a port cost `cost_ns` of the thread's processor time. Returns true if the port
    /// is to be written to aside from now on.
    pub fn spent(&mut self, now_ns: u64, id: PortId, bytes: usize, cost_ns: u64) -> bool {
        let excess_ns = cost_ns.saturating_sub(usual_ns(bytes));
        if excess_ns == 0 {
            return false;
        }
        let Some(port) = self.port(now_ns, id) else { return false };
        port.watched_until_ns = now_ns + WATCH_NS;
        port.excess.add(now_ns, excess_ns, EXCESS_PARTS);
        let of_port_ns = port.excess.ns;
        self.excess.add(now_ns, excess_ns, EXCESS_OF_ALL_PARTS);
        let is_one_of_the_worst =
            self.excess.ns > EXCESS_OF_ALL_MAX_NS && of_port_ns >= self.mean_excess_ns(now_ns);
        if of_port_ns <= EXCESS_MAX_NS && !is_one_of_the_worst {
            return false;
        }
        self.excess.ns = self.excess.ns.saturating_sub(of_port_ns);
        let Some(port) = self.port(now_ns, id) else { return false };
        // A port that was quick for as long as the longest time aside is treated as a new one.
        let was_long_ago = now_ns.saturating_sub(port.aside_until_ns) > ASIDE_MAX_NS;
        port.aside_ns = if port.aside_until_ns == 0 || was_long_ago {
            ASIDE_MIN_NS
        } else {
            (2 * port.aside_ns).min(ASIDE_MAX_NS)
        };
        port.excess.ns = 0;
        port.aside_until_ns = now_ns + port.aside_ns;
        true
    }

    /// Records that writing a frame of `bytes` to a port aside cost `cost_ns` of that thread's processor time. If that would be
    /// reason to write to the port aside, its time aside begins anew.
    pub fn spent_aside(&mut self, now_ns: u64, id: PortId, bytes: usize, cost_ns: u64) {
        let excess_ns = cost_ns.saturating_sub(usual_ns(bytes));
        if excess_ns == 0 {
            return;
        }
        let Some(port) = self.port(now_ns, id) else { return };
        port.excess.add(now_ns, excess_ns, EXCESS_PARTS);
        if port.excess.ns > EXCESS_MAX_NS {
            port.excess.ns = 0;
            port.aside_until_ns = now_ns + port.aside_ns;
        }
    }

    /// The mean excess of the ports that have one.
    fn mean_excess_ns(&self, now_ns: u64) -> u64 {
        let of_ports = self.ports.iter().flatten().map(|port| port.excess.left(now_ns, EXCESS_PARTS));
        let (sum, count) =
            of_ports.filter(|ns| *ns > 0).fold((0, 0), |(sum, count), ns| (sum + ns, count + 1));
        sum / u64::max(count, 1)
    }

    /// Whether a port is to be written to aside.
    pub fn is_aside(&self, now_ns: u64, id: PortId) -> bool {
        let port = self.ports.get(usize::from(id.0)).and_then(Option::as_ref);
        port.is_some_and(|port| now_ns < port.aside_until_ns)
    }

    /// Forgets a port that has gone. The next port of its number is a different one.
    pub fn remove(&mut self, id: PortId) {
        let gone = self.ports.get_mut(usize::from(id.0)).and_then(Option::take);
        self.excess.ns = self.excess.ns.saturating_sub(gone.map_or(0, |port| port.excess.ns));
    }
}
