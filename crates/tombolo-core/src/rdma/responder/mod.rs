//! The receive side: every byte of a block is placed, its notification is written once, after all bytes, and
//! the answer is sent when both are done (QOS §3.2.6).
//!
//! There is one table per peer, with an entry for each of the sender's slots. An entry remembers the newest
//! generation that it saw and, as bit masks, which granules of the block are claimed (handed to the caller to
//! copy) and which are placed:
//!
//! ```text
//!  newer generation ──► Receiving ── all placed ──┬─ no notification ─────► Done
//!                        ▲      │                 ├─ it is here ─► Writing ─► Done
//!                        └─ refused ◄── caller    └─ not yet: "bytes only" answer
//! ```
//!
//! A notification that is sent before all earlier blocks are acknowledged lists those that it has to be written
//! after ([`Packet::NotifyAfter`]). If one of them is missing when the notification's own block is complete,
//! the notification counts as not received. The sender sends it again when those blocks are acknowledged.
//!
//! A block that the memory refused for good stays refused, even if it is sent again. A repeat of a Done block
//! is acknowledged again but not placed, because newer data may have been written there since. A repeat of a
//! block whose bytes are all here, but are still being copied, is answered with a receipt: a slow copy is no
//! loss. While the caller still copies bytes of a block, a newer block in the same slot is refused for now,
//! unless the old block answers a read of this node.
//!
//! An answer is a mark on the entry, and a queue holds each marked entry once. So the queue is bounded, and
//! many answers about one block become one.

mod entries;
mod entry;
mod intake;

use super::action::{Action, BlockId, NotificationWrite, Placement};
use super::config::Config;
use super::counters::Counters;
use super::transfer::PeerId;
use entries::Entries;
use entry::{Entry, Phase, Reply};
use std::collections::VecDeque;
use tombolo_wire::{
    Ack, AtomicAck, Attempt, EarlierBlocks, Generation, Nack, NackCode, Packet, Receipt, Refusal, RequestId,
    Resume, TransactionId,
};

#[derive(Debug)]
struct ReceivePeer {
    id: PeerId,
    connected: bool,
    /// Incremented when the peer is added or lost. What the caller still holds from an earlier epoch is
    /// ignored.
    epoch: u32,
    entries: Entries,
}

impl ReceivePeer {
    /// Whether all these blocks have been received. `false` if the slot of one has been used again, because how
    /// that block ended is no longer known.
    fn has_all(&self, blocks: &EarlierBlocks) -> bool {
        blocks.iter().all(|(slot, generation)| {
            self.entries
                .get(slot.index())
                .is_some_and(|entry| entry.phase == Phase::Done && entry.generation == generation)
        })
    }
}

/// The end of a block: all its bytes are placed, and its notification is written if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEnd {
    /// The peer that sent the block.
    pub peer: PeerId,
    /// This node's read that it answers, if any.
    pub request: Option<RequestId>,
    /// Its length.
    pub length_bytes: u32,
    /// Whether it ends its transfer with a notification.
    pub last: bool,
}

/// The receive side of an engine.
#[derive(Debug)]
pub struct Responder {
    slots: usize,
    counters: Counters,
    peers: Vec<ReceivePeer>,
    /// Slots, of all peers, that have an answer to be sent (index of the peer × `slots` + slot).
    replies: VecDeque<u32>,
    /// Slots, numbered likewise, whose notification words are to be written.
    writes: VecDeque<u32>,
}

impl Responder {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            slots: config.peer_transactions.into(),
            counters: Counters::default(),
            peers: Vec::new(),
            replies: VecDeque::new(),
            writes: VecDeque::new(),
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn add_peer(&mut self, id: PeerId) {
        while self.peers.len() <= id.index() {
            self.peers.push(ReceivePeer { id, connected: false, epoch: 0, entries: Entries::default() });
        }
        let peer = &mut self.peers[id.index()];
        peer.id = id;
        peer.connected = true;
        peer.epoch = peer.epoch.wrapping_add(1);
        peer.entries = Entries::new(self.slots);
    }

