//! For tests and fuzzers alone: what reads the datagrams of strangers and of peers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::control::ControlChannel;
use super::cookie::Cookies;
use super::noise::{Handshake, MESSAGE_BYTES};
use super::seal::{Opener, SEAL_BYTES, Sealer, Unopened};
use super::wire::{self, EPOCH_AT, HEADER_BYTES, Header, Kind};
use crate::identity::KeyPair;

/// Any bytes as a datagram, and its body as whatever a datagram can hold.
pub fn datagram(bytes: &[u8]) {
    let Ok((header, body)) = Header::decode(bytes) else { return };
    let again = [header.encode().as_slice(), body].concat();
    assert_eq!(Header::decode(&again), Ok((header, body)));
    if let Some(nonce) = wire::nonce_of(body) {
        assert_eq!(nonce.to_le_bytes(), body[..8]);
    }
    if let Some((sequence, text)) = wire::sequence_of(body) {
        assert_eq!([&sequence.to_le_bytes(), text].concat(), body);
    }
    for step in 0..=4 {
        if let Some((nonce, message)) = wire::handshake_of(body, step) {
            let again = wire::handshake(header.session, nonce, step, message);
            let read = Header::decode(&again).ok().and_then(|(_, body)| wire::handshake_of(body, step));
            assert_eq!(read, Some((nonce, message)));
        }
    }
    if let Some(outage) = wire::outage_of(body) {
        assert_eq!(wire::outage(outage), body[..4]);
    }
    if let Some(id) = wire::probe_of(body) {
        assert_eq!(wire::probe_of(&wire::probe(id)), Some(id));
    }
    if let Some([id, datagram_bytes, largest_bytes]) = wire::probe_ack_of(body) {
        assert_eq!(wire::probe_ack(id, datagram_bytes, largest_bytes), body[..12]);
    }
    // Packets, as they are taken out of a body.
    let mut rest = body;
    while let Some((length, after)) = wire::split_length(rest) {
        assert!(after.len() < rest.len());
        let Some((_, next)) = after.split_at_checked(length) else { break };
        rest = next;
    }
}

/// One of each kind.
pub fn datagrams() -> Vec<(&'static str, Vec<u8>)> {
    let with =
        |kind, body: &[u8]| [Header::new(kind, 0x0123_4567_89AB_CDEF).encode().as_slice(), body].concat();
    let packets =
        [&wire::length_of(5)[..], b"first", &wire::length_of(0), &wire::length_of(6), b"second", &[0; 9]];
    let handshake =
        |step: u8| wire::handshake(7, 8, step, &vec![step; MESSAGE_BYTES[usize::from(step) - 1]]).to_vec();
    vec![
        ("hello", wire::hello(9, false).to_vec()),
        ("hello-secure", wire::hello(9, true).to_vec()),
        ("welcome", wire::answer(Kind::Welcome, true, 5, 9).to_vec()),
        ("reject", wire::answer(Kind::Reject, false, 0, 9).to_vec()),
        ("packets", with(Kind::Packets, &packets.concat())),
        ("packets-cut", with(Kind::Packets, &[0xFF, 0xFF, 1, 2, 3])),
        ("control", with(Kind::Control, b"\x01\0\0\0a part of a message")),
        ("control-ack", with(Kind::ControlAck, &[1, 0, 0, 0])),
        ("ping", with(Kind::Ping, &[])),
        ("ping-outage", with(Kind::Ping, &wire::outage(Duration::from_secs(10)))),
        ("pong", with(Kind::Pong, &[])),
        ("bye", with(Kind::Bye, &[])),
        ("accepted", with(Kind::Accepted, &[])),
        ("refused", with(Kind::Refused, &[])),
        ("probe", with(Kind::Probe, &[&wire::probe(3)[..], &[0; 200]].concat())),
        ("probe-ack", with(Kind::ProbeAck, &wire::probe_ack(3, 228, 1472))),
        ("handshake-1", handshake(1)),
        ("handshake-2", handshake(2)),
        ("handshake-3", handshake(3)),
    ]
}

