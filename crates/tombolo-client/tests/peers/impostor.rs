//! Handshakes of UDP links by hand: of one who shows a key that is not its own, and of one who begins
//! and does not go on.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use snow::Builder;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use tombolo_link::PROTOCOL_VERSION;

use crate::harness::PATIENCE;

const PATTERN: &str = "Noise_XX_25519_AESGCM_SHA256";
/// How long to wait for a word before the question is repeated, and how often it is.
const PAUSE: Duration = Duration::from_millis(20);
const REPEATS: u32 = 10;

pub const HELLO: u8 = 1;
pub const WELCOME: u8 = 2;
pub const REJECT: u8 = 3;
const HANDSHAKE: u8 = 10;
const ACCEPTED: u8 = 11;
const REFUSED: u8 = 12;

/// A header, and zeros.
pub fn datagram(kind: u8, flags: u8, session: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![b'T', b'm', PROTOCOL_VERSION, kind, flags, 0, 0, 0];
    bytes.extend_from_slice(&session.to_le_bytes());
    bytes.resize(length, 0);
    bytes
}

/// Asks for a session with keys.
pub fn hello(nonce: u64) -> Vec<u8> {
    let mut bytes = datagram(HELLO, 2, 0, 64);
    bytes[16..24].copy_from_slice(&nonce.to_le_bytes());
    bytes
}

pub fn handshake(session: u64, nonce: u64, step: u8, message: &[u8]) -> Vec<u8> {
    let mut bytes = datagram(HANDSHAKE, 0, session, 128);
    bytes[16] = step;
    bytes[17..25].copy_from_slice(&nonce.to_le_bytes());
    bytes[25..25 + message.len()].copy_from_slice(message);
    bytes
}

/// The session of a welcome.
pub fn session_of(welcome: &[u8]) -> Option<u64> {
    let is_one = welcome.len() == 24 && welcome[3] == WELCOME;
    is_one.then(|| u64::from_le_bytes(welcome[8..16].try_into().unwrap()))
}

/// The 32 bytes that the text of a key ends with.
pub fn key_bytes(text: &str) -> [u8; 32] {
    let digits = text.rsplit(':').next().unwrap();
    std::array::from_fn(|index| u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).unwrap())
}

/// Has one secret and shows the public key of another.
struct Liar {
    claimed: [u8; 32],
}

struct FalseKey {
    real: Box<dyn Dh>,
    claimed: [u8; 32],
    is_static: bool,
}

impl CryptoResolver for Liar {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        DefaultResolver.resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        let real = DefaultResolver.resolve_dh(choice)?;
        Some(Box::new(FalseKey { real, claimed: self.claimed, is_static: false }))
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

impl Dh for FalseKey {
    fn name(&self) -> &'static str {
        self.real.name()
    }

    fn pub_len(&self) -> usize {
        self.real.pub_len()
    }

    fn priv_len(&self) -> usize {
        self.real.priv_len()
    }

    fn set(&mut self, secret: &[u8]) {
        // Only the key that stays is given; the other is made.
        self.is_static = true;
        self.real.set(secret);
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), snow::Error> {
        self.real.generate(random)
    }

    fn pubkey(&self) -> &[u8] {
        if self.is_static { &self.claimed } else { self.real.pubkey() }
    }

    fn privkey(&self) -> &[u8] {
        self.real.privkey()
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        self.real.dh(public, out)
    }
}

/// What a handshake has led to.
#[derive(Debug, PartialEq, Eq)]
pub enum Word {
    Accepted,
    Refused,
    Nothing,
}

/// Asks until there is an answer that `take` wants, so many times.
fn ask<T>(socket: &UdpSocket, question: &[u8], times: u32, take: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    let mut buffer = [0; 2048];
    for _ in 0..times {
        socket.send(question).unwrap();
        let until = Instant::now() + PAUSE;
        while Instant::now() < until {
            if let Ok(length) = socket.recv(&mut buffer)
                && let Some(taken) = take(&buffer[..length])
            {
                return Some(taken);
            }
        }
    }
    None
}

/// A handshake with this secret that claims to have that public key.
pub fn knock(node: SocketAddr, nonce: u64, secret: &[u8; 32], claimed: [u8; 32]) -> Word {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(node).unwrap();
    socket.set_read_timeout(Some(PAUSE)).unwrap();
    let often = (PATIENCE.as_millis() / PAUSE.as_millis()) as u32;
    let session = ask(&socket, &hello(nonce), often, session_of).expect("a welcome");
    let mut prologue = b"tombolo link ".to_vec();
    prologue.push(PROTOCOL_VERSION);
    prologue.extend_from_slice(&session.to_le_bytes());
    prologue.extend_from_slice(&nonce.to_le_bytes());
    let builder = Builder::with_resolver(PATTERN.parse().unwrap(), Box::new(Liar { claimed }));
    let builder = builder.local_private_key(secret).unwrap().prologue(&prologue).unwrap();
    let mut state = builder.build_initiator().unwrap();
    let mut message = [0; 128];
    let length = state.write_message(&[], &mut message).unwrap();
    let first = handshake(session, nonce, 1, &message[..length]);
    let second = ask(&socket, &first, often, |bytes| {
        (bytes.len() == 128 && bytes[3] == HANDSHAKE && bytes[16] == 2).then(|| bytes[25..25 + 96].to_vec())
    });
    state.read_message(&second.expect("a second message"), &mut [0; 64]).unwrap();
    // Whoever it is that answers is welcome.
    let length = state.write_message(&[1], &mut message).unwrap();
    let third = handshake(session, nonce, 3, &message[..length]);
    let word = ask(&socket, &third, REPEATS, |bytes| match bytes.get(3) {
        Some(&ACCEPTED) => Some(Word::Accepted),
        Some(&REFUSED) => Some(Word::Refused),
        _ => None,
    });
    word.unwrap_or(Word::Nothing)
}
