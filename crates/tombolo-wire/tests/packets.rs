//! The codec against its own promises: every packet survives the round trip, no
//! bytes make it panic, damage is detected or has an answer.

use proptest::prelude::*;
use tombolo_wire::{
    Ack, Acks, Asker, Atomic, AtomicAck, AtomicOperation, Attempt, CLASSES, Checksums, DataHeader, Domain,
    EarlierBlocks, Generation, MAX_ACKS, MAX_EARLIER_BLOCKS, Nack, NackCode, Notification, NotificationMark,
    NotifyHeader, Packet, Payload, ReadAccept, ReadReject, ReadRequest, Receipt, Refusal, RequestId, Resume,
    TransactionId, WireError,
};

fn notification() -> impl Strategy<Value = Notification> {
    any::<(u64, u64, u64)>().prop_map(|(address, first, last)| Notification { address, first, last })
}

fn mark() -> impl Strategy<Value = NotificationMark> {
    prop_oneof![
        Just(NotificationMark::None),
        Just(NotificationMark::Elsewhere),
        notification().prop_map(NotificationMark::Here),
    ]
}

/// A well-formed data header: any granule of any block.
fn data() -> impl Strategy<Value = DataHeader> {
    (any::<(u16, u16, u32, u8, u32, Result<u32, u16>)>(), 0..=16384u32, any::<(u32, u32)>(), mark()).prop_map(
        |(ids, block_bytes, (start, length), notification)| {
            let (domain, slot, generation, attempt, address, whose) = ids;
            let granules = block_bytes.div_ceil(256).max(1);
            let first = start % granules;
            let offset_bytes = first * 256;
            let payload_bytes = ((1 + length % (granules - first)) * 256).min(block_bytes - offset_bytes);
            DataHeader {
                domain: Domain(domain),
                transaction: TransactionId(slot),
                generation: Generation(generation),
                attempt: Attempt(attempt),
                block_address: u64::from(address) << 20,
                block_bytes,
                offset_bytes,
                payload_bytes,
                in_reply_to: whose.ok().map(RequestId),
                asker: Asker(whose.err().unwrap_or(0)),
                notification,
            }
        },
    )
}

fn control() -> impl Strategy<Value = Packet<'static>> {
    let code = proptest::sample::select(NackCode::ALL.to_vec());
    let refusal = (code, any::<Option<(u64, u32)>>()).prop_map(|(code, place)| Refusal {
        code,
        address: place.map(|(address, _)| address),
        missing: place.map_or(0, |(_, missing)| missing),
    });
    let ids = any::<(u16, u32, u8, bool, u16, u32)>();
    (ids, refusal, data(), notification(), any::<(u32, u32, u64, Option<u64>)>(), 0..13u8).prop_map(
        |((slot, generation, attempt, flag, domain, request), refusal, data, words, read, kind)| {
            let transaction = TransactionId(slot);
            let generation = Generation(generation);
            let attempt = Attempt(attempt);
            let domain = Domain(domain);
            let request = RequestId(request);
            match kind {
                0 => Packet::Ack(Ack { transaction, generation, attempt, bytes_only: flag }),
                1 => Packet::Nack(Nack { transaction, generation, attempt, refusal }),
                2 => Packet::Resume(Resume { transaction, generation, attempt, domain }),
                3 => Packet::ReadReject(ReadReject { request, refusal }),
                4 => Packet::ReadAccept(ReadAccept { request }),
                5 => Packet::Notify(NotifyHeader {
                    domain,
                    transaction,
                    generation,
                    attempt,
                    block_address: data.block_address,
                    block_bytes: data.block_bytes,
                    in_reply_to: data.in_reply_to,
                    asker: data.asker,
                    notification: words,
                }),
                8 => Packet::Atomic(Atomic {
                    domain,
                    transaction,
                    generation,
                    attempt,
                    address: read.2 & !7,
                    operation: match flag {
                        true => AtomicOperation::FetchAdd(words.first),
                        false => AtomicOperation::CompareSwap { compare: words.first, swap: words.last },
                    },
                }),
                9 => Packet::AtomicAck(AtomicAck { transaction, generation, attempt, before: read.2 }),
                10 => {
                    let mut earlier = EarlierBlocks::default();
                    let count = usize::from(attempt.0) % (MAX_EARLIER_BLOCKS + 1);
                    for number in 0..count {
                        let slot = TransactionId(slot.wrapping_mul(number as u16));
                        assert!(earlier.push(slot, Generation(generation.0.wrapping_add(number as u32))));
                    }
                    assert_eq!(earlier.iter().count(), count);
                    Packet::NotifyAfter(
                        NotifyHeader {
                            domain,
                            transaction,
                            generation,
                            attempt,
                            block_address: data.block_address,
                            block_bytes: data.block_bytes,
                            in_reply_to: data.in_reply_to,
                            asker: data.asker,
                            notification: words,
                        },
                        earlier,
                    )
                }
                12 => Packet::Receipt(Receipt { transaction, generation, attempt }),
                11 => {
                    let ack = |number: u16| Ack {
                        transaction: TransactionId(slot.wrapping_mul(number)),
                        generation: Generation(generation.0.wrapping_add(number.into())),
                        attempt,
                        bytes_only: flag != (number == 3),
                    };
                    let acks: Vec<Ack> = (0..=slot % MAX_ACKS as u16).map(ack).collect();
                    let packed = Acks::of(&acks);
                    assert!(packed.iter().eq(acks));
                    Packet::Acks(packed)
                }
                _ => Packet::ReadRequest(ReadRequest {
                    request,
                    watermark: RequestId(read.0),
                    attempt,
                    domain,
                    size_bytes: read.1,
                    source_address: read.2 >> 1,
                    destination_address: data.block_address,
                    notification: read.3.map(|first| Notification { first, ..words }),
                    class: (kind == 7).then_some(attempt.0 % CLASSES),
                }),
            }
        },
    )
}

