//! How fast the engine itself is: two engines in memory, no link, no lock, no
//! parsing; a write or read of 4 KiB at a time and 64 of them under way. Prints
//! nanoseconds per transfer for both engines together, with and without copying.
//!
//! `cargo run --release -p tombolo-core --example engine_rate`

use std::collections::VecDeque;
use std::time::Instant;
use tombolo_core::rdma::{Action, Config, Direction, Engine, PeerId, Time, Transfer, Verdict};
use tombolo_wire::{Checksums, Domain, Notification, Packet, Payload};

const SIZE: usize = 4096;
const DEPTH: u64 = 64;
const TRANSFERS: u64 = 1_000_000;
const OTHER: PeerId = PeerId(0);

fn run(direction: Direction, notify: bool, copy: bool, clock: bool) {
    let config = Config { congestion: None, ..Config::default() };
    let mut engines = [Engine::new(config), Engine::new(config)];
    for engine in &mut engines {
        engine.add_peer(Time(0), OTHER);
    }
    let source = vec![7u8; SIZE * DEPTH as usize];
    let mut destination = vec![0u8; SIZE * DEPTH as usize];
    let mut queues: [VecDeque<Packet<'_>>; 2] = Default::default();
    let (mut posted, mut done) = (0, 0);
    let start = Instant::now();
    let mut now = Time(0);
    while done < TRANSFERS {
        now = if clock { Time(start.elapsed().as_nanos() as u64) } else { Time(now.0 + 1000) };
        while posted < TRANSFERS && posted - done < DEPTH {
            let address = (posted % DEPTH) * SIZE as u64;
            let words = Notification { address, first: posted, last: posted };
            let transfer = Transfer {
                direction,
                domain: Domain(0),
                own_domain: Domain(0),
                source_address: address,
                destination_address: address,
                size_bytes: SIZE as u32,
                notification: notify.then_some(words),
                class: None,
                user: posted,
            };
            engines[0].post(now, OTHER, transfer).expect("room");
            posted += 1;
        }
        for node in 0..2 {
            let engine = &mut engines[node];
            while let Some(action) = engine.poll(now) {
                match action {
                    Action::SendBlock(block) => {
                        for header in block.packets(8192) {
                            let from = (block.source_address + u64::from(header.offset_bytes)) as usize;
                            let bytes = &source[from..from + header.payload_bytes as usize];
                            queues[1 - node].push_back(Packet::Data(header, Payload::Intact(bytes)));
                        }
                    }
                    Action::Send { packet, .. } => queues[1 - node].push_back(packet),
                    Action::WriteNotification(write) => engine.notified(write),
                    Action::Complete(completion) => {
                        completion.status.expect("nothing is lost here");
                        done += 1;
                    }
                }
            }
            let engine = &mut engines[1 - node];
            while let Some(packet) = queues[1 - node].pop_front() {
                if let Verdict::Place(placement) = engine.handle(now, OTHER, &packet) {
                    if let (true, Packet::Data(_, Payload::Intact(bytes))) = (copy, packet) {
                        let at = placement.address as usize;
                        destination[at..at + bytes.len()].copy_from_slice(bytes);
                    }
                    engine.placed(placement);
                }
            }
            engine.expire(now);
            std::hint::black_box(engine.deadline());
        }
    }
    std::hint::black_box(&destination);
    let ns = start.elapsed().as_nanos() as u64 / TRANSFERS;
    let words = if notify { "+notification" } else { "" };
    let copied = if copy { ", copied" } else { "" };
    println!("{direction:?} of 4 KiB{words}{copied}: {ns} ns, both engines together");
    assert!(engines[0].counters().blocks_retransmitted == 0 || clock);
}

/// One data packet of 4 KiB to bytes and back.
fn wire(checksums: Checksums) {
    let mut engine = Engine::new(Config::default());
    engine.add_peer(Time(0), OTHER);
    let transfer = Transfer {
        direction: Direction::Write,
        domain: Domain(0),
        own_domain: Domain(0),
        source_address: 0,
        destination_address: 0,
        size_bytes: SIZE as u32,
        notification: None,
        class: None,
        user: 0,
    };
    engine.post(Time(0), OTHER, transfer).expect("room");
    let Some(Action::SendBlock(block)) = engine.poll(Time(0)) else {
        return;
    };
    let header = block.packets(SIZE as u32).next().expect("one packet");
    let mut bytes = vec![7; header.header_bytes() + SIZE];
    let start = Instant::now();
    for _ in 0..TRANSFERS {
        header.seal(&mut bytes, checksums).expect("it fits");
        let packet = Packet::parse(std::hint::black_box(&bytes), checksums);
        assert!(std::hint::black_box(packet).is_ok());
    }
    let ns = start.elapsed().as_nanos() as u64 / TRANSFERS;
    println!("seal and parse 4 KiB, checksums {checksums:?}: {ns} ns");
}

fn main() {
    wire(Checksums::On);
    wire(Checksums::Off);
    for direction in [Direction::Write, Direction::Read] {
        run(direction, false, false, true);
        run(direction, true, false, true);
        run(direction, true, true, true);
    }
}
