//! The two ends of a remote bus of memory (REMAP §III): the block of a processor, which cuts its accesses into databeats, and the block of
//! a memory, which puts them together and makes them. The packetiser and the segment table are those of the core.

use std::collections::{BTreeMap, VecDeque};

use tombolo_core::packetise::{Egress, Ingress, Pacing};
use tombolo_core::segment::{LenderId, SegmentTable};
use tombolo_wire::{BEAT_BYTES, BusAddress, BusTransaction};

use crate::kernel::{Span, Time};
use crate::parts::{Access, AccessKind, Cargo, Here, Input, Message, Part, RouteId};

/// The input of a block where the first of its links ends; those of the others follow. Lower ones are of interfaces and memories.
const FIRST_LINK: u8 = 128;
/// Data transfers of one burst at most.
const MOST_BEATS: u64 = 256;
/// Bytes on a link in each cycle: two databeats, whether or not both are there.
const CYCLE_BYTES: u32 = 16;

/// The constants of a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockConfig {
    /// How transactions follow each other.
    pub pacing: Pacing,
    /// From one pair of databeats on a link to the next: of the logic, or of the link if that is slower.
    pub cycle: Span,
    /// Interfaces of the processor: 128 at most.
    pub interfaces: usize,
}

/// The input where a link ends, at either block.
pub fn link_input(part: crate::kernel::PartId, link: u8) -> Input {
    Input { part, port: FIRST_LINK.saturating_add(link) }
}

/// What both blocks have: bursts that leave in cycles, and databeats that come.
#[derive(Debug)]
struct Lanes {
    egress: Egress,
    /// By link: what has come of transactions, the way to the other block, and when the next cycle is.
    ingress: Vec<Ingress>,
    ways: Vec<Option<RouteId>>,
    next_cycles: Vec<Time>,
    cycle: Span,
    cycles: u64,
    dropped: u64,
}

impl Lanes {
    fn new(config: BlockConfig, links: usize) -> Self {
        // Inputs are numbered by 8 bits, of which links have half.
        let links = links.clamp(1, usize::from(FIRST_LINK));
        Self {
            egress: Egress::new(config.interfaces.min(usize::from(FIRST_LINK)), links, config.pacing),
            ingress: (0..links).map(|_| Ingress::default()).collect(),
            ways: vec![None; links],
            next_cycles: vec![Time::ZERO; links],
            cycle: config.cycle,
            cycles: 0,
            dropped: 0,
        }
    }

    /// Sends what may leave in this cycle.
    fn send(&mut self, here: &mut Here<'_>) {
        let (now, mut alarm) = (here.now(), None);
        for link in 0..self.ways.len() {
            let Some(way) = self.ways[link] else { continue };
            if self.next_cycles[link] <= now
                && let Some(cycle) = self.egress.poll(link as u8)
            {
                let bits = cycle.into_iter().flatten().flat_map(|databeat| databeat.to_bits().to_le_bytes());
                let packet = here.packets.add(|bytes| bytes.extend(bits));
                here.start(now, way, Cargo::Packet(packet), CYCLE_BYTES);
                self.next_cycles[link] = now.after(self.cycle);
                self.cycles += 1;
            }
            if self.next_cycles[link] > now && !self.egress.is_idle() {
                alarm = Some(
                    alarm.map_or(self.next_cycles[link], |first: Time| first.min(self.next_cycles[link])),
                );
            }
        }
        here.set_alarm(alarm);
    }

    /// The transactions that are whole with a pair of databeats.
    fn accept(&mut self, here: &mut Here<'_>, port: u8, message: Message) -> Vec<(u8, u8, BusTransaction)> {
        let link = port.saturating_sub(FIRST_LINK);
        let Message::Traveller(traveller) = message else { return Vec::new() };
        let packet = match (traveller.cargo, self.ingress.get(usize::from(link))) {
            (Cargo::Packet(packet), Some(_)) => packet,
            (cargo, _) => {
                here.discard(cargo);
                return Vec::new();
            }
        };
        let ingress = &mut self.ingress[usize::from(link)];
        let mut whole = Vec::new();
        here.packets.consume(packet, |bytes| {
            for bits in bytes.as_chunks().0 {
                match ingress.accept(u64::from_le_bytes(*bits)) {
                    Ok(transaction) => {
                        whole.extend(
                            transaction.map(|(interface, transaction)| (link, interface, transaction)),
                        );
                    }
                    Err(_) => self.dropped += 1,
                }
            }
        });
        whole
    }
}

/// An access that is under way.
#[derive(Debug)]
struct Open {
    access: Access,
    /// Bursts of it that are not answered.
    bursts: u64,
}

