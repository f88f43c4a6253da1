//! Nodes that lend to each other at the same time, under load (MICRO §4.10): the
//! documents' hardware locked up here (MICRO §4.10).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, udp_listener, work};
use tombolo_node::identity::{AllowList, KeyPair};
use tombolo_node::{Address, FarStore, Listener, Node, Security, listen, serve};

const FAR_BYTES: u64 = 32 << 20;
const BUFFER_BYTES: usize = 4 << 20;
const WORK: Duration = Duration::from_secs(4);

fn shm_listener(name: &str) -> (Box<dyn Listener>, Address) {
    let path = std::env::temp_dir().join(format!("tombolo-mutual-{name}-{}", std::process::id()));
    let address = Address::Shm(path);
    (listen(&address, &Security::Insecure).unwrap(), address)
}

fn both_ways(security: &Security, a: (Box<dyn Listener>, Address), b: (Box<dyn Listener>, Address)) {
    let stop = Arc::new(AtomicBool::new(false));
    let node = |name| Arc::new(Node::new(name, FAR_BYTES, BUFFER_BYTES).unwrap());
    let (node_a, node_b) = (node("a"), node("b"));
    let (address_a, address_b) = (a.1.clone(), b.1.clone());
    thread::scope(|scope| {
        for (node, listener) in [(&node_a, a.0), (&node_b, b.0)] {
            let stop = stop.clone();
            scope.spawn(move || serve(node, &*listener, &stop, &|_| {}));
        }
        let end = Instant::now() + WORK;
        let workers: Vec<_> = [(&node_a, &address_b, 1), (&node_b, &address_a, 2)]
            .map(|(node, lender, seed)| {
                scope.spawn(move || {
                    let link = tombolo_link::connect(lender, security, Duration::from_secs(5)).unwrap();
                    let addresses = [lender.clone()];
                    let far = FarStore::over(node.clone(), &addresses, vec![link], None).unwrap();
                    let done = work(&far, seed, || Instant::now() < end);
                    far.release();
                    done
                })
            })
            .into_iter()
            .collect();
        let done: Vec<u64> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        // `release` waits half a second for the answer: a node without a processor reads the question later.
        let since = Instant::now();
        while [&node_a, &node_b].iter().any(|node| node.status().lent_bytes > 0) && since.elapsed() < PATIENCE
        {
            thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        eprintln!("pages moved: {done:?}");
        assert!(done.iter().all(|&done| done > 100), "both directions make progress: {done:?}");
    });
    for node in [node_a, node_b] {
        assert_eq!(node.status().lent_bytes, 0, "everything came back");
    }
}

#[test]
fn two_nodes_lend_to_each_other_over_udp() {
    let security = Security::Insecure;
    both_ways(&security, udp_listener(&security), udp_listener(&security));
}

#[test]
fn two_nodes_lend_to_each_other_over_secure_udp() {
    let keys = KeyPair::generate().unwrap();
    let allowed = AllowList::Keys(vec![keys.public()]);
    let security = Security::secure(keys, allowed);
    both_ways(&security, udp_listener(&security), udp_listener(&security));
}

#[test]
fn two_nodes_lend_to_each_other_over_shared_memory() {
    both_ways(&Security::Insecure, shm_listener("a"), shm_listener("b"));
}
