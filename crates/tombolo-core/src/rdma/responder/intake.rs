//! Incoming packets: finds the block that each belongs to, and whether it is still wanted.

use super::entry::{Phase, Reply, granules};
use super::{BlockEnd, Responder};
use crate::rdma::action::{DropReason, Operation, Placement, Verdict};
use crate::rdma::initiator::ReadGrant;
use crate::rdma::transfer::{PathId, PeerId};
use tombolo_wire::{
    ATOMIC_BYTES, Asker, Atomic, Attempt, DataHeader, Domain, EarlierBlocks, Generation, NackCode,
    NotificationMark, NotifyHeader, RequestId, TransactionId,
};

/// What identifies the block a packet belongs to.
#[derive(Clone, Copy)]
struct BlockName {
    path: PathId,
    slot: TransactionId,
    generation: Generation,
    attempt: Attempt,
    domain: Domain,
    address: u64,
    length_bytes: u32,
    request: Option<RequestId>,
    asker: Asker,
    expects_notification: bool,
}

impl Responder {
    /// Handles a packet with bytes. `admit` says whether a block may answer the read that it names. It is
    /// called only for a block that is still being received.
    pub(crate) fn data(
        &mut self,
        (id, path): (PeerId, PathId),
        header: &DataHeader,
        intact: bool,
        admit: impl FnOnce(RequestId) -> Result<ReadGrant, NackCode>,
    ) -> (Verdict, Option<BlockEnd>) {
        let name = BlockName {
            path,
            slot: header.transaction,
            generation: header.generation,
            attempt: header.attempt,
            domain: header.domain,
            address: header.block_address,
            length_bytes: header.block_bytes,
            request: header.in_reply_to,
            asker: header.asker,
            expects_notification: header.notification != NotificationMark::None,
        };
        let words = match header.notification {
            NotificationMark::Here(words) => Some(words),
            NotificationMark::None | NotificationMark::Elsewhere => None,
        };
        if !intact {
            self.counters.damaged_packets += 1;
        }
        let slot = name.slot.0;
        let grant = match self.enter(id, &name, intact, admit) {
            Ok(grant) => grant,
            Err(reason) => return (Verdict::Dropped(reason), None),
        };
        let peer = &mut self.peers[id.index()];
        let epoch = peer.epoch;
        let entry = &mut peer.entries[usize::from(slot)];
        if words.is_some() {
            entry.announce(words, None);
        }
        let mask = granules(header.offset_bytes, header.payload_bytes);
        if mask & !entry.claimed == 0 {
            let empty = mask == 0;
            let end = self.settle(id, slot);
            if !empty {
                self.counters.duplicates += 1;
                return (Verdict::Dropped(DropReason::Duplicate), end);
            }
            return (Verdict::Taken, end);
        }
        if !intact {
            self.reply(
                id,
                slot,
                name.generation,
                name.attempt,
                Reply::Nack(NackCode::PacketCorrupted.into()),
            );
            return (Verdict::Dropped(DropReason::Damaged), None);
        }
        entry.claimed |= mask;
        entry.placing += 1;
        self.counters.packets_placed += 1;
        let placement = Placement {
            domain: grant.map_or(name.domain, |grant| grant.domain),
            address: name.address + u64::from(header.offset_bytes),
            length_bytes: header.payload_bytes,
            peer: id,
            asker: name.asker,
            read: grant.map(|grant| grant.transfer),
            user: grant.map_or(0, |grant| grant.user),
            block: (name.address, name.length_bytes),
            epoch,
            slot,
            generation: name.generation,
            attempt: name.attempt,
            mask,
        };
        (Verdict::Place(placement), None)
    }

    /// Handles an atomic operation: a block of one granule whose bytes the caller computes.
    pub(crate) fn atomic(&mut self, (id, path): (PeerId, PathId), atomic: &Atomic) -> Verdict {
        let name = BlockName {
            path,
            slot: atomic.transaction,
            generation: atomic.generation,
            attempt: atomic.attempt,
            domain: atomic.domain,
            address: atomic.address,
            length_bytes: ATOMIC_BYTES,
            request: None,
            asker: Asker::SENDER,
            expects_notification: false,
        };
        if let Err(reason) = self.enter(id, &name, true, |_| Err(NackCode::NoContext)) {
            return Verdict::Dropped(reason);
        }
        let peer = &mut self.peers[id.index()];
        let entry = &mut peer.entries[name.slot.index()];
        let mask = granules(0, ATOMIC_BYTES);
        if mask & !entry.claimed == 0 {
            // The caller is carrying it out.
            self.counters.duplicates += 1;
            return Verdict::Dropped(DropReason::Duplicate);
        }
        entry.claimed |= mask;
        entry.placing += 1;
        self.counters.atomics += 1;
        let placement = Placement {
            domain: name.domain,
            address: name.address,
            length_bytes: name.length_bytes,
            peer: id,
            asker: name.asker,
            read: None,
            user: 0,
            block: (name.address, name.length_bytes),
            epoch: peer.epoch,
            slot: name.slot.0,
            generation: name.generation,
            attempt: name.attempt,
            mask,
        };
        Verdict::Operate(Operation { placement, operation: atomic.operation })
    }

