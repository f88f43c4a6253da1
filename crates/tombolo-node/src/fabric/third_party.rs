//! Questions and answers between nodes about third-party transfers: which are open, and which are sent again.
//!
//! No question and no answer is lost while a link to the other node is left. What a full link does not take is kept
//! until the link takes it. When one of several links is lost, all open questions are asked again by another link,
//! under the same numbers. The node that is asked knows the numbers of the transfers that it is making and of the last
//! ones that it made. So it makes each transfer once, and repeats the outcome if it is asked again.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use tombolo_channel::Failure;
use tombolo_core::rdma::PeerId;
use tombolo_link::SendError;

use crate::fabric::messages::{Carriage, Message, MessageV1, Reply, Request};
use crate::fabric::neighbour::Neighbour;
use crate::fabric::table::Fabric;

/// Most transfers that peers have asked for and that are open at once. The engine has room for these beside those of
/// this node's own programs (of at most 1,024 domains).
pub(crate) const MAX_MADE: usize = 512;
/// Most of these transfers of one peer: a quarter of all, so that one peer cannot have them all. No node asks another
/// for more.
pub(crate) const MAX_MADE_EACH: usize = 128;
/// Most outcomes that are remembered for one peer, because the peer may ask for one again after a link was lost. Until
/// it does, at most this many other outcomes follow: those of the questions that were open at the same time, and those
/// of the questions that came by the next link before the open ones were asked again.
const MAX_OUTCOMES: usize = 2 * MAX_MADE_EACH;

/// The third-party transfers that are open between this node and its peers.
#[derive(Debug, Default)]
pub(crate) struct ThirdPartyTransfers {
    state: Mutex<State>,
    next: AtomicU32,
    /// Whether a question or an answer waits for room on a link.
    waits: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    peers: HashMap<PeerId, WithPeer>,
    /// Transfers that are being made for peers, by user number: the peer that asked, and the number of its question.
    made: HashMap<u64, (PeerId, u32)>,
}

/// A question that has no answer yet.
#[derive(Debug)]
struct Asked {
    user: u64,
    message: Vec<u8>,
}

impl Asked {
    /// A new question for a neighbour, and its number.
    fn new(neighbour: &Neighbour, user: u64, carriage: Carriage) -> (u32, Self) {
        let number = neighbour.next_number();
        let request = Request::Carry(Box::new(carriage));
        (number, Self { user, message: Message::V1(MessageV1::Ask { number, request }).encode() })
    }
}

/// Questions and answers between this node and one peer, by the numbers of the questions.
#[derive(Debug, Default)]
struct WithPeer {
    /// Open questions that this node has asked.
    asked: BTreeMap<u32, Asked>,
    /// Numbers of questions that no link has taken, or that were taken by a link that was lost since.
    to_ask: VecDeque<u32>,
    /// Questions of the peer whose transfers are being made.
    making: HashSet<u32>,
    /// Outcomes of the last transfers that were made for the peer: the number of the question, and why the transfer
    /// failed, if it did.
    outcomes: VecDeque<(u32, Option<u64>)>,
    /// Numbers of outcomes that no link has taken.
    to_answer: VecDeque<u32>,
}

/// How a peer's question for a transfer is to be treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// The transfer is to be carried out.
    New,
    /// The peer, or all peers together, have too many transfers open: it is refused.
    OneTooMany,
    /// The question came before. It is answered when its transfer ends, or its answer is sent again.
    Known,
}

impl WithPeer {
    /// Notes a question of the peer, and says how it is to be treated.
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

    /// Notes the outcome of a transfer that the peer asked for, and that has ended or was not begun.
    fn ended(&mut self, number: u32, failure: Option<u64>) {
        self.making.remove(&number);
        if self.outcomes.len() >= MAX_OUTCOMES
            && let Some((oldest, _)) = self.outcomes.pop_front()
        {
            // A peer that keeps to its limit of open questions has heard the oldest outcome by now. To a peer with more
            // open questions, that outcome is not sent any more.
            self.to_answer.retain(|number| *number != oldest);
        }
        self.outcomes.push_back((number, failure));
        self.to_answer.push_back(number);
    }

    /// Marks all open questions to be asked again, because a link that they may have gone by is lost.
    fn path_lost(&mut self) {
        self.to_ask = self.asked.keys().copied().collect();
    }

    /// The next message for the peer: the same one until [`WithPeer::sent`] is called.
    fn next(&mut self) -> Option<Vec<u8>> {
        if let Some(number) = self.to_answer.front() {
            let (number, failure) = *self.outcomes.iter().find(|(known, _)| known == number)?;
            return Some(Message::V1(MessageV1::Answer { number, reply: Reply::Carried(failure) }).encode());
        }
        loop {
            let number = self.to_ask.front()?;
            match self.asked.get(number) {
                Some(asked) => return Some(asked.message.clone()),
                // The question was answered meanwhile.
                None => self.to_ask.pop_front(),
            };
        }
    }

