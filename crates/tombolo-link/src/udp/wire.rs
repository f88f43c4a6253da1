//! The bytes that begin every datagram of a UDP link.
//!
//! ```text
//!  0        2         3      4       5       6      7      8                 16
//!  │ magic  │ version │ kind │ flags │ epoch │ echo │ zero │ session         │ body …
//! ```
//!
//! All little endian. In a secure session everything but the handshake is sealed (`udp::seal`), and
//! the header authenticated with it; the epoch says by which key, and the echo which of the other side's epochs has come. Magic, version and kind stay where they are in all versions, so that two
//! releases can always tell each other apart. The session is 64 random bits chosen by the accepting
//! side: a datagram of an earlier life of the same address does not pass for one of this.

use std::time::Duration;

use super::noise::MESSAGE_BYTES;
use crate::PROTOCOL_VERSION;

/// The header before every body.
pub(super) const HEADER_BYTES: usize = 16;
/// Where the header says by which epoch's key its datagram is sealed.
pub(super) const EPOCH_AT: usize = 5;
/// Where it says which epoch of the other side has come.
pub(super) const ECHO_AT: usize = 6;
/// A hello is padded to this, and no answer to one is longer: nobody is a target for reflection.
pub(super) const HELLO_BYTES: usize = 64;
/// What each packet has before it: its length plus one, so that zero is padding up to the end.
pub(super) const LENGTH_BYTES: usize = 2;
/// What a control datagram has between header and text: the sequence number.
pub(super) const SEQUENCE_BYTES: usize = 4;

/// What a probe has between header and padding: its number, and zeros so that no answer is longer.
pub(super) const PROBE_BYTES: usize = 12;

/// Every handshake datagram is padded to this, answers and questions alike.
pub(super) const HANDSHAKE_BYTES: usize = 128;
/// Which of the handshake's messages it is (1 to 3), and the nonce of the hello.
const STEP_BYTES: usize = 1 + 8;

const MAGIC: [u8; 2] = *b"Tm";

/// The text goes on in the next control datagram.
pub(super) const FLAG_MORE: u8 = 1;
/// In a hello, welcome or reject: its sender wants a secure session.
pub(super) const FLAG_SECURE: u8 = 2;
/// In a ping: its sender hears nothing of the other side.
pub(super) const FLAG_UNHEARD: u8 = 4;

/// The reason of a goodbye: the peer's key is no longer on its sender's list.
pub(super) const BYE_KEY_REMOVED: u8 = 1;

/// The reason of a goodbye: its sender has as many links of the peer's key or address as it takes.
pub(super) const BYE_TOO_MANY: u8 = 2;

/// What a datagram is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Asks for a session; body: a nonce, padded.
    Hello = 1,
    /// Grants one; body: the nonce.
    Welcome = 2,
    /// Refuses one because of its version, or of what [`FLAG_SECURE`] says; body: the nonce.
    Reject = 3,
    /// Packets; body: each with its length before it, and padding.
    Packets = 4,
    /// A part of a control message; body: sequence number, text.
    Control = 5,
    /// Body: the sequence number that arrived.
    ControlAck = 6,
    /// Asks for a sign of life. Body: from the connecting side, how long it waits for one, in ms; in the first
    /// of a session without keys, the nonce.
    Ping = 7,
    /// Answers a ping. Body: the ping's.
    Pong = 8,
    /// The session is over. Body: nothing, or why, such as [`BYE_KEY_REMOVED`].
    Bye = 9,
    /// A message that leads to keys; body: its number, the nonce, the message, padding.
    Handshake = 10,
    /// Sealed: the accepting side has found the peer's key on its list.
    Accepted = 11,
    /// Sealed: the accepting side has not found the peer's key on its list.
    Refused = 12,
    /// Asks whether a datagram of this size arrives; body: a number, padded.
    Probe = 13,
    /// The probe has arrived; body: the number, the size of the whole datagram, and that of the largest since the last
    /// such answer.
    ProbeAck = 14,
}