    pub(crate) fn mark_peer_lost(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id.index()) else {
            return;
        };
        let slots = id.index() * self.slots..(id.index() + 1) * self.slots;
        for queue in [&mut self.replies, &mut self.writes] {
            queue.retain(|at| !slots.contains(&(*at as usize)));
        }
        peer.connected = false;
        peer.epoch = peer.epoch.wrapping_add(1);
        peer.entries = Entries::default();
    }

    fn reply(&mut self, id: PeerId, slot: u16, generation: Generation, attempt: Attempt, reply: Reply) {
        let at = (id.index() * self.slots + usize::from(slot)) as u32;
        let entry = &mut self.peers[id.index()].entries[usize::from(slot)];
        if entry.reply.replace((reply, generation, attempt)).is_none() {
            self.replies.push_back(at);
        }
        match reply {
            Reply::Nack(refusal) => self.counters.nacks_sent[refusal.code as usize] += 1,
            Reply::Receipt => self.counters.receipts_sent += 1,
            Reply::Ack { .. } | Reply::Resume(_) => {}
        }
    }

    /// Ends a block that is being received, if all of it is here.
    fn settle(&mut self, id: PeerId, slot: u16) -> Option<BlockEnd> {
        let peer = &mut self.peers[id.index()];
        let entry = &peer.entries[usize::from(slot)];
        if entry.phase != Phase::Receiving || !entry.is_whole() || entry.refused.is_some() {
            return None;
        }
        let (generation, attempt) = (entry.generation, entry.attempt);
        let must_wait = entry.after.as_ref().is_some_and(|earlier| !peer.has_all(earlier));
        if entry.expects_notification && (entry.notification.is_none() || must_wait) {
            self.reply(id, slot, generation, attempt, Reply::Ack { bytes_only: true });
            return None;
        }
        let at = (id.index() * self.slots + usize::from(slot)) as u32;
        let entry = &mut peer.entries[usize::from(slot)];
        entry.after = None;
        if entry.words().is_some() {
            entry.phase = Phase::Writing;
            // An answer that acknowledges the bytes only is no longer worth a packet.
            if entry.reply.take_if(|(reply, ..)| *reply == Reply::Ack { bytes_only: true }).is_some() {
                // It was queued only recently, so search from the rear.
                if let Some(place) = self.replies.iter().rposition(|queued| *queued == at) {
                    self.replies.remove(place);
                }
            }
            self.writes.push_back(at);
            return None;
        }
        self.finish(id, slot)
    }

    fn finish(&mut self, id: PeerId, slot: u16) -> Option<BlockEnd> {
        let entry = &mut self.peers[id.index()].entries[usize::from(slot)];
        entry.phase = Phase::Done;
        let end = BlockEnd {
            peer: id,
            request: entry.request,
            length_bytes: entry.length_bytes,
            last: entry.expects_notification,
        };
        let (generation, attempt) = (entry.generation, entry.attempt);
        self.counters.blocks_received += 1;
        self.reply(id, slot, generation, attempt, Reply::Ack { bytes_only: false });
        Some(end)
    }

    /// As [`Self::held`], for reading.
    fn entry(&self, id: PeerId, epoch: u32, slot: u16, generation: Generation) -> Option<&Entry> {
        let peer = self.peers.get(id.index()).filter(|peer| peer.id == id && peer.epoch == epoch)?;
        peer.entries.get(usize::from(slot)).filter(|entry| entry.generation == generation)
    }

    /// The entry that a placement or notification was made for, if its peer and its block are still the same.
    fn held(&mut self, id: PeerId, epoch: u32, slot: u16, generation: Generation) -> Option<&mut Entry> {
        let peer = self.peers.get_mut(id.index()).filter(|peer| peer.id == id && peer.epoch == epoch)?;
        let entry = peer.entries.get_mut(usize::from(slot))?;
        (entry.generation == generation).then_some(entry)
    }

    /// Whether a placement or notification that the caller holds is still wanted: its peer was not lost, its
    /// slot has no newer block, and no other part of its block was refused for good.
    pub(crate) fn is_held(&self, id: PeerId, epoch: u32, slot: u16, generation: Generation) -> bool {
        self.entry(id, epoch, slot, generation).is_some_and(|entry| entry.refused.is_none())
    }

    /// Whether the bytes of a block are still coming in.
    pub(crate) fn is_receiving(&self, id: PeerId, block: BlockId) -> bool {
        let entry = self.entry(id, block.epoch, block.slot, block.generation);
        entry.is_some_and(|entry| entry.phase == Phase::Receiving && entry.refused.is_none())
    }

    /// Whether anything of a placement's block has been placed.
    pub(crate) fn has_placed(&self, placement: &Placement) -> bool {
        let Placement { peer: id, epoch, slot, generation, .. } = *placement;
        self.entry(id, epoch, slot, generation).is_some_and(|entry| entry.placed != 0)
    }

    /// Records that the caller has copied the bytes of a placement.
    pub(crate) fn placed(&mut self, placement: &Placement) -> Option<BlockEnd> {
        let Placement { peer, epoch, slot, generation, mask, .. } = *placement;
        let entry = self.held(peer, epoch, slot, generation)?;
        entry.placing = entry.placing.saturating_sub(1);
        entry.placed |= mask;
        if entry.refused.is_some() {
            self.refuse_for_good(peer, slot);
            return None;
        }
        self.settle(peer, slot)
    }

    /// Records that the caller has carried out an atomic operation.
    pub(crate) fn operated(&mut self, placement: &Placement, before: u64) {
        let Placement { peer, epoch, slot, generation, .. } = *placement;
        let Some(entry) = self.held(peer, epoch, slot, generation) else { return };
        entry.before = Some(before);
        self.placed(placement);
    }

    /// Records that the memory refused a placement.
    pub(crate) fn refused(&mut self, placement: &Placement, refusal: Refusal) -> Option<BlockEnd> {
        let Placement { peer, epoch, slot, generation, attempt, mask, .. } = *placement;
        let entry = self.held(peer, epoch, slot, generation)?;
        entry.placing = entry.placing.saturating_sub(1);
        entry.claimed &= !mask | entry.placed;
        if !refusal.code.is_transient() {
            // The first refusal is the cause of later ones.
            entry.refused.get_or_insert(refusal);
        }
        // The block was refused for good. Other copies for it may still be under way.
        if entry.refused.is_some() {
            self.refuse_for_good(peer, slot);
            return None;
        }
        if entry.is_whole() {
            return self.settle(peer, slot);
        }
        // The sender ignores an answer to an attempt that is not its latest. After a receipt, no bytes of the
        // newest attempt are placed, so the refusal is for that attempt.
        let newest = entry.attempt;
        let attempt = if entry.receipted == Some(newest) { newest } else { attempt };
        // One refusal per transmission of the block stands for all absent pages (FAULT §5.2).
        if refusal.code == NackCode::SlaveError {
            let known = entry.paused.filter(|(told, granules)| *told == attempt && granules & mask == 0);
            entry.paused = Some((attempt, mask | known.map_or(0, |(_, granules)| granules)));
            if known.is_some() {
                self.counters.nacks_spared += 1;
                return None;
            }
        }
        self.reply(peer, slot, generation, attempt, Reply::Nack(refusal));
        None
    }

    /// Answers a block that was refused for good, when none of its bytes is being placed any more: after the
    /// answer, the sender may use the memory for something else.
    fn refuse_for_good(&mut self, peer: PeerId, slot: u16) {
        let entry = &self.peers[peer.index()].entries[usize::from(slot)];
        let (generation, attempt) = (entry.generation, entry.attempt);
        if let Some(refusal) = entry.refused.filter(|_| entry.placing == 0) {
            self.reply(peer, slot, generation, attempt, Reply::Nack(refusal));
        }
    }

    /// Tells the sender that the page for which a placement was refused is there (FAULT §3.2.3).
    pub(crate) fn page_ready(&mut self, placement: &Placement) {
        let Placement { peer, epoch, slot, generation, .. } = *placement;
        let Some(entry) = self.held(peer, epoch, slot, generation) else {
            return;
        };
        if entry.phase == Phase::Receiving && !entry.is_whole() && entry.refused.is_none() {
            // Resume the newest transmission of which a part has arrived. Its packets that were dropped,
            // because an earlier transmission was still being placed, have to be sent again, too. A
            // transmission that is still on its way needs no resume.
            let (domain, attempt) = (entry.domain, entry.attempt);
            self.reply(peer, slot, generation, attempt, Reply::Resume(domain));
        }
    }

    /// Records that the caller has written the words of a notification.
    pub(crate) fn notified(&mut self, write: &NotificationWrite) -> Option<BlockEnd> {
        let entry = self.held(write.peer, write.epoch, write.slot, write.generation)?;
        if entry.phase != Phase::Writing {
            return None;
        }
        entry.placing = 0;
        self.finish(write.peer, write.slot)
    }

    /// Records that the memory refused the words of a notification.
    pub(crate) fn notification_refused(&mut self, write: &NotificationWrite, refusal: Refusal) {
        let Some(entry) = self.held(write.peer, write.epoch, write.slot, write.generation) else {
            return;
        };
        if entry.phase != Phase::Writing {
            return;
        }
        entry.placing = 0;
        entry.phase = Phase::Receiving;
        entry.refused = Some(refusal).filter(|refusal| !refusal.code.is_transient());
        let attempt = entry.attempt;
        self.reply(write.peer, write.slot, write.generation, attempt, Reply::Nack(refusal));
    }

    /// The next words to write.
    pub(crate) fn poll_write(&mut self) -> Option<NotificationWrite> {
        let at = self.writes.pop_front()? as usize;
        let slot = at % self.slots;
        let peer = &mut self.peers[at / self.slots];
        let id = peer.id;
        let epoch = peer.epoch;
        let entry = &mut peer.entries[slot];
        // The caller holds the write from now on. That counts as bytes being copied.
        entry.placing = 1;
        let words = entry.words()?;
        self.counters.notifications += 1;
        Some(NotificationWrite {
            domain: entry.own.map_or(entry.domain, |grant| grant.domain),
            words,
            peer: id,
            asker: entry.asker,
            read: entry.own.map(|grant| grant.transfer),
            user: entry.own.map_or(0, |grant| grant.user),
            epoch,
            slot: slot as u16,
            generation: entry.generation,
        })
    }

    /// The next answer to send.
    pub(crate) fn poll_reply(&mut self) -> Option<Action> {
        let at = self.replies.pop_front()? as usize;
        let slot = at % self.slots;
        let transaction = TransactionId(slot as u16);
        let holder = &mut self.peers[at / self.slots];
        let (peer, entry) = (holder.id, &mut holder.entries[slot]);
        let (reply, generation, attempt) = entry.reply.take()?;
        let packet = match reply {
            Reply::Ack { bytes_only: false } if let Some(before) = entry.before => {
                Packet::AtomicAck(AtomicAck { transaction, generation, attempt, before })
            }
            Reply::Ack { bytes_only } => Packet::Ack(Ack { transaction, generation, attempt, bytes_only }),
            Reply::Nack(refusal) => Packet::Nack(Nack { transaction, generation, attempt, refusal }),
            Reply::Receipt => Packet::Receipt(Receipt { transaction, generation, attempt }),
            Reply::Resume(domain) => Packet::Resume(Resume { transaction, generation, attempt, domain }),
        };
        Some(Action::Send { peer, path: entry.path, packet })
    }

    /// Whether nothing is being copied or written, and no answer waits to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.replies.is_empty()
            && self.writes.is_empty()
            && self.peers.iter().all(|peer| peer.entries.iter().all(|entry| entry.placing == 0))
    }
}
