//! Programs' own memory, as the engine sees it: what each access is for, whether it is still to be made, and what follows
//! from how it went.
//!
//! **What.** The engine hands out placements, words, operations and blocks; where one of these lies in a program's own
//! memory, somebody else copies, later, and pages may be absent ([`crate::iommu`]). This machine stands between the two.
//!
//! ```text
//!  placement, words, operation, ──► begin ──► Step::Attempt ──► whoever copies ──► attempted
//!  block                              │            ▲                                   │
//!                                     │            └── IOMMU: absent, touched, late ◄──┤
//!                                     ▼                                                ▼
//!                            [moves]: stages of a block       engine: placed, refused, page_ready, …; Step::Send, Step::Go
//! ```
//!
//! **How.** Events in, steps out ([`OwnMemory::poll`]), and a deadline. Whoever polls hands in the engine: what follows from an
//! answer is told to it there, so that nothing lies between the answer and its consequence. With each access the caller leaves what it
//! needs for it (`B`: the order, the bytes), which it gets back when the bytes go on, and which stays here as
//! long as somebody may still copy them.

mod moves;
mod purpose;

use std::collections::VecDeque;

use crate::lookup::Lookup;

use crate::iommu::{
    Access, AccessId, Action, BeginError, Config, ContextId, End, FaultRegisters, Iommu, MAX_ACCESS_BYTES,
    Outcome, Reason, Released, Right, TouchId, Unreached,
};
use crate::rdma::{Block, Engine, Placement, Time};
use moves::{Moves, Stage};
use tombolo_wire::{Domain, NackCode, Refusal};

pub use moves::{MoveId, Part, Refused, Went, Words};
pub use purpose::{Purpose, Request};

/// The next thing for the caller to do.
#[derive(Debug)]
pub enum Step<B> {
    /// Attempt the access; with what was left with it ([`OwnMemory::with`]).
    Attempt {
        /// Which.
        access: AccessId,
        /// Without looking for absent pages first.
        is_forced: bool,
    },
    /// If nothing of this access was copied yet, nothing is to be: [`OwnMemory::withdrawn`].
    Withdraw(ContextId, AccessId),
    /// Bring pages in, as [`Action::Touch`] says.
    Touch {
        /// To be said at the end.
        touch: TouchId,
        /// Whose.
        context: ContextId,
        /// Where the first page begins, or the range.
        address: u64,
        /// To the end of the last page, or of the range.
        length_bytes: u32,
        /// What they are for.
        right: Right,
    },
    /// Send a block: its bytes are with what was left with the access.
    Send(Block, B),
    /// A block that stays here goes on.
    Go(MoveId, Block, Part<B>),
    /// A word that a program here asked to change was changed: in the transfer of that user number, what it was before.
    Changed(u64, u64),
    /// It was not, and not begun either, for want of room: the transfer is to be tried again.
    NotBegun(u64),
    /// It was not: why, and in whose memory.
    NotChanged(u64, Refused),
    /// A range that was taken back is not touched any more (true), or an access to it does not end.
    Released(ContextId, u64, bool),
}

/// An access that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Its number.
    pub access: AccessId,
    /// What is looked at for absent pages.
    pub look: (u64, u32),
    /// Whether this attempt may bring them in itself: [`Outcome::Brought`].
    pub may_bring: bool,
}

/// Whose sender comes again when a page is there.
#[derive(Clone, Copy, Debug)]
enum Paused {
    Place(Placement),
    Block(Block),
}

/// An access that is not over.
#[derive(Debug)]
struct Entry<B> {
    context: ContextId,
    /// The first byte that is copied.
    address: u64,
    /// `None`: nobody copies, and nobody will.
    left: Option<B>,
    /// `None`: its sender was answered. What was left stays until whoever copies has answered, too.
    purpose: Option<Purpose>,
    is_posted: bool,
    paused: Option<Paused>,
}

/// The machine, for all domains of a node.
#[derive(Debug)]
pub struct OwnMemory<B> {
    iommu: Iommu,
    entries: Lookup<AccessId, Entry<B>>,
    moves: Moves,
    steps: VecDeque<Step<B>>,
    /// How often the engine had lost a peer when it was last asked.
    losses_seen: u64,
}

/// What of a block is looked at: all of it that lies in the range, if the access does.
fn look_at(range: (u64, u64), at: (u64, u32), block: (u64, u32)) -> (u64, u32) {
    let start = block.0.max(range.0);
    let end = block.0.saturating_add(block.1.into()).min(range.1);
    let is_around = start <= at.0 && at.0 + u64::from(at.1) <= end;
    match u32::try_from(end.saturating_sub(start)) {
        Ok(bytes) if is_around && bytes <= MAX_ACCESS_BYTES => (start, bytes),
        _ => at,
    }
}

