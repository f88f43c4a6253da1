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
//! **Ahead.** Where the interface is shaped and turns are by byte, a port that sends less than its part does not wait for the segments
//! of others: its short frames are sent while the interface's bucket is empty. The bucket goes further below zero by that, so all others
//! wait longer ([`Scheduler::frame_waits`]). Ports whose guarantees are not used up come before these frames.
//!
//! ```text
//!            has frames                     credit > 0, under its cap: read it
//!   idle ──────────────► in the round ────────────────────────────────────────► charge ──┐
//!     ▲                       ▲  │ no credit: one more quantum × weight, next port        │
//!     └──── was empty ────────┴──┴────────────────────────────────────────────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::cutting::wire_bytes_max;
use crate::list::{Chain, List};

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
    /// No port that may be read has anything for here.
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

    fn holds(&self, bytes: u64) -> bool {
        self.tokens >= i128::from(bytes) * BILLION
    }

    fn take(&mut self, bytes: u64) {
        self.tokens -= i128::from(bytes) * BILLION;
    }

    /// When it holds as much; `None`: never.
    fn holds_at(&self, bytes: u64) -> Option<u64> {
        let missing = (i128::from(bytes) * BILLION - self.tokens).max(0);
        let rate = i128::from(self.rate);
        if bytes > self.burst || rate == 0 {
            return None;
        }
        let after_ns = u64::try_from((missing + rate - 1) / rate).ok()?;
        self.at_ns.checked_add(after_ns)
    }

    /// When there is something again.
    fn ready_at(&self) -> u64 {
        self.owes_less_at(0)
    }

    /// When the debt is below `bytes`.
    fn owes_less_at(&self, bytes: u64) -> u64 {
        let missing = (1 - self.tokens - i128::from(bytes) * BILLION).max(0);
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

/// Where a port is among those that take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// It has no frames.
    #[default]
    Out,
    /// It has frames and is under its cap.
    Round,
    /// It has frames, and its cap lets none through before this time.
    Capped(u64),
}

/// Where a port of the round is among those with a guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Claim {
    /// It has no guarantee, or is not in the round.
    #[default]
    Out,
    /// It has not had what is guaranteed to it.
    Entitled,
    /// It has, until this time.
    Refilling(u64),
}

#[derive(Debug)]
struct Port {
    share: Share,
    /// Frames or bytes that it may send in this round; below zero: what it owes.
    credit: i64,
    /// As time passes, it pays off what the port owes, in whole bytes. This is the fraction of a byte that is left
    /// over for the next time, in billionths of a byte.
    paid_besides: u64,
    has_frames: bool,
    /// What it had last was not for here, or it may not be read: until it has a frame for here, no other port waits for its guarantee, and when
    /// its turn comes, it leaves the round and keeps that turn.
    is_elsewhere: bool,
    /// Its turn has begun, and no other has passed it since. If it has credit left when it comes back, it comes to the front.
    is_on_turn: bool,
    place: Place,
    claim: Claim,
    cap: Option<Bucket>,
    guarantee: Option<Bucket>,
    /// What it may send ahead: grows at the rate of its part, up to [`AHEAD_BYTES`], and falls by all that it sends beyond its guarantee.
    allowance: Bucket,
    /// How long the frame is that waits, where that is known.
    frame_bytes: Option<u64>,
    ahead: Ahead,
    /// When its waiting frame may go ahead, where that is later: it is in [`Scheduler::soon`] by that.
    soon_ns: Option<u64>,
    sent: Sent,
}

/// Whether a port's waiting frame goes ahead of the interface's bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ahead {
    #[default]
    No,
    /// Its allowance is enough, and it is in [`Scheduler::ahead`].
    Yes,
    /// It has not had its guarantee, and is in [`Scheduler::entitled_ahead`].
    Entitled,
}

