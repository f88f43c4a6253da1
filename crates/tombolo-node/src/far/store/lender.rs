//! One lender of a far store: its link, its windows, and the thread that asks it for memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use tombolo_core::store::{LenderId, Lent, Newcomer, Refused};
use tombolo_host::shared::SharedMemory;
use tombolo_host::timing::node as timing;
use tombolo_link::{Address, LossReason};

use super::{FarStore, PAGE_BYTES, Said, WARM_BYTES, no_thread};
use crate::driver::node::Node;
use crate::driver::path_maintainer::{PathLossSink, PathMaintainer};
use crate::fabric::connection::Connection;
use crate::fabric::joining::Paths;
use crate::fabric::messages::{Reply, Request};
use crate::fabric::silence::Silence;
use crate::far::asking::{BorrowError, ask, ask_head, refused};
use crate::far::front::FarEvent;

/// The round trip that is assumed of a lender over UDP before one was measured. A read is late after four round trips,
/// or after 50 ms if that is more.
const ROUND_TRIP_NS: u64 = 1_000_000;

/// A lent segment that is mapped here.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) memory: SharedMemory,
    /// Whether each piece of [`WARM_BYTES`] is mapped.
    warm: Vec<AtomicBool>,
}

impl Window {
    pub(super) fn base(&self) -> u64 {
        self.memory.as_mut_ptr() as u64
    }

    /// Maps the piece around an address, unless that has been done.
    pub(super) fn warm(&self, address: u64) {
        let piece = (address - self.base()) as usize / WARM_BYTES;
        if let Some(warm) = self.warm.get(piece)
            && !warm.load(Ordering::Relaxed)
            && !warm.swap(true, Ordering::Relaxed)
        {
            let at = piece * WARM_BYTES;
            self.memory.populate(at, WARM_BYTES.min(self.memory.len() - at));
        }
    }
}

/// A question to a lender.
pub(super) enum Job {
    Borrow {
        pages: u32,
    },
    GiveBack {
        segment: u64,
    },
    /// Ask the lender whether it is about to end.
    AskWhetherEnding,
}

/// One life of a lender of the store.
#[derive(Debug)]
pub(super) struct Lender {
    pub(super) id: LenderId,
    pub(super) ways: Vec<Address>,
    pub(super) peer: Arc<Connection>,
    pub(super) is_windowed: bool,
    pub(super) windows: Mutex<BTreeMap<u64, Arc<Window>>>,
    /// Segments that this node has borrowed from it and not released.
    segments: Mutex<Vec<u64>>,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    paths: Mutex<PathMaintainer>,
    /// Whether it is lost, with all its links.
    pub(super) is_lost: AtomicBool,
    pub(super) silence: Mutex<Silence>,
    /// In how many seconds it ends at the latest, by its last answer.
    pub(super) ends_within_s: AtomicU64,
    /// Whether the user was told that it is about to end, and that no other lender can take its pages.
    pub(super) is_end_told: AtomicBool,
    /// Pages that it lends or would lend to this node, as far as is known.
    pub(super) lendable_pages: AtomicU64,
    /// Whether its thread waits for the answer to a request for memory.
    pub(super) is_asked_for_memory: AtomicBool,
}

impl Lender {
    /// The address that names it.
    pub(super) fn address(&self) -> &Address {
        &self.ways[0]
    }

