//! The end of transfers. After an end is reported, a program may use the memory for something else. So the end
//! is reported only when no byte of the transfer may still come.
//!
//! A block that was acknowledged is placed. When a transfer fails, other blocks of it may be on their way, and
//! a network may deliver them late. So each of these blocks is closed: an empty block of the next generation
//! follows it in its slot. The receiver accepts the empty block when it has placed what it had begun to place,
//! and afterwards drops packets of earlier generations. The transfer's end is reported when all empty blocks
//! have been answered.
//!
//! The engine stops waiting when a peer has answered none of the empty blocks for [`Config::give_up_ns`], or
//! has answered for [`Config::refused_give_up_ns`] that it is still placing bytes. While a peer has no path,
//! the engine waits until it has one or is lost.
//!
//! Blocks of an answer to a read are not closed, because the reader accepts no byte of a read that is over. Nor
//! are blocks to a peer that was lost or does not answer: such a peer may later place bytes that it received
//! before.

#[cfg(doc)]
use crate::rdma::config::Config;

use super::tables::{Place, Queue, Transaction};
use super::{Initiator, transfer_peer};
use crate::rdma::action::Action;
use crate::rdma::time::Time;
use crate::rdma::transaction::Event;
use crate::rdma::transfer::{PeerId, TransferError};
use tombolo_wire::{Attempt, DataHeader, NotificationMark, Packet, Payload, TransactionId};

impl Initiator {
    /// Ends every transfer with a peer, without waiting for anything.
    pub(super) fn end_all(&mut self, id: PeerId, error: TransferError) {
        while let Some(Some(peer)) = self.peers.get(id.index())
            && let Some(index) = peer.open.front().or_else(|| peer.ending.front())
        {
            self.end(index, Err(error));
        }
    }

    /// Ends a transfer. If it has ended already, its report no longer waits for answers.
    pub(super) fn end(&mut self, index: u32, status: Result<(), TransferError>) {
        if self.has_ended(index) {
            return self.stop_waiting(index, status);
        }
        let id = transfer_peer(&self.transfers, index);
        self.leave_queue(index);
        if let Some(peer) = self.peers[id.index()].as_mut() {
            peer.open.remove(&mut self.transfers.open_chain, index);
        }
        self.forget_request(index);
        let transfer = &mut self.transfers.entries[index as usize];
        transfer.status = status;
        self.counters.given_up += u64::from(status == Err(TransferError::Undeliverable));
        transfer.queue = Queue::Ending;
        let is_silent = matches!(status, Err(TransferError::PeerLost | TransferError::PeerUnreachable));
        if transfer.served.is_some() || is_silent {
            self.drop_blocks(index);
        } else {
            self.close_blocks(index);
        }
        if !self.transfers.entries[index as usize].slots.is_empty()
            && let Some(peer) = self.peers[id.index()].as_mut()
        {
            peer.ending.push_back(&mut self.transfers.open_chain, index);
        }
        self.report_if_untouched(index);
        self.refresh(id);
    }

    /// Reports an ended transfer whose blocks will not be answered. Its status becomes the reason, `status`:
    /// bytes of the transfer may still come.
    fn stop_waiting(&mut self, index: u32, status: Result<(), TransferError>) {
        if self.transfers.entries[index as usize].slots.is_empty() {
            return;
        }
        self.drop_blocks(index);
        let transfer = &mut self.transfers.entries[index as usize];
        if transfer.slots.is_empty() {
            transfer.status = status;
            self.counters.closed_in_vain += 1;
        }
        self.leave_ending(index);
        self.report_if_untouched(index);
        self.refresh(transfer_peer(&self.transfers, index));
    }

    pub(super) fn has_ended(&self, index: u32) -> bool {
        matches!(self.transfers.entries[index as usize].queue, Queue::Ending | Queue::Done)
    }

    /// Frees the slots of a transfer, except those of blocks that the caller carries out on this node.
    fn drop_blocks(&mut self, index: u32) {
        let mut next = self.transfers.entries[index as usize].slots.front();
        while let Some(slot) = next {
            next = self.table.siblings.after(slot);
            if !self.is_carried_out_here(slot) {
                self.release(slot);
            }
        }
    }

    /// As [`Self::drop_blocks`], but closes the blocks that were sent.
    fn close_blocks(&mut self, index: u32) {
        let id = transfer_peer(&self.transfers, index);
        if self.peers[id.index()].as_ref().is_none_or(|peer| peer.is_loopback) {
            return self.drop_blocks(index);
        }
        let mut next = self.transfers.entries[index as usize].slots.front();
        while let Some(slot) = next {
            next = self.table.siblings.after(slot);
            if self.table.entries[slot as usize].sent {
                self.close_block(slot);
            } else {
                self.release(slot);
            }
        }
    }

