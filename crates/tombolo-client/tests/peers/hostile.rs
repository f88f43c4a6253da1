//! A peer that is properly connected and does its worst: packets of every kind to every place,
//! control messages with wild contents, floods, and death in the middle of it. Others do not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Grant, Memory, Spec, Target, Who};
use tombolo_host::shared::{SharedMemory, SharedSpan};
use tombolo_link::{Link, LinkState, SendError};
use tombolo_node::fuzzing::{Carriage, Life, Message, MessageV1, NodeIdentity, Reply, Request};
use tombolo_node::{Address, Checksum, Node, Security};
use tombolo_wire::{
    Ack, Acks, Atomic, AtomicAck, AtomicOperation, Attempt, Checksums, DataHeader, Domain as WireDomain,
    EarlierBlocks, Generation, Nack, NackCode, Notification, NotificationMark, NotifyHeader, Packet, Payload,
    ReadAccept, ReadReject, ReadRequest, RequestId, Resume, TransactionId,
};

use crate::harness::{Host, PATIENCE, pattern, shm, udp};
use tombolo_random::Random;

const LEND_BYTES: u64 = 8 << 20;
/// Lives of one hostile peer, and what it does in each.
const LIVES: u64 = 6;
const ACTIONS: u64 = 6_000;
/// What the hostile peer writes; memory that it may read has nothing else in it.
const ITS_BYTE: u8 = 0x11;
/// What memory that it may not reach is full of.
const GUARD: u8 = 0xA7;

/// What one life of a hostile peer keeps.
struct Peer<'a> {
    link: Arc<dyn Link>,
    random: &'a mut Random,
    checksums: Checksums,
    /// Bytes that were sent to it, not one of them of others.
    heard: &'a AtomicU64,
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

    fn code(&mut self) -> NackCode {
        self.random.among(&NackCode::ALL)
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
            6 => Packet::Nack(Nack { transaction, generation, attempt, code: self.code() }),
            7 => Packet::Resume(Resume { transaction, generation, domain }),
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
            10 => Packet::ReadReject(ReadReject { request, code: self.code() }),
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
            4 => Request::Status { from: 0 },
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
    fn live(&mut self) {
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

/// Checked traffic of an honest program, until told to stop. How many rounds.
fn honest(near: &Domain, mine: &Memory, theirs: &Memory, node: u32, stop: &AtomicBool) -> usize {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) || round < 10 {
        round += 1;
        let length = 1 + (round * 7919) % 200_000;
        let bytes = pattern(round as u64, length);
        mine.write(0, &bytes).unwrap();
        let target = Target { node, domain: 2 };
        let there = Spec::new(mine.address(), theirs.address(), length as u32);
        near.write(target, there).unwrap().wait(PATIENCE).unwrap();
        let half = 1 << 19;
        let back = Spec::new(theirs.address(), mine.address() + half, length as u32);
        near.read(target, back).unwrap().wait(PATIENCE).unwrap();
        let mut found = vec![0; length];
        mine.read(half as usize, &mut found).unwrap();
        assert!(found == bytes, "round {round}, {length} bytes");
    }
    round
}

pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn guarded(domain: &Domain, grants: &[Grant]) -> Memory {
    let memory = domain.allocate(64 * 1024, grants).unwrap();
    memory.write(0, &vec![GUARD; memory.len()]).unwrap();
    memory
}

fn is_untouched(memory: &Memory) -> bool {
    let mut found = vec![0; memory.len()];
    memory.read(0, &mut found).unwrap();
    found.iter().all(|byte| *byte == GUARD)
}

/// A node that lends and has programs; an honest node that borrows from it and has a program; and
/// hostile peers.
fn others_do_not_notice(listen: &Address, seed: u64) {
    // The honest node is its first peer, so that grants can name it.
    let (victim, address) = Host::start_node(Node::new("victim", LEND_BYTES, 0).unwrap(), listen, &[]);
    let (other, _) = Host::start_named("honest", &shm(), &[&address]);
    let (near, far) = (other.domain(1), victim.domain(2));
    let mine = near.allocate(1 << 20, &[]).unwrap();
    let theirs = far.allocate(1 << 20, &[Grant::all(Who::Node(1))]).unwrap();
    let neighbour = victim.domain(3);
    let _mailbox = neighbour.open_mailbox(16, &[Who::Node(1)]).unwrap();
    let guards = [
        guarded(&far, &[]),
        guarded(&near, &[]),
        guarded(&neighbour, &[Grant::all(Who::Node(1))]),
        guarded(&neighbour, &[Grant::all(Who::Program(2))]),
    ];
    // What the honest node borrows. Over shared memory its descriptor shows what becomes of it.
    let peer = other.node.peers().remove(0);
    let (lent, mut descriptors) = other.node.ask(&peer, Request::Lend { bytes: 1 << 20 }, PATIENCE).unwrap();
    assert!(matches!(lent, Reply::Lent { .. }), "{lent:?}");
    let lent = descriptors.pop().map(|descriptor| SharedMemory::open(descriptor, 1 << 20).unwrap());
    if let Some(lent) = &lent {
        lent.span_mut(0, lent.len()).unwrap().copy_from(SharedSpan::from(&vec![GUARD; lent.len()]));
    }
    let honest_bytes = victim.node.status().lent_bytes;
    let before = resident_bytes();
    let (stop, heard) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| honest(&near, &mine, &theirs, 1, &stop));
        let peers: Vec<_> = [seed, seed + 1]
            .map(|seed| {
                let (address, heard) = (&address, &heard);
                scope.spawn(move || {
                    let mut random = Random::for_test(seed);
                    for _ in 0..LIVES {
                        let link = tombolo_link::connect(address, &Security::Insecure, PATIENCE).unwrap();
                        let checksums =
                            if link.protects_integrity() { Checksums::Off } else { Checksums::On };
                        Peer { link, random: &mut random, checksums, heard }.live();
                    }
                })
            })
            .into_iter()
            .collect();
        let outcomes: Vec<_> = peers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        let rounds = traffic.join().unwrap();
        eprintln!("{rounds} honest rounds, {} bytes heard by hostile peers", heard.load(Ordering::Relaxed));
        assert!(outcomes.iter().all(Result::is_ok), "a hostile peer got what it must not");
    });
    for (index, guard) in guards.iter().enumerate() {
        assert!(is_untouched(guard), "memory {index} of others was written");
    }
    if let Some(lent) = &lent {
        let bytes = lent.span(0, lent.len()).unwrap().to_vec();
        assert!(bytes.iter().all(|byte| *byte == GUARD), "memory lent to another was written");
    }
    // Everything that hostile peers had comes back, but what they gave names.
    let since = Instant::now();
    while victim.node.peers().len() > 1 || victim.node.status().lent_bytes > honest_bytes + named(&victim) {
        assert!(since.elapsed() < PATIENCE, "lost peers keep what they had: {:?}", victim.node.status());
        std::thread::sleep(Duration::from_millis(1));
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 256 << 20, "{grown} bytes more than before");
    assert!(victim.counter("packets_dropped") > 0, "the hostile peers sent no garbage");
    // And the node is as it was.
    stop.store(true, Ordering::Relaxed);
    assert_eq!(honest(&near, &mine, &theirs, 1, &stop), 10);
}

