//! Waiting for transfers by a descriptor, while others wait in other ways.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Spec, Status, Target, Transfer, WaitError};
use tombolo_host::event::wait_readable;

use crate::harness::{Host, PATIENCE, shm};

fn is_readable(domain: &Domain, timeout: Duration) -> bool {
    wait_readable(&[domain.as_fd()], Some(timeout)).unwrap()
}

/// Waits by the descriptor alone.
fn wait(domain: &Domain, transfer: &Transfer) {
    loop {
        domain.arm();
        match transfer.status() {
            Status::Finished => return,
            Status::Ongoing => {}
            other => panic!("{other:?}"),
        }
        assert!(is_readable(domain, PATIENCE), "a wake-up was lost");
        domain.drain().unwrap();
    }
}

#[test]
fn no_wake_up_is_lost_among_threads() {
    let (host, _) = Host::start(&shm(), &[]);
    let domain = host.domain(1);
    let memory = domain.allocate(1 << 20, &[]).unwrap();
    let target = Target { node: 0, domain: 1 };
    let spec = |size| Spec::new(memory.address(), memory.address() + (1 << 19), size);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One asks the node for this and that, and so reads its messages.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(domain.peers().unwrap().len(), 1);
            }
        });
        // One waits by itself.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                domain.write(target, spec(100)).unwrap().wait(PATIENCE).unwrap();
            }
        });
        for round in 0..1000 {
            let size = if round % 2 == 0 { 64 } else { 300_000 };
            wait(&domain, &domain.write(target, spec(size)).unwrap());
        }
        stop.store(true, Ordering::Relaxed);
    });
    // Nobody waits, and nothing is left.
    domain.drain().unwrap();
    domain.write(target, spec(64)).unwrap().wait(PATIENCE).unwrap();
    // The last that was armed for may be told after it was seen.
    let since = Instant::now();
    while is_readable(&domain, Duration::ZERO) {
        domain.drain().unwrap();
        assert!(since.elapsed() < PATIENCE, "it never becomes silent");
    }
}

#[test]
fn who_never_reads_harms_himself_alone() {
    let (host, _) = Host::start(&shm(), &[]);
    let domain = host.domain(1);
    let memory = domain.allocate(8192, &[]).unwrap();
    let (target, spec) =
        (Target { node: 0, domain: 1 }, Spec::new(memory.address(), memory.address() + 4096, 64));
    domain.arm();
    for _ in 0..2000 {
        domain.write(target, spec).unwrap().wait(PATIENCE).unwrap();
    }
    // Armed once, told once.
    assert!(is_readable(&domain, PATIENCE));
    assert_eq!(domain.peers().unwrap().len(), 1);
    domain.drain().unwrap();
    assert!(!is_readable(&domain, Duration::ZERO));
}

#[test]
fn the_node_s_end_is_readable() {
    let (host, _) = Host::start(&shm(), &[]);
    let domain = host.domain(1);
    domain.arm();
    drop(host);
    assert!(is_readable(&domain, PATIENCE));
    assert_eq!(domain.drain(), Err(WaitError::NodeGone));
    assert!(is_readable(&domain, Duration::ZERO));
}
