//! On whose behalf a neighbour (the carrier) writes here: which neighbours (the askers) let it, and the numbers that stand for them.
//!
//! ```text
//!   asker A ── LetCarry { B } ──► C          C knows both by their links: by key or process, and life
//!   asker A ── Carry { to C } ──► B
//!   carrier B ── WriteFor { A } ─► C         C answers with a number, if A has said so
//!   carrier B ── bytes, number ──► C         C looks at its grants as for A
//! ```
//!
//! Both have to say it. If the carrier's word were enough, it could write wherever a third node may; if the asker could name
//! the number, it could name another's. A number is not given again until all others of its carrier have been: what is late
//! of an asker that is gone is refused.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use tombolo_core::rdma::PeerId;
use tombolo_wire::Asker;

use crate::fabric::life::NodeIdentity;
use crate::fabric::messages::Reply;
use crate::fabric::neighbour::Neighbour;
use crate::fabric::table::Fabric;

/// Nodes that one neighbour may let carry for it.
const MAX_CARRIERS_EACH: usize = 256;

/// The carriers that each asker allows, and the numbers of askers.
#[derive(Debug, Default)]
pub(crate) struct Carriers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whom each asker lets carry.
    allowed: HashMap<PeerId, HashSet<PeerId>>,
    /// By carrier.
    numbers: HashMap<PeerId, Numbers>,
}

/// Askers by their numbers, of one carrier.
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

    /// The asker that this number stands for, where this carrier writes under it.
    pub(crate) fn asker(&self, carrier: PeerId, number: Asker) -> Option<PeerId> {
        self.0.lock().numbers.get(&carrier)?.askers.get(&number).copied()
    }

    /// A peer is gone.
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
    /// A neighbour lets another one carry for it.
    pub(crate) fn let_carry(&self, asker: &Neighbour, carrier: &NodeIdentity) -> Reply {
        match self.peer_with(carrier) {
            Ok(carrier) if self.carriers.allow(asker.id, carrier) => {
                self.unless_lost(&[asker.id, carrier], Reply::Done)
            }
            Ok(_) => Reply::Failed(format!("more than {MAX_CARRIERS_EACH} nodes carry for it")),
            Err(failure) => Reply::Failed(failure.to_string()),
        }
    }

    /// A neighbour is to write on another one's behalf.
    pub(crate) fn write_for(&self, carrier: &Neighbour, asker: &NodeIdentity) -> Reply {
        match self.peer_with(asker) {
            Ok(asker) => match self.carriers.number(carrier.id, asker) {
                Some(number) => self.unless_lost(&[carrier.id, asker], Reply::Asker(number.0)),
                None => Reply::Failed("that node has not let this one carry for it".into()),
            },
            Err(failure) => Reply::Failed(failure.to_string()),
        }
    }

    /// The reply, unless one of these was lost meanwhile, and what was kept of it comes after that.
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
        // An asker that comes after another one is not taken for it.
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
