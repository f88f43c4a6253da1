//! What reads control messages and names, and what is done about a hostile neighbour's, fed with the fuzzers'
//! corpus and random bytes.

use tombolo_node::Checksum;
use tombolo_node::fuzzing::{
    self, Carriage, Life, Message, MessageV1, NamedSegment, NodeIdentity, Reply, Request,
};
use tombolo_wire::{
    Asker, Atomic, AtomicOperation, Attempt, Checksums, DataHeader, Domain, Generation, Notification,
    NotificationMark, Packet, Payload, ReadRequest, RequestId, TransactionId,
};

#[path = "../../../fuzz/replay.rs"]
mod replay;

fn both(name: &str, target: replay::Target) {
    replay::corpus(name, target);
    replay::random(name, target);
}

#[test]
fn control_messages() {
    let name = || "a name".to_owned();
    let checksum = Checksum([7; 32]);
    let found = || NamedSegment { name: name(), bytes: 5, checksum, age_s: 3 };
    let carriage = Carriage {
        to: Some(NodeIdentity { key: Some([5; 32]), life: Life([6; 16]) }),
        source_domain: 0x8001,
        source_address: 1 << 32,
        destination_domain: 0x8002,
        destination_address: 1 << 32,
        size_bytes: 4096,
        notification: Some([8, 1, 2]),
        class: Some(1),
    };
    let part = r#"{"name": "a name", "version": "0.1.0", "lend_bytes": 18446744073709551615, "listens": ["udp:127.0.0.1:7000"],
        "borrowers": [{"name": "b", "process_id": 3, "links": [{"path": 0, "answers": true, "round_trip_ns": null}]}],
        "neighbours": [{"addresses": ["udp:127.0.0.1:7000"], "state": "silent", "failure": "\u001b[2Jno"}],
        "programs": [{"domain": 7, "has_mailbox": true}], "counters": {"blocks_sent": 9}, "later": [null, {"x": 1.5}]}"#;
    let part = part.to_owned();
    for (sample, request) in [
        ("introduce", Request::Introduce { name: name(), life: Life([6; 16]) }),
        ("lend", Request::Lend { bytes: 1 << 40 }),
        ("release", Request::Release { segment: 3 }),
        ("status", Request::Status { from: 1 << 32, counters: true }),
        ("carry", Request::Carry(Box::new(carriage))),
        ("create", Request::Create { bytes: 5 }),
        ("publish", Request::Publish { segment: 3, name: name(), checksum }),
        ("find", Request::Find { name: name() }),
        ("open", Request::Open { name: name() }),
        ("list", Request::List { after: Some(name()) }),
        ("path-token", Request::PathToken),
        ("be-path", Request::BePath { token: [9; 16] }),
        ("delete", Request::Delete { name: name() }),
        ("identify", Request::Identify),
        ("map-window", Request::MapWindow { domain: 0x8001, address: 1 << 56 }),
        ("is-ending", Request::IsEnding),
        (
            "let-carry",
            Request::LetCarry { carrier: NodeIdentity { key: Some([7; 32]), life: Life([6; 16]) } },
        ),
        ("write-for", Request::WriteFor { asker: NodeIdentity { key: None, life: Life([5; 16]) } }),
        ("join", Request::Join { name: name(), life: Life([6; 16]), insists: true }),
    ] {
        let message = Message::V1(MessageV1::Ask { number: 300, request });
        replay::sample("control", sample, &message.encode());
    }
    for (sample, reply) in [
        ("done", Reply::Done),
        ("asker", Reply::Asker(513)),
        ("lent", Reply::Lent { segment: 1 }),
        ("too-much", Reply::TooMuch { free_bytes: 1 }),
        ("status-is", Reply::Status { part, next: Some(7) }),
        ("failed", Reply::Failed("no".into())),
        ("window", Reply::Window { bytes: 4096, is_writable: true }),
        ("carried", Reply::Carried(Some(0x105))),
        ("introduced", Reply::Introduced { name: name(), life: Life([6; 16]) }),
        ("found", Reply::Found(found())),
        ("opened", Reply::Opened { segment: 1, found: found() }),
        ("names", Reply::Names { segments: vec![found(), found()], more: true }),
        ("path-token-is", Reply::PathToken([9; 16])),
        ("no-such-name", Reply::NoSuchName),
        ("mismatch", Reply::Mismatch { checksum }),
        ("ending", Reply::Ending { within_s: Some(30) }),
        ("joined-already", Reply::JoinedAlready { life: Life([6; 16]) }),
    ] {
        let message = Message::V1(MessageV1::Answer { number: 5, reply });
        replay::sample("control", sample, &message.encode());
    }
    // A list of as many as a length can say.
    replay::sample(
        "control",
        "endless-names",
        &[0, 1, 5, 9, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F],
    );
    both("control", fuzzing::control);
}

