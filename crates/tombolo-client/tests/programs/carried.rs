//! Transfers between two domains, neither of them the poster's.

use std::sync::atomic::Ordering;

use tombolo_client::{Domain, Failure, Grant, Memory, Notification, Spec, Target, WaitError, Who};
use tombolo_node::Address;
use tombolo_wire::NackCode;

use crate::harness::{Host, PATIENCE, pattern, shm, udp};

const SIZE: usize = (1 << 20) + 17;

/// Three nodes, each of which knows the others by these numbers: `numbers[here][there]`.
struct Triangle {
    hosts: [Host; 3],
    numbers: [[u32; 3]; 3],
}

impl Triangle {
    fn new(kind: fn() -> Address) -> Self {
        let (one, first) = Host::start_named("one", &kind(), &[]);
        let (two, second) = Host::start_named("two", &kind(), &[&first]);
        let (three, _) = Host::start_named("three", &shm(), &[&first, &second]);
        let hosts = [one, two, three];
        let numbers = [0, 1, 2].map(|here: usize| {
            ["one", "two", "three"].map(|name| {
                let peers = hosts[here].any_domain().peers().unwrap();
                peers.iter().find(|peer| peer.name == name).unwrap().node
            })
        });
        Self { hosts, numbers }
    }

    fn target(&self, from: usize, to: usize, domain: &Domain) -> Target {
        Target { node: self.numbers[from][to], domain: domain.number() }
    }
}

fn carry(triangle: &Triangle, poster: usize, from: usize, to: usize) {
    let asking = triangle.hosts[poster].any_domain();
    let (giving, taking) = (triangle.hosts[from].any_domain(), triangle.hosts[to].any_domain());
    let source = giving.allocate(2 << 20, &[Grant::read(Who::Anyone)]).unwrap();
    let destination = taking.allocate(2 << 20, &[Grant::write(Who::Anyone)]).unwrap();
    let secret = giving.allocate(4096, &[]).unwrap();
    let closed = taking.allocate(4096, &[Grant::read(Who::Anyone)]).unwrap();
    let (there, here) = (triangle.target(poster, from, &giving), triangle.target(poster, to, &taking));
    let bytes = pattern(7, SIZE);
    source.write(5, &bytes).unwrap();
    let words = Notification { address: destination.address() + (2 << 20) - 16, first: 8, last: 9 };
    let spec = Spec::new(source.address() + 5, destination.address() + 300, SIZE as u32).notify(words);
    asking.carry(there, here, spec).unwrap().wait(PATIENCE).unwrap();
    let mut found = vec![0; SIZE];
    destination.read(300, &mut found).unwrap();
    assert!(found == bytes, "node {poster} asked, {from} to {to}");
    let word = |offset: usize| destination.word((2 << 20) - offset).unwrap().load(Ordering::Acquire);
    assert_eq!((word(16), word(8)), (8, 9));

    for (source, destination, (is_source, expected)) in [
        (secret.address(), destination.address(), (true, NackCode::DomainMismatch)),
        (source.address(), closed.address(), (false, NackCode::DomainMismatch)),
        (source.address() + (2 << 20), destination.address(), (true, NackCode::DecodeError)),
    ] {
        let outcome = asking.carry(there, here, Spec::new(source, destination, 64)).unwrap().wait(PATIENCE);
        let (is_own, code, page) = match outcome {
            Err(WaitError::Failed(Failure::Refused { code, page })) => (false, code, page),
            Err(WaitError::Failed(Failure::Local { code, page })) => (true, code, page),
            other => panic!("node {poster} asked, {from} to {to}: {other:?}"),
        };
        // What is refused at the poster's node is of its own side, unless both ends lie there.
        let (refused, of) = if is_source { (source, from) } else { (destination, to) };
        let is_right =
            is_own == (of == poster && from != to) && code == expected && page == Some(refused / 4096 * 4096);
        assert!(is_right, "node {poster} asked, {from} to {to}, {outcome:?}");
    }
    let mut found = [0; 64];
    closed.read(0, &mut found).unwrap();
    assert_eq!(found, [0; 64]);
}