/// What a program is told whose memory does not go on: others are not to wait for it, and it waits itself.
fn stuck(is_of_asker: bool, address: u64) -> Refusal {
    if is_of_asker { NackCode::BufferFull.into() } else { Refusal::at(NackCode::DecodeError, address) }
}

impl<B> OwnMemory<B> {
    /// Without domains.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let (entries, moves, steps) = (Lookup::default(), Moves::default(), VecDeque::new());
        Self { iommu: Iommu::new(config), entries, moves, steps, losses_seen: 0 }
    }

    /// A domain has registered memory.
    pub fn open(&mut self, context: ContextId) {
        self.iommu.open(context);
    }

    /// A domain is gone: all its accesses end, and nobody copies any more. Poll afterwards.
    pub fn close(&mut self, context: ContextId) {
        self.iommu.close(context);
        self.entries.retain(|_, entry| {
            let is_of_it = entry.context == context;
            entry.is_posted &= !is_of_it;
            !is_of_it || entry.purpose.is_some() || entry.paused.is_some()
        });
    }

    /// Begins an access: the caller attempts it, as after [`Step::Attempt`].
    ///
    /// # Errors
    /// What the sender is told; nothing has begun.
    pub fn begin(&mut self, now: Time, request: &Request, left: B) -> Result<Begun, Refusal> {
        let Request { context, range, policy, at, .. } = *request;
        let end = request.purpose.end();
        let look = look_at(range, at, request.purpose.block().unwrap_or(at));
        let is_of_asker = request.is_of_asker();
        let access = Access {
            context,
            address: look.0,
            length_bytes: look.1,
            right: if end == End::Source { Right::Read } else { Right::Write },
            end,
            by: request.purpose.by(),
            range_start: range.0,
            range_end: range.1,
            policy,
            copied_bytes: at.1,
            // The block of a source has not been sent.
            is_free_to_pause: end == End::Source,
            is_of_asker,
        };
        let id = self.iommu.begin(now, access).map_err(|error| match error {
            BeginError::NoContext => Refusal::at(NackCode::DecodeError, at.0),
            BeginError::Stuck => stuck(is_of_asker, at.0),
            BeginError::Full => NackCode::BufferFull.into(),
        })?;
        self.moves.begun(&request.purpose);
        let purpose = Some(request.purpose);
        let entry =
            Entry { context, address: at.0, left: Some(left), purpose, is_posted: true, paused: None };
        self.entries.insert(id, entry);
        Ok(Begun { access: id, look, may_bring: self.iommu.may_bring(id) })
    }

    /// What a sender is told whose access would not be begun now.
    ///
    /// # Errors
    /// As those of [`Self::begin`].
    pub fn may_begin(&self, request: &Request) -> Result<(), Refusal> {
        match self.iommu.is_stuck(request.context) {
            true => Err(stuck(request.is_of_asker(), request.at.0)),
            false => Ok(()),
        }
    }

    /// What a sender is told for whose bytes there is no room.
    #[must_use]
    pub fn no_room(&self, request: &Request) -> Refusal {
        match self.iommu.is_stuck(request.context) {
            true => stuck(request.is_of_asker(), request.at.0),
            false => NackCode::BufferFull.into(),
        }
    }

    /// What was left with an access that is to be attempted.
    #[must_use]
    pub fn with(&self, access: AccessId) -> Option<&B> {
        self.entries.get(&access)?.left.as_ref()
    }

    /// What was left with an access, to be filled by whoever attempts it.
    pub fn with_mut(&mut self, access: AccessId) -> Option<&mut B> {
        self.entries.get_mut(&access)?.left.as_mut()
    }

    /// An attempt has ended, whoever says so. Poll afterwards.
    pub fn attempted(&mut self, now: Time, context: ContextId, access: AccessId, outcome: Outcome) {
        self.answered(context, access);
        self.iommu.attempted(now, context, access, outcome);
    }

    /// Whether an attempt could still be withdrawn: then nobody copies any more. Poll afterwards.
    pub fn withdrawn(&mut self, now: Time, context: ContextId, access: AccessId, is_withdrawn: bool) {
        if is_withdrawn {
            self.answered(context, access);
        }
        self.iommu.withdrawn(now, context, access, is_withdrawn);
    }

    fn answered(&mut self, context: ContextId, access: AccessId) {
        if let Some(entry) = self.entries.get_mut(&access).filter(|entry| entry.context == context) {
            entry.is_posted = false;
            if entry.purpose.is_none() && entry.paused.is_none() {
                self.entries.remove(&access);
            }
        }
    }

    /// Pages were brought in, or could not be. Poll afterwards.
    pub fn touched(&mut self, now: Time, context: ContextId, touch: TouchId, outcome: Result<(), Unreached>) {
        self.iommu.touched(now, context, touch, outcome);
    }

    /// A range is taken back; nothing new is begun in it. Poll afterwards.
    pub fn release(&mut self, now: Time, context: ContextId, range_start: u64) -> Released {
        self.iommu.release(now, context, range_start)
    }

    /// Gives up what takes too long. Poll afterwards.
    pub fn expire(&mut self, now: Time) {
        self.iommu.expire(now);
    }

    /// When [`Self::expire`] is to be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.iommu.next_deadline()
    }

    /// The fault registers of a domain, which are clear then.
    pub fn take_registers(&mut self, context: ContextId) -> FaultRegisters {
        let registers = self.iommu.registers(context).unwrap_or_default();
        self.iommu.clear_registers(context);
        registers
    }

    /// What the IOMMU has seen.
    #[must_use]
    pub fn iommu(&self) -> &Iommu {
        &self.iommu
    }

    /// A block is to be sent whose source is in a program's own memory. `None`: it is being copied already; the copy counts for
    /// this attempt of it, and it waits as for an absent page.
    pub fn send(&mut self, now: Time, engine: &mut Engine, block: &Block) -> Option<MoveId> {
        if self.is_underway(now, engine, block) {
            return None;
        }
        engine.source_begun(block);
        Some(self.moves.add(*block, Stage::Sent, None))
    }

    /// Whether a block is being copied already; then as [`Self::send`].
    pub fn is_underway(&mut self, now: Time, engine: &mut Engine, block: &Block) -> bool {
        let is_underway = self.moves.take_over(block);
        if is_underway {
            engine.source_refused(now, block, NackCode::SlaveError);
        }
        is_underway
    }

    /// The source of a block could not even be begun.
    pub fn not_sent(&mut self, now: Time, engine: &mut Engine, id: MoveId, refusal: Refusal) {
        if let Some(block) = self.moves.remove(id) {
            source_refused(now, engine, &block, refusal);
        }
    }

    /// A block stays here, and an end of it is in a program's own memory. `asker`: whose transfer it is, if a program's of this node.
    /// `None`: as for [`Self::send`]. Otherwise the caller goes on as after [`Step::Go`] with [`Part::Copy`].
    pub fn stay(
        &mut self,
        now: Time,
        engine: &mut Engine,
        block: &Block,
        asker: Option<Domain>,
    ) -> Option<MoveId> {
        if self.is_underway(now, engine, block) {
            return None;
        }
        Some(self.moves.add(*block, Stage::Reading, asker))
    }

    /// A part of a block that stays here was carried out at once, or cannot be. What to do next, if it is not over.
    pub fn went(
        &mut self,
        now: Time,
        engine: &mut Engine,
        id: MoveId,
        went: Result<Went, Refused>,
    ) -> Option<(Block, Part<B>)> {
        self.moves.went(now, engine, id, went)
    }

    /// The words of a block that stays here come apart from it.
    pub fn words(&mut self, words: &Words) -> Option<Option<(MoveId, Block)>> {
        self.moves.words(words)
    }

    /// The next thing to do. Call until `None`, then again after any other call; and poll the engine afterwards.
    #[must_use = "a step that is not carried out is lost"]
    pub fn poll(&mut self, now: Time, engine: &mut Engine) -> Option<Step<B>> {
        self.withdraw_unwanted(now, engine);
        loop {
            if let Some(step) = self.steps.pop_front() {
                return Some(step);
            }
            match self.iommu.poll(now)? {
                Action::Attempt { access, is_forced } => {
                    if self.is_wanted(engine, access) {
                        let Some(entry) = self.entries.get_mut(&access) else { continue };
                        debug_assert!(!entry.is_posted, "{access:?} is attempted twice at once");
                        entry.is_posted = true;
                        return Some(Step::Attempt { access, is_forced });
                    }
                    // Its bytes would come over those that were sent since.
                    let Some(entry) = self.entries.get(&access) else { continue };
                    let gone = Unreached { address: entry.address, reason: Reason::Gone };
                    self.iommu.attempted(now, entry.context, access, Outcome::Denied(gone));
                }
                Action::Touch { touch, context, address, length_bytes, right } => {
                    return Some(Step::Touch { touch, context, address, length_bytes, right });
                }
                Action::Withdraw(context, access) => return Some(Step::Withdraw(context, access)),
                Action::Done(access, before) => {
                    let Some(entry) = self.entries.remove(&access) else { continue };
                    if let Some((purpose, left)) = entry.purpose.zip(entry.left) {
                        self.follow(now, engine, purpose, Ok((left, before)));
                    }
                }
                Action::Refuse(access, unreached) => {
                    self.refuse(now, engine, access, unreached.into());
                }
                Action::Busy(access) => self.refuse(now, engine, access, NackCode::BufferFull.into()),
                Action::Pause { access, address, missing } => {
                    let code = NackCode::SlaveError;
                    self.pause(now, engine, access, Refusal { code, address: Some(address), missing });
                }
                Action::Ready(access) => match self.entries.remove(&access).and_then(|entry| entry.paused) {
                    Some(Paused::Place(placement)) => engine.page_ready(&placement),
                    Some(Paused::Block(block)) => engine.source_ready(&block),
                    None => {}
                },
                Action::Forget(access) => drop(self.entries.remove(&access)),
                Action::Released(context, start, has_ended) => {
                    return Some(Step::Released(context, start, has_ended));
                }
            }
        }
    }

    /// A peer was lost: what it has sent and waits for pages is not to be written, as it may send something else there, once it is
    /// back.
    fn withdraw_unwanted(&mut self, now: Time, engine: &Engine) {
        if std::mem::replace(&mut self.losses_seen, engine.peers_lost()) == engine.peers_lost() {
            return;
        }
        for id in self.entries.keys_of(|_, entry| entry.is_posted && entry.purpose.is_some()) {
            if !self.is_wanted(engine, id) {
                self.iommu.withdraw(now, id, Reason::Gone);
            }
        }
    }

    /// Whether an access that waited for its pages is still to be made: its sender may be gone, or may have given it up.
    fn is_wanted(&self, engine: &Engine, access: AccessId) -> bool {
        match self.entries.get(&access).and_then(|entry| entry.purpose) {
            Some(Purpose::Place(placement)) => engine.is_held(&placement),
            Some(Purpose::Operate(operation)) => engine.is_held(&operation.placement),
            Some(Purpose::Notify(write)) => engine.are_held(&write),
            Some(Purpose::Change { .. } | Purpose::Move { .. }) | None => true,
        }
    }

    /// The access is over without success. Somebody may still copy.
    fn refuse(&mut self, now: Time, engine: &mut Engine, access: AccessId, refusal: Refusal) {
        let Some(entry) = self.entries.get_mut(&access) else { return };
        let purpose = entry.purpose.take();
        if !entry.is_posted {
            self.entries.remove(&access);
        }
        if let Some(purpose) = purpose {
            self.follow(now, engine, purpose, Err(refusal));
        }
    }

    /// The sender is told which pages are absent, and the bytes are let go.
    fn pause(&mut self, now: Time, engine: &mut Engine, access: AccessId, refusal: Refusal) {
        let Some(entry) = self.entries.get_mut(&access) else { return };
        entry.left = None;
        let Some(purpose) = entry.purpose.take() else { return };
        entry.paused = match purpose {
            Purpose::Place(placement) => Some(Paused::Place(placement)),
            Purpose::Move { id, .. } => self.moves.block(id).map(Paused::Block),
            Purpose::Notify(_) | Purpose::Operate(_) | Purpose::Change { .. } => None,
        };
        self.follow(now, engine, purpose, Err(refusal));
    }

    /// Goes on after an access: what was left with it and the word before, or why it was refused.
    fn follow(
        &mut self,
        now: Time,
        engine: &mut Engine,
        purpose: Purpose,
        outcome: Result<(B, u64), Refusal>,
    ) {
        match (purpose, outcome) {
            (Purpose::Place(placement), Ok(_)) => engine.placed(placement),
            (Purpose::Place(placement), Err(refusal)) => engine.refused(placement, refusal),
            (Purpose::Notify(write), Ok(_)) => engine.notified(write),
            (Purpose::Notify(write), Err(refusal)) => engine.notification_refused(write, refusal),
            (Purpose::Operate(operation), Ok((_, before))) => engine.operated(operation, before),
            (Purpose::Operate(operation), Err(refusal)) => engine.refused(operation.placement, refusal),
            (Purpose::Change { user, domain, .. }, outcome) => self.steps.push_back(match outcome {
                Ok((_, before)) => Step::Changed(user, before),
                Err(Refusal { code: NackCode::BufferFull, .. }) => Step::NotBegun(user),
                Err(refusal) => Step::NotChanged(user, Refused { domain, refusal }),
            }),
            (Purpose::Move { id, .. }, outcome) => {
                let step = self.moves.copied(now, engine, id, outcome.map(|(left, _)| left));
                self.steps.extend(step);
            }
        }
    }

    /// Whether nothing is under way. Words of blocks that are here already may still be to come.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.steps.is_empty() && self.iommu.is_idle() && self.moves.is_idle()
    }
}

/// The source of a block cannot be read now, or at all.
fn source_refused(now: Time, engine: &mut Engine, block: &Block, mut refusal: Refusal) {
    // Here, what passes is an absent page.
    if refusal.code.is_transient() {
        refusal.code = NackCode::SlaveError;
    }
    engine.source_refused(now, block, refusal);
}
