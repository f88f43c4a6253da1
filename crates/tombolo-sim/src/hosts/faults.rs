//! Absent pages: a unit that translates, the machine that decides what becomes of a fault, and a handler that takes its time.
//!
//! ```text
//!  packet ──► SMMU ── absent ──► Iommu: record, refusal ──► driver: interrupt, tasklet ──► itself, or a thread: touch, answer
//!                └── present ──► memory                              └──► pages are there; a block that came is asked for again
//! ```
//!
//! The driver and the thread work at the same time.

use crate::kernel::{Span, Time};
use crate::parts::{Smmu, SmmuConfig, Translation, Translator};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tombolo_core::iommu::{
    Absence, Access, AccessId, Action, Config, ContextId, Counters, End, FAULT_RECORDS, FaultPolicy,
    FaultSource, Iommu, Outcome, PAGE_BYTES, Reason, Right, TouchId, Unreached,
};
use tombolo_core::rdma::{Block, Placement};
use tombolo_wire::{Attempt, NackCode, Refusal, Resume, TransactionId};

/// The constants of faults at a node.
#[derive(Clone, Copy, Debug)]
pub struct FaultConfig {
    /// Which pages are brought in, and what an access does meanwhile.
    pub policy: FaultPolicy,
    /// The machine that decides.
    pub iommu: Config,
    /// The unit that translates.
    pub smmu: SmmuConfig,
    /// From a record to the driver's tasklet: interrupt, and what follows it.
    pub notice: Span,
    /// A message of the driver to the program's thread.
    pub message: Span,
    /// Waking the thread, if it sleeps.
    pub wake: Span,
    /// Whether the thread brings pages in, or the driver. The thread alone asks senders for their blocks again.
    pub is_by_thread: bool,
    /// Reading a record out of the queue in hardware, which drops one that says what the one before it said, and no others.
    pub record: Span,
    /// A touch: the call, and each page.
    pub touch: Span,
    /// A touch: each page.
    pub touch_page: Span,
    /// Asking a sender for its block again.
    pub resume: Span,
    /// What the document leaves open.
    pub hypotheses: Hypotheses,
}

/// What the document leaves open, and what is taken to be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hypotheses {
    /// A fault of a source is noted though another one was, and is not handled yet.
    pub notes_all: bool,
    /// The driver reads all records that are there at once.
    pub drains: bool,
    /// What is before an absent page of a block leaves.
    pub sends_before: bool,
    /// A request for a block again that names an earlier attempt is not obeyed.
    pub ignores_old: bool,
}

impl Default for Hypotheses {
    fn default() -> Self {
        Self { notes_all: true, drains: true, sends_before: true, ignores_old: true }
    }
}

/// What faults at a node have cost.
#[derive(Clone, Copy, Debug)]
pub struct FaultCounts {
    /// What the machine has counted.
    pub machine: Counters,
    /// How long the driver was busy.
    pub driver: Span,
    /// How long the program's thread was.
    pub thread: Span,
    /// Accesses to present pages that were terminated after a fault of others.
    pub after_faults: u64,
    /// Touches of pages that are not mapped any more.
    pub late: u64,
}

/// What waits for a page.
#[derive(Debug)]
enum Waiting {
    /// A block here: its own time brings it again.
    Source,
    /// Bytes that came: their sender is asked for them again.
    Destination(Box<Placement>),
}

/// Who handles faults.
#[derive(Debug, Default)]
struct Worker {
    /// When it has done what it does.
    running: Option<(Time, Step)>,
    /// When it was done last.
    idle_since: Time,
    busy: Span,
}

/// What is done, and then.
#[derive(Debug)]
enum Step {
    /// It looks at the first record.
    Look,
    /// It brings pages in.
    Touch { touch: TouchId, first_page: u64, end_page: u64 },
    /// It asks for a block again.
    Resume(Box<Placement>),
}

/// The domain of the memory: a node has one here.
const CONTEXT: ContextId = ContextId(1);
const BANK: Translator = Translator(0);

