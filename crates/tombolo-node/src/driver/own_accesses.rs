//! Accesses to programs' own memory: from the engine's loop to whoever makes them, and back.
//!
//! ```text
//!  begin ──► IOMMU ──► order ──► area ──► the program's access thread
//!                                            │
//!  what follows (placed, refused, …) ◄── IOMMU ◄── answer
//! ```
//!
//! What is done about an absent page is decided by the machine ([`tombolo_core::iommu`]). All that follows from an
//! answer happens on the thread that drives the node, in order.

use std::collections::HashMap;
use std::sync::Arc;

use tombolo_channel::access::{Order, OrderKind, Outcome as Answer};
use tombolo_core::iommu::{
    Absence, Access, AccessId, Action, BeginError, End, FaultSource, MAX_ACCESS_BYTES, Outcome, Reason,
    Right, TouchId, Unreached,
};
use tombolo_core::rdma::{Block, NotificationWrite, Operation, Placement};
use tombolo_host::own::{self, WordChange};
use tombolo_host::shared::SharedSpan;
use tombolo_wire::{ATOMIC_BYTES, AtomicOperation, Domain, NackCode, Refusal};

use crate::driver::loopback::{NOTIFICATION_BYTES, RefusedHere};
use crate::driver::node::Node;
use crate::programs::access::{OwnAccess, Staged};
use crate::programs::own::OwnPlace;
use crate::programs::user::Poster;

/// Marks the orders to bring pages in, among the numbers of orders.
const OF_A_TOUCH: u64 = 1 << 63;

/// What an access is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Bytes that came from a peer.
    Place(Placement),
    /// Words that a peer asked for.
    Notify(NotificationWrite),
    /// A word that a peer asks to change.
    Operate(Operation),
    /// A word of that domain that a program of this node asks to change, in the transfer of that user number.
    OperateHere(u64, Domain),
    /// Of a block that goes out or stays here, by its number in the table of moves.
    Block(u64),
}

/// What is done with the memory.
pub(crate) enum Work<'a> {
    Read(u32),
    Write(SharedSpan<'a>),
    /// Bytes that may lie in the program's staging already.
    WriteStaged(Staged),
    Words([u64; 2]),
    Change(AtomicOperation),
}

/// Whose the access is, and what it is a part of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) by: FaultSource,
    /// The block that the access is of.
    pub(crate) block: (u64, u32),
    pub(crate) purpose: Purpose,
    /// On whose behalf.
    pub(crate) asker: Poster,
}

/// Who goes on when a page is there.
#[derive(Clone, Copy, Debug)]
enum Paused {
    Place(Placement),
    Block(Block),
}

/// An access that is not over.
#[derive(Debug)]
struct Entry {
    own: Arc<OwnAccess>,
    order: Order,
    staged: Option<Staged>,
    /// `None`: it was given up. Its bytes stay where they are until it is answered.
    purpose: Option<Purpose>,
    is_posted: bool,
    paused: Option<Paused>,
}

/// All accesses that are not over.
#[derive(Debug, Default)]
pub(crate) struct OwnAccesses(HashMap<AccessId, Entry>);

/// What a sender is told.
fn refusal_of(unreached: Unreached) -> Refusal {
    let code = match unreached.reason {
        Reason::Protected => NackCode::DomainMismatch,
        Reason::NotMapped | Reason::Unavailable | Reason::TimedOut | Reason::Gone => NackCode::DecodeError,
    };
    Refusal::at(code, unreached.address)
}

/// What of the block is looked at: as far as it lies in the range.
fn look_at(place: &OwnPlace, at: (u64, u32), block: (u64, u32)) -> (u64, u32) {
    let start = block.0.max(place.range.start);
    let end = block.0.saturating_add(block.1.into()).min(place.range.end);
    let is_around = start <= at.0 && at.0 + u64::from(at.1) <= end;
    match u32::try_from(end.saturating_sub(start)) {
        Ok(bytes) if is_around && bytes <= MAX_ACCESS_BYTES => (start, bytes),
        _ => at,
    }
}