/// All nine ways, for a poster at the first node; and what cannot be.
fn all_ways(triangle: &Triangle) {
    for from in 0..3 {
        for to in 0..3 {
            carry(triangle, 0, from, to);
        }
    }
    let asking = triangle.hosts[0].any_domain();
    let nowhere = Target { node: 77, domain: 1 };
    let somewhere = Target { node: triangle.numbers[0][1], domain: 1 };
    for (from, to) in [(nowhere, somewhere), (somewhere, nowhere)] {
        let outcome = asking.carry(from, to, Spec::new(0, 0, 8)).unwrap().wait(PATIENCE);
        assert_eq!(outcome, Err(WaitError::Failed(Failure::NoSuchNode)));
    }
}

#[test]
fn all_ways_over_shared_memory() {
    all_ways(&Triangle::new(shm));
}

#[test]
fn all_ways_over_udp() {
    all_ways(&Triangle::new(udp));
}

/// The destination looks at what it has granted to the node that asks. What it has granted to the carrier does not count.
fn rights_are_those_of_who_asks(kind: fn() -> Address) {
    let triangle = Triangle::new(kind);
    let [asking, carrying, taking] = [0, 1, 2].map(|host: usize| triangle.hosts[host].any_domain());
    let granted_to = |host: usize| {
        let grant = Grant::write(Who::Node(triangle.numbers[2][host]));
        taking.allocate(4096, &[grant]).unwrap()
    };
    let [to_asker, to_carrier] = [0, 1].map(granted_to);
    let source = carrying.allocate(4096, &[Grant::read(Who::Anyone)]).unwrap();
    source.write(0, &[7; 64]).unwrap();
    let (there, here) = (triangle.target(0, 1, &carrying), triangle.target(0, 2, &taking));
    let refused = Err(WaitError::Failed(Failure::Refused {
        code: NackCode::DomainMismatch,
        page: Some(to_carrier.address()),
    }));
    let bytes_of = |memory: &Memory| {
        let mut found = [0; 64];
        memory.read(0, &mut found).unwrap();
        found
    };
    for _ in 0..2 {
        // Bytes, and words.
        let spec = Spec::new(source.address(), to_carrier.address(), 64);
        assert_eq!(asking.carry(there, here, spec).unwrap().wait(PATIENCE), refused);
        let words = Notification { address: to_carrier.address(), first: 8, last: 9 };
        let spec = Spec::new(source.address(), to_asker.address(), 64).notify(words);
        assert_eq!(asking.carry(there, here, spec).unwrap().wait(PATIENCE), refused);
        assert_eq!(bytes_of(&to_carrier), [0; 64]);
        let spec = Spec::new(source.address(), to_asker.address(), 64);
        assert_eq!(asking.carry(there, here, spec).unwrap().wait(PATIENCE), Ok(()));
        assert_eq!(bytes_of(&to_asker), [7; 64]);
    }
    // The carrier's own writes are its own.
    let here = triangle.target(1, 2, &taking);
    let own = |to: &Memory| {
        let spec = Spec::new(source.address(), to.address(), 64);
        carrying.write(here, spec).unwrap().wait(PATIENCE)
    };
    assert_eq!(own(&to_carrier), Ok(()));
    assert!(matches!(own(&to_asker), Err(WaitError::Failed(Failure::Refused { .. }))));
}

#[test]
fn rights_are_those_of_who_asks_over_shared_memory() {
    rights_are_those_of_who_asks(shm);
}

#[test]
fn rights_are_those_of_who_asks_over_udp() {
    rights_are_those_of_who_asks(udp);
}

#[test]
fn a_carrier_that_is_gone_ends_what_it_was_asked() {
    let Triangle { hosts: [one, two, three], numbers } = Triangle::new(shm);
    let (asking, giving) = (one.domain(1), two.domain(2));
    let source = giving.allocate(512 << 20, &[Grant::read(Who::Anyone)]).unwrap();
    let taking = three.domain(3);
    let destination = taking.allocate(512 << 20, &[Grant::write(Who::Anyone)]).unwrap();
    let (there, here) =
        (Target { node: numbers[0][1], domain: 2 }, Target { node: numbers[0][2], domain: 3 });
    let spec = Spec::new(source.address(), destination.address(), 512 << 20);
    let transfer = asking.carry(there, here, spec).unwrap();
    drop(giving);
    drop(two);
    // It may have been quicker than the end of its node.
    let outcome = transfer.wait(PATIENCE);
    assert!(matches!(outcome, Ok(()) | Err(WaitError::Failed(_))), "{outcome:?}");
}
