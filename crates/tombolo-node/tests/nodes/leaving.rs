//! A node that goes answers first, and its answers are taken though its goodbye has come, too.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_core::rdma::{Direction, Transfer};
use tombolo_link::Address;
use tombolo_node::fuzzing::{Reply, Request};
use tombolo_node::{Node, NodeEvent, Security, listen, serve};
use tombolo_wire::Domain;

const TIMEOUT: Duration = Duration::from_secs(20);
/// As many as may be on their way at once.
const WRITES: u64 = 16;

fn answers_are_taken_before_the_goodbye(address: &Address) {
    let far = Arc::new(Node::new("far", 1 << 20, 0).unwrap());
    let near = Node::new("near", 0, 1 << 20).unwrap();
    let listener = listen(address, &Security::Insecure).unwrap();
    let stop = AtomicBool::new(false);
    let (peer, segment, _memory) = std::thread::scope(|scope| {
        scope.spawn(|| serve(&far, &*listener, &stop, &|_| {}));
        let peer = near.join(&listener.address(), &Security::Insecure, TIMEOUT).unwrap();
        let request = Request::Lend { bytes: 1 << 16 };
        let lent = near.ask(&peer, request, TIMEOUT);
        stop.store(true, Ordering::Relaxed);
        let (Reply::Lent { segment }, memory) = lent.unwrap() else { panic!("nothing is lent") };
        (peer, segment, memory)
    });
    // How transfers ended, by their users.
    let (mut ended, (_, events)) = (HashMap::new(), near.add_owner().unwrap());
    for user in 0..WRITES {
        let transfer = Transfer {
            direction: Direction::Write,
            domain: Domain(segment),
            own_domain: Domain(0),
            source_address: user * 4096,
            destination_address: user * 4096,
            size_bytes: 64,
            notification: None,
            class: None,
            user,
        };
        near.post(peer.id, transfer).unwrap();
        near.pump();
        // Each has an answer of its own.
        for connection in far.peers() {
            far.drive(&connection);
        }
    }
    far.leave();
    let since = Instant::now();
    while ended.len() < WRITES as usize {
        near.expire();
        near.tick();
        for connection in near.peers() {
            near.drive(&connection);
        }
        while let Some(event) = events.take() {
            if let NodeEvent::Completed { user, result } = event {
                ended.insert(user, result);
            }
        }
        assert!(since.elapsed() < TIMEOUT, "neither answers nor an end");
    }
    let failed: Vec<_> = ended.iter().filter(|(_, result)| result.is_err()).collect();
    assert!(failed.is_empty(), "{address}: of {WRITES} answered writes failed: {failed:?}");
}

#[test]
fn answers_are_taken_before_the_goodbye_over_shared_memory() {
    let path = std::env::temp_dir().join(format!("tombolo-leaving-{}", std::process::id()));
    answers_are_taken_before_the_goodbye(&Address::Shm(path));
}

#[test]
fn answers_are_taken_before_the_goodbye_over_udp() {
    answers_are_taken_before_the_goodbye(&"udp:127.0.0.1:0".parse().unwrap());
}
