//! What is particular to the UDP link: strangers, silence, a network that loses.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{
    PATIENCE, a_late_listener_is_found, accept, check, connect, connected_to, hear_stranger, listen,
    loopback, many_connect_to, receive_until, send,
};
use crate::liveness::{
    SOONER_THAN_SILENCE, a_link_outlives_an_outage, agree_on_outage, await_loss, run_until,
};
use crate::relay::{Impairment, Relay, socket_address};
use tombolo_host::testing::left_out;
use tombolo_link::testing::Random;
use tombolo_link::{AcceptError, Address, LinkState, LossReason, OpenError, PROTOCOL_VERSION, Security};

pub fn stranger() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

pub fn hello(version: u8, nonce: u64) -> [u8; 64] {
    let mut datagram = [0; 64];
    datagram[..4].copy_from_slice(&[b'T', b'm', version, 1]);
    datagram[16..24].copy_from_slice(&nonce.to_le_bytes());
    datagram
}

#[test]
fn nobody_there_is_a_clear_error() {
    // At an address of its own: the port that is given back is no other test's there.
    let free = socket_address(&listen(&"udp:127.0.0.78:0".parse().unwrap()).unwrap().address());
    let error = connect(&Address::Udp(free), Duration::from_millis(100)).unwrap_err();
    assert_eq!(error.to_string(), format!("no node answers at udp:{free} (waited 0.1 s)"));
    // One that is there and says nothing.
    let silent = stranger();
    let address = Address::Udp(silent.local_addr().unwrap());
    let error = connect(&address, Duration::from_millis(100)).unwrap_err();
    assert!(matches!(error, OpenError::NoAnswer { .. }), "{error}");
}

#[test]
fn a_listener_that_starts_late_is_found() {
    // At an address of its own: the port that is given back meanwhile is no other test's there.
    let address = listen(&"udp:127.0.0.77:0".parse().unwrap()).unwrap().address();
    a_late_listener_is_found(&address);
}

#[test]
fn without_keys_only_loopback_is_used() {
    for text in ["udp:0.0.0.0:7000", "udp:192.0.2.1:7000", "udp:[::]:7000", "udp:[2001:db8::1]:1"] {
        let address: Address = text.parse().unwrap();
        let errors =
            [listen(&address).unwrap_err(), connect(&address, Duration::from_millis(10)).unwrap_err()];
        for error in errors {
            assert!(error.to_string().contains("not a loopback address"), "{error}");
        }
    }
}

#[test]
fn ipv6_works() {
    let Ok(listener) = listen(&"udp:[::1]:0".parse().unwrap()) else {
        return left_out("no IPv6 on this machine");
    };
    let (one, other) = connected_to(&*listener);
    send(&*one, 5, 4000);
    one.flush().unwrap();
    let mut got = 0;
    receive_until(&*other, Duration::from_millis(200), |bytes| got = check(bytes), || false);
    assert_eq!(got, 5);
}

#[test]
fn an_address_in_use_is_an_error() {
    let listener = listen(&loopback()).unwrap();
    let address = listener.address();
    let _pair = connected_to(&*listener);
    let error = listen(&address).unwrap_err();
    assert_eq!(error.to_string(), format!("another process listens at {address}"));
}

/// A version that nobody has yet.
const NEWER: u8 = PROTOCOL_VERSION + 1;

#[test]
fn versions_that_differ_are_named_on_both_sides() {
    let listener = listen(&loopback()).unwrap();
    let newer = stranger();
    newer.send_to(&hello(NEWER, 77), socket_address(&listener.address())).unwrap();
    let error = listener.accept_within(PATIENCE).unwrap_err();
    assert!(matches!(error, AcceptError::VersionMismatch { ours: PROTOCOL_VERSION, theirs: NEWER }));
    let mut answer = [0; 128];
    let bytes = newer.recv(&mut answer).unwrap();
    assert!(bytes <= 64);
    assert_eq!(answer[..4], [b'T', b'm', PROTOCOL_VERSION, 3]);
    assert_eq!(answer[16..24], 77_u64.to_le_bytes());

    // And a connector that meets a newer listener.
    let fake = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = Address::Udp(fake.local_addr().unwrap());
    std::thread::scope(|scope| {
        let connector = scope.spawn(|| connect(&address, PATIENCE).map(drop).unwrap_err());
        let mut received = [0; 128];
        let (_, from) = fake.recv_from(&mut received).unwrap();
        let mut reject = received[..24].to_vec();
        reject[2..4].copy_from_slice(&[NEWER, 3]);
        fake.send_to(&reject, from).unwrap();
        let error = connector.join().unwrap();
        assert!(
            matches!(error, OpenError::VersionMismatch { ours: PROTOCOL_VERSION, theirs: NEWER, .. }),
            "{error}"
        );
    });
}

