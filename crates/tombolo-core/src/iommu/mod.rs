//! The IOMMU: accesses to programs' own memory, whose pages may be absent (FAULT ch. 3).
//!
//! **What.** Memory is registered, and never pinned. The caller has a thread attempt each access (the source of a
//! block, its destination, the words of a notification, an atomic operation). The attempt first looks for absent
//! pages. Absent pages are a *fault*: it is recorded in a queue, another thread brings the pages in, and then the
//! access is attempted again. No other access waits for that.
//!
//! ```text
//!                       ┌─────────────────────────── pages are there (stall) ─────────────┐
//!                       ▼                                                                  │
//!  begin ──► attempt ──► absent ──► fault record ──► handler: policy ──► touch ──► touched ┤
//!              │            │        (512)                                                 │
//!              ▼            └──► Pause: the sender is refused (terminate)                  ▼
//!         Done, Refuse                                                                  Ready: it comes again
//! ```
//!
//! **Why.** The page tables are the kernel's, and the kernel does not report that a page leaves. So this machine
//! never remembers that a page was present: each attempt asks the kernel (one call for all pages of the range). If
//! a page leaves between the question and the copying, the copying itself brings it in, which is slower but as
//! correct.
//!
//! **Pages that come at once.** Most absent pages come within microseconds, sooner than a report of them would be
//! handled. So an attempt may bring its pages in itself, as long as it holds up no other access, and reports that
//! at its end ([`Outcome::Brought`]). If this takes long, the attempt is withdrawn and its sender is told. The
//! bytes that wait in this way are bounded, like the bytes of other accesses that wait.
//!
//! **How.** As with all machines here, events go in, actions come out ([`Iommu::poll`]), and there is a deadline.
//! The caller keeps the bytes of an access until the access is over. Each access ends with exactly one of
//! [`Action::Done`], [`Action::Refuse`], [`Action::Busy`], [`Action::Ready`] and [`Action::Forget`].

mod context;
mod counters;
mod job;
mod patience;
mod queue;

use std::collections::{BTreeMap, VecDeque};

use crate::lookup::Lookup;

use crate::rdma::Time;
use crate::wakes::Wakes;
use context::{Context, Touch};
use patience::Patience;
use queue::{FaultQueue, Noted};

pub use context::FaultRegisters;
pub use counters::{Counters, TIME_CLASSES, Times};
pub use job::{
    Absence, Access, AccessId, Action, ContextId, End, FaultMode, FaultPolicy, FaultSource, Outcome, Reason,
    Right, TouchId, TouchPolicy, Unreached,
};
pub use queue::{FAULT_RECORDS, FaultRecord, RememberedRecords};

/// Size of a page.
pub const PAGE_BYTES: u64 = 4096;
/// Most bytes of one access.
pub const MAX_ACCESS_BYTES: u32 = 64 * 1024;

/// Limits, timeouts and policies of an [`Iommu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most accesses of one context at once.
    pub max_accesses: usize,
    /// Most touches of one context at once, queued ones included.
    pub max_touches: usize,
    /// Most touches of one context that the caller carries out at once.
    pub running_touches: usize,
    /// Most bytes of accesses of one context that stall, or are forced instead of paused. Beyond this, blocks
    /// pause.
    pub max_held_bytes: u64,
    /// Most bytes of accesses of one context whose attempts may bring pages in.
    pub max_bringing_bytes: u64,
    /// An attempt that takes longer is given up, after at least one more chance of a quarter of this time.
    pub attempt_timeout_ns: u64,
    /// A touch that takes longer is given up, after at least one more chance of a quarter of this time.
    pub touch_timeout_ns: u64,
    /// An access is forced when more than this many of its attempts have met absent pages.
    pub max_attempts: u32,
    /// An access is forced when its block has been paused this many times for a page no higher than that of the
    /// pause before.
    pub max_pages_gone: u32,
    /// How long it is remembered that a page of a paused block could not be brought in. If the block comes again
    /// within this time, it is refused.
    pub denied_ns: u64,
    /// How many fault records of each node are remembered, so that repeats of them are dropped (FAULT §3.2.3).
    pub remembered_records: RememberedRecords,
    /// Whether faults are handled. For tests: if not, senders come again until they give up.
    pub handles_faults: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_accesses: 256,
            max_touches: 64,
            running_touches: 4,
            max_held_bytes: 2 << 20,
            max_bringing_bytes: 1 << 20,
            attempt_timeout_ns: 2_000_000_000,
            touch_timeout_ns: 2_000_000_000,
            max_attempts: 32,
            max_pages_gone: 32,
            denied_ns: 1_000_000_000,
            remembered_records: RememberedRecords::LastTwo,
            handles_faults: true,
        }
    }
}

