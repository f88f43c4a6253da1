//! Memory of programs whose pages may be absent, two programs a node: the bench plays the programs, who look
//! for absent pages, copy, and bring pages in, and the runtime that orders that of them. What is decided is decided by the
//! machine ([`tombolo_core::own`]).

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{BASE, Bench, Event, HERE, PROGRAMS, WORDS, WORDS_BASE, program_of};
use tombolo_core::iommu::{
    Absence, AccessId, Config, ContextId, End, FaultPolicy, FaultSource, Outcome, PAGE_BYTES, Reason,
    Released, Right, TouchId, Unreached,
};
use tombolo_core::own::{Begun, MoveId, OwnMemory, Part, Purpose, Refused, Request, Step, Went, Words};
use tombolo_core::rdma::{Block, NotificationWrite, Operation, Placement, Time, TransferError};
use tombolo_random::Random;
use tombolo_wire::{
    ATOMIC_BYTES, AtomicOperation, Domain, Nack, NackCode, Notification, NotifyHeader, Packet, Refusal,
};

/// The words of a notification.
const NOTIFICATION_BYTES: u32 = 16;
/// How long a page that does not come may take: longer than anybody waits for it.
const HANG_NS: u64 = 5_000_000_000;
/// How long a program may be stopped: longer than its peers bear.
const STOP_NS: u64 = 60_000_000_000;
/// How long a program waits before it asks again for what was refused for now.
const AGAIN_NS: u64 = 1_000_000_000;
/// Orders to a program that are not answered, at most: each access, its withdrawal, and each touch that is carried out.
const MOST_ORDERS: usize = 2 * 256 + 4;
/// How long what has vanished stays so.
const VANISHED_NS: u64 = 50_000_000;

/// What programs and their pages do; probabilities in millionths.
#[derive(Clone, Copy, Debug)]
pub struct OwnFaults {
    pub policy: FaultPolicy,
    pub iommu: Config,
    /// Chance that pages go, whenever something happens.
    pub going: u64,
    /// How long bringing pages in takes, at most.
    pub touch_ns: u64,
    /// Chance that bringing pages in takes longer than anybody waits.
    pub hanging: u64,
    /// Chance that a program is stopped, whenever something happens, for longer than anybody waits.
    pub freezing: u64,
    /// Chance that a mapping vanishes or becomes read-only for a while, whenever something happens.
    pub vanishing: u64,
    /// Chance that an answer is said twice, that one is invented, and that a page that is there is not told.
    pub lying: u64,
    /// Chance that a program dies and another takes its place, whenever something happens.
    pub dying: u64,
    /// Chance that a program deregisters memory, used or not, whenever something happens.
    pub releasing: u64,
    /// Chance that there is no room for the bytes of an access.
    pub full: u64,
    /// Chance that an end of a transfer lies in memory of the node.
    pub of_node: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Missing(Absence),
    Protected,
    Unmapped,
}

/// How a program attempts an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Plain,
    /// It may bring pages in itself.
    Bringing,
    /// It has brought in these.
    Brought(u32, Absence),
    /// It waited for another one that overlaps with it.
    Behind,
    /// It does not look for absent pages.
    Forced,
}

/// What the program is asked to do: it does so late, too.
#[derive(Clone, Copy, Debug)]
enum Order {
    Read,
    Write,
    /// In the transfer with that number.
    Words(usize, Notification),
    /// In the transfer with that number, if it stays here.
    Change(AtomicOperation),
}

/// What is left with an access until it is over.
#[derive(Debug)]
pub(super) struct Left {
    program: usize,
    /// Where the range begins.
    range: u64,
    /// What is copied.
    at: (u64, u32),
    /// What is looked at.
    look: (u64, u32),
    right: Right,
    /// What is written there, or what was read.
    bytes: Vec<u8>,
    order: Order,
}

/// Memory that a program has registered, or that lies in the node.
#[derive(Clone, Copy, Debug)]
struct Range {
    end: u64,
    program: usize,
    is_own: bool,
    /// It is deregistered.
    is_gone: bool,
    /// And its program was told so: it is its own again.
    is_free: bool,
}

/// A program of a node, and its pages.
#[derive(Debug)]
struct Program {
    context: ContextId,
    /// The pages that are not there.
    pages: HashMap<u64, Page>,
    /// Pages beyond this one are not used.
    end_page: u64,
    hanging: HashSet<TouchId>,
    /// Accesses whose pages it brings in, and others that overlap with those, and when it makes them; in the order of the orders.
    bringing: Vec<(AccessId, Time)>,
    /// It is stopped until then.
    stopped_until: Time,
    /// When it takes the last order: it takes them in order.
    last_order: Time,
    /// Orders that it has not answered.
    orders: usize,
}

