//! What acknowledges or refuses the blocks and reads of an engine, late, twice or in part.

use tombolo_core::rdma::{Action, Block, Config, Direction, Time, TransferError, Verdict};
use tombolo_wire::{
    Ack, Acks, Attempt, DataHeader, NackCode, Packet, ReadReject, Receipt, RequestId, Resume, TransactionId,
};

use super::by_hand::{SECOND, ack, arrive, data, engine, nack, next_block, piece, place, status, transfer};
use crate::bench::{BASE, DOMAIN, OTHER};

#[test]
fn a_late_acknowledgement_of_an_early_attempt_ends_the_block() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let first = next_block(&mut engine, Time(0)).expect("a block");
    let later = engine.deadline().expect("a timer");
    engine.expire(later);
    let second = next_block(&mut engine, later).expect("the block again");
    assert_eq!((second.generation, second.attempt), (first.generation, Attempt(1)));
    // A refusal of the first attempt says nothing about the second.
    let _ = engine.handle(later, OTHER, &nack(&first, NackCode::DecodeError));
    assert_eq!(status(&mut engine, later), None);
    let _ = engine.handle(later, OTHER, &ack(&first));
    assert_eq!(status(&mut engine, later), Some(Ok(())));
    assert!(engine.is_idle());
}

#[test]
fn acknowledgements_in_one_packet_are_as_good_as_alone() {
    let mut engine = engine(Config::default());
    let mut blocks = Vec::new();
    for _ in 0..3 {
        engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
        blocks.push(next_block(&mut engine, Time(0)).expect("a block"));
    }
    let alone = |block: &Block| match ack(block) {
        Packet::Ack(ack) => ack,
        other => panic!("{other:?}"),
    };
    // One of them comes again, and one is of a block that there never was.
    let mut acks: Vec<Ack> = [&blocks[2], &blocks[0], &blocks[0]].map(alone).into();
    acks.push(Ack { transaction: TransactionId(900), ..acks[0] });
    assert_eq!(engine.handle(Time(1), OTHER, &Packet::Acks(Acks::of(&acks))), Verdict::Taken);
    assert_eq!(status(&mut engine, Time(1)), Some(Ok(())));
    assert_eq!(status(&mut engine, Time(1)), Some(Ok(())));
    assert_eq!(status(&mut engine, Time(1)), None);
    assert_eq!(engine.counters().stale_answers, 2);
    assert!(!engine.is_idle());
    let _ = engine.handle(Time(1), OTHER, &Packet::Acks(Acks::of(&[alone(&blocks[1])])));
    assert_eq!(status(&mut engine, Time(1)), Some(Ok(())));
    assert!(engine.is_idle());
}

#[test]
fn final_refusals_end_the_transfer_and_transient_ones_do_not() {
    for code in NackCode::ALL {
        let mut engine = engine(Config::default());
        engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
        let block = next_block(&mut engine, Time(0)).expect("a block");
        let _ = engine.handle(Time(1), OTHER, &nack(&block, code));
        if !code.is_transient() {
            assert_eq!(status(&mut engine, Time(1)), Some(Err(TransferError::Refused(code.into()))));
            continue;
        }
        let again = match next_block(&mut engine, Time(1)) {
            Some(block) => block,
            None => {
                assert_ne!(code, NackCode::PacketCorrupted, "goes again at once");
                let later = engine.deadline().expect("a delay");
                engine.expire(later);
                next_block(&mut engine, later).expect("the block again")
            }
        };
        assert_eq!(again.attempt, Attempt(1));
        let _ = engine.handle(Time(SECOND), OTHER, &ack(&again));
        assert_eq!(status(&mut engine, Time(SECOND)), Some(Ok(())));
    }
}

#[test]
fn a_block_refused_for_ever_is_given_up() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let mut now = Time(0);
    'given_up: loop {
        while let Some(action) = engine.poll(now) {
            match action {
                Action::SendBlock(block) => {
                    let _ = engine.handle(now, OTHER, &nack(&block, NackCode::BufferFull));
                }
                Action::Send { packet: Packet::Data(closing, _), .. } => {
                    let DataHeader { transaction, generation, attempt, .. } = closing;
                    let ack = Ack { transaction, generation, attempt, bytes_only: false };
                    let _ = engine.handle(now, OTHER, &Packet::Ack(ack));
                }
                Action::Complete(completion) => {
                    let refused = TransferError::Refused(NackCode::BufferFull.into());
                    assert_eq!(completion.status, Err(refused));
                    break 'given_up;
                }
                other => panic!("{other:?}"),
            }
        }
        now = engine.deadline().expect("a delay");
        assert!(now < Time(60 * SECOND), "hangs");
        engine.expire(now);
    }
}

