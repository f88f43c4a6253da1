//! Threads and processes that are stopped in the middle of a transfer.

use tombolo_core::rdma::{Action, Block, Config, Direction, Engine, Time, TransferError, Verdict};
use tombolo_wire::{NackCode, Packet, ReadReject};

use super::by_hand::{SECOND, ack, engine, nack, next_block, status, transfer};
use crate::after_all_timers;
use crate::bench::{Bench, OTHER, Wire};

/// Two blocks of one transfer to a peer that no packets go to, both handed out.
fn two_blocks_here(engine: &mut Engine) -> [Block; 2] {
    engine.add_loopback_peer(Time(0), OTHER, 16 * 1024);
    engine.post(Time(0), OTHER, transfer(Direction::Write, 32 * 1024)).expect("room");
    [(); 2].map(|()| next_block(engine, Time(0)).expect("a block"))
}

/// A thread that copies between two programs may be stopped for as long as it likes: its block is not handed
/// to another meanwhile, whatever else is answered, and delays nobody.
#[test]
fn what_is_carried_out_here_never_goes_again_unanswered() {
    let mut engine = Engine::new(Config::default());
    let [first, second] = two_blocks_here(&mut engine);
    // Long measured trips are what an overtaken block is told by.
    let mut now = Time(0);
    assert_eq!(engine.handle(now.after_ns(50_000), OTHER, &ack(&second)), Verdict::Taken);
    while let Some(due) = engine.deadline() {
        now = now.max(due);
        engine.expire(now);
        assert_eq!(next_block(&mut engine, now), None, "handed out twice");
    }
    for _ in 0..100 {
        now = now.after_ns(SECOND);
        engine.expire(now);
        engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
        let other = next_block(&mut engine, now).expect("others go on");
        assert_ne!(other.transaction, first.transaction);
        now = now.after_ns(SECOND / 1000);
        assert_eq!(engine.handle(now, OTHER, &ack(&other)), Verdict::Taken);
        engine.expire(now);
        assert_eq!(status(&mut engine, now), Some(Ok(())));
    }
    assert_eq!(engine.handle(now, OTHER, &ack(&first)), Verdict::Taken);
    assert_eq!(status(&mut engine, now), Some(Ok(())));
    assert!(engine.is_idle());
    let counters = engine.counters();
    let again = (counters.blocks_retransmitted, counters.timeouts, counters.fast_retransmits);
    assert_eq!((again, counters.illegal_transitions), ((0, 0, 0), 0));
}

/// A transfer fails with one block, while another thread still copies the other: that is told when it has
/// answered, in whatever way.
#[test]
fn a_transfer_that_fails_here_ends_when_no_block_of_it_is_carried_out() {
    for late in [false, true] {
        for answer in 0..3 {
            let mut engine = Engine::new(Config::default());
            let [first, second] = two_blocks_here(&mut engine);
            let now = Time(if late { SECOND } else { 1000 });
            engine.expire(now);
            let _ = engine.handle(now, OTHER, &nack(&first, NackCode::DecodeError));
            assert_eq!(status(&mut engine, now), None, "told while a copy may be made");
            // The slot of the block that is still carried out is not another's.
            engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
            let other = next_block(&mut engine, now).expect("others go on");
            assert_ne!(other.transaction, second.transaction);
            match answer {
                0 => drop(engine.handle(now, OTHER, &ack(&second))),
                1 => drop(engine.handle(now, OTHER, &nack(&second, NackCode::SlaveError))),
                _ => engine.source_refused(now, &second, NackCode::SlaveError),
            }
            let failed = Err(TransferError::Refused(NackCode::DecodeError.into()));
            assert_eq!(status(&mut engine, now), Some(failed));
            let _ = engine.handle(now, OTHER, &ack(&other));
            assert_eq!(status(&mut engine, now), Some(Ok(())));
            assert!(engine.is_idle());
            assert_eq!(engine.counters().illegal_transitions, 0);
        }
    }
    // Nothing is waited for of a peer that is removed.
    let mut engine = Engine::new(Config::default());
    let _ = two_blocks_here(&mut engine);
    engine.remove_peer(Time(1), OTHER);
    assert_eq!(status(&mut engine, Time(1)), Some(Err(TransferError::PeerLost)));
    assert!(engine.is_idle());
}

/// A process that is stopped finds, when it goes on, its timers due and its peer's answers unread. It does not
/// blame the peer for its own silence, whichever it looks at first.
#[test]
fn a_process_that_was_stopped_does_not_blame_its_peer() {
    for stopped_ns in [6 * SECOND, 3600 * SECOND] {
        let mut bench = Bench::new(Config::default(), 1, 1 << 20);
        bench.add_wire(Wire::new(10_000));
        for direction in [Direction::Write, Direction::Read] {
            bench.post(0, direction, 100_000, true, None).expect("memory").expect("room");
        }
        bench.drain();
        bench.skip_to(bench.now().after_ns(stopped_ns));
        for _ in 0..2 {
            bench.engines[0].expire(bench.now());
            bench.skip_to(bench.now().after_ns(1));
        }
        bench.settle(SECOND);
        assert!(bench.watched.iter().all(|watched| watched.status == Some(Ok(()))));
        bench.check_memory();
        // It is blamed for its own: cut off, it is given up as ever, also by one that is run seldom.
        for pause_ns in [0, 2 * SECOND] {
            bench.cut_wire(0);
            bench.cut_wire(1);
            bench.post(0, Direction::Write, 100, false, None).expect("memory").expect("room");
            let (start, number) = (bench.now(), bench.watched.len() - 1);
            while bench.watched[number].status.is_none() {
                assert!(bench.step());
                bench.skip_to(bench.now().after_ns(pause_ns));
            }
            assert_eq!(bench.watched[number].status, Some(Err(TransferError::PeerUnreachable)));
            let waited_ns = bench.now().since_ns(start);
            assert!((5 * SECOND..15 * SECOND).contains(&waited_ns), "{waited_ns}");
        }
    }
}

/// A transfer that the peer refused for now does not fail because its own process was stopped meanwhile.
#[test]
fn the_time_of_a_stop_does_not_count_as_being_refused() {
    for direction in [Direction::Write, Direction::Read] {
        let mut engine = engine(Config::default());
        let mut now = Time(0);
        engine.post(now, OTHER, transfer(direction, 100)).expect("room");
        for stopped in [false, true, false] {
            if stopped {
                now = now.after_ns(40 * SECOND);
            }
            let refusal = match engine.poll(now).expect("it goes") {
                Action::SendBlock(block) => nack(&block, NackCode::BufferFull),
                Action::Send { packet: Packet::ReadRequest(request), .. } => Packet::ReadReject(ReadReject {
                    request: request.request,
                    refusal: NackCode::BufferFull.into(),
                }),
                other => panic!("unexpected: {other:?}"),
            };
            let _ = engine.handle(now, OTHER, &refusal);
            assert_eq!(status(&mut engine, now), None, "ended after {now:?}");
            now = after_all_timers(&mut engine).expect("it goes again");
        }
    }
}
