//! Memory of programs whose pages may be absent, with an IOMMU at each node: the bench plays the programs, who look
//! for absent pages, copy, and bring pages in, and the runtime between them, the IOMMU and the engine.

use std::collections::{HashMap, HashSet};

use super::{BASE, Bench, Event, WORDS, WORDS_BASE};
use tombolo_core::iommu::{
    Absence, Access, AccessId, Action, BeginError, Config, ContextId, End, FaultPolicy, FaultSource, Iommu,
    Outcome, PAGE_BYTES, Reason, Right, TouchId, Unreached,
};
use tombolo_core::rdma::{Block, Engine, NotificationWrite, Operation, Placement, Time};
use tombolo_random::Random;
use tombolo_wire::{ATOMIC_BYTES, Generation, NackCode, Refusal};

/// The words of a notification.
const NOTIFICATION_BYTES: u32 = 16;
/// How long a page that does not come may take: longer than anybody waits for it.
const HANG_NS: u64 = 5_000_000_000;
/// How long a program may be stopped: longer than its peers bear.
const STOP_NS: u64 = 60_000_000_000;
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Missing(Absence),
    Protected,
    Unmapped,
}

#[derive(Debug)]
enum Purpose {
    Place(Placement),
    Notify(NotificationWrite),
    Operate(Operation),
    /// A block that goes out, by the number of its copy.
    Send(u64),
}

impl Purpose {
    /// Whether the program of this node asked for it: it is the answer to a read.
    fn is_of_asker(&self) -> bool {
        match self {
            Self::Place(placement) => placement.read.is_some(),
            Self::Notify(write) => write.read.is_some(),
            Self::Operate(_) | Self::Send(_) => false,
        }
    }
}

/// What the program is asked to do: it does so late, too.
#[derive(Clone, Copy, Debug)]
enum Order {
    Read,
    Write,
    Words(NotificationWrite),
    Change(Operation),
}

#[derive(Clone, Copy, Debug)]
enum Paused {
    Place(Placement),
    Send(Block),
}

/// An access that is not over.
#[derive(Debug)]
struct Entry {
    access: Access,
    /// What of it is copied.
    at: (u64, u32),
    /// What is written there, or what was read.
    bytes: Vec<u8>,
    order: Order,
    /// `None`: its sender was answered.
    purpose: Option<Purpose>,
    is_posted: bool,
    paused: Option<Paused>,
}

/// The program of one node, and what the node knows of its accesses.
#[derive(Debug)]
pub(super) struct Program {
    iommu: Iommu,
    context: ContextId,
    /// The pages that are not there.
    pages: HashMap<u64, Page>,
    /// Pages beyond this one are not used.
    end_page: u64,
    entries: HashMap<AccessId, Entry>,
    /// Copies of blocks that go out, and the newest for each slot.
    copies: HashMap<u64, Block>,
    slots: HashMap<u16, u64>,
    last_copy: u64,
    hanging: HashSet<TouchId>,
    /// It is stopped until then.
    stopped_until: Time,
}

impl Program {
    fn new(config: Config, memory_bytes: usize) -> Self {
        let context = ContextId(1);
        let mut iommu = Iommu::new(config);
        iommu.open(context);
        Self {
            iommu,
            context,
            pages: HashMap::new(),
            end_page: (BASE + memory_bytes as u64).div_ceil(PAGE_BYTES),
            entries: HashMap::new(),
            copies: HashMap::new(),
            slots: HashMap::new(),
            last_copy: 0,
            hanging: HashSet::new(),
            stopped_until: Time(0),
        }
    }

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

fn refusal_of(unreached: Unreached) -> Refusal {
    let code = match unreached.reason {
        Reason::Protected => NackCode::DomainMismatch,
        Reason::NotMapped | Reason::Unavailable | Reason::TimedOut | Reason::Gone => NackCode::DecodeError,
    };
    Refusal::at(code, unreached.address)
}

impl Bench {
    /// From now on all transfers are between memories of programs.
    pub fn use_own_memory(&mut self, faults: OwnFaults) {
        let bytes = self.memory[0].len();
        let mut programs = [0; 2].map(|_| Program::new(faults.iommu, bytes));
        for program in &mut programs {
            for page in BASE / PAGE_BYTES..program.end_page {
                if self.random.one_in(3) {
                    program.pages.insert(page, Page::Missing(self.random.among(&Absence::ALL)));
                }
            }
        }
        self.own_faults = Some(faults);
        self.programs = Some(programs);
    }