    pub(super) fn name(&self) -> String {
        self.peer.neighbour().name()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Gives its thread a job.
    pub(super) fn give(&self, job: Job) {
        if let Some(jobs) = &*self.jobs.lock() {
            let _ = jobs.send(job);
        }
    }

    /// Makes its threads end, without waiting for them: the caller may be one of them.
    pub(super) fn end_threads(&self) {
        *self.jobs.lock() = None;
        let paths = std::mem::take(&mut *self.paths.lock());
        // If no thread can be started, `paths` is dropped here, which waits for the path threads.
        let _ = std::thread::Builder::new().name("unpath".into()).spawn(move || drop(paths));
    }

    /// Ends this lender's threads here and, unless its link is lost, releases the segments that this node has borrowed
    /// from it.
    pub(super) fn end(&self, node: &Node, timeout: Duration) {
        *self.jobs.lock() = None;
        *self.paths.lock() = PathMaintainer::default();
        if self.is_lost() {
            return;
        }
        for segment in std::mem::take(&mut *self.segments.lock()) {
            if node.ask(&self.peer, Request::Release { segment: segment as u16 }, timeout).is_err() {
                // The lender frees its segments when it notices the end of the link.
                return;
            }
        }
    }
}

/// A number for the machine that an address is on: 0 for this machine, as for links by shared memory.
fn host_of(address: &Address) -> u64 {
    match address {
        Address::Shm(_) | Address::ShmOf { .. } => 0,
        Address::Udp(address) if address.ip().is_loopback() => 0,
        Address::Udp(address) => {
            let bytes = address.ip().to_string().into_bytes();
            // FNV-1a.
            bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            })
        }
    }
}

impl FarStore {
    /// Connects to a lender by all of its addresses, and adds it.
    pub(super) fn dial(self: &Arc<Self>, ways: &[Address]) -> Result<LenderId, BorrowError> {
        let (Some(first), Some(security)) = (ways.first(), self.security.get()) else {
            return Err(BorrowError::Nothing);
        };
        let link = tombolo_link::connect(first, security, timing::BORROW_TIMEOUT)?;
        let peer = self.node.add_peer(link);
        let joined = if ways.len() > 1 {
            self.node.join_again(&peer, ways, security, timing::BORROW_TIMEOUT).map(Some)
        } else {
            Ok(None)
        };
        let added =
            joined.map_err(BorrowError::from).and_then(|paths| self.add(peer.clone(), ways.to_vec(), paths));
        if added.is_err() {
            // The lender may be dialed again and again, so leave no link behind.
            peer.link.close(LossReason::ClosedByPeer);
            self.node.link_lost(&peer, LossReason::ClosedByPeer);
            self.node.forget(&peer);
        }
        added
    }

    /// Adds a lender whose link is up.
    pub(super) fn add(
        self: &Arc<Self>,
        peer: Arc<Connection>,
        ways: Vec<Address>,
        paths: Option<Paths>,
    ) -> Result<LenderId, BorrowError> {
        let address = ways.first().cloned().ok_or(BorrowError::Nothing)?;
        let node = &self.node;
        match ask(node, &peer, &address, node.fabric.introduction(), timing::BORROW_TIMEOUT)?.0 {
            Reply::Introduced { name, life } => node
                .fabric
                .introduced(&peer, &name, life)
                .map_err(|reason| BorrowError::Refused { lender: address.clone(), reason })?,
            other => return Err(refused(&address, other)),
        }
        let status = ask_head(node, &peer, &address)?;
        let free = status.lend_bytes.saturating_sub(status.lent_bytes) / PAGE_BYTES;
        let is_windowed = peer.link.supports_windows();
        let newcomer = Newcomer {
            host: host_of(&address),
            distance: u32::from(!is_windowed),
            round_trip_ns: if is_windowed { 0 } else { ROUND_TRIP_NS },
        };
        let paths = match (paths, self.security.get()) {
            (Some(paths), Some(security)) => {
                let weak = Arc::downgrade(self);
                let told: PathLossSink = Arc::new(move |address, reason| {
                    if let Some(store) = weak.upgrade() {
                        let (address, reason) = (address.to_string(), reason.to_string());
                        store.notify(FarEvent::PathLost { address, reason });
                    }
                });
                PathMaintainer::start(node, vec![paths], security, &told).map_err(no_thread)?
            }
            _ => PathMaintainer::default(),
        };
        let (sender, jobs) = mpsc::channel();
        let lender = {
            // Under both locks, so that both lists have the same order.
            let mut lenders = self.lenders.write();
            // `release` ends only lenders that are in the list when it has set `stop`.
            if self.stop.load(Ordering::SeqCst) {
                return Err(BorrowError::Nothing);
            }
            let life = peer.neighbour().life();
            let mut store = self.store.lock();
            let is_in_use = |known: &Lender| {
                !known.is_lost() && store.lender(known.id).is_some_and(|status| !status.is_drained)
            };
            if lenders.iter().any(|known| is_in_use(known) && known.peer.neighbour().life() == life) {
                let reason = "it is a lender already, by another address".into();
                return Err(BorrowError::Refused { lender: address, reason });
            }
            let id = store.add_lender(newcomer);
            let lender = Arc::new(Lender {
                id,
                ways,
                peer,
                is_windowed,
                windows: Mutex::default(),
                segments: Mutex::default(),
                jobs: Mutex::new(Some(sender)),
                paths: Mutex::new(paths),
                is_lost: AtomicBool::new(false),
                silence: Mutex::default(),
                ends_within_s: AtomicU64::new(0),
                is_end_told: AtomicBool::new(false),
                lendable_pages: AtomicU64::new(free),
                is_asked_for_memory: AtomicBool::new(false),
            });
            let mut more = (**lenders).clone();
            more.push(lender.clone());
            *lenders = Arc::new(more);
            lender
        };
        let weak = Arc::downgrade(self);
        let asked = lender.clone();
        let started = std::thread::Builder::new().name("borrow".into()).spawn(move || {
            for job in jobs {
                let Some(store) = weak.upgrade() else { return };
                store.ask_lender(&asked, job);
            }
        });
        started.map_err(no_thread)?;
        // The lender may have been lost before it was in the list.
        if let Some(reason) = lender.peer.loss() {
            self.peer_lost(lender.peer.id, reason);
        }
        self.notify(FarEvent::LenderAdded { lender: address.to_string() });
        self.warn_of_one_host();
        Ok(lender.id)
    }

