//! Carries out the engine's actions, and sends its packets by the links.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tombolo_channel::Failure;
use tombolo_core::rdma::{Action, Block, Completion, NotificationWrite, PathId, PeerId, Time};
use tombolo_host::shared::{HeldSpan, SharedSpan};
use tombolo_link::{Link, LinkError, SendError};
use tombolo_wire::{
    Ack, Acks, Attempt, Checksums, MAX_ACKS, MAX_BARE_PACKET_BYTES, MAX_HEADER_BYTES, NackCode, Packet,
    Refusal,
};

use crate::driver::address_space::{Access, Memory, Place, Range};
use crate::driver::loopback::{NOTIFICATION_BYTES, write_words};
use crate::driver::node::Node;
use crate::fabric::connection::Connection;
use crate::fabric::table::ITSELF;
use crate::programs::domain::failure_of;
use crate::programs::user::Poster;

/// Bytes copied between programs of this node before other work gets its turn: two blocks of 64 KiB, 6 to 9 us at the
/// 15 to 22 GB/s that decision 14 measured for loopback.
const LOOP_BACK_BYTES: u64 = 128 * 1024;
/// Maximum number of blocks in one copy. A bound, not a measurement.
const LOOP_BACK_BLOCKS: usize = 8;

/// The shortest payload that is sent from where it lies, if its checksum can be computed there. Copying a shorter one
/// takes less time (decision 15).
const IN_PLACE_BYTES: usize = 8 * 1024;

/// Bytes that can be moved before the clock has to be read again.
const QUICK_BYTES: u32 = 4 * 1024;
/// Cost of a step beside the bytes that it moves, in bytes. A bound, not a measurement.
const STEP_BYTES: u32 = 512;

/// Bytes of blocks that are sent before acknowledgements, because their receiver is waiting for them (decision 16).
const BEFORE_ACKS_BYTES: u32 = 32 * 1024;
/// Maximum number of acknowledgements that wait to be sent: as many as two packets hold.
const MAX_WAITING_ACKS: usize = 2 * MAX_ACKS;

/// Maximum number of short packets kept for a full link: more than there are blocks to answer.
const MAX_UNSENT: usize = 2048;

/// What is flushed after packets have been handled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    All,
    AllButAnswers,
}

/// Result of giving a packet to a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// The packet is on its way, or lost.
    Yes,
    /// Nothing was taken: the link is full.
    Full,
    /// The link takes no packet of that size.
    TooLarge,
}

/// The time, read again only after work that takes some: reading the clock costs as much as many a step.
pub(crate) struct CachedClock<'a> {
    node: &'a Node,
    seen: Option<Time>,
    /// Bytes moved since the clock was read, with the cost of each step.
    moved: u32,
}

impl<'a> CachedClock<'a> {
    pub(crate) fn new(node: &'a Node) -> Self {
        Self { node, seen: None, moved: 0 }
    }

    pub(crate) fn now(&mut self) -> Time {
        *self.seen.get_or_insert_with(|| self.node.now())
    }

    /// Reads the clock.
    pub(crate) fn renew(&mut self) -> Time {
        self.passed();
        self.now()
    }

    /// Time has passed: the next use reads the clock.
    pub(crate) fn passed(&mut self) {
        (self.seen, self.moved) = (None, 0);
    }

    /// A step has been made that moved `bytes`.
    pub(crate) fn passed_for(&mut self, bytes: u32) {
        self.moved = self.moved.saturating_add(bytes).saturating_add(STEP_BYTES);
        if self.moved > QUICK_BYTES {
            self.passed();
        }
    }
}

impl Node {
    /// Carries out the engine's actions.
    pub fn pump(&self) {
        self.pump_and(Flush::All, None, &mut CachedClock::new(self));
    }

