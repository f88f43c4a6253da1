//! Round trips of the engine: a small write to a lent page, and its acknowledgement.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_core::rdma::{Direction, PostError, Transfer, TransferError};
use tombolo_host::timing::node as timing;
use tombolo_host::yielding::Yielder;
use tombolo_link::{Address, Security};
use tombolo_wire::Domain;

use crate::driver::address_space::BUFFERS;
use crate::driver::node::{Node, NodeEvent, NodeEvents};
use crate::fabric::connection::Connection;
use crate::fabric::link_driver::{AskError, JoinError};
use crate::fabric::messages::{Reply, Request};
use crate::lending::ledger::LendError;

/// The most that one ping writes.
pub const MAX_PING_BYTES: u32 = 4096;

/// Why a node could not be pinged.
#[derive(Debug, thiserror::Error)]
pub enum PingError {
    /// The node cannot be reached.
    #[error("{0}")]
    Join(#[from] JoinError),
    /// This node could not be set up.
    #[error("cannot set up the pinging node: {0}")]
    SetUp(#[from] LendError),
    /// The node does not answer, or is gone.
    #[error("{0}")]
    Ask(#[from] AskError),
    /// The node refused: it does not let this one borrow, for instance.
    #[error("the node refused: {0}")]
    Refused(String),
    /// The node lends no page to write to.
    #[error("the node lends no page to write to: {0}; start it with `--lend`, at least 4K")]
    NoPage(String),
    /// The engine did not take the transfer.
    #[error("{0}")]
    Post(#[from] PostError),
    /// The transfer failed.
    #[error("{0}")]
    Failed(TransferError),
    /// No answer came.
    #[error("no answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
}

/// Pings one node.
#[derive(Debug)]
pub struct Pinger {
    node: Arc<Node>,
    peer: Arc<Connection>,
    segment: u16,
    events: NodeEvents,
    pings: u64,
    yielder: Yielder,
}

impl Pinger {
    /// Connects to a node and borrows a page of it.
    pub fn new(address: &Address, security: &Security, timeout: Duration) -> Result<Self, PingError> {
        let node = Arc::new(Node::new("ping", 0, MAX_PING_BYTES as usize)?);
        let (_, events) = node.add_owner().map_err(|error| LendError::System(error.to_string()))?;
        events.attend_always();
        let peer = node.join(address, security, timeout)?;
        let page = Request::Lend { bytes: MAX_PING_BYTES.into() };
        let segment = match node.ask(&peer, page, timeout)?.0 {
            Reply::Lent { segment } => segment,
            Reply::TooMuch { free_bytes } => {
                return Err(PingError::NoPage(format!("{free_bytes} bytes are free")));
            }
            Reply::Failed(reason) => return Err(PingError::Refused(reason)),
            other => return Err(PingError::Refused(format!("its answer does not fit: {other:?}"))),
        };
        Ok(Self { node, peer, segment, events, pings: 0, yielder: Yielder::default() })
    }

    /// Writes `size_bytes` (at most [`MAX_PING_BYTES`]) and waits for the acknowledgement.
    pub fn ping(&mut self, size_bytes: u32, timeout: Duration) -> Result<Duration, PingError> {
        self.pings += 1;
        let since = Instant::now();
        let transfer = Transfer {
            direction: Direction::Write,
            domain: Domain(self.segment),
            own_domain: BUFFERS,
            source_address: 0,
            destination_address: 0,
            size_bytes: size_bytes.min(MAX_PING_BYTES),
            notification: None,
            class: None,
            user: self.pings,
        };
        self.node.post(self.peer.id, transfer)?;
        self.node.pump();
        loop {
            self.node.drive(&self.peer);
            match self.events.take() {
                Some(NodeEvent::Completed { user, result }) if user == self.pings => {
                    return result.map(|()| since.elapsed()).map_err(PingError::Failed);
                }
                // The end of an earlier ping that timed out, or the loss of the peer, which is handled below.
                Some(_) => continue,
                None => {}
            }
            if let Some(reason) = self.peer.loss() {
                return Err(AskError::Lost(reason).into());
            }
            let waited = since.elapsed();
            if waited > timeout {
                return Err(PingError::TimedOut(timeout));
            }
            let until_timer = self.node.expire().unwrap_or(timeout);
            if waited > timing::PING_POLL {
                let _ = self.peer.link.wait(until_timer.min(timeout - waited));
                self.node.tick();
            } else if waited > timing::PING_SPIN {
                // The node that is to answer may need this processor.
                self.yielder.yield_now();
            }
        }
    }
}