/// What a hostile neighbour may ask for: all.
const ALL: u8 = 31;
/// On its other link.
const OTHER_LINK: u8 = 8;

/// A packet.
fn packet(packet: &Packet<'_>) -> (u8, Vec<u8>) {
    let mut bytes = [0; 256];
    let length = packet.emit(&mut bytes, Checksums::Off).expect("a packet");
    (0, bytes[..length].to_vec())
}

/// The same packet, to the memory of the node's program.
fn at_program((_, bytes): (u8, Vec<u8>)) -> (u8, Vec<u8>) {
    (1, bytes)
}

fn write(domain: u16, address: u64, number: u16, notification: NotificationMark) -> (u8, Vec<u8>) {
    let header = DataHeader {
        domain: Domain(domain),
        transaction: TransactionId(number),
        generation: Generation(1),
        attempt: Attempt(0),
        block_address: address,
        block_bytes: 16,
        offset_bytes: 0,
        payload_bytes: 16,
        in_reply_to: None,
        asker: Asker::SENDER,
        notification,
    };
    packet(&Packet::Data(header, Payload::Intact(&[1; 16])))
}

/// An answer to a read that nobody has made.
fn answer(domain: u16, address: u64, request: u32) -> (u8, Vec<u8>) {
    let header = DataHeader {
        domain: Domain(domain),
        transaction: TransactionId(5),
        generation: Generation(1),
        attempt: Attempt(0),
        block_address: address,
        block_bytes: 16,
        offset_bytes: 0,
        payload_bytes: 16,
        in_reply_to: Some(RequestId(request)),
        asker: Asker::SENDER,
        notification: NotificationMark::None,
    };
    packet(&Packet::Data(header, Payload::Intact(&[1; 16])))
}

fn read(domain: u16, source_address: u64, request: u32) -> (u8, Vec<u8>) {
    packet(&Packet::ReadRequest(ReadRequest {
        request: RequestId(request),
        watermark: RequestId(0),
        attempt: Attempt(0),
        domain: Domain(domain),
        size_bytes: 64,
        source_address,
        destination_address: 0,
        notification: None,
        class: None,
    }))
}

fn change(domain: u16, address: u64, operation: AtomicOperation) -> (u8, Vec<u8>) {
    packet(&Packet::Atomic(Atomic {
        domain: Domain(domain),
        transaction: TransactionId(3),
        generation: Generation(1),
        attempt: Attempt(0),
        address,
        operation,
    }))
}

fn ask(number: u32, request: Request) -> (u8, Vec<u8>) {
    (2, Message::V1(MessageV1::Ask { number, request }).encode())
}

fn carry(source_domain: u16, destination_domain: u16, source_address: u64) -> (u8, Vec<u8>) {
    let carriage = Carriage {
        to: None,
        source_domain,
        source_address,
        destination_domain,
        destination_address: 0,
        size_bytes: 64,
        notification: Some([0, 1, 2]),
        class: None,
    };
    // With the addresses at the program's memory, and a descriptor.
    (3, ask(7, Request::Carry(Box::new(carriage))).1)
}

/// The permissions of a hostile neighbour and its steps.
fn attack(permitted: u8, steps: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = vec![permitted];
    for (kind, said) in steps {
        bytes.push(*kind);
        bytes.extend((said.len() as u16).to_le_bytes());
        bytes.extend(said);
    }
    bytes
}

fn on_the_other_link((kind, said): (u8, Vec<u8>)) -> (u8, Vec<u8>) {
    (kind | OTHER_LINK, said)
}

