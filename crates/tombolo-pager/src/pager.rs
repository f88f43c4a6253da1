//! The pager's shared state, and what its threads have in common.
//!
//! Locks, in the order they may be taken: a space's table, then slots, then
//! replacement. No lock is held across a userfaultfd ioctl that can wait, nor
//! while waiting for the agent or a lender.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, RwLock};
use tombolo_host::sparse::Pages;
use tombolo_host::uffd::PAGE_BYTES;
use tombolo_node::FarMemory;

use crate::handler::PollSet;
use crate::home::Home;
use crate::page::{Entry, State};
use crate::prefetch::{TOUCH_MAX, WriteHabit};
use crate::protocol::STAGING_PAGES;
use crate::replacement::{PageName, Replacement};
use crate::slots::Slots;
use crate::space::Space;
use crate::stats::{Counters, Stats};

/// A thread waits for a page.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Its space.
    pub space: u32,
    /// The page.
    pub page: u32,
    /// The access was a write.
    pub write: bool,
    /// The page was present, but write-protected.
    pub protected: bool,
    /// The thread.
    pub thread: u32,
    /// When the fault was read.
    pub since: Instant,
}

/// Bounds of the room that is kept free, in pages.
const HEADROOM_LEAST: u64 = 64;
const HEADROOM_MOST: u64 = 1024;

/// What the user is told while the program runs.
pub type Notify = Box<dyn Fn(&str) + Send + Sync>;

/// Everything the handlers, the evictor and the attach thread share.
pub struct Pager {
    /// Most pages resident at once, over all spaces, besides the staging area.
    pub limit_pages: u64,
    /// Room that the evictor keeps free ahead of need.
    headroom_pages: AtomicU64,
    /// Where evicted pages go.
    pub far: Arc<dyn FarMemory>,
    /// Which far pages are in use.
    pub slots: Mutex<Slots>,
    /// Which page goes next.
    pub replacement: Mutex<Replacement>,
    /// The address spaces. An index is never used twice: what is under way for a
    /// space that has ended must not reach another.
    pub spaces: RwLock<HashMap<u32, Arc<Space>>>,
    next_space: AtomicU32,
    /// Pages resident or about to be.
    pub resident: AtomicU64,
    /// Pages that may exceed the limit, because nothing could be evicted for them.
    pub overdraft: AtomicU64,
    /// Faults that wait for room.
    pub waiting: Mutex<VecDeque<Fault>>,
    /// Faults read by someone who was busy with another one.
    pub deferred: Mutex<VecDeque<Fault>>,
    /// Zero pages to copy from.
    pub zeroes: Pages,
    /// The evictor sleeps here.
    pub evictor: Doorbell,
    /// Counters.
    pub stats: Stats,
    /// Tells the user.
    pub notify: Notify,
    /// The run is over.
    pub stopping: AtomicBool,
    /// Where faults happen.
    pub home: Home,
    /// Handlers that do not rest.
    pub awake: AtomicUsize,
    /// Whether pages that are fetched for reading tend to be written.
    pub habit: WriteHabit,
    /// What the handlers poll, one set each.
    pub polls: Vec<PollSet>,
    /// What was said once is not said again.
    said: Mutex<Vec<&'static str>>,
}

/// A flag to sleep on.
#[derive(Debug, Default)]
pub struct Doorbell {
    rung: AtomicBool,
    sleeping: Mutex<bool>,
    signal: Condvar,
}

impl Doorbell {
    /// Wakes the sleeper, or keeps it from falling asleep. Costs a load where it is rung already.
    pub fn ring(&self) {
        if !self.rung.load(Ordering::Relaxed) && !self.rung.swap(true, Ordering::SeqCst) {
            let sleeping = self.sleeping.lock();
            if *sleeping {
                self.signal.notify_one();
            }
        }
    }

    /// Sleeps until rung, at most this long.
    pub fn wait(&self, timeout: std::time::Duration) {
        let mut sleeping = self.sleeping.lock();
        if !self.rung.swap(false, Ordering::SeqCst) {
            *sleeping = true;
            let _ = self.signal.wait_for(&mut sleeping, timeout);
            *sleeping = false;
            self.rung.store(false, Ordering::SeqCst);
        }
    }
}

impl std::fmt::Debug for Pager {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pager").field("limit_pages", &self.limit_pages).finish_non_exhaustive()
    }
}

