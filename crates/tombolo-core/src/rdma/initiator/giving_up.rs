//! When what a peer does not answer is given up.
//!
//! A peer of which nothing is heard for [`Config::give_up_ns`], though something was sent to it, ends all that
//! this node wants of it. What the peer itself has asked for waits until its link is lost: a process that is
//! stopped and goes on finds its reads answered, and would lose their bytes otherwise. Such an answer holds
//! slots of the table meanwhile, so it waits only while there is room for others: while less than a quarter of
//! the table is free, and silent peers hold more than a quarter, their answers that hold slots end, too, the oldest
//! first. Until something is heard of a silent peer again, its blocks get one slot at a time: enough to find out that
//! it answers. So the others go on after [`Config::give_up_ns`]; where more peers with a path are stopped than a quarter of the table has slots,
//! once more this long for each further quarter: whether a peer answers is known when something was sent to it. A peer without a
//! path is not silent, whatever it holds: what it has asked for waits until its link is lost, since a network that is
//! down for less than that may cost nobody anything.
//!
//! A peer that is heard, but does not answer one block or request, ends that alone, after
//! [`Config::max_attempts`]; a path that is lost with it counts as an attempt. Time without a path does not
//! count, and does not begin the count anew either: else a peer could keep transfers open for ever by losing
//! its path again and again.

#[cfg(doc)]
use crate::rdma::config::Config;

use super::Initiator;
use crate::rdma::time::Time;
use crate::rdma::transfer::{PeerId, TransferError};

impl Initiator {
    /// Whether something first sent at `since` is given up after so many attempts without an answer, and why.
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

    /// Nothing came from the peer for too long, although something was asked of
    /// it since `since`. Without a path nothing is asked of it.
    pub(super) fn is_silent(&self, now: Time, id: PeerId, since: Time) -> bool {
        self.peers[id.index()].as_ref().is_none_or(|peer| {
            peer.has_path()
                && self.attended.at(now).since_ns(peer.heard_at.max(since)) >= self.config.give_up_ns
        })
    }

    /// A transfer is given up for this error. Returns whether it goes on nevertheless.
    pub(super) fn end_given_up(&mut self, now: Time, index: u32, error: TransferError) -> bool {
        if error != TransferError::PeerUnreachable {
            self.end(index, Err(error));
            return false;
        }
        self.end_unanswered(now, self.transfers.entries[index as usize].peer);
        !self.has_ended(index)
    }

    /// The peer does not answer. That holds for all that this node wants of it: what waits for its turn need
    /// not find out anew. What the peer has asked for goes on, but for what holds slots that others need.
    pub(super) fn end_unanswered(&mut self, now: Time, id: PeerId) {
        let Some(Some(peer)) = self.peers.get_mut(id.index()) else { return };
        // Before any slot is freed: what the peer still waits for must not take it.
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

    /// Whether less than a quarter of the table is free, and more than a quarter is held by silent peers. A stopped
    /// peer that holds less keeps what it has read although others are busy.
    fn is_crowded(&self) -> bool {
        let all = self.table.entries.len();
        let held = || -> usize {
            self.peers.iter().flatten().filter(|peer| peer.is_silent).map(|peer| peer.slots).sum()
        };
        self.table.tickets.len() * 4 < all && held() * 4 > all
    }

    /// A block was under way by a path that is lost.
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

    /// The peer has a path again: the time without one does not count.
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
