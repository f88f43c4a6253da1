//! A network that does its worst to a node with keys, over real sockets: strangers and impostors that
//! keep asking, replays, a stolen session, floods. An honest pair of programs moves checked bytes
//! through the same node meanwhile, and does not notice.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Grant, MAX_MAIL_BYTES, Mail, Mailbox, Memory, Spec, Target, Who};
use tombolo_host::net::{Interface, in_new_namespace};
use tombolo_host::testing::left_out;
use tombolo_node::identity::{AllowList, KeyPair};
use tombolo_node::{Address, Node, OpenError, Security};
use tombolo_wire::{
    Asker, Attempt, Checksums, DataHeader, Domain as WireDomain, Generation, NotificationMark, Packet,
    Payload, TransactionId,
};

use crate::harness::{Host, PATIENCE, pattern, shm, udp};
use crate::impostor::{HELLO, REJECT, WELCOME, Word, handshake, hello, key_bytes, knock, session_of};
use crate::relay::{Relay, socket_address};
use tombolo_random::Random;

/// What memory that nobody may reach is full of.
const GUARD: u8 = 0xA7;
/// Where the word is that is added to.
const WORD: usize = 512 << 10;
/// Rounds of honest work, at least.
const ROUNDS: u64 = 20;
/// Another address of this machine: all of 127/8 is.
const ELSEWHERE: &str = "127.0.0.2:0";

/// A node that is beset, and an honest one that is joined to it through a relay.
struct Scene {
    victim: Host,
    address: Address,
    honest: Host,
    keys: [KeyPair; 2],
    relay: Relay,
    near: Domain,
    far: Domain,
    mine: Memory,
    theirs: Memory,
    mailbox: Mailbox,
    guards: Vec<Memory>,
}

fn guarded(domain: &Domain, grants: &[Grant]) -> Memory {
    let memory = domain.allocate(64 * 1024, grants).unwrap();
    memory.write(0, &vec![GUARD; memory.len()]).unwrap();
    memory
}

