//! Peers that do not answer: what is given up, when, and what is not. In virtual time.

mod bench;

use bench::{BASE, Bench, DOMAIN, OTHER};
use tombolo_core::rdma::{Action, Config, Direction, Engine, PathId, Time, Transfer, TransferError};
use tombolo_random::{Random, Seeds};
use tombolo_wire::{Nack, NackCode, Packet, ReadAccept, ReadReject, Receipt};

const SECOND: u64 = 1_000_000_000;

fn run(seeds: u64, test: &str, scenario: impl FnMut(u64)) {
    let command = format!("cargo test -p tombolo-core --test giving_up {test}");
    Seeds::from_environment(seeds).run(&command, scenario);
}

/// A peer reads, and is stopped for longer than a silent peer is waited for, with room in its links or not. When
/// it goes on, it has what it has asked for. What others wanted of it was given up meanwhile.
#[test]
fn a_stopped_peer_that_goes_on_has_its_reads() {
    run(100, "a_stopped_peer_that_goes_on_has_its_reads", |seed| {
        let mut bench = Bench::new(Config::default(), seed, 4 << 20);
        for _ in 0..1 + bench.random.below(20) {
            let bytes = 1 + bench.random.below(100_000) as u32;
            let with_notification = bench.random.per_million(500_000);
            bench.post(0, Direction::Read, bytes, with_notification, None).expect("memory").expect("room");
        }
        for _ in 0..bench.random.below(60) {
            bench.step();
        }
        let reads = bench.watched.len();
        let most = if seed % 2 == 0 { usize::MAX } else { bench.random.below(40) as usize };
        bench.stop_node(0, most);
        let stopped_at = bench.now;
        let stopped_ns = 6 * SECOND + bench.random.below(120 * SECOND);
        bench.post(1, Direction::Write, 40_000, false, None).expect("memory").expect("room");
        while bench.now < stopped_at.after_ns(stopped_ns) && bench.step() {
            if bench.watched[reads].status.is_none() {
                assert!(bench.now < stopped_at.after_ns(8 * SECOND), "seed {seed}: a write waits for ever");
            }
        }
        assert_eq!(bench.watched[reads].status, Some(Err(TransferError::PeerUnreachable)), "seed {seed}");
        bench.now = bench.now.max(stopped_at.after_ns(stopped_ns));
        bench.go_on();
        bench.settle(10 * SECOND);
        for (number, watched) in bench.watched[..reads].iter().enumerate() {
            assert_eq!(watched.status, Some(Ok(())), "seed {seed}, read {number}");
        }
        bench.check_memory();
    });
}

fn transfer(direction: Direction, size_bytes: u32) -> Transfer {
    Transfer {
        direction,
        domain: DOMAIN,
        own_domain: DOMAIN,
        source_address: BASE,
        destination_address: 2 * BASE,
        size_bytes,
        notification: None,
        class: None,
        user: 0,
    }
}

/// What a peer answers that ends no transfer, to one packet or block.
fn useless_answer(random: &mut Random, action: &Action) -> Option<Packet<'static>> {
    let code = NackCode::BufferFull;
    match action {
        Action::SendBlock(block) if random.per_million(500_000) => Some(Packet::Receipt(Receipt {
            transaction: block.transaction,
            generation: block.generation,
            attempt: block.attempt,
        })),
        Action::SendBlock(block) => Some(Packet::Nack(Nack {
            transaction: block.transaction,
            generation: block.generation,
            attempt: block.attempt,
            code,
        })),
        Action::Send { packet: Packet::ReadRequest(request), .. } => match random.per_million(500_000) {
            true => Some(Packet::ReadAccept(ReadAccept { request: request.request })),
            false => Some(Packet::ReadReject(ReadReject { request: request.request, code })),
        },
        _ => None,
    }
}

/// A peer that loses its only path again and again, and answers nothing that ends a transfer, keeps none open for
/// ever, however long it has a path each time.
#[test]
fn a_peer_that_loses_and_regains_its_only_path_is_given_up() {
    run(12, "a_peer_that_loses_and_regains_its_only_path_is_given_up", |seed| {
        let mut random = Random::new(seed);
        let config = Config { transactions: 64, ..Config::default() };
        let mut engine = Engine::new(config);
        let mut now = Time(0);
        engine.add_peer(now, OTHER);
        let posted = 1 + random.below(6);
        for _ in 0..posted {
            let direction = if random.per_million(500_000) { Direction::Read } else { Direction::Write };
            engine.post(now, OTHER, transfer(direction, 1 + random.below(50_000) as u32)).expect("room");
        }
        // How long it has a path at a time, and how many of a million packets it answers.
        let most_up_ns = SECOND / random.among(&[100, 10, 1]) * 4;
        let answers = random.among(&[0, 100_000, 1_000_000]);
        let (mut ended, mut with_path_ns, mut losses) = (0, 0, 0);
        while ended < posted {
            // Of each window of blocks the first are given up, and then those that waited for them.
            let is_bounded = with_path_ns < posted * 2 * config.refused_give_up_ns
                || losses < posted * u64::from(2 * config.max_attempts);
            assert!(is_bounded, "seed {seed}: {ended} of {posted} ended, {losses} losses");
            let until = now.after_ns(1 + random.below(most_up_ns));
            with_path_ns += until.since_ns(now);
            loop {
                while let Some(action) = engine.poll(now) {
                    if let Action::Complete(completion) = action {
                        assert!(completion.status.is_err());
                        ended += 1;
                    } else if random.per_million(answers)
                        && let Some(answer) = useless_answer(&mut random, &action)
                    {
                        let _ = engine.handle(now, OTHER, &answer);
                    }
                }
                match engine.deadline() {
                    Some(due) if due <= until => now = now.max(due),
                    _ => break,
                }
                engine.expire(now);
            }
            now = until;
            engine.path_lost(now, OTHER, PathId(0));
            now = now.after_ns(random.below(2 * SECOND));
            engine.expire(now);
            assert!(engine.add_path(now, OTHER, PathId(0)));
            losses += 1;
        }
        while let Some(action) = engine.poll(now) {
            assert!(!matches!(action, Action::Complete(_)), "seed {seed}: ended twice");
        }
        assert!(engine.is_idle(), "seed {seed}");
        assert_eq!(engine.counters().illegal_transitions, 0);
    });
}

/// The same path of a peer that answers costs no transfer, unless there is no time to answer.
#[test]
fn an_honest_peer_that_loses_and_regains_its_only_path_has_all() {
    run(100, "an_honest_peer_that_loses_and_regains_its_only_path_has_all", |seed| {
        let mut bench = Bench::new(Config::default(), seed, 4 << 20);
        for number in 0..12 {
            let direction = if number % 2 == 0 { Direction::Read } else { Direction::Write };
            let bytes = 1 + bench.random.below(200_000) as u32;
            bench.post(number / 6, direction, bytes, true, None).expect("memory").expect("room");
        }
        while bench.open > 0 {
            let steps = 1 + bench.random.below(30);
            for _ in 0..steps {
                bench.step();
            }
            bench.leave_wire(0);
            bench.now = bench.now.after_ns(bench.random.below(20 * SECOND));
            bench.heal_wire(0);
        }
        bench.settle(SECOND);
        assert!(bench.watched.iter().all(|watched| watched.status == Some(Ok(()))), "seed {seed}");
        bench.check_memory();
    });
}