    /// Closes a block: an empty block takes its slot.
    fn close_block(&mut self, slot: u32) {
        let id = self.table.entries[slot as usize].peer;
        let Some(peer) = self.peers[id.index()].as_mut() else { return };
        let generation = &mut peer.generations[slot as usize];
        *generation = generation.next();
        let generation = *generation;
        self.unplace(slot);
        self.uncount(slot);
        self.step(slot, Event::Release);
        self.step(slot, Event::Issue);
        let transaction = &mut self.table.entries[slot as usize];
        transaction.generation = generation;
        transaction.attempt = Attempt(0);
        transaction.length_bytes = 0;
        transaction.last = false;
        (transaction.sent, transaction.unsent, transaction.reading) = (false, false, false);
        transaction.carried = false;
        transaction.sent_before_at = None;
        (transaction.unanswered, transaction.overtaken) = (0, 0);
        transaction.lost = None;
        self.counters.blocks_closed += 1;
        self.queue_resend(slot);
    }

    /// Sends the empty block that closes another.
    pub(super) fn send_closing(&mut self, now: Time, slot: u32) -> Option<Action> {
        if self.table.entries[slot as usize].sent && !self.step(slot, Event::Resend) {
            return None;
        }
        let transaction = &mut self.table.entries[slot as usize];
        if transaction.sent {
            transaction.attempt = transaction.attempt.next();
        } else {
            transaction.issued_at = self.attended.at(now);
            transaction.absent_at = transaction.issued_at;
        }
        let transfer = &self.transfers.entries[transaction.transfer as usize];
        let header = DataHeader {
            domain: transfer.spec.domain,
            transaction: TransactionId(slot as u16),
            generation: transaction.generation,
            attempt: transaction.attempt,
            block_address: transfer.spec.destination_address + u64::from(transaction.offset_bytes),
            block_bytes: 0,
            offset_bytes: 0,
            payload_bytes: 0,
            in_reply_to: None,
            asker: transfer.asker,
            notification: NotificationMark::None,
        };
        let peer = transaction.peer;
        let path = self.start_timer(now, slot, false);
        Some(Action::Send { peer, path, packet: Packet::Data(header, Payload::Intact(&[])) })
    }

    /// Whether a closing block has had no answer for [`Config::give_up_ns`], the time after which a silent peer
    /// is given up.
    pub(super) fn is_closed_in_vain(&self, now: Time, slot: u32) -> bool {
        let transaction = &self.table.entries[slot as usize];
        let waited_ns = self.attended.at(now).since_ns(transaction.issued_at.max(transaction.absent_at));
        self.has_ended(transaction.transfer) && waited_ns >= self.config.give_up_ns
    }

    /// Whether the caller is carrying out this block on this node, without packets.
    pub(super) fn is_carried_out_here(&self, slot: u32) -> bool {
        let Transaction { peer, place, .. } = &self.table.entries[slot as usize];
        let is_loopback = self.peers[peer.index()].as_ref().is_some_and(|peer| peer.is_loopback);
        is_loopback && matches!(place, Place::Timeout | Place::Late)
    }

    /// Frees the slot of an answered block if its transfer has ended meanwhile; `false`: it has not.
    pub(super) fn release_if_ending(&mut self, slot: u32) -> bool {
        let index = self.table.entries[slot as usize].transfer;
        if self.transfers.entries[index as usize].queue != Queue::Ending {
            return false;
        }
        self.release(slot);
        self.leave_ending(index);
        self.report_if_untouched(index);
        self.refresh(transfer_peer(&self.transfers, index));
        true
    }

    /// Takes a transfer out of its peer's list of ending transfers if none of its blocks is waited for any
    /// more.
    fn leave_ending(&mut self, index: u32) {
        let transfer = &self.transfers.entries[index as usize];
        if transfer.slots.is_empty()
            && let Some(peer) = self.peers[transfer.peer.index()].as_mut()
        {
            peer.ending.remove(&mut self.transfers.open_chain, index);
        }
    }

    /// Reports the end of a transfer if no copy to or from its memory is left.
    pub(super) fn report_if_untouched(&mut self, index: u32) {
        let transfer = &self.transfers.entries[index as usize];
        if transfer.queue == Queue::Ending && transfer.placing == 0 && transfer.slots.is_empty() {
            self.report_end(index);
        }
    }

    fn report_end(&mut self, index: u32) {
        let transfer = &mut self.transfers.entries[index as usize];
        transfer.queue = Queue::Done;
        let list = match transfer.served {
            Some(_) => &mut self.served_ended,
            None => &mut self.done,
        };
        list.push_back(&mut self.transfers.chain, index);
    }
}
