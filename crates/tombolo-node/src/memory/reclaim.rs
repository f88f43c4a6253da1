//! Accounts of the memory that was given out, and freeing memory that is given back.
//!
//! ```text
//!   free ──take──► taken ──Reclaimer::retire──► being freed ──► free
//! ```
//!
//! Freeing gigabytes takes seconds. A thread that retires memory does not wait: a task in the pool oversees the
//! freeing. Threads that stand back, which take only the processor time that other threads leave, give the pages back
//! to the system in pieces. So no other work waits for them. Memory that is being freed cannot be given out again
//! before it is free. A thread that wants it meanwhile gives pieces back, too (decision 20).
//!
//! ```text
//!   retired ─► Retired, on a thread that does not stand back: held ─► emptying ─► unmapping ─► free
//!                                                                        │ pieces: claimed by an atomic number
//!                            Freeing, on a thread that stands back ◄─────┴─────► who waits for room
//! ```
//!
//! Threads that stand back may have no processor for long. So they share no lock with the engine's loop. They also
//! start no thread, since a thread that they start would stand back as well.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_host::pool::{BlockingTask, Step};
use tombolo_host::process;
use tombolo_host::shared::{SharedMemory, Unmapping};
use tombolo_host::timing::node as timing;

use crate::memory::blocking::{Owner, Pools};

/// Bytes unmapped in one step.
const UNMAP_BYTES: usize = 64 << 20;
/// Size of a piece, which is given back in one step of about half a millisecond. So a thread that has claimed a piece
/// and then got no processor needs little time to finish it, and a thread that wants room does not wait long for
/// that. A multiple of the size of a huge page, since a huge page that lies in two pieces is emptied part by part.
const EMPTY_BYTES: usize = 4 << 20;
/// How long after a thread that waits for room has helped to free, it is expected to help again: it does so every
/// millisecond, when it has a processor. A bound, not a measurement.
const HURRY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// Bytes that are given out.
    in_use_bytes: u64,
    /// Bytes that were given back and whose memory is not free yet.
    being_freed_bytes: u64,
}

/// Why room was not taken from an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeError {
    /// There is not enough, even when all memory that is being freed is free.
    TooMuch {
        /// Bytes that could be taken then.
        free_bytes: u64,
    },
    /// There will be enough when more memory is freed.
    BeingFreed,
}

/// How much memory may be given out, and how much is given out.
#[derive(Debug)]
pub(crate) struct Account {
    limit_bytes: u64,
    taken: Mutex<Taken>,
    /// Memory of this account whose pages are being given back.
    emptying: Mutex<Vec<Arc<Emptying>>>,
    hurry: Hurry,
}

impl Account {
    pub(crate) fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            taken: Mutex::default(),
            emptying: Mutex::default(),
            hurry: Hurry::new(),
        })
    }

    /// Gives one piece back, for a task that waits for room. The task then tries again, at once if there was a piece.
    /// Threads that stand back leave the pieces to it meanwhile.
    pub(crate) fn help_to_free(&self) -> Step {
        self.hurry.begin();
        let of_use = self.emptying.lock().iter().find(|emptying| !emptying.is_claimed()).cloned();
        match of_use.is_some_and(|emptying| emptying.give_piece_back()) {
            true => Step::More,
            false => Step::Waits,
        }
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes that are given out.
    pub(crate) fn in_use_bytes(&self) -> u64 {
        self.taken.lock().in_use_bytes
    }

    /// Bytes that were given back and are not free yet.
    pub(crate) fn being_freed_bytes(&self) -> u64 {
        self.taken.lock().being_freed_bytes
    }

    /// Takes room for `bytes`, before they are allocated.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Room, TakeError> {
        let mut taken = self.taken.lock();
        let free_bytes = self.limit_bytes.saturating_sub(taken.in_use_bytes);
        if bytes > free_bytes {
            return Err(TakeError::TooMuch { free_bytes });
        }
        if bytes > free_bytes.saturating_sub(taken.being_freed_bytes) {
            return Err(TakeError::BeingFreed);
        }
        taken.in_use_bytes += bytes;
        Ok(Room { bytes, account: self.clone(), is_being_freed: false })
    }
}

/// A taken part of an account. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    bytes: u64,
    account: Arc<Account>,
    is_being_freed: bool,
}