/// Any bytes as what a peer does to the control channel: one says what, and how much of the rest it
/// takes. Whatever comes, no more is kept than the bounds say.
pub fn control_fragments(bytes: &[u8]) {
    let mut channel = ControlChannel::new(100);
    let (mut rest, mut now, mut taken) = (bytes, Instant::now(), 0);
    let mut sequence = 0_u32;
    while let Some((&what, after)) = rest.split_first() {
        let (text, next) = after.split_at(usize::from(what >> 3).min(after.len()));
        rest = next;
        let said = match what & 7 {
            0..=3 => sequence,
            4 => sequence.wrapping_sub(1),
            5 => sequence.wrapping_add(1),
            _ => u32::from(what) << 24,
        };
        match channel.arrived(said, text, what & 1 != 0) {
            Ok(true) if said == sequence => sequence = sequence.wrapping_add(1),
            Ok(_) => {}
            Err(_) => return,
        }
        channel.acknowledged(said);
        if what & 6 == 6 {
            let _ = channel.queue(text);
            now = channel.deadline().unwrap_or(now);
            let _ = channel.poll(now);
        }
        if what == 5
            && let Some(message) = channel.take()
        {
            taken += message.len();
            assert!(message.len() <= crate::MAX_CONTROL_BYTES);
        }
    }
    assert!(taken <= bytes.len());
}

/// Any bytes as each of the messages that lead to keys: none is genuine.
pub fn noise(bytes: &[u8]) {
    let Ok(keys) = KeyPair::parse_secret(&format!("{}{}", crate::identity::SECRET_PREFIX, "7".repeat(64)))
    else {
        return;
    };
    let (Ok(mut initiator), Ok(mut responder)) =
        (Handshake::initiator(&keys, 5, 6), Handshake::responder(&keys, 5, 6))
    else {
        return;
    };
    let _ = initiator.write();
    assert!(initiator.read_second(bytes).is_err());
    if responder.read_first(bytes).is_ok() && responder.write().is_ok() {
        assert!(responder.finish_responder(bytes).is_err());
    }
}

/// Any bytes as a sealed datagram, between two genuine ones: they do not open, and do not keep the genuine
/// ones from opening, each once.
pub fn sealed(bytes: &[u8]) {
    let now = Instant::now();
    let secret = || Zeroizing::new([7; 32]);
    let (mut sealer, mut opener) =
        (Sealer::new(secret(), &Arc::default(), now), Opener::new(secret(), &Arc::default()));
    let mut genuine = || {
        let mut datagram = Header::new(Kind::Ping, 5).encode().to_vec();
        datagram.resize(SEALED_BYTES, 0);
        assert!(sealer.seal(&mut datagram, now));
        datagram
    };
    let (first, second) = (genuine(), genuine());
    assert_eq!(opener.open(&mut first.clone()), Ok(()));

    // A counter that is used up is told before the seal is looked at, where there is a key for the epoch:
    // that of the first datagram, and the last of all, which no datagram has.
    let has_key = bytes.get(EPOCH_AT).is_some_and(|epoch| *epoch <= 1);
    let counter = bytes.get(HEADER_BYTES..).and_then(|rest| rest.first_chunk());
    let counter = counter.filter(|_| bytes.len() >= SEALED_BYTES).map(|bytes| u64::from_le_bytes(*bytes));
    let expected = match counter {
        Some(0 | u64::MAX) if has_key => Unopened::Replayed,
        _ => Unopened::Forged,
    };
    assert_eq!(opener.open(&mut bytes.to_vec()), Err(expected));

    assert_eq!(opener.open(&mut second.clone()), Ok(()));
    for mut again in [first, second] {
        assert_eq!(opener.open(&mut again), Err(Unopened::Replayed));
    }
}

/// The shortest sealed datagram.
const SEALED_BYTES: usize = HEADER_BYTES + SEAL_BYTES;

