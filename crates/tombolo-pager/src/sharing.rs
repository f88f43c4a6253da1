//! Pages that forks share: their room, their protection, and how holders leave their frames.
//!
//! After a fork, parent and child share [`Frames`], each of which takes one page of room. A holder that is about to write
//! takes room for its copy first ([`Pager::copy_shared`]): the page is write-protected, so the write is a fault. If room is
//! short, the pages are protected before libc's `fork` ([`Pager::protect_for_fork`]). Otherwise they are protected later,
//! in pieces: only when the copies that holders may have made unseen would not fit any more, and not within the first
//! milliseconds, in which many children execute another program. Copies made before that are found in the page tables, and
//! take their room then ([`Pager::verify`]).
//!
//! When the other holders of frames have ended, the remaining pages become ordinary again, also in pieces.
//!
//! How a shared page leaves is in [`crate::shared_out`].

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tombolo_core::pager::{Forked, Frame, Frames, Left, PAGE_BYTES, Page, PageName, Remains, Seen, State};
use tombolo_host::pagemap::{self, Held};
use tombolo_host::timing::pager as timing;
use tombolo_host::uffd::UffdError;

use crate::events::Fault;
use crate::pager::Pager;
use crate::room::{Account, Room};
use crate::serve::Step;
use crate::space::{Space, Table};
use crate::stats::Counters;

/// Pages that are verified or made ordinary before other threads may lock the table: about a millisecond.
const PIECE_PAGES: u64 = 4096;
/// Pages that are protected before other threads may lock the table: some milliseconds.
const PROTECTED_AT_ONCE: u64 = 1 << 17;
/// A run of at most this many pages is not split further when some of them are not mapped.
const SPLIT_PAGES: u64 = 16;
/// Frames that are left before other threads may lock slots and frames: some hundred microseconds.
const LEFT_AT_ONCE: usize = 4096;

/// What is to be done with all shared pages of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Protect them: from then on they are copied only where there is room.
    Protect,
    /// Protect them, and verify them.
    Verify,
}

#[derive(Debug)]
struct Task {
    space: u32,
    work: Work,
    due: Instant,
    /// Ranges that are left to do. `None` before the task has begun.
    ranges: Option<VecDeque<(Page, Page)>>,
}

/// Frames with only one holder left, whose page can become ordinary again.
#[derive(Debug, Default)]
struct Alone {
    frames: Vec<Frame>,
    /// When to look at them.
    due: Option<Instant>,
}

/// Why a holder leaves a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Departure<'a> {
    /// The page has been given up, or has room of its own already.
    Changed,
    /// The page is its space's own from now on, and has to count there. If no other page holds the frame, its room becomes
    /// the page's.
    Owned(&'a Account),
    /// The page was evicted: the other holders are to follow.
    Evicted,
    /// Its space has ended.
    Ended,
}

/// The frames, and what is to be done with the pages that share them.
#[derive(Debug)]
pub(crate) struct Sharing {
    frames: Mutex<Frames>,
    /// Room of the frames that can be evicted, and of those that cannot (`stuck`).
    account: Account,
    stuck: Account,
    tasks: Mutex<VecDeque<Task>>,
    alone: Mutex<Alone>,
    /// When free room falls to this, the evictor is woken to look at the tasks.
    watermark_pages: AtomicU64,
    /// Pages that may be copied unseen, of all spaces. May be too large, since each space is recounted only at times.
    unprotected: AtomicU64,
}

impl Sharing {
    /// Starts with no shared pages.
    pub(crate) fn new(room: &Room) -> Self {
        let account = Account::default();
        room.set_limited(&account, true);
        Self {
            frames: Mutex::default(),
            account,
            stuck: Account::default(),
            tasks: Mutex::default(),
            alone: Mutex::default(),
            watermark_pages: AtomicU64::new(0),
            unprotected: AtomicU64::new(0),
        }
    }

    /// Locks the frames: after slots, before replacement.
    pub(crate) fn frames(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock()
    }

