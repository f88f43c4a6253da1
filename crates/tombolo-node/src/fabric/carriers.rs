//! Writes of a neighbour (the carrier) on behalf of other neighbours (the askers): which carriers each asker allows,
//! and the numbers that stand for askers.
//!
//! ```text
//!   asker A ── LetCarry { B } ──► C          C knows both by their links: by key or process, and life
//!   asker A ── Carry { to C } ──► B
//!   carrier B ── WriteFor { A } ─► C         C answers with a number, if A has said so
//!   carrier B ── bytes, number ──► C         C looks at its grants as for A
//! ```
//!
//! Both the asker and the carrier have to ask for it. If the carrier's word were enough, it could write wherever a
//! third node may. If the asker could choose the number, it could choose that of another asker. A carrier's numbers are
//! given in turn, so a number is given again only after all others. So a late write on behalf of an asker that is gone
//! is refused.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use tombolo_core::rdma::PeerId;
use tombolo_wire::Asker;

use crate::fabric::life::NodeIdentity;
use crate::fabric::messages::Reply;
use crate::fabric::neighbour::Neighbour;
use crate::fabric::table::Fabric;

/// Most carriers that one asker may allow.
const MAX_CARRIERS_EACH: usize = 256;

/// The carriers that each asker allows, and the numbers of askers.
#[derive(Debug, Default)]
pub(crate) struct Carriers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The carriers that each asker allows.
    allowed: HashMap<PeerId, HashSet<PeerId>>,
    /// The numbers of askers, by carrier.
    numbers: HashMap<PeerId, Numbers>,
}

/// The askers that one carrier writes for, and their numbers.
#[derive(Debug, Default)]
struct Numbers {
    askers: HashMap<Asker, PeerId>,
    given: HashMap<PeerId, Asker>,
    last: u16,
}

impl Numbers {
    fn number(&mut self, asker: PeerId) -> Option<Asker> {
        if let Some(number) = self.given.get(&asker) {
            return Some(*number);
        }
        for _ in 0..u16::MAX {
            // 0 is the carrier itself.
            self.last = self.last.checked_add(1).unwrap_or(1);
            let number = Asker(self.last);
            if let Entry::Vacant(free) = self.askers.entry(number) {
                free.insert(asker);
                self.given.insert(asker, number);
                return Some(number);
            }
        }
        None
    }
}

impl Carriers {
    fn allow(&self, asker: PeerId, carrier: PeerId) -> bool {
        let mut state = self.0.lock();
        let carriers = state.allowed.entry(asker).or_default();
        if carriers.len() >= MAX_CARRIERS_EACH && !carriers.contains(&carrier) {
            return false;
        }
        carriers.insert(carrier);
        true
    }

    fn number(&self, carrier: PeerId, asker: PeerId) -> Option<Asker> {
        let mut state = self.0.lock();
        if !state.allowed.get(&asker)?.contains(&carrier) {
            return None;
        }
        state.numbers.entry(carrier).or_default().number(asker)
    }

    /// The asker that a number stands for when this carrier writes under it.
    pub(crate) fn asker(&self, carrier: PeerId, number: Asker) -> Option<PeerId> {
        self.0.lock().numbers.get(&carrier)?.askers.get(&number).copied()
    }

    /// Forgets a peer that is gone, as an asker and as a carrier.
    pub(crate) fn peer_lost(&self, peer: PeerId) {
        let mut state = self.0.lock();
        state.allowed.remove(&peer);
        state.numbers.remove(&peer);
        for carriers in state.allowed.values_mut() {
            carriers.remove(&peer);
        }
        for numbers in state.numbers.values_mut() {
            if let Some(number) = numbers.given.remove(&peer) {
                numbers.askers.remove(&number);
            }
        }
    }
}

impl Fabric {
    /// Carries out a request of `asker`: from now on `carrier` may write here on its behalf.
    pub(crate) fn let_carry(&self, asker: &Neighbour, carrier: &NodeIdentity) -> Reply {
        match self.peer_with(carrier) {
            Ok(carrier) if self.carriers.allow(asker.id, carrier) => {
                self.unless_lost(&[asker.id, carrier], Reply::Done)
            }
            Ok(_) => Reply::Failed(format!("more than {MAX_CARRIERS_EACH} nodes carry for it")),
            Err(failure) => Reply::Failed(failure.to_string()),
        }
    }

    /// Answers a request of `carrier`: under which number it writes here on behalf of `asker`.
    pub(crate) fn write_for(&self, carrier: &Neighbour, asker: &NodeIdentity) -> Reply {
        match self.peer_with(asker) {
            Ok(asker) => match self.carriers.number(carrier.id, asker) {
                Some(number) => self.unless_lost(&[carrier.id, asker], Reply::Asker(number.0)),
                None => Reply::Failed("that node has not let this one carry for it".into()),
            },
            Err(failure) => Reply::Failed(failure.to_string()),
        }
    }

    /// Returns the reply, unless one of these peers was lost meanwhile. What was noted of a lost peer may have been
    /// noted after its loss, so the peer is forgotten again.
    fn unless_lost(&self, peers: &[PeerId], reply: Reply) -> Reply {
        let is_lost =
            |peer: &PeerId| self.connection(*peer).is_none_or(|found| found.neighbour().loss().is_some());
        let lost: Vec<PeerId> = peers.iter().copied().filter(is_lost).collect();
        if lost.is_empty() {
            return reply;
        }
        lost.into_iter().for_each(|peer| self.carriers.peer_lost(peer));
        Reply::Failed("the node is lost".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carrier_writes_for_those_that_let_it_and_for_no_others() {
        let carriers = Carriers::default();
        let [asker, other, carrier, next] = [1, 2, 3, 4].map(PeerId);
        assert_eq!(carriers.number(carrier, asker), None, "the carrier's word is not enough");
        assert!(carriers.allow(asker, carrier));
        let number = carriers.number(carrier, asker).unwrap();
        assert_ne!(number, Asker::SENDER);
        assert_eq!(
            (carriers.number(carrier, asker), carriers.asker(carrier, number)),
            (Some(number), Some(asker))
        );
        assert_eq!((carriers.number(next, asker), carriers.number(carrier, other)), (None, None));
        assert_eq!(carriers.asker(next, number), None, "it is another carrier's");
        // A later asker does not get the number of one that is gone.
        carriers.peer_lost(asker);
        assert_eq!(carriers.asker(carrier, number), None);
        assert!(carriers.allow(other, carrier));
        assert_ne!(carriers.number(carrier, other), Some(number));
        carriers.peer_lost(carrier);
        assert_eq!(carriers.number(carrier, other), None);
    }

    #[test]
    fn what_one_node_may_have_kept_is_bounded() {
        let carriers = Carriers::default();
        for number in 0..MAX_CARRIERS_EACH as u32 {
            assert!(carriers.allow(PeerId(0), PeerId(1 + number)));
        }
        assert!(!carriers.allow(PeerId(0), PeerId(5000)) && carriers.allow(PeerId(0), PeerId(1)));
        let mut numbers = Numbers::default();
        for asker in 1..=u32::from(u16::MAX) {
            assert!(numbers.number(PeerId(asker)).is_some());
        }
        assert_eq!(numbers.number(PeerId(0)), None);
    }
}
