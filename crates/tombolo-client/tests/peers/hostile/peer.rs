//! A peer that draws what it sends: packets, questions, answers and garbage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tombolo_host::shared::SharedSpan;
use tombolo_link::{Link, LinkState, SendError};
use tombolo_node::Checksum;
use tombolo_node::fuzzing::{Carriage, Life, Message, MessageV1, NodeIdentity, Reply, Request};
use tombolo_random::Random;
use tombolo_wire::{
    Ack, Acks, Asker, Atomic, AtomicAck, AtomicOperation, Attempt, Checksums, DataHeader,
    Domain as WireDomain, EarlierBlocks, Generation, Nack, NackCode, Notification, NotificationMark,
    NotifyHeader, Packet, Payload, ReadAccept, ReadReject, ReadRequest, Refusal, RequestId, Resume,
    TransactionId,
};

use super::LEND_BYTES;

/// What the peer does in one life.
const ACTIONS: u64 = 6_000;
/// What the hostile peer writes; memory that it may read has nothing else in it.
const ITS_BYTE: u8 = 0x11;

/// What one life of a hostile peer keeps.
pub struct Peer<'a> {
    pub link: Arc<dyn Link>,
    pub random: &'a mut Random,
    pub checksums: Checksums,
    /// Bytes that were sent to it, not one of them of others.
    pub heard: &'a AtomicU64,
}

