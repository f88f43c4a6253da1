//! How long a repair takes, and how much is lost where the path is narrow. In
//! virtual time: exact, and the same on every machine.

use crate::after_all_timers;
use crate::bench::{BASE, Bench, DOMAIN, Faults, OTHER};
use tombolo_core::rdma::congestion::CongestionConfig;
use tombolo_core::rdma::{
    Action, Block, Config, Counters, Direction, DropReason, Engine, Retransmission, Time, Transfer,
    TransferError, Verdict,
};
use tombolo_wire::{Ack, DataHeader, NackCode, Packet, Payload, Receipt};

const SECOND: u64 = 1_000_000_000;

/// Writes of 16 KiB, one lost; returns how long it took to repair.
fn repair_ns(config: Config) -> u64 {
    let mut bench = Bench::new(config, 1, 1 << 20);
    bench.payload_bytes = 16384;
    for _ in 0..20 {
        bench.post(0, Direction::Write, 16384, false, None).expect("memory").expect("room");
        bench.settle(SECOND);
    }
    let start = bench.now();
    for number in 0..8 {
        if number == 2 {
            bench.faults.loss = 1_000_000;
        }
        bench.post(0, Direction::Write, 4096, true, None).expect("memory").expect("room");
        bench.drain();
        bench.faults = Faults::default();
    }
    bench.settle(SECOND);
    bench.check_memory();
    bench.watched.iter().for_each(|watched| assert_eq!(watched.status, Some(Ok(()))));
    bench.now().since_ns(start)
}

#[test]
fn a_loss_that_others_overtake_does_not_wait_for_the_timeout() {
    let fast = repair_ns(Config::default());
    let slow = repair_ns(Config { fast_retransmit: false, tail_probe: false, ..Config::default() });
    assert!(fast < 500_000, "{fast} ns");
    assert!(slow >= 2_000_000, "{slow} ns");
    let retransmission = Retransmission::Fixed { timeout_ns: 20_000_000 };
    let document = repair_ns(Config { fast_retransmit: false, retransmission, ..Config::default() });
    assert!((20_000_000..20_100_000).contains(&document), "{document} ns");
    // As many ticks, of which the first has begun already (QOS §4.3).
    let retransmission = Retransmission::Ticks { tick_ns: 1_000_000, ticks: 20 };
    let ticks = repair_ns(Config { fast_retransmit: false, retransmission, ..Config::default() });
    assert!((19_000_000..20_100_000).contains(&ticks), "{ticks} ns");
}

/// As above, for a read whose request is lost.
#[test]
fn a_lost_request_that_others_overtake_is_repeated_soon() {
    let repair_ns = |fast_retransmit| {
        let config = Config { fast_retransmit, ..Config::default() };
        let mut bench = Bench::new(config, 1, 1 << 20);
        for number in 0..28 {
            if number == 22 {
                bench.faults.loss = 1_000_000;
            }
            let posted = bench.post(0, Direction::Read, 4096, true, None);
            posted.expect("memory").expect("room");
            if number < 20 {
                bench.settle(SECOND);
            }
            bench.drain();
            bench.faults = Faults::default();
        }
        let start = bench.now();
        bench.settle(SECOND);
        bench.check_memory();
        bench.now().since_ns(start)
    };
    let (fast, slow) = (repair_ns(true), repair_ns(false));
    assert!(fast < 500_000, "{fast} ns");
    assert!(slow >= 4_000_000, "{slow} ns");
}

/// Much to send through a small buffer: returns the share of packets lost, in
/// thousandths, and the time.
fn overrun(congestion: bool) -> (u64, u64) {
    let mut config = Config { outstanding_blocks: 64, ..Config::default() };
    if !congestion {
        config.congestion = None;
    }
    let mut bench = Bench::new(config, 1, 40 << 20);
    bench.payload_bytes = 8192;
    // 8 Gb/s and a socket's usual buffer.
    bench.faults = Faults { byte_picos: 1000, buffer_bytes: Some(200_000), ..Faults::default() };
    for _ in 0..32 {
        bench.post(0, Direction::Write, 1 << 20, true, None).expect("memory").expect("room");
    }
    let start = bench.now();
    bench.settle(20 * SECOND);
    bench.check_memory();
    let sent = bench.report()[0].block_bytes_sent / 8192;
    (bench.dropped * 1000 / sent, bench.now().since_ns(start))
}

#[test]
fn congestion_control_keeps_loss_near_zero() {
    let (loss, time_ns) = overrun(true);
    assert!(loss < 10, "{loss} in a thousand lost");
    // 32 MiB at 1 B/ns take 34 ms.
    assert!(time_ns < 45_000_000, "{time_ns} ns");
    let (without, _) = overrun(false);
    assert!(without > 100, "the twin loses only {without} in a thousand");
}

