//! What the engine wants done with programs' memory: blocks that come, go or stay, words, operations.

use super::{Left, NOTIFICATION_BYTES, Order};
use crate::engine::{BASE, Bench, Event, HERE};
use tombolo_core::iommu::{End, FaultSource};
use tombolo_core::own::{MoveId, Part, Purpose, Refused, Went, Words};
use tombolo_core::rdma::{Block, NotificationWrite, Operation, Placement, TransferError};
use tombolo_wire::{ATOMIC_BYTES, Domain, Nack, NackCode, Notification, NotifyHeader, Packet};

impl Bench {
    pub(in crate::engine) fn place_own(&mut self, node: usize, placement: Placement, payload: &[u8]) {
        let at = (placement.address, placement.length_bytes);
        let purpose = (Purpose::Place(placement), placement.read.is_some());
        let begun = match self.host(node).resolve(placement.domain, at) {
            Ok(None) => return self.copy(node, placement, payload),
            Ok(Some(place)) => self.begin(node, place, at, purpose, (Order::Write, payload.to_vec())),
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = begun {
            self.engines[node].refused(placement, refusal);
        }
    }

    pub(in crate::engine) fn operate_own(&mut self, node: usize, operation: Operation) {
        let placement = operation.placement;
        let at = (placement.address, ATOMIC_BYTES);
        let work = (Order::Change(operation.operation), Vec::new());
        let place = self.host(node).resolve(placement.domain, at);
        let place = place.expect("the words stay").expect("the words are a program's");
        if let Err(refusal) = self.begin(node, place, at, (Purpose::Operate(operation), false), work) {
            self.engines[node].refused(placement, refusal);
        }
    }

    pub(in crate::engine) fn notify_own(&mut self, node: usize, write: NotificationWrite) {
        let at = (write.words.address, NOTIFICATION_BYTES);
        let work = (Order::Words(self.notified_by(node, &write.words), write.words), Vec::new());
        let purpose = (Purpose::Notify(write), write.read.is_some());
        let begun = match self.host(node).resolve(write.domain, at) {
            Ok(None) => return self.write_notification(node, write),
            Ok(Some(place)) => self.begin(node, place, at, purpose, work),
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = begun {
            self.engines[node].notification_refused(write, refusal);
        }
    }

    /// A block goes out when its bytes are read.
    pub(in crate::engine) fn send_own(&mut self, node: usize, block: &Block) {
        let now = self.now();
        let at = (block.source_address, block.length_bytes);
        let (engine, hosts) = (&mut self.engines[node], self.hosts.as_mut().expect("programs' own memory"));
        let host = &mut hosts[node];
        let place = match host.resolve(block.own_domain, at) {
            Ok(None) => {
                let offset = (at.0 - BASE) as usize;
                let bytes = self.memory[node][offset..offset + at.1 as usize].to_vec();
                return self.send_packets(node, block, &bytes);
            }
            Ok(Some(place)) => place,
            Err(_) if host.own.is_underway(now, engine, block) => return,
            Err(refusal) => return engine.source_refused(now, block, refusal),
        };
        let Some(id) = host.own.send(now, engine, block) else { return };
        let purpose = (Purpose::Move { id, by: block.fault_source(), end: End::Source }, false);
        if let Err(refusal) = self.begin(node, place, at, purpose, (Order::Read, Vec::new())) {
            let host = &mut self.hosts.as_mut().expect("programs' own memory")[node];
            host.own.not_sent(now, &mut self.engines[node], id, refusal);
        }
    }

    /// A block stays at its node.
    pub(in crate::engine) fn stay_own(&mut self, node: usize, block: &Block) {
        let asker = Some(self.watched[block.user as usize].asker);
        let now = self.now();
        let host = &mut self.hosts.as_mut().expect("programs' own memory")[node];
        if let Some(id) = host.own.stay(now, &mut self.engines[node], block, asker) {
            self.go_on_here(node, id, *block, Part::Copy);
        }
    }

    /// The words of a block that stays here, apart from it.
    pub(in crate::engine) fn words_own(&mut self, node: usize, packet: &Packet<'_>) {
        let Packet::Notify(NotifyHeader { transaction, generation, attempt, notification, .. }) = *packet
        else {
            panic!("{packet:?} to the node itself");
        };
        let words = Words { peer: HERE, slot: transaction.0, generation, attempt, words: notification };
        match self.host(node).own.words(&words) {
            Some(Some((id, block))) => self.go_on_here(node, id, block, Part::Words(notification)),
            Some(None) => {}
            None => {
                let nack = Nack { transaction, generation, attempt, refusal: NackCode::NoContext.into() };
                let _ = self.engines[node].handle(self.now(), HERE, &Packet::Nack(nack));
            }
        }
    }

    /// Carries out parts of a block that stays here, until one takes time or the block is over.
    pub(super) fn go_on_here(&mut self, node: usize, id: MoveId, block: Block, part: Part<Left>) {
        let mut next = Some((block, part));
        while let Some((block, part)) = next {
            let went = match part {
                Part::Copy => self.copy_part(node, id, &block),
                Part::Write(left) => self.write_part(node, id, &block, left.bytes),
                Part::Words(words) => self.words_part(node, id, &block, words),
            };
            let Some(went) = went.transpose() else { return };
            let now = self.now();
            let host = &mut self.hosts.as_mut().expect("programs' own memory")[node];
            next = host.own.went(now, &mut self.engines[node], id, went);
        }
    }

    pub(super) fn begin_part(
        &mut self,
        node: usize,
        (id, end): (MoveId, End),
        block: &Block,
        (domain, at): (Domain, (u64, u32)),
        (place, order, bytes): ((u64, usize), Order, Vec<u8>),
    ) -> Result<Option<Went>, Refused> {
        let is_by_owner = self.watched[block.user as usize].asker == domain;
        let purpose = (Purpose::Move { id, by: block.fault_source(), end }, is_by_owner);
        let begun = self.begin(node, place, at, purpose, (order, bytes));
        begun.map(|()| None).map_err(Refused::of(domain))
    }

    pub(super) fn copy_part(
        &mut self,
        node: usize,
        id: MoveId,
        block: &Block,
    ) -> Result<Option<Went>, Refused> {
        let to = (block.destination_address, block.length_bytes);
        let from = (block.source_address, block.length_bytes);
        self.host(node).resolve(block.domain, to).map_err(Refused::of(block.domain))?;
        let place = self.host(node).resolve(block.own_domain, from).map_err(Refused::of(block.own_domain))?;
        if let Some(place) = place {
            let work = (place, Order::Read, Vec::new());
            return self.begin_part(node, (id, End::Source), block, (block.own_domain, from), work);
        }
        let offset = (from.0 - BASE) as usize;
        let bytes = self.memory[node][offset..offset + from.1 as usize].to_vec();
        self.write_part(node, id, block, bytes)
    }

    pub(super) fn write_part(
        &mut self,
        node: usize,
        id: MoveId,
        block: &Block,
        bytes: Vec<u8>,
    ) -> Result<Option<Went>, Refused> {
        let to = (block.destination_address, block.length_bytes);
        let place = self.host(node).resolve(block.domain, to).map_err(Refused::of(block.domain))?;
        if let Some(place) = place {
            let work = (place, Order::Write, bytes);
            return self.begin_part(node, (id, End::Destination), block, (block.domain, to), work);
        }
        let offset = (to.0 - BASE) as usize;
        self.memory[node][offset..offset + bytes.len()].copy_from_slice(&bytes);
        Ok(Some(Went::Written))
    }

    pub(super) fn words_part(
        &mut self,
        node: usize,
        id: MoveId,
        block: &Block,
        words: Notification,
    ) -> Result<Option<Went>, Refused> {
        let at = (words.address, NOTIFICATION_BYTES);
        let which = self.notified_by(node, &words);
        let place = self.host(node).resolve(block.domain, at).map_err(Refused::of(block.domain))?;
        if let Some(place) = place {
            let work = (place, Order::Words(which, words), Vec::new());
            return self.begin_part(node, (id, End::Notification), block, (block.domain, at), work);
        }
        self.write_words_of(node, which, &words);
        Ok(Some(Went::Said))
    }

    /// A program asks for a change of a word of its node.
    pub(in crate::engine) fn change_here(&mut self, node: usize, which: usize) {
        let Some(watched) = self.watched.get(which).filter(|watched| watched.status.is_none()) else {
            return;
        };
        let (spec, asker) = (watched.spec, watched.asker);
        let tombolo_core::rdma::Direction::Atomic(operation) = spec.direction else { panic!("{spec:?}") };
        let at = (spec.destination_address, ATOMIC_BYTES);
        let by = FaultSource { node: HERE.0, transaction: u16::MAX, sequence: which as u32 };
        let purpose = Purpose::Change { user: which as u64, domain: spec.domain, by };
        let place = self.host(node).resolve(spec.domain, at);
        let place = place.expect("the words stay").expect("the words are a program's");
        let work = (Order::Change(operation), Vec::new());
        let is_by_owner = asker == spec.domain;
        match self.begin(node, place, at, (purpose, is_by_owner), work) {
            Ok(()) => {}
            Err(refusal) if refusal.code == NackCode::BufferFull => self.change_again(node, which),
            Err(refusal) => self.not_changed(node, which, Refused { domain: spec.domain, refusal }),
        }
    }

    pub(super) fn change_again(&mut self, node: usize, which: usize) {
        self.at(node, self.now().after_ns(1_000_000), Event::Change { which });
    }

    pub(super) fn not_changed(&mut self, node: usize, which: usize, refused: Refused) {
        let error = match refused.is_of(Some(self.watched[which].asker)) {
            true => TransferError::Local(refused.refusal),
            false => TransferError::Refused(refused.refusal),
        };
        self.ended(node, which, Err(error), 0);
    }
}
