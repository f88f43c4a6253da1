//! Several listeners that a node asks as if they were one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::epoll;

use crate::{AcceptError, Address, Link, Listener, ListenerCounters, OpenError};

/// Waits for nodes at several addresses.
#[derive(Debug)]
pub struct Listeners {
    listeners: Vec<Box<dyn Listener>>,
    /// Readable when one of the listeners is.
    poller: OwnedFd,
    /// Which of them is asked first: the one after that which answered last, so that many newcomers at one
    /// address keep nobody waiting at another.
    next: AtomicUsize,
}

impl Listeners {
    /// Asks these listeners, of which there is at least one.
    pub fn new(listeners: Vec<Box<dyn Listener>>) -> Result<Self, OpenError> {
        assert!(!listeners.is_empty(), "a node listens somewhere");
        let system = |errno| OpenError::System { operation: "epoll", errno };
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        for listener in &listeners {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&poller, listener.descriptor(), data, epoll::EventFlags::IN).map_err(system)?;
        }
        Ok(Self { listeners, poller, next: AtomicUsize::new(0) })
    }
}

impl Listener for Listeners {
    fn accept(&self) -> Result<Option<Arc<dyn Link>>, AcceptError> {
        let count = self.listeners.len();
        let first = self.next.load(Ordering::Relaxed);
        for index in (first..first + count).map(|index| index % count) {
            let accepted = self.listeners[index].accept();
            if !matches!(accepted, Ok(None)) {
                self.next.store((index + 1) % count, Ordering::Relaxed);
                return accepted;
            }
        }
        Ok(None)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn address(&self) -> Address {
        self.listeners[0].address()
    }

    fn counters(&self) -> ListenerCounters {
        let mut sum = ListenerCounters::default();
        self.listeners.iter().for_each(|listener| sum += listener.counters());
        sum
    }
}
