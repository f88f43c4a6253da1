//! Transfers between two other nodes. The asking node asks the node that has the source (the carrier), which sends the
//! bytes straight to the destination's node and reports how the transfer ended.
//!
//! The carrier reads only memory that its programs grant to the asking node. The destination must grant writing to the
//! asking node, too: grants to the carrier play no part. [`crate::fabric::carriers`] describes how the destination's
//! node knows on whose behalf bytes come. The asking node names the destination's node by its key and its life, never
//! by its name, which any node can choose. If several peers match, nothing is moved. [`crate::fabric::third_party`] has
//! the messages between the nodes.

use std::time::Instant;

use tombolo_channel::Failure;
use tombolo_core::rdma::{Class, Direction, PeerId, PostError, Transfer};
use tombolo_wire::{Asker, Domain, NackCode, Notification};

use crate::driver::address_space::{Denied, may_be_third_party};
use crate::driver::node::Node;
use crate::fabric::arrangements::{Begun, Next, Wish};
use crate::fabric::connection::Connection;
use crate::fabric::messages::{Carriage, Reply, Request};
use crate::fabric::neighbour::Neighbour;
use crate::fabric::table::ITSELF;
use crate::fabric::third_party::Question;
use crate::programs::user::Poster;

/// A transfer that this node asks another node to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThirdPartyTransfer {
    /// The peer of this node that the bytes go to. `None`: they stay at the node that is asked.
    pub(crate) to: Option<PeerId>,
    /// The transfer, whose own domain is the source's domain at the node that is asked.
    pub(crate) transfer: Transfer,
}

fn why_not_posted(error: PostError) -> Failure {
    match error {
        PostError::Full => Failure::refused(NackCode::BufferFull),
        PostError::UnknownPeer(_) => Failure::NoSuchNode,
        _ => Failure::BadDescriptor,
    }
}

impl Node {
    /// Asks a peer to make a transfer. False: there is no room to ask now, so the caller tries again later.
    pub(crate) fn ask_third_party(&self, id: PeerId, wanted: &ThirdPartyTransfer) -> Result<bool, Failure> {
        let connection = self.fabric.connection(id).ok_or(Failure::NoSuchNode)?;
        let destination = match wanted.to {
            Some(to) => Some(self.fabric.connection(to).ok_or(Failure::NoSuchNode)?),
            None => None,
        };
        let identity = |of: &Connection| of.identity().ok_or(Failure::NoSuchNode);
        let to = destination.as_deref().map(identity).transpose()?;
        let transfer = &wanted.transfer;
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
        let Some(destination) = destination else {
            return self.fabric.third_party.ask(connection.neighbour(), transfer.user, carriage);
        };
        let waiting = self.fabric.arrangements.waiting_for(id);
        if !self.fabric.third_party.may_ask(id, waiting) {
            return Ok(false);
        }
        let request = Request::LetCarry { carrier: identity(&connection)? };
        let next = Next::Ask { carrier: id, user: transfer.user, carriage };
        let begun =
            self.fabric.arrangements.begin(destination.neighbour(), Wish::LetCarry(id), request, next);
        self.look_whether_lost(connection.neighbour());
        match begun {
            Begun::Made(_, Next::Ask { user, carriage, .. }) => {
                self.fabric.third_party.ask(connection.neighbour(), user, carriage)
            }
            Begun::Made(..) | Begun::Waits => Ok(true),
            Begun::Full => Ok(false),
            Begun::Lost => Err(Failure::Gone),
        }
    }

    /// Fails the transfers that have waited too long for the answer of the destination's node.
    pub(crate) fn expire_arrangements(&self, now: Instant) {
        self.do_not_go_on(self.fabric.arrangements.overdue(now), Failure::Unreachable);
    }

    /// Fails what waits for an arrangement about this peer, if the peer is lost. To be called after each new
    /// arrangement: if the peer was lost just before, [`Node::third_party_lost`] did not find it.
    fn look_whether_lost(&self, peer: &Neighbour) {
        if peer.loss().is_some() {
            self.do_not_go_on(self.fabric.arrangements.peer_lost(peer.id), Failure::Gone);
        }
    }