/// The programs of one node, and what the node knows of their memory.
#[derive(Debug)]
pub(super) struct Host {
    own: OwnMemory<Left>,
    programs: [Program; PROGRAMS],
    ranges: BTreeMap<u64, Range>,
    last_context: u64,
}

impl Host {
    fn new(config: Config, memory_bytes: usize) -> Self {
        let end_page = (BASE + memory_bytes as u64).div_ceil(PAGE_BYTES);
        let mut last_context = 0;
        let mut own = OwnMemory::new(config);
        let programs = [0; PROGRAMS].map(|_| {
            last_context += 1;
            let context = ContextId(last_context);
            own.open(context);
            let (pages, hanging, bringing) = (HashMap::new(), HashSet::new(), Vec::new());
            let (stopped_until, last_order) = (Time(0), Time(0));
            Program { context, pages, end_page, hanging, bringing, stopped_until, last_order, orders: 0 }
        });
        let words = Range {
            end: WORDS_BASE + 8 * WORDS as u64,
            program: 0,
            is_own: true,
            is_gone: false,
            is_free: false,
        };
        Self { own, programs, ranges: BTreeMap::from([(WORDS_BASE, words)]), last_context }
    }

    /// Where an address lies: the start of its range and its program, or `None` if it is memory of the node.
    fn resolve(&self, domain: Domain, at: (u64, u32)) -> Result<Option<(u64, usize)>, Refusal> {
        let (start, range) = self.ranges.range(..=at.0).next_back().expect("memory that is used");
        assert!(at.0 + u64::from(at.1) <= range.end, "{at:x?} lies in no range");
        assert_eq!(program_of(domain), range.program, "memory of another program");
        match (range.is_own, range.is_gone) {
            (false, _) => Ok(None),
            (true, false) => Ok(Some((*start, range.program))),
            (true, true) => Err(Refusal::at(NackCode::DecodeError, at.0)),
        }
    }
}

impl Program {
    /// When it goes on, if it is stopped.
    fn stopped(&self, now: Time) -> Option<Time> {
        (now < self.stopped_until).then_some(self.stopped_until)
    }

    fn seen(&self, page: u64, right: Right) -> Result<Option<Absence>, Reason> {
        match self.pages.get(&page) {
            Some(Page::Missing(Absence::CopyOnWrite | Absence::WriteProtected)) if right == Right::Read => {
                Ok(None)
            }
            Some(Page::Missing(kind)) => Ok(Some(*kind)),
            Some(Page::Protected) if right == Right::Write => Err(Reason::Protected),
            Some(Page::Unmapped) => Err(Reason::NotMapped),
            Some(Page::Protected) | None => Ok(None),
        }
    }

    /// How an attempt at a range goes, before anything is copied.
    fn look(
        &self,
        (address, length_bytes): (u64, u32),
        right: Right,
    ) -> Result<Option<(u32, Absence)>, Unreached> {
        let (mut absent, mut first_kind) = (0, None);
        let first = address / PAGE_BYTES;
        for page in first..(address + u64::from(length_bytes)).div_ceil(PAGE_BYTES).max(first + 1) {
            match self.seen(page, right) {
                Err(reason) => {
                    return Err(Unreached { address: (page * PAGE_BYTES).max(address), reason });
                }
                Ok(Some(kind)) => {
                    first_kind.get_or_insert(kind);
                    absent |= 1 << (page - first);
                }
                Ok(None) => {}
            }
        }
        Ok(first_kind.map(|kind| (absent, kind)))
    }

    /// Pages come, as far as they are mapped.
    fn bring(&mut self, address: u64, length_bytes: u32, right: Right) -> Result<(), Unreached> {
        for page in address / PAGE_BYTES..(address + u64::from(length_bytes)).div_ceil(PAGE_BYTES) {
            match self.seen(page, right) {
                Err(reason) => {
                    return Err(Unreached { address: (page * PAGE_BYTES).max(address), reason });
                }
                Ok(Some(_)) => drop(self.pages.remove(&page)),
                Ok(None) => {}
            }
        }
        Ok(())
    }

    /// Some pages in a row go, or their mapping does.
    fn disturb(&mut self, random: &mut Random, kind: Page) {
        let first = if random.one_in(10) {
            WORDS_BASE / PAGE_BYTES
        } else {
            BASE / PAGE_BYTES + random.below(self.end_page - BASE / PAGE_BYTES)
        };
        for page in first..first + random.range(1, 20) {
            self.pages.entry(page).or_insert(kind);
        }
    }
}

