//! The other end of an owner's socket.

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
    /// What it says is no answer.
    #[error("the owner's answer cannot be read: {0}")]
    NoAnswer(#[from] serde_json::Error),
    /// It has said nothing for so long.
    #[error("the owner has not answered within {} s", OWNER_TIMEOUT.as_secs())]
    TimedOut,
    /// It does not do it.
    #[error("{0}")]
    Refused(String),
    /// It has another port of that name.
    #[error("{0}")]
    NameTaken(String),
}

impl From<ControlError> for AskError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Socket(error) => Self::Socket(error),
            ControlError::NoAnswer(error) => Self::NoAnswer(error),
            ControlError::TimedOut(_) => Self::TimedOut,
            ControlError::Untrusted(error) => Self::Refused(error.to_string()),
        }
    }
}

/// A connection to an owner.
#[derive(Debug)]
pub struct Client(tombolo_control::Client);

impl Client {
    /// Connects to the owner that listens at a path.
    ///
    /// # Errors
    /// Nobody listens there, or a process of a user who is not trusted.
    pub fn connect(path: &Path, trust: Trust) -> Result<Self, AskError> {
        Ok(Self(tombolo_control::Client::connect(path, trust, OWNER_TIMEOUT)?))
    }

    /// Who listens, as the kernel says.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn peer(&self) -> Result<PeerIdentity, AskError> {
        Ok(self.0.peer()?)
    }

    /// Asks, and waits for the answer. What any user may have written at the other end does nothing to a terminal.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask(&self, ask: Ask, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, AskError> {
        match self.0.ask(VERSION, &ask, descriptors, OWNER_TIMEOUT)? {
            Answer::Refused(reason) => Err(AskError::Refused(harmless_reason(&reason))),
            Answer::NameTaken(reason) => Err(AskError::NameTaken(harmless_reason(&reason))),
            answer => Ok(answer),
        }
    }

    /// The next answer; `None`: there was none for so long.
    ///
    /// # Errors
    /// The owner has gone.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<Answer>, AskError> {
        Ok(self.0.next(timeout)?)
    }
}
