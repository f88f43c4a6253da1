//! What the clones of a domain, its transfers and its mailbox share.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tombolo_channel::{ChannelPage, Failure, Message, Request, Status, encode};
use tombolo_host::event;
use tombolo_host::life::ProcessLife;
use tombolo_host::own::ThisProcess;
use tombolo_host::timing::client::{ACCESS_CLOSE_WAIT, NODE_CHECK_INTERVAL};
use tombolo_host::unix::SeqpacketSocket;

use crate::asking::{Answer, Asking, TimeLimit};
use crate::channels::Channels;
use crate::error::OpenError;
use crate::memory::Memory;
use crate::own_access::OwnAccess;
use crate::readiness::Readiness;
use crate::requests::GivenUp;

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) number: u16,
    /// Where this process's own memory begins in the domain.
    pub(crate) base: u64,
    pub(crate) page: ChannelPage,
    pub(crate) socket: SeqpacketSocket,
    pub(crate) asking: Mutex<Asking>,
    /// Memory of the node that was to be freed while the node could not be asked.
    pub(crate) to_free: Mutex<Vec<u64>>,
    pub(crate) request_timeout_ms: AtomicU64,
    /// The descriptor of [`crate::Domain`] for poll and epoll.
    pub(crate) readiness: Readiness,
    pub(crate) channels: Channels,
    pub(crate) sleepers: AtomicU32,
    /// How long to poll before sleeping.
    pub(crate) poll_ns: AtomicU64,
    /// The node was found to be gone.
    pub(crate) node_gone: AtomicBool,
    /// When a thread that polls checks for the node's end again, on the coarse clock.
    pub(crate) next_check_ms: AtomicU64,
    /// Memory in which messages lie until they are sent: a place for each channel.
    pub(crate) outgoing: OnceLock<Memory>,
    /// What makes the node go on, if it is in this process.
    pub(crate) progress: Option<Progress>,
    /// Makes the accesses to this program's own memory; `None` in it: the node does.
    /// This process, as it could be looked at when the domain was opened: it may not be later, as after `setuid`.
    pub(crate) this_process: Option<ThisProcess>,
    pub(crate) own_access: OnceLock<Option<OwnAccess>>,
    /// Where others make the accesses: hung up when they cannot make any more.
    pub(crate) held_by_helper: Mutex<Option<SeqpacketSocket>>,
    /// The process that has opened it.
    pub(crate) process: ProcessLife,
    /// Among all domains that this process opens.
    pub(crate) serial: u64,
}

/// How it is with accesses to own memory when the node is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessEnd {
    /// None is being made, and none will be.
    Ended,
    /// One is being made, and does not end.
    Hangs,
}

/// Makes a node in this process go on. Returns how much there was to do.
#[derive(Clone)]
pub(crate) struct Progress(pub(crate) Arc<dyn Fn(RungChannels) -> usize + Send + Sync>);