impl Port {
    /// Where it belongs, as its buckets were filled last.
    fn settled(&self) -> (Place, Claim) {
        let place = match self.cap {
            _ if !self.has_frames => Place::Out,
            Some(cap) if !cap.has() => Place::Capped(cap.ready_at()),
            _ => Place::Round,
        };
        let claim = match self.guarantee {
            Some(bucket) if place == Place::Round && !self.is_elsewhere => match bucket.has() {
                true => Claim::Entitled,
                false => Claim::Refilling(bucket.ready_at()),
            },
            _ => Claim::Out,
        };
        (place, claim)
    }

    /// Since the last call its allowance has grown at the rate of its part, and what it owes is paid at that rate, but for the last `most`: the turns
    /// pay these. A turn pays at once what one segment of another port takes, and who sends a segment now and then would be paid twice.
    fn fill_allowance(&mut self, now_ns: u64, part: u64, most: i64) {
        let passed_ns = now_ns.saturating_sub(self.allowance.at_ns);
        self.allowance.rate = part;
        // However much it has sent, it is soon one that asks little.
        self.allowance.tokens = self.allowance.tokens.max(-i128::from(most) * BILLION / 2);
        self.allowance.fill(now_ns);
        let owed = self.credit.saturating_neg().saturating_sub(most).max(0);
        let due = u128::from(part) * u128::from(passed_ns) + u128::from(self.paid_besides);
        let (paid, besides) = (due / 1_000_000_000, due % 1_000_000_000);
        self.paid_besides = if owed > 0 { besides as u64 } else { 0 };
        self.credit += i64::try_from(paid).unwrap_or(i64::MAX).min(owed);
    }

