//! Messages between the supervisor and the front.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tombolo_host::event;
use tombolo_host::unix::{SeqpacketSocket, UnixError};

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To the front: the program is about to be started. The front blocks its signals from now on, and answers with the
    /// same message.
    Starting,
    /// To the front, from the program's process before the program is executed: it has this number and is in the program's
    /// group. The front passes to it the signals for the group that came before it joined, and answers with the same
    /// message.
    Joined(i32),
    /// To the program's process: the front cannot pass signals to it.
    NotReady,
    /// To the front: the program was executed.
    Started,
    /// To the front: this signal has stopped the program.
    Stopped(i32),
    /// To the front: the program has ended with this status.
    Ended(i32),
    /// To the supervisor: the front has handled a stop of the program, and is no longer stopped for it.
    StopDone,
    /// To the supervisor: this signal came after the program had ended.
    Signal { number: i32, is_for_group: bool },
}

const BYTES: usize = 8;

impl Message {
    fn to_bytes(self) -> [u8; BYTES] {
        let (kind, flag, number) = match self {
            Self::Starting => (1, false, 0),
            Self::Joined(number) => (2, false, number),
            Self::Started => (3, false, 0),
            Self::Stopped(number) => (4, false, number),
            Self::Ended(number) => (5, false, number),
            Self::StopDone => (6, false, 0),
            Self::Signal { number, is_for_group } => (7, is_for_group, number),
            Self::NotReady => (8, false, 0),
        };
        let [a, b, c, d] = number.to_ne_bytes();
        [kind, u8::from(flag), 0, 0, a, b, c, d]
    }

    fn from_bytes(bytes: [u8; BYTES]) -> Option<Self> {
        let [kind, flag, _, _, a, b, c, d] = bytes;
        let number = i32::from_ne_bytes([a, b, c, d]);
        Some(match kind {
            1 => Self::Starting,
            2 => Self::Joined(number),
            3 => Self::Started,
            4 => Self::Stopped(number),
            5 => Self::Ended(number),
            6 => Self::StopDone,
            7 => Self::Signal { number, is_for_group: flag != 0 },
            8 => Self::NotReady,
            _ => return None,
        })
    }

    /// Sends the message and waits for the same message as the answer. Makes async-signal-safe calls only, allocates
    /// nothing and locks nothing.
    pub(super) fn send_and_await_the_same(self, socket: &SeqpacketSocket) -> io::Result<()> {
        rustix::net::send(socket, &self.to_bytes(), SendFlags::NOSIGNAL)?;
        let mut bytes = [0; BYTES];
        loop {
            let mut polled = [PollFd::new(socket, PollFlags::IN)];
            match rustix::event::poll(&mut polled, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, BYTES)) if Self::from_bytes(bytes) == Some(self) => return Ok(()),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Ok(_) => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends the message. It is lost if the receiver is gone.
    pub(super) fn send(self, socket: &SeqpacketSocket) {
        // The socket holds some hundred messages. It never fills, since the other end takes them as they come.
        let _ = socket.send(&[&self.to_bytes()], &[]);
    }

    /// Waits for the next message. `None` if the other end is gone.
    pub(super) fn receive(socket: &SeqpacketSocket) -> Option<Self> {
        loop {
            if let Some(received) = Self::try_receive(socket)? {
                return Some(received);
            }
            let _ = event::wait_readable(&[socket.as_fd()], None);
        }
    }

    /// The next message, if it has come. `None` if the other end is gone.
    #[expect(clippy::option_option, reason = "no message has come, and none will: two different things")]
    pub(super) fn try_receive(socket: &SeqpacketSocket) -> Option<Option<Self>> {
        let mut bytes = [0; BYTES];
        match socket.receive(&mut bytes) {
            Ok(_) => Some(Some(Self::from_bytes(bytes)?)),
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
            Message::Joined(i32::MAX),
            Message::Started,
            Message::Stopped(20),
            Message::Ended(-1),
            Message::StopDone,
            Message::NotReady,
            Message::Signal { number: 64, is_for_group: true },
            Message::Signal { number: 1, is_for_group: false },
        ];
        for message in messages {
            message.send(&one);
            assert_eq!(Message::receive(&other), Some(message));
        }
        assert!(matches!(Message::try_receive(&other), Some(None)));
        drop(one);
        assert!(Message::receive(&other).is_none());
        assert_eq!(Message::from_bytes([9; BYTES]), None);
    }
}