#[test]
fn strangers_do_no_harm_and_get_no_more_than_they_give() {
    let listener = listen(&loopback()).unwrap();
    let address = socket_address(&listener.address());
    let (one, other) = connected_to(&*listener);
    let mut random = Random::for_test(42);
    let strangers: Vec<UdpSocket> = (0..8).map(|_| stranger()).collect();
    for round in 0..2000_u64 {
        let mut datagram = hello(PROTOCOL_VERSION, round).to_vec();
        match round % 4 {
            0 => datagram.truncate(random.below(64) as usize),
            1 => {
                let bit = random.below(16 * 8);
                datagram[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
            2 => datagram.fill_with(|| random.next() as u8),
            _ => datagram[3] = 4 + random.below(6) as u8,
        }
        strangers[(round % 8) as usize].send_to(&datagram, address).unwrap();
        if round % 16 == 0 {
            while !matches!(listener.accept(), Ok(None)) {}
        }
    }
    // One that says hello over and over is answered over and over, and never with more.
    let repeater = stranger();
    for _ in 0..20 {
        repeater.send_to(&hello(PROTOCOL_VERSION, 7), address).unwrap();
        let answer = hear_stranger(&*listener, &repeater);
        assert!(answer.len() <= 64);
        assert_eq!(answer[3], 2, "a welcome");
    }
    // The half-open sessions are gone when their time is over; new ones are welcome meanwhile.
    let (third, fourth) = connected_to(&*listener);
    for (from, to) in [(&one, &other), (&other, &one), (&third, &fourth), (&fourth, &third)] {
        send(&**from, 3, 4000);
        from.flush().unwrap();
        let mut got = 0;
        let done = std::cell::Cell::new(false);
        receive_until(
            &**to,
            PATIENCE,
            |bytes| {
                got = check(bytes);
                done.set(true);
            },
            || done.get(),
        );
        assert_eq!(got, 3);
        assert_eq!((from.state(), to.state()), (LinkState::Up, LinkState::Up));
    }
}

#[test]
fn many_sessions_share_one_address() {
    let listener = listen(&loopback()).unwrap();
    let pairs: Vec<_> = (0..40).map(|_| connected_to(&*listener)).collect();
    for (number, (one, other)) in pairs.iter().enumerate() {
        send(&**one, number as u64, 100);
        send(&**other, 1000 + number as u64, 100);
        one.flush().unwrap();
        other.flush().unwrap();
    }
    for (number, (one, other)) in pairs.iter().enumerate() {
        for (link, expected) in [(other, number as u64), (one, 1000 + number as u64)] {
            let mut got = Vec::new();
            link.wait(PATIENCE).unwrap();
            link.receive(10, &mut |bytes| got.push(check(bytes))).unwrap();
            assert_eq!(got, [expected]);
        }
    }
    // The sessions outlive the listener.
    drop(listener);
    send(&*pairs[0].1, 9, 50);
    pairs[0].1.flush().unwrap();
    assert!(pairs[0].0.wait(PATIENCE).unwrap());
    assert_eq!(pairs[0].0.receive(10, &mut |bytes| assert_eq!(check(bytes), 9)), Ok(1));
}

#[test]
fn many_connect_at_once() {
    let listener = listen(&loopback()).unwrap();
    many_connect_to(&*listener, &Security::Insecure);
}

#[test]
fn a_silent_peer_is_lost_after_the_outage() {
    let relay = Relay::new(&Security::Insecure, Impairment::GOOD.route());
    let (one, other) = relay.connect(&Security::Insecure);
    agree_on_outage([&*one, &*other], Duration::from_millis(1500));
    relay.cut();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for link in [&one, &other] {
            scope.spawn(move || {
                let reason = await_loss(&**link, PATIENCE);
                assert_eq!(reason.to_string(), "silent for 1.5 s");
                // Less than the 1.5 s: the silence may have begun before this test looked at the time.
                assert!(started.elapsed() > Duration::from_millis(500), "{:?}", started.elapsed());
                // The outage that was agreed on, not the default of 10 s.
                assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
            });
        }
    });
}

