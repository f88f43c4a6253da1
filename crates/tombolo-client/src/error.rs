//! What can go wrong, one type an operation.

use std::path::PathBuf;
use std::time::Duration;

use tombolo_channel::Failure;
use tombolo_host::shared::{MoveError, SharedMemoryError};
use tombolo_host::unix::UnixError;

use crate::memory::Registered;

/// Why a domain was not opened, or its node did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No node answers at the path.
    #[error("no node answers at {path}: start one with `tombolo node --programs {path}`: {source}", path = path.display())]
    NoNode {
        /// Where.
        path: PathBuf,
        /// Why.
        source: UnixError,
    },
    /// The listener belongs to a user who is not trusted: that user could reach all memory of this process.
    #[error(
        "what listens at {path} belongs to user {user_id}, and this process is user {own_user_id}: if you trust that user with this program's memory, open the domain of that user's node; otherwise choose a path where others cannot make files", path = path.display()
    )]
    UntrustedNode {
        /// Where.
        path: PathBuf,
        /// The user who called `listen`, as the kernel says.
        user_id: u32,
        /// The user of this process.
        own_user_id: u32,
    },
    /// The connection broke.
    #[error("the connection to the node broke: {0}")]
    Lost(UnixError),
    /// The node did not answer in time.
    #[error("the node does not answer within {0:?}")]
    TimedOut(Duration),
    /// Too many earlier requests have no answer yet.
    #[error("the node has not answered {0} earlier requests: it is asked nothing more until it does")]
    Unanswered(usize),
    /// The node refused the request.
    #[error("the node refused: {0}")]
    Refused(String),
    /// The node's message is none of this version.
    #[error("the node's answer makes no sense: it may be of another version")]
    UnexpectedMessage,
    /// The kernel closed what the node passed, since this process has no descriptor left.
    #[error("no file descriptor was left for what the node passed: close some, or raise `ulimit -n`")]
    NoDescriptors,
    /// The memory that the node passed cannot be mapped.
    #[error("{0}")]
    Memory(#[from] SharedMemoryError),
    /// A window was not moved, so that it is not revoked.
    #[error("the window is not revoked, and others may reach it still: {0}")]
    Window(MoveError),
    /// This is a child made by fork.
    #[error(
        "this domain belongs to the process that opened it, of which this one is a child: open a domain here, or join it"
    )]
    Forked,
    /// The memory is that of another domain.
    #[error("this memory belongs to another domain")]
    OtherDomain,
    /// An access that was being made when the node ended goes on.
    #[error(
        "the node is gone, and an access to this memory does not end: it waits for a page that nobody brings. The memory may still be changed by it; try again when the page has come"
    )]
    AccessHangs,
    /// This process may not open its own memory.
    #[error("cannot open /proc/self/mem and maps, by which the node reaches own memory: {0}")]
    OwnMemory(std::io::Error),
}

impl OpenError {
    /// Whether the node has ended, or has closed the domain.
    pub fn is_node_gone(&self) -> bool {
        matches!(self, Self::Lost(UnixError::Closed))
    }
}

/// Own memory was not deregistered: it stays registered, and can be deregistered later.
#[derive(Debug, thiserror::Error)]
#[error("the memory stays registered: {error}")]
pub struct DeregisterError {
    /// The memory.
    pub memory: Box<Registered>,
    /// Why.
    pub error: OpenError,
}

/// Why a transfer was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// All 32 channels of this direction are in use: wait for a transfer to end.
    #[error("all channels for {0} are in use: wait for a transfer to end")]
    NoChannel(&'static str),
    /// This is a child made by fork.
    #[error(
        "this domain belongs to the process that opened it, of which this one is a child: open a domain here, or join it"
    )]
    Forked,
    /// A queue has as many orders as it may have whose end was not taken.
    #[error("{0} orders are in the queue, and no more may be: take the ends of some")]
    QueueFull(usize),
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The message is empty or too long.
    #[error("a message has 1 to {max} bytes, not {0}", max = tombolo_channel::MAX_MAIL_BYTES)]
    Length(usize),
    /// All channels are in use.
    #[error("{0}")]
    Post(#[from] PostError),
    /// The node gave no memory for outgoing messages.
    #[error("no memory for messages: {0}")]
    Memory(#[from] OpenError),
}

/// Why a transfer did not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The transfer failed.
    #[error("{0}")]
    Failed(#[from] Failure),
    /// The node had no room for the transfer; nothing was done.
    #[error("the node has no room for more transfers: post it again")]
    Paused,
    /// The transfer is still under way.
    #[error("the transfer did not end within {0:?}")]
    TimedOut(Duration),
    /// The mailbox is empty.
    #[error("no message came within {0:?}")]
    NoMessage(Duration),
    /// The node is gone.
    #[error("the node has ended, or has closed this domain")]
    NodeGone,
}