    /// As [`Node::pump`], where most actions are expected to be for the peer of `connection`.
    pub(crate) fn pump_and(
        &self,
        flush: Flush,
        connection: Option<&Arc<Connection>>,
        clock: &mut CachedClock<'_>,
    ) {
        let mut touched: SmallVec<[Arc<Connection>; 4]> = connection.cloned().into_iter().collect();
        let mut urgent = flush == Flush::All;
        let mut looped: SmallVec<[Block; LOOP_BACK_BLOCKS]> = SmallVec::new();
        let (mut looped_bytes, mut sent_bytes) = (0, 0_u32);
        let mut acks: SmallVec<[(PeerId, PathId, Ack); 8]> = SmallVec::new();
        let mut written: Option<(NotificationWrite, Result<(), Refusal>)> = None;
        loop {
            let mut engine = self.fabric.engine.lock();
            match written.take() {
                Some((write, Ok(()))) => engine.notified(write),
                Some((write, Err(refusal))) => engine.notification_refused(write, refusal),
                None => {}
            }
            let is_enough = looped_bytes >= LOOP_BACK_BYTES;
            let action = loop {
                match if is_enough { None } else { engine.poll(clock.now()) } {
                    Some(Action::Send { peer, path, packet: Packet::Ack(ack) }) if peer != ITSELF => {
                        acks.push((peer, path, ack));
                    }
                    action => break action,
                }
            };
            drop(engine);
            for (peer, path, ack) in acks.drain(..) {
                if let Some(connection) = self.among(&mut touched, (peer, path)) {
                    self.acknowledge(connection, ack);
                }
            }
            if is_enough {
                self.loop_back(clock.now(), &looped);
                self.unfinished.store(true, Ordering::Relaxed);
                break;
            }
            let id = match &action {
                None if looped.is_empty() => break,
                Some(Action::SendBlock(block)) if block.peer == ITSELF => {
                    looped_bytes += u64::from(block.length_bytes);
                    looped.push(*block);
                    self.serve_expected_tiny_doorbells();
                    if looped.len() == LOOP_BACK_BLOCKS {
                        self.loop_back(clock.now(), &looped);
                        looped.clear();
                        clock.passed();
                    }
                    continue;
                }
                None => {
                    self.loop_back(clock.now(), &looped);
                    looped.clear();
                    clock.passed();
                    continue;
                }
                Some(Action::Send { peer: ITSELF, packet, .. }) => {
                    self.notify_here(packet);
                    continue;
                }
                Some(Action::SendBlock(block)) => (block.peer, block.path),
                Some(Action::Send { peer, path, .. }) => (*peer, *path),
                Some(Action::WriteNotification(write)) => {
                    written = self.write_notification(*write).map(|outcome| (*write, outcome));
                    continue;
                }
                Some(Action::Complete(Completion { user, status, before, .. })) => {
                    let result = status.map(|()| *before).map_err(failure_of);
                    if !self.ended(*user, result) && self.completed(*user, *status) {
                        clock.passed();
                    }
                    // The completion may have woken a thread, which takes time.
                    clock.passed_for(QUICK_BYTES / 4);
                    continue;
                }
            };
            let Some(connection) = self.among(&mut touched, id) else { continue };
            match action {
                Some(Action::SendBlock(block)) => {
                    urgent = true;
                    self.send_block(connection, &block);
                    clock.passed_for(block.length_bytes);
                    sent_bytes = sent_bytes.saturating_add(block.length_bytes);
                    if sent_bytes > BEFORE_ACKS_BYTES {
                        touched.iter().for_each(|connection| self.send_acks(connection));
                    }
                }
                Some(Action::Send { packet, .. }) => {
                    urgent = true;
                    self.send_bare(connection, &packet);
                }
                _ => {}
            }
            clock.passed_for(0);
        }
        for connection in touched.into_iter().filter(|_| urgent) {
            self.flush(&connection);
        }
    }

