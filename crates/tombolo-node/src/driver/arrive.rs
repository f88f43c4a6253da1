//! What comes in by a link, and where it goes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_core::rdma::{Operation, PeerId, Placement, Verdict};
use tombolo_host::shared::SharedSpan;
use tombolo_link::{Link, LinkState, Packet as LinkPacket};
use tombolo_wire::{ATOMIC_BYTES, AtomicOperation, Checksums, DataHeader, Domain, NackCode, Packet, Payload};

use crate::driver::node::{BUFFERS, Memory, Node, Peer};
use crate::driver::pump::{Flush, Glance};
use crate::programs::{Accessor, Poster, Use};

/// Packets taken from a link before others get their turn: few where to answer costs no system call, since
/// whoever sends them waits for the answers.
pub(crate) fn receive_budget(link: &dyn Link) -> usize {
    if link.peer_process_id().is_some() { 4 } else { 64 }
}

/// What has become of bytes that came in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placed {
    Now,
    /// They go to a program's own memory.
    Later,
}

impl Node {
    /// Receives from one peer and does what follows from it. Returns how many
    /// packets and messages came.
    pub fn drive(&self, peer: &Arc<Peer>) -> usize {
        self.drive_and(peer, Flush::All)
    }

    /// As [`Node::drive`], but answers may stay unsent until [`Node::flush`] or [`Node::arm`]: whoever
    /// waits for what has arrived goes first.
    pub(crate) fn drive_lazily(&self, peer: &Arc<Peer>) -> usize {
        self.drive_and(peer, Flush::AllButAnswers)
    }

    fn drive_and(&self, peer: &Arc<Peer>, flush: Flush) -> usize {
        if !peer.has_link() {
            return 0;
        }
        if peer.is_full.load(Ordering::Acquire) {
            self.send_unsent(peer, flush);
        }
        // A lone packet is answered before looking for the next; a stream of them is taken in bulk.
        let budget = if peer.streaming.load(Ordering::Relaxed) { peer.receive_budget } else { 1 };
        let mut clock = Glance::new(self);
        let received = peer.link.receive(budget, &mut |packet| {
            self.packet(peer, packet, &mut clock);
        });
        let mut count = *received.as_ref().unwrap_or(&0);
        if count == 0 {
            peer.drained.store(true, Ordering::Relaxed);
            peer.streaming.store(false, Ordering::Relaxed);
        } else {
            // More came at once, or came again before there was a pause.
            let again = peer.drained.swap(false, Ordering::Relaxed);
            peer.streaming.store(count > 1 || !again, Ordering::Relaxed);
        }
        while peer.link.has_control()
            && let Ok(Some(message)) = peer.link.receive_control()
        {
            count += 1;
            self.control(peer, &message.bytes, message.descriptors);
            clock.passed();
        }
        if count > 0 {
            self.pump_and(flush, Some(peer), &mut clock);
        }
        if let LinkState::Lost(reason) = peer.link.state() {
            self.lose(peer, reason);
        }
        count
    }

