//! One transfer, from its start to its end.

use std::sync::Arc;
use std::time::Duration;

use tombolo_channel::{Descriptor, Status, Target};
use tombolo_wire::Notification;

use crate::error::WaitError;
use crate::inner::Inner;

/// What is to be moved. Addresses count from [`crate::Memory::address`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Where the bytes are: in the own domain for a write, in the other for a read.
    pub source_address: u64,
    /// Where they go.
    pub destination_address: u64,
    /// How many bytes: up to 4 GiB - 1. With 0, only the notification is written.
    pub size_bytes: u32,
    /// Two words to be written at the destination's side, the first before the last, after the last byte.
    pub notification: Option<Notification>,
    /// Class of service for the whole transfer: 0 high, 1 medium, 2 low. Otherwise by what is left of
    /// it: up to 16 KiB, up to 512 KiB, more (QOS §3.2.3).
    pub class: Option<u8>,
}

impl Spec {
    /// A transfer of bytes, without notification.
    pub fn new(source_address: u64, destination_address: u64, size_bytes: u32) -> Self {
        Self { source_address, destination_address, size_bytes, notification: None, class: None }
    }

    pub(crate) fn descriptor(&self, target: Target) -> Descriptor {
        let Self { source_address, destination_address, size_bytes, notification, class } = *self;
        let plain = Descriptor::new(source_address, destination_address, size_bytes, target);
        Descriptor { notification, class, ..plain }
    }

    /// This transfer, which notifies its target when it has ended.
    #[must_use]
    pub fn notify(self, notification: Notification) -> Self {
        Self { notification: Some(notification), ..self }
    }
}

/// A transfer under way. When this is dropped, the transfer goes on, and its channel is free when it has ended.
#[derive(Debug)]
#[must_use = "a transfer that nobody waits for may fail unnoticed"]
pub struct Transfer {
    domain: Arc<Inner>,
    slot: usize,
}

impl Transfer {
    pub(crate) fn new(domain: Arc<Inner>, slot: usize) -> Self {
        Self { domain, slot }
    }

    /// How far it is (QOS Table 2.1). No system call, unless the node is in this process, but one some
    /// ten times a second that finds out whether the node is gone. Then the transfer has failed with
    /// [`Failure::NodeGone`](crate::Failure::NodeGone).
    pub fn status(&self) -> Status {
        self.domain.go_on();
        self.domain.status(self.slot)
    }

    /// Waits for its end: polls for a moment, then sleeps. May be called again after
    /// [`WaitError::TimedOut`].
    pub fn wait(&self, timeout: Duration) -> Result<(), WaitError> {
        match self.domain.wait_for(self.slot, timeout)? {
            Status::Finished => Ok(()),
            Status::FinishedWithError(failure) => Err(failure.into()),
            Status::Paused => Err(WaitError::Paused),
            Status::Ongoing => Err(WaitError::TimedOut(timeout)),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.domain.give_back(self.slot);
    }
}

/// An atomic operation under way.
#[derive(Debug)]
#[must_use = "an operation that nobody waits for may fail unnoticed"]
pub struct Atomic(Transfer);

impl Atomic {
    pub(crate) fn new(transfer: Transfer) -> Self {
        Self(transfer)
    }

    /// How far it is. No system call.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// Waits for its end, as [`Transfer::wait`]. Returns what the word was before.
    pub fn wait(&self, timeout: Duration) -> Result<u64, WaitError> {
        self.0.wait(timeout)?;
        Ok(self.0.domain.page().result(self.0.slot))
    }
}