/// A silent node is lost after ten seconds, and noticed later on a busy machine.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < 3 * PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Scene {
    fn new() -> Self {
        let keys = [(); 2].map(|()| KeyPair::generate().unwrap());
        let victim = Node::new("victim", 1 << 20, 0).unwrap();
        let security = Self::security(&keys, 0);
        let (victim, address) = Host::start_secured(victim, &udp(), &[], &security);
        let relay = Relay::to(&address, 2000);
        let honest = Node::new("honest", 0, 0).unwrap();
        let security = Self::security(&keys, 1);
        let (honest, _) = Host::start_secured(honest, &shm(), &[&relay.address], &security);
        let (near, far) = (honest.domain(1), victim.domain(2));
        let neighbour = victim.domain(3);
        let guards = vec![
            guarded(&near, &[]),
            guarded(&far, &[]),
            guarded(&far, &[Grant::all(Who::Node(7))]),
            guarded(&neighbour, &[Grant::all(Who::Program(2))]),
        ];
        let mine = near.allocate(1 << 20, &[]).unwrap();
        let theirs = far.allocate(1 << 20, &[Grant::all(Who::Node(1))]).unwrap();
        let mailbox = far.open_mailbox(4, &[Who::Node(1)]).unwrap();
        Self { victim, address, honest, keys, relay, near, far, mine, theirs, mailbox, guards }
    }

    /// Each has the key of the other on its list.
    fn security(keys: &[KeyPair; 2], which: usize) -> Security {
        Security::secure(keys[which].clone(), AllowList::Keys(vec![keys[1 - which].public()]))
    }

    /// Writes, reads, adds to a word and sends messages, everything checked, until told to stop and
    /// enough is done.
    fn work(&self, stop: &AtomicBool) {
        let there = Target { node: 1, domain: self.far.number() };
        let mut round = 0;
        while round < ROUNDS || !stop.load(Ordering::Relaxed) {
            round += 1;
            let length = 1 + (round as usize * 7919) % 200_000;
            let bytes = pattern(round, length);
            self.mine.write(0, &bytes).unwrap();
            let write = Spec::new(self.mine.address(), self.theirs.address(), length as u32);
            self.near.write(there, write).unwrap().wait(PATIENCE).unwrap();
            let mut found = vec![0; length];
            self.theirs.read(0, &mut found).unwrap();
            assert!(found == bytes, "round {round}, {length} bytes written");
            let half = 1 << 19;
            let read = Spec::new(self.theirs.address(), self.mine.address() + half, length as u32);
            self.near.read(there, read).unwrap().wait(PATIENCE).unwrap();
            self.mine.read(half as usize, &mut found).unwrap();
            assert!(found == bytes, "round {round}, {length} bytes read");

            let word = self.theirs.word(WORD).unwrap();
            let before = word.load(Ordering::SeqCst);
            let at = self.theirs.address() + WORD as u64;
            let added = self.near.fetch_add(there, at, 1).unwrap().wait(PATIENCE);
            assert_eq!((added, word.load(Ordering::SeqCst)), (Ok(before), before + 1), "round {round}");
            let swapped = self.near.compare_swap(there, at, before + 1, round << 32).unwrap().wait(PATIENCE);
            assert_eq!((swapped, word.load(Ordering::SeqCst)), (Ok(before + 1), round << 32));

            let mail = pattern(round, 1 + round as usize % 200);
            self.near.send(there, &mail).unwrap().wait(PATIENCE).unwrap();
            let from = Target { node: 1, domain: self.near.number() };
            assert_eq!(self.mailbox.receive(PATIENCE), Ok(Mail { from, bytes: mail }), "round {round}");
        }
        assert_eq!(self.mailbox.try_receive(), Ok(None), "a message came that nobody sent");
        eprintln!("{round} honest rounds");
    }

    /// Honest work for as long as an attack lasts.
    fn work_while<T: Send>(&self, attack: impl FnOnce() -> T + Send) -> T {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let attacker = scope.spawn(|| {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attack));
                stop.store(true, Ordering::Relaxed);
                outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            self.work(&stop);
            attacker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// What must be so after every attack: nothing was written that may not be, no link was lost but
    /// those that the test has ended, at the one and the other, and nothing was taken that the other
    /// side has not sent.
    fn check(&self, gone: [u64; 2]) {
        for (index, guard) in self.guards.iter().enumerate() {
            let mut found = vec![0; guard.len()];
            guard.read(0, &mut found).unwrap();
            assert!(found.iter().all(|byte| *byte == GUARD), "memory {index} was written");
        }
        let hosts = [&self.victim, &self.honest];
        for (one, other, gone) in [(0, 1, gone[0]), (1, 0, gone[1])] {
            assert_eq!((hosts[one].counter("links_gone"), hosts[one].counter("links_up")), (gone, 1));
            // In this order: meanwhile, more may be sent.
            let received = hosts[one].counter("links_packets_received");
            let sent = hosts[other].counter("links_packets_sent");
            assert!(received <= sent, "{received} packets came of {sent} that were sent");
        }
        assert_eq!(self.victim.counter("strangers_accepted"), gone[0] + 1);
    }
}

#[test]
fn the_handshake_by_hand_works_for_the_owner_of_the_key() {
    let scene = Scene::new();
    let (owned, public) = (secret(&scene.keys[1]), key_bytes(&scene.keys[1].public().to_string()));
    assert_eq!(knock(socket_address(&scene.address), 5, &owned, public), Word::Accepted);
}

fn secret(keys: &KeyPair) -> [u8; 32] {
    key_bytes(&keys.secret_text())
}

#[test]
fn strangers_and_impostors_keep_asking() {
    const TRIES: u64 = 12;
    let scene = Scene::new();
    let stranger = KeyPair::generate().unwrap();
    let claimed = key_bytes(&scene.keys[1].public().to_string());
    scene.work_while(|| {
        std::thread::scope(|scope| {
            // Whose key is not on the list.
            scope.spawn(|| {
                let allowed = AllowList::Keys(vec![scene.keys[0].public()]);
                let security = Security::secure(stranger.clone(), allowed);
                for _ in 0..TRIES {
                    let refused = tombolo_link::connect(&scene.address, &security, PATIENCE).map(drop);
                    assert!(matches!(refused, Err(OpenError::NotOnTheirList { .. })), "{refused:?}");
                }
            });
            // Who shows a key that is on the list, and does not have its secret.
            scope.spawn(|| {
                let secret = secret(&stranger);
                for nonce in 0..TRIES {
                    let word = knock(socket_address(&scene.address), nonce, &secret, claimed);
                    assert_eq!(word, Word::Nothing);
                }
            });
            // Who has no keys at all.
            scope.spawn(|| {
                for _ in 0..TRIES {
                    let refused =
                        tombolo_link::connect(&scene.address, &Security::Insecure, PATIENCE).map(drop);
                    assert!(matches!(refused, Err(OpenError::SecurityMismatch { .. })), "{refused:?}");
                }
            });
        });
    });
    assert!(scene.victim.counter("strangers_refused") >= 2 * TRIES);
    assert!(scene.victim.counter("strangers_begun") > 2 * TRIES);
    wait_until("sessions that came to nothing are given up", || {
        scene.victim.counter("strangers_abandoned") == scene.victim.counter("strangers_begun") - 1
    });
    scene.check([0, 0]);
}

