//! The first words on the Unix socket: who speaks which version, and where the rings are.
//!
//! Every message is 24 bytes: magic (8), version (1), kind (1), zero (6), ring size (8, little
//! endian). Magic, version and kind stay where they are in all versions, so that two releases can
//! always tell each other apart.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tombolo_host::event::wait_readable;
use tombolo_host::ring::footprint_bytes;
use tombolo_host::shared::SharedMemory;
use tombolo_host::timing::link::{SHM_CONNECT_PAUSE, SHM_INTRODUCTION_TIMEOUT};
use tombolo_host::unix::{Received, SeqpacketSocket, UnixError, UntrustedUser};

use super::{MAX_PACKET_BYTES, ShmLink, Side};
use crate::{Address, OpenError, PROTOCOL_VERSION};
use std::os::fd::AsFd;

pub(super) const MESSAGE_BYTES: usize = 24;
const MAGIC: [u8; 8] = *b"TOMBOLO\0";
/// The rings that we agree to: large enough for the largest packet, small enough to map unseen.
pub(super) const RING_BYTES: std::ops::RangeInclusive<usize> = 1 << 16..=1 << 28;

/// A listener closes a connection of which it has heard nothing for a while, and where many connect at once, the
/// oldest of those. A process that lost its processor between its connection and its hello connects again, this many
/// times at most.
const MAX_CLOSED: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    Hello,
    Welcome { ring_bytes: u64 },
    Reject,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Malformed {
    /// Of another protocol.
    Garbage,
    /// Of another version of this protocol.
    Version(u8),
}

impl Message {
    pub(super) fn encode(self) -> [u8; MESSAGE_BYTES] {
        let (kind, ring_bytes) = match self {
            Self::Hello => (1, 0),
            Self::Welcome { ring_bytes } => (2, ring_bytes),
            Self::Reject => (3, 0),
        };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = PROTOCOL_VERSION;
        bytes[9] = kind;
        bytes[16..].copy_from_slice(&ring_bytes.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(Malformed::Garbage)?;
        let (&version, rest) = rest.split_first().ok_or(Malformed::Garbage)?;
        if version != PROTOCOL_VERSION {
            return Err(Malformed::Version(version));
        }
        let (&kind, rest) = rest.split_first().ok_or(Malformed::Garbage)?;
        let ring_bytes: [u8; 8] =
            rest.get(6..).and_then(|size| size.try_into().ok()).ok_or(Malformed::Garbage)?;
        match kind {
            1 => Ok(Self::Hello),
            2 => Ok(Self::Welcome { ring_bytes: u64::from_le_bytes(ring_bytes) }),
            3 => Ok(Self::Reject),
            _ => Err(Malformed::Garbage),
        }
    }
}

#[cfg(feature = "fuzzing")]
/// Any bytes as one of these messages: no panic, and what is one survives being written again.
pub fn fuzz(bytes: &[u8]) {
    if let Ok(message) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
}

#[cfg(feature = "fuzzing")]
/// One of each kind.
pub fn samples() -> [(&'static str, Vec<u8>); 3] {
    [
        ("hello", Message::Hello),
        ("welcome", Message::Welcome { ring_bytes: 1 << 20 }),
        ("reject", Message::Reject),
    ]
    .map(|(name, message)| (name, message.encode().to_vec()))
}

/// Refuses a listener that a stranger runs.
fn check_listener(
    path: &Path,
    socket: &SeqpacketSocket,
    trusted_user_id: Option<u32>,
) -> Result<(), OpenError> {
    socket.check_listener(trusted_user_id)?.map_err(|UntrustedUser { user_id, own_user_id }| {
        OpenError::UntrustedListener { path: path.to_owned(), user_id, own_user_id }
    })
}

pub(super) fn connect(
    path: &Path,
    trusted_user_id: Option<u32>,
    timeout: Duration,
) -> Result<ShmLink, OpenError> {
    let mut asking = Asking { path, trusted_user_id, timeout, started: Instant::now(), closed: 0 };
    loop {
        match asking.introduce() {
            Err(OpenError::Unix(UnixError::Closed)) => asking.closed += 1,
            other => return other,
        }
        if asking.closed > MAX_CLOSED {
            return Err(asking.closed_by_listener());
        }
        std::thread::sleep(SHM_CONNECT_PAUSE.1.min(asking.left()?));
    }
}

/// A connection attempt.
struct Asking<'a> {
    path: &'a Path,
    trusted_user_id: Option<u32>,
    timeout: Duration,
    started: Instant,
    /// How many times the listener has closed the connection.
    closed: u32,
}

impl Asking<'_> {
    /// How much of the time is left.
    fn left(&self) -> Result<Duration, OpenError> {
        let left = self.timeout.checked_sub(self.started.elapsed());
        left.ok_or_else(|| OpenError::NoAnswer { address: address(self.path), waited: self.timeout })
    }

