//! Questions of peers that must be carried out only once, and the answers to them.
//!
//! A peer asks a question again by another link if the link that it first asked by is lost. The question is not carried
//! out again. Its answer goes by the link that the question came by last.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tombolo_core::rdma::PeerId;

use crate::fabric::connection::Connection;
use crate::fabric::messages::Reply;
use crate::fabric::neighbour::Neighbour;

/// Most questions of one peer that are kept with their answers. A peer has far fewer open at once.
const MAX_ANSWERED: usize = 256;

/// The questions of each peer that must be carried out only once, with the answers that are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(Arc<Mutex<HashMap<PeerId, Questions>>>);

/// The questions of one peer, the latest last.
type Questions = VecDeque<Question>;

#[derive(Debug)]
struct Question {
    number: u32,
    /// The link that the question came by last.
    by: Weak<Connection>,
    answer: Option<Reply>,
}

impl Answered {
    /// Notes a question that has come by the link `by`. `None`: it is new, and is to be carried out. `Some`: it is not
    /// to be carried out, because it has come before or the peer is lost. Inside is its answer, if that is known.
    pub(crate) fn begin(
        &self,
        neighbour: &Neighbour,
        by: &Weak<Connection>,
        number: u32,
    ) -> Option<Option<Reply>> {
        let mut peers = self.0.lock();
        if neighbour.loss().is_some() {
            // The peer's questions are forgotten already, and no link is left to answer by.
            return Some(None);
        }
        let questions = peers.entry(neighbour.id).or_default();
        if let Some(known) = questions.iter_mut().find(|known| known.number == number) {
            known.by = by.clone();
            return Some(known.answer.clone());
        }
        if questions.len() >= MAX_ANSWERED {
            // Drop the oldest answered question: those that are being carried out stay. If none is answered, drop the
            // oldest.
            let oldest = questions.iter().position(|known| known.answer.is_some()).unwrap_or(0);
            questions.remove(oldest);
        }
        questions.push_back(Question { number, by: by.clone(), answer: None });
        None
    }

    /// Notes the answer to a question.
    pub(crate) fn ended(&self, neighbour: &Neighbour, number: u32, reply: &Reply) {
        if let Some(questions) = self.0.lock().get_mut(&neighbour.id)
            && let Some(known) = questions.iter_mut().find(|known| known.number == number)
        {
            known.answer = Some(reply.clone());
        }
    }

    /// The link that a question came by last.
    pub(crate) fn asked_by(&self, neighbour: &Neighbour, number: u32) -> Option<Arc<Connection>> {
        let peers = self.0.lock();
        peers.get(&neighbour.id)?.iter().find(|known| known.number == number)?.by.upgrade()
    }

    /// Drops the questions of a peer that is lost.
    pub(crate) fn forget(&self, peer: PeerId) {
        self.0.lock().remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_kept_in_a_bounded_number() {
        let (peer, answered) = (Neighbour::new(PeerId(1), Weak::new()), Answered::default());
        for number in 0..2 * MAX_ANSWERED as u32 {
            assert_eq!(answered.begin(&peer, &Weak::new(), number), None);
            assert_eq!(answered.begin(&peer, &Weak::new(), number), Some(None));
            answered.ended(&peer, number, &Reply::Done);
            assert_eq!(answered.begin(&peer, &Weak::new(), number), Some(Some(Reply::Done)));
        }
        assert_eq!(answered.0.lock()[&peer.id].len(), MAX_ANSWERED);
        // A question that is being carried out is not dropped as long as an answered one can be.
        assert_eq!(answered.begin(&peer, &Weak::new(), 9999), None);
        for number in 0..MAX_ANSWERED as u32 {
            assert_eq!(answered.begin(&peer, &Weak::new(), number), None);
            answered.ended(&peer, number, &Reply::Done);
        }
        assert_eq!(answered.begin(&peer, &Weak::new(), 9999), Some(None));
        answered.forget(peer.id);
        assert!(answered.0.lock().is_empty());
    }
}