    /// When free room falls to this, the evictor has to be woken.
    pub(crate) fn watermark_pages(&self) -> u64 {
        self.watermark_pages.load(Ordering::Relaxed)
    }

    /// Recounts the pages of a space that may be copied unseen. Returns the number of such pages in all other spaces.
    pub(crate) fn recount(&self, table: &mut Table) -> u64 {
        let now = table.states.unprotected_pages();
        let was = std::mem::replace(&mut table.unprotected, now);
        // Wraps if the number has fallen.
        let change = now.wrapping_sub(was);
        let all = self.unprotected.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        all.saturating_sub(now)
    }

    fn schedule(&self, space: u32, work: Work, after: Duration) {
        let mut tasks = self.tasks.lock();
        // A task that has begun does not see new pages.
        let is_known = |task: &Task| task.space == space && task.work == work && task.ranges.is_none();
        if !tasks.iter().any(is_known) {
            tasks.push_back(Task { space, work, due: Instant::now() + after, ranges: None });
        }
    }

    /// Takes a task that is due from the list.
    fn due_task(&self) -> Option<Task> {
        let mut tasks = self.tasks.lock();
        let now = Instant::now();
        let at = tasks.iter().position(|task| task.due <= now)?;
        tasks.remove(at)
    }

    /// Takes frames that are due to become ordinary pages, at most one piece.
    fn due_alone(&self) -> Vec<Frame> {
        let mut alone = self.alone.lock();
        if alone.due.is_none_or(|due| due > Instant::now()) {
            return Vec::new();
        }
        let rest = alone.frames.len().saturating_sub(PIECE_PAGES as usize);
        if rest == 0 {
            alone.due = None;
        }
        alone.frames.split_off(rest)
    }

    /// How long it is until something is to be done: zero if it is due already, `None` if there is nothing.
    fn next_due(&self) -> Option<Duration> {
        let tasks = self.tasks.lock();
        if !tasks.iter().any(|task| task.work == Work::Verify) {
            self.watermark_pages.store(0, Ordering::Relaxed);
        }
        let all = tasks.iter().map(|task| task.due).chain(self.alone.lock().due);
        Some(all.min()?.saturating_duration_since(Instant::now()))
    }
}

/// Removes the protection of these pages, which are in order. If the kernel refuses, the next write is a fault that finds
/// an ordinary page.
fn make_writable(space: &Space, pages: &[Page]) {
    for run in pages.chunk_by(|page, next| page + 1 == *next) {
        let length = run.len() * PAGE_BYTES as usize;
        let _ = run.first().map(|&page| space.uffd.unprotect_without_wake(Space::address(page), length));
    }
}

/// The frames that the pages of a space share.
fn shared_frames(table: &Table) -> impl Iterator<Item = Frame> {
    let pages = table.states.shared_ranges().into_iter().flat_map(|(first, end)| first..end);
    pages.filter_map(|page| table.states.get(page).frame())
}

impl Pager {
    /// Called when a space has forked: its resident pages are shared from now on. Returns whether there is too little room
    /// for copies of all of them.
    pub(crate) fn shared_by_fork(
        &self,
        parent: &Space,
        child: &Space,
        table: &mut Table,
        forked: &Forked,
    ) -> bool {
        self.room.pass(&parent.account, &self.sharing.account, forked.shared);
        self.room.take(&self.sharing.account, forked.frames);
        if !parent.has_agent() && parent.gets_no_agent() {
            self.set_stuck(shared_frames(table), true);
        }
        self.room.take(&child.account, forked.resident);
        forked.unnamed.iter().for_each(|&frame| self.put_back_frame(frame));
        let is_short = self.is_short_for(table, table.states.unprotected_pages());
        if table.states.unverified_pages() > 0 {
            for space in [parent, child] {
                if is_short {
                    self.sharing.schedule(space.index, Work::Protect, Duration::ZERO);
                }
                self.sharing.schedule(space.index, Work::Verify, timing::FORK_PAUSE);
            }
            // The evictor looks when the task is due.
            self.evictor.ring();
        } else if forked.table.has_doubtful() {
            self.sharing.schedule(child.index, Work::Verify, timing::FORK_PAUSE);
            self.evictor.ring();
        }
        is_short
    }

