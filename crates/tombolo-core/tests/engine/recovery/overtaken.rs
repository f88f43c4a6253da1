//! Blocks that are lost while later ones are answered.

use tombolo_core::rdma::{Action, Block, Config, Direction, Engine, Time, TransferError};
use tombolo_wire::{Attempt, NackCode, Packet, RequestId};

use super::by_hand::{SECOND, ack, engine, next_block, transfer};
use crate::bench::{BASE, DOMAIN, OTHER};

/// One block is lost each time, while others are answered: its transfer fails, after a bounded number of
/// transmissions, with an error that says so.
#[test]
fn a_block_that_is_always_overtaken_is_given_up() {
    for served in [false, true] {
        let mut engine = engine(Config::default());
        let mut now = Time(SECOND);
        if served {
            let request = tombolo_wire::ReadRequest {
                request: RequestId(0),
                watermark: RequestId(0),
                attempt: Attempt(0),
                domain: DOMAIN,
                size_bytes: 100,
                source_address: BASE,
                destination_address: BASE,
                notification: None,
                class: None,
            };
            let _ = engine.handle(now, OTHER, &Packet::ReadRequest(request));
        } else {
            engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
        }
        let unlucky = next_block(&mut engine, now).expect("a block");
        let is_unlucky = |block: &Block| {
            block.transaction == unlucky.transaction && block.generation == unlucky.generation
        };
        let mut transmissions = 1;
        let ended = 'ended: loop {
            // One is a probe.
            assert!(transmissions <= Config::default().max_attempts + 1, "for ever");
            assert!(now < Time(60 * SECOND), "hangs");
            let _ = engine.post(now, OTHER, transfer(Direction::Write, 100));
            let mut others = Vec::new();
            while let Some(action) = engine.poll(now) {
                match action {
                    Action::SendBlock(block) if is_unlucky(&block) => transmissions += 1,
                    Action::SendBlock(block) => others.push(block),
                    Action::Complete(completion) if completion.status.is_err() => {
                        break 'ended completion.status;
                    }
                    Action::Send { packet: Packet::ReadReject(reject), .. } => {
                        assert_eq!(reject.refusal.code, NackCode::NoContext);
                        break 'ended Err(TransferError::Undeliverable);
                    }
                    _ => {}
                }
            }
            now = now.after_ns(50_000);
            for block in others {
                let _ = engine.handle(now, OTHER, &ack(&block));
            }
            now = now.after_ns(150_000);
            engine.expire(now);
        };
        assert_eq!(ended, Err(TransferError::Undeliverable));
        assert_eq!(engine.counters().given_up, 1);
        assert!(transmissions > 8, "given up too early: {transmissions}");
    }
}

/// A block that is lost again and again waits for its timeout at last. One behind it that is lost, too, does
/// not: what overtakes it shows its loss as ever.
#[test]
fn a_block_overtaken_too_often_does_not_hide_the_loss_of_others() {
    let mut engine = engine(Config { bypass: false, ..Config::default() });
    let mut now = Time(SECOND);
    let post = |engine: &mut Engine, now| {
        engine.post(now, OTHER, transfer(Direction::Write, 100)).expect("room");
        next_block(engine, now).expect("a block")
    };
    let mut unlucky = None;
    for _ in 0..12 {
        let first = post(&mut engine, now);
        let unlucky = unlucky.get_or_insert(first).transaction;
        if first.transaction != unlucky {
            now = now.after_ns(50_000);
            let _ = engine.handle(now, OTHER, &ack(&first));
        }
        now = now.after_ns(200_000);
        engine.expire(now);
        while let Some(block) = next_block(&mut engine, now) {
            assert_eq!(block.transaction, unlucky);
        }
    }
    let before = engine.counters();
    assert_eq!((before.fast_retransmits, before.timeouts), (8, 0), "it waits for the timeout");
    let lost = post(&mut engine, now);
    let other = post(&mut engine, now);
    now = now.after_ns(50_000);
    let _ = engine.handle(now, OTHER, &ack(&other));
    let due = engine.deadline().expect("a timer");
    assert!(due <= now.after_ns(300_000), "its loss is seen in {} ns", due.since_ns(now));
    now = now.after_ns(300_000);
    engine.expire(now);
    assert_eq!(next_block(&mut engine, now).map(|block| block.transaction), Some(lost.transaction));
    assert_eq!(engine.counters().timeouts, 0);
}