    fn closed_by_listener(&self) -> OpenError {
        not_a_node(self.path, "it closed the connection during the handshake")
    }

    fn connect(&self) -> Result<SeqpacketSocket, OpenError> {
        let mut pause = SHM_CONNECT_PAUSE.0;
        loop {
            match SeqpacketSocket::connect(self.path) {
                Ok(socket) => return Ok(socket),
                Err(UnixError::WouldBlock) => {}
                // No node listens yet: it may be starting. One that has closed a connection was there.
                Err(UnixError::Path { errno: Errno::NOENT | Errno::CONNREFUSED, .. }) if self.closed == 0 => {
                }
                Err(UnixError::Path { errno: Errno::NOENT | Errno::CONNREFUSED, .. }) => {
                    return Err(self.closed_by_listener());
                }
                Err(error) => return Err(error.into()),
            }
            std::thread::sleep(pause.min(self.left()?));
            pause = (pause * 2).min(SHM_CONNECT_PAUSE.1);
        }
    }

    /// Says hello, and waits for the answer. `Closed`: the listener has closed the connection before it read the
    /// hello. One that closes it afterwards is no node.
    fn introduce(&self) -> Result<ShmLink, OpenError> {
        let socket = self.connect()?;
        let connected = Instant::now();
        check_listener(self.path, &socket, self.trusted_user_id)?;
        socket.send(&[&Message::Hello.encode()], &[])?;
        // Then it may have met the end of the connection.
        let is_late = connected.elapsed() >= SHM_INTRODUCTION_TIMEOUT / 2;
        let mut buffer = [0; MESSAGE_BYTES];
        let received = loop {
            match socket.receive(&mut buffer) {
                Ok(received) => break received,
                Err(UnixError::WouldBlock) => {}
                Err(UnixError::Closed) if !is_late => return Err(self.closed_by_listener()),
                Err(UnixError::Truncated) => return Err(not_a_node(self.path, "its answer is too long")),
                Err(error) => return Err(error.into()),
            }
            wait_readable(&[socket.as_fd()], Some(self.left()?))
                .map_err(|errno| OpenError::System { operation: "poll", errno })?;
        };
        finish(self.path, socket, &buffer[..received.length_bytes], received)
    }
}

fn finish(
    path: &Path,
    socket: SeqpacketSocket,
    answer: &[u8],
    mut received: Received,
) -> Result<ShmLink, OpenError> {
    let ring_bytes = match Message::decode(answer) {
        Ok(Message::Welcome { ring_bytes }) => ring_bytes,
        Ok(Message::Reject) => return Err(not_a_node(path, "it rejects its own version")),
        Ok(Message::Hello) => return Err(not_a_node(path, "it answers hello with hello")),
        Err(Malformed::Garbage) => return Err(not_a_node(path, "its answer makes no sense")),
        Err(Malformed::Version(theirs)) => {
            return Err(OpenError::VersionMismatch {
                address: address(path),
                ours: PROTOCOL_VERSION,
                theirs,
            });
        }
    };
    let ring_bytes = usize::try_from(ring_bytes)
        .ok()
        .filter(|bytes| bytes.is_power_of_two() && RING_BYTES.contains(bytes))
        .filter(|bytes| *bytes >= 2 * MAX_PACKET_BYTES)
        .ok_or_else(|| not_a_node(path, "its rings have an impossible size"))?;
    let memory = match (received.descriptors.pop(), received.descriptors.is_empty()) {
        (Some(memory), true) => memory,
        _ => return Err(not_a_node(path, "it did not pass exactly one memory")),
    };
    let memory = SharedMemory::open(memory, 2 * footprint_bytes(ring_bytes))?;
    ShmLink::new(socket, memory, ring_bytes, Side::Connector)
}

fn address(path: &Path) -> Address {
    Address::Shm(path.to_owned())
}

fn not_a_node(path: &Path, reason: &'static str) -> OpenError {
    OpenError::NotANode { address: address(path), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_back_and_garbage_does_not() {
        for message in [Message::Hello, Message::Welcome { ring_bytes: 77 }, Message::Reject] {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        let hello = Message::Hello.encode();
        for cut in 0..hello.len() {
            assert_eq!(Message::decode(&hello[..cut]), Err(Malformed::Garbage));
        }
        let mut newer = hello;
        newer[8] = PROTOCOL_VERSION + 1;
        assert_eq!(Message::decode(&newer), Err(Malformed::Version(PROTOCOL_VERSION + 1)));
        assert_eq!(Message::decode(&[0xFF; 24]), Err(Malformed::Garbage));
    }
}
