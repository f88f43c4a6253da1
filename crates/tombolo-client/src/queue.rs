//! Any number of transfers: started in batches as channels become free, and found as they end.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_channel::{Descriptor, Failure, READ_SLOTS, SLOTS, Status, Target, WRITE_SLOTS, Work};
use tombolo_host::timing::client::BUSY_PAUSE;
use tombolo_wire::{ATOMIC_BYTES, AtomicOperation};

use crate::domain::mask;
use crate::error::{PostError, WaitError};
use crate::inner::Inner;
use crate::list::List;
use crate::transfer::Spec;

/// Something for a [`Queue`] to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    descriptor: Descriptor,
    is_read: bool,
    is_fenced: bool,
}

impl Order {
    fn new(descriptor: Descriptor) -> Self {
        Self { descriptor, is_read: false, is_fenced: false }
    }

    /// As [`crate::Domain::write`].
    pub fn write(to: Target, spec: Spec) -> Self {
        Self::new(spec.descriptor(to))
    }

    /// As [`crate::Domain::read`].
    pub fn read(from: Target, spec: Spec) -> Self {
        Self { is_read: true, ..Self::new(spec.descriptor(from)) }
    }

    /// As [`crate::Domain::carry`].
    pub fn carry(from: Target, to: Target, spec: Spec) -> Self {
        Self::new(Descriptor { source: Some(from), ..spec.descriptor(to) })
    }

    /// As [`crate::Domain::fetch_add`].
    pub fn fetch_add(at: Target, address: u64, operand: u64) -> Self {
        Self::change(at, address, AtomicOperation::FetchAdd(operand))
    }

    /// As [`crate::Domain::compare_swap`].
    pub fn compare_swap(at: Target, address: u64, compare: u64, swap: u64) -> Self {
        Self::change(at, address, AtomicOperation::CompareSwap { compare, swap })
    }

    fn change(at: Target, address: u64, operation: AtomicOperation) -> Self {
        let work = Work::Atomic(operation);
        Self::new(Descriptor { work, ..Descriptor::new(0, address, ATOMIC_BYTES, at) })
    }

    /// This order, behind a fence: it begins when all that was posted to its queue before it has ended, also if some of that has
    /// failed: look at the ends of those, or post it when they have come. (The notification of a list goes only if all its parts have
    /// succeeded.)
    #[must_use]
    pub fn fenced(self) -> Self {
        Self { is_fenced: true, ..self }
    }
}

/// The end of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As given when it was posted.
    pub context: u64,
    /// How it ended; of an atomic operation, the word as it was before, otherwise 0.
    pub outcome: Result<u64, WaitError>,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    order: Order,
    /// Its place among all orders of the queue; the parts of a list have the same.
    number: u64,
    end: End,
}

/// What the end of something posted means.
#[derive(Clone, Copy, Debug)]
enum End {
    /// That of an order with this context.
    Order(u64),
    /// That of a part of a list.
    Part,
    /// That of a list that moves nothing: it ends when it could begin.
    Nothing(u64),
}

/// A list, parts of which have not ended.
#[derive(Debug)]
struct Group {
    context: u64,
    /// How many have not.
    left: usize,
    /// Why one has failed: then no more begin.
    failed: Option<WaitError>,
    /// What begins when all have ended well.
    last: Option<Descriptor>,
    is_read: bool,
}

/// A queue of orders at a domain, and of their ends. Each thread may have its own; all share the channels of the domain.
///
/// Orders of one direction (reads are one, all else the other) begin in the order in which they are posted. They end in any
/// order, as transfers do: see [the crate](crate#order).
///
/// ```no_run
/// # use std::time::Duration;
/// # use tombolo_client::{Domain, Order, Spec, Target};
/// # fn all(domain: &Domain, there: Target, spec: Spec) -> Result<(), Box<dyn std::error::Error>> {
/// let mut queue = domain.queue(1000);
/// for piece in 0..1000 {
///     queue.post(Order::write(there, spec), piece)?;
/// }
/// while let Some(completion) = queue.wait_any(Duration::from_secs(1))? {
///     completion.outcome?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// With epoll: arm the domain ([`crate::Domain::arm`]), poll the queue, and only then wait for the domain's descriptor.
///
/// When it is dropped, what has begun goes on, and what has not does not begin.
#[derive(Debug)]
pub struct Queue {
    domain: Arc<Inner>,
    capacity: usize,
    /// Orders that have not begun: writes and the like, and reads.
    waiting: [VecDeque<Posted>; 2],
    /// The numbers of those behind a fence.
    fences: VecDeque<u64>,
    /// By channel.
    running: [Option<Posted>; SLOTS],
    /// A bit for each.
    running_slots: u64,
    /// Lists that have not ended, by number.
    groups: HashMap<u64, Group>,
    /// Orders and lists that have not ended.
    open: usize,
    ended: VecDeque<Completion>,
    next_number: u64,
    /// The node had no room for more transfers at that time.
    paused: Option<Instant>,
    /// One that may begin has found no channel: others of this program have them.
    lacks_channel: bool,
}