/// The block of a processor. Requests of interface `i` enter at input `i`, and go back on the way that they name.
#[derive(Debug)]
pub struct ComputeBlock {
    lanes: Lanes,
    /// Where the segments begin, and whose they are.
    base: u64,
    segments: SegmentTable,
    /// The links to each memory block.
    links: BTreeMap<LenderId, Vec<u8>>,
    /// By interface, and by the number of a burst.
    open: BTreeMap<(u8, u16), Open>,
    next_id: u16,
    refused: u64,
}

impl ComputeBlock {
    /// A block whose segments begin at an address. `links` are those to each owner of a segment.
    pub fn new(
        config: BlockConfig,
        base: u64,
        segments: SegmentTable,
        links: BTreeMap<LenderId, Vec<u8>>,
    ) -> Self {
        let count = links.values().flatten().map(|link| usize::from(*link) + 1).max().unwrap_or(1);
        let lanes = Lanes::new(config, count);
        Self { lanes, base, segments, links, open: BTreeMap::new(), next_id: 0, refused: 0 }
    }

    /// The way by a link, to the memory block's [`link_input`].
    pub fn set_way(&mut self, link: u8, way: RouteId) {
        if let Some(is) = self.lanes.ways.get_mut(usize::from(link)) {
            *is = Some(way);
        }
    }

    /// Cycles in which something was sent.
    pub fn cycles(&self) -> u64 {
        self.lanes.cycles
    }

    /// Accesses that were dropped: to what is in no segment, or across the end of one; or because 65,536 of their interface are under way.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Databeats that meant nothing.
    pub fn dropped(&self) -> u64 {
        self.lanes.dropped
    }

    /// Where an access goes: to whom, and to which address there.
    fn place(&self, access: &Access) -> Option<(LenderId, u64)> {
        let at = access.address.checked_sub(self.base)?;
        let mut pieces = self.segments.resolve(at, access.length_bytes.into()).ok()?;
        let piece = pieces.next()?;
        pieces.next().is_none().then_some((piece.lender, piece.offset_bytes))
    }

    /// The bursts of an access; whether it can be made.
    fn push(&mut self, interface: u8, access: Access) -> bool {
        let ids = (0..=u16::MAX).map(|step| self.next_id.wrapping_add(step));
        let Some(id) = ids.into_iter().find(|id| !self.open.contains_key(&(interface, *id))) else {
            return false;
        };
        let Some((lender, address)) = self.place(&access) else { return false };
        let Some(links) = self.links.get(&lender) else { return false };
        let beats = u64::from(access.length_bytes).div_ceil(BEAT_BYTES as u64);
        let (mut bursts, mut from) = (0, 0);
        while from < beats {
            let count = MOST_BEATS.min(beats - from);
            let start = BusAddress {
                id,
                address: address + from * BEAT_BYTES as u64,
                length: (count - 1) as u8,
                size: BEAT_BYTES.trailing_zeros() as u8,
                ..BusAddress::default()
            };
            let data = (1..=count).map(|beat| BusTransaction::WriteData {
                data: start.address.into(),
                strobe: u16::MAX,
                is_last: beat == count,
            });
            let is_sent = match access.kind {
                AccessKind::Read => {
                    self.lanes.egress.push(interface, links, [BusTransaction::ReadAddress(start)])
                }
                AccessKind::Write => {
                    let first = std::iter::once(BusTransaction::WriteAddress(start));
                    self.lanes.egress.push(interface, links, first.chain(data))
                }
            };
            bursts += u64::from(is_sent);
            from += count;
        }
        if bursts > 0 {
            self.open.insert((interface, id), Open { access, bursts });
            self.next_id = id.wrapping_add(1);
        }
        bursts > 0
    }

    /// A burst of an access was answered.
    fn answer(&mut self, here: &mut Here<'_>, interface: u8, id: u16) {
        let Some(open) = self.open.get_mut(&(interface, id)) else { return };
        open.bursts = open.bursts.saturating_sub(1);
        if open.bursts == 0
            && let Some(Open { access, .. }) = self.open.remove(&(interface, id))
        {
            here.start(here.now(), access.back, Cargo::Access(access), access.answer_bytes());
        }
    }
}

impl Part for ComputeBlock {
    fn receive(&mut self, here: &mut Here<'_>, port: u8, message: Message) {
        if port >= FIRST_LINK {
            for (_, interface, transaction) in self.lanes.accept(here, port, message) {
                match transaction {
                    BusTransaction::ReadData { id, is_last: true, .. }
                    | BusTransaction::WriteAnswer { id, .. } => {
                        self.answer(here, interface, id);
                    }
                    _ => {}
                }
            }
        } else if let Message::Traveller(traveller) = message {
            match traveller.cargo {
                Cargo::Access(access) => self.refused += u64::from(!self.push(port, access)),
                cargo => here.discard(cargo),
            }
        }
        self.lanes.send(here);
    }

    fn wake(&mut self, here: &mut Here<'_>) {
        self.lanes.send(here);
    }