fn outcome_of(answer: Answer, address: u64) -> Outcome {
    match answer {
        Answer::Done(before) => Outcome::Done(before),
        Answer::Absent(absent) => Outcome::Absent(
            absent.pages,
            match absent.kind {
                None | Some(own::Absence::Missing) => Absence::Missing,
                Some(own::Absence::Swapped) => Absence::Swapped,
                Some(own::Absence::CopyOnWrite) => Absence::CopyOnWrite,
                Some(own::Absence::WriteProtected) => Absence::WriteProtected,
            },
        ),
        Answer::Denied(denied) => Outcome::Denied(unreached_of(denied)),
        Answer::Impossible => Outcome::Denied(Unreached { address, reason: Reason::NotMapped }),
    }
}

fn unreached_of(denied: own::Denied) -> Unreached {
    let reason = match denied.reason {
        own::Reason::NotMapped => Reason::NotMapped,
        own::Reason::Protected => Reason::Protected,
        own::Reason::Unavailable => Reason::Unavailable,
    };
    Unreached { address: denied.address, reason }
}

impl Node {
    /// Begins an access to a program's own memory. On an error nothing more is heard of it.
    pub(crate) fn begin_access(
        &self,
        place: &OwnPlace,
        address: u64,
        work: Work<'_>,
        context: Context,
    ) -> Result<(), Refusal> {
        let own = &place.access;
        let is_of_asker = matches!(context.asker, Poster::Program(number, _) if number == own.domain);
        // Others are not to wait for a program that does not go on; it waits itself.
        let stuck = || match is_of_asker {
            true => NackCode::BufferFull.into(),
            false => Refusal::at(NackCode::DecodeError, address),
        };
        let staged_for = |bytes| {
            Staged::new(own, bytes).ok_or_else(|| match self.programs.iommu.lock().is_stuck(own.context) {
                true => stuck(),
                false => NackCode::BufferFull.into(),
            })
        };
        let (length_bytes, kind, staged, end) = match work {
            Work::Read(bytes) => {
                let staged = staged_for(bytes)?;
                (bytes, OrderKind::Read(staged.offset()), Some(staged), End::Source)
            }
            Work::Write(bytes) => {
                let staged = staged_for(bytes.len() as u32)?;
                staged.room().ok_or(NackCode::DecodeError)?.copy_from(bytes);
                (bytes.len() as u32, OrderKind::Write(staged.offset()), Some(staged), End::Destination)
            }
            Work::WriteStaged(bytes) => {
                let length = bytes.bytes().len() as u32;
                let staged = if bytes.is_of(own) {
                    bytes
                } else {
                    let staged = staged_for(length)?;
                    staged.room().ok_or(NackCode::DecodeError)?.copy_from(bytes.bytes());
                    staged
                };
                (length, OrderKind::Write(staged.offset()), Some(staged), End::Destination)
            }
            Work::Words(words) => (NOTIFICATION_BYTES, OrderKind::Words(words), None, End::Notification),
            Work::Change(operation) => {
                let change = match operation {
                    AtomicOperation::FetchAdd(operand) => WordChange::Add(operand),
                    AtomicOperation::CompareSwap { compare, swap } => WordChange::CompareSwap(compare, swap),
                };
                (ATOMIC_BYTES, OrderKind::Change(change), None, End::Atomic)
            }
        };
        let look = look_at(place, (address, length_bytes), context.block);
        let access = Access {
            context: own.context,
            address: look.0,
            length_bytes: look.1,
            right: if end == End::Source { Right::Read } else { Right::Write },
            end,
            by: context.by,
            range_start: place.range.start,
            range_end: place.range.end,
            policy: place.range.faults,
            // The block of a source has not been sent.
            is_free_to_pause: end == End::Source,
            is_of_asker: end != End::Source && is_of_asker,
        };
        let mut entries = self.own_accesses.lock();
        let mut iommu = self.programs.iommu.lock();
        // Under the lock under which the range is released.
        if place.range.is_gone() {
            return Err(Refusal::at(NackCode::DecodeError, address));
        }
        let id = iommu.begin(self.now(), access).map_err(|error| match error {
            BeginError::NoContext => Refusal::at(NackCode::DecodeError, address),
            BeginError::Stuck => stuck(),
            BeginError::Full => NackCode::BufferFull.into(),
        })?;
        drop(iommu);
        let order = Order { id: id.0, address, length_bytes, is_forced: false, look, kind };
        let purpose = Some(context.purpose);
        let own = own.clone();
        entries.0.insert(id, Entry { own, order, staged, purpose, is_posted: true, paused: None });
        // One that is not taken is given up in time: there are more places than accesses of a context.
        if let Some(entry) = entries.0.get(&id) {
            entry.own.post(&entry.order);
        }
        Ok(())
    }