fn emit(packet: &Packet<'_>, checksums: Checksums) -> Vec<u8> {
    let mut bytes = vec![0; 64 + 16384];
    let length = packet.emit(&mut bytes, checksums).expect("a well-formed packet");
    bytes.truncate(length);
    bytes
}

proptest! {
    #[test]
    fn control_packets_survive_the_round_trip(packet in control(), check in any::<bool>()) {
        let checksums = if check { Checksums::On } else { Checksums::Off };
        let bytes = emit(&packet, checksums);
        prop_assert!(bytes.len() <= tombolo_wire::MAX_BARE_PACKET_BYTES);
        prop_assert_eq!(Packet::parse(&bytes, checksums), Ok(packet));
    }

    #[test]
    fn data_packets_survive_the_round_trip(header in data(), fill in any::<u8>()) {
        let payload: Vec<u8> =
            (0..header.payload_bytes).map(|at| fill.wrapping_add(at as u8)).collect();
        let packet = Packet::Data(header, Payload::Intact(&payload));
        let bytes = emit(&packet, Checksums::On);
        prop_assert_eq!(Packet::parse(&bytes, Checksums::On), Ok(packet));
        // The way without a second copy gives the same bytes.
        let mut sealed = vec![0; bytes.len()];
        sealed[header.header_bytes()..].copy_from_slice(&payload);
        prop_assert_eq!(header.seal(&mut sealed, Checksums::On), Ok(bytes.len()));
        prop_assert_eq!(sealed, bytes);
        // And without checksums, the payload apart.
        let bytes = emit(&packet, Checksums::Off);
        let mut front = [0; 64];
        prop_assert_eq!(header.emit_unchecked(&mut front), Ok(header.header_bytes()));
        prop_assert_eq!(&front[..header.header_bytes()], &bytes[..header.header_bytes()]);
        let head = &bytes[..bytes.len().min(64)];
        prop_assert_eq!(DataHeader::peek(head, bytes.len()), Ok(Some((header, header.header_bytes()))));
        for length in [bytes.len() + 1, bytes.len().saturating_sub(1)] {
            prop_assert!(DataHeader::peek(&head[..head.len().min(length)], length).is_err());
        }
    }

    #[test]
    fn a_beginning_means_what_the_whole_packet_does(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        plausible: bool,
    ) {
        if plausible && bytes.len() > 2 {
            (bytes[0], bytes[1], bytes[2]) = (tombolo_wire::MAGIC, 1, bytes[2] & 7);
        }
        let peeked = DataHeader::peek(&bytes[..bytes.len().min(64)], bytes.len());
        match Packet::parse(&bytes, Checksums::Off) {
            Ok(Packet::Data(header, Payload::Intact(_))) => {
                prop_assert_eq!(peeked, Ok(Some((header, header.header_bytes()))));
            }
            Ok(Packet::Data(..)) | Err(_) => prop_assert!(!matches!(peeked, Ok(Some(_)))),
            Ok(_) => prop_assert_eq!(peeked, Ok(None)),
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in any::<u8>()) {
        let _ = Packet::parse(&bytes, Checksums::On);
        let _ = Packet::parse(&bytes, Checksums::Off);
        // And again past the first two gates, where the fields are read.
        if let [magic, kind_byte, ..] = bytes.as_mut_slice() {
            *magic = tombolo_wire::MAGIC;
            *kind_byte = kind % 12;
        }
        if let Ok(packet) = Packet::parse(&bytes, Checksums::Off) {
            // What parses can be written again, to the same bytes but the checksums.
            if !matches!(packet, Packet::Data(_, Payload::Damaged)) {
                let again = emit(&packet, Checksums::Off);
                prop_assert_eq!(Packet::parse(&again, Checksums::Off), Ok(packet));
            }
        }
    }

    #[test]
    fn truncation_is_an_error_or_a_damaged_payload(header in data(), cut in any::<usize>()) {
        let payload = vec![7; header.payload_bytes as usize];
        let bytes = emit(&Packet::Data(header, Payload::Intact(&payload)), Checksums::On);
        let short = &bytes[..cut % bytes.len()];
        match Packet::parse(short, Checksums::On) {
            Err(WireError::TooShort { .. }) => prop_assert!(short.len() < header.header_bytes()),
            other => prop_assert_eq!(other, Ok(Packet::Data(header, Payload::Damaged))),
        }
    }

    #[test]
    fn a_flipped_bit_is_detected(header in data(), control in control(), at in any::<usize>()) {
        let payload = vec![7; header.payload_bytes as usize];
        let mut bytes = emit(&Packet::Data(header, Payload::Intact(&payload)), Checksums::On);
        let bit = at % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        match Packet::parse(&bytes, Checksums::On) {
            Err(_) => prop_assert!(bit / 8 < header.header_bytes()),
            // The header names a block that can be refused, and it is the right one.
            other => prop_assert_eq!(other, Ok(Packet::Data(header, Payload::Damaged))),
        }
        let mut bytes = emit(&control, Checksums::On);
        let bit = at % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Packet::parse(&bytes, Checksums::On).is_err());
    }

    #[test]
    fn a_buffer_too_small_is_an_error(packet in control(), room in 0..200usize) {
        let whole = emit(&packet, Checksums::On);
        let mut bytes = vec![0; room];
        let outcome = packet.emit(&mut bytes, Checksums::On);
        prop_assert_eq!(outcome.is_ok(), room >= whole.len());
    }
}

