//! The pager's shared state, and helpers that its threads use.
//!
//! Locks, in the order in which they may be taken: a space's table, its child's table, slots, frames, replacement. The
//! tasks of [`crate::sharing`] may be locked while a table is locked; inside them, only the list of frames that have become
//! alone is locked. The accounts of [`crate::room`] are locked inside all of these, and the pages on the way inside the
//! accounts.
//!
//! A space's table is locked while its events are read and its pages are mapped (at most 64 at once, some 90 us), and while
//! a handler waits for the gate. This takes microseconds. It takes milliseconds where the agent has lost its processor,
//! where pages that a fork shares are verified, and where such pages are protected (10 ms for 2 GiB). No lock is held while
//! a thread waits for an agent's answer or for a lender.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex, RwLock};
use tombolo_core::pager::{
    Left, Outcome, PAGE_BYTES, Page, PageName, Replacement, State, Table as States, WriteHabit,
};
use tombolo_host::process;
use tombolo_host::sparse::Pages;
use tombolo_host::uffd::{UffdError, Userfaultfd};
use tombolo_node::FarMemory;

use crate::batch::Remainder;
use crate::events::{Deferred, Fault};
use crate::handler::{FEW_HANDLERS, PollSet};
use crate::home::Home;
use crate::keeper::Keeper;
use crate::locked::Locked;
use crate::room::Room;
use crate::serve::PIECE;
use crate::sharing::{Departure, Sharing};
use crate::space::{Program, Space, Table};
use crate::stats::{Counters, Stats};
use crate::unserved::Unserved;
use tombolo_pager_protocol::AREA_PAGES;

/// Bounds, in pages, of the room that is kept free. It starts at a 64th of the limit and may grow to a 32nd, within these
/// bounds.
const HEADROOM_LEAST: u64 = 64;
const HEADROOM_MOST: u64 = 1024;

/// Least room that is kept free, in pages. The larger it is, the more pages leave each time the evictor is woken (a wake-up
/// on another processor takes 20-50 us).
fn least_headroom(limit_pages: u64) -> u64 {
    (limit_pages / 64).clamp(HEADROOM_LEAST, HEADROOM_MOST / 2)
}

/// Number of file descriptors kept in reserve.
const SPARE: usize = 16;

/// Gives the user a message while the program runs.
pub type Notify = Box<dyn Fn(&str) + Send + Sync>;

/// Everything the handlers, the evictor and the attach thread share.
pub struct Pager {
    /// How many pages are resident, and how many may be, not counting one staging area.
    pub room: Room,
    /// Pages that forks share.
    pub(crate) sharing: Sharing,
    /// Room that the evictor keeps free ahead of need.
    headroom_pages: AtomicU64,
    /// Where evicted pages go.
    pub far: Arc<dyn FarMemory>,
    /// Whether [`FarMemory::prepare`] was called: far memory knows that it will be needed.
    far_prepared: AtomicBool,
    /// Batches since the pager last checked how full far memory is.
    unwarned_batches: AtomicU32,
    /// Size of far memory, in pages, when the user was last warned that three quarters of it are in use. 0: no warning yet.
    full_told_pages: AtomicU64,
    /// Chooses the pages that leave next.
    pub replacement: Mutex<Replacement>,
    /// The address spaces by index. An index is never used twice: an operation that is under way for a space that has ended
    /// must not reach another space.
    pub spaces: RwLock<HashMap<u32, Arc<Space>>>,
    next_space: AtomicU32,
    /// Most pages of local memory at any time that are not served, in all processes with agents: mapped by raw system
    /// calls, in small mappings, or made local. A page that a fork shares counts once for each process.
    pub foreign_peak_pages: AtomicU64,
    /// Most pages of shared memory that one process had.
    pub shared_peak_pages: AtomicU64,
    /// Most pages of locked memory that one process had.
    pub locked_peak_pages: AtomicU64,
    /// Pages that were found lost when a program touched them, counted since the last message that a lender is gone.
    pub(crate) lost_untold: AtomicU64,
    /// Programs whose memory is not served.
    pub(crate) unserved_programs: Unserved,
    /// Faults that wait for room.
    pub waiting: Mutex<VecDeque<Fault>>,
    /// Faults and arrived pages that could not be served because their address space was changing.
    pub deferred: Mutex<VecDeque<Deferred>>,
    /// Zero pages to copy from.
    pub zeroes: Pages,
    /// The doorbell that wakes the evictor.
    pub evictor: Doorbell,
    /// Thread number of the evictor. It reads pages of programs, so it can have faults of its own, on pages that have
    /// become absent.
    pub evictor_thread: AtomicU32,
    /// Counters.
    pub stats: Stats,
    /// Gives the user a message.
    pub notify: Notify,
    /// Set when the run is over.
    pub stopping: AtomicBool,
    /// Tracks on which processor faults happen.
    pub home: Home,
    /// Number of handlers that do not rest.
    pub awake: AtomicUsize,
    /// Whether pages that are fetched for reading tend to be written.
    pub habit: WriteHabit,
    /// The poll sets, one for each handler.
    pub polls: Vec<PollSet>,
    /// Held while the links in the poll sets change.
    pub polling: Mutex<()>,
    /// The userfaultfds of forked children that cannot be served: their page faults wait.
    pub unserved: Mutex<Vec<Userfaultfd>>,
    /// Descriptors that are closed when no other is left: a fork whose descriptor cannot be received would hang.
    spare: Mutex<Vec<std::fs::File>>,
    /// Holds every userfaultfd, and ends the programs if this process is lost.
    pub keeper: Keeper,
    /// Keys of the messages that are given once a run and were given.
    said: Mutex<Vec<&'static str>>,
}

