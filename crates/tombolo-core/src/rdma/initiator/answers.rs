//! Answers to blocks: acknowledgements, refusals, resumes (QOS §3.2.6, §4.4).

use super::Initiator;
use super::tables::{Place, Queue};
use crate::rdma::action::Block;
use crate::rdma::time::Time;
use crate::rdma::transaction::{Event, State};
use crate::rdma::transfer::{Direction, PeerId, TransferError};
use tombolo_wire::{
    Ack, AtomicAck, Attempt, Generation, Nack, NackCode, Receipt, Refusal, Resume, TransactionId,
};

impl Initiator {
    /// The slot, if it is in use by this block to this peer.
    pub(super) fn current(&self, peer: PeerId, slot: TransactionId, generation: Generation) -> Option<u32> {
        let transaction = self.table.entries.get(slot.index())?;
        let same = transaction.peer == peer
            && transaction.generation == generation
            && transaction.state != State::Free;
        same.then_some(slot.0.into())
    }

    /// The slot of a block that the caller holds, if it is still in use by that block. The session is compared,
    /// too, because slots and generations begin anew when a peer restarts.
    pub(super) fn slot_of(&self, block: &Block) -> Option<u32> {
        let peer = self.peers.get(block.peer.index())?.as_ref()?;
        let slot = self.current(block.peer, block.transaction, block.generation);
        slot.filter(|_| peer.session == block.session)
    }

    /// The slot of a block that was sent and waits for this kind of answer.
    fn answered(&mut self, peer: PeerId, ack: &Ack, is_atomic: bool) -> Option<u32> {
        let slot = self.current(peer, ack.transaction, ack.generation).filter(|slot| {
            let transaction = &self.table.entries[*slot as usize];
            let index = transaction.transfer;
            let direction = self.transfers.entries[index as usize].spec.direction;
            // The empty block that closes an atomic operation is not one itself.
            let expects_word = matches!(direction, Direction::Atomic(_)) && !self.has_ended(index);
            transaction.sent && expects_word == is_atomic
        });
        match slot {
            Some(_) => self.counters.acks += 1,
            None => self.counters.stale_answers += 1,
        }
        slot
    }

    /// Handles the answer to an atomic operation: the word's previous value.
    pub(crate) fn operated(&mut self, now: Time, id: PeerId, answer: &AtomicAck) {
        let AtomicAck { transaction, generation, attempt, before } = *answer;
        let ack = Ack { transaction, generation, attempt, bytes_only: false };
        let Some(slot) = self.answered(id, &ack, true) else { return };
        let index = self.table.entries[slot as usize].transfer;
        self.transfers.entries[index as usize].before = before;
        let path = self.measure(now, id, slot, attempt);
        if !self.release_if_ending(slot) {
            self.block_acknowledged(now, slot);
        }
        self.find_overtaken(now, id, path);
        self.arm_probe(id, path);
        self.refresh(id);
    }

    /// Handles an acknowledgement. It ends the block, whichever attempt it names: the bytes are there.
    pub(crate) fn acknowledge(&mut self, now: Time, id: PeerId, ack: &Ack) {
        let Some(slot) = self.answered(id, ack, false) else { return };
        let path = self.measure(now, id, slot, ack.attempt);
        let state = self.table.entries[slot as usize].state;
        match self.release_if_ending(slot) {
            true => {}
            false if ack.bytes_only => self.bytes_acknowledged(now, slot, state),
            false => self.block_acknowledged(now, slot),
        }
        self.find_overtaken(now, id, path);
        self.arm_probe(id, path);
        self.refresh(id);
    }

