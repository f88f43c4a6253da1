//! Transfers as programs post them, and how they can end.

use tombolo_wire::{AtomicOperation, Domain, Notification, Refusal};

/// Names a node at the other end of a link (or this node, over a loopback link). The caller chooses the number.
/// It has two parts: a place in the engine's tables, which is a small number, and a count that distinguishes
/// successive peers at that place. Whatever names an earlier peer of a place (a call, a post, a packet) is
/// refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

impl PeerId {
    /// Places in the engine's tables.
    pub const PLACES: u32 = 1 << 16;
    /// Peers that one place can have, one after the other.
    pub const PEERS_OF_A_PLACE: u32 = 1 << 16;

    /// The peer at `place` after `before` earlier peers of that place. Both numbers are below their bounds.
    #[must_use]
    pub const fn at(place: u32, before: u32) -> Self {
        Self((before * Self::PLACES) | (place % Self::PLACES))
    }

    /// Its place in the engine's tables.
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 % Self::PLACES) as usize
    }
}

/// Links that one peer may have at once.
pub const MAX_PATHS: usize = 8;

/// One of the links to a peer. The caller chooses the numbers, below
/// [`MAX_PATHS`]; the two ends need not agree on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u8);

impl PathId {
    pub(crate) fn index(self) -> usize {
        self.0.into()
    }
}

/// Names a posted transfer. No id is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransferId {
    pub(crate) index: u32,
    pub(crate) serial: u32,
}

/// Which way the bytes go, seen from the node that posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From here to the peer (QOS §3.2).
    Write,
    /// From the peer to here (QOS §3.6).
    Read,
    /// A word at the peer is changed in place, exactly once, and its previous value is returned. The word is at
    /// the destination address, a multiple of eight, and its size is eight bytes. It has no source and no
    /// notification.
    Atomic(AtomicOperation),
}

/// Class of service (QOS §3.2.3): strict order, with a bound on starvation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Remainder of at most 16 KiB.
    High = 0,
    /// Remainder of at most 512 KiB.
    Medium = 1,
    /// Anything larger.
    Low = 2,
}

impl Class {
    /// Number of classes.
    pub const COUNT: usize = tombolo_wire::CLASSES as usize;

    /// All classes, highest first.
    pub const ALL: [Self; Self::COUNT] = [Self::High, Self::Medium, Self::Low];

    /// The class of a number as packets and descriptors have it: 0 is the highest. Numbers
    /// beyond the lowest class mean the lowest.
    #[must_use]
    pub fn from_number(class: u8) -> Self {
        match class {
            0 => Self::High,
            1 => Self::Medium,
            _ => Self::Low,
        }
    }
}

/// One descriptor (QOS §2.3.3.2). All addresses are virtual addresses in the domain of the node that the field
/// names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Direction of the bytes.
    pub direction: Direction,
    /// Domain of the memory at the peer.
    pub domain: Domain,
    /// Domain of the memory here. It never leaves this node.
    pub own_domain: Domain,
    /// Where the bytes are: here for a write, at the peer for a read.
    pub source_address: u64,
    /// Where they go: at the peer for a write, here for a read.
    pub destination_address: u64,
    /// How many bytes. 32 bits as in the descriptor, so one transfer is at most
    /// 4 GiB - 1. Zero is allowed: a notification alone.
    pub size_bytes: u32,
    /// Two words written at the destination's node after the last byte.
    pub notification: Option<Notification>,
    /// A class for the transfer's whole life (QOS §1.2, hints from the user). `None`: the class follows from
    /// the bytes still to be issued, so it rises as they become fewer.
    pub class: Option<Class>,
    /// Returned in the completion. The engine does not interpret it.
    pub user: u64,
}

/// Why a transfer was not accepted. Nothing was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// No such peer; it was never added, or lost.
    #[error("peer {0:?} is not connected")]
    UnknownPeer(PeerId),
    /// As many transfers are open as [`crate::rdma::Config::transfers`] allows:
    /// take completions first.
    #[error("the transfer table is full")]
    Full,
    /// Source, destination or notification passes the end of the address space.
    #[error("an address range passes the end of the address space")]
    AddressOverflow,
    /// An atomic operation of another size than eight bytes, or at an address that is no multiple of
    /// eight, or with a notification.
    #[error("an atomic operation is of one aligned word of 8 bytes, without a notification")]
    NotAWord,
}

/// Why a transfer ended without success. The destination then holds any mixture
/// of old and new bytes. After a failed *write*, packets still on their way may
/// arrive at the peer later; after a failed *read* nothing is placed any more. An
/// atomic operation that failed because the peer is silent or gone may have been
/// carried out, or may yet be, at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The peer did not answer for [`crate::rdma::Config::give_up_ns`], or not after
    /// [`crate::rdma::Config::max_attempts`] attempts. All transfers of this node's programs that are open with
    /// the peer end with this error at once.
    #[error("the peer does not answer")]
    PeerUnreachable,
    /// The peer is there, but one part of the transfer was lost each time it was sent,
    /// [`crate::rdma::Config::max_attempts`] times.
    #[error("a part of the transfer is lost again and again, though the peer answers others")]
    Undeliverable,
    /// The caller said that the peer is gone.
    #[error("the peer is gone")]
    PeerLost,
    /// The peer's memory refused: the destination of a write or its notification, the source of a read.
    #[error("the peer refused the access: {0:?}")]
    Refused(Refusal),
    /// This node's own memory refused: the source of a write, the destination of a read or its notification.
    #[error("the local memory refused the access: {0:?}")]
    Local(Refusal),
    /// The peer says a read is complete, but not all bytes came.
    #[error("the peer ended the read early")]
    Incomplete,
}