    /// Takes what was answered, and goes on with it. Returns how much that was.
    pub(crate) fn take_accesses(&self) -> usize {
        let has_actions = self.programs.take_has_actions();
        if !has_actions && !self.programs.answers_waiting() {
            return 0;
        }
        let mut count = usize::from(has_actions);
        for own in self.programs.accesses().iter().filter(|own| own.has_answers()) {
            loop {
                match own.next_answer() {
                    Ok(None) => break,
                    Ok(Some((id, answer))) => {
                        count += 1;
                        self.answered(own, id, answer);
                    }
                    Err(_) => {
                        tracing::warn!(
                            domain = own.domain,
                            "what this program says of its memory cannot be true"
                        );
                        self.programs.remove_access(own);
                        break;
                    }
                }
            }
        }
        self.carry_out_accesses();
        if has_actions {
            // Nobody answers in an area that is closed.
            let mut entries = self.own_accesses.lock();
            entries.0.retain(|_, entry| entry.purpose.is_some() || !entry.own.is_closed());
        }
        self.pump();
        count
    }

    fn answered(&self, own: &Arc<OwnAccess>, id: u64, answer: Answer) {
        let now = self.now();
        if id & OF_A_TOUCH != 0 {
            let outcome = match answer {
                Answer::Done(_) => Ok(()),
                Answer::Denied(denied) => Err(unreached_of(denied)),
                Answer::Absent(_) | Answer::Impossible => {
                    Err(Unreached { address: 0, reason: Reason::Unavailable })
                }
            };
            self.programs.iommu.lock().touched(now, own.context, TouchId(id & !OF_A_TOUCH), outcome);
            return;
        }
        let id = AccessId(id);
        let mut entries = self.own_accesses.lock();
        let Some(entry) = entries.0.get_mut(&id).filter(|entry| Arc::ptr_eq(&entry.own, own)) else { return };
        entry.is_posted = false;
        let address = entry.order.address;
        if entry.purpose.is_none() {
            entries.0.remove(&id);
        }
        drop(entries);
        self.programs.iommu.lock().attempted(now, own.context, id, outcome_of(answer, address));
    }

