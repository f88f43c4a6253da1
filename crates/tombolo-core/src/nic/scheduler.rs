//! Which port is read next, and when: what the ports of one interface share.
//!
//! **What.** Each port has a *share*: a weight, and if wanted a rate that is guaranteed to it and one that it may not
//! exceed. The interface may have a rate of its own (it is *shaped*). The scheduler says which port to read from next, or
//! until when to wait.
//!
//! **Pulling.** Nothing is queued here. A port is read only when it is its turn, so what it sends beyond its share stays
//! and is dropped in its own queue, and costs nobody else anything. How long the next frame is is known only when it
//! has been read: a port is read while it has credit, is charged what went on the wire, and may owe the rest of a frame;
//! what it owes it pays before it is read again. In the long run each gets its share to the byte (surplus round robin).
//!
//! **What is counted.** Round robin by *frame* (as the prototype's central board does) or by *byte* (deficit round
//! robin). Both count frames and bytes as they are on the wire: what a port hands over as one segment of 64 KiB is charged
//! as the 45 frames that it becomes.
//!
//! ```text
//!            has frames                     credit > 0, under its cap: read it
//!   idle ──────────────► in the round ────────────────────────────────────────► charge ──┐
//!     ▲                       ▲  │ no credit: one more quantum × weight, next port        │
//!     └──── was empty ────────┴──┴────────────────────────────────────────────────────────┘
//! ```

use std::collections::VecDeque;

/// Names a port of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

/// What ports take turns by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turns {
    /// As many frames each.
    Frames,
    /// As many bytes each.
    #[default]
    Bytes,
}

/// What a port may have of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its part of what is not guaranteed to others, beside the weights of the other ports; at least 1.
    pub weight: u32,
    /// Bytes a second that it gets before others get any.
    pub guaranteed: u64,
    /// Bytes a second that it gets at most.
    pub most: Option<u64>,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1, guaranteed: 0, most: None }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read a frame from this port; report it with [`Scheduler::charge`] or [`Scheduler::was_empty`].
    Read(PortId),
    /// Nothing may be sent before this time.
    Wait(u64),
    /// No port has anything.
    Idle,
}

/// What was sent for a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames on the wire.
    pub frames: u64,
    /// Bytes on the wire.
    pub bytes: u64,
}

/// Bytes that may be sent, which grow with time up to a bound. It may go below zero by what is sent at once.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Bytes a second.
    rate: u64,
    /// The most that is saved up.
    burst: u64,
    /// What there is, in billionths of a byte.
    tokens: i128,
    at_ns: u64,
}

const BILLION: i128 = 1_000_000_000;

impl Bucket {
    fn new(rate: u64, burst: u64, now_ns: u64) -> Self {
        Self { rate, burst, tokens: i128::from(burst) * BILLION, at_ns: now_ns }
    }

    fn fill(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        let more = i128::from(self.rate) * i128::from(elapsed_ns);
        self.tokens = (self.tokens + more).min(i128::from(self.burst) * BILLION);
    }

    fn has(&self) -> bool {
        self.tokens > 0
    }

    fn take(&mut self, bytes: u64) {
        self.tokens -= i128::from(bytes) * BILLION;
    }

    /// When there is something again.
    fn ready_at(&self) -> u64 {
        let missing = (1 - self.tokens).max(0);
        let rate = i128::from(self.rate.max(1));
        let after_ns = u64::try_from((missing + rate - 1) / rate).unwrap_or(u64::MAX);
        self.at_ns.saturating_add(after_ns)
    }
}

/// What a bucket saves up: what could be sent while the driver is late, and one segment.
fn burst(rate: u64, lateness_ns: u64, most_at_once: u64) -> u64 {
    let late = u128::from(rate) * u128::from(lateness_ns) / 1_000_000_000;
    u64::try_from(late).unwrap_or(u64::MAX).saturating_add(most_at_once)
}

