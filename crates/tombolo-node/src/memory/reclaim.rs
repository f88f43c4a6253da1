//! Memory that was given out and is given back: how much there is, and freeing it.
//!
//! ```text
//!   free ──take──► taken ──Reclaimer::retire──► being freed ──► free
//! ```
//!
//! To free gigabytes takes seconds. It is done in pieces, under no lock, and in a pool whose threads stand back, so that
//! nobody else's work waits for it; what is being freed cannot be given out again before it is free. Who wants it
//! meanwhile helps to free, on a thread that does not stand back (decision 20).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_host::pool::{BlockingTask, Step};
use tombolo_host::process;
use tombolo_host::shared::{SharedMemory, Unmapping};
use tombolo_host::timing::node as timing;

use crate::memory::blocking::{Owner, Pools};

/// How much is unmapped in one step.
const UNMAP_BYTES: usize = 64 << 20;
/// How much is given back in one step: half a millisecond, so that who wants room has not long to wait for a thread that
/// has it in hands and no processor.
const EMPTY_BYTES: usize = 4 << 20;
/// For how long after a try to free some, who waits for room is taken to try again: it does every millisecond, when it
/// has a processor. A bound, not a measurement.
const HURRY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// By somebody who has it.
    in_use_bytes: u64,
    /// By nobody any more, but its memory is not free yet.
    being_freed_bytes: u64,
}

/// Why nothing was taken of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeError {
    /// There is not so much, even when all is freed that is being freed.
    TooMuch {
        /// What could be taken then.
        free_bytes: u64,
    },
    /// There will be enough when more is freed.
    BeingFreed,
}

/// How much memory may be given out, and how much is.
#[derive(Debug)]
pub(crate) struct Account {
    limit_bytes: u64,
    taken: Mutex<Taken>,
    retired: Mutex<Queue>,
}

impl Account {
    pub(crate) fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self { limit_bytes, taken: Mutex::default(), retired: Mutex::default() })
    }

    /// For who waits for room: frees some, and is to look again, at once where there was something to do. Those that
    /// stand back leave the rest to it.
    pub(crate) fn help_to_free(&self) -> Step {
        self.retired.lock().hurried_until = Some(Instant::now() + HURRY);
        match Turn::begin(self) {
            Some(turn) => turn.go_on(),
            None => Step::Waits,
        }
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// What somebody has.
    pub(crate) fn in_use_bytes(&self) -> u64 {
        self.taken.lock().in_use_bytes
    }

    /// What nobody has any more, and is not free yet.
    pub(crate) fn being_freed_bytes(&self) -> u64 {
        self.taken.lock().being_freed_bytes
    }

    /// Takes so much, before it is allocated.
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

/// A part of an account, taken. It is free again when this is dropped.
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

/// Who outside this node may have memory mapped.
#[derive(Clone, Debug)]
pub enum Holder {
    /// Its descriptor was given to nobody.
    Nobody,
    /// This process, of which this is a pidfd.
    Process(Arc<OwnedFd>),
    /// Who it is, is not known.
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

/// Frees what one owner has had.
#[derive(Clone, Debug)]
pub(crate) struct Reclaimer {
    pools: Pools,
    owner: Owner,
}

impl Reclaimer {
    pub(crate) fn new(pools: Pools, owner: Owner) -> Self {
        Self { pools, owner }
    }

    /// Nobody finds this memory any more; who has found it copies or sends a block and lets it go. There
    /// are never more of these than segments were given out.
    fn retire(&self, memory: Arc<SharedMemory>, mut room: Room, holder: Holder) {
        room.begin_freeing();
        let account = room.account.clone();
        let (reclaimer, since) = (self.clone(), Instant::now());
        let retired = Retired { memory: Retiring::Held(memory), holder, since, reclaimer, _room: room };
        if matches!(retired.holder, Holder::Anybody) {
            return retired.hurry();
        }
        account.retired.lock().waiting.push_back(retired);
        if !self.pools.freeing.give_back(self.owner, Box::new(Freeing(account.clone()))) {
            self.pools.blocking.give_back(self.owner, Box::new(Freeing(account)));
        }
    }
}

/// What threads that stand back are to free of an account. There is a task for each, or more.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Retired>,
    /// Number of those that a thread has in hands.
    in_hands: usize,
    /// Until then, who waits for room frees.
    hurried_until: Option<Instant>,
}

/// One of them, in a thread's hands. It is put back when this is dropped, also where the thread panics, unless it is free.
struct Turn<'a> {
    retired: Option<Retired>,
    account: &'a Account,
}

impl<'a> Turn<'a> {
    fn begin(account: &'a Account) -> Option<Self> {
        let mut queue = account.retired.lock();
        let retired = Some(queue.waiting.pop_front()?);
        queue.in_hands += 1;
        Some(Self { retired, account })
    }

