//! A transfer that fails: its end is told when none of its bytes may still come.

use tombolo_core::rdma::{
    Action, Block, Config, Direction, DropReason, Engine, PathId, Time, TransferError, Verdict,
};
use tombolo_wire::{
    Ack, Atomic, AtomicOperation, Attempt, DataHeader, Generation, Nack, NackCode, Packet, Payload, Refusal,
};

use super::by_hand::{SECOND, ack, data, engine, nack, next_block, place, receive, status, transfer};
use crate::bench::OTHER;

/// The empty blocks that an engine has to send now.
fn closings(engine: &mut Engine, now: Time) -> Vec<DataHeader> {
    let actions = std::iter::from_fn(|| engine.poll(now));
    let headers = actions.map(|action| match action {
        Action::Send { packet: Packet::Data(header, Payload::Intact(bytes)), .. } => {
            assert_eq!((bytes.len(), header.block_bytes, header.payload_bytes), (0, 0, 0));
            header
        }
        other => panic!("neither a closing block nor its end: {other:?}"),
    });
    headers.collect()
}

fn acknowledged(header: &DataHeader) -> Packet<'static> {
    let DataHeader { transaction, generation, attempt, .. } = *header;
    Packet::Ack(Ack { transaction, generation, attempt, bytes_only: false })
}

/// A write of two blocks, of which the first is refused for good, and the second.
fn failed(engine: &mut Engine) -> Block {
    let size_bytes = 2 * Config::default().block_bytes;
    engine.post(Time(0), OTHER, transfer(Direction::Write, size_bytes)).expect("room");
    let first = next_block(engine, Time(0)).expect("a block");
    let second = next_block(engine, Time(0)).expect("another");
    let _ = engine.handle(Time(1), OTHER, &nack(&first, NackCode::DecodeError));
    second
}

const REFUSED: TransferError =
    TransferError::Refused(Refusal { code: NackCode::DecodeError, address: None, missing: 0 });

#[test]
fn the_end_is_told_when_what_was_under_way_is_over() {
    let mut engine = engine(Config::default());
    let second = failed(&mut engine);
    let [closing] = closings(&mut engine, Time(2))[..] else { panic!("one block is under way") };
    assert_eq!((closing.transaction, closing.generation), (second.transaction, second.generation.next()));
    // What is said of the block itself says nothing of its other copies.
    for answer in [nack(&second, NackCode::SlaveError), ack(&second), nack(&second, NackCode::DecodeError)] {
        let _ = engine.handle(Time(3), OTHER, &answer);
        assert!(closings(&mut engine, Time(3)).is_empty());
    }
    // The receiver is still at it.
    let DataHeader { transaction, generation, attempt, .. } = closing;
    let refusal = NackCode::BufferFull.into();
    let busy = Packet::Nack(Nack { transaction, generation, attempt, refusal });
    let _ = engine.handle(Time(4), OTHER, &busy);
    let now = engine.deadline().expect("a delay");
    engine.expire(now);
    let [again] = closings(&mut engine, now)[..] else { panic!("it goes again") };
    assert_eq!((again.generation, again.attempt), (closing.generation, closing.attempt.next()));
    let _ = engine.handle(now, OTHER, &acknowledged(&again));
    assert_eq!(status(&mut engine, now), Some(Err(REFUSED)));
    assert!(engine.is_idle());
    assert_eq!((engine.counters().blocks_closed, engine.counters().transfers_failed), (1, 1));
}

#[test]
fn a_closing_block_that_is_lost_goes_again_and_is_not_waited_for_for_ever() {
    let mut engine = engine(Config::default());
    failed(&mut engine);
    let (mut now, mut sent) = (Time(2), 0);
    let ended = loop {
        let action = engine.poll(now);
        match action {
            Some(Action::Complete(completion)) => break completion.status,
            Some(Action::Send { .. }) => sent += 1,
            Some(other) => panic!("{other:?}"),
            None => {
                now = engine.deadline().expect("a timer");
                engine.expire(now);
            }
        }
    };
    assert_eq!(ended, Err(TransferError::Undeliverable));
    assert!(sent > 1 && engine.is_idle());
    assert!(now < Time(2 * Config::default().give_up_ns), "{now:?}");
}

#[test]
fn with_its_peer_nothing_is_waited_for() {
    let mut engine = engine(Config::default());
    failed(&mut engine);
    assert_eq!(closings(&mut engine, Time(2)).len(), 1);
    engine.peer_lost(Time(3), OTHER);
    assert_eq!(status(&mut engine, Time(3)), Some(Err(TransferError::PeerLost)));
    assert!(engine.is_idle());
}

