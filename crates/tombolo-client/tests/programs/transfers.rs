use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Grant, Notification, Spec, Status, Target, Who};

use crate::harness::{Host, PATIENCE, pair, pattern, shm, udp};

const AREA: usize = 4 << 20;

/// Writes and reads between two domains, all sizes and alignments, each notified.
fn exchange(near: &Domain, far: &Domain, node: u32) {
    let mine = near.allocate(AREA, &[]).unwrap();
    let theirs = far.allocate(AREA, &[Grant::all(Who::Anyone)]).unwrap();
    let target = Target { node, domain: far.number() };
    let words = AREA - 64;
    for (round, length) in
        [0, 1, 7, 16, 255, 256, 4096, 5000, 16_384, 16_385, 100_003, 1 << 20, (3 << 20) + 5]
            .into_iter()
            .enumerate()
    {
        let (from, to) = (round * 13 % 4096, round * 77 % 4096);
        let bytes = pattern(round as u64 + 1, length);
        mine.write(from, &bytes).unwrap();
        let notification = Notification {
            address: theirs.address() + words as u64,
            first: round as u64 + 100,
            last: round as u64 + 200,
        };
        let spec = Spec::new(mine.address() + from as u64, theirs.address() + to as u64, length as u32);
        near.write(target, spec.notify(notification)).unwrap().wait(PATIENCE).unwrap();
        let mut found = vec![0; length];
        theirs.read(to, &mut found).unwrap();
        assert!(found == bytes, "{length} bytes written to node {node}");
        // The sender knows last: what the receiver polls is there.
        assert_eq!(theirs.word(words).unwrap().load(Ordering::Acquire), notification.first);
        assert_eq!(theirs.word(words + 8).unwrap().load(Ordering::Acquire), notification.last);

        let back = AREA / 2 + 4096;
        let length = length.min(AREA / 2 - 8192);
        let notification =
            Notification { address: mine.address() + words as u64, first: notification.last, last: 1 };
        let spec = Spec::new(theirs.address() + to as u64, mine.address() + back as u64, length as u32);
        near.read(target, spec.notify(notification)).unwrap().wait(PATIENCE).unwrap();
        let mut found = vec![0; length];
        mine.read(back, &mut found).unwrap();
        assert!(found == bytes[..length], "{length} bytes read from node {node}");
        assert_eq!(mine.word(words).unwrap().load(Ordering::Acquire), notification.first);
    }
}

#[test]
fn between_programs_of_one_node() {
    let (host, _) = Host::start(&shm(), &[]);
    exchange(&host.domain(1), &host.domain(2), 0);
    let alone = host.domain(3);
    exchange(&alone, &alone, 0);
}

#[test]
fn between_two_nodes_over_shared_memory() {
    let hosts = pair(&shm());
    exchange(&hosts[0].domain(5), &hosts[1].domain(5), 1);
    exchange(&hosts[1].domain(6), &hosts[0].domain(7), 1);
}

#[test]
fn between_two_nodes_over_udp() {
    let hosts = pair(&udp());
    exchange(&hosts[0].domain(5), &hosts[1].domain(5), 1);
    exchange(&hosts[1].domain(6), &hosts[0].domain(7), 1);
}

#[test]
fn all_channels_at_once_and_again() {
    let (host, _) = Host::start(&shm(), &[]);
    let (one, two) = (host.domain(1), host.domain(2));
    let mine = one.allocate(64 * 4096, &[]).unwrap();
    let theirs = two.allocate(64 * 4096, &[Grant::all(Who::Anyone)]).unwrap();
    let bytes = pattern(3, 32 * 4096);
    mine.write(0, &bytes).unwrap();
    for _ in 0..100 {
        let transfers: Vec<_> = (0..32)
            .map(|page| {
                let spec = Spec::new(mine.address() + page * 4096, theirs.address() + page * 4096, 4096);
                one.write(Target { node: 0, domain: 2 }, spec).unwrap()
            })
            .collect();
        for transfer in transfers {
            transfer.wait(PATIENCE).unwrap();
        }
        let mut found = vec![0; bytes.len()];
        theirs.read(0, &mut found).unwrap();
        assert!(found == bytes);
        theirs.write(0, &vec![0; bytes.len()]).unwrap();
    }
}

