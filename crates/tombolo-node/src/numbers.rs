//! The numbers that programs call other nodes by, and name in grants.
//!
//! A link's peer has a number that no other ever had. When a node whose links were all lost comes back in the
//! same life, its new peer is called by the number of the earlier one: what was granted to it is granted
//! still. That it is the same node its key proves, or, over shared memory, the user and process that the kernel
//! names. Who can prove neither has a new number each time.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use tombolo_core::rdma::PeerId;
use tombolo_link::{Link, PublicKey};

use crate::life::Life;

/// Nodes that are remembered after they have gone; beyond, the one that came first is forgotten.
const MAX_KNOWN: usize = 4096;

/// What proves which node it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Proof {
    Key(PublicKey),
    Process(u32),
}

type Proven = (Proof, Life);

#[derive(Debug, Default)]
struct Known {
    /// The number of each node, and the peer that has it now or had it last.
    nodes: HashMap<Proven, (u32, PeerId)>,
    /// In the order in which they came.
    order: VecDeque<Proven>,
    /// Peers of nodes that have come back.
    by_number: HashMap<u32, PeerId>,
    by_peer: HashMap<PeerId, u32>,
}

/// Who is called by which number.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    known: RwLock<Known>,
    /// Some peer has the number of an earlier one; asked for each transfer.
    have_returned: AtomicBool,
}

impl Numbers {
    /// A peer has said which life of a node it is. `is_gone` says whether another peer is gone.
    pub(crate) fn introduced(
        &self,
        peer: PeerId,
        link: &dyn Link,
        life: Life,
        is_gone: impl FnOnce(PeerId) -> bool,
    ) {
        let process = link.peer_process_id().map(Proof::Process);
        let Some(proof) = link.peer_key().map(Proof::Key).or(process) else { return };
        let (node, mut known) = ((proof, life), self.known.write());
        let Some(&(number, before)) = known.nodes.get(&node) else {
            if known.order.len() >= MAX_KNOWN
                && let Some(first) = known.order.pop_front()
            {
                known.nodes.remove(&first);
            }
            known.order.push_back(node);
            known.nodes.insert(node, (peer.0, peer));
            return;
        };
        // A node may have several links that it has not made one of: the first is called by the number.
        if before != peer && is_gone(before) {
            known.nodes.insert(node, (number, peer));
            known.by_peer.remove(&before);
            known.by_number.insert(number, peer);
            known.by_peer.insert(peer, number);
            self.have_returned.store(true, Ordering::Release);
        }
    }

    /// A peer is gone for good.
    pub(crate) fn forget(&self, peer: PeerId) {
        if self.have_returned.load(Ordering::Acquire) {
            let mut known = self.known.write();
            if let Some(number) = known.by_peer.remove(&peer) {
                known.by_number.remove(&number);
            }
        }
    }

    /// The peer that is called by a number.
    pub(crate) fn peer(&self, number: u32) -> PeerId {
        let returned = if self.have_returned.load(Ordering::Acquire) {
            self.known.read().by_number.get(&number).copied()
        } else {
            None
        };
        returned.unwrap_or(PeerId(number))
    }

    /// The number that a peer is called by.
    pub(crate) fn number(&self, peer: PeerId) -> u32 {
        let returned = if self.have_returned.load(Ordering::Acquire) {
            self.known.read().by_peer.get(&peer).copied()
        } else {
            None
        };
        returned.unwrap_or(peer.0)
    }
}
