//! Several links between two nodes, over real sockets: all carry, a cut one is
//! left and nothing is lost, a healed one is joined again.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, udp_listener, work};
use tombolo_node::identity::{AllowList, KeyPair};
use tombolo_node::{Address, FarStore, JoinError, Node, Paths, Security, serve};

const FAR_BYTES: u64 = 16 << 20;
const JOIN: Duration = Duration::from_secs(5);

/// A wire to a node that can be cut.
struct Wire {
    address: Address,
    cut: Arc<AtomicBool>,
}

impl Wire {
    fn to<'scope>(scope: &'scope thread::Scope<'scope, '_>, node: &Address, stop: &Arc<AtomicBool>) -> Self {
        let Address::Udp(node) = *node else { panic!("not udp") };
        let front = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = Address::Udp(front.local_addr().unwrap());
        let (cut, stop) = (Arc::new(AtomicBool::new(false)), stop.clone());
        let cutter = cut.clone();
        scope.spawn(move || carry(&front, node, &cut, &stop));
        Self { address, cut: cutter }
    }

    fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }
}

fn carry(front: &UdpSocket, node: SocketAddr, cut: &AtomicBool, stop: &AtomicBool) {
    front.set_nonblocking(true).unwrap();
    let mut backs: HashMap<SocketAddr, UdpSocket> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::SeqCst) {
        let mut idle = true;
        while let Ok((bytes, from)) = front.recv_from(&mut buffer) {
            idle = false;
            let back = backs.entry(from).or_insert_with(|| {
                let back = UdpSocket::bind("127.0.0.1:0").unwrap();
                back.set_nonblocking(true).unwrap();
                back.connect(node).unwrap();
                back
            });
            if !cut.load(Ordering::SeqCst) {
                let _ = back.send(&buffer[..bytes]);
            }
        }
        for (client, back) in &backs {
            while let Ok(bytes) = back.recv(&mut buffer) {
                idle = false;
                if !cut.load(Ordering::SeqCst) {
                    let _ = front.send_to(&buffer[..bytes], client);
                }
            }
        }
        if idle {
            // Nothing to carry: give way for a moment.
            thread::park_timeout(Duration::from_micros(100));
        }
    }
}

/// Bytes sent by each path that is up, by the path's name.
fn sent_by_path(node: &Node) -> HashMap<String, u64> {
    let counters = node.status().counters;
    let up = counters.iter().filter_map(|(name, up)| name.strip_suffix("_up").filter(|_| *up == 1));
    let paths = up.filter(|name| name.contains("_path_"));
    paths.map(|path| (path.to_owned(), counters[&format!("{path}_bytes_sent")])).collect()
}

/// What panics in there is told later.
fn guarded<T>(steps: impl FnOnce() -> T) -> thread::Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(steps))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        // A silent path is lost after ten seconds, and noticed later on a busy machine.
        assert!(since.elapsed() < 3 * PATIENCE, "still not: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Every path carries more while work goes on.
fn all_carry(node: &Node) {
    let mut before = HashMap::new();
    wait_until("both paths carry", || {
        let now = sent_by_path(node);
        let grown =
            |(path, bytes): (&String, &u64)| before.get(path).is_some_and(|then| bytes - then > 100_000);
        if now.len() == 2 && now.iter().all(grown) {
            return true;
        }
        if now.len() != 2 || now.iter().any(|(path, bytes)| before.get(path).is_none_or(|then| then > bytes))
        {
            before = now;
        }
        false
    });
}

fn cut_and_heal(security: &Security, which: usize) {
    let stop = Arc::new(AtomicBool::new(false));
    let node = |name, lend| Arc::new(Node::new(name, lend, 4 << 20).unwrap());
    let (here, there) = (node("here", 0), node("there", FAR_BYTES));
    let ((listener_here, _), (listener_there, address)) = (udp_listener(security), udp_listener(security));
    thread::scope(|scope| {
        for (node, listener) in [(&here, listener_here), (&there, listener_there)] {
            let stop = stop.clone();
            scope.spawn(move || serve(node, &*listener, &stop, &|_| {}));
        }
        let wires = [(); 2].map(|()| Wire::to(scope, &address, &stop));
        let addresses = wires.each_ref().map(|wire| wire.address.clone());
        let outcome = guarded(|| {
            let mut paths = here.join_by(&addresses, security, JOIN).unwrap().unwrap();
            assert_eq!(paths.up(), 2);
            let peer = paths.peer().clone();
            let lenders = &addresses[..1];
            let far = FarStore::from_peers(here.clone(), lenders, vec![peer.clone()], None);
            let far = far.unwrap();
            let mended = AtomicBool::new(false);
            thread::scope(|work_scope| {
                // It checks every byte, whatever becomes of the paths.
                let worker = work_scope.spawn(|| work(&far, 1, || !mended.load(Ordering::SeqCst)));
                let steps = guarded(|| {
                    all_carry(&here);
                    wires[which].cut(true);
                    wait_until("the cut path is left", || paths.up() == 1);
                    assert!(peer.loss().is_none());
                    wires[which].cut(false);
                    let healed = AtomicBool::new(false);
                    thread::scope(|keeper| {
                        let (here, healed, paths) = (&here, &healed, &mut paths);
                        keeper.spawn(move || paths.keep(here, security, JOIN, healed));
                        let carried = guarded(|| all_carry(here));
                        healed.store(true, Ordering::SeqCst);
                        carried.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    });
                    assert_eq!(paths.up(), 2);
                });
                mended.store(true, Ordering::SeqCst);
                let done = worker.join();
                steps.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                assert!(done.unwrap() > 0);
            });

            // With the last one, the peer is lost.
            wires.iter().for_each(|wire| wire.cut(true));
            wait_until("the peer is lost", || peer.loss().is_some());
            far.release();
        });
        stop.store(true, Ordering::SeqCst);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_further_path_is_cut_and_heals() {
    cut_and_heal(&Security::Insecure, 1);
}

#[test]
fn the_first_path_is_cut_and_heals() {
    let keys = KeyPair::generate().unwrap();
    let allowed = AllowList::Keys(vec![keys.public()]);
    cut_and_heal(&Security::secure(keys, allowed), 0);
}

#[test]
fn a_link_to_another_node_is_no_path() {
    let stop = Arc::new(AtomicBool::new(false));
    let nodes = ["here", "there", "elsewhere"].map(|name| Arc::new(Node::new(name, 4096, 4096).unwrap()));
    let security = Security::Insecure;
    thread::scope(|scope| {
        let addresses: Vec<Address> = nodes[1..]
            .iter()
            .map(|node| {
                let ((listener, address), stop) = (udp_listener(&security), stop.clone());
                scope.spawn(move || serve(node, &*listener, &stop, &|_| {}));
                address
            })
            .collect();
        let joined = nodes[0].join_by(&addresses, &security, JOIN);
        stop.store(true, Ordering::SeqCst);
        let refused: Result<Option<Paths>, JoinError> = joined;
        assert!(matches!(&refused, Err(JoinError::Refused(_, why)) if why.contains("token")), "{refused:?}");
    });
}
