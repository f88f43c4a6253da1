//! The pager's shared state, and what its threads have in common.
//!
//! Locks, in the order they may be taken: a space's table, its child's, then slots,
//! then frames, then replacement. The tasks of [`crate::sharing`] may be locked with a table locked, and the frames left alone
//! inside them; accounts are locked inside all these, and what is on the way inside them ([`crate::room`]). A space's table is locked while its events are read and its pages
//! are mapped (at most 64 at once, some 90 us), and while a handler waits for the gate: microseconds, and milliseconds
//! where the agent has lost its processor, where pages that a fork shares are verified, and where they are protected (10 ms for
//! 2 GiB). No lock is held while waiting for an agent's
//! answer or for a lender.

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

/// Bounds of the room that is kept free, in pages: a 64th of the limit, within these, up to a 32nd.
const HEADROOM_LEAST: u64 = 64;
const HEADROOM_MOST: u64 = 1024;

/// Least room that is kept free. The more it is, the more pages leave each time that the evictor is woken
/// (20-50 us on another processor).
fn least_headroom(limit_pages: u64) -> u64 {
    (limit_pages / 64).clamp(HEADROOM_LEAST, HEADROOM_MOST / 2)
}

/// Descriptors kept in reserve.
const SPARE: usize = 16;

/// What the user is told while the program runs.
pub type Notify = Box<dyn Fn(&str) + Send + Sync>;

/// Everything the handlers, the evictor and the attach thread share.
pub struct Pager {
    /// How much is resident, and how much may be, besides one staging area.
    pub room: Room,
    /// Pages that forks share.
    pub(crate) sharing: Sharing,
    /// Room that the evictor keeps free ahead of need.
    headroom_pages: AtomicU64,
    /// Where evicted pages go.
    pub far: Arc<dyn FarMemory>,
    /// Far memory was told that it will be needed.
    far_prepared: AtomicBool,
    /// Batches since far memory was last looked at for how full it is.
    unwarned_batches: AtomicU32,
    /// Pages of far memory of which it was said that three quarters are in use; 0: it was not.
    full_told_pages: AtomicU64,
    /// Which page goes next.
    pub replacement: Mutex<Replacement>,
    /// The address spaces. An index is never used twice: what is under way for a
    /// space that has ended must not reach another.
    pub spaces: RwLock<HashMap<u32, Arc<Space>>>,
    next_space: AtomicU32,
    /// Most pages of local memory that processes with agents had besides what is served: mapped behind libc, in small pieces, or made
    /// local. Of what is not served, a page that a fork shares counts in each process.
    pub foreign_peak_pages: AtomicU64,
    /// Most pages of shared memory that one process had.
    pub shared_peak_pages: AtomicU64,
    /// Most pages of locked memory that one process had.
    pub locked_peak_pages: AtomicU64,
    /// Pages that were found lost when they were touched, since a lender was last said to be gone.
    pub(crate) lost_untold: AtomicU64,
    /// Programs whose memory is not served.
    pub(crate) unserved_programs: Unserved,
    /// Faults that wait for room.
    pub waiting: Mutex<VecDeque<Fault>>,
    /// What could not be served because the address space was changing.
    pub deferred: Mutex<VecDeque<Deferred>>,
    /// Zero pages to copy from.
    pub zeroes: Pages,
    /// The evictor sleeps here.
    pub evictor: Doorbell,
    /// The evictor's thread: it reads pages of programs, and one may be absent by then.
    pub evictor_thread: AtomicU32,
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
    /// Held while the links in them change.
    pub polling: Mutex<()>,
    /// Of children that cannot be served: a page fault there waits.
    pub unserved: Mutex<Vec<Userfaultfd>>,
    /// Descriptors to give up where no other is left: a fork that cannot be followed would hang.
    spare: Mutex<Vec<std::fs::File>>,
    /// Holds every userfaultfd, and ends the programs if this process is lost.
    pub keeper: Keeper,
    /// What was said once is not said again.
    said: Mutex<Vec<&'static str>>,
}