/// Nothing is asked about what was never sent, nor about what the peer will refuse for good.
#[test]
fn what_was_not_sent_is_over_at_once() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let block = next_block(&mut engine, Time(0)).expect("a block");
    let _ = engine.handle(Time(1), OTHER, &nack(&block, NackCode::DecodeError));
    assert_eq!(status(&mut engine, Time(1)), Some(Err(REFUSED)));
    let size_bytes = 2 * Config::default().block_bytes;
    engine.post(Time(2), OTHER, transfer(Direction::Write, size_bytes)).expect("room");
    let [first, second] = [(); 2].map(|()| next_block(&mut engine, Time(2)).expect("a block"));
    engine.source_begun(&second);
    engine.source_refused(Time(3), &first, NackCode::DecodeError);
    // The other one was to be read: nobody knows here that it was not sent.
    let [closing] = closings(&mut engine, Time(3))[..] else { panic!("one block was handed out") };
    assert!(!engine.source_read(Time(4), &second), "its bytes are to be sent");
    let _ = engine.handle(Time(5), OTHER, &acknowledged(&closing));
    assert!(status(&mut engine, Time(5)).is_some_and(|status| status.is_err()));
    assert!(engine.is_idle());
}

/// A block that was sent in part, because its link was full, may come.
#[test]
fn what_was_sent_in_part_is_closed() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let block = next_block(&mut engine, Time(0)).expect("a block");
    engine.link_full(Time(1), &block);
    engine.link_has_room(OTHER, block.path);
    let again = next_block(&mut engine, Time(2)).expect("the block again");
    assert_eq!(again.attempt, Attempt(0));
    engine.source_refused(Time(3), &again, NackCode::DecodeError);
    let [closing] = closings(&mut engine, Time(3))[..] else { panic!("a part of it was sent") };
    let _ = engine.handle(Time(4), OTHER, &acknowledged(&closing));
    let local = TransferError::Local(NackCode::DecodeError.into());
    assert_eq!(status(&mut engine, Time(4)), Some(Err(local)));
}

/// The receiver acknowledges a closing block when it has placed what it had begun to place, and takes nothing of
/// the block afterwards.
#[test]
fn what_comes_after_a_closing_block_is_dropped() {
    let mut engine = engine(Config::default());
    let block = DataHeader { block_bytes: 512, payload_bytes: 256, ..data(3, 1, None, 4096) };
    let Verdict::Place(placement) =
        engine.handle(Time(0), OTHER, &Packet::Data(block, Payload::Intact(&[1; 256])))
    else {
        panic!("not placed");
    };
    let closing =
        DataHeader { generation: Generation(2), block_bytes: 0, payload_bytes: 0, ..data(3, 2, None, 4096) };
    let close = |engine: &mut Engine, attempt| {
        let closing = DataHeader { attempt: Attempt(attempt), ..closing };
        let _ = engine.handle(Time(1), OTHER, &Packet::Data(closing, Payload::Intact(&[])));
        engine.poll(Time(1))
    };
    let Some(Action::Send { packet: Packet::Nack(nack), .. }) = close(&mut engine, 0) else {
        panic!("it is still being placed");
    };
    assert_eq!((nack.generation, nack.refusal.code), (Generation(2), NackCode::BufferFull));
    engine.placed(placement);
    let Some(Action::Send { packet: Packet::Ack(ack), .. }) = close(&mut engine, 1) else {
        panic!("nothing is placed any more");
    };
    assert_eq!((ack.generation, ack.attempt), (Generation(2), Attempt(1)));
    // The second half, and the first once more.
    for offset_bytes in [256, 0] {
        let late = DataHeader { offset_bytes, attempt: Attempt(1), ..block };
        let verdict = engine.handle(Time(2), OTHER, &Packet::Data(late, Payload::Intact(&[2; 256])));
        assert_eq!(verdict, Verdict::Dropped(DropReason::Stale));
    }
    // Nor is the block placed that the closing block has overtaken.
    let empty = DataHeader { block_bytes: 0, payload_bytes: 0, ..data(4, 2, None, 4096) };
    let _ = engine.handle(Time(3), OTHER, &Packet::Data(empty, Payload::Intact(&[])));
    assert_eq!(receive(&mut engine, data(4, 1, None, 4096)), Verdict::Dropped(DropReason::Stale));
    // What takes the slot next is placed.
    let next = place(&mut engine, data(4, 3, None, 4096));
    engine.placed(next);
    while engine.poll(Time(4)).is_some() {}
    assert!(engine.is_idle());
    assert!(engine.deadline().is_none_or(|deadline| deadline > Time(SECOND)));
}

