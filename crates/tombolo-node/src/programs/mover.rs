//! Copies to and from the own memory of one program, on a thread of their own: its pages may be
//! absent, or served by somebody who never answers. Then this thread hangs, and nobody else.
//!
//! ```text
//!  engine's loop ── Job ──► queue ──► thread: copy ── Moved ──► Outbox ──► engine's loop
//! ```
//!
//! The thread touches nothing but the program's memory and bytes that belong to the job, so that
//! whatever it does late does no harm. A copy that does not end is given up by the loop
//! ([`Mover::watch`]): its transfer fails, and so does what comes after it, until it does end.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tombolo_core::rdma::{NotificationWrite, Placement};
use tombolo_host::event::EventFd;
use tombolo_host::own::{AccessError, ProgramMemory};
use tombolo_host::timing::node as timing;
use tombolo_wire::{NackCode, Notification};

use super::own::OwnRange;

/// Copies of a domain that wait, at most; a further one is refused and comes again. A bound, not a measurement: a
/// quarter of the 1024 blocks that an engine can have under way.
const JOBS: usize = 256;
/// Copies that wait whatever they hold: blocks of at most 16 KiB, so 1 MiB.
const FREE_JOBS: usize = 64;
/// Beyond [`FREE_JOBS`], a copy is refused while those that wait hold more than this: 256 blocks of 16 KiB. Blocks
/// between programs of one node are longer. A bound, not a measurement.
const JOB_BYTES: usize = 4 << 20;

/// What a copy is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Bytes that came from a peer.
    Place(Placement),
    /// Words that a peer asked for.
    Notify(NotificationWrite),
    /// Of a block that goes out or stays here, by its number in the driver's table of moves.
    Block(u64),
}

/// A copy, with addresses of the program.
#[derive(Debug)]
pub(crate) enum Task {
    Read { address: u64, length_bytes: u32 },
    Write { address: u64, bytes: Vec<u8> },
    Words(Notification),
}

/// One copy to be made.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) range: Arc<OwnRange>,
    pub(crate) order: Order,
    pub(crate) task: Task,
}

impl Job {
    /// Memory that it takes while it waits.
    fn held_bytes(&self) -> usize {
        match &self.task {
            Task::Write { bytes, .. } => bytes.len(),
            Task::Read { .. } | Task::Words(_) => 0,
        }
    }
}

/// What the engine's loop hears.
#[derive(Debug)]
pub(crate) enum Moved {
    /// A copy was made, with the bytes if it was a read, or not.
    Copied(Order, Result<Vec<u8>, NackCode>),
    /// A range that was given up is not touched any more (true), or a copy to or from it does not end.
    Released(Release, bool),
}

/// A deregistration that waits for the end of a copy.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) domain: u16,
    /// Of the domain.
    pub(crate) life: u32,
    /// The number of the request.
    pub(crate) request: u32,
    /// Where the range begins.
    pub(crate) address: u64,
    /// The range itself: another may begin there by the time that this is answered.
    pub(crate) range: Arc<OwnRange>,
}

/// Where movers leave what they have done.
#[derive(Debug)]
pub(crate) struct Outbox {
    moved: Mutex<Vec<Moved>>,
    any: AtomicBool,
    asleep: AtomicBool,
    wake: EventFd,
}

impl Outbox {
    pub(crate) fn new(wake: &EventFd) -> std::io::Result<Self> {
        let wake = EventFd::from_descriptor(wake.as_fd().try_clone_to_owned()?);
        let (moved, any, asleep) = (Mutex::default(), AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { moved, any, asleep, wake })
    }

    fn put(&self, moved: Moved) {
        self.moved.lock().push(moved);
        // Sequentially consistent with the loop's saying that it sleeps and looking again.
        self.any.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            let _ = self.wake.signal();
        }
    }

    /// The loop's: everything since the last time.
    pub(crate) fn take(&self) -> Vec<Moved> {
        if !self.any.load(Ordering::Relaxed) || !self.any.swap(false, Ordering::SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut *self.moved.lock())
    }

    /// The loop's: it is about to sleep. True: there is something, so it must not.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        self.any.load(Ordering::SeqCst)
    }

    /// The loop's: it is awake.
    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// The copy being made.
#[derive(Debug)]
struct Current {
    range: Arc<OwnRange>,
    since: Instant,
    /// None: it was given up, and its end is nobody's business.
    order: Option<Order>,
    /// Who waits for the end of this.
    releasing: Option<Release>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(Instant, Job)>,
    current: Option<Current>,
    closed: bool,
}

#[derive(Debug)]
struct Shared {
    memory: ProgramMemory,
    state: Mutex<State>,
    work: Condvar,
    outbox: Arc<Outbox>,
}

/// The queue in front of the thread. Dropped, it is closed; a thread that hangs is left to itself.
#[derive(Debug)]
pub(crate) struct Mover(Arc<Shared>);

impl Mover {
    /// Starts the thread.
    pub(crate) fn start(memory: ProgramMemory, outbox: Arc<Outbox>) -> std::io::Result<Self> {
        let state = Mutex::default();
        let shared = Arc::new(Shared { memory, state, work: Condvar::new(), outbox });
        let mover = shared.clone();
        std::thread::Builder::new().name("mover".into()).spawn(move || mover.run())?;
        Ok(Self(shared))
    }