    /// Measures the round trip of the transmission that an answer names. Unanswered blocks that were sent by
    /// the same path before that transmission have been overtaken. Returns the path.
    fn measure(&mut self, now: Time, id: PeerId, slot: u32, attempt: Attempt) -> usize {
        let Some(peer) = self.peers[id.index()].as_mut() else {
            return 0;
        };
        let transaction = &mut self.table.entries[slot as usize];
        if attempt != transaction.attempt
            && let Some((path, sent_at)) = transaction.lost.take()
        {
            // A transmission that was taken for lost is answered: the answer was late.
            peer.paths[usize::from(path)].congestion.not_lost(sent_at);
        }
        let (sent_at, order, path) = if transaction.state == State::Placing {
            // How long it took to place the block says nothing of the path.
            (None, 0, transaction.path)
        } else if attempt == transaction.attempt {
            (Some(transaction.sent_at), transaction.order, transaction.path)
        } else if attempt.next() == transaction.attempt {
            (transaction.sent_before_at, transaction.order_before, transaction.path_before)
        } else {
            (None, 0, transaction.path)
        };
        let answered = usize::from(path);
        transaction.unanswered = 0;
        transaction.overtaken = 0;
        if std::mem::take(&mut transaction.is_probed) {
            peer.paths[answered].probed_order = 0;
        }
        let trip_ns = sent_at.map(|sent_at| now.since_ns(sent_at));
        let mut shorter = false;
        if let Some(ns) = trip_ns {
            let trusted = peer.path_answers(answered);
            let path = &mut peer.paths[answered];
            path.answered_order = path.answered_order.max(order);
            shorter = path.trip.sample_shortens(ns, self.config.retransmission, 0) || trusted;
        }
        if transaction.counted {
            let bytes = u64::from(transaction.length_bytes);
            let trip_ns = trip_ns.filter(|_| path == transaction.path);
            let path = &mut peer.paths[usize::from(transaction.path)];
            path.congestion.acknowledged(now, bytes, path.in_flight_bytes, trip_ns);
            path.in_flight_bytes -= bytes;
            transaction.counted = false;
        }
        if shorter {
            self.lower_wake(id);
        }
        answered
    }

    /// Handles a receipt: the receiver had all bytes of the block before this transmission and is still placing
    /// them, so nothing was lost. The acknowledgement comes when they are placed.
    pub(crate) fn received(&mut self, now: Time, id: PeerId, receipt: &Receipt) {
        let slot = self.current(id, receipt.transaction, receipt.generation).filter(|slot| {
            let transaction = &self.table.entries[*slot as usize];
            transaction.attempt == receipt.attempt && transaction.place == Place::Timeout
        });
        let Some(slot) = slot else {
            self.counters.stale_answers += 1;
            return;
        };
        self.counters.receipts += 1;
        if self.refused_too_long(now, slot) {
            let index = self.table.entries[slot as usize].transfer;
            self.end(index, Err(TransferError::Refused(NackCode::SlaveError.into())));
            return;
        }
        let path = self.measure(now, id, slot, receipt.attempt);
        self.unplace(slot);
        self.step(slot, Event::Receipt);
        let transaction = &mut self.table.entries[slot as usize];
        if let (Some((path, sent_at)), Some(peer)) = (transaction.lost.take(), &mut self.peers[id.index()]) {
            peer.paths[usize::from(path)].congestion.not_lost(sent_at);
        }
        transaction.place = Place::DelayPlacing;
        transaction.due = now.after_ns(self.config.placing_probe_ns);
        let due = transaction.due;
        self.delay_placing.push_back(&mut self.table.chain, slot);
        self.arm_delay(due);
        self.find_overtaken(now, id, path);
        self.arm_probe(id, path);
        self.refresh(id);
    }

    fn bytes_acknowledged(&mut self, now: Time, slot: u32, state: State) {
        let transaction = &self.table.entries[slot as usize];
        let transfer = &self.transfers.entries[transaction.transfer as usize];
        if !(transaction.last && transfer.owes_notification()) || state == State::Notifying {
            // The block has no notification, or its notification crossed with this answer. What is under way
            // stays under way, but not for longer than `refused_give_up_ns`.
            if self.refused_too_long(now, slot) {
                let index = transaction.transfer;
                self.end(index, Err(TransferError::Refused(NackCode::SlaveError.into())));
            }
            return;
        }
        let (index, may_notify) = (transaction.transfer, transfer.may_notify());
        self.unplace(slot);
        self.step(slot, Event::BytesAck);
        if may_notify && self.transfers.entries[index as usize].queue == Queue::None {
            self.queue_notify(index);
        }
    }