impl Pager {
    /// A pager with no spaces yet.
    pub fn new(
        limit_bytes: u64,
        handlers: usize,
        processors: &[usize],
        far: Arc<dyn FarMemory>,
        notify: Notify,
    ) -> std::io::Result<Self> {
        // What waits in the staging area is local memory, too.
        let limit_pages = (limit_bytes / PAGE_BYTES as u64).saturating_sub(STAGING_PAGES as u64);
        let mut polls = Vec::with_capacity(handlers);
        for _ in 0..handlers {
            let poll = PollSet::new()?;
            poll.set_far(&*far);
            polls.push(poll);
        }
        let zeroes = Pages::new(TOUCH_MAX as usize * PAGE_BYTES)?;
        zeroes.prefault();
        Ok(Self {
            limit_pages,
            headroom_pages: AtomicU64::new(HEADROOM_LEAST),
            slots: Mutex::new(Slots::new(far.pages() as usize)),
            replacement: Mutex::new(Replacement::new(limit_pages as usize)),
            spaces: RwLock::new(HashMap::with_capacity(64)),
            next_space: AtomicU32::new(0),
            resident: AtomicU64::new(0),
            overdraft: AtomicU64::new(0),
            waiting: Mutex::new(VecDeque::with_capacity(1024)),
            deferred: Mutex::new(VecDeque::with_capacity(1024)),
            zeroes,
            evictor: Doorbell::default(),
            stats: Stats::default(),
            far,
            notify,
            stopping: AtomicBool::new(false),
            home: Home::new(processors),
            awake: AtomicUsize::new(handlers),
            habit: WriteHabit::default(),
            polls,
            said: Mutex::new(Vec::new()),
        })
    }

    /// The space of this index.
    pub fn space(&self, index: u32) -> Option<Arc<Space>> {
        self.spaces.read().get(&index).cloned()
    }

    /// All spaces.
    pub fn all_spaces(&self) -> Vec<Arc<Space>> {
        self.spaces.read().values().cloned().collect()
    }

    /// Adds a space made by `make` from its index.
    pub fn add_space(&self, make: impl FnOnce(u32) -> std::io::Result<Space>) -> std::io::Result<Arc<Space>> {
        let index = self.next_space.fetch_add(1, Ordering::Relaxed);
        let space = Arc::new(make(index)?);
        self.spaces.write().insert(index, space.clone());
        for poll in &self.polls {
            poll.add_space(&space)?;
        }
        Counters::add(&self.stats.counters.spaces, 1);
        Ok(space)
    }

    /// The address space has ended: everything it held is free.
    pub fn close_space(&self, space: &Space) {
        {
            let mut table = space.table.lock();
            if std::mem::replace(&mut table.closed, true) {
                return;
            }
            let mut slots = self.slots.lock();
            for page in 0..table.high_water {
                if let Some(slot) = table.get(page).slot() {
                    slots.release(slot);
                }
            }
            let resident = space.resident.swap(0, Ordering::Relaxed);
            self.resident.fetch_sub(resident, Ordering::Relaxed);
        }
        for poll in &self.polls {
            poll.remove_space(space);
        }
        self.spaces.write().remove(&space.index);
        self.evictor.ring();
    }

