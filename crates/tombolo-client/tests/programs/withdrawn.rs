//! Accesses that wait for a page when nobody wants them any more: the peer is lost, the node is gone.

use std::time::{Duration, Instant};

use tombolo_client::{
    Domain, Faults, Grant, Order, OwnMemory, Registered, Spec, Status, Target, WaitError, Who,
};
use tombolo_host::uffd::{Event, Userfaultfd};

use crate::harness::{Host, PATIENCE, pair, pattern, shm, udp};

const ANYONE: [Grant; 1] = [Grant::all(Who::Anyone)];
const PAGES: usize = 4;
const BYTES: usize = PAGES * 4096;

/// Memory whose pages come when the test says so.
struct Late {
    memory: Registered,
    faults: Userfaultfd,
    page: OwnMemory,
}

impl Late {
    fn new(domain: &Domain) -> Self {
        let memory = OwnMemory::map(BYTES).unwrap();
        let faults = Userfaultfd::for_this_process().unwrap();
        faults.enable(0).unwrap();
        faults.register_missing(memory.address(), BYTES as u64).unwrap();
        let memory = domain.register_with(memory, &ANYONE, Faults::default()).unwrap();
        let page = OwnMemory::map(4096).unwrap();
        page.write(0, &[b'Z'; 4096]).unwrap();
        Self { memory, faults, page }
    }

    /// Waits until a thread has touched a page of it.
    fn await_fault(&self) {
        let since = Instant::now();
        while !matches!(self.faults.read_event(), Ok(Some(Event::Fault { .. }))) {
            assert!(since.elapsed() < PATIENCE, "nobody touches it");
            std::thread::yield_now();
        }
    }

    /// Its pages come, with other bytes.
    fn come(&self) {
        for page in 0..PAGES as u64 {
            let _ = self.faults.copy(self.memory.address() + page * 4096, self.page.address(), 4096, false);
        }
    }

    /// It stays as it came.
    fn check(&self) {
        // An access thread that still had the order would write within this time.
        std::thread::sleep(Duration::from_millis(300));
        let mut found = [0; BYTES];
        self.memory.read(0, &mut found).unwrap();
        assert!(found == [b'Z'; BYTES], "bytes came after their end");
    }
}

/// What a peer has sent, and what waits for a page when the peer is lost, is not written.
#[test]
fn what_a_lost_peer_has_sent_is_not_written() {
    for listen in [shm(), udp()] {
        let [near, far] = pair(&listen);
        let theirs = far.domain(2);
        let late = Late::new(&theirs);
        let mine = near.domain(1);
        let source = mine.allocate(BYTES, &[]).unwrap();
        source.write(0, &[b'A'; BYTES]).unwrap();
        let spec = Spec::new(source.address(), late.memory.address(), BYTES as u32);
        let there = Target { node: 1, domain: 2 };
        let write = mine.write(there, spec).unwrap();
        let word = mine.fetch_add(there, late.memory.address() + 8, 1).unwrap();
        late.await_fault();
        drop((write, word, source, mine));
        drop(near);
        let since = Instant::now();
        // Longer than that, it would be given up anyway.
        while far.counter("faults_withdrawn") == 0 || !far.node.is_at_rest() {
            assert!(since.elapsed() < Duration::from_secs(2), "nobody takes it back");
            std::thread::yield_now();
        }
        late.come();
        late.check();
        theirs.deregister(late.memory).unwrap();
    }
}

/// When the node is gone, nothing is written into the program's memory any more, and the program has it back.
#[test]
fn what_waits_when_the_node_ends_is_not_written() {
    let (host, _) = Host::start(&shm(), &[]);
    let domain = host.domain(1);
    let source = domain.allocate(BYTES, &[]).unwrap();
    source.write(0, &[b'A'; BYTES]).unwrap();
    let late = Late::new(&domain);
    let spec = Spec::new(source.address(), late.memory.address(), BYTES as u32);
    let write = domain.write(Target { node: 0, domain: 1 }, spec).unwrap();
    late.await_fault();
    drop(host);
    assert_eq!(write.wait(PATIENCE), Err(WaitError::NodeGone));
    late.come();
    late.check();
    domain.deregister(late.memory).unwrap();
}

