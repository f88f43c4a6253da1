//! Peers that are lost, silent or busy, that restart, or get the number of an earlier one.

use tombolo_core::rdma::{
    Action, Config, Direction, DropReason, Engine, PathId, PeerId, PostError, Time, TransferError, Verdict,
};
use tombolo_wire::{
    Asker, Attempt, DataHeader, Generation, NackCode, NotificationMark, Packet, Payload, TransactionId,
};

use super::by_hand::{SECOND, ack, data, engine, next_block, receive, status, transfer};
use crate::bench::{BASE, DOMAIN, OTHER};

/// A peer is lost and another gets its place in the tables: nothing that was meant for the first reaches
/// the second, whoever still has its number.
#[test]
fn a_peer_that_comes_to_anothers_place_is_not_taken_for_it() {
    let (now, first, second) = (Time(0), PeerId::at(3, 0), PeerId::at(3, 1));
    let mut engine = Engine::new(Config::default());
    engine.add_peer(now, first);
    engine.post(now, first, transfer(Direction::Write, 4096)).unwrap();
    let sent = next_block(&mut engine, now).unwrap();
    assert_eq!(sent.peer, first);
    engine.peer_lost(now, first);
    assert_eq!(status(&mut engine, now), Some(Err(TransferError::PeerLost)));

    engine.add_peer(now, second);
    let posted = engine.post(now, first, transfer(Direction::Write, 4096));
    assert_eq!(posted, Err(PostError::UnknownPeer(first)));
    assert_eq!(
        engine.handle(now, first, &ack(&sent)),
        Verdict::Dropped(DropReason::UnknownPeer),
        "a packet of the first"
    );
    assert!(!engine.add_path(now, first, PathId(1)));
    assert_eq!(engine.window_bytes(first), None);
    // Who learns late of the first's loss does not end the second.
    engine.peer_lost(now, first);
    engine.post(now, second, transfer(Direction::Write, 4096)).unwrap();
    let block = next_block(&mut engine, now).unwrap();
    assert_eq!(block.peer, second);
    // An answer to the first's block ends nothing, and one to its own does.
    engine.source_refused(now, &sent, NackCode::DecodeError);
    assert_eq!(status(&mut engine, now), None);
    assert_eq!(engine.handle(now, second, &ack(&block)), Verdict::Taken);
    assert_eq!(status(&mut engine, now), Some(Ok(())));
    // What the second sends is answered to the second.
    let header = DataHeader {
        domain: DOMAIN,
        transaction: TransactionId(0),
        generation: Generation(1),
        attempt: Attempt(0),
        in_reply_to: None,
        asker: Asker::SENDER,
        notification: NotificationMark::None,
        block_address: BASE,
        block_bytes: 256,
        offset_bytes: 0,
        payload_bytes: 256,
    };
    let Verdict::Place(placement) =
        engine.handle(now, second, &Packet::Data(header, Payload::Intact(&[7; 256])))
    else {
        panic!("refused")
    };
    engine.placed(placement);
    let answered = std::iter::from_fn(|| engine.poll(now)).find_map(|action| match action {
        Action::Send { peer, .. } => Some(peer),
        _ => None,
    });
    assert_eq!(answered, Some(second));
}

#[test]
fn a_silent_peer_is_given_up() {
    for direction in [Direction::Write, Direction::Read] {
        let mut engine = engine(Config::default());
        engine.post(Time(0), OTHER, transfer(direction, 100_000)).expect("room");
        let mut now = Time(0);
        let ended = loop {
            if let Some(status) = status(&mut engine, now) {
                break status;
            }
            now = engine.deadline().expect("never without a timer");
            assert!(now < Time(20 * SECOND), "hangs");
            engine.expire(now);
        };
        assert_eq!(ended, Err(TransferError::PeerUnreachable));
        assert!(engine.is_idle());
        assert!(now >= Time(5 * SECOND));
    }
}

#[test]
fn a_lost_peer_ends_everything_at_once() {
    let mut engine = engine(Config::default());
    for size in [0, 100, 100_000, 10_000_000] {
        for direction in [Direction::Write, Direction::Read] {
            engine.post(Time(0), OTHER, transfer(direction, size)).expect("room");
        }
    }
    while next_block(&mut engine, Time(0)).is_some() {}
    engine.peer_lost(Time(1), OTHER);
    for _ in 0..8 {
        assert_eq!(status(&mut engine, Time(1)), Some(Err(TransferError::PeerLost)));
    }
    assert!(engine.is_idle() && engine.deadline().is_none());
    assert!(engine.post(Time(1), OTHER, transfer(Direction::Read, 1)).is_err());
    assert_eq!(receive(&mut engine, data(0, 1, None, 0)), Verdict::Dropped(DropReason::UnknownPeer));
    // And it may come back, from the beginning.
    engine.add_peer(Time(2), OTHER);
    engine.post(Time(2), OTHER, transfer(Direction::Write, 100)).expect("room");
    let block = next_block(&mut engine, Time(2)).expect("a block");
    assert_eq!(block.generation, Generation(1));
}

