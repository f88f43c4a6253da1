//! A link that takes nothing for a while stops what goes by it, and nothing else; and nothing is lost by it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tombolo_core::rdma::{Direction, Transfer};
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::shared::SharedSpan;
use tombolo_link::Address;
use tombolo_link::testing::{Admission, Alteration, Altered};
use tombolo_node::fuzzing::{Reply, Request};
use tombolo_node::{Node, NodeEvent, Peer, Security, listen, serve};
use tombolo_wire::Domain;

const TIMEOUT: Duration = Duration::from_secs(20);
const BYTES: u32 = 128 * 1024;

/// Makes a link take no packets while it is stopped.
#[derive(Debug, Default)]
struct Stop {
    is_stopped: AtomicBool,
    refused: AtomicU64,
}

impl Alteration for Stop {
    fn admit(&self) -> Admission {
        if self.is_stopped.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Admission::Refuse;
        }
        Admission::Send
    }
}

/// A segment of a lender.
struct Lent {
    link: Arc<Altered<Stop>>,
    peer: Arc<Peer>,
    segment: u16,
    _memory: Vec<PassedDescriptor>,
}

fn borrow(node: &Node, address: &Address) -> Lent {
    let inner = tombolo_link::connect(address, &Security::Insecure, TIMEOUT).unwrap();
    let link = Arc::new(Altered::with(inner, Stop::default()));
    let peer = node.join_over(link.clone(), address, TIMEOUT).unwrap();
    let request = Request::Lend { bytes: u64::from(BYTES) };
    let (Reply::Lent { segment }, memory) = node.ask(&peer, request, TIMEOUT).unwrap() else {
        panic!("nothing is lent")
    };
    Lent { link, peer, segment, _memory: memory }
}

fn post(node: &Node, lent: &Lent, direction: Direction, buffer_at: u64, user: u64) {
    // What is read comes to our buffers, and what is written comes from there.
    let (source_address, destination_address) = match direction {
        Direction::Read => (0, buffer_at),
        _ => (buffer_at, 0),
    };
    let transfer = Transfer {
        direction,
        domain: Domain(lent.segment),
        own_domain: Domain(0),
        source_address,
        destination_address,
        size_bytes: BYTES,
        notification: None,
        class: None,
        user,
    };
    node.post(lent.peer.id, transfer).unwrap();
    node.pump();
}

fn drive_until(node: &Node, what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        for peer in node.peers() {
            node.drive(&peer);
        }
        node.expire();
        node.tick();
        assert!(since.elapsed() < TIMEOUT, "still not: {what}");
    }
}

fn full_links_stop_nobody_else(kind: fn() -> Address) {
    let stop = AtomicBool::new(false);
    let lenders = [(); 2].map(|()| {
        (Arc::new(Node::new("lender", 1 << 20, 0).unwrap()), listen(&kind(), &Security::Insecure).unwrap())
    });
    std::thread::scope(|scope| {
        for (node, listener) in &lenders {
            scope.spawn(|| serve(node, &**listener, &stop, &|_| {}));
        }
        let node = Node::new("borrower", 0, 4 * BYTES as usize).unwrap();
        let (_, events) = node.add_owner().unwrap();
        let ended = RefCell::new(HashMap::new());
        let [slow, fast] = [0, 1].map(|index| borrow(&node, &lenders[index].1.address()));
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        node.buffers().span_mut(0, bytes.len()).unwrap().copy_from(SharedSpan::from(bytes.as_slice()));
        let outcome = |user| {
            while let Some(event) = events.take() {
                if let NodeEvent::Completed { user, result } = event {
                    ended.borrow_mut().insert(user, result);
                }
            }
            ended.borrow().get(&user).copied()
        };

        slow.link.alteration().is_stopped.store(true, Ordering::Relaxed);
        post(&node, &slow, Direction::Write, 0, 1);
        post(&node, &slow, Direction::Read, u64::from(BYTES), 2);
        // Each of these has its turn at once, and none waits for the full link.
        for user in 10..30 {
            let refused = slow.link.alteration().refused.load(Ordering::Relaxed);
            post(&node, &fast, Direction::Write, 0, user);
            let more = slow.link.alteration().refused.load(Ordering::Relaxed) - refused;
            assert_eq!(more, 0, "what goes to another peer tries the full link");
            drive_until(&node, "the other's transfer is over", || outcome(user) == Some(Ok(())));
        }
        assert_eq!((outcome(1), outcome(2)), (None, None));
        slow.link.alteration().is_stopped.store(false, Ordering::Relaxed);
        drive_until(&node, "the slow peer's are over", || outcome(1).is_some() && outcome(2).is_some());
        assert_eq!((outcome(1), outcome(2)), (Some(Ok(())), Some(Ok(()))));
        for (user, lent) in [(3, &slow), (4, &fast)] {
            let at = 2 * u64::from(BYTES);
            post(&node, lent, Direction::Read, at, user);
            drive_until(&node, "it is read back", || outcome(user) == Some(Ok(())));
            assert!(node.buffers().span(at as usize, bytes.len()).unwrap().to_vec() == bytes);
        }
        let counters = node.status().counters;
        assert_eq!(counters["packets_dropped"], 0);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_full_link_stops_nobody_else_over_udp() {
    full_links_stop_nobody_else(|| "udp:127.0.0.1:0".parse().unwrap());
}

#[test]
fn a_full_link_stops_nobody_else_over_shared_memory() {
    full_links_stop_nobody_else(|| {
        use std::sync::atomic::AtomicU32;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Address::Shm(std::env::temp_dir().join(format!("tombolo-full-{}-{number}", std::process::id())))
    });
}
