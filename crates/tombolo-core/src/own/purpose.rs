//! What an access is for.

use crate::iommu::{ContextId, End, FaultPolicy, FaultSource};
use crate::own::MoveId;
use crate::rdma::{NotificationWrite, Operation, Placement};
use tombolo_wire::Domain;

/// What an access is for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// Write bytes that came from a peer.
    Place(Placement),
    /// Write the words of a peer's notification.
    Notify(NotificationWrite),
    /// Carry out a peer's atomic operation on a word.
    Operate(Operation),
    /// Carry out an atomic operation on a word for a program of this node.
    Change {
        /// The user number of its transfer.
        user: u64,
        /// The domain that has the word.
        domain: Domain,
        /// Identifies the operation in fault records: it is part of no block.
        by: FaultSource,
    },
    /// Read or write a part of a block that goes to a peer or stays at this node.
    Move {
        /// The copying of the block.
        id: MoveId,
        /// Identifies the block in fault records.
        by: FaultSource,
        /// Which part of the block the access is for.
        end: End,
    },
}

impl Purpose {
    pub(super) fn end(&self) -> End {
        match self {
            Self::Place(_) => End::Destination,
            Self::Notify(_) => End::Notification,
            Self::Operate(_) | Self::Change { .. } => End::Atomic,
            Self::Move { end, .. } => *end,
        }
    }

    pub(super) fn by(&self) -> FaultSource {
        match self {
            Self::Place(placement) => placement.fault_source(),
            Self::Notify(write) => write.fault_source(),
            Self::Operate(operation) => operation.placement.fault_source(),
            Self::Change { by, .. } | Self::Move { by, .. } => *by,
        }
    }

    /// Address and length of the block whose packet the access is for, if it is for a packet.
    pub(super) fn block(&self) -> Option<(u64, u32)> {
        match self {
            Self::Place(placement) => Some(placement.block),
            Self::Notify(_) | Self::Operate(_) | Self::Change { .. } | Self::Move { .. } => None,
        }
    }
}

/// An access that is to be begun. It lies within one range.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The context whose memory is accessed.
    pub context: ContextId,
    /// Start and end of the registered range that the access lies in.
    pub range: (u64, u64),
    /// That range's policy.
    pub policy: FaultPolicy,
    /// Address, and number of bytes.
    pub at: (u64, u32),
    /// What the access is for.
    pub purpose: Purpose,
    /// Whether the program that has the memory asked for the access itself.
    pub is_by_owner: bool,
}

impl Request {
    /// Whether the access writes to the memory of the program that asked for it.
    pub(super) fn is_of_asker(&self) -> bool {
        self.is_by_owner && self.purpose.end() != End::Source
    }
}