impl Bench {
    /// From now on transfers are between memories of programs.
    pub fn use_own_memory(&mut self, faults: OwnFaults) {
        let bytes = self.memory[0].len();
        let mut hosts = [0; 2].map(|_| Host::new(faults.iommu, bytes));
        for program in hosts.iter_mut().flat_map(|host| &mut host.programs) {
            for page in BASE / PAGE_BYTES..program.end_page {
                if self.random.one_in(3) {
                    program.pages.insert(page, Page::Missing(self.random.among(&Absence::ALL)));
                }
            }
        }
        self.own_faults = Some(faults);
        self.programs_stop = faults.freezing + faults.hanging + faults.dying > 0;
        self.hosts = Some(hosts);
        for engine in &mut self.engines {
            engine.add_loopback_peer(self.now, HERE, 16 * 1024);
        }
    }

    /// From now on pages come, and none goes.
    pub fn calm_programs(&mut self) {
        if let Some(faults) = &mut self.own_faults {
            *faults = OwnFaults {
                going: 0,
                hanging: 0,
                freezing: 0,
                vanishing: 0,
                lying: 0,
                dying: 0,
                releasing: 0,
                full: 0,
                ..*faults
            };
        }
    }

    fn host(&mut self, node: usize) -> &mut Host {
        &mut self.hosts.as_mut().expect("programs' own memory")[node]
    }

    fn program(&mut self, node: usize, context: ContextId) -> Option<&mut Program> {
        self.host(node).programs.iter_mut().find(|program| program.context == context)
    }

    /// A program registers memory, or is given some of the node.
    pub(super) fn register(&mut self, node: usize, domain: Domain, start: u64, bytes: u32) {
        let Some(faults) = self.own_faults else { return };
        let is_own = !self.random.per_million(faults.of_node);
        let (end, program) = (start + u64::from(bytes).max(1), program_of(domain));
        let range = Range { end, program, is_own, is_gone: false, is_free: false };
        let before = self.host(node).ranges.insert(start, range);
        assert!(before.is_none(), "registered twice at {start:#x}");
    }

    /// Whether memory is its program's again, who has written to it since.
    pub(super) fn is_free(&self, node: usize, start: u64) -> bool {
        let Some(hosts) = &self.hosts else { return false };
        let before = hosts[node].ranges.range(..=start).next_back();
        before.is_some_and(|(_, range)| range.is_free && start < range.end)
    }

    /// A node and its programs start afresh.
    pub(super) fn restart_programs(&mut self, node: usize) {
        let bytes = self.memory[node].len();
        let Some((hosts, faults)) = self.hosts.as_mut().zip(self.own_faults) else { return };
        let mut fresh = Host::new(faults.iommu, bytes);
        fresh.ranges = std::mem::take(&mut hosts[node].ranges);
        hosts[node] = fresh;
        self.engines[node].add_loopback_peer(self.now, HERE, 16 * 1024);
    }

    /// Something changes in a program.
    pub(super) fn disturb_programs(&mut self) {
        let Some(faults) = self.own_faults else { return };
        let node = self.random.below(2) as usize;
        let which = self.random.below(PROGRAMS as u64) as usize;
        let Some(hosts) = &mut self.hosts else { return };
        let program = &mut hosts[node].programs[which];
        if self.random.per_million(faults.going) {
            let kind = Page::Missing(self.random.among(&Absence::ALL));
            program.disturb(&mut self.random, kind);
        }
        if self.random.per_million(faults.freezing) {
            let most_ns = self.random.among(&[HANG_NS, STOP_NS]);
            let until = self.now.after_ns(self.random.below(most_ns));
            program.stopped_until = program.stopped_until.max(until);
        }
        if self.random.per_million(faults.vanishing) {
            let kind = self.random.among(&[Page::Protected, Page::Unmapped]);
            program.disturb(&mut self.random, kind);
            let delay_ns = self.random.below(VANISHED_NS);
            self.at(self.now.after_ns(delay_ns), Event::Mapped { at: node });
        }
        if self.random.per_million(faults.dying) {
            let host = self.host(node);
            host.own.close(host.programs[which].context);
            host.last_context += 1;
            host.programs[which].context = ContextId(host.last_context);
            host.programs[which].hanging.clear();
            host.programs[which].bringing.clear();
            host.programs[which].orders = 0;
            host.own.open(ContextId(host.last_context));
        }
        if self.random.per_million(faults.releasing) {
            let host = &self.hosts.as_ref().expect("programs' own memory")[node];
            let used = host.ranges.iter().filter(|(start, range)| {
                **start != WORDS_BASE && range.is_own && !range.is_gone && range.program == which
            });
            let starts: Vec<u64> = used.map(|(start, _)| *start).collect();
            if !starts.is_empty() {
                let start = self.random.among(&starts);
                self.release(node, start);
            }
        }
    }

