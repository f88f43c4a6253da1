//! Nodes inside programs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_client::{
    Domain, Embedded, Embedding, Failure, Grant, Notification, Spec, Target, WaitError, Who,
};
use tombolo_node::{Address, Security};
use tombolo_wire::NackCode;

use crate::harness::{PATIENCE, pattern, shm, udp};

fn start(name: &str, listen: Address) -> Embedded {
    Embedded::start(&Embedding { name: name.into(), listen, security: Security::Insecure }).unwrap()
}

/// Checked writes and reads, words and messages, between a program with a node inside and another.
fn exchange(near: &Embedded, one: &Domain, node: u32, other: &Domain) {
    let mine = one.allocate(1 << 20, &[Grant::all(Who::Anyone)]).unwrap();
    let theirs = other.allocate(1 << 20, &[Grant::all(Who::Anyone)]).unwrap();
    let there = Target { node, domain: other.number() };
    let mailbox = other.open_mailbox(16, &[Who::Anyone]).unwrap();
    for (round, length) in [8, 64, 5000, 100_000, 500_000].into_iter().enumerate() {
        let bytes = pattern(round as u64 + 1, length);
        mine.write(0, &bytes).unwrap();
        let last = round as u64 + 1;
        let words = Notification { address: theirs.address() + (1 << 20) - 16, first: 0, last };
        let spec = Spec::new(mine.address(), theirs.address(), length as u32).notify(words);
        one.write(there, spec).unwrap().wait(PATIENCE).unwrap();
        assert_eq!(theirs.word((1 << 20) - 8).unwrap().load(Ordering::Acquire), last);
        let mut found = vec![0; length];
        theirs.read(0, &mut found).unwrap();
        assert!(found == bytes, "{length}");
        let spec = Spec::new(theirs.address(), mine.address() + (1 << 19), length as u32);
        one.read(there, spec).unwrap().wait(PATIENCE).unwrap();
        mine.read(1 << 19, &mut found).unwrap();
        assert!(found == bytes, "{length} back");
        let before = one.fetch_add(there, theirs.address() + (1 << 20) - 8, 1).unwrap().wait(PATIENCE);
        assert_eq!(before, Ok(last));
        one.send(there, &[round as u8]).unwrap().wait(PATIENCE).unwrap();
        assert_eq!(mailbox.receive(PATIENCE).unwrap().bytes, [round as u8]);
    }
    near.progress();
}

#[test]
fn a_node_inside_goes_on_while_its_program_waits() {
    for address in [shm(), udp()] {
        let far = start("far", address);
        let near = start("near", shm());
        let node = near.join(far.address(), &Security::Insecure, PATIENCE).unwrap();
        let (one, other) = (near.open(Some(1)).unwrap(), far.open(Some(2)).unwrap());
        exchange(&near, &one, node, &other);
        // At home, too.
        let third = near.open(Some(3)).unwrap();
        exchange(&near, &one, 0, &third);
    }
}

/// The other program polls for a word, as in a ping-pong.
#[test]
fn two_programs_that_poll_pass_a_word() {
    for address in [shm(), udp()] {
        let far = start("far", address);
        let near = start("near", shm());
        let node = near.join(far.address(), &Security::Insecure, PATIENCE).unwrap();
        let domains = [near.open(Some(1)).unwrap(), far.open(Some(2)).unwrap()];
        let memories =
            domains.each_ref().map(|domain| domain.allocate(4096, &[Grant::all(Who::Anyone)]).unwrap());
        let over = AtomicBool::new(false);
        let begin = Instant::now();
        let write = |side: usize, turn: u64| {
            let to = Target { node: [node, 1][side], domain: [2, 1][side] };
            let words = Notification { address: memories[1 - side].address(), first: 0, last: turn };
            domains[side]
                .write(to, Spec::new(memories[side].address(), memories[1 - side].address(), 0).notify(words))
                .unwrap()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seen = 0;
                while !over.load(Ordering::Relaxed) && begin.elapsed() < PATIENCE {
                    far.progress();
                    let turn = memories[1].word(8).unwrap().load(Ordering::Acquire);
                    if turn != seen {
                        seen = turn;
                        write(1, turn).wait(PATIENCE).unwrap();
                    }
                }
            });
            for turn in 1..=500 {
                let transfer = write(0, turn);
                while memories[0].word(8).unwrap().load(Ordering::Acquire) != turn {
                    near.progress();
                    assert!(begin.elapsed() < PATIENCE, "turn {turn}");
                }
                transfer.wait(PATIENCE).unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_node_inside_serves_while_its_program_does_something_else() {
    let far = start("far", udp());
    let near = start("near", shm());
    let node = near.join(far.address(), &Security::Insecure, PATIENCE).unwrap();
    let (one, other) = (near.open(Some(1)).unwrap(), far.open(Some(2)).unwrap());
    for _ in 0..100 {
        far.progress();
    }
    let theirs = other.allocate(4096, &[Grant::all(Who::Anyone)]).unwrap();
    for _ in 0..3 {
        // Long enough for its own thread to take over; nobody polls at the far side any more.
        std::thread::sleep(Duration::from_millis(20));
        let there = Target { node, domain: 2 };
        one.fetch_add(there, theirs.address(), 1).unwrap().wait(PATIENCE).unwrap();
    }
    assert_eq!(theirs.word(0).unwrap().load(Ordering::Acquire), 3);
}

/// The other side has its answer though nobody there polls any more.
#[test]
fn what_was_taken_last_is_answered_before_a_node_goes() {
    for address in [shm, udp] {
        for round in 0..8 {
            let far = start("far", address());
            let near = start("near", shm());
            let node = near.join(far.address(), &Security::Insecure, PATIENCE).unwrap();
            let (one, other) = (near.open(Some(1)).unwrap(), far.open(Some(2)).unwrap());
            let mine = one.allocate(4096, &[]).unwrap();
            let theirs = other.allocate(4096, &[Grant::all(Who::Anyone)]).unwrap();
            let words = Notification { address: theirs.address() + 4080, first: 0, last: 1 };
            let spec = Spec::new(mine.address(), theirs.address(), 64).notify(words);
            let sent = one.write(Target { node, domain: 2 }, spec).unwrap();
            let begin = Instant::now();
            while theirs.word(4088).unwrap().load(Ordering::Acquire) == 0 {
                assert!(begin.elapsed() < PATIENCE);
                far.progress();
            }
            drop((theirs, other, far));
            assert_eq!(sent.wait(PATIENCE), Ok(()), "round {round}");
        }
    }
}

#[test]
fn no_address_is_given_twice() {
    let far = start("far", shm());
    let near = start("near", shm());
    let node = near.join(far.address(), &Security::Insecure, PATIENCE).unwrap();
    let one = near.open(Some(1)).unwrap();
    let mine = one.allocate(4096, &[]).unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let other = far.open(Some(2)).unwrap();
        let theirs = [4096, 4096].map(|bytes| other.allocate(bytes, &[Grant::all(Who::Anyone)]).unwrap());
        let write = |address| {
            let spec = Spec::new(mine.address(), address, 64);
            one.write(Target { node, domain: 2 }, spec).unwrap().wait(PATIENCE)
        };
        for memory in &theirs {
            assert_eq!(write(memory.address()), Ok(()));
        }
        // What was meant for those who had this number before finds nothing.
        for address in &seen {
            let refused = Err(WaitError::Failed(Failure::Refused {
                code: NackCode::DecodeError,
                page: Some(address & !4095),
            }));
            assert_eq!(write(*address), refused);
        }
        seen.extend(theirs.iter().map(|memory| memory.address()));
    }
}