#[test]
fn a_hostile_neighbour() {
    let name = || "kept".to_owned();
    let life = Life([6; 16]);
    let none = NotificationMark::None;
    let words = |address| NotificationMark::Here(Notification { address, first: 1, last: 2 });
    let nothing = Vec::new;
    let public = 4 << 20;
    for (sample, bytes) in [
        ("buffers", attack(ALL, &[write(0, 0, 1, none), answer(0, 64, 0), read(0, 0, 1)])),
        ("segments-of-others", attack(ALL, &[write(1, 0, 1, none), read(1, 0, 1), write(2, 8, 2, words(0))])),
        (
            "programs",
            attack(
                ALL,
                &[
                    at_program(write(0x8001, 0, 1, none)),
                    at_program(read(0x8001, 0, 1)),
                    at_program(read(0x8001, public, 2)),
                    at_program(change(0x8001, public, AtomicOperation::FetchAdd(1))),
                    write(0x8001, (1 << 63) + 16 * 1024, 4, none),
                ],
            ),
        ),
        (
            "lent",
            attack(
                ALL,
                &[
                    ask(1, Request::Lend { bytes: 4096 }),
                    write(3, 0, 1, words(4080)),
                    write(3, 4088, 2, none),
                    read(3, u64::MAX - 64, 1),
                    read(3, 0, 2),
                    change(3, 8, AtomicOperation::CompareSwap { compare: 0, swap: 1 }),
                    (7, nothing()),
                    (5, nothing()),
                    (6, nothing()),
                    ask(2, Request::Release { segment: 3 }),
                ],
            ),
        ),
        (
            "published",
            attack(
                ALL,
                &[
                    ask(1, Request::Create { bytes: 5 }),
                    ask(2, Request::Publish { segment: 3, name: name(), checksum: Checksum([7; 32]) }),
                    ask(3, Request::Publish { segment: 2, name: name(), checksum: Checksum([7; 32]) }),
                    ask(4, Request::Delete { name: name() }),
                ],
            ),
        ),
        (
            "opened",
            attack(
                2,
                &[
                    ask(1, Request::Open { name: name() }),
                    read(3, 0, 1),
                    write(3, 0, 1, none),
                    ask(2, Request::Delete { name: name() }),
                ],
            ),
        ),
        (
            "unpermitted",
            attack(
                0,
                &[
                    ask(1, Request::Open { name: name() }),
                    ask(2, Request::Lend { bytes: 4096 }),
                    ask(3, Request::Create { bytes: 1 }),
                    read(3, 0, 1),
                ],
            ),
        ),
        (
            "paths",
            attack(
                ALL,
                &[
                    ask(1, Request::Introduce { name: name(), life }),
                    ask(2, Request::PathToken),
                    on_the_other_link((4, nothing())),
                    on_the_other_link(ask(3, Request::Lend { bytes: 4096 })),
                    on_the_other_link(write(3, 0, 1, none)),
                    ask(4, Request::Introduce { name: name(), life: Life([7; 16]) }),
                ],
            ),
        ),
        (
            "carried",
            attack(ALL, &[carry(0x8001, 0x8001, public), carry(0x8001, 3, public), carry(1, 0x8001, 0)]),
        ),
        (
            "joins",
            attack(
                ALL,
                &[
                    ask(1, Request::Join { name: name(), life, insists: true }),
                    on_the_other_link(ask(2, Request::Join { name: name(), life, insists: false })),
                    ask(3, Request::Status { from: 0, counters: true }),
                    ask(4, Request::List { after: None }),
                    ask(5, Request::Find { name: name() }),
                    ask(6, Request::Identify),
                ],
            ),
        ),
    ] {
        replay::sample("hostile", sample, &bytes);
    }
    both("hostile", fuzzing::hostile);
}

#[test]
fn names_of_segments() {
    for (sample, text) in
        [("file", "data.tar.gz"), ("parent", ".."), ("path", "a/b"), ("accents", "données 数据")]
    {
        replay::sample("segment_name", sample, text.as_bytes());
    }
    both("segment_name", fuzzing::segment_name);
}
