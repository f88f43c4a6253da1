//! Programs' own memory, as the engine sees it: what each access is for, whether it is still to be made, and what
//! the engine is told when it has ended.
//!
//! **What.** The engine hands out placements, words, operations and blocks. If one of these lies in a program's own
//! memory, another thread copies it later, and its pages may be absent ([`crate::iommu`]). This machine stands
//! between the engine and the IOMMU.
//!
//! ```text
//!  placement, words, operation, ──► begin ──► Step::Attempt ──► whoever copies ──► attempted
//!  block                              │            ▲                                   │
//!                                     │            └── IOMMU: absent, touched, late ◄──┤
//!                                     ▼                                                ▼
//!                            [moves]: stages of a block       engine: placed, refused, page_ready, …; Step::Send, Step::Go
//! ```
//!
//! **How.** Events go in, steps come out ([`OwnMemory::poll`]), and there is a deadline. The caller of `poll` hands
//! in the engine. The machine tells the engine at once what follows from an answer, so that nothing happens between
//! the answer and its consequence. With each access the caller leaves what it needs for the access (`B`: the order,
//! the bytes). The caller gets this back if the bytes are to go on. Otherwise the machine keeps it as long as a
//! thread may still copy the bytes.

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
    /// Attempt the access, with what was left with it ([`OwnMemory::with`]).
    Attempt {
        /// The access.
        access: AccessId,
        /// Do not look for absent pages first.
        is_forced: bool,
    },
    /// Withdraw the attempt at this access, unless it has begun to copy. Report the result with
    /// [`OwnMemory::withdrawn`].
    Withdraw(ContextId, AccessId),
    /// Bring pages in, as [`Action::Touch`] says.
    Touch {
        /// The number to give to [`OwnMemory::touched`].
        touch: TouchId,
        /// The context whose pages they are.
        context: ContextId,
        /// Start of the first page, or of the range if that begins later.
        address: u64,
        /// Number of bytes to the end of the last page, or of the range if that ends earlier.
        length_bytes: u32,
        /// Whether the pages are to be read or written.
        right: Right,
    },
    /// Send a block to its peer. Its bytes are in what was left with the access.
    Send(Block, B),
    /// Go on with a block that stays at this node.
    Go(MoveId, Block, Part<B>),
    /// A program's atomic operation was carried out: the user number of its transfer, and the word's previous
    /// value.
    Changed(u64, u64),
    /// A program's atomic operation was not begun for want of room: try the transfer with this user number again.
    NotBegun(u64),
    /// A program's atomic operation was not carried out: the user number of its transfer, and why not.
    NotChanged(u64, Refused),
    /// The release of the range that begins at this address is over. `true`: no access touches the range any more.
    /// `false`: an access to it was given up and has not ended.
    Released(ContextId, u64, bool),
}

/// An access that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Its number.
    pub access: AccessId,
    /// Address and length of what is looked at for absent pages.
    pub look: (u64, u32),
    /// Whether this attempt may bring absent pages in itself ([`Outcome::Brought`]).
    pub may_bring: bool,
}

/// What a paused access was for: its sender comes again when the page is there.
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
    /// What the caller left with the access. `None` if nobody copies for it now or later.
    left: Option<B>,
    /// What the access is for. `None` if its sender was answered: if a thread may still copy, what was left stays
    /// until that thread has answered, too.
    purpose: Option<Purpose>,
    is_posted: bool,
    paused: Option<Paused>,
}

/// The machine for the own memory of all programs of a node.
#[derive(Debug)]
pub struct OwnMemory<B> {
    iommu: Iommu,
    entries: Lookup<AccessId, Entry<B>>,
    moves: Moves,
    steps: VecDeque<Step<B>>,
    /// How often the engine had lost a peer, when it was last asked.
    losses_seen: u64,
}