impl Peer<'_> {
    fn domain(&mut self) -> WireDomain {
        let random = &mut *self.random;
        WireDomain(match random.below(8) {
            0..=2 => random.below(6) as u16,
            3..=5 => 0x8000 | random.below(6) as u16,
            6 => random.among(&[0, 0x7FFF, 0x8000, 0xFFFF]),
            _ => random.next() as u16,
        })
    }

    fn address(&mut self) -> u64 {
        let random = &mut *self.random;
        match random.below(8) {
            0..=1 => random.below(8 << 10) * 8,
            // Where programs' memory lies.
            2..=4 => (1 << 32) + random.below(4) * (4 << 20) + random.below(1 << 14) * 8,
            // Where messages go.
            5 => (1 << 63) + random.below(8) * 16 * 1024,
            6 => u64::MAX - random.below(40_000),
            _ => random.next(),
        }
    }

    fn number(&mut self) -> u32 {
        match self.random.below(3) {
            0 => self.random.next() as u32,
            1 => self.random.below(64) as u32,
            _ => self.random.below(1024) as u32,
        }
    }

    fn words(&mut self) -> Notification {
        let word = u64::from_le_bytes([ITS_BYTE; 8]);
        Notification { address: self.address() & !7, first: word, last: word }
    }

    fn refusal(&mut self) -> Refusal {
        let code = self.random.among(&NackCode::ALL);
        let address = self.random.one_in(2).then(|| self.address());
        Refusal { code, address, missing: address.map_or(0, |address| address as u32) }
    }

    /// Blocks that there may or may not be.
    fn earlier(&mut self) -> EarlierBlocks {
        let mut earlier = EarlierBlocks::default();
        for _ in 0..self.random.below(16) {
            let _ = earlier.push(TransactionId(self.number() as u16), Generation(self.number()));
        }
        earlier
    }

    /// A packet that can be written, or one that cannot; then there is none.
    fn packet(&mut self, out: &mut Vec<u8>) -> bool {
        let domain = self.domain();
        let transaction = TransactionId(self.number() as u16);
        let generation = Generation(self.number());
        let attempt = Attempt(self.random.below(4) as u8);
        let request = RequestId(self.number());
        let bytes = self.random.among(&[1, 8, 255, 256, 1000, 1300]);
        let payload = vec![ITS_BYTE; bytes as usize];
        let packet = match self.random.below(14) {
            0..=3 => {
                let block_bytes = self.random.among(&[bytes, bytes + 256, 16 * 1024]);
                let mark = [
                    NotificationMark::None,
                    NotificationMark::Elsewhere,
                    NotificationMark::Here(self.words()),
                ];
                let header = DataHeader {
                    domain,
                    transaction,
                    generation,
                    attempt,
                    block_address: self.address(),
                    block_bytes,
                    offset_bytes: self.random.among(&[0, 0, 256, 512, 15 * 1024]),
                    payload_bytes: bytes,
                    in_reply_to: self.random.one_in(3).then_some(request),
                    asker: Asker::SENDER,
                    notification: self.random.among(&mark),
                };
                Packet::Data(header, Payload::Intact(&payload))
            }
            4 => {
                let header = NotifyHeader {
                    domain,
                    transaction,
                    generation,
                    attempt,
                    block_address: self.address(),
                    block_bytes: bytes,
                    in_reply_to: self.random.one_in(3).then_some(request),
                    asker: Asker::SENDER,
                    notification: self.words(),
                };
                match self.random.one_in(2) {
                    true => Packet::Notify(header),
                    false => Packet::NotifyAfter(header, self.earlier()),
                }
            }
            5 => {
                let ack = Ack { transaction, generation, attempt, bytes_only: self.random.one_in(2) };
                match self.random.below(8) as usize {
                    0..2 => Packet::Ack(ack),
                    several => Packet::Acks(Acks::of(&vec![ack; several])),
                }
            }
            6 => Packet::Nack(Nack { transaction, generation, attempt, refusal: self.refusal() }),
            7 => Packet::Resume(Resume { transaction, generation, attempt, domain }),
            8..=9 => {
                let watermark = RequestId(request.0.wrapping_sub(self.random.below(600) as u32));
                Packet::ReadRequest(ReadRequest {
                    request,
                    watermark,
                    attempt,
                    domain,
                    size_bytes: self.random.among(&[0, 1, 4096, 20_000, u32::MAX]),
                    source_address: self.address(),
                    destination_address: self.address(),
                    notification: self.random.one_in(3).then(|| self.words()),
                    class: self.random.among(&[None, Some(0), Some(1), Some(2)]),
                })
            }
            10 => Packet::ReadReject(ReadReject { request, refusal: self.refusal() }),
            11 => Packet::ReadAccept(ReadAccept { request }),
            12 => {
                let word = u64::from_le_bytes([ITS_BYTE; 8]);
                let operations =
                    [AtomicOperation::FetchAdd(0), AtomicOperation::CompareSwap { compare: 0, swap: word }];
                Packet::Atomic(Atomic {
                    domain,
                    transaction,
                    generation,
                    attempt,
                    address: self.address() & !7,
                    operation: self.random.among(&operations),
                })
            }
            _ => {
                Packet::AtomicAck(AtomicAck { transaction, generation, attempt, before: self.random.next() })
            }
        };
        out.resize(4096, 0);
        match packet.emit(out, self.checksums) {
            Ok(length) => {
                out.truncate(length);
                true
            }
            Err(_) => false,
        }
    }

    /// One of a few.
    fn life(&mut self) -> Life {
        Life([self.random.below(3) as u8; 16])
    }

    fn name(&mut self) -> String {
        match self.random.below(5) {
            0 => "x".repeat(self.random.below(9000) as usize),
            // Others' names.
            1 => self.random.among(&["victim", "honest", "", "hostile"]).into(),
            2 => "../../etc/passwd\0\n".into(),
            _ => format!("hostile-{}", self.random.below(20)),
        }
    }

    fn question(&mut self) -> Request {
        match self.random.below(14) {
            0 => Request::Introduce { name: self.name(), life: self.life() },
            1..=2 => Request::Lend {
                bytes: self.random.among(&[0, 4096, 4096, 8192, 5000, LEND_BYTES, 1 << 40, u64::MAX]),
            },
            3 => Request::Release { segment: self.random.among(&[0, 1, 2, 3, 0x8001, 0xFFFF]) },
            4 => Request::Status { from: 0, counters: true },
            5..=6 => Request::Carry(Box::new(Carriage {
                to: self.random.one_in(2).then(|| NodeIdentity { key: None, life: self.life() }),
                source_domain: self.domain().0,
                source_address: self.address(),
                destination_domain: self.domain().0,
                destination_address: self.address(),
                size_bytes: self.random.among(&[0, 1, 8, 5000, 1 << 20, u32::MAX]),
                notification: self.random.one_in(3).then(|| [self.address(), 1, 2]),
                class: self.random.one_in(2).then_some(200),
            })),
            7 => Request::Create { bytes: self.random.among(&[0, 1, 4096, 70_000, u64::MAX]) },
            8 => Request::Publish {
                segment: self.random.below(6) as u16,
                name: self.name(),
                checksum: Checksum([self.random.next() as u8; 32]),
            },
            9 => Request::Open { name: self.name() },
            // To be a path of another peer, and of itself.
            10 => Request::PathToken,
            11 => Request::BePath { token: [self.random.next() as u8; 16] },
            12 => Request::List { after: self.random.one_in(2).then(|| self.name()) },
            _ => Request::Delete { name: self.name() },
        }
    }

    /// A control message: a question, an answer to nothing, or garbage.
    fn message(&mut self) -> Vec<u8> {
        let number = self.number();
        let message = match self.random.below(6) {
            0..=3 => MessageV1::Ask { number, request: self.question() },
            4 => {
                let reply = match self.random.below(5) {
                    0 => Reply::Done,
                    1 => Reply::Lent { segment: self.random.next() as u16 },
                    2 => Reply::Carried(Some(self.random.next())),
                    3 => Reply::Introduced { name: self.name(), life: self.life() },
                    _ => Reply::Failed(self.name()),
                };
                MessageV1::Answer { number, reply }
            }
            _ => {
                let length = 1 + self.random.below(200) as usize;
                return (0..length).map(|_| self.random.next() as u8).collect();
            }
        };
        let mut bytes = Message::V1(message).encode();
        if self.random.one_in(8) {
            // Almost one.
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.random.below(8);
        }
        bytes
    }

    /// Takes what has come. Whatever memory was sent is zero, or what this peer wrote.
    fn listen(&self) {
        let allowed = |bytes: &[u8]| bytes.iter().all(|byte| [0, ITS_BYTE].contains(byte));
        let _ = self.link.receive(1000, &mut |packet| {
            let bytes = packet.to_vec();
            match Packet::parse(&bytes, self.checksums) {
                Ok(Packet::Data(header, Payload::Intact(payload))) => {
                    assert!(allowed(payload), "memory of others was sent: {header:?}");
                    self.heard.fetch_add(payload.len() as u64, Ordering::Relaxed);
                }
                Ok(Packet::AtomicAck(ack)) => {
                    assert!(allowed(&ack.before.to_le_bytes()), "a word of others was sent: {ack:?}");
                }
                _ => {}
            }
        });
        while let Ok(Some(_)) = self.link.receive_control() {}
    }

    /// One life. Half of them end in the middle of a flood, with nothing taken off the link.
    pub fn live(&mut self) {
        let (mut bytes, listens) = (Vec::new(), self.random.one_in(2));
        let flood = self.random.among(&[20, 2, 200]);
        for action in 0..ACTIONS {
            if self.link.state() != LinkState::Up {
                // Thrown out, as it may be.
                return;
            }
            if self.random.one_in(flood) {
                let message = self.message();
                let _ = self.link.send_control(&message, &[]);
            } else if self.random.one_in(30) {
                // Garbage, or a packet with one bit wrong.
                if self.random.one_in(2) || !self.packet(&mut bytes) {
                    bytes = (0..self.random.below(1300)).map(|_| self.random.next() as u8).collect();
                } else {
                    let at = self.random.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << self.random.below(8);
                }
                let _ = self.link.send(&bytes, SharedSpan::empty());
            } else if self.packet(&mut bytes) {
                let copies = if self.random.one_in(20) { 5 } else { 1 };
                for _ in 0..copies {
                    if let Err(SendError::Full) = self.link.send(&bytes, SharedSpan::empty()) {
                        let _ = self.link.flush();
                        std::thread::yield_now();
                    }
                }
            }
            if listens && action % 16 == 0 {
                self.listen();
                self.link.tick(Instant::now());
            }
        }
        if listens {
            let _ = self.link.flush();
            self.listen();
        }
    }
}
