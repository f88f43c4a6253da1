//! Packets that only a hostile or broken peer sends.

use tombolo_core::rdma::{Action, Config, Direction, Placement, Time, TransferError, Verdict};
use tombolo_wire::{Ack, Checksums, NackCode, Notification, Packet, Resume};

use super::by_hand::{SECOND, arrive, engine, piece, transfer};
use crate::bench::{BASE, DOMAIN, OTHER};

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
            // The same of acknowledgements, as many as one of the lengths below holds.
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
                    _ => Packet::Resume(Resume { transaction, generation: of, attempt, domain: DOMAIN }),
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
        // Nor does it say that what was sent is over.
        let is_known = matches!(ended, Err(TransferError::Refused(_) | TransferError::Undeliverable));
        assert!(is_known, "{answer:?}: {ended:?}");
        assert!(now >= Time(30 * SECOND), "{answer:?}: given up after {now:?}");
        assert_eq!(engine.deadline(), None);
    }
}
