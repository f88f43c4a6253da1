//! Memory for peers: drafts of named segments, and lent segments. It is allocated in the pool.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tombolo_host::pool::{BlockingTask, Step};
use tombolo_host::timing::node as timing;

use crate::fabric::connection::Connection;
use crate::fabric::messages::Reply;
use crate::lending::asker::Asker;
use crate::lending::ledger::{Ledger, LendError};
use crate::lending::{Lending, refused};
use crate::memory::allocation::Allocation;
use crate::memory::blocking::Owner;
use crate::memory::reclaim::{Reclaimer, Room, Segment};

/// State of the allocation of memory for a peer.
enum Stage {
    /// There will be room when memory that was given back is free. Waiting since then.
    AwaitsRoom(Instant),
    Allocates(Allocation, Room),
    /// The memory was allocated, or the allocation failed.
    Over,
}

/// The task that allocates a draft or a lent segment.
struct Creation {
    asker: Asker,
    ledger: Arc<Mutex<Ledger>>,
    reclaimer: Reclaimer,
    bytes: u64,
    stage: Stage,
    /// The length of a draft, which need not be whole pages. `None`: a lent segment.
    draft_bytes: Option<u64>,
}

impl Creation {
    /// Takes room for the memory, or waits for room.
    fn reserve(&mut self, since: Instant) -> Result<Step, LendError> {
        let (room, account) = {
            let mut ledger = self.ledger.lock();
            (ledger.reserve(self.bytes), ledger.account())
        };
        match room {
            Err(LendError::BeingFreed) if since.elapsed() < timing::LEND_FREEING_TIMEOUT => {
                self.stage = Stage::AwaitsRoom(since);
                Ok(account.help_to_free())
            }
            room => {
                let room = room?;
                self.stage = Stage::Allocates(Allocation::new(self.bytes)?, room);
                Ok(Step::More)
            }
        }
    }

    /// Does the next step of the allocation.
    ///
    /// On an error, the allocation is dropped before its room, so that the room is free only when the memory is.
    fn allocate(&mut self, room: Room, mut allocation: Allocation) -> Result<Step, LendError> {
        if !allocation.go_on()? {
            self.stage = Stage::Allocates(allocation, room);
            return Ok(Step::More);
        }
        let memory = Arc::new(allocation.finish());
        let mut segment = Segment::new(memory.clone(), room, self.reclaimer.clone());
        if self.draft_bytes.is_none() {
            segment.set_holder(self.asker.holder());
        }
        let (segment, memory) = {
            let (peer, mut ledger) = (&self.asker.neighbour, self.ledger.lock());
            // A peer that is lost by now is forgotten under this lock, before or after this.
            if peer.loss().is_some() {
                return Ok(Step::Over);
            }
            match self.draft_bytes {
                Some(bytes) => (ledger.enter_draft(peer.id, segment, bytes)?, None),
                None => (ledger.enter(peer.id, segment)?, Some(memory)),
            }
        };
        Ok(self.asker.answer_with(Reply::Lent { segment }, memory))
    }
}

impl BlockingTask for Creation {
    fn step(&mut self) -> Step {
        if let Some(step) = self.asker.send() {
            return step;
        }
        if self.asker.neighbour.loss().is_some() {
            return Step::Over;
        }
        let step = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::AwaitsRoom(since) => self.reserve(since),
            Stage::Allocates(allocation, room) => self.allocate(room, allocation),
            Stage::Over => Ok(Step::Over),
        };
        step.unwrap_or_else(|error| self.asker.answer(refused(error)))
    }
}

impl Lending {
    /// Makes a draft. `None`: the answer follows.
    pub(crate) fn create(&self, by: &Arc<Connection>, number: u32, length_bytes: u64) -> Option<Reply> {
        // An empty draft takes a page, too, so that pages bound the number of names.
        let bytes = length_bytes.max(1).checked_next_multiple_of(4096).unwrap_or(u64::MAX / 4096 * 4096);
        self.begin_creation(by, number, bytes, Some(length_bytes))
    }

    /// Lends memory. `None`: the answer follows.
    pub(crate) fn lend(&self, by: &Arc<Connection>, number: u32, bytes: u64) -> Option<Reply> {
        self.begin_creation(by, number, bytes, None)
    }

    fn begin_creation(
        &self,
        by: &Arc<Connection>,
        number: u32,
        bytes: u64,
        draft_bytes: Option<u64>,
    ) -> Option<Reply> {
        let asker = match Asker::new(by, number, self.answered.clone()) {
            Ok(asker) => asker,
            Err(refusal) => return Some(refusal),
        };
        let owner = Owner::Peer(asker.neighbour.id);
        let (ledger, reclaimer) = (self.ledger.clone(), self.reclaimer(owner));
        let stage = Stage::AwaitsRoom(Instant::now());
        self.begin(owner, Box::new(Creation { asker, ledger, reclaimer, bytes, stage, draft_bytes }))
    }
}
