//! Pairs of connected links, and packets that can tell whether they are whole.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tombolo_host::event::wait_readable;
use tombolo_link::testing::{Faults, FaultyLink, LinkPair, memory_pair};
use tombolo_link::udp::{UdpLink, UdpListener};
use tombolo_link::{
    Address, AllowList, KeyPair, Link, Listener, OpenError, Packet, PublicKey, Security, SendError,
};

/// Long enough for a loaded machine; no test waits for it to pass.
pub const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy)]
pub enum Transport {
    Memory,
    Shm,
    Udp,
    UdpWithoutSegmentation,
    SecureUdp,
    SecureUdpWithoutSegmentation,
}

#[derive(Debug, Clone, Copy)]
pub struct Kind {
    transport: Transport,
    faulty: bool,
}

#[allow(non_upper_case_globals)]
impl Kind {
    pub const Memory: Self = Self { transport: Transport::Memory, faulty: false };
    pub const Shm: Self = Self { transport: Transport::Shm, faulty: false };
    pub const Udp: Self = Self { transport: Transport::Udp, faulty: false };
    pub const UdpWithoutSegmentation: Self =
        Self { transport: Transport::UdpWithoutSegmentation, faulty: false };

    pub const SecureUdp: Self = Self { transport: Transport::SecureUdp, faulty: false };
    pub const SecureUdpWithoutSegmentation: Self =
        Self { transport: Transport::SecureUdpWithoutSegmentation, faulty: false };

    pub fn faulty(self) -> Self {
        Self { faulty: true, ..self }
    }

    pub fn pair(self) -> Pair {
        let (one, other) = match self.transport {
            Transport::Memory => memory_pair().unwrap(),
            Transport::Shm => connected(&scratch_address()),
            Transport::Udp => connected(&loopback()),
            Transport::SecureUdp => {
                let (ours, theirs) = friends();
                connected_securely(&loopback(), &ours, &theirs)
            }
            Transport::UdpWithoutSegmentation => {
                without_segmentation(&Security::Insecure, &Security::Insecure)
            }
            Transport::SecureUdpWithoutSegmentation => {
                let (ours, theirs) = friends();
                without_segmentation(&ours, &theirs)
            }
        };
        let lossless = !self.faulty && matches!(self.transport, Transport::Memory | Transport::Shm);
        let faulty = |link, seed| -> Arc<dyn Link> {
            if self.faulty { Arc::new(FaultyLink::new(link, FAULTS, seed)) } else { link }
        };
        Pair { one: faulty(one, 1), other: faulty(other, 2), lossless, kind: self }
    }

    /// Another pair of the same kind, to be destroyed.
    pub fn pair_like(pair: &Pair) -> Pair {
        pair.kind.pair()
    }
}

fn without_segmentation(ours: &Security, theirs: &Security) -> LinkPair {
    let Address::Udp(address) = loopback() else { unreachable!() };
    let listener = UdpListener::bind(address, ours).unwrap();
    let Address::Udp(address) = listener.address() else { unreachable!() };
    std::thread::scope(|scope| {
        let connector = scope.spawn(move || UdpLink::connect(address, theirs, PATIENCE).unwrap());
        let accepted = accept(&listener);
        let link = connector.join().unwrap();
        link.disable_segmentation();
        (accepted, Arc::new(link) as Arc<dyn Link>)
    })
}

const FAULTS: Faults = Faults {
    loss_per_mille: 50,
    duplication_per_mille: 50,
    reordering_per_mille: 100,
    corruption_per_mille: 0,
    stall_per_mille: 2,
    stall: Duration::from_millis(3),
};

/// Two connected ends.
pub struct Pair {
    pub one: Arc<dyn Link>,
    pub other: Arc<dyn Link>,
    /// Whether every packet must arrive, once and in order.
    pub lossless: bool,
    kind: Kind,
}

pub fn loopback() -> Address {
    "udp:127.0.0.1:0".parse().unwrap()
}

pub fn scratch_path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("tombolo-link-{}-{number}.sock", std::process::id()))
}

pub fn scratch_address() -> Address {
    Address::Shm(scratch_path())
}

/// Listens without keys.
pub fn listen(address: &Address) -> Result<Box<dyn Listener>, OpenError> {
    tombolo_link::listen(address, &Security::Insecure)
}

/// Connects without keys.
pub fn connect(address: &Address, timeout: Duration) -> Result<Arc<dyn Link>, OpenError> {
    tombolo_link::connect(address, &Security::Insecure, timeout)
}

/// A node with new keys, which talks to these.
pub fn node_with(keys: &KeyPair, allowed: &[PublicKey]) -> Security {
    Security::secure(keys.clone(), AllowList::Keys(allowed.to_vec()))
}

/// Two nodes that have each other on their lists.
pub fn friends() -> (Security, Security) {
    let [one, other] = [(); 2].map(|()| KeyPair::generate().unwrap());
    (node_with(&one, &[other.public()]), node_with(&other, &[one.public()]))
}

pub fn accept(listener: &dyn Listener) -> Arc<dyn Link> {
    listener.accept_within(PATIENCE).unwrap().expect("nobody connected in time")
}

