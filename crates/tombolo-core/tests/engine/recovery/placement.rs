//! Which blocks of a peer are placed, acknowledged or dropped, and when notifications are written.

use tombolo_core::rdma::{Action, Config, Direction, DropReason, Engine, Time, Transfer, Verdict};
use tombolo_wire::{
    Asker, Attempt, DataHeader, EarlierBlocks, Generation, NackCode, Notification, NotificationMark,
    NotifyHeader, Packet, Refusal, TransactionId,
};

use super::by_hand::{ack, data, engine, next_block, place, receive, status, transfer};
use crate::bench::{BASE, OTHER};

#[test]
fn a_write_back_is_admitted_for_an_open_read_and_its_range_only() {
    let mut engine = engine(Config::default());
    let nacked = |engine: &mut Engine| {
        std::iter::from_fn(|| engine.poll(Time(0))).find_map(|action| match action {
            Action::Send { packet: Packet::Nack(nack), .. } => Some(nack.refusal.code),
            _ => None,
        })
    };
    let refused = Verdict::Dropped(DropReason::Unasked);
    assert_eq!(receive(&mut engine, data(0, 1, Some(0), 2 * BASE)), refused);
    assert_eq!(nacked(&mut engine), Some(NackCode::NoContext));
    engine.post(Time(0), OTHER, transfer(Direction::Read, 8)).expect("room");
    while engine.poll(Time(0)).is_some() {}
    for outside in [0, 2 * BASE - 1, 2 * BASE + 1, u64::MAX - 8] {
        assert_eq!(receive(&mut engine, data(0, 1, Some(0), outside)), refused);
        assert_eq!(nacked(&mut engine), Some(NackCode::DomainMismatch));
    }
    let mut foreign = data(0, 1, Some(0), 2 * BASE);
    foreign.domain.0 += 1;
    assert_eq!(receive(&mut engine, foreign), refused);
    let placement = place(&mut engine, data(0, 1, Some(0), 2 * BASE));
    assert!(placement.read.is_some());
    engine.placed(placement);
}

#[test]
fn a_repeat_of_a_finished_block_is_acknowledged_and_not_placed() {
    let mut engine = engine(Config::default());
    let header = data(3, 1, None, BASE);
    let placement = place(&mut engine, header);
    // While it is being copied, a repeat is dropped and a newer block waits.
    assert_eq!(receive(&mut engine, header), Verdict::Dropped(DropReason::Duplicate));
    let newer = data(3, 2, None, BASE);
    assert_eq!(receive(&mut engine, newer), Verdict::Dropped(DropReason::Busy));
    let Some(Action::Send { packet: Packet::Nack(busy), .. }) = engine.poll(Time(0)) else {
        panic!("its sender has to know that it was not lost");
    };
    assert_eq!((busy.generation, busy.refusal.code), (newer.generation, NackCode::BufferFull));
    assert_eq!(engine.poll(Time(0)), None);
    engine.placed(placement);
    let acked = |engine: &mut Engine| match engine.poll(Time(0)) {
        Some(Action::Send { packet: Packet::Ack(ack), .. }) => Some((ack.generation.0, ack.attempt.0)),
        _ => None,
    };
    assert_eq!(acked(&mut engine), Some((1, 0)));
    let again = DataHeader { attempt: Attempt(4), ..header };
    assert_eq!(receive(&mut engine, again), Verdict::Dropped(DropReason::Duplicate));
    assert_eq!(acked(&mut engine), Some((1, 4)));
    let placement = place(&mut engine, newer);
    engine.placed(placement);
    assert_eq!(acked(&mut engine), Some((2, 0)));
    assert_eq!(receive(&mut engine, header), Verdict::Dropped(DropReason::Stale));
    assert_eq!(engine.poll(Time(0)), None);
}

#[test]
fn absent_pages_are_told_once_for_each_time_that_a_block_is_sent() {
    let mut engine = engine(Config::default());
    let part = |number: u32, generation, attempt| DataHeader {
        block_bytes: 1024,
        offset_bytes: number * 256,
        payload_bytes: 256,
        attempt: Attempt(attempt),
        ..data(3, generation, None, BASE)
    };
    let absent = Refusal { code: NackCode::SlaveError, address: Some(BASE), missing: 0b11 };
    // The last is another block in the same place.
    for (generation, attempt) in [(1, 0), (1, 1), (1, 2), (2, 2)] {
        let parts: Vec<_> =
            (0..4).map(|number| place(&mut engine, part(number, generation, attempt))).collect();
        let mut told = Vec::new();
        for placement in &parts {
            engine.refused(*placement, absent);
            while let Some(action) = engine.poll(Time(0)) {
                told.push(action);
            }
        }
        let [Action::Send { packet: Packet::Nack(nack), .. }] = told[..] else { panic!("{told:?}") };
        assert_eq!((nack.attempt, nack.refusal), (Attempt(attempt), absent));
        // It is there, which the next refusal does not hide.
        engine.page_ready(&parts[0]);
        let resumed = engine.poll(Time(0));
        assert!(matches!(resumed, Some(Action::Send { packet: Packet::Resume(_), .. })), "{resumed:?}");
    }
    assert_eq!(engine.counters().nacks_spared, 12);
    // A link that was full: what its sender did not hear because it was not waiting, it is told again.
    for _ in 0..2 {
        let placement = place(&mut engine, part(1, 3, 0));
        engine.refused(placement, absent);
        let told = engine.poll(Time(0));
        assert!(matches!(told, Some(Action::Send { packet: Packet::Nack(_), .. })), "{told:?}");
    }
}

