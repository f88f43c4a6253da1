//! What the supervisor and the front tell each other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tombolo_host::event;
use tombolo_host::unix::{SeqpacketSocket, UnixError};

/// A message: what, and a number or two with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To the front: the program is about to be started. Answered with the same when signals are kept for it.
    Starting,
    /// To the front: it has this number. Its pidfd comes along.
    Started(i32),
    /// To the front: this signal has stopped it.
    Stopped(i32),
    /// To the front: it has ended with this status.
    Ended(i32),
    /// To the supervisor: this signal came when the program had ended.
    Signal { number: i32, is_for_group: bool },
}

const BYTES: usize = 8;

impl Message {
    fn to_bytes(self) -> [u8; BYTES] {
        let (kind, flag, number) = match self {
            Self::Starting => (1, false, 0),
            Self::Started(number) => (2, false, number),
            Self::Stopped(number) => (3, false, number),
            Self::Ended(number) => (4, false, number),
            Self::Signal { number, is_for_group } => (5, is_for_group, number),
        };
        let [a, b, c, d] = number.to_ne_bytes();
        [kind, u8::from(flag), 0, 0, a, b, c, d]
    }

    fn from_bytes(bytes: [u8; BYTES]) -> Option<Self> {
        let [kind, flag, _, _, a, b, c, d] = bytes;
        let number = i32::from_ne_bytes([a, b, c, d]);
        Some(match kind {
            1 => Self::Starting,
            2 => Self::Started(number),
            3 => Self::Stopped(number),
            4 => Self::Ended(number),
            5 => Self::Signal { number, is_for_group: flag != 0 },
            _ => return None,
        })
    }

    /// Sends it; one that is gone hears nothing.
    pub(super) fn send(self, socket: &SeqpacketSocket, descriptor: Option<BorrowedFd<'_>>) {
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        // Some hundred messages fit into the socket: there are fewer, since the other end takes them as they come.
        let _ = socket.send(&[&self.to_bytes()], &descriptors);
    }

    /// The next one, with its descriptor. `None`: the other end is gone.
    pub(super) fn receive(socket: &SeqpacketSocket) -> Option<(Self, Option<OwnedFd>)> {
        loop {
            if let Some(received) = Self::try_receive(socket)? {
                return Some(received);
            }
            let _ = event::wait_readable(&[socket.as_fd()], None);
        }
    }

    /// The next one, if it has come.
    #[expect(clippy::option_option, reason = "nothing has come, and nothing will")]
    pub(super) fn try_receive(socket: &SeqpacketSocket) -> Option<Option<(Self, Option<OwnedFd>)>> {
        let mut bytes = [0; BYTES];
        match socket.receive(&mut bytes) {
            Ok(received) => {
                let message = Self::from_bytes(bytes)?;
                Some(Some((message, super::only(received.descriptors))))
            }
            Err(UnixError::WouldBlock) => Some(None),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_received() {
        let (one, other) = SeqpacketSocket::pair().unwrap();
        let messages = [
            Message::Starting,
            Message::Started(i32::MAX),
            Message::Stopped(20),
            Message::Ended(-1),
            Message::Signal { number: 64, is_for_group: true },
            Message::Signal { number: 1, is_for_group: false },
        ];
        for message in messages {
            message.send(&one, Some(one.as_fd()));
            let (received, descriptor) = Message::receive(&other).unwrap();
            assert!(received == message && descriptor.is_some());
        }
        assert!(matches!(Message::try_receive(&other), Some(None)));
        drop(one);
        assert!(Message::receive(&other).is_none());
        assert_eq!(Message::from_bytes([9; BYTES]), None);
    }
}
