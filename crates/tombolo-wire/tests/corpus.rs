//! Replays the fuzzer's corpus (`tests/corpus`) in an ordinary test run, so that
//! what the fuzzer once found stays found without a fuzzer. `TOMBOLO_BLESS=1`
//! writes one sample of each kind anew.

use std::fs;
use std::path::PathBuf;
use tombolo_wire::{
    Ack, Acks, Asker, Atomic, AtomicAck, AtomicOperation, Attempt, Checksums, DataHeader, Domain,
    EarlierBlocks, Generation, Nack, NackCode, Notification, NotificationMark, NotifyHeader, Packet, Payload,
    ReadAccept, ReadReject, ReadRequest, Receipt, Refusal, RequestId, Resume, TransactionId, fuzzing,
};

fn samples() -> Vec<(&'static str, Packet<'static>)> {
    let transaction = TransactionId(17);
    let generation = Generation(0xffff_fffe);
    let attempt = Attempt(1);
    let domain = Domain(3);
    let request = RequestId(42);
    let notification = Notification { address: 0x7000, first: 1, last: 2 };
    let data = DataHeader {
        domain,
        transaction,
        generation,
        attempt,
        block_address: 0x4_0000_0100,
        block_bytes: 300,
        offset_bytes: 256,
        payload_bytes: 44,
        in_reply_to: None,
        asker: Asker::SENDER,
        notification: NotificationMark::None,
    };
    let carrying =
        DataHeader { notification: NotificationMark::Here(notification), in_reply_to: Some(request), ..data };
    let notify = NotifyHeader {
        domain,
        transaction,
        generation,
        attempt,
        block_address: 0x4_0000_0100,
        block_bytes: 300,
        in_reply_to: None,
        asker: Asker::SENDER,
        notification,
    };
    let mut earlier = EarlierBlocks::default();
    for slot in 3..6 {
        assert!(earlier.push(TransactionId(slot), Generation(7)));
    }
    let absent = Refusal { code: NackCode::SlaveError, address: Some(0x7f00_1234_5678), missing: 0b101 };
    let ack = Ack { transaction, generation, attempt, bytes_only: false };
    vec![
        ("data", Packet::Data(data, Payload::Intact(&[0x5a; 44]))),
        ("data-notification", Packet::Data(carrying, Payload::Intact(&[0xa5; 44]))),
        ("notify", Packet::Notify(notify)),
        ("ack", Packet::Ack(ack)),
        (
            "nack",
            Packet::Nack(Nack { transaction, generation, attempt, refusal: NackCode::BufferFull.into() }),
        ),
        ("nack-address", Packet::Nack(Nack { transaction, generation, attempt, refusal: absent })),
        ("resume", Packet::Resume(Resume { transaction, generation, attempt, domain })),
        (
            "read-request",
            Packet::ReadRequest(ReadRequest {
                request,
                watermark: RequestId(40),
                attempt,
                domain,
                size_bytes: 4096,
                source_address: 0x1000,
                destination_address: 0x2000,
                notification: Some(notification),
                class: Some(1),
            }),
        ),
        ("read-reject", Packet::ReadReject(ReadReject { request, refusal: NackCode::NoContext.into() })),
        ("read-reject-address", Packet::ReadReject(ReadReject { request, refusal: absent })),
        ("read-accept", Packet::ReadAccept(ReadAccept { request })),
        (
            "atomic",
            Packet::Atomic(Atomic {
                domain,
                transaction,
                generation,
                attempt,
                address: 0x1008,
                operation: AtomicOperation::CompareSwap { compare: 1, swap: 2 },
            }),
        ),
        ("atomic-ack", Packet::AtomicAck(AtomicAck { transaction, generation, attempt, before: 1 })),
        ("notify-after", Packet::NotifyAfter(notify, earlier)),
        ("receipt", Packet::Receipt(Receipt { transaction, generation, attempt })),
        ("acks", Packet::Acks(Acks::of(&[ack, Ack { bytes_only: true, ..ack }]))),
    ]
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

#[test]
fn samples_have_not_changed() {
    for (name, packet) in samples() {
        let mut bytes = [0; 200];
        let length = packet.emit(&mut bytes, Checksums::On).expect("a well-formed packet");
        let path = folder().join(name);
        if std::env::var("TOMBOLO_BLESS").is_ok_and(|value| value == "1") {
            fs::write(&path, &bytes[..length]).expect("the corpus can be written");
        }
        let kept = fs::read(&path).expect("the corpus holds a sample of every kind");
        assert_eq!(kept, &bytes[..length], "the format of {name} changed: raise the version");
        assert_eq!(Packet::parse(&kept, Checksums::On), Ok(packet));
    }
}

#[test]
fn the_corpus_does_no_harm() {
    for entry in fs::read_dir(folder()).expect("the corpus is there") {
        let bytes = fs::read(entry.expect("an entry").path()).expect("a file");
        // Every prefix and every flipped byte of every sample.
        for end in 0..=bytes.len() {
            fuzzing::packet(&bytes[..end]);
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            fuzzing::packet(&damaged);
        }
    }
}