/// Why an access was not begun. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// There is no such context.
    #[error("the domain is closed")]
    NoContext,
    /// An earlier access of the context was given up and has not ended.
    #[error("the memory of the program does not answer")]
    Stuck,
    /// Too many accesses are under way.
    #[error("too many accesses to the program's memory are under way")]
    Full,
}

/// Result of [`Iommu::release`]: when no access touches the range any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Now.
    Now,
    /// [`Action::Released`] says when.
    Later,
    /// An access to the range was given up and has not ended.
    Stuck,
}

/// State of an access.
#[derive(Debug)]
enum State {
    /// The caller attempts it.
    Attempting(Patience),
    /// The access waits for this touch, or for the handler (`None`).
    Waiting { touch: Option<TouchId>, is_paused: bool },
}

#[derive(Debug)]
struct Job {
    access: Access,
    state: State,
    absent: u32,
    attempts: u32,
    /// When the access first met absent pages, and of which kind.
    faulted_at: Option<(Time, Absence)>,
    held_bytes: u64,
    begun_at: Time,
    /// The bytes of this access that count in [`Context::bringing_bytes`]. Not 0 if its attempt may bring pages in.
    bringing_bytes: u64,
    /// Set when the attempt is to be withdrawn: the reason that its sender is told.
    withdrawn_for: Option<Reason>,
    /// The access has come late to a touch once. If that touch fails, the access is attempted again instead of
    /// refused.
    has_looked_again: bool,
}

impl Job {
    fn is_paused(&self) -> bool {
        matches!(self.state, State::Waiting { is_paused: true, .. })
    }
}

/// The IOMMU: the machine for accesses to the memory of all domains of a node.
#[derive(Debug, Default)]
pub struct Iommu {
    config: Config,
    contexts: BTreeMap<ContextId, Context>,
    jobs: Lookup<AccessId, Job>,
    queue: FaultQueue,
    actions: VecDeque<Action>,
    counters: Counters,
    last_access: u64,
    last_touch: u64,
    wakes: Wakes<ContextId>,
    /// For tests: how often contexts were searched for attempts and touches that take too long.
    visits: u64,
}