    /// A turn pays what it owes, or adds to what it may send.
    fn pay(&mut self, units: i64) {
        self.credit = self.credit.saturating_add(units);
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
/// The most that a port sends ahead at once: two frames of the usual size, so a request, an answer, or what begins a connection.
const AHEAD_BYTES: u64 = 2 * QUANTUM_BYTES.unsigned_abs();
/// What the interface's bucket may owe beside one segment before no frame goes ahead: what two ports send ahead at once.
const AHEAD_DEBT: u64 = 2 * AHEAD_BYTES;

/// The shortest frame on the wire.
const FRAME_BYTES_MIN: u64 = 84;

/// For so long it is remembered what a port has owed that has gone.
const DEBT_MEMORY_NS: u64 = 10_000_000_000;

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
    /// The ports that take turns ([`Place::Round`]), and how many they are.
    round: List,
    round_links: Chain,
    round_ports: usize,
    /// Ports that are over their caps ([`Place::Capped`]), by the time at which they may be read again.
    capped: BTreeSet<(u64, PortId)>,
    /// Those of the round that come first.
    entitled: BTreeSet<PortId>,
    /// Ports that have had their guarantee ([`Claim::Refilling`]), by the time at which they come first again.
    refilling: BTreeSet<(u64, PortId)>,
    /// Ports whose waiting frame may go ahead, in the order in which these came.
    ahead: List,
    ahead_links: Chain,
    /// Those of [`Self::entitled`] whose waiting frame may go ahead.
    entitled_ahead: BTreeSet<PortId>,
    /// Ports whose waiting frame may go ahead later, by the time at which their allowance is enough or their guarantee is back.
    soon: BTreeSet<(u64, PortId)>,
    /// Ports that were removed, and when, by their numbers. Who comes next under a number takes over what is owed, and the state of equal buckets:
    /// to detach and attach again gives nothing.
    gone: BTreeMap<PortId, (u64, Port)>,
    /// When the driver was here last.
    now_ns: u64,
    /// The sum of all ports' weights.
    weights: u64,
    /// The sum of what is guaranteed to all ports.
    guaranteed: u128,
    uplink: Option<Bucket>,
    lateness: Lateness,
    /// The port that was read last since it has a guarantee.
    last_guaranteed: Option<PortId>,
    /// Bytes of the longest segment that ports are told to send. On the wire one has [`wire_bytes_max`] of that at most: longer ones are cut.
    most_at_once: u64,
    /// For tests: ports whose buckets or credit were looked at.
    looks: u64,
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
            round: List::default(),
            round_links: Chain::default(),
            round_ports: 0,
            capped: BTreeSet::new(),
            entitled: BTreeSet::new(),
            refilling: BTreeSet::new(),
            ahead: List::default(),
            ahead_links: Chain::default(),
            entitled_ahead: BTreeSet::new(),
            soon: BTreeSet::new(),
            gone: BTreeMap::new(),
            now_ns: 0,
            weights: 0,
            guaranteed: 0,
            uplink: None,
            lateness,
            last_guaranteed: None,
            most_at_once,
            looks: 0,
        }
    }

    fn bucket(&self, rate: u64, now_ns: u64) -> Bucket {
        Bucket::new(rate, burst(rate, self.lateness.now_ns, self.most_at_once), now_ns)
    }

    /// Bytes a second of the interface, on the wire; `None`: as much as it takes. `most_at_once`: bytes of the longest segment from now on.
    pub fn shape(&mut self, now_ns: u64, rate: Option<u64>, most_at_once: u64) {
        self.most_at_once = most_at_once;
        self.uplink = rate.map(|rate| self.bucket(rate, now_ns));
    }

    /// What the interface may owe before no frame goes ahead: more than a segment of the most bytes leaves, so none holds up what goes ahead.
    fn ahead_debt(&self) -> u64 {
        let of_segment = match self.turns {
            Turns::Frames => 0,
            Turns::Bytes => wire_bytes_max(self.most_at_once),
        };
        of_segment.saturating_add(AHEAD_DEBT)
    }

    /// Adds a port, or changes its share. It keeps what it owes.
    pub fn set(&mut self, now_ns: u64, id: PortId, share: Share) {
        let turns = self.turns;
        let gone = self.gone.remove(&id);
        let owed = gone.as_ref().map_or(0, |(gone_ns, before)| self.left_by(before, *gone_ns, now_ns));
        let before = gone.map(|(_, before)| before);
        let known = self.ports.get(usize::from(id.0)).and_then(Option::as_ref).or(before.as_ref());
        let of_rate = |rate: u64, before: Option<Bucket>| {
            before.filter(|before| before.rate == rate).unwrap_or_else(|| self.bucket(rate, now_ns))
        };
        let cap = share.most.map(|rate| of_rate(rate, known.and_then(|known| known.cap)));
        let guaranteed = Some(share.guaranteed).filter(|rate| *rate > 0);
        let guarantee = guaranteed.map(|rate| of_rate(rate, known.and_then(|known| known.guarantee)));
        let index = usize::from(id.0);
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, || None);
            self.round_links.grow(index + 1);
            self.ahead_links.grow(index + 1);
        }
        self.forget_share(id);
        self.weights += u64::from(share.weight.max(1));
        self.guaranteed += u128::from(share.guaranteed);
        let Some(place) = self.ports.get_mut(index) else { return };
        match place {
            Some(port) => {
                (port.share, port.cap, port.guarantee) = (share, cap, guarantee);
                // What its turn has left may be that of a greater weight.
                port.credit = port.credit.min(port.quantum(turns));
            }
            None => {
                // One that comes again and again gets nothing ahead by that.
                let allowance = Bucket { rate: 0, burst: AHEAD_BYTES, tokens: 0, at_ns: now_ns };
                *place = Some(Port {
                    share,
                    credit: -owed,
                    paid_besides: 0,
                    has_frames: false,
                    is_elsewhere: false,
                    is_on_turn: false,
                    place: Place::Out,
                    claim: Claim::Out,
                    cap,
                    guarantee,
                    allowance: before.map_or(allowance, |before| before.allowance),
                    frame_bytes: None,
                    ahead: Ahead::No,
                    soon_ns: None,
                    sent: Sent::default(),
                });
            }
        }
        self.settle(id);
    }

    /// What a port owes that gets the number of one that has gone: what that one owed, but no more than one segment of the most bytes, or of the most
    /// frames, since the one that has gone may have been another user's. Nothing after [`DEBT_MEMORY_NS`].
    fn left_by(&self, before: &Port, gone_ns: u64, now_ns: u64) -> i64 {
        if now_ns.saturating_sub(gone_ns) > DEBT_MEMORY_NS {
            return 0;
        }
        let most = match self.turns {
            Turns::Frames => self.segment_max() / FRAME_BYTES_MIN.cast_signed(),
            Turns::Bytes => self.segment_max(),
        };
        before.credit.min(0).saturating_neg().min(most)
    }

    /// The most bytes on the wire of a segment.
    fn segment_max(&self) -> i64 {
        i64::try_from(wire_bytes_max(self.most_at_once)).unwrap_or(i64::MAX)
    }

    /// Takes a port's share out of the sums.
    fn forget_share(&mut self, id: PortId) {
        let Some(share) = self.port(id).map(|port| port.share) else { return };
        self.weights -= u64::from(share.weight.max(1));
        self.guaranteed -= u128::from(share.guaranteed);
    }

    /// Removes a port.
    pub fn remove(&mut self, id: PortId) {
        self.pause(id);
        self.forget_share(id);
        if let Some(port) = self.ports.get_mut(usize::from(id.0)).and_then(Option::take) {
            self.gone.insert(id, (self.now_ns, port));
        }
    }

    fn port(&mut self, id: PortId) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(id.0))?.as_mut()
    }

    /// Moves a port to where it belongs. To be called after each change of it.
    fn settle(&mut self, id: PortId) {
        let Some(port) = self.ports.get_mut(usize::from(id.0)).and_then(Option::as_mut) else { return };
        let (place, claim) = port.settled();
        let (was_place, was_claim) = (port.place, port.claim);
        (port.place, port.claim) = (place, claim);
        if place != was_place {
            let entry = u32::from(id.0);
            match was_place {
                Place::Out => {}
                Place::Round => {
                    self.round.remove(&mut self.round_links, entry);
                    self.round_ports -= 1;
                }
                Place::Capped(at_ns) => drop(self.capped.remove(&(at_ns, id))),
            }
            match place {
                Place::Out => {}
                Place::Round => {
                    if port.is_on_turn && port.credit > 0 {
                        self.round.push_front(&mut self.round_links, entry);
                    } else {
                        self.round.push_back(&mut self.round_links, entry);
                    }
                    self.round_ports += 1;
                }
                Place::Capped(at_ns) => drop(self.capped.insert((at_ns, id))),
            }
        }
        if claim != was_claim {
            match was_claim {
                Claim::Out => {}
                Claim::Entitled => drop(self.entitled.remove(&id)),
                Claim::Refilling(at_ns) => drop(self.refilling.remove(&(at_ns, id))),
            }
            match claim {
                Claim::Out => {}
                Claim::Entitled => drop(self.entitled.insert(id)),
                Claim::Refilling(at_ns) => drop(self.refilling.insert((at_ns, id))),
            }
        }
        self.settle_ahead(id);
    }

    /// Puts a port among those whose frame goes ahead, or takes it from there.
    fn settle_ahead(&mut self, id: PortId) {
        let is_shaped = self.uplink.is_some() && self.turns == Turns::Bytes;
        let Some(port) = self.ports.get_mut(usize::from(id.0)).and_then(Option::as_mut) else { return };
        let bytes = port.frame_bytes.filter(|_| is_shaped && port.place == Place::Round);
        let ahead = match bytes {
            // What is guaranteed is paid for.
            Some(bytes) if bytes <= AHEAD_BYTES && port.claim == Claim::Entitled => Ahead::Entitled,
            // Those that came first stay first.
            Some(_) if port.ahead == Ahead::Yes => Ahead::Yes,
            Some(bytes) if port.allowance.holds(bytes) => Ahead::Yes,
            _ => Ahead::No,
        };
        let waits = bytes.filter(|bytes| ahead == Ahead::No && *bytes <= AHEAD_BYTES);
        let soon_ns = waits.and_then(|bytes| {
            let refilled = if let Claim::Refilling(at_ns) = port.claim { Some(at_ns) } else { None };
            refilled.into_iter().chain(port.allowance.holds_at(bytes)).min()
        });
        let was_soon_ns = std::mem::replace(&mut port.soon_ns, soon_ns);
        let was_ahead = std::mem::replace(&mut port.ahead, ahead);
        if soon_ns != was_soon_ns {
            was_soon_ns.map(|at_ns| self.soon.remove(&(at_ns, id)));
            soon_ns.map(|at_ns| self.soon.insert((at_ns, id)));
        }
        if ahead == was_ahead {
            return;
        }
        match was_ahead {
            Ahead::No => {}
            Ahead::Yes => self.ahead.remove(&mut self.ahead_links, u32::from(id.0)),
            Ahead::Entitled => drop(self.entitled_ahead.remove(&id)),
        }
        match ahead {
            Ahead::No => {}
            Ahead::Yes => self.ahead.push_back(&mut self.ahead_links, u32::from(id.0)),
            Ahead::Entitled => drop(self.entitled_ahead.insert(id)),
        }
    }

    /// Fills the buckets of a port, and moves it to where it belongs.
    fn fill(&mut self, now_ns: u64, id: PortId) {
        let (lateness_ns, most_at_once) = (self.lateness.now_ns, self.most_at_once);
        // While the interface pays what went ahead, no guarantee is lost.
        let debt = if self.uplink.is_some() { self.ahead_debt() } else { 0 };
        self.looks += 1;
        let Some(port) = self.port(id) else { return };
        for (bucket, besides) in [(&mut port.cap, 0), (&mut port.guarantee, debt)] {
            let Some(bucket) = bucket else { continue };
            bucket.burst = burst(bucket.rate, lateness_ns, most_at_once).saturating_add(besides);
            bucket.fill(now_ns);
        }
        self.settle(id);
    }

    /// A port has frames.
    pub fn has_frames(&mut self, id: PortId) {
        let Some(port) = self.port(id) else { return };
        let had_frames = std::mem::replace(&mut port.has_frames, true);
        if std::mem::take(&mut port.is_elsewhere) || !had_frames {
            self.settle(id);
        }
    }

    /// A port has a frame of `bytes` on the wire. It goes ahead of the interface's bucket as soon as the port's allowance holds as much, or if it
    /// has two full frames at most and the port has not had its guarantee.
    ///
    /// The allowance is two full frames. It grows at the rate of the port's part, which is what is not guaranteed to anybody, by weight among
    /// all ports, also those that send nothing. So a port that sends less than its part waits for no segment of other ports. What goes ahead
    /// is owed like all else and paid for by turns, so no port has more of the interface than by its turns. Frames go ahead until the
    /// interface's bucket owes a segment of the most bytes and four full frames.
    pub fn frame_waits(&mut self, now_ns: u64, id: PortId, bytes: u64) {
        self.fill_allowance(now_ns, id);
        if let Some(port) = self.port(id) {
            (port.has_frames, port.is_elsewhere) = (true, false);
            port.frame_bytes = Some(bytes);
        }
        // It may have its guarantee again.
        self.fill(now_ns, id);
    }

    fn fill_allowance(&mut self, now_ns: u64, id: PortId) {
        let part = self.part(id).unwrap_or(0);
        let most = self.segment_max();
        if let Some(port) = self.port(id) {
            port.fill_allowance(now_ns, part, most);
        }
    }

    /// A port's part of the interface in bytes a second, counted as if all ports sent. `None`: frames do not go ahead at this interface.
    fn part(&self, id: PortId) -> Option<u64> {
        let uplink = self.uplink.as_ref().filter(|_| self.turns == Turns::Bytes)?;
        let weight = self.ports.get(usize::from(id.0))?.as_ref()?.share.weight.max(1);
        let rest = u128::from(uplink.rate).saturating_sub(self.guaranteed);
        u64::try_from(rest * u128::from(weight) / u128::from(self.weights.max(1))).ok()
    }

    /// The frame of a port does not wait any more.
    fn forget_frame(&mut self, id: PortId) {
        if let Some(port) = self.port(id) {
            port.frame_bytes = None;
        }
        self.settle_ahead(id);
    }

    /// The port whose frame goes ahead next. `None`: there is none, or only frames of ports without a guarantee would, and a port that has not
    /// had its guarantee waits for the bucket with a longer frame.
    fn next_ahead(&self) -> Option<PortId> {
        match self.next_of(&self.entitled_ahead) {
            None if self.entitled.is_empty() => self.ahead.front().map(|entry| PortId(entry as u16)),
            entitled => entitled,
        }
    }

    /// A port that was to be read had nothing.
    pub fn was_empty(&mut self, id: PortId) {
        if let Some(port) = self.port(id) {
            // Nobody saves up credit; what is owed stays owed.
            port.credit = port.credit.min(0);
            port.is_on_turn = false;
        }
        self.pause(id);
    }

    /// A port is not to be read until [`Scheduler::has_frames`]; it keeps its credit.
    pub fn pause(&mut self, id: PortId) {
        self.forget_frame(id);
        if let Some(port) = self.port(id)
            && std::mem::take(&mut port.has_frames)
        {
            self.settle(id);
        }
    }

    /// A port was read, and what it had is not for here, or it may not be read for now: no other port waits for its guarantee until
    /// [`Scheduler::frame_waits`] or [`Scheduler::has_frames`]. It keeps its place in the round, and its turn, if that comes meanwhile.
    pub fn had_nothing_for_here(&mut self, id: PortId) {
        if let Some(port) = self.port(id) {
            port.is_elsewhere = true;
            self.settle(id);
        }
    }

    /// Whether a port has frames and is under its cap.
    pub fn may_read(&mut self, now_ns: u64, id: PortId) -> bool {
        self.fill(now_ns, id);
        self.port(id).is_some_and(|port| port.place == Place::Round)
    }

    /// Whether a port has had much more than its turns: more than two broadcasts to the most ports, or many of the longest segments.
    pub fn owes_much(&mut self, id: PortId) -> bool {
        let most = match self.turns {
            Turns::Frames => 4096,
            Turns::Bytes => 4 << 20,
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
        self.fill_allowance(now_ns, id);
        self.forget_frame(id);
        self.fill(now_ns, id);
        let Some(port) = self.port(id) else { return };
        port.sent.frames += sent.frames;
        port.sent.bytes += sent.bytes;
        if let Some(cap) = &mut port.cap {
            cap.take(sent.bytes);
        }
        match &mut port.guarantee {
            // What is guaranteed counts for nothing else.
            Some(guarantee) if guarantee.has() => guarantee.take(sent.bytes),
            _ => {
                port.owe(turns, sent);
                port.allowance.take(sent.bytes);
            }
        }
        self.settle(id);
    }

    /// What a port has sent elsewhere in its turn, as part of that turn.
    pub fn charge_turn(&mut self, id: PortId, sent: Sent) {
        let turns = self.turns;
        if let Some(port) = self.port(id) {
            port.owe(turns, sent);
        }
    }

    /// As [`Scheduler::charge`], of the port's cap only: what it has sent outside of its turns here.
    pub fn charge_cap(&mut self, now_ns: u64, id: PortId, sent: Sent) {
        self.fill(now_ns, id);
        if let Some(cap) = self.port(id).and_then(|port| port.cap.as_mut()) {
            cap.take(sent.bytes);
            self.settle(id);
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
        self.now_ns = self.now_ns.max(now_ns);
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
        if self.round.is_empty() && self.capped.is_empty() {
            return Next::Idle;
        }
        let (lateness_ns, most_at_once) = (self.lateness.now_ns, self.most_at_once);
        let wait_until = self.uplink.as_mut().and_then(|uplink| {
            uplink.burst = burst(uplink.rate, lateness_ns, most_at_once);
            uplink.fill(now_ns);
            (!uplink.has()).then(|| uplink.ready_at())
        });
        while let Some(id) = first_due(&self.capped, now_ns).or_else(|| first_due(&self.refilling, now_ns)) {
            self.fill(now_ns, id);
        }
        while let Some(id) = first_due(&self.soon, now_ns) {
            self.fill_allowance(now_ns, id);
            self.settle_ahead(id);
        }
        let ahead_ns = self.uplink.as_ref().map_or(0, |uplink| uplink.owes_less_at(self.ahead_debt()));
        let next_ahead = self.next_ahead();
        if let Some(id) = next_ahead.filter(|_| ahead_ns <= now_ns) {
            return self.read_next(id);
        }
        if let Some(at_ns) = wait_until {
            let soon_ns = self.soon.first().map(|(at_ns, _)| ahead_ns.max(*at_ns));
            let ahead_ns = next_ahead.map(|_| ahead_ns);
            return Next::Wait(ahead_ns.into_iter().chain(soon_ns).fold(at_ns, u64::min));
        }
        if let Some(id) = self.guaranteed() {
            return self.read_next(id);
        }
        if let Some(id) = self.in_turn() {
            return Next::Read(id);
        }
        self.capped.first().map_or(Next::Idle, |(at_ns, _)| Next::Wait(*at_ns))
    }

    /// That a port with a guarantee is read is its turn among those.
    fn read_next(&mut self, id: PortId) -> Next {
        if self.entitled.contains(&id) {
            self.last_guaranteed = Some(id);
        }
        Next::Read(id)
    }

    /// A port that has not had what is guaranteed to it: the next by number, so that each has its turn.
    fn guaranteed(&self) -> Option<PortId> {
        self.next_of(&self.entitled)
    }

    /// Of those with a guarantee, the one behind that which was read last.
    fn next_of(&self, ports: &BTreeSet<PortId>) -> Option<PortId> {
        let behind = self.last_guaranteed.map(|last| (Bound::Excluded(last), Bound::Unbounded));
        let behind = behind.and_then(|behind| ports.range(behind).next());
        behind.or_else(|| ports.first()).copied()
    }

    /// The port whose turn it is: the first of the round that has credit. Each that is passed over gets its quantum. What it owes are
    /// bytes that were sent, so the ports that are passed over are no more than the quanta that were sent. One that has nothing for here leaves
    /// the round; its turn goes on when it is back.
    fn in_turn(&mut self) -> Option<PortId> {
        let turns = self.turns;
        // Begins anew when a port has left the round: the others may still owe for many rounds.
        'anew: loop {
            // One round in which all pay, then rounds are skipped; one in which a port gets credit; one in which it is found.
            let round_ports = self.round_ports;
            for passed in 1..=3 * round_ports + 1 {
                let entry = self.round.front()?;
                let id = PortId(entry as u16);
                self.looks += 1;
                let port = self.port(id)?;
                if port.credit > 0 {
                    port.is_on_turn = true;
                    if !port.is_elsewhere {
                        return Some(id);
                    }
                    self.pause(id);
                    continue 'anew;
                }
                port.is_on_turn = false;
                port.pay(port.quantum(turns));
                self.round.remove(&mut self.round_links, entry);
                self.round.push_back(&mut self.round_links, entry);
                if passed == round_ports {
                    self.skip_rounds();
                }
            }
            return None;
        }
    }

    /// Rounds in which all would only pay what they owe are passed at once.
    fn skip_rounds(&mut self) {
        let turns = self.turns;
        self.looks += 2 * self.round_ports as u64;
        let rounds = |port: &Port| -port.credit / port.quantum(turns);
        let round = self.round.iter(&self.round_links);
        let ports = round.filter_map(|entry| self.ports.get(entry as usize)?.as_ref());
        let least = ports.map(rounds).min().unwrap_or(0);
        if least <= 0 {
            return;
        }
        for entry in self.round.iter(&self.round_links) {
            if let Some(port) = self.ports.get_mut(entry as usize).and_then(Option::as_mut) {
                port.pay(least * port.quantum(turns));
            }
        }
    }
}

