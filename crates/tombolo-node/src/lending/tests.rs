//! Tests of named segments and lent memory over links to a node that is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tombolo_core::rdma::{Direction, PeerId, Transfer};
use tombolo_link::{Address, Security};
use tombolo_wire::Domain;

use super::ledger::Published;
use super::named::Hasher;
use crate::driver::address_space::BUFFERS;
use crate::driver::node::{Node, NodeEvent, NodeEvents};
use crate::fabric::connection::Connection;
use crate::fabric::messages::{Checksum, Reply, Request};
use crate::fabric::status::NodeStatus;
use crate::memory::allocation::allocate;
use crate::memory::blocking::Owner;
use crate::memory::reclaim::Segment;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A node that lends, served by a thread of its own.
struct Lender {
    node: Arc<Node>,
    address: Address,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Lender {
    fn new(lend_bytes: u64) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tombolo-publish-{}-{number}", std::process::id()));
        let address = Address::Shm(path);
        let listener = tombolo_link::listen(&address, &Security::Insecure).unwrap();
        let node = Arc::new(Node::new("lender", lend_bytes, 0).unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (node, stop) = (node.clone(), stop.clone());
            move || crate::serve(&node, &*listener, &stop, &|_| {})
        });
        Self { node, address, stop, thread: Some(thread) }
    }

    fn wait_until_free(&self) {
        let since = Instant::now();
        while self.node.status().lent_bytes > 0 {
            assert!(since.elapsed() < TIMEOUT, "memory does not come back");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// A node that sends requests to a [`Lender`].
struct Borrower {
    node: Arc<Node>,
    peer: Arc<Connection>,
    events: NodeEvents,
}

impl Borrower {
    fn new(lender: &Lender) -> Self {
        let node = Arc::new(Node::new("borrower", 0, 8192).unwrap());
        let (_, events) = node.add_owner().unwrap();
        let peer = node.join(&lender.address, &Security::Insecure, TIMEOUT).unwrap();
        Self { node, peer, events }
    }

    fn ask(&self, request: Request) -> Reply {
        self.node.ask(&self.peer, request, TIMEOUT).unwrap().0
    }

    fn create(&self, bytes: u64) -> u16 {
        match self.ask(Request::Create { bytes }) {
            Reply::Lent { segment } => segment,
            other => panic!("{other:?}"),
        }
    }

    fn publish(&self, segment: u16, name: &str, checksum: Checksum) -> Reply {
        self.ask(Request::Publish { segment, name: name.to_owned(), checksum })
    }

    fn open(&self, name: &str) -> u16 {
        match self.ask(Request::Open { name: name.to_owned() }) {
            Reply::Opened { segment, .. } => segment,
            other => panic!("{other:?}"),
        }
    }

    /// Moves the first bytes of a segment from or to the buffer.
    fn transfer(&self, direction: Direction, segment: u16, size_bytes: u32) -> Result<(), String> {
        let transfer = Transfer {
            direction,
            domain: Domain(segment),
            own_domain: BUFFERS,
            source_address: 0,
            destination_address: 0,
            size_bytes,
            notification: None,
            class: None,
            user: 1,
        };
        self.node.post(self.peer.id, transfer).unwrap();
        self.node.pump();
        let since = Instant::now();
        loop {
            self.node.drive(&self.peer);
            if let Some(NodeEvent::Completed { result, .. }) = self.events.take() {
                return result.map_err(|error| error.to_string());
            }
            assert!(since.elapsed() < TIMEOUT, "a transfer does not end");
            self.node.expire();
            let _ = self.peer.link.wait(Duration::from_millis(1));
        }
    }

    /// Publishes these bytes.
    fn put(&self, name: &str, bytes: &[u8]) {
        let segment = self.create(bytes.len() as u64);
        self.node.buffers().span_mut(0, bytes.len()).unwrap().copy_from(bytes.into());
        self.transfer(Direction::Write, segment, bytes.len() as u32).unwrap();
        assert_eq!(self.publish(segment, name, checksum(bytes)), Reply::Done);
    }

    fn read(&self, segment: u16, length: usize) -> Vec<u8> {
        self.transfer(Direction::Read, segment, length as u32).unwrap();
        self.node.buffers().span(0, length).unwrap().to_vec()
    }
}

fn checksum(bytes: &[u8]) -> Checksum {
    let mut hasher = Hasher::default();
    hasher.update(bytes);
    hasher.finish()
}

#[test]
fn only_what_has_come_as_it_was_sent_gets_a_name() {
    let lender = Lender::new(1 << 20);
    let borrower = Borrower::new(&lender);
    let segment = borrower.create(5);
    let sent = checksum(b"other");
    let arrived = checksum(&[0; 5]);
    assert_eq!(borrower.publish(segment, "x", sent), Reply::Mismatch { checksum: arrived });
    assert_eq!(borrower.ask(Request::Find { name: "x".into() }), Reply::NoSuchName);
    assert_eq!(lender.node.status().lent_bytes, 0, "its memory is free");
    assert!(matches!(borrower.publish(segment, "x", arrived), Reply::Failed(_)), "it is gone");
    let lent = match borrower.ask(Request::Lend { bytes: 4096 }) {
        Reply::Lent { segment } => segment,
        other => panic!("{other:?}"),
    };
    assert!(matches!(borrower.publish(lent, "x", checksum(&[])), Reply::Failed(_)), "a window leads there");
    let segment = borrower.create(5);
    assert!(matches!(borrower.publish(segment, "a/b", arrived), Reply::Failed(why) if why.contains("'/'")));
    assert_eq!(
        borrower.ask(Request::Create { bytes: 2 << 20 }),
        Reply::TooMuch { free_bytes: (1 << 20) - 4096 }
    );
    assert_eq!(
        borrower.ask(Request::Create { bytes: u64::MAX }),
        Reply::TooMuch { free_bytes: (1 << 20) - 4096 }
    );
}

#[test]
fn a_reader_keeps_what_it_reads_and_cannot_change_it() {
    let lender = Lender::new(1 << 20);
    let (one, other) = (Borrower::new(&lender), Borrower::new(&lender));
    one.put("x", b"old bytes");
    let reading = other.open("x");
    assert_eq!(other.read(reading, 9), b"old bytes");
    let refused = other.transfer(Direction::Write, reading, 9).unwrap_err();
    assert!(refused.contains("DomainMismatch"), "{refused}");
    one.put("x", b"new");
    assert_eq!(other.read(reading, 9), b"old bytes", "nobody has changed it");
    assert_eq!(other.ask(Request::Delete { name: "x".into() }), Reply::Done);
    assert_eq!(other.ask(Request::Delete { name: "x".into() }), Reply::NoSuchName);
    assert_eq!(other.read(reading, 9), b"old bytes");
    assert_eq!(lender.node.status().lent_bytes, 4096);
    drop(other);
    lender.wait_until_free();
    assert_eq!(one.ask(Request::Open { name: "x".into() }), Reply::NoSuchName);
}

/// The lent bytes and the bytes being freed, as the lender's loop reports them.
fn being_freed(asker: &Borrower) -> (u64, u64) {
    let Reply::Status { part, .. } = asker.ask(Request::Status { from: 0, counters: false }) else {
        panic!()
    };
    let status = NodeStatus::parse(&part).unwrap();
    (status.lent_bytes, status.being_freed_bytes)
}

#[test]
fn freeing_what_one_has_borrowed_holds_up_nobody_else() {
    const BYTES: u64 = 64 << 20;
    let lender = Lender::new(BYTES + (8 << 20));
    let (one, other, third) = (Borrower::new(&lender), Borrower::new(&lender), Borrower::new(&lender));
    assert!(matches!(one.ask(Request::Lend { bytes: BYTES }), Reply::Lent { .. }));
    // The test holds the memory, as a long copy would.
    let held = lender.node.peers().iter().find_map(|peer| {
        let ledger = lender.node.lending.ledger.lock();
        ledger.segments_of(peer.id).next().map(|(_, memory)| memory.clone())
    });
    let held = held.expect("somebody has borrowed");
    drop(one);
    let since = Instant::now();
    while being_freed(&other) != (0, BYTES) {
        assert!(since.elapsed() < TIMEOUT, "the borrower is not forgotten");
    }
    // Other borrowers get answers, and can borrow what is left.
    assert!(matches!(other.ask(Request::Lend { bytes: 8 << 20 }), Reply::Lent { .. }));
    std::thread::scope(|scope| {
        // A borrower that comes back waits until its former memory is free.
        let (node, peer) = (&third.node, &third.peer);
        let returns = scope.spawn(move || node.ask(peer, Request::Lend { bytes: BYTES }, TIMEOUT).unwrap().0);
        for _ in 0..100 {
            assert_eq!(being_freed(&other), (8 << 20, BYTES), "it is lent again before it is free");
        }
        assert!(!returns.is_finished());
        assert_eq!(
            other.ask(Request::Lend { bytes: 2 * BYTES }),
            Reply::TooMuch { free_bytes: BYTES },
            "for more than there is, nobody waits"
        );
        drop(held);
        assert!(matches!(returns.join().unwrap(), Reply::Lent { .. }));
    });
    assert_eq!(being_freed(&other), (BYTES + (8 << 20), 0));
}

#[test]
fn what_has_a_name_outlives_the_link_and_a_draft_does_not() {
    let lender = Lender::new(1 << 20);
    let one = Borrower::new(&lender);
    one.put("kept", b"kept");
    let segment = one.create(100_000);
    one.transfer(Direction::Write, segment, 100).unwrap();
    drop(one);
    let since = Instant::now();
    while lender.node.status().lent_bytes > 4096 {
        assert!(since.elapsed() < TIMEOUT, "the draft is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
    let other = Borrower::new(&lender);
    assert_eq!(other.read(other.open("kept"), 4), b"kept");
}

#[test]
fn a_long_list_comes_in_parts() {
    let lender = Lender::new(1 << 20);
    let borrower = Borrower::new(&lender);
    let name = |index: u32| format!("{index:0>200}");
    for index in 0..100 {
        let segment = borrower.create(0);
        assert_eq!(borrower.publish(segment, &name(index), checksum(&[])), Reply::Done);
    }
    let (mut names, mut parts) = (Vec::new(), 0);
    loop {
        let after = names.last().cloned();
        let Reply::Names { segments, more } = borrower.ask(Request::List { after }) else { panic!() };
        names.extend(segments.into_iter().map(|segment| segment.name));
        parts += 1;
        if !more {
            break;
        }
    }
    assert_eq!(names, (0..100).map(name).collect::<Vec<_>>());
    assert!(parts > 1);
    let store =
        crate::Store::connect("list", std::slice::from_ref(&lender.address), &Security::Insecure).unwrap();
    assert_eq!(store.list().unwrap().len(), 100);
    assert!(matches!(borrower.ask(Request::List { after: Some("a/b".into()) }), Reply::Failed(_)));
}

#[test]
fn two_thousand_segments_have_names_and_all_of_it_is_told() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    const SEGMENTS: u64 = 2000;
    // Each segment takes one file descriptor of the process that the node runs in: here, of the test.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let lender = Lender::new(SEGMENTS * 4096);
    let borrower = Borrower::new(&lender);
    for index in 0..SEGMENTS {
        let segment = borrower.create(0);
        assert_eq!(borrower.publish(segment, &format!("{index:0>100}"), checksum(&[])), Reply::Done);
    }
    let client = crate::StatusClient::connect(&lender.address, &Security::Insecure).unwrap();
    let status = client.ask(false).unwrap();
    assert_eq!((status.named.segments, status.lent_bytes), (SEGMENTS, SEGMENTS * 4096));
    assert!(status.counters.is_empty(), "they were not asked for");
    let store =
        crate::Store::connect("list", std::slice::from_ref(&lender.address), &Security::Insecure).unwrap();
    assert_eq!(store.list().unwrap().len() as u64, SEGMENTS);
    assert!(matches!(borrower.ask(Request::Create { bytes: 0 }), Reply::TooMuch { free_bytes: 0 }));
}

#[test]
fn a_copy_that_is_not_what_its_checksum_says_is_an_error_at_the_reader() {
    let lender = Lender::new(1 << 20);
    let published = Published {
        segment: Arc::new(Segment::new(
            Arc::new(allocate(4096).unwrap()),
            lender.node.lending.ledger.lock().reserve(4096).unwrap(),
            lender.node.lending.reclaimer(Owner::Peer(PeerId(1))),
        )),
        length_bytes: 10,
        checksum: checksum(b"something"),
        since: Instant::now(),
    };
    lender.node.lending.ledger.lock().publish("x".parse().unwrap(), published);
    let mut store =
        crate::Store::connect("read", std::slice::from_ref(&lender.address), &Security::Insecure).unwrap();
    let opened = store.open(&"x".parse().unwrap()).unwrap();
    let read = store.read(&opened, &mut std::io::sink(), &mut |_| true);
    assert!(matches!(read, Err(crate::CopyError::Mismatch { .. })), "{read:?}");
}

#[test]
fn a_source_that_is_not_as_long_as_it_said_leaves_nothing() {
    let lender = Lender::new(1 << 20);
    let name = "x".parse().unwrap();
    for said in [99, 101] {
        let mut store =
            crate::Store::connect("write", std::slice::from_ref(&lender.address), &Security::Insecure)
                .unwrap();
        let written = store.write(&name, said, &mut &[0u8; 100][..], &mut |_| true);
        assert!(matches!(written, Err(crate::CopyError::Changed(_))), "{written:?}");
        let interrupted = store.write(&name, 100, &mut &[0u8; 100][..], &mut |_| false);
        assert!(matches!(interrupted, Err(crate::CopyError::Interrupted)), "{interrupted:?}");
    }
    lender.wait_until_free();
    let mut store =
        crate::Store::connect("write", std::slice::from_ref(&lender.address), &Security::Insecure).unwrap();
    let written = store.write(&name, 100, &mut &[0u8; 100][..], &mut |_| true).unwrap();
    assert_eq!(store.find(&name).unwrap().checksum, written);
}

#[test]
fn a_copy_that_is_interrupted_waits_for_no_answer() {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);

    let lender = Lender::new(1 << 20);
    let mut store =
        crate::Store::connect("write", std::slice::from_ref(&lender.address), &Security::Insecure).unwrap();
    store.interrupt_when(|| INTERRUPTED.load(Ordering::Relaxed));
    let name = "x".parse().unwrap();
    // The held lock keeps the node from allocating.
    let held = lender.node.lending.ledger.lock();
    let written = std::thread::scope(|scope| {
        let writing = scope.spawn(|| store.write(&name, 100, &mut &[0_u8; 100][..], &mut |_| true));
        std::thread::sleep(Duration::from_millis(20));
        INTERRUPTED.store(true, Ordering::Relaxed);
        writing.join().unwrap()
    });
    assert!(matches!(written, Err(crate::CopyError::Interrupted)), "{written:?}");
    drop(held);
}