#[test]
fn a_busy_target_is_not_a_dead_one() {
    // The target never sends a block (its link is full), but it answers repeated
    // requests: the requester waits longer than it would for a silent peer.
    let [mut requester, mut target] = [engine(Config::default()), engine(Config::default())];
    requester.post(Time(0), OTHER, transfer(Direction::Read, 100)).expect("room");
    let mut now = Time(0);
    while now < Time(30 * SECOND) {
        while let Some(action) = requester.poll(now) {
            let Action::Send { packet, .. } = action else { panic!("gave up: {action:?}") };
            let _ = target.handle(now, OTHER, &packet);
        }
        if let Some(Action::Send { packet, .. }) = target.poll(now) {
            let _ = requester.handle(now, OTHER, &packet);
        }
        now = requester.deadline().expect("a timer");
        requester.expire(now);
    }
    assert!(target.counters().read_duplicates > 0);
}

/// A peer that restarts under its number: what was open with its earlier life fails, on both sides, and
/// nothing of that reaches what begins with the new one.
#[test]
fn a_peer_that_restarts_loses_only_what_was_open_before() {
    // As many slots as blocks: those of the earlier life are used again at once.
    let mut target = engine(Config { transactions: 2, ..Config::default() });
    let mut requester = engine(Config::default());
    let ask = |requester: &mut Engine, now| {
        requester.post(now, OTHER, transfer(Direction::Read, 100)).expect("room");
        let Some(Action::Send { packet, .. }) = requester.poll(now) else { panic!("the request is due") };
        packet
    };
    let request = ask(&mut requester, Time(0));
    let _ = target.handle(Time(0), OTHER, &request);
    let answer = next_block(&mut target, Time(0)).expect("the read is served");
    target.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let write = next_block(&mut target, Time(0)).expect("a block");
    // The requester is a new program, the target hears of it before it hears of the loss.
    requester = engine(Config::default());
    target.add_peer(Time(1), OTHER);
    // Its first read has the id that the one of its earlier life had.
    let request = ask(&mut requester, Time(2));
    let mut lost = 0;
    while let Some(action) = target.poll(Time(1)) {
        match action {
            Action::Complete(completion) => {
                assert_eq!(completion.status, Err(TransferError::PeerLost));
                lost += 1;
            }
            other => panic!("told the new life of the earlier one: {other:?}"),
        }
    }
    assert_eq!(lost, 1);
    assert!(target.is_idle());
    let _ = target.handle(Time(2), OTHER, &request);
    target.post(Time(2), OTHER, transfer(Direction::Write, 100)).expect("room");
    // What the caller tells of the earlier life, it tells too late.
    for block in [&answer, &write] {
        assert!(!target.is_open(block));
        target.source_refused(Time(2), block, NackCode::DecodeError);
        target.source_ready(block);
    }
    let mut blocks = 0;
    while let Some(action) = target.poll(Time(2)) {
        match action {
            Action::SendBlock(block) => {
                blocks += 1;
                assert!(target.is_open(&block));
                for header in block.packets(4096) {
                    let packet = Packet::Data(header, Payload::Intact(&[0; 100]));
                    if let Verdict::Place(placement) = requester.handle(Time(2), OTHER, &packet) {
                        requester.placed(placement);
                    }
                }
                for old in [&answer, &write] {
                    target.source_refused(Time(2), old, NackCode::DecodeError);
                }
            }
            Action::Send { packet, .. } => {
                assert_eq!(requester.handle(Time(2), OTHER, &packet), Verdict::Taken, "{packet:?}");
            }
            Action::Complete(completion) => panic!("{completion:?}"),
            Action::WriteNotification(_) => panic!("none was asked for"),
        }
    }
    assert_eq!(blocks, 2);
    while let Some(action) = requester.poll(Time(3)) {
        match action {
            Action::Complete(completion) => assert_eq!(completion.status, Ok(())),
            Action::Send { packet, .. } => {
                let _ = target.handle(Time(3), OTHER, &packet);
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(status(&mut target, Time(3)), Some(Ok(())));
    assert!(target.is_idle() && requester.is_idle());
}