/// What a node in this process does with the channels whose doorbell bits are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RungChannels {
    /// The node takes the bits and carries out the transfers.
    Start,
    /// The bits stay set, so that more transfers can join these.
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
        given_up: &mut dyn FnMut() -> GivenUp,
    ) -> Result<Answer, OpenError> {
        let limit = self.time_limit();
        let mut asking = self.lock_asking(limit)?;
        self.ask_with(&mut asking, request, &[], given_up, limit)
    }

    pub(crate) fn ask_with(
        &self,
        asking: &mut Asking,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
        given_up: &mut dyn FnMut() -> GivenUp,
        limit: TimeLimit,
    ) -> Result<Answer, OpenError> {
        self.check_process()?;
        let on_ended = || self.readiness.set();
        let answered = asking.ask(&self.socket, request, descriptors, given_up, limit, &on_ended);
        // Before anybody is told: a program may use its memory for something else then.
        answered.inspect_err(|error| {
            if error.is_node_gone() {
                self.end_accesses();
            }
        })
    }

    /// Refuses what a child of the process wants that has opened the domain: socket, channels and memory are that one's.
    pub(crate) fn check_process(&self) -> Result<(), OpenError> {
        if self.process.is_now() { Ok(()) } else { Err(OpenError::Forked) }
    }

    /// The node is gone: no access to own memory is made any more. Waits for one that is being made, but not for ever.
    pub(crate) fn end_accesses(&self) -> AccessEnd {
        if !self.process.is_now() {
            return AccessEnd::Ended;
        }
        let by_threads = self.own_access.get().and_then(Option::as_ref);
        let have_ended = by_threads.is_none_or(|access| access.threads.close(ACCESS_CLOSE_WAIT));
        // A helper ends with its node, a moment later.
        let has_let_go = self.held_by_helper.lock().as_ref().is_none_or(|held| {
            event::wait_readable(&[held.as_fd()], Some(ACCESS_CLOSE_WAIT)).unwrap_or(false)
        });
        if have_ended && has_let_go { AccessEnd::Ended } else { AccessEnd::Hangs }
    }

    /// The time limit of a request that begins now.
    pub(crate) fn time_limit(&self) -> TimeLimit {
        TimeLimit::new(Duration::from_millis(self.request_timeout_ms.load(Ordering::Relaxed)))
    }

    /// Waits until no other thread asks the node for something.
    pub(crate) fn lock_asking(&self, limit: TimeLimit) -> Result<MutexGuard<'_, Asking>, OpenError> {
        self.check_process()?;
        let mut asking = self.asking.try_lock_until(limit.deadline).ok_or_else(|| limit.timed_out())?;
        self.queue_frees(&mut asking);
        Ok(asking)
    }

    /// As [`Self::lock_asking`], but returns `None` if another thread asks.
    pub(crate) fn try_lock_asking(&self) -> Option<MutexGuard<'_, Asking>> {
        self.check_process().ok()?;
        let mut asking = self.asking.try_lock()?;
        self.queue_frees(&mut asking);
        Some(asking)
    }

    fn queue_frees(&self, asking: &mut Asking) {
        for address in self.to_free.lock().drain(..) {
            asking.requests.free(address);
        }
    }

    /// Notes memory of the node that is freed when the node can be asked next.
    pub(crate) fn free_later(&self, address: u64) {
        self.to_free.lock().push(address);
        self.settle_late_answers();
    }

    /// Has the node begin what these channels hold.
    pub(crate) fn ring(&self, slots: u64) {
        let asleep = self.page.ring(slots);
        if self.progress.is_some() {
            if !self.gathers() {
                self.go_on();
            }
        } else if asleep {
            // If the socket is full, the messages in it wake the node.
            let _ = self.socket.send(&[&encode(&Message::WakeV1)], &[]);
        }
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
        let (now, next) = (coarse_now_ms(), self.next_check_ms.load(Ordering::Relaxed));
        let after = now + NODE_CHECK_INTERVAL.as_millis() as u64;
        // One of all threads checks.
        let checks = now >= next
            && self.next_check_ms.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        checks && self.is_node_gone()
    }

    /// Makes a node in this process go on, if there is one. Returns how much there was to do.
    pub(crate) fn go_on(&self) -> usize {
        self.progress.as_ref().map_or(0, |progress| progress.0(RungChannels::Start))
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
        if gone && !self.node_gone.load(Ordering::Relaxed) && self.process.is_now() {
            // Before anybody is told: a program may use its memory for something else then.
            self.end_accesses();
            self.node_gone.store(true, Ordering::Relaxed);
        }
        gone
    }

    /// Reads late answers that are there, and gives back what they grant.
    pub(crate) fn settle_late_answers(&self) {
        if let Some(mut asking) = self.try_lock_asking()
            && asking.requests.owes()
        {
            // The thread that waits notices that the node is gone.
            let _ = asking.catch_up(&self.socket, &|| self.readiness.set());
        }
    }
}
