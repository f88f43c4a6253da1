//! Accesses to programs' own memory: passes orders from the engine's loop to the threads that make the accesses, and
//! answers back.
//!
//! ```text
//!  begin ──► OwnMemory ──► order ──► area ──► the program's access thread
//!                                               │
//!  what follows (packets, next part) ◄── OwnMemory ◄── answer
//! ```
//!
//! The machine ([`tombolo_core::own`]) decides what is done about an absent page and what follows from an answer, and
//! tells the engine. This module stages bytes and gives orders. All that follows from an answer is done in order, on
//! the thread that drives the node.

use std::sync::Arc;

use smallvec::SmallVec;
use tombolo_channel::access::{Order, OrderKind, Outcome as Answer};
use tombolo_core::iommu::{Absence, AccessId, ContextId, End, Outcome, Reason, Right, TouchId, Unreached};
use tombolo_core::own::{OwnMemory, Purpose, Request, Step};
use tombolo_core::rdma::{Engine, Time};
use tombolo_host::own::{self, WordChange};
use tombolo_host::shared::SharedSpan;
use tombolo_wire::{ATOMIC_BYTES, AtomicOperation, NackCode, Refusal};

use crate::driver::loopback::{NOTIFICATION_BYTES, failure};
use crate::driver::node::Node;
use crate::driver::pump::CachedClock;
use crate::fabric::connection::Connection;
use crate::programs::access::{Ordered, OwnAccess, Staged};
use crate::programs::own::OwnPlace;
use crate::programs::user::Poster;

/// Maximum number of bytes of blocks that leave together: what one system call sends over UDP.
const TOGETHER_BYTES: u32 = 64 * 1024;

/// Marks the numbers of orders that bring pages in.
const OF_A_TOUCH: u64 = 1 << 63;
/// Marks the numbers of orders that withdraw another order.
const OF_A_WITHDRAWAL: u64 = 1 << 62;

/// What an access does with the memory.
pub(crate) enum Work<'a> {
    Read(u32),
    Write(SharedSpan<'a>),
    /// Bytes that may lie in the program's staging already.
    WriteStaged(Staged),
    Words([u64; 2]),
    Change(AtomicOperation),
}

impl Work<'_> {
    fn length_bytes(&self) -> u32 {
        match self {
            Self::Read(bytes) => *bytes,
            Self::Write(bytes) => bytes.len() as u32,
            Self::WriteStaged(staged) => staged.bytes().len() as u32,
            Self::Words(_) => NOTIFICATION_BYTES,
            Self::Change(_) => ATOMIC_BYTES,
        }
    }
}

fn outcome_of(answer: Answer, address: u64) -> Outcome {
    match answer {
        Answer::Done(before) => Outcome::Done(before),
        Answer::Absent(absent) => Outcome::Absent(absent.pages, absence_of(absent)),
        Answer::Brought(before, absent) => {
            Outcome::Brought { before, pages: absent.pages, kind: absence_of(absent) }
        }
        Answer::Denied(denied) => Outcome::Denied(unreached_of(denied)),
        Answer::Impossible => Outcome::Denied(Unreached { address, reason: Reason::NotMapped }),
    }
}

