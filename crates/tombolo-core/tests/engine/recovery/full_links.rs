//! Links that take nothing for a while, or for ever.

use tombolo_core::rdma::{Action, Config, Direction, PathId, PeerId, Time, TransferError, Verdict};
use tombolo_wire::Generation;

use super::by_hand::{SECOND, ack, engine, next_block, status, transfer};
use crate::bench::OTHER;

/// A link that takes nothing stops what goes by it, and nothing else; nothing is lost, and no timer runs for
/// what was not sent.
#[test]
fn a_full_link_stops_its_own_peer_alone() {
    let (now, other) = (Time(0), PeerId(7));
    let mut engine = engine(Config::default());
    engine.add_peer(now, other);
    for peer in [OTHER, other] {
        engine.post(now, peer, transfer(Direction::Write, 64 * 1024)).unwrap();
    }
    let mut refused = None;
    let mut others = 0;
    while let Some(block) = next_block(&mut engine, now) {
        if block.peer == OTHER {
            assert_eq!(refused, None, "handed out for a link that is full");
            engine.link_full(now, &block);
            refused = Some(block);
        } else {
            others += 1;
            assert_eq!(engine.handle(now, other, &ack(&block)), Verdict::Taken);
        }
    }
    assert_eq!(others, 4, "the other's go on");
    assert_eq!(engine.counters().transfers_done, 1);
    let later = Time(60 * SECOND);
    engine.expire(later);
    assert_eq!(next_block(&mut engine, later), None);
    assert_eq!(status(&mut engine, later), None, "a minute without room is no failure of the peer");

    engine.link_has_room(OTHER, PathId(0));
    let mut blocks = Vec::new();
    while let Some(block) = next_block(&mut engine, later) {
        assert_eq!(engine.handle(later, OTHER, &ack(&block)), Verdict::Taken);
        blocks.push(block);
    }
    let again: Vec<_> = blocks.iter().filter(|block| Some(**block) == refused).collect();
    assert_eq!((again.len(), blocks.len()), (1, 4), "the refused one comes once more, as it was");
    let counters = engine.counters();
    assert_eq!(counters.transfers_done, 2);
    assert_eq!((counters.blocks_retransmitted, counters.timeouts, counters.illegal_transitions), (0, 0, 0));
    assert!(engine.is_idle());
}

/// What goes again and finds its link full is counted once, when it is sent. That may be long after, while
/// its peer is heard of.
#[test]
fn a_repetition_that_does_not_fit_is_the_same_repetition_later() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Write, 4096)).unwrap();
    let first = next_block(&mut engine, Time(0)).unwrap();
    let mut now = engine.deadline().unwrap();
    engine.expire(now);
    let second = next_block(&mut engine, now).unwrap();
    assert_eq!(second.attempt, first.attempt.next());
    let mut another = second;
    another.generation = Generation(99);
    for _ in 0..600 {
        engine.link_full(now, &second);
        now = now.after_ns(SECOND / 100);
        let _ = engine.handle(now, OTHER, &ack(&another));
        engine.expire(now);
        assert_eq!(next_block(&mut engine, now), None);
        engine.link_has_room(OTHER, PathId(0));
        assert_eq!(next_block(&mut engine, now), Some(second));
    }
    assert_eq!(engine.handle(now, OTHER, &ack(&second)), Verdict::Taken);
    assert_eq!(status(&mut engine, now), Some(Ok(())));
    let counters = engine.counters();
    assert_eq!((counters.blocks_retransmitted, counters.timeouts, counters.illegal_transitions), (1, 1, 0));
    assert!(engine.is_idle());
}

