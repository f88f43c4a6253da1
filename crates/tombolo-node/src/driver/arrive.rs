//! Packets and control messages that arrive by a link, and what is done with them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_channel::{MAX_MAIL_BYTES, Target};
use tombolo_core::own::Purpose;
use tombolo_core::rdma::{Operation, PeerId, Placement, Verdict};
use tombolo_host::shared::SharedSpan;
use tombolo_link::{LinkState, LossReason, Packet as LinkPacket};
use tombolo_wire::{
    ATOMIC_BYTES, Asker, AtomicOperation, Checksums, DataHeader, Domain, NackCode, Packet, Payload, Refusal,
};

use crate::driver::address_space::{Access, Denied, Place, Range};
use crate::driver::gather::Part;
use crate::driver::node::Node;
use crate::driver::own_accesses::Work;
use crate::driver::pump::{CachedClock, Flush};
use crate::fabric::connection::Connection;
use crate::fabric::table::ITSELF;
use crate::programs::mail_shares::Party;
use crate::programs::user::Poster;

/// Maximum number of packets taken from a lost link: as many of the shortest packets (32 bytes, header of the record
/// included) as a ring of 1 MiB holds. So a peer that goes on writing does not keep its lost link.
const MAX_LAST: usize = 32 * 1024;

/// Control messages that are taken from a link in one turn: each may take some microseconds to answer. The next turn
/// takes further ones.
const MAX_MESSAGES: usize = 4;

/// What has become of bytes that arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placed {
    Now,
    /// They are being written to a program's own memory.
    Later,
}

impl Node {
    /// Receives packets and messages from one peer, and acts on them. Returns how many arrived.
    pub fn drive(&self, connection: &Arc<Connection>) -> usize {
        self.drive_and(connection, Flush::All)
    }

    /// As [`Node::drive`], but answers may stay unsent until [`Node::flush`] or [`Node::arm`]: the thread that waits
    /// for what has arrived goes on first.
    pub(crate) fn drive_lazily(&self, connection: &Arc<Connection>) -> usize {
        self.drive_and(connection, Flush::AllButAnswers)
    }

    fn drive_and(&self, connection: &Arc<Connection>, flush: Flush) -> usize {
        if !connection.has_link() {
            return 0;
        }
        if connection.is_full.load(Ordering::Acquire) {
            self.send_unsent(connection, flush);
        }
        // A lone packet is answered before looking for the next; a stream of them is taken in bulk.
        let budget =
            if connection.is_streaming.load(Ordering::Relaxed) { connection.receive_budget } else { 1 };
        let count = self.take(connection, budget, flush);
        // Receiving may have cleared the readiness of the link's descriptor: report the link to the loop afterwards.
        self.fabric.stirred.stir(connection);
        if let LinkState::Lost(reason) = connection.link.state() {
            self.take_last(connection, reason);
            self.link_lost(connection, reason);
        }
        count
    }

    /// Takes up to `budget` packets, and a few of the waiting control messages. Returns how many.
    fn take(&self, connection: &Arc<Connection>, budget: usize, flush: Flush) -> usize {
        let mut clock = CachedClock::new(self);
        let received = connection.link.receive(budget, &mut |packet| {
            self.packet(connection, packet, &mut clock);
        });
        let mut count = *received.as_ref().unwrap_or(&0);
        if count == 0 {
            connection.is_drained.store(true, Ordering::Relaxed);
            connection.is_streaming.store(false, Ordering::Relaxed);
        } else {
            // A stream: several packets arrived at once, or packets arrived in two turns without a pause.
            let again = connection.is_drained.swap(false, Ordering::Relaxed);
            connection.is_streaming.store(count > 1 || !again, Ordering::Relaxed);
        }
        for _ in 0..MAX_MESSAGES {
            if !connection.link.has_control() {
                break;
            }
            let Ok(Some(message)) = connection.link.receive_control() else { break };
            count += 1;
            self.control(connection, &message.bytes, message.descriptors);
            clock.passed();
        }
        if count > 0 {
            self.pump_and(flush, Some(connection), &mut clock);
        }
        count
    }