#[test]
fn a_resume_is_obeyed_only_for_the_blocks_own_domain_and_generation() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let block = next_block(&mut engine, Time(0)).expect("a block");
    let _ = engine.handle(Time(1), OTHER, &nack(&block, NackCode::SlaveError));
    let mut resume = Resume {
        transaction: block.transaction,
        generation: block.generation,
        attempt: block.attempt,
        domain: tombolo_wire::Domain(DOMAIN.0 + 1),
    };
    let _ = engine.handle(Time(2), OTHER, &Packet::Resume(resume));
    assert_eq!(next_block(&mut engine, Time(2)), None);
    resume.domain = DOMAIN;
    resume.generation = tombolo_wire::Generation(block.generation.0.wrapping_add(1));
    let _ = engine.handle(Time(2), OTHER, &Packet::Resume(resume));
    assert_eq!(next_block(&mut engine, Time(2)), None);
    resume.generation = block.generation;
    // A block that is paused goes again, whatever came of it last.
    resume.attempt = block.attempt.next();
    let _ = engine.handle(Time(3), OTHER, &Packet::Resume(resume));
    assert!(next_block(&mut engine, Time(3)).is_some());
}

/// The receiver has the bytes, and is asked whether they are placed: that its page has come is news, though the question is a
/// transmission of its own.
#[test]
fn a_resume_that_crosses_a_question_is_obeyed() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let Block { transaction, generation, attempt, domain, .. } =
        next_block(&mut engine, Time(0)).expect("a block");
    let _ = engine.handle(Time(1), OTHER, &Packet::Receipt(Receipt { transaction, generation, attempt }));
    let now = engine.deadline().expect("a question");
    engine.expire(now);
    while engine.poll(now).is_some() {}
    let resume = Packet::Resume(Resume { transaction, generation, attempt, domain });
    let _ = engine.handle(now, OTHER, &resume);
    let again = next_block(&mut engine, now).expect("the bytes");
    assert_eq!((again.transaction, again.length_bytes), (transaction, 100));
}

#[test]
fn a_late_resume_does_not_send_a_block_that_is_on_its_way_again() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let block = next_block(&mut engine, Time(0)).expect("a block");
    let _ = engine.handle(Time(1), OTHER, &nack(&block, NackCode::SlaveError));
    let now = engine.deadline().expect("the end of the pause");
    engine.expire(now);
    let again = next_block(&mut engine, now).expect("the pause is over");
    assert_eq!(again.attempt, block.attempt.next());
    let Block { transaction, generation, attempt, domain, .. } = block;
    let late = Packet::Resume(Resume { transaction, generation, attempt, domain });
    let _ = engine.handle(now, OTHER, &late);
    assert_eq!(next_block(&mut engine, now), None);
    assert_eq!((engine.counters().resumes, engine.counters().stale_answers), (0, 1));
}

#[test]
fn a_failed_read_completes_only_when_no_byte_of_it_is_being_copied() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Read, 8)).expect("room");
    assert_eq!(status(&mut engine, Time(0)), None);
    let placement = place(&mut engine, data(0, 1, Some(0), 2 * BASE));
    engine.peer_lost(Time(1), OTHER);
    assert_eq!(status(&mut engine, Time(1)), None);
    engine.placed(placement);
    assert_eq!(status(&mut engine, Time(1)), Some(Err(TransferError::PeerLost)));
    assert!(engine.is_idle());
}

