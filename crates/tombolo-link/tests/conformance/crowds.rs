//! Many that connect at once: who comes first, and who gives way.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, accept, connected, friends, hear_until, scratch_address, scratch_path};
use crate::relay::socket_address;
use crate::secure::{begin, first_message};
use tombolo_host::timing::link::GIVES_WAY_AFTER;
use tombolo_host::unix::SeqpacketSocket;
use tombolo_link::shm::ShmListener;
use tombolo_link::{Address, LinkState, Listener, PROTOCOL_VERSION, Security, connect, listen};

/// Between one that connects and a listener: passes on what both say, but keeps the last word of the one that
/// connects until it is let go.
struct Gate {
    front: UdpSocket,
    back: UdpSocket,
    node: SocketAddr,
    connector: Option<SocketAddr>,
    last_word: Option<Vec<u8>>,
}

impl Gate {
    /// The node sees one that connects from this address.
    fn new(listener: &dyn Listener, from: [u8; 4]) -> Self {
        let bind = |ip: [u8; 4]| {
            let socket = UdpSocket::bind(SocketAddr::from((ip, 0))).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            socket
        };
        let node = SocketAddr::from(([127, 0, 0, 1], socket_address(&listener.address()).port()));
        Self { front: bind([127, 0, 0, 1]), back: bind(from), node, connector: None, last_word: None }
    }

    fn address(&self) -> Address {
        Address::Udp(self.front.local_addr().unwrap())
    }

    /// One datagram each way, if there is one.
    fn pass(&mut self, keeps_last_word: bool) {
        let mut buffer = [0; 2048];
        if let Ok((length, from)) = self.front.recv_from(&mut buffer) {
            self.connector = Some(from);
            let datagram = &buffer[..length];
            let is_last_word = datagram[3] == 10 && datagram[16] == 3;
            if is_last_word && keeps_last_word {
                self.last_word = Some(datagram.to_vec());
            } else {
                self.back.send_to(datagram, self.node).unwrap();
            }
        }
        if let (Ok((length, _)), Some(connector)) = (self.back.recv_from(&mut buffer), self.connector) {
            self.front.send_to(&buffer[..length], connector).unwrap();
        }
    }

    /// Until only the last word is missing.
    fn pass_but_last_word(&mut self, listener: &dyn Listener) {
        let deadline = Instant::now() + PATIENCE;
        while self.last_word.is_none() {
            assert!(Instant::now() < deadline, "nobody connects");
            self.pass(true);
            assert!(listener.accept().unwrap().is_none());
        }
    }

    fn let_go(&self) {
        self.back.send_to(self.last_word.as_ref().unwrap(), self.node).unwrap();
    }
}

fn listen_anywhere(security: &Security) -> Box<dyn Listener> {
    listen(&"udp:0.0.0.0:0".parse().unwrap(), security).unwrap()
}

/// Those that have only to be let in come before others that begin: each of these takes one of the places, and
/// where all are taken, an earlier one would have to go.
#[test]
fn who_has_come_far_comes_before_those_who_begin() {
    let (ours, theirs) = friends();
    let listener = listen_anywhere(&ours);
    let mut gates = [2, 3].map(|host| Gate::new(&*listener, [127, 0, 5, host]));
    let newcomers: Vec<_> = (0..8).map(|number| first_message(&*listener, [127, 0, 5, 9], number)).collect();
    std::thread::scope(|scope| {
        let connectors = gates.each_ref().map(|gate| {
            let (address, theirs) = (gate.address(), &theirs);
            scope.spawn(move || connect(&address, theirs, PATIENCE).map(drop))
        });
        for gate in &mut gates {
            gate.pass_but_last_word(&*listener);
        }
        for gate in &gates {
            gate.let_go();
        }
        let begun = listener.counters().begun;
        for (socket, first) in &newcomers {
            socket.send(first).unwrap();
        }
        let links = gates.each_ref().map(|_| accept(&*listener));
        assert_eq!(listener.counters().begun, begun, "others have begun");
        hear_until(&*listener, || listener.counters().begun == begun + newcomers.len() as u64);
        while !connectors.iter().all(|connector| connector.is_finished()) {
            for gate in &mut gates {
                gate.pass(false);
            }
            for link in &links {
                let _ = link.receive(1, &mut |_| {});
                link.tick(Instant::now());
            }
        }
        for connector in connectors {
            connector.join().unwrap().unwrap();
        }
    });
}