/// Sends what has passed again, many times: from where it came from and from elsewhere, to both ends.
fn replay(scene: &Scene, random: &mut Random, times: usize) {
    let elsewhere = UdpSocket::bind(ELSEWHERE).unwrap();
    let node = socket_address(&scene.address);
    for _ in 0..times {
        let passed = scene.relay.passed();
        // The beginnings more often: they have the handshakes.
        let most = random.among(&[passed.len() as u64, passed.len() as u64, 20]);
        for _ in 0..50 {
            let again = &passed[random.below(most.min(passed.len() as u64)) as usize];
            for _ in 0..1 + random.below(3) {
                // In the name of this connection, or of a later one of the same.
                let connection = random.among(&[again.connection, scene.relay.connections() - 1]);
                scene.relay.inject(connection, again.forward, &again.bytes);
                let _ = elsewhere.send_to(&again.bytes, node);
                let client = scene.relay.client(connection);
                let _ = elsewhere.send_to(&again.bytes, client);
            }
        }
        std::thread::yield_now();
    }
    // Hellos are answered wherever they come from, with a number that is good there alone.
    hears_only_welcomes(&elsewhere);
}

fn hears_only_welcomes(socket: &UdpSocket) {
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 65_536];
    while let Ok(length) = socket.recv(&mut buffer) {
        let open = length == 24 && [WELCOME, REJECT].contains(&buffer[3]);
        assert!(open, "a session has followed someone: {:?}", &buffer[..length.min(32)]);
    }
}

#[test]
fn replays() {
    const TIMES: usize = 150;
    let scene = Scene::new();
    let mut random = Random::for_test(303);
    scene.work_while(|| replay(&scene, &mut random, TIMES));
    for host in [&scene.victim, &scene.honest] {
        assert!(host.counter("links_replayed") > TIMES as u64);
    }
    scene.check([0, 0]);

    // The link is lost and made again; what was sent on the first one comes on the second.
    scene.relay.cut(true);
    wait_until("both have noticed", || {
        scene.victim.node.peers().is_empty() && scene.honest.node.peers().is_empty()
    });
    scene.relay.cut(false);
    let security = Scene::security(&scene.keys, 1);
    scene.honest.node.join(&scene.relay.address, &security, PATIENCE).unwrap();
    scene.work_while(|| replay(&scene, &mut random, TIMES));
    let discarded = scene.victim.counter("links_discarded");
    assert!(discarded > TIMES as u64, "{discarded} datagrams of the first session on the second");
    // What was said to begin a session begins no other.
    assert_eq!(scene.victim.counter("strangers_begun"), 2);
    assert!(scene.victim.counter("strangers_discarded") > TIMES as u64);
    scene.check([1, 1]);
}

