//! What is particular to secure UDP links: who is let in, and what hostile datagrams do.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::harness::{
    PATIENCE, accept, check, connected_as, connected_securely, friends, hear_stranger, hear_until, loopback,
    many_connect_to, node_with, receive_until, send,
};
use crate::liveness::{a_link_outlives_an_outage, agree_on_outage, await_loss};
use crate::relay::{Impairment, Relay, Route, socket_address};
use crate::udp::{hello, stranger};
use tombolo_host::testing::left_out;
use tombolo_link::testing::Random;
use tombolo_link::{
    AcceptError, Address, AllowList, KeyPair, Link, LinkState, Listener, ListenerCounters, OpenError,
    PROTOCOL_VERSION, Security, connect, listen,
};

/// Connects and accepts; what each side is told.
fn attempt(ours: &Security, theirs: &Security) -> (Result<bool, AcceptError>, Result<(), OpenError>) {
    let listener = listen(&loopback(), ours).unwrap();
    let address = listener.address();
    std::thread::scope(|scope| {
        let connector = scope.spawn(|| connect(&address, theirs, PATIENCE).map(drop));
        let mut accepted = Ok(false);
        // Once more after its end: the last that it has said may not have been heard.
        let mut is_over = false;
        while !is_over {
            is_over = connector.is_finished();
            loop {
                match listener.accept_within(Duration::from_millis(10)) {
                    Ok(None) => break,
                    Ok(Some(_)) => accepted = Ok(true),
                    Err(error) => accepted = Err(error),
                }
            }
        }
        (accepted, connector.join().unwrap())
    })
}

#[test]
fn both_sides_are_told_who_is_on_whose_list() {
    let [us, them] = [(); 2].map(|()| KeyPair::generate().unwrap());
    let (open, closed) = ([us.public(), them.public()], []);

    let (accepted, connected) = attempt(&node_with(&us, &open), &node_with(&them, &open));
    assert!(accepted.unwrap());
    connected.unwrap();

    let (accepted, connected) = attempt(&node_with(&us, &closed), &node_with(&them, &open));
    let error = accepted.unwrap_err();
    let named = matches!(&error, AcceptError::PeerNotAllowed { key, .. } if *key == them.public());
    assert!(named && error.to_string().contains(&format!("add `{}` to the list", them.public())), "{error}");
    let error = connected.unwrap_err();
    assert!(matches!(&error, OpenError::NotOnTheirList { key, .. } if *key == them.public()), "{error}");

    let (accepted, connected) = attempt(&node_with(&us, &open), &node_with(&them, &closed));
    let error = accepted.unwrap_err();
    let named = matches!(&error, AcceptError::NotOnTheirList { theirs, ours, .. }
        if *theirs == them.public() && *ours == us.public());
    assert!(named, "{error}");
    let error = connected.unwrap_err();
    assert!(matches!(&error, OpenError::PeerNotAllowed { key, .. } if *key == us.public()), "{error}");
}

#[test]
fn keys_on_one_side_alone_are_named_on_both() {
    let (ours, theirs) = friends();
    let (accepted, connected) = attempt(&ours, &Security::Insecure);
    assert!(matches!(accepted, Err(AcceptError::SecurityMismatch { ours_secure: true })));
    assert!(connected.unwrap_err().to_string().contains("asks for keys: run this one without --insecure"));
    let (accepted, connected) = attempt(&Security::Insecure, &theirs);
    assert!(matches!(accepted, Err(AcceptError::SecurityMismatch { ours_secure: false })));
    assert!(connected.unwrap_err().to_string().contains("is --insecure"));
}