/// What came of mapping a page again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyBack {
    /// It is there, or nobody wants it.
    Mapped,
    /// The address space is changing.
    Later,
    /// The kernel refuses.
    Failed,
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
        // What lies in one staging area is local memory, too; what lies in others counts.
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

    /// From now on the handlers serve this space.
    pub fn poll_space(&self, space: &Space) -> std::io::Result<()> {
        self.polls.iter().try_for_each(|poll| poll.add_space(space))
    }

    /// The program of a space has ended, or executed another one. Its agent goes as soon as no eviction is under way
    /// there: a child may wait for what is being saved. Everything the space held is free when nobody has its memory
    /// any more: another process may (`vfork`, `CLONE_VM`), and would read zeroes.
    pub fn close_space(&self, space: &Arc<Space>) {
        space.ending.store(true, Ordering::Release);
        self.close_if_ended(space);
    }

    /// Goes on with closing a space, if its program has ended and no eviction is under way.
    pub fn close_if_ended(&self, space: &Arc<Space>) {
        if !space.ending.load(Ordering::Acquire) {
            return;
        }
        {
            let table = space.lock();
            if table.closed || !table.under_way.is_nothing() || table.states.is_followed() {
                return;
            }
            // Under the lock, so that no eviction begins with it. What the space has counts against the limit
            // until it is free, which takes the agent's end.
            if let Some(agent) = space.retire() {
                space.dismiss(&agent);
            }
        }
        if !space.has_retired_agent() {
            self.close_if_unused(space);
        }
    }

    /// Closes the other spaces whose address space has ended, where the event that tells of its end has not been read: the frames that they
    /// held have fewer holders then. The caller has `own`'s table locked. Returns whether there were any.
    pub(crate) fn close_others_unused(&self, own: &Space) -> bool {
        let others =
            self.all_spaces().into_iter().filter(|space| space.index != own.index && space.is_unused());
        // Without waiting: a thread that has the other table locked may wait for `own`'s.
        others.filter(|space| space.try_lock().is_some_and(|table| self.close(space, table))).count() > 0
    }

    /// Closes a space whose memory nobody has any more. Returns whether it did.
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
        // Whoever still has this space in a list, and does not ask whether it is closed, finds no slot and no frame to release again.
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

    /// Gives everything up that the pages of a space have, which has ended. Returns how many of them stand in a queue.
    pub(crate) fn free_states(&self, table: &mut Table) -> usize {
        /// Others need the slots meanwhile.
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

    /// Where a page of the staging memory is.
    pub(crate) fn staging_place(&self, place: u32) -> u64 {
        self.far.staging().address + u64::from(place) * PAGE_BYTES
    }

    /// A program that cannot go on rightly does not go on.
    pub fn end_program(&self, program: &Program, why: impl FnOnce() -> String) {
        let _ = process::signal(&program.pidfd, libc::SIGKILL);
        (self.notify)(&format!("ending process {}: {}", program.pid, why()));
    }

    /// Evictions of a space have ended like this: their pages' states say so, threads that waited try
    /// again, and children that share them learn it, too. Returns the names of the pages that stay because they are shared: they are in
    /// no queue, until they are given to [`Replacement::retry`](tombolo_core::pager::Replacement::retry).
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
            // Some were woken otherwise: their mapping is gone.
            waits.retain(|(page, _)| is_on_its_way(*page));
            // Before anybody can close the space.
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

    /// Maps a page whose eviction could not be completed, here and in the children that wait for its end; whoever
    /// has it mapped already keeps it. `is_here`: it is mapped here. May be called again.
    pub fn copy_back(&self, space: &Arc<Space>, began: Page, source: u64, is_here: bool) -> CopyBack {
        let mut left = vec![(space.clone(), began, is_here)];
        while let Some((space, began, is_here)) = left.pop() {
            // Not even if it is absent: the program has dropped it since.
            match if is_here { CopyBack::Mapped } else { self.copy_back_here(&space, began, source) } {
                CopyBack::Mapped => {}
                other => return other,
            }
            // Only now: a child that was forked before has been told of by the kernel, which maps nothing until
            // then, and one that is forked from now on inherits the page.
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
        /// Changes of the address space that are read before others get their turn.
        const CHANGES: u32 = 16;
        let mut table = space.lock();
        for _ in 0..CHANGES {
            let (page, entry) = table.states.operation(began);
            if table.closed || entry.is_discarded() {
                return CopyBack::Mapped;
            }
            match space.map(&mut table, page, source, 1, false) {
                // Where there is no mapping, nobody can ask for the page.
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

    /// Room that is kept free ahead of need.
    pub fn headroom_pages(&self) -> u64 {
        self.headroom_pages.load(Ordering::Relaxed)
    }

    /// How many pages are to leave, besides those that are on their way out, until as much room is free as is to be.
    pub fn short_of(&self, leaving: usize) -> usize {
        let free = self.room.free() + leaving as i64;
        usize::try_from(self.headroom_pages().cast_signed() - free).unwrap_or(0)
    }

    /// A fault had to wait for room: keep more of it free.
    pub fn widen_headroom(&self) {
        let most =
            (self.room.limit_pages() / 32).clamp(least_headroom(self.room.limit_pages()), HEADROOM_MOST);
        let wider = (self.headroom_pages() * 2).min(most);
        self.headroom_pages.store(wider, Ordering::Relaxed);
    }

    /// No fault had to wait for a while: what is kept free is not used by the program.
    pub fn narrow_headroom(&self) {
        let narrower = (self.headroom_pages() * 7 / 8).max(least_headroom(self.room.limit_pages()));
        self.headroom_pages.store(narrower, Ordering::Relaxed);
    }

    /// Gives claimed room back.
    pub fn unreserve(&self, space: &Space, pages: u64) {
        self.room.give_back(&space.account, pages);
    }

    /// Puts the name of a page that became resident into the queues, once.
    pub fn queue(&self, space: &Space, table: &mut Table, page: Page, evicted_at: Option<u64>) {
        let entry = table.states.get(page);
        if !entry.is_queued() {
            let lives = self.replacement.lock().insert(PageName::new(space.index, page), evicted_at);
            table.states.set(page, entry.with_queued(true).with_lives(lives));
        }
    }

    /// Gives up one of the descriptors in reserve. False: there is none.
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

    /// Far memory is getting full: said while something can be done about it.
    pub fn warn_of_full_far_memory(&self) {
        // To look takes some microseconds.
        const EVERY: u32 = 16;
        if !self.unwarned_batches.fetch_add(1, Ordering::Relaxed).is_multiple_of(EVERY) {
            return;
        }
        let status = self.far.status();
        // Where no lender is left, that is told; and once more where there is more than when it was told.
        let (most, told) = (status.most_pages, self.full_told_pages.load(Ordering::Relaxed));
        if most > told && status.used_pages * 4 >= most * 3 {
            self.full_told_pages.store(most, Ordering::Relaxed);
            (self.notify)(&format!(
                "three quarters of the {} MiB of far memory are in use: add a lender, or give a larger --remote",
                (most * PAGE_BYTES) >> 20
            ));
        }
    }

    /// Local memory of the programs that is not served: said once it is more than the limit.
    pub fn watch_foreign_memory(&self) {
        const LEAST_BYTES: u64 = 64 << 20;
        // What is shared is there once, however many processes have it.
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

    /// Tells the user something, once a run.
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