/// Somebody may be copying still what was given up: so nothing of the block is begun again, and it is not told as received
/// though another copy of the same bytes is whole.
#[test]
fn what_was_refused_for_good_stays_refused() {
    let mut engine = engine(Config::default());
    let part = |offset_bytes, payload_bytes, attempt| DataHeader {
        block_bytes: 1024,
        offset_bytes,
        payload_bytes,
        attempt: Attempt(attempt),
        ..data(3, 1, None, BASE)
    };
    let refused = |engine: &mut Engine, attempt| match engine.poll(Time(0)) {
        Some(Action::Send { packet: Packet::Nack(nack), .. }) => {
            assert_eq!((nack.refusal.code, nack.attempt), (NackCode::DecodeError, Attempt(attempt)));
        }
        other => panic!("not refused: {other:?}"),
    };
    // Of the same bytes, some are copied twice, since they were sent in other parts.
    let given_up = place(&mut engine, part(256, 256, 0));
    let whole = place(&mut engine, part(0, 1024, 1));
    engine.refused(given_up, NackCode::DecodeError);
    assert_eq!(engine.poll(Time(0)), None);
    engine.placed(whole);
    refused(&mut engine, 1);
    // Its sender has not heard it.
    assert_eq!(receive(&mut engine, part(0, 512, 3)), Verdict::Dropped(DropReason::Duplicate));
    refused(&mut engine, 3);
    assert!(engine.is_idle());
    // The next block in its slot is another.
    let placement = place(&mut engine, data(3, 2, None, BASE));
    engine.placed(placement);
    assert!(matches!(engine.poll(Time(0)), Some(Action::Send { packet: Packet::Ack(_), .. })));
}

/// A program that is stopped holds a part of its own read for as long as it likes. Others use that part's slot.
#[test]
fn an_answer_that_is_not_taken_leaves_its_slot_to_others() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Read, 8)).expect("room");
    while engine.poll(Time(0)).is_some() {}
    let held = place(&mut engine, data(0, 1, Some(0), 2 * BASE));
    assert!(engine.is_held(&held));
    // The block of a write in the same slot; who sends it has given up the read's.
    let others = place(&mut engine, data(0, 2, None, BASE));
    assert!(!engine.is_held(&held));
    engine.placed(held);
    assert!(engine.is_held(&others));
    engine.placed(others);
    let told: Vec<_> = std::iter::from_fn(|| engine.poll(Time(0))).collect();
    let [Action::Send { packet: Packet::Ack(ack), .. }] = told[..] else { panic!("{told:?}") };
    assert_eq!(ack.generation, Generation(2));
}

#[test]
fn generations_wrap() {
    let mut engine = engine(Config::default());
    for generation in [u32::MAX - 1, u32::MAX, 0, 1] {
        let placement = place(&mut engine, data(3, generation, None, BASE));
        engine.placed(placement);
    }
    let old = data(3, u32::MAX, None, BASE);
    assert_eq!(receive(&mut engine, old), Verdict::Dropped(DropReason::Stale));
}

#[test]
fn what_contradicts_its_block_is_dropped() {
    let mut engine = engine(Config::default());
    let placement = place(&mut engine, data(3, 1, None, BASE));
    let moved = data(3, 1, None, BASE + 8);
    assert_eq!(receive(&mut engine, moved), Verdict::Dropped(DropReason::Bad));
    let beyond = data(1024, 1, None, BASE);
    assert_eq!(receive(&mut engine, beyond), Verdict::Dropped(DropReason::Bad));
    engine.placed(placement);
}

/// The last block of a transfer, and the notification behind it, to be written after the block before.
fn last_and_notification() -> (DataHeader, Packet<'static>) {
    let last = DataHeader { notification: NotificationMark::Elsewhere, ..data(8, 1, None, BASE + 0x1000) };
    let mut earlier = EarlierBlocks::default();
    assert!(earlier.push(TransactionId(7), Generation(5)));
    let notify = NotifyHeader {
        domain: last.domain,
        transaction: last.transaction,
        generation: last.generation,
        attempt: last.attempt,
        block_address: last.block_address,
        block_bytes: last.block_bytes,
        in_reply_to: None,
        asker: Asker::SENDER,
        notification: Notification { address: BASE, first: 1, last: 2 },
    };
    (last, Packet::NotifyAfter(notify, earlier))
}

/// What an engine does next, shortly.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Ack { slot: u16, bytes_only: bool },
    Words,
}