impl Queue {
    pub(crate) fn new(domain: Arc<Inner>, capacity: usize) -> Self {
        Self {
            domain,
            capacity,
            waiting: Default::default(),
            fences: VecDeque::new(),
            running: [None; SLOTS],
            running_slots: 0,
            groups: HashMap::new(),
            open: 0,
            ended: VecDeque::new(),
            next_number: 0,
            paused: None,
            lacks_channel: false,
        }
    }

    /// Orders whose end was not taken yet.
    pub fn len(&self) -> usize {
        self.open + self.ended.len()
    }

    /// Whether every end was taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts an order. `context` comes back with its end.
    pub fn post(&mut self, order: Order, context: u64) -> Result<(), PostError> {
        self.domain.check_process().map_err(|_| PostError::Forked)?;
        match self.post_all([(order, context)]) {
            0 => Err(PostError::QueueFull(self.capacity)),
            _ => Ok(()),
        }
    }

    /// Posts orders, of which those that begin at once do so together. Returns how many were posted: fewer when the queue
    /// is full, and none in a child made by fork.
    pub fn post_all(&mut self, orders: impl IntoIterator<Item = (Order, u64)>) -> usize {
        let is_here = self.domain.process.is_now();
        let room = if is_here { self.capacity.saturating_sub(self.len()) } else { 0 };
        let mut posted = 0;
        for (order, context) in orders.into_iter().take(room) {
            let number = self.next_number;
            self.next_number += 1;
            if order.is_fenced {
                self.fences.push_back(number);
            }
            let end = End::Order(context);
            self.waiting[usize::from(order.is_read)].push_back(Posted { order, number, end });
            posted += 1;
        }
        self.open += posted;
        self.start();
        posted
    }

    /// Posts a list, which has one end. `context` comes back with it.
    pub fn post_list(&mut self, list: List, context: u64) -> Result<(), PostError> {
        self.domain.check_process().map_err(|_| PostError::Forked)?;
        if self.len() >= self.capacity {
            return Err(PostError::QueueFull(self.capacity));
        }
        let List { parts, last, is_read, is_fenced, .. } = list;
        let number = self.next_number;
        self.next_number += 1;
        self.open += 1;
        if is_fenced {
            self.fences.push_back(number);
        }
        let waiting = &mut self.waiting[usize::from(is_read)];
        if parts.is_empty() {
            let end = if last.is_some() { End::Order(context) } else { End::Nothing(context) };
            let descriptor = last.unwrap_or(Descriptor::new(0, 0, 0, Target { node: 0, domain: 0 }));
            waiting.push_back(Posted { order: Order { descriptor, is_read, is_fenced }, number, end });
        } else {
            self.groups.insert(number, Group { context, left: parts.len(), failed: None, last, is_read });
            waiting.extend(parts.into_iter().enumerate().map(|(place, descriptor)| {
                // The others come after the first.
                let order = Order { descriptor, is_read, is_fenced: is_fenced && place == 0 };
                Posted { order, number, end: End::Part }
            }));
        }
        self.start();
        Ok(())
    }

    /// Appends ends to `into`, at most so many. Returns how many there were. No system call, unless the node is in this
    /// process, or sleeps and is to begin more.
    pub fn poll(&mut self, into: &mut Vec<Completion>, most: usize) -> usize {
        self.domain.go_on();
        self.collect();
        let count = self.ended.len().min(most);
        into.extend(self.ended.drain(..count));
        if (self.paused.is_some() || self.lacks_channel) && self.running_slots == 0 {
            // Nothing is under way whose end would make the descriptor readable: who waits for that is to look again.
            self.domain.readiness.set_after(BUSY_PAUSE);
        }
        count
    }

    /// Waits for an end. `None`: every end was taken.
    pub fn wait_any(&mut self, timeout: Duration) -> Result<Option<Completion>, WaitError> {
        let since = Instant::now();
        loop {
            self.collect();
            if let Some(completion) = self.ended.pop_front() {
                return Ok(Some(completion));
            }
            if self.is_empty() {
                return Ok(None);
            }
            let left = timeout.saturating_sub(since.elapsed());
            if left.is_zero() && !timeout.is_zero() {
                return Err(WaitError::TimedOut(timeout));
            }
            // What waits for room at the node, or for channels that others of this program have, is tried again.
            let may_start = self.paused.is_some() || self.lacks_channel || self.running_slots == 0;
            let limit = if may_start { left.min(BUSY_PAUSE) } else { left };
            let (domain, running) = (&self.domain, self.running_slots);
            let is_over = || slots(running).any(|slot| domain.page.status(slot) != Status::Ongoing);
            match domain.wait_until(limit, is_over) {
                // Each has failed, which its end says.
                Err(WaitError::NodeGone) | Ok(()) => {}
                Err(error) => return Err(error),
            }
            if timeout.is_zero() {
                self.collect();
                return self.ended.pop_front().map(Some).ok_or(WaitError::TimedOut(timeout));
            }
        }
    }