/// Faults of a node's memory.
#[derive(Debug)]
pub(super) struct Faults {
    config: FaultConfig,
    iommu: Iommu,
    smmu: Smmu,
    absent: BTreeSet<u64>,
    waiting: BTreeMap<AccessId, Waiting>,
    /// The driver, and the program's thread.
    driver: Worker,
    thread: Worker,
    /// What the driver does before it looks at another record, and what the thread does.
    of_driver: VecDeque<Step>,
    of_thread: VecDeque<Step>,
    /// Pages that are not mapped, and touches of such.
    unmapped: BTreeSet<u64>,
    late: u64,
    /// Records in hardware that were not read, and the last one of them.
    records: u64,
    last_record: Option<(FaultSource, u64)>,
    /// The registers have a fault of a source that was not read.
    has_source_fault: bool,
    /// Pages that were present, and whose accesses were terminated after a fault of others.
    after_faults: u64,
    /// The latest attempt at each block, where requests that name an earlier one are obeyed.
    attempts: BTreeMap<TransactionId, Attempt>,
}

impl Faults {
    pub(super) fn new(config: FaultConfig) -> Self {
        let mut iommu = Iommu::new(config.iommu);
        iommu.open(CONTEXT);
        Self {
            config,
            iommu,
            smmu: Smmu::new(config.smmu),
            absent: BTreeSet::new(),
            waiting: BTreeMap::new(),
            driver: Worker::default(),
            thread: Worker::default(),
            of_driver: VecDeque::new(),
            of_thread: VecDeque::new(),
            unmapped: BTreeSet::new(),
            late: 0,
            records: 0,
            last_record: None,
            has_source_fault: false,
            after_faults: 0,
            attempts: BTreeMap::new(),
        }
    }

    /// These bytes are not there from now on.
    pub(super) fn take_away(&mut self, address: u64, length_bytes: u64) {
        for page in address / PAGE_BYTES..(address + length_bytes).div_ceil(PAGE_BYTES) {
            self.absent.insert(page);
            self.smmu.forget(BANK, page);
        }
    }

    /// A program has touched these pages.
    pub(super) fn bring(&mut self, address: u64, length_bytes: u64) {
        for page in address / PAGE_BYTES..(address + length_bytes).div_ceil(PAGE_BYTES) {
            self.absent.remove(&page);
            self.unmapped.remove(&page);
        }
    }

    /// A program has given these pages up.
    pub(super) fn unmap(&mut self, address: u64, length_bytes: u64) {
        self.take_away(address, length_bytes);
        self.unmapped.extend(address / PAGE_BYTES..(address + length_bytes).div_ceil(PAGE_BYTES));
    }

    pub(super) fn counts(&self) -> FaultCounts {
        FaultCounts {
            machine: *self.iommu.counters(),
            driver: self.driver.busy,
            thread: self.thread.busy,
            after_faults: self.after_faults,
            late: self.late,
        }
    }

    /// A block begins.
    pub(super) fn begun(&mut self, block: &Block) {
        if !self.config.hypotheses.ignores_old {
            self.attempts.insert(block.transaction, block.attempt);
        }
    }

    /// A request for a block again; its attempt is the current one where [`Hypotheses::ignores_old`] is off.
    pub(super) fn understood(&self, resume: Resume) -> Resume {
        let attempt = self.attempts.get(&resume.transaction).copied().unwrap_or(resume.attempt);
        Resume { attempt, ..resume }
    }

    /// A packet of a block is to be read: `Err` if its page is absent. The block goes no further then.
    pub(super) fn read(
        &mut self,
        now: Time,
        block: &Block,
        offset_bytes: u32,
        bytes: u32,
    ) -> Result<(), Refusal> {
        let at = block.source_address + u64::from(offset_bytes);
        let whole = (block.source_address, block.length_bytes);
        // The first absent page stops the block where it is, or before it begins.
        let (at, bytes) = match self.config.hypotheses.sends_before {
            true => (at, bytes),
            false => whole,
        };
        self.access(now, (at, bytes), whole, End::Source, block.fault_source()).map(|_| ()).map_err(
            |(id, refusal)| {
                self.waiting.extend(id.map(|id| (id, Waiting::Source)));
                let mut refused = self.settle(now);
                id.and_then(|id| refused.remove(&id)).unwrap_or(refusal)
            },
        )
    }