    /// Warns if there are to be two copies but all lenders are on one machine, whose end takes both.
    fn warn_of_one_host(&self) {
        let lenders = self.lenders();
        let alive: Vec<_> = lenders.iter().filter(|lender| !lender.is_lost()).collect();
        let hosts: std::collections::BTreeSet<u64> =
            alive.iter().map(|lender| host_of(lender.address())).collect();
        if let [first, _, ..] = &alive[..]
            && self.copies > 1
            && hosts.len() < 2
        {
            let text = "all lenders are on one machine: its end takes both copies of every page";
            self.say_once(Said::OneHost, first, text.into());
        }
    }

    /// Carries out a job of a lender, on its thread.
    pub(super) fn ask_lender(&self, lender: &Arc<Lender>, job: Job) {
        match job {
            Job::Borrow { pages } => {
                lender.is_asked_for_memory.store(true, Ordering::Relaxed);
                let answer = self.borrow(lender, pages);
                lender.is_asked_for_memory.store(false, Ordering::Relaxed);
                if let Err(Refused::HasOnly(free_pages)) = answer {
                    let borrowed =
                        self.store.lock().lender(lender.id).map_or(0, |status| status.borrowed_pages);
                    lender.lendable_pages.store(borrowed + u64::from(free_pages), Ordering::Relaxed);
                }
                {
                    let mut store = self.store.lock();
                    store.lent(self.now_ns(), lender.id, answer);
                    self.borrowed_peak_pages.fetch_max(store.borrowed_pages(), Ordering::Relaxed);
                }
                self.carry_out_and_send();
            }
            Job::AskWhetherEnding => {
                let answer = self.node.ask(&lender.peer, Request::IsEnding, timing::BORROW_TIMEOUT);
                let within_s = match answer {
                    Ok((Reply::Ending { within_s }, _)) => within_s,
                    _ => None,
                };
                if let Some(seconds) = within_s {
                    lender.ends_within_s.store(seconds, Ordering::Relaxed);
                }
                let is_ending = within_s.is_some();
                self.members.lock().roster.said_whether_ending(self.now_ns(), lender.id, is_ending);
                if is_ending {
                    self.ring();
                }
            }
            Job::GiveBack { segment } => {
                self.unmap(lender, segment);
                if !lender.is_lost() {
                    let request = Request::Release { segment: segment as u16 };
                    let _ = self.node.ask(&lender.peer, request, timing::BORROW_TIMEOUT);
                }
            }
        }
    }