/// Chooses what is looked at for absent pages for an access at `at`: the part of its block that lies in the range,
/// if that has all of the access and is not too long. Otherwise the access alone.
fn look_at(range: (u64, u64), at: (u64, u32), block: (u64, u32)) -> (u64, u32) {
    let start = block.0.max(range.0);
    let end = block.0.saturating_add(block.1.into()).min(range.1);
    let is_around = start <= at.0 && at.0 + u64::from(at.1) <= end;
    match u32::try_from(end.saturating_sub(start)) {
        Ok(bytes) if is_around && bytes <= MAX_ACCESS_BYTES => (start, bytes),
        _ => at,
    }
}

/// The refusal for an access that cannot begin because an earlier one was given up and has not ended. If the
/// program itself asked for it, it is to try again. Any other sender fails, so that it does not wait for this
/// program.
fn stuck(is_of_asker: bool, address: u64) -> Refusal {
    if is_of_asker { NackCode::BufferFull.into() } else { Refusal::at(NackCode::DecodeError, address) }
}

impl<B> OwnMemory<B> {
    /// A machine without domains.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let (entries, moves, steps) = (Lookup::default(), Moves::default(), VecDeque::new());
        Self { iommu: Iommu::new(config), entries, moves, steps, losses_seen: 0 }
    }

    /// Opens the context of a domain that has registered memory.
    pub fn open(&mut self, context: ContextId) {
        self.iommu.open(context);
    }

    /// Closes the context of a domain that is gone. All its accesses end, and nobody copies for them any more. Poll
    /// afterwards.
    pub fn close(&mut self, context: ContextId) {
        self.iommu.close(context);
        self.entries.retain(|_, entry| {
            let is_of_it = entry.context == context;
            entry.is_posted &= !is_of_it;
            !is_of_it || entry.purpose.is_some() || entry.paused.is_some()
        });
    }

    /// Begins an access. The caller then attempts it, as after [`Step::Attempt`].
    ///
    /// # Errors
    /// The refusal that the sender is told. Nothing has begun.
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
            // A block that is to be read here has not been sent yet.
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

    /// Checks that [`Self::begin`] would not be refused because an earlier access was given up and has not ended.
    ///
    /// # Errors
    /// The refusal that [`Self::begin`] would return.
    pub fn may_begin(&self, request: &Request) -> Result<(), Refusal> {
        match self.iommu.is_stuck(request.context) {
            true => Err(stuck(request.is_of_asker(), request.at.0)),
            false => Ok(()),
        }
    }

    /// The refusal that a sender is told if the caller has no room for its bytes.
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

    /// What was left with an access, to be filled by the attempt.
    pub fn with_mut(&mut self, access: AccessId) -> Option<&mut B> {
        self.entries.get_mut(&access)?.left.as_mut()
    }

    /// Reports the end of an attempt. Poll afterwards.
    pub fn attempted(&mut self, now: Time, context: ContextId, access: AccessId, outcome: Outcome) {
        self.answered(context, access);
        self.iommu.attempted(now, context, access, outcome);
    }

    /// Reports the result of a [`Step::Withdraw`]. If the attempt could be withdrawn, nobody copies for it any
    /// more. Poll afterwards.
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

    /// Reports that pages were brought in, or why they could not be. Poll afterwards.
    pub fn touched(&mut self, now: Time, context: ContextId, touch: TouchId, outcome: Result<(), Unreached>) {
        self.iommu.touched(now, context, touch, outcome);
    }

    /// Releases a range, in which the caller begins no access any more. Poll afterwards.
    pub fn release(&mut self, now: Time, context: ContextId, range_start: u64) -> Released {
        self.iommu.release(now, context, range_start)
    }

    /// Gives up attempts and touches that take too long. Poll afterwards.
    pub fn expire(&mut self, now: Time) {
        self.iommu.expire(now);
    }

    /// When [`Self::expire`] is to be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.iommu.next_deadline()
    }

    /// Returns the fault registers of a domain, and clears them.
    pub fn take_registers(&mut self, context: ContextId) -> FaultRegisters {
        let registers = self.iommu.registers(context).unwrap_or_default();
        self.iommu.clear_registers(context);
        registers
    }

    /// The IOMMU, for its counters and state.
    #[must_use]
    pub fn iommu(&self) -> &Iommu {
        &self.iommu
    }

    /// Begins to send a block whose source is in a program's own memory. Returns `None` if the block is being
    /// copied already: the copy counts for this attempt of the block, which waits as for an absent page.
    pub fn send(&mut self, now: Time, engine: &mut Engine, block: &Block) -> Option<MoveId> {
        if self.is_underway(now, engine, block) {
            return None;
        }
        engine.source_begun(block);
        Some(self.moves.add(*block, Stage::Sent, None))
    }

    /// Whether a block is being copied already. If so, the copy counts for this attempt, as for [`Self::send`].
    pub fn is_underway(&mut self, now: Time, engine: &mut Engine, block: &Block) -> bool {
        let is_underway = self.moves.take_over(block);
        if is_underway {
            engine.source_refused(now, block, NackCode::SlaveError);
        }
        is_underway
    }

    /// Reports that the access to the source of a block could not be begun.
    pub fn not_sent(&mut self, now: Time, engine: &mut Engine, id: MoveId, refusal: Refusal) {
        if let Some(block) = self.moves.remove(id) {
            source_refused(now, engine, &block, refusal);
        }
    }

    /// Begins to copy a block that stays at this node and has an end in a program's own memory. `asker`: the domain
    /// of the program of this node whose transfer it is, if any. Returns `None` if the block is being copied
    /// already, as for [`Self::send`]. Otherwise the caller goes on as after [`Step::Go`] with [`Part::Copy`].
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

    /// Reports that a part of a block that stays at this node was carried out without an access, or cannot be
    /// carried out. Returns what to do next, if the block is not over.
    pub fn went(
        &mut self,
        now: Time,
        engine: &mut Engine,
        id: MoveId,
        went: Result<Went, Refused>,
    ) -> Option<(Block, Part<B>)> {
        self.moves.went(now, engine, id, went)
    }

    /// Takes words that come apart from their block, which stays at this node. `None`: the block is not known.
    /// `Some(None)`: the words are written after the block's bytes. Otherwise the caller writes them now.
    pub fn words(&mut self, words: &Words) -> Option<Option<(MoveId, Block)>> {
        self.moves.words(words)
    }

    /// The next thing to do. Call until `None`, then again after any other call. Poll the engine afterwards.
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
                    // Its bytes could overwrite bytes that were sent since.
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

    /// Withdraws the accesses for peers that were lost since the last call. A peer that is back may send something
    /// else to the same place.
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

    /// Whether an access is still to be made. Its sender may be gone, or may have given it up.
    fn is_wanted(&self, engine: &Engine, access: AccessId) -> bool {
        match self.entries.get(&access).and_then(|entry| entry.purpose) {
            Some(Purpose::Place(placement)) => engine.is_held(&placement),
            Some(Purpose::Operate(operation)) => engine.is_held(&operation.placement),
            Some(Purpose::Notify(write)) => engine.are_held(&write),
            Some(Purpose::Change { .. } | Purpose::Move { .. }) | None => true,
        }
    }

    /// Ends an access without success. What was left stays if a thread may still copy.
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

    /// Tells the sender that pages are absent, and drops the bytes.
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

    /// Tells the engine how an access has ended, or queues the step that follows. `outcome`: what was left with the
    /// access and the previous value of the word, or why the access was refused.
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

    /// Whether nothing is under way. A block that only waits for its words does not count.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.steps.is_empty() && self.iommu.is_idle() && self.moves.is_idle()
    }
}

/// Tells the engine that the source of a block cannot be read, now or at all.
fn source_refused(now: Time, engine: &mut Engine, block: &Block, mut refusal: Refusal) {
    // At a source, the engine tries again only after an absent page: any transient refusal is treated as one.
    if refusal.code.is_transient() {
        refusal.code = NackCode::SlaveError;
    }
    engine.source_refused(now, block, refusal);
}