impl Kind {
    /// Whether it belongs to the time before there are keys; all others are sealed in a secure
    /// session.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Hello | Self::Welcome | Self::Reject | Self::Handshake)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [
            Self::Hello,
            Self::Welcome,
            Self::Reject,
            Self::Packets,
            Self::Control,
            Self::ControlAck,
            Self::Ping,
            Self::Pong,
            Self::Bye,
            Self::Handshake,
            Self::Accepted,
            Self::Refused,
            Self::Probe,
            Self::ProbeAck,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// The body of a connecting side's ping.
pub(super) fn outage(outage: Duration) -> [u8; 4] {
    u32::try_from(outage.as_millis()).unwrap_or(u32::MAX).to_le_bytes()
}

/// How long the sender of a ping, or the one whom a pong answers, waits for a sign of life.
pub(super) fn outage_of(body: &[u8]) -> Option<Duration> {
    // The first ping of a session without keys has a longer body (see `first_word`).
    let bytes = <[u8; 4]>::try_from(body).ok()?;
    Some(Duration::from_millis(u32::from_le_bytes(bytes).into()))
}

/// The header, understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) flags: u8,
    pub(super) session: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Malformed {
    /// Of another protocol.
    Garbage,
    /// Of another version of this protocol; with the kind, if it is known.
    Version { theirs: u8, kind: Option<Kind> },
}

impl Header {
    pub(super) fn new(kind: Kind, session: u64) -> Self {
        Self { kind, flags: 0, session }
    }

    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2] = PROTOCOL_VERSION;
        bytes[3] = self.kind as u8;
        bytes[4] = self.flags;
        bytes[8..].copy_from_slice(&self.session.to_le_bytes());
        bytes
    }

    /// The header and what follows it.
    pub(super) fn decode(datagram: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, body) = datagram.split_first_chunk::<HEADER_BYTES>().ok_or(Malformed::Garbage)?;
        let [m0, m1, version, kind, flags, _epoch, _echo, _, session @ ..] = *header;
        if [m0, m1] != MAGIC {
            return Err(Malformed::Garbage);
        }
        let kind = Kind::from_byte(kind);
        if version != PROTOCOL_VERSION {
            return Err(Malformed::Version { theirs: version, kind });
        }
        let kind = kind.ok_or(Malformed::Garbage)?;
        Ok((Self { kind, flags, session: u64::from_le_bytes(session) }, body))
    }
}