/// Result of mapping a page again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyBack {
    /// The page is mapped, or the program no longer has it.
    Mapped,
    /// The page cannot be mapped now: the address space is changing, or the kernel has no memory.
    Later,
    /// The kernel refuses to map the page.
    Failed,
}

/// A flag that a thread can sleep on until another thread sets it.
#[derive(Debug, Default)]
pub struct Doorbell {
    rung: AtomicBool,
    sleeping: Mutex<bool>,
    signal: Condvar,
}

impl Doorbell {
    /// Wakes the sleeper, or keeps it from falling asleep. If the doorbell is rung already, this costs only a load.
    pub fn ring(&self) {
        if !self.rung.load(Ordering::Relaxed) && !self.rung.swap(true, Ordering::SeqCst) {
            let sleeping = self.sleeping.lock();
            if *sleeping {
                self.signal.notify_one();
            }
        }
    }

    /// Sleeps until the doorbell is rung, for at most `timeout`.
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
        formatter.debug_struct("Pager").field("room", &self.room).finish_non_exhaustive()
    }
}

impl Pager {
    /// A pager with no spaces yet.
    pub fn new(
        limit_bytes: u64,
        handlers: usize,
        processors: &[usize],
        far: Arc<dyn FarMemory>,
        keeper: Keeper,
        notify: Notify,
    ) -> std::io::Result<Self> {
        // Pages in staging areas are local memory, too. One area is taken off the limit here; pages beyond one area are
        // counted.
        let limit_pages = (limit_bytes / PAGE_BYTES).saturating_sub(AREA_PAGES as u64);
        let mut polls = Vec::with_capacity(handlers);
        for _ in 0..handlers {
            let poll = PollSet::new(&*far, handlers > FEW_HANDLERS)?;
            poll.set_far(&*far);
            polls.push(poll);
        }
        let zeroes = Pages::new(PIECE as usize * PAGE_BYTES as usize)?;
        zeroes.prefault();
        let room = Room::new(limit_pages);
        Ok(Self {
            sharing: Sharing::new(&room),
            room,
            headroom_pages: AtomicU64::new(least_headroom(limit_pages)),
            far_prepared: AtomicBool::new(false),
            unwarned_batches: AtomicU32::new(0),
            full_told_pages: AtomicU64::new(0),
            replacement: Mutex::new(Replacement::new(limit_pages as usize)),
            spaces: RwLock::new(HashMap::with_capacity(64)),
            next_space: AtomicU32::new(0),
            foreign_peak_pages: AtomicU64::new(0),
            shared_peak_pages: AtomicU64::new(0),
            locked_peak_pages: AtomicU64::new(0),
            lost_untold: AtomicU64::new(0),
            unserved_programs: Unserved::default(),
            waiting: Mutex::new(VecDeque::with_capacity(1024)),
            deferred: Mutex::new(VecDeque::with_capacity(1024)),
            zeroes,
            evictor: Doorbell::default(),
            evictor_thread: AtomicU32::new(0),
            stats: Stats::default(),
            far,
            notify,
            stopping: AtomicBool::new(false),
            home: Home::new(processors, handlers),
            awake: AtomicUsize::new(handlers),
            habit: WriteHabit::default(),
            polls,
            polling: Mutex::new(()),
            unserved: Mutex::new(Vec::new()),
            spare: Mutex::new((0..SPARE).map_while(|_| std::fs::File::open("/dev/null").ok()).collect()),
            keeper,
            said: Mutex::new(Vec::new()),
        })
    }