#[test]
fn a_refused_datagram_is_noticed_at_once() {
    let listener = listen(&loopback()).unwrap();
    let peer = stranger();
    let address = socket_address(&listener.address());
    peer.send_to(&hello(PROTOCOL_VERSION, 5), address).unwrap();
    let mut ping = hear_stranger(&*listener, &peer);
    ping[3] = 7;
    peer.send_to(&ping, address).unwrap();
    let link = accept(&*listener);
    drop(peer);
    let started = Instant::now();
    send(&*link, 1, 100);
    link.flush().unwrap();
    assert_eq!(await_loss(&*link, PATIENCE), LossReason::Refused);
    assert!(started.elapsed() < SOONER_THAN_SILENCE, "{:?}", started.elapsed());
}

#[test]
fn control_messages_survive_a_network_that_loses_and_repeats() {
    let relay = Relay::new(
        &Security::Insecure,
        Impairment { loss_per_mille: 200, duplication_per_mille: 200 }.route(),
    );
    let (one, other) = relay.connect(&Security::Insecure);
    // Until both have all: what one has sent last, it may have to send again.
    let have_all = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for (mine, count) in [(&one, 60_u32), (&other, 60)] {
            let have_all = &have_all;
            scope.spawn(move || {
                let (mut sent, mut received) = (0, 0);
                let deadline = Instant::now() + PATIENCE;
                while have_all.load(Ordering::Acquire) < 2 {
                    assert!(Instant::now() < deadline, "{sent} sent, {received} received");
                    let message =
                        |number: u32| [number.to_le_bytes().to_vec(), vec![7; number as usize * 97]].concat();
                    if sent < count && mine.send_control(&message(sent), &[]).is_ok() {
                        sent += 1;
                    }
                    mine.wait(Duration::from_millis(2)).unwrap();
                    mine.receive(16, &mut |_| {}).unwrap();
                    while let Some(found) = mine.receive_control().unwrap() {
                        assert_eq!(found.bytes, message(received));
                        received += 1;
                        if received == count {
                            have_all.fetch_add(1, Ordering::Release);
                        }
                    }
                }
            });
        }
    });
    assert!(one.counters().control_retransmitted > 10);
}

#[test]
fn a_lossy_handshake_succeeds() {
    for _ in 0..5 {
        let impairment = Impairment { loss_per_mille: 400, duplication_per_mille: 300 };
        Relay::new(&Security::Insecure, impairment.route()).connect(&Security::Insecure);
    }
}

#[test]
fn a_peer_that_begins_anew_at_the_same_port_ends_the_old_session() {
    let listener = listen(&loopback()).unwrap();
    let address = socket_address(&listener.address());
    let peer = stranger();
    peer.send_to(&hello(PROTOCOL_VERSION, 5), address).unwrap();
    let mut ping = hear_stranger(&*listener, &peer);
    ping[3] = 7;
    peer.send_to(&ping, address).unwrap();
    let old = accept(&*listener);
    // The same hello again is only a repetition.
    peer.send_to(&hello(PROTOCOL_VERSION, 5), address).unwrap();
    old.wait(PATIENCE).unwrap();
    old.receive(16, &mut |_| {}).unwrap();
    assert_eq!(old.state(), LinkState::Up);
    peer.send_to(&hello(PROTOCOL_VERSION, 6), address).unwrap();
    assert_eq!(await_loss(&*old, PATIENCE), LossReason::ClosedByPeer);
    drop(old);
    // Its next hello finds the listener.
    peer.send_to(&hello(PROTOCOL_VERSION, 6), address).unwrap();
    assert!(listener.accept_within(Duration::from_millis(50)).unwrap().is_none());
    let mut welcome = [0; 64];
    loop {
        peer.recv(&mut welcome).unwrap();
        if welcome[3] == 2 && welcome[16..24] == 6_u64.to_le_bytes() {
            break;
        }
    }
}

