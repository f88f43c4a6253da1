//! Atomic operations; words that are copied.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Failure, Grant, OwnMemory, Spec, Status, Target, WaitError, Who};

use crate::harness::{Host, PATIENCE, pair, shm, udp};

/// Both operations, on a word of another domain.
fn change(near: &Domain, far: &Domain, node: u32) {
    let memory = far.allocate(4096, &[Grant::all(Who::Anyone)]).unwrap();
    let there = Target { node, domain: far.number() };
    let (word, address) = (memory.word(16).unwrap(), memory.address() + 16);
    word.store(u64::MAX, Ordering::SeqCst);
    let add = |operand| near.fetch_add(there, address, operand).unwrap().wait(PATIENCE);
    assert_eq!(add(3), Ok(u64::MAX));
    assert_eq!(add(5), Ok(2));
    let swap = |compare, swap| near.compare_swap(there, address, compare, swap).unwrap().wait(PATIENCE);
    assert_eq!(swap(8, 100), Ok(7), "another word was there");
    assert_eq!(word.load(Ordering::SeqCst), 7);
    assert_eq!(swap(7, 100), Ok(7));
    assert_eq!(word.load(Ordering::SeqCst), 100);

    let refused = |address| {
        let operation = near.fetch_add(there, address, 1).unwrap();
        let outcome = operation.wait(PATIENCE);
        assert!(matches!(operation.status(), Status::FinishedWithError(_)), "{address:#x}");
        outcome.unwrap_err()
    };
    for wrong in [address + 4, address + 1] {
        assert!(matches!(refused(wrong), WaitError::Failed(_)), "{wrong:#x}");
    }
    let is_own = near.number() == far.number() && node == 0;
    match refused(memory.address() + 4096) {
        WaitError::Failed(Failure::Local { .. }) if is_own => return,
        WaitError::Failed(Failure::Refused { .. }) if !is_own => {}
        other => panic!("{other}"),
    }
    let read_only = far.allocate(4096, &[Grant::read(Who::Anyone)]).unwrap();
    assert!(matches!(refused(read_only.address()), WaitError::Failed(Failure::Refused { .. })));
    assert_eq!(read_only.word(0).unwrap().load(Ordering::SeqCst), 0);
    let write_only = far.allocate(4096, &[Grant::write(Who::Anyone)]).unwrap();
    assert!(matches!(refused(write_only.address()), WaitError::Failed(Failure::Refused { .. })));
}

/// Many at once, from several sides: nothing is lost and nothing done twice.
fn count(counters: &[(&Domain, Target)], owner: &Domain) {
    const EACH: u64 = 2_000;
    let memory = owner.allocate(4096, &[Grant::all(Who::Anyone)]).unwrap();
    let address = memory.address() + 8;
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = counters
            .iter()
            .map(|(domain, there)| {
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    while (seen.len() as u64) < EACH {
                        let open: Vec<_> =
                            (0..16).map(|_| domain.fetch_add(*there, address, 1).unwrap()).collect();
                        seen.extend(open.iter().map(|operation| operation.wait(PATIENCE).unwrap()));
                    }
                    seen
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    seen.sort_unstable();
    let all = EACH * counters.len() as u64;
    assert!(seen.iter().copied().eq(0..all), "each number was seen once");
    assert_eq!(memory.word(8).unwrap().load(Ordering::SeqCst), all);
}

#[test]
fn words_change_at_home() {
    let (host, _) = Host::start(&shm(), &[]);
    let domains = [host.domain(1), host.domain(2), host.domain(3)];
    change(&domains[0], &domains[1], 0);
    change(&domains[0], &domains[0], 0);
    let there = Target { node: 0, domain: 3 };
    count(&[(&domains[0], there), (&domains[1], there)], &domains[2]);
}

#[test]
fn words_change_at_another_node() {
    for address in [shm(), udp()] {
        let hosts = pair(&address);
        let (near, far) = (hosts[0].domain(5), hosts[1].domain(5));
        change(&near, &far, 1);
        let beside = hosts[1].domain(6);
        let (away, home) = (Target { node: 1, domain: 5 }, Target { node: 0, domain: 5 });
        count(&[(&near, away), (&beside, home)], &far);
    }
}

/// Two transfers write other words to the same place again and again, and the owner looks: no word is a mixture. Source and
/// destination lie a little apart in their pages, where the C library's `memcpy` leaves some.
fn look_at_words(near: &Domain, far: &Domain, node: u32) {
    const BYTES: u32 = 20_000;
    let there = Target { node, domain: far.number() };
    let [zeros, ones] = [0_u8, u8::MAX].map(|byte| {
        let memory = OwnMemory::map(BYTES as usize).unwrap();
        memory.write(0, &vec![byte; BYTES as usize]).unwrap();
        near.register(memory, &[]).unwrap()
    });
    let own = far.register(OwnMemory::map(20_480).unwrap(), &[Grant::all(Who::Anyone)]).unwrap();
    let of_node = far.allocate(20_480, &[Grant::all(Who::Anyone)]).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for source in [zeros.address(), ones.address()] {
            let (over, own, of_node) = (&over, own.address(), of_node.address());
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    for destination in [own + 8, of_node + 8, of_node + 40] {
                        let spec = Spec::new(source, destination, BYTES);
                        near.write(there, spec).unwrap().wait(PATIENCE).unwrap();
                    }
                }
            });
        }
        let since = Instant::now();
        let mut torn = None;
        while torn.is_none() && since.elapsed() < Duration::from_secs(2) {
            for offset in (0..BYTES as usize).step_by(8) {
                let words = [own.word(offset).unwrap(), of_node.word(offset).unwrap()];
                let found = words.map(|word| word.load(Ordering::Relaxed));
                torn = torn.or(found.into_iter().find(|word| !matches!(*word, 0 | u64::MAX)));
            }
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(torn, None, "a word that nobody has written");
    });
}

#[test]
fn aligned_words_are_copied_whole() {
    let (host, _) = Host::start(&shm(), &[]);
    look_at_words(&host.domain(1), &host.domain(2), 0);
    for link in [shm(), udp()] {
        let [one, other] = pair(&link);
        look_at_words(&one.domain(1), &other.domain(2), 1);
    }
}
