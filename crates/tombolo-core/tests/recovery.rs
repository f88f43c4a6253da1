//! What is lost, late, refused or gone, case by case.

mod bench;

use bench::{BASE, Bench, DOMAIN, OTHER, Wire};
use tombolo_core::rdma::{
    Action, Block, Config, Direction, DropReason, Engine, PathId, PeerId, Placement, PostError, Time,
    Transfer, TransferError, Verdict,
};
use tombolo_wire::{
    Ack, Acks, Attempt, Checksums, DataHeader, EarlierBlocks, Generation, Nack, NackCode, Notification,
    NotificationMark, NotifyHeader, Packet, Payload, ReadReject, RequestId, Resume, TransactionId,
};

const SECOND: u64 = 1_000_000_000;

fn engine(config: Config) -> Engine {
    let mut engine = Engine::new(config);
    engine.add_peer(Time(0), OTHER);
    engine
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

fn next_block(engine: &mut Engine, now: Time) -> Option<Block> {
    std::iter::from_fn(|| engine.poll(now)).find_map(|action| match action {
        Action::SendBlock(block) => Some(block),
        _ => None,
    })
}

fn status(engine: &mut Engine, now: Time) -> Option<Result<(), TransferError>> {
    std::iter::from_fn(|| engine.poll(now)).find_map(|action| match action {
        Action::Complete(completion) => Some(completion.status),
        _ => None,
    })
}

fn ack(block: &Block) -> Packet<'static> {
    Packet::Ack(Ack {
        transaction: block.transaction,
        generation: block.generation,
        attempt: block.attempt,
        bytes_only: false,
    })
}

fn nack(block: &Block, code: NackCode) -> Packet<'static> {
    Packet::Nack(Nack {
        transaction: block.transaction,
        generation: block.generation,
        attempt: block.attempt,
        code,
    })
}

/// A data packet of one whole small block.
fn data(slot: u16, generation: u32, request: Option<u32>, address: u64) -> DataHeader {
    DataHeader {
        domain: DOMAIN,
        transaction: TransactionId(slot),
        generation: Generation(generation),
        attempt: Attempt(0),
        block_address: address,
        block_bytes: 8,
        offset_bytes: 0,
        payload_bytes: 8,
        in_reply_to: request.map(RequestId),
        notification: NotificationMark::None,
    }
}

fn receive(engine: &mut Engine, header: DataHeader) -> Verdict {
    engine.handle(Time(0), OTHER, &Packet::Data(header, Payload::Intact(&[1; 8])))
}

fn place(engine: &mut Engine, header: DataHeader) -> Placement {
    match receive(engine, header) {
        Verdict::Place(placement) => placement,
        other => panic!("not placed: {other:?}"),
    }
}

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
            assert_eq!(status(&mut engine, Time(1)), Some(Err(TransferError::Refused(code))));
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
    loop {
        if let Some(block) = next_block(&mut engine, now) {
            let _ = engine.handle(now, OTHER, &nack(&block, NackCode::BufferFull));
        }
        if let Some(status) = status(&mut engine, now) {
            assert_eq!(status, Err(TransferError::Refused(NackCode::BufferFull)));
            break;
        }
        now = engine.deadline().expect("a delay");
        assert!(now < Time(60 * SECOND), "hangs");
        engine.expire(now);
    }
}

