//! The other end of an owner's socket.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tombolo_host::timing::net::{LET_IN_PAUSE, OWNER_TIMEOUT};
use tombolo_host::unix::{SeqpacketSocket, UnixError};

use crate::protocol::{Answer, Ask, MESSAGE_BYTES_MAX, Request, VERSION};

/// Why an owner gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens, or the connection has ended.
    #[error(transparent)]
    Socket(#[from] UnixError),
    /// What it says is no answer.
    #[error("the owner's answer cannot be read: {0}")]
    NoAnswer(#[from] serde_json::Error),
    /// It has said nothing for so long.
    #[error("the owner has not answered within {} s", OWNER_TIMEOUT.as_secs())]
    TimedOut,
    /// It does not do it.
    #[error("{0}")]
    Refused(String),
}

/// A connection to an owner.
#[derive(Debug)]
pub struct Client {
    socket: SeqpacketSocket,
}

impl Client {
    /// Connects to the owner that listens at a path.
    ///
    /// # Errors
    /// Nobody does.
    pub fn connect(path: &Path) -> Result<Self, AskError> {
        let since = Instant::now();
        loop {
            match SeqpacketSocket::connect(path) {
                Err(UnixError::WouldBlock) if since.elapsed() < OWNER_TIMEOUT => {
                    // Its queue of connections is full: it takes one in far less.
                    std::thread::sleep(Duration::from_millis(10));
                }
                connected => return Ok(Self { socket: connected? }),
            }
        }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask(&self, ask: Ask, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, AskError> {
        let request = serde_json::to_vec(&Request { version: VERSION, ask })?;
        let since = Instant::now();
        loop {
            match self.socket.send(&[&request], descriptors) {
                // It has not looked yet at who connects.
                Err(UnixError::TakesNone) if since.elapsed() < OWNER_TIMEOUT => {
                    std::thread::sleep(LET_IN_PAUSE);
                }
                // It has looked at nobody for so long.
                Err(UnixError::TakesNone) => return Err(AskError::TimedOut),
                // It may have said why before it hung up.
                Ok(()) | Err(UnixError::Closed) => break,
                Err(error) => return Err(error.into()),
            }
        }
        match self.next(Some(OWNER_TIMEOUT))? {
            Some(Answer::Refused(reason)) => Err(AskError::Refused(reason)),
            Some(answer) => Ok(answer),
            None => Err(AskError::TimedOut),
        }
    }

    /// The next answer; `None`: there was none for so long.
    ///
    /// # Errors
    /// The owner has gone.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<Answer>, AskError> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            match self.socket.receive(&mut buffer) {
                Ok(received) => {
                    let message = buffer.get(..received.length_bytes).unwrap_or_default();
                    return Ok(Some(serde_json::from_slice(message)?));
                }
                Err(UnixError::WouldBlock) => {}
                Err(error) => return Err(error.into()),
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            // Whatever comes of it, the socket says.
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], left.as_ref());
        }
    }
}
