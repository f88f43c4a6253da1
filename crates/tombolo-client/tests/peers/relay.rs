//! A way to a node that can be cut, keeps what passes, and on which others can send in either one's
//! name.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tombolo_node::Address;

/// A datagram that has passed.
#[derive(Clone)]
pub struct Passed {
    /// From the one that connects to the one that listens.
    pub forward: bool,
    pub bytes: Vec<u8>,
    /// Which connection it belongs to, in the order in which they were made.
    pub connection: usize,
}

#[derive(Default)]
struct Seen {
    connections: Vec<(SocketAddr, Arc<UdpSocket>)>,
    first: Vec<Passed>,
    latest: VecDeque<Passed>,
}

struct Shared {
    front: UdpSocket,
    node: SocketAddr,
    seen: Mutex<Seen>,
    /// So many of the first datagrams, with the handshakes, and of the latest.
    kept: usize,
    carried_bytes: AtomicU64,
    /// Drops every n-th datagram; 0: none.
    loses: AtomicU64,
    seen_count: AtomicU64,
    lost: AtomicU64,
    cut: AtomicBool,
    stop: AtomicBool,
}

pub struct Relay {
    shared: Arc<Shared>,
    /// Where to connect to.
    pub address: Address,
    thread: Option<JoinHandle<()>>,
}

pub fn socket_address(address: &Address) -> SocketAddr {
    let Address::Udp(address) = address else { panic!("not udp") };
    *address
}

impl Relay {
    /// A way to that node, which keeps so many of the first datagrams and of the latest.
    pub fn to(node: &Address, kept: usize) -> Self {
        let front = UdpSocket::bind("127.0.0.1:0").unwrap();
        front.set_nonblocking(true).unwrap();
        let address = Address::Udp(front.local_addr().unwrap());
        let shared = Arc::new(Shared {
            front,
            node: socket_address(node),
            seen: Mutex::default(),
            kept,
            carried_bytes: AtomicU64::new(0),
            loses: AtomicU64::new(0),
            seen_count: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let carrying = shared.clone();
        let thread = Some(std::thread::spawn(move || carrying.carry()));
        Self { shared, address, thread }
    }

    /// Nothing passes any more, or everything again.
    pub fn cut(&self, cut: bool) {
        self.shared.cut.store(cut, Ordering::SeqCst);
    }

    /// Drops every n-th datagram from now on.
    pub fn lose(&self, one_of: u64) {
        self.shared.loses.store(one_of, Ordering::SeqCst);
    }

    /// How many datagrams were lost.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// How many bytes have passed.
    pub fn carried_bytes(&self) -> u64 {
        self.shared.carried_bytes.load(Ordering::SeqCst)
    }

    /// What has passed: the first of it and the latest.
    pub fn passed(&self) -> Vec<Passed> {
        let seen = self.shared.seen.lock().unwrap();
        seen.first.iter().chain(&seen.latest).cloned().collect()
    }

    pub fn connections(&self) -> usize {
        self.shared.seen.lock().unwrap().connections.len()
    }

    /// Where the one that connects is, itself.
    pub fn client(&self, connection: usize) -> SocketAddr {
        self.shared.seen.lock().unwrap().connections[connection].0
    }

    /// Sends from where the other side of a connection is seen to be.
    pub fn inject(&self, connection: usize, forward: bool, bytes: &[u8]) {
        let (client, back) = self.shared.seen.lock().unwrap().connections[connection].clone();
        let _ = if forward { back.send(bytes) } else { self.shared.front.send_to(bytes, client) };
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Shared {
    fn pass(&self, forward: bool, connection: usize, bytes: &[u8], send: impl FnOnce()) {
        if self.cut.load(Ordering::SeqCst) {
            return;
        }
        let count = self.seen_count.fetch_add(1, Ordering::SeqCst) + 1;
        let loses = self.loses.load(Ordering::SeqCst);
        if loses != 0 && count.is_multiple_of(loses) {
            self.lost.fetch_add(1, Ordering::SeqCst);
            return;
        }
        send();
        self.carried_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        if self.kept == 0 {
            return;
        }
        let mut seen = self.seen.lock().unwrap();
        let passed = Passed { forward, bytes: bytes.to_vec(), connection };
        if seen.first.len() < self.kept {
            return seen.first.push(passed);
        }
        if seen.latest.len() == self.kept {
            seen.latest.pop_front();
        }
        seen.latest.push_back(passed);
    }

    fn connection(&self, client: SocketAddr) -> (usize, Arc<UdpSocket>) {
        let mut seen = self.seen.lock().unwrap();
        if let Some(known) = seen.connections.iter().position(|(known, _)| *known == client) {
            return (known, seen.connections[known].1.clone());
        }
        let back = UdpSocket::bind("127.0.0.1:0").unwrap();
        back.set_nonblocking(true).unwrap();
        back.connect(self.node).unwrap();
        let back = Arc::new(back);
        seen.connections.push((client, back.clone()));
        (seen.connections.len() - 1, back)
    }

    fn carry(&self) {
        let mut buffer = vec![0; 65_536];
        while !self.stop.load(Ordering::SeqCst) {
            let mut idle = true;
            while let Ok((bytes, client)) = self.front.recv_from(&mut buffer) {
                idle = false;
                let (connection, back) = self.connection(client);
                self.pass(true, connection, &buffer[..bytes], || {
                    let _ = back.send(&buffer[..bytes]);
                });
            }
            let connections = self.seen.lock().unwrap().connections.clone();
            for (connection, (client, back)) in connections.into_iter().enumerate() {
                while let Ok(bytes) = back.recv(&mut buffer) {
                    idle = false;
                    self.pass(false, connection, &buffer[..bytes], || {
                        let _ = self.front.send_to(&buffer[..bytes], client);
                    });
                }
            }
            if idle {
                // Nothing to carry: give way for a moment.
                std::thread::park_timeout(Duration::from_micros(100));
            }
        }
    }
}