    /// From now on pages come, and none goes.
    pub fn calm_programs(&mut self) {
        if let Some(faults) = &mut self.own_faults {
            *faults =
                OwnFaults { going: 0, hanging: 0, freezing: 0, vanishing: 0, lying: 0, dying: 0, ..*faults };
        }
    }

    fn program(&mut self, node: usize) -> &mut Program {
        &mut self.programs.as_mut().expect("programs' own memory")[node]
    }

    /// A node and its program start afresh.
    pub(super) fn restart_program(&mut self, node: usize) {
        let bytes = self.memory[node].len();
        if let Some((programs, faults)) = self.programs.as_mut().zip(self.own_faults) {
            programs[node] = Program::new(faults.iommu, bytes);
        }
    }

    /// Blocks to a peer that was lost are not sent.
    pub(super) fn forget_copies(&mut self, node: usize) {
        if let Some(programs) = &mut self.programs {
            programs[node].copies.clear();
            programs[node].slots.clear();
        }
    }

    /// Something changes in a program.
    pub(super) fn disturb_programs(&mut self) {
        let Some(faults) = self.own_faults else { return };
        let node = self.random.below(2) as usize;
        let Some(programs) = &mut self.programs else { return };
        if self.random.per_million(faults.going) {
            let kind = Page::Missing(self.random.among(&Absence::ALL));
            programs[node].disturb(&mut self.random, kind);
        }
        if self.random.per_million(faults.vanishing) {
            let kind = self.random.among(&[Page::Protected, Page::Unmapped]);
            programs[node].disturb(&mut self.random, kind);
            let delay_ns = self.random.below(VANISHED_NS);
            self.at(self.now.after_ns(delay_ns), Event::Mapped { at: node });
        }
        if self.random.per_million(faults.freezing) {
            let most_ns = self.random.among(&[HANG_NS, STOP_NS]);
            let until = self.now.after_ns(self.random.below(most_ns));
            let program = self.program(node);
            program.stopped_until = program.stopped_until.max(until);
        }
        if self.random.per_million(faults.dying) {
            let program = self.program(node);
            program.iommu.close(program.context);
            // What was invented or given up is answered to nobody.
            program.entries.retain(|_, entry| entry.purpose.is_some());
            program.context.0 += 1;
            program.iommu.open(program.context);
        }
    }

    /// What had vanished is mapped again; its pages are to be brought in.
    pub(super) fn map_again(&mut self, node: usize) {
        for page in self.program(node).pages.values_mut() {
            if matches!(page, Page::Protected | Page::Unmapped) {
                *page = Page::Missing(Absence::Missing);
            }
        }
    }

    /// Begins an access. On an error nothing more is heard of it.
    fn begin(
        &mut self,
        node: usize,
        end: End,
        by: FaultSource,
        (at, block): ((u64, u32), (u64, u32)),
        purpose: Purpose,
        bytes: Vec<u8>,
    ) -> Result<(), Refusal> {
        let policy = self.own_faults.expect("programs' own memory").policy;
        let (range_start, range_end) = match end {
            End::Atomic => (WORDS_BASE, WORDS_BASE + 8 * WORDS as u64),
            _ => (BASE, BASE + self.memory[node].len() as u64),
        };
        // All of the block is looked at.
        let look = if block.0 <= at.0 && at.0 + u64::from(at.1) <= block.0 + u64::from(block.1) {
            block
        } else {
            at
        };
        let now = self.now;
        let program = self.program(node);
        let access = Access {
            context: program.context,
            address: look.0,
            length_bytes: look.1,
            right: if end == End::Source { Right::Read } else { Right::Write },
            end,
            by,
            range_start,
            range_end,
            policy,
            is_free_to_pause: end == End::Source,
            is_of_asker: purpose.is_of_asker(),
        };
        let id = program.iommu.begin(now, access).map_err(|error| match error {
            BeginError::Stuck if access.is_of_asker => NackCode::BufferFull.into(),
            BeginError::NoContext | BeginError::Stuck => Refusal::at(NackCode::DecodeError, at.0),
            BeginError::Full => NackCode::BufferFull.into(),
        })?;
        let order = match &purpose {
            Purpose::Place(_) => Order::Write,
            Purpose::Notify(write) => Order::Words(*write),
            Purpose::Operate(operation) => Order::Change(*operation),
            Purpose::Send(_) => Order::Read,
        };
        let entry = Entry { access, at, bytes, order, purpose: Some(purpose), is_posted: true, paused: None };
        program.entries.insert(id, entry);
        self.order(node, id, false);
        Ok(())
    }

