//! The far store over real lenders: carries out what [`tombolo_core::store`] decides.
//!
//! ```text
//!   front end ──► FarMemory (pages) ──► core::store::Store ──► actions ──► carry ──► transfers of the engine
//!                                            ▲                              └─────► copies to and from windows
//!                     lender: borrows, gives back, is suspect, dies ────────────────► questions to lenders
//!   core::store::Roster ──► actions ──► service: dials lenders, asks them, closes links, drains those that end
//! ```
//!
//! The store's lock is held for single decisions only. Actions are carried out by whichever thread polls: those of the
//! front end that call `flush`, `progress` and `write`, and a thread of the store's own (`service`).

mod carry;
mod lender;
mod pages;
mod service;

use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tombolo_core::rdma::PeerId;
use tombolo_core::store::{Config, LenderId, SlotId, Store};
use tombolo_host::event_queue::EventQueue;
use tombolo_host::timing::node as timing;
use tombolo_link::{Address, Link, LossReason, Security};

use crate::driver::node::{Node, NodeEvent, NodeEvents, Owner};
use crate::fabric::connection::Connection;
use crate::far::asking::BorrowError;
use crate::far::front::{FarEvent, FarLender};
use crate::lending::ledger::LendError;

use lender::{Lender, Window};
pub use service::LenderError;
use service::Members;

const PAGE_BYTES: u64 = 4096;
/// Pages that can be read at once without a window.
const READ_PAGES: u32 = 512;
/// Pages that can be written at once without a window.
const STAGING_PAGES: u32 = 256;
/// How much of a window is mapped at once.
const WARM_BYTES: usize = 1 << 20;

/// Bytes of buffers that the node of a far store needs.
pub const FAR_BUFFER_BYTES: usize = (READ_PAGES + STAGING_PAGES) as usize * PAGE_BYTES as usize;

/// What becomes of a dead lender's memory that is mapped here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeadWindows {
    /// It is read until all of it has been copied to other lenders.
    #[default]
    Read,
    /// It is given up at once, for a machine that needs the memory.
    GiveUp,
}

/// What to borrow, and where.
#[derive(Debug, Clone, Copy)]
pub struct FarOptions<'a> {
    /// The name by which this node introduces itself.
    pub name: &'a str,
    /// The nodes to borrow from, each with one address or several. All addresses of a node are used at once.
    pub lenders: &'a [Vec<Address>],
    /// How links to lenders at UDP addresses are protected.
    pub security: &'a Security,
    /// Most bytes of data; `None`: as much as the lenders have.
    pub most_bytes: Option<u64>,
    /// Number of lenders that have a copy of each page: 1 or 2.
    pub copies: u8,
    /// How long a lender over UDP may be silent before it is lost. What is asked of it waits meanwhile.
    pub outage: Duration,
    /// What becomes of the windows of dead lenders.
    pub dead_windows: DeadWindows,
}

/// Slots that are being written for the front end.
#[derive(Debug, Default)]
struct Writing {
    open: HashSet<SlotId>,
    failed: Vec<SlotId>,
    /// How many slots were open when a write last went on, and until when the writer polls.
    before: usize,
    polled_until: Option<Instant>,
}

/// Memory of other nodes, as slots.
pub struct FarStore {
    node: Arc<Node>,
    owner: Owner,
    node_events: NodeEvents,
    /// Held while events of the node are handled, so that they are handled in their order.
    in_order: Mutex<()>,
    store: Mutex<Store>,
    /// The lenders, in the order of their numbers in the store, without those that are gone for good.
    lenders: RwLock<Arc<Vec<Arc<Lender>>>>,
    /// The windows of all lenders, by the first address of each.
    windows: RwLock<BTreeMap<u64, Arc<Window>>>,
    copies: u8,
    most_pages: Option<u64>,
    dead_windows: DeadWindows,
    /// The origin of the store's times.
    epoch: Instant,
    writing: Mutex<Writing>,
    /// Whether the writer sleeps, and is to be woken by `written` when all is written.
    writer_sleeps: AtomicBool,
    written: OwnedFd,
    in_flight: AtomicU64,
    borrowed_peak_pages: AtomicU64,
    /// Number of calls of `progress`: some of its work is done only in every `TIMER_CHECK_ROUNDS`th call.
    rounds: AtomicU32,
    /// Events for the front end.
    events: EventQueue<FarEvent>,
    stop: AtomicBool,
    /// Whether all lenders of the beginning have been added.
    is_ready: AtomicBool,
    /// Becomes readable when the service thread is to look at the store.
    work: OwnedFd,
    service: Mutex<Option<JoinHandle<()>>>,
    /// How links to lenders are protected. Unset in a store that does not dial its lenders.
    security: OnceLock<Security>,
    members: Mutex<Members>,
    said: Mutex<HashSet<(Said, Address)>>,
    /// Whether the user was told that no lender has room for copies that are wanted.
    is_full_told: AtomicBool,
    /// Lenders that are gone for good, by address: one entry for all lives at an address, with their traffic.
    gone: Mutex<BTreeMap<String, FarLender>>,
}

