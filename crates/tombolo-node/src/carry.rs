//! Transfers between two other nodes: the one that has the source is asked, moves the bytes
//! straight to where they go, and says how that ended.
//!
//! It reads what it was granted that the asking node may read, and the destination grants the
//! source's node, as with any other write of that. The asking node says which node the bytes go to by its
//! key and its life, never by its name, which any node can choose. Where several neighbours could be that
//! one, nothing is moved.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tombolo_channel::Failure;
use tombolo_core::rdma::{Class, Direction, PeerId, PostError, Transfer};
use tombolo_link::SendError;
use tombolo_wire::{Domain, NackCode, Notification};

use crate::control::{Carriage, Message, MessageV1, Reply, Request};
use crate::life::NodeIdentity;
use crate::node::{ITSELF, Node, Peer};
use crate::programs::Poster;

/// Transfers that peers have asked for, open at once: half of what the engine has room for.
const MAX_CARRIED: usize = 512;
/// Those of one peer: others have some, too, when it wants all.
const MAX_CARRIED_EACH: usize = 128;

/// A transfer that another node is to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errand {
    /// To which peer of ours; None: it stays at the other node.
    pub(crate) to: Option<PeerId>,
    /// Its own domain is the source's, at that node.
    pub(crate) transfer: Transfer,
}

/// What is open of all that.
#[derive(Debug, Default)]
pub(crate) struct Carriages {
    /// Asked by us: the user number by the peer and the number of the question.
    asked: Mutex<HashMap<(PeerId, u32), u64>>,
    /// Made for others: who asked, and under which number, by the user number.
    made: Mutex<HashMap<u64, (PeerId, u32)>>,
    next: AtomicU32,
}

impl Node {
    /// Asks a peer to make a transfer. False: it cannot be asked now.
    pub(crate) fn ask_to_carry(&self, id: PeerId, errand: &Errand) -> Result<bool, Failure> {
        let peer = self.peer(id).ok_or(Failure::NoSuchNode)?;
        let to = match errand.to {
            Some(to) => {
                let to = self.peer(to).and_then(|to| to.identity());
                Some(to.ok_or(Failure::NoSuchNode)?)
            }
            None => None,
        };
        let transfer = &errand.transfer;
        let carriage = Carriage {
            to,
            source_domain: transfer.own_domain.0,
            source_address: transfer.source_address,
            destination_domain: transfer.domain.0,
            destination_address: transfer.destination_address,
            size_bytes: transfer.size_bytes,
            notification: transfer.notification.map(|words| [words.address, words.first, words.last]),
            class: transfer.class.map(|class| class as u8),
        };
        let number = peer.next_number.fetch_add(1, Ordering::Relaxed);
        self.carriages.asked.lock().insert((id, number), transfer.user);
        let request = Request::Carry(Box::new(carriage));
        let message = Message::V1(MessageV1::Ask { number, request }).encode();
        let sent = peer.control_link().send_control(&message, &[]);
        if sent.is_err() || peer.loss().is_some() {
            // Whoever takes it out, tells the program.
            if self.carriages.asked.lock().remove(&(id, number)).is_some() {
                return if matches!(sent, Err(SendError::Full)) { Ok(false) } else { Err(Failure::Gone) };
            }
        }
        Ok(true)
    }

    /// An answer has come: whether it was one to [`Node::ask_to_carry`].
    pub(crate) fn carried_by(&self, peer: PeerId, number: u32, reply: &Reply) -> bool {
        let Some(user) = self.carriages.asked.lock().remove(&(peer, number)) else { return false };
        let result = match reply {
            Reply::Carried(None) => Ok(0),
            Reply::Carried(Some(code)) => Err(Failure::from_code(*code)),
            _ => Err(Failure::Unreachable),
        };
        self.programs.completed(user, result);
        true
    }

