//! The latest block is lost: nothing comes after it whose answer could show that.

use tombolo_core::rdma::{Action, Config, Direction, Engine, PathId, Retransmission, Time};
use tombolo_wire::Packet;

use super::by_hand::{SECOND, ack, engine, next_block, transfer};
use crate::bench::OTHER;

const TRIP_NS: u64 = 10_000;

fn config() -> Config {
    let retransmission =
        Retransmission::Measured { initial_ns: 20_000_000, min_ns: 6_000_000, max_ns: 1_000_000_000 };
    Config { retransmission, ..Config::default() }
}

/// Round trips are measured.
fn warm(engine: &mut Engine, now: &mut Time) {
    for _ in 0..50 {
        engine.post(*now, OTHER, transfer(Direction::Write, 100)).expect("room");
        let block = next_block(engine, *now).expect("a block");
        *now = now.after_ns(TRIP_NS);
        let _ = engine.handle(*now, OTHER, &ack(&block));
        while engine.poll(*now).is_some() {}
    }
}

/// When the next thing is sent, and what.
fn next_sent(engine: &mut Engine, now: &mut Time) -> Action {
    loop {
        if let Some(action) = engine.poll(*now) {
            return action;
        }
        *now = (*now).max(engine.deadline().expect("a timer"));
        engine.expire(*now);
    }
}

#[test]
fn a_lone_block_that_is_lost_goes_again_after_some_round_trips_once() {
    let mut engine = engine(config());
    let mut now = Time(SECOND);
    warm(&mut engine, &mut now);
    engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
    let first = next_block(&mut engine, now).expect("a block");
    let sent_at = now;
    let Action::SendBlock(probe) = next_sent(&mut engine, &mut now) else { panic!("a block") };
    assert_eq!((probe.transaction, probe.generation), (first.transaction, first.generation));
    let after_ns = now.since_ns(sent_at);
    assert!((2 * TRIP_NS..=TRIP_NS * 3 / 2 + config().reorder_ns).contains(&after_ns), "after {after_ns} ns");
    // That is lost, too: the next one comes after a whole timeout.
    let probed_at = now;
    let Action::SendBlock(again) = next_sent(&mut engine, &mut now) else { panic!("a block") };
    assert_eq!(again.transaction, first.transaction);
    assert!(now.since_ns(probed_at) >= 6_000_000, "after {} ns", now.since_ns(probed_at));
    let counters = engine.counters();
    assert_eq!((counters.tail_probes, counters.timeouts, counters.fast_retransmits), (1, 1, 0));
    // When something is answered, the latest is asked for again.
    now = now.after_ns(TRIP_NS);
    let _ = engine.handle(now, OTHER, &ack(&again));
    while engine.poll(now).is_some() {}
    engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
    let _ = next_block(&mut engine, now).expect("a block");
    let sent_at = now;
    let _ = next_sent(&mut engine, &mut now);
    assert!(now.since_ns(sent_at) < 3_000_000);
    assert_eq!(engine.counters().tail_probes, 2);
}

/// A row of blocks whose last ones are lost: the last one's answer shows the loss of those before it.
#[test]
fn the_end_of_a_row_that_is_lost_comes_again_in_some_round_trips() {
    let mut engine = engine(Config { bypass: false, ..config() });
    let mut now = Time(SECOND);
    warm(&mut engine, &mut now);
    let sent_at = now;
    let row: Vec<_> = (0..5)
        .map(|_| {
            engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
            next_block(&mut engine, now).expect("a block")
        })
        .collect();
    let Action::SendBlock(probe) = next_sent(&mut engine, &mut now) else { panic!("a block") };
    assert_eq!(probe.transaction, row[4].transaction);
    now = now.after_ns(TRIP_NS);
    let _ = engine.handle(now, OTHER, &ack(&probe));
    let mut again = Vec::new();
    while again.len() < 4 {
        if let Action::SendBlock(block) = next_sent(&mut engine, &mut now) {
            again.push(block.transaction);
        }
    }
    assert_eq!(again, row[..4].iter().map(|block| block.transaction).collect::<Vec<_>>());
    assert!(now.since_ns(sent_at) < 1_000_000);
    assert_eq!(engine.counters().timeouts, 0);
}

