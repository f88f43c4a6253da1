//! What an access is for.

use crate::iommu::{ContextId, End, FaultPolicy, FaultSource};
use crate::own::MoveId;
use crate::rdma::{NotificationWrite, Operation, Placement};
use tombolo_wire::Domain;

/// What an access is for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// Bytes that came from a peer.
    Place(Placement),
    /// Words that a peer asked for.
    Notify(NotificationWrite),
    /// A word that a peer asks to change.
    Operate(Operation),
    /// A word that a program of this node asks to change.
    Change {
        /// The user number of its transfer.
        user: u64,
        /// Whose word.
        domain: Domain,
        /// For fault records: it is no block.
        by: FaultSource,
    },
    /// Of a block that goes out or stays here.
    Move {
        /// Which.
        id: MoveId,
        /// For fault records.
        by: FaultSource,
        /// Which part of it.
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

    /// The block that it is a part of, if it is only a part.
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
    /// Whose memory.
    pub context: ContextId,
    /// Start and end of the registered range that it lies in.
    pub range: (u64, u64),
    /// That range's policy.
    pub policy: FaultPolicy,
    /// Where, and how many bytes.
    pub at: (u64, u32),
    /// What for.
    pub purpose: Purpose,
    /// Whether it was the program itself that asked.
    pub is_by_owner: bool,
}

impl Request {
    /// Whether it writes to the memory of the program that asked for it.
    pub(super) fn is_of_asker(&self) -> bool {
        self.is_by_owner && self.purpose.end() != End::Source
    }
}