    fn open(&self) -> u64 {
        self.open.len() as u64
    }

    fn forwards(&self) -> bool {
        false
    }
}

/// A burst at the memory: by whom, by which link, and how long.
#[derive(Clone, Copy, Debug)]
struct Burst {
    link: u8,
    interface: u8,
    at: BusAddress,
}

/// A memory behind a block.
#[derive(Clone, Copy, Debug)]
pub struct Controller {
    /// The end of its addresses, which is not one of them.
    pub end: u64,
    /// The way to it.
    pub way: RouteId,
    /// The way of its answers, which ends at the block's input 0.
    pub back: RouteId,
}

/// The block of a memory.
#[derive(Debug)]
pub struct MemoryBlock {
    lanes: Lanes,
    /// By address.
    controllers: Vec<Controller>,
    /// Bursts whose data come, by link and interface, in the order of their addresses.
    written: BTreeMap<(u8, u8), VecDeque<BusAddress>>,
    /// Accesses that are being made, by tag.
    open: BTreeMap<u64, Burst>,
    next_tag: u64,
    refused: u64,
}

impl MemoryBlock {
    /// A block with so many links.
    pub fn new(config: BlockConfig, links: usize) -> Self {
        Self {
            lanes: Lanes::new(config, links),
            controllers: Vec::new(),
            written: BTreeMap::new(),
            open: BTreeMap::new(),
            next_tag: 0,
            refused: 0,
        }
    }

    /// The way by a link, to the compute block's [`link_input`].
    pub fn set_way(&mut self, link: u8, way: RouteId) {
        if let Some(is) = self.lanes.ways.get_mut(usize::from(link)) {
            *is = Some(way);
        }
    }

    /// A further memory, of the addresses behind those of the one before.
    pub fn add_controller(&mut self, controller: Controller) {
        self.controllers.push(controller);
    }

    /// Cycles in which something was sent.
    pub fn cycles(&self) -> u64 {
        self.lanes.cycles
    }

    /// Databeats that meant nothing.
    pub fn dropped(&self) -> u64 {
        self.lanes.dropped
    }

    /// Accesses to addresses of no memory.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn access(&mut self, here: &mut Here<'_>, kind: AccessKind, burst: Burst) {
        let Some(controller) = self.controllers.iter().find(|one| burst.at.address < one.end) else {
            self.refused += 1;
            return;
        };
        let length_bytes = (u32::from(burst.at.length) + 1) * BEAT_BYTES as u32;
        let (tag, back) = (self.next_tag, controller.back);
        let access = Access { kind, address: burst.at.address, length_bytes, tag, back };
        self.next_tag += 1;
        self.open.insert(tag, burst);
        here.start(here.now(), controller.way, Cargo::Access(access), access.request_bytes());
    }

    /// A memory has answered.
    fn answer(&mut self, access: &Access) {
        let Some(Burst { link, interface, at }) = self.open.remove(&access.tag) else { return };
        let (id, response) = (at.id, 0);
        let is_sent = match access.kind {
            AccessKind::Read => {
                let data = (0..=at.length).map(|beat| BusTransaction::ReadData {
                    id,
                    data: access.address.into(),
                    response,
                    is_last: beat == at.length,
                });
                self.lanes.egress.push(interface, &[link], data)
            }
            AccessKind::Write => {
                self.lanes.egress.push(interface, &[link], [BusTransaction::WriteAnswer { id, response }])
            }
        };
        self.refused += u64::from(!is_sent);
    }
}

impl Part for MemoryBlock {
    fn receive(&mut self, here: &mut Here<'_>, port: u8, message: Message) {
        if port >= FIRST_LINK {
            for (link, interface, transaction) in self.lanes.accept(here, port, message) {
                let queue = (link, interface);
                match transaction {
                    BusTransaction::ReadAddress(at) => {
                        self.access(here, AccessKind::Read, Burst { link, interface, at });
                    }
                    BusTransaction::WriteAddress(at) => self.written.entry(queue).or_default().push_back(at),
                    BusTransaction::WriteData { is_last: true, .. } => {
                        if let Some(at) = self.written.get_mut(&queue).and_then(VecDeque::pop_front) {
                            self.access(here, AccessKind::Write, Burst { link, interface, at });
                        }
                    }
                    _ => {}
                }
            }
        } else if let Message::Traveller(traveller) = message {
            match traveller.cargo {
                Cargo::Access(access) => self.answer(&access),
                cargo => here.discard(cargo),
            }
        }
        self.lanes.send(here);
    }

    fn wake(&mut self, here: &mut Here<'_>) {
        self.lanes.send(here);
    }

    fn open(&self) -> u64 {
        self.open.len() as u64 + self.written.values().map(|queue| queue.len() as u64).sum::<u64>()
    }

    fn forwards(&self) -> bool {
        false
    }
}
