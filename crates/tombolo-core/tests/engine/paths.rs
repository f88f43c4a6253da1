//! Several paths to one peer: all are used, each by its measure; one that dies
//! costs little and loses nothing; one that heals is used again. In virtual time.

use crate::bench::{Bench, OTHER, Wire, path_of, wire_of};
use tombolo_core::rdma::{Action, Config, Direction, TransferError};
use tombolo_wire::Packet;

const SECOND: u64 = 1_000_000_000;
const MEGABYTE: u32 = 1 << 20;

fn config() -> Config {
    Config { outstanding_blocks: 64, ..Config::default() }
}

/// A bench whose wires carry a byte in `picos[i] / 1000` ns.
fn bench(picos: &[u64]) -> Bench {
    let mut bench = Bench::new(config(), 3, 40 << 20);
    bench.payload_bytes = 8192;
    let line = |byte_picos| Wire { byte_picos, buffer_bytes: 400_000, ..Wire::new(10_000) };
    bench.wires[0] = line(picos[0]);
    for byte_picos in &picos[1..] {
        bench.add_wire(line(*byte_picos));
    }
    bench
}

/// Writes this number of MiB. Returns how long that took.
fn write(bench: &mut Bench, megabytes: u32) -> u64 {
    let start = bench.now();
    for _ in 0..megabytes {
        bench.post(0, Direction::Write, MEGABYTE, true, None).expect("memory").expect("room");
    }
    bench.settle(20 * SECOND);
    bench.check_memory();
    assert!(bench.watched.iter().all(|watched| watched.status == Some(Ok(()))));
    bench.now().since_ns(start)
}

fn bytes_by(bench: &Bench, wire: usize) -> u64 {
    bench.engines[0].path_status(OTHER, path_of(0, wire)).expect("a path").bytes_sent
}

#[test]
fn equal_paths_carry_equal_shares() {
    let alone = write(&mut bench(&[1000]), 16);
    let mut bench = bench(&[1000, 1000, 1000]);
    let together = write(&mut bench, 16);
    assert!(together * 10 < alone * 4, "{together} ns by three paths, {alone} ns by one");
    let shares = [0, 1, 2].map(|wire| bytes_by(&bench, wire) * 100 / (16 << 20));
    assert!(shares.iter().all(|share| (28..40).contains(share)), "{shares:?} percent");
    let [sender, _] = bench.report();
    assert_eq!(sender.blocks_retransmitted, 0, "what is sprayed arrives out of order, and is not lost");
}

#[test]
fn each_path_carries_what_it_can() {
    let alone = write(&mut bench(&[1000]), 16);
    let mut bench = bench(&[1000, 4000]);
    let together = write(&mut bench, 16);
    // Of five parts, the fast path carries four.
    assert!(together * 100 < alone * 90, "{together} ns by two paths, {alone} ns by one");
    let share = bytes_by(&bench, 1) * 100 / (16 << 20);
    assert!((12..28).contains(&share), "{share} percent by the slow path");
}

#[test]
fn small_writes_go_by_the_short_path() {
    let mut bench = Bench::new(Config::default(), 1, 1 << 20);
    bench.add_wire(Wire::new(10_000_000));
    for _ in 0..40 {
        bench.post(0, Direction::Write, 4096, true, None).expect("memory").expect("room");
        bench.settle(SECOND);
    }
    let long = bench.engines[0].path_status(OTHER, path_of(0, 1)).expect("a path");
    assert!(long.blocks_sent <= 2, "{long:?}");
}

#[test]
fn blocks_of_a_lost_path_go_at_once_by_others() {
    let mut bench = bench(&[1000, 1000]);
    for _ in 0..8 {
        bench.post(0, Direction::Write, MEGABYTE, true, None).expect("memory").expect("room");
    }
    for _ in 0..300 {
        bench.step();
    }
    let start = bench.now();
    bench.leave_wire(1);
    bench.drain();
    bench.settle(20 * SECOND);
    bench.check_memory();
    let [sender, _] = bench.report();
    assert!(sender.blocks_moved > 0, "{sender:#?}");
    assert_eq!(sender.timeouts, 0, "nothing waited for a timeout");
    // All of it by one path takes 8.4 ms.
    assert!(bench.now().since_ns(start) < 11_000_000, "{} ns", bench.now().since_ns(start));
}

