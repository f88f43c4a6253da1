//! Descriptors that another process passed to this one.
//!
//! What is behind such a descriptor is its sender's choice, and closing it may take as long as the sender
//! likes: a file of FUSE asks its daemon, a lingering socket waits for its peer, memory is freed. So they
//! are closed on threads of their own, and no thread that serves others waits for it.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::pool::{BlockingTask, Pool, PoolLimits, PoolOwner, Step, Urgency};
use crate::unix::PeerIdentity;

/// Threads that close descriptors. A process that passes descriptors which take long to close keeps one thread
/// busy.
const THREADS: usize = 128;
/// Those that the processes of one user keep busy: each user may have any number of processes.
const THREADS_OF_USER: usize = 16;
/// The most descriptors of one sender that wait to be closed. A sender that passes more is hung up on.
const MAX_WAITING: usize = 64;
/// The most of all senders of one user.
const MAX_WAITING_OF_USER: usize = 16 * MAX_WAITING;

/// The sender of descriptors. What one sender passed does not delay the closing of what another passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sender {
    /// `None`: the kernel does not say.
    user_id: Option<u32>,
    who: Who,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// A process that the kernel names.
    Process(u32),
    /// The other end of a connection whose process the kernel does not name: it is in another pid namespace.
    Connection(u64),
    /// This process itself.
    Itself,
}

impl Sender {
    const ITSELF: Self = Self { user_id: None, who: Who::Itself };

    /// The sender at the other end of a connection; the process if the kernel names it.
    pub(crate) fn of(peer: Option<PeerIdentity>) -> Self {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
        let who = match peer.and_then(|peer| peer.process_id) {
            Some(process_id) => Who::Process(process_id),
            None => Who::Connection(CONNECTIONS.fetch_add(1, Ordering::Relaxed)),
        };
        Self { user_id: peer.map(|peer| peer.user_id), who }
    }
}

impl PoolOwner for Sender {
    fn group(&self) -> Option<u32> {
        self.user_id
    }
}

static CLOSING: LazyLock<Pool<Sender>> = LazyLock::new(|| {
    // Closing is never refused: `is_overdue` bounds what waits of passed descriptors, since none are taken of such a sender.
    let limits = PoolLimits {
        threads: THREADS,
        threads_of_group: THREADS_OF_USER,
        tasks: usize::MAX,
        tasks_of_owner: MAX_WAITING,
    };
    Pool::new("closing", limits, Urgency::Normal)
});

/// A descriptor that came from another process.
#[derive(Debug)]
pub struct PassedDescriptor {
    descriptor: ManuallyDrop<OwnedFd>,
    sender: Sender,
}

impl PassedDescriptor {
    /// A descriptor that this sender passed.
    pub(crate) fn new(descriptor: OwnedFd, sender: Sender) -> Self {
        Self { descriptor: ManuallyDrop::new(descriptor), sender }
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

/// For callers who have checked what it is, or trust its sender: from now on it is closed where it is dropped.
impl From<PassedDescriptor> for OwnedFd {
    fn from(passed: PassedDescriptor) -> Self {
        ManuallyDrop::new(passed).take()
    }
}

/// A descriptor of this process itself.
impl From<OwnedFd> for PassedDescriptor {
    fn from(descriptor: OwnedFd) -> Self {
        Self::new(descriptor, Sender::ITSELF)
    }
}

impl Drop for PassedDescriptor {
    fn drop(&mut self) {
        let descriptor = self.take();
        close(descriptor, self.sender);
    }
}

/// Hands a descriptor to the pool, to be closed there: closing it may block.
pub(crate) fn close(descriptor: OwnedFd, sender: Sender) {
    struct Closing(Option<OwnedFd>);
    impl BlockingTask for Closing {
        fn step(&mut self) -> Step {
            drop(self.0.take());
            Step::Over
        }
    }
    CLOSING.give_back(sender, Box::new(Closing(Some(descriptor))));
}

/// Whether a sender has passed more than could be closed, or its user has by many.
pub(crate) fn is_overdue(sender: Sender) -> bool {
    CLOSING.waiting_of(sender) >= MAX_WAITING
        || sender.user_id.is_some_and(|user_id| CLOSING.waiting_of_group(user_id) >= MAX_WAITING_OF_USER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_that_the_kernel_does_not_name_are_told_apart_by_their_connections() {
        let known = Some(PeerIdentity { process_id: Some(7), user_id: 1 });
        assert_eq!(Sender::of(known), Sender::of(known), "two connections of one process");
        let unnamed = Some(PeerIdentity { process_id: None, user_id: 1 });
        assert_ne!(Sender::of(unnamed), Sender::of(unnamed));
        assert_eq!(Sender::of(unnamed).group(), Some(1), "but they are one user's");
        assert_ne!(Sender::of(None), Sender::of(None));
        assert_ne!(Sender::of(None), Sender::ITSELF);
    }
}
