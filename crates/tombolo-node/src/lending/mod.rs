//! Lending: memory of this node that other nodes have, and segments that have names.
//!
//! It owns the ledger, which records the memory that is lent, to which peer and under which names. Allocating and
//! checking are tasks in the pool, which answer when they are done. It calls the rooms `fabric` and `memory`.

pub(crate) mod asker;
pub(crate) mod creation;
pub(crate) mod ledger;
pub(crate) mod named;
mod names;
pub(crate) mod publication;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use parking_lot::Mutex;
use tombolo_core::rdma::PeerId;
use tombolo_host::pool::BlockingTask;

use crate::fabric::answered::Answered;
use crate::fabric::connection::Connection;
use crate::fabric::label;
use crate::fabric::messages::Reply;
use crate::fabric::status::Borrower;
use crate::lending::asker::Asker;
use crate::memory::blocking::{Owner, Pools};
use crate::memory::reclaim::Reclaimer;
use ledger::{Ledger, LendError};

/// The memory that this node lends, and the tasks for peers that ask for it.
#[derive(Debug)]
pub(crate) struct Lending {
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) pools: Pools,
    answered: Answered,
}

impl Lending {
    /// Nothing is lent yet, of `lend_bytes`. `answered` keeps answers that peers may ask for again.
    pub(crate) fn new(lend_bytes: u64, pools: Pools, answered: Answered) -> Self {
        Self { ledger: Arc::new(Mutex::new(Ledger::new(lend_bytes))), pools, answered }
    }

    /// Makes the reclaimer that frees an owner's memory.
    pub(crate) fn reclaimer(&self, owner: Owner) -> Reclaimer {
        Reclaimer::new(self.pools.clone(), owner)
    }

    /// Whether a peer has lent segments or drafts of this node.
    pub(crate) fn has_some(&self, peer: PeerId) -> bool {
        self.ledger.lock().segments_of(peer).next().is_some()
    }

    /// The status of a peer that has borrowed memory, without its links. `None`: the peer has borrowed nothing.
    pub(crate) fn borrower(&self, connection: &Connection) -> Option<Borrower> {
        let (mut bytes, mut segments) = (0, 0);
        for (_, memory) in self.ledger.lock().segments_of(connection.id) {
            bytes += memory.len() as u64;
            segments += 1;
        }
        (segments > 0).then(|| Borrower {
            name: label::name(&connection.neighbour().name()),
            process_id: connection.link.peer_process_id(),
            address: connection.link.peer_address().map(|address| address.to_string()),
            key: connection.link.peer_key().map(|key| key.to_string()),
            bytes,
            segments,
            since_s: connection.age().as_secs(),
            is_mapped: connection.link.supports_windows(),
            links: Vec::new(),
        })
    }

    /// Gives a task that answers a peer's question to the pool. Returns the refusal if the pool takes no more.
    pub(crate) fn begin_for(
        &self,
        by: &Arc<Connection>,
        number: u32,
        task: impl FnOnce(Asker) -> Box<dyn BlockingTask>,
    ) -> Option<Reply> {
        match Asker::new(by, number, self.answered.clone()) {
            Ok(asker) => self.begin(Owner::Peer(asker.neighbour.id), task(asker)),
            Err(refusal) => Some(refusal),
        }
    }

    /// Gives a task to the pool. Returns the refusal if the pool takes no more.
    fn begin(&self, owner: Owner, task: Box<dyn BlockingTask>) -> Option<Reply> {
        self.pools.blocking.offer(owner, task).err().map(|error| failed(&error))
    }
}

fn failed(error: &impl ToString) -> Reply {
    Reply::Failed(error.to_string())
}

fn refused(error: LendError) -> Reply {
    match error {
        LendError::TooMuch { free_bytes, .. } => Reply::TooMuch { free_bytes },
        error => failed(&error),
    }
}