#[test]
fn a_read_request_that_is_lost_goes_again_after_some_round_trips() {
    let mut engine = engine(config());
    let mut now = Time(SECOND);
    let ask = |engine: &mut Engine, now: Time| {
        engine.post(now, OTHER, transfer(Direction::Read, 100)).expect("room");
        match engine.poll(now) {
            Some(Action::Send { packet: Packet::ReadRequest(request), .. }) => request,
            other => panic!("{other:?}"),
        }
    };
    for _ in 0..20 {
        let request = ask(&mut engine, now);
        now = now.after_ns(TRIP_NS);
        let answer = Packet::ReadAccept(tombolo_wire::ReadAccept { request: request.request });
        let _ = engine.handle(now, OTHER, &answer);
        while engine.poll(now).is_some() {}
    }
    let before = engine.counters().tail_probes;
    let lost = ask(&mut engine, now);
    let sent_at = now;
    match next_sent(&mut engine, &mut now) {
        Action::Send { packet: Packet::ReadRequest(again), .. } => {
            assert_eq!(again.request, lost.request);
            assert_ne!(again.attempt, lost.attempt);
        }
        other => panic!("{other:?}"),
    }
    assert!(now.since_ns(sent_at) <= 3 * TRIP_NS + config().reorder_ns, "after {} ns", now.since_ns(sent_at));
    assert_eq!(engine.counters().tail_probes, before + 1);
}

/// Another read's answer comes all the while.
#[test]
fn a_lost_request_is_not_hidden_by_a_read_in_progress() {
    let mut engine = engine(config());
    let mut now = Time(SECOND);
    let ask = |engine: &mut Engine, now: Time| {
        engine.post(now, OTHER, transfer(Direction::Read, 1 << 20)).expect("room");
        match engine.poll(now) {
            Some(Action::Send { packet: Packet::ReadRequest(request), .. }) => request,
            other => panic!("{other:?}"),
        }
    };
    let heard = ask(&mut engine, now);
    let accept = Packet::ReadAccept(tombolo_wire::ReadAccept { request: heard.request });
    now = now.after_ns(TRIP_NS);
    let _ = engine.handle(now, OTHER, &accept);
    let lost = ask(&mut engine, now);
    let sent_at = now;
    let again = loop {
        now = now.after_ns(TRIP_NS);
        let _ = engine.handle(now, OTHER, &accept);
        engine.expire(now);
        match engine.poll(now) {
            Some(Action::Send { packet: Packet::ReadRequest(again), .. }) => break again,
            None => assert!(now.since_ns(sent_at) < 1_000_000, "it waits for a timeout"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(again.request, lost.request);
}

/// The number of a path is given again, to a link of another kind.
#[test]
fn a_path_is_as_reliable_as_its_link() {
    let mut engine = engine(config());
    engine.set_reliable(OTHER, PathId(0), true);
    engine.set_reliable(OTHER, PathId(0), false);
    let mut now = Time(SECOND);
    warm(&mut engine, &mut now);
    engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
    let _ = next_block(&mut engine, now).expect("a block");
    let sent_at = now;
    let _ = next_sent(&mut engine, &mut now);
    assert!(now.since_ns(sent_at) < 1_000_000, "after {} ns", now.since_ns(sent_at));
}

/// Where nothing is lost, or the timeout is the documents', nothing goes again for that.
#[test]
fn nothing_goes_again_where_nothing_is_lost() {
    let fixed =
        Config { retransmission: Retransmission::Fixed { timeout_ns: 20_000_000 }, ..Config::default() };
    for (config, is_reliable) in
        [(config(), true), (fixed, false), (Config { tail_probe: false, ..config() }, false)]
    {
        let mut engine = engine(config);
        if is_reliable {
            engine.set_reliable(OTHER, PathId(0), true);
        }
        let mut now = Time(SECOND);
        warm(&mut engine, &mut now);
        engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
        let _ = next_block(&mut engine, now).expect("a block");
        let sent_at = now;
        let _ = next_sent(&mut engine, &mut now);
        assert!(now.since_ns(sent_at) >= 6_000_000, "after {} ns", now.since_ns(sent_at));
        assert_eq!(engine.counters().tail_probes, 0);
    }
}