    fn block_acknowledged(&mut self, now: Time, slot: u32) {
        self.step(slot, Event::Ack);
        let index = self.table.entries[slot as usize].transfer;
        self.release(slot);
        let most = self.most_outstanding(now, index);
        let transfer = &mut self.transfers.entries[index as usize];
        transfer.acked += 1;
        let outstanding = transfer.outstanding;
        if transfer.all_issued() && transfer.acked == transfer.issued {
            self.end(index, Ok(()));
        } else if transfer.queue == Queue::None {
            if transfer.all_issued() {
                if transfer.may_notify() {
                    self.queue_notify(index);
                }
            } else if outstanding < most {
                let class = transfer.class(&self.config);
                self.enqueue(index, class);
            }
        }
    }

    pub(super) fn queue_notify(&mut self, index: u32) {
        self.transfers.entries[index as usize].queue = Queue::Notify;
        self.notify.push_back(&mut self.transfers.chain, index);
    }

    /// Handles a refusal. It counts only for the attempt that it names: a late refusal of an earlier attempt
    /// says nothing about the attempt under way (QOS §4.4).
    pub(crate) fn refused(&mut self, now: Time, id: PeerId, nack: &Nack) {
        self.counters.nacks_received[nack.refusal.code as usize] += 1;
        let slot = self.current(id, nack.transaction, nack.generation).filter(|slot| {
            let transaction = &self.table.entries[*slot as usize];
            transaction.attempt == nack.attempt
                && matches!(transaction.place, Place::Timeout | Place::Late | Place::DelayPlacing)
        });
        let Some(slot) = slot else {
            self.counters.stale_answers += 1;
            return;
        };
        let index = self.table.entries[slot as usize].transfer;
        let for_good = !nack.refusal.code.is_transient();
        if (for_good || self.is_carried_out_here(slot)) && self.release_if_ending(slot) {
            return;
        }
        if for_good {
            // The receiver refuses whatever else arrives of the block.
            self.release(slot);
        } else if self.refused_too_long(now, slot) {
            self.unplace(slot);
        } else {
            return self.set_aside(now, slot, nack.refusal.code);
        }
        self.end(index, Err(TransferError::Refused(nack.refusal)));
    }

    /// Whether a block has been put off for too long, by whatever kind of answer.
    fn refused_too_long(&self, now: Time, slot: u32) -> bool {
        let issued_at = self.table.entries[slot as usize].issued_at;
        self.attended.at(now).since_ns(issued_at) >= self.config.refused_give_up_ns
    }

    /// Puts off a block that cannot go on now. Depending on the code it is sent again at once (4), after a
    /// delay (7), or after a resume or a timer (1).
    fn set_aside(&mut self, now: Time, slot: u32, code: NackCode) {
        self.unplace(slot);
        self.step(slot, Event::Nack);
        self.uncount(slot);
        let heard_at = self.attended.at(now);
        let age_ns = heard_at.since_ns(self.table.entries[slot as usize].issued_at);
        let is_closing = self.has_ended(self.table.entries[slot as usize].transfer);
        let transaction = &mut self.table.entries[slot as usize];
        transaction.reading = false;
        transaction.unanswered = 0;
        transaction.overtaken = 0;
        if std::mem::take(&mut transaction.is_probed)
            && let Some(peer) = self.peers[transaction.peer.index()].as_mut()
        {
            // The peer has received the probe, or the block that the probe repeats.
            peer.paths[usize::from(transaction.path)].probed_order = 0;
        }
        if is_closing {
            transaction.absent_at = heard_at;
        }
        let id = transaction.peer;
        let (place, delay_ns, list) = match code {
            NackCode::SlaveError => (Place::DelayFault, self.config.fault_pause_ns, &mut self.delay_fault),
            // Less often: the receiver reads and drops the block's bytes each time.
            NackCode::BufferFull if age_ns >= self.config.full_for_long_ns => {
                (Place::DelayFullForLong, self.config.full_for_long_delay_ns, &mut self.delay_full_for_long)
            }
            NackCode::BufferFull => (Place::DelayFull, self.config.full_delay_ns, &mut self.delay_full),
            _ => {
                self.queue_resend(slot);
                return;
            }
        };
        transaction.place = place;
        transaction.due = now.after_ns(delay_ns);
        list.push_back(&mut self.table.chain, slot);
        let due = transaction.due;
        self.arm_delay(due);
        self.refresh(id);
    }

