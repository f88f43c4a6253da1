//! The evictor: evicts pages in batches, ahead of need, on a thread of its own. This module chooses the pages, and decides
//! what happens if no room can be made. How a batch leaves is in [`crate::batch`].

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tombolo_core::pager::{
    Attempt, Bounds, Cause, Eviction, Frame, PAGE_BYTES, Page, PageName, State, Step, View,
};
use tombolo_host::event;
use tombolo_host::timing::pager as timing;

use crate::batch::{BATCH, Batch, Leaving};
use crate::events::Fault;
use crate::pager::Pager;
use crate::placement::Placement;
use crate::shared_out::Sharer;
use crate::space::Space;

/// Batches without a waiting fault after which less room is kept free.
const CALM: u32 = 64;

/// Most names that are looked at in one selection, before the evictor does other work.
const LOOK_MAX: usize = 8 * BATCH;

/// A page that is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Chosen {
    pub(crate) page: Page,
    /// The page could not leave at its last attempt because it was shared.
    pub(crate) is_retry: bool,
}

/// The evictor's state.
pub struct Evictor {
    pub(crate) pager: Arc<Pager>,
    pub(crate) message: Vec<u8>,
    pub(crate) placement: Placement,
    /// The batches that are on their way out.
    pub(crate) batches: Vec<Batch>,
    /// The last command's number.
    pub(crate) command: u32,
    /// The space of the last batch that has ended.
    pub(crate) last: u32,
    /// Decides what the evictor does next.
    pub(crate) eviction: Eviction,
    /// The origin of times.
    epoch: Instant,
}

/// A span of time in nanoseconds.
const fn ns(span: Duration) -> u64 {
    span.as_nanos() as u64
}

const BOUNDS: Bounds = Bounds {
    agent_late_ns: ns(timing::AGENT_LATE),
    agent_frozen_ns: ns(timing::AGENT_FROZEN),
    late_pause_ns: ns(timing::LATE_AGENT_PAUSE),
    claim_pause_ns: ns(timing::CLAIM_PAUSE),
    change_pause_ns: ns(timing::CHANGE_PAUSE),
    fruitless_ns: ns(timing::FRUITLESS_AFTER),
    sleep_max_ns: ns(timing::EVICTOR_MAX_SLEEP),
};

impl Evictor {
    /// An evictor for this pager.
    pub fn new(pager: Arc<Pager>) -> Self {
        Self {
            pager,
            message: Vec::with_capacity(16 * 1024),
            placement: Placement::default(),
            batches: Vec::new(),
            command: 0,
            last: 0,
            eviction: Eviction::new(BOUNDS),
            epoch: Instant::now(),
        }
    }