#[test]
fn a_resume_is_obeyed_only_for_the_blocks_own_domain() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let block = next_block(&mut engine, Time(0)).expect("a block");
    let _ = engine.handle(Time(1), OTHER, &nack(&block, NackCode::SlaveError));
    let mut resume = Resume {
        transaction: block.transaction,
        generation: block.generation,
        domain: tombolo_wire::Domain(DOMAIN.0 + 1),
    };
    let _ = engine.handle(Time(2), OTHER, &Packet::Resume(resume));
    assert_eq!(next_block(&mut engine, Time(2)), None);
    resume.domain = DOMAIN;
    let _ = engine.handle(Time(3), OTHER, &Packet::Resume(resume));
    assert!(next_block(&mut engine, Time(3)).is_some());
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
fn a_write_back_is_admitted_for_an_open_read_and_its_range_only() {
    let mut engine = engine(Config::default());
    let nacked = |engine: &mut Engine| {
        std::iter::from_fn(|| engine.poll(Time(0))).find_map(|action| match action {
            Action::Send { packet: Packet::Nack(nack), .. } => Some(nack.code),
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
    assert_eq!((busy.generation, busy.code), (newer.generation, NackCode::BufferFull));
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

#[test]
fn an_unreadable_source_fails_the_write_or_the_read_behind_it() {
    let mut engine = engine(Config::default());
    engine.post(Time(0), OTHER, transfer(Direction::Write, 100)).expect("room");
    let block = next_block(&mut engine, Time(0)).expect("a block");
    engine.source_refused(Time(0), &block, NackCode::DomainMismatch);
    let local = TransferError::Local(NackCode::DomainMismatch);
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
        assert_eq!(reject.code, NackCode::DecodeError);
        let _ = requester.handle(Time(0), OTHER, &Packet::ReadReject(reject));
        let _ = engine.handle(Time(0), OTHER, &request);
    }
    let refused = TransferError::Refused(NackCode::DecodeError);
    assert_eq!(status(&mut requester, Time(0)), Some(Err(refused)));
    assert!(requester.is_idle());
    let stale = ReadReject { request: RequestId(0), code: NackCode::DecodeError };
    let _ = requester.handle(Time(0), OTHER, &Packet::ReadReject(stale));
    assert_eq!(requester.counters().stale_answers, 2);
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

#[test]
fn arbitrary_packets_from_a_peer_do_no_harm() {
    let mut engine = engine(Config { transactions: 4, peer_transactions: 4, ..Config::default() });
    let mut random = tombolo_random::Random::for_test(9);
    let mut placements: Vec<Placement> = Vec::new();
    let (mut with_list, mut several) = (0, 0);
    for step in 0..200_000 {
        let now = Time(step * 1000);
        let mut bytes = [0u8; 80];
        for byte in &mut bytes {
            *byte = [0, 1, 2, 3, 255, random.next() as u8][random.below(6) as usize];
        }
        bytes[0] = tombolo_wire::MAGIC;
        bytes[1] = random.range(1, 13) as u8;
        if random.per_million(100_000) {
            // What is between chance and a notification with a list of one block.
            (bytes[1], bytes[2]) = (11, random.range(6, 7) as u8);
            for reserved in [26..32, 36..40] {
                bytes[reserved].fill(0);
            }
            bytes[28] = 6;
        }
        if bytes[1] == 12 && random.per_million(500_000) {
            // As many acknowledgements as one of the lengths below holds.
            (bytes[2], bytes[3]) = ([1, 2, 4, 7][random.below(4) as usize], 0);
            bytes[8..64].chunks_exact_mut(8).for_each(|entry| entry[3] &= 1);
        }
        let length = random.range(16, 80) as usize;
        for length in [length, 16, 24, 40, 64, 70] {
            let Ok(packet) = Packet::parse(&bytes[..length], Checksums::Off) else {
                continue;
            };
            with_list += u32::from(matches!(packet, Packet::NotifyAfter(..)));
            several += u32::from(matches!(packet, Packet::Acks(_)));
            if let Verdict::Place(placement) = engine.handle(now, OTHER, &packet) {
                placements.push(placement);
            }
        }
        if random.per_million(300_000) && !placements.is_empty() {
            let at = random.below(placements.len() as u64) as usize;
            engine.placed(placements.swap_remove(at));
        }
        if random.per_million(10_000) {
            let direction = [Direction::Read, Direction::Write][random.below(2) as usize];
            let _ = engine.post(now, OTHER, transfer(direction, random.below(40_000) as u32));
        }
        engine.expire(now);
        while let Some(action) = engine.poll(now) {
            match action {
                Action::WriteNotification(write) => engine.notified(write),
                Action::SendBlock(block) if random.per_million(200_000) => {
                    engine.source_refused(now, &block, NackCode::DecodeError);
                }
                _ => {}
            }
        }
    }
    assert_eq!(engine.counters().illegal_transitions, 0);
    assert!(with_list > 1000, "{with_list}");
    assert!(several > 1000, "{several}");
    engine.peer_lost(Time(SECOND), OTHER);
    for placement in placements {
        engine.placed(placement);
    }
    while engine.poll(Time(SECOND)).is_some() {}
    assert!(engine.is_idle());
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
            assert!(transmissions <= Config::default().max_attempts, "for ever");
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
                        assert_eq!(reject.code, NackCode::NoContext);
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

/// Two blocks of one transfer to a peer that no packets go to, both handed out.
fn two_blocks_here(engine: &mut Engine) -> [Block; 2] {
    engine.add_peer_here(Time(0), OTHER, 16 * 1024);
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
            let failed = Err(TransferError::Refused(NackCode::DecodeError));
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
        bench.now = bench.now.after_ns(stopped_ns);
        for _ in 0..2 {
            bench.engines[0].expire(bench.now);
            bench.now = bench.now.after_ns(1);
        }
        bench.settle(SECOND);
        assert!(bench.watched.iter().all(|watched| watched.status == Some(Ok(()))));
        bench.check_memory();
        // It is blamed for its own: cut off, it is given up as ever, also by one that is run seldom.
        for pause_ns in [0, 2 * SECOND] {
            bench.cut_wire(0);
            bench.cut_wire(1);
            bench.post(0, Direction::Write, 100, false, None).expect("memory").expect("room");
            let (start, number) = (bench.now, bench.watched.len() - 1);
            while bench.watched[number].status.is_none() {
                assert!(bench.step());
                bench.now = bench.now.after_ns(pause_ns);
            }
            assert_eq!(bench.watched[number].status, Some(Err(TransferError::PeerUnreachable)));
            let waited_ns = bench.now.since_ns(start);
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
                Action::Send { packet: Packet::ReadRequest(request), .. } => {
                    Packet::ReadReject(ReadReject { request: request.request, code: NackCode::BufferFull })
                }
                other => panic!("unexpected: {other:?}"),
            };
            let _ = engine.handle(now, OTHER, &refusal);
            assert_eq!(status(&mut engine, now), None, "ended after {now:?}");
            now = engine.deadline().expect("it goes again");
            engine.expire(now);
        }
    }
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

/// What a hostile peer answers to keep a transfer open: never a refusal, never the end.
#[derive(Clone, Copy, Debug)]
enum Delaying {
    /// The bytes are there, the notification is not.
    BytesOnly,
    /// The peer acknowledges the bytes only, of a block that has no notification.
    BytesOnlyWithout,
    /// The page is there now.
    Resume,
    /// The read will be served.
    Accept,
    /// And a part of a block comes, of another block each time.
    AcceptAndPart,
}

#[test]
fn no_answer_keeps_a_transfer_open_for_ever() {
    use Delaying::{Accept, AcceptAndPart, BytesOnly, BytesOnlyWithout, Resume as Resumes};
    for answer in [BytesOnly, BytesOnlyWithout, Resumes, Accept, AcceptAndPart] {
        let mut engine = engine(Config::default());
        let direction = match answer {
            Accept | AcceptAndPart => Direction::Read,
            _ => Direction::Write,
        };
        let mut wanted = transfer(direction, 1000);
        wanted.notification = match answer {
            BytesOnlyWithout => None,
            _ => Some(Notification { address: BASE, first: 1, last: 2 }),
        };
        let mut now = Time(0);
        engine.post(now, OTHER, wanted).expect("room");
        let mut generation = 0;
        let ended = 'open: loop {
            assert!(now < Time(40 * SECOND), "{answer:?} keeps it open");
            while let Some(action) = engine.poll(now) {
                let (transaction, of, attempt) = match action {
                    Action::Complete(completion) => break 'open completion.status,
                    Action::SendBlock(block) => (block.transaction, block.generation, block.attempt),
                    Action::Send { packet: Packet::Notify(header), .. } => {
                        (header.transaction, header.generation, header.attempt)
                    }
                    Action::Send { packet: Packet::ReadRequest(request), .. } => {
                        let accept = tombolo_wire::ReadAccept { request: request.request };
                        let _ = engine.handle(now, OTHER, &Packet::ReadAccept(accept));
                        if let AcceptAndPart = answer {
                            generation += 1;
                            let mut part = piece(generation, request.request.0, wanted.destination_address);
                            part.block_bytes = 1000;
                            arrive(&mut engine, now, part);
                        }
                        continue;
                    }
                    _ => continue,
                };
                let packet = match answer {
                    BytesOnly | BytesOnlyWithout => {
                        Packet::Ack(Ack { transaction, generation: of, attempt, bytes_only: true })
                    }
                    _ => Packet::Resume(Resume { transaction, generation: of, domain: DOMAIN }),
                };
                now = now.after_ns(1000);
                let _ = engine.handle(now, OTHER, &packet);
                if let Resumes = answer {
                    // It goes again at once: let some time pass.
                    break;
                }
            }
            now = match answer {
                Resumes => now.after_ns(SECOND / 1000),
                _ => engine.deadline().expect("a timer"),
            };
            engine.expire(now);
        };
        assert!(matches!(ended, Err(TransferError::Refused(_))), "{answer:?}: {ended:?}");
        assert!(now >= Time(30 * SECOND), "{answer:?}: given up after {now:?}");
        assert_eq!(engine.deadline(), None);
    }
}

/// 256 bytes of a read's answer.
fn piece(generation: u32, request: u32, address: u64) -> DataHeader {
    DataHeader { block_bytes: 256, payload_bytes: 256, ..data(0, generation, Some(request), address) }
}

fn arrive(engine: &mut Engine, now: Time, header: DataHeader) {
    match engine.handle(now, OTHER, &Packet::Data(header, Payload::Intact(&[1; 256]))) {
        Verdict::Place(placement) => engine.placed(placement),
        verdict => assert_eq!(verdict, Verdict::Dropped(DropReason::Unasked)),
    }
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
            let reject = ReadReject { request: RequestId(0), code: NackCode::DecodeError };
            let _ = engine.handle(now, OTHER, &Packet::ReadReject(reject));
            let refused = Err(TransferError::Refused(NackCode::DecodeError));
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