/// What names may take: whole pages.
fn named(host: &Host) -> u64 {
    host.counter("named_bytes") + host.counter("named_segments") * 4096
}

#[test]
fn a_hostile_peer_over_shared_memory() {
    others_do_not_notice(&shm(), 101);
}

#[test]
fn a_hostile_peer_over_udp() {
    others_do_not_notice(&udp(), 202);
}

/// A peer that takes all it can, acknowledges nothing and takes no answers, over several links; it
/// says just enough not to be given up. Others have what they need.
fn greed_harms_nobody_else(listen: &Address) {
    let (victim, address) = Host::start_node(Node::new("victim", 64 << 20, 0).unwrap(), listen, &[]);
    let (other, _) = Host::start_named("honest", &shm(), &[&address]);
    let (near, far) = (other.domain(1), victim.domain(2));
    let (third, fourth) = (victim.domain(3), victim.domain(4));
    let mine = near.allocate(1 << 20, &[]).unwrap();
    let theirs = far.allocate(1 << 20, &[Grant::all(Who::Anyone)]).unwrap();
    let carried = third.allocate(1 << 20, &[Grant::all(Who::Anyone)]).unwrap();
    let _ = fourth.allocate(4096, &[]).unwrap();
    let links: Vec<_> =
        (0..3).map(|_| tombolo_link::connect(&address, &Security::Insecure, PATIENCE).unwrap()).collect();
    for (index, link) in links.iter().enumerate() {
        let checksums = if link.protects_integrity() { Checksums::Off } else { Checksums::On };
        let ask = |number, request| {
            let message = Message::V1(MessageV1::Ask { number, request }).encode();
            let since = Instant::now();
            while let Err(SendError::Full) = link.send_control(&message, &[]) {
                // Packets are taken and forgotten; answers are not even taken.
                let _ = link.receive(1000, &mut |_| {});
                link.tick(Instant::now());
                std::thread::yield_now();
                if since.elapsed() > Duration::from_secs(2) {
                    break;
                }
            }
        };
        let life = Life([index as u8 + 1; 16]);
        ask(0, Request::Introduce { name: format!("greedy-{index}"), life });
        for number in 0..600 {
            ask(1 + number, Request::Lend { bytes: 4096 });
        }
        for number in 0..200 {
            ask(1000 + number, Request::Create { bytes: 1 });
        }
        for number in 0..400 {
            // To itself, where no acknowledgement comes from.
            ask(
                2000 + number,
                Request::Carry(Box::new(Carriage {
                    to: Some(NodeIdentity { key: None, life }),
                    source_domain: 0x8002,
                    source_address: theirs.address(),
                    destination_domain: 0x8001,
                    destination_address: 0,
                    size_bytes: 64 * 1024,
                    notification: None,
                    class: Some(0),
                })),
            );
        }
        let mut bytes = [0; 256];
        for request in 0..512 {
            let packet = Packet::ReadRequest(ReadRequest {
                request: RequestId(request),
                watermark: RequestId(0),
                attempt: Attempt(0),
                // All channels of as many domains as there are.
                domain: WireDomain(if request % 2 == 0 { 0x8002 } else { 0x8003 }),
                size_bytes: 2,
                source_address: if request % 2 == 0 { theirs.address() } else { carried.address() },
                // Two blocks of a byte each.
                destination_address: 16 * 1024 - 1,
                notification: None,
                class: Some(0),
            });
            let length = packet.emit(&mut bytes, checksums).unwrap();
            let _ = link.send(&bytes[..length], SharedSpan::empty());
            let _ = link.flush();
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Life, and nothing else.
            while !stop.load(Ordering::Relaxed) {
                for link in &links {
                    let checksums = if link.protects_integrity() { Checksums::Off } else { Checksums::On };
                    let nonsense = Packet::ReadAccept(ReadAccept { request: RequestId(7) });
                    let mut bytes = [0; 64];
                    let length = nonsense.emit(&mut bytes, checksums).unwrap();
                    let _ = link.send(&bytes[..length], SharedSpan::empty());
                    let _ = link.flush();
                    let _ = link.receive(1000, &mut |_| {});
                    link.tick(Instant::now());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let stopped = AtomicBool::new(true);
        assert_eq!(honest(&near, &mine, &theirs, 1, &stopped), 10);
        let peer = other.node.peers().remove(0);
        let ask = |request| other.node.ask(&peer, request, PATIENCE).unwrap().0;
        assert!(matches!(ask(Request::Lend { bytes: 1 << 20 }), Reply::Lent { .. }));
        assert!(matches!(ask(Request::Create { bytes: 5 }), Reply::Lent { .. }));
        // The victim's program has its own carried as well: from one neighbour to the other.
        let carriage = Carriage {
            to: None,
            source_domain: 0x8002,
            source_address: theirs.address(),
            destination_domain: 0x8003,
            destination_address: carried.address(),
            size_bytes: 100_000,
            notification: None,
            class: None,
        };
        assert_eq!(ask(Request::Carry(Box::new(carriage))), Reply::Carried(None));
        stop.store(true, Ordering::Relaxed);
    });
    let borrowed = victim.node.status().borrowers;
    assert!(borrowed.iter().all(|borrower| borrower.segments <= 256), "{borrowed:?}");
}

#[test]
fn a_greedy_peer_over_shared_memory() {
    greed_harms_nobody_else(&shm());
}

#[test]
fn a_greedy_peer_over_udp() {
    greed_harms_nobody_else(&udp());
}

/// Blocks may be sent from where they lie, and somebody may write there meanwhile: each transfer ends well
/// all the same, with whatever was there at some moment, and when the writer rests, with what is there.
#[test]
fn what_changes_while_it_is_sent_arrives_all_the_same() {
    const LENGTH: usize = 256 * 1024;
    let (host, address) = Host::start_node(Node::new("far", LEND_BYTES, 0).unwrap(), &udp(), &[]);
    let (other, _) = Host::start_named("near", &shm(), &[&address]);
    let near = other.domain(1);
    let far = host.domain(2);
    let mine = near.allocate(LENGTH, &[]).unwrap();
    let theirs = far.allocate(LENGTH, &[Grant::all(Who::Node(1))]).unwrap();
    let there = Spec::new(mine.address(), theirs.address(), LENGTH as u32);
    let target = Target { node: 1, domain: 2 };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                for place in (0..LENGTH).step_by(1024) {
                    mine.write(place, &round.to_le_bytes()).unwrap();
                }
            }
        });
        for _ in 0..100 {
            near.write(target, there).unwrap().wait(PATIENCE).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let bytes = pattern(7, LENGTH);
    mine.write(0, &bytes).unwrap();
    near.write(target, there).unwrap().wait(PATIENCE).unwrap();
    let mut found = vec![0; LENGTH];
    theirs.read(0, &mut found).unwrap();
    assert!(found == bytes);
}