    /// The program is asked to attempt an access.
    fn order(&mut self, node: usize, access: AccessId, is_forced: bool) {
        let mut delay_ns = self.random.below(20_000);
        if self.random.per_million(self.faults.slow_copy) {
            delay_ns += self.random.below(self.faults.slow_ns);
        }
        let context = self.program(node).context;
        self.at(self.now.after_ns(delay_ns), Event::Attempt { at: node, context, access, is_forced });
    }

    pub(super) fn place_own(&mut self, node: usize, placement: Placement, payload: &[u8]) {
        let at = (placement.address, placement.length_bytes);
        let (by, purpose) = (placement.fault_source(), Purpose::Place(placement));
        let begun = self.begin(node, End::Destination, by, (at, placement.block), purpose, payload.to_vec());
        if let Err(refusal) = begun {
            self.engines[node].refused(placement, refusal);
        }
    }

    pub(super) fn operate_own(&mut self, node: usize, operation: Operation) {
        let placement = operation.placement;
        let at = (placement.address, ATOMIC_BYTES);
        let (by, purpose) = (placement.fault_source(), Purpose::Operate(operation));
        if let Err(refusal) = self.begin(node, End::Atomic, by, (at, at), purpose, Vec::new()) {
            self.engines[node].refused(placement, refusal);
        }
    }

    pub(super) fn notify_own(&mut self, node: usize, write: NotificationWrite) {
        let at = (write.words.address, NOTIFICATION_BYTES);
        let (by, purpose) = (write.fault_source(), Purpose::Notify(write));
        if let Err(refusal) = self.begin(node, End::Notification, by, (at, at), purpose, Vec::new()) {
            self.engines[node].notification_refused(write, refusal);
        }
    }

    /// A block goes out when its bytes are read. If they are being read already, that counts for this attempt.
    pub(super) fn send_own(&mut self, node: usize, block: &Block) {
        let program = self.program(node);
        let known = program.slots.get(&block.transaction.0).copied();
        let is_same = |known: &u64| {
            let of: Option<Generation> = program.copies.get(known).map(|block| block.generation);
            of == Some(block.generation)
        };
        if let Some(number) = known.filter(is_same) {
            program.copies.insert(number, *block);
            return self.source_refused_own(node, block, NackCode::SlaveError.into());
        }
        program.last_copy += 1;
        let number = program.last_copy;
        program.copies.insert(number, *block);
        program.slots.insert(block.transaction.0, number);
        let at = (block.source_address, block.length_bytes);
        let begun =
            self.begin(node, End::Source, block.fault_source(), (at, at), Purpose::Send(number), Vec::new());
        if let Err(refusal) = begun {
            self.take_copy(node, number);
            self.source_refused_own(node, block, refusal);
        }
    }

    fn take_copy(&mut self, node: usize, number: u64) -> Option<Block> {
        let program = self.program(node);
        let block = program.copies.remove(&number)?;
        if program.slots.get(&block.transaction.0) == Some(&number) {
            program.slots.remove(&block.transaction.0);
        }
        Some(block)
    }

    fn source_refused_own(&mut self, node: usize, block: &Block, mut refusal: Refusal) {
        if refusal.code.is_transient() {
            refusal.code = NackCode::SlaveError;
        }
        self.engines[node].source_refused(self.now, block, refusal);
    }

    /// The program attempts an access, and says how it went.
    pub(super) fn attempt(&mut self, node: usize, context: ContextId, id: AccessId, is_forced: bool) {
        let now = self.now;
        let program = self.program(node);
        if let Some(later) = program.stopped(now) {
            return self.at(later, Event::Attempt { at: node, context, access: id, is_forced });
        }
        let Some(entry) = program.entries.get_mut(&id) else { return };
        entry.is_posted = false;
        let (access, at) = (entry.access, entry.at);
        if access.context != program.context {
            // Its program is gone, and nobody copies.
            program.entries.remove(&id);
            return;
        }
        let looked = program.look((access.address, access.length_bytes), access.right);
        let outcome = match looked {
            Err(unreached) => Outcome::Denied(unreached),
            Ok(Some((absent, kind))) if !is_forced => Outcome::Absent(absent, kind),
            Ok(_) => {
                program.bring(at.0, at.1, access.right).expect("it was looked at");
                self.carry_out(node, id)
            }
        };
        if matches!(outcome, Outcome::Denied(_)) {
            self.carry_out_part(node, id);
        }
        let now = self.now;
        let program = self.program(node);
        if program.entries.get(&id).is_some_and(|entry| entry.purpose.is_none()) {
            program.entries.remove(&id);
        }
        program.iommu.attempted(now, context, id, outcome);
        if self.lies() {
            self.drain();
            let invented = AccessId(self.random.below(100) + (1 << 40));
            let program = self.program(node);
            program.iommu.attempted(now, context, invented, Outcome::Done(7));
            // Nobody waits for this one's answer, unless it is asked to attempt it again.
            if program.entries.get(&id).is_none_or(|entry| !entry.is_posted) {
                program.iommu.attempted(now, context, id, Outcome::Done(7));
            }
        }
    }