    /// A program deregisters memory, or tries so once more.
    pub(super) fn release(&mut self, node: usize, start: u64) {
        let now = self.now;
        let host = self.host(node);
        let range = host.ranges.get_mut(&start).expect("a range");
        range.is_gone = true;
        let context = host.programs[range.program].context;
        match host.own.release(now, context, start) {
            Released::Now => self.released(node, context, start, true),
            Released::Later => {}
            Released::Stuck => self.at(self.now.after_ns(AGAIN_NS), Event::Release { at: node, start }),
        }
    }

    /// The program hears that its memory is its own again, and uses it.
    fn released(&mut self, node: usize, context: ContextId, start: u64, has_ended: bool) {
        let value = self.random.next() as u8;
        let host = self.host(node);
        let Some(range) = host.ranges.get_mut(&start) else { panic!("nobody has taken back {start:#x}") };
        assert!(range.is_gone && !range.is_free, "released twice at {start:#x}");
        if host.programs[range.program].context != context {
            return;
        }
        if !has_ended {
            return self.at(self.now.after_ns(AGAIN_NS), Event::Release { at: node, start });
        }
        range.is_free = true;
        let bytes = (start - BASE) as usize..(range.end - BASE) as usize;
        self.memory[node][bytes.clone()].fill(value);
        self.expected[node][bytes].fill(value);
    }

    /// What had vanished is mapped again; its pages are to be brought in.
    pub(super) fn map_again(&mut self, node: usize) {
        for page in self.host(node).programs.iter_mut().flat_map(|program| program.pages.values_mut()) {
            if matches!(page, Page::Protected | Page::Unmapped) {
                *page = Page::Missing(Absence::Missing);
            }
        }
    }

    /// Begins an access. On an error nothing more is heard of it.
    fn begin(
        &mut self,
        node: usize,
        (range, program): (u64, usize),
        at: (u64, u32),
        (purpose, is_by_owner): (Purpose, bool),
        (order, bytes): (Order, Vec<u8>),
    ) -> Result<(), Refusal> {
        let faults = self.own_faults.expect("programs' own memory");
        let has_no_room = self.random.per_million(faults.full);
        let now = self.now;
        let host = self.host(node);
        let context = host.programs[program].context;
        let end = host.ranges[&range].end;
        let policy = faults.policy;
        let request = Request { context, range: (range, end), policy, at, purpose, is_by_owner };
        if has_no_room {
            return Err(host.own.no_room(&request));
        }
        let right = if matches!(order, Order::Read) { Right::Read } else { Right::Write };
        let left = Left { program, range, at, look: at, right, bytes, order };
        let Begun { access: id, look, may_bring } = host.own.begin(now, &request, left)?;
        assert!(range <= look.0 && look.0 + u64::from(look.1) <= end, "looks beyond its range");
        host.own.with_mut(id).expect("an access that has begun").look = look;
        self.order(node, context, id, if may_bring { Attempt::Bringing } else { Attempt::Plain });
        Ok(())
    }

    /// The program is asked to attempt an access.
    fn order(&mut self, node: usize, context: ContextId, access: AccessId, how: Attempt) {
        let mut delay_ns = self.random.below(20_000);
        if self.random.per_million(self.faults.slow_copy) {
            delay_ns += self.random.below(self.faults.slow_ns);
        }
        let Some(time) = self.next_order(node, context, delay_ns) else { return };
        self.at(time, Event::Attempt { at: node, context, access, how });
    }

    /// When a program takes an order that is given now, so many ns later at the earliest.
    fn next_order(&mut self, node: usize, context: ContextId, delay_ns: u64) -> Option<Time> {
        let earliest = self.now.after_ns(delay_ns);
        let program = self.program(node, context)?;
        program.orders += 1;
        assert!(program.orders <= MOST_ORDERS, "more orders than a ring has places");
        program.last_order = program.last_order.max(earliest);
        Some(program.last_order)
    }

    /// A program has answered an order.
    fn order_answered(&mut self, node: usize, context: ContextId) {
        if let Some(program) = self.program(node, context) {
            program.orders -= 1;
        }
    }

