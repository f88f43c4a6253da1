//! Mailboxes.

use std::time::Duration;

use tombolo_client::{
    Domain, Failure, MAX_MAIL_BYTES, Mail, OpenError, SendError, Spec, Target, WaitError, Who,
};

use crate::harness::{Host, PATIENCE, pair, pattern, shm, udp};

/// Messages of all lengths, in order, from one domain to another.
fn correspond(near: &Domain, far: &Domain, node: u32, back: u32) {
    let mailbox = far.open_mailbox(8, &[Who::Anyone]).unwrap();
    assert_eq!(mailbox.try_receive(), Ok(None));
    let there = Target { node, domain: far.number() };
    for length in [1, 63, 64, 255, 256, 1000, MAX_MAIL_BYTES] {
        let bytes = pattern(length as u64, length);
        near.send(there, &bytes).unwrap().wait(PATIENCE).unwrap();
        let from = Target { node: back, domain: near.number() };
        assert_eq!(mailbox.receive(PATIENCE), Ok(Mail { from, bytes }));
    }
    // More than fit: the senders wait until there is room, and nothing is lost or doubled.
    std::thread::scope(|scope| {
        let receiver = scope
            .spawn(|| (0..200_u32).map(|_| mailbox.receive(PATIENCE).unwrap().bytes).collect::<Vec<_>>());
        for number in 0..200_u32 {
            near.send(there, &number.to_le_bytes()).unwrap().wait(PATIENCE).unwrap();
        }
        let received = receiver.join().unwrap();
        let wanted: Vec<_> = (0..200_u32).map(|number| number.to_le_bytes().to_vec()).collect();
        assert_eq!(received, wanted);
    });
    let short = Duration::from_millis(5);
    assert_eq!(mailbox.receive(short), Err(WaitError::NoMessage(short)));
}

#[test]
fn messages_come_at_home_and_from_another_node() {
    let (host, _) = Host::start(&shm(), &[]);
    correspond(&host.domain(1), &host.domain(2), 0, 0);
    for address in [shm(), udp()] {
        let hosts = pair(&address);
        correspond(&hosts[0].domain(3), &hosts[1].domain(4), 1, 1);
    }
}

#[test]
fn a_full_mailbox_makes_senders_wait() {
    let hosts = pair(&udp());
    let (near, beside, far) = (hosts[0].domain(1), hosts[1].domain(2), hosts[1].domain(3));
    let mailbox = far.open_mailbox(2, &[Who::Anyone]).unwrap();
    let away: Vec<_> =
        (0..6_u8).map(|number| near.send(Target { node: 1, domain: 3 }, &[number]).unwrap()).collect();
    let home: Vec<_> =
        (6..12_u8).map(|number| beside.send(Target { node: 0, domain: 3 }, &[number]).unwrap()).collect();
    let mut seen: Vec<_> = (0..12).map(|_| mailbox.receive(PATIENCE).unwrap().bytes[0]).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..12).collect::<Vec<_>>());
    for transfer in away.iter().chain(&home) {
        transfer.wait(PATIENCE).unwrap();
    }
    assert_eq!(mailbox.try_receive(), Ok(None));
}

#[test]
fn only_senders_that_are_meant_get_through() {
    let hosts = pair(&shm());
    let (friend, stranger, far) = (hosts[0].domain(1), hosts[0].domain(2), hosts[1].domain(7));
    let host = &hosts[0];
    let closed = host.domain(3);
    let refused = |sender: &Domain, to: Target| {
        let outcome = sender.send(to, b"let me in").unwrap().wait(PATIENCE);
        assert!(matches!(outcome, Err(WaitError::Failed(Failure::Refused { .. }))), "{outcome:?}");
    };
    // No mailbox, then one that is for domain 1 of this node only.
    refused(&friend, Target { node: 0, domain: 3 });
    let mailbox = closed.open_mailbox(4, &[Who::Program(1)]).unwrap();
    friend.send(Target { node: 0, domain: 3 }, b"hello").unwrap().wait(PATIENCE).unwrap();
    refused(&stranger, Target { node: 0, domain: 3 });
    refused(&far, Target { node: 1, domain: 3 });
    assert_eq!(mailbox.receive(PATIENCE).unwrap().bytes, b"hello");
    assert_eq!(mailbox.try_receive(), Ok(None));
    assert!(matches!(closed.open_mailbox(4, &[]), Err(OpenError::Refused(_))), "it has one");
    assert!(matches!(friend.open_mailbox(3, &[]), Err(OpenError::Refused(_))), "no power of two");
    assert!(matches!(friend.open_mailbox(1 << 20, &[]), Err(OpenError::Refused(_))), "too large");
    let to = Target { node: 0, domain: 3 };
    for length in [0, MAX_MAIL_BYTES + 1] {
        let message = vec![0; length];
        assert!(matches!(friend.send(to, &message), Err(SendError::Length(_))), "{length}");
    }

    // A write to where messages go would name another sender.
    let memory = stranger.allocate(65536, &[]).unwrap();
    for address in [1 << 63, (1 << 63) + 16 * 1024, (1 << 63) - 16 * 1024, (1 << 63) - 4096 + 16 * 1024] {
        let spec = Spec::new(memory.address(), address, 32 * 1024);
        let outcome = stranger.write(to, spec).unwrap().wait(PATIENCE);
        assert_eq!(outcome, Err(WaitError::Failed(Failure::BadDescriptor)), "{address:#x}");
    }
    assert_eq!(mailbox.try_receive(), Ok(None));
}
