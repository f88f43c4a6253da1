//! The requester's side of reads (QOS §3.6).
//!
//! A read is a request that the target answers with writes. The requester repeats the request until it hears
//! something. It admits only write-backs of a read that is open, and only inside the read's range. The read is
//! done when the write-back's last block and its notification are in and every byte has been counted.

use super::Initiator;
use super::tables::{Queue, request_place};
use crate::list::NONE;
use crate::rdma::action::Action;
use crate::rdma::config::Config;
use crate::rdma::scheduler::ASK;
use crate::rdma::time::Time;
use crate::rdma::transfer::{PathId, PeerId, TransferError, TransferId};
use tombolo_wire::{Attempt, Domain, NackCode, Notification, Packet, ReadRequest, Refusal, RequestId};

/// An open read that a block may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadGrant {
    /// The read.
    pub transfer: TransferId,
    /// Domain of this node that the bytes go to.
    pub domain: Domain,
    /// The words to write at its end: the requester's own, whatever the target
    /// sends.
    pub notification: Option<Notification>,
    /// Given when the read was posted.
    pub user: u64,
}

impl Initiator {
    pub(super) fn start_read(&mut self, index: u32) {
        let transfer = &mut self.transfers.entries[index as usize];
        let class = transfer.class(&self.config);
        let id = transfer.peer;
        let Some(peer) = self.peers[id.index()].as_mut() else {
            return;
        };
        transfer.queue = Queue::Ask(class);
        peer.reads[class as usize].push_back(&mut self.transfers.chain, index);
        self.refresh(id);
    }

    /// The next request to send: one to be repeated, or a new one.
    pub(super) fn poll_read(&mut self, now: Time) -> Option<Action> {
        let id = self.rings.front(ASK)?;
        self.rings.rotate(ASK, id);
        let peer = self.peers[id as usize].as_mut()?;
        if let Some(index) = peer.again.front() {
            self.leave_queue(index);
            self.refresh(PeerId(id));
            self.counters.reads_retransmitted += 1;
            let transfer = &mut self.transfers.entries[index as usize];
            transfer.attempt = transfer.attempt.next();
            return self.ask(now, index);
        }
        let (class, _) = peer.read_picker.pick(peer.may_ask(&self.config))?;
        let index = peer.reads[class as usize].front()?;
        let request = peer.take_request();
        peer.requests[request_place(request)] = index;
        peer.open_reads.push_back(&mut self.transfers.read_chain, index);
        peer.open_shares.take(class);
        self.leave_queue(index);
        let transfer = &mut self.transfers.entries[index as usize];
        transfer.request = Some(request);
        transfer.attempt = Attempt(0);
        transfer.first_asked_at = self.attended.at(now);
        transfer.progress_at = transfer.first_asked_at;
        self.refresh(PeerId(id));
        self.ask(now, index)
    }

    fn ask(&mut self, now: Time, index: u32) -> Option<Action> {
        let id = self.transfers.entries[index as usize].peer;
        let watermark = self.oldest_request(id)?;
        let transfer = &mut self.transfers.entries[index as usize];
        let peer = self.peers[id.index()].as_mut()?;
        let spec = transfer.spec;
        let request = transfer.request?;
        let packet = Packet::ReadRequest(ReadRequest {
            request,
            watermark,
            attempt: transfer.attempt,
            domain: spec.domain,
            size_bytes: spec.size_bytes,
            source_address: spec.source_address,
            destination_address: spec.destination_address,
            notification: spec.notification,
            class: spec.class.map(|class| class as u8),
        });
        let again = transfer.attempt != Attempt(0);
        transfer.asked_by = peer.path_for_request(now, again.then_some(transfer.asked_by));
        let path = PathId(transfer.asked_by);
        peer.ask_order += 1;
        transfer.ask_order = peer.ask_order;
        transfer.asked_at = now;
        transfer.queue = Queue::Asked;
        peer.asked.push_back(&mut self.transfers.chain, index);
        peer.latest_asked = Some(index);
        let timeout_ns = peer.read_timeout_ns(&self.config);
        self.counters.reads_sent += 1;
        self.arm(id, self.config.retransmission.due(now, timeout_ns));
        self.arm_read_probe(id);
        Some(Action::Send { peer: id, path, packet })
    }

    /// The oldest open read: all ids before it are over.
    fn oldest_request(&self, id: PeerId) -> Option<RequestId> {
        let peer = self.peers[id.index()].as_ref()?;
        let oldest = peer.open_reads.front();
        let oldest = oldest.and_then(|index| self.transfers.entries[index as usize].request);
        Some(oldest.unwrap_or(peer.next_request))
    }