impl Iommu {
    /// An IOMMU without contexts.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, queue: FaultQueue::new(config.remembered_records), ..Self::default() }
    }

    /// Opens the context of a domain that has registered memory.
    pub fn open(&mut self, context: ContextId) {
        self.contexts.entry(context).or_default();
    }

    /// Closes the context of a domain that is gone. All its accesses end, and [`Action::Released`] follows for each
    /// range that is being released. Poll afterwards.
    pub fn close(&mut self, context: ContextId) {
        let Some(mut closed) = self.contexts.remove(&context) else { return };
        self.wakes.forget(context, &mut closed.wake);
        // Nobody is left to carry out these actions. The ends of accesses are still reported.
        self.actions.retain(|action| match action {
            Action::Attempt { access, .. } => !closed.accesses.contains(access),
            Action::Touch { context: of, .. } | Action::Withdraw(of, _) => *of != context,
            _ => true,
        });
        for range_start in closed.releasing.into_keys() {
            let is_touched = |id: &AccessId| {
                let job = self.jobs.get(id).filter(|job| job.access.range_start == range_start);
                job.is_some_and(|job| matches!(job.state, State::Attempting(_)))
            };
            let is_stuck = closed.overdue.values().any(|start| *start == range_start);
            let has_ended = !is_stuck && !closed.accesses.iter().any(is_touched);
            self.actions.push_back(Action::Released(context, range_start, has_ended));
        }
        for id in closed.accesses {
            let Some(job) = self.jobs.remove(&id) else { continue };
            self.queue.settled(job.access.by, id);
            let refusal = Unreached { address: job.access.address, reason: Reason::Gone };
            self.actions.push_back(match job.state {
                State::Waiting { is_paused: true, .. } => Action::Forget(id),
                State::Waiting { .. } | State::Attempting(_) => Action::Refuse(id, refusal),
            });
        }
    }

    /// Begins an access. The caller then attempts it.
    ///
    /// # Errors
    /// [`BeginError`]. Nothing has begun.
    pub fn begin(&mut self, now: Time, access: Access) -> Result<AccessId, BeginError> {
        let context = self.contexts.get_mut(&access.context).ok_or(BeginError::NoContext)?;
        if !context.overdue.is_empty() {
            return Err(BeginError::Stuck);
        }
        if context.accesses.len() >= self.config.max_accesses {
            return Err(BeginError::Full);
        }
        self.last_access += 1;
        let id = AccessId(self.last_access);
        context.accesses.insert(id);
        self.counters.accesses += 1;
        let bytes = u64::from(access.copied_bytes).max(1);
        let may_bring = self.config.handles_faults
            && access.policy == FaultPolicy::default()
            && context.bringing_bytes + bytes <= self.config.max_bringing_bytes;
        let bringing_bytes = if may_bring { bytes } else { 0 };
        context.bringing_bytes += bringing_bytes;
        self.wakes.lower(access.context, &mut context.wake, now.after_ns(self.config.attempt_timeout_ns));
        let job = Job {
            access,
            state: State::Attempting(Patience::since(now)),
            absent: 0,
            attempts: 0,
            faulted_at: None,
            held_bytes: 0,
            begun_at: now,
            bringing_bytes,
            withdrawn_for: None,
            has_looked_again: false,
        };
        self.jobs.insert(id, job);
        Ok(id)
    }

    /// Whether the attempt of an access may bring pages in itself.
    #[must_use]
    pub fn may_bring(&self, id: AccessId) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.bringing_bytes > 0)
    }

    /// Asks to withdraw the attempt of an access ([`Action::Withdraw`]), if the attempt may be waiting for pages
    /// that it brings in. Either the attempt is withdrawn, and the access ends at once, or it is copying already
    /// and goes on. Poll afterwards.
    pub fn withdraw(&mut self, now: Time, id: AccessId, reason: Reason) {
        let timeout_ns = self.config.attempt_timeout_ns;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let State::Attempting(patience) = &mut job.state else { return };
        if job.bringing_bytes == 0 || job.withdrawn_for.is_some() {
            return;
        }
        job.withdrawn_for = Some(reason);
        // Leaves time for the answer to the withdrawal before the attempt is given up.
        patience.allow_another_chance(now, timeout_ns);
        self.counters.withdrawn += 1;
        self.actions.push_back(Action::Withdraw(job.access.context, id));
    }

    /// Reports the result of an [`Action::Withdraw`]. If the attempt could be withdrawn, nobody copies for it any
    /// more. Poll afterwards.
    pub fn withdrawn(&mut self, now: Time, context_id: ContextId, id: AccessId, is_withdrawn: bool) {
        let Some(context) = self.contexts.get(&context_id).filter(|_| is_withdrawn) else { return };
        let known = self.jobs.get(&id).filter(|job| job.access.context == context_id);
        let address = known.map_or(0, |job| job.access.address);
        // If the access was given up meanwhile, only its entry in `overdue` is left.
        let reason = known.and_then(|job| job.withdrawn_for);
        if let Some(reason) = reason.or(context.overdue.contains_key(&id).then_some(Reason::TimedOut)) {
            let unreached = Unreached { address, reason };
            self.attempted(now, context_id, id, Outcome::Denied(unreached));
        }
    }

    /// Whether no access can be begun in a context, because an earlier access was given up and has not ended.
    #[must_use]
    pub fn is_stuck(&self, context: ContextId) -> bool {
        self.contexts.get(&context).is_some_and(|context| !context.overdue.is_empty())
    }

    /// Reports the end of an attempt. If the access was given up or is unknown, the outcome is ignored. Poll
    /// afterwards.
    pub fn attempted(&mut self, now: Time, context_id: ContextId, id: AccessId, outcome: Outcome) {
        let Some(context) = self.contexts.get_mut(&context_id) else { return };
        let late = context.overdue.remove(&id);
        if let Some(range_start) = late.filter(|_| !self.jobs.contains_key(&id)) {
            let has_more = context.overdue.values().any(|start| *start == range_start);
            if !has_more && context.releasing.contains_key(&range_start) {
                self.settle_release(context_id, range_start);
            }
            return;
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.access.context != context_id || !matches!(job.state, State::Attempting(_)) {
            return;
        }
        let access = job.access;
        let may_have_brought = job.bringing_bytes > 0;
        context.bringing_bytes -= std::mem::take(&mut job.bringing_bytes);
        if matches!(outcome, Outcome::Done(_) | Outcome::Brought { .. }) {
            context.went_well(&access);
        }
        match outcome {
            Outcome::Brought { before, pages, kind } if may_have_brought => {
                self.brought(now, id, &access, pages, kind);
                self.finish(id, Action::Done(id, before));
            }
            Outcome::Done(before) | Outcome::Brought { before, .. } => {
                if let Some((since, kind)) = job.faulted_at {
                    self.counters.note_stall(access.end, kind, now.since_ns(since));
                }
                self.finish(id, Action::Done(id, before));
            }
            Outcome::Denied(refusal) => {
                if refusal.reason == Reason::TimedOut {
                    self.counters.timed_out += 1;
                } else if refusal.reason != Reason::Gone {
                    context.registers.note(
                        refusal.address,
                        access.right,
                        refusal.reason == Reason::Protected,
                    );
                    self.counters.denied += 1;
                }
                self.finish(id, Action::Refuse(id, refusal));
            }
            Outcome::Absent(pages, kind) => self.absent(now, id, &access, pages, kind),
        }
    }

    /// Counts the pages that an attempt has brought in itself. If they continue a run of faults, pages ahead are
    /// brought in, too.
    fn brought(&mut self, now: Time, id: AccessId, access: &Access, pages: u32, kind: Absence) {
        let Some(context) = self.contexts.get_mut(&access.context) else { return };
        let pages = access.pages_of(pages);
        let page = access.first_page() + u64::from(pages.trailing_zeros());
        self.counters.faults[access.end as usize][kind as usize] += 1;
        self.counters.touches += 1;
        self.counters.brought += 1;
        self.counters.pages_touched += u64::from(pages.count_ones());
        context.registers.note(page * PAGE_BYTES, access.right, false);
        if let Some(job) = self.jobs.get(&id) {
            let took_ns = now.since_ns(job.begun_at);
            self.counters.note_stall(access.end, kind, took_ns);
            self.counters.touch_times.note(took_ns);
        }
        let (_, ahead) = context.chosen(access, pages);
        if let Some(ahead) = ahead.filter(|_| !context.is_full(&self.config) && !context.is_releasing(access))
        {
            self.begin_touch(now, access, ahead, Vec::new());
            self.run_touches(access.context, now);
        }
    }

    /// Handles an attempt that met absent pages: the access waits, pauses, is forced, or ends.
    fn absent(&mut self, now: Time, id: AccessId, access: &Access, pages: u32, kind: Absence) {
        let Some(context) = self.contexts.get_mut(&access.context) else { return };
        if context.is_releasing(access) {
            let refusal = Unreached { address: access.address, reason: Reason::Gone };
            return self.finish(id, Action::Refuse(id, refusal));
        }
        let pages = access.pages_of(pages);
        let page = access.first_page() + u64::from(pages.trailing_zeros());
        self.counters.faults[access.end as usize][kind as usize] += 1;
        if self.jobs.get(&id).is_some_and(|job| job.attempts == 0) {
            context.registers.note(page * PAGE_BYTES, access.right, false);
        }
        if let Some(refusal) = context.take_denial(now, access) {
            self.counters.denied += 1;
            return self.finish(id, Action::Refuse(id, refusal));
        }
        let bytes = u64::from(access.copied_bytes);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.absent = pages;
        job.attempts += 1;
        job.faulted_at.get_or_insert((now, kind));
        if job.attempts > self.config.max_attempts + 1 {
            // The last attempt was forced: nothing is left to try.
            let refusal = Unreached { address: page * PAGE_BYTES, reason: Reason::Unavailable };
            return self.finish(id, Action::Refuse(id, refusal));
        }
        let has_room = context.held_bytes + bytes <= self.config.max_held_bytes;
        // An access that has stalled before stalls again: its bytes are held already.
        let stalls = match access.end {
            End::Notification | End::Atomic => true,
            End::Source | End::Destination => {
                job.held_bytes > 0
                    || !access.is_free_to_pause && access.policy.mode == FaultMode::Stall && has_room
            }
        };
        let is_forced = job.attempts > self.config.max_attempts
            || !stalls
                && (has_room || context.held_bytes == 0)
                && context.pages_gone(access) >= self.config.max_pages_gone;
        if (stalls || is_forced) && job.held_bytes == 0 {
            job.held_bytes = bytes.max(1);
            context.held_bytes += job.held_bytes;
            self.counters.stalled += u64::from(!is_forced);
        }
        // If pages leave as fast as they come, the copying itself brings them in, one after the other.
        if is_forced {
            job.attempts = self.config.max_attempts + 1;
            job.state = State::Attempting(Patience::since(now));
            self.wakes.lower(access.context, &mut context.wake, now.after_ns(self.config.attempt_timeout_ns));
            self.counters.forced += 1;
            self.actions.push_back(Action::Attempt { access: id, is_forced: true });
            return;
        }
        if !stalls {
            self.counters.paused += 1;
            let missing = pages >> pages.trailing_zeros();
            self.actions.push_back(Action::Pause { access: id, address: page * PAGE_BYTES, missing });
        }
        job.state = State::Waiting { touch: None, is_paused: !stalls };
        let record =
            FaultRecord { by: access.by, end: access.end, context: access.context, page, access: id };
        match self.queue.note(record, stalls) {
            Noted::Queued => {}
            Noted::Repeat => {
                self.counters.repeats_dropped += 1;
                self.finish(id, Action::Forget(id));
            }
            Noted::Lost if stalls => {
                self.counters.records_lost += 1;
                self.finish(id, Action::Busy(id));
            }
            Noted::Lost => {
                self.counters.records_lost += 1;
                self.finish(id, Action::Forget(id));
            }
        }
    }

    /// Ends an access with this action.
    fn finish(&mut self, id: AccessId, action: Action) {
        self.actions.push_back(action);
        let Some(job) = self.jobs.remove(&id) else { return };
        if job.attempts > 0 {
            self.queue.settled(job.access.by, id);
        }
        let (context_id, range_start) = (job.access.context, job.access.range_start);
        let Some(context) = self.contexts.get_mut(&context_id) else { return };
        context.accesses.remove(&id);
        context.held_bytes -= job.held_bytes;
        context.bringing_bytes -= job.bringing_bytes;
        if context.is_releasing(&job.access) {
            self.settle_release(context_id, range_start);
        }
    }

    /// Reports a range as released, if no attempt touches it any more except those that were given up.
    fn settle_release(&mut self, context_id: ContextId, range_start: u64) {
        let Some(context) = self.contexts.get_mut(&context_id) else { return };
        let is_touched = context.accesses.iter().any(|id| {
            self.jobs.get(id).is_some_and(|job| {
                job.access.range_start == range_start && matches!(job.state, State::Attempting(_))
            }) && !context.overdue.contains_key(id)
        });
        let is_stuck = context.overdue.values().any(|start| *start == range_start);
        if !is_touched && (is_stuck || context.releasing.contains_key(&range_start)) {
            context.releasing.remove(&range_start);
            self.actions.push_back(Action::Released(context_id, range_start, !is_stuck));
        }
    }

    /// Releases a range. Accesses to it that wait are ended, and attempts are withdrawn if possible. The caller
    /// begins no access to the range until it is released. Poll afterwards.
    pub fn release(&mut self, now: Time, context_id: ContextId, range_start: u64) -> Released {
        let Some(context) = self.contexts.get_mut(&context_id) else { return Released::Now };
        let is_stuck = context.overdue.values().any(|start| *start == range_start);
        let in_range = |id: &AccessId| {
            self.jobs.get(id).filter(|job| job.access.range_start == range_start).map(|job| (*id, job))
        };
        let of_range: Vec<_> = context.accesses.iter().filter_map(in_range).map(|(id, _)| id).collect();
        let mut is_touched = false;
        for id in of_range {
            let Some(job) = self.jobs.get(&id) else { continue };
            let refusal = Unreached { address: job.access.address, reason: Reason::Gone };
            match job.state {
                State::Attempting(_) => {
                    is_touched = true;
                    self.withdraw(now, id, Reason::Gone);
                }
                State::Waiting { is_paused: true, .. } => self.finish(id, Action::Forget(id)),
                State::Waiting { is_paused: false, .. } => self.finish(id, Action::Refuse(id, refusal)),
            }
        }
        if is_stuck {
            return Released::Stuck;
        }
        if !is_touched {
            return Released::Now;
        }
        if let Some(context) = self.contexts.get_mut(&context_id) {
            context.releasing.insert(range_start, range_start);
        }
        Released::Later
    }

    /// Takes all fault records out of the queue, and decides which pages are brought in.
    fn handle_faults(&mut self, now: Time) {
        // Accesses that fault together wait for the same touches. So no touch is asked for before all records were
        // handled.
        let mut begun_in = Vec::new();
        while let Some(record) = self.queue.take() {
            begun_in.extend(self.handle_record(now, &record));
        }
        begun_in.dedup();
        for context in begun_in {
            self.run_touches(context, now);
        }
    }

    /// Takes one fault record out of the queue and handles it, for a handler that takes time for each (FAULT
    /// §3.2.3). Returns whether there was a record. Call [`Self::poll_action`] afterwards.
    pub fn handle_fault(&mut self, now: Time) -> bool {
        let Some(record) = self.queue.take() else { return false };
        if let Some(context) = self.handle_record(now, &record) {
            self.run_touches(context, now);
        }
        true
    }

    /// Decides which pages are brought in for a fault. Returns the context if new touches are queued there.
    fn handle_record(&mut self, now: Time, record: &FaultRecord) -> Option<ContextId> {
        let job = self.jobs.get_mut(&record.access)?;
        let State::Waiting { touch: touch @ None, is_paused } = &mut job.state else { return None };
        if !self.config.handles_faults {
            let action = if *is_paused { Action::Forget(record.access) } else { Action::Busy(record.access) };
            self.finish(record.access, action);
            return None;
        }
        let is_paused = *is_paused;
        let context = self.contexts.get_mut(&record.context)?;
        let right = job.access.right;
        let is_stuck = context.is_stuck(&self.config);
        let known = context.touch_of(record.page, right);
        let is_running = known.is_some_and(|id| !context.queued.contains(&id));
        match known.and_then(|id| Some((id, context.touches.get_mut(&id)?))) {
            Some((id, known)) if !known.is_overdue => {
                *touch = Some(id);
                let access = job.access;
                let is_of_block = |other: &AccessId| {
                    self.jobs.get(other).is_some_and(|other| {
                        (other.access.by, other.access.end) == (access.by, access.end) && other.is_paused()
                    })
                };
                // The sender sends the block again and again: one paused access of the block is enough.
                if is_paused && known.waiting.iter().any(is_of_block) {
                    self.finish(record.access, Action::Forget(record.access));
                    return None;
                }
                known.waiting.push(record.access);
                // Only once for each access: if a second touch fails, the access is refused.
                if is_running
                    && let Some(job) = self.jobs.get_mut(&record.access)
                    && !std::mem::replace(&mut job.has_looked_again, true)
                {
                    known.late.push(record.access);
                }
                if is_paused {
                    context.note_paused(&access, record.page);
                }
                return None;
            }
            None if !is_stuck => {}
            Some(_) | None => {
                self.give_up(now, record.access, record.page);
                return None;
            }
        }
        if context.is_full(&self.config) {
            self.counters.busy += 1;
            let action = if is_paused { Action::Forget(record.access) } else { Action::Busy(record.access) };
            self.finish(record.access, action);
            return None;
        }
        let access = job.access;
        if is_paused {
            context.note_paused(&access, record.page);
        }
        let (needed, ahead) = context.chosen(&access, job.absent);
        let begun = self.begin_touch(now, &access, needed, vec![record.access]);
        if let Some(Job { state: State::Waiting { touch, .. }, .. }) = self.jobs.get_mut(&record.access) {
            *touch = begun;
        }
        if let Some(ahead) = ahead {
            self.begin_touch(now, &access, ahead, Vec::new());
        }
        Some(record.context)
    }

    /// Queues a touch of the pages from `first_page` to before `end_page`, for the range and right of `access`.
    /// `waiting`: the accesses that wait for the touch. Without any, it is a touch ahead.
    fn begin_touch(
        &mut self,
        now: Time,
        access: &Access,
        (first_page, end_page): (u64, u64),
        waiting: Vec<AccessId>,
    ) -> Option<TouchId> {
        let context = self.contexts.get_mut(&access.context)?;
        self.last_touch += 1;
        let (id, is_ahead) = (TouchId(self.last_touch), waiting.is_empty());
        let touch = Touch {
            first_page,
            end_page,
            range: (access.range_start, access.range_end),
            right: access.right,
            since: now,
            is_overdue: false,
            patience: Patience::since(now),
            is_ahead,
            waiting,
            late: Vec::new(),
        };
        context.touches.insert(id, touch);
        self.wakes.lower(access.context, &mut context.wake, now.after_ns(self.config.touch_timeout_ns));
        context.queued.push_back(id);
        Some(id)
    }

    /// Asks the caller for queued touches of a context, up to the number that may run at once.
    fn run_touches(&mut self, context_id: ContextId, now: Time) {
        let Some(context) = self.contexts.get_mut(&context_id) else { return };
        while context.running < self.config.running_touches
            && let Some(id) = context.queued.pop_front()
        {
            let Some(touch) = context.touches.get_mut(&id) else { continue };
            touch.since = now;
            touch.patience = Patience::since(now);
            context.running += 1;
            self.counters.touches += 1;
            self.counters.pages_touched += touch.end_page - touch.first_page;
            let address = (touch.first_page * PAGE_BYTES).max(touch.range.0);
            let end = (touch.end_page * PAGE_BYTES).min(touch.range.1);
            self.actions.push_back(Action::Touch {
                touch: id,
                context: context_id,
                address,
                length_bytes: end.saturating_sub(address) as u32,
                right: touch.right,
            });
        }
    }

    /// Reports that pages were brought in, or why they could not be. Poll afterwards.
    pub fn touched(&mut self, now: Time, context_id: ContextId, id: TouchId, outcome: Result<(), Unreached>) {
        let Some(context) = self.contexts.get_mut(&context_id) else { return };
        if context.queued.contains(&id) {
            return;
        }
        let Some(touch) = context.touches.remove(&id) else { return };
        context.running -= 1;
        self.counters.touch_times.note(now.since_ns(touch.since));
        self.counters.touches_failed += u64::from(outcome.is_err());
        for waiting in touch.waiting {
            let Some(job) = self.jobs.get_mut(&waiting) else { continue };
            let State::Waiting { is_paused, .. } = job.state else { continue };
            let access = job.access;
            let is_told =
                |refusal: &Unreached| access.touches(refusal.address) && !touch.late.contains(&waiting);
            let refusal = outcome.err().filter(is_told);
            match (is_paused, refusal) {
                (false, None) => {
                    job.state = State::Attempting(Patience::since(now));
                    let due = now.after_ns(self.config.attempt_timeout_ns);
                    if let Some(context) = self.contexts.get_mut(&context_id) {
                        self.wakes.lower(context_id, &mut context.wake, due);
                    }
                    self.actions.push_back(Action::Attempt { access: waiting, is_forced: false });
                }
                (false, Some(refusal)) => {
                    self.counters.denied += 1;
                    if let Some(context) = self.contexts.get_mut(&context_id) {
                        let is_permission = refusal.reason == Reason::Protected;
                        context.registers.note(refusal.address, access.right, is_permission);
                    }
                    self.finish(waiting, Action::Refuse(waiting, refusal));
                }
                (true, refusal) => {
                    let until = now.after_ns(self.config.denied_ns);
                    if let Some((since, kind)) = job.faulted_at.filter(|_| outcome.is_ok()) {
                        self.counters.note_stall(access.end, kind, now.since_ns(since));
                    }
                    if let Some((context, refusal)) = self.contexts.get_mut(&context_id).zip(refusal) {
                        context.deny(&access, refusal, until);
                    }
                    self.finish(waiting, Action::Ready(waiting));
                }
            }
        }
        self.run_touches(context_id, now);
    }

    /// Gives up attempts and touches that take too long. Poll afterwards.
    pub fn expire(&mut self, now: Time) {
        let due: Vec<ContextId> = std::iter::from_fn(|| self.wakes.take_due(now)).collect();
        for id in due {
            let Some(context) = self.contexts.get_mut(&id) else { continue };
            context.wake.fired();
            self.visits += 1;
            self.expire_attempts(now, id);
            self.expire_touches(now, id);
            let wake = self.first_due(id);
            if let Some((context, due)) = self.contexts.get_mut(&id).zip(wake) {
                self.wakes.lower(id, &mut context.wake, due);
            }
        }
    }

    fn expire_attempts(&mut self, now: Time, id: ContextId) {
        let Some(context) = self.contexts.get_mut(&id) else { return };
        let timeout_ns = self.config.attempt_timeout_ns;
        let is_late = |access: &&AccessId| match self.jobs.get_mut(access) {
            Some(Job { state: State::Attempting(patience), .. }) => patience.is_over(now, timeout_ns),
            Some(_) | None => false,
        };
        let late: Vec<AccessId> = context.accesses.iter().filter(is_late).copied().collect();
        for access in late {
            let Some(job) = self.jobs.get_mut(&access) else { continue };
            if job.bringing_bytes > 0 && job.withdrawn_for.is_none() {
                self.withdraw(now, access, Reason::TimedOut);
                continue;
            }
            let refusal = Unreached { address: job.access.address, reason: Reason::TimedOut };
            let (range_start, is_of_asker) = (job.access.range_start, job.access.is_of_asker);
            let Some(context) = self.contexts.get_mut(&id) else { return };
            if context.overdue.insert(access, range_start).is_some() {
                continue;
            }
            if !is_of_asker {
                self.counters.timed_out += 1;
                self.finish(access, Action::Refuse(access, refusal));
            } else if context.releasing.contains_key(&range_start) {
                self.settle_release(id, range_start);
            }
        }
    }

    fn expire_touches(&mut self, now: Time, id: ContextId) {
        let Some(context) = self.contexts.get_mut(&id) else { return };
        let timeout_ns = self.config.touch_timeout_ns;
        let mut given_up = Vec::new();
        context.touches.retain(|touch_id, touch| {
            if touch.is_overdue || !touch.patience.is_over(now, timeout_ns) {
                return true;
            }
            touch.is_overdue = true;
            given_up.append(&mut touch.waiting);
            // A touch that is still queued is dropped: the caller was not asked for it, and no access waits for it
            // now.
            let is_asked_for = !context.queued.contains(touch_id);
            context.queued.retain(|queued| is_asked_for || queued != touch_id);
            is_asked_for
        });
        for access in given_up {
            let Some(job) = self.jobs.get(&access) else { continue };
            let page = job.access.first_page() + u64::from(job.absent.trailing_zeros());
            self.give_up(now, access, page);
        }
    }

    /// Gives up an access that waits, because its page does not come in time.
    fn give_up(&mut self, now: Time, access: AccessId, page: u64) {
        let Some(job) = self.jobs.get(&access) else { return };
        let State::Waiting { is_paused, .. } = job.state else { return };
        let refusal = Unreached { address: page * PAGE_BYTES, reason: Reason::TimedOut };
        self.counters.timed_out += 1;
        if !is_paused {
            return self.finish(access, Action::Refuse(access, refusal));
        }
        // The block comes again, and is refused then.
        let until = now.after_ns(self.config.denied_ns);
        if let Some(context) = self.contexts.get_mut(&job.access.context) {
            context.deny(&job.access, refusal, until);
        }
        self.finish(access, Action::Ready(access));
    }

    /// When [`Self::expire`] is to be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.wakes.first()
    }

    /// The earliest time at which an attempt or a touch of a context takes too long.
    fn first_due(&self, id: ContextId) -> Option<Time> {
        let context = self.contexts.get(&id)?;
        let attempts = context.accesses.iter().filter_map(|id| match self.jobs.get(id)?.state {
            State::Attempting(patience) if !context.overdue.contains_key(id) => {
                Some(patience.due(self.config.attempt_timeout_ns))
            }
            State::Attempting(_) | State::Waiting { .. } => None,
        });
        let touches = context.touches.values().filter(|touch| !touch.is_overdue);
        let touches = touches.map(|touch| touch.patience.due(self.config.touch_timeout_ns));
        attempts.chain(touches).min()
    }

    /// The next thing to do. Call until `None`, then again after any other call.
    #[must_use = "an action that is not carried out is lost"]
    pub fn poll(&mut self, now: Time) -> Option<Action> {
        if self.actions.is_empty() {
            self.handle_faults(now);
        }
        self.actions.pop_front()
    }

    /// The next action. Unlike [`Self::poll`], this leaves records in the fault queue, for a handler that takes
    /// time for each ([`Self::handle_fault`]).
    #[must_use = "an action that is not carried out is lost"]
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Number of fault records that wait for the handler.
    #[must_use]
    pub fn waiting_faults(&self) -> usize {
        self.queue.len()
    }

    /// The fault registers of a context.
    #[must_use]
    pub fn registers(&self, context: ContextId) -> Option<FaultRegisters> {
        self.contexts.get(&context).map(|context| context.registers)
    }

    /// Clears the fault registers of a context, as software does after it has read them.
    pub fn clear_registers(&mut self, context: ContextId) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.registers = FaultRegisters::default();
        }
    }

    /// Counts since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
            && self.queue.is_empty()
            && self.actions.is_empty()
            && self.contexts.values().all(|context| {
                context.touches.is_empty()
                    && context.accesses.is_empty()
                    && context.held_bytes == 0
                    && context.bringing_bytes == 0
                    && context.running == 0
                    && context.releasing.is_empty()
                    && context.overdue.is_empty()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A timeout costs work for its own context only, however many contexts there are.
    #[test]
    fn a_deadline_looks_at_one_context() {
        let mut iommu = Iommu::new(Config::default());
        for context in 0..1000 {
            iommu.open(ContextId(context));
            let access = Access {
                context: ContextId(context),
                address: 1 << 20,
                length_bytes: 64,
                right: Right::Write,
                end: End::Destination,
                by: FaultSource::default(),
                range_start: 1 << 20,
                range_end: 2 << 20,
                policy: FaultPolicy::default(),
                copied_bytes: 64,
                is_free_to_pause: false,
                is_of_asker: false,
            };
            iommu.begin(Time(context * 1_000_000), access).expect("room");
        }
        while let Some(now) = iommu.next_deadline() {
            iommu.expire(now);
            while iommu.poll(now).is_some() {}
        }
        // Each attempt is due, has one more chance, is withdrawn, and is given up: at most four visits.
        assert!((1000..=4000).contains(&iommu.visits), "{} visits", iommu.visits);
        assert!((0..1000).all(|context| iommu.is_stuck(ContextId(context))));
    }
}
