//! Descriptors that another process passed to this one.
//!
//! What is behind such a descriptor is its sender's choice, and closing it may take as long as the sender
//! likes: a file of FUSE asks its daemon, a lingering socket waits for its peer, memory is freed. So they
//! are closed on threads of their own, and no thread that serves others waits for it.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;

use crate::pool::{BlockingTask, Pool, PoolLimits, Step};

/// Threads that close. One process that passes descriptors which take long to close keeps one of them.
const THREADS: usize = 16;
/// Descriptors of one process that wait to be closed; who passes more is not listened to.
const MAX_WAITING: usize = 64;

static CLOSING: LazyLock<Pool<u32>> = LazyLock::new(|| {
    // What is given back is never refused: the bounds are those of `is_overdue`.
    let limits = PoolLimits {
        threads: THREADS,
        threads_of_group: THREADS,
        tasks: usize::MAX,
        tasks_of_owner: MAX_WAITING,
    };
    Pool::new("closing", limits)
});

/// A descriptor that came from another process.
#[derive(Debug)]
pub struct PassedDescriptor {
    descriptor: ManuallyDrop<OwnedFd>,
    /// The process that passed it; 0 where that is not known.
    process_id: u32,
}

impl PassedDescriptor {
    /// A descriptor that this process passed.
    pub fn new(descriptor: OwnedFd, process_id: u32) -> Self {
        Self { descriptor: ManuallyDrop::new(descriptor), process_id }
    }

    fn take(&mut self) -> OwnedFd {
        // SAFETY: called as the last thing before the value is dropped or forgotten, and once.
        unsafe { ManuallyDrop::take(&mut self.descriptor) }
    }
}

impl AsFd for PassedDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// For one who knows what it is, or trusts who passed it: from now on it is closed where it is dropped.
impl From<PassedDescriptor> for OwnedFd {
    fn from(passed: PassedDescriptor) -> Self {
        ManuallyDrop::new(passed).take()
    }
}

/// One that nobody else chose.
impl From<OwnedFd> for PassedDescriptor {
    fn from(descriptor: OwnedFd) -> Self {
        Self::new(descriptor, 0)
    }
}

impl Drop for PassedDescriptor {
    fn drop(&mut self) {
        let descriptor = self.take();
        close(descriptor, self.process_id);
    }
}

/// Closes a descriptor that may block, elsewhere and later.
pub(crate) fn close(descriptor: OwnedFd, process_id: u32) {
    struct Closing(Option<OwnedFd>);
    impl BlockingTask for Closing {
        fn step(&mut self) -> Step {
            drop(self.0.take());
            Step::Over
        }
    }
    CLOSING.give_back(process_id, Box::new(Closing(Some(descriptor))));
}

/// Whether a process has passed more than could be closed.
pub(crate) fn is_overdue(process_id: u32) -> bool {
    CLOSING.waiting_of(process_id) >= MAX_WAITING
}