    /// Stops counting the block's bytes as under way.
    pub(super) fn uncount(&mut self, slot: u32) {
        let transaction = &mut self.table.entries[slot as usize];
        if let Some(peer) = self.peers[transaction.peer.index()].as_mut()
            && transaction.counted
        {
            transaction.counted = false;
            peer.paths[usize::from(transaction.path)].in_flight_bytes -= u64::from(transaction.length_bytes);
        }
    }

    /// Puts a block among its peer's blocks to be sent again.
    pub(super) fn queue_resend(&mut self, slot: u32) {
        let transaction = &mut self.table.entries[slot as usize];
        let id = transaction.peer;
        let Some(peer) = self.peers[id.index()].as_mut() else {
            return;
        };
        transaction.place = Place::Resend;
        peer.resend.push_back(&mut self.table.chain, slot);
        self.refresh(id);
    }

    /// Handles a resume: the absent page is there (FAULT §3.2.3). A resume is obeyed only for the current
    /// generation and the block's own domain. While bytes of the block are on their way, it is obeyed only if
    /// it names their attempt: a late resume would send all of them twice.
    pub(crate) fn resume(&mut self, now: Time, id: PeerId, resume: &Resume) {
        let slot = self.current(id, resume.transaction, resume.generation).filter(|slot| {
            let transaction = &self.table.entries[*slot as usize];
            let domain = self.transfers.entries[transaction.transfer as usize].spec.domain;
            // A packet that asks whether the bytes are placed carries none, and is not counted.
            let sends_bytes = transaction.place == Place::Timeout && transaction.counted;
            domain == resume.domain
                && (transaction.attempt == resume.attempt || !sends_bytes)
                && transaction.state.is_open()
                && matches!(transaction.place, Place::Timeout | Place::DelayFault | Place::DelayPlacing)
        });
        let Some(slot) = slot else {
            self.counters.stale_answers += 1;
            return;
        };
        self.counters.resumes += 1;
        if self.refused_too_long(now, slot) {
            let index = self.table.entries[slot as usize].transfer;
            self.end(index, Err(TransferError::Refused(NackCode::SlaveError.into())));
            return;
        }
        self.unplace(slot);
        self.uncount(slot);
        if self.table.entries[slot as usize].state == State::Placing {
            // The block's bytes have to be sent again, not the question whether they are placed.
            self.step(slot, Event::Resend);
        }
        self.queue_resend(slot);
    }

    /// Takes back a block whose source the caller cannot read (FAULT §3.2.2). An absent page (code 1) pauses
    /// the block, as at the destination. Any other code ends the transfer.
    pub(crate) fn source_refused(&mut self, now: Time, block: &Block, refusal: Refusal) {
        let slot = self
            .slot_of(block)
            .filter(|slot| matches!(self.table.entries[*slot as usize].place, Place::Timeout | Place::Late));
        let Some(slot) = slot else { return };
        if self.release_if_ending(slot) {
            return;
        }
        let index = self.table.entries[slot as usize].transfer;
        if refusal.code == NackCode::SlaveError && !self.refused_too_long(now, slot) {
            self.table.entries[slot as usize].absent_at = self.attended.at(now);
            self.set_aside(now, slot, refusal.code);
        } else {
            match self.table.entries[slot as usize].sent_before_at {
                None => self.release(slot),
                Some(_) => self.unplace(slot),
            }
            self.end(index, Err(TransferError::Local(refusal)));
        }
    }

    /// Whether a block still waits for an answer.
    pub(crate) fn is_open(&self, block: &Block) -> bool {
        let slot = self.slot_of(block);
        slot.is_some_and(|slot| self.table.entries[slot as usize].state.is_open())
    }

    /// Sends a block again that `source_refused` has put off, because its page is there.
    pub(crate) fn source_ready(&mut self, block: &Block) {
        let slot =
            self.slot_of(block).filter(|slot| self.table.entries[*slot as usize].place == Place::DelayFault);
        if let Some(slot) = slot {
            self.counters.sources_ready += 1;
            self.unplace(slot);
            self.queue_resend(slot);
        }
    }
}