    /// Called when the agent of a forked space has said hello.
    pub(crate) fn shares_with_agent(&self, space: &Space) {
        let table = space.lock();
        if self.sharing.stuck.pages() > 0 {
            // If other holders keep a frame from leaving, that is found again.
            self.set_stuck(shared_frames(&table), false);
        }
        if table.states.unverified_pages() > 0 || table.states.has_doubtful() {
            self.sharing.schedule(space.index, Work::Verify, timing::FORK_PAUSE);
            self.evictor.ring();
        }
    }

    /// Finds pages that are present although the table says that they are far: they take room from now on. Their contents
    /// are those of their slots, or newer.
    fn look_at_doubtful(&self, space: &Space, table: &mut Table) {
        let far = table.states.doubtful();
        let look = |thread| pagemap::hold_something(thread, far.iter().map(|page| Space::address(*page)));
        let held = space.named_program().and_then(|program| space.by_program(&program, look).ok()??.ok());
        match held.filter(|_| !space.is_changing()) {
            Some(held) => {
                for (page, _) in far.into_iter().zip(held).filter(|(_, is_held)| *is_held) {
                    self.room.take(&space.account, 1);
                    table.states.found_present(page, &mut self.far.slots());
                    self.queue(space, table, page, None);
                }
            }
            None => table.states.doubt(&far),
        }
    }

    /// Whether a page is here, and shares a frame.
    pub(crate) fn shares_frame(&self, space: &Space, page: Page) -> bool {
        space.lock().states.get(page).frame().is_some()
    }

    /// Handles the frames that pages of this space have left since the last call: frames without holders are freed.
    pub(crate) fn leave_frames(&self, table: &mut Table) {
        if table.states.has_left() {
            let left = table.states.take_left();
            self.frames_left(&left, Departure::Changed);
        }
    }

    /// Notes that holders have left these frames.
    pub(crate) fn frames_left(&self, all: &[Left], why: Departure) {
        let (mut names, mut alone) = (Vec::new(), Vec::new());
        for part in all.chunks(LEFT_AT_ONCE) {
            let (mut freed, mut freed_stuck, mut unstuck) = (0, 0, 0);
            let mut slots = self.far.slots();
            let mut frames = self.sharing.frames();
            for left in part {
                match frames.leave(left.frame, &mut slots) {
                    Remains::Nothing { was_stuck: true } => freed_stuck += 1,
                    Remains::Nothing { was_stuck: false } => freed += 1,
                    Remains::Holders => {
                        if left.was_queued && frames.enqueue(left.frame) {
                            names.push(PageName::of_frame(left.frame));
                        }
                        if matches!(why, Departure::Ended) {
                            // The holder that could not leave may be the one that has ended. If not, that is found again.
                            unstuck += u64::from(frames.set_stuck(left.frame, false));
                            alone.extend((frames.holders(left.frame) == 1).then_some(left.frame));
                        }
                    }
                }
            }
            // Under the lock of the frames, since which frames are stuck may change.
            self.room.pass(&self.sharing.stuck, &self.sharing.account, unstuck);
            if let Departure::Owned(account) = why {
                self.room.pass(&self.sharing.account, account, freed);
                self.room.pass(&self.sharing.stuck, account, freed_stuck);
                self.room.take(account, part.len() as u64 - freed - freed_stuck);
            } else {
                self.room.give_back(&self.sharing.account, freed);
                self.room.give_back(&self.sharing.stuck, freed_stuck);
            }
        }
        if !alone.is_empty() {
            let mut all = self.sharing.alone.lock();
            all.frames.extend(alone);
            // Several holders may end together.
            all.due.get_or_insert_with(|| Instant::now() + timing::SHARING_PAUSE);
            self.evictor.ring();
        }
        if names.is_empty() {
            return;
        }
        let mut replacement = self.replacement.lock();
        if matches!(why, Departure::Evicted) {
            replacement.retry(names);
        } else {
            names.into_iter().for_each(|name| replacement.reinsert(name));
        }
    }