#[derive(Debug)]
struct Port {
    share: Share,
    /// Frames or bytes that it may send in this round; below zero: what it owes.
    credit: i64,
    is_in_round: bool,
    cap: Option<Bucket>,
    guarantee: Option<Bucket>,
    sent: Sent,
}

impl Port {
    /// Whether it may be read now, as its cap goes.
    fn is_under_cap(&self) -> bool {
        self.cap.is_none_or(|cap| cap.has())
    }

    fn owe(&mut self, turns: Turns, sent: Sent) {
        let units = match turns {
            Turns::Frames => sent.frames,
            Turns::Bytes => sent.bytes,
        };
        self.credit = self.credit.saturating_sub(i64::try_from(units).unwrap_or(i64::MAX));
    }

    fn quantum(&self, turns: Turns) -> i64 {
        let one = match turns {
            Turns::Frames => 1,
            Turns::Bytes => QUANTUM_BYTES,
        };
        one * i64::from(self.share.weight.max(1))
    }
}

/// Credit of a round for weight 1: a frame of the usual size, so that a port waits for as few frames of the others as
/// possible.
pub(super) const QUANTUM_BYTES: i64 = 1538;

/// How late the driver comes back, of late: a bucket that saves up less loses what it could have sent meanwhile.
#[derive(Debug)]
struct Lateness {
    /// It is taken to be this at least.
    least_ns: u64,
    now_ns: u64,
    /// When the driver was to come back, and when that was said; `None`: nothing was to be sent.
    expected: Option<(u64, u64)>,
}

/// The most that is made up for: a driver that is kept from its processor for longer loses the rest.
const LATENESS_NS_MAX: u64 = 8_000_000;
/// Lateness is forgotten in about this time.
const LATENESS_MEMORY_NS: u64 = 1_000_000_000;

impl Lateness {
    /// The driver is back.
    fn back(&mut self, now_ns: u64) {
        let Some((said_ns, expected_ns)) = self.expected else { return };
        let late_ns = now_ns.saturating_sub(expected_ns).min(LATENESS_NS_MAX);
        let passed_ns = now_ns.saturating_sub(said_ns).min(LATENESS_MEMORY_NS);
        let forgotten_ns = u128::from(self.now_ns) * u128::from(passed_ns) / u128::from(LATENESS_MEMORY_NS);
        let left_ns = self.now_ns - u64::try_from(forgotten_ns).unwrap_or(self.now_ns);
        self.now_ns = left_ns.max(late_ns).max(self.least_ns);
    }
}

/// The scheduler of an interface. See the module's documentation.
#[derive(Debug)]
pub struct Scheduler {
    turns: Turns,
    ports: Vec<Option<Port>>,
    round: VecDeque<PortId>,
    uplink: Option<Bucket>,
    lateness: Lateness,
    /// The port that was read last since it has a guarantee.
    last_guaranteed: Option<PortId>,
    /// The most bytes that are read at once.
    most_at_once: u64,
}

impl Scheduler {
    /// A scheduler without ports. `wake_ns`: how late a wait usually ends (the 99th percentile), which shaped ports and
    /// the shaped interface make up for; where it proves to be later, they make up for that, too. `most_at_once`: bytes
    /// of the longest segment.
    pub fn new(turns: Turns, wake_ns: u64, most_at_once: u64) -> Self {
        let lateness = Lateness { least_ns: wake_ns, now_ns: wake_ns, expected: None };
        Self {
            turns,
            ports: Vec::new(),
            round: VecDeque::new(),
            uplink: None,
            lateness,
            last_guaranteed: None,
            most_at_once,
        }
    }

    fn bucket(&self, rate: u64, now_ns: u64) -> Bucket {
        Bucket::new(rate, burst(rate, self.lateness.now_ns, self.most_at_once), now_ns)
    }

    /// Bytes a second of the interface, on the wire; `None`: as much as it takes.
    pub fn shape(&mut self, now_ns: u64, rate: Option<u64>) {
        self.uplink = rate.map(|rate| self.bucket(rate, now_ns));
    }