    /// Queues a copy. On an error nothing is heard of it any more.
    pub(crate) fn offer(&self, job: Job) -> Result<(), NackCode> {
        let mut state = self.0.state.lock();
        if state.closed || state.current.as_ref().is_some_and(|current| current.order.is_none()) {
            return Err(NackCode::DecodeError);
        }
        let held_bytes = || state.queue.iter().map(|(_, job)| job.held_bytes()).sum::<usize>();
        if state.queue.len() >= JOBS || state.queue.len() >= FREE_JOBS && held_bytes() > JOB_BYTES {
            return Err(NackCode::BufferFull);
        }
        state.queue.push_back((Instant::now(), job));
        drop(state);
        self.0.work.notify_one();
        Ok(())
    }

    /// Gives a range up, which is marked as gone already. True: it is not touched any more; false:
    /// [`Moved::Released`] will say so.
    pub(crate) fn release(&self, range: &Arc<OwnRange>, release: Release) -> Released {
        let mut state = self.0.state.lock();
        match state.current.as_mut().filter(|current| Arc::ptr_eq(&current.range, range)) {
            None => Released::Now,
            Some(Current { order: None, .. }) => Released::Never,
            Some(current) => {
                if let Some(earlier) = current.releasing.replace(release) {
                    // The program has asked again; the earlier request must not stay without an answer.
                    self.0.outbox.put(Moved::Released(earlier, false));
                }
                Released::Later
            }
        }
    }

    /// The loop's, now and then: gives up what takes too long.
    pub(crate) fn watch(&self, now: Instant) {
        let mut state = self.0.state.lock();
        let State { queue, current, .. } = &mut *state;
        if let Some(current) = current
            && now.duration_since(current.since) >= timing::COPY_TIMEOUT
        {
            self.0.give_up(current);
            for (_, job) in queue.drain(..) {
                self.0.outbox.put(Moved::Copied(job.order, Err(NackCode::DecodeError)));
            }
        }
        while let Some((since, _)) = queue.front()
            && now.duration_since(*since) >= timing::COPY_QUEUE_TIMEOUT
            && let Some((_, job)) = queue.pop_front()
        {
            self.0.outbox.put(Moved::Copied(job.order, Err(NackCode::BufferFull)));
        }
    }

    /// Ends it, without waiting.
    pub(crate) fn close(&self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        let State { queue, current, .. } = &mut *state;
        for (_, job) in queue.drain(..) {
            self.0.outbox.put(Moved::Copied(job.order, Err(NackCode::DecodeError)));
        }
        if let Some(current) = current {
            self.0.give_up(current);
        }
        drop(state);
        self.0.work.notify_one();
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.close();
    }
}

/// When a range is not touched any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    Now,
    /// After the copy that is being made.
    Later,
    /// That copy has been given up.
    Never,
}

impl Shared {
    fn give_up(&self, current: &mut Current) {
        if let Some(order) = current.order.take() {
            self.outbox.put(Moved::Copied(order, Err(NackCode::DecodeError)));
        }
        if let Some(release) = current.releasing.take() {
            self.outbox.put(Moved::Released(release, false));
        }
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            let result = self.carry_out(job.task).map_err(|_| NackCode::DecodeError);
            let mut state = self.state.lock();
            let Some(current) = state.current.take() else { continue };
            if let Some(order) = current.order {
                self.outbox.put(Moved::Copied(order, result));
            }
            if let Some(release) = current.releasing {
                self.outbox.put(Moved::Released(release, true));
            }
        }
    }

    /// The next job of a range that is still there.
    fn next(&self) -> Option<Job> {
        let (mut state, mut idle) = (self.state.lock(), None);
        loop {
            if state.closed {
                return None;
            }
            let Some((_, job)) = state.queue.pop_front() else {
                if idle.get_or_insert_with(Instant::now).elapsed() < timing::MOVER_POLL {
                    // Whoever brings the next may need this processor.
                    MutexGuard::unlocked(&mut state, std::thread::yield_now);
                } else {
                    self.work.wait(&mut state);
                    idle = None;
                }
                continue;
            };
            if job.range.is_gone() {
                self.outbox.put(Moved::Copied(job.order, Err(NackCode::DecodeError)));
                continue;
            }
            state.current = Some(Current {
                range: job.range.clone(),
                since: Instant::now(),
                order: Some(job.order),
                releasing: None,
            });
            return Some(job);
        }
    }

    fn carry_out(&self, task: Task) -> Result<Vec<u8>, AccessError> {
        // Given up, or the range is: an absent page that comes late is not written to.
        let wanted = || {
            let state = self.state.lock();
            state.current.as_ref().is_some_and(|current| current.order.is_some() && !current.range.is_gone())
        };
        match task {
            Task::Read { address, length_bytes } => {
                let mut bytes = vec![0; length_bytes as usize];
                self.memory.read(address, &mut bytes, wanted)?;
                Ok(bytes)
            }
            Task::Write { address, bytes } => {
                self.memory.write(address, &bytes, wanted)?;
                Ok(Vec::new())
            }
            Task::Words(words) => {
                self.memory.write(words.address, &words.first.to_le_bytes(), wanted)?;
                self.memory.write(words.address.wrapping_add(8), &words.last.to_le_bytes(), wanted)?;
                Ok(Vec::new())
            }
        }
    }
}
