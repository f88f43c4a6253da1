//! Quiet links, which the engine's loop does not look at, and how the loop learns that it is to look at one again.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use tombolo_host::event::EventFd;

use crate::fabric::connection::Connection;

/// Links that are not quiet any more, although their descriptors do not show it.
#[derive(Debug)]
pub(crate) struct Stirred {
    links: Mutex<Vec<u32>>,
    any: AtomicBool,
    /// The loop sleeps, or is about to.
    sleeps: AtomicBool,
    event: EventFd,
}

impl Stirred {
    pub(crate) fn new() -> Result<Self, Errno> {
        let [any, sleeps] = [false; 2].map(AtomicBool::new);
        Ok(Self { links: Mutex::default(), any, sleeps, event: EventFd::new()? })
    }

    /// Ends the quiet of a link, because a thread has driven the link or something waits to be sent by it.
    pub(crate) fn stir(&self, connection: &Connection) {
        if !connection.is_quiet.load(Ordering::SeqCst) || !connection.is_quiet.swap(false, Ordering::SeqCst) {
            return;
        }
        self.links.lock().push(connection.id.0);
        self.any.store(true, Ordering::SeqCst);
        if self.sleeps.load(Ordering::SeqCst) {
            // Signalling can fail only if the event is signalled already, which is enough.
            let _ = self.event.signal();
        }
    }

    /// Becomes readable when a link was stirred while the loop slept.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Notes that the loop is about to sleep: links that are stirred from now on wake it. False: some were stirred
    /// already.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.sleeps.store(true, Ordering::SeqCst);
        !self.any.load(Ordering::SeqCst)
    }

    /// Notes that the loop does not sleep any more, and looks for stirred links by itself.
    pub(crate) fn wake_up(&self) {
        self.sleeps.store(false, Ordering::SeqCst);
    }

    /// Resets the descriptor after it has woken the loop.
    pub(crate) fn drain(&self) {
        let _ = self.event.drain();
    }

    /// The numbers of the links that were stirred since the last call.
    pub(crate) fn take(&self) -> Vec<u32> {
        if !self.any.load(Ordering::Relaxed) || !self.any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.links.lock())
    }
}