    fn do_not_go_on(&self, waited: Vec<Next>, why: Failure) {
        for next in waited {
            match next {
                Next::Ask { user, .. } => self.programs.completed(user, Err(why)),
                Next::Make { user, .. } => self.third_party_ended(user, Err(why)),
            };
        }
    }

    /// Goes on with transfers that waited for the answer of the destination's node. `asker` is `None` if that node
    /// refused.
    fn go_on_with(&self, waited: Vec<Next>, asker: Option<Asker>) {
        for next in waited {
            match next {
                Next::Ask { carrier, user, carriage } => {
                    let asked = match (asker, self.fabric.connection(carrier)) {
                        (Some(_), Some(carrier)) => {
                            self.fabric.third_party.ask_now_or_later(carrier.neighbour(), user, carriage)
                        }
                        _ => Err(Failure::NoSuchNode),
                    };
                    if let Err(failure) = asked {
                        self.programs.completed(user, Err(failure));
                    }
                }
                Next::Make { user, to, transfer } => {
                    let begun = match asker {
                        Some(asker) => self.fabric.post_for(to, transfer, asker).map_err(why_not_posted),
                        None => Err(Failure::refused(NackCode::DomainMismatch)),
                    };
                    if let Err(failure) = begun {
                        self.third_party_ended(user, Err(failure));
                    }
                }
            }
        }
    }

    /// Takes an answer of a peer. Returns whether it was the answer to [`Node::ask_third_party`] or to a request that
    /// this made.
    pub(crate) fn third_party_answered(&self, by: &Neighbour, number: u32, reply: &Reply) -> bool {
        let peer = by.id;
        if let Some((waited, asker)) = self.fabric.arrangements.answered(peer, number, reply) {
            self.go_on_with(waited, asker);
            return true;
        }
        let Some(user) = self.fabric.third_party.take_asked(peer, number) else { return false };
        let result = match reply {
            Reply::Carried(None) => Ok(0),
            Reply::Carried(Some(code)) => Err(match Failure::from_code(*code) {
                // At the carrier the failure is local. Seen from here it is a refusal.
                Failure::Local { code, page } => Failure::Refused { code, page },
                other => other,
            }),
            _ => Err(Failure::Unreachable),
        };
        if matches!(result, Err(Failure::Refused { code: NackCode::DomainMismatch, .. })) {
            // The destination's node may have lost its link to the carrier meanwhile, and the arrangement with it.
            self.fabric.arrangements.forget(Wish::LetCarry(peer));
        }
        self.programs.completed(user, result);
        true
    }

    /// Fails the transfers that a lost peer was asked to make, and forgets all arrangements with it.
    pub(crate) fn third_party_lost(&self, peer: PeerId) {
        for user in self.fabric.third_party.peer_lost(peer) {
            self.programs.completed(user, Err(Failure::Gone));
        }
        self.fabric.carriers.peer_lost(peer);
        self.do_not_go_on(self.fabric.arrangements.peer_lost(peer), Failure::Gone);
    }

    /// Makes a transfer from this node for a peer, and reports its end to the peer.
    pub(crate) fn make_for(&self, neighbour: &Neighbour, number: u32, carriage: &Carriage) {
        let transfers = &self.fabric.third_party;
        let user = Poster::user_of_peer(neighbour.id, transfers.next_index());
        let Some(question) = transfers.question(neighbour, number, user) else { return };
        let begun = match question {
            Question::New => self.make(neighbour, user, carriage),
            Question::OneTooMany => Err(Failure::refused(NackCode::BufferFull)),
            Question::Known => Ok(()),
        };
        if let Err(failure) = begun {
            transfers.not_begun(neighbour.id, number, user, failure);
        }
        if begun.is_err() || question == Question::Known {
            transfers.send_to(neighbour);
        }
    }