    /// Takes what arrived before a link was lost, so that the goodbye of a peer does not overtake its answers. If this
    /// node ended the link, for example because the key was taken off the list, nothing more is obeyed.
    pub(crate) fn take_last(&self, connection: &Arc<Connection>, reason: LossReason) {
        if !reason.is_of_peer() {
            return;
        }
        let mut left = MAX_LAST;
        while left > 0 {
            match self.take(connection, connection.receive_budget.min(left), Flush::All) {
                // Over UDP, this is also the result after 256 datagrams in a row that were no packets. What lies behind
                // them is not taken.
                0 => break,
                taken => left = left.saturating_sub(taken),
            }
        }
    }

    fn packet(&self, connection: &Arc<Connection>, arrived: LinkPacket<'_>, clock: &mut CachedClock<'_>) {
        let mut scratch = Vec::new();
        // A link without checksums protects integrity itself: bytes are copied once, from where they have arrived.
        let peeked = match connection.checksums {
            Checksums::Off => DataHeader::peek(arrived.head(), arrived.len()),
            Checksums::On => Ok(None),
        };
        let understood = match peeked {
            Ok(Some((header, length))) => {
                arrived.payload(length).map(|payload| (Packet::Data(header, Payload::Intact(&[])), payload))
            }
            Ok(None) => {
                Packet::parse(arrived.stable(&mut scratch), connection.checksums).ok().map(|packet| {
                    let payload = match packet {
                        Packet::Data(_, Payload::Intact(payload)) => SharedSpan::from(payload),
                        _ => SharedSpan::empty(),
                    };
                    (packet, payload)
                })
            }
            Err(_) => None,
        };
        let Some((packet, payload)) = understood else {
            self.packets_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut engine = self.fabric.engine.lock();
        let (id, path) = connection.place();
        let verdict = engine.handle_from(clock.renew(), id, path, &packet);
        if let Verdict::Operate(operation) = verdict {
            drop(engine);
            return self.operate(id, operation);
        }
        let Verdict::Place(placement) = verdict else { return };
        drop(engine);
        let placed = self.place(id, &placement, payload);
        clock.passed_for(placement.length_bytes);
        let mut engine = self.fabric.engine.lock();
        match placed {
            Ok(Placed::Now) => engine.placed(placement),
            Ok(Placed::Later) => {}
            Err(refusal) => engine.refused(placement, refusal),
        }
    }

    /// Carries out an atomic operation that a peer asks for.
    fn operate(&self, peer: PeerId, operation: Operation) {
        let Placement { domain, address, .. } = operation.placement;
        let (purpose, asker) = (Purpose::Operate(operation), Poster::Peer(peer));
        let outcome = self.change_word(peer, (domain, address), operation.operation, purpose, asker);
        let mut engine = self.fabric.engine.lock();
        match outcome {
            Ok(Some(before)) => engine.operated(operation, before),
            Ok(None) => {}
            Err(refusal) => engine.refused(operation.placement, refusal),
        }
    }

    /// Changes a word, and returns its previous value. `None`: the word is in a program's own memory, and the change
    /// ends later.
    pub(crate) fn change_word(
        &self,
        peer: PeerId,
        (domain, address): (Domain, u64),
        operation: AtomicOperation,
        purpose: Purpose,
        asker: Poster,
    ) -> Result<Option<u64>, Refusal> {
        let range = Range { holder: peer, domain, address, length_bytes: ATOMIC_BYTES };
        let (memory, offset) =
            match self.resolve(range, Access::changing(asker)).map_err(|denied| denied.at(address))? {
                Place::Node(memory, offset) => (memory, offset),
                Place::Own(place) => {
                    let begun = self.begin_access(&place, address, Work::Change(operation), purpose, asker);
                    return begun.map(|()| None);
                }
            };
        let word = memory.get().atomic_u64(offset);
        let word = word.map_err(|_| Refusal::at(NackCode::DecodeError, address))?;
        Ok(Some(match operation {
            AtomicOperation::FetchAdd(more) => word.fetch_add(more, Ordering::SeqCst),
            AtomicOperation::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|found| found),
        }))
    }