/// Kinds of notices that are given once for each lender, whatever their text. So a lender whose answers always differ
/// cannot fill memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Said {
    /// It refuses to lend.
    Refused,
    /// It could not be asked.
    NotAsked,
    /// What it has lent cannot be used.
    NotUsable,
    /// It has lent a segment that it had lent before.
    Twice,
    /// All lenders are on its machine.
    OneHost,
}

impl std::fmt::Debug for FarStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("FarStore").field("lenders", &self.lenders).finish_non_exhaustive()
    }
}

fn no_thread(error: std::io::Error) -> LendError {
    LendError::System(format!("cannot start a thread: {error}"))
}

impl FarStore {
    /// A store at these lenders. Nothing is borrowed yet.
    pub fn new(options: &FarOptions<'_>) -> Result<Arc<Self>, BorrowError> {
        let node = Node::new(options.name, 0, FAR_BUFFER_BYTES)?;
        node.set_outage(options.outage);
        let store = Self::at(Arc::new(node), options.copies, options.most_bytes, options.dead_windows)?;
        let _ = store.security.set(options.security.clone());
        for ways in options.lenders {
            let lender = store.dial(ways)?;
            store.came(ways, lender);
        }
        store.require_memory()?;
        store.forget_lenders_said();
        store.is_ready.store(true, Ordering::Relaxed);
        store.warn_of_few_lenders();
        Ok(store)
    }

    /// A store over links that are up, for a node that may lend as well. A node can have 16 owners of transfers in its
    /// life. Each call of this takes one of them, also if it fails.
    pub fn over(
        node: Arc<Node>,
        addresses: &[Address],
        links: Vec<Arc<dyn Link>>,
        most_bytes: Option<u64>,
    ) -> Result<Arc<Self>, BorrowError> {
        let peers = links.into_iter().map(|link| node.add_peer(link)).collect();
        Self::from_peers(node, addresses, peers, most_bytes)
    }

    /// A store at peers that the node has joined already, one for each address. If a peer has several paths, another
    /// thread must serve the node.
    pub fn from_peers(
        node: Arc<Node>,
        addresses: &[Address],
        peers: Vec<Arc<Connection>>,
        most_bytes: Option<u64>,
    ) -> Result<Arc<Self>, BorrowError> {
        let store = Self::at(node, 1, most_bytes, DeadWindows::Read)?;
        for (peer, address) in peers.into_iter().zip(addresses) {
            let ways = vec![address.clone()];
            let lender = store.add(peer, ways.clone(), None)?;
            store.came(&ways, lender);
        }
        store.require_memory()?;
        store.forget_lenders_said();
        Ok(store)
    }

    /// Drops the events of lenders that are there from the beginning: they are no news.
    fn forget_lenders_said(&self) {
        self.events.retain(|event| !matches!(event, FarEvent::LenderAdded { .. }));
    }

    fn at(
        node: Arc<Node>,
        copies: u8,
        most_bytes: Option<u64>,
        dead_windows: DeadWindows,
    ) -> Result<Arc<Self>, BorrowError> {
        let most_pages = most_bytes.map(|bytes| bytes / PAGE_BYTES);
        let slots_max = most_pages.map_or(u32::MAX, |pages| u32::try_from(pages).unwrap_or(u32::MAX));
        // Windows that may be given up at any moment are written only by the kernel, which returns an error if they are
        // gone.
        let has_direct_writes = dead_windows == DeadWindows::Read;
        let config =
            Config { copies, slots_max, buffers: READ_PAGES, has_direct_writes, ..Config::default() };
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let eventfd = || rustix::event::eventfd(0, flags).map_err(|errno| no_thread(errno.into()));
        let (work, written) = (eventfd()?, eventfd()?);
        let (owner, node_events) = node.add_owner().map_err(|error| LendError::System(error.to_string()))?;
        let events = EventQueue::new().map_err(|errno| no_thread(errno.into()))?;
        let store = Arc::new(Self {
            node,
            owner,
            node_events,
            in_order: Mutex::new(()),
            store: Mutex::new(Store::new(config)),
            lenders: RwLock::default(),
            windows: RwLock::default(),
            copies,
            most_pages,
            dead_windows,
            epoch: Instant::now(),
            writing: Mutex::default(),
            writer_sleeps: AtomicBool::new(false),
            written,
            in_flight: AtomicU64::new(0),
            borrowed_peak_pages: AtomicU64::new(0),
            rounds: AtomicU32::new(0),
            events,
            stop: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            work,
            service: Mutex::new(None),
            security: OnceLock::new(),
            members: Mutex::default(),
            said: Mutex::default(),
            is_full_told: AtomicBool::new(false),
            gone: Mutex::default(),
        });
        let weak = Arc::downgrade(&store);
        let service = std::thread::Builder::new()
            .name("far".into())
            .spawn(move || while weak.upgrade().is_some_and(|store| store.look_after()) {});
        *store.service.lock() = Some(service.map_err(no_thread)?);
        Ok(store)
    }