    /// Evicts whenever room is short, until the run is over.
    pub fn run(mut self) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        self.pager.evictor_thread.store(thread, Ordering::Relaxed);
        let (mut calm, mut waits) = (0, 0);
        while !self.pager.stopping.load(Ordering::Relaxed) {
            self.pager.verify_now();
            let shared_ns = self.pager.share_on().map_or(u64::MAX, ns);
            self.collect();
            self.clear_staging();
            self.pager.keeper.send_waiting();
            // If this thread defers something, there may be no handler that looks at it.
            let put_off = self.pager.serve_deferred();
            let view = self.view(put_off);
            match self.eviction.next(&view) {
                Step::Sleep { ns } => self.pager.evictor.wait(Duration::from_nanos(ns.min(shared_ns))),
                Step::AwaitAgents { ns } => self.poll_agents(Duration::from_nanos(ns.min(shared_ns))),
                Step::Serve => self.serve_waiting(view.waiting),
                Step::GiveUp { faults, cause } => self.give_up(faults, cause),
                Step::MakeRoom => {
                    let waited = self.pager.stats.counters.room_waits.load(Ordering::Relaxed);
                    calm = if waited == waits { calm + 1 } else { 0 };
                    waits = waited;
                    if calm >= CALM {
                        calm = 0;
                        self.pager.narrow_headroom();
                    }
                    let (attempt, looked_at) = self.make_room(0);
                    self.eviction.made_room(attempt, looked_at as u64, &view);
                }
            }
        }
    }

    /// Nanoseconds since this evictor began.
    pub(crate) fn now_ns(&self) -> u64 {
        ns(self.epoch.elapsed())
    }

    pub(crate) fn view(&self, put_off: bool) -> View {
        let (free, waiting) = (self.pager.room.free(), self.pager.waiting.lock().len());
        // The lock is taken only once: while a thread waits to write, a second read lock would wait, also on this thread.
        let (spaces, awaits_agent) = {
            let spaces = self.pager.spaces.read();
            (spaces.len(), waiting > 0 && spaces.values().any(|space| space.awaits_agent()))
        };
        // No page can leave a space whose agent is emptying staging areas. `Eviction` does not know of that command.
        let awaits_agent = awaits_agent || self.batches.iter().any(Batch::is_being_cleared);
        View {
            now_ns: self.now_ns(),
            is_short: free < self.pager.headroom_pages().cast_signed(),
            has_room: free > 0,
            waiting,
            put_off,
            spaces,
            evictable: self.pager.room.evictable(),
            awaits_agent,
        }
    }

    /// Counts pages that have left.
    pub(crate) fn evicted(&mut self, pages: u64) {
        self.pager.room.evicted(pages);
        self.pager.warn_of_full_far_memory();
        self.eviction.evicted(pages, self.now_ns());
    }

    /// Sleeps until an agent has answered, for at most `time`.
    fn poll_agents(&self, time: Duration) {
        let batches = self.batches.iter().filter(|batch| batch.is_with_its_agent());
        let mut sockets: Vec<PollFd<'_>> =
            batches.map(|batch| PollFd::from_borrowed_fd(batch.agent.as_fd(), PollFlags::IN)).collect();
        let _ = poll(&mut sockets, Some(&event::timespec(time)));
    }

    /// Serves the first `faults` of the faults that wait for room.
    fn serve_waiting(&self, faults: usize) {
        for _ in 0..faults {
            let next = self.pager.waiting.lock().pop_front();
            if let Some(fault) = next {
                self.pager.serve_again(fault);
            }
        }
    }

    /// Gives up on the first faults that wait, since no room can be made for them and they must not hang: the limit gives
    /// way, or the program gets SIGBUS.
    fn give_up(&mut self, faults: usize, cause: Cause) {
        if cause == Cause::Immovable {
            // Pages in staging areas can go, if the agents answer. Nothing else can be evicted, so the limit gives way.
            self.empty_areas(|_| true);
            let allowed_pages = self.pager.room.allow(faults as u64);
            self.pager.say_once_with("overdraft", || {
                format!(
                    "the program exceeds --local, by up to {} KiB for now: what is here cannot be evicted (locked or pinned pages, memory with protection keys, or a frozen \
                     program); the report says how far it went",
                    allowed_pages * PAGE_BYTES / 1024
                )
            });
            return self.serve_waiting(faults);
        }
        let hopeless: Vec<Fault> = {
            let mut waiting = self.pager.waiting.lock();
            let count = faults.min(waiting.len());
            waiting.drain(..count).collect()
        };
        for fault in hopeless {
            let Some(space) = self.pager.space(fault.space) else { continue };
            if self.pager.shares_frame(&space, fault.page) {
                // The page's contents are here: a write to it only needs a copy.
                if self.pager.room.free() <= 0 {
                    self.pager.room.allow(1);
                }
                self.pager.say_once(
                    "full copies",
                    "local and far memory are both full: the program exceeds --local by what it writes to memory that a fork has left shared; \
                     lend more, or borrow more with --remote",
                );
                self.pager.serve_again(fault);
                continue;
            }
            self.pager.say_once(
                "full",
                "local and far memory are both full: the program gets SIGBUS; lend more, or borrow more with --remote",
            );
            if !self.pager.poison(&space, fault.page) {
                self.pager.serve_again(fault);
            }
        }
    }

    /// Takes names from the queues until `want` of them can leave. Returns their pages by space and in order. Spares pages
    /// that were used, or came back quickly before. Also returns the frames that can leave, which stand for all their
    /// holders, and how many names were looked at.
    fn select(&self, want: usize) -> (BTreeMap<u32, Vec<Chosen>>, Vec<Frame>, usize) {
        let mut batches: BTreeMap<u32, Vec<Chosen>> = BTreeMap::new();
        let mut frames = Vec::new();
        let (mut found, mut looked_at) = (0, 0);
        let mut names: Vec<(PageName, bool)> = Vec::with_capacity(BATCH);
        let mut spared = Vec::with_capacity(BATCH);
        while found < want && looked_at < LOOK_MAX {
            names.clear();
            {
                let mut replacement = self.pager.replacement.lock();
                // All retries first: later, another fork may have come.
                let retries = std::iter::from_fn(|| replacement.pop_retry()).map(|name| (name, true));
                names.extend(retries.take(BATCH - found));
                let left = want.saturating_sub(found + names.len());
                names.extend(std::iter::from_fn(|| replacement.pop()).map(|name| (name, false)).take(left));
            }
            if names.is_empty() {
                break;
            }
            looked_at += names.len();
            let mut at = 0;
            while let Some((name, _)) = names.get(at) {
                let index = name.space();
                let end = names[at..]
                    .iter()
                    .position(|(name, _)| name.space() != index)
                    .map_or(names.len(), |more| at + more);
                let run = &names[at..end];
                at = end;
                if name.frame().is_some() {
                    let mut shared = self.pager.sharing.frames();
                    let up = run.iter().filter_map(|(name, _)| name.frame());
                    let before = frames.len();
                    frames.extend(up.filter(|frame| shared.dequeue(*frame)));
                    found += frames.len() - before;
                    continue;
                }
                let Some(space) = self.pager.space(index) else { continue };
                let mut table = space.lock();
                // An agent without a command can get one. Without an agent, nothing leaves.
                let able = space.can_evict(&table);
                let can_own = able && table.under_way.is_nothing();
                let stays = !space.has_agent() && space.gets_no_agent();
                for &(name, is_retry) in run {
                    let entry = table.states.get(name.page());
                    if entry.frame().is_some() && (stays || (entry.lives() == 0 && !entry.is_referenced())) {
                        // The page needs no name any more: its frame is chosen below, or goes into a queue under its own
                        // name.
                        table.states.set(name.page(), entry.with_queued(false));
                        frames.extend(entry.frame());
                        found += 1;
                    } else if entry.state() != State::Resident || stays {
                        table.states.set(name.page(), entry.with_queued(false));
                    } else if !able || (is_retry && !can_own) {
                        spared.push(name);
                    } else if entry.is_referenced() || entry.lives() > 0 {
                        let lives = entry.lives().saturating_sub(1);
                        table.states.set(name.page(), entry.with_referenced(false).with_lives(lives));
                        spared.push(name);
                    } else {
                        batches.entry(index).or_default().push(Chosen { page: name.page(), is_retry });
                        found += 1;
                    }
                }
            }
            let mut replacement = self.pager.replacement.lock();
            for name in spared.drain(..) {
                replacement.reinsert(name);
            }
        }
        frames.sort_unstable();
        frames.dedup();
        (batches, frames, looked_at)
    }

    /// Puts names back into a queue that were taken and are not used.
    pub(crate) fn put_back(&self, space: &Space, leaving: Leaving) {
        for Sharer { frame, place, .. } in leaving.shared {
            if let Some((slot, _)) = place {
                self.pager.far.slots().release(slot);
            }
            self.pager.put_back_frame(frame);
        }
        let mut replacement = self.pager.replacement.lock();
        for &Chosen { page, .. } in &leaving.chosen {
            replacement.reinsert(PageName::new(space.index, page));
        }
    }

    /// Begins to evict from every space that has pages to give. `leaving` pages are on their way out already. Also returns
    /// how many names were looked at.
    pub(crate) fn make_room(&mut self, leaving: usize) -> (Attempt, usize) {
        let (batches, frames, looked_at) = self.select(self.pager.short_of(leaving).clamp(BATCH / 2, BATCH));
        if looked_at == 0 {
            return (Attempt::NoVictims, 0);
        }
        if batches.is_empty() && frames.is_empty() {
            // All pages were spared this time.
            return (Attempt::Begun(0), looked_at);
        }
        let (mut begun, mut full, mut grows) = (0, false, false);
        let mut all: BTreeMap<u32, Leaving> = {
            let now_ns = self.now_ns();
            self.pager.holders_of(&frames, |command| self.eviction.is_late(command, now_ns))
        };
        self.pager.verify_holders(&mut all);
        for (index, mut chosen) in batches {
            chosen.sort_unstable();
            all.entry(index).or_default().chosen = chosen;
        }
        for (index, leaving) in all {
            let Some(space) = self.pager.space(index) else {
                // The space has just ended. Other spaces hold the frames.
                leaving.shared.iter().for_each(|sharer| self.pager.put_back_frame(sharer.frame));
                continue;
            };
            match self.begin_or_own(&space, leaving) {
                Attempt::Begun(count) => begun += count,
                Attempt::FarFull => full = true,
                Attempt::FarGrows => grows = true,
                Attempt::NoVictims => {}
            }
        }
        let attempt = match (begun, full) {
            (0, _) if grows => Attempt::FarGrows,
            (0, true) if self.pager.reclaim_clean_slots(BATCH) == 0 => Attempt::FarFull,
            (0, false) => Attempt::NoVictims,
            _ => Attempt::Begun(begun),
        };
        (attempt, looked_at)
    }
}

impl Pager {
    /// Frees up to `want` slots of pages that are also resident, since far memory is full. Returns how many were freed. If
    /// there are none, this costs a look at each space.
    pub fn reclaim_clean_slots(&self, want: usize) -> u64 {
        let mut left = want as u64;
        for space in self.all_spaces() {
            if left == 0 {
                break;
            }
            left -= space.lock().states.release_clean(left, &mut self.far.slots());
        }
        // The lock of the frames ends with this statement and is taken anew in each round, so that other threads get it in
        // between.
        let looks = self.sharing.frames().looks();
        for _ in 0..looks {
            if left == 0 {
                break;
            }
            let mut slots = self.far.slots();
            left -= self.sharing.frames().release_saved(left, &mut slots);
        }
        want as u64 - left
    }
}
