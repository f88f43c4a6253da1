//! Questions and answers between nodes about third-party transfers: which are open, which go again.
//!
//! Neither a question nor an answer is lost while a link to the other node is left. What a full link does
//! not take is kept until it does. When one of several links is lost, all open questions are asked again by
//! another, under their numbers; the node that is asked knows the numbers of what it makes and of what it
//! made last, so that each transfer is made once, and says again what became of it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use tombolo_channel::Failure;
use tombolo_core::rdma::PeerId;
use tombolo_link::SendError;

use crate::fabric::messages::{Carriage, Message, MessageV1, Reply, Request};
use crate::fabric::neighbour::Neighbour;
use crate::fabric::table::Fabric;

/// Transfers that peers have asked for, open at once. The engine has room for these beside those of this node's own programs
/// (of at most 1,024 domains).
pub(crate) const MAX_MADE: usize = 512;
/// Transfers that one peer has asked for, open at once: a quarter of all, so that one peer cannot have them all.
/// No node asks another for more.
pub(crate) const MAX_MADE_EACH: usize = 128;
/// Outcomes that are known still, of one peer's questions. While an outcome waits to be heard again, at
/// most this many others follow it: of the questions that were open with it, and of those that were asked
/// by the next link before the open ones were asked again there.
const MAX_OUTCOMES: usize = 2 * MAX_MADE_EACH;

