//! Nodes in threads of this process, with programs' sockets.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tombolo_client::{Domain, Memory, Spec, Target};
use tombolo_host::unix::SeqpacketListener;
use tombolo_node::{Address, Limits, Listener, Neighbourhood, Node, Security};
use tombolo_random::Random;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// A node, with its threads.
pub struct Host {
    pub node: Arc<Node>,
    pub programs: PathBuf,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

pub fn path(what: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("tombolo-test-{}-{number}-{what}", std::process::id()))
}

pub fn shm() -> Address {
    Address::Shm(path("link"))
}

pub fn udp() -> Address {
    "udp:127.0.0.1:0".parse().unwrap()
}

impl Host {
    /// A node that listens there and is connected to these; returns where it listens, too.
    pub fn start(listen: &Address, others: &[&Address]) -> (Self, Address) {
        Self::start_named("test", listen, others)
    }

    pub fn start_named(name: &str, listen: &Address, others: &[&Address]) -> (Self, Address) {
        Self::start_with(name, listen, others, Limits::default())
    }

    pub fn start_with(name: &str, listen: &Address, others: &[&Address], limits: Limits) -> (Self, Address) {
        Self::start_node(Node::with_limits(name, 0, 0, limits).unwrap(), listen, others)
    }

    pub fn start_node(node: Node, listen: &Address, others: &[&Address]) -> (Self, Address) {
        Self::start_secured(node, listen, others, &Security::Insecure)
    }

    pub fn start_secured(
        node: Node,
        listen: &Address,
        others: &[&Address],
        security: &Security,
    ) -> (Self, Address) {
        let node = Arc::new(node);
        for other in others {
            node.join(other, security, PATIENCE).unwrap();
        }
        let listener = tombolo_node::listen(listen, security).unwrap();
        let address = listener.address();
        (Self::serving(node, listener), address)
    }

    fn serving(node: Arc<Node>, listener: Box<dyn Listener>) -> Self {
        let programs = path("programs");
        let socket = SeqpacketListener::bind(&programs).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let (serving, stopped) = (node.clone(), stop.clone());
        threads.push(std::thread::spawn(move || {
            tombolo_node::serve(&serving, &*listener, &stopped, &|_| {});
        }));
        let (receiving, stopped) = (node.clone(), stop.clone());
        threads.push(std::thread::spawn(move || {
            tombolo_node::receive_programs(&receiving, &socket, &stopped);
        }));
        Self { node, programs, stop, threads }
    }

    #[allow(dead_code, reason = "shared with the tests of peers, which alone need it")]
    /// A node that wants these neighbours, whether they are there or not.
    pub fn start_wanting(
        node: Node,
        listen: &Address,
        wanted: Vec<Vec<Address>>,
        security: &Security,
    ) -> Self {
        let node = Arc::new(node);
        let neighbourhood = Neighbourhood::new(&node, wanted, security).unwrap();
        let listener = tombolo_node::listen(listen, security).unwrap();
        let mut host = Self::serving(node, listener);
        let stopped = host.stop.clone();
        host.threads.push(std::thread::spawn(move || neighbourhood.keep(&stopped, &|_| {})));
        host
    }

    pub fn domain(&self, number: u16) -> Domain {
        Domain::open(&self.programs, Some(number)).unwrap()
    }

    pub fn any_domain(&self) -> Domain {
        Domain::open(&self.programs, None).unwrap()
    }

    /// A counter of its status.
    pub fn counter(&self, name: &str) -> u64 {
        self.node.status().counters.get(name).copied().unwrap_or(0)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Two nodes that know each other over a link; each is the other's number 1.
pub fn pair(listen: &Address) -> [Host; 2] {
    let (one, address) = Host::start(listen, &[]);
    let (other, _) = Host::start(&shm(), &[&address]);
    [one, other]
}

/// Bytes that nobody else writes.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// Writes up to 300 kB to memory of a mebibyte, reads them back, and compares them.
pub fn check_round(domain: &Domain, mine: &Memory, theirs: &Memory, target: Target, round: usize) {
    let length = 1 + (round * 7919) % 300_000;
    let bytes = pattern(round as u64, length);
    mine.write(0, &bytes).unwrap();
    let there = Spec::new(mine.address(), theirs.address(), length as u32);
    domain.write(target, there).unwrap().wait(PATIENCE).unwrap();
    let half = 1 << 19;
    let back = Spec::new(theirs.address(), mine.address() + half, length as u32);
    domain.read(target, back).unwrap().wait(PATIENCE).unwrap();
    let mut found = vec![0; length];
    mine.read(half as usize, &mut found).unwrap();
    assert!(found == bytes, "round {round}, {length} bytes");
}