impl Room {
    fn begin_freeing(&mut self) {
        if !std::mem::replace(&mut self.is_being_freed, true) {
            let mut taken = self.account.taken.lock();
            taken.in_use_bytes -= self.bytes;
            taken.being_freed_bytes += self.bytes;
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut taken = self.account.taken.lock();
        match self.is_being_freed {
            true => taken.being_freed_bytes -= self.bytes,
            false => taken.in_use_bytes -= self.bytes,
        }
    }
}

/// The processes outside this node that may have memory mapped.
#[derive(Clone, Debug)]
pub enum Holder {
    /// No process: the descriptor was not given away.
    Nobody,
    /// The process of this pidfd.
    Process(Arc<OwnedFd>),
    /// Unknown processes.
    Anybody,
}

impl Holder {
    fn may_live(&self) -> bool {
        match self {
            Self::Nobody => false,
            Self::Process(process) => !process::has_ended(process),
            Self::Anybody => true,
        }
    }
}

/// Whether a task that waits for room currently frees pieces itself.
#[derive(Debug)]
struct Hurry {
    start: Instant,
    /// End of the hurry, in milliseconds after `start`.
    until_ms: AtomicU64,
}

impl Hurry {
    fn new() -> Self {
        Self { start: Instant::now(), until_ms: AtomicU64::new(0) }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn begin(&self) {
        self.until_ms.store(self.now_ms() + HURRY.as_millis() as u64, Ordering::Relaxed);
    }

    fn is_on(&self) -> bool {
        self.now_ms() < self.until_ms.load(Ordering::Relaxed)
    }
}

/// Frees memory that one owner had.
#[derive(Clone, Debug)]
pub(crate) struct Reclaimer {
    pools: Pools,
    owner: Owner,
}

impl Reclaimer {
    pub(crate) fn new(pools: Pools, owner: Owner) -> Self {
        Self { pools, owner }
    }

    /// Begins to free memory that can no longer be found. A thread that found it before copies or sends a block and
    /// then drops it. There are never more such tasks than segments were given out.
    fn retire(&self, memory: Arc<SharedMemory>, mut room: Room, holder: Holder) {
        room.begin_freeing();
        let retired = Retired {
            memory: Retiring::Held(memory),
            holder,
            since: Instant::now(),
            left_bytes: 0,
            reclaimer: self.clone(),
            room,
        };
        self.pools.blocking.give_back(self.owner, Box::new(retired));
    }

    /// Hands the emptying to threads that stand back. False: there are none.
    fn stand_back(&self, emptying: &Arc<Emptying>, account: &Arc<Account>) -> bool {
        let freeing = Freeing { emptying: Arc::downgrade(emptying), account: account.clone() };
        self.pools.freeing.give_back(self.owner, Box::new(freeing))
    }
}

/// Memory whose pages are given back piece by piece from the end, by any number of threads.
#[derive(Debug)]
struct Emptying {
    memory: SharedMemory,
    /// Number of bytes at the beginning that no thread has claimed yet.
    left_bytes: AtomicUsize,
}

impl Emptying {
    fn is_claimed(&self) -> bool {
        self.left_bytes.load(Ordering::Relaxed) == 0
    }

    /// Claims a piece and gives it back. False: all pieces are claimed.
    fn give_piece_back(&self) -> bool {
        let begin_of_last = |end: usize| end.saturating_sub(1) / EMPTY_BYTES * EMPTY_BYTES;
        let claim = |end: usize| (end > 0).then(|| begin_of_last(end));
        let Ok(end) = self.left_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim) else {
            return false;
        };
        let begin = begin_of_last(end);
        if self.memory.give_pages_back(begin, end - begin).is_err() {
            // The pages are freed with the last mapping and descriptor instead.
            self.left_bytes.store(0, Ordering::Relaxed);
        }
        true
    }
}

/// The task that gives pieces back until none is left, on a thread that stands back.
struct Freeing {
    /// Weak, so that the overseeing task waits only for threads that have claimed a piece.
    emptying: Weak<Emptying>,
    account: Arc<Account>,
}

impl BlockingTask for Freeing {
    fn step(&mut self) -> Step {
        let Some(emptying) = self.emptying.upgrade() else { return Step::Over };
        match self.account.hurry.is_on() {
            _ if emptying.is_claimed() => Step::Over,
            true => Step::Rests,
            false if emptying.give_piece_back() => Step::More,
            false => Step::Over,
        }
    }
}

#[derive(Debug)]
enum Retiring {
    /// The holder or a copying thread may still have it.
    Held(Arc<SharedMemory>),
    /// Threads that stand back give its pages back.
    LeftToOthers(Arc<Emptying>),
    /// This task gives its pages back, since no such thread has done so.
    Emptying(Arc<Emptying>),
    Unmapping(Unmapping),
    Free,
}

/// The task that frees memory and then its room, on a thread that does not stand back.
#[derive(Debug)]
struct Retired {
    memory: Retiring,
    holder: Holder,
    /// When the memory was retired, or when `left_bytes` last became less.
    since: Instant,
    left_bytes: usize,
    reclaimer: Reclaimer,
    room: Room,
}

impl Retired {
    /// Waits while the holder may be alive or a thread copies from the memory.
    fn hold(&mut self, memory: Arc<SharedMemory>) -> Step {
        let may_live = self.holder.may_live();
        if may_live && self.since.elapsed() > timing::HOLDER_END {
            // The process has not ended with its link: it may keep the memory mapped.
            self.holder = Holder::Anybody;
        }
        let is_anybodys = matches!(self.holder, Holder::Anybody);
        let waits = may_live && !is_anybodys;
        match if waits { Err(memory) } else { Arc::try_unwrap(memory) } {
            Ok(memory) if is_anybodys => self.memory = Retiring::Unmapping(Unmapping::new(memory)),
            Ok(memory) => self.memory = self.empty(memory),
            Err(memory) => {
                self.memory = Retiring::Held(memory);
                return Step::Waits;
            }
        }
        Step::More
    }