#[test]
fn the_layout_is_what_the_documentation_draws() {
    let header = DataHeader {
        domain: Domain(0x0201),
        transaction: TransactionId(0x0403),
        generation: Generation(0x0807_0605),
        attempt: Attempt(9),
        block_address: 0x1817_1615_1413_1211,
        block_bytes: 0x0203,
        offset_bytes: 0x0100,
        payload_bytes: 0x0103,
        in_reply_to: Some(RequestId(0x2423_2221)),
        asker: Asker::SENDER,
        notification: NotificationMark::Elsewhere,
    };
    let payload = [0; 0x103];
    let bytes = emit(&Packet::Data(header, Payload::Intact(&payload)), Checksums::Off);
    assert_eq!(
        bytes[..40],
        [
            0xb1, 1, 0b011, 9, 0, 0, 0, 0, // prefix
            3, 4, 1, 2, 5, 6, 7, 8, // slot, domain, generation
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, // block address
            3, 2, 0, 1, 3, 1, 0, 0, // block, offset and payload lengths
            0, 0, 0, 0, 0x21, 0x22, 0x23, 0x24, // data CRC, in reply to
        ]
    );
    let ack = Ack {
        transaction: TransactionId(1),
        generation: Generation(2),
        attempt: Attempt(3),
        bytes_only: true,
    };
    let bytes = emit(&Packet::Ack(ack), Checksums::Off);
    assert_eq!(bytes, [0xb1, 3, 1, 3, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
    let mut earlier = EarlierBlocks::default();
    assert!(earlier.push(TransactionId(0x0201), Generation(0x0605_0403)));
    let notify = NotifyHeader {
        domain: Domain(1),
        transaction: TransactionId(2),
        generation: Generation(3),
        attempt: Attempt(4),
        block_address: 5,
        block_bytes: 6,
        in_reply_to: None,
        asker: Asker::SENDER,
        notification: Notification { address: 7, first: 8, last: 9 },
    };
    let bytes = emit(&Packet::NotifyAfter(notify, earlier), Checksums::Off);
    assert_eq!(bytes[..4], [0xb1, 11, 0b110, 4]);
    assert_eq!(bytes[28..32], [6, 0, 0, 0]);
    assert_eq!(bytes[64..], [1, 2, 3, 4, 5, 6]);
}

#[test]
fn acknowledgements_share_a_packet() {
    let ack = |number: u16| Ack {
        transaction: TransactionId(0x0201 + number),
        generation: Generation(0x0605_0403),
        attempt: Attempt(7),
        bytes_only: number == 0,
    };
    let all: Vec<Ack> = (0..10).map(ack).collect();
    assert!(Acks::of(&all).iter().eq(all[..MAX_ACKS].iter().copied()));
    assert_eq!(emit(&Packet::Acks(Acks::of(&all)), Checksums::On).len(), 64);
    let bytes = emit(&Packet::Acks(Acks::of(&all[..2])), Checksums::Off);
    let expected = [0xb1, 12, 2, 0, 0, 0, 0, 0, 1, 2, 7, 1, 3, 4, 5, 6, 2, 2, 7, 0, 3, 4, 5, 6];
    assert_eq!(bytes, expected);
    let parse = |at: usize, byte: u8, length: usize| {
        let mut bytes = [0; 80];
        bytes[..24].copy_from_slice(&expected);
        bytes[at] = byte;
        Packet::parse(&bytes[..length], Checksums::Off).map(|_| ())
    };
    assert_eq!(parse(0, 0xb1, 24), Ok(()));
    assert_eq!(parse(2, 0, 8), Err(WireError::Range));
    assert_eq!(parse(2, 8, 64), Err(WireError::Range));
    assert_eq!(parse(2, 3, 24), Err(WireError::TooShort { have: 24, need: 32 }));
    assert_eq!(parse(2, 1, 24), Err(WireError::TrailingBytes { extra: 8 }));
    assert_eq!(parse(3, 1, 24), Err(WireError::Reserved));
    assert_eq!(parse(19, 2, 24), Err(WireError::Reserved));
    assert_eq!(Packet::Acks(Acks::default()).emit(&mut [0; 64], Checksums::Off), Err(WireError::Range));
}

#[test]
fn a_list_of_earlier_blocks_has_a_limit() {
    let mut earlier = EarlierBlocks::default();
    for number in 0..MAX_EARLIER_BLOCKS {
        assert!(earlier.push(TransactionId(number as u16), Generation(1)));
    }
    assert!(!earlier.push(TransactionId(99), Generation(1)));
    assert_eq!(earlier.iter().map(|(slot, _)| slot.index()).collect::<Vec<_>>(), (0..15).collect::<Vec<_>>());
}

#[test]
fn impossible_ranges_are_refused() {
    let good = DataHeader {
        domain: Domain(0),
        transaction: TransactionId(0),
        generation: Generation(0),
        attempt: Attempt(0),
        block_address: 0,
        block_bytes: 1024,
        offset_bytes: 256,
        payload_bytes: 256,
        in_reply_to: None,
        asker: Asker::SENDER,
        notification: NotificationMark::None,
    };
    let outcome = |header: DataHeader| header.seal(&mut [0; 20_000], Checksums::On).map(|_| ());
    assert_eq!(outcome(good), Ok(()));
    assert_eq!(outcome(DataHeader { offset_bytes: 1, ..good }), Err(WireError::Range));
    assert_eq!(outcome(DataHeader { payload_bytes: 255, ..good }), Err(WireError::Range));
    assert_eq!(outcome(DataHeader { payload_bytes: 1024, ..good }), Err(WireError::Range));
    assert_eq!(outcome(DataHeader { block_bytes: 16640, ..good }), Err(WireError::Range));
    let high = DataHeader { block_address: u64::MAX - 1000, ..good };
    assert_eq!(outcome(high), Err(WireError::AddressOverflow));
    assert!(outcome(DataHeader { payload_bytes: u32::MAX, ..good }).is_err());
}

#[test]
fn a_packet_without_bytes_asks_for_a_block() {
    let probe = DataHeader {
        domain: Domain(1),
        transaction: TransactionId(2),
        generation: Generation(3),
        attempt: Attempt(4),
        block_address: 0x5000,
        block_bytes: 1000,
        offset_bytes: 0,
        payload_bytes: 0,
        in_reply_to: None,
        asker: Asker::SENDER,
        notification: NotificationMark::Elsewhere,
    };
    let packet = |header| Packet::Data(header, Payload::Intact(&[]));
    for checksums in [Checksums::On, Checksums::Off] {
        let bytes = emit(&packet(probe), checksums);
        assert_eq!(Packet::parse(&bytes, checksums), Ok(packet(probe)));
        let peeked = DataHeader::peek(&bytes, bytes.len());
        assert_eq!(peeked.ok(), Some(Some((probe, bytes.len()))));
        let words = NotificationMark::Here(Notification { address: 0, first: 1, last: 2 });
        for bad in [DataHeader { offset_bytes: 256, ..probe }, DataHeader { notification: words, ..probe }] {
            let bytes = emit(&packet(bad), checksums);
            assert_eq!(Packet::parse(&bytes, checksums), Err(WireError::Range));
        }
    }
}
