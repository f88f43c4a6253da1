//! What the pager needs of far memory: numbered pages that can be written,
//! read and, where a link gives windows, reached directly.

use std::os::fd::BorrowedFd;

/// A directly reachable run of far pages.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Where the asked-for page lies in this process.
    pub address: u64,
    /// Pages that follow each other there, the first included.
    pub pages: u32,
}

/// A finished read.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// As given to [`FarMemory::read`].
    pub ticket: u64,
    /// Where the page's contents are, during the call; `None`: the lender is gone.
    pub address: Option<u64>,
}

/// Why pages could not be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lender of these pages is gone")]
pub struct LenderGone;

/// Pages borrowed from other nodes, numbered from 0.
///
/// All methods may be called from several threads at once. Contents of a page
/// that was never written are unspecified.
pub trait FarMemory: Send + Sync {
    /// How many pages there are.
    fn pages(&self) -> u32;

    /// Direct access to a page, where the link has it. The kernel copies to and
    /// from it; nothing here dereferences it.
    fn window(&self, page: u32) -> Option<Window>;

    /// Whether the lender of this page is gone.
    fn is_lost(&self, page: u32) -> bool;

    /// Saves pages: each `(far page, address of its 4096 bytes)`. Returns when
    /// all are safe. Reads that finish meanwhile go to `arrived`.
    fn write(&self, pages: &[(u32, u64)], arrived: &mut dyn FnMut(Arrival)) -> Result<(), LenderGone>;

    /// Starts reading a page that has no window. The answer comes out of
    /// [`FarMemory::progress`] or [`FarMemory::write`], on whichever thread calls it.
    fn read(&self, page: u32, ticket: u64);

    /// Sends what waits to be sent.
    fn flush(&self);

    /// Moves transfers along; hands finished reads to `arrived`.
    fn progress(&self, arrived: &mut dyn FnMut(Arrival));

    /// Reads that were started and have not arrived.
    fn in_flight(&self) -> u64;

    /// Descriptors whose readiness means that [`FarMemory::progress`] has work.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// About to sleep on the descriptors. False: call [`FarMemory::progress`] instead.
    fn arm(&self) -> bool;
}
