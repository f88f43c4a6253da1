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
use std::sync::Arc;

use parking_lot::Mutex;
use tombolo_host::pool::{BlockingTask, Pool, Step};
use tombolo_host::shared::{SharedMemory, Unmapping};

use crate::memory::blocking::Owner;

/// How much is unmapped in one step: 0.3 ms. Nobody else maps or unmaps meanwhile, also while the thread that does it
/// has no processor.
const STEP_BYTES: usize = 16 << 20;

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

    /// Frees a part of what is being freed.
    pub(crate) fn free_some(&self) -> Step {
        let Some(mut turn) = Turn::begin(self) else {
            // Who has the rest in hands may put it back.
            return if self.retired.lock().in_hands > 0 { Step::Waits } else { Step::Over };
        };
        match turn.0.as_mut().map_or(Step::Over, Retired::step) {
            Step::Over => {
                turn.0 = None;
                Step::More
            }
            step => step,
        }
    }

    /// For who waits for room: frees some, and is to look again, at once where there was something to do.
    pub(crate) fn help_to_free(&self) -> Step {
        match self.free_some() {
            Step::More => Step::More,
            Step::Waits | Step::Over => Step::Waits,
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

/// Frees what one owner has had.
#[derive(Clone, Debug)]
pub(crate) struct Reclaimer {
    pool: Pool<Owner>,
    owner: Owner,
}

impl Reclaimer {
    pub(crate) fn new(pool: Pool<Owner>, owner: Owner) -> Self {
        Self { pool, owner }
    }

    /// Nobody finds this memory any more; who has found it copies or sends a block and lets it go. There
    /// are never more of these than segments were given out.
    fn retire(&self, memory: Arc<SharedMemory>, mut room: Room) {
        room.begin_freeing();
        let account = room.account.clone();
        account.retired.lock().waiting.push_back(Retired { memory: Retiring::Held(memory), _room: room });
        self.pool.give_back(self.owner, Box::new(Freeing(account)));
    }
}

/// What is being freed of an account. There is a task for each, here or under way, and more where others have helped.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Retired>,
    /// Number of those that a thread has in hands.
    in_hands: usize,
}

/// One of them, in a thread's hands. It is put back when this is dropped, also where the thread panics, unless it is free.
struct Turn<'a>(Option<Retired>, &'a Account);

impl<'a> Turn<'a> {
    fn begin(account: &'a Account) -> Option<Self> {
        let mut queue = account.retired.lock();
        let retired = queue.waiting.pop_front()?;
        queue.in_hands += 1;
        Some(Self(Some(retired), account))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.1.retired.lock();
        queue.waiting.extend(self.0.take());
        queue.in_hands -= 1;
    }
}

/// Frees until nothing is left to be freed.
struct Freeing(Arc<Account>);

impl BlockingTask for Freeing {
    fn step(&mut self) -> Step {
        self.0.free_some()
    }
}

#[derive(Debug)]
enum Retiring {
    /// Others may have it still.
    Held(Arc<SharedMemory>),
    Unmapping(Unmapping),
    Free,
}

/// Memory that is being freed, and then its room.
#[derive(Debug)]
struct Retired {
    memory: Retiring,
    _room: Room,
}

impl Retired {
    fn step(&mut self) -> Step {
        match std::mem::replace(&mut self.memory, Retiring::Free) {
            Retiring::Held(memory) => match Arc::try_unwrap(memory) {
                Ok(memory) => {
                    self.memory = Retiring::Unmapping(Unmapping::new(memory));
                    Step::More
                }
                Err(memory) => {
                    self.memory = Retiring::Held(memory);
                    Step::Waits
                }
            },
            Retiring::Unmapping(mut memory) => {
                if memory.go_on(STEP_BYTES) {
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
    reclaimer: Reclaimer,
}

impl Segment {
    /// Of memory as large as the room.
    pub(crate) fn new(memory: Arc<SharedMemory>, room: Room, reclaimer: Reclaimer) -> Self {
        Self { memory, room: Some(room), reclaimer }
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
            self.reclaimer.retire(self.memory.clone(), room);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

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
        let reclaimer = Reclaimer::new(Pools::new().freeing, Owner::Peer(PeerId(1)));
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
        let (pool, owner) = (Pools::new().freeing, Owner::Peer(PeerId(1)));
        let hanging = testing::hang(&pool, owner);
        let reclaimer = Reclaimer::new(pool, owner);
        let segments: Vec<Segment> = (0..4)
            .map(|_| {
                let memory = Arc::new(SharedMemory::create("test", BYTES as usize).unwrap());
                Segment::new(memory, account.take(BYTES).unwrap(), reclaimer.clone())
            })
            .collect();
        let held = segments[0].memory().clone();
        drop(segments);
        while account.being_freed_bytes() > BYTES {
            assert_ne!(account.free_some(), Step::Over);
        }
        assert_eq!(account.free_some(), Step::Waits, "one is held");
        let room = account.take(3 * BYTES).unwrap();
        drop(held);
        drop(hanging);
        // The task of each finds the rest, or nothing.
        wait_until_freed(&account);
        assert_eq!((account.free_some(), account.in_use_bytes()), (Step::Over, 3 * BYTES));
        drop(room);
    }
}
