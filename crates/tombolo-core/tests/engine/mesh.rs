//! Many peers: every node to every node, itself too, over links that lose.

use std::collections::VecDeque;
use tombolo_core::rdma::congestion::CongestionConfig;
use tombolo_core::rdma::{Action, Config, Direction, Engine, PeerId, Time, Transfer, TransferError, Verdict};
use tombolo_random::Random;
use tombolo_wire::{Ack, Checksums, Domain, MAX_BARE_PACKET_BYTES, Packet, Payload};

const NODES: usize = 4;
/// Each node's memory: a source area, then an area per writer.
const AREA: usize = 1 << 17;

struct Mesh {
    engines: Vec<Engine>,
    memory: Vec<Vec<u8>>,
    now: Time,
    wire: VecDeque<(usize, usize, Vec<u8>)>,
    random: Random,
    done: usize,
    failed: usize,
}

impl Mesh {
    fn new(config: Config) -> Self {
        let mut random = Random::for_test(77);
        let mut engines: Vec<Engine> = (0..NODES).map(|_| Engine::new(config)).collect();
        for engine in &mut engines {
            for peer in 0..NODES as u32 {
                engine.add_peer(Time(0), PeerId(peer));
            }
        }
        let memory = (0..NODES)
            .map(|_| {
                let mut bytes = vec![0; AREA * (1 + 2 * NODES)];
                bytes[..AREA].fill_with(|| random.next() as u8);
                bytes
            })
            .collect();
        Self { engines, memory, now: Time(0), wire: VecDeque::new(), random, done: 0, failed: 0 }
    }

    fn post(&mut self, node: usize, peer: usize, direction: Direction) {
        // Where `node`'s transfers with `peer` go: in the writer's area.
        let area = match direction {
            Direction::Write | Direction::Atomic(_) => 1 + node,
            Direction::Read => 1 + NODES + peer,
        };
        let transfer = Transfer {
            direction,
            domain: Domain(1),
            own_domain: Domain(1),
            source_address: 0,
            destination_address: (area * AREA) as u64,
            size_bytes: AREA as u32,
            notification: None,
            class: None,
            user: 0,
        };
        self.engines[node].post(self.now, PeerId(peer as u32), transfer).expect("room");
    }

    /// Runs until this number of transfers is over.
    fn run(&mut self, loss: u64, until: usize) {
        self.run_while(loss, |mesh| mesh.done + mesh.failed < until);
    }

    fn run_while(&mut self, loss: u64, goes_on: impl Fn(&Self) -> bool) {
        while goes_on(self) {
            for node in 0..NODES {
                self.engines[node].expire(self.now);
                while let Some(action) = self.engines[node].poll(self.now) {
                    self.perform(node, action);
                }
            }
            match self.wire.pop_front() {
                Some(_) if self.random.per_million(loss) => {}
                Some((from, to, bytes)) => self.arrive(from, to, &bytes),
                None => {
                    let timers = self.engines.iter().filter_map(Engine::deadline);
                    self.now = self.now.max(timers.min().expect("something is open"));
                    assert!(self.now < Time(60_000_000_000), "hangs");
                }
            }
            self.now = self.now.after_ns(1_000);
        }
    }

    fn perform(&mut self, node: usize, action: Action) {
        match action {
            Action::SendBlock(block) => {
                for header in block.packets(4096) {
                    let from = (block.source_address + u64::from(header.offset_bytes)) as usize;
                    let payload = &self.memory[node][from..from + header.payload_bytes as usize];
                    let mut bytes = vec![0; 64 + 4096];
                    let packet = Packet::Data(header, Payload::Intact(payload));
                    let length = packet.emit(&mut bytes, Checksums::Off).expect("a packet");
                    bytes.truncate(length);
                    self.wire.push_back((node, block.peer.0 as usize, bytes));
                }
            }
            Action::Send { peer, packet, .. } => {
                let mut bytes = vec![0; MAX_BARE_PACKET_BYTES];
                let length = packet.emit(&mut bytes, Checksums::Off).expect("a packet");
                bytes.truncate(length);
                self.wire.push_back((node, peer.0 as usize, bytes));
            }
            Action::WriteNotification(write) => self.engines[node].notified(write),
            Action::Complete(completion) => match completion.status {
                Ok(()) => self.done += 1,
                Err(error) => {
                    assert_eq!(error, TransferError::PeerLost);
                    self.failed += 1;
                }
            },
        }
    }

