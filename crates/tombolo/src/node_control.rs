//! How commands ask a node of this user how it is: at a socket beside that of its links, by [`tombolo_control`]. No link is made for it.

use std::path::Path;
use std::sync::Weak;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tombolo_control::{AskError, MESSAGE_BYTES_MAX, Service, Trust, ask_once};
use tombolo_node::{EndlessStatus, Node, NodeStatus};

/// Of what a node can be asked.
const VERSION: u16 = 1;
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
    #[error(transparent)]
    Endless(#[from] EndlessStatus),
}

impl StatusError {
    /// Whether no process listens there any more.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Ask(error) if error.is_gone())
    }
}

/// How the node is that listens at a socket.
pub fn status(path: &Path, counters: bool, timeout: Duration) -> Result<NodeStatus, StatusError> {
    let deadline = Instant::now() + timeout;
    NodeStatus::of_parts(deadline, |from| {
        let left = deadline.saturating_duration_since(Instant::now());
        let question = Question::Status { from, counters };
        let answer = ask_once(path, Trust::Own, VERSION, &question, left).map_err(|error| match error {
            AskError::TimedOut(_) => AskError::TimedOut(timeout),
            error => error,
        });
        match answer? {
            Answer::Status { part, next } => Ok((NodeStatus::from_json(part)?, next)),
            Answer::Failed(reason) => Err(StatusError::Failed(reason)),
        }
    })
}

#[cfg(test)]
mod tests {
    use tombolo_control::Server;
    use tombolo_host::unix::SeqpacketListener;
    use tombolo_node::Borrower;

    use super::*;

    /// Tells three borrowers, one a part; or parts with nothing in them for ever.
    struct InParts {
        is_endless: bool,
    }

    impl Service for InParts {
        type Ask = Question;
        type Answer = Answer;
        const VERSION: u16 = VERSION;

        fn answer(&self, Question::Status { from, .. }: Question) -> Answer {
            let borrower = Borrower { name: format!("borrower {from}"), ..Borrower::default() };
            let borrowers = if self.is_endless { Vec::new() } else { vec![borrower] };
            let part = NodeStatus { name: "node".into(), borrowers, ..NodeStatus::default() };
            let next = (self.is_endless || from < 2).then_some(from + 1);
            Answer::Status { part: serde_json::to_value(part).unwrap(), next }
        }

        fn refuse(&self, reason: String) -> Answer {
            Answer::Failed(reason)
        }
    }

    #[test]
    fn a_status_in_parts_is_put_together_and_one_without_an_end_refused() {
        let patience = Duration::from_secs(30);
        for is_endless in [false, true] {
            let path =
                std::env::temp_dir().join(format!("tombolo-parts-{is_endless}-{}", std::process::id()));
            let listener = SeqpacketListener::bind(&path).unwrap();
            let server = Server::start(listener, InParts { is_endless }).unwrap();
            let status = status(&path, false, patience);
            if is_endless {
                assert!(matches!(status, Err(StatusError::Endless(_))), "{status:?}");
            } else {
                let names: Vec<_> =
                    status.unwrap().borrowers.into_iter().map(|borrower| borrower.name).collect();
                assert_eq!(names, ["borrower 0", "borrower 1", "borrower 2"]);
            }
            drop(server);
            assert!(super::status(&path, false, patience).unwrap_err().is_gone());
        }
    }
}
