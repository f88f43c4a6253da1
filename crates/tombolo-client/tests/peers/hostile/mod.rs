//! A peer that is properly connected and does its worst: packets of every kind to every place,
//! control messages with wild contents, floods, and death in the middle of it. Others do not notice.

mod peer;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Grant, Memory, Target, Who};
use tombolo_host::shared::{SharedMemory, SharedSpan};
use tombolo_node::fuzzing::{Reply, Request};
use tombolo_node::{Address, Node, Security};
use tombolo_random::Random;
use tombolo_wire::Checksums;

use crate::harness::{Host, PATIENCE, check_round, shm, udp};
use peer::Peer;

const LEND_BYTES: u64 = 8 << 20;
/// Lives of one hostile peer.
const LIVES: u64 = 6;
/// What memory that it may not reach is full of.
const GUARD: u8 = 0xA7;

/// Checked traffic of an honest program, until told to stop. How many rounds.
pub fn honest(near: &Domain, mine: &Memory, theirs: &Memory, node: u32, stop: &AtomicBool) -> usize {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) || round < 10 {
        round += 1;
        check_round(near, mine, theirs, Target { node, domain: 2 }, round);
    }
    round
}

pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn guarded(domain: &Domain, grants: &[Grant]) -> Memory {
    let memory = domain.allocate(64 * 1024, grants).unwrap();
    memory.write(0, &vec![GUARD; memory.len()]).unwrap();
    memory
}

fn is_untouched(memory: &Memory) -> bool {
    let mut found = vec![0; memory.len()];
    memory.read(0, &mut found).unwrap();
    found.iter().all(|byte| *byte == GUARD)
}

/// A node that lends and has programs; an honest node that borrows from it and has a program; and
/// hostile peers.
fn others_do_not_notice(listen: &Address, seed: u64) {
    // The honest node is its first peer, so that grants can name it.
    let (victim, address) = Host::start_node(Node::new("victim", LEND_BYTES, 0).unwrap(), listen, &[]);
    let (other, _) = Host::start_named("honest", &shm(), &[&address]);
    let (near, far) = (other.domain(1), victim.domain(2));
    let mine = near.allocate(1 << 20, &[]).unwrap();
    let theirs = far.allocate(1 << 20, &[Grant::all(Who::Node(1))]).unwrap();
    let neighbour = victim.domain(3);
    let _mailbox = neighbour.open_mailbox(16, &[Who::Node(1)]).unwrap();
    let guards = [
        guarded(&far, &[]),
        guarded(&near, &[]),
        guarded(&neighbour, &[Grant::all(Who::Node(1))]),
        guarded(&neighbour, &[Grant::all(Who::Program(2))]),
    ];
    // What the honest node borrows. Over shared memory its descriptor shows what becomes of it.
    let peer = other.node.peers().remove(0);
    let (lent, mut descriptors) = other.node.ask(&peer, Request::Lend { bytes: 1 << 20 }, PATIENCE).unwrap();
    assert!(matches!(lent, Reply::Lent { .. }), "{lent:?}");
    let lent = descriptors.pop().map(|descriptor| SharedMemory::open(descriptor, 1 << 20).unwrap());
    if let Some(lent) = &lent {
        lent.span_mut(0, lent.len()).unwrap().copy_from(SharedSpan::from(&vec![GUARD; lent.len()]));
    }
    let honest_bytes = victim.node.status().lent_bytes;
    let before = resident_bytes();
    let (stop, heard) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| honest(&near, &mine, &theirs, 1, &stop));
        let peers: Vec<_> = [seed, seed + 1]
            .map(|seed| {
                let (address, heard) = (&address, &heard);
                scope.spawn(move || {
                    let mut random = Random::for_test(seed);
                    for _ in 0..LIVES {
                        let link = tombolo_link::connect(address, &Security::Insecure, PATIENCE).unwrap();
                        let checksums =
                            if link.protects_integrity() { Checksums::Off } else { Checksums::On };
                        Peer { link, random: &mut random, checksums, heard }.live();
                    }
                })
            })
            .into_iter()
            .collect();
        let outcomes: Vec<_> = peers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        let rounds = traffic.join().unwrap();
        eprintln!("{rounds} honest rounds, {} bytes heard by hostile peers", heard.load(Ordering::Relaxed));
        assert!(outcomes.iter().all(Result::is_ok), "a hostile peer got what it must not");
    });
    for (index, guard) in guards.iter().enumerate() {
        assert!(is_untouched(guard), "memory {index} of others was written");
    }
    if let Some(lent) = &lent {
        let bytes = lent.span(0, lent.len()).unwrap().to_vec();
        assert!(bytes.iter().all(|byte| *byte == GUARD), "memory lent to another was written");
    }
    // Everything that hostile peers had comes back, but what they gave names.
    let since = Instant::now();
    while victim.node.peers().len() > 1 || victim.node.status().lent_bytes > honest_bytes + named(&victim) {
        assert!(since.elapsed() < PATIENCE, "lost peers keep what they had: {:?}", victim.node.status());
        std::thread::sleep(Duration::from_millis(1));
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 256 << 20, "{grown} bytes more than before");
    assert!(victim.counter("packets_dropped") > 0, "the hostile peers sent no garbage");
    // And the node is as it was.
    stop.store(true, Ordering::Relaxed);
    assert_eq!(honest(&near, &mine, &theirs, 1, &stop), 10);
}

/// What names may take: whole pages.
fn named(host: &Host) -> u64 {
    let named = host.node.status().named;
    named.bytes + named.segments * 4096
}

#[test]
fn a_hostile_peer_over_shared_memory() {
    others_do_not_notice(&shm(), 101);
}

#[test]
fn a_hostile_peer_over_udp() {
    others_do_not_notice(&udp(), 202);
}