#[test]
fn a_list_that_changes_counts_for_the_next_link() {
    let path = crate::harness::scratch_path();
    let [us, them] = [(); 2].map(|()| KeyPair::generate().unwrap());
    std::fs::write(&path, "# nobody\n").unwrap();
    let ours = Security::secure(us.clone(), AllowList::from_file(&path).unwrap());
    let theirs = node_with(&them, &[us.public()]);
    let listener = listen(&loopback(), &ours).unwrap();
    let address = listener.address();
    let refused = std::thread::scope(|scope| {
        let connector = scope.spawn(|| connect(&address, &theirs, PATIENCE).map(drop).unwrap_err());
        let error = listener.accept_within(PATIENCE).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        while !connector.is_finished() {
            let _ = listener.accept_within(Duration::from_millis(10));
        }
        connector.join().unwrap()
    });
    assert!(matches!(refused, OpenError::NotOnTheirList { .. }), "{refused}");
    std::fs::write(&path, format!("{} them\n", them.public())).unwrap();
    let (one, other) = connected_as(&*listener, &theirs);
    std::fs::remove_file(&path).unwrap();
    exchange(&one, &other, 1);
    let (accepted, _) = attempt(&ours, &theirs);
    assert!(accepted.unwrap_err().to_string().contains("cannot read"));
}

#[test]
fn any_address_is_used() {
    let (ours, theirs) = friends();
    let listener = listen(&"udp:0.0.0.0:0".parse().unwrap(), &ours).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], socket_address(&listener.address()).port()));
    let (one, other) = std::thread::scope(|scope| {
        let connector = scope.spawn(|| connect(&Address::Udp(address), &theirs, PATIENCE).unwrap());
        (accept(&*listener), connector.join().unwrap())
    });
    exchange(&one, &other, 1);
    // Documentation's addresses lead nowhere, but nobody refuses to try.
    let nowhere: Address = "udp:192.0.2.1:7000".parse().unwrap();
    let error = connect(&nowhere, &theirs, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, OpenError::NoAnswer { .. } | OpenError::System { .. }), "{error}");
}

#[test]
fn ipv6_works() {
    let (ours, theirs) = friends();
    if listen(&"udp:[::1]:0".parse().unwrap(), &ours).is_err() {
        return left_out("no IPv6 on this machine");
    }
    let (one, other) = connected_securely(&"udp:[::1]:0".parse().unwrap(), &ours, &theirs);
    exchange(&one, &other, 1);
}

#[test]
fn many_connect_at_once() {
    let (ours, theirs) = friends();
    let listener = listen(&loopback(), &ours).unwrap();
    many_connect_to(&*listener, &theirs);
}

#[test]
fn a_newcomer_that_is_told_to_wait_gets_in_when_its_host_has_a_place() {
    let (ours, theirs) = friends();
    let listener = listen(&loopback(), &ours).unwrap();
    let address = listener.address();
    // They keep their places until the node gives them up, which takes 5 s: longer than the silence that the
    // newcomer bears.
    let hoard: Vec<_> = (0..250).map(|number| begin(&*listener, [127, 0, 0, 1], number)).collect();
    let counters = listener.counters();
    assert!(counters.begun > 100 && counters.turned_away > 0, "{counters:?}");
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(|| connect(&address, &theirs, Duration::from_secs(3)));
        let link = accept(&*listener);
        newcomer.join().unwrap().unwrap();
        assert_eq!(link.state(), LinkState::Up);
    });
    drop(hoard);
}

#[test]
fn hundreds_connect_at_once() {
    let (ours, theirs) = friends();
    let listener = listen(&loopback(), &ours).unwrap();
    let address = listener.address();
    std::thread::scope(|scope| {
        let connectors: Vec<_> =
            (0..200).map(|_| scope.spawn(|| connect(&address, &theirs, PATIENCE).map(drop))).collect();
        let accepted: Vec<_> = (0..200).map(|_| accept(&*listener)).collect();
        assert_eq!(accepted.len(), 200);
        for connector in connectors {
            connector.join().unwrap().unwrap();
        }
    });
    let counters = listener.counters();
    assert_eq!((counters.accepted, counters.turned_away), (200, 0), "{counters:?}");
}

#[test]
fn a_lossy_handshake_succeeds() {
    for _ in 0..5 {
        let (ours, theirs) = friends();
        let impairment = Impairment { loss_per_mille: 400, duplication_per_mille: 300 };
        Relay::new(&ours, impairment.route()).connect(&theirs);
    }
}