    fn lies(&mut self) -> bool {
        let lying = self.own_faults.map_or(0, |faults| faults.lying);
        self.random.per_million(lying)
    }

    /// The program reads, writes or changes what an access is for.
    fn carry_out(&mut self, node: usize, id: AccessId) -> Outcome {
        let entry = self.program(node).entries.get_mut(&id).expect("an access that is not over");
        let (at, order) = (entry.at, entry.order);
        let offset = at.0.wrapping_sub(BASE) as usize;
        match order {
            Order::Read => {
                let bytes = self.memory[node][offset..offset + at.1 as usize].to_vec();
                self.program(node).entries.get_mut(&id).expect("an access that is not over").bytes = bytes;
            }
            Order::Write => {
                let bytes = std::mem::take(&mut entry.bytes);
                self.memory[node][offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            Order::Words(write) => self.write_words(node, &write),
            Order::Change(operation) => return Outcome::Done(self.change(node, &operation)),
        }
        Outcome::Done(0)
    }

    /// What a write may have done before it came to what it must not touch.
    fn carry_out_part(&mut self, node: usize, id: AccessId) {
        let entry = &self.program(node).entries[&id];
        let (end, length_bytes) = (entry.access.end, entry.at.1);
        if end != End::Destination {
            return;
        }
        let part = self.random.below(u64::from(length_bytes) + 1) as usize;
        let entry = &self.program(node).entries[&id];
        let (offset, bytes) = ((entry.at.0 - BASE) as usize, entry.bytes[..part].to_vec());
        self.memory[node][offset..offset + part].copy_from_slice(&bytes);
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
        if let Some(later) = self.program(node).stopped(now) {
            return self.at(later, Event::Touch { at: node, context, touch, range: at, right });
        }
        let lies = self.lies();
        let program = self.program(node);
        let outcome = program.bring(at.0, at.1, right);
        program.hanging.remove(&touch);
        program.iommu.touched(now, context, touch, outcome);
        if lies {
            program.iommu.touched(now, context, touch, Ok(()));
            program.iommu.touched(now, context, TouchId(1 << 40), Ok(()));
        }
    }

    /// Does what the IOMMU of a node wants done.
    pub(super) fn drain_iommu(&mut self, node: usize) -> bool {
        let now = self.now;
        let Some(programs) = &mut self.programs else { return false };
        let Some(action) = programs[node].iommu.poll(now) else { return false };
        match action {
            Action::Attempt { access, is_forced } => {
                if let Some(entry) = programs[node].entries.get_mut(&access) {
                    assert!(!entry.is_posted, "{action:?} while it is attempted");
                    let engine = &self.engines[node];
                    let is_wanted = match &entry.purpose {
                        Some(Purpose::Place(placement)) => engine.is_held(placement),
                        Some(Purpose::Operate(operation)) => engine.is_held(&operation.placement),
                        Some(Purpose::Notify(write)) => engine.are_held(write),
                        Some(Purpose::Send(_)) | None => true,
                    };
                    if !is_wanted {
                        let (context, address) = (entry.access.context, entry.at.0);
                        let gone = Outcome::Denied(Unreached { address, reason: Reason::Gone });
                        programs[node].iommu.attempted(now, context, access, gone);
                        return true;
                    }
                    entry.is_posted = true;
                    self.order(node, access, is_forced);
                }
            }
            Action::Touch { touch, context, address, length_bytes, right } => {
                assert!(length_bytes > 0, "{action:?}");
                let faults = self.own_faults.expect("programs' own memory");
                let mut delay_ns = self.random.below(faults.touch_ns.max(1));
                if self.random.per_million(faults.hanging) {
                    delay_ns += HANG_NS;
                    self.program(node).hanging.insert(touch);
                }
                let at = (address, length_bytes);
                self.at(now.after_ns(delay_ns), Event::Touch { at: node, context, touch, range: at, right });
            }
            Action::Done(access, before) => {
                let entry = programs[node].entries.remove(&access).expect("an access that is not over");
                let purpose = entry.purpose.expect("it is over once");
                self.follow(node, purpose, Ok((entry.bytes, before)));
            }
            Action::Refuse(access, unreached) => self.refuse(node, access, refusal_of(unreached)),
            Action::Busy(access) => self.refuse(node, access, NackCode::BufferFull.into()),
            Action::Pause { access, address, missing } => {
                let refusal = Refusal { code: NackCode::SlaveError, address: Some(address), missing };
                let entry = programs[node].entries.get_mut(&access).expect("an access that is not over");
                entry.bytes.clear();
                let purpose = entry.purpose.take().expect("it is over once");
                let paused = match &purpose {
                    Purpose::Place(placement) => Some(Paused::Place(*placement)),
                    Purpose::Send(number) => programs[node].copies.get(number).copied().map(Paused::Send),
                    Purpose::Notify(_) | Purpose::Operate(_) => panic!("{action:?}"),
                };
                self.program(node).entries.get_mut(&access).expect("an access that is not over").paused =
                    paused;
                self.follow(node, purpose, Err(refusal));
            }
            Action::Ready(access) => {
                let entry = programs[node].entries.remove(&access);
                let paused = entry.and_then(|entry| entry.paused);
                // Nobody may rely on being told, and it may be told twice.
                let times = if self.lies() { self.random.below(3) } else { 1 };
                for _ in 0..times {
                    match &paused {
                        Some(Paused::Place(placement)) => self.engines[node].page_ready(placement),
                        Some(Paused::Send(block)) => self.engines[node].source_ready(block),
                        None => {}
                    }
                }
            }
            Action::Forget(access) => drop(programs[node].entries.remove(&access)),
            Action::Released(..) => panic!("nobody asked for {action:?}"),
        }
        true
    }

    fn refuse(&mut self, node: usize, access: AccessId, refusal: Refusal) {
        let program = self.program(node);
        let Some(entry) = program.entries.get_mut(&access) else { return };
        let purpose = entry.purpose.take().expect("it is over once");
        if !entry.is_posted {
            program.entries.remove(&access);
        }
        self.follow(node, purpose, Err(refusal));
    }

    /// The engine goes on after an access.
    fn follow(&mut self, node: usize, purpose: Purpose, outcome: Result<(Vec<u8>, u64), Refusal>) {
        let engine: &mut Engine = &mut self.engines[node];
        match (purpose, outcome) {
            (Purpose::Place(placement), Ok(_)) => engine.placed(placement),
            (Purpose::Place(placement), Err(refusal)) => engine.refused(placement, refusal),
            (Purpose::Notify(write), Ok(_)) => engine.notified(write),
            (Purpose::Notify(write), Err(refusal)) => engine.notification_refused(write, refusal),
            (Purpose::Operate(operation), Ok((_, before))) => engine.operated(operation, before),
            (Purpose::Operate(operation), Err(refusal)) => engine.refused(operation.placement, refusal),
            (Purpose::Send(number), outcome) => match (self.take_copy(node, number), outcome) {
                (Some(block), Ok((bytes, _))) => self.send_packets(node, &block, &bytes),
                (Some(block), Err(refusal)) => self.source_refused_own(node, &block, refusal),
                (None, _) => {}
            },
        }
    }

    /// What takes too long is given up.
    pub(super) fn expire_iommu(&mut self, node: usize) {
        let now = self.now;
        if let Some(programs) = &mut self.programs {
            let iommu = &mut programs[node].iommu;
            if iommu.next_deadline().is_some_and(|deadline| deadline <= now) {
                iommu.expire(now);
            }
        }
    }

    pub(super) fn iommu_deadline(&self, node: usize) -> Option<Time> {
        self.programs.as_ref().and_then(|programs| programs[node].iommu.next_deadline())
    }

    /// Nothing of any access is left.
    pub(super) fn check_programs(&self) {
        for program in self.programs.iter().flatten() {
            assert!(program.iommu.is_idle(), "{:?}", program.iommu);
            assert!(program.entries.is_empty(), "accesses are left: {:?}", program.entries);
            assert!(program.hanging.is_empty() && program.copies.is_empty() && program.slots.is_empty());
        }
    }

    /// Faults that the IOMMUs have seen, and those that made senders wait.
    pub fn own_faults_seen(&self) -> [u64; 2] {
        let of = |program: &Program| {
            let counters = program.iommu.counters();
            [counters.faults.iter().flatten().sum(), counters.paused]
        };
        let mut sum = [0; 2];
        for program in self.programs.iter().flatten() {
            sum.iter_mut().zip(of(program)).for_each(|(sum, more)| *sum += more);
        }
        sum
    }
}
