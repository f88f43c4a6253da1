//! The end that asks.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tombolo_host::unix::{PeerIdentity, SeqpacketSocket, UnixError, UntrustedUser};

use crate::message::{BUSY, MESSAGE_BYTES_MAX, Request};

/// Between two attempts to connect where the queue of connections is full, and to pass descriptors that are not taken yet.
const PAUSE: Duration = Duration::from_millis(1);
/// Between two attempts where a service has as many clients as it takes.
const PAUSE_WHERE_FULL: Duration = Duration::from_millis(20);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process listens at the path, or the connection has ended.
    #[error(transparent)]
    Socket(#[from] UnixError),
    /// Who listens is not whom the socket's place promises.
    #[error(transparent)]
    Untrusted(#[from] UntrustedUser),
    /// What it says is no answer.
    #[error("the answer cannot be read: {0}")]
    NoAnswer(#[from] serde_json::Error),
    /// It has as many clients as it takes.
    #[error("it answers as many as it can already")]
    Busy,
    /// It has said nothing for so long.
    #[error("no answer within {:?}", .0)]
    TimedOut(Duration),
}

/// Who may be listening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Processes of this user, and of root.
    Own,
    /// A service of any user.
    Anybody,
}

/// Connects, asks, and waits for the answer: all within `timeout`. A service that has as many clients as it takes says so, and is asked again.
/// One that hangs up is not: it may have done what it was asked.
///
/// # Errors
/// [`AskError`].
pub fn ask_once<A: Serialize, R: DeserializeOwned>(
    path: &Path,
    trust: Trust,
    version: u16,
    ask: &A,
    timeout: Duration,
) -> Result<R, AskError> {
    let since = Instant::now();
    loop {
        let left = || timeout.saturating_sub(since.elapsed());
        let asked =
            Client::connect(path, trust, left()).and_then(|client| client.ask(version, ask, &[], left()));
        match asked {
            Err(AskError::Busy) if !left().is_zero() => std::thread::sleep(PAUSE_WHERE_FULL),
            Err(AskError::Socket(UnixError::Closed)) => {
                // It may have ended meanwhile.
                let again = Client::connect(path, trust, left()).map(drop);
                let is_gone = again.as_ref().is_err_and(AskError::is_gone);
                return Err(again.err().filter(|_| is_gone).unwrap_or(UnixError::Closed.into()));
            }
            Err(AskError::TimedOut(_)) => return Err(AskError::TimedOut(timeout)),
            asked => return asked,
        }
    }
}

/// A connection to a service.
#[derive(Debug)]
pub struct Client {
    socket: SeqpacketSocket,
}

impl AskError {
    /// Whether no process listens there any more.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Socket(error) if is_gone(error))
    }
}

/// Whether a connection failed because no process listens at its path any more.
pub fn is_gone(error: &UnixError) -> bool {
    matches!(error, UnixError::Path { errno: Errno::CONNREFUSED | Errno::NOENT, .. })
}

impl Client {
    /// Connects to the service that listens at a path.
    ///
    /// # Errors
    /// No process listens there; or a process of a user who is not trusted does; or the service has not accepted the connection
    /// within `timeout`.
    pub fn connect(path: &Path, trust: Trust, timeout: Duration) -> Result<Self, AskError> {
        let since = Instant::now();
        let socket = loop {
            match SeqpacketSocket::connect(path) {
                // Its queue of connections is full. A service takes one in far less, unless it is stopped.
                Err(UnixError::WouldBlock) if since.elapsed() < timeout => std::thread::sleep(PAUSE),
                Err(UnixError::WouldBlock) => return Err(AskError::TimedOut(timeout)),
                connected => break connected?,
            }
        };
        if trust == Trust::Own {
            socket.check_listener(None)??;
        }
        Ok(Self { socket })
    }

    /// Who listens, as the kernel says.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn peer(&self) -> Result<PeerIdentity, AskError> {
        Ok(self.socket.peer()?)
    }

    /// Asks, and waits for the answer. After [`AskError::TimedOut`] the next answer may be the one to this question.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask<A: Serialize, R: DeserializeOwned>(
        &self,
        version: u16,
        ask: &A,
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<R, AskError> {
        let request = serde_json::to_vec(&Request { version, ask })?;
        let since = Instant::now();
        loop {
            match self.socket.send(&[&request], descriptors) {
                // It has not looked yet at who connects, or not read yet what was asked before.
                Err(UnixError::TakesNone | UnixError::WouldBlock) if since.elapsed() < timeout => {
                    std::thread::sleep(PAUSE);
                }
                Err(UnixError::TakesNone | UnixError::WouldBlock) => return Err(AskError::TimedOut(timeout)),
                // It may have said why before it hung up.
                Ok(()) | Err(UnixError::Closed) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.next(Some(timeout.saturating_sub(since.elapsed())))?.ok_or(AskError::TimedOut(timeout))
    }

    /// The next answer; `None`: there was none for so long.
    ///
    /// # Errors
    /// The service has gone.
    pub fn next<R: DeserializeOwned>(&self, timeout: Option<Duration>) -> Result<Option<R>, AskError> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            match self.socket.receive(&mut buffer) {
                Ok(received) => {
                    let message = buffer.get(..received.length_bytes).unwrap_or_default();
                    if message == BUSY {
                        return Err(AskError::Busy);
                    }
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
