//! How commands ask a node of this user how it is: at a socket beside that of its links, by [`tombolo_control`]. No link is made for it.

use std::sync::Weak;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tombolo_control::{AskError, Client, MESSAGE_BYTES_MAX, Service};
use tombolo_node::{Node, NodeStatus};

/// Of what a node can be asked.
const VERSION: u16 = 1;
/// How long a command waits for the whole answer. A bound, not a measurement.
const TIMEOUT: Duration = Duration::from_secs(5);
/// What stands around a part in an answer takes less.
const AROUND_BYTES: usize = 256;

/// What a node can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// How are you? From that entry on.
    Status {
        /// Where it begins.
        from: u64,
        /// With counters.
        counters: bool,
    },
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A part of the status, and where the next one begins.
    Status { part: Value, next: Option<u64> },
    /// Why not.
    Failed(String),
}

/// Answers for a node.
pub struct Answering(pub Weak<Node>);

impl Service for Answering {
    type Ask = Question;
    type Answer = Answer;
    const VERSION: u16 = VERSION;

    fn answer(&self, Question::Status { from, counters }: Question) -> Answer {
        let Some(node) = self.0.upgrade() else { return Answer::Failed("the node is ending".into()) };
        let (part, next) = node.status_part(from, counters, MESSAGE_BYTES_MAX - AROUND_BYTES);
        match serde_json::to_value(part) {
            Ok(part) => Answer::Status { part, next },
            Err(error) => Answer::Failed(error.to_string()),
        }
    }

    fn refuse(&self, reason: String) -> Answer {
        Answer::Failed(reason)
    }
}

/// Why a node gave no status.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("{0}")]
    Failed(String),
    #[error("the answer cannot be read: {0}")]
    NoStatus(#[from] serde_json::Error),
    #[error("its status has no end")]
    Endless,
}

/// How a node is.
pub fn status(client: &Client, counters: bool) -> Result<NodeStatus, StatusError> {
    let deadline = Instant::now() + TIMEOUT;
    let mut status: Option<NodeStatus> = None;
    let mut from = 0;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let answer = client.ask(VERSION, &Question::Status { from, counters }, &[], left)?;
        let (part, next) = match answer {
            Answer::Status { part, next } => (NodeStatus::from_json(part)?, next),
            Answer::Failed(reason) => return Err(StatusError::Failed(reason)),
        };
        match &mut status {
            None => status = Some(part),
            Some(status) => status.append(part),
        }
        match next {
            Some(next) if next > from => from = next,
            Some(_) => return Err(StatusError::Endless),
            None => return Ok(status.unwrap_or_default()),
        }
    }
}
