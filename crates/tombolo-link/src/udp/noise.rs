//! The keys of a session: Noise XX, three messages, in which each side proves that it has the
//! secret of the public key it shows.
//!
//! ```text
//! initiator                                responder
//!   ── 1: e ──────────────────────────────►
//!   ◄─ 2: e, ee, s, es ────────────────────   now the initiator knows who answers
//!   ── 3: s, se, verdict ─────────────────►   now the responder knows who asks
//! ```
//!
//! Both keys travel encrypted. The prologue binds the messages to this version of the protocol, to
//! the session's number and to the hello that asked for it. Bytes in, bytes out: no socket here.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::seal::{Opener, Sealer};
use crate::PROTOCOL_VERSION;
use crate::identity::{KeyPair, PublicKey};

const PATTERN: &str = "Noise_XX_25519_AESGCM_SHA256";

/// How long each of the three messages is, the third with its one byte of verdict.
pub(super) const MESSAGE_BYTES: [usize; 3] = [32, 96, 65];

/// The initiator's word on the responder's key, in the third message.
const WELCOME: u8 = 1;
const UNWELCOME: u8 = 2;

/// A handshake between its messages.
pub(super) struct Handshake(Box<HandshakeState>);

/// Both directions of a session's protection.
#[derive(Debug)]
pub(super) struct Seals {
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
}

impl Handshake {
    fn new(keys: &KeyPair, session: u64, nonce: u64, initiator: bool) -> Result<Self, snow::Error> {
        let mut prologue = b"tombolo link ".to_vec();
        prologue.push(PROTOCOL_VERSION);
        prologue.extend_from_slice(&session.to_le_bytes());
        prologue.extend_from_slice(&nonce.to_le_bytes());
        let builder =
            Builder::new(PATTERN.parse()?).local_private_key(keys.secret_bytes())?.prologue(&prologue)?;
        let state = if initiator { builder.build_initiator() } else { builder.build_responder() }?;
        Ok(Self(Box::new(state)))
    }

    /// The connecting side's.
    pub(super) fn initiator(keys: &KeyPair, session: u64, nonce: u64) -> Result<Self, snow::Error> {
        Self::new(keys, session, nonce, true)
    }

    /// The accepting side's.
    pub(super) fn responder(keys: &KeyPair, session: u64, nonce: u64) -> Result<Self, snow::Error> {
        Self::new(keys, session, nonce, false)
    }

    /// The first or second message.
    pub(super) fn write(&mut self) -> Result<Vec<u8>, snow::Error> {
        self.write_payload(&[])
    }

    fn write_payload(&mut self, payload: &[u8]) -> Result<Vec<u8>, snow::Error> {
        let mut message = vec![0; MESSAGE_BYTES[1]];
        let length_bytes = self.0.write_message(payload, &mut message)?;
        message.truncate(length_bytes);
        Ok(message)
    }

    /// Takes the first message. One that is not genuine changes nothing.
    pub(super) fn read_first(&mut self, message: &[u8]) -> Result<(), snow::Error> {
        self.0.read_message(message, &mut [0; 64]).map(drop)
    }

    /// Takes the second message: the responder's key. One that is not genuine changes nothing.
    pub(super) fn read_second(&mut self, message: &[u8]) -> Result<PublicKey, snow::Error> {
        self.0.read_message(message, &mut [0; 64])?;
        self.peer()
    }

    /// The third message, and the session's seals.
    pub(super) fn finish_initiator(mut self, welcome: bool) -> Result<(Vec<u8>, Seals), snow::Error> {
        let message = self.write_payload(&[if welcome { WELCOME } else { UNWELCOME }])?;
        Ok((message, self.split()))
    }

    /// Takes the third message: the initiator's key, whether ours is welcome there, and the session's
    /// seals. One that is not genuine ends the handshake; who can send it could as well have
    /// answered the initiator's first message in our place.
    pub(super) fn finish_responder(
        mut self,
        message: &[u8],
    ) -> Result<(PublicKey, bool, Seals), snow::Error> {
        let mut verdict = [0; 64];
        let length_bytes = self.0.read_message(message, &mut verdict)?;
        Ok((self.peer()?, verdict[..length_bytes] == [WELCOME], self.split()))
    }

    fn peer(&self) -> Result<PublicKey, snow::Error> {
        let key = self.0.get_remote_static().and_then(|key| key.try_into().ok());
        key.map(PublicKey::from_bytes).ok_or(snow::Error::Input)
    }

    fn split(&mut self) -> Seals {
        let (forward, back) = self.0.dangerously_get_raw_split();
        let (forward, back) = (Zeroizing::new(forward), Zeroizing::new(back));
        let (outgoing, incoming) = if self.0.is_initiator() { (forward, back) } else { (back, forward) };
        let echo = Arc::default();
        Seals { sealer: Sealer::new(outgoing, &echo, Instant::now()), opener: Opener::new(incoming, &echo) }
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Handshake")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_learn_the_other_key_and_have_the_same_seals() {
        let (a, b) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut initiator = Handshake::initiator(&a, 5, 6).unwrap();
        let mut responder = Handshake::responder(&b, 5, 6).unwrap();
        let first = initiator.write().unwrap();
        assert!(responder.read_first(&first[1..]).is_err());
        responder.read_first(&first).unwrap();
        let second = responder.write().unwrap();
        // Damaged messages change nothing.
        for bit in (0..second.len() * 8).step_by(7) {
            let mut damaged = second.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(initiator.read_second(&damaged).is_err());
        }
        assert_eq!(initiator.read_second(&second).unwrap(), b.public());
        let (third, mut ours) = initiator.finish_initiator(true).unwrap();
        let (key, welcome, mut theirs) = responder.finish_responder(&third).unwrap();
        assert_eq!((key, welcome), (a.public(), true));
        assert_eq!([first.len(), second.len(), third.len()], MESSAGE_BYTES);
        for (sealer, opener) in
            [(&mut ours.sealer, &mut theirs.opener), (&mut theirs.sealer, &mut ours.opener)]
        {
            let mut bytes = [7; 100];
            bytes[super::super::wire::EPOCH_AT] = 0;
            assert!(sealer.seal(&mut bytes, Instant::now()));
            assert_eq!(opener.open(&mut bytes), Ok(()));
            assert_eq!(bytes[24..84], [7; 60]);
        }
    }

    #[test]
    fn a_third_message_that_was_changed_is_refused() {
        let keys = KeyPair::generate().unwrap();
        for bit in (0..MESSAGE_BYTES[2] * 8).step_by(13) {
            let mut initiator = Handshake::initiator(&keys, 5, 6).unwrap();
            let mut responder = Handshake::responder(&keys, 5, 6).unwrap();
            responder.read_first(&initiator.write().unwrap()).unwrap();
            initiator.read_second(&responder.write().unwrap()).unwrap();
            let (mut third, _) = initiator.finish_initiator(true).unwrap();
            third[bit / 8] ^= 1 << (bit % 8);
            assert!(responder.finish_responder(&third).is_err());
        }
    }

    #[test]
    fn another_session_or_hello_does_not_fit() {
        let keys = KeyPair::generate().unwrap();
        for (session, nonce) in [(5, 7), (6, 6)] {
            let mut initiator = Handshake::initiator(&keys, 5, 6).unwrap();
            let mut responder = Handshake::responder(&keys, session, nonce).unwrap();
            responder.read_first(&initiator.write().unwrap()).unwrap();
            assert!(initiator.read_second(&responder.write().unwrap()).is_err());
        }
    }
}
