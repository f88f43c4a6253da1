//! The numbers by which programs call other nodes, also in grants.
//!
//! Each peer has a number that no peer had before. When a node whose links were all lost comes back in the same life,
//! its new peer is called by the number of the earlier one, so that grants to the node stay valid. A node proves that
//! it is the same by its key or, over shared memory, by the process that the kernel names. The start time of the
//! process is part of that, because the kernel uses process numbers again. A node that can prove neither gets a new
//! number each time.
//!
//! The nodes that this one is to be joined to have the first numbers, from 1 on, in the order in which they were named.
//! They have them whether they are there or not, and whichever of their lives is there. A grant to such a number is a
//! grant to the life that has the number. If no life has had it yet, the grant is to the first life that gets it. A
//! later life is granted nothing by it.

use std::collections::{HashMap, VecDeque};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::RwLock;
use tombolo_core::rdma::PeerId;
use tombolo_link::{Link, PublicKey};

use crate::fabric::life::Life;

/// Most nodes that are remembered, whether they are there or gone. Beyond, the one that came first is forgotten.
const MAX_KNOWN: usize = 4096;

/// What proves which node a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Proof {
    Key(PublicKey),
    /// The number of its process, and when the process began.
    Process(u32, u64),
}

impl Proof {
    fn of(link: &dyn Link) -> Option<Self> {
        let process = link.peer_process_identity().map(|(number, began)| Self::Process(number, began));
        link.peer_key().map(Self::Key).or(process)
    }
}

type Proven = (Proof, Life);

#[derive(Debug, Default)]
struct Known {
    /// The number of each node, and the peer that has it now or had it last.
    nodes: HashMap<Proven, (u32, PeerId)>,
    /// The keys of `nodes`, in the order in which they came.
    order: VecDeque<Proven>,
    /// Peers that are called by the number of an earlier peer, by that number.
    by_number: HashMap<u32, PeerId>,
    by_peer: HashMap<PeerId, u32>,
}

/// A number that is kept for a neighbour.
#[derive(Debug)]
struct Kept {
    /// The peer that is the neighbour now; [`NOBODY`]: none.
    peer: AtomicU32,
    /// The number of the life that grants to this number apply to: the life that has it, or had it last.
    life: AtomicU32,
    /// Whether any life has had this number.
    is_used: AtomicBool,
}

/// Stands for no neighbour: it is the number of the node itself.
const NOBODY: u32 = 0;

/// Which peer is called by which number.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// The numbers that are kept for neighbours, from 1 on.
    kept: OnceLock<Box<[Kept]>>,
    known: RwLock<Known>,
    /// Whether any peer is called by the number of an earlier one. Checked for each transfer.
    have_returned: AtomicBool,
}

impl Numbers {
    /// Notes that a peer has said which life of a node it is. `is_gone` says whether another peer is gone.
    pub(crate) fn introduced(
        &self,
        peer: PeerId,
        link: &dyn Link,
        life: Life,
        is_gone: impl FnOnce(PeerId) -> bool,
    ) {
        if let Some(proof) = Proof::of(link) {
            self.proven(peer, proof, life, is_gone);
        }
    }

    fn proven(&self, peer: PeerId, proof: Proof, life: Life, is_gone: impl FnOnce(PeerId) -> bool) {
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
        // A node may have several links that are peers of their own. Only the first of them is called by the number.
        if before != peer && is_gone(before) {
            known.nodes.insert(node, (number, peer));
            known.by_peer.remove(&before);
            known.by_number.insert(number, peer);
            known.by_peer.insert(peer, number);
            self.have_returned.store(true, Ordering::Release);
        }
    }

    /// Drops the number of a peer that is gone for good.
    pub(crate) fn forget(&self, peer: PeerId) {
        if self.have_returned.load(Ordering::Acquire) {
            let mut known = self.known.write();
            if let Some(number) = known.by_peer.remove(&peer) {
                known.by_number.remove(&number);
            }
        }
    }

