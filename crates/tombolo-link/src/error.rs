//! What can go wrong with a link, per operation.

use std::time::Duration;

use rustix::io::Errno;
use tombolo_host::ring::RingError;
use tombolo_host::shared::SharedMemoryError;
use tombolo_host::unix::UnixError;

use crate::Address;
use crate::identity::{KeyFileError, PublicKey};

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
    /// Nothing was heard for this long, though the peer was asked.
    #[error("silent for {:.1} s", .0.as_secs_f64())]
    Silent(Duration),
    /// No process uses the peer's address any more.
    #[error("the peer's address refuses datagrams")]
    Refused,
    /// The peer's key was taken off this node's list.
    #[error("its key is no longer on this node's list of keys")]
    KeyRemoved,
    /// This node's key was taken off the peer's list.
    #[error("this node's key is no longer on the peer's list of keys")]
    KeyRevoked,
    /// Another link to the same node is kept.
    #[error("another link to the same node is kept")]
    Superseded,
    /// At the peer's address another life of a node answers.
    #[error("the node was started again")]
    Restarted,
    /// This node has as many links as it can count.
    #[error("this node takes no more links")]
    TooManyLinks,
    /// The peer takes no more links of this node's key or address.
    #[error("the node has as many links of this key or address as it takes")]
    OneTooMany,
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

impl LossReason {
    /// Whether the peer ended the link: what it sent before still counts.
    pub fn is_of_peer(&self) -> bool {
        match self {
            Self::ClosedByPeer | Self::PeerGone | Self::Refused | Self::KeyRevoked | Self::OneTooMany => true,
            Self::Silent(_)
            | Self::KeyRemoved
            | Self::Superseded
            | Self::Restarted
            | Self::TooManyLinks
            | Self::Ring(_)
            | Self::Protocol(_)
            | Self::System { .. } => false,
        }
    }
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
    /// There is no room now; nothing was taken and nothing is lost. Receive, or wait, and try again.
    #[error("the link is full")]
    Full,
    /// It is larger than the link ever takes.
    #[error("{bytes} bytes where the link takes {max_bytes}")]
    TooLarge {
        /// What was to be sent.
        bytes: usize,
        /// The most that can be.
        max_bytes: usize,
    },
    /// This link passes no descriptors, or fewer.
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
    /// A user that is not trusted listens there, who would see and change all memory lent over the link.
    #[error(
        "what listens at shm:{path} belongs to user {user_id}, and this process is user {own_user_id}: if you trust that user with this node's memory, connect to shm:{user_id}@{path}; otherwise choose a path where others cannot make files", path = path.display()
    )]
    UntrustedListener {
        /// Where we asked.
        path: std::path::PathBuf,
        /// Who called `listen`, as the kernel says.
        user_id: u32,
        /// Who we are.
        own_user_id: u32,
    },
    /// A user was named where this node is to listen.
    #[error("{0}: a user is named to connect to a node, not to listen: leave out `UID@`")]
    ListenForUser(Address),
    /// Without keys UDP stays on this machine.
    #[error(
        "udp:{0} is not a loopback address, and without keys anyone there could read and write memory: make a key with `tombolo keygen`, list the other node's public key in the file of --allow, and leave out --insecure"
    )]
    NotLoopback(std::net::SocketAddr),
    /// One side has keys, and the other is insecure.
    #[error("{}", mismatch(address, *theirs_secure))]
    SecurityMismatch {
        /// Where we asked.
        address: Address,
        /// Whether it is the other that asks for keys.
        theirs_secure: bool,
    },
    /// The node that answers has proved a key that is not on our list.
    #[error(
        "the key of the node at {address} is not on this node's list: if it is the node you mean, add `{key}` to {list}"
    )]
    PeerNotAllowed {
        /// Where we asked.
        address: Address,
        /// The key that it has.
        key: PublicKey,
        /// Where our list is.
        list: String,
    },
    /// The node that answers does not have our key on its list.
    #[error(
        "this node's key is not on the list of the node at {address}: there, add `{key}` to the file of --allow"
    )]
    NotOnTheirList {
        /// Where we asked.
        address: Address,
        /// Our key.
        key: PublicKey,
    },
    /// A file of keys cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// The handshake failed on our side.
    #[error("cannot agree on keys: {0}")]
    Handshake(#[from] snow::Error),
    /// No descriptors are left for a link, of this process or of the system.
    #[error("nobody more can connect, there are no file descriptors left ({errno}): raise `ulimit -n`")]
    NoDescriptors {
        /// What the kernel answered.
        errno: Errno,
    },
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
    /// One side has keys, and the other is insecure.
    #[error(
        "{}",
        if *.ours_secure {
            "a node without keys asked for a link, and this one asks for keys: run that one without --insecure"
        } else {
            "a node with keys asked for a link, and this one is --insecure: run both in the same way"
        }
    )]
    SecurityMismatch {
        /// Whether it is we who ask for keys.
        ours_secure: bool,
    },
    /// The peer has proved a key that is not on our list.
    #[error(
        "the key of the node at {from} is not on this node's list: if it may have memory of this one, add `{key}` to {list}"
    )]
    PeerNotAllowed {
        /// Where it asked from.
        from: std::net::SocketAddr,
        /// The key that it has.
        key: PublicKey,
        /// Where our list is.
        list: String,
    },
    /// The peer does not have our key on its list.
    #[error(
        "this node's key is not on the list of the node at {from}, which has `{theirs}`: there, add `{ours}` to the file of --allow"
    )]
    NotOnTheirList {
        /// Where it asked from.
        from: std::net::SocketAddr,
        /// Its key.
        theirs: PublicKey,
        /// Our key.
        ours: PublicKey,
    },
    /// A process of a user who may have no link asked for one.
    #[error("user {user_id} asked for a link at {}, where only this node's own user and root may", path.display())]
    Stranger {
        /// Where it asked.
        path: std::path::PathBuf,
        /// The user.
        user_id: u32,
    },
    /// The link could not be made on our side.
    #[error("cannot accept a link: {0}")]
    Open(#[from] OpenError),
}

fn mismatch(address: &Address, theirs_secure: bool) -> String {
    if theirs_secure {
        format!("the node at {address} asks for keys: run this one without --insecure")
    } else {
        format!("the node at {address} is --insecure, and this one asks for keys: run both in the same way")
    }
}