#[test]
fn channels_run_out_and_come_back_even_if_dropped() {
    let (host, _) = Host::start(&shm(), &[]);
    let domain = host.domain(1);
    let memory = domain.allocate(8 << 20, &[]).unwrap();
    let target = Target { node: 0, domain: 1 };
    let spec = Spec::new(memory.address(), memory.address() + (4 << 20), 4 << 20);
    let kept: Vec<_> = (0..32).map(|_| domain.write(target, spec).unwrap()).collect();
    assert!(domain.write(target, spec).is_err());
    drop(kept);
    let since = Instant::now();
    let small = Spec::new(memory.address(), memory.address() + 64, 8);
    let last = loop {
        match domain.write(target, small) {
            Ok(transfer) => break transfer,
            Err(_) => assert!(since.elapsed() < PATIENCE),
        }
    };
    last.wait(PATIENCE).unwrap();
}

#[test]
fn a_small_transfer_overtakes_a_large_one() {
    let (host, _) = Host::start(&shm(), &[]);
    let domain = host.domain(1);
    let memory = domain.allocate(256 << 20, &[]).unwrap();
    let target = Target { node: 0, domain: 1 };
    let half = 128 << 20;
    // Once is enough: in the order of posting none would overtake. The large one takes some 50 ms, and this thread
    // may be without a processor for longer than that.
    let overtaken = (0..50).any(|_| {
        let large = Spec::new(memory.address(), memory.address() + half, half as u32);
        let large = domain.write(target, large).unwrap();
        let small = Spec::new(memory.address(), memory.address() + 4096, 64);
        domain.write(target, small).unwrap().wait(PATIENCE).unwrap();
        let is_first = large.status() == Status::Ongoing;
        large.wait(PATIENCE).unwrap();
        is_first
    });
    assert!(overtaken, "of 50 small ones that were posted second, none has ended first");
}

#[test]
fn a_sleeping_node_is_woken() {
    let (host, _) = Host::start(&shm(), &[]);
    let domain = host.domain(1);
    let memory = domain.allocate(8192, &[]).unwrap();
    let fastest = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let spec = Spec::new(memory.address(), memory.address() + 4096, 64);
        let since = Instant::now();
        domain.write(Target { node: 0, domain: 1 }, spec).unwrap().wait(PATIENCE).unwrap();
        since.elapsed()
    });
    // A node that nobody wakes looks by itself 250 ms after it has fallen asleep, which it does after each of these:
    // some 230 ms later than it is asked.
    let fastest = fastest.min().unwrap();
    assert!(fastest < Duration::from_millis(100), "the node was not woken: {fastest:?}");
}

/// Small ones go between the parts of a large one's copy: they end before it, and neither harms the other.
#[test]
fn small_ones_do_not_wait_for_a_large_one_of_the_same_node() {
    const LARGE: usize = 192 << 20;
    let (host, _) = Host::start(&shm(), &[]);
    let (near, far) = (host.domain(1), host.domain(2));
    let mine = near.allocate(LARGE, &[]).unwrap();
    let theirs = far.allocate(LARGE, &[Grant::all(Who::Anyone)]).unwrap();
    let small = far.allocate(1 << 20, &[Grant::all(Who::Anyone)]).unwrap();
    let mailbox = far.open_mailbox(64, &[Who::Anyone]).unwrap();
    let bytes = pattern(11, LARGE);
    mine.write(0, &bytes).unwrap();
    let target = Target { node: 0, domain: far.number() };
    let start = || near.write(target, Spec::new(mine.address(), theirs.address(), LARGE as u32)).unwrap();
    let (mut large, mut larges, mut beside) = (start(), 1, 0);
    for round in 0.. {
        let length = [1, 64, 4096, 5000, 40_000][round % 5];
        let from = round * 640 % (1 << 20);
        let spec = Spec::new(mine.address() + from as u64, small.address(), length as u32);
        near.write(target, spec).unwrap().wait(PATIENCE).unwrap();
        let mut found = vec![0; length];
        small.read(0, &mut found).unwrap();
        assert!(found == bytes[from..from + length], "{length} bytes beside a large transfer");
        let added = near.fetch_add(target, small.address() + (512 << 10), 1).unwrap().wait(PATIENCE);
        assert_eq!(added, Ok(round as u64));
        let refused = Spec::new(mine.address(), small.address() + (1 << 20) - 1, 64);
        assert!(near.write(target, refused).unwrap().wait(PATIENCE).is_err());
        near.send(target, &bytes[..16]).unwrap().wait(PATIENCE).unwrap();
        assert_eq!(mailbox.receive(PATIENCE).unwrap().bytes, bytes[..16]);
        if large.status() == Status::Ongoing {
            beside += 1;
            continue;
        }
        large.wait(PATIENCE).unwrap();
        if beside >= 20 || larges == 50 {
            break;
        }
        (large, larges) = (start(), larges + 1);
    }
    assert!(beside >= 20, "only {beside} rounds went beside {larges} large transfers");
    let mut found = vec![0; LARGE];
    theirs.read(0, &mut found).unwrap();
    assert!(found == bytes, "the large one");
}