/// Datagrams that are not genuine, with counters that are used up, and one that is not.
pub fn counters() -> Vec<(&'static str, Vec<u8>)> {
    let with = |epoch: u8, counter: u64| {
        let mut datagram = Header::new(Kind::Ping, 5).encode().to_vec();
        datagram[EPOCH_AT] = epoch;
        datagram.extend_from_slice(&counter.to_le_bytes());
        datagram.resize(SEALED_BYTES, 9);
        datagram
    };
    vec![
        ("counter-used", with(0, 0)),
        ("counter-last", with(0, u64::MAX)),
        ("counter-last-next-epoch", with(1, u64::MAX)),
        ("counter-last-unknown-epoch", with(2, u64::MAX)),
        ("counter-last-previous-epoch", with(255, u64::MAX)),
        ("counter-fresh", with(0, 2)),
    ]
}

/// What two strangers say: for each an address, a nonce and a number that it made up, and how long a
/// cookie is on its way. It fits who was given it, for a while, and nobody else.
pub fn cookie(bytes: &[u8]) {
    let mut rest = bytes;
    let now = Instant::now();
    let Ok(cookies) = Cookies::new(now) else { return };
    let (given, waited) = (u16::from_le_bytes(take(&mut rest)), u16::from_le_bytes(take(&mut rest)));
    let given = now + Duration::from_secs(given.into());
    let later = given + Duration::from_secs(waited.into());
    let strangers = [(); 2].map(|()| {
        let ip = Ipv6Addr::from(take::<16>(&mut rest)).to_canonical();
        let from = SocketAddr::new(ip, u16::from_le_bytes(take(&mut rest)));
        (from, u64::from_le_bytes(take(&mut rest)), u64::from_le_bytes(take(&mut rest)))
    });
    let [(from, nonce, _), _] = strangers;
    let cookie = cookies.bake(from, nonce, given);
    let fits = cookies.fits(cookie, from, nonce, later);
    // At least one period of 30 seconds, at most two.
    assert!(fits == (waited < 30) || (30..60).contains(&waited), "{waited} s: {fits}");
    let as_ipv6 = match from.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), from.port()),
        IpAddr::V6(_) => from,
    };
    assert_eq!(cookies.fits(cookie, as_ipv6, nonce, later), fits);
    for (other, said, made_up) in strangers {
        assert!(made_up == cookie || !cookies.fits(made_up, other, said, given));
        if (other, said) != (from, nonce) {
            assert!(!cookies.fits(cookie, other, said, given) && !cookies.fits(cookie, other, said, later));
        }
    }
    for bit in 0..64 {
        assert!(!cookies.fits(cookie ^ 1 << bit, from, nonce, given));
    }
}

/// The next bytes, or zeros where there are none.
fn take<const LENGTH: usize>(rest: &mut &[u8]) -> [u8; LENGTH] {
    let (taken, after) = rest.split_at(LENGTH.min(rest.len()));
    *rest = after;
    let mut bytes = [0; LENGTH];
    bytes[..taken.len()].copy_from_slice(taken);
    bytes
}

/// Strangers that differ in one thing each.
pub fn cookies() -> Vec<(&'static str, Vec<u8>)> {
    let said = |given: u16, waited: u16, strangers: [(&str, u64); 2]| {
        let mut bytes = [given.to_le_bytes(), waited.to_le_bytes()].concat();
        for (from, nonce) in strangers {
            let Ok(from) = from.parse::<SocketAddr>() else { continue };
            let ip = match from.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes.extend_from_slice(&ip.octets());
            bytes.extend_from_slice(&from.port().to_le_bytes());
            bytes.extend_from_slice(&nonce.to_le_bytes());
            bytes.extend_from_slice(&(nonce << 8).to_le_bytes());
        }
        bytes
    };
    let (here, port) = ("192.0.2.1:700", "192.0.2.1:701");
    vec![
        ("port", said(0, 0, [(here, 5), (port, 5)])),
        ("host", said(29, 1, [(here, 5), ("192.0.2.2:700", 5)])),
        ("nonce", said(29, 31, [(here, 5), (here, 6)])),
        ("late", said(59, 59, [(here, 5), (here, 5)])),
        ("too-late", said(1, 60, [("[2001:db8::1]:700", 5), ("[2001:db8::1]:700", 5)])),
        ("family", said(3, 3, [(here, 5), ("[::c000:201]:700", 5)])),
        ("mapped", said(65_535, 29, [(here, 5), ("[::ffff:192.0.2.1]:700", 5)])),
    ]
}