    fn open_read(&self, id: PeerId, request: RequestId) -> Option<u32> {
        let peer = self.peers.get(id.index())?.as_ref()?;
        let index = peer.requests[request_place(request)];
        let transfer = self.transfers.entries.get(index as usize)?;
        (transfer.request == Some(request)).then_some(index)
    }

    /// Whether a block may answer this read.
    pub(crate) fn admit(
        &self,
        id: PeerId,
        request: RequestId,
        domain: Domain,
        address: u64,
        length_bytes: u32,
    ) -> Result<ReadGrant, NackCode> {
        let index = self.open_read(id, request).ok_or(NackCode::NoContext)?;
        let spec = &self.transfers.entries[index as usize].spec;
        let start = address.checked_sub(spec.destination_address);
        let inside = start
            .and_then(|start| start.checked_add(length_bytes.into()))
            .is_some_and(|end| end <= spec.size_bytes.into());
        if domain != spec.domain || !inside {
            return Err(NackCode::DomainMismatch);
        }
        let transfer = self.transfers.id(index);
        let (domain, notification, user) = (spec.own_domain, spec.notification, spec.user);
        Ok(ReadGrant { transfer, domain, notification, user })
    }

    /// Records that bytes or words of a read are about to be written to memory. `false`: the read is over, so
    /// they must not be written.
    pub(crate) fn read_placing(&mut self, now: Time, read: TransferId) -> bool {
        let Some(transfer) = self.transfers.find(read) else {
            return false;
        };
        if matches!(transfer.queue, Queue::Ending | Queue::Done) {
            return false;
        }
        transfer.placing += 1;
        self.read_heard(now, read.index);
        true
    }

    /// Records that the bytes or words are written, or will not be.
    pub(crate) fn read_placed(&mut self, read: TransferId) {
        let Some(transfer) = self.transfers.find(read) else {
            return;
        };
        transfer.placing = transfer.placing.saturating_sub(1);
        self.report_if_untouched(read.index);
    }

    /// Records that this node's own memory has refused bytes or words of a read. The read ends when the peer
    /// rejects it for good, or when it takes too long.
    pub(crate) fn read_refused_here(&mut self, read: TransferId, refusal: Refusal) {
        if let Some(transfer) = self.transfers.find(read) {
            let for_good = transfer.own_refusal.filter(|known| !known.code.is_transient());
            transfer.own_refusal = for_good.or(Some(refusal));
        }
    }

    /// Records a sign of life of a read, which restarts its timer. If there were only signs of life for too
    /// long, but no progress, the read ends.
    fn read_heard(&mut self, now: Time, index: u32) {
        let transfer = &mut self.transfers.entries[index as usize];
        if std::mem::take(&mut transfer.has_progressed) {
            transfer.progress_at = self.attended.at(now);
        } else if self.read_stalls(now, index) {
            let read = &self.transfers.entries[index as usize];
            return self.end(index, Err(read.refused_by(NackCode::BufferFull.into())));
        }
        let transfer = &mut self.transfers.entries[index as usize];
        transfer.unanswered = 0;
        if transfer.queue != Queue::Asked {
            return;
        }
        let Some(peer) = self.peers[transfer.peer.index()].as_mut() else {
            return;
        };
        // An answer does not say which attempt it answers: only a read that was
        // asked for once measures.
        let shorter = if !transfer.heard && transfer.attempt == Attempt(0) {
            let trip_ns = now.since_ns(transfer.asked_at);
            let Config { retransmission, read_retry_ns, .. } = self.config;
            let shorter = peer.read_trip.sample_shortens(trip_ns, retransmission, read_retry_ns);
            peer.path_answers(transfer.asked_by.into()) || shorter
        } else {
            peer.read_trip.alive()
        };
        let first = !std::mem::replace(&mut transfer.heard, true);
        transfer.asked_at = now;
        peer.asked.remove(&mut self.transfers.chain, index);
        peer.asked.push_back(&mut self.transfers.chain, index);
        if first {
            peer.answered_ask_order = peer.answered_ask_order.max(transfer.ask_order);
            let id = transfer.peer;
            self.find_overtaken_reads(now, id);
        }
        if shorter {
            let id = self.transfers.entries[index as usize].peer;
            self.lower_wake(id);
        }
    }