#[test]
fn a_silent_peer_is_lost_after_the_outage() {
    let (ours, theirs) = friends();
    let relay = Relay::new(&ours, Impairment::GOOD.route());
    let (one, other) = relay.connect(&theirs);
    agree_on_outage([&*one, &*other], Duration::from_millis(1500));
    relay.cut();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for link in [&one, &other] {
            scope.spawn(move || {
                assert_eq!(await_loss(&**link, PATIENCE).to_string(), "silent for 1.5 s");
                // The outage that was agreed on, not the default of 10 s.
                assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
            });
        }
    });
}

/// How many sockets this process has at a port: the listener's, and one a session. (`/proc/net/udp` is read in
/// pieces, and lacks lines when sockets of other processes are closed between two of them.)
fn sockets_at(port: u16) -> usize {
    let this_process = rustix::process::getpid();
    let handle = rustix::process::pidfd_open(this_process, rustix::process::PidfdFlags::empty()).unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = descriptors.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    // Another thread may close a descriptor between the list and here.
    let copies = numbers.filter_map(|number| {
        rustix::process::pidfd_getfd(&handle, number, rustix::process::PidfdGetfdFlags::empty()).ok()
    });
    copies
        .filter_map(|descriptor| SocketAddr::try_from(rustix::net::getsockname(&descriptor).ok()?).ok())
        .filter(|address| address.port() == port)
        .count()
}

#[test]
fn strangers_get_no_more_than_they_give_and_cost_nothing() {
    let (ours, theirs) = friends();
    let listener = listen(&loopback(), &ours).unwrap();
    let address = socket_address(&listener.address());
    let sockets = || sockets_at(address.port());
    let mut random = Random::for_test(7);
    let socket = stranger();
    assert_eq!(sockets(), 1, "the listener's");
    for round in 0..2000_u64 {
        let mut datagram = hello(PROTOCOL_VERSION, round).to_vec();
        datagram[4] = 2;
        match round % 5 {
            0 => {}
            1 => datagram.truncate(random.below(64) as usize),
            2 => datagram.fill_with(|| random.next() as u8),
            // The beginning of a handshake with a session that nobody was given.
            kind => {
                datagram[3] = if kind == 3 { 10 } else { 4 + random.below(9) as u8 };
                datagram[8..16].copy_from_slice(&random.next().to_le_bytes());
                datagram.resize(128, 7);
                datagram[16] = 1;
            }
        }
        socket.send_to(&datagram, address).unwrap();
        let (mut answer, mut answered) = ([0; 2048], 0);
        if round % 5 == 0 {
            let welcome = hear_stranger(&*listener, &socket);
            assert_eq!(welcome[3], 2, "a welcome");
            answered = welcome.len();
        }
        while !matches!(listener.accept(), Ok(None)) {}
        // Answers were sent by this thread. One that comes later counts in the next round, and is too much there.
        socket.set_nonblocking(true).unwrap();
        while let Ok(bytes) = socket.recv(&mut answer) {
            answered += bytes;
            assert_eq!(answer[3], 2, "a welcome");
        }
        assert!(answered <= datagram.len(), "{answered} for {}", datagram.len());
        assert_eq!(answered > 0, round % 5 == 0);
    }
    // No more than there are places, though two thousand have come.
    assert!(sockets() < 300, "{} sessions for strangers", sockets());
    let sockets_before = sockets();
    let (one, other) = connected_as(&*listener, &theirs);
    assert!(sockets() > sockets_before, "a session has a socket, or the count shows nothing");
    exchange(&one, &other, 1);
}

/// What anybody can begin with who is at that address.
pub fn first_message(listener: &dyn Listener, from: [u8; 4], number: u64) -> (std::net::UdpSocket, Vec<u8>) {
    let node = ("127.0.0.1", socket_address(&listener.address()).port());
    let socket = std::net::UdpSocket::bind(SocketAddr::from((from, 0))).unwrap();
    let mut datagram = hello(PROTOCOL_VERSION, number).to_vec();
    datagram[4] = 2;
    socket.send_to(&datagram, node).unwrap();
    let welcome = hear_stranger(listener, &socket);
    assert_eq!((welcome.len(), welcome[3]), (24, 2), "a welcome");
    let mut first =
        [&[b'T', b'm', PROTOCOL_VERSION, 10, 0, 0, 0, 0], &welcome[8..16], &[1], &welcome[16..24]].concat();
    first.resize(128, 9);
    socket.connect(node).unwrap();
    (socket, first)
}

