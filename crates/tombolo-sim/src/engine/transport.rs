//! Packets leave, cross a wire and come; bytes are copied.

use super::{BASE, Bench, Event, NODES, OTHER, domain_of, node_of, path_of, wire_of, wire_part};
use crate::kernel::{PacketId, Span};
use tombolo_core::rdma::{Block, NotificationWrite, Operation, PathId, Placement, Verdict};
use tombolo_wire::{Checksums, NackCode, Packet, Payload};

impl Bench {
    pub(super) fn operate(&mut self, node: usize, operation: Operation) {
        let Placement { address, domain, length_bytes, .. } = operation.placement;
        assert_eq!((domain, length_bytes), (domain_of(node), 8));
        let before = self.change(node, address, operation.operation);
        self.engines[node].operated(operation, before);
    }

    /// Bytes leave for the other node.
    pub fn transmit(&mut self, from: usize, path: PathId, bytes: &[u8]) {
        let faults = self.faults;
        let wire = wire_of(from, path);
        let (part, line) = (wire_part(wire), self.wires[wire]);
        self.wires[wire].carried += 1;
        let random = self.kernel.random(part);
        if line.cut || random.per_million(faults.loss) || (line.loss > 0 && random.per_million(line.loss)) {
            self.dropped += 1;
            return;
        }
        let byte_span = Span::from_picos(faults.byte_picos.max(line.byte_picos));
        let buffer_bytes = faults.buffer_bytes.unwrap_or(u64::MAX).min(line.buffer_bytes);
        let copies = 1 + u64::from(random.per_million(faults.duplication));
        for _ in 0..copies {
            let random = self.kernel.random(part);
            let packet = self.packets.add(|packet| {
                packet.extend_from_slice(bytes);
                if random.per_million(faults.corruption) {
                    let at = random.below(bytes.len() as u64 * 8) as usize;
                    packet[at / 8] ^= 1 << (at % 8);
                    if random.per_million(100_000) {
                        packet.truncate(at / 8);
                    }
                }
            });
            let mut delay_ns = line.delay_ns + random.below(faults.jitter_ns);
            if random.per_million(faults.stall) {
                delay_ns += random.below(50_000_000);
            }
            let now = self.kernel.now();
            let free = &mut self.wires[wire].free[from];
            let waiting = free.since(now).picos().checked_div(byte_span.picos());
            if waiting.is_some_and(|waiting_bytes| waiting_bytes > buffer_bytes) {
                self.packets.discard(packet);
                self.dropped += 1;
                continue;
            }
            let length_bytes = self.packets.bytes(&packet).len() as u64;
            let leaves = now.max(*free).after(byte_span.times(length_bytes));
            *free = leaves;
            let arrives = leaves.after(Span::from_ns(delay_ns));
            self.kernel.send_at(part, NODES[1 - from], arrives, Event::Arrive { wire, packet });
        }
    }

    pub(super) fn send_block(&mut self, node: usize, block: &Block) {
        assert_eq!(node_of(block.own_domain), node);
        if self.hosts.is_some() {
            return self.send_own(node, block);
        }
        if self.kernel.random(NODES[node]).per_million(self.faults.absent_source) {
            self.engines[node].source_refused(self.now(), block, NackCode::SlaveError);
            let delay_ns = self.kernel.random(NODES[node]).below(3_000_000);
            self.at(node, self.now().after_ns(delay_ns), Event::SourceReady { block: Box::new(*block) });
            return;
        }
        let start = (block.source_address - BASE) as usize;
        let bytes = self.memory[node][start..start + block.length_bytes as usize].to_vec();
        self.send_packets(node, block, &bytes);
    }