    /// A packet's bytes are to be written: `Err` if their page is absent.
    pub(super) fn write(&mut self, now: Time, placement: &Placement) -> Result<(), Refusal> {
        let bytes = (placement.address, placement.length_bytes);
        self.access(now, bytes, placement.block, End::Destination, placement.fault_source()).map_err(
            |(id, refusal)| {
                self.waiting.extend(id.map(|id| (id, Waiting::Destination(Box::new(*placement)))));
                let mut refused = self.settle(now);
                id.and_then(|id| refused.remove(&id)).unwrap_or(refusal)
            },
        )
    }

    fn access(
        &mut self,
        now: Time,
        (at, bytes): (u64, u32),
        (start, length_bytes): (u64, u32),
        end: End,
        by: FaultSource,
    ) -> Result<(), (Option<AccessId>, Refusal)> {
        let pages = at / PAGE_BYTES..(at + u64::from(bytes.max(1))).div_ceil(PAGE_BYTES);
        let is_refused = |page: &u64| {
            let is_present = !self.absent.contains(page);
            let (_, how) = self.smmu.translate(now, BANK, *page, is_present);
            self.after_faults += u64::from(how == Translation::AfterFault && is_present);
            how != Translation::Present
        };
        let Some(page) = pages.into_iter().find(is_refused) else { return Ok(()) };
        if end == End::Destination {
            let is_repeat = self.last_record.replace((by, page)) == Some((by, page));
            self.records = (self.records + u64::from(!is_repeat)).min(FAULT_RECORDS as u64);
        } else if self.has_source_fault && !self.config.hypotheses.notes_all {
            return Err((None, Refusal::at(NackCode::SlaveError, page * PAGE_BYTES)));
        }
        let access = Access {
            context: CONTEXT,
            address: start,
            length_bytes,
            right: if end == End::Source { Right::Read } else { Right::Write },
            end,
            by,
            range_start: 0,
            range_end: 1 << 48,
            policy: self.config.policy,
            copied_bytes: bytes,
            is_free_to_pause: true,
            is_of_asker: false,
        };
        // Beyond what a domain may have, its sender comes again by itself.
        let Ok(id) = self.iommu.begin(now.of_core(), access) else {
            return Err((None, Refusal::at(NackCode::SlaveError, page * PAGE_BYTES)));
        };
        let place = (page - start / PAGE_BYTES).min(31);
        let noted = self.iommu.waiting_faults();
        self.iommu.attempted(now.of_core(), CONTEXT, id, Outcome::Absent(1 << place, Absence::Missing));
        self.has_source_fault |= end == End::Source && self.iommu.waiting_faults() > noted;
        Err((Some(id), Refusal::at(NackCode::SlaveError, page * PAGE_BYTES)))
    }

    /// Carries out the machine's actions: touches and requests for blocks are queued for driver and thread. Returns the refused accesses.
    /// With [`tombolo_core::iommu::FaultMode::Terminate`] those are attempts that were just made.
    fn settle(&mut self, now: Time) -> BTreeMap<AccessId, Refusal> {
        let mut refused = BTreeMap::new();
        while let Some(action) = self.iommu.poll_action() {
            match action {
                Action::Touch { touch, address, length_bytes, .. } => {
                    let end_page = (address + u64::from(length_bytes)).div_ceil(PAGE_BYTES);
                    let step = Step::Touch { touch, first_page: address / PAGE_BYTES, end_page };
                    let queue =
                        if self.config.is_by_thread { &mut self.of_thread } else { &mut self.of_driver };
                    queue.push_back(step);
                }
                Action::Ready(id) => {
                    if let Some(Waiting::Destination(placement)) = self.waiting.remove(&id) {
                        self.of_thread.push_back(Step::Resume(placement));
                    }
                }
                // Its pages went as often as they came: it is made whatever is there, which brings them in.
                Action::Attempt { access: id, .. } => {
                    if let Some(Waiting::Destination(placement)) = self.waiting.remove(&id) {
                        let (start, length_bytes) = placement.block;
                        self.bring(start, length_bytes.into());
                        self.of_thread.push_back(Step::Resume(placement));
                    }
                    self.iommu.attempted(now.of_core(), CONTEXT, id, Outcome::Done(0));
                }
                Action::Refuse(id, unreached) => {
                    self.waiting.remove(&id);
                    refused.insert(id, unreached.into());
                }
                Action::Forget(id) | Action::Busy(id) | Action::Done(id, _) => {
                    self.waiting.remove(&id);
                }
                // Its sender has been told, or nothing is withdrawn here.
                Action::Pause { .. } | Action::Withdraw(..) | Action::Released(..) => {}
            }
        }
        refused
    }

