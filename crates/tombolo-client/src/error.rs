//! What can go wrong, one type an operation.

use std::path::PathBuf;
use std::time::Duration;

use tombolo_channel::Failure;
use tombolo_host::shared::SharedMemoryError;
use tombolo_host::unix::UnixError;

use crate::memory::Registered;

/// Why a domain was not opened, or its node did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No node there.
    #[error("no node answers at {path}: start one with `tombolo node --programs {path}`: {source}", path = path.display())]
    NoNode {
        /// Where.
        path: PathBuf,
        /// Why.
        source: UnixError,
    },
    /// A user that is not trusted listens there, who would reach all memory of this process.
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
    #[error("the node has hung up: {0}")]
    Lost(UnixError),
    /// It took too long.
    #[error("the node does not answer within {0:?}")]
    TimedOut(Duration),
    /// It has not answered earlier requests either.
    #[error("the node has not answered {0} earlier requests: it is asked nothing more until it does")]
    Unanswered(usize),
    /// It refused.
    #[error("the node refused: {0}")]
    Refused(String),
    /// It does not speak this version.
    #[error("the node's answer makes no sense: it may be of another version")]
    UnexpectedMessage,
    /// The kernel closed what the node passed, since this process has no descriptor left.
    #[error("no file descriptor was left for what the node passed: close some, or raise `ulimit -n`")]
    NoDescriptors,
    /// Its memory cannot be used.
    #[error("{0}")]
    Memory(#[from] SharedMemoryError),
    /// This process may not open its own memory.
    #[error("cannot open /proc/self/mem and maps, by which the node reaches own memory: {0}")]
    OwnMemory(std::io::Error),
}

/// Own memory was not deregistered: it stays registered, and can be deregistered later.
#[derive(Debug, thiserror::Error)]
#[error("the memory stays registered: {error}")]
pub struct DeregisterError {
    /// The memory.
    pub memory: Registered,
    /// Why.
    pub error: OpenError,
}

/// Why a transfer was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// All 32 channels of this direction are in use: wait for a transfer to end.
    #[error("all channels for {0} are in use: wait for a transfer to end")]
    NoChannel(&'static str),
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// It is empty or too long.
    #[error("a message has 1 to {max} bytes, not {0}", max = tombolo_channel::MAX_MAIL_BYTES)]
    Length(usize),
    /// All channels are in use.
    #[error("{0}")]
    Post(#[from] PostError),
    /// There was no memory for it.
    #[error("no memory for messages: {0}")]
    Memory(#[from] OpenError),
}

/// Why a transfer did not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// It failed.
    #[error("{0}")]
    Failed(#[from] Failure),
    /// The node had no room; nothing was done.
    #[error("the node has no room for more transfers: post it again")]
    Paused,
    /// It is still on its way.
    #[error("not over within {0:?}")]
    TimedOut(Duration),
    /// The node is gone.
    #[error("the node is gone")]
    NodeGone,
}