    fn arrive(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let packet = Packet::parse(bytes, Checksums::Off).expect("undamaged");
        let verdict = self.engines[to].handle(self.now, PeerId(from as u32), &packet);
        if let (Verdict::Place(placement), Packet::Data(_, Payload::Intact(bytes))) = (verdict, packet) {
            let at = placement.address as usize;
            self.memory[to][at..at + bytes.len()].copy_from_slice(bytes);
            self.engines[to].placed(placement);
        }
    }
}

#[test]
fn everyone_writes_to_and_reads_from_everyone() {
    for congestion in [None, Some(CongestionConfig::default())] {
        let config = Config { transactions: 16, congestion, ..Config::default() };
        let mut mesh = Mesh::new(config);
        for node in 0..NODES {
            for peer in 0..NODES {
                mesh.post(node, peer, Direction::Write);
                mesh.post(node, peer, Direction::Read);
            }
        }
        mesh.run(20_000, 2 * NODES * NODES);
        for node in 0..NODES {
            for other in 0..NODES {
                for area in [1 + other, 1 + NODES + other] {
                    let there = &mesh.memory[node][area * AREA..(area + 1) * AREA];
                    assert!(there == &mesh.memory[other][..AREA], "node {node} from {other}");
                }
            }
        }
        mesh.run_while(0, |mesh| !mesh.engines.iter().all(Engine::is_idle));
    }
}

#[test]
fn a_lost_peer_takes_nobody_along() {
    let mut mesh = Mesh::new(Config::default());
    for peer in 0..NODES {
        mesh.post(0, peer, Direction::Write);
        mesh.post(0, peer, Direction::Read);
    }
    mesh.run(0, 1);
    let before = mesh.done;
    mesh.engines[0].peer_lost(mesh.now, PeerId(2));
    mesh.wire.retain(|(from, to, _)| (*from, *to) != (2, 0) && (*from, *to) != (0, 2));
    mesh.run(0, 2 * NODES);
    assert!(mesh.failed <= 2 && mesh.done >= 2 * NODES - 2 && mesh.done >= before);
    mesh.run_while(0, |mesh| !mesh.engines[0].is_idle());
}

#[test]
fn a_full_window_to_one_peer_holds_up_no_other() {
    let congestion = Some(CongestionConfig { initial_bytes: 32 * 1024, ..CongestionConfig::default() });
    let config = Config { congestion, outstanding_blocks: 8, ..Config::default() };
    let mut mesh = Mesh::new(config);
    for _ in 0..10 {
        mesh.post(0, 1, Direction::Write);
    }
    for peer in 2..4 {
        mesh.post(0, peer, Direction::Write);
    }
    let mut blocks: [Vec<_>; NODES] = Default::default();
    while let Some(action) = mesh.engines[0].poll(mesh.now) {
        let Action::SendBlock(block) = action else { panic!("only writes were posted") };
        blocks[block.peer.0 as usize].push(block);
    }
    // Two blocks fill each window, and each window is its own.
    assert_eq!(blocks.each_ref().map(Vec::len), [0, 2, 2, 2]);
    for block in &blocks[3] {
        let ack = Packet::Ack(Ack {
            transaction: block.transaction,
            generation: block.generation,
            attempt: block.attempt,
            bytes_only: false,
        });
        let _ = mesh.engines[0].handle(mesh.now.after_ns(1000), PeerId(3), &ack);
    }
    let opened = mesh.engines[0].poll(mesh.now);
    assert!(matches!(opened, Some(Action::SendBlock(block)) if block.peer == PeerId(3)));
}