/// All places are taken, and of one host somebody has just begun when another of it comes. That one waits, and the
/// first one gets in.
#[test]
fn who_has_just_begun_gives_way_to_nobody() {
    let (ours, theirs) = friends();
    for _ in 0..20 {
        let listener = listen_anywhere(&ours);
        for host in 0..=254 {
            begin(&*listener, [127, 0, 6, host], host.into());
        }
        let mut gate = Gate::new(&*listener, [127, 0, 7, 1]);
        let (address, theirs) = (gate.address(), &theirs);
        let has_shown = std::thread::scope(|scope| {
            let connector = scope.spawn(move || connect(&address, theirs, Duration::from_secs(5)).map(drop));
            let began = Instant::now();
            gate.pass_but_last_word(&*listener);
            let before = listener.counters();
            begin(&*listener, [127, 0, 7, 1], 1000);
            let (after, took) = (listener.counters(), began.elapsed());
            gate.let_go();
            let mut link = None;
            while !connector.is_finished() {
                link = link.or_else(|| listener.accept().unwrap());
                gate.pass(false);
                if let Some(link) = &link {
                    let _ = link.receive(1, &mut |_| {});
                    link.tick(Instant::now());
                }
            }
            let connected = connector.join().unwrap();
            // Another place was free, or the first one had time enough: on a busy machine.
            if after.turned_away == before.turned_away || took >= GIVES_WAY_AFTER {
                return false;
            }
            connected.unwrap();
            assert_eq!(after.begun, before.begun, "the newcomer waits");
            true
        });
        if has_shown {
            return;
        }
    }
    panic!("this machine is too busy: all places were never taken at once");
}

/// All places are kept by others for a while, by more hosts than are told to wait. Honest ones get in nevertheless,
/// each after its time.
#[test]
fn honest_ones_get_in_although_all_places_are_taken_at_first() {
    let (ours, theirs) = friends();
    let listener = listen_anywhere(&ours);
    for number in 0..=255 {
        begin(&*listener, [127, 0, 8, number], number.into());
    }
    let port = socket_address(&listener.address()).port();
    let address = Address::Udp(SocketAddr::from(([127, 0, 0, 1], port)));
    std::thread::scope(|scope| {
        let connectors: Vec<_> =
            (0..40).map(|_| scope.spawn(|| connect(&address, &theirs, PATIENCE).map(drop))).collect();
        let links: Vec<_> = connectors.iter().map(|_| accept(&*listener)).collect();
        for connector in connectors {
            connector.join().unwrap().unwrap();
        }
        assert_eq!(links.len(), 40);
    });
}

/// More say hello over shared memory than a listener keeps: none is closed before its hello was read.
#[test]
fn all_that_say_hello_at_once_get_in() {
    let path = scratch_path();
    let listener = ShmListener::bind_with_rings(&path, 1 << 16).unwrap();
    let mut hello = [0; 24];
    hello[..8].copy_from_slice(b"TOMBOLO\0");
    (hello[8], hello[9]) = (PROTOCOL_VERSION, 1);
    let connect = || {
        let socket = SeqpacketSocket::connect(&path).unwrap();
        socket.send(&[&hello], &[]).unwrap();
        socket
    };
    // As many as the kernel lets wait, twice; the listener lets in one at a time.
    let mut sockets: Vec<_> = (0..64).map(|_| connect()).collect();
    let mut links = vec![listener.accept().unwrap().expect("a link")];
    sockets.extend((0..64).map(|_| connect()));
    while links.len() < sockets.len() {
        links.push(listener.accept().unwrap().expect("one of them was closed"));
    }
}

/// One that says nothing gives way, though only when there is another one.
#[test]
fn one_that_says_nothing_gives_way_to_one_that_comes() {
    let path = scratch_path();
    let listener = ShmListener::bind(&path).unwrap();
    let _silent: Vec<_> = (0..64).map(|_| SeqpacketSocket::connect(&path).unwrap()).collect();
    assert!(listener.accept().unwrap().is_none());
    let link = std::thread::scope(|scope| {
        let connector = scope.spawn(|| connect(&Address::Shm(path.clone()), &Security::Insecure, PATIENCE));
        let _accepted = accept(&listener);
        connector.join().unwrap()
    });
    link.unwrap();
}

/// A peer says more than the link keeps, and goes. All of it is heard, though we notice the end by a message of ours.
#[test]
fn what_was_said_before_the_end_is_heard() {
    let (one, other) = connected(&scratch_address());
    for number in 0..100_u8 {
        other.send_control(&[number], &[]).unwrap();
    }
    drop(other);
    assert!(one.send_control(&[1], &[]).is_err());
    let heard: Vec<_> = std::iter::from_fn(|| one.receive_control().ok().flatten()).collect();
    assert!(heard.iter().map(|message| message.bytes[0]).eq(0..100), "{} heard", heard.len());
    assert!(one.send_control(&[1], &[]).is_err());
    assert!(matches!(one.state(), LinkState::Lost(_)));
}
