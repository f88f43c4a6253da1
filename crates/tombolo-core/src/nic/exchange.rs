//! The interface that ports share: what is read next, where it goes, and what waits for the uplink.
//!
//! The driver asks for the next [`Step`], carries it out and reports: a frame that it has read
//! ([`Exchange::from_port`]), that a port had none ([`Exchange::was_empty`]), that a frame was sent
//! ([`Exchange::sent`]).
//!
//! ```text
//!   port has frames ─► reads: turns by weight ─► read ─► switch ─┬─► other ports, at once
//!                                                              └─► uplink: at once where it is not shaped and has
//!                                                                  room; else the frame waits at its port, which is
//!                                                                  not read meanwhile: turns by weight, guarantees,
//!                                                                  short frames ahead of others' segments
//! ```
//!
//! A frame for many ports goes to [`COPIES_AT_ONCE`] of them in one step. To the others it goes in steps of their own
//! ([`Step::Spread`]), between which other frames are read and sent. The driver keeps the frame meanwhile, and where it came from is
//! not read: so the order of its frames is kept, and each origin has one such frame at most.
//!
//! Shares of bytes (or frames) are those of the uplink. Where ports are read, turns are about the time of the thread that reads
//! and writes: a short frame counts as a full one, and each copy counts.
//!
//! A port holds one frame or segment at most for the uplink. So traffic between ports does not wait for the uplink, a
//! flood stays in the queue of the port that makes it, and the frame that waits is known by its length.

use std::collections::VecDeque;

use super::counters::Counters;
use super::cutting::wire_bytes_max;
use super::frame::TAG_BYTES;
use super::offload::{self, OffloadHeader, Wire};
use super::scheduler::{Next, PortId, QUANTUM_BYTES, Scheduler, Sent, Share, Turns};
use super::switch::{BadRules, Mode, Origin, Refusal, Rules, Switch, Tag, Targets};

/// What a port is, may do, and may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Addresses, virtual networks, filters.
    pub rules: Rules,
    /// Its part of the interface.
    pub share: Share,
    /// The most bytes behind the Ethernet header.
    pub mtu: u32,
}

/// Limits of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What ports take turns by.
    pub turns: Turns,
    /// Bytes a second of the uplink, on the wire; `None`: as much as it takes.
    pub rate: Option<u64>,
    /// How late the driver may be woken (99th percentile).
    pub wake_ns: u64,
    /// Bytes of the longest segment.
    pub segment_bytes_max: u64,
    /// The most bytes behind the Ethernet header of a frame from the uplink.
    pub mtu: u32,
}

/// What one segment of a port may take of a shaped uplink, if shares are of bytes: each wakes its sender, this process and the receiver, so
/// that shorter ones cost more processor time.
const SEGMENT_NS_MAX: u64 = 2_000_000;
/// If shares are of frames, no frame goes ahead of segments, and these are short.
const SEGMENT_NS_MAX_BY_FRAMES: u64 = 50_000;
/// Two full frames.
const SEGMENT_BYTES_MIN: u64 = 3000;

impl Limits {
    /// Bytes of the longest segment that ports are told to send.
    pub fn segment_bytes(&self) -> u64 {
        let Some(rate) = self.rate else { return self.segment_bytes_max };
        let longest_ns = match self.turns {
            Turns::Bytes => SEGMENT_NS_MAX,
            Turns::Frames => SEGMENT_NS_MAX_BY_FRAMES,
        };
        let bytes = u128::from(rate) * u128::from(longest_ns) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(SEGMENT_BYTES_MIN).min(self.segment_bytes_max)
    }
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read a frame from this port, and report it.
    Read(PortId),
    /// Send the frame of this port that waits to the uplink, and report it.
    Send(PortId),
    /// Give the frame that is kept, and came from there, to further ports: [`Exchange::spread`] says which.
    Spread(Origin),
    /// Nothing may be done before this time, in nanoseconds.
    Wait(u64),
    /// Nothing is to be done until a port has frames, or the uplink has room.
    Idle,
}

/// Whether a frame that was read goes to the uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outward {
    /// It does not.
    No,
    /// It is sent now.
    Now,
    /// The driver keeps it until [`Step::Send`].
    Later,
}

#[derive(Debug)]
struct Port {
    config: PortConfig,
    /// What waits for the uplink.
    waiting: Option<Wire>,
    /// A frame of it goes to many ports: see [`Spread`].
    is_spreading: bool,
    counters: Counters,
}