    /// Returns the space with this index.
    pub fn space(&self, index: u32) -> Option<Arc<Space>> {
        self.spaces.read().get(&index).cloned()
    }

    /// All spaces.
    pub fn all_spaces(&self) -> Vec<Arc<Space>> {
        self.spaces.read().values().cloned().collect()
    }

    /// Adds a space. `make` creates it from its index.
    pub fn add_space(&self, make: impl FnOnce(u32) -> std::io::Result<Space>) -> std::io::Result<Arc<Space>> {
        let more = |index: u32| (index < PageName::SPACES_MAX).then_some(index + 1);
        let index =
            self.next_space.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|_| {
                std::io::Error::other("this run has had 268 million processes, which is all it can name")
            })?;
        let space = Arc::new(make(index)?);
        if !self.keeper.add(&space) {
            self.say_once(
                "keeper",
                "no descriptor is left for the keeper of a process: should this supervisor be killed, that process may go on with \
                 zeroes (raise `ulimit -n`)",
            );
        }
        self.spaces.write().insert(index, space.clone());
        Counters::add(&self.stats.counters.spaces, 1);
        Ok(space)
    }

    /// Adds the space to the poll sets: from now on the handlers serve its faults.
    pub fn poll_space(&self, space: &Space) -> std::io::Result<()> {
        self.polls.iter().try_for_each(|poll| poll.add_space(space))
    }

    /// Begins to close a space whose program has ended or has executed another one. Its agent is dismissed as soon as no
    /// eviction is under way there and no forked child waits for one. Everything the space held is freed when no process
    /// has its memory any more: another process may still share it (`vfork`, `CLONE_VM`), and would read zeroes.
    pub fn close_space(&self, space: &Arc<Space>) {
        space.ending.store(true, Ordering::Release);
        self.close_if_ended(space);
    }

    /// Continues to close a space if its program has ended and no eviction is under way.
    pub fn close_if_ended(&self, space: &Arc<Space>) {
        if !space.ending.load(Ordering::Acquire) {
            return;
        }
        {
            let table = space.lock();
            if table.closed || !table.under_way.is_nothing() || table.states.is_followed() {
                return;
            }
            // Under the lock, so that no eviction begins with this agent. The space's pages count against the limit until
            // they are free, which they are when the agent has ended.
            if let Some(agent) = space.retire() {
                space.dismiss(&agent);
            }
        }
        if !space.has_retired_agent() {
            self.close_if_unused(space);
        }
    }

    /// Closes all spaces except `own` whose address space has ended although no event has told of it yet. The frames that
    /// they held have fewer holders then. The caller has `own`'s table locked. Returns whether any space was closed.
    pub(crate) fn close_others_unused(&self, own: &Space) -> bool {
        let others =
            self.all_spaces().into_iter().filter(|space| space.index != own.index && space.is_unused());
        // Without waiting for the lock: a thread that has the other table locked may wait for `own`'s.
        others.filter(|space| space.try_lock().is_some_and(|table| self.close(space, table))).count() > 0
    }

    /// Closes a space if no process has its memory any more. Returns whether it was closed.
    pub fn close_if_unused(&self, space: &Arc<Space>) -> bool {
        space.is_unused() && self.close(space, space.lock())
    }

    fn close(&self, space: &Arc<Space>, mut table: Locked<'_>) -> bool {
        if table.closed || !table.under_way.is_nothing() || table.states.is_followed() {
            return false;
        }
        table.closed = true;
        let names = self.free_states(&mut table);
        self.replacement.lock().ended(space.index, names);
        self.room.give_back(&space.account, space.account.pages());
        space.clear_all_staged(&self.room);
        // A thread may still have this space in a list and not check whether it is closed. It finds no slot and no frame to
        // release again.
        table.states = States::default();
        self.sharing.recount(&mut table);
        drop(table);
        for poll in &self.polls {
            poll.remove_space(space);
        }
        self.spaces.write().remove(&space.index);
        self.keeper.remove(space);
        self.evictor.ring();
        true
    }

    /// Releases the slots and frames of all pages of a space that has ended. Returns how many of its pages are named in a
    /// queue.
    pub(crate) fn free_states(&self, table: &mut Table) -> usize {
        /// Pages freed before other threads may lock the slots.
        const AT_ONCE: usize = 4096;
        let mut names = 0;
        for part in table.states.all().chunks(AT_ONCE) {
            let mut left = Vec::new();
            let mut slots = self.far.slots();
            for (_, entry) in part {
                if let Some(slot) = entry.slot() {
                    slots.release(slot);
                }
                left.extend(entry.frame().map(|frame| Left { frame, was_queued: entry.is_queued() }));
                names += usize::from(entry.is_queued());
            }
            drop(slots);
            self.frames_left(&left, Departure::Ended);
        }
        names
    }

    /// Address of a page of the staging memory.
    pub(crate) fn staging_place(&self, place: u32) -> u64 {
        self.far.staging().address + u64::from(place) * PAGE_BYTES
    }

    /// Kills a program that cannot continue correctly, and tells the user why.
    pub fn end_program(&self, program: &Program, why: impl FnOnce() -> String) {
        let _ = process::signal(&program.pidfd, libc::SIGKILL);
        (self.notify)(&format!("ending process {}: {}", program.pid, why()));
    }

    /// Ends evictions of a space with these outcomes: sets the states of their pages, wakes the threads that waited, and
    /// passes the outcome to forked children that follow them. Returns the names of the pages that stay because they are
    /// shared. Those are in no queue until they are given to
    /// [`Replacement::retry`](tombolo_core::pager::Replacement::retry).
    #[must_use]
    pub(crate) fn end_operations(
        &self,
        space: &Arc<Space>,
        endings: Vec<(Page, Outcome)>,
        remainder: Remainder,
    ) -> Vec<PageName> {
        let mut shared = Vec::new();
        let mut followers = Vec::new();
        let mut wake = Vec::new();
        let (mut freed, mut gained) = (0, 0);
        {
            let mut table = space.lock();
            let mut slots = self.far.slots();
            let mut replacement = self.replacement.lock();
            let age = replacement.age();
            let mut gone = 0;
            for (page, outcome) in endings {
                if table.closed {
                    if let Some(slot) = outcome.slot() {
                        slots.release(slot);
                    }
                    continue;
                }
                gone += u64::from(!outcome.stays());
                let finished = table.states.finish(page, outcome, age, &mut slots);
                for &page in &finished.wake {
                    self.stats.waited(&mut table, page);
                }
                wake.extend(finished.wake);
                followers.extend(finished.followers);
                freed += u64::from(finished.freed);
                gained += u64::from(finished.gained);
                if finished.unqueued {
                    let name = PageName::new(space.index, finished.page);
                    match outcome {
                        Outcome::Refused(_) => replacement.refused(name),
                        Outcome::Shared(_) => shared.push(name),
                        _ => replacement.reinsert(name),
                    }
                    let entry = table.states.get(finished.page);
                    table.states.set(finished.page, entry.with_queued(true));
                }
            }
            replacement.advance(gone);
            let Table { states, waits, .. } = &mut *table;
            let is_on_its_way = |page: Page| {
                matches!(states.get(page).state(), State::Fetching | State::EvictCopy | State::EvictDrop)
            };
            // Some waiting threads were woken in another way, since their mapping is gone.
            waits.retain(|(page, _)| is_on_its_way(*page));
            // Under the table's lock, so that no thread can close the space before this.
            let staged = remainder.area.filter(|_| remainder.staged > 0);
            let staged = staged.and_then(|area| space.staged_in(area, remainder.staged));
            self.room.evictions_ended(&space.account, (freed, gained), staged, remainder.copies);
        }
        for page in wake {
            let _ = space.uffd.wake(Space::address(page), PAGE_BYTES as usize);
        }
        for (follower, outcome) in followers {
            match self.space(follower.space) {
                Some(child) => {
                    let left =
                        self.end_operations(&child, vec![(follower.page, outcome)], Remainder::default());
                    debug_assert!(left.is_empty(), "a child's outcome is never Shared");
                    self.close_if_ended(&child);
                }
                None => {
                    if let Outcome::Saved(slot) = outcome {
                        self.far.slots().release(slot);
                    }
                }
            }
        }
        shared
    }

    /// Maps a page whose eviction could not be completed, in this space and in the forked children that wait for the end of
    /// the eviction. A space that has the page mapped already keeps it. `is_here`: the page is mapped in this space. May be
    /// called again after [`CopyBack::Later`].
    pub fn copy_back(&self, space: &Arc<Space>, began: Page, source: u64, is_here: bool) -> CopyBack {
        let mut left = vec![(space.clone(), began, is_here)];
        while let Some((space, began, is_here)) = left.pop() {
            // With `is_here`, the page is not mapped even if it is absent: the program has dropped it since.
            match if is_here { CopyBack::Mapped } else { self.copy_back_here(&space, began, source) } {
                CopyBack::Mapped => {}
                other => return other,
            }
            // Only after the page is mapped here. The kernel has reported every child that was forked before, since it maps
            // nothing until the fork's event is read. A child that is forked from now on inherits the page.
            let followers = space.lock().states.followers(began);
            left.extend(
                followers
                    .iter()
                    .filter_map(|follower| Some((self.space(follower.space)?, follower.page, false))),
            );
        }
        CopyBack::Mapped
    }

    fn copy_back_here(&self, space: &Arc<Space>, began: Page, source: u64) -> CopyBack {
        /// Number of changes of the address space that are read before other threads get their turn.
        const CHANGES: u32 = 16;
        let mut table = space.lock();
        for _ in 0..CHANGES {
            let (page, entry) = table.states.operation(began);
            if table.closed || entry.is_discarded() {
                return CopyBack::Mapped;
            }
            match space.map(&mut table, page, source, 1, false) {
                // Where there is no mapping, no thread can ask for the page.
                Ok(_) | Err(UffdError::Exists(_) | UffdError::NotMapped | UffdError::Gone) => {
                    return CopyBack::Mapped;
                }
                Err(UffdError::Again(_)) => {
                    if !self.read_change(space, &mut table) {
                        return CopyBack::Later;
                    }
                }
                Err(error) if error.is_out_of_memory() => return CopyBack::Later,
                Err(_) => return CopyBack::Failed,
            }
        }
        CopyBack::Later
    }

    /// Claims room for up to `want` pages of a space; returns how many were granted.
    pub fn reserve(&self, space: &Space, want: u64) -> u64 {
        let granted = self.room.reserve(&space.account, want);
        if self.room.free() < self.room.limit_pages().cast_signed() / 2
            && !self.far_prepared.load(Ordering::Relaxed)
            && !self.far_prepared.swap(true, Ordering::Relaxed)
        {
            self.far.prepare();
        }
        let watermark = (self.headroom_pages() / 2).max(self.sharing.watermark_pages());
        if self.room.free() <= watermark.cast_signed() {
            self.evictor.ring();
        }
        granted
    }

    /// Room that is kept free ahead of need, in pages.
    pub fn headroom_pages(&self) -> u64 {
        self.headroom_pages.load(Ordering::Relaxed)
    }

    /// How many pages have to leave, besides the `leaving` ones that are on their way out, until the headroom is free.
    pub fn short_of(&self, leaving: usize) -> usize {
        let free = self.room.free() + leaving as i64;
        usize::try_from(self.headroom_pages().cast_signed() - free).unwrap_or(0)
    }

    /// Keeps more room free: a fault had to wait for room.
    pub fn widen_headroom(&self) {
        let most =
            (self.room.limit_pages() / 32).clamp(least_headroom(self.room.limit_pages()), HEADROOM_MOST);
        let wider = (self.headroom_pages() * 2).min(most);
        self.headroom_pages.store(wider, Ordering::Relaxed);
    }

    /// Keeps less room free: no fault had to wait for a while, so the program does not need all of it.
    pub fn narrow_headroom(&self) {
        let narrower = (self.headroom_pages() * 7 / 8).max(least_headroom(self.room.limit_pages()));
        self.headroom_pages.store(narrower, Ordering::Relaxed);
    }

    /// Returns claimed room.
    pub fn unreserve(&self, space: &Space, pages: u64) {
        self.room.give_back(&space.account, pages);
    }

    /// Puts the name of a page that became resident into a queue, unless it is in one. `evicted_at`: when the page was
    /// evicted, on the clock of evictions.
    pub fn queue(&self, space: &Space, table: &mut Table, page: Page, evicted_at: Option<u64>) {
        let entry = table.states.get(page);
        if !entry.is_queued() {
            let lives = self.replacement.lock().insert(PageName::new(space.index, page), evicted_at);
            table.states.set(page, entry.with_queued(true).with_lives(lives));
        }
    }

    /// Closes one of the descriptors kept in reserve. Returns `false` if none is left.
    pub fn use_spare_descriptor(&self) -> bool {
        let used = self.spare.lock().pop().is_some();
        if used {
            self.say_once(
                "descriptors",
                "few file descriptors are left to serve processes (see `ulimit -n`)",
            );
        }
        used
    }

    /// Warns the user that far memory is getting full while something can still be done about it.
    pub fn warn_of_full_far_memory(&self) {
        // Batches between two checks: each takes some microseconds.
        const EVERY: u32 = 16;
        if !self.unwarned_batches.fetch_add(1, Ordering::Relaxed).is_multiple_of(EVERY) {
            return;
        }
        let status = self.far.status();
        // If no lender is left, the user is told of that elsewhere. The warning is repeated if far memory has grown since.
        let (most, told) = (status.most_pages, self.full_told_pages.load(Ordering::Relaxed));
        if most > told && status.used_pages * 4 >= most * 3 {
            self.full_told_pages.store(most, Ordering::Relaxed);
            (self.notify)(&format!(
                "three quarters of the {} MiB of far memory are in use: add a lender, or give a larger --remote",
                (most * PAGE_BYTES) >> 20
            ));
        }
    }

    /// Measures the programs' local memory that is not served, and tells the user when there is more of it than the limit.
    pub fn watch_foreign_memory(&self) {
        const LEAST_BYTES: u64 = 64 << 20;
        // Shared memory exists once, however many processes map it, so the largest amount of one process is reported.
        let (mut foreign, mut most_shared) = (0, 0);
        for space in self.all_spaces() {
            if let Some(agent) = space.agent()
                && let Some(memory) = process::local_memory(agent.program.pid)
            {
                let shared = space.lock().states.shared_pages();
                foreign +=
                    (memory.anonymous_bytes / PAGE_BYTES).saturating_sub(space.account.pages() + shared);
                most_shared = most_shared.max(memory.shared_bytes);
                self.locked_peak_pages.fetch_max(memory.locked_bytes / PAGE_BYTES, Ordering::Relaxed);
            }
        }
        self.shared_peak_pages.fetch_max(most_shared / PAGE_BYTES, Ordering::Relaxed);
        self.foreign_peak_pages.fetch_max(foreign, Ordering::Relaxed);
        if most_shared > LEAST_BYTES.max(self.room.limit_pages() * PAGE_BYTES) {
            self.say_once(
                "shared",
                &format!(
                    "a process has {} MiB of shared memory (as PostgreSQL's shared buffers are): it stays local, besides --local",
                    most_shared >> 20
                ),
            );
        }
        let bytes = foreign * PAGE_BYTES;
        if bytes > LEAST_BYTES.max(self.room.limit_pages() * PAGE_BYTES) {
            self.say_once(
                "foreign",
                &format!(
                    "the program has {} MiB of local memory besides --local: what it maps behind libc \
                     (as Go programs do), or in small pieces, cannot be served",
                    bytes >> 20
                ),
            );
        }
    }

    /// Gives the user a message once a run: later messages with the same key are dropped.
    pub fn say_once(&self, key: &'static str, text: &str) {
        self.say_once_with(key, || text.to_owned());
    }

    /// Like [`Self::say_once`], but makes the text only when it is needed.
    pub fn say_once_with(&self, key: &'static str, text: impl FnOnce() -> String) {
        let is_new = {
            let mut said = self.said.lock();
            let is_new = !said.contains(&key);
            if is_new {
                said.push(key);
            }
            is_new
        };
        if is_new {
            (self.notify)(&text());
        }
    }
}