/// What is sent once more, by other blocks, comes after what was sent before and waits for its pages.
#[test]
fn a_later_write_to_the_same_bytes_comes_later() {
    let (host, _) = Host::start(&shm(), &[]);
    let (mine, theirs) = (host.domain(1), host.domain(2));
    let late = Late::new(&theirs);
    let source = mine.allocate(2 * BYTES, &[]).unwrap();
    source.write(0, &[b'A'; BYTES]).unwrap();
    source.write(BYTES, &[b'B'; BYTES]).unwrap();
    let there = Target { node: 0, domain: 2 };
    let at = late.memory.address();
    let first = mine.write(there, Spec::new(source.address(), at, BYTES as u32)).unwrap();
    late.await_fault();
    let second = mine.write(there, Spec::new(source.address() + BYTES as u64, at + 100, 8)).unwrap();
    // The page that both need is there, and others are not.
    late.faults.copy(at, late.page.address(), 4096, false).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    late.come();
    first.wait(PATIENCE).unwrap();
    second.wait(PATIENCE).unwrap();
    let mut found = [0; BYTES];
    late.memory.read(0, &mut found).unwrap();
    let mut expected = [b'A'; BYTES];
    expected[100..108].fill(b'B');
    assert!(found == expected, "{:?}", &found[96..112]);
}

/// A userfaultfd of a program without privileges serves the faults of programs alone.
#[test]
fn pages_that_only_the_program_can_fault_in_come() {
    let hosts = pair(&shm());
    let (near, far) = (hosts[0].domain(1), hosts[1].domain(2));
    let memory = OwnMemory::map(1 << 16).unwrap();
    let faults = Userfaultfd::for_user_accesses().unwrap();
    faults.enable(0).unwrap();
    faults.register_missing(memory.address(), 1 << 16).unwrap();
    let theirs = far.register(memory, &ANYONE).unwrap();
    let source = near.allocate(1 << 16, &[]).unwrap();
    source.write(0, &pattern(3, 1 << 16)).unwrap();
    let there = Target { node: 1, domain: 2 };
    let write = near.write(there, Spec::new(source.address() + 7, theirs.address() + 7, 60_000)).unwrap();
    let word = near.fetch_add(there, theirs.address() + (15 << 12), 4).unwrap();
    let page = OwnMemory::map(4096).unwrap();
    page.write(0, &[1; 4096]).unwrap();
    let since = Instant::now();
    while write.status() == Status::Ongoing || word.status() == Status::Ongoing {
        assert!(since.elapsed() < PATIENCE);
        if let Ok(Some(Event::Fault { address, .. })) = faults.read_event() {
            let _ = faults.copy(address & !4095, page.address(), 4096, false);
        }
    }
    write.wait(PATIENCE).unwrap();
    assert_eq!(word.wait(PATIENCE), Ok(0x0101_0101_0101_0101));
    let mut found = vec![0; 60_000];
    theirs.read(7, &mut found).unwrap();
    assert!(found == pattern(3, 1 << 16)[7..60_007]);
}

/// An order begins when a channel is free that others of the program had, whatever else its queue waits for.
#[test]
fn a_queue_begins_what_waits_for_channels_of_others() {
    let (host, _) = Host::start(&shm(), &[]);
    let (mine, theirs) = (host.domain(1), host.domain(2));
    let late = Late::new(&theirs);
    let (source, there) = (mine.allocate(BYTES, &ANYONE).unwrap(), Target { node: 0, domain: 2 });
    let to_late = Spec::new(source.address(), late.memory.address(), 64);
    let from_late = Spec::new(late.memory.address() + 4096, source.address() + 4096, 64);
    // All channels for reads are taken by others, and the queue has a write that takes long.
    let others: Vec<_> = (0..32).map(|_| mine.read(there, from_late).unwrap()).collect();
    let mut queue = mine.queue(10);
    queue.post(Order::write(there, to_late), 1).unwrap();
    let here = Spec::new(source.address(), source.address() + 8192, 64);
    queue.post(Order::read(Target { node: 0, domain: 1 }, here), 2).unwrap();
    let mut found = Vec::new();
    assert_eq!(queue.poll(&mut found, 10), 0);
    late.faults.copy(late.memory.address() + 4096, late.page.address(), 4096, false).unwrap();
    for other in others {
        other.wait(PATIENCE).unwrap();
    }
    let first = queue.wait_any(PATIENCE).unwrap().unwrap();
    assert_eq!((first.context, first.outcome), (2, Ok(0)), "it waits for the other");
}