    /// Frees a piece.
    fn go_on(mut self) -> Step {
        match self.retired.as_mut().map_or(Step::Over, Retired::step) {
            Step::Over => {
                self.retired = None;
                Step::More
            }
            step => step,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.account.retired.lock();
        queue.waiting.extend(self.retired.take());
        queue.in_hands -= 1;
    }
}

/// Frees until nothing is left, on a thread that stands back.
struct Freeing(Arc<Account>);

impl BlockingTask for Freeing {
    fn step(&mut self) -> Step {
        {
            let queue = self.0.retired.lock();
            if queue.waiting.is_empty() {
                // Who has the rest in hands may put it back.
                return if queue.in_hands > 0 { Step::Waits } else { Step::Over };
            }
            if queue.hurried_until.is_some_and(|until| Instant::now() < until) {
                return Step::Waits;
            }
        }
        let Some(mut turn) = Turn::begin(&self.0) else { return Step::Waits };
        match turn.retired.take_if(|retired| retired.is_for_others()) {
            Some(retired) => {
                retired.hurry();
                Step::More
            }
            None => turn.go_on(),
        }
    }
}

#[derive(Debug)]
enum Retiring {
    /// Others may have it still.
    Held(Arc<SharedMemory>),
    /// Pages are given back, from the end. How many bytes are left.
    Emptying(SharedMemory, usize),
    Unmapping(Unmapping),
    Free,
}

/// Memory that is being freed, and then its room.
#[derive(Debug)]
struct Retired {
    memory: Retiring,
    holder: Holder,
    since: Instant,
    reclaimer: Reclaimer,
    _room: Room,
}

impl Retired {
    /// Whether it is for threads that do not stand back: others have not come to it, or must not. What is unmapped with
    /// all its pages is long in their hands, and a thread that has lost its processor while it unmaps keeps others from
    /// mapping.
    fn is_for_others(&mut self) -> bool {
        self.look_at_holder();
        matches!(self.memory, Retiring::Unmapping(_))
            || matches!(self.holder, Holder::Anybody)
            || self.since.elapsed() > timing::STAND_BACK
    }

    /// A process that has not ended shortly after its link does not do so because of that.
    fn look_at_holder(&mut self) {
        if matches!(self.memory, Retiring::Held(_))
            && self.since.elapsed() > timing::HOLDER_END
            && self.holder.may_live()
        {
            self.holder = Holder::Anybody;
        }
    }

    /// Leaves it to threads that do not stand back.
    fn hurry(self) {
        let Reclaimer { pools, owner } = self.reclaimer.clone();
        pools.blocking.give_back(owner, Box::new(self));
    }

    fn begin(&self, memory: SharedMemory) -> Retiring {
        match self.holder {
            Holder::Anybody => Retiring::Unmapping(Unmapping::new(memory)),
            Holder::Nobody | Holder::Process(_) => {
                let bytes = memory.len();
                Retiring::Emptying(memory, bytes)
            }
        }
    }
}

impl BlockingTask for Retired {
    fn step(&mut self) -> Step {
        self.look_at_holder();
        match std::mem::replace(&mut self.memory, Retiring::Free) {
            Retiring::Held(memory) => {
                // Its holder is just ending, perhaps.
                let waits = !matches!(self.holder, Holder::Anybody) && self.holder.may_live();
                match if waits { Err(memory) } else { Arc::try_unwrap(memory) } {
                    Ok(memory) => {
                        self.memory = self.begin(memory);
                        Step::More
                    }
                    Err(memory) => {
                        self.memory = Retiring::Held(memory);
                        Step::Waits
                    }
                }
            }
            Retiring::Emptying(mut memory, before) => {
                let left = before.saturating_sub(EMPTY_BYTES);
                // Where the system refuses, they are free with the last mapping and descriptor.
                self.memory = match memory.give_pages_back(left, before - left) {
                    Ok(()) if left > 0 => Retiring::Emptying(memory, left),
                    _ => Retiring::Unmapping(Unmapping::new(memory)),
                };
                Step::More
            }
            Retiring::Unmapping(mut memory) => {
                if memory.go_on(UNMAP_BYTES) {
                    // With its descriptor the last of it goes, where nobody else has one.
                    return Step::Over;
                }
                self.memory = Retiring::Unmapping(memory);
                Step::More
            }
            Retiring::Free => Step::Over,
        }
    }
}

/// Memory, and the room that it takes. When it is dropped, both are given back in the pool that frees.
#[derive(Debug)]
pub struct Segment {
    memory: Arc<SharedMemory>,
    /// None when it has been given back.
    room: Option<Room>,
    holder: Holder,
    reclaimer: Reclaimer,
}

impl Segment {
    /// Of memory as large as the room.
    pub(crate) fn new(memory: Arc<SharedMemory>, room: Room, reclaimer: Reclaimer) -> Self {
        Self { memory, room: Some(room), holder: Holder::Anybody, reclaimer }
    }

    /// Nobody but this holder has it mapped outside this node.
    pub(crate) fn set_holder(&mut self, holder: Holder) {
        self.holder = holder;
    }

    /// Its memory.
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Whether somebody who has found it reaches it still.
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
        // Somebody copies from it still.
        assert_eq!((account.in_use_bytes(), account.being_freed_bytes()), (0, BYTES));
        assert_eq!(account.take(4096).err(), Some(TakeError::BeingFreed));
        assert_eq!(account.take(2 * BYTES).err(), Some(TakeError::TooMuch { free_bytes: BYTES }));
        drop(memory);
        wait_until_freed(&account);
        assert!(weak.upgrade().is_none());
        assert!(account.take(BYTES).is_ok());
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
        // The task of each finds the rest, or nothing.
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
