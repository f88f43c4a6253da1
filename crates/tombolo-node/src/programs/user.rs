//! The user numbers of transfers: on whose behalf each goes.

use tombolo_core::rdma::PeerId;

/// Marks the transfers of programs among the user numbers of the engine.
const OF_A_PROGRAM: u64 = 1 << 62;
/// Marks those of them that stay here and are small.
pub(crate) const SMALL_LOOPBACK: u64 = 1 << 61;
/// Marks the transfers that a peer asked for.
const OF_A_PEER: u64 = 1 << 60;
/// Bits of the user number of a transfer that the node itself has posted. The bits above mark transfers of programs and of peers.
pub(crate) const NODE_BITS: u32 = OF_A_PEER.trailing_zeros();

/// On whose behalf a transfer goes, by its user number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poster {
    /// The node itself.
    Node,
    /// The program of that domain, in that life of it.
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

    /// The user number of the transfer that a peer asked for, which is the `index`th of all peers'.
    pub(crate) fn user_of_peer(peer: PeerId, index: u32) -> u64 {
        OF_A_PEER | u64::from(peer.0) << 24 | u64::from(index & 0xFF_FFFF)
    }
}
