//! Nodes that go and others that come in their place: nothing that was granted to one, or meant for it,
//! is the next one's. And nodes that say that they are another.

use std::time::{Duration, Instant};

use tombolo_client::{Domain, Failure, Grant, Memory, Spec, Target, WaitError, Who};
use tombolo_link::{Link, LossReason, SendError};
use tombolo_node::fuzzing::{Life, Message, MessageV1, Reply, Request};
use tombolo_node::{Address, Node, Security};

use crate::harness::{Host, PATIENCE, pattern, shm, udp};

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn write(domain: &Domain, from: &Memory, to: Target, address: u64) -> Result<(), WaitError> {
    domain.write(to, Spec::new(from.address(), address, 64)).unwrap().wait(PATIENCE)
}

fn bytes_of(memory: &Memory) -> [u8; 64] {
    let mut bytes = [0; 64];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// A newcomer gets no number that another had, and no grants with it.
fn newcomers_have_no_grants_of_others(listen: &Address) {
    let (victim, address) = Host::start_named("victim", listen, &[]);
    let theirs = victim.domain(2);
    let granted = theirs.allocate(4096, &[Grant::all(Who::Node(1))]).unwrap();
    let target = Target { node: 1, domain: 2 };
    let mut numbers = Vec::new();
    for round in 0..4 {
        let (neighbour, _) = Host::start_named("neighbour", &shm(), &[&address]);
        let peers = theirs.peers().unwrap();
        assert_eq!(peers.len(), 2, "the victim and its neighbour: {peers:?}");
        numbers.push(peers[1].node);
        let own = neighbour.domain(1);
        let mine = own.allocate(4096, &[]).unwrap();
        mine.write(0, &pattern(round, 64)).unwrap();
        let written = write(&own, &mine, target, granted.address());
        let first = pattern(0, 64);
        if round == 0 {
            assert_eq!(written, Ok(()));
        } else {
            assert!(matches!(written, Err(WaitError::Failed(Failure::Refused { .. }))), "{written:?}");
        }
        assert!(bytes_of(&granted) == first[..], "round {round}: what the first has written stays");
        drop((own, mine, neighbour));
        wait_until("the neighbour is gone", || theirs.peers().unwrap().len() == 1);
    }
    let mut different = numbers.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!((numbers[0], different.len()), (1, numbers.len()), "{numbers:?}");
}

#[test]
fn newcomers_have_no_grants_of_others_over_shared_memory() {
    newcomers_have_no_grants_of_others(&shm());
}

#[test]
fn newcomers_have_no_grants_of_others_over_udp() {
    newcomers_have_no_grants_of_others(&udp());
}

/// A node is started again, with the same name at the same address, and its programs do the same as
/// before: what was meant for the earlier life does not come to the later one.
#[test]
fn what_was_meant_for_an_earlier_life_finds_nothing() {
    let (asking, _) = Host::start_named("asking", &shm(), &[]);
    let own = asking.domain(1);
    let mine = own.allocate(4096, &[]).unwrap();
    mine.write(0, &[7; 64]).unwrap();
    let listen = shm();
    let mut earlier: Vec<(Target, u64)> = Vec::new();
    for life in 0..3 {
        let (host, address) = Host::start_named("again", &listen, &[]);
        let peer = asking.node.join(&address, &Security::Insecure, PATIENCE).unwrap();
        let domain = host.domain(2);
        let memory = domain.allocate(4096, &[Grant::all(Who::Anyone)]).unwrap();
        for (target, address) in &earlier {
            let outcome = write(&own, &mine, *target, *address);
            assert_eq!(outcome, Err(WaitError::Failed(Failure::NoSuchNode)), "life {life}");
            // Nor does an old address mean anything to who looks up the node anew.
            let target = Target { node: peer.id.0, ..*target };
            let outcome = write(&own, &mine, target, *address);
            assert!(matches!(outcome, Err(WaitError::Failed(Failure::Refused { .. }))), "{outcome:?}");
        }
        assert_eq!(bytes_of(&memory), [0; 64], "life {life}");
        earlier.push((Target { node: peer.id.0, domain: 2 }, memory.address()));
        write(&own, &mine, earlier[life].0, earlier[life].1).unwrap();
        drop((domain, memory, host));
        wait_until("the node is gone", || own.peers().unwrap().len() == 1);
    }
}

/// A node whose links were lost comes back in the same life: it has its number again, and what was granted
/// to it; another that comes meanwhile has neither.
#[test]
fn who_comes_back_in_the_same_life_has_its_number_and_grants() {
    let (victim, address) = Host::start_named("victim", &shm(), &[]);
    let theirs = victim.domain(2);
    let granted = theirs.allocate(4096, &[Grant::all(Who::Node(1))]).unwrap();
    let (neighbour, _) = Host::start_named("neighbour", &shm(), &[]);
    let own = neighbour.domain(1);
    let mine = own.allocate(4096, &[]).unwrap();
    for round in 0..3 {
        let peer = neighbour.node.join(&address, &Security::Insecure, PATIENCE).unwrap();
        let names: Vec<_> = theirs.peers().unwrap().into_iter().map(|peer| (peer.node, peer.name)).collect();
        assert_eq!(names, [(0, "victim".to_owned()), (1, "neighbour".to_owned())], "round {round}");
        let bytes = pattern(round, 64);
        mine.write(0, &bytes).unwrap();
        // The neighbour, too, calls the victim by the number that it had.
        let target = Target { node: own.peers().unwrap()[1].node, domain: 2 };
        assert_eq!(target.node, 1);
        write(&own, &mine, target, granted.address()).unwrap();
        assert!(bytes_of(&granted) == bytes[..]);

        peer.link.close(LossReason::ClosedByPeer);
        wait_until("the link is gone", || {
            theirs.peers().unwrap().len() == 1 && own.peers().unwrap().len() == 1
        });
        let (other, _) = Host::start_named("neighbour", &shm(), &[&address]);
        assert_ne!(theirs.peers().unwrap()[1].node, 1);
        let domain = other.domain(1);
        let memory = domain.allocate(4096, &[]).unwrap();
        let written = write(&domain, &memory, target, granted.address());
        assert!(matches!(written, Err(WaitError::Failed(Failure::Refused { .. }))), "{written:?}");
        drop((domain, memory, other));
        wait_until("the other is gone", || theirs.peers().unwrap().len() == 1);
    }
}

/// Two nodes have one name, and a third moves bytes to the one that is meant.
fn nodes_of_one_name_are_told_apart(kind: fn() -> Address) {
    let (carrier, to_carrier) = Host::start_named("carrier", &kind(), &[]);
    let (twin, to_twin) = Host::start_named("twin", &kind(), &[&to_carrier]);
    let (other, to_other) = Host::start_named("twin", &kind(), &[&to_carrier]);
    let (asking, _) = Host::start_named("asking", &shm(), &[&to_carrier, &to_twin, &to_other]);
    let giving = carrier.domain(5);
    let source = giving.allocate(4096, &[Grant::read(Who::Anyone)]).unwrap();
    source.write(0, &[9; 64]).unwrap();
    let own = asking.domain(1);
    let there = Target { node: 1, domain: 5 };
    for (node, host) in [(2, &twin), (3, &other)] {
        let taking = host.domain(6);
        let memory = taking.allocate(4096, &[Grant::write(Who::Anyone)]).unwrap();
        let spec = Spec::new(source.address(), memory.address(), 64);
        own.carry(there, Target { node, domain: 6 }, spec).unwrap().wait(PATIENCE).unwrap();
        assert_eq!(bytes_of(&memory), [9; 64], "node {node}");
    }
}

#[test]
fn nodes_of_one_name_are_told_apart_over_shared_memory() {
    nodes_of_one_name_are_told_apart(shm);
}

#[test]
fn nodes_of_one_name_are_told_apart_over_udp() {
    nodes_of_one_name_are_told_apart(udp);
}

/// Asks a question over a bare link.
fn ask(link: &dyn Link, number: u32, request: Request) -> Reply {
    let message = Message::V1(MessageV1::Ask { number, request }).encode();
    while let Err(error) = link.send_control(&message, &[]) {
        assert_eq!(error, SendError::Full);
        std::thread::yield_now();
    }
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < PATIENCE, "no answer");
        let _ = link.receive(100, &mut |_| {});
        if let Some(message) = link.receive_control().unwrap() {
            let Ok(Message::V1(MessageV1::Answer { number: answered, reply })) =
                Message::decode(&message.bytes)
            else {
                panic!("no answer: {message:?}")
            };
            assert_eq!(answered, number);
            return reply;
        }
        let _ = link.wait(Duration::from_millis(10));
    }
}