    fn place(&self, peer: PeerId, placement: &Placement, payload: SharedSpan<'_>) -> Result<Placed, Refusal> {
        let length = placement.length_bytes as usize;
        let payload = payload.part(0, length).ok_or(NackCode::PacketCorrupted)?;
        let by = match placement.read {
            Some(_) => Poster::of(placement.user),
            None if let Some(sender) = tombolo_channel::mail_sender(placement.block.0) => {
                if placement.asker != Asker::SENDER {
                    // A message names the domain that sends it, and the sending node vouches for that: for its own
                    // domains alone.
                    return Err(Denied::NotGranted.at(placement.address));
                }
                return self.place_mail(peer, placement, sender, payload).map(|()| Placed::Now);
            }
            None => self.writer(peer, placement.asker).map_err(|denied| denied.at(placement.address))?,
        };
        let range = Range {
            holder: peer,
            domain: placement.domain,
            address: placement.address,
            length_bytes: placement.length_bytes,
        };
        let (memory, offset) =
            match self.resolve(range, Access::writing(by)).map_err(|denied| denied.at(placement.address))? {
                Place::Node(memory, offset) => (memory, offset),
                Place::Own(place) => {
                    return self.place_own(placement, payload, &place).map(|()| Placed::Later);
                }
            };
        let target = memory.get().span_mut(offset, length);
        let target = target.map_err(|_| Refusal::at(NackCode::DecodeError, placement.address))?;
        target.copy_from(payload);
        Ok(Placed::Now)
    }

    /// Puts a message into a mailbox. If the message comes in parts, keeps each part until the last one arrives.
    fn place_mail(
        &self,
        peer: PeerId,
        placement: &Placement,
        sender: u16,
        payload: SharedSpan<'_>,
    ) -> Result<(), Refusal> {
        let (begin, length) = (placement.block.0, placement.block.1 as usize);
        let offset = placement.address.checked_sub(begin).and_then(|offset| usize::try_from(offset).ok());
        let end = offset.and_then(|offset| offset.checked_add(payload.len()));
        let (Some(offset), Some(..=MAX_MAIL_BYTES)) = (offset, end.filter(|end| *end <= length)) else {
            return Err(Refusal::at(NackCode::DecodeError, placement.address));
        };
        if payload.len() == length {
            return self.deliver(placement.domain, peer, sender, payload);
        }
        if length > MAX_MAIL_BYTES {
            return Err(Refusal::at(NackCode::DecodeError, placement.address));
        }
        let block = placement.block_id();
        let mut gatherer = self.gatherer.lock();
        if !gatherer.has(peer, block) {
            let engine = self.fabric.engine.lock();
            // The peer or the block is gone, or other parts of this message were placed and are not kept any more.
            if !engine.is_held(placement) || engine.has_other_parts(placement) {
                return Err(Refusal::at(NackCode::DecodeError, placement.address));
            }
            if !gatherer.make_room(peer, |block| engine.is_receiving(peer, block)) {
                return Err(NackCode::BufferFull.into());
            }
        }
        gatherer.add(&Part { peer, block, length, offset, bytes: payload }, |message| {
            self.deliver(placement.domain, peer, sender, SharedSpan::from(message))
        })
    }

    /// Puts a message into the mailbox of a domain. `from` is the sending domain at that peer.
    pub(crate) fn deliver(
        &self,
        domain: Domain,
        peer: PeerId,
        from: u16,
        bytes: SharedSpan<'_>,
    ) -> Result<(), Refusal> {
        let domain = self.resolve_mailbox(domain, peer, from).map_err(Denied::code)?;
        let sender = Target { node: self.fabric.numbers.number(peer), domain: from };
        let party = || match peer {
            ITSELF => Party::Here,
            peer => {
                let key = self.fabric.connection(peer).and_then(|connection| connection.key());
                key.map_or(Party::Node(peer), Party::Key)
            }
        };
        Ok(self.programs.deliver(&domain, sender, party, bytes)?)
    }
}