fn absence_of(absent: own::Absent) -> Absence {
    match absent.kind {
        None | Some(own::Absence::Missing) => Absence::Missing,
        Some(own::Absence::Swapped) => Absence::Swapped,
        Some(own::Absence::CopyOnWrite) => Absence::CopyOnWrite,
        Some(own::Absence::WriteProtected) => Absence::WriteProtected,
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

fn order(id: u64, (address, length_bytes): (u64, u32), look: (u64, u32), kind: OrderKind) -> Order {
    Order { id, address, length_bytes, is_forced: false, brings: false, look, kind }
}

impl Node {
    /// Begins an access to a program's own memory, on behalf of `asker`. On an error, nothing has begun.
    pub(crate) fn begin_access(
        &self,
        place: &OwnPlace,
        address: u64,
        work: Work<'_>,
        purpose: Purpose,
        asker: Poster,
    ) -> Result<(), Refusal> {
        let own = &place.access;
        let length_bytes = work.length_bytes();
        let request = Request {
            context: own.context,
            range: (place.range.start, place.range.end),
            policy: place.range.faults,
            at: (address, length_bytes),
            purpose,
            is_by_owner: matches!(asker, Poster::Program(_, life) if own.is_of(life)),
        };
        // Check first, so that no bytes are copied in vain.
        self.programs.own_memory.lock().may_begin(&request)?;
        let (kind, staged) = self.stage(own, work, &request)?;
        let look = (address, length_bytes);
        let order = order(0, look, look, kind);
        let mut own_memory = self.programs.own_memory.lock();
        // Check under the lock under which ranges are released.
        if place.range.is_gone() {
            return Err(Refusal::at(NackCode::DecodeError, address));
        }
        let ordered = Ordered { own: own.clone(), order, staged };
        let begun = own_memory.begin(self.now(), &request, ordered)?;
        if let Some(ordered) = own_memory.with_mut(begun.access) {
            (ordered.order.id, ordered.order.look) = (begun.access.0, begun.look);
            if !ordered.post(false, begun.may_bring) {
                self.not_ordered(&mut own_memory, own.context, begun.access, address);
            }
        }
        Ok(())
    }

    /// Ends an access whose order was not taken. What follows from its end is among the machine's next steps.
    fn not_ordered(
        &self,
        own_memory: &mut OwnMemory<Ordered>,
        context: ContextId,
        access: AccessId,
        address: u64,
    ) {
        let unreached = Unreached { address, reason: Reason::Unavailable };
        own_memory.attempted(self.now(), context, access, Outcome::Denied(unreached));
        self.programs.has_steps();
    }

    /// Makes the order's kind for a piece of work. If it has bytes, puts them into the access area, or reserves room
    /// there.
    fn stage(
        &self,
        own: &Arc<OwnAccess>,
        work: Work<'_>,
        request: &Request,
    ) -> Result<(OrderKind, Option<Staged>), Refusal> {
        let room =
            |bytes| Staged::new(own, bytes).ok_or_else(|| self.programs.own_memory.lock().no_room(request));
        let filled = |bytes: SharedSpan<'_>| -> Result<Staged, Refusal> {
            let staged = room(bytes.len() as u32)?;
            staged.room().ok_or(NackCode::DecodeError)?.take_from(bytes);
            Ok(staged)
        };
        let staged = match work {
            Work::Read(bytes) => {
                let staged = room(bytes)?;
                return Ok((OrderKind::Read(staged.offset()), Some(staged)));
            }
            Work::Write(bytes) => filled(bytes)?,
            Work::WriteStaged(staged) if staged.is_of(own) => staged,
            Work::WriteStaged(elsewhere) => filled(elsewhere.bytes())?,
            Work::Words(words) => return Ok((OrderKind::Words(words), None)),
            Work::Change(operation) => {
                let change = match operation {
                    AtomicOperation::FetchAdd(operand) => WordChange::Add(operand),
                    AtomicOperation::CompareSwap { compare, swap } => WordChange::CompareSwap(compare, swap),
                };
                return Ok((OrderKind::Change(change), None));
            }
        };
        Ok((OrderKind::Write(staged.offset()), Some(staged)))
    }

    /// Takes the answers of access threads and acts on them. Returns how many there were.
    pub(crate) fn take_accesses(&self) -> usize {
        let has_steps = self.programs.take_has_steps();
        if !has_steps && !self.programs.answers_waiting() {
            return 0;
        }
        let (mut count, now) = (usize::from(has_steps), self.now());
        for own in self.programs.accesses().iter().filter(|own| own.has_answers()) {
            loop {
                match own.next_answer() {
                    Ok(None) => break,
                    Ok(Some((id, answer))) => {
                        count += 1;
                        self.answered(now, own, id, answer);
                    }
                    Err(_) => {
                        tracing::warn!(
                            domain = own.domain,
                            "what this program says of its memory cannot be true"
                        );
                        self.programs.abandon_access(own);
                        break;
                    }
                }
            }
        }
        self.carry_out_accesses();
        self.pump();
        count
    }

    fn answered(&self, now: Time, own: &Arc<OwnAccess>, id: u64, answer: Answer) {
        let mut own_memory = self.programs.own_memory.lock();
        if id & OF_A_TOUCH != 0 {
            let outcome = match answer {
                Answer::Done(_) => Ok(()),
                Answer::Denied(denied) => Err(unreached_of(denied)),
                Answer::Absent(_) | Answer::Brought(..) | Answer::Impossible => {
                    Err(Unreached { address: 0, reason: Reason::Unavailable })
                }
            };
            return own_memory.touched(now, own.context, TouchId(id & !OF_A_TOUCH), outcome);
        }
        if id & OF_A_WITHDRAWAL != 0 {
            let (access, is_withdrawn) = (AccessId(id & !OF_A_WITHDRAWAL), answer == Answer::Done(1));
            return own_memory.withdrawn(now, own.context, access, is_withdrawn);
        }
        let id = AccessId(id);
        let address = own_memory.with(id).map_or(0, |ordered| ordered.order.address);
        own_memory.attempted(now, own.context, id, outcome_of(answer, address));
    }

    /// Calls `act` with the machine and the engine locked. The machine is locked first: a thread that holds the engine
    /// must not wait for the machine.
    pub(crate) fn with_own_memory<T>(
        &self,
        act: impl FnOnce(&mut OwnMemory<Ordered>, &mut Engine) -> T,
    ) -> T {
        let mut own_memory = self.programs.own_memory.lock();
        act(&mut own_memory, &mut self.fabric.engine.lock())
    }

    /// Carries out the steps of the machine.
    pub(crate) fn carry_out_accesses(&self) {
        // The steps of one access stay in order, even if a program that drives the node and the thread that stands by
        // for it are both here.
        let _in_order = self.accesses_in_order.lock();
        let (mut clock, mut touched) = (CachedClock::new(self), SmallVec::<[_; 4]>::new());
        let mut unflushed_bytes = 0;
        while let Some(step) = self.with_own_memory(|own_memory, engine| own_memory.poll(clock.now(), engine))
        {
            let bytes = match &step {
                Step::Send(block, _) | Step::Go(_, block, _) => block.length_bytes,
                _ => 0,
            };
            clock.passed_for(bytes);
            unflushed_bytes += bytes;
            match step {
                Step::Attempt { access, is_forced } => {
                    let mut own_memory = self.programs.own_memory.lock();
                    let Some(ordered) = own_memory.with(access) else { continue };
                    if !ordered.post(is_forced, false) {
                        let (context, address) = (ordered.own.context, ordered.order.address);
                        self.not_ordered(&mut own_memory, context, access, address);
                    }
                }
                Step::Touch { touch, context, address, length_bytes, right } => {
                    let kind = OrderKind::Touch(match right {
                        Right::Read => own::Right::Read,
                        Right::Write => own::Right::Write,
                    });
                    let (id, look) = (touch.0 | OF_A_TOUCH, (address, 0));
                    let order = order(id, (address, length_bytes), look, kind);
                    if !self.order_of(context, &order) {
                        let unreached = Unreached { address, reason: Reason::Unavailable };
                        let mut own_memory = self.programs.own_memory.lock();
                        own_memory.touched(self.now(), context, touch, Err(unreached));
                    }
                }
                Step::Withdraw(context, access) => {
                    let (id, kind) = (access.0 | OF_A_WITHDRAWAL, OrderKind::Withdraw(access.0));
                    // If this order is not taken, the attempt ends by its deadline.
                    self.order_of(context, &order(id, (0, 0), (0, 0), kind));
                }
                Step::Send(block, ordered) => self.send_copied(&block, ordered.staged.as_ref(), &mut touched),
                Step::Go(id, block, part) => self.go_on_here(id, block, part),
                Step::Changed(user, before) => drop(self.ended(user, Ok(before))),
                Step::NotBegun(user) => self.programs.not_begun(user),
                Step::NotChanged(user, refused) => drop(self.ended(user, Err(failure(&refused, user)))),
                Step::Released(context, start, has_ended) => {
                    self.programs.released(context, start, has_ended);
                }
            }
            // Flush after as many bytes as a link sends at once, so that blocks and the acknowledgements behind them do
            // not wait longer.
            if unflushed_bytes >= TOGETHER_BYTES {
                unflushed_bytes = 0;
                touched.drain(..).for_each(|connection: Arc<Connection>| self.flush(&connection));
            }
        }
        touched.iter().for_each(|connection| self.flush(connection));
    }

    /// Puts an order into the access area of a domain. False: the area has no room, or is closed.
    fn order_of(&self, context: ContextId, order: &Order) -> bool {
        let accesses = self.programs.accesses();
        accesses.iter().find(|own| own.context == context).is_some_and(|own| own.post(order))
    }

    /// Ends accesses whose helper has ended, and accesses that take too long.
    pub(crate) fn watch_accesses(&self) {
        for own in self.programs.accesses().iter().filter(|own| own.has_lost_its_helper()) {
            tracing::warn!(
                domain = own.domain,
                "the process that made the accesses to this program's memory has ended: they fail until it registers memory again"
            );
            self.programs.abandon_access(own);
        }
        let now = self.now();
        let mut own_memory = self.programs.own_memory.lock();
        if own_memory.next_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        own_memory.expire(now);
        drop(own_memory);
        self.carry_out_accesses();
        self.pump();
    }

    /// The counters of the IOMMU, by name. A time of 0 means less than a microsecond, or that nothing was measured: the
    /// counts tell which.
    pub(crate) fn access_counters(&self) -> Vec<(String, u64)> {
        let counters = *self.programs.own_memory.lock().iommu().counters();
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
            ("faults_brought", counters.brought),
            ("faults_withdrawn", counters.withdrawn),
            ("faults_forced", counters.forced),
        ] {
            named.push((name.to_owned(), count));
        }
        for part in [50, 99] {
            let of =
                |times: &tombolo_core::iommu::Times| times.quantile_us(f64::from(part) / 100.0).unwrap_or(0);
            named.push((format!("faults_touch_p{part}_us"), of(&counters.touch_times)));
            for end in End::ALL {
                let us = of(&counters.stall_times_at(end));
                named.push((format!("faults_stall_{}_p{part}_us", end.name()), us));
                for kind in Absence::ALL {
                    let times = &counters.stall_times[end as usize][kind as usize];
                    named
                        .push((format!("faults_stall_{}_{}_p{part}_us", end.name(), kind.name()), of(times)));
                }
            }
        }
        named
    }

    /// Whether nothing is under way in the engine and in programs' own memory. For tests.
    #[doc(hidden)]
    pub fn is_at_rest(&self) -> bool {
        let engine = self.fabric.engine.lock().is_idle();
        let areas = self.programs.accesses_underway() == 0
            && self.programs.accesses().iter().all(|access| access.is_at_rest());
        engine && areas && self.programs.own_memory.lock().is_idle()
    }
}