    /// Whether this read has received no whole block for too long, and neither has any open read that was asked
    /// for before it, because earlier reads may go first.
    fn read_stalls(&self, now: Time, index: u32) -> bool {
        let now = self.attended.at(now);
        let is_stale = |index: u32| {
            let read = &self.transfers.entries[index as usize];
            !read.has_progressed && now.since_ns(read.progress_at) >= self.config.refused_give_up_ns
        };
        if !is_stale(index) {
            return false;
        }
        let peer = self.transfers.entries[index as usize].peer;
        let Some(peer) = self.peers[peer.index()].as_ref() else { return false };
        let reads = peer.open_reads.iter(&self.transfers.read_chain);
        reads.take_while(|earlier| *earlier != index).all(is_stale)
    }

    /// Records that a block of a read's answer is complete. If the block is the last, its notification is
    /// written.
    pub(crate) fn read_block(&mut self, id: PeerId, request: RequestId, bytes: u32, last: bool) {
        let Some(index) = self.open_read(id, request) else {
            return;
        };
        let transfer = &mut self.transfers.entries[index as usize];
        transfer.received_bytes += u64::from(bytes);
        transfer.has_progressed |= bytes > 0;
        if bytes > 0 {
            transfer.own_refusal = transfer.own_refusal.filter(|own| !own.code.is_transient());
        }
        if transfer.received_bytes > transfer.spec.size_bytes.into() {
            // The peer has sent more bytes than the read asked for.
            self.end(index, Err(TransferError::Incomplete));
        } else if last {
            let whole = transfer.received_bytes == u64::from(transfer.spec.size_bytes);
            self.end(index, if whole { Ok(()) } else { Err(TransferError::Incomplete) });
        }
    }

    /// Handles the rejection of a read: for good, or for now (codes 1, 4, 7).
    pub(crate) fn read_rejected(
        &mut self,
        now: Time,
        (id, path): (PeerId, PathId),
        request: RequestId,
        refusal: Refusal,
    ) {
        self.counters.nacks_received[refusal.code as usize] += 1;
        let Some(index) = self.open_read(id, request) else {
            self.counters.stale_answers += 1;
            return;
        };
        self.request_answered(id, path);
        let transfer = &mut self.transfers.entries[index as usize];
        let too_long =
            self.attended.at(now).since_ns(transfer.first_asked_at) >= self.config.refused_give_up_ns;
        if !refusal.code.is_transient() || too_long {
            let why = transfer.refused_by(refusal);
            self.end(index, Err(why));
        } else if transfer.queue == Queue::Asked {
            self.leave_queue(index);
            let transfer = &mut self.transfers.entries[index as usize];
            transfer.unanswered = 0;
            transfer.asked_at = now;
            transfer.queue = Queue::Delayed;
            self.delayed_reads.push_back(&mut self.transfers.chain, index);
            self.arm_delay(now.after_ns(self.config.full_delay_ns));
        }
    }

    /// Handles the answer that the target knows the read and will serve it.
    pub(crate) fn read_accepted(&mut self, now: Time, (id, path): (PeerId, PathId), request: RequestId) {
        match self.open_read(id, request) {
            Some(index) => {
                self.request_answered(id, path);
                self.read_heard(now, index);
            }
            None => self.counters.stale_answers += 1,
        }
    }

    /// Marks the path of an answer to a request as answering. Such an answer comes by the path of its request,
    /// so the path works both ways.
    fn request_answered(&mut self, id: PeerId, path: PathId) {
        if let Some(Some(peer)) = self.peers.get_mut(id.index())
            && path.index() < peer.paths.len()
            && peer.path_answers(path.index())
        {
            self.lower_wake(id);
        }
    }

    /// Frees the request id of a read that is over.
    pub(super) fn forget_request(&mut self, index: u32) {
        let transfer = &mut self.transfers.entries[index as usize];
        let Some(request) = transfer.request.take() else {
            return;
        };
        let Some(peer) = self.peers[transfer.peer.index()].as_mut() else {
            return;
        };
        peer.requests[request_place(request)] = NONE;
        let (progress_at, has_progressed) = (transfer.progress_at, transfer.has_progressed);
        let class = transfer.class(&self.config);
        if let Some(next) = self.transfers.read_chain.after(index) {
            let next = &mut self.transfers.entries[next as usize];
            next.progress_at = next.progress_at.max(progress_at);
            next.has_progressed |= has_progressed;
        }
        peer.open_reads.remove(&mut self.transfers.read_chain, index);
        peer.open_shares.give_back(class);
    }
}