#[test]
fn a_path_that_swallows_everything_costs_little_before_it_is_lost() {
    let healthy = write(&mut bench(&[1000]), 24);
    let mut bench = bench(&[1000, 1000]);
    write(&mut bench, 2);
    bench.cut_wire(1);
    let before = bytes_by(&bench, 1);
    let with_a_hole = write(&mut bench, 24);
    assert!(with_a_hole * 10 < healthy * 14, "{with_a_hole} ns, {healthy} ns by one healthy path");
    let thrown_away = bytes_by(&bench, 1) - before;
    assert!(thrown_away < 1 << 20, "{thrown_away} bytes");
}

#[test]
fn a_healed_path_is_used_again() {
    for told in [false, true] {
        let mut bench = bench(&[1000, 1000]);
        write(&mut bench, 2);
        if told {
            bench.leave_wire(1);
        } else {
            bench.cut_wire(1);
        }
        write(&mut bench, 4);
        bench.heal_wire(1);
        write(&mut bench, 16);
        let before = [0, 1].map(|wire| bytes_by(&bench, wire));
        write(&mut bench, 16);
        let share = (bytes_by(&bench, 1) - before[1]) * 100 / (16 << 20);
        assert!((35..65).contains(&share), "told: {told}: {share} percent");
    }
}

#[test]
fn a_path_that_loses_half_of_all_packets_loses_nothing_for_good() {
    let mut bench = bench(&[1000, 1000]);
    bench.wires[1].loss = 500_000;
    for _ in 0..8 {
        bench.post(0, Direction::Write, MEGABYTE, true, None).expect("memory").expect("room");
        bench.post(1, Direction::Read, MEGABYTE, true, None).expect("memory").expect("room");
    }
    bench.settle(20 * SECOND);
    bench.check_memory();
}

#[test]
fn a_peer_without_paths_waits_until_it_has_one_or_is_lost() {
    let mut bench = bench(&[1000, 1000]);
    bench.post(0, Direction::Write, MEGABYTE, true, None).expect("memory").expect("room");
    bench.drain();
    bench.leave_wire(0);
    bench.leave_wire(1);
    while bench.step() {}
    assert_eq!(bench.open, 1);
    bench.heal_wire(1);
    bench.settle(SECOND);
    bench.check_memory();
    bench.post(0, Direction::Write, MEGABYTE, true, None).expect("memory").expect("room");
    bench.drain();
    bench.leave_wire(1);
    bench.engines[0].peer_lost(bench.now(), OTHER);
    bench.drain();
    assert_eq!(bench.watched[1].status, Some(Err(TransferError::PeerLost)));
}

#[test]
fn paths_that_cannot_be_are_refused() {
    let mut bench = Bench::new(config(), 1, 1 << 20);
    let now = bench.now();
    let engine = &mut bench.engines[0];
    assert!(!engine.add_path(now, OTHER, tombolo_core::rdma::PathId(8)));
    assert!(!engine.add_path(now, tombolo_core::rdma::PeerId(77), tombolo_core::rdma::PathId(1)));
    engine.path_lost(now, OTHER, tombolo_core::rdma::PathId(200));
    engine.path_lost(now, tombolo_core::rdma::PeerId(77), tombolo_core::rdma::PathId(0));
    assert_eq!(engine.path_status(OTHER, tombolo_core::rdma::PathId(3)), None);
}

#[test]
fn a_read_that_waits_its_turn_is_asked_for_by_a_path_that_answers() {
    let config = Config { read_channels: 1, outstanding_blocks: 1, ..Config::default() };
    let mut bench = Bench::new(config, 5, 8 << 20);
    bench.wires[0].byte_picos = 20_000;
    bench.add_wire(Wire { byte_picos: 1_000_000, ..Wire::new(10_000) });
    for _ in 0..20 {
        bench.post(0, Direction::Write, 16_384, false, None).expect("memory").expect("room");
    }
    bench.settle(20 * SECOND);
    for size in [4 * MEGABYTE, MEGABYTE] {
        bench.post(0, Direction::Read, size, false, None).expect("memory").expect("room");
    }
    for _ in 0..20 {
        bench.step();
    }
    assert_eq!(bench.report()[1].reads_queued, 1, "the second read waits for the first");
    // The shortest path by far: even what avoids it prefers it.
    bench.cut_wire(0);
    bench.settle(20 * SECOND);
    bench.check_memory();
    assert!(bench.watched.iter().all(|watched| watched.status == Some(Ok(()))));
}

