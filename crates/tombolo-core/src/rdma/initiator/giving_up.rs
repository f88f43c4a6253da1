//! Decides when transfers end because a peer does not answer.
//!
//! A peer is *silent* if nothing is heard of it for [`Config::give_up_ns`], although something was sent to it.
//! Then all transfers that this node's programs have open with it end. Answers to the peer's own reads wait
//! until its link is lost, so that a process that is stopped and continues still gets the bytes that it asked
//! for.
//!
//! Such an answer holds slots of the table meanwhile, so it waits only while there is room for other peers.
//! While less than a quarter of the table is free and silent peers hold more than a quarter, answers to silent
//! peers that hold slots end, too, the oldest first. Until something is heard of a silent peer again, its
//! blocks get one slot at a time, which is enough to find out whether it answers.
//!
//! So the transfers of other peers go on after [`Config::give_up_ns`]. If more peers with a path are stopped
//! than a quarter of the table has slots, each further quarter delays them by the same time again, because the
//! engine learns that a peer is silent only after it has sent something to it. A peer without a path is not
//! silent, whatever it holds. What it has asked for waits until its link is lost, so that an outage of the
//! network that is shorter than that does no harm.
//!
//! If a peer is heard but does not answer one block or request, only the transfer of that block or request
//! ends, after [`Config::max_attempts`]. A path that is lost while the block or request is under way by it
//! counts as an attempt. Time without a path does not count. It does not restart the count either: otherwise a
//! peer could keep transfers open for ever by losing its path again and again.

#[cfg(doc)]
use crate::rdma::config::Config;

use super::Initiator;
use crate::rdma::time::Time;
use crate::rdma::transfer::{PeerId, TransferError};

impl Initiator {
    /// Returns the error with which to give up something first sent at `since`, after `unanswered` attempts in
    /// a row without an answer. `None`: it is not given up yet.
    pub(super) fn give_up(
        &mut self,
        now: Time,
        id: PeerId,
        since: Time,
        unanswered: u32,
    ) -> Option<TransferError> {
        if self.is_silent(now, id, since) {
            return Some(TransferError::PeerUnreachable);
        }
        if unanswered < self.config.max_attempts {
            return None;
        }
        if self.peers[id.index()].as_ref().is_none_or(|peer| peer.heard_at <= since) {
            return Some(TransferError::PeerUnreachable);
        }
        Some(TransferError::Undeliverable)
    }

    /// Whether nothing came from the peer for [`Config::give_up_ns`], although something has waited for its
    /// answer since `since`. A peer without a path is not silent, because nothing is sent to it.
    pub(super) fn is_silent(&self, now: Time, id: PeerId, since: Time) -> bool {
        self.peers[id.index()].as_ref().is_none_or(|peer| {
            peer.has_path()
                && self.attended.at(now).since_ns(peer.heard_at.max(since)) >= self.config.give_up_ns
        })
    }

    /// Ends a transfer that is given up for `error`. If the peer is unreachable, the peer's other transfers
    /// end, too. Returns whether this transfer goes on nevertheless.
    pub(super) fn end_given_up(&mut self, now: Time, index: u32, error: TransferError) -> bool {
        if error != TransferError::PeerUnreachable {
            self.end(index, Err(error));
            return false;
        }
        self.end_unanswered(now, self.transfers.entries[index as usize].peer);
        !self.has_ended(index)
    }

    /// Ends all transfers of this node's programs with a peer that does not answer, also those that still wait
    /// for their turn. Answers to the peer's own reads go on, except those that hold slots that other peers
    /// need.
    pub(super) fn end_unanswered(&mut self, now: Time, id: PeerId) {
        let Some(Some(peer)) = self.peers.get_mut(id.index()) else { return };
        // Set before any slot is freed, so that the peer's remaining answers do not take the slot.
        peer.is_silent = true;
        let ending: Vec<u32> = peer.ending.iter(&self.transfers.open_chain).collect();
        let open: Vec<u32> = peer.open.iter(&self.transfers.open_chain).collect();
        let now = self.attended.at(now);
        for index in ending {
            self.end(index, Err(TransferError::PeerUnreachable));
        }
        for index in open {
            let transfer = &self.transfers.entries[index as usize];
            if transfer.served.is_none() || (!transfer.slots.is_empty() && self.is_crowded()) {
                self.end(index, Err(TransferError::PeerUnreachable));
                continue;
            }
            let transfer = &self.transfers.entries[index as usize];
            for slot in transfer.slots.iter(&self.table.siblings) {
                let transaction = &mut self.table.entries[slot as usize];
                (transaction.issued_at, transaction.unanswered) = (now, 0);
            }
        }
    }

    /// Whether less than a quarter of the table is free, and more than a quarter is held by silent peers. If
    /// silent peers hold less, the answers to their reads stay, although other peers need slots.
    fn is_crowded(&self) -> bool {
        let all = self.table.entries.len();
        let held = || -> usize {
            self.peers.iter().flatten().filter(|peer| peer.is_silent).map(|peer| peer.slots).sum()
        };
        self.table.tickets.len() * 4 < all && held() * 4 > all
    }

    /// Counts an unanswered attempt for a block that was under way by a path that is lost, and ends its
    /// transfer after [`Config::max_attempts`].
    pub(super) fn lost_with_its_path(&mut self, slot: u32) {
        let transaction = &mut self.table.entries[slot as usize];
        transaction.unanswered += 1;
        if transaction.unanswered >= self.config.max_attempts {
            let index = transaction.transfer;
            self.end(index, Err(TransferError::Undeliverable));
        }
    }

    /// As [`Self::lost_with_its_path`], for a read request.
    pub(super) fn request_lost_with_its_path(&mut self, index: u32) {
        let transfer = &mut self.transfers.entries[index as usize];
        transfer.unanswered += 1;
        if transfer.unanswered >= self.config.max_attempts {
            self.end(index, Err(TransferError::Undeliverable));
        }
    }

    /// Moves the times of a peer that has a path again, so that its time without one does not count.
    pub(super) fn leave_out_time_without_path(&mut self, now: Time, id: PeerId) {
        let now = self.attended.at(now);
        let Some(Some(peer)) = self.peers.get_mut(id.index()) else { return };
        let Some(since) = peer.pathless_since.take() else { return };
        let moved = |time: Time| time.after_ns(now.since_ns(since)).min(now);
        peer.heard_at = moved(peer.heard_at);
        let open = peer.open.iter(&self.transfers.open_chain);
        for index in open.chain(peer.ending.iter(&self.transfers.open_chain)) {
            let transfer = &mut self.transfers.entries[index as usize];
            transfer.first_asked_at = moved(transfer.first_asked_at);
            transfer.progress_at = moved(transfer.progress_at);
            for slot in transfer.slots.iter(&self.table.siblings) {
                let transaction = &mut self.table.entries[slot as usize];
                transaction.issued_at = moved(transaction.issued_at);
                transaction.absent_at = moved(transaction.absent_at);
            }
        }
    }
}