    /// Notes whether these frames can be evicted.
    pub(crate) fn set_stuck(&self, all: impl IntoIterator<Item = Frame>, is_stuck: bool) {
        let mut frames = self.sharing.frames();
        let changed = all.into_iter().filter(|frame| frames.set_stuck(*frame, is_stuck)).count() as u64;
        let (from, to) = if is_stuck {
            (&self.sharing.account, &self.sharing.stuck)
        } else {
            (&self.sharing.stuck, &self.sharing.account)
        };
        self.room.pass(from, to, changed);
    }

    /// Counts pages that have shared frames as their space's own from now on.
    fn owned(&self, space: &Space, table: &mut Table, pages: &[Page]) {
        pages.iter().for_each(|&page| self.queue(space, table, page, None));
        let left = table.states.take_left();
        self.frames_left(&left, Departure::Owned(&space.account));
    }

    /// Serves a write to a shared page: the kernel makes a copy, for which there has to be room.
    pub(crate) fn copy_shared(
        &self,
        space: &Arc<Space>,
        table: &mut Table,
        fault: Fault,
        frame: Frame,
    ) -> Step {
        // A frame's only holder needs no room besides the frame's.
        let is_alone = self.sharing.frames().holders(frame) <= 1;
        if !is_alone && self.reserve(space, 1) == 0 {
            self.wait_for_room(fault);
            return Step::Done;
        }
        match space.unprotect(table, fault.page) {
            Err(UffdError::Again(_)) => {
                self.unreserve(space, u64::from(!is_alone));
                return Step::Again;
            }
            Err(_) => space.wake_later(table, fault.page, 1),
            Ok(()) => {}
        }
        table.states.written(fault.page, &mut self.far.slots());
        if is_alone {
            self.owned(space, table, &[fault.page]);
        } else {
            Counters::add(&self.stats.counters.fork_copies, 1);
            self.queue(space, table, fault.page, None);
            self.leave_frames(table);
        }
        Step::Done
    }

    /// Handles a fault on a page that is present and shared according to the table. Returns `true` if the page is absent,
    /// or that cannot be told: it becomes the space's own, and the fault has to be decided anew.
    pub(crate) fn shared_is_absent(&self, space: &Space, table: &mut Table, page: Page) -> bool {
        if space.holds(page) == Some(true) {
            space.wake_later(table, page, 1);
            return false;
        }
        self.own_shared(space, table, page);
        true
    }

    /// Protects the pages of these ranges that share frames, and checks whether they still do. Pages that do not are the
    /// space's own from now on.
    pub(crate) fn verify(
        &self,
        space: &Space,
        table: &mut Table,
        ranges: &[(Page, Page)],
    ) -> Result<(), UffdError> {
        let mut runs = Vec::new();
        for &(first, end) in ranges {
            self.protect_range(space, table, first, end)?;
            let mut from = first;
            while let Some((page, count)) = table.states.unverified_run(from, end) {
                runs.push((page, count));
                from = page + count;
            }
        }
        let seen = self.look_at_shared(space, table, &runs)?;
        // A fork that is under way may share pages that were not shared when they were protected.
        if space.is_changing() {
            return Err(UffdError::Again(0));
        }
        let pages = || runs.iter().flat_map(|&(page, count)| page..page + count);
        let is_left = {
            let frames = self.sharing.frames();
            pages().zip(&seen).any(|(page, seen)| {
                let frame = table.states.get(page).frame();
                *seen == Seen::Exclusive && frame.is_some_and(|frame| frames.holders(frame) > 1)
            })
        };
        // The page tables show a page as unshared although its frame has other holders. These have copied it, or have ended
        // without an event that was read.
        if is_left && self.close_others_unused(space) {
            return Err(UffdError::Again(0));
        }
        let mut writable = Vec::new();
        for (page, seen) in pages().zip(seen) {
            if table.states.get(page).is_verified() {
                continue;
            }
            self.verified(space, table, page, seen);
            let entry = table.states.get(page);
            if entry.state() == State::Resident && !entry.is_protected() && entry.frame().is_none() {
                writable.push(page);
            }
        }
        make_writable(space, &writable);
        Ok(())
    }