/// A frame on its way to many ports.
#[derive(Debug)]
struct Spread {
    from: Origin,
    /// The ports that have not had it yet, the next one last, and what else is known of it.
    left: Targets,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Exchange {
    switch: Switch,
    limits: Limits,
    /// Turns of all that is read.
    reads: Scheduler,
    /// Turns of what waits for the uplink.
    uplink: Scheduler,
    ports: Vec<Option<Port>>,
    uplink_counters: Counters,
    /// The uplink takes no more at present.
    is_full: bool,
    /// At most one for each origin. They take turns.
    spreads: VecDeque<Spread>,
    is_uplink_spreading: bool,
    /// Spreading and all else take turns, and so do reading and sending.
    has_spread_last: bool,
    has_sent_last: bool,
    /// This port is read since it is its turn at the uplink.
    is_read_for_uplink: Option<PortId>,
}

/// Ports that get a frame in one step.
pub const COPIES_AT_ONCE: usize = 16;

/// What a frame counts in the turn of the port from which it was read, where it goes to so many ports: a short one takes the
/// thread as long as one of [`QUANTUM_BYTES`], and so does each copy.
fn turn_of(sent: Sent, ports: usize) -> Sent {
    let copies = (ports as u64).max(1);
    Sent { frames: sent.frames * copies, bytes: sent.bytes.max(QUANTUM_BYTES.unsigned_abs()) * copies }
}

impl Exchange {
    /// An interface without ports.
    pub fn new(mode: Mode, limits: Limits) -> Self {
        let scheduler = || Scheduler::new(limits.turns, limits.wake_ns, limits.segment_bytes_max);
        let mut uplink = scheduler();
        uplink.shape(0, limits.rate, limits.segment_bytes());
        Self {
            switch: Switch::new(mode),
            limits,
            reads: scheduler(),
            uplink,
            ports: Vec::new(),
            uplink_counters: Counters::default(),
            is_full: false,
            spreads: VecDeque::new(),
            is_uplink_spreading: false,
            has_spread_last: false,
            has_sent_last: false,
            is_read_for_uplink: None,
        }
    }

    /// The current limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether ports reach each other.
    pub fn mode(&self) -> Mode {
        self.switch.mode()
    }

    /// Shapes the uplink otherwise: bytes a second.
    pub fn shape(&mut self, now_ns: u64, rate: Option<u64>) {
        self.limits.rate = rate;
        self.uplink.shape(now_ns, rate, self.limits.segment_bytes());
    }

    /// The most bytes on the wire of a segment from there: longer ones are cut before they are looked at. What ports send is as short as the uplink
    /// needs it, since it is not known yet where it goes.
    pub fn wire_bytes_max(&self, from: Origin) -> u64 {
        wire_bytes_max(match from {
            Origin::Port(_) => self.limits.segment_bytes(),
            Origin::Uplink => self.limits.segment_bytes_max,
        })
    }

    /// The most bytes behind the Ethernet header of a frame from the uplink.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.limits.mtu = mtu;
    }