    /// Driver and thread go on: placements whose senders are to be asked for their blocks again.
    pub(super) fn go_on(&mut self, now: Time) -> Vec<Placement> {
        let mut ready = Vec::new();
        loop {
            let workers = [&mut self.driver, &mut self.thread];
            let done = workers.into_iter().find_map(|worker| worker.take_done(now));
            if let Some(step) = done {
                ready.extend(self.finish(now, step));
                let refused = self.settle(now);
                debug_assert!(refused.is_empty(), "{refused:?}");
                continue;
            }
            if !self.begin(now) {
                return ready;
            }
        }
    }

    /// A step is done: the placement whose sender is to be asked.
    fn finish(&mut self, now: Time, step: Step) -> Option<Placement> {
        match step {
            Step::Look => {
                // The registers are read and cleared with the record.
                self.smmu.clear_fault(BANK);
                self.has_source_fault = false;
                self.iommu.clear_registers(CONTEXT);
                self.iommu.handle_fault(now.of_core());
                None
            }
            Step::Touch { touch, first_page, end_page } => {
                let outcome = match self.unmapped.range(first_page..end_page).next() {
                    Some(page) => {
                        self.late += 1;
                        Err(Unreached { address: page * PAGE_BYTES, reason: Reason::NotMapped })
                    }
                    None => {
                        for page in first_page..end_page {
                            self.absent.remove(&page);
                        }
                        Ok(())
                    }
                };
                self.iommu.touched(now.of_core(), CONTEXT, touch, outcome);
                None
            }
            Step::Resume(placement) => Some(*placement),
        }
    }

    /// The driver or the thread begins something. `false`: neither can.
    fn begin(&mut self, now: Time) -> bool {
        let config = &self.config;
        if self.thread.running.is_none()
            && let Some(step) = self.of_thread.pop_front()
        {
            // It hears of pages that the driver has brought in by a message of its own.
            let message = if config.is_by_thread { Span::ZERO } else { config.message };
            let wake = if self.thread.idle_since < now { config.wake } else { Span::ZERO };
            let price = message.plus(wake).plus(config.price(&step));
            self.thread.begin(now, price, step);
            return true;
        }
        if self.driver.running.is_some() {
            return false;
        }
        if let Some(step) = self.of_driver.pop_front() {
            self.driver.begin(now, config.price(&step), step);
            return true;
        }
        if self.iommu.waiting_faults() == 0 {
            return false;
        }
        // A driver that reads all records goes on with the next one; else each costs an interrupt.
        let goes_on = config.hypotheses.drains && self.driver.idle_since == now && now > Time::ZERO;
        let notice = if goes_on { Span::ZERO } else { config.notice };
        let message = if config.is_by_thread { config.message } else { Span::ZERO };
        let records = std::mem::take(&mut self.records);
        let price = match config.hypotheses.drains {
            true => notice.plus(config.record.times(records)),
            false => notice.plus(config.record).times(records.max(1)),
        };
        self.driver.begin(now, price.plus(message), Step::Look);
        true
    }

    /// When the driver or the thread has done what it does.
    pub(super) fn done_at(&self) -> Option<Time> {
        let workers = [&self.driver, &self.thread];
        workers.iter().filter_map(|worker| worker.running.as_ref().map(|(done_at, _)| *done_at)).min()
    }
}

impl FaultConfig {
    /// What a step takes, beside messages and waking.
    fn price(&self, step: &Step) -> Span {
        match step {
            Step::Touch { first_page, end_page, .. } => {
                self.touch.plus(self.touch_page.times(end_page - first_page))
            }
            Step::Resume(_) => self.resume,
            // Its price depends on what was done before.
            Step::Look => Span::ZERO,
        }
    }
}

impl Worker {
    fn begin(&mut self, now: Time, price: Span, step: Step) {
        self.busy = self.busy.plus(price);
        self.running = Some((now.after(price), step));
    }

    fn take_done(&mut self, now: Time) -> Option<Step> {
        let (done_at, step) = self.running.take_if(|(done_at, _)| *done_at <= now)?;
        self.idle_since = done_at;
        Some(step)
    }
}