    /// Protects the pages of a range that share frames and are not protected: 20 ns a page.
    fn protect_range(
        &self,
        space: &Space,
        table: &mut Table,
        first: Page,
        end: Page,
    ) -> Result<(), UffdError> {
        let mut from = first;
        while let Some((page, count)) = table.states.unprotected_run(from, end) {
            Self::protect_run(space, table, page, count)?;
            from = page + count;
        }
        Ok(())
    }

    fn protect_run(space: &Space, table: &mut Table, page: Page, count: u64) -> Result<(), UffdError> {
        let (address, length) = (Space::address(page), (count * PAGE_BYTES) as usize);
        match space.at_rest(space.uffd.write_protect(address, length, true)) {
            Ok(()) => (page..page + count).for_each(|page| table.states.protected(page)),
            Err(error @ (UffdError::Again(_) | UffdError::Gone)) => return Err(error),
            // A part of the run is not mapped: the child has not inherited it. Pages around it that stay unprotected are
            // found when the page tables are read.
            Err(_) if count > SPLIT_PAGES => {
                let half = count / 2;
                Self::protect_run(space, table, page, half)?;
                Self::protect_run(space, table, page + half, count - half)?;
            }
            Err(_) => {}
        }
        Ok(())
    }

    fn verified(&self, space: &Space, table: &mut Table, page: Page, seen: Seen) {
        let is_own = {
            let mut slots = self.far.slots();
            table.states.verify(page, seen, &mut slots, &self.sharing.frames())
        };
        if is_own {
            self.owned(space, table, &[page]);
        } else {
            self.leave_frames(table);
        }
    }

    /// Reads in the page tables whether pages are shared. If that cannot be told, a page counts as not shared, which is
    /// also correct.
    ///
    /// # Errors
    ///
    /// The program has just ended, or executed another one. Nothing was copied by that, and the space is about to end.
    fn look_at_shared(
        &self,
        space: &Space,
        table: &mut Table,
        runs: &[(Page, u64)],
    ) -> Result<Vec<Seen>, UffdError> {
        let count: u64 = runs.iter().map(|(_, count)| *count).sum();
        let runs: Vec<(u64, u64)> = runs.iter().map(|&(page, count)| (Space::address(page), count)).collect();
        let look = |thread| -> io::Result<Vec<Seen>> {
            if pagemap::has_merged_pages(thread) {
                return Ok(Vec::new());
            }
            let held = pagemap::look(thread, &runs)?;
            Ok(held
                .into_iter()
                .map(|held| match held {
                    Held::Nothing => Seen::Absent,
                    Held::InMemory => Seen::Shared,
                    Held::InMemoryAlone | Held::Elsewhere => Seen::Exclusive,
                })
                .collect())
        };
        let mut seen = space.named_program().map(|program| space.by_program(&program, &look));
        if let Some(Ok(None)) = seen {
            // The agent has the memory until it is dismissed.
            if let Some(agent) = space.agent() {
                let looked = look(agent.pid);
                seen = Some(Ok(Some(looked).filter(|_| !agent.has_ended())));
            }
        }
        if let Some(Ok(None)) = seen {
            let since = table.left_by_program.get_or_insert_with(Instant::now);
            if since.elapsed() < timing::SHARING_LONG_PAUSE {
                return Err(UffdError::Gone);
            }
        } else {
            table.left_by_program = None;
        }
        let seen = seen.and_then(|seen| seen.ok()??.ok());
        Ok(seen.filter(|seen| !seen.is_empty()).unwrap_or_else(|| vec![Seen::Exclusive; count as usize]))
    }

