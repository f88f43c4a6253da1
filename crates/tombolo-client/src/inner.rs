//! What the clones of a domain, its transfers and its mailbox share.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tombolo_channel::{ChannelPage, Failure, Request, Status};
use tombolo_host::timing::client::NODE_CHECK_INTERVAL;
use tombolo_host::unix::SeqpacketSocket;

use crate::asking::{Answer, Asking, Patience};
use crate::channels::Channels;
use crate::error::OpenError;
use crate::memory::Memory;
use crate::readiness::Readiness;
use crate::requests::GivenUp;

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) number: u16,
    pub(crate) page: ChannelPage,
    pub(crate) socket: SeqpacketSocket,
    pub(crate) asking: Mutex<Asking>,
    /// Memory of the node that was to be freed while the node could not be asked.
    pub(crate) to_free: Mutex<Vec<u64>>,
    pub(crate) request_timeout_ms: AtomicU64,
    /// What [`Domain::as_fd`] is.
    pub(crate) readiness: Readiness,
    pub(crate) channels: Channels,
    pub(crate) sleepers: AtomicU32,
    /// How long to poll before sleeping.
    pub(crate) poll_ns: AtomicU64,
    /// The node was found to be gone.
    pub(crate) node_gone: AtomicBool,
    /// When whoever polls looks for that again, on the coarse clock.
    pub(crate) next_look_ms: AtomicU64,
    /// Where messages lie until they are sent: a place for each channel.
    pub(crate) outgoing: OnceLock<Memory>,
    /// What makes the node go on, if it is in this process.
    pub(crate) progress: Option<Progress>,
}

/// Makes a node in this process go on; how much there was to do.
#[derive(Clone)]
pub(crate) struct Progress(pub(crate) Arc<dyn Fn(Bells) -> usize + Send + Sync>);

/// What a node in this process does with the bells that were rung since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bells {
    Answer,
    /// They stay rung, for others to come.
    Leave,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Progress")
    }
}

/// A clock that is read without a system call, to some milliseconds.
fn coarse_now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

impl Inner {
    pub(crate) fn ask(
        &self,
        request: Request,
        what: &mut dyn FnMut() -> GivenUp,
    ) -> Result<Answer, OpenError> {
        let patience = self.patience();
        let mut asking = self.lock_asking(patience)?;
        self.ask_with(&mut asking, request, &[], what, patience)
    }

    pub(crate) fn ask_with(
        &self,
        asking: &mut Asking,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
        what: &mut dyn FnMut() -> GivenUp,
        patience: Patience,
    ) -> Result<Answer, OpenError> {
        asking.ask(&self.socket, request, descriptors, what, patience, &|| self.readiness.set())
    }

    /// For a request that begins now.
    pub(crate) fn patience(&self) -> Patience {
        Patience::new(Duration::from_millis(self.request_timeout_ms.load(Ordering::Relaxed)))
    }

    /// Waits until no other thread asks the node for something.
    pub(crate) fn lock_asking(&self, patience: Patience) -> Result<MutexGuard<'_, Asking>, OpenError> {
        let mut asking = self.asking.try_lock_until(patience.deadline).ok_or_else(|| patience.timed_out())?;
        self.queue_frees(&mut asking);
        Ok(asking)
    }

    /// As [`Self::lock_asking`], where there is nothing to wait for.
    pub(crate) fn try_lock_asking(&self) -> Option<MutexGuard<'_, Asking>> {
        let mut asking = self.asking.try_lock()?;
        self.queue_frees(&mut asking);
        Some(asking)
    }

    fn queue_frees(&self, asking: &mut Asking) {
        for address in self.to_free.lock().drain(..) {
            asking.requests.free(address);
        }
    }

    /// Has memory of the node freed when the node can be asked next.
    pub(crate) fn free_later(&self, address: u64) {
        self.to_free.lock().push(address);
        self.settle_late_answers();
    }

    pub(crate) fn take(&self, kind: u64) -> Option<usize> {
        self.channels.take(kind, |slot| self.status(slot) != Status::Ongoing)
    }

    pub(crate) fn give_back(&self, slot: usize) {
        self.channels.give_back(slot, self.status(slot) != Status::Ongoing);
    }

    /// How far a transfer is. One that the node did not end before its own end has failed.
    pub(crate) fn status(&self, slot: usize) -> Status {
        match self.page.status(slot) {
            Status::Ongoing if self.notices_node_gone() => match self.page.status(slot) {
                Status::Ongoing => Status::FinishedWithError(Failure::NodeGone),
                ended => ended,
            },
            status => status,
        }
    }

    /// Whether the node is gone, as far as that is known: a system call finds it out, once in
    /// [`NODE_CHECK_INTERVAL`] however often this is called.
    pub(crate) fn notices_node_gone(&self) -> bool {
        if self.node_gone.load(Ordering::Relaxed) {
            return true;
        }
        let (now, next) = (coarse_now_ms(), self.next_look_ms.load(Ordering::Relaxed));
        let after = now + NODE_CHECK_INTERVAL.as_millis() as u64;
        // One of all threads looks.
        let looks = now >= next
            && self.next_look_ms.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        looks && self.is_node_gone()
    }

    /// Makes a node in this process go on. How much there was to do.
    pub(crate) fn go_on(&self) -> usize {
        self.progress.as_ref().map_or(0, |progress| progress.0(Bells::Answer))
    }

    pub(crate) fn page(&self) -> &ChannelPage {
        &self.page
    }

    pub(crate) fn is_node_gone(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec};
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = rustix::event::poll(&mut polled, Some(&now));
        let gone = polled[0].revents().contains(PollFlags::HUP);
        if gone {
            self.node_gone.store(true, Ordering::Relaxed);
        }
        gone
    }

    /// Gives back what the node granted after nobody waited for it any more, if it has by now.
    pub(crate) fn settle_late_answers(&self) {
        if let Some(mut asking) = self.try_lock_asking()
            && asking.requests.owes()
        {
            // The thread that waits notices that the node is gone.
            let _ = asking.catch_up(&self.socket, &|| self.readiness.set());
        }
    }
}