/// What one who has seen a datagram makes of it.
fn forge(random: &mut Random, seen: &[u8]) -> Vec<u8> {
    let mut bytes = seen.to_vec();
    let length = bytes.len() as u64;
    match random.below(6) {
        // One bit is another.
        0 => {
            let bit = random.below(length * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        1 => bytes.truncate(random.below(length) as usize),
        // Garbage in the name of the session.
        2 => bytes.iter_mut().skip(16).for_each(|byte| *byte = random.next() as u8),
        3 => bytes.extend((0..1 + random.below(100)).map(|_| 0)),
        // What a session without keys would say: goodbye, ping, a control message, an acceptance.
        4 => {
            bytes.truncate(16);
            bytes[3] = 5 + random.below(8) as u8;
            bytes.extend((0..random.below(200)).map(|_| random.next() as u8));
        }
        // Packets of a session without keys, which would write to memory.
        _ => {
            bytes.truncate(16);
            bytes[3] = 4;
            let header = DataHeader {
                domain: WireDomain(random.among(&[0x8001, 0x8002, 0x8003, 0, 1])),
                transaction: TransactionId(random.below(1024) as u16),
                generation: Generation(random.below(4) as u32),
                attempt: Attempt(0),
                block_address: (1 << 32) + random.below(1 << 14) * 8,
                block_bytes: 64,
                offset_bytes: 0,
                payload_bytes: 64,
                in_reply_to: None,
                asker: Asker::SENDER,
                notification: NotificationMark::None,
            };
            let (mut packet, payload) = ([0; 256], [0x11; 64]);
            let length = Packet::Data(header, Payload::Intact(&payload)).emit(&mut packet, Checksums::On);
            let length = length.unwrap();
            bytes.extend_from_slice(&(length as u16 + 1).to_le_bytes());
            bytes.extend_from_slice(&packet[..length]);
        }
    }
    bytes
}

#[test]
fn a_stolen_session() {
    const TIMES: u64 = 6_000;
    let scene = Scene::new();
    let mut random = Random::for_test(404);
    let thief = UdpSocket::bind(ELSEWHERE).unwrap();
    scene.work_while(|| {
        let (node, client) = (socket_address(&scene.address), scene.relay.client(0));
        let mut passed = Vec::new();
        for time in 0..TIMES {
            if time % 100 == 0 {
                passed = scene.relay.passed();
                std::thread::yield_now();
            }
            let seen = &passed[random.below(passed.len() as u64) as usize];
            let forged = forge(&mut random, &seen.bytes);
            let _ = thief.send_to(&seen.bytes, node);
            let _ = thief.send_to(&forged, node);
            let _ = thief.send_to(&forged, client);
            // And from where the true ones come from, as one who writes any sender can.
            scene.relay.inject(0, seen.forward, &forged);
        }
    });
    hears_only_welcomes(&thief);
    for host in [&scene.victim, &scene.honest] {
        assert!(host.counter("links_forged") > TIMES / 10);
        assert!(host.counter("links_discarded") > 0);
    }
    assert!(scene.victim.counter("strangers_discarded") > TIMES / 10);
    assert_eq!(scene.victim.counter("strangers_begun"), 1);
    scene.check([0, 0]);
}

/// Begins a handshake as one can who is where it says, and does not go on.
fn half_open(socket: &UdpSocket, node: SocketAddr, nonce: u64) -> bool {
    let _ = socket.send_to(&hello(nonce), node);
    answer_welcome(socket, node, nonce)
}

/// Begins one from each socket, all at the same time. Returns how many were begun.
fn half_open_all(sockets: &[UdpSocket], node: SocketAddr, first_nonce: u64) -> u64 {
    let nonces = || sockets.iter().zip(first_nonce..);
    for (socket, nonce) in nonces() {
        let _ = socket.send_to(&hello(nonce), node);
    }
    nonces().map(|(socket, nonce)| u64::from(answer_welcome(socket, node, nonce))).sum()
}

fn answer_welcome(socket: &UdpSocket, node: SocketAddr, nonce: u64) -> bool {
    let mut buffer = [0; 2048];
    while let Ok(length) = socket.recv(&mut buffer) {
        // A welcome to an earlier one, which came late, is of no use any more.
        if let Some(session) = session_of(&buffer[..length]).filter(|_| buffer[16..24] == nonce.to_le_bytes())
        {
            let first = handshake(session, nonce, 1, &nonce.to_le_bytes().repeat(4));
            return socket.send_to(&first, node).is_ok();
        }
    }
    false
}

#[test]
fn floods() {
    /// Ports that are sent from: each has one session on its way at most, and there are places for 256.
    const PORTS: usize = 300;
    const DATAGRAMS: u64 = 20_000;
    let scene = Scene::new();
    let node = socket_address(&scene.address);
    let resident = crate::hostile::resident_bytes();
    let mut random = Random::for_test(505);
    let begun = scene.work_while(|| {
        let ports: Vec<UdpSocket> = (0..PORTS)
            .map(|_| {
                let socket = UdpSocket::bind(ELSEWHERE).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
                socket
            })
            .collect();
        // Nothing is begun for a number that was not given to who says it.
        for number in 0..100 {
            let first = handshake(random.next(), number, 1, &[7; 32]);
            ports[0].send_to(&first, node).unwrap();
        }
        let mut begun = 0;
        wait_until("one is begun as it should be", || {
            begun += u64::from(half_open(&ports[0], node, random.next()));
            scene.victim.counter("strangers_begun") > 1
        });
        assert!(scene.victim.counter("strangers_begun") <= begun + 1);
        // More sessions on their way than are kept at once, all from one address.
        wait_until("sessions do not fit any more", || {
            begun += half_open_all(&ports, node, random.next() >> 1);
            scene.victim.counter("strangers_turned_away") > 0
        });
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Who is on the list gets in all the same.
            let newcomers = scope.spawn(|| {
                for _ in 0..3 {
                    let security = Scene::security(&scene.keys, 1);
                    tombolo_link::connect(&scene.address, &security, PATIENCE).map(drop).unwrap();
                }
                stop.store(true, Ordering::Relaxed);
            });
            let mut sent = 0;
            while sent < DATAGRAMS || (!stop.load(Ordering::Relaxed) && !newcomers.is_finished()) {
                sent += 1;
                let port = &ports[random.below(PORTS as u64) as usize];
                let bytes = match random.below(8) {
                    0 => hello(random.next()),
                    // A handshake with a session that nobody was given.
                    1 => handshake(random.next(), random.next(), 1 + random.below(3) as u8, &[7; 32]),
                    2 => {
                        let length = 16 + random.below(200) as usize;
                        crate::impostor::datagram(random.next() as u8, 2, random.next(), length)
                    }
                    3 => crate::impostor::datagram(HELLO, 0, 0, 64),
                    kind => {
                        let most = if kind == 4 { 65_507 } else { 2000 };
                        (0..random.below(most)).map(|_| random.next() as u8).collect()
                    }
                };
                let _ = port.send_to(&bytes, node);
                if sent % 32 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        begun
    });
    let count = |name: &str| scene.victim.counter(name);
    assert!(count("strangers_discarded") > 500, "{}", count("strangers_discarded"));
    assert!(count("strangers_hellos") > 100 && count("strangers_refused") > 100);
    // Nothing is begun for those who were not welcomed where they are.
    // The honest one has begun once. Each of the three newcomers may begin once more every five seconds, which a
    // handshake may take, for as long as it bears.
    assert!(count("strangers_begun") <= begun + 1 + 3 * 5, "{} begun", count("strangers_begun"));
    let grown = crate::hostile::resident_bytes().saturating_sub(resident);
    assert!(grown < 256 << 20, "{grown} bytes more than before");
    wait_until("newcomers are gone", || scene.victim.node.peers().len() == 1);
    // And the node is as it was.
    scene.work(&AtomicBool::new(true));
    scene.check([3, 0]);
}

/// A message is longer than the packets of a narrow network; some packets are lost. It comes whole and once, or its sender hears why not.
#[test]
fn messages_are_whole_over_a_narrow_network() {
    const NARROW_BYTES: u32 = 576;
    let done = in_new_namespace(|| {
        let loopback = Interface::open("lo")?;
        loopback.set_mtu(NARROW_BYTES)?;
        loopback.set_up()?;
        correspond_over_packets();
        Ok(())
    });
    if let Err(error) = done {
        assert!(!rustix::process::geteuid().is_root(), "a narrow network: {error}");
        left_out(&format!("a narrow network: {error}"));
    }
}

fn correspond_over_packets() {
    let (far_host, address) = Host::start(&udp(), &[]);
    let relay = Relay::to(&address, 0);
    let (near_host, _) = Host::start(&shm(), &[&relay.address]);
    let (near, far) = (near_host.domain(1), far_host.domain(2));
    let mailbox = far.open_mailbox(4, &[Who::Node(1)]).unwrap();
    let there = Target { node: 1, domain: far.number() };
    let from = Target { node: 1, domain: near.number() };
    for (loses, rounds) in [(0, 40_u64), (7, 200)] {
        relay.lose(loses);
        for round in 0..rounds {
            let length = [200, 257, 700, 1000, MAX_MAIL_BYTES][round as usize % 5];
            let bytes = pattern(round, length);
            near.send(there, &bytes).unwrap().wait(PATIENCE).unwrap();
            assert_eq!(mailbox.receive(PATIENCE), Ok(Mail { from, bytes }), "{loses}: {round}");
        }
    }
    assert!(relay.lost() > 0, "nothing was lost");
    // A full mailbox: the last part comes again, until there is room, and the message is there once.
    let waiting: Vec<_> =
        (0..12_u64).map(|number| near.send(there, &pattern(number, MAX_MAIL_BYTES)).unwrap()).collect();
    let mut came: Vec<_> = (0..12).map(|_| mailbox.receive(PATIENCE).unwrap().bytes).collect();
    for sent in &waiting {
        sent.wait(PATIENCE).unwrap();
    }
    assert_eq!(mailbox.try_receive(), Ok(None));
    let mut wanted: Vec<_> = (0..12_u64).map(|number| pattern(number, MAX_MAIL_BYTES)).collect();
    came.sort_unstable();
    wanted.sort_unstable();
    assert!(came == wanted, "a message is not what was sent");
}