/// Begins, and does not go on.
pub fn begin(listener: &dyn Listener, from: [u8; 4], number: u64) -> std::net::UdpSocket {
    let (socket, first) = first_message(listener, from, number);
    let heard = || {
        let counters = listener.counters();
        counters.begun + counters.turned_away + counters.discarded
    };
    let before = heard();
    socket.send(&first).unwrap();
    hear_until(listener, || heard() > before);
    socket
}

/// An honest node gets in although others keep places. All of 127/8 is this machine.
fn newcomer_gets_in(others: impl Iterator<Item = [u8; 4]>) -> ListenerCounters {
    let (ours, theirs) = friends();
    let listener = listen(&"udp:0.0.0.0:0".parse().unwrap(), &ours).unwrap();
    let port = socket_address(&listener.address()).port();
    // Their sockets stay: the next one of a host might get the port of an earlier one, and what it says would go to the
    // session that was begun from there.
    let hoard: Vec<_> = others.zip(0..).map(|(from, number)| begin(&*listener, from, number)).collect();
    let address = Address::Udp(SocketAddr::from(([127, 0, 0, 1], port)));
    std::thread::scope(|scope| {
        // Less than the 5 s after which the others lose their places.
        let connector = scope.spawn(|| connect(&address, &theirs, Duration::from_secs(4)).map(drop));
        let _link = accept(&*listener);
        connector.join().unwrap().unwrap();
    });
    let counters = listener.counters();
    let begun = counters.begun as usize;
    assert!(begun > hoard.len() / 3, "{begun} handshakes begun: the test shows nothing");
    counters
}

#[test]
fn one_host_that_begins_many_sessions_keeps_no_other_out() {
    newcomer_gets_in((0..80).map(|_| [127, 0, 0, 2]));
}

#[test]
fn hosts_that_keep_all_places_keep_no_newcomer_out() {
    // All 256 places; once more where some were free again before the last was taken.
    for hosts in [256, 128] {
        let others = || (0..256).map(|number| [127, 0, 3, (number % hosts) as u8]);
        let takes_one = |_| newcomer_gets_in(others()).turned_away > 0;
        assert!((0..5).any(takes_one), "a place was free: the test shows nothing");
    }
}

/// Packets and control messages both ways, so many of each: nothing missing, nothing twice, nothing
/// changed.
fn exchange(one: &Arc<dyn Link>, other: &Arc<dyn Link>, rounds: u64) {
    for (from, to) in [(one, other), (other, one)] {
        for round in 0..rounds {
            send(&**from, round, 16 + (round as usize * 531) % 4000);
            from.flush().unwrap();
            from.send_control(&round.to_le_bytes(), &[]).unwrap();
            let deadline = Instant::now() + PATIENCE;
            let (mut packets, mut messages) = (Vec::new(), Vec::new());
            while packets.is_empty() || messages.is_empty() {
                assert!(Instant::now() < deadline, "round {round}: {packets:?} {messages:?}");
                to.wait(Duration::from_millis(2)).unwrap();
                to.receive(16, &mut |packet| packets.push(check(packet))).unwrap();
                from.receive(16, &mut |_| panic!("an echo")).unwrap();
                from.tick(Instant::now());
                while let Some(message) = to.receive_control().unwrap() {
                    messages.push(message.bytes);
                }
            }
            assert_eq!((packets, messages), (vec![round], vec![round.to_le_bytes().to_vec()]));
            while to.receive(16, &mut |_| panic!("a second time")).unwrap() > 0 {}
        }
    }
    assert_eq!((one.state(), other.state()), (LinkState::Up, LinkState::Up));
}