#[test]
fn probes_are_answered_with_no_more_than_they_are_and_answers_that_were_not_asked_for_count_nothing() {
    let listener = listen(&loopback()).unwrap();
    let peer = stranger();
    let address = socket_address(&listener.address());
    peer.send_to(&hello(PROTOCOL_VERSION, 5), address).unwrap();
    let answer = hear_stranger(&*listener, &peer);
    let (mut head, nonce) = (answer[..16].to_vec(), answer[16..24].to_vec());
    let with = |head: &mut Vec<u8>, kind: u8, body: &[u8]| {
        head[3] = kind;
        [head.as_slice(), body].concat()
    };
    peer.send_to(&with(&mut head, 7, &nonce), address).unwrap();
    let link = accept(&*listener);
    let before = link.max_packet_bytes();
    for id in 0..100_u32 {
        for bytes in [0_u32, 24, 1200, 1472, u32::MAX] {
            let said = [id.to_le_bytes(), bytes.to_le_bytes(), bytes.to_le_bytes()].concat();
            peer.send_to(&with(&mut head, 14, &said), address).unwrap();
        }
        peer.send_to(&with(&mut head, 14, &[1; 11]), address).unwrap();
        // Too short for an answer that is no longer.
        peer.send_to(&with(&mut head, 13, &id.to_le_bytes()), address).unwrap();
        link.receive(64, &mut |_| {}).unwrap();
        link.tick(Instant::now());
    }
    peer.send_to(&with(&mut head, 13, &[[9, 0, 0, 0].as_slice(), &[0; 996]].concat()), address).unwrap();
    let since = Instant::now();
    let said = loop {
        assert!(since.elapsed() < PATIENCE, "no answer");
        link.receive(64, &mut |_| {}).unwrap();
        let mut answer = [0; 64];
        match peer.recv(&mut answer) {
            Ok(28) if answer[3] == 14 => break answer,
            _ => {}
        }
    };
    assert_eq!(said[16..28], [9, 0, 0, 0, 0xF8, 0x03, 0, 0, 0xF8, 0x03, 0, 0], "1016 bytes arrived");
    assert_eq!((link.max_packet_bytes(), link.state()), (before, LinkState::Up));
    assert!(link.counters().discarded >= 200);
}

#[test]
fn a_link_lives_on_when_the_network_was_down() {
    let relay = Relay::new(&Security::Insecure, Impairment::GOOD.route());
    let (one, other) = relay.connect(&Security::Insecure);
    a_link_outlives_an_outage([&*one, &*other], &|cut| if cut { relay.cut() } else { relay.heal() });
}

#[test]
fn both_ends_pause_where_only_one_direction_is_cut() {
    for cut_forward in [true, false] {
        let cut = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_cut = cut.clone();
        let route = Box::new(move |forward: bool, datagram: &[u8]| {
            let lost = forward == cut_forward && is_cut.load(Ordering::Relaxed);
            if lost { Vec::new() } else { vec![datagram.to_vec()] }
        });
        let relay = Relay::new(&Security::Insecure, route);
        let (one, other) = relay.connect(&Security::Insecure);
        a_link_outlives_an_outage([&*one, &*other], &|is_cut| {
            cut.store(is_cut, Ordering::Relaxed);
        });
    }
}

/// A socket at one of many addresses of this machine: all of 127/8 is.
fn stranger_from(number: u32) -> UdpSocket {
    let [_, _, high, low] = number.to_be_bytes();
    UdpSocket::bind(SocketAddr::from(([127, 1, high, low], 0))).unwrap()
}