/// What closes an atomic operation is a block like others, and answered like them.
#[test]
fn an_atomic_operation_that_is_given_up_is_closed() {
    let config = Config { refused_give_up_ns: 1_000_000, ..Config::default() };
    let mut engine = engine(config);
    let operation = AtomicOperation::FetchAdd(1);
    engine.post(Time(0), OTHER, transfer(Direction::Atomic(operation), 8)).expect("room");
    let Some(Action::Send { packet: Packet::Atomic(atomic), .. }) = engine.poll(Time(0)) else {
        panic!("the operation is due");
    };
    let Atomic { transaction, generation, attempt, .. } = atomic;
    let refusal = NackCode::SlaveError.into();
    let nack = Packet::Nack(Nack { transaction, generation, attempt, refusal });
    let now = Time(2_000_000);
    let _ = engine.handle(now, OTHER, &nack);
    let [closing] = closings(&mut engine, now)[..] else { panic!("it may be carried out") };
    let _ = engine.handle(now, OTHER, &acknowledged(&closing));
    assert_eq!(status(&mut engine, now), Some(Err(TransferError::Refused(refusal))));
    assert!(engine.is_idle());
    assert_eq!(engine.counters().stale_answers, 0);
}

/// A peer that says that it is still at it is waited for, also if one of its answers is lost.
#[test]
fn a_peer_that_is_not_done_yet_is_waited_for() {
    let config = Config::default();
    let mut engine = engine(config);
    failed(&mut engine);
    let mut now = Time(2);
    let mut may_be_lost = true;
    while now.0 < config.give_up_ns + 2 * SECOND {
        for closing in closings(&mut engine, now) {
            let is_late = now.0 > config.give_up_ns + SECOND;
            if is_late && std::mem::take(&mut may_be_lost) {
                continue;
            }
            let DataHeader { transaction, generation, attempt, .. } = closing;
            let refusal = NackCode::BufferFull.into();
            let _ =
                engine.handle(now, OTHER, &Packet::Nack(Nack { transaction, generation, attempt, refusal }));
        }
        now = engine.deadline().expect("a timer");
        engine.expire(now);
    }
    assert!(!may_be_lost);
    assert_eq!((engine.counters().transfers_failed, engine.counters().closed_in_vain), (0, 0));
}

/// The time in which there was no path to say that it is over does not count.
#[test]
fn a_closing_block_waits_for_a_path() {
    let config = Config::default();
    let mut engine = engine(config);
    failed(&mut engine);
    assert_eq!(closings(&mut engine, Time(2)).len(), 1);
    let path = PathId(0);
    engine.path_lost(Time(3), OTHER, path);
    let mut now = Time(3 + 2 * config.give_up_ns);
    engine.expire(now);
    assert!(closings(&mut engine, now).is_empty());
    assert!(engine.add_path(now, OTHER, path));
    let [closing] = closings(&mut engine, now)[..] else { panic!("it goes again") };
    // That one is lost, too.
    now = engine.deadline().expect("a timer");
    engine.expire(now);
    let [again] = closings(&mut engine, now)[..] else { panic!("it goes once more") };
    assert_eq!(again.generation, closing.generation);
    let _ = engine.handle(now, OTHER, &acknowledged(&again));
    assert_eq!(status(&mut engine, now), Some(Err(REFUSED)));
    assert_eq!(engine.counters().closed_in_vain, 0);
}

/// One part of a block is refused for good while another one is being placed: until that is, the sender is not told, since its
/// program may use the memory for something else then.
#[test]
fn a_refusal_for_good_is_told_when_nothing_is_being_placed() {
    let mut engine = engine(Config::default());
    let block = DataHeader { block_bytes: 512, payload_bytes: 256, ..data(3, 1, None, 4096) };
    let [slow, wrong] = [0, 256].map(|offset_bytes| {
        let header = DataHeader { offset_bytes, ..block };
        match engine.handle(Time(0), OTHER, &Packet::Data(header, Payload::Intact(&[1; 256]))) {
            Verdict::Place(placement) => placement,
            other => panic!("not placed: {other:?}"),
        }
    });
    let refusal = Refusal::at(NackCode::DomainMismatch, 4096 + 256);
    engine.refused(wrong, refusal);
    assert_eq!(engine.poll(Time(1)), None);
    // An access to it that has not begun is not begun any more.
    assert!(!engine.is_held(&slow));
    // Asked again, the receiver says that it is at it.
    let again = DataHeader { attempt: Attempt(1), payload_bytes: 0, ..block };
    let verdict = engine.handle(Time(2), OTHER, &Packet::Data(again, Payload::Intact(&[])));
    assert_eq!(verdict, Verdict::Dropped(DropReason::Duplicate));
    assert!(matches!(engine.poll(Time(2)), Some(Action::Send { packet: Packet::Receipt(_), .. })));
    // What follows from the first refusal does not hide it.
    engine.refused(slow, Refusal::at(NackCode::DecodeError, 4096));
    let Some(Action::Send { packet: Packet::Nack(nack), .. }) = engine.poll(Time(3)) else {
        panic!("the refusal is due");
    };
    assert_eq!((nack.attempt, nack.refusal), (Attempt(1), refusal));
}