    /// Adds a port, or changes its share. It keeps what it owes.
    pub fn set(&mut self, now_ns: u64, id: PortId, share: Share) {
        let cap = share.most.map(|rate| self.bucket(rate, now_ns));
        let guarantee = (share.guaranteed > 0).then(|| self.bucket(share.guaranteed, now_ns));
        let index = usize::from(id.0);
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, || None);
        }
        let Some(place) = self.ports.get_mut(index) else { return };
        match place {
            Some(port) => (port.share, port.cap, port.guarantee) = (share, cap, guarantee),
            None => {
                let sent = Sent::default();
                *place = Some(Port { share, credit: 0, is_in_round: false, cap, guarantee, sent });
            }
        }
    }

    /// Removes a port.
    pub fn remove(&mut self, id: PortId) {
        if let Some(port) = self.ports.get_mut(usize::from(id.0)) {
            *port = None;
        }
        self.round.retain(|known| *known != id);
    }

    fn port(&mut self, id: PortId) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(id.0))?.as_mut()
    }

    /// A port has frames.
    pub fn has_frames(&mut self, id: PortId) {
        if let Some(port) = self.port(id)
            && !port.is_in_round
        {
            port.is_in_round = true;
            self.round.push_back(id);
        }
    }

    /// A port that was to be read had nothing.
    pub fn was_empty(&mut self, id: PortId) {
        if let Some(port) = self.port(id) {
            port.is_in_round = false;
            // Nobody saves up credit; what is owed stays owed.
            port.credit = port.credit.min(0);
        }
        self.round.retain(|known| *known != id);
    }

    /// A port is not to be read until [`Scheduler::has_frames`]; it keeps its credit.
    pub fn pause(&mut self, id: PortId) {
        if let Some(port) = self.port(id) {
            port.is_in_round = false;
        }
        self.round.retain(|known| *known != id);
    }

    /// Whether a port has frames and is under its cap.
    pub fn may_read(&mut self, now_ns: u64, id: PortId) -> bool {
        self.port(id).is_some_and(|port| {
            if let Some(cap) = &mut port.cap {
                cap.fill(now_ns);
            }
            port.is_in_round && port.is_under_cap()
        })
    }

    /// Whether a port has had much more than its turns: many of the longest segments.
    pub fn owes_much(&mut self, id: PortId) -> bool {
        let most = match self.turns {
            Turns::Frames => 1024,
            Turns::Bytes => 1 << 20,
        };
        self.port(id).is_some_and(|port| port.credit < -most)
    }

    /// A frame or segment of a port was sent: this many frames and bytes on the wire.
    pub fn charge(&mut self, now_ns: u64, id: PortId, sent: Sent) {
        let turns = self.turns;
        if let Some(uplink) = &mut self.uplink {
            uplink.fill(now_ns);
            uplink.take(sent.bytes);
        }
        let Some(port) = self.port(id) else { return };
        port.sent.frames += sent.frames;
        port.sent.bytes += sent.bytes;
        if let Some(cap) = &mut port.cap {
            cap.fill(now_ns);
            cap.take(sent.bytes);
        }
        if let Some(guarantee) = &mut port.guarantee {
            guarantee.fill(now_ns);
            // What is guaranteed counts for nothing else.
            if guarantee.has() {
                guarantee.take(sent.bytes);
                return;
            }
        }
        port.owe(turns, sent);
    }

    /// What a port has sent elsewhere in its turn, as part of that turn. One that was read since it has a guarantee waits
    /// until [`Scheduler::has_frames`].
    pub fn charge_turn(&mut self, id: PortId, sent: Sent) {
        let turns = self.turns;
        let Some(port) = self.port(id) else { return };
        port.owe(turns, sent);
        if port.guarantee.is_some() {
            self.pause(id);
        }
    }

    /// As [`Scheduler::charge`], of the port's cap only: what it has sent outside of its turns here.
    pub fn charge_cap(&mut self, now_ns: u64, id: PortId, sent: Sent) {
        if let Some(cap) = self.port(id).and_then(|port| port.cap.as_mut()) {
            cap.fill(now_ns);
            cap.take(sent.bytes);
        }
    }

    /// The driver is not to come back for what waits here: that it does not is no lateness.
    pub fn forget_lateness(&mut self) {
        self.lateness.expected = None;
    }

    /// What was sent for a port so far.
    pub fn sent(&self, id: PortId) -> Sent {
        self.ports.get(usize::from(id.0)).and_then(Option::as_ref).map(|port| port.sent).unwrap_or_default()
    }

    /// What to do next.
    pub fn next(&mut self, now_ns: u64) -> Next {
        self.lateness.back(now_ns);
        let next = self.decide(now_ns);
        self.lateness.expected = match next {
            Next::Read(_) => Some((now_ns, now_ns)),
            Next::Wait(at_ns) => Some((now_ns, at_ns)),
            Next::Idle => None,
        };
        next
    }

    fn decide(&mut self, now_ns: u64) -> Next {
        if self.round.is_empty() {
            return Next::Idle;
        }
        let (lateness_ns, most_at_once) = (self.lateness.now_ns, self.most_at_once);
        if let Some(uplink) = &mut self.uplink {
            uplink.burst = burst(uplink.rate, lateness_ns, most_at_once);
            uplink.fill(now_ns);
            if !uplink.has() {
                return Next::Wait(uplink.ready_at());
            }
        }
        let mut ready_at = u64::MAX;
        for &id in &self.round {
            let Some(port) = self.ports.get_mut(usize::from(id.0)).and_then(Option::as_mut) else { continue };
            for bucket in [&mut port.cap, &mut port.guarantee].into_iter().flatten() {
                bucket.burst = burst(bucket.rate, lateness_ns, most_at_once);
                bucket.fill(now_ns);
            }
            match port.cap {
                Some(cap) if !cap.has() => ready_at = ready_at.min(cap.ready_at()),
                _ => ready_at = now_ns,
            }
        }
        if ready_at > now_ns {
            return Next::Wait(ready_at);
        }
        if let Some(id) = self.guaranteed() {
            self.last_guaranteed = Some(id);
            return Next::Read(id);
        }
        self.in_turn().map_or(Next::Idle, Next::Read)
    }

    /// A port that has not had what is guaranteed to it: the next by number, so that each has its turn.
    fn guaranteed(&self) -> Option<PortId> {
        let may = |port: &Port| port.is_under_cap() && port.guarantee.is_some_and(|bucket| bucket.has());
        let of = |id: &PortId| self.ports.get(usize::from(id.0)).and_then(Option::as_ref);
        let all = self.round.iter().copied().filter(|id| of(id).is_some_and(may));
        all.min_by_key(|id| (self.last_guaranteed.is_some_and(|last| *id <= last), *id))
    }

    /// The port whose turn it is: the first of the round that has credit. Each that is passed over gets its quantum.
    fn in_turn(&mut self) -> Option<PortId> {
        self.skip_rounds();
        // After that, one full round brings somebody credit.
        for _ in 0..=2 * self.round.len() {
            let &id = self.round.front()?;
            let turns = self.turns;
            let port = self.port(id)?;
            if port.is_under_cap() {
                if port.credit > 0 {
                    return Some(id);
                }
                port.credit += port.quantum(turns);
            }
            self.round.rotate_left(1);
        }
        None
    }

    /// Rounds in which all would only pay what they owe are passed at once.
    fn skip_rounds(&mut self) {
        let turns = self.turns;
        let rounds = |port: &Port| -port.credit / port.quantum(turns);
        let may = self.round.iter().filter_map(|id| self.ports.get(usize::from(id.0))?.as_ref());
        let least = may.filter(|port| port.is_under_cap()).map(rounds).min().unwrap_or(0);
        if least <= 0 {
            return;
        }
        for id in &self.round {
            if let Some(port) = self.ports.get_mut(usize::from(id.0)).and_then(Option::as_mut)
                && port.is_under_cap()
            {
                port.credit += least * port.quantum(turns);
            }
        }
    }
}