/// The port that is due first, if that is now.
fn first_due(by_time: &BTreeSet<(u64, PortId)>, now_ns: u64) -> Option<PortId> {
    by_time.first().filter(|(at_ns, _)| *at_ns <= now_ns).map(|(_, id)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ports share by weight what is left of the rate after all guarantees; a removed port counts no more.
    #[test]
    fn a_part_is_of_what_is_not_guaranteed() {
        let mut scheduler = Scheduler::new(Turns::Bytes, 0, 65_536);
        let (one, two) = (PortId(0), PortId(1));
        scheduler.set(0, one, Share::default());
        assert_eq!(scheduler.part(one), None, "the interface is not shaped");
        scheduler.shape(0, Some(1000), 65_536);
        scheduler.set(0, two, Share { weight: 3, guaranteed: 200, most: None });
        assert_eq!((scheduler.part(one), scheduler.part(two)), (Some(200), Some(600)));
        scheduler.set(0, two, Share { weight: 1, guaranteed: u64::MAX, most: None });
        scheduler.set(0, one, Share { weight: 1, guaranteed: 500, most: None });
        assert_eq!((scheduler.part(one), scheduler.part(two)), (Some(0), Some(0)));
        scheduler.remove(two);
        scheduler.remove(two);
        assert_eq!((scheduler.part(one), scheduler.part(two)), (Some(500), None));
        assert_eq!((scheduler.weights, scheduler.guaranteed), (1, 500));
    }

    /// However often a port is looked at: what time pays is not lost below whole bytes.
    #[test]
    fn what_time_pays_adds_up() {
        let mut scheduler = Scheduler::new(Turns::Bytes, 0, 3000);
        let id = PortId(0);
        scheduler.shape(0, Some(100), 3000);
        scheduler.set(0, id, Share::default());
        scheduler.port(id).unwrap().credit = -100_000;
        // A tenth of a byte each time, and 1000 bytes together.
        for ms in 1..=10_000 {
            scheduler.fill_allowance(ms * 1_000_000, id);
        }
        assert_eq!(scheduler.port(id).unwrap().credit, -99_000);
    }

    /// A frame costs its own port's look, and a share of the turns that it pays for, however many ports have caps, guarantees and
    /// frames.
    #[test]
    fn a_frame_looks_at_few_ports() {
        const FRAMES: u64 = 20_000;
        let full = Sent { frames: 1, bytes: 1538 };
        let shares = [
            Share::default(),
            Share { most: Some(1_000_000), ..Share::default() },
            Share { guaranteed: 1_000_000, ..Share::default() },
        ];
        for sizes in [[full, full], [Sent { frames: 1, bytes: 84 }, Sent { frames: 43, bytes: 66_000 }]] {
            let mut scheduler = Scheduler::new(Turns::Bytes, 100_000, 65_536);
            for id in 0..1000 {
                scheduler.set(0, PortId(id), shares[usize::from(id % 3)]);
                scheduler.has_frames(PortId(id));
            }
            let (mut now_ns, mut read, before) = (0, 0, scheduler.looks);
            while read < FRAMES {
                match scheduler.next(now_ns) {
                    Next::Read(id) => {
                        scheduler.charge(now_ns, id, sizes[usize::from(id.0 > 0)]);
                        read += 1;
                        now_ns += 2000;
                    }
                    Next::Wait(at_ns) => now_ns = at_ns,
                    Next::Idle => panic!("all have frames"),
                }
            }
            let looks = (scheduler.looks - before) / FRAMES;
            assert!(looks < 60, "{looks} looks a frame of {sizes:?}");
        }
    }
}