    /// Does what the IOMMU wants done.
    pub(crate) fn carry_out_accesses(&self) {
        // What is done about one access is done in order, though a program and the thread that stands by for it may both be here.
        let _in_order = self.accesses_in_order.lock();
        loop {
            let action = self.programs.iommu.lock().poll(self.now());
            match action {
                None => return,
                Some(Action::Attempt { access, .. }) if !self.is_wanted(access) => self.abandon(access),
                Some(Action::Attempt { access, is_forced }) => {
                    let mut entries = self.own_accesses.lock();
                    if let Some(entry) = entries.0.get_mut(&access) {
                        entry.order.is_forced = is_forced;
                        entry.is_posted = true;
                        entry.own.post(&entry.order);
                    }
                }
                Some(Action::Touch { touch, context, address, length_bytes, right }) => {
                    let kind = OrderKind::Touch(match right {
                        Right::Read => own::Right::Read,
                        Right::Write => own::Right::Write,
                    });
                    let order = Order {
                        id: touch.0 | OF_A_TOUCH,
                        address,
                        length_bytes,
                        is_forced: false,
                        look: (address, 0),
                        kind,
                    };
                    if let Some(own) = self.programs.accesses().iter().find(|own| own.context == context) {
                        own.post(&order);
                    }
                }
                Some(Action::Done(access, before)) => {
                    let entry = self.own_accesses.lock().0.remove(&access);
                    if let Some(Entry { purpose: Some(purpose), staged, .. }) = entry {
                        self.follow(purpose, Ok((staged, before)));
                    }
                }
                Some(Action::Refuse(access, unreached)) => self.refuse(access, refusal_of(unreached)),
                Some(Action::Busy(access)) => self.refuse(access, NackCode::BufferFull.into()),
                Some(Action::Pause { access, address, missing }) => {
                    let code = NackCode::SlaveError;
                    self.pause_access(access, Refusal { code, address: Some(address), missing });
                }
                Some(Action::Ready(access)) => {
                    let entry = self.own_accesses.lock().0.remove(&access);
                    match entry.and_then(|entry| entry.paused) {
                        Some(Paused::Place(placement)) => self.fabric.engine.lock().page_ready(&placement),
                        Some(Paused::Block(block)) => self.fabric.engine.lock().source_ready(&block),
                        None => {}
                    }
                }
                Some(Action::Forget(access)) => drop(self.own_accesses.lock().0.remove(&access)),
                Some(Action::Released(context, start, ended)) => {
                    self.programs.released(context, start, ended)
                }
            }
        }
    }

    /// Whether an access that waited for its pages is still to be made. Its sender may be gone, or may have given it up: its
    /// bytes would come over those that were sent since.
    fn is_wanted(&self, access: AccessId) -> bool {
        let purpose = self.own_accesses.lock().0.get(&access).and_then(|entry| entry.purpose);
        match purpose {
            Some(Purpose::Place(placement)) => self.fabric.engine.lock().is_held(&placement),
            Some(Purpose::Operate(operation)) => self.fabric.engine.lock().is_held(&operation.placement),
            Some(Purpose::Notify(write)) => self.fabric.engine.lock().are_held(&write),
            Some(Purpose::OperateHere(..) | Purpose::Block(_)) | None => true,
        }
    }

    /// An access that waited for its pages is not made.
    fn abandon(&self, access: AccessId) {
        let entries = self.own_accesses.lock();
        let Some(entry) = entries.0.get(&access) else { return };
        let (context, address) = (entry.own.context, entry.order.address);
        drop(entries);
        let gone = Outcome::Denied(Unreached { address, reason: Reason::Gone });
        self.programs.iommu.lock().attempted(self.now(), context, access, gone);
    }

    /// The access is over without success.
    fn refuse(&self, access: AccessId, refusal: Refusal) {
        let mut entries = self.own_accesses.lock();
        let Some(entry) = entries.0.get_mut(&access) else { return };
        let purpose = entry.purpose.take();
        if !entry.is_posted {
            entries.0.remove(&access);
        }
        drop(entries);
        if let Some(purpose) = purpose {
            self.follow(purpose, Err(refusal));
        }
    }

    /// The sender is told which pages are absent, and the bytes are let go.
    fn pause_access(&self, access: AccessId, refusal: Refusal) {
        let mut entries = self.own_accesses.lock();
        let Some(entry) = entries.0.get_mut(&access) else { return };
        entry.staged = None;
        let Some(purpose) = entry.purpose.take() else { return };
        drop(entries);
        let paused = match purpose {
            Purpose::Place(placement) => Some(Paused::Place(placement)),
            Purpose::Block(number) => self.block_of_move(number).map(Paused::Block),
            Purpose::Notify(_) | Purpose::Operate(_) | Purpose::OperateHere(..) => None,
        };
        if let Some(entry) = self.own_accesses.lock().0.get_mut(&access) {
            entry.paused = paused;
        }
        self.follow(purpose, Err(refusal));
    }