#[test]
fn a_path_that_lost_something_does_not_wait_for_dead_ones() {
    let mut bench = bench(&[1000, 1000, 1000, 1000]);
    write(&mut bench, 2);
    for wire in 1..4 {
        bench.cut_wire(wire);
    }
    // Long enough for the pauses of the dead ones to be the longest there are.
    for _ in 0..600 {
        bench.post(0, Direction::Write, 4096, true, None).expect("memory").expect("room");
        bench.settle(20 * SECOND);
        bench.skip_to(bench.now().after_ns(SECOND / 100));
    }
    let start = bench.now();
    bench.wires[0].loss = 1_000_000;
    bench.post(0, Direction::Write, 4096, true, None).expect("memory").expect("room");
    bench.drain();
    bench.wires[0].loss = 0;
    bench.settle(20 * SECOND);
    bench.check_memory();
    assert!(bench.now().since_ns(start) < SECOND / 20, "{} ns", bench.now().since_ns(start));
}

#[test]
fn a_read_finds_the_path_that_is_left() {
    let mut bench = bench(&[1000; 8]);
    write(&mut bench, 2);
    for wire in 0..7 {
        bench.cut_wire(wire);
    }
    let start = bench.now();
    bench.post(0, Direction::Read, 4096, true, None).expect("memory").expect("room");
    bench.settle(20 * SECOND);
    bench.check_memory();
    assert!(bench.now().since_ns(start) < SECOND / 4, "{} ns", bench.now().since_ns(start));
}

#[test]
fn a_request_is_answered_by_the_path_it_came_by() {
    let config = Config { read_channels: 1, outstanding_blocks: 1, ..Config::default() };
    let mut bench = Bench::new(config, 5, 8 << 20);
    bench.wires[0].byte_picos = 20_000;
    bench.add_wire(Wire { byte_picos: 20_000, ..Wire::new(15_000) });
    bench.log = Some(Vec::new());
    for size in [4 * MEGABYTE, MEGABYTE] {
        bench.post(0, Direction::Read, size, false, None).expect("memory").expect("room");
    }
    bench.settle(20 * SECOND);
    let (mut asked_by, mut answers) = (Vec::new(), [0; 2]);
    for (node, action) in bench.log.take().expect("there is one") {
        match action {
            Action::Send { path, packet: Packet::ReadRequest(_), .. } => asked_by.push(wire_of(node, path)),
            Action::Send { path, packet: Packet::ReadAccept(_), .. } => {
                let wire = wire_of(node, path);
                assert_eq!(asked_by.last(), Some(&wire), "of {asked_by:?}");
                answers[wire] += 1;
            }
            _ => {}
        }
    }
    assert!(answers.iter().all(|count| *count > 0), "{answers:?}");
}

/// Whatever is open when the last path goes waits for the next, however long that takes: reads as well as
/// writes, begun or not, and what is posted meanwhile.
#[test]
fn reads_without_a_path_wait_as_writes_do() {
    for begun in [0, 40] {
        let mut bench = bench(&[1000]);
        for direction in [Direction::Read, Direction::Write] {
            bench.post(0, direction, MEGABYTE, true, None).expect("memory").expect("room");
        }
        bench.drain();
        for _ in 0..begun {
            bench.step();
        }
        bench.leave_wire(0);
        for direction in [Direction::Read, Direction::Write] {
            bench.post(0, direction, 64, true, None).expect("memory").expect("room");
        }
        while bench.step() {}
        // A caller that asks for expiries without need changes nothing.
        bench.skip_to(bench.now().after_ns(100 * SECOND));
        bench.expire_all();
        while bench.step() {}
        assert_eq!(bench.open, 4, "begun: {begun}");
        bench.heal_wire(0);
        bench.settle(SECOND);
        bench.check_memory();
        assert!(bench.watched.iter().all(|watched| watched.status == Some(Ok(()))));
    }
}

/// A block that was refused for now before its last path went has its time when it has a path again.
#[test]
fn the_time_without_a_path_does_not_count_towards_giving_up() {
    let mut bench = Bench::new(config(), 1, 1 << 20);
    bench.faults.full = 1_000_000;
    for direction in [Direction::Read, Direction::Write] {
        bench.post(0, direction, 64, true, None).expect("memory").expect("room");
    }
    bench.drain();
    for _ in 0..20 {
        bench.step();
    }
    assert!(bench.report().iter().all(|counters| counters.nacks_sent[7] > 0));
    bench.leave_wire(0);
    while bench.step() {}
    bench.skip_to(bench.now().after_ns(100 * SECOND));
    bench.heal_wire(0);
    for _ in 0..20 {
        bench.step();
    }
    bench.faults.full = 0;
    bench.settle(SECOND);
    assert!(bench.watched.iter().all(|watched| watched.status == Some(Ok(()))));
}