    /// Claims room for up to `want` pages of a space; returns how many were granted.
    pub fn reserve(&self, space: &Space, want: u64) -> u64 {
        let granted = self.resident.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |resident| {
            let free = self.limit_pages.saturating_sub(resident);
            (free > 0).then(|| resident + want.min(free))
        });
        let mut granted = granted.map_or(0, |before| want.min(self.limit_pages.saturating_sub(before)));
        if granted == 0 && self.take_overdraft() {
            self.resident.fetch_add(1, Ordering::Relaxed);
            granted = 1;
        }
        self.count_reserved(space, granted);
        granted
    }

    fn take_overdraft(&self) -> bool {
        self.overdraft
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |pages| pages.checked_sub(1))
            .is_ok()
    }

    fn count_reserved(&self, space: &Space, pages: u64) {
        space.resident.fetch_add(pages, Ordering::Relaxed);
        let resident = self.resident.load(Ordering::Relaxed);
        self.stats.counters.resident_peak.fetch_max(resident, Ordering::Relaxed);
        if resident + self.headroom_pages() / 2 >= self.limit_pages {
            self.evictor.ring();
        }
    }

    /// Room that is kept free ahead of need.
    pub fn headroom_pages(&self) -> u64 {
        self.headroom_pages.load(Ordering::Relaxed)
    }

    /// A fault had to wait for room: keep more of it free.
    pub fn widen_headroom(&self) {
        let most = (self.limit_pages / 32).clamp(HEADROOM_LEAST, HEADROOM_MOST);
        let wider = (self.headroom_pages() * 2).min(most);
        self.headroom_pages.store(wider, Ordering::Relaxed);
    }

    /// No fault had to wait for a while: what is kept free is not used by the program.
    pub fn narrow_headroom(&self) {
        let narrower = (self.headroom_pages() * 7 / 8).max(HEADROOM_LEAST);
        self.headroom_pages.store(narrower, Ordering::Relaxed);
    }

    /// Gives claimed room back.
    pub fn unreserve(&self, space: &Space, pages: u64) {
        if pages > 0 {
            space.resident.fetch_sub(pages, Ordering::Relaxed);
            self.resident.fetch_sub(pages, Ordering::Relaxed);
        }
    }

    /// Puts the name of a page that became resident into the queues, once.
    #[must_use]
    pub fn queue(&self, space: &Space, page: u32, entry: Entry, evicted_at: Option<u64>) -> Entry {
        if entry.is_queued() {
            return entry;
        }
        let lives = self.replacement.lock().insert(PageName { space: space.index, page }, evicted_at);
        entry.with_queued(true).with_lives(lives)
    }

    /// Contents of a range are not wanted any more. False: an eviction of some of
    /// its pages is under way, ask again when it has ended.
    pub fn discard(&self, space: &Space, first: u32, count: u32) -> bool {
        loop {
            let mut table = space.table.lock();
            let end = first.saturating_add(count).min(table.high_water);
            let (mut installing, mut evicting) = (false, false);
            let mut freed = 0;
            let mut slots = self.slots.lock();
            for page in first..end {
                let entry = table.get(page);
                match entry.state() {
                    State::Untouched => continue,
                    // What is under way must not arrive after the page has another use.
                    State::Installing | State::Fetching => {
                        installing = true;
                        continue;
                    }
                    State::EvictCopy | State::EvictDrop => {
                        evicting = true;
                        table.set(page, entry.with_discarded(true));
                        continue;
                    }
                    State::Resident => freed += 1,
                    State::Remote | State::Lost => {}
                }
                if let Some(slot) = entry.slot() {
                    slots.release(slot);
                }
                Counters::add(&self.stats.counters.discarded_pages, 1);
                table.set(page, Entry(0).with_queued(entry.is_queued()));
            }
            drop(slots);
            drop(table);
            self.unreserve(space, freed);
            if !installing {
                return !evicting;
            }
            // It ends soon, or when its lender is given up; this thread may be the one to see to it.
            self.far.progress();
            std::thread::yield_now();
        }
    }

    /// One of several links to a lender is gone. The others carry its pages.
    pub fn path_gone(&self, address: &str, why: &str) {
        for poll in &self.polls {
            poll.set_far(&*self.far);
        }
        (self.notify)(&format!("the link to {address} is gone ({why}); others to that lender are left"));
    }

    /// A lender is gone. Its pages are withdrawn, and every process that had
    /// some there gets SIGBUS now: its memory is not whole any more.
    pub fn lender_gone(&self, who: &str, why: &str) {
        for poll in &self.polls {
            poll.set_far(&*self.far);
        }
        let mut hurt = Vec::new();
        for space in self.all_spaces() {
            let mut lost = 0;
            let table = space.table.lock();
            for page in 0..table.high_water {
                let entry = table.get(page);
                let only_there = matches!(entry.state(), State::Remote | State::Fetching | State::EvictDrop);
                lost += u64::from(only_there && entry.slot().is_some_and(|slot| self.far.is_lost(slot)));
            }
            if lost > 0 {
                hurt.push((space.pid.load(Ordering::Relaxed), lost));
            }
        }
        {
            let mut slots = self.slots.lock();
            for slot in (0..self.far.pages()).filter(|&slot| self.far.is_lost(slot)) {
                slots.withdraw(slot);
            }
        }
        let total: u64 = hurt.iter().map(|(_, lost)| lost).sum();
        Counters::add(&self.stats.counters.lost_pages, total);
        if hurt.is_empty() {
            (self.notify)(&format!("lender {who} is gone ({why}); nothing was stored there"));
            return;
        }
        for (pid, lost) in hurt {
            (self.notify)(&format!(
                "lender {who} is gone ({why}), and with it {} KiB of process {pid}: sending it SIGBUS",
                lost * PAGE_BYTES as u64 / 1024
            ));
            if let Ok(process) = tombolo_host::process::pidfd(pid) {
                let _ = tombolo_host::process::signal(&process, 7);
            }
        }
    }

    /// Tells the user something, once a run.
    pub fn say_once(&self, key: &'static str, text: &str) {
        let mut said = self.said.lock();
        if !said.contains(&key) {
            said.push(key);
            (self.notify)(text);
        }
    }
}