    /// Does a piece of the work on shared pages. Returns after which time there is more to do.
    pub(crate) fn share_on(&self) -> Option<Duration> {
        if let Some(task) = self.sharing.due_task() {
            self.do_task(task);
        }
        let alone = self.sharing.due_alone();
        if !alone.is_empty() {
            self.collapse_frames(&alone);
        }
        self.sharing.next_due()
    }

    fn do_task(&self, mut task: Task) {
        let Some(space) = self.space(task.space) else { return };
        if task.work == Work::Verify && task.ranges.is_none() {
            let unprotected = {
                let mut table = space.lock();
                self.sharing.recount(&mut table) + table.unprotected
            };
            if self.room.free() >= unprotected.cast_signed() && unprotected > 0 {
                // There is room for all pages that may have been copied unseen. The evictor is woken when there is not.
                self.sharing.watermark_pages.fetch_max(unprotected, Ordering::Relaxed);
                task.due = Instant::now() + timing::SHARING_LONG_PAUSE;
                return self.sharing.tasks.lock().push_back(task);
            }
        }
        if let Some(again) = self.do_piece(&mut task) {
            task.due = Instant::now() + again;
            self.sharing.tasks.lock().push_front(task);
        }
    }

    /// Makes verifications due that were put off because there was enough room, if room is short now.
    pub(crate) fn verify_now(&self) {
        let unprotected = self.sharing.watermark_pages();
        if unprotected > 0 && self.room.free() < unprotected.cast_signed() {
            self.sharing.watermark_pages.store(0, Ordering::Relaxed);
            let now = Instant::now();
            for task in self.sharing.tasks.lock().iter_mut().filter(|task| task.work == Work::Verify) {
                task.due = task.due.min(now);
            }
        }
    }

    /// Called when a forked child has its table: protects its shared pages if there is too little room for copies of all of
    /// them.
    pub(crate) fn begin_to_share(&self, space: &Space, table: &mut Table, is_short: bool) {
        self.sharing.recount(table);
        if is_short {
            // If this fails because mappings are changing, there is a task that repeats it.
            let _ = self.protect(space, table);
            self.sharing.recount(table);
        }
    }

    /// Called before a fork. If room is short, protects the resident pages, so that no copy is made unseen. The fork waits
    /// meanwhile: 10 ms for 2 GiB. Pages that are shared already are verified first, which takes several times as long: an
    /// unverified page counts as many times as it is forked.
    pub(crate) fn protect_for_fork(&self, space: &Space, table: &mut Table) {
        space.stop_touching(table);
        table.states.forget_put_off();
        // Each page that is not verified counts once more from now on.
        if !self.is_short_for(table, space.account.pages() + table.states.unverified_pages()) {
            return;
        }
        // If the kernel refuses, the pages that were written are found after the fork.
        if table.states.unverified_pages() > 0 && space.named_program().is_some() {
            // A second time if other spaces have ended meanwhile.
            let ranges = table.states.shared_ranges();
            if let Err(UffdError::Again(_)) = self.verify(space, table, &ranges) {
                let _ = self.verify(space, table, &ranges);
            }
        }
        for (first, end) in table.states.resident_ranges() {
            let mut from = first;
            while let Some((page, count)) = table.states.writable_run(from, end) {
                let _ = Self::protect_run(space, table, page, count);
                from = page + count;
            }
        }
    }

    /// Whether there is too little room for copies of `pages` pages of a space, in parent and child, and for copies that
    /// other spaces may have made unseen: with many forks within milliseconds, each could otherwise count on all the room.
    fn is_short_for(&self, table: &mut Table, pages: u64) -> bool {
        let others = self.sharing.recount(table);
        pages > 0 && self.room.free() < (2 * pages + others).cast_signed()
    }

    /// Protects all pages that share frames: 10 ms for 2 GiB.
    fn protect(&self, space: &Space, table: &mut Table) -> Result<(), UffdError> {
        for (first, end) in table.states.shared_ranges() {
            self.protect_range(space, table, first, end)?;
        }
        Ok(())
    }