    /// Forgets a segment, and its window if it has one. Nothing reads or writes it any more.
    pub(super) fn unmap(&self, lender: &Lender, segment: u64) {
        let window = lender.windows.lock().remove(&segment);
        if let Some(window) = window {
            self.windows.write().remove(&window.base());
        }
        lender.segments.lock().retain(|known| *known != segment);
    }

    /// Asks a lender for a segment. The user is told of a refusal once.
    fn borrow(&self, lender: &Arc<Lender>, pages: u32) -> Result<Lent, Refused> {
        let bytes = u64::from(pages) * PAGE_BYTES;
        let none = Refused::Failed;
        if lender.is_lost() {
            return Err(none);
        }
        let address = lender.address();
        let answer = ask(&self.node, &lender.peer, address, Request::Lend { bytes }, timing::LEND_TIMEOUT);
        let (segment, descriptors) = match answer {
            Ok((Reply::Lent { segment }, descriptors)) => (segment, descriptors),
            Ok((Reply::TooMuch { free_bytes }, _)) => {
                return Err(Refused::HasOnly(u32::try_from(free_bytes / PAGE_BYTES).unwrap_or(0)));
            }
            Ok((other, _)) => {
                self.say_once(Said::Refused, lender, refused(address, other).to_string());
                return Err(none);
            }
            // The lender is lost, which is told elsewhere.
            Err(_) if lender.is_lost() || lender.peer.loss().is_some() => return Err(none),
            Err(error) => {
                self.say_once(Said::NotAsked, lender, error.to_string());
                return Err(none);
            }
        };
        if self.stop.load(Ordering::Relaxed) {
            // The store is being released, so no later call would release this segment.
            let _ = self.node.ask(&lender.peer, Request::Release { segment }, timing::RELEASE_TIMEOUT);
            return Err(none);
        }
        let segment = u64::from(segment);
        let direct = if lender.is_windowed {
            let opened = descriptors
                .into_iter()
                .next()
                .ok_or_else(|| "no descriptor came with it: has this process one left (`ulimit -n`)?".into())
                .and_then(|descriptor| {
                    SharedMemory::open(descriptor, bytes as usize).map_err(|error| error.to_string())
                });
            let memory = match opened {
                Ok(memory) => memory,
                Err(reason) => {
                    let wrong = BorrowError::WrongSegment { lender: address.clone(), reason };
                    self.say_once(Said::NotUsable, lender, wrong.to_string());
                    let request = Request::Release { segment: segment as u16 };
                    let _ = self.node.ask(&lender.peer, request, timing::BORROW_TIMEOUT);
                    return Err(none);
                }
            };
            // Forked children must not hold the memory: the lender frees it when this process has ended.
            memory.keep_from_children();
            let pieces = memory.len().div_ceil(WARM_BYTES);
            let warm = (0..pieces).map(|_| AtomicBool::new(false)).collect();
            let window = Arc::new(Window { memory, warm });
            let base = window.base();
            // A second window of a segment would replace one that is in use, and so unmap it with pages in it.
            let mut windows = lender.windows.lock();
            if windows.contains_key(&segment) {
                drop(windows);
                self.say_once(Said::Twice, lender, twice(address, segment));
                return Err(none);
            }
            self.windows.write().insert(base, window.clone());
            windows.insert(segment, window);
            drop(windows);
            if lender.is_lost() {
                // `peer_lost` has given up the windows before this one was in the list.
                self.unmap(lender, segment);
                return Err(none);
            }
            Some(base)
        } else {
            None
        };
        let mut segments = lender.segments.lock();
        if segments.contains(&segment) {
            drop(segments);
            self.say_once(Said::Twice, lender, twice(address, segment));
            return Err(none);
        }
        segments.push(segment);
        Ok(Lent { segment, pages, direct })
    }
}

/// Text for a lender that lends a segment that it has lent to this node already.
fn twice(lender: &Address, segment: u64) -> String {
    let reason = format!("it has lent segment {segment} already");
    BorrowError::WrongSegment { lender: lender.clone(), reason }.to_string()
}
