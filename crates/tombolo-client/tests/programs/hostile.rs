//! Programs that write what they like wherever they can.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_channel::{Message, Reply, Request, SHARED_BYTES, decode, encode};
use tombolo_client::{Grant, Target, Who};
use tombolo_host::shared::SharedMemory;
use tombolo_host::unix::{SeqpacketSocket, UnixError};
use tombolo_random::Random;

use crate::harness::{Host, PATIENCE, check_round, pair, pattern, shm};

/// Opens a domain by hand and maps its page for writing anything.
fn raw(host: &Host) -> (SeqpacketSocket, SharedMemory) {
    let socket = SeqpacketSocket::connect(&host.programs).unwrap();
    let mut buffer = [0; 4096];
    socket
        .send(&[&encode(&Message::AskV2 { number: 1, request: Request::Open { domain: None } })], &[])
        .unwrap();
    let since = Instant::now();
    loop {
        match socket.receive(&mut buffer) {
            Ok(mut received) => {
                let opened = decode(&buffer[..received.length_bytes]);
                assert!(
                    matches!(opened, Some(Message::AnswerV2 { number: 1, reply: Reply::Opened { .. } })),
                    "{opened:?}"
                );
                let page = received.descriptors.remove(0);
                return (socket, SharedMemory::open(page, SHARED_BYTES).unwrap());
            }
            Err(UnixError::WouldBlock) => {
                assert!(since.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Scribbles over its page and rings at random until told to stop; dies and comes back now and then.
fn scribble(host: &Host, seed: u64, stop: &AtomicBool) {
    let mut random = Random::for_test(seed);
    while !stop.load(Ordering::Relaxed) {
        let (socket, page) = raw(host);
        for _ in 0..2_000 {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let word = random.next() as usize % (SHARED_BYTES / 8) * 8;
            let value = match random.next() % 6 {
                // Plausible numbers get further than wild ones.
                0 => random.next() % 4,
                1 => tombolo_channel::NODE_ADDRESSES + random.next() % 100_000,
                2 => random.next() % (1 << 20),
                // Other programs' domains, at any node.
                3 => {
                    // For any work, too.
                    let flags = if random.next().is_multiple_of(2) { random.next() % 64 } else { 0 };
                    (random.next() % 3) | ((random.next() % 8) << 32) | flags << 48
                }
                4 => u64::MAX - random.next() % 5000,
                _ => random.next(),
            };
            page.atomic_u64(word).unwrap().store(value, Ordering::Relaxed);
            page.atomic_u64(4096).unwrap().fetch_or(random.next() & random.next(), Ordering::SeqCst);
        }
        // Garbage on the socket, half of the time, and then death in the middle of it all.
        if random.next().is_multiple_of(2) {
            let garbage = random.next().to_le_bytes();
            let _ = socket.send(&[&garbage[..1 + random.next() as usize % 7]], &[]);
        }
    }
}

/// Checked transfers go on as if nobody else were there. The hostile programs are at the node whose
/// memory is reached for; the one that may reach it is another program, or at another node.
fn others_do_not_notice(hosts: &[&Host], node: u32, who: Who) {
    let attacked = hosts[hosts.len() - 1];
    let (near, far) = (hosts[0].domain(1), hosts[hosts.len() - 1].domain(2));
    let mine = near.allocate(1 << 20, &[]).unwrap();
    let secret = near.allocate(4096, &[]).unwrap();
    let theirs = far.allocate(1 << 20, &[Grant::all(who)]).unwrap();
    let guard = pattern(99, 4096);
    secret.write(0, &guard).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in [3, 5] {
            let stop = &stop;
            scope.spawn(move || scribble(attacked, seed, stop));
        }
        let since = Instant::now();
        let mut round = 0;
        // Long enough for the hostile ones to do much, and until enough was done beside them.
        while round <= 20 || since.elapsed() < Duration::from_secs(2) {
            assert!(since.elapsed() < 3 * PATIENCE, "only {round} rounds");
            round += 1;
            check_round(&near, &mine, &theirs, Target { node, domain: 2 }, round);
            let mut found = vec![0; 4096];
            secret.read(0, &mut found).unwrap();
            assert!(found == guard, "memory that nobody else may reach has changed");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(attacked.counter("programs_descriptors_refused") > 0, "the hostile programs did nothing");
}

#[test]
fn at_one_node() {
    let (host, _) = Host::start(&shm(), &[]);
    others_do_not_notice(&[&host], 0, Who::Program(1));
}

#[test]
fn between_nodes() {
    let hosts = pair(&shm());
    others_do_not_notice(&[&hosts[0], &hosts[1]], 1, Who::Node(1));
}