    /// The bytes of a block go, if its link has room.
    pub(super) fn send_packets(&mut self, node: usize, block: &Block, bytes: &[u8]) {
        if self.is_link_to_stopped_full(node) {
            return self.engines[node].link_full(self.now(), block);
        }
        if self.full_links > 0 && self.kernel.random(NODES[node]).per_million(self.full_links) {
            self.engines[node].link_full(self.now(), block);
            let delay_ns = self.kernel.random(NODES[node]).below(3_000_000);
            self.at(node, self.now().after_ns(delay_ns), Event::Room { path: block.path });
            return;
        }
        self.note_sent(node, block);
        for header in block.packets(self.payload_bytes) {
            let from = header.offset_bytes as usize;
            let payload = &bytes[from..from + header.payload_bytes as usize];
            let mut bytes = vec![0; header.header_bytes() + payload.len()];
            bytes[header.header_bytes()..].copy_from_slice(payload);
            header.seal(&mut bytes, Checksums::On).expect("a packet of the engine");
            self.transmit(node, block.path, &bytes);
        }
    }

    pub(super) fn copy(&mut self, node: usize, placement: Placement, bytes: &[u8]) {
        assert_eq!(node_of(placement.domain), node);
        let at = (placement.address - BASE) as usize;
        self.memory[node][at..at + bytes.len()].copy_from_slice(bytes);
        if !self.leaks_transaction(node) {
            self.engines[node].placed(placement);
        }
    }

    pub(super) fn write_notification(&mut self, node: usize, write: NotificationWrite) {
        assert_eq!(node_of(write.domain), node);
        self.write_words_of(node, self.notified_by(node, &write.words), &write.words);
        self.engines[node].notified(write);
    }

    pub(super) fn arrive_packet(&mut self, node: usize, wire: usize, packet: PacketId) {
        let bytes = self.packets.consume(packet, <[u8]>::to_vec);
        // Its length, and its checksum.
        let end = bytes.last_chunk().map_or(0, |end| u64::from_le_bytes(*end));
        self.kernel.note(NODES[node], &[bytes.len() as u64, end]);
        self.arrive(node, wire, &bytes);
    }

    /// A packet comes to a node.
    pub fn arrive(&mut self, node: usize, wire: usize, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes, Checksums::On) else {
            return;
        };
        let packet = self.altered(node, packet);
        let verdict = self.engines[node].handle_from(self.now(), OTHER, path_of(node, wire), &packet);
        if let Verdict::Operate(operation) = verdict {
            if self.hosts.is_some() {
                self.operate_own(node, operation);
            } else if self.kernel.random(NODES[node]).per_million(self.faults.full) {
                self.engines[node].refused(operation.placement, NackCode::BufferFull);
            } else if self.kernel.random(NODES[node]).per_million(self.faults.slow_copy) {
                let delay_ns = self.kernel.random(NODES[node]).below(self.faults.slow_ns);
                self.at(
                    node,
                    self.now().after_ns(delay_ns),
                    Event::Operated { operation: Box::new(operation) },
                );
            } else {
                self.operate(node, operation);
            }
            return;
        }
        let (Verdict::Place(placement), Packet::Data(_, Payload::Intact(payload))) = (verdict, packet) else {
            return;
        };
        if self.hosts.is_some() {
            self.place_own(node, placement, payload);
        } else if self.kernel.random(NODES[node]).per_million(self.faults.absent_page) {
            self.engines[node].refused(placement, NackCode::SlaveError);
            let delay_ns = self.kernel.random(NODES[node]).below(3_000_000);
            self.at(node, self.now().after_ns(delay_ns), Event::PageReady { placement: Box::new(placement) });
        } else if self.kernel.random(NODES[node]).per_million(self.faults.full) {
            self.engines[node].refused(placement, NackCode::BufferFull);
        } else if self.kernel.random(NODES[node]).per_million(self.faults.slow_copy) {
            let delay_ns = self.kernel.random(NODES[node]).below(self.faults.slow_ns);
            let bytes = self.packets.add(|bytes| bytes.extend_from_slice(payload));
            let placement = Box::new(placement);
            self.at(node, self.now().after_ns(delay_ns), Event::Copied { placement, bytes });
        } else {
            self.copy(node, placement, payload);
        }
    }
}
