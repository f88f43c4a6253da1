//! Transfers between two other nodes: the one that has the source is asked, moves the bytes
//! straight to where they go, and says how that ended.
//!
//! It reads what it was granted that the asking node may read, and the destination grants the
//! source's node, as with any other write of that. The asking node says which node the bytes go to by its
//! key and its life, never by its name, which any node can choose. Where several neighbours could be that
//! one, nothing is moved.
//!
//! Neither a question nor an answer is lost while a link to the other node is left. What a full link does
//! not take is kept until it does. When one of several links is lost, all open questions are asked again by
//! another, under their numbers; the node that is asked knows the numbers of what it makes and of what it
//! made last, so that each transfer is made once, and says again what became of it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tombolo_channel::Failure;
use tombolo_core::rdma::{Class, Direction, PeerId, PostError, Transfer};
use tombolo_link::SendError;
use tombolo_wire::{Domain, NackCode, Notification};

use crate::driver::node::{ITSELF, Node, Peer};
use crate::fabric::life::NodeIdentity;
use crate::fabric::messages::{Carriage, Message, MessageV1, Reply, Request};
use crate::programs::Poster;

/// Transfers that peers have asked for, open at once: half of what the engine has room for.
const MAX_CARRIED: usize = 512;
/// Those of one peer: others have some, too, when it wants all. No node asks another for more.
const MAX_CARRIED_EACH: usize = 128;
/// Outcomes that are known still, of one peer's questions. While an outcome waits to be heard again, at
/// most this many others follow it: of the questions that were open with it, and of those that were asked
/// by the next link before the open ones were asked again there.
const MAX_OUTCOMES: usize = 2 * MAX_CARRIED_EACH;
/// After this long, what a link did not take is offered again.
pub(crate) const SEND_PAUSE: Duration = Duration::from_millis(5);

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
    state: Mutex<State>,
    next: AtomicU32,
    /// Something waits for room on a link.
    waits: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    peers: HashMap<PeerId, WithPeer>,
    /// Made for others: who asked, and under which number, by the user number.
    made: HashMap<u64, (PeerId, u32)>,
}

/// A question that has no answer yet.
#[derive(Debug)]
struct Asked {
    user: u64,
    message: Vec<u8>,
}

/// Questions and answers between this node and one peer. By their numbers.
#[derive(Debug, Default)]
struct WithPeer {
    /// Asked by us.
    asked: BTreeMap<u32, Asked>,
    /// Those of them that no link has taken, or only one that is lost.
    to_ask: VecDeque<u32>,
    /// Being made for the peer.
    making: HashSet<u32>,
    /// What became of the last ones that were made for it: why each failed, if it did.
    outcomes: VecDeque<(u32, Option<u64>)>,
    /// Those of them that no link has taken.
    to_answer: VecDeque<u32>,
}

/// What a question of a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    New,
    /// The peer has too many open.
    OneTooMany,
    /// It was asked before, and is answered when the transfer ends, or again.
    Known,
}

impl WithPeer {
    /// A question has come.
    fn question(&mut self, number: u32) -> Question {
        if self.making.contains(&number) {
            return Question::Known;
        }
        if self.outcomes.iter().any(|(known, _)| *known == number) {
            if !self.to_answer.contains(&number) {
                self.to_answer.push_back(number);
            }
            return Question::Known;
        }
        if self.making.len() + self.to_answer.len() >= MAX_CARRIED_EACH {
            return Question::OneTooMany;
        }
        self.making.insert(number);
        Question::New
    }

    /// A transfer that the peer asked for has ended, or was not begun.
    fn ended(&mut self, number: u32, failure: Option<u64>) {
        self.making.remove(&number);
        if self.outcomes.len() >= MAX_OUTCOMES
            && let Some((oldest, _)) = self.outcomes.pop_front()
        {
            // Only a peer that has more open than it may has not heard of it.
            self.to_answer.retain(|number| *number != oldest);
        }
        self.outcomes.push_back((number, failure));
        self.to_answer.push_back(number);
    }

