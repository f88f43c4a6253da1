//! Questions to other nodes: for their status, and for memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_host::passed::PassedDescriptor;
use tombolo_host::timing::node as timing;
use tombolo_link::{Address, OpenError, Security};

use crate::driver::node::Node;
use crate::fabric::connection::Connection;
use crate::fabric::link_driver::{AskError, JoinError};
use crate::fabric::messages::{NamedSegment, Reply, Request};
use crate::fabric::status::{EndlessStatus, NodeStatus};
use crate::far::copy::list;
use crate::lending::ledger::LendError;

/// Why memory could not be borrowed.
#[derive(Debug, thiserror::Error)]
pub enum BorrowError {
    /// No link to the lender could be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The lender cannot be reached by another of its addresses.
    #[error("{0}")]
    Join(#[from] JoinError),
    /// The lender does not answer.
    #[error("lender {lender}: {source}")]
    Ask {
        /// Address of the lender.
        lender: Address,
        /// Why.
        source: AskError,
    },
    /// The lender does not have as much memory as was asked for.
    #[error(
        "lender {lender} has {free_bytes} bytes left to lend, and {asked_bytes} are asked of it: ask for less with --remote, or add lenders"
    )]
    TooMuch {
        /// Address of the lender.
        lender: Address,
        /// What was asked.
        asked_bytes: u64,
        /// What it has.
        free_bytes: u64,
    },
    /// No lender has memory left.
    #[error("the lenders have no memory left to lend: start one with `tombolo node --lend SIZE`")]
    Nothing,
    /// The lender refused.
    #[error("lender {lender}: {reason}")]
    Refused {
        /// Address of the lender.
        lender: Address,
        /// What it said.
        reason: String,
    },
    /// The segment that the lender gave is not as agreed.
    #[error("lender {lender} sent a wrong segment: {reason}")]
    WrongSegment {
        /// Address of the lender.
        lender: Address,
        /// What is wrong.
        reason: String,
    },
    /// This node could not be set up.
    #[error("cannot set up the borrowing node: {0}")]
    SetUp(#[from] LendError),
}

/// A place after all entries: an answer from there on has only the fields of the node as a whole.
const AFTER_ALL: u64 = u64::MAX;

/// A link to a node that is asked for its status.
#[derive(Debug)]
pub struct StatusClient {
    node: Node,
    peer: Arc<Connection>,
    address: Address,
}

impl StatusClient {
    /// Connects to a node that listens at this address.
    pub fn connect(address: &Address, security: &Security) -> Result<Self, BorrowError> {
        let node = Node::new("status", 0, 0)?;
        let peer = node.add_peer(tombolo_link::connect(address, security, timing::BORROW_TIMEOUT)?);
        Ok(Self { node, peer, address: address.clone() })
    }

    /// The named segments of the node: the first `most`, and perhaps some more. `None`: the node does not list them for
    /// this one, or not in time.
    pub fn named(&self, most: usize) -> Option<Vec<NamedSegment>> {
        let deadline = Instant::now() + timing::STATUS_TIMEOUT;
        let ask = |request| match Instant::now() < deadline {
            true => ask(&self.node, &self.peer, &self.address, request, timing::STORE_TIMEOUT).ok(),
            false => None,
        };
        let answered = |request| ask(request).map(|(reply, _)| reply).ok_or(());
        list(most, answered).ok()?
    }

    /// The status of the node, with its counters or without.
    pub fn ask(&self, counters: bool) -> Result<NodeStatus, BorrowError> {
        let ask = |from| {
            ask_status(&self.node, &self.peer, &self.address, from, counters).map_err(StatusError::Refused)
        };
        let status = NodeStatus::of_parts(Instant::now() + timing::STATUS_TIMEOUT, ask);
        status.map_err(|error| match error {
            StatusError::Refused(error) => error,
            StatusError::Endless(error) => refused_because(&self.address, &error.to_string()),
        })
    }
}

/// Why a node gave no status.
enum StatusError {
    Refused(BorrowError),
    Endless(EndlessStatus),
}

impl From<EndlessStatus> for StatusError {
    fn from(error: EndlessStatus) -> Self {
        Self::Endless(error)
    }
}

/// The status of a node as a whole, without its lists: what it lends, and how much of that is free, for instance.
pub(super) fn ask_head(
    node: &Node,
    peer: &Arc<Connection>,
    address: &Address,
) -> Result<NodeStatus, BorrowError> {
    Ok(ask_status(node, peer, address, AFTER_ALL, false)?.0)
}

/// The part of a node's status that begins at entry `from`, and where the next part begins, if there is more.
fn ask_status(
    node: &Node,
    peer: &Arc<Connection>,
    address: &Address,
    from: u64,
    counters: bool,
) -> Result<(NodeStatus, Option<u64>), BorrowError> {
    let request = Request::Status { from, counters };
    match ask(node, peer, address, request, timing::BORROW_TIMEOUT)?.0 {
        Reply::Status { part, next } => match NodeStatus::parse(&part) {
            Ok(part) => Ok((part, next)),
            Err(error) => Err(refused_because(address, &format!("its status cannot be read: {error}"))),
        },
        other => Err(refused(address, other)),
    }
}

fn refused_because(lender: &Address, reason: &str) -> BorrowError {
    BorrowError::Refused { lender: lender.clone(), reason: reason.to_owned() }
}

pub(super) fn refused(lender: &Address, reply: Reply) -> BorrowError {
    let reason = match reply {
        Reply::Failed(reason) => reason,
        other => format!("an answer that does not fit: {other:?}"),
    };
    BorrowError::Refused { lender: lender.clone(), reason }
}

pub(super) fn ask(
    node: &Node,
    peer: &Arc<Connection>,
    lender: &Address,
    request: Request,
    timeout: Duration,
) -> Result<(Reply, Vec<PassedDescriptor>), BorrowError> {
    node.ask(peer, request, timeout).map_err(|source| BorrowError::Ask { lender: lender.clone(), source })
}