/// The nonce at the beginning of a handshake's body.
pub(super) fn nonce_of(body: &[u8]) -> Option<u64> {
    body.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The sequence number at the beginning of a control body, and the text after it.
pub(super) fn sequence_of(body: &[u8]) -> Option<(u32, &[u8])> {
    let (sequence, text) = body.split_first_chunk::<SEQUENCE_BYTES>()?;
    Some((u32::from_le_bytes(*sequence), text))
}

/// The body of a probe before its padding.
pub(super) fn probe(id: u32) -> [u8; PROBE_BYTES] {
    probe_ack(id, 0, 0)
}

/// The number of a probe.
pub(super) fn probe_of(body: &[u8]) -> Option<u32> {
    probe_ack_of(body).map(|[id, ..]| id)
}

/// The body of the answer to a probe.
pub(super) fn probe_ack(id: u32, datagram_bytes: u32, largest_bytes: u32) -> [u8; PROBE_BYTES] {
    let mut body = [0; PROBE_BYTES];
    for (part, number) in body.chunks_exact_mut(4).zip([id, datagram_bytes, largest_bytes]) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    body
}

/// The number of the probe that has arrived, its datagram's size, and the largest one's.
pub(super) fn probe_ack_of(body: &[u8]) -> Option<[u32; 3]> {
    let mut parts = body.first_chunk::<PROBE_BYTES>()?.chunks_exact(4);
    let mut number = || parts.next()?.first_chunk().map(|part| u32::from_le_bytes(*part));
    Some([number()?, number()?, number()?])
}

/// What stands before a packet of this length.
pub(super) fn length_of(packet_bytes: usize) -> [u8; LENGTH_BYTES] {
    (packet_bytes as u16 + 1).to_le_bytes()
}

/// The length of the next packet of a body, and what follows; None at the end.
pub(super) fn split_length(body: &[u8]) -> Option<(usize, &[u8])> {
    let (length, rest) = body.split_first_chunk::<LENGTH_BYTES>()?;
    Some((usize::from(u16::from_le_bytes(*length)).checked_sub(1)?, rest))
}

/// What a hello, welcome or reject says of its sender.
pub(super) fn secure_flag(secure: bool) -> u8 {
    if secure { FLAG_SECURE } else { 0 }
}

pub(super) fn hello(nonce: u64, secure: bool) -> [u8; HELLO_BYTES] {
    let mut datagram = [0; HELLO_BYTES];
    let header = Header { kind: Kind::Hello, flags: secure_flag(secure), session: 0 };
    datagram[..HEADER_BYTES].copy_from_slice(&header.encode());
    datagram[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&nonce.to_le_bytes());
    datagram
}

/// A welcome or a reject.
pub(super) fn answer(kind: Kind, secure: bool, session: u64, nonce: u64) -> [u8; HEADER_BYTES + 8] {
    let mut datagram = [0; HEADER_BYTES + 8];
    let header = Header { kind, flags: secure_flag(secure), session };
    datagram[..HEADER_BYTES].copy_from_slice(&header.encode());
    datagram[HEADER_BYTES..].copy_from_slice(&nonce.to_le_bytes());
    datagram
}

/// What begins a session without keys: a ping, and the nonce that its number was made with.
pub(super) fn first_word(session: u64, nonce: u64) -> [u8; HEADER_BYTES + 8] {
    answer(Kind::Ping, false, session, nonce)
}

/// A message of the handshake, number `step`.
pub(super) fn handshake(session: u64, nonce: u64, step: u8, message: &[u8]) -> [u8; HANDSHAKE_BYTES] {
    let mut datagram = [0; HANDSHAKE_BYTES];
    datagram[..HEADER_BYTES].copy_from_slice(&Header::new(Kind::Handshake, session).encode());
    let (said, text) = datagram[HEADER_BYTES..].split_at_mut(STEP_BYTES);
    said[0] = step;
    said[1..].copy_from_slice(&nonce.to_le_bytes());
    text[..message.len()].copy_from_slice(message);
    datagram
}

/// The nonce and the message in the body of a handshake datagram, if it is number `step`.
pub(super) fn handshake_of(body: &[u8], step: u8) -> Option<(u64, &[u8])> {
    if body.len() != HANDSHAKE_BYTES - HEADER_BYTES {
        return None;
    }
    let ([number, nonce @ ..], text) = body.split_first_chunk::<STEP_BYTES>()?;
    let length_bytes = MESSAGE_BYTES.get(usize::from(step).checked_sub(1)?)?;
    let message = text.get(..*length_bytes).filter(|_| *number == step)?;
    Some((u64::from_le_bytes(*nonce), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_back() {
        for byte in 0..=255 {
            if let Some(kind) = Kind::from_byte(byte) {
                let header = Header { kind, flags: 3, session: 0x0123_4567_89AB_CDEF };
                let datagram = [header.encode().as_slice(), b"body"].concat();
                assert_eq!(Header::decode(&datagram), Ok((header, b"body".as_slice())));
            }
        }
    }

    #[test]
    fn handshake_messages_read_back_and_fit_their_padding() {
        for (step, bytes) in (1..).zip(MESSAGE_BYTES) {
            let message: Vec<u8> = (0..bytes as u8).collect();
            let datagram = handshake(5, 6, step, &message);
            let (header, body) = Header::decode(&datagram).unwrap();
            assert_eq!(header, Header::new(Kind::Handshake, 5));
            assert_eq!(handshake_of(body, step), Some((6, message.as_slice())));
            for other in [0, step % 3 + 1, 200] {
                assert_eq!(handshake_of(body, other), None);
            }
            assert_eq!(handshake_of(&body[1..], step), None);
        }
    }

    #[test]
    fn garbage_and_other_versions_are_told_apart() {
        let mut datagram = hello(7, false);
        for cut in 0..HEADER_BYTES {
            assert_eq!(Header::decode(&datagram[..cut]), Err(Malformed::Garbage));
        }
        datagram[3] = 200;
        assert_eq!(Header::decode(&datagram), Err(Malformed::Garbage));
        datagram[3] = 1;
        datagram[2] = PROTOCOL_VERSION + 1;
        let other = Malformed::Version { theirs: PROTOCOL_VERSION + 1, kind: Some(Kind::Hello) };
        assert_eq!(Header::decode(&datagram), Err(other));
        datagram[0] = 0;
        assert_eq!(Header::decode(&datagram), Err(Malformed::Garbage));
        assert_eq!(nonce_of(&[1; 7]), None);
        assert_eq!(sequence_of(&[1; 3]), None);
        assert_eq!(probe_of(&[1; 11]), None);
        assert_eq!(probe_ack_of(&[1; 11]), None);
        assert_eq!(probe_of(&probe(u32::MAX)), Some(u32::MAX));
        assert_eq!(probe_ack_of(&probe_ack(7, 1472, 1500)), Some([7, 1472, 1500]));
    }
}