    /// Whether threads that stand back have given nothing back for long.
    fn is_left_lying(&mut self, emptying: &Emptying) -> bool {
        let left_bytes = emptying.left_bytes.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.left_bytes, left_bytes) != left_bytes {
            self.since = Instant::now();
        }
        self.since.elapsed() > timing::STAND_BACK
    }

    fn empty(&mut self, memory: SharedMemory) -> Retiring {
        (self.since, self.left_bytes) = (Instant::now(), memory.len());
        let left_bytes = AtomicUsize::new(memory.len());
        let emptying = Arc::new(Emptying { memory, left_bytes });
        self.room.account.emptying.lock().push(emptying.clone());
        match self.reclaimer.stand_back(&emptying, &self.room.account) {
            true => Retiring::LeftToOthers(emptying),
            false => Retiring::Emptying(emptying),
        }
    }

    /// All pieces are claimed: begins to unmap the memory as soon as no thread has a piece.
    fn emptied(&mut self, emptying: Arc<Emptying>) -> Step {
        self.room.account.emptying.lock().retain(|other| !Arc::ptr_eq(other, &emptying));
        match Arc::try_unwrap(emptying) {
            Ok(Emptying { memory, .. }) => {
                self.memory = Retiring::Unmapping(Unmapping::new(memory));
                Step::More
            }
            Err(emptying) => {
                self.memory = Retiring::LeftToOthers(emptying);
                Step::Rests
            }
        }
    }
}

impl BlockingTask for Retired {
    fn step(&mut self) -> Step {
        match std::mem::replace(&mut self.memory, Retiring::Free) {
            Retiring::Held(memory) => self.hold(memory),
            Retiring::LeftToOthers(emptying) if emptying.is_claimed() => self.emptied(emptying),
            Retiring::LeftToOthers(emptying) if self.is_left_lying(&emptying) => {
                self.memory = Retiring::Emptying(emptying);
                Step::More
            }
            Retiring::LeftToOthers(emptying) => {
                self.memory = Retiring::LeftToOthers(emptying);
                Step::Rests
            }
            Retiring::Emptying(emptying) => match emptying.give_piece_back() {
                true => {
                    self.memory = Retiring::Emptying(emptying);
                    Step::More
                }
                false => self.emptied(emptying),
            },
            Retiring::Unmapping(mut memory) => {
                if memory.go_on(UNMAP_BYTES) {
                    // Dropping the descriptor frees the rest, unless another process has one.
                    return Step::Over;
                }
                self.memory = Retiring::Unmapping(memory);
                Step::More
            }
            Retiring::Free => Step::Over,
        }
    }
}

/// Memory, and the room that it takes. When this is dropped, both are freed in the pool.
#[derive(Debug)]
pub struct Segment {
    memory: Arc<SharedMemory>,
    /// `None` after the room was given back.
    room: Option<Room>,
    holder: Holder,
    reclaimer: Reclaimer,
}

impl Segment {
    /// A segment of memory that is as large as its room.
    pub(crate) fn new(memory: Arc<SharedMemory>, room: Room, reclaimer: Reclaimer) -> Self {
        Self { memory, room: Some(room), holder: Holder::Anybody, reclaimer }
    }

    /// Records that no process outside this node but `holder` can have the memory mapped.
    pub(crate) fn set_holder(&mut self, holder: Holder) {
        self.holder = holder;
    }

