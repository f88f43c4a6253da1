//! What a front end sees of far memory: slots that are taken, written once, read and released, and reached directly
//! where a link has windows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use tombolo_core::store::{Counters, SlotId, Store, Traffic};
use tombolo_host::event_queue::EventQueue;

use crate::fabric::connection::Connection;

/// A read that has ended.
#[derive(Debug)]
pub struct Arrived {
    /// As given to [`FarMemory::read`].
    pub ticket: u64,
    /// Where the page's contents are, until [`FarMemory::done`]; `None`: no lender has it any more.
    pub address: Option<u64>,
    /// As given to [`FarMemory::read`].
    pub since: Option<Instant>,
    /// The buffer that the contents are in.
    pub(crate) buffer: Option<u32>,
}

/// How far a write has come.
#[derive(Debug)]
pub enum Written {
    /// The write has ended, and all slots are stored but these, which failed.
    All(Vec<SlotId>),
    /// The write has not ended but is likely to soon: call [`FarMemory::write_on`] again.
    Soon,
    /// The write has not ended: call [`FarMemory::wait_written`] with this timeout.
    Later(Duration),
}

/// What far memory tells its front end.
#[derive(Debug)]
pub enum FarEvent {
    /// A read has ended.
    Arrived(Arrived),
    /// One of several links to a lender is gone, so [`FarMemory::links`] may have changed.
    PathLost {
        /// Where the link led.
        address: String,
        /// What happened.
        reason: String,
    },
    /// A lender is gone: the store says which slots are lost with it, if any.
    LenderLost {
        /// Where it listened.
        lender: String,
        /// What happened.
        reason: String,
    },
    /// A lender was added, so there may be a new link to poll.
    LenderAdded {
        /// Where it listens.
        lender: String,
    },
    /// Nothing is left at a lender that was to be drained.
    LenderDrained {
        /// Where it listens.
        lender: String,
    },
    /// [`FarMemory::links`] has changed.
    LinksChanged,
    /// Something that the user should know.
    Notice(String),
}

/// Local memory from which slots are written.
#[derive(Clone, Copy, Debug)]
pub struct Staging {
    /// First address.
    pub address: u64,
    /// How many pages fit.
    pub pages: u32,
}

/// A link to a lender without windows.
#[derive(Clone, Debug)]
pub struct FarLink {
    /// The link.
    pub peer: Arc<Connection>,
    /// Whether its lender is alive. The descriptor of a lost link stays readable: take it out of the poll set.
    pub is_alive: bool,
}

/// The status of far memory.
#[derive(Clone, Debug, Default)]
pub struct FarStatus {
    /// Slots in use.
    pub used_pages: u64,
    /// Slots that could be used if all memory that may be borrowed were borrowed.
    pub most_pages: u64,
    /// Pages borrowed now.
    pub borrowed_pages: u64,
    /// Most pages that were borrowed at once.
    pub borrowed_peak_pages: u64,
    /// Copies of each slot.
    pub copies: u8,
    /// Slots with fewer copies than `copies`.
    pub degraded_pages: u64,
    /// Copies that are to be made: of slots with too few, and of pages at lenders that are drained.
    pub copies_waiting: u64,
    /// Counters of what has happened.
    pub counters: Counters,
    /// How many lenders have come, where each life of a lender counts.
    pub lives: u64,
    /// The lenders that are in use, and those that are gone. All lives that are gone at one address are one entry.
    pub lenders: Vec<FarLender>,
}

/// The status of a lender. All lives of one address that are gone for good share one.
#[derive(Clone, Debug)]
pub struct FarLender {
    /// Its name, as it says.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// `active`, `suspect`, `draining`, `dead` or `gone`.
    pub state: &'static str,
    /// Pages borrowed from it.
    pub borrowed_pages: u64,
    /// How many of the borrowed pages are in use.
    pub used_pages: u64,
    /// What has come from it and gone to it.
    pub traffic: Traffic,
}

impl FarLender {
    /// The status of lenders that are gone from this address, with no traffic yet.
    pub(crate) fn new(address: String) -> Self {
        let (name, traffic) = (String::new(), Traffic::default());
        Self { name, address, state: "gone", borrowed_pages: 0, used_pages: 0, traffic }
    }
}

/// Far memory of one front end.
///
/// All methods may be called from several threads at once, and take no lock of the front end's. Four of them are called while attending
/// ([`FarMemory::events`]): the calling thread takes events afterwards, and must not hold locks that it needs for that.
pub trait FarMemory: Send + Sync {
    /// Events for the front end. A thread calls [`FarMemory::flush`], [`FarMemory::progress`], [`FarMemory::write`] and
    /// [`FarMemory::write_on`] while attending to this queue, and takes its events afterwards. The queue's descriptor is readable for
    /// events that came while no thread attended.
    fn events(&self) -> &EventQueue<FarEvent>;

    /// Frees the buffer of a page that has arrived, because its contents are not needed any more.
    fn done(&self, arrived: Arrived);

    /// Locks the slots. Hold the lock for microseconds only. [`FarMemory::flush`] carries out the actions that follow,
    /// or else a thread of the store does within a tenth of a second.
    fn slots(&self) -> MutexGuard<'_, Store>;

    /// Borrows some memory, because it will be needed soon.
    fn prepare(&self);

    /// Whether every lender has windows, so that nothing is sent to move pages.
    fn is_windowed(&self) -> bool;

    /// Maps what lies around an address of a window, which is about to be written. Cheap when that has been done.
    fn warm(&self, address: u64);

    /// The memory into which pages to be written without a window are put first. Only one writer at a time may use it.
    fn staging(&self) -> Staging;

    /// Begins to save slots, each with its page of the staging memory. One write at a time: [`FarMemory::write_on`]
    /// says when it has ended.
    fn write(&self, slots: &[(SlotId, u32)]);

    /// Goes on with the write, and says how far it has come.
    fn write_on(&self) -> Written;

    /// Sleeps until the write may have gone on, for `timeout` at most.
    fn wait_written(&self, timeout: Duration);

    /// Starts reading a slot that has no window. The read ends with [`FarEvent::Arrived`], which has the ticket and
    /// `since`: the time from which a thread has been waiting, if one has. The caller holds the slot until then.
    fn read(&self, slot: SlotId, ticket: u64, since: Option<Instant>);

    /// Sends what waits to be sent.
    fn flush(&self);

    /// Moves transfers along: receives, retransmits, queues events.
    fn progress(&self);

    /// Waits until the loss of a lender that is just being handled is in the queue of events.
    fn finish_losses(&self) {}

    /// Number of reads that were started and have not ended with [`FarMemory::done`].
    fn in_flight(&self) -> u64;

    /// Links whose readiness means that [`FarMemory::progress`] has work.
    fn links(&self) -> Vec<FarLink>;

    /// How long the caller may sleep on the links at most. `None`: for ever. Zero: not at all, but call
    /// [`FarMemory::progress`] instead.
    fn sleep_time(&self) -> Option<Duration>;

    /// The status of far memory.
    fn status(&self) -> FarStatus;
}