    /// Fails if no lender has memory to lend.
    fn require_memory(&self) -> Result<(), BorrowError> {
        let lenders = self.lenders();
        let free: u64 = lenders.iter().map(|lender| lender.lendable_pages.load(Ordering::Relaxed)).sum();
        if free == 0 { Err(BorrowError::Nothing) } else { Ok(()) }
    }

    /// Ends the service thread, and releases all segments that are borrowed.
    pub fn release(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ring();
        if let Some(service) = self.service.lock().take()
            && service.thread().id() != std::thread::current().id()
        {
            let _ = service.join();
        }
        let lenders = self.lenders();
        for lender in lenders.iter() {
            lender.end(&self.node, timing::RELEASE_TIMEOUT);
        }
    }

    /// The borrowing node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// All lenders so far, as a snapshot: the caller may call functions that add a lender.
    fn lenders(&self) -> Arc<Vec<Arc<Lender>>> {
        self.lenders.read().clone()
    }

    /// Wakes the service thread.
    fn ring(&self) {
        let _ = rustix::io::write(&self.work, &1u64.to_ne_bytes());
    }

    fn notify(&self, event: FarEvent) {
        self.events.push(event);
    }

    /// Tells the user something of a lender, once.
    fn say_once(&self, what: Said, lender: &Lender, text: String) {
        let is_new = self.said.lock().insert((what, lender.address().clone()));
        if is_new {
            self.notify(FarEvent::Notice(text));
        }
    }

    /// The lender with this number. `None`: it is gone for good, or there never was one.
    fn lender(&self, id: LenderId) -> Option<Arc<Lender>> {
        let lenders = self.lenders();
        lenders.binary_search_by_key(&id, |lender| lender.id).ok().map(|index| lenders[index].clone())
    }

    /// Removes a lender from the list and from the node if it is lost and none of its memory is used any more. Its
    /// traffic is added to that of its earlier lives. So a lender that is started again and again does not fill memory.
    fn forget_if_gone(&self, lender: &Lender) {
        let status = self.store.lock().lender(lender.id);
        let Some(status) = status.filter(|status| status.is_drained && lender.is_lost()) else { return };
        {
            let mut lenders = self.lenders.write();
            let Ok(index) = lenders.binary_search_by_key(&lender.id, |known| known.id) else { return };
            let mut left = (**lenders).clone();
            left.remove(index);
            *lenders = Arc::new(left);
            let address = lender.address().to_string();
            let mut gone = self.gone.lock();
            let known = gone.entry(address.clone()).or_insert_with(|| FarLender::new(address));
            known.name = lender.name();
            known.traffic.pages_read += status.traffic.pages_read;
            known.traffic.pages_written += status.traffic.pages_written;
        }
        // The lock is released at the end of this statement.
        let windows = std::mem::take(&mut *lender.windows.lock());
        for window in windows.into_values() {
            self.windows.write().remove(&window.base());
        }
        self.node.forget(&lender.peer);
    }

    /// Drives the node, and handles the events that come of it.
    fn drive(&self, work: impl FnOnce(&Node)) {
        self.node_events.attend(|| work(&self.node), |_| self.take_node_events());
    }

    fn take_node_events(&self) {
        if self.node_events.is_empty() {
            return;
        }
        {
            let _in_order = self.in_order.lock();
            while let Some(event) = self.node_events.take() {
                match event {
                    NodeEvent::Completed { user, result } => {
                        for (io, ended) in self.of_transfer(user, result) {
                            self.store.lock().completed(self.now_ns(), io, ended);
                        }
                    }
                    NodeEvent::Lost { peer, reason } => self.peer_lost(peer, reason),
                }
            }
        }
        self.carry_out();
        // Send what was posted: it may be long until another thread drives the node.
        self.node.pump();
    }

    /// Handles the loss of a peer that is a lender.
    fn peer_lost(&self, peer: PeerId, reason: LossReason) {
        let found = self.lenders().iter().find(|lender| lender.peer.id == peer).cloned();
        let Some(lender) = found.filter(|lender| !lender.is_lost.swap(true, Ordering::SeqCst)) else {
            return;
        };
        let is_readable = lender.is_windowed && self.dead_windows == DeadWindows::Read;
        let now_ns = self.now_ns();
        let before = {
            let mut store = self.store.lock();
            let before = store.lender(lender.id);
            store.set_dead(now_ns, lender.id, is_readable);
            before
        };
        self.members.lock().roster.lost(lender.id);
        if lender.is_windowed && self.dead_windows == DeadWindows::GiveUp {
            for window in lender.windows.lock().values() {
                if let Err(error) = window.memory.make_inaccessible() {
                    self.notify(FarEvent::Notice(format!(
                        "memory of lender {} could not be given up: {error}",
                        lender.address()
                    )));
                }
            }
        }
        self.carry_out();
        // The loss of a drained lender is no news.
        if before.is_none_or(|before| before.borrowed_pages > 0 || !before.is_drained) {
            self.notify(FarEvent::LenderLost {
                lender: lender.address().to_string(),
                reason: reason.to_string(),
            });
            self.warn_of_few_lenders();
        } else {
            self.notify(FarEvent::LinksChanged);
        }
        lender.end_threads();
        self.forget_if_gone(&lender);
    }
}
