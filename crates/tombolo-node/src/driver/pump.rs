//! What the engine wants done, and how it leaves by a link.

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

/// Bytes copied between programs here before others get their turn: two blocks of 64 KiB, 6 to 9 us at the
/// 15 to 22 GB/s that decision 14 measured for loopback.
const LOOP_BACK_BYTES: u64 = 128 * 1024;
/// Blocks that may be one copy, at most. A bound, not a measurement.
const LOOP_BACK_BLOCKS: usize = 8;

/// The shortest payload that is sent from where it lies, if it can be summed there: a shorter one takes less time
/// to copy (decision 15).
const IN_PLACE_BYTES: usize = 8 * 1024;

/// What is moved in so little time that the clock need not be looked at again, in bytes.
const QUICK_BYTES: u32 = 4 * 1024;
/// Cost of a step beside the bytes that it moves, in bytes. A bound, not a measurement.
const STEP_BYTES: u32 = 512;

/// Bytes of blocks that go before acknowledgements: their receiver is waiting for them (decision 16).
const BEFORE_ACKS_BYTES: u32 = 32 * 1024;
/// Acknowledgements that wait, at most: two packets full.
const MAX_WAITING_ACKS: usize = 2 * MAX_ACKS;

/// Short packets kept for a link that is full: as many as there are blocks to answer, and some.
const MAX_UNSENT: usize = 2048;

/// What is to be on its way when packets have been dealt with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    All,
    AllButAnswers,
}

/// What has become of a packet for a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// The packet is on its way, or lost.
    Yes,
    /// Nothing was taken: the link is full.
    Full,
    /// The link takes none of that size.
    TooLarge,
}

/// The time, looked at again only after something that takes some: to look costs as much as many a step.
pub(crate) struct CachedClock<'a> {
    node: &'a Node,
    seen: Option<Time>,
    /// Moved since, in bytes.
    moved: u32,
}

impl<'a> CachedClock<'a> {
    pub(crate) fn new(node: &'a Node) -> Self {
        Self { node, seen: None, moved: 0 }
    }

    pub(crate) fn now(&mut self) -> Time {
        *self.seen.get_or_insert_with(|| self.node.now())
    }

    /// The time, looked at now.
    pub(crate) fn renew(&mut self) -> Time {
        self.passed();
        self.now()
    }

    /// Time has passed.
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
    /// Carries out what the engine wants done.
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
                    // Somebody may have been woken.
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

    /// The link to a peer, and it is among those that have been used.
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

    /// Puts everything for a peer on its way.
    pub(crate) fn flush(&self, connection: &Connection) {
        self.send_acks(connection);
        let _ = connection.link.flush();
        // The socket may have had no room.
        self.fabric.stirred.stir(connection);
    }

    /// Puts everything for a peer on its way before its link is waited for. Returns whether there is something to
    /// do first, as [`Link::arm`].
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
            // Whoever misses it asks again, or sends it again.
            self.packets_dropped.fetch_add(1, Ordering::Relaxed);
        }
        drop(unsent);
        connection.is_full.store(true, Ordering::Release);
        self.fabric.stirred.stir(connection);
    }

    /// A transfer is over. False: it was neither a program's nor a peer's.
    pub(crate) fn ended(&self, user: u64, result: Result<u64, Failure>) -> bool {
        self.programs.completed(user, result) || self.third_party_ended(user, result.map(|_| ()))
    }

    /// Gives a packet to a link. What it takes may be lost.
    fn send(connection: &Connection, send: &mut dyn FnMut(&dyn Link) -> Result<(), SendError>) -> Sent {
        match send(&*connection.link) {
            Err(SendError::Full) => Sent::Full,
            Err(SendError::TooLarge { .. }) => Sent::TooLarge,
            _ => Sent::Yes,
        }
    }

    /// The peer's link was full: tries again. It concerns no other peer's link, nor another of its own.
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
            // What is being copied ends first, though its range may be gone.
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
        // A block that goes again may have been damaged because its bytes changed while they were sent.
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

    /// Sends the packets of a block whose bytes these are; from where they are held, if that is given and
    /// spares a copy.
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
                // It goes again when there is room; others go on meanwhile. If this is not the link that the
                // engine has chosen, room here says nothing of that one: the block goes again in time.
                Sent::Full => {
                    if connection.place() == (block.peer, block.path) {
                        self.fabric.engine.lock().link_full(self.now(), block);
                    }
                    connection.is_full.store(true, Ordering::Release);
                    self.fabric.stirred.stir(connection);
                    return;
                }
                // The path has come to take less just now.
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
                // If the bytes change while they are sent, the peer finds them damaged, and they go again
                // as a copy.
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
                // The checksum and the datagram must be of the same bytes, whatever others do to the
                // memory meanwhile: it is made of those that are sent.
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

    /// Writes the two words of a notification. None: that goes on elsewhere.
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

    /// Goes on with what was left undone. Returns whether there was something.
    pub(crate) fn finish(&self) -> bool {
        // Looking is cheap.
        let more = self.unfinished.load(Ordering::Relaxed) && self.unfinished.swap(false, Ordering::Relaxed);
        if more {
            self.pump();
        }
        more
    }
}
