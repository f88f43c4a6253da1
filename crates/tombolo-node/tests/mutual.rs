//! Nodes that lend to each other at the same time, under load (SPEC M10): the
//! documents' hardware locked up here (MICRO §4.10).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host::process::{Span, read_memory};
use tombolo_node::identity::{AllowList, KeyPair};
use tombolo_node::{Address, Borrowed, FarEvent, FarMemory, Listener, Node, Security, listen, serve};

const FAR_BYTES: u64 = 32 << 20;
const BUFFER_BYTES: usize = 4 << 20;
const WORK: Duration = Duration::from_secs(4);
/// No progress for so long is a lock-up.
const PATIENCE: Duration = Duration::from_secs(20);

fn udp_listener(security: &Security) -> (Box<dyn Listener>, Address) {
    let listener = listen(&"udp:127.0.0.1:0".parse().unwrap(), security).unwrap();
    let address = listener.address();
    (listener, address)
}

fn shm_listener(name: &str) -> (Box<dyn Listener>, Address) {
    let path = std::env::temp_dir().join(format!("tombolo-mutual-{name}-{}", std::process::id()));
    let address = Address::Shm(path);
    (listen(&address, &Security::Insecure).unwrap(), address)
}

/// Copies a page between this process's own addresses by way of the kernel: far
/// memory is never a Rust reference.
fn copy_page(target: u64, source: u64) {
    let span = |address| [Span { address, length: 4096 }];
    // SAFETY: both are pages of far windows, staging memory or of a local array that outlives the call.
    let copied = unsafe { read_memory(std::process::id(), &span(target), &span(source)) };
    assert_eq!(copied.unwrap(), 4096);
}

fn contents(page: u32, version: u32) -> Vec<u8> {
    let mut state = u64::from(page) << 32 | u64::from(version) | 1 << 63;
    let mut bytes = Vec::with_capacity(4096);
    while bytes.len() < 4096 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// Writes and reads pages of far memory in random order, checking every byte.
fn work(far: &Borrowed, seed: u64, end: Instant) -> u64 {
    let (sender, arrivals) = mpsc::channel();
    let sender = Mutex::new(sender);
    far.start(Box::new(move |event| match event {
        FarEvent::Arrived { ticket, address, .. } => {
            let mut page = vec![0u8; 4096];
            let address = address.expect("no lender is lost here");
            copy_page(page.as_mut_ptr() as u64, address);
            let _ = sender.lock().unwrap().send((ticket, page));
        }
        FarEvent::LenderLost { lender, reason } => panic!("{lender} lost: {reason}"),
    }));
    let mut versions: HashMap<u32, u32> = HashMap::new();
    let mut state = seed | 1;
    let mut random = |below: u32| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32 % below
    };
    let mut done = 0;
    while Instant::now() < end {
        let first = random(far.pages() - 64);
        let count = 1 + random(64);
        let staging = far.staging();
        let mut batch = Vec::new();
        for step in 0..count {
            let version = versions.entry(first + step).or_insert(0);
            *version += 1;
            let bytes = contents(first + step, *version);
            match far.window(first + step) {
                Some(window) => copy_page(window.address, bytes.as_ptr() as u64),
                None => {
                    copy_page(staging.address + u64::from(step) * 4096, bytes.as_ptr() as u64);
                    batch.push((first + step, step));
                }
            }
        }
        far.write(&batch).unwrap();
        let known: Vec<u32> = versions.keys().copied().collect();
        let wanted: Vec<u32> = (0..32).map(|_| known[random(known.len() as u32) as usize]).collect();
        let mut open = 0;
        for &page in &wanted {
            match far.window(page) {
                Some(window) => {
                    let mut bytes = vec![0u8; 4096];
                    copy_page(bytes.as_mut_ptr() as u64, window.address);
                    assert!(bytes == contents(page, versions[&page]), "page {page}");
                }
                None => {
                    far.read(page, u64::from(page), None);
                    open += 1;
                }
            }
        }
        far.flush();
        let since = Instant::now();
        while open > 0 {
            far.progress();
            while let Ok((ticket, bytes)) = arrivals.try_recv() {
                let page = ticket as u32;
                assert!(bytes == contents(page, versions[&page]), "page {page}");
                open -= 1;
            }
            assert!(since.elapsed() < PATIENCE, "locked up with {open} reads open");
        }
        done += u64::from(count) + wanted.len() as u64;
    }
    done
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
                    let far =
                        Borrowed::over(node.clone(), &addresses, vec![link], Some(FAR_BYTES), 0).unwrap();
                    let done = work(&far, seed, end);
                    far.release();
                    done
                })
            })
            .into_iter()
            .collect();
        let done: Vec<u64> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
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