#[test]
fn an_unreadable_source_fails_the_write_or_the_read_behind_it() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let block = next_block(&mut engine, Time(0)).expect("a block");
    engine.source_refused(Time(0), &block, NackCode::DomainMismatch);
    let local = TransferError::Local(NackCode::DomainMismatch.into());
    assert_eq!(status(&mut engine, Time(0)), Some(Err(local)));
    // A read: the target refuses, its requester hears, and hears again if asked.
    let mut requester = self::engine(Config::default());
    requester.post(Time(0), OTHER, transfer(Direction::Read, 100)).expect("room");
    let Some(Action::Send { packet: request, .. }) = requester.poll(Time(0)) else {
        panic!("the request is due");
    };
    let _ = engine.handle(Time(0), OTHER, &request);
    let block = next_block(&mut engine, Time(0)).expect("a block");
    engine.source_refused(Time(0), &block, NackCode::DecodeError);
    for _ in 0..2 {
        let Some(Action::Send { packet: Packet::ReadReject(reject), .. }) = engine.poll(Time(0)) else {
            panic!("the answer is due");
        };
        assert_eq!(reject.refusal.code, NackCode::DecodeError);
        let _ = requester.handle(Time(0), OTHER, &Packet::ReadReject(reject));
        let _ = engine.handle(Time(0), OTHER, &request);
    }
    let refused = TransferError::Refused(NackCode::DecodeError.into());
    assert_eq!(status(&mut requester, Time(0)), Some(Err(refused)));
    assert!(requester.is_idle());
    let stale = ReadReject { request: RequestId(0), refusal: NackCode::DecodeError.into() };
    let _ = requester.handle(Time(0), OTHER, &Packet::ReadReject(stale));
    assert_eq!(requester.counters().stale_answers, 2);
}

/// While a program does not give the bytes of a block, its peer is asked for nothing, and is not to blame.
#[test]
fn a_source_that_is_absent_for_long_is_no_silent_peer() {
    let config = Config::default();
    let mut engine = engine(config);
    engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let mut now = Time(0);
    while now.0 < 4 * config.give_up_ns {
        if let Some(block) = next_block(&mut engine, now) {
            // It is found out after a while.
            now = now.after_ns(config.give_up_ns / 2);
            engine.expire(now);
            assert_eq!(status(&mut engine, now), None, "at {now:?}");
            engine.source_refused(now, &block, NackCode::SlaveError);
        }
        now = engine.deadline().expect("it is tried again").max(now);
        engine.expire(now);
    }
    let block = next_block(&mut engine, now).expect("it is tried again");
    let _ = engine.handle(now, OTHER, &ack(&block));
    assert_eq!(status(&mut engine, now), Some(Ok(())));
}

/// Reads wait for one that was asked for before them, for minutes, and then for the next: nothing of them
/// comes, but their target is at work. More bytes than were asked for end a read.
#[test]
fn reads_that_wait_for_others_are_waited_for() {
    let mut engine = engine(Config::default());
    let mut now = Time(0);
    for _ in 0..3 {
        engine.post(now, OTHER, transfer(Direction::Read, 16_000)).expect("room");
    }
    let (mut served, mut generation) = (0, 0);
    while now < Time(200 * SECOND) {
        while let Some(action) = engine.poll(now) {
            match action {
                Action::Send { packet: Packet::ReadRequest(request), .. } => {
                    let accept = tombolo_wire::ReadAccept { request: request.request };
                    let _ = engine.handle(now, OTHER, &Packet::ReadAccept(accept));
                }
                Action::Complete(completion) => panic!("{completion:?} at {now:?}"),
                _ => {}
            }
        }
        if served == 0 && now >= Time(100 * SECOND) {
            served = 1;
            let reject = ReadReject { request: RequestId(0), refusal: NackCode::DecodeError.into() };
            let _ = engine.handle(now, OTHER, &Packet::ReadReject(reject));
            let refused = Err(TransferError::Refused(NackCode::DecodeError.into()));
            assert_eq!(status(&mut engine, now), Some(refused));
        }
        // A piece every four seconds.
        if now >= Time(u64::from(generation) * 4 * SECOND) {
            generation += 1;
            arrive(&mut engine, now, piece(generation, served, 2 * BASE + u64::from(generation % 25) * 256));
        }
        now = engine.deadline().expect("a timer").min(now.after_ns(SECOND));
        engine.expire(now);
    }
    assert_eq!(served, 1);
    for _ in 0..64 {
        generation += 1;
        arrive(&mut engine, now, piece(generation, 1, 2 * BASE));
    }
    assert_eq!(status(&mut engine, now), Some(Err(TransferError::Incomplete)));
}