/// Without keys a node can say that it is the life of another: then nothing is moved to either.
#[test]
fn who_says_that_it_is_another_gets_nothing_that_is_meant_for_that() {
    let (carrier, to_carrier) = Host::start_named("carrier", &udp(), &[]);
    let node = Node::new("meant", 0, 0).unwrap();
    let life = node.life();
    let impostor = tombolo_link::connect(&to_carrier, &Security::Insecure, PATIENCE).unwrap();
    let (meant, to_meant) = Host::start_node(node, &udp(), &[&to_carrier]);
    let (asking, _) = Host::start_named("asking", &shm(), &[&to_carrier, &to_meant]);
    let giving = carrier.domain(5);
    let source = giving.allocate(4096, &[Grant::read(Who::Anyone)]).unwrap();
    let taking = meant.domain(6);
    let memory = taking.allocate(4096, &[Grant::write(Who::Anyone)]).unwrap();
    let own = asking.domain(1);
    let carry = || {
        let spec = Spec::new(source.address(), memory.address(), 64);
        let (there, here) = (Target { node: 1, domain: 5 }, Target { node: 2, domain: 6 });
        own.carry(there, here, spec).unwrap().wait(PATIENCE)
    };
    assert_eq!(carry(), Ok(()));
    let introduced = ask(&*impostor, 1, Request::Introduce { name: "meant".into(), life });
    assert!(matches!(introduced, Reply::Introduced { .. }), "{introduced:?}");
    assert_eq!(carry(), Err(WaitError::Failed(Failure::AmbiguousNode)));
    drop(impostor);
    wait_until("the impostor is gone", || giving.peers().unwrap().len() == 3);
    assert_eq!(carry(), Ok(()));
}

/// A peer keeps the name and the life that it has introduced itself with, and no terminal obeys the name.
#[test]
fn a_peer_stays_who_it_is_and_its_name_is_harmless() {
    let (host, address) = Host::start_named("host", &shm(), &[]);
    let link = tombolo_link::connect(&address, &Security::Insecure, PATIENCE).unwrap();
    let introduce = |number, name: &str, life| {
        ask(&*link, number, Request::Introduce { name: name.into(), life: Life([life; 16]) })
    };
    let name = "\u{1b}[2Jevil\u{202e}\n\u{9b}1m";
    assert!(matches!(introduce(1, name, 1), Reply::Introduced { .. }));
    assert!(matches!(introduce(2, name, 1), Reply::Introduced { .. }), "again the same");
    let Reply::Failed(why) = introduce(3, "root", 1) else { panic!("it has another name now") };
    assert!(why.contains("introduced yourself as"), "{why}");
    assert!(matches!(introduce(4, name, 2), Reply::Failed(_)), "it has another life now");
    let name = host.domain(1).peers().unwrap()[1].name.clone();
    assert_eq!(name, "\u{fffd}[2Jevil\u{fffd}\u{fffd}\u{fffd}1m");
}
