//! What can go wrong with a link, per operation.

use std::time::Duration;

use rustix::io::Errno;
use tombolo_host::ring::RingError;
use tombolo_host::shared::SharedMemoryError;
use tombolo_host::unix::UnixError;

use crate::Address;

/// Why a link is no longer up. It never comes back; connect again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// The peer dropped its end.
    #[error("closed by peer")]
    ClosedByPeer,
    /// The peer's process ended without closing.
    #[error("the peer's process is gone")]
    PeerGone,
    /// Nothing was heard for so long, though asked for.
    #[error("silent for {:.1} s", .0.as_secs_f64())]
    Silent(Duration),
    /// Nobody uses the peer's address any more.
    #[error("the peer's address refuses datagrams")]
    Refused,
    /// The peer broke the rules of the ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The peer said something that cannot be.
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
    /// A system call failed for good.
    #[error("{operation}: {errno}")]
    System {
        /// What was being done.
        operation: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
}

/// A link cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The link is lost.
    #[error("link lost: {0}")]
    Lost(#[from] LossReason),
}

/// Why a packet or control message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Not now; nothing was taken and nothing is lost. Receive, or wait, and try again.
    #[error("the link is full")]
    Full,
    /// It never fits.
    #[error("{bytes} bytes where the link takes {max_bytes}")]
    TooLarge {
        /// What was to be sent.
        bytes: usize,
        /// The most that can be.
        max_bytes: usize,
    },
    /// This link passes no descriptors, or not so many.
    #[error("the link does not pass {0} descriptors")]
    Descriptors(usize),
    /// The link is lost.
    #[error("link lost: {0}")]
    Lost(#[from] LossReason),
}

impl From<LinkError> for SendError {
    fn from(error: LinkError) -> Self {
        let LinkError::Lost(reason) = error;
        Self::Lost(reason)
    }
}

/// Why a link could not be opened, or an address not listened at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Nobody answered in time.
    #[error("no node answers at {address} (waited {:.1} s)", waited.as_secs_f64())]
    NoAnswer {
        /// Where we asked.
        address: Address,
        /// For how long.
        waited: Duration,
    },
    /// The peer speaks another version.
    #[error(
        "the node at {address} speaks version {theirs} of the link protocol, and this one version {ours}: run the same release on both"
    )]
    VersionMismatch {
        /// Where we asked.
        address: Address,
        /// Our version.
        ours: u8,
        /// Its version.
        theirs: u8,
    },
    /// What answered is no node, or a broken one.
    #[error("what answers at {address} is not a node: {reason}")]
    NotANode {
        /// Where we asked.
        address: Address,
        /// What it did.
        reason: &'static str,
    },
    /// UDP between machines needs authentication, which this version does not have.
    #[error(
        "udp:{0} is not a loopback address: links are not authenticated yet, so UDP is kept on this machine; use 127.0.0.1 or [::1]"
    )]
    NotLoopback(std::net::SocketAddr),
    /// Another process listens there.
    #[error("another process listens at {0}")]
    InUse(Address),
    /// The Unix socket could not be used.
    #[error(transparent)]
    Unix(#[from] UnixError),
    /// The shared memory could not be used.
    #[error(transparent)]
    Memory(#[from] SharedMemoryError),
    /// The ring could not be used.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A system call failed.
    #[error("{operation}: {errno}")]
    System {
        /// What was being done.
        operation: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
}

/// Why one peer was not accepted. The listener goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The peer speaks another version; it was told ours.
    #[error(
        "a node with version {theirs} of the link protocol asked for a link, and this one has version {ours}: run the same release on both"
    )]
    VersionMismatch {
        /// Our version.
        ours: u8,
        /// Its version.
        theirs: u8,
    },
    /// The link could not be made on our side.
    #[error("cannot accept a link: {0}")]
    Open(#[from] OpenError),
}