    /// A link is lost by which questions and answers may have been under way.
    fn path_lost(&mut self) {
        self.to_ask = self.asked.keys().copied().collect();
    }

    /// The next message for the peer, until [`WithPeer::sent`].
    fn next(&mut self) -> Option<Vec<u8>> {
        if let Some(number) = self.to_answer.front() {
            let (number, failure) = *self.outcomes.iter().find(|(known, _)| known == number)?;
            return Some(Message::V1(MessageV1::Answer { number, reply: Reply::Carried(failure) }).encode());
        }
        loop {
            let number = self.to_ask.front()?;
            match self.asked.get(number) {
                Some(asked) => return Some(asked.message.clone()),
                // Answered meanwhile.
                None => self.to_ask.pop_front(),
            };
        }
    }

    /// A link has taken that message.
    fn sent(&mut self) {
        if self.to_answer.pop_front().is_none() {
            self.to_ask.pop_front();
        }
    }
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
        let request = Request::Carry(Box::new(carriage));
        let message = Message::V1(MessageV1::Ask { number, request }).encode();
        let mut state = self.carriages.state.lock();
        // With the lock held: a peer or a link that is lost from now on finds the question.
        if peer.loss().is_some() {
            return Err(Failure::Gone);
        }
        let with = state.peers.entry(id).or_default();
        if with.asked.len() >= MAX_CARRIED_EACH || !with.to_ask.is_empty() {
            // Those that wait for room go first.
            return Ok(false);
        }
        match peer.control_link().send_control(&message, &[]) {
            Ok(()) => {}
            Err(SendError::Full) => return Ok(false),
            Err(_) if self.has_several(&peer) => {
                with.to_ask.push_back(number);
                self.carriages.waits.store(true, Ordering::Relaxed);
            }
            Err(_) => return Err(Failure::Gone),
        }
        // Whoever takes it out tells the program.
        with.asked.insert(number, Asked { user: transfer.user, message });
        Ok(true)
    }

    /// An answer has come: whether it was one to [`Node::ask_to_carry`].
    pub(crate) fn carried_by(&self, peer: PeerId, number: u32, reply: &Reply) -> bool {
        let asked =
            self.carriages.state.lock().peers.get_mut(&peer).and_then(|with| with.asked.remove(&number));
        let Some(Asked { user, .. }) = asked else { return false };
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
        let lost = {
            let mut state = self.carriages.state.lock();
            state.made.retain(|_, (asker, _)| *asker != peer);
            state.peers.remove(&peer)
        };
        for Asked { user, .. } in lost.into_iter().flat_map(|with| with.asked.into_values()) {
            self.programs.completed(user, Err(Failure::Gone));
        }
    }

    /// One of several links to a peer is lost: open questions are asked again by another.
    pub(crate) fn carry_by_another_path(&self, peer: &Peer) {
        if let Some(with) = self.carriages.state.lock().peers.get_mut(&peer.id) {
            with.path_lost();
        }
        self.send_carriages_to(peer);
    }

    /// Sends a peer what it is to hear of transfers, as far as its link takes it.
    fn send_carriages_to(&self, peer: &Peer) {
        let mut state = self.carriages.state.lock();
        let Some(with) = state.peers.get_mut(&peer.id) else { return };
        while let Some(message) = with.next() {
            if peer.control_link().send_control(&message, &[]).is_err() {
                // It is full, or lost: then another has it soon, or the peer is lost, too.
                self.carriages.waits.store(true, Ordering::Relaxed);
                return;
            }
            with.sent();
        }
    }

    /// Sends what links had no room for, as far as they have now. Returns whether something still waits.
    pub(crate) fn send_carriages(&self) -> bool {
        if !self.carriages.waits.load(Ordering::Relaxed) {
            return false;
        }
        self.carriages.waits.store(false, Ordering::Relaxed);
        let waiting: Vec<PeerId> = {
            let state = self.carriages.state.lock();
            let waits = |with: &WithPeer| !(with.to_ask.is_empty() && with.to_answer.is_empty());
            state.peers.iter().filter(|(_, with)| waits(with)).map(|(id, _)| *id).collect()
        };
        for peer in waiting.into_iter().filter_map(|id| self.peer(id)) {
            self.send_carriages_to(&peer);
        }
        self.carriages.waits.load(Ordering::Relaxed)
    }

    /// A peer asks for a transfer from here. It hears of the end.
    pub(crate) fn carry_for(&self, peer: &Peer, number: u32, carriage: &Carriage) {
        let index = self.carriages.next.fetch_add(1, Ordering::Relaxed);
        let user = Poster::user_of_peer(peer.id, index);
        let question = {
            let mut state = self.carriages.state.lock();
            // One that is lost has been forgotten, and asks nothing more.
            if peer.loss().is_some() {
                return;
            }
            // A user number comes again after sixteen million others.
            let is_full = state.made.len() >= MAX_CARRIED || state.made.contains_key(&user);
            let with = state.peers.entry(peer.id).or_default();
            match with.question(number) {
                Question::New if is_full => Question::OneTooMany,
                Question::New => {
                    state.made.insert(user, (peer.id, number));
                    Question::New
                }
                question => question,
            }
        };
        let begun = match question {
            Question::New => self.begin_carriage(user, carriage),
            Question::OneTooMany => Err(Failure::Refused(NackCode::BufferFull)),
            Question::Known => Ok(()),
        };
        if let Err(failure) = begun {
            let mut state = self.carriages.state.lock();
            state.made.remove(&user);
            if let Some(with) = state.peers.get_mut(&peer.id) {
                with.ended(number, Some(failure.code()));
            }
        }
        if begun.is_err() || question == Question::Known {
            self.send_carriages_to(peer);
        }
    }

    fn begin_carriage(&self, user: u64, carriage: &Carriage) -> Result<(), Failure> {
        let to = match &carriage.to {
            None => ITSELF,
            Some(identity) => self.peer_with(identity)?,
        };
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
        if !programs_only || is_mail {
            return Err(Failure::BadDescriptor);
        }
        self.post(to, transfer).map_err(|error| match error {
            PostError::Full => Failure::Refused(NackCode::BufferFull),
            PostError::UnknownPeer(_) => Failure::NoSuchNode,
            _ => Failure::BadDescriptor,
        })
    }

    /// A transfer has ended: whether it was one that a peer asked for. Then that is told.
    pub(crate) fn carried(&self, user: u64, result: Result<(), Failure>) -> bool {
        if !matches!(Poster::of(user), Poster::Peer(_)) {
            return false;
        }
        let id = {
            let mut state = self.carriages.state.lock();
            let Some((id, number)) = state.made.remove(&user) else { return true };
            if let Some(with) = state.peers.get_mut(&id) {
                with.ended(number, result.err().map(Failure::code));
            }
            id
        };
        if let Some(peer) = self.peer(id) {
            self.send_carriages_to(&peer);
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

#[cfg(test)]
mod tests {
    use tombolo_link::testing::memory_pair;

    use super::*;

    /// A transfer of a domain that does not exist, at the node that is asked.
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
        // More than the link's queue of control messages holds, and as many as a peer may have open.
        let wanted: Vec<u32> = (1..=MAX_CARRIED_EACH as u32).collect();
        for number in &wanted {
            far.send_control(&ask(*number), &[]).unwrap();
            node.drive(&peer);
        }
        let mut found = answered(&*far);
        assert!(found.len() < wanted.len(), "they fit: the test shows nothing");
        while node.send_carriages() {
            found.extend(answered(&*far));
        }
        found.extend(answered(&*far));
        found.sort_unstable();
        assert_eq!(found, wanted);
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
        assert_eq!(node.engine.lock().counters().transfers_posted, 1);
    }

    #[test]
    fn outcomes_are_known_as_long_as_they_may_be_asked_for() {
        let mut with = WithPeer::default();
        assert_eq!(with.question(1), Question::New);
        assert_eq!(with.question(1), Question::Known);
        with.ended(1, None);
        assert!(with.next().is_some());
        with.sent();
        for number in 2..=MAX_OUTCOMES as u32 {
            assert_eq!(with.question(number), Question::New);
            with.ended(number, None);
            with.sent();
        }
        assert_eq!(with.question(1), Question::Known);
        assert_eq!(with.next(), Some(answer(1)));
        with.sent();
        assert_eq!(with.next(), None);
        // A peer that takes no answers is turned away.
        for number in 1000..1000 + MAX_CARRIED_EACH as u32 {
            assert_eq!(with.question(number), Question::New);
        }
        assert_eq!(with.question(2000), Question::OneTooMany);
        for number in 1000..1000 + 2 * MAX_OUTCOMES as u32 {
            with.ended(number, None);
        }
        assert_eq!((with.outcomes.len(), with.to_answer.len()), (MAX_OUTCOMES, MAX_OUTCOMES));
    }

    /// Two nodes with two links; the one that asks is played by hand, or the one that is asked.
    #[test]
    fn open_questions_are_asked_again_by_the_link_that_is_left() {
        let node = Node::new("asker", 0, 0).unwrap();
        let (first, far_first) = memory_pair().unwrap();
        let (second, far_second) = memory_pair().unwrap();
        let whole = node.add_peer(first);
        let token = [7; 16];
        let _ = whole.token.set(token);
        let part = node.add_peer(second);
        assert_eq!(node.be_path(&part, &token), Reply::Done);
        let errand = Errand {
            to: None,
            transfer: Transfer {
                direction: Direction::Write,
                domain: Domain(0x8002),
                own_domain: Domain(0x8001),
                source_address: 1 << 56,
                destination_address: 1 << 56,
                size_bytes: 64,
                notification: None,
                class: None,
                user: 5,
            },
        };
        for _ in 0..3 {
            assert_eq!(node.ask_to_carry(whole.id, &errand), Ok(true));
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
        // One is answered; the link is lost with the answers to the others.
        far_first.send_control(&answer(asked[0]), &[]).unwrap();
        node.drive(&whole);
        drop(far_first);
        node.drive(&whole);
        assert!(whole.loss().is_none() && !whole.has_link());
        assert_eq!(questions(&*far_second), asked[1..]);
        for number in &asked[1..] {
            assert!(node.carried_by(whole.id, *number, &Reply::Carried(None)));
            assert!(!node.carried_by(whole.id, *number, &Reply::Carried(None)), "answered twice");
        }
        // A further one goes by the link that is left.
        assert_eq!(node.ask_to_carry(whole.id, &errand), Ok(true));
        assert_eq!(questions(&*far_second).len(), 1);
    }

    #[test]
    fn a_node_asks_no_more_than_another_makes() {
        let node = Node::new("asker", 0, 0).unwrap();
        let mut with = WithPeer::default();
        for number in 0..MAX_CARRIED_EACH as u32 {
            with.asked.insert(number, Asked { user: 5, message: Vec::new() });
        }
        let (near, far) = memory_pair().unwrap();
        let peer = node.add_peer(near);
        node.carriages.state.lock().peers.insert(peer.id, with);
        let transfer = Transfer {
            direction: Direction::Write,
            domain: Domain(0x8002),
            own_domain: Domain(0x8001),
            source_address: 0,
            destination_address: 0,
            size_bytes: 64,
            notification: None,
            class: None,
            user: 5,
        };
        assert_eq!(node.ask_to_carry(peer.id, &Errand { to: None, transfer }), Ok(false));
        assert!(far.receive_control().unwrap().is_none());
    }
}