/// A peer that is stopped answers nothing, and after some blocks its links take nothing, either. All that is
/// open with it ends when it is given up, what waits included, and what is open with others goes on.
#[test]
fn a_stopped_peer_with_a_full_link_is_given_up() {
    let config = Config { congestion: None, bypass: false, ..Config::default() };
    // Whether the link is looked at in between, and how many blocks it takes.
    for (retries, takes) in [(false, 0), (true, 0), (false, 5), (true, 5), (false, u32::MAX)] {
        let (mut now, other) = (Time(0), PeerId(7));
        let mut engine = engine(Config { transactions: 16, ..config });
        engine.add_peer(now, other);
        for number in 0..40 {
            let direction = if number % 10 == 9 && takes > 0 { Direction::Read } else { Direction::Write };
            engine.post(now, OTHER, transfer(direction, 20_000)).expect("room");
        }
        let (mut taken, mut ended) = (0, 0);
        while ended < 40 {
            assert!(now < Time(6 * SECOND), "{ended} ended, {taken} taken");
            while let Some(action) = engine.poll(now) {
                match action {
                    Action::SendBlock(block) if block.peer == other => {
                        let _ = engine.handle(now, other, &ack(&block));
                    }
                    Action::SendBlock(_) if taken < takes => taken += 1,
                    Action::SendBlock(block) => engine.link_full(now, &block),
                    Action::Complete(completion) if completion.peer == other => {
                        assert_eq!(completion.status, Ok(()));
                    }
                    Action::Complete(completion) => {
                        assert_eq!(completion.status, Err(TransferError::PeerUnreachable));
                        assert!(now >= Time(5 * SECOND), "after {now:?}");
                        ended += 1;
                    }
                    Action::Send { .. } => {}
                    Action::WriteNotification(_) => panic!("none was asked for"),
                }
            }
            let Some(due) = engine.deadline() else {
                assert_eq!(ended, 40, "without a timer");
                break;
            };
            now = if retries { now.after_ns(SECOND / 50) } else { due };
            if retries {
                engine.link_has_room(OTHER, PathId(0));
                engine.post(now, other, transfer(Direction::Write, 100)).expect("room");
            }
            engine.expire(now);
        }
        while let Some(action) = engine.poll(now) {
            if let Action::SendBlock(block) = action {
                let _ = engine.handle(now, other, &ack(&block));
            }
        }
        assert!(engine.is_idle());
        assert_eq!(engine.counters().illegal_transitions, 0);
        // It goes on.
        engine.link_has_room(OTHER, PathId(0));
        engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
        let block = next_block(&mut engine, now).expect("a block");
        let _ = engine.handle(now, OTHER, &ack(&block));
        assert_eq!(status(&mut engine, now), Some(Ok(())));
    }
}

/// What waits in a queue while its peer's link is full and nothing of it goes again has a timer, too. A peer
/// that is heard of is waited for.
#[test]
fn what_waits_behind_a_full_link_is_given_up_only_if_nothing_is_heard() {
    for heard in [false, true] {
        let mut engine = engine(Config { bypass: false, ..Config::default() });
        engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
        let block = next_block(&mut engine, Time(0)).expect("a block");
        // It arrived after all, and then a thread that had it, too, finds the link full.
        let _ = engine.handle(Time(0), OTHER, &ack(&block));
        engine.link_full(Time(0), &block);
        engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
        assert_eq!(status(&mut engine, Time(0)), Some(Ok(())));
        let mut now = Time(0);
        let mut ended = None;
        while now < Time(60 * SECOND) && ended.is_none() {
            now = engine.deadline().unwrap_or(now.after_ns(SECOND));
            engine.expire(now);
            ended = status(&mut engine, now);
            if heard {
                let _ = engine.handle(now, OTHER, &ack(&block));
                engine.link_full(now, &block);
            }
        }
        assert_eq!(ended, (!heard).then_some(Err(TransferError::PeerUnreachable)));
    }
}

/// A full link that is reported with a block of a peer's earlier session does not mark the new session's link.
#[test]
fn a_block_of_an_earlier_life_does_not_fill_a_link() {
    let now = Time(0);
    let mut engine = engine(Config { transactions: 2, bypass: false, ..Config::default() });
    engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
    let old = next_block(&mut engine, now).expect("a block");
    engine.add_peer(now, OTHER);
    assert_eq!(status(&mut engine, now), Some(Err(TransferError::PeerLost)));
    engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
    let block = next_block(&mut engine, now).expect("a block");
    let _ = engine.handle(now, OTHER, &ack(&block));
    assert_eq!(status(&mut engine, now), Some(Ok(())));
    engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
    let block = next_block(&mut engine, now).expect("a block");
    // In the same slot and of the same generation.
    assert_eq!((old.transaction, old.generation), (block.transaction, block.generation));
    engine.link_full(now, &old);
    engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
    assert!(next_block(&mut engine, now).is_some_and(|next| next.transaction != block.transaction));
    let _ = engine.handle(now, OTHER, &ack(&block));
    assert_eq!(status(&mut engine, now), Some(Ok(())));
}