    /// Keeps the numbers from 1 to `count` for neighbours. False: numbers are kept already.
    pub(crate) fn keep(&self, count: u32) -> bool {
        let kept = (1..=count).map(|number| Kept {
            peer: AtomicU32::new(NOBODY),
            life: AtomicU32::new(number),
            is_used: AtomicBool::new(false),
        });
        self.kept.set(kept.collect()).is_ok()
    }

    fn kept(&self, number: u32) -> Option<&Kept> {
        self.kept.get()?.get(number.checked_sub(1)? as usize)
    }

    /// Whether a number is kept for the neighbour that this peer is.
    pub(crate) fn is_kept(&self, peer: PeerId) -> bool {
        self.kept_number(peer).is_some()
    }

    fn kept_number(&self, peer: PeerId) -> Option<u32> {
        let place = self.kept.get()?.iter().position(|kept| kept.peer.load(Ordering::Acquire) == peer.0)?;
        (peer.0 != NOBODY).then_some(place as u32 + 1)
    }

    /// Makes a peer the neighbour with that number, by its link and in its life. `None`: the neighbour is not there.
    pub(crate) fn assign(&self, number: u32, peer: Option<(PeerId, &dyn Link, Option<Life>)>) {
        let Some(kept) = self.kept(number) else { return };
        let Some((peer, link, life)) = peer else {
            return kept.peer.store(NOBODY, Ordering::Release);
        };
        let mut known = self.known.write();
        let node = Proof::of(link).zip(life);
        let is_first = !kept.is_used.swap(true, Ordering::AcqRel);
        let own = node.and_then(|node| known.nodes.get(&node)).map(|(own, _)| *own);
        // What was granted to the number before any life had it is granted to its first life.
        let own = if is_first { number } else { own.unwrap_or(peer.0) };
        if let Some(known) = node.and_then(|node| known.nodes.get_mut(&node)) {
            *known = (own, peer);
        }
        if own != peer.0 {
            known.by_number.insert(own, peer);
            known.by_peer.insert(peer, own);
            self.have_returned.store(true, Ordering::Release);
        }
        drop(known);
        kept.life.store(own, Ordering::Release);
        kept.peer.store(peer.0, Ordering::Release);
    }

    /// The number of the life that a program's grant to `number` applies to.
    pub(crate) fn life_called(&self, number: u32) -> u32 {
        self.kept(number).map_or(number, |kept| kept.life.load(Ordering::Acquire))
    }

    /// The peer that is called by a number. `None`: the number is kept for a neighbour that is not there.
    pub(crate) fn peer(&self, number: u32) -> Option<PeerId> {
        if let Some(kept) = self.kept(number) {
            let peer = kept.peer.load(Ordering::Acquire);
            return (peer != NOBODY).then_some(PeerId(peer));
        }
        let returned = if self.have_returned.load(Ordering::Acquire) {
            self.known.read().by_number.get(&number).copied()
        } else {
            None
        };
        Some(returned.unwrap_or(PeerId(number)))
    }

    /// The number that a peer is called by.
    pub(crate) fn number(&self, peer: PeerId) -> u32 {
        self.kept_number(peer).unwrap_or_else(|| self.life_number(peer))
    }

    /// The number of the life that a peer is. Grants name a node by this number.
    pub(crate) fn life_number(&self, peer: PeerId) -> u32 {
        let returned = if self.have_returned.load(Ordering::Acquire) {
            self.known.read().by_peer.get(&peer).copied()
        } else {
            None
        };
        returned.unwrap_or(peer.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that has the number of an ended process, and claims its life, is another node.
    #[test]
    fn a_process_number_that_is_given_again_inherits_nothing() {
        let (numbers, life) = (Numbers::default(), Life::new().unwrap());
        let (first, impostor, back) = (PeerId(7), PeerId(8), PeerId(9));
        numbers.proven(first, Proof::Process(1000, 5), life, |_| true);
        numbers.proven(impostor, Proof::Process(1000, 6), life, |_| true);
        assert_eq!((numbers.number(first), numbers.number(impostor)), (7, 8));
        numbers.proven(back, Proof::Process(1000, 5), life, |_| true);
        assert_eq!((numbers.number(back), numbers.peer(7)), (7, Some(back)));
    }
}
