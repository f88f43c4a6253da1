//! Absent pages: a unit that translates, the machine that decides what becomes of a fault, and a handler that takes its time.
//!
//! ```text
//!  packet ──► SMMU ── absent ──► Iommu: record, refusal ──► handler: interrupt … thread, touch, answer
//!                └── present ──► memory                         └──► pages are there; a block that came is asked for again
//! ```

use crate::kernel::{Span, Time};
use crate::parts::{Smmu, SmmuConfig, Translation, Translator};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tombolo_core::iommu::{
    Absence, Access, AccessId, Action, Config, ContextId, Counters, End, FaultPolicy, FaultSource, Iommu,
    Outcome, PAGE_BYTES, Right, TouchId,
};
use tombolo_core::rdma::{Block, Placement};
use tombolo_wire::{NackCode, Refusal};

/// The constants of faults at a node.
#[derive(Clone, Copy, Debug)]
pub struct FaultConfig {
    /// Which pages are brought in, and what an access does meanwhile.
    pub policy: FaultPolicy,
    /// The machine that decides.
    pub iommu: Config,
    /// The unit that translates.
    pub smmu: SmmuConfig,
    /// From a record to the thread that handles it: interrupt, tasklet, message to the program, wake.
    pub notice: Span,
    /// A touch: the call, and each page.
    pub touch: Span,
    /// A touch: each page.
    pub touch_page: Span,
    /// Asking a sender for its block again.
    pub resume: Span,
}

/// What waits for a page.
#[derive(Debug)]
enum Waiting {
    /// A block here: its own time brings it again.
    Source,
    /// Bytes that came: their sender is asked for them again.
    Destination(Box<Placement>),
}

/// What the handler does, and then.
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
    /// When the handler has done what it does.
    running: Option<(Time, Step)>,
    /// What it does next, before it looks at another record.
    next: VecDeque<Step>,
    busy: Span,
    /// Pages that were present, and whose accesses were terminated after a fault of others.
    after_faults: u64,
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
            running: None,
            next: VecDeque::new(),
            busy: Span::ZERO,
            after_faults: 0,
        }
    }

    /// These bytes are not there from now on.
    pub(super) fn take_away(&mut self, address: u64, length_bytes: u64) {
        for page in address / PAGE_BYTES..(address + length_bytes).div_ceil(PAGE_BYTES) {
            self.absent.insert(page);
            self.smmu.forget(BANK, page);
        }
    }

    pub(super) fn counters(&self) -> Counters {
        *self.iommu.counters()
    }

    pub(super) fn after_faults(&self) -> u64 {
        self.after_faults
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
        self.access(now, (at, bytes), whole, End::Source, block.fault_source()).map(|_| ()).map_err(
            |(id, refusal)| {
                self.waiting.extend(id.map(|id| (id, Waiting::Source)));
                self.settle();
                refusal
            },
        )
    }

    /// A packet's bytes are to be written: `Err` if their page is absent.
    pub(super) fn write(&mut self, now: Time, placement: &Placement) -> Result<(), Refusal> {
        let bytes = (placement.address, placement.length_bytes);
        self.access(now, bytes, placement.block, End::Destination, placement.fault_source()).map_err(
            |(id, refusal)| {
                self.waiting.extend(id.map(|id| (id, Waiting::Destination(Box::new(*placement)))));
                self.settle();
                refusal
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
        self.iommu.attempted(now.of_core(), CONTEXT, id, Outcome::Absent(1 << place, Absence::Missing));
        Err((Some(id), Refusal::at(NackCode::SlaveError, page * PAGE_BYTES)))
    }

    /// Takes what the machine says, but for what needs the handler.
    fn settle(&mut self) {
        while let Some(action) = self.iommu.poll_action() {
            match action {
                Action::Touch { touch, address, length_bytes, .. } => {
                    let end_page = (address + u64::from(length_bytes)).div_ceil(PAGE_BYTES);
                    self.next.push_back(Step::Touch { touch, first_page: address / PAGE_BYTES, end_page });
                }
                Action::Ready(id) => {
                    if let Some(Waiting::Destination(placement)) = self.waiting.remove(&id) {
                        self.next.push_back(Step::Resume(placement));
                    }
                }
                Action::Forget(id) | Action::Refuse(id, _) | Action::Busy(id) | Action::Done(id, _) => {
                    self.waiting.remove(&id);
                }
                // Its sender has been told; nothing here is attempted a second time, or withdrawn.
                Action::Pause { .. }
                | Action::Attempt { .. }
                | Action::Withdraw(..)
                | Action::Released(..) => {}
            }
        }
    }

    /// The handler goes on: placements whose senders are to be asked for their blocks again.
    pub(super) fn go_on(&mut self, now: Time) -> Vec<Placement> {
        let mut ready = Vec::new();
        loop {
            if let Some((_, step)) = self.running.take_if(|(done_at, _)| *done_at <= now) {
                match step {
                    Step::Look => {
                        // The registers are read and cleared with the record.
                        self.smmu.clear_fault(BANK);
                        self.iommu.clear_registers(CONTEXT);
                        self.iommu.handle_fault(now.of_core());
                    }
                    Step::Touch { touch, first_page, end_page } => {
                        self.absent.retain(|page| !(first_page..end_page).contains(page));
                        self.iommu.touched(now.of_core(), CONTEXT, touch, Ok(()));
                    }
                    Step::Resume(placement) => ready.push(*placement),
                }
                self.settle();
            }
            if self.running.is_some() {
                return ready;
            }
            let step = match self.next.pop_front() {
                Some(step) => step,
                None if self.iommu.waiting_faults() > 0 => Step::Look,
                None => return ready,
            };
            let price = match &step {
                Step::Look => self.config.notice,
                Step::Touch { first_page, end_page, .. } => {
                    self.config.touch.plus(self.config.touch_page.times(end_page - first_page))
                }
                Step::Resume(_) => self.config.resume,
            };
            self.busy = self.busy.plus(price);
            self.running = Some((now.after(price), step));
        }
    }

    /// When the handler has done what it does.
    pub(super) fn done_at(&self) -> Option<Time> {
        self.running.as_ref().map(|(done_at, _)| *done_at)
    }

    /// How long the handler was busy.
    pub(super) fn busy(&self) -> Span {
        self.busy
    }
}
