//! Packets that come to a node with an engine: who each is for, and what the engine makes of it.

use super::engine::{EngineHost, Requests};
use super::processor::Mail;
use crate::kernel::Time;
use crate::parts::{Cargo, Here};
use tombolo_core::rdma::{PathId, PeerId, Verdict};
use tombolo_wire::{Checksums, NackCode, Packet, Payload};

impl EngineHost {
    /// A packet has come. What concerns the receive block is done at once; the rest waits for the processor.
    pub(super) fn arrive(
        &mut self,
        here: &mut Here<'_>,
        from: (PeerId, PathId),
        cargo: Cargo,
        is_damaged: bool,
    ) {
        let kind = match &cargo {
            Cargo::Packet(packet) => MessageKind::of_bytes(here.packets.bytes(packet)),
            Cargo::Header(header) => MessageKind::of(here.headers.get(header)),
            Cargo::Blank(_) | Cargo::Access(_) => None,
        };
        match kind {
            None => {
                self.unreadable += 1;
                here.discard(cargo);
            }
            Some(MessageKind::Block) => self.take(here, from, cargo, is_damaged),
            // A short message that is damaged cannot be read.
            Some(_) if is_damaged => {
                self.unreadable += 1;
                here.discard(cargo);
            }
            Some(kind) => {
                let is_request = kind == MessageKind::Request;
                let is_apart = is_request && self.config.requests == Requests::HeldApart;
                let mailbox = if is_apart { &mut self.requests } else { &mut self.mailbox };
                if let Err(full) = mailbox.push(Mail { from, cargo, is_request }) {
                    here.discard(full.0.cargo);
                }
            }
        }
    }

    /// The engine is given a packet.
    pub(super) fn take(
        &mut self,
        here: &mut Here<'_>,
        from: (PeerId, PathId),
        cargo: Cargo,
        is_damaged: bool,
    ) {
        match cargo {
            Cargo::Header(header) => {
                let packet = match here.headers.take(header) {
                    Packet::Data(header, _) if is_damaged => Packet::Data(header, Payload::Damaged),
                    packet => packet,
                };
                self.handle(here.now(), from, &packet);
            }
            Cargo::Packet(id) => {
                // The arena is not touched meanwhile.
                let bytes = here.packets.consume(id, <[u8]>::to_vec);
                match Packet::parse(&bytes, Checksums::On) {
                    Ok(packet) => self.handle(here.now(), from, &packet),
                    Err(_) => self.unreadable += 1,
                }
            }
            Cargo::Blank(_) | Cargo::Access(_) => {}
        }
    }

    fn handle(&mut self, now: Time, (peer, path): (PeerId, PathId), packet: &Packet<'_>) {
        let understood = match (packet, &self.faults) {
            (Packet::Resume(resume), Some(faults)) => Some(Packet::Resume(faults.understood(*resume))),
            _ => None,
        };
        let packet = understood.as_ref().unwrap_or(packet);
        match self.engine.handle_from(now.of_core(), peer, path, packet) {
            Verdict::Place(placement) => {
                let payload = match packet {
                    Packet::Data(_, Payload::Intact(bytes)) => *bytes,
                    _ => &[],
                };
                if let Some(faults) = &mut self.faults
                    && let Err(refusal) = faults.write(now, &placement)
                {
                    self.engine.refused(placement, refusal);
                } else if self.write(placement.address, payload, placement.length_bytes) {
                    self.engine.placed(placement);
                } else {
                    self.engine.refused(placement, NackCode::DecodeError);
                }
            }
            Verdict::Operate(operation) => {
                let address = operation.placement.address;
                let before = self.word(address);
                let after = operation.operation.apply(before);
                if self.write(address, &after.to_le_bytes(), 8) {
                    self.engine.operated(operation, before);
                } else {
                    self.engine.refused(operation.placement, NackCode::DecodeError);
                }
            }
            Verdict::Taken | Verdict::Dropped(_) => {}
        }
    }

    fn word(&self, address: u64) -> u64 {
        let from = usize::try_from(address).unwrap_or(usize::MAX);
        let bytes = self.memory.get(from..from.saturating_add(8));
        bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
    }
}

/// Who a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageKind {
    /// The receive block.
    Block,
    /// The processor: a request.
    Request,
    /// The processor: an answer.
    Answer,
}

impl MessageKind {
    fn of(packet: &Packet<'_>) -> Option<Self> {
        Some(match packet {
            Packet::Data(..) | Packet::Notify(_) | Packet::NotifyAfter(..) | Packet::Atomic(_) => Self::Block,
            Packet::ReadRequest(_) => Self::Request,
            Packet::Ack(_)
            | Packet::Acks(_)
            | Packet::Nack(_)
            | Packet::Resume(_)
            | Packet::Receipt(_)
            | Packet::AtomicAck(_)
            | Packet::ReadAccept(_)
            | Packet::ReadReject(_) => Self::Answer,
        })
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let packet = Packet::parse(bytes, Checksums::On).ok()?;
        Self::of(&packet)
    }
}