    fn make(&self, asker: &Neighbour, user: u64, carriage: &Carriage) -> Result<(), Failure> {
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
        if !may_be_third_party(&transfer) {
            return Err(Failure::BadDescriptor);
        }
        let Some(to) = &carriage.to else {
            return self.post(ITSELF, transfer).map_err(why_not_posted);
        };
        let to = self.fabric.peer_with(to)?;
        let connection = |id| self.fabric.connection(id).ok_or(Failure::NoSuchNode);
        let identity = connection(asker.id)?.identity().ok_or(Failure::NoSuchNode)?;
        let (request, next) = (Request::WriteFor { asker: identity }, Next::Make { user, to, transfer });
        let destination = connection(to)?;
        let wish = Wish::WriteFor(asker.id);
        let begun = self.fabric.arrangements.begin(destination.neighbour(), wish, request, next);
        self.look_whether_lost(asker);
        match begun {
            Begun::Made(number, _) => self.fabric.post_for(to, transfer, number).map_err(why_not_posted),
            Begun::Waits => Ok(()),
            Begun::Full => Err(Failure::refused(NackCode::BufferFull)),
            Begun::Lost => Err(Failure::NoSuchNode),
        }
    }

    /// The poster on whose behalf a peer writes to this node: the packet says it by a number.
    pub(crate) fn writer(&self, peer: PeerId, asker: Asker) -> Result<Poster, Denied> {
        match asker {
            Asker::SENDER => Ok(Poster::Peer(peer)),
            number => self.fabric.carriers.asker(peer, number).map(Poster::Peer).ok_or(Denied::NotGranted),
        }
    }

