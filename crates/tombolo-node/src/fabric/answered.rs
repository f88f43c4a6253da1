//! Questions that must be carried out only once, and what was answered.
//!
//! A question that comes again by another link, since the first was lost, is not carried out again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tombolo_core::rdma::PeerId;

use crate::fabric::messages::Reply;
use crate::fabric::neighbour::Neighbour;

/// Answers of one peer that are kept; it has far fewer questions open.
const MAX_ANSWERED: usize = 256;

/// What was asked for once, by the number of the question, and the answer when there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(Arc<Mutex<HashMap<PeerId, Questions>>>);

/// Those of one peer, the latest last.
type Questions = VecDeque<(u32, Option<Reply>)>;

impl Answered {
    /// A question has come. `Some`: not for the first time; and the answer, if there is one.
    pub(crate) fn begin(&self, neighbour: &Neighbour, number: u32) -> Option<Option<Reply>> {
        let mut peers = self.0.lock();
        if neighbour.loss().is_some() {
            // Forgotten already; there is nobody to answer.
            return Some(None);
        }
        let questions = peers.entry(neighbour.id).or_default();
        if let Some((_, reply)) = questions.iter().find(|(known, _)| *known == number) {
            return Some(reply.clone());
        }
        if questions.len() >= MAX_ANSWERED {
            questions.pop_front();
        }
        questions.push_back((number, None));
        None
    }

    /// The answer to a question is known.
    pub(crate) fn ended(&self, neighbour: &Neighbour, number: u32, reply: &Reply) {
        if let Some(questions) = self.0.lock().get_mut(&neighbour.id)
            && let Some((_, known)) = questions.iter_mut().find(|(known, _)| *known == number)
        {
            *known = Some(reply.clone());
        }
    }

    /// A peer is lost.
    pub(crate) fn forget(&self, peer: PeerId) {
        self.0.lock().remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;

    #[test]
    fn answers_are_kept_in_a_bounded_number() {
        let (peer, answered) = (Neighbour::new(PeerId(1), Weak::new()), Answered::default());
        for number in 0..2 * MAX_ANSWERED as u32 {
            assert_eq!(answered.begin(&peer, number), None);
            assert_eq!(answered.begin(&peer, number), Some(None));
            answered.ended(&peer, number, &Reply::Done);
            assert_eq!(answered.begin(&peer, number), Some(Some(Reply::Done)));
        }
        assert_eq!(answered.0.lock()[&peer.id].len(), MAX_ANSWERED);
        answered.forget(peer.id);
        assert!(answered.0.lock().is_empty());
    }
}