    /// Notes that a link has taken the message of [`WithPeer::next`].
    fn sent(&mut self) {
        if self.to_answer.pop_front().is_none() {
            self.to_ask.pop_front();
        }
    }
}

impl ThirdPartyTransfers {
    /// A running index for the next transfer that a peer asks for.
    pub(crate) fn next_index(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks a neighbour to make a transfer. False: the neighbour cannot be asked now.
    pub(crate) fn ask(&self, neighbour: &Neighbour, user: u64, carriage: Carriage) -> Result<bool, Failure> {
        let (number, asked) = Asked::new(neighbour, user, carriage);
        let mut state = self.state.lock();
        // Checked with the lock held: if the peer or a link is lost from now on, the question is found then.
        if neighbour.loss().is_some() {
            return Err(Failure::Gone);
        }
        let with = state.peers.entry(neighbour.id).or_default();
        if with.asked.len() >= MAX_MADE_EACH || !with.to_ask.is_empty() {
            // Too many are open, or earlier questions wait for room and go first.
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
        // The code that takes the question out tells the program the outcome.
        with.asked.insert(number, asked);
        Ok(true)
    }

    /// Whether a peer may be asked for one more transfer, besides the `waiting` ones that it is still to be asked for.
    pub(crate) fn may_ask(&self, peer: PeerId, waiting: usize) -> bool {
        let asked = self.state.lock().peers.get(&peer).map_or(0, |with| with.asked.len());
        asked + waiting < MAX_MADE_EACH
    }

    /// As [`ThirdPartyTransfers::ask`], for a transfer that has waited for an arrangement. If the link has no room now,
    /// the question is sent as soon as it has.
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

    /// Takes out the question that an answer belongs to, and returns its user number. `None`: it is not an answer to a
    /// question of [`ThirdPartyTransfers::ask`].
    pub(crate) fn take_asked(&self, peer: PeerId, number: u32) -> Option<u64> {
        self.state.lock().peers.get_mut(&peer)?.asked.remove(&number).map(|asked| asked.user)
    }

    /// Forgets a peer that is gone. Returns the user numbers of the transfers that it was asked to make.
    pub(crate) fn peer_lost(&self, peer: PeerId) -> impl Iterator<Item = u64> + use<> {
        let lost = {
            let mut state = self.state.lock();
            state.made.retain(|_, (asker, _)| *asker != peer);
            state.peers.remove(&peer)
        };
        lost.into_iter().flat_map(|with| with.asked.into_values()).map(|asked| asked.user)
    }

    /// Asks the open questions to a peer again by another link, because one of several links is lost or suspect.
    pub(crate) fn ask_again(&self, neighbour: &Neighbour) {
        if let Some(with) = self.state.lock().peers.get_mut(&neighbour.id) {
            with.path_lost();
        }
        self.send_to(neighbour);
    }

    /// Sends a peer the questions and answers that wait for it, as far as its link takes them.
    pub(crate) fn send_to(&self, neighbour: &Neighbour) {
        let mut state = self.state.lock();
        let Some(with) = state.peers.get_mut(&neighbour.id) else { return };
        while let Some(message) = with.next() {
            let link = neighbour.control_link();
            if link.is_none_or(|link| link.send_control(&message, &[]).is_err()) {
                // The link is full, or lost. If it is lost, the message goes by another link soon, or the peer is lost,
                // too.
                self.waits.store(true, Ordering::Relaxed);
                return;
            }
            with.sent();
        }
    }

    /// Notes a peer's question for a transfer, which gets the user number `user`, and says how it is to be treated.
    /// `None`: the peer is lost.
    pub(crate) fn question(&self, neighbour: &Neighbour, number: u32, user: u64) -> Option<Question> {
        let mut state = self.state.lock();
        // A lost peer has been forgotten, and nothing more is noted of it.
        if neighbour.loss().is_some() {
            return None;
        }
        // A user number comes again after sixteen million others, so the one that had it last may still be open.
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

    /// Notes that a transfer that a peer asked for was not begun, and why.
    pub(crate) fn not_begun(&self, peer: PeerId, number: u32, user: u64, failure: Failure) {
        let mut state = self.state.lock();
        // The user number may belong to another transfer that is being made.
        if state.made.get(&user) == Some(&(peer, number)) {
            state.made.remove(&user);
        }
        if let Some(with) = state.peers.get_mut(&peer) {
            with.ended(number, Some(failure.code()));
        }
    }

    /// Notes the end of a transfer that a peer asked for. Returns the peer, if it is still there.
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
    /// Sends the questions and answers that links had no room for, as far as they have room now. Returns whether some
    /// still wait.
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
        // A peer that takes no answers is refused.
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
        // The neighbour has no link: an attempt to send would be an error.
        assert_eq!(transfers.ask(&neighbour, 5, carriage), Ok(false));
    }
}