    /// Handles a notification without bytes. It is to be written after its own block and the blocks in `after`.
    pub(crate) fn notify(
        &mut self,
        (id, path): (PeerId, PathId),
        header: &NotifyHeader,
        after: Option<&EarlierBlocks>,
        admit: impl FnOnce(RequestId) -> Result<ReadGrant, NackCode>,
    ) -> (Verdict, Option<BlockEnd>) {
        let name = BlockName {
            path,
            slot: header.transaction,
            generation: header.generation,
            attempt: header.attempt,
            domain: header.domain,
            address: header.block_address,
            length_bytes: header.block_bytes,
            request: header.in_reply_to,
            asker: header.asker,
            expects_notification: true,
        };
        if let Err(reason) = self.enter(id, &name, true, admit) {
            return (Verdict::Dropped(reason), None);
        }
        let entry = &mut self.peers[id.index()].entries[name.slot.index()];
        entry.announce(Some(header.notification), after);
        (Verdict::Taken, self.settle(id, name.slot.0))
    }

    /// Brings the entry of a block to the packet's generation, if the packet is still wanted. On success, the
    /// entry is receiving exactly this block.
    fn enter(
        &mut self,
        id: PeerId,
        name: &BlockName,
        intact: bool,
        admit: impl FnOnce(RequestId) -> Result<ReadGrant, NackCode>,
    ) -> Result<Option<ReadGrant>, DropReason> {
        let slot = name.slot.0;
        let Some(peer) = self.peers.get_mut(id.index()).filter(|peer| peer.connected) else {
            self.counters.bad_packets += 1;
            return Err(DropReason::UnknownPeer);
        };
        let index = Some(name.slot.index()).filter(|index| *index < self.slots);
        let Some(entry) = index.and_then(|index| peer.entries.take(index)) else {
            self.counters.bad_packets += 1;
            return Err(DropReason::Bad);
        };
        entry.path = name.path;
        let is_new = entry.phase == Phase::Empty || name.generation.is_after(entry.generation);
        if !is_new {
            if entry.generation != name.generation {
                self.counters.stale_packets += 1;
                return Err(DropReason::Stale);
            }
            if entry.domain != name.domain
                || entry.address != name.address
                || entry.length_bytes != name.length_bytes
                || entry.request != name.request
                || entry.asker != name.asker
                || entry.expects_notification != name.expects_notification
            {
                self.counters.bad_packets += 1;
                return Err(DropReason::Bad);
            }
            let is_repeat = entry.attempt != name.attempt;
            entry.attempt = name.attempt;
            if is_repeat && (entry.is_placing() || entry.phase == Phase::Writing) {
                entry.receipted = Some(name.attempt);
                self.reply(id, slot, name.generation, name.attempt, Reply::Receipt);
            }
            let entry = &self.peers[id.index()].entries[name.slot.index()];
            match entry.phase {
                Phase::Done => {
                    self.counters.duplicates += 1;
                    self.reply(id, slot, name.generation, name.attempt, Reply::Ack { bytes_only: false });
                    return Err(DropReason::Duplicate);
                }
                Phase::Writing => {
                    self.counters.duplicates += 1;
                    return Err(DropReason::Duplicate);
                }
                Phase::Empty | Phase::Receiving => {}
            }
            if entry.refused.is_some() {
                self.counters.duplicates += 1;
                if entry.placing > 0 {
                    self.reply(id, slot, name.generation, name.attempt, Reply::Receipt);
                } else {
                    self.refuse_for_good(id, slot);
                }
                return Err(DropReason::Duplicate);
            }
        } else if entry.holds_slot() {
            self.counters.busy_packets += 1;
            self.reply(id, slot, name.generation, name.attempt, Reply::Nack(NackCode::BufferFull.into()));
            return Err(DropReason::Busy);
        } else if !intact {
            self.reply(
                id,
                slot,
                name.generation,
                name.attempt,
                Reply::Nack(NackCode::PacketCorrupted.into()),
            );
            return Err(DropReason::Damaged);
        }
        let grant = match name.request.map(admit).transpose() {
            Ok(grant) => grant,
            Err(code) => {
                self.reply(id, slot, name.generation, name.attempt, Reply::Nack(code.into()));
                return Err(DropReason::Unasked);
            }
        };
        if is_new {
            let entry = &mut self.peers[id.index()].entries[name.slot.index()];
            entry.phase = Phase::Receiving;
            entry.generation = name.generation;
            entry.attempt = name.attempt;
            entry.domain = name.domain;
            entry.address = name.address;
            entry.length_bytes = name.length_bytes;
            entry.request = name.request;
            entry.asker = name.asker;
            entry.own = grant;
            entry.expects_notification = name.expects_notification;
            entry.notification = None;
            entry.after = None;
            entry.claimed = 0;
            entry.placed = 0;
            entry.placing = 0;
            entry.before = None;
            entry.paused = None;
            entry.refused = None;
            entry.receipted = None;
        }
        Ok(grant)
    }
}