#[test]
fn a_flood_of_hellos_is_taken_in_parts_and_keeps_neither_newcomers_out_nor_sessions_waiting() {
    let listener = listen(&loopback()).unwrap();
    let address = socket_address(&listener.address());
    let (one, other) = connected_to(&*listener);
    // As many as the socket keeps.
    for number in 0..200 {
        stranger_from(number).send_to(&hello(PROTOCOL_VERSION, 1), address).unwrap();
    }
    let before = listener.counters().hellos;
    assert!(listener.accept().unwrap().is_none());
    let heard = listener.counters().hellos - before;
    assert!((1..100).contains(&heard), "{heard} hellos in one turn");
    for number in 0..10_000 {
        stranger_from(number).send_to(&hello(PROTOCOL_VERSION, 1), address).unwrap();
        if number % 100 != 0 {
            continue;
        }
        // More wait than one turn takes, and sessions go on.
        assert!(listener.accept().unwrap().is_none());
        for (from, to) in [(&one, &other), (&other, &one)] {
            send(&**from, u64::from(number), 1000);
            from.flush().unwrap();
            let got = std::cell::Cell::new(None);
            receive_until(&**to, PATIENCE, |bytes| got.set(Some(check(bytes))), || got.get().is_some());
            assert_eq!(got.get(), Some(u64::from(number)));
        }
    }
    while !matches!(listener.accept(), Ok(None)) {}
    // Nobody waits for those strangers: who comes now, is welcome at once.
    let newcomer = stranger();
    while listener.counters().hellos < before + 200 {
        assert!(listener.accept().unwrap().is_none());
    }
    let mut welcome = [0; 64];
    loop {
        newcomer.send_to(&hello(PROTOCOL_VERSION, 9), address).unwrap();
        while !matches!(listener.accept(), Ok(None)) {}
        newcomer.set_nonblocking(true).unwrap();
        if newcomer.recv(&mut welcome).is_ok() {
            break;
        }
        // The socket may have been full.
        assert_eq!(listener.counters().turned_away, 0, "a newcomer was turned away");
    }
    assert_eq!((welcome[3], &welcome[16..24]), (2, 9_u64.to_le_bytes().as_slice()), "a welcome");
    let mut first_word = welcome[..24].to_vec();
    first_word[3] = 7;
    newcomer.send_to(&first_word, address).unwrap();
    let link = accept(&*listener);
    assert_eq!(link.state(), LinkState::Up);
    let counters = listener.counters();
    assert_eq!((counters.begun, counters.turned_away), (2, 0), "{counters:?}");
}

/// Ends the threads that look at it.
struct StopOnDrop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_a_flood_leaves_in_the_socket_of_a_newcomer_does_not_end_its_session() {
    let listener = listen(&loopback()).unwrap();
    let address = socket_address(&listener.address());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let stop = &stop;
            scope.spawn(move || {
                // Of sockets that share an address, the kernel chooses by the sender's.
                let strangers: Vec<_> = (0..16).map(|host| stranger_from(number * 16 + host)).collect();
                for stranger in strangers.iter().cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let _ = stranger.send_to(&hello(PROTOCOL_VERSION, 1), address);
                }
            });
        }
        // Also where an assertion fails.
        let _stop = StopOnDrop(&stop);
        for number in 0..200 {
            let (one, other) = connected_to(&*listener);
            let mut got = None;
            send(&*other, number, 100);
            other.flush().unwrap();
            run_until("the packet has arrived", [&*one, &*other], || {
                one.receive(64, &mut |bytes| got = Some(check(bytes))).unwrap();
                got.is_some()
            });
            assert_eq!((got, one.state(), other.state()), (Some(number), LinkState::Up, LinkState::Up));
        }
    });
}

#[test]
fn a_first_word_begins_a_session_only_where_its_number_was_given_and_once() {
    let listener = listen(&loopback()).unwrap();
    let address = socket_address(&listener.address());
    let (one, other) = (stranger(), stranger());
    one.send_to(&hello(PROTOCOL_VERSION, 9), address).unwrap();
    let mut first_word = hear_stranger(&*listener, &one);
    first_word[3] = 7;
    other.send_to(&first_word, address).unwrap();
    let mut wrong = first_word.clone();
    wrong[16] ^= 1;
    one.send_to(&wrong, address).unwrap();
    one.send_to(&first_word[..16], address).unwrap();
    assert!(listener.accept_within(Duration::from_millis(50)).unwrap().is_none());
    assert_eq!(listener.counters().begun, 0);
    one.send_to(&first_word, address).unwrap();
    one.send_to(&first_word, address).unwrap();
    let _link = accept(&*listener);
    assert!(listener.accept_within(Duration::from_millis(50)).unwrap().is_none());
    assert_eq!(listener.counters().begun, 1);
}