    /// Does a piece of a task. Returns after which time to go on, if there is more.
    fn do_piece(&self, task: &mut Task) -> Option<Duration> {
        let space = self.space(task.space)?;
        // The page tables cannot be read. When the space gets an agent, there is another task.
        if task.work == Work::Verify && space.named_program().is_none() {
            return None;
        }
        let mut guard = space.lock();
        let table = &mut *guard;
        if table.closed {
            return None;
        }
        if task.work == Work::Verify && table.states.has_doubtful() {
            self.look_at_doubtful(&space, table);
        }
        let ranges = task.ranges.get_or_insert_with(|| table.states.shared_ranges().into());
        let (most, again) = match task.work {
            Work::Protect => (PROTECTED_AT_ONCE, timing::FORK_END_PAUSE),
            Work::Verify => (PIECE_PAGES, timing::CHANGE_PAUSE),
        };
        let (mut piece, mut pages) = (Vec::new(), 0);
        while pages < most
            && let Some((first, end)) = ranges.pop_front()
        {
            pages += end - first;
            piece.push((first, end));
        }
        let done = match task.work {
            Work::Protect => {
                piece.iter().try_for_each(|&(first, end)| self.protect_range(&space, table, first, end))
            }
            Work::Verify => self.verify(&space, table, &piece),
        };
        self.sharing.recount(table);
        match done {
            Ok(()) if !ranges.is_empty() => Some(Duration::ZERO),
            Ok(()) if table.states.has_doubtful() => {
                task.ranges = None;
                Some(timing::SHARING_LONG_PAUSE)
            }
            Ok(()) => None,
            Err(UffdError::Again(_)) => {
                piece.into_iter().rev().for_each(|range| ranges.push_front(range));
                Some(again)
            }
            // The space ends, or its memory is left to other processes.
            Err(UffdError::Gone) if task.work == Work::Verify && table.left_by_program.is_some() => {
                task.ranges = None;
                Some(timing::SHARING_LONG_PAUSE)
            }
            Err(_) => None,
        }
    }

    /// Counts a page that shares a frame as its space's own from now on: it is, or it may be.
    pub(crate) fn own_shared(&self, space: &Space, table: &mut Table, page: Page) {
        table.states.own(page, &mut self.far.slots(), &self.sharing.frames());
        self.owned(space, table, &[page]);
    }

    /// Makes the pages ordinary that are the only holders of these frames.
    fn collapse_frames(&self, frames: &[Frame]) {
        let mut left: Vec<(Frame, Page)> = {
            let known = self.sharing.frames();
            let alone = frames.iter().filter(|frame| known.holders(**frame) == 1);
            alone.map(|&frame| (frame, known.page(frame))).collect()
        };
        for space in self.all_spaces() {
            let mut table = space.lock();
            if left.is_empty() || table.closed || table.states.shared_pages() == 0 {
                continue;
            }
            let mut pages = Vec::new();
            left.retain(|&(frame, page)| {
                let found = table.states.holder(frame, page);
                pages.extend(found);
                found.is_none()
            });
            pages.sort_unstable();
            self.collapse(&space, &mut table, &pages);
        }
    }

    /// Makes those of these pages ordinary that are the only holders of their frames. The pages are in order.
    fn collapse(&self, space: &Space, table: &mut Table, pages: &[Page]) {
        let (mut own, mut writable) = (Vec::new(), Vec::new());
        {
            let mut slots = self.far.slots();
            let frames = self.sharing.frames();
            for &page in pages {
                // The space may have forked since.
                if table.states.get(page).frame().is_none_or(|frame| frames.holders(frame) != 1) {
                    continue;
                }
                if table.states.collapse(page, &mut slots, &frames) {
                    writable.push(page);
                }
                own.push(page);
            }
        }
        make_writable(space, &writable);
        self.owned(space, table, &own);
    }
}
