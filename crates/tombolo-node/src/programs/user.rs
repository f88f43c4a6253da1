//! The user numbers of transfers, which say on whose behalf each transfer is made.

use tombolo_core::rdma::PeerId;

/// Marks the user numbers of programs' transfers.
const OF_A_PROGRAM: u64 = 1 << 62;
/// Marks, in addition, small transfers between two programs of this node.
pub(crate) const SMALL_LOOPBACK: u64 = 1 << 61;
/// Marks the user numbers of transfers that a peer asked for.
const OF_A_PEER: u64 = 1 << 60;
/// Bits of the user number of a transfer that the node itself has posted. The bits above mark transfers of programs and of peers.
pub(crate) const NODE_BITS: u32 = OF_A_PEER.trailing_zeros();

/// The party on whose behalf a transfer is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poster {
    /// The node itself.
    Node,
    /// The program with this domain and this life.
    Program(u16, u32),
    /// A peer.
    Peer(PeerId),
}

impl Poster {
    /// The poster of the transfer with that user number.
    pub(crate) fn of(user: u64) -> Self {
        if user & OF_A_PROGRAM != 0 {
            Self::Program((user >> 40) as u16 & 0x7FFF, (user >> 8) as u32)
        } else if user & OF_A_PEER != 0 {
            Self::Peer(PeerId((user >> 24) as u32))
        } else {
            Self::Node
        }
    }

    /// The user number of a program's transfer.
    pub(crate) fn user_of_program(domain: u16, life: u32, slot: usize) -> u64 {
        OF_A_PROGRAM | u64::from(domain) << 40 | u64::from(life) << 8 | slot as u64
    }

    /// The user number of a transfer that a peer asked for. `index` counts the transfers that all peers ask for.
    pub(crate) fn user_of_peer(peer: PeerId, index: u32) -> u64 {
        OF_A_PEER | u64::from(peer.0) << 24 | u64::from(index & 0xFF_FFFF)
    }
}