    fn packet(&self, peer: &Arc<Peer>, arrived: LinkPacket<'_>, clock: &mut Glance<'_>) {
        let mut scratch = Vec::new();
        // Where nothing can change unnoticed, bytes are copied once, from where they have arrived.
        let peeked = match peer.checksums {
            Checksums::Off => DataHeader::peek(arrived.head(), arrived.len()),
            Checksums::On => Ok(None),
        };
        let understood = match peeked {
            Ok(Some((header, length))) => {
                arrived.payload(length).map(|payload| (Packet::Data(header, Payload::Intact(&[])), payload))
            }
            Ok(None) => Packet::parse(arrived.stable(&mut scratch), peer.checksums).ok().map(|packet| {
                let payload = match packet {
                    Packet::Data(_, Payload::Intact(payload)) => SharedSpan::from(payload),
                    _ => SharedSpan::empty(),
                };
                (packet, payload)
            }),
            Err(_) => None,
        };
        let Some((packet, payload)) = understood else {
            self.packets_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let mut engine = self.engine.lock();
        let (id, path) = peer.place();
        let verdict = engine.handle_from(clock.renew(), id, path, &packet);
        if let Verdict::Operate(operation) = verdict {
            drop(engine);
            return self.operate(id, operation);
        }
        let Verdict::Place(placement) = verdict else { return };
        drop(engine);
        let placed = self.place(id, &placement, payload);
        clock.passed_for(placement.length_bytes);
        let mut engine = self.engine.lock();
        match placed {
            Ok(Placed::Now) => engine.placed(placement),
            Ok(Placed::Later) => {}
            Err(code) => engine.refused(placement, code),
        }
    }

    /// Changes a word that a peer asks to change.
    fn operate(&self, peer: PeerId, operation: Operation) {
        let Placement { domain, address, .. } = operation.placement;
        let how = Use::Change(Accessor { peer, program: None });
        let outcome = self.change_word(peer, domain, address, operation.operation, how);
        let mut engine = self.engine.lock();
        match outcome {
            Ok(before) => engine.operated(operation, before),
            Err(code) => engine.refused(operation.placement, code),
        }
    }

    /// Changes a word; what it was before.
    pub(crate) fn change_word(
        &self,
        peer: PeerId,
        domain: Domain,
        address: u64,
        operation: AtomicOperation,
        how: Use,
    ) -> Result<u64, NackCode> {
        let (memory, offset) = self.memory(peer, domain, address, ATOMIC_BYTES, how)?;
        let word = memory.get().atomic_u64(offset).map_err(|_| NackCode::DecodeError)?;
        Ok(match operation {
            AtomicOperation::FetchAdd(more) => word.fetch_add(more, Ordering::SeqCst),
            AtomicOperation::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|found| found),
        })
    }

    fn place(
        &self,
        peer: PeerId,
        placement: &Placement,
        payload: SharedSpan<'_>,
    ) -> Result<Placed, NackCode> {
        let length = placement.length_bytes as usize;
        let payload = payload.part(0, length).ok_or(NackCode::PacketCorrupted)?;
        let how = match placement.read {
            Some(_) => Poster::of(placement.user).writing(placement.domain),
            None if let Some(sender) = tombolo_channel::mail_sender(placement.address) => {
                return self.programs.deliver(placement.domain, peer, sender, payload).map(|()| Placed::Now);
            }
            None => Use::Write(Accessor { peer, program: None }),
        };
        if let Some(queued) = self.place_own(placement, payload, how) {
            return queued.map(|()| Placed::Later);
        }
        let (memory, offset) =
            self.memory(peer, placement.domain, placement.address, placement.length_bytes, how)?;
        let target = memory.get().span_mut(offset, length).map_err(|_| NackCode::DecodeError)?;
        target.copy_from(payload);
        Ok(Placed::Now)
    }

    /// The memory of a domain here: the buffers (ours alone), what is lent to the peer, or a program's.
    pub(crate) fn memory(
        &self,
        peer: PeerId,
        domain: Domain,
        address: u64,
        length_bytes: u32,
        how: Use,
    ) -> Result<(Memory<'_>, usize), NackCode> {
        if tombolo_channel::from_the_wire(domain).is_some() {
            let (memory, offset) = self.programs.find(domain, address, length_bytes, how)?;
            return Ok((Memory::Shared(memory), offset));
        }
        let offset = usize::try_from(address).map_err(|_| NackCode::DecodeError)?;
        if domain == BUFFERS && how == Use::Own {
            return Ok((Memory::Buffers(&self.buffers), offset));
        }
        let lent = self.ledger.lock().find(peer, domain.0, !matches!(how, Use::Read(_)))?;
        Ok((Memory::Shared(lent), offset))
    }
}