/// How long a transfer takes, until its receiver is notified and until its sender knows, in one-way delays.
fn one_ways(config: Config, direction: Direction, size_bytes: u32) -> (u64, u64) {
    const ONE_WAY_NS: u64 = 10_000;
    let mut bench = Bench::new(Config { outstanding_blocks: 16, ..config }, 1, 32 << 20);
    bench.payload_bytes = 16384;
    // The window has to be open that far.
    for _ in 0..20 {
        bench.post(0, Direction::Write, 256 * 1024, false, None).expect("memory").expect("room");
        bench.post(1, Direction::Write, 256 * 1024, false, None).expect("memory").expect("room");
        bench.settle(SECOND);
    }
    let start = bench.now();
    bench.post(0, direction, size_bytes, true, None).expect("memory").expect("room");
    let number = bench.watched.len() - 1;
    let mut notified = None;
    while bench.watched[number].status.is_none() {
        bench.step();
        if bench.watched[number].notified > 0 {
            notified.get_or_insert(bench.now().since_ns(start) / ONE_WAY_NS);
        }
    }
    bench.check_memory();
    (notified.expect("a notification"), bench.now().since_ns(start) / ONE_WAY_NS)
}

/// Half a round trip to be notified, and a whole one until the sender knows, of one block or of many; as
/// the document has it, many take a round trip more (QOS §3.2.6).
#[test]
fn large_transfers_are_notified_as_early_as_small_ones() {
    for (size_bytes, is_large) in [(64, false), (1000, false), (40_000, true), (240_000, true)] {
        for early_notification in [true, false] {
            let config = Config { early_notification, ..Config::default() };
            let more = if is_large && !early_notification { 2 } else { 0 };
            let expected = (1 + more, 2 + more);
            assert_eq!(one_ways(config, Direction::Write, size_bytes), expected, "{size_bytes} bytes");
            let expected = 2 + more;
            assert_eq!(
                one_ways(config, Direction::Read, size_bytes),
                (expected, expected),
                "{size_bytes} bytes"
            );
        }
    }
}

/// Bytes that a node sends at once after a pause of so long, having used its path to the full before.
fn burst_after(pause_ns: u64, trickle: bool) -> (u64, u64) {
    let mut bench = Bench::new(Config { outstanding_blocks: 64, ..Config::default() }, 1, 80 << 20);
    bench.payload_bytes = 16384;
    // 40 Gb/s over a millisecond: a window of some MiB.
    bench.faults = Faults { byte_picos: 200, ..Faults::default() };
    bench.wires[0].delay_ns = 500_000;
    let post = |bench: &mut Bench, size| {
        bench.post(0, Direction::Write, size, false, None).expect("memory").expect("room");
    };
    (0..64).for_each(|_| post(&mut bench, 1 << 20));
    bench.settle(20 * SECOND);
    let window_bytes = bench.engines[0].window_bytes(OTHER).expect("a peer");
    for _ in 0..10 {
        bench.skip_to(bench.now().after_ns(pause_ns / 10));
        if trickle {
            post(&mut bench, 64);
            bench.settle(SECOND);
        }
    }
    let before = bench.report()[0].block_bytes_sent;
    (0..8).for_each(|_| post(&mut bench, 1 << 20));
    bench.drain();
    let burst_bytes = bench.report()[0].block_bytes_sent - before;
    bench.settle(20 * SECOND);
    bench.check_memory();
    (burst_bytes, window_bytes)
}

/// After a pause longer than the memory of a path, what was known of it is not sent into it at once; neither
/// if only a trickle went by it meanwhile.
#[test]
fn an_old_window_does_not_burst_after_idling() {
    let initial_bytes = CongestionConfig::default().initial_bytes;
    for trickle in [false, true] {
        let (burst_bytes, window_bytes) = burst_after(SECOND, trickle);
        assert!(window_bytes > 4 * initial_bytes, "{window_bytes}");
        assert!(burst_bytes > 3 * initial_bytes, "a second's pause is short: {burst_bytes}");
        let (burst_bytes, _) = burst_after(60 * SECOND, trickle);
        assert!(burst_bytes <= initial_bytes + 16384, "{burst_bytes} bytes at once, trickle: {trickle}");
    }
}

/// A write of one block by hand; it is handed out at once.
fn send_one(engine: &mut Engine, now: Time) -> Block {
    let transfer = Transfer {
        direction: Direction::Write,
        domain: DOMAIN,
        own_domain: DOMAIN,
        source_address: BASE,
        destination_address: BASE,
        size_bytes: 64,
        notification: None,
        class: None,
        user: 0,
    };
    engine.post(now, OTHER, transfer).expect("room");
    blocks(engine, now).pop().expect("a block")
}

