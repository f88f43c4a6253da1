//! A snoop unit: it keeps the caches of a node and what comes from outside together, and so sees writes in both directions.

use super::{AccessKind, Cargo, Here, Message, Part, Traveller};
use std::collections::VecDeque;

/// How many writes a snoop unit holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnoopSlots {
    /// One: until it is answered others wait, wherever they go. Two nodes that write each other's memory by such units lock up
    /// (MICRO §4.10).
    One,
    /// One in each direction.
    OneEachWay,
}

/// What enters the unit where.
pub(crate) const OUTWARD: u8 = 0;
pub(crate) const OUTWARD_ANSWER: u8 = 1;
pub(crate) const INWARD: u8 = 2;
pub(crate) const INWARD_ANSWER: u8 = 3;

/// A snoop unit. Requests of the node's processors enter at input 0 and their answers at 1; requests from outside at 2, their answers
/// at 3. A write is held until its answer passes; reads pass.
#[derive(Debug)]
pub struct Snoop {
    slots: SnoopSlots,
    /// The writes that are held, outward and inward.
    held: [u64; 2],
    waiting: VecDeque<(u8, Traveller)>,
    most_waiting: usize,
}

impl Snoop {
    /// Without writes.
    pub fn new(slots: SnoopSlots) -> Self {
        Self { slots, held: [0; 2], waiting: VecDeque::new(), most_waiting: 0 }
    }

    /// The most writes that waited.
    pub fn most_waiting(&self) -> usize {
        self.most_waiting
    }

    fn is_free(&self, port: u8) -> bool {
        match self.slots {
            SnoopSlots::One => self.held == [0; 2],
            SnoopSlots::OneEachWay => self.held[usize::from(port == INWARD)] == 0,
        }
    }

    fn is_write(traveller: &Traveller) -> bool {
        matches!(&traveller.cargo, Cargo::Access(access) if access.kind == AccessKind::Write)
    }

    fn let_in(&mut self, here: &mut Here<'_>) {
        let mut place = 0;
        while let Some((port, _)) = self.waiting.get(place) {
            if !self.is_free(*port) {
                place += 1;
                continue;
            }
            let Some((port, traveller)) = self.waiting.remove(place) else { return };
            self.held[usize::from(port == INWARD)] += 1;
            here.forward(here.now(), traveller);
        }
    }
}

impl Part for Snoop {
    fn receive(&mut self, here: &mut Here<'_>, port: u8, message: Message) {
        let Message::Traveller(traveller) = message else { return };
        let is_write = Self::is_write(&traveller);
        match port {
            OUTWARD | INWARD if is_write => {
                self.waiting.push_back((port, traveller));
                self.most_waiting = self.most_waiting.max(self.waiting.len());
                self.let_in(here);
            }
            OUTWARD_ANSWER | INWARD_ANSWER if is_write => {
                let held = &mut self.held[usize::from(port == INWARD_ANSWER)];
                *held = held.saturating_sub(1);
                here.forward(here.now(), traveller);
                self.let_in(here);
            }
            _ => here.forward(here.now(), traveller),
        }
    }

    fn open(&self) -> u64 {
        self.held.iter().sum::<u64>() + self.waiting.len() as u64
    }

    fn forwards(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boards::zedboard::{STORES, pair};

    #[test]
    fn two_nodes_that_write_each_other_lock_up_and_one_alone_does_not() {
        for first in [0, 1] {
            let ended = pair(SnoopSlots::One, AccessKind::Write).run(&[first]);
            assert_eq!((ended.answered[first], ended.stuck.len()), (STORES, 0));
            let ended = pair(SnoopSlots::One, AccessKind::Write).run(&[first, 1 - first]);
            let waits = ["Snoop", "Snoop", "Requester", "Requester"];
            assert_eq!((ended.answered, ended.stuck), ([0, 0], waits.to_vec()));
        }
    }

    #[test]
    fn a_unit_that_holds_one_each_way_does_not_lock_up_nor_do_reads() {
        for (slots, kind) in
            [(SnoopSlots::OneEachWay, AccessKind::Write), (SnoopSlots::One, AccessKind::Read)]
        {
            let ended = pair(slots, kind).run(&[0, 1]);
            assert_eq!((ended.answered, ended.stuck), ([STORES; 2], vec![]));
        }
    }
}
