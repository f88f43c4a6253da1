//! For tests and fuzzers alone: what reads the datagrams of strangers and of peers.

use std::time::Instant;

use zeroize::Zeroizing;

use super::control::ControlChannel;
use super::noise::{Handshake, MESSAGE_BYTES};
use super::seal::{Opener, Unopened};
use super::wire::{self, Header, Kind};
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

/// Any bytes as a sealed datagram: none opens.
pub fn sealed(bytes: &[u8]) {
    let mut opener = Opener::new(Zeroizing::new([7; 32]));
    assert_eq!(opener.open(&mut bytes.to_vec()), Err(Unopened::Forged));
}