fn next_of(engine: &mut Engine) -> Option<Next> {
    match engine.poll(Time(0))? {
        Action::Send { packet: Packet::Ack(ack), .. } => {
            Some(Next::Ack { slot: ack.transaction.0, bytes_only: ack.bytes_only })
        }
        Action::WriteNotification(write) => {
            engine.notified(write);
            Some(Next::Words)
        }
        other => panic!("unexpected: {other:?}"),
    }
}

#[test]
fn a_notification_is_written_after_the_blocks_it_names() {
    let (last, notification) = last_and_notification();
    let before = data(7, 5, None, BASE + 0x800);
    let receive = |engine: &mut Engine, header| {
        let placement = place(engine, header);
        engine.placed(placement);
    };
    let all = |engine: &mut Engine| std::iter::from_fn(|| next_of(engine)).collect::<Vec<_>>();
    let over = |slot| Next::Ack { slot, bytes_only: false };
    let unfinished = || Next::Ack { slot: 8, bytes_only: true };

    // In order, and the notification before the block it belongs to: written at once.
    for notification_first in [false, true] {
        let mut engine = engine(Config::default());
        receive(&mut engine, before);
        if notification_first {
            let _ = engine.handle(Time(0), OTHER, &notification);
        }
        receive(&mut engine, last);
        if !notification_first {
            let _ = engine.handle(Time(0), OTHER, &notification);
        }
        assert_eq!(all(&mut engine), [over(7), Next::Words, over(8)]);
        // Said again, it is not written again.
        let _ = engine.handle(Time(0), OTHER, &notification);
        assert_eq!(all(&mut engine), [over(8)]);
    }

    // The block before is missing: its bytes come first, however often the notification does.
    let engine = &mut engine(Config::default());
    receive(engine, last);
    for _ in 0..2 {
        let _ = engine.handle(Time(0), OTHER, &notification);
        assert_eq!(all(engine), [unfinished()]);
    }
    let placement = place(engine, before);
    let _ = engine.handle(Time(0), OTHER, &notification);
    assert_eq!(all(engine), [unfinished()], "its bytes are still being copied");
    engine.placed(placement);
    assert_eq!(all(engine), [over(7)]);
    let _ = engine.handle(Time(0), OTHER, &notification);
    assert_eq!(all(engine), [Next::Words, over(8)]);
}

#[test]
fn of_a_block_whose_slot_was_used_again_only_its_sender_knows() {
    let (last, notification) = last_and_notification();
    // An older and a newer block were received in the slot of the one it names.
    for generation in [4, 6] {
        let mut engine = engine(Config::default());
        for header in [data(7, generation, None, BASE + 0x800), last] {
            let placement = place(&mut engine, header);
            engine.placed(placement);
        }
        let _ = engine.handle(Time(0), OTHER, &notification);
        let all: Vec<_> = std::iter::from_fn(|| next_of(&mut engine)).collect();
        assert_eq!(all[1..], [Next::Ack { slot: 8, bytes_only: true }]);
        // The sender has all other acknowledgements, and says so.
        let Packet::NotifyAfter(header, _) = notification else { unreachable!() };
        let _ = engine.handle(Time(0), OTHER, &Packet::Notify(header));
        let all: Vec<_> = std::iter::from_fn(|| next_of(&mut engine)).collect();
        assert_eq!(all, [Next::Words, Next::Ack { slot: 8, bytes_only: false }]);
    }
    // Slots that no peer can have.
    let mut engine = engine(Config { peer_transactions: 16, ..Config::default() });
    let Packet::NotifyAfter(header, _) = notification else { unreachable!() };
    let mut earlier = EarlierBlocks::default();
    assert!(earlier.push(TransactionId(u16::MAX), Generation(0)));
    let placement = place(&mut engine, last);
    engine.placed(placement);
    let _ = engine.handle(Time(0), OTHER, &Packet::NotifyAfter(header, earlier));
    assert_eq!(next_of(&mut engine), Some(Next::Ack { slot: 8, bytes_only: true }));
    assert_eq!(next_of(&mut engine), None);
}

#[test]
fn a_full_answer_to_the_last_block_does_not_confuse_what_is_left() {
    let mut engine = engine(Config { outstanding_blocks: 3, congestion: None, ..Config::default() });
    let words = Notification { address: BASE, first: 1, last: 2 };
    let spec = Transfer { notification: Some(words), ..transfer(Direction::Write, 3 * 16384) };
    engine.post(Time(0), OTHER, spec).expect("room");
    let blocks: Vec<_> = std::iter::from_fn(|| next_block(&mut engine, Time(0))).collect();
    let [first, second, last] = blocks[..] else { panic!("{} blocks", blocks.len()) };
    let _ = engine.handle(Time(0), OTHER, &ack(&last));
    let _ = engine.handle(Time(0), OTHER, &ack(&first));
    assert_eq!(engine.poll(Time(0)), None, "no notification is left to send");
    let _ = engine.handle(Time(0), OTHER, &ack(&second));
    assert_eq!(status(&mut engine, Time(0)), Some(Ok(())));
    assert!(engine.is_idle());
    assert_eq!(engine.counters().illegal_transitions, 0);
}
