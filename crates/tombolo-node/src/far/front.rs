//! What a front end sees of far memory: numbered pages that can be written,
//! read and, where a link gives windows, reached directly.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// A directly reachable run of far pages.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Where the asked-for page lies in this process.
    pub address: u64,
    /// Pages that follow each other there, the first included.
    pub pages: u32,
}

/// What far memory tells its front end.
#[derive(Clone, Debug)]
pub enum FarEvent {
    /// A read has ended.
    Arrived {
        /// As given to [`FarMemory::read`].
        ticket: u64,
        /// Where the page's contents are, during the call; `None`: the lender is gone.
        address: Option<u64>,
        /// As given.
        since: Option<Instant>,
    },
    /// One of several links to a lender is gone: [`FarMemory::descriptors`] may say otherwise now.
    PathLost {
        /// Where it led.
        address: String,
        /// What happened.
        reason: String,
    },
    /// A lender is gone: [`FarMemory::is_lost`] now says so of its pages.
    LenderLost {
        /// Where it listened.
        lender: String,
        /// What happened.
        reason: String,
    },
}

/// Gets the events, on whichever thread notices them.
pub type FarSink = Box<dyn Fn(FarEvent) + Send + Sync>;

/// Why pages could not be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lender of these pages is gone")]
pub struct LenderGone;

/// Local memory from which pages are written where there is no window.
#[derive(Clone, Copy, Debug)]
pub struct Staging {
    /// First address.
    pub address: u64,
    /// How many pages fit.
    pub pages: u32,
}

/// Pages borrowed from other nodes, numbered from 0.
///
/// All methods may be called from several threads at once. Contents of a page
/// that was never written are unspecified.
pub trait FarMemory: Send + Sync {
    /// Says where events go; before anything is read.
    fn start(&self, sink: FarSink);

    /// How many pages there are.
    fn pages(&self) -> u32;

    /// Direct access to a page, where the link has it. The kernel copies to and
    /// from it; nothing here dereferences it.
    fn window(&self, page: u32) -> Option<Window>;

    /// This page's window is about to be written: a good moment to map what lies around it. Cheap
    /// when that has been done.
    fn warm(&self, page: u32);

    /// Whether the lender of this page is gone.
    fn is_lost(&self, page: u32) -> bool;

    /// Where pages to be written without a window are put first; one writer at a time.
    fn staging(&self) -> Staging;

    /// Saves pages: each `(far page, page of the staging memory)`. Returns when all are safe.
    fn write(&self, pages: &[(u32, u32)]) -> Result<(), LenderGone>;

    /// Starts reading a page that has no window. The answer comes as an event,
    /// with the ticket, and since when somebody has been waiting.
    fn read(&self, page: u32, ticket: u64, since: Option<Instant>);

    /// Sends what waits to be sent.
    fn flush(&self);

    /// Moves transfers along: receives, retransmits, reports events.
    fn progress(&self);

    /// Reads that were started and have not arrived.
    fn in_flight(&self) -> u64;

    /// Descriptors whose readiness means that [`FarMemory::progress`] has work, and
    /// whether their lender is alive. One of a lost lender stays ready: take it
    /// out of the poll set.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, bool)>;

    /// About to sleep on the descriptors: for how long at most, or `None` for
    /// ever. Zero: call [`FarMemory::progress`] instead.
    fn sleep_time(&self) -> Option<Duration>;
}
