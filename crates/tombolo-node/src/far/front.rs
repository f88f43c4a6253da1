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
    /// As given.
    pub since: Option<Instant>,
    /// The buffer that they are in.
    pub(crate) buffer: Option<u32>,
}

/// How far a write is.
#[derive(Debug)]
pub enum Written {
    /// All is safe, but for these slots.
    All(Vec<SlotId>),
    /// Not yet; soon.
    Soon,
    /// Not yet: [`FarMemory::wait_written`], for so long at most.
    Later(Duration),
}

/// What far memory tells its front end.
#[derive(Debug)]
pub enum FarEvent {
    /// A read has ended.
    Arrived(Arrived),
    /// One of several links to a lender is gone: [`FarMemory::links`] may say otherwise now.
    PathLost {
        /// Where it led.
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
    /// There is a new link to poll.
    LenderAdded {
        /// Where it listens.
        lender: String,
    },
    /// Nothing is left at a lender that was to be drained.
    LenderDrained {
        /// Where it listens.
        lender: String,
    },
    /// [`FarMemory::links`] says otherwise now.
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
    /// Its lender is alive. The descriptor of a lost one stays readable: take it out of the poll set.
    pub is_alive: bool,
}

/// How far memory is.
#[derive(Clone, Debug, Default)]
pub struct FarStatus {
    /// Slots in use.
    pub used_pages: u64,
    /// Slots that could be used if all that may be borrowed were.
    pub most_pages: u64,
    /// Pages borrowed now, and the most that were at once.
    pub borrowed_pages: u64,
    /// See there.
    pub borrowed_peak_pages: u64,
    /// Copies of each slot.
    pub copies: u8,
    /// Slots with fewer copies than that.
    pub degraded_pages: u64,
    /// Copies that are to be made: of slots with too few, and of pages at lenders that are drained.
    pub copies_waiting: u64,
    /// What has happened.
    pub counters: Counters,
    /// How many lenders have come, each life of one counted.
    pub lives: u64,
    /// Each lender that is in use, and those that are gone, of which the lives at one address are one.
    pub lenders: Vec<FarLender>,
}

/// How a lender is. Lives of one address that are gone for good are one of these.
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
    /// Pages of those in use.
    pub used_pages: u64,
    /// What has come from it and gone to it.
    pub traffic: Traffic,
}

impl FarLender {
    /// One that is gone.
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

    /// The contents of what has arrived are not needed any more.
    fn done(&self, arrived: Arrived);

    /// The slots. To be held for microseconds; [`FarMemory::flush`] carries out what follows, or else a thread does
    /// within a tenth of a second.
    fn slots(&self) -> MutexGuard<'_, Store>;

    /// Memory will be needed soon: some is borrowed.
    fn prepare(&self);

    /// Whether every lender has windows: then nothing is sent to move pages.
    fn is_windowed(&self) -> bool;

    /// A window is about to be written at this address: a good moment to map what lies around it. Cheap when that has
    /// been done.
    fn warm(&self, address: u64);

    /// Where pages to be written without a window are put first; one writer at a time.
    fn staging(&self) -> Staging;

    /// Begins to save slots: each with its page of the staging memory. One write at a time: [`FarMemory::write_on`] says when it is
    /// over.
    fn write(&self, slots: &[(SlotId, u32)]);

    /// Goes on with a write.
    fn write_on(&self) -> Written;

    /// Sleeps until a write may have gone on, or for that long.
    fn wait_written(&self, timeout: Duration);

    /// Starts reading a slot that has no window. It ends with an event, with the ticket, and since when
    /// somebody has been waiting. The caller holds the slot until then.
    fn read(&self, slot: SlotId, ticket: u64, since: Option<Instant>);

    /// Sends what waits to be sent.
    fn flush(&self);

    /// Moves transfers along: receives, retransmits, reports events.
    fn progress(&self);

    /// Waits until the loss of a lender that is just being noticed is an event.
    fn finish_losses(&self) {}

    /// Reads that were started and have not arrived.
    fn in_flight(&self) -> u64;

    /// Links whose readiness means that [`FarMemory::progress`] has work.
    fn links(&self) -> Vec<FarLink>;

    /// About to sleep on the links: for how long at most, or `None` for ever. Zero: call [`FarMemory::progress`]
    /// instead.
    fn sleep_time(&self) -> Option<Duration>;

    /// How it is.
    fn status(&self) -> FarStatus;
}