/// What is open of all that.
#[derive(Debug, Default)]
pub(crate) struct ThirdPartyTransfers {
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

impl Asked {
    /// A question for a neighbour, under a number of its own.
    fn new(neighbour: &Neighbour, user: u64, carriage: Carriage) -> (u32, Self) {
        let number = neighbour.next_number();
        let request = Request::Carry(Box::new(carriage));
        (number, Self { user, message: Message::V1(MessageV1::Ask { number, request }).encode() })
    }
}

/// Questions and answers between this node and one peer. By their numbers.
#[derive(Debug, Default)]
struct WithPeer {
    /// Asked by us.
    asked: BTreeMap<u32, Asked>,
    /// Numbers of questions that no link has taken, or that were taken by a link that was lost since.
    to_ask: VecDeque<u32>,
    /// Being made for the peer.
    making: HashSet<u32>,
    /// What became of the last ones that were made for it: why each failed, if it did.
    outcomes: VecDeque<(u32, Option<u64>)>,
    /// Numbers of outcomes that no link has taken.
    to_answer: VecDeque<u32>,
}

/// What a question of a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// The transfer is to be carried out.
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
        if self.making.len() + self.to_answer.len() >= MAX_MADE_EACH {
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

impl ThirdPartyTransfers {
    /// The place of the next transfer among those that peers have asked for.
    pub(crate) fn next_index(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks a neighbour to make a transfer. False: it cannot be asked now.
    pub(crate) fn ask(&self, neighbour: &Neighbour, user: u64, carriage: Carriage) -> Result<bool, Failure> {
        let (number, asked) = Asked::new(neighbour, user, carriage);
        let mut state = self.state.lock();
        // With the lock held: a peer or a link that is lost from now on finds the question.
        if neighbour.loss().is_some() {
            return Err(Failure::Gone);
        }
        let with = state.peers.entry(neighbour.id).or_default();
        if with.asked.len() >= MAX_MADE_EACH || !with.to_ask.is_empty() {
            // Those that wait for room go first.
            return Ok(false);
        }
        match neighbour.control_link().map(|link| link.send_control(&asked.message, &[])) {
            Some(Ok(())) => {}
            Some(Err(SendError::Full)) => return Ok(false),
            _ if neighbour.has_several() => {
                with.to_ask.push_back(number);
                self.waits.store(true, Ordering::Relaxed);
            }
            _ => return Err(Failure::Gone),
        }
        // Whoever takes it out tells the program.
        with.asked.insert(number, asked);
        Ok(true)
    }

    /// Whether a peer may be asked for one more, besides those that wait.
    pub(crate) fn may_ask(&self, peer: PeerId, waiting: usize) -> bool {
        let asked = self.state.lock().peers.get(&peer).map_or(0, |with| with.asked.len());
        asked + waiting < MAX_MADE_EACH
    }

    /// As [`ThirdPartyTransfers::ask`], of a transfer that has waited: what the link has no room for now goes when it has.
    pub(crate) fn ask_now_or_later(
        &self,
        neighbour: &Neighbour,
        user: u64,
        carriage: Carriage,
    ) -> Result<(), Failure> {
        let (number, asked) = Asked::new(neighbour, user, carriage);
        {
            let mut state = self.state.lock();
            if neighbour.loss().is_some() {
                return Err(Failure::Gone);
            }
            let with = state.peers.entry(neighbour.id).or_default();
            with.to_ask.push_back(number);
            with.asked.insert(number, asked);
        }
        self.send_to(neighbour);
        Ok(())
    }

    /// An answer has come: the user number, if it was one to [`ThirdPartyTransfers::ask`].
    pub(crate) fn take_asked(&self, peer: PeerId, number: u32) -> Option<u64> {
        self.state.lock().peers.get_mut(&peer)?.asked.remove(&number).map(|asked| asked.user)
    }

    /// A peer is gone. The user numbers of what it was asked to make.
    pub(crate) fn peer_lost(&self, peer: PeerId) -> impl Iterator<Item = u64> + use<> {
        let lost = {
            let mut state = self.state.lock();
            state.made.retain(|_, (asker, _)| *asker != peer);
            state.peers.remove(&peer)
        };
        lost.into_iter().flat_map(|with| with.asked.into_values()).map(|asked| asked.user)
    }

    /// One of several links to a peer is lost: open questions are asked again by another.
    pub(crate) fn ask_again(&self, neighbour: &Neighbour) {
        if let Some(with) = self.state.lock().peers.get_mut(&neighbour.id) {
            with.path_lost();
        }
        self.send_to(neighbour);
    }

    /// Sends a peer what it is to hear of transfers, as far as its link takes it.
    pub(crate) fn send_to(&self, neighbour: &Neighbour) {
        let mut state = self.state.lock();
        let Some(with) = state.peers.get_mut(&neighbour.id) else { return };
        while let Some(message) = with.next() {
            let link = neighbour.control_link();
            if link.is_none_or(|link| link.send_control(&message, &[]).is_err()) {
                // It is full, or lost: then another has it soon, or the peer is lost, too.
                self.waits.store(true, Ordering::Relaxed);
                return;
            }
            with.sent();
        }
    }

    /// A peer asks for a transfer, which would have that user number.
    pub(crate) fn question(&self, neighbour: &Neighbour, number: u32, user: u64) -> Option<Question> {
        let mut state = self.state.lock();
        // One that is lost has been forgotten, and asks nothing more.
        if neighbour.loss().is_some() {
            return None;
        }
        // A user number comes again after sixteen million others.
        let is_full = state.made.len() >= MAX_MADE || state.made.contains_key(&user);
        let with = state.peers.entry(neighbour.id).or_default();
        Some(match with.question(number) {
            Question::New if is_full => Question::OneTooMany,
            Question::New => {
                state.made.insert(user, (neighbour.id, number));
                Question::New
            }
            question => question,
        })
    }

    /// A transfer that was asked for was not begun.
    pub(crate) fn not_begun(&self, peer: PeerId, number: u32, user: u64, failure: Failure) {
        let mut state = self.state.lock();
        // The user number may be that of one that is being made.
        if state.made.get(&user) == Some(&(peer, number)) {
            state.made.remove(&user);
        }
        if let Some(with) = state.peers.get_mut(&peer) {
            with.ended(number, Some(failure.code()));
        }
    }

    /// A transfer that a peer asked for has ended. The peer, if it is still there.
    pub(crate) fn ended(&self, user: u64, result: Result<(), Failure>) -> Option<PeerId> {
        let mut state = self.state.lock();
        let (id, number) = state.made.remove(&user)?;
        if let Some(with) = state.peers.get_mut(&id) {
            with.ended(number, result.err().map(Failure::code));
        }
        Some(id)
    }
}

impl Fabric {
    /// Sends what links had no room for, as far as they have now. Returns whether something still waits.
    pub(crate) fn send_waiting_third_party(&self) -> bool {
        let transfers = &self.third_party;
        if !transfers.waits.load(Ordering::Relaxed) {
            return false;
        }
        transfers.waits.store(false, Ordering::Relaxed);
        let waiting: Vec<PeerId> = {
            let state = transfers.state.lock();
            let waits = |with: &WithPeer| !(with.to_ask.is_empty() && with.to_answer.is_empty());
            state.peers.iter().filter(|(_, with)| waits(with)).map(|(id, _)| *id).collect()
        };
        for connection in waiting.into_iter().filter_map(|id| self.connection(id)) {
            transfers.send_to(connection.neighbour());
        }
        transfers.waits.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;

    #[test]
    fn outcomes_are_known_as_long_as_they_may_be_asked_for() {
        let mut with = WithPeer::default();
        let answer = Message::V1(MessageV1::Answer { number: 1, reply: Reply::Carried(None) }).encode();
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
        assert_eq!(with.next(), Some(answer));
        with.sent();
        assert_eq!(with.next(), None);
        // A peer that takes no answers is turned away.
        for number in 1000..1000 + MAX_MADE_EACH as u32 {
            assert_eq!(with.question(number), Question::New);
        }
        assert_eq!(with.question(2000), Question::OneTooMany);
        for number in 1000..1000 + 2 * MAX_OUTCOMES as u32 {
            with.ended(number, None);
        }
        assert_eq!((with.outcomes.len(), with.to_answer.len()), (MAX_OUTCOMES, MAX_OUTCOMES));
    }

    #[test]
    fn a_node_asks_no_more_than_another_makes() {
        let (transfers, neighbour) = (ThirdPartyTransfers::default(), Neighbour::new(PeerId(1), Weak::new()));
        let mut with = WithPeer::default();
        for number in 0..MAX_MADE_EACH as u32 {
            with.asked.insert(number, Asked { user: 5, message: Vec::new() });
        }
        transfers.state.lock().peers.insert(neighbour.id, with);
        let carriage = Carriage {
            to: None,
            source_domain: 0x8001,
            source_address: 0,
            destination_domain: 0x8002,
            destination_address: 0,
            size_bytes: 64,
            notification: None,
            class: None,
        };
        // It has no link: to be asked by it would be an error.
        assert_eq!(transfers.ask(&neighbour, 5, carriage), Ok(false));
    }
}