/// The listener takes the datagrams of strangers until `is_heard`: on a busy machine a datagram arrives some time after
/// the call that sent it has returned.
pub fn hear_until(listener: &dyn Listener, mut is_heard: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        while !matches!(listener.accept(), Ok(None)) {}
        if is_heard() {
            return;
        }
        assert!(Instant::now() < deadline, "not heard");
        wait_readable(&[listener.descriptor()], Some(Duration::from_millis(1))).unwrap();
    }
}

/// What the listener answers a stranger.
pub fn hear_stranger(listener: &dyn Listener, stranger: &UdpSocket) -> Vec<u8> {
    let mut answer = vec![0; 2048];
    stranger.set_nonblocking(true).unwrap();
    hear_until(listener, || match stranger.recv(&mut answer) {
        Ok(length) => {
            answer.truncate(length);
            true
        }
        Err(_) => false,
    });
    stranger.set_nonblocking(false).unwrap();
    answer
}

/// Both ends of a link through a listener: the accepting one first.
pub fn connected(address: &Address) -> LinkPair {
    let listener = listen(address).unwrap();
    connected_to(&*listener)
}

pub fn connected_securely(address: &Address, ours: &Security, theirs: &Security) -> LinkPair {
    let listener = tombolo_link::listen(address, ours).unwrap();
    connected_as(&*listener, theirs)
}

pub fn connected_to(listener: &dyn Listener) -> LinkPair {
    connected_as(listener, &Security::Insecure)
}

pub fn connected_as(listener: &dyn Listener, security: &Security) -> LinkPair {
    let address = listener.address();
    std::thread::scope(|scope| {
        let connector = scope.spawn(move || tombolo_link::connect(&address, security, PATIENCE).unwrap());
        let accepted = accept(listener);
        (accepted, connector.join().unwrap())
    })
}

pub const HEADER_BYTES: usize = 16;

/// Sends packet `number` of a length, header and payload apart; waits while the link is full.
pub fn send(link: &dyn Link, number: u64, packet_bytes: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match try_send(link, number, packet_bytes) {
            Ok(()) => return,
            Err(SendError::Full) => {
                assert!(Instant::now() < deadline, "full for too long");
                link.tick(Instant::now());
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

pub fn try_send(link: &dyn Link, number: u64, packet_bytes: usize) -> Result<(), SendError> {
    let packet = packet(number, packet_bytes);
    let (header, payload) = packet.split_at(packet_bytes.min(HEADER_BYTES));
    link.send(header, payload.into())
}

/// What packet `number` of that length holds: its number, its length and bytes made from both.
pub fn packet(number: u64, packet_bytes: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend_from_slice(&(packet_bytes as u64).to_le_bytes());
    let start = number.wrapping_mul(31) as u8;
    bytes.resize(packet_bytes.max(HEADER_BYTES), 0);
    for (index, byte) in bytes.iter_mut().enumerate().skip(HEADER_BYTES) {
        *byte = start.wrapping_add(index as u8);
    }
    bytes.truncate(packet_bytes);
    bytes
}

/// The number of a packet of at least 16 bytes, which must be whole.
pub fn check(received: Packet<'_>) -> u64 {
    let head = received.head();
    let number = u64::from_le_bytes(head[..8].try_into().unwrap());
    let packet_bytes = u64::from_le_bytes(head[8..16].try_into().unwrap());
    assert_eq!(received.len() as u64, packet_bytes);
    assert_eq!(received.payload(16).unwrap().len() + 16, received.len());
    assert_eq!(received.to_vec(), packet(number, received.len()), "packet {number} is damaged");
    number
}

/// Receives until `done` says so or nothing has come for `quiet`; runs the timers.
pub fn receive_until(
    link: &dyn Link,
    quiet: Duration,
    mut sink: impl FnMut(Packet<'_>),
    mut done: impl FnMut() -> bool,
) {
    let mut last = Instant::now();
    while !done() && last.elapsed() < quiet {
        if link.receive(64, &mut sink).unwrap() > 0 {
            last = Instant::now();
        } else {
            link.wait(Duration::from_millis(5)).unwrap();
        }
    }
}

/// Thirty links to a listener, made at once: each carries what its own end sends.
pub fn many_connect_to(listener: &dyn Listener, security: &Security) {
    let address = listener.address();
    std::thread::scope(|scope| {
        let connectors: Vec<_> = (0..30)
            .map(|_| scope.spawn(|| tombolo_link::connect(&address, security, PATIENCE).unwrap()))
            .collect();
        let accepted: Vec<_> = (0..30).map(|_| accept(listener)).collect();
        let connected: Vec<_> = connectors.into_iter().map(|one| one.join().unwrap()).collect();
        for (number, link) in connected.iter().enumerate() {
            send(&**link, number as u64, 100);
            link.flush().unwrap();
        }
        let mut seen: Vec<u64> = Vec::new();
        for link in &accepted {
            assert!(link.wait(PATIENCE).unwrap());
            link.receive(10, &mut |bytes| seen.push(check(bytes))).unwrap();
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..30).collect::<Vec<_>>());
    });
}

/// Connects to an address where nobody listens yet.
pub fn a_late_listener_is_found(address: &Address) {
    std::thread::scope(|scope| {
        let connector = scope.spawn(|| connect(address, PATIENCE).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        let listener = listen(address).unwrap();
        let _link = accept(&*listener);
        connector.join().unwrap();
    });
}
