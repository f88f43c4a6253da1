//! Links that the engine's loop leaves alone, and that are to be looked at again.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use tombolo_host::event::EventFd;

use crate::fabric::connection::Connection;

/// Links that are not quiet any more, though nothing of it shows at their descriptors.
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

    /// Somebody has driven a link, or something waits to go by it: if it was quiet, it is not any more.
    pub(crate) fn stir(&self, connection: &Connection) {
        if !connection.is_quiet.load(Ordering::SeqCst) || !connection.is_quiet.swap(false, Ordering::SeqCst) {
            return;
        }
        self.links.lock().push(connection.id.0);
        self.any.store(true, Ordering::SeqCst);
        if self.sleeps.load(Ordering::SeqCst) {
            // That it cannot be signalled more than it is signalled already is no loss.
            let _ = self.event.signal();
        }
    }

    /// Becomes readable when a link was stirred while the loop slept.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The loop is about to sleep, and is told of links that are stirred from now on. False: some were just now.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.sleeps.store(true, Ordering::SeqCst);
        !self.any.load(Ordering::SeqCst)
    }

    /// The loop looks for itself again.
    pub(crate) fn wake_up(&self) {
        self.sleeps.store(false, Ordering::SeqCst);
    }

    /// It has been told.
    pub(crate) fn drain(&self) {
        let _ = self.event.drain();
    }

    /// The numbers of those that were stirred since.
    pub(crate) fn take(&self) -> Vec<u32> {
        if !self.any.load(Ordering::Relaxed) || !self.any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.links.lock())
    }
}
