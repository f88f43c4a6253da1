//! What reads control messages and names, fed with the fuzzers' corpus and random bytes.

use tombolo_node::Checksum;
use tombolo_node::fuzzing::{
    self, Borrower, Carriage, Life, Message, MessageV1, NamedSegment, NodeIdentity, NodeStatus, Reply,
    Request,
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
    let status = NodeStatus {
        name: name(),
        version: "0.1.0".into(),
        process_id: 7,
        uptime_s: 1,
        lend_bytes: u64::MAX,
        lent_bytes: 0,
        borrowers: vec![Borrower {
            name: name(),
            process_id: Some(3),
            address: Some("udp:127.0.0.1:7000".into()),
            key: Some("a key".into()),
            bytes: 3,
            segments: 1,
        }],
        counters: vec![("blocks_sent".into(), 9)],
    };
    for (sample, request) in [
        ("introduce", Request::Introduce { name: name(), life: Life([6; 16]) }),
        ("lend", Request::Lend { bytes: 1 << 40 }),
        ("release", Request::Release { segment: 3 }),
        ("status", Request::Status { from: 1 << 32 }),
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
        ("join", Request::Join { name: name(), life: Life([6; 16]), insists: true }),
    ] {
        let message = Message::V1(MessageV1::Ask { number: 300, request });
        replay::sample("control", sample, &message.encode());
    }
    for (sample, reply) in [
        ("done", Reply::Done),
        ("lent", Reply::Lent { segment: 1 }),
        ("too-much", Reply::TooMuch { free_bytes: 1 }),
        ("status-is", Reply::Status { status: Box::new(status), next: Some(7) }),
        ("failed", Reply::Failed("no".into())),
        ("carried", Reply::Carried(Some(0x105))),
        ("introduced", Reply::Introduced { name: name(), life: Life([6; 16]) }),
        ("found", Reply::Found(found())),
        ("opened", Reply::Opened { segment: 1, found: found() }),
        ("names", Reply::Names { segments: vec![found(), found()], more: true }),
        ("path-token-is", Reply::PathToken([9; 16])),
        ("no-such-name", Reply::NoSuchName),
        ("mismatch", Reply::Mismatch { checksum }),
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

#[test]
fn names_of_segments() {
    for (sample, text) in
        [("file", "data.tar.gz"), ("parent", ".."), ("path", "a/b"), ("accents", "données 数据")]
    {
        replay::sample("segment_name", sample, text.as_bytes());
    }
    both("segment_name", fuzzing::segment_name);
}