fn blocks(engine: &mut Engine, now: Time) -> Vec<Block> {
    let actions = std::iter::from_fn(|| engine.poll(now));
    actions
        .filter_map(|action| if let Action::SendBlock(block) = action { Some(block) } else { None })
        .collect()
}

fn acknowledge(engine: &mut Engine, now: Time, block: &Block) {
    let (transaction, generation, attempt) = (block.transaction, block.generation, block.attempt);
    let ack = Ack { transaction, generation, attempt, bytes_only: false };
    let _ = engine.handle(now, OTHER, &Packet::Ack(ack));
}

/// After a long silence the timeout is a second. An answer makes it short again, also for what is under way.
#[test]
fn an_answer_shortens_the_timeouts_of_what_is_under_way() {
    const MILLISECOND: u64 = 1_000_000;
    for silent in [false, true] {
        let mut engine = Engine::new(Config::default());
        let mut now = Time(SECOND);
        engine.add_peer(now, OTHER);
        let mut first = send_one(&mut engine, now);
        while silent && now < Time(3 * SECOND) {
            now = engine.deadline().expect("a timer");
            engine.expire(now);
            first = blocks(&mut engine, now).pop().unwrap_or(first);
        }
        // Sent after the block that is answered: it is not overtaken.
        let second = send_one(&mut engine, now);
        let answered_at = now.after_ns(100_000);
        acknowledge(&mut engine, answered_at, &first);
        let due = engine.deadline().expect("the second block is under way");
        assert!(due <= now.after_ns(3 * MILLISECOND), "{} ns from sending", due.since_ns(now));
        engine.expire(due);
        let again = blocks(&mut engine, due);
        assert_eq!(again.first().map(|block| block.transaction), Some(second.transaction));
    }
}

/// Writes by a path whose window is open, of which one takes long to be placed, while others go on. Returns
/// the counters of its sender, and the window before and after.
fn beside_a_slow_copy(config: Config, size_bytes: u32) -> (Counters, u64, u64) {
    let mut bench = Bench::new(Config { outstanding_blocks: 16, ..config }, 1, 40 << 20);
    bench.payload_bytes = 16384;
    for _ in 0..100 {
        bench.post(0, Direction::Write, 256 * 1024, false, None).expect("memory").expect("room");
        bench.settle(SECOND);
    }
    let before = bench.engines[0].window_bytes(OTHER).expect("a peer");
    let slow = bench.watched.len();
    bench.post(0, Direction::Write, size_bytes, true, None).expect("memory").expect("room");
    bench.faults = Faults { slow_copy: 1_000_000, slow_ns: 200_000_000, ..Faults::default() };
    bench.drain();
    while bench.report()[1].packets_placed < bench.report()[0].blocks_sent {
        assert!(bench.step());
    }
    bench.faults = Faults::default();
    let start = bench.now();
    let mut lowest = before;
    while bench.watched[slow].status.is_none() {
        if bench.open == 1 {
            bench.post(0, Direction::Write, 256, false, None).expect("memory").expect("room");
        }
        assert!(bench.step());
        lowest = lowest.min(bench.engines[0].window_bytes(OTHER).expect("a peer"));
        if bench.now().since_ns(start) < 5_000_000 {
            // The first timeout cannot know yet.
            lowest = before;
        }
    }
    assert!(
        bench.now().since_ns(start) > 10_000_000,
        "the copy is not slow: {}",
        bench.now().since_ns(start)
    );
    bench.settle(SECOND);
    bench.check_memory();
    assert!(bench.watched.iter().all(|watched| watched.status == Some(Ok(()))));
    (bench.report()[0], before, lowest)
}

#[test]
fn a_slow_copy_is_not_taken_for_loss() {
    for fast_retransmit in [false, true] {
        for size_bytes in [100, 16384] {
            let config = Config { fast_retransmit, ..Config::default() };
            let (sender, before, lowest) = beside_a_slow_copy(config, size_bytes);
            assert!(sender.blocks_retransmitted <= 2, "sent again and again: {sender:#?}");
            assert!(sender.receipts > 0);
            assert!(lowest >= before, "the window of all shrank from {before} to {lowest}");
        }
    }
}

