//! The two ends of a remote bus of memory (REMAP §III): the block of a processor, which cuts its accesses into databeats, and the block of
//! a memory, which puts them together and makes them. The packetiser and the segment table are those of the core.

use std::collections::BTreeMap;

use tombolo_core::packetise::{
    Accesses, Bursts, BusAccess, BusOperation, Egress, Ingress, MemoryBurst, Pacing,
};
use tombolo_core::segment::{LenderId, SegmentTable};
use tombolo_wire::BusTransaction;

use crate::kernel::{Span, Time};
use crate::parts::{Access, AccessKind, Cargo, Here, Input, Message, Part, RouteId};

/// The input of a block where the first of its links ends; those of the others follow. Lower ones are of interfaces and memories.
const FIRST_LINK: u8 = 128;
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

/// The block of a processor. Requests of interface `i` enter at input `i`, and go back on the way that they name.
#[derive(Debug)]
pub struct ComputeBlock {
    lanes: Lanes,
    /// Where the segments begin, and whose they are.
    base: u64,
    segments: SegmentTable,
    /// The links to each memory block.
    links: BTreeMap<LenderId, Vec<u8>>,
    accesses: Accesses,
    /// By interface and number.
    open: BTreeMap<(u8, u16), Access>,
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
        let (accesses, open) = (Accesses::default(), BTreeMap::new());
        Self { lanes, base, segments, links, accesses, open, refused: 0 }
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

    /// Accesses that were dropped: of no bytes, to what is in no segment, across the end of one, or beyond 40 bits at its owner; of an
    /// interface, or to an owner, that is not connected; or because 65,536 of their interface are under way.
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
        let Some((lender, address)) = self.place(&access) else { return false };
        let Some(links) = self.links.get(&lender) else { return false };
        let operation = match access.kind {
            AccessKind::Read => BusOperation::Read,
            AccessKind::Write => BusOperation::Write,
        };
        let on_bus = BusAccess { operation, address, length_bytes: access.length_bytes };
        // Of data only their number is simulated.
        let id = self.accesses.begin(&mut self.lanes.egress, interface, links, on_bus, u128::from);
        self.open.extend(id.map(|id| ((interface, id), access)));
        id.is_some()
    }
}

impl Part for ComputeBlock {
    fn receive(&mut self, here: &mut Here<'_>, port: u8, message: Message) {
        if port >= FIRST_LINK {
            for (_, interface, transaction) in self.lanes.accept(here, port, message) {
                let whole = self.accesses.answered(interface, &transaction);
                if let Some(access) = whole.and_then(|id| self.open.remove(&(interface, id))) {
                    here.start(here.now(), access.back, Cargo::Access(access), access.answer_bytes());
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
    bursts: Bursts,
    /// Those that are being made, by tag.
    open: BTreeMap<u64, MemoryBurst>,
    next_tag: u64,
    refused: u64,
}

impl MemoryBlock {
    /// A block with so many links.
    pub fn new(config: BlockConfig, links: usize) -> Self {
        Self {
            lanes: Lanes::new(config, links),
            controllers: Vec::new(),
            bursts: Bursts::default(),
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

    fn access(&mut self, here: &mut Here<'_>, burst: MemoryBurst) {
        let address = burst.at.address;
        let Some(controller) = self.controllers.iter().find(|one| address < one.end) else {
            self.refused += 1;
            return;
        };
        let kind = match burst.operation {
            BusOperation::Read => AccessKind::Read,
            BusOperation::Write => AccessKind::Write,
        };
        let (tag, back) = (self.next_tag, controller.back);
        let access = Access { kind, address, length_bytes: burst.length_bytes(), tag, back };
        self.next_tag += 1;
        self.open.insert(tag, burst);
        here.start(here.now(), controller.way, Cargo::Access(access), access.request_bytes());
    }

    /// A memory has answered.
    fn answer(&mut self, access: &Access) {
        let Some(burst) = self.open.remove(&access.tag) else { return };
        self.refused += u64::from(!burst.answer(&mut self.lanes.egress, u128::from));
    }
}

impl Part for MemoryBlock {
    fn receive(&mut self, here: &mut Here<'_>, port: u8, message: Message) {
        if port >= FIRST_LINK {
            for (link, interface, transaction) in self.lanes.accept(here, port, message) {
                match self.bursts.accept(link, interface, &transaction) {
                    Ok(Some(burst)) => self.access(here, burst),
                    Ok(None) => {}
                    Err(_) => self.lanes.dropped += 1,
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
        (self.open.len() + self.bursts.open()) as u64
    }

    fn forwards(&self) -> bool {
        false
    }
}