    /// The segment's memory.
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Whether a thread that found the memory still uses it.
    pub fn is_in_use(&mut self) -> bool {
        Arc::get_mut(&mut self.memory).is_none()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            self.reclaimer.retire(self.memory.clone(), room, self.holder.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::mpsc::{Sender, channel};

    use tombolo_core::rdma::PeerId;

    use super::*;
    use crate::memory::blocking::{Pools, testing};

    const TIMEOUT: Duration = Duration::from_secs(60);
    const BYTES: u64 = 1 << 20;

    fn wait_until_freed(account: &Account) {
        let since = Instant::now();
        while account.being_freed_bytes() > 0 {
            assert!(since.elapsed() < TIMEOUT, "memory is not freed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn room_is_free_again_when_the_memory_is_and_not_before() {
        let account = Account::new(BYTES);
        let reclaimer = Reclaimer::new(Pools::new(), Owner::Peer(PeerId(1)));
        let memory = Arc::new(SharedMemory::create("test", BYTES as usize).unwrap());
        let weak = Arc::downgrade(&memory);
        let segment = Segment::new(memory.clone(), account.take(BYTES).unwrap(), reclaimer);
        assert_eq!(account.take(4096).err(), Some(TakeError::TooMuch { free_bytes: 0 }));
        drop(segment);
        // The test still holds the memory, as a copy would.
        assert_eq!((account.in_use_bytes(), account.being_freed_bytes()), (0, BYTES));
        assert_eq!(account.take(4096).err(), Some(TakeError::BeingFreed));
        assert_eq!(account.take(2 * BYTES).err(), Some(TakeError::TooMuch { free_bytes: BYTES }));
        drop(memory);
        wait_until_freed(&account);
        assert!(weak.upgrade().is_none());
        assert!(account.take(BYTES).is_ok());
    }

    #[test]
    fn threads_that_stand_back_start_none_of_the_others() {
        struct Tells(Sender<bool>);
        impl BlockingTask for Tells {
            fn step(&mut self) -> Step {
                let _ = self.0.send(process::stands_back());
                Step::Over
            }
        }
        let account = Account::new(BYTES);
        let (pools, owner) = (Pools::new(), Owner::Peer(PeerId(1)));
        let memory = Arc::new(SharedMemory::create("test", BYTES as usize).unwrap());
        let room = account.take(BYTES).unwrap();
        let mut segment = Segment::new(memory, room, Reclaimer::new(pools.clone(), owner));
        segment.set_holder(Holder::Nobody);
        drop(segment);
        wait_until_freed(&account);
        let (sender, said) = channel();
        pools.blocking.offer(owner, Box::new(Tells(sender))).unwrap();
        assert!(!said.recv_timeout(TIMEOUT).unwrap());
    }

    #[test]
    fn who_wants_room_frees_what_threads_that_stand_back_have_not_come_to() {
        let account = Account::new(4 * BYTES);
        let (pools, owner) = (Pools::new(), Owner::Peer(PeerId(1)));
        let hanging = testing::hang(&pools.freeing, owner);
        let reclaimer = Reclaimer::new(pools, owner);
        let segments: Vec<Segment> = (0..4)
            .map(|_| {
                let memory = Arc::new(SharedMemory::create("test", BYTES as usize).unwrap());
                let mut segment = Segment::new(memory, account.take(BYTES).unwrap(), reclaimer.clone());
                segment.set_holder(Holder::Nobody);
                segment
            })
            .collect();
        let held = segments[0].memory().clone();
        drop(segments);
        while account.being_freed_bytes() > BYTES {
            let _ = account.help_to_free();
        }
        assert_eq!(account.help_to_free(), Step::Waits, "one is held");
        let room = account.take(3 * BYTES).unwrap();
        drop((held, hanging));
        // Each segment's task frees the rest, if anything is left.
        wait_until_freed(&account);
        assert_eq!(account.in_use_bytes(), 3 * BYTES);
        drop(room);
    }

    #[test]
    fn memory_of_a_holder_that_lives_is_not_emptied_before_it_is_let_go_of() {
        use std::process::Command;

        let account = Account::new(2 * BYTES);
        let reclaimer = Reclaimer::new(Pools::new(), Owner::Peer(PeerId(1)));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = Arc::new(process::pidfd(child.id()).unwrap());
        let left_of = |is_dead: bool, child: &mut std::process::Child| {
            let memory = Arc::new(SharedMemory::create("test", BYTES as usize).unwrap());
            memory.span_mut(0, 5).unwrap().copy_from(b"bytes"[..].into());
            let descriptor = memory.as_ref().as_fd().try_clone_to_owned().unwrap();
            let theirs = SharedMemory::open(descriptor, BYTES as usize).unwrap();
            let mut segment = Segment::new(memory, account.take(BYTES).unwrap(), reclaimer.clone());
            segment.set_holder(Holder::Process(pidfd.clone()));
            if is_dead {
                child.kill().unwrap();
            }
            drop(segment);
            wait_until_freed(&account);
            theirs.span(0, 5).unwrap().to_vec()
        };
        let left = [left_of(false, &mut child), left_of(true, &mut child)];
        child.wait().unwrap();
        assert_eq!(left, [b"bytes".to_vec(), vec![0; 5]]);
    }
}