    /// Goes on after an access: its bytes, and the word before, or the code of a refusal.
    fn follow(&self, purpose: Purpose, outcome: Result<(Option<Staged>, u64), Refusal>) {
        match (purpose, outcome) {
            (Purpose::Place(placement), Ok(_)) => self.fabric.engine.lock().placed(placement),
            (Purpose::Place(placement), Err(refusal)) => {
                self.fabric.engine.lock().refused(placement, refusal);
            }
            (Purpose::Notify(write), Ok(_)) => self.fabric.engine.lock().notified(write),
            (Purpose::Notify(write), Err(refusal)) => {
                self.fabric.engine.lock().notification_refused(write, refusal);
            }
            (Purpose::Operate(operation), Ok((_, before))) => {
                self.fabric.engine.lock().operated(operation, before);
            }
            (Purpose::Operate(operation), Err(refusal)) => {
                self.fabric.engine.lock().refused(operation.placement, refusal);
            }
            (Purpose::OperateHere(user, _), Ok((_, before))) => drop(self.ended(user, Ok(before))),
            (Purpose::OperateHere(user, _), Err(Refusal { code: NackCode::BufferFull, .. })) => {
                self.programs.not_begun(user);
            }
            (Purpose::OperateHere(user, domain), Err(refusal)) => {
                self.ended(user, Err(RefusedHere { domain, refusal }.failure(user)));
            }
            (Purpose::Block(number), outcome) => self.copied(number, outcome.map(|(staged, _)| staged)),
        }
    }

    /// Gives up accesses that take too long.
    pub(crate) fn watch_accesses(&self) {
        let now = self.now();
        let mut iommu = self.programs.iommu.lock();
        if iommu.next_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        iommu.expire(now);
        drop(iommu);
        self.carry_out_accesses();
        self.pump();
    }

    /// What the IOMMU has done, by name.
    pub(crate) fn access_counters(&self) -> Vec<(String, u64)> {
        let iommu = self.programs.iommu.lock();
        let counters = *iommu.counters();
        drop(iommu);
        let mut named = Vec::new();
        for end in End::ALL {
            for kind in Absence::ALL {
                let count = counters.faults[end as usize][kind as usize];
                named.push((format!("faults_{}_{}", end.name(), kind.name()), count));
            }
        }
        for (name, count) in [
            ("own_accesses", counters.accesses),
            ("faults_paused", counters.paused),
            ("faults_stalled", counters.stalled),
            ("faults_repeats_dropped", counters.repeats_dropped),
            ("faults_records_lost", counters.records_lost),
            ("faults_touches", counters.touches),
            ("faults_pages_touched", counters.pages_touched),
            ("faults_touches_failed", counters.touches_failed),
            ("faults_denied", counters.denied),
            ("faults_timed_out", counters.timed_out),
            ("faults_busy", counters.busy),
            ("faults_forced", counters.forced),
        ] {
            named.push((name.to_owned(), count));
        }
        for part in [50, 99] {
            let of =
                |times: &tombolo_core::iommu::Times| times.quantile_us(f64::from(part) / 100.0).unwrap_or(0);
            named.push((format!("faults_touch_p{part}_us"), of(&counters.touch_times)));
            for end in End::ALL {
                let us = of(&counters.stall_times[end as usize]);
                named.push((format!("faults_stall_{}_p{part}_us", end.name()), us));
            }
        }
        named
    }

    /// Whether nothing is under way in programs' own memory: for tests.
    #[doc(hidden)]
    pub fn accesses_are_over(&self) -> bool {
        self.own_accesses.lock().0.is_empty() && self.programs.iommu.lock().is_idle()
    }
}
