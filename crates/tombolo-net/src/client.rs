//! The client's end of an owner's socket.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use tombolo_control::{AskError as ControlError, Trust};
use tombolo_host::timing::net::OWNER_TIMEOUT;
use tombolo_host::unix::{PeerIdentity, UnixError};
use tombolo_node::harmless_reason;

use crate::protocol::{Answer, Ask, VERSION};

/// Why an owner gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process listens at the path, or the connection has ended.
    #[error(transparent)]
    Socket(#[from] UnixError),
    /// What the owner has sent is not an answer.
    #[error("the owner's answer cannot be read: {0}")]
    NoAnswer(#[from] serde_json::Error),
    /// The owner has not answered in time.
    #[error("the owner has not answered within {0:?}")]
    TimedOut(Duration),
    /// The owner answers as many as it can already.
    #[error("the owner answers as many as it can already")]
    Busy,
    /// The owner has refused the request.
    #[error("{0}")]
    Refused(String),
    /// The owner has another port of that name.
    #[error("{0}")]
    NameTaken(String),
}

impl From<ControlError> for AskError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Socket(error) => Self::Socket(error),
            ControlError::NoAnswer(error) => Self::NoAnswer(error),
            ControlError::Busy => Self::Busy,
            ControlError::TimedOut(timeout) => Self::TimedOut(timeout),
            ControlError::Untrusted(error) => Self::Refused(error.to_string()),
        }
    }
}

/// A connection to an owner.
#[derive(Debug)]
pub struct Client {
    control: tombolo_control::Client,
    timeout: Duration,
}

impl AskError {
    /// Whether no process listens there any more.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Socket(error) if tombolo_control::is_gone(error))
    }
}

impl Client {
    /// Connects to the owner that listens at a path.
    ///
    /// # Errors
    /// No process listens there, or the process that listens is of a user who is not trusted.
    pub fn connect(path: &Path, trust: Trust) -> Result<Self, AskError> {
        Self::connect_within(path, trust, OWNER_TIMEOUT)
    }

    /// As [`Client::connect`]. Each answer is waited for that long.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_within(path: &Path, trust: Trust, timeout: Duration) -> Result<Self, AskError> {
        let control = tombolo_control::Client::connect(path, trust, timeout)?;
        Ok(Self { control, timeout })
    }

    /// The process that listens, as the kernel identifies it.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn peer(&self) -> Result<PeerIdentity, AskError> {
        Ok(self.control.peer()?)
    }

    /// Sends a request, and waits for the answer. Reasons of a refusal, which any user's process may have written, are made
    /// harmless to a terminal.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask(&self, ask: Ask, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, AskError> {
        match self.control.ask(VERSION, &ask, descriptors, self.timeout)? {
            Answer::Refused(reason) => Err(AskError::Refused(harmless_reason(&reason))),
            Answer::NameTaken(reason) => Err(AskError::NameTaken(harmless_reason(&reason))),
            answer => Ok(answer),
        }
    }

    /// Waits for the next answer. `None`: there was none within `timeout`.
    ///
    /// # Errors
    /// The owner has gone, or has sent what is not an answer.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<Answer>, AskError> {
        Ok(self.control.next(timeout)?)
    }
}