    /// Reports the end of a transfer to the peer that asked for it. False: no peer asked for this transfer.
    pub(crate) fn third_party_ended(&self, user: u64, result: Result<(), Failure>) -> bool {
        if !matches!(Poster::of(user), Poster::Peer(_)) {
            return false;
        }
        let asker = self.fabric.third_party.ended(user, result);
        if let (Some(asker), Err(Failure::Refused { code: NackCode::DomainMismatch, .. })) = (asker, result) {
            // The asker's number may date from an earlier link to the destination's node.
            self.fabric.arrangements.forget(Wish::WriteFor(asker));
        }
        if let Some(connection) = asker.and_then(|id| self.fabric.connection(id)) {
            self.fabric.third_party.send_to(connection.neighbour());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use tombolo_channel::SLOTS;
    use tombolo_link::testing::memory_pair;

    use super::*;
    use crate::fabric::messages::{Message, MessageV1};
    use crate::fabric::third_party::{MAX_MADE, MAX_MADE_EACH};
    use crate::programs::Limits;

    /// A transfer between two domains that do not exist, at the node that is asked.
    fn nowhere() -> Carriage {
        Carriage {
            to: None,
            source_domain: 0x8001,
            source_address: 1 << 56,
            destination_domain: 0x8002,
            destination_address: 1 << 56,
            size_bytes: 64,
            notification: None,
            class: None,
        }
    }

    /// A write between domains that do not exist.
    fn written(user: u64) -> Transfer {
        Transfer {
            direction: Direction::Write,
            domain: Domain(0x8002),
            own_domain: Domain(0x8001),
            source_address: 1 << 56,
            destination_address: 1 << 56,
            size_bytes: 64,
            notification: None,
            class: None,
            user,
        }
    }

    fn ask(number: u32) -> Vec<u8> {
        let request = Request::Carry(Box::new(nowhere()));
        Message::V1(MessageV1::Ask { number, request }).encode()
    }

    fn answer(number: u32) -> Vec<u8> {
        Message::V1(MessageV1::Answer { number, reply: Reply::Carried(None) }).encode()
    }

    /// The numbers of the answers that have come, all of which say how a transfer ended.
    fn answered(link: &dyn tombolo_link::Link) -> Vec<u32> {
        let mut numbers = Vec::new();
        while let Ok(Some(message)) = link.receive_control() {
            match Message::decode(&message.bytes) {
                Ok(Message::V1(MessageV1::Answer { number, reply: Reply::Carried(_) })) => {
                    numbers.push(number)
                }
                other => panic!("{other:?}"),
            }
        }
        numbers
    }

    #[test]
    fn answers_that_a_link_has_no_room_for_come_when_it_has() {
        let node = Node::new("carrier", 0, 0).unwrap();
        let (near, far) = memory_pair().unwrap();
        let peer = node.add_peer(near);
        // As many as a peer may have open, which is more than the link's queue of control messages holds.
        let wanted: Vec<u32> = (1..=MAX_MADE_EACH as u32).collect();
        for number in &wanted {
            far.send_control(&ask(*number), &[]).unwrap();
            node.drive(&peer);
        }
        let mut found = answered(&*far);
        assert!(found.len() < wanted.len(), "they fit: the test shows nothing");
        while node.fabric.send_waiting_third_party() {
            found.extend(answered(&*far));
        }
        found.extend(answered(&*far));
        found.sort_unstable();
        assert_eq!(found, wanted);
    }

    /// The transfers that peers may have open leave room for one transfer per channel of this node's programs.
    #[test]
    fn transfers_of_peers_take_no_room_of_programs() {
        let limits = Limits { domains: 16, ..Limits::default() };
        let channels = u32::from(limits.domains) * SLOTS as u32;
        let node = Node::with_limits("carrier", 0, 0, limits).unwrap();
        let (near, _far) = memory_pair().unwrap();
        let peer = node.add_peer(near).id;
        let post = |_| node.post(peer, written(Poster::user_of_peer(peer, 1)));
        assert_eq!((0..MAX_MADE as u32 + channels).map(post).find(Result::is_err), None);
        assert_eq!(post(0), Err(PostError::Full));
    }

    #[test]
    fn a_question_that_comes_again_is_answered_again_and_made_once() {
        let node = Node::new("carrier", 0, 0).unwrap();
        let (near, far) = memory_pair().unwrap();
        let peer = node.add_peer(near);
        for _ in 0..3 {
            far.send_control(&ask(7), &[]).unwrap();
            node.drive(&peer);
            assert_eq!(answered(&*far), [7]);
        }
        assert_eq!(node.fabric.engine.lock().counters().transfers_posted, 1);
    }

    /// A peer with two links, played by hand, is asked for transfers.
    #[test]
    fn open_questions_are_asked_again_by_the_link_that_is_left() {
        let node = Node::new("asker", 0, 0).unwrap();
        let (first, far_first) = memory_pair().unwrap();
        let (second, far_second) = memory_pair().unwrap();
        let whole = node.add_peer(first);
        let token = [7; 16];
        whole.neighbour().set_token(token);
        let part = node.add_peer(second);
        assert_eq!(node.fabric.be_path(&part, &token), Reply::Done);
        let wanted = ThirdPartyTransfer { to: None, transfer: written(5) };
        for _ in 0..3 {
            assert_eq!(node.ask_third_party(whole.id, &wanted), Ok(true));
        }
        let questions = |link: &dyn tombolo_link::Link| {
            let mut numbers = Vec::new();
            while let Ok(Some(message)) = link.receive_control() {
                if let Ok(Message::V1(MessageV1::Ask { number, request: Request::Carry(_) })) =
                    Message::decode(&message.bytes)
                {
                    numbers.push(number);
                }
            }
            numbers
        };
        let asked = questions(&*far_first);
        assert_eq!(asked.len(), 3);
        // One question is answered. The link is lost with the answers to the rest.
        far_first.send_control(&answer(asked[0]), &[]).unwrap();
        node.drive(&whole);
        drop(far_first);
        node.drive(&whole);
        assert!(whole.loss().is_none() && !whole.has_link());
        assert_eq!(questions(&*far_second), asked[1..]);
        for number in &asked[1..] {
            assert!(node.third_party_answered(whole.neighbour(), *number, &Reply::Carried(None)));
            assert!(
                !node.third_party_answered(whole.neighbour(), *number, &Reply::Carried(None)),
                "answered twice"
            );
        }
        // A further question goes by the link that is left.
        assert_eq!(node.ask_third_party(whole.id, &wanted), Ok(true));
        assert_eq!(questions(&*far_second).len(), 1);
    }
}