    /// Adds a port, or changes it.
    ///
    /// # Errors
    /// [`BadRules`]; nothing has changed then.
    pub fn set(&mut self, now_ns: u64, id: PortId, config: PortConfig) -> Result<(), BadRules> {
        self.switch.set(id, config.rules.clone())?;
        // Its cap is for all that it sends, its guarantee is of the uplink.
        let Share { weight, guaranteed, most } = config.share;
        self.reads.set(now_ns, id, Share { weight, guaranteed: 0, most });
        self.uplink.set(now_ns, id, Share { weight, guaranteed, most: None });
        let index = usize::from(id.0);
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, || None);
        }
        if let Some(place) = self.ports.get_mut(index) {
            match place {
                Some(port) if port.config.rules.vlans == config.rules.vlans => port.config = config,
                Some(port) => {
                    port.config = config;
                    // It may not be in that virtual network any more.
                    self.leave_spreads(id);
                }
                None => {
                    let counters = Counters::default();
                    *place = Some(Port { config, waiting: None, is_spreading: false, counters });
                }
            }
        }
        Ok(())
    }

    /// Removes a port, and what of it waits.
    pub fn remove(&mut self, id: PortId) {
        self.switch.remove(id);
        self.reads.remove(id);
        self.uplink.remove(id);
        self.spreads.retain(|spread| spread.from != Origin::Port(id));
        self.leave_spreads(id);
        if let Some(place) = self.ports.get_mut(usize::from(id.0)) {
            *place = None;
        }
    }

    /// A port is not to get what is spreading.
    fn leave_spreads(&mut self, id: PortId) {
        for spread in &mut self.spreads {
            spread.left.ports.retain(|left| *left != id);
        }
    }

    fn port(&self, id: PortId) -> Option<&Port> {
        self.ports.get(usize::from(id.0))?.as_ref()
    }

    fn port_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(id.0))?.as_mut()
    }

    /// What a port is.
    pub fn config(&self, id: PortId) -> Option<&PortConfig> {
        self.port(id).map(|port| &port.config)
    }

    /// What was counted of a port.
    pub fn counters(&self, id: PortId) -> Option<&Counters> {
        self.port(id).map(|port| &port.counters)
    }

    /// What was counted of the uplink: sent is what went out there.
    pub fn uplink_counters(&self) -> &Counters {
        &self.uplink_counters
    }

    /// Whether a frame of this port waits for the uplink: the port is not to be read.
    pub fn is_waiting(&self, id: PortId) -> bool {
        self.port(id).is_some_and(|port| port.waiting.is_some())
    }

    /// Whether a frame from there goes to many ports: the driver keeps it, and does not read from there.
    pub fn is_spreading(&self, from: Origin) -> bool {
        match from {
            Origin::Uplink => self.is_uplink_spreading,
            Origin::Port(id) => self.port(id).is_some_and(|port| port.is_spreading),
        }
    }

    /// A port has frames to read.
    pub fn has_frames(&mut self, id: PortId) {
        if !self.is_waiting(id) && !self.is_spreading(Origin::Port(id)) {
            self.reads.has_frames(id);
        }
    }

    /// Keeps the ports of `targets` that do not get the frame in this step.
    fn begin_spread(&mut self, from: Origin, targets: &mut Targets) {
        if targets.ports.len() <= COPIES_AT_ONCE {
            return;
        }
        let mut left = Targets { ports: targets.ports.split_off(COPIES_AT_ONCE), uplink: false, ..*targets };
        left.ports.reverse();
        self.spreads.push_back(Spread { from, left });
        match from {
            Origin::Uplink => self.is_uplink_spreading = true,
            Origin::Port(id) => {
                if let Some(port) = self.port_mut(id) {
                    port.is_spreading = true;
                }
                self.reads.pause(id);
            }
        }
    }

    /// [`Step::Spread`]: the next ports that get the frame. Afterwards [`Exchange::is_spreading`] says whether it is still to be kept.
    pub fn spread(&mut self, from: Origin, targets: &mut Targets) {
        targets.ports.clear();
        let Some(at) = self.spreads.iter().position(|spread| spread.from == from) else { return };
        let Some(mut spread) = self.spreads.remove(at) else { return };
        let left = &mut spread.left;
        (targets.uplink, targets.vlan, targets.own_tag, targets.wire) =
            (false, left.vlan, left.own_tag, left.wire);
        let behind = left.ports.len().saturating_sub(COPIES_AT_ONCE);
        targets.ports.extend(left.ports.drain(behind..).rev());
        if !left.ports.is_empty() {
            self.spreads.push_back(spread);
            return;
        }
        match from {
            Origin::Uplink => self.is_uplink_spreading = false,
            Origin::Port(id) => {
                if let Some(port) = self.port_mut(id) {
                    port.is_spreading = false;
                }
                // It may have more.
                self.has_frames(id);
            }
        }
    }

    /// A port that was to be read had nothing.
    pub fn was_empty(&mut self, id: PortId) {
        self.reads.was_empty(id);
        self.uplink.was_empty(id);
    }

    /// The uplink took no frame: nothing is sent there until [`Exchange::uplink_has_room`].
    pub fn uplink_is_full(&mut self) {
        self.is_full = true;
        self.uplink.forget_lateness();
    }

    /// The uplink takes frames again.
    pub fn uplink_has_room(&mut self) {
        self.is_full = false;
    }

    /// A frame that [`Step::Read`] has brought: `targets` says which ports get it, with what tag.
    ///
    /// # Errors
    /// [`Refusal`]: it is dropped; that is counted.
    pub fn from_port(
        &mut self,
        now_ns: u64,
        id: PortId,
        header: &OffloadHeader,
        frame: &[u8],
        targets: &mut Targets,
    ) -> Result<Outward, Refusal> {
        let mtu = self.port(id).map_or(0, |port| port.config.mtu as usize);
        let checked = offload::on_wire(header, frame, mtu).map_err(Refusal::from);
        let wire =
            checked.and_then(|wire| self.switch.forward(Origin::Port(id), frame, targets).map(|()| wire));
        // What is refused was read all the same: a flood of it takes its turns.
        let mut wire = wire;
        let charged = wire.unwrap_or_else(|_| offload::one(frame.len()));
        let charged = Sent { frames: charged.frames, bytes: charged.bytes };
        let turn = turn_of(charged, if wire.is_ok() { targets.ports.len() } else { 0 });
        let is_for_uplink = wire.is_ok() && targets.uplink;
        if !is_for_uplink {
            self.uplink.had_nothing_for_here(id);
        }
        // What was read in a turn of the uplink's and goes only there is no turn here.
        if self.is_read_for_uplink.take() != Some(id) || !is_for_uplink || !targets.ports.is_empty() {
            self.reads.charge_turn(id, turn);
        }
        self.reads.charge_cap(now_ns, id, charged);
        if let (Ok(wire), Tag::Insert(_), true) = (&mut wire, targets.tag(true), targets.uplink) {
            wire.bytes += TAG_BYTES as u64 * wire.frames;
        }
        let (is_shaped, is_full) = (self.limits.rate.is_some(), self.is_full);
        let port = self.port_mut(id).ok_or(Refusal::WrongSource)?;
        let wire = wire.inspect_err(|refusal| port.counters.refuse(*refusal))?;
        targets.wire = wire;
        port.counters.sent.count(frame, &wire);
        self.begin_spread(Origin::Port(id), targets);
        if !targets.uplink {
            return Ok(Outward::No);
        }
        if !is_shaped && !is_full {
            self.uplink.pause(id);
            return Ok(Outward::Now);
        }
        self.wait(now_ns, id, wire);
        Ok(Outward::Later)
    }

    fn wait(&mut self, now_ns: u64, id: PortId, wire: Wire) {
        if let Some(port) = self.port_mut(id) {
            port.waiting = Some(wire);
            self.uplink.frame_waits(now_ns, id, wire.bytes);
            self.reads.pause(id);
        }
    }

    /// The frame of a port that waited was sent, or (`was_taken` false) the uplink has refused it for good.
    pub fn sent(&mut self, now_ns: u64, id: PortId, frame: &[u8], was_taken: bool) {
        let Some(wire) = self.port_mut(id).and_then(|port| port.waiting.take()) else { return };
        if was_taken {
            self.uplink_counters.sent.count(frame, &wire);
        } else {
            self.uplink_counters.undelivered += 1;
        }
        self.uplink.charge(now_ns, id, Sent { frames: wire.frames, bytes: wire.bytes });
        // It may have more: it is read before its turn at the uplink is over.
        self.has_frames(id);
        // While a port may not be read, no other waits for its guarantee.
        if !self.reads.may_read(now_ns, id) {
            self.uplink.had_nothing_for_here(id);
        }
    }

    /// A frame from outside: `targets` says which ports get it.
    ///
    /// # Errors
    /// [`Refusal`]: it is dropped; that is counted.
    pub fn from_uplink(
        &mut self,
        header: &OffloadHeader,
        frame: &[u8],
        targets: &mut Targets,
    ) -> Result<(), Refusal> {
        let checked = offload::on_wire(header, frame, self.limits.mtu as usize).map_err(Refusal::from);
        let wire =
            checked.and_then(|wire| self.switch.forward(Origin::Uplink, frame, targets).map(|()| wire));
        let wire = wire.inspect_err(|refusal| self.uplink_counters.refuse(*refusal))?;
        targets.wire = wire;
        self.uplink_counters.received.count(frame, &wire);
        self.begin_spread(Origin::Uplink, targets);
        Ok(())
    }

    /// A frame that came from somewhere was given to a port, or the port could not take it.
    pub fn delivered(&mut self, id: PortId, frame: &[u8], wire: &Wire, was_taken: bool) {
        let Some(port) = self.port_mut(id) else { return };
        if was_taken {
            port.counters.received.count(frame, wire);
        } else {
            port.counters.undelivered += 1;
        }
    }

    /// So many frames of a port, or (`None`) of the uplink, were dropped before they could be read.
    pub fn overflowed(&mut self, id: Option<PortId>, count: u64) {
        let counters = match id {
            None => Some(&mut self.uplink_counters),
            Some(id) => self.port_mut(id).map(|port| &mut port.counters),
        };
        if let Some(counters) = counters {
            counters.overflowed += count;
        }
    }

    /// A frame was sent to the uplink as soon as it was read ([`Outward::Now`]).
    pub fn sent_now(&mut self, frame: &[u8], wire: &Wire) {
        self.uplink_counters.sent.count(frame, wire);
    }

    /// The uplink is full: a frame that was to be sent now is kept, as if it had been [`Outward::Later`].
    pub fn keep(&mut self, now_ns: u64, id: PortId, wire: Wire) {
        self.uplink_is_full();
        self.wait(now_ns, id, wire);
    }

    /// A frame that was to be sent now was refused by the uplink for good.
    pub fn lost_at_uplink(&mut self) {
        self.uplink_counters.undelivered += 1;
    }

    /// What the driver does next.
    pub fn next(&mut self, now_ns: u64) -> Step {
        let spread = self.spreads.front().map(|spread| Step::Spread(spread.from));
        if let Some(spread) = spread.filter(|_| !self.has_spread_last) {
            self.has_spread_last = true;
            return spread;
        }
        self.has_spread_last = false;
        match (self.next_of_ports(now_ns), spread) {
            (Step::Wait(_) | Step::Idle, Some(spread)) => {
                self.has_spread_last = true;
                spread
            }
            (step, _) => step,
        }
    }

    fn next_of_ports(&mut self, now_ns: u64) -> Step {
        let mut ready_at = u64::MAX;
        self.is_read_for_uplink = None;
        // Sending and reading alternate in which is tried first.
        let sends_first = !self.has_sent_last;
        for sends in [sends_first, !sends_first] {
            let next = if sends { self.next_send(now_ns) } else { self.next_read(now_ns) };
            match next {
                Step::Wait(at_ns) => ready_at = ready_at.min(at_ns),
                Step::Idle => {}
                step => {
                    self.has_sent_last = sends;
                    return step;
                }
            }
        }
        if ready_at == u64::MAX { Step::Idle } else { Step::Wait(ready_at) }
    }

    fn next_read(&mut self, now_ns: u64) -> Step {
        match self.reads.next(now_ns) {
            Next::Read(id) => Step::Read(id),
            Next::Wait(at_ns) => Step::Wait(at_ns),
            Next::Idle => Step::Idle,
        }
    }

    fn next_send(&mut self, now_ns: u64) -> Step {
        if self.is_full {
            return Step::Idle;
        }
        // A port that may not be read now leaves the round, so this ends after each port once.
        for _ in 0..=self.ports.len() {
            match self.uplink.next(now_ns) {
                Next::Read(id) if self.is_waiting(id) => return Step::Send(id),
                // It has sent and was not read since.
                Next::Read(id) if self.reads.may_read(now_ns, id) && !self.reads.owes_much(id) => {
                    self.is_read_for_uplink = Some(id);
                    return Step::Read(id);
                }
                Next::Read(id) => self.uplink.had_nothing_for_here(id),
                Next::Wait(at_ns) => return Step::Wait(at_ns),
                Next::Idle => return Step::Idle,
            }
        }
        Step::Idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments are short where frames do not go ahead of them, and never shorter than two frames.
    #[test]
    fn segments_are_as_long_as_the_rate_and_the_turns_allow() {
        let bytes = |turns, rate| {
            Limits { turns, rate, wake_ns: 0, segment_bytes_max: 65_536, mtu: 1500 }.segment_bytes()
        };
        // 100 Mb/s, 500 Mb/s, 1 Mb/s.
        let rates = [Some(12_500_000), Some(62_500_000), Some(125_000), None];
        assert_eq!(rates.map(|rate| bytes(Turns::Bytes, rate)), [25_000, 65_536, 3000, 65_536]);
        assert_eq!(rates.map(|rate| bytes(Turns::Frames, rate)), [3000, 3125, 3000, 65_536]);
    }
}