/// By hand: what the receiver says of a block that it places, and what becomes of the question.
#[test]
fn a_block_being_placed_is_asked_for_and_not_sent_again() {
    let mut now = Time(SECOND);
    let [mut sender, mut receiver] = [(); 2].map(|()| Engine::new(Config::default()));
    sender.add_peer(now, OTHER);
    receiver.add_peer(now, OTHER);
    let arrive = |receiver: &mut Engine, now, block: &Block| {
        let header = block.packets(4096).next().expect("one packet");
        receiver.handle(now, OTHER, &Packet::Data(header, Payload::Intact(&[0; 64])))
    };
    let block = send_one(&mut sender, now);
    let Verdict::Place(placement) = arrive(&mut receiver, now, &block) else { panic!("a placement") };
    now = sender.deadline().expect("a timer");
    sender.expire(now);
    let again = blocks(&mut sender, now).pop().expect("it goes again");
    assert_eq!(arrive(&mut receiver, now, &again), Verdict::Dropped(DropReason::Duplicate));
    for _ in 0..10 {
        let Some(Action::Send { packet: receipt @ Packet::Receipt(_), .. }) = receiver.poll(now) else {
            panic!("a receipt is due");
        };
        assert_eq!(receiver.poll(now), None);
        assert_eq!(sender.handle(now, OTHER, &receipt), Verdict::Taken);
        assert_eq!(sender.poll(now), None);
        now = after_all_timers(&mut sender).expect("it is asked for later");
        let Some(Action::Send { packet: probe @ Packet::Data(header, _), .. }) = sender.poll(now) else {
            panic!("a question is due");
        };
        assert_eq!(header.payload_bytes, 0);
        let _ = receiver.handle(now, OTHER, &probe);
    }
    // The copy fails for now: the refusal counts for the question, too, and the bytes go again at once.
    let Some(Action::Send { packet: receipt @ Packet::Receipt(_), .. }) = receiver.poll(now) else {
        panic!("a receipt is due");
    };
    let _ = sender.handle(now, OTHER, &receipt);
    receiver.refused(placement, NackCode::PacketCorrupted);
    let Some(Action::Send { packet: nack @ Packet::Nack(_), .. }) = receiver.poll(now) else {
        panic!("a refusal is due");
    };
    let _ = sender.handle(now, OTHER, &nack);
    let again = blocks(&mut sender, now).pop().expect("it goes again");
    let Verdict::Place(placement) = arrive(&mut receiver, now, &again) else { panic!("a placement") };
    receiver.placed(placement);
    let Some(Action::Send { packet: ack @ Packet::Ack(_), .. }) = receiver.poll(now) else {
        panic!("an acknowledgement is due");
    };
    let _ = sender.handle(now, OTHER, &ack);
    assert!(matches!(sender.poll(now), Some(Action::Complete(completion)) if completion.status == Ok(())));
    assert!(sender.is_idle() && receiver.is_idle());
    assert_eq!(sender.counters().illegal_transitions, 0);
}

/// A question whether a block is placed may be lost, or its receiver may know nothing of it: then its bytes go
/// again.
#[test]
fn a_question_without_an_answer_is_a_loss() {
    let mut now = Time(SECOND);
    let mut engine = Engine::new(Config::default());
    engine.add_peer(now, OTHER);
    let Block { transaction, generation, attempt, .. } = send_one(&mut engine, now);
    let _ = engine.handle(now, OTHER, &Packet::Receipt(Receipt { transaction, generation, attempt }));
    for bytes_go in [false, true] {
        now = after_all_timers(&mut engine).expect("a timer");
        assert_eq!(!blocks(&mut engine, now).is_empty(), bytes_go);
    }
}

/// A block that its receiver never places is given up.
#[test]
fn a_block_that_is_never_placed_is_given_up() {
    let mut now = Time(SECOND);
    let mut engine = Engine::new(Config::default());
    engine.add_peer(now, OTHER);
    let block = send_one(&mut engine, now);
    let (transaction, generation) = (block.transaction, block.generation);
    let mut attempt = block.attempt;
    loop {
        let _ = engine.handle(now, OTHER, &Packet::Receipt(Receipt { transaction, generation, attempt }));
        match engine.poll(now) {
            Some(Action::Complete(completion)) => {
                assert_eq!(completion.status, Err(TransferError::Refused(NackCode::SlaveError.into())));
                break;
            }
            Some(Action::Send { packet: Packet::Data(header, _), .. }) if header.generation == generation => {
                attempt = header.attempt;
            }
            // The block is closed.
            Some(Action::Send { packet: Packet::Data(header, _), .. }) => {
                let DataHeader { transaction, generation, attempt, .. } = header;
                let ack = Ack { transaction, generation, attempt, bytes_only: false };
                let _ = engine.handle(now, OTHER, &Packet::Ack(ack));
            }
            None => {
                now = engine.deadline().expect("a timer");
                engine.expire(now);
            }
            Some(other) => panic!("unexpected: {other:?}"),
        }
        assert!(now < Time(60 * SECOND), "hangs");
    }
    assert!(engine.is_idle());
}