    /// Takes what has ended, and begins what can.
    fn collect(&mut self) {
        let before = self.running_slots;
        for slot in slots(before) {
            let status = self.domain.status(slot);
            if status == Status::Ongoing {
                continue;
            }
            let Some(posted) = self.running[slot].take() else { continue };
            self.running_slots &= !(1 << slot);
            let is_atomic = matches!(posted.order.descriptor.work, Work::Atomic(_));
            let outcome = match status {
                Status::FinishedWithError(Failure::NodeGone) => Err(WaitError::NodeGone),
                Status::FinishedWithError(failure) => Err(failure.into()),
                _ if is_atomic => Ok(self.domain.page.result(slot)),
                _ => Ok(0),
            };
            self.domain.give_back(slot);
            if status == Status::Paused {
                self.paused = Some(Instant::now());
                self.wait_again(posted);
                continue;
            }
            self.end(posted, outcome);
        }
        if self.domain.notices_node_gone() {
            self.give_up();
        } else if before != self.running_slots || self.paused.is_some() || self.lacks_channel || before == 0 {
            self.start();
        }
    }

    /// Records the end of an order.
    fn end(&mut self, posted: Posted, outcome: Result<u64, WaitError>) {
        let context = match posted.end {
            End::Order(context) | End::Nothing(context) => context,
            End::Part => {
                let Some(group) = self.groups.get_mut(&posted.number) else { return };
                group.left -= 1;
                // The first error is reported.
                group.failed = group.failed.or(outcome.err());
                if group.left > 0 {
                    return;
                }
                let is_read = group.is_read;
                if let Some(descriptor) = group.last.take_if(|_| group.failed.is_none()) {
                    group.left = 1;
                    let order = Order { descriptor, is_read, is_fenced: false };
                    self.wait_again(Posted { order, ..posted });
                    return;
                }
                let context = group.context;
                let outcome = group.failed.map_or(Ok(0), Err);
                self.groups.remove(&posted.number);
                self.open -= 1;
                self.ended.push_back(Completion { context, outcome });
                return;
            }
        };
        self.open -= 1;
        self.ended.push_back(Completion { context, outcome });
    }

    /// Whether it ends without having begun: it is a part of a list of which another part has failed, or moves nothing.
    fn is_vain(&self, posted: Posted) -> bool {
        match posted.end {
            End::Order(_) => false,
            End::Part => self.groups.get(&posted.number).is_some_and(|group| group.failed.is_some()),
            End::Nothing(_) => true,
        }
    }

    /// It has not begun: it goes before those that were posted after it.
    fn wait_again(&mut self, posted: Posted) {
        let waiting = &mut self.waiting[usize::from(posted.order.is_read)];
        waiting.insert(waiting.partition_point(|other| other.number < posted.number), posted);
        if posted.order.is_fenced {
            self.fences.push_front(posted.number);
        }
    }

    /// The node is gone: all waiting orders fail.
    fn give_up(&mut self) {
        let mut left: Vec<Posted> = self.waiting.iter_mut().flat_map(|waiting| waiting.drain(..)).collect();
        left.sort_unstable_by_key(|posted| posted.number);
        self.fences.clear();
        left.into_iter().for_each(|posted| self.end(posted, Err(WaitError::NodeGone)));
    }

    /// Begins what can begin: all at once.
    fn start(&mut self) {
        if !self.domain.process.is_now() {
            return;
        }
        if self.paused.is_some_and(|since| since.elapsed() < BUSY_PAUSE) {
            return;
        }
        (self.paused, self.lacks_channel) = (None, false);
        let mut rung = 0;
        for (index, range) in [(0, WRITE_SLOTS), (1, READ_SLOTS)] {
            while let Some(&posted) = self.waiting[index].front()
                && self.may_begin(posted.number)
            {
                if self.is_vain(posted) {
                    self.waiting[index].pop_front();
                    if posted.order.is_fenced {
                        self.fences.pop_front();
                    }
                    self.end(posted, Ok(0));
                    continue;
                }
                let Some(slot) = self.domain.take(mask(range.clone())) else {
                    self.lacks_channel = true;
                    break;
                };
                self.waiting[index].pop_front();
                if posted.order.is_fenced {
                    self.fences.pop_front();
                }
                self.domain.page.write(slot, &posted.order.descriptor);
                self.running[slot] = Some(posted);
                self.running_slots |= 1 << slot;
                rung |= 1 << slot;
            }
        }
        if rung != 0 {
            self.domain.ring(rung);
        }
    }

    fn may_begin(&self, number: u64) -> bool {
        let first = |waiting: &VecDeque<Posted>| waiting.front().map_or(u64::MAX, |posted| posted.number);
        match self.fences.front() {
            Some(&fence) if number == fence => {
                self.running_slots == 0 && self.waiting.iter().all(|waiting| first(waiting) >= fence)
            }
            Some(&fence) => number < fence,
            None => true,
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        slots(self.running_slots).for_each(|slot| self.domain.give_back(slot));
    }
}

/// The channels of these bits.
fn slots(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (slot < 64).then_some(slot as usize)
    })
}
