//! Everything here that reads bytes of the other side, fed with the fuzzers' corpus and random bytes.

use tombolo_channel::{
    Descriptor, FaultRegisters, Faults, Grant, Message, PeerLife, PeerStatus, Reply, Request, Target, Touch,
    Who, Work, encode, fuzzing,
};
use tombolo_wire::{AtomicOperation, Notification};

#[path = "../../../fuzz/replay.rs"]
mod replay;

fn both(name: &str, target: replay::Target) {
    replay::corpus(name, target);
    replay::random(name, target);
}

#[test]
fn messages() {
    let ask = |request| Message::AskV2 { number: 7, request };
    let answer = |reply| Message::AnswerV2 { number: 7, reply };
    let grants = vec![Grant::all(Who::Anyone), Grant::read(Who::Program(7)), Grant::write(Who::Node(9))];
    let registers =
        FaultRegisters { permission_fault: true, address: 0x7f00_0000_1000, ..Default::default() };
    let faults = Faults { touch: Touch::Ahead(4), terminates: true };
    for (name, message) in [
        ("open", ask(Request::Open { domain: Some(3) })),
        ("allocate", ask(Request::Allocate { bytes: 1 << 20, grants })),
        ("free", ask(Request::Free { address: 1 << 32 })),
        ("peers", ask(Request::Peers)),
        ("open-mailbox", ask(Request::OpenMailbox { messages: 16, senders: vec![Who::Program(1)] })),
        ("opened", answer(Reply::Opened { domain: 3 })),
        ("allocated", answer(Reply::Allocated { address: 1 << 32 })),
        ("peers-are", answer(Reply::Peers(vec![PeerStatus { node: 1, name: "one".into() }]))),
        ("lives", ask(Request::Lives)),
        ("lives-are", answer(Reply::Lives(vec![PeerLife { node: 1, life: [5; 16] }]))),
        ("open-access", ask(Request::OpenAccess)),
        ("access", answer(Reply::Access)),
        ("register", ask(Request::RegisterV2 { address: 4096, bytes: 8192, grants: vec![], faults })),
        ("take-fault-registers", ask(Request::TakeFaultRegisters)),
        ("fault-registers", answer(Reply::FaultRegisters(registers))),
        (
            "allocate-window",
            ask(Request::AllocateWindow { bytes: 4096, grants: vec![Grant::read(Who::Anyone)] }),
        ),
        ("open-window", ask(Request::OpenWindow { address: 1 << 56 })),
        ("map-window", ask(Request::MapWindow { target: Target { node: 1, domain: 2 }, address: 1 << 56 })),
        ("revoke-window", ask(Request::RevokeWindow { address: 1 << 56 })),
        ("window-moved", ask(Request::WindowMoved { address: 1 << 56 })),
        ("window", answer(Reply::Window { bytes: 4096, is_writable: true })),
        ("failed", answer(Reply::Failed("no".into()))),
        ("open-first-version", Message::AskV1(Request::Open { domain: Some(3) })),
        ("failed-first-version", Message::AnswerV1(Reply::Failed("no".into()))),
        ("wake", Message::WakeV1),
        ("ended", Message::EndedV1),
    ] {
        replay::sample("message", name, &encode(&message));
    }
    both("message", fuzzing::message);
}

#[test]
fn descriptors() {
    let plain = Descriptor::new(1 << 32, 5 << 32, 4096, Target { node: 1, domain: 2 });
    let notification = Some(Notification { address: 8, first: 1, last: 2 });
    let atomic = |operation| Descriptor { work: Work::Atomic(operation), size_bytes: 8, ..plain };
    for (name, descriptor) in [
        ("plain", plain),
        ("notified", Descriptor { notification, class: Some(2), ..plain }),
        ("carried", Descriptor { source: Some(Target { node: 3, domain: 4 }), ..plain }),
        ("mail", Descriptor { work: Work::Mail, size_bytes: 5, ..plain }),
        ("add", atomic(AtomicOperation::FetchAdd(5))),
        ("swap", atomic(AtomicOperation::CompareSwap { compare: 1, swap: 2 })),
    ] {
        let bytes: Vec<u8> = descriptor.encode().iter().flat_map(|word| word.to_le_bytes()).collect();
        replay::sample("descriptor", name, &bytes);
    }
    both("descriptor", fuzzing::descriptor);
}

#[test]
fn mailboxes() {
    let box_of = |written: u64, taken: u64, from: u64, length: u64| {
        let mut bytes = [0; 192];
        for (offset, word) in [(0, written), (64, taken), (128, from), (136, length)] {
            bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    };
    for (name, bytes) in [
        ("one", box_of(1, 0, 7 | 9 << 32, 5)),
        ("long", box_of(1, 0, 1, u64::MAX)),
        ("wild-taken", box_of(3, u64::MAX, 0, 1)),
        ("wild-written", box_of(u64::MAX - 1, 0, 0, 1025)),
    ] {
        replay::sample("mailbox", name, &bytes);
    }
    both("mailbox", fuzzing::mailbox);
}
