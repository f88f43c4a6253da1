//! Defects that are planted at the edges of the engines, in what the world hands in and takes out: to see that the oracle finds them.

use super::{Bench, NODES};
use std::collections::BTreeMap;
use tombolo_core::rdma::Block;
use tombolo_wire::{Domain, Generation, Packet, TransactionId};

/// A planted defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Acknowledgements of earlier blocks of a transaction slot count for the present one.
    SequenceCheck,
    /// The end of a copy is not told to the engine, now and then.
    Transaction,
    /// A packet reaches memory of another domain, now and then.
    Domain,
    /// An engine is not called at its deadlines.
    WakeUp,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::SequenceCheck, Self::Transaction, Self::Domain, Self::WakeUp];
}

/// How seldom a defect shows that shows now and then.
const SELDOM: u64 = 20;

/// What is planted, and what that has to know.
#[derive(Debug, Default)]
pub(super) struct Planted {
    what: Option<Plant>,
    /// The last block of each node's transaction slots.
    sent: [BTreeMap<u16, Generation>; 2],
}

impl Bench {
    /// Plants a defect.
    pub fn plant(&mut self, plant: Plant) {
        self.planted.what = Some(plant);
    }

    fn shows(&mut self, node: usize, plant: Plant) -> bool {
        self.planted.what == Some(plant) && self.kernel.random(NODES[node]).one_in(SELDOM)
    }

    /// A block leaves.
    pub(super) fn note_sent(&mut self, node: usize, block: &Block) {
        if self.planted.what == Some(Plant::SequenceCheck) {
            self.planted.sent[node].insert(block.transaction.0, block.generation);
        }
    }

    /// What a packet is when its node's engine is given it.
    pub(super) fn altered<'a>(&mut self, node: usize, packet: Packet<'a>) -> Packet<'a> {
        let last = |planted: &Planted, TransactionId(slot): TransactionId| {
            planted.sent[node].get(&slot).copied().filter(|_| planted.what == Some(Plant::SequenceCheck))
        };
        match packet {
            Packet::Ack(mut ack) => {
                ack.generation = last(&self.planted, ack.transaction).unwrap_or(ack.generation);
                Packet::Ack(ack)
            }
            Packet::Data(mut header, payload) if self.shows(node, Plant::Domain) => {
                header.domain = Domain(header.domain.0 + 1);
                Packet::Data(header, payload)
            }
            other => other,
        }
    }

    /// Whether the end of a copy is kept from the engine.
    pub(super) fn leaks_transaction(&mut self, node: usize) -> bool {
        self.shows(node, Plant::Transaction)
    }

    /// Whether a node's deadlines come.
    pub(super) fn wakes(&self, node: usize) -> bool {
        self.planted.what != Some(Plant::WakeUp) || node == 0
    }
}