    /// The link at `place`, which is added to `touched` unless it is there already.
    pub(crate) fn among<'a>(
        &self,
        touched: &'a mut SmallVec<[Arc<Connection>; 4]>,
        place: (PeerId, PathId),
    ) -> Option<&'a Arc<Connection>> {
        let known = touched
            .iter()
            .position(|connection| connection.place() == place && connection.has_link())
            .or_else(|| {
                let connection = self.fabric.connection(place.0)?.by(place.1)?;
                self.fabric.stirred.stir(&connection);
                touched.push(connection);
                Some(touched.len() - 1)
            });
        touched.get(known?)
    }

    fn acknowledge(&self, connection: &Connection, ack: Ack) {
        let mut waiting = connection.waiting_acks.lock();
        waiting.push(ack);
        self.fabric.stirred.stir(connection);
        if waiting.len() >= MAX_WAITING_ACKS {
            drop(waiting);
            self.send_acks(connection);
        }
    }

    /// Sends the acknowledgements that wait for a link, and flushes the link.
    pub(crate) fn flush(&self, connection: &Connection) {
        self.send_acks(connection);
        let _ = connection.link.flush();
        // The socket may have had no room.
        self.fabric.stirred.stir(connection);
    }

    /// Sends the acknowledgements that wait for a link, and prepares the link for waiting. Returns whether there is
    /// work to do before waiting, as [`Link::arm`].
    pub(crate) fn arm(&self, connection: &Connection) -> Result<bool, LinkError> {
        self.send_acks(connection);
        connection.link.arm()
    }

    fn send_acks(&self, connection: &Connection) {
        let mut waiting = connection.waiting_acks.lock();
        for part in waiting.chunks(MAX_ACKS) {
            let packet = match part {
                [ack] => Packet::Ack(*ack),
                several => Packet::Acks(Acks::of(several)),
            };
            self.send_bare(connection, &packet);
        }
        waiting.clear();
    }

    fn send_bare(&self, connection: &Connection, packet: &Packet<'_>) {
        let mut header = [0; MAX_BARE_PACKET_BYTES];
        let Ok(length) = packet.emit(&mut header, connection.checksums) else { return };
        let packet = &header[..length];
        let mut unsent = connection.unsent.lock();
        if unsent.is_empty()
            && Self::send(connection, &mut |link| link.send(packet, SharedSpan::empty())) != Sent::Full
        {
            return;
        }
        if unsent.len() < MAX_UNSENT {
            unsent.push_back(packet.to_vec());
        } else {
            // A peer that misses this packet asks again, or repeats its block.
            self.packets_dropped.fetch_add(1, Ordering::Relaxed);
        }
        drop(unsent);
        connection.is_full.store(true, Ordering::Release);
        self.fabric.stirred.stir(connection);
    }

    /// Reports the end of a transfer. False: neither a program nor a peer asked for this transfer.
    pub(crate) fn ended(&self, user: u64, result: Result<u64, Failure>) -> bool {
        self.programs.completed(user, result) || self.third_party_ended(user, result.map(|_| ()))
    }

    /// Gives a packet to a link. A packet that the link takes may still be lost.
    fn send(connection: &Connection, send: &mut dyn FnMut(&dyn Link) -> Result<(), SendError>) -> Sent {
        match send(&*connection.link) {
            Err(SendError::Full) => Sent::Full,
            Err(SendError::TooLarge { .. }) => Sent::TooLarge,
            _ => Sent::Yes,
        }
    }

    /// Tries again to send what is kept because this link was full. A full link holds up only itself: neither links of
    /// other peers nor other links of this peer.
    pub(crate) fn send_unsent(&self, connection: &Arc<Connection>, flush: Flush) {
        if !connection.is_full.swap(false, Ordering::AcqRel) {
            return;
        }
        {
            let mut unsent = connection.unsent.lock();
            while let Some(packet) = unsent.front() {
                if Self::send(connection, &mut |link| link.send(packet, SharedSpan::empty())) == Sent::Full {
                    connection.is_full.store(true, Ordering::Release);
                    self.fabric.stirred.stir(connection);
                    return;
                }
                unsent.pop_front();
            }
        }
        let (id, path) = connection.place();
        self.fabric.engine.lock().link_has_room(id, path);
        self.pump_and(flush, Some(connection), &mut CachedClock::new(self));
    }

    fn send_block(&self, connection: &Arc<Connection>, block: &Block) {
        let by = match block.in_reply_to {
            Some(_) => Poster::Peer(block.peer),
            None => Poster::of(block.user),
        };
        let range = Range {
            holder: block.peer,
            domain: block.own_domain,
            address: block.source_address,
            length_bytes: block.length_bytes,
        };
        let (memory, offset) = match self.resolve(range, Access::reading(by)) {
            Ok(Place::Node(memory, offset)) => (memory, offset),
            Ok(Place::Own(place)) => return self.send_own(block, &place),
            // A copy that has begun ends first, even if its range is gone.
            Err(_) if self.is_underway(block) => return,
            Err(denied) => {
                let refusal = denied.at(block.source_address);
                return self.fabric.engine.lock().source_refused(self.now(), block, refusal);
            }
        };
        let length = block.length_bytes as usize;
        let Ok(source) = memory.get().span(offset, length) else {
            let refusal = Refusal::at(NackCode::DecodeError, block.source_address);
            return self.fabric.engine.lock().source_refused(self.now(), block, refusal);
        };
        // A repeated block is copied: the first attempt may have failed because its bytes changed while they were sent.
        let in_place = match &memory {
            Memory::Shared(memory)
                if length >= IN_PLACE_BYTES
                    && connection.checksums == Checksums::On
                    && block.attempt == Attempt(0) =>
            {
                HeldSpan::new(memory.clone(), offset, length).ok()
            }
            _ => None,
        };
        self.send_packets(connection, block, source, in_place.as_ref());
    }

    /// Sends the packets of a block with the bytes of `source`. With `in_place`, large payloads are sent from where
    /// they lie.
    pub(crate) fn send_packets(
        &self,
        connection: &Connection,
        block: &Block,
        source: SharedSpan<'_>,
        in_place: Option<&HeldSpan>,
    ) {
        let mut max_payload_bytes = connection.max_payload_bytes();
        loop {
            match Self::send_cut(connection, block, source, in_place, max_payload_bytes) {
                Sent::Yes => return,
                // The engine sends the block again when the link has room, and other blocks meanwhile. If the engine
                // chose another link for the block, room in this one does not help: the block is sent again after its
                // timeout.
                Sent::Full => {
                    if connection.place() == (block.peer, block.path) {
                        self.fabric.engine.lock().link_full(self.now(), block);
                    }
                    connection.is_full.store(true, Ordering::Release);
                    self.fabric.stirred.stir(connection);
                    return;
                }
                // The path's maximum packet size has just become smaller.
                Sent::TooLarge => {
                    let less = connection.max_payload_bytes();
                    if less >= max_payload_bytes {
                        return;
                    }
                    max_payload_bytes = less;
                }
            }
        }
    }

    /// Sends a block in packets of at most `max_payload_bytes`.
    fn send_cut(
        connection: &Connection,
        block: &Block,
        source: SharedSpan<'_>,
        in_place: Option<&HeldSpan>,
        max_payload_bytes: u32,
    ) -> Sent {
        let mut header = [0; MAX_HEADER_BYTES];
        for packet in block.packets(max_payload_bytes) {
            let (offset, length) = (packet.offset_bytes as usize, packet.payload_bytes as usize);
            let Some(part) = source.part(offset, length) else { return Sent::Yes };
            let held =
                in_place.filter(|_| length >= IN_PLACE_BYTES).and_then(|held| held.part(offset, length));
            let sent = match connection.checksums {
                // If the bytes change while they are sent, the peer finds the packet damaged. The block is then sent
                // again as a copy.
                Checksums::On
                    if let Some((held, crc)) = held.and_then(|held| Some((held, part.crc32c()?))) =>
                {
                    let Ok(length) = packet.emit_summed(crc, &mut header) else { return Sent::Yes };
                    Self::send(connection, &mut |link| link.send_in_place(&header[..length], held.clone()))
                }
                Checksums::Off => {
                    let Ok(length) = packet.emit_unchecked(&mut header) else { return Sent::Yes };
                    Self::send(connection, &mut |link| link.send(&header[..length], part))
                }
                // The checksum and the datagram must cover the same bytes, even if a program changes the memory
                // meanwhile. So the checksum is computed from the bytes of the datagram.
                Checksums::On => Self::send(connection, &mut |link| {
                    link.send_sealed(packet.header_bytes(), part, &mut |datagram| {
                        let _ = packet.seal(datagram, Checksums::On);
                    })
                }),
            };
            if sent != Sent::Yes {
                return sent;
            }
        }
        Sent::Yes
    }

    /// Writes the two words of a notification. `None`: they go to a program's own memory, and the write ends later.
    fn write_notification(&self, write: NotificationWrite) -> Option<Result<(), Refusal>> {
        let by = match write.read {
            Some(_) => Poster::of(write.user),
            None => match self.writer(write.peer, write.asker) {
                Ok(by) => by,
                Err(denied) => return Some(Err(denied.at(write.words.address))),
            },
        };
        let range = Range {
            holder: write.peer,
            domain: write.domain,
            address: write.words.address,
            length_bytes: NOTIFICATION_BYTES,
        };
        match self.resolve(range, Access::writing(by)) {
            Ok(Place::Own(place)) => self.notify_own(write, &place).err().map(Err),
            Ok(Place::Node(memory, offset)) => Some(write_words(&memory, offset, &write.words)),
            Err(denied) => Some(Err(denied.at(write.words.address))),
        }
    }

    /// Goes on with the actions that the last pump left undone. Returns whether there were any.
    pub(crate) fn finish(&self) -> bool {
        // The load is cheaper than the swap.
        let more = self.unfinished.load(Ordering::Relaxed) && self.unfinished.swap(false, Ordering::Relaxed);
        if more {
            self.pump();
        }
        more
    }
}