    pub(super) fn place_own(&mut self, node: usize, placement: Placement, payload: &[u8]) {
        let at = (placement.address, placement.length_bytes);
        let purpose = (Purpose::Place(placement), placement.read.is_some());
        let begun = match self.host(node).resolve(placement.domain, at) {
            Ok(None) => return self.copy(node, placement, payload),
            Ok(Some(place)) => self.begin(node, place, at, purpose, (Order::Write, payload.to_vec())),
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = begun {
            self.engines[node].refused(placement, refusal);
        }
    }

    pub(super) fn operate_own(&mut self, node: usize, operation: Operation) {
        let placement = operation.placement;
        let at = (placement.address, ATOMIC_BYTES);
        let work = (Order::Change(operation.operation), Vec::new());
        let place = self.host(node).resolve(placement.domain, at);
        let place = place.expect("the words stay").expect("the words are a program's");
        if let Err(refusal) = self.begin(node, place, at, (Purpose::Operate(operation), false), work) {
            self.engines[node].refused(placement, refusal);
        }
    }

    pub(super) fn notify_own(&mut self, node: usize, write: NotificationWrite) {
        let at = (write.words.address, NOTIFICATION_BYTES);
        let work = (Order::Words(self.notified_by(node, &write.words), write.words), Vec::new());
        let purpose = (Purpose::Notify(write), write.read.is_some());
        let begun = match self.host(node).resolve(write.domain, at) {
            Ok(None) => return self.write_notification(node, write),
            Ok(Some(place)) => self.begin(node, place, at, purpose, work),
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = begun {
            self.engines[node].notification_refused(write, refusal);
        }
    }

    /// A block goes out when its bytes are read.
    pub(super) fn send_own(&mut self, node: usize, block: &Block) {
        let now = self.now;
        let at = (block.source_address, block.length_bytes);
        let (engine, hosts) = (&mut self.engines[node], self.hosts.as_mut().expect("programs' own memory"));
        let host = &mut hosts[node];
        let place = match host.resolve(block.own_domain, at) {
            Ok(None) => {
                let offset = (at.0 - BASE) as usize;
                let bytes = self.memory[node][offset..offset + at.1 as usize].to_vec();
                return self.send_packets(node, block, &bytes);
            }
            Ok(Some(place)) => place,
            Err(_) if host.own.is_underway(now, engine, block) => return,
            Err(refusal) => return engine.source_refused(now, block, refusal),
        };
        let Some(id) = host.own.send(now, engine, block) else { return };
        let purpose = (Purpose::Move { id, by: block.fault_source(), end: End::Source }, false);
        if let Err(refusal) = self.begin(node, place, at, purpose, (Order::Read, Vec::new())) {
            let host = &mut self.hosts.as_mut().expect("programs' own memory")[node];
            host.own.not_sent(now, &mut self.engines[node], id, refusal);
        }
    }

    /// A block stays at its node.
    pub(super) fn stay_own(&mut self, node: usize, block: &Block) {
        let asker = Some(self.watched[block.user as usize].asker);
        let host = &mut self.hosts.as_mut().expect("programs' own memory")[node];
        if let Some(id) = host.own.stay(self.now, &mut self.engines[node], block, asker) {
            self.go_on_here(node, id, *block, Part::Copy);
        }
    }

    /// The words of a block that stays here, apart from it.
    pub(super) fn words_own(&mut self, node: usize, packet: &Packet<'_>) {
        let Packet::Notify(NotifyHeader { transaction, generation, attempt, notification, .. }) = *packet
        else {
            panic!("{packet:?} to the node itself");
        };
        let words = Words { peer: HERE, slot: transaction.0, generation, attempt, words: notification };
        match self.host(node).own.words(&words) {
            Some(Some((id, block))) => self.go_on_here(node, id, block, Part::Words(notification)),
            Some(None) => {}
            None => {
                let nack = Nack { transaction, generation, attempt, refusal: NackCode::NoContext.into() };
                let _ = self.engines[node].handle(self.now, HERE, &Packet::Nack(nack));
            }
        }
    }

    /// Carries out parts of a block that stays here, until one takes time or the block is over.
    fn go_on_here(&mut self, node: usize, id: MoveId, block: Block, part: Part<Left>) {
        let mut next = Some((block, part));
        while let Some((block, part)) = next {
            let went = match part {
                Part::Copy => self.copy_part(node, id, &block),
                Part::Write(left) => self.write_part(node, id, &block, left.bytes),
                Part::Words(words) => self.words_part(node, id, &block, words),
            };
            let Some(went) = went.transpose() else { return };
            let host = &mut self.hosts.as_mut().expect("programs' own memory")[node];
            next = host.own.went(self.now, &mut self.engines[node], id, went);
        }
    }

    fn begin_part(
        &mut self,
        node: usize,
        (id, end): (MoveId, End),
        block: &Block,
        (domain, at): (Domain, (u64, u32)),
        (place, order, bytes): ((u64, usize), Order, Vec<u8>),
    ) -> Result<Option<Went>, Refused> {
        let is_by_owner = self.watched[block.user as usize].asker == domain;
        let purpose = (Purpose::Move { id, by: block.fault_source(), end }, is_by_owner);
        let begun = self.begin(node, place, at, purpose, (order, bytes));
        begun.map(|()| None).map_err(Refused::of(domain))
    }

    fn copy_part(&mut self, node: usize, id: MoveId, block: &Block) -> Result<Option<Went>, Refused> {
        let to = (block.destination_address, block.length_bytes);
        let from = (block.source_address, block.length_bytes);
        self.host(node).resolve(block.domain, to).map_err(Refused::of(block.domain))?;
        let place = self.host(node).resolve(block.own_domain, from).map_err(Refused::of(block.own_domain))?;
        if let Some(place) = place {
            let work = (place, Order::Read, Vec::new());
            return self.begin_part(node, (id, End::Source), block, (block.own_domain, from), work);
        }
        let offset = (from.0 - BASE) as usize;
        let bytes = self.memory[node][offset..offset + from.1 as usize].to_vec();
        self.write_part(node, id, block, bytes)
    }

    fn write_part(
        &mut self,
        node: usize,
        id: MoveId,
        block: &Block,
        bytes: Vec<u8>,
    ) -> Result<Option<Went>, Refused> {
        let to = (block.destination_address, block.length_bytes);
        let place = self.host(node).resolve(block.domain, to).map_err(Refused::of(block.domain))?;
        if let Some(place) = place {
            let work = (place, Order::Write, bytes);
            return self.begin_part(node, (id, End::Destination), block, (block.domain, to), work);
        }
        let offset = (to.0 - BASE) as usize;
        self.memory[node][offset..offset + bytes.len()].copy_from_slice(&bytes);
        Ok(Some(Went::Written))
    }

    fn words_part(
        &mut self,
        node: usize,
        id: MoveId,
        block: &Block,
        words: Notification,
    ) -> Result<Option<Went>, Refused> {
        let at = (words.address, NOTIFICATION_BYTES);
        let which = self.notified_by(node, &words);
        let place = self.host(node).resolve(block.domain, at).map_err(Refused::of(block.domain))?;
        if let Some(place) = place {
            let work = (place, Order::Words(which, words), Vec::new());
            return self.begin_part(node, (id, End::Notification), block, (block.domain, at), work);
        }
        self.write_words_of(node, which, &words);
        Ok(Some(Went::Said))
    }

    /// A program asks for a change of a word of its node.
    pub(super) fn change_here(&mut self, node: usize, which: usize) {
        let Some(watched) = self.watched.get(which).filter(|watched| watched.status.is_none()) else {
            return;
        };
        let (spec, asker) = (watched.spec, watched.asker);
        let tombolo_core::rdma::Direction::Atomic(operation) = spec.direction else { panic!("{spec:?}") };
        let at = (spec.destination_address, ATOMIC_BYTES);
        let by = FaultSource { node: HERE.0, transaction: u16::MAX, sequence: which as u32 };
        let purpose = Purpose::Change { user: which as u64, domain: spec.domain, by };
        let place = self.host(node).resolve(spec.domain, at);
        let place = place.expect("the words stay").expect("the words are a program's");
        let work = (Order::Change(operation), Vec::new());
        let is_by_owner = asker == spec.domain;
        match self.begin(node, place, at, (purpose, is_by_owner), work) {
            Ok(()) => {}
            Err(refusal) if refusal.code == NackCode::BufferFull => self.change_again(node, which),
            Err(refusal) => self.not_changed(node, which, Refused { domain: spec.domain, refusal }),
        }
    }

    fn change_again(&mut self, node: usize, which: usize) {
        self.at(self.now.after_ns(1_000_000), Event::Change { at: node, which });
    }

    fn not_changed(&mut self, node: usize, which: usize, refused: Refused) {
        let error = match refused.is_of(Some(self.watched[which].asker)) {
            true => TransferError::Local(refused.refusal),
            false => TransferError::Refused(refused.refusal),
        };
        self.ended(node, which, Err(error), 0);
    }

    /// The program attempts an access, and says how it went.
    pub(super) fn attempt(&mut self, node: usize, context: ContextId, id: AccessId, how: Attempt) {
        let now = self.now;
        // If its program is gone, nobody copies.
        let Some(program) = self.program(node, context) else { return };
        if let Some(later) = program.stopped(now) {
            return self.at(later, Event::Attempt { at: node, context, access: id, how });
        }
        if let Attempt::Brought(..) | Attempt::Behind = how {
            let Some(place) = program.bringing.iter().position(|(known, _)| *known == id) else {
                // It was withdrawn.
                return;
            };
            program.bringing.remove(place);
        } else if let Some(time) = self.waits_until(node, context, id) {
            return self.at(time, Event::Attempt { at: node, context, access: id, how: Attempt::Behind });
        }
        let faults = self.own_faults.expect("programs' own memory");
        let has_thread = how == Attempt::Bringing && self.random.one_in(2);
        let mut delay_ns = self.random.below(faults.touch_ns.max(1));
        if has_thread && self.random.per_million(faults.hanging) {
            delay_ns += HANG_NS;
        }
        let host = self.host(node);
        let left = host.own.with(id).expect("what is copied stays until that was answered");
        let (at, look, right) = (left.at, left.look, left.right);
        let range = host.ranges[&left.range];
        assert!(!range.is_free, "an access to memory that is its program's again");
        let program = &mut host.programs[left.program];
        assert_eq!(program.context, context);
        let outcome = match program.look(look, right) {
            Err(unreached) => Outcome::Denied(unreached),
            Ok(Some((absent, kind))) if has_thread => {
                let time = now.after_ns(delay_ns);
                program.bringing.push((id, time));
                let how = Attempt::Brought(absent, kind);
                return self.at(time, Event::Attempt { at: node, context, access: id, how });
            }
            Ok(Some((absent, kind)))
                if matches!(how, Attempt::Plain | Attempt::Bringing | Attempt::Behind) =>
            {
                Outcome::Absent(absent, kind)
            }
            Ok(_) => {
                program.bring(at.0, at.1, right).expect("it was looked at");
                self.carry_out(node, id)
            }
        };
        let outcome = match (how, outcome) {
            (Attempt::Brought(pages, kind), Outcome::Done(before)) => {
                Outcome::Brought { before, pages, kind }
            }
            (_, outcome) => outcome,
        };
        if matches!(outcome, Outcome::Denied(_)) {
            self.carry_out_part(node, id);
        }
        let now = self.now;
        self.order_answered(node, context);
        self.host(node).own.attempted(now, context, id, outcome);
        if self.lies() {
            self.drain();
            let invented = AccessId(self.random.below(100) + (1 << 40));
            self.host(node).own.attempted(now, context, invented, Outcome::Done(7));
            // What is ordered once more is attempted then; a lie about it would be one about its bytes.
            let is_ordered = self.events.values().any(
                |event| matches!(event, Event::Attempt { at, access, .. } if (*at, *access) == (node, id)),
            );
            if !is_ordered {
                self.host(node).own.attempted(now, context, id, Outcome::Done(7));
            }
        }
    }

    /// The program is asked not to make an access, if it is still at bringing pages in.
    pub(super) fn withdraw(&mut self, node: usize, context: ContextId, access: AccessId) {
        let now = self.now;
        let Some(program) = self.program(node, context) else { return };
        if let Some(later) = program.stopped(now) {
            return self.at(later, Event::Withdraw { at: node, context, access });
        }
        let place = program.bringing.iter().position(|(known, _)| *known == access);
        let is_withdrawn = place.map(|place| program.bringing.remove(place)).is_some();
        self.order_answered(node, context);
        self.host(node).own.withdrawn(now, context, access, is_withdrawn);
        if is_withdrawn {
            // The order itself is answered then, which says nothing new.
            self.order_answered(node, context);
            let nowhere = Unreached { address: 0, reason: Reason::NotMapped };
            self.host(node).own.attempted(now, context, access, Outcome::Denied(nowhere));
        }
    }

    /// Until when an access waits for another one that overlaps with it and that was ordered before; it is behind that one then.
    fn waits_until(&mut self, node: usize, context: ContextId, id: AccessId) -> Option<Time> {
        let host = self.host(node);
        let program = host.programs.iter_mut().find(|program| program.context == context)?;
        let this = host.own.with(id)?;
        let is_before = |other: &Left| {
            other.at.0 < this.at.0 + u64::from(this.at.1)
                && this.at.0 < other.at.0 + u64::from(other.at.1)
                && (other.right == Right::Write || this.right == Right::Write)
        };
        let before = program.bringing.iter().find(|(known, _)| host.own.with(*known).is_some_and(is_before));
        let time = before?.1;
        program.bringing.push((id, time));
        Some(time)
    }

    fn lies(&mut self) -> bool {
        let lying = self.own_faults.map_or(0, |faults| faults.lying);
        self.random.per_million(lying)
    }

    /// The program reads, writes or changes what an access is for.
    fn carry_out(&mut self, node: usize, id: AccessId) -> Outcome {
        let left = self.host(node).own.with_mut(id).expect("an access that is not over");
        let (at, order) = (left.at, left.order);
        let offset = at.0.wrapping_sub(BASE) as usize;
        match order {
            Order::Read => {
                let bytes = self.memory[node][offset..offset + at.1 as usize].to_vec();
                self.host(node).own.with_mut(id).expect("an access that is not over").bytes = bytes;
            }
            Order::Write => {
                let bytes = std::mem::take(&mut left.bytes);
                self.memory[node][offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            Order::Words(which, words) => self.write_words_of(node, which, &words),
            Order::Change(operation) => return Outcome::Done(self.change(node, at.0, operation)),
        }
        Outcome::Done(0)
    }

    /// What a write may have done before it came to what it must not touch.
    fn carry_out_part(&mut self, node: usize, id: AccessId) {
        let left = self.host(node).own.with(id).expect("an access that is not over");
        let (at, bytes) = (left.at, left.bytes.clone());
        if !matches!(left.order, Order::Write) {
            return;
        }
        let part = self.random.below(bytes.len() as u64 + 1) as usize;
        let offset = (at.0 - BASE) as usize;
        self.memory[node][offset..offset + part].copy_from_slice(&bytes[..part]);
    }

    /// The program has brought pages in, as far as they come.
    pub(super) fn touched(
        &mut self,
        node: usize,
        context: ContextId,
        touch: TouchId,
        at: (u64, u32),
        right: Right,
    ) {
        let now = self.now;
        let Some(program) = self.program(node, context) else { return };
        if let Some(later) = program.stopped(now) {
            return self.at(later, Event::Touch { at: node, context, touch, range: at, right });
        }
        let outcome = program.bring(at.0, at.1, right);
        program.hanging.remove(&touch);
        let lies = self.lies();
        let own = &mut self.host(node).own;
        own.touched(now, context, touch, outcome);
        if lies {
            own.touched(now, context, touch, Ok(()));
            own.touched(now, context, TouchId(1 << 40), Ok(()));
        }
    }

    /// Does what the machine of a node wants done.
    pub(super) fn drain_own(&mut self, node: usize) -> bool {
        let now = self.now;
        let Some(hosts) = &mut self.hosts else { return false };
        let Some(step) = hosts[node].own.poll(now, &mut self.engines[node]) else { return false };
        match step {
            Step::Attempt { access, is_forced } => {
                let program = hosts[node].own.with(access).expect("what is to be copied").program;
                let context = hosts[node].programs[program].context;
                self.order(node, context, access, if is_forced { Attempt::Forced } else { Attempt::Plain });
            }
            Step::Withdraw(context, access) => {
                let delay_ns = self.random.below(20_000);
                if let Some(time) = self.next_order(node, context, delay_ns) {
                    self.at(time, Event::Withdraw { at: node, context, access });
                }
            }
            Step::Touch { touch, context, address, length_bytes, right } => {
                assert!(length_bytes > 0, "{step:?}");
                let faults = self.own_faults.expect("programs' own memory");
                let mut delay_ns = self.random.below(faults.touch_ns.max(1));
                if self.random.per_million(faults.hanging) {
                    delay_ns += HANG_NS;
                    self.program(node, context).expect("a program").hanging.insert(touch);
                }
                let at = (address, length_bytes);
                self.at(now.after_ns(delay_ns), Event::Touch { at: node, context, touch, range: at, right });
            }
            Step::Send(block, left) => self.send_packets(node, &block, &left.bytes),
            Step::Go(id, block, part) => self.go_on_here(node, id, block, part),
            Step::Changed(user, before) => self.ended(node, user as usize, Ok(()), before),
            Step::NotBegun(user) => self.change_again(node, user as usize),
            Step::NotChanged(user, refused) => self.not_changed(node, user as usize, refused),
            Step::Released(context, start, has_ended) => self.released(node, context, start, has_ended),
        }
        true
    }

    /// What takes too long is given up.
    pub(super) fn expire_own(&mut self, node: usize) {
        let now = self.now;
        if let Some(hosts) = &mut self.hosts {
            let own = &mut hosts[node].own;
            if own.next_deadline().is_some_and(|deadline| deadline <= now) {
                own.expire(now);
            }
        }
    }

    pub(super) fn own_deadline(&self, node: usize) -> Option<Time> {
        self.hosts.as_ref().and_then(|hosts| hosts[node].own.next_deadline())
    }

    /// Nothing of any access is left.
    pub(super) fn check_programs(&self) {
        for host in self.hosts.iter().flatten() {
            assert!(host.own.is_idle(), "{:?}", host.own);
            let programs = &host.programs;
            assert!(programs.iter().all(|program| program.hanging.is_empty() && program.bringing.is_empty()));
        }
    }
}
