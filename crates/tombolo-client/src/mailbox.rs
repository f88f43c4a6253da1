//! Small messages from other programs.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tombolo_channel::Mail;

use crate::error::WaitError;
use crate::inner::Inner;

/// The mailbox of a domain. All threads may take messages out; each message goes to one of them.
#[derive(Debug)]
pub struct Mailbox {
    domain: Arc<Inner>,
    shared: tombolo_channel::Mailbox,
    /// Messages taken so far.
    taken: Mutex<u64>,
}

impl Mailbox {
    pub(crate) fn new(domain: Arc<Inner>, shared: tombolo_channel::Mailbox) -> Self {
        Self { domain, shared, taken: Mutex::new(0) }
    }

    /// The next message, if one is there. No system call, but one some ten times a second that finds
    /// out whether the node is gone. Then this fails once all messages are taken.
    pub fn try_receive(&self) -> Result<Option<Mail>, WaitError> {
        match self.take() {
            // Whatever the node put in before its end is taken first.
            None if self.domain.notices_node_gone() => self.take().map(Some).ok_or(WaitError::NodeGone),
            mail => Ok(mail),
        }
    }

    fn take(&self) -> Option<Mail> {
        self.shared.take(&mut self.taken.lock())
    }

    /// Waits for the next message: polls for a moment, then sleeps.
    pub fn receive(&self, timeout: Duration) -> Result<Mail, WaitError> {
        let mut mail = None;
        self.domain.wait_until(timeout, || {
            mail = self.take();
            mail.is_some()
        })?;
        mail.ok_or(WaitError::NoMessage(timeout))
    }
}
