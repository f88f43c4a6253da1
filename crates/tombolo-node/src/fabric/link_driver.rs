//! What the fabric needs of the node that drives its links, and why that may fail.

use std::sync::Arc;
use std::time::Duration;

use tombolo_link::{Address, LossReason, OpenError, SendError};

use crate::fabric::connection::Connection;
use crate::fabric::messages::Request;
use crate::fabric::neighbour::Answer;
use crate::fabric::table::Fabric;

/// Drives the links of a fabric.
pub trait LinkDriver: Send + Sync {
    /// The fabric.
    #[doc(hidden)]
    fn fabric(&self) -> &Fabric;

    /// Asks by a link, and waits for the answer.
    #[doc(hidden)]
    fn ask_by(
        &self,
        connection: &Arc<Connection>,
        request: Request,
        timeout: Duration,
    ) -> Result<Answer, AskError>;

    /// Marks a link as lost, and with its last link the neighbour.
    #[doc(hidden)]
    fn mark_lost(&self, connection: &Arc<Connection>, reason: LossReason);

    /// Forgets a lost link.
    #[doc(hidden)]
    fn forget_lost(&self, connection: &Connection);
}

impl<D: LinkDriver> LinkDriver for Arc<D> {
    fn fabric(&self) -> &Fabric {
        D::fabric(self)
    }

    fn ask_by(
        &self,
        connection: &Arc<Connection>,
        request: Request,
        timeout: Duration,
    ) -> Result<Answer, AskError> {
        D::ask_by(self, connection, request, timeout)
    }

    fn mark_lost(&self, connection: &Arc<Connection>, reason: LossReason) {
        D::mark_lost(self, connection, reason);
    }

    fn forget_lost(&self, connection: &Connection) {
        D::forget_lost(self, connection);
    }
}

/// Why a question to a peer failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The peer is gone.
    #[error("{0}")]
    Lost(LossReason),
    /// The peer did not answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The link did not take the question.
    #[error("cannot ask: {0}")]
    Send(SendError),
    /// The caller does not want the answer any more.
    #[error("interrupted")]
    Interrupted,
    /// The link that the question was sent by is lost. It is unknown whether the question has arrived, and it must not
    /// be asked twice.
    #[error("the link that it was asked by is gone, others are left")]
    PathLost,
}

/// Why another node was not joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No link to the node could be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// A question to the node failed.
    #[error("node {0}: {1}")]
    Ask(Address, AskError),
    /// The node refused.
    #[error("node {0} refused: {1}")]
    Refused(Address, String),
}