/// A pair over a relay that passes everything on, and once there is a link, before it whatever
/// `hostile` makes of it.
fn beset(mut hostile: impl FnMut(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> (Relay, [Arc<dyn Link>; 2]) {
    let (ours, theirs) = friends();
    let armed = Arc::new(AtomicBool::new(false));
    let seen = armed.clone();
    let route: Route = Box::new(move |_, datagram| {
        let mut arriving = hostile(datagram);
        if !seen.load(Ordering::Relaxed) {
            arriving.clear();
        }
        arriving.push(datagram.to_vec());
        arriving
    });
    let relay = Relay::new(&ours, route);
    let (one, other) = relay.connect(&theirs);
    armed.store(true, Ordering::Relaxed);
    (relay, [one, other])
}

#[test]
fn random_datagrams_do_no_harm() {
    let mut random = Random::for_test(11);
    let (_relay, [one, other]) = beset(move |datagram| {
        let mut noise = vec![0; random.below(2000) as usize];
        noise.fill_with(|| random.next() as u8);
        // Also some that look like the session's.
        let mut likely = noise.clone();
        let head = likely.len().min(16).min(datagram.len());
        likely[..head].copy_from_slice(&datagram[..head]);
        vec![noise, likely]
    });
    exchange(&one, &other, 100);
    for link in [&one, &other] {
        let counters = link.counters();
        assert!(counters.discarded > 50 && counters.forged > 50, "{counters:?}");
    }
}

#[test]
fn replayed_datagrams_are_not_delivered_again() {
    let mut recorded: Vec<Vec<u8>> = Vec::new();
    let mut random = Random::for_test(12);
    let (_relay, [one, other]) = beset(move |datagram| {
        recorded.push(datagram.to_vec());
        (0..3).map(|_| recorded[random.below(recorded.len() as u64) as usize].clone()).collect()
    });
    exchange(&one, &other, 100);
    for link in [&one, &other] {
        let counters = link.counters();
        assert!(counters.replayed > 50, "{counters:?}");
    }
}

#[test]
fn changed_datagrams_are_not_delivered() {
    let mut random = Random::for_test(13);
    let (_relay, [one, other]) = beset(move |datagram| {
        let mut flipped = datagram.to_vec();
        let bit = random.below(datagram.len() as u64 * 8) as usize;
        flipped[bit / 8] ^= 1 << (bit % 8);
        let truncated = datagram[..random.below(datagram.len() as u64) as usize].to_vec();
        let longer = [datagram, &[0]].concat();
        vec![flipped, truncated, longer]
    });
    exchange(&one, &other, 100);
    for link in [&one, &other] {
        assert!(link.counters().forged > 100, "{:?}", link.counters());
    }
}

#[test]
fn what_is_not_sealed_is_not_believed() {
    // Goodbyes, hellos, pings and packets in the session's name, as an insecure peer would say them.
    let (_relay, [one, other]) = beset(move |datagram| {
        let kinds = (1..=12).filter(|kind| *kind != 10);
        kinds.map(|kind| [&datagram[..3], &[kind], &datagram[4..16], &[0x5A; 48]].concat()).collect()
    });
    exchange(&one, &other, 30);
    for link in [&one, &other] {
        let counters = link.counters();
        assert!(counters.forged > 100 && counters.discarded > 20, "{counters:?}");
        assert_eq!(counters.packets_received, 30);
    }
}

#[test]
fn a_stolen_session_number_is_worth_nothing_elsewhere() {
    let (sender, stolen): (Sender<Vec<u8>>, Receiver<Vec<u8>>) = mpsc::channel();
    let sender = Mutex::new(sender);
    let (relay, [one, other]) = beset(move |datagram| {
        let _ = sender.lock().unwrap().send(datagram.to_vec());
        Vec::new()
    });
    exchange(&one, &other, 5);
    let address = socket_address(&relay.listener.address());
    let thief = stranger();
    for datagram in stolen.try_iter() {
        thief.send_to(&datagram, address).unwrap();
        let mut bye = datagram;
        bye[3] = 9;
        thief.send_to(&bye, address).unwrap();
        while !matches!(relay.listener.accept(), Ok(None)) {}
    }
    exchange(&one, &other, 5);
}

#[test]
fn a_man_in_the_middle_who_swaps_keys_gets_no_link() {
    let (ours, theirs) = friends();
    // He speaks to each side with keys of his own.
    let his = KeyPair::generate().unwrap();
    let Security::Secure(identity) = &theirs else { unreachable!() };
    let (accepted, _) = attempt(&ours, &node_with(&his, &[identity.keys.public()]));
    assert!(matches!(accepted, Err(AcceptError::NotOnTheirList { .. })));
    let Security::Secure(identity) = &ours else { unreachable!() };
    let (accepted, _) = attempt(&ours, &node_with(&his, &[identity.keys.public()]));
    assert!(matches!(accepted, Err(AcceptError::PeerNotAllowed { key, .. }) if key == his.public()));
    let (_, connected) = attempt(&node_with(&his, &[identity.keys.public()]), &theirs);
    assert!(matches!(connected, Err(OpenError::PeerNotAllowed { key, .. }) if key == his.public()));

    // He passes everything on, but puts a key of his own into one of the messages.
    for step in 1..=3 {
        let route: Route = Box::new(move |_, datagram| {
            let mut changed = datagram.to_vec();
            if datagram.len() == 128 && datagram[3] == 10 && datagram[16] == step {
                let mut random = Random::for_test(1);
                changed[25..57].fill_with(|| random.next() as u8);
            }
            vec![changed]
        });
        let relay = Relay::new(&ours, route);
        std::thread::scope(|scope| {
            let address = Address::Udp(relay.front);
            let theirs = &theirs;
            let connector =
                scope.spawn(move || connect(&address, theirs, Duration::from_millis(500)).map(drop));
            while !connector.is_finished() {
                let accepted = relay.listener.accept_within(Duration::from_millis(20));
                assert!(!matches!(accepted, Ok(Some(_))), "step {step}");
            }
            let error = connector.join().unwrap().unwrap_err();
            assert!(matches!(error, OpenError::NoAnswer { .. }), "step {step}: {error}");
        });
    }
}

#[test]
fn refusals_of_the_network_are_not_believed() {
    let (ours, theirs) = friends();
    let listener = listen(&loopback(), &ours).unwrap();
    let (one, other) = connected_as(&*listener, &theirs);
    // The kernel says that nobody is there, which anyone on the way could have said.
    let gone = {
        let relay = Relay::new(&ours, Impairment::GOOD.route());
        let (accepted, connected) = relay.connect(&theirs);
        drop((relay, accepted));
        connected
    };
    for _ in 0..5 {
        send(&*gone, 1, 100);
        gone.flush().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let _ = gone.receive(16, &mut |_| {});
        assert_eq!(gone.state(), LinkState::Up);
    }
    gone.set_outage(Duration::from_millis(1500));
    assert_eq!(await_loss(&*gone, PATIENCE).to_string(), "silent for 1.5 s");
    exchange(&one, &other, 2);
}

#[test]
fn integrity_is_protected_where_it_is_said_to_be() {
    for (kind, protected) in [
        (crate::Kind::Shm, true),
        (crate::Kind::Udp, false),
        (crate::Kind::SecureUdp, true),
        (crate::Kind::SecureUdp.faulty(), true),
    ] {
        let pair = kind.pair();
        assert_eq!(pair.one.protects_integrity(), protected);
        assert_eq!(pair.other.protects_integrity(), protected);
    }
}

#[test]
fn nothing_is_readable_on_the_way() {
    const TEXT: &[u8] = b"a text that nobody else may read";
    let (_relay, [one, other]) = beset(|datagram| {
        assert!(!datagram.windows(TEXT.len()).any(|part| part == TEXT), "in clear");
        Vec::new()
    });
    one.send(b"head", TEXT.into()).unwrap();
    one.flush().unwrap();
    one.send_control(TEXT, &[]).unwrap();
    let mut got = 0;
    receive_until(
        &*other,
        Duration::from_millis(100),
        |packet| got += usize::from(packet.to_vec().ends_with(TEXT)),
        || false,
    );
    assert_eq!(got, 1);
    assert_eq!(other.receive_control().unwrap().unwrap().bytes, TEXT);
}

#[test]
fn a_session_lives_on_when_the_network_was_down() {
    let (ours, theirs) = friends();
    let relay = Relay::new(&ours, Impairment::GOOD.route());
    let (one, other) = relay.connect(&theirs);
    a_link_outlives_an_outage([&*one, &*other], &|cut| if cut { relay.cut() } else { relay.heal() });
}