    /// A peer is gone, and what it was asked to do with it.
    pub(crate) fn carrier_lost(&self, peer: PeerId) {
        let mut lost = Vec::new();
        self.carriages.asked.lock().retain(|(carrier, _), user| {
            let stays = *carrier != peer;
            if !stays {
                lost.push(*user);
            }
            stays
        });
        for user in lost {
            self.programs.completed(user, Err(Failure::Gone));
        }
        self.carriages.made.lock().retain(|_, (asker, _)| *asker != peer);
    }

    /// A peer asks for a transfer from here. Some: the answer is known at once.
    pub(crate) fn carry_for(&self, peer: &Peer, number: u32, carriage: &Carriage) -> Option<Reply> {
        let failed = |failure: Failure| Some(Reply::Carried(Some(failure.code())));
        let to = match &carriage.to {
            None => ITSELF,
            Some(identity) => match self.peer_with(identity) {
                Ok(peer) => peer,
                Err(failure) => return failed(failure),
            },
        };
        let index = self.carriages.next.fetch_add(1, Ordering::Relaxed);
        let user = Poster::user_of_peer(peer.id, index);
        {
            let mut made = self.carriages.made.lock();
            let its_own = made.values().filter(|(asker, _)| *asker == peer.id).count();
            if made.len() >= MAX_CARRIED || its_own >= MAX_CARRIED_EACH || made.contains_key(&user) {
                return failed(Failure::Refused(NackCode::BufferFull));
            }
            made.insert(user, (peer.id, number));
        }
        let transfer = Transfer {
            direction: Direction::Write,
            domain: Domain(carriage.destination_domain),
            own_domain: Domain(carriage.source_domain),
            source_address: carriage.source_address,
            destination_address: carriage.destination_address,
            size_bytes: carriage.size_bytes,
            notification: carriage.notification.map(|[address, first, last]| Notification {
                address,
                first,
                last,
            }),
            class: carriage.class.map(Class::from_number),
            user,
        };
        let programs_only = [transfer.domain, transfer.own_domain]
            .iter()
            .all(|domain| tombolo_channel::from_the_wire(*domain).is_some());
        let is_mail = tombolo_channel::reaches_mail(transfer.destination_address, transfer.size_bytes);
        let posted = if programs_only && !is_mail {
            self.post(to, transfer).map_err(|error| match error {
                PostError::Full => Failure::Refused(NackCode::BufferFull),
                PostError::UnknownPeer(_) => Failure::NoSuchNode,
                _ => Failure::BadDescriptor,
            })
        } else {
            Err(Failure::BadDescriptor)
        };
        posted.err().and_then(|failure| {
            self.carriages.made.lock().remove(&user);
            failed(failure)
        })
    }

    /// A transfer has ended: whether it was one that a peer asked for. Then that is told.
    pub(crate) fn carried(&self, user: u64, result: Result<(), Failure>) -> bool {
        if !matches!(Poster::of(user), Poster::Peer(_)) {
            return false;
        }
        let Some((id, number)) = self.carriages.made.lock().remove(&user) else { return true };
        if let Some(peer) = self.peer(id) {
            let reply = Reply::Carried(result.err().map(Failure::code));
            let message = Message::V1(MessageV1::Answer { number, reply }).encode();
            // A peer that asks and does not take the answers is on its own.
            let _ = peer.control_link().send_control(&message, &[]);
        }
        true
    }

    /// The one neighbour that is this node. It may have several links that it has not made one of; that
    /// they are of one node, its key says, or the kernel, which knows the process at the other end. Any
    /// other that says that it is the node too makes it unknown which is meant.
    fn peer_with(&self, identity: &NodeIdentity) -> Result<PeerId, Failure> {
        let mut candidates = self.peers().into_iter().filter(|peer: &Arc<Peer>| {
            !peer.is_part()
                && peer.loss().is_none()
                && peer.identity().is_some_and(|known| known.may_be(identity))
        });
        let proof = |peer: &Peer| (peer.link.peer_key(), peer.link.peer_process_id());
        let first = candidates.next().ok_or(Failure::NoSuchNode)?;
        let known = proof(&first);
        if candidates.any(|other| known == (None, None) || proof(&other) != known) {
            return Err(Failure::AmbiguousNode);
        }
        Ok(first.id)
    }
}
