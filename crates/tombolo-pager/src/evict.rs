//! Eviction, on a thread of its own, ahead of need, in batches: which pages, and
//! what if there is no room. How a batch leaves is in [`crate::batch`].

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tombolo_core::pager::{LIVES_MAX, Page, PageName, State};
use tombolo_host::event;
use tombolo_host::timing::pager as timing;

use crate::batch::{BATCH, Batch, Outcome};
use crate::pager::Pager;
use crate::placement::Placement;

/// Batches without a waiting fault after which less room is kept free.
const CALM: u32 = 64;

/// Names looked at in a row before the evictor looks up.
const LOOK_MAX: usize = 8 * BATCH;

/// The evictor's own memory.
pub struct Evictor {
    pub(crate) pager: Arc<Pager>,
    pub(crate) message: Vec<u8>,
    pub(crate) placement: Placement,
    /// Far memory is directly reachable. Otherwise sending keeps this thread awake,
    /// and a lender on this machine needs a processor, too.
    pub(crate) windowed: bool,
    /// Pages on their way out, at most one batch of a space.
    pub(crate) batches: Vec<Batch>,
    /// The last command's number.
    pub(crate) command: u32,
    /// Names looked at since a page left.
    looked_at: u64,
    /// When a page left.
    since: Instant,
    /// Nothing can leave, and it was said.
    gave_up: bool,
    /// The last attempt found no far page for what could leave.
    far_full: bool,
}

impl Evictor {
    /// An evictor for this pager.
    pub fn new(pager: Arc<Pager>) -> Self {
        let windowed = pager.far.window(0).is_some();
        Self {
            pager,
            message: Vec::with_capacity(16 * 1024),
            placement: Placement::default(),
            windowed,
            batches: Vec::new(),
            command: 0,
            looked_at: 0,
            since: Instant::now(),
            gave_up: false,
            far_full: false,
        }
    }

    /// Evicts whenever room is short, until the run is over.
    pub fn run(mut self) {
        let (mut calm, mut waits) = (0, 0);
        while !self.pager.stopping.load(Ordering::Relaxed) {
            if self.collect() {
                self.serve_waiting();
            }
            // What this thread puts off, no handler may look at.
            let put_off = self.pager.serve_deferred();
            if put_off {
                std::thread::yield_now();
            }
            if self.wait_for_agents() {
                continue;
            }
            if self.is_short() && self.is_fruitless() && !self.pager.waiting.lock().is_empty() {
                self.give_up();
            }
            if !self.is_short() && self.pager.waiting.lock().is_empty() {
                let late = !self.batches.is_empty();
                if put_off {
                    self.pager.evictor.wait(timing::CHANGE_PAUSE);
                } else {
                    self.pager.evictor.wait(if late {
                        timing::AGENT_LATE
                    } else {
                        timing::EVICTOR_MAX_SLEEP
                    });
                }
                continue;
            }
            let waited = self.pager.stats.counters.room_waits.load(Ordering::Relaxed);
            calm = if waited == waits { calm + 1 } else { 0 };
            waits = waited;
            if calm >= CALM {
                calm = 0;
                self.pager.narrow_headroom();
            }
            let outcome = if self.is_short() { self.make_room() } else { Outcome::Begun(0) };
            if !self.is_short() {
                self.serve_waiting();
            } else if outcome == Outcome::NoVictims || outcome == Outcome::FarFull {
                self.far_full = outcome == Outcome::FarFull;
                // What could not be claimed may be free a moment later.
                std::thread::sleep(timing::CLAIM_PAUSE);
                self.looked_at += LOOK_MAX as u64;
            } else if outcome == Outcome::Begun(0) && !self.batches.is_empty() {
                // Pages of late agents are spared, however often they are looked at.
                self.poll_agents(timing::LATE_AGENT_PAUSE);
            }
        }
    }

    /// Whether every page was looked at, as often as one is spared, for long enough, and none could leave.
    fn is_fruitless(&mut self) -> bool {
        if self.batches.iter().any(|batch| batch.since.elapsed() < timing::AGENT_FROZEN) {
            // Pages are on their way out.
            return false;
        }
        if self.gave_up {
            return true;
        }
        let all = (u64::from(LIVES_MAX) + 1) * self.pager.room.evictable().max(16 * LOOK_MAX as u64);
        self.looked_at > all && self.since.elapsed() > timing::BARREN
    }

    /// Pages have left.
    pub(crate) fn evicted(&mut self, pages: u64) {
        self.pager.room.evicted(pages);
        self.pager.warn_of_full_far_memory();
        if pages > 0 {
            self.looked_at = 0;
            self.since = Instant::now();
            self.gave_up = false;
            self.far_full = false;
        }
    }

    /// Waits for the agents that are at work, if there is nothing better to do. False: there are none, or
    /// they are late and pages of other spaces can be evicted meanwhile.
    fn wait_for_agents(&self) -> bool {
        let mut working =
            self.batches.iter().filter(|batch| batch.since.elapsed() < timing::AGENT_FROZEN).peekable();
        if working.peek().is_none() {
            return false;
        }
        let others = self.pager.spaces.read().len() > self.batches.len();
        if others && working.clone().all(|batch| batch.since.elapsed() > timing::AGENT_LATE) {
            return false;
        }
        self.poll_agents(timing::AGENT_LATE);
        true
    }

    /// Sleeps until an agent has answered, at most this long.
    fn poll_agents(&self, time: Duration) {
        let batches = self.batches.iter();
        let mut sockets: Vec<PollFd<'_>> =
            batches.map(|batch| PollFd::from_borrowed_fd(batch.agent.as_fd(), PollFlags::IN)).collect();
        let _ = poll(&mut sockets, Some(&event::timespec(time)));
    }

    fn is_short(&self) -> bool {
        self.pager.room.free() < self.pager.headroom_pages().cast_signed()
    }

    /// Faults that waited for room try again.
    fn serve_waiting(&self) {
        let count = self.pager.waiting.lock().len();
        for _ in 0..count {
            let next = self.pager.waiting.lock().pop_front();
            if let Some(fault) = next {
                self.pager.serve_again(fault);
            }
        }
        self.pager.serve_deferred();
    }

    /// No room can be made. Faults that cannot be served must not hang.
    fn give_up(&mut self) {
        self.gave_up = true;
        let waiting = std::mem::take(&mut *self.pager.waiting.lock());
        if !self.far_full {
            // Nothing here can be evicted: the limit gives way.
            self.pager.room.allow(waiting.len() as u64);
            self.pager.say_once(
                "overdraft",
                "the program exceeds --local: what is here cannot be evicted now (locked or pinned pages, or a \
                 frozen program)",
            );
        }
        for fault in waiting {
            let Some(space) = self.pager.space(fault.space) else { continue };
            if self.far_full {
                self.pager.say_once(
                    "full",
                    "local and far memory are both full: the program gets SIGBUS; lend more, or borrow more with --remote",
                );
                if !self.pager.poison(&space, fault.page) {
                    self.pager.serve_again(fault);
                }
            } else {
                self.pager.serve_again(fault);
            }
        }
    }

    /// Takes names from the queues until `want` of them are to go, by space and in
    /// order. Spares those that were used, or came back quickly before.
    /// Also returns how many were looked at.
    fn select(&self, want: usize) -> (BTreeMap<u32, Vec<Page>>, usize) {
        let mut batches: BTreeMap<u32, Vec<Page>> = BTreeMap::new();
        let (mut found, mut looked_at) = (0, 0);
        let mut names: Vec<PageName> = Vec::with_capacity(BATCH);
        let mut spared = Vec::with_capacity(BATCH);
        while found < want && looked_at < LOOK_MAX {
            names.clear();
            {
                let mut replacement = self.pager.replacement.lock();
                names.extend(std::iter::from_fn(|| replacement.pop()).take(want - found));
            }
            if names.is_empty() {
                break;
            }
            looked_at += names.len();
            let mut at = 0;
            while let Some(name) = names.get(at) {
                let index = name.space();
                let end = names[at..]
                    .iter()
                    .position(|name| name.space() != index)
                    .map_or(names.len(), |more| at + more);
                let run = &names[at..end];
                at = end;
                let Some(space) = self.pager.space(index) else { continue };
                let mut table = space.lock();
                // An agent without a command can be given one; without an agent, nothing leaves.
                let able = space.has_agent() && table.command == 0;
                for &name in run {
                    let entry = table.states.get(name.page());
                    if entry.state() != State::Resident {
                        table.states.set(name.page(), entry.with_queued(false));
                    } else if !able {
                        spared.push(name);
                    } else if entry.is_referenced() || entry.lives() > 0 {
                        let lives = entry.lives().saturating_sub(1);
                        table.states.set(name.page(), entry.with_referenced(false).with_lives(lives));
                        spared.push(name);
                    } else {
                        batches.entry(index).or_default().push(name.page());
                        found += 1;
                    }
                }
            }
            let mut replacement = self.pager.replacement.lock();
            for name in spared.drain(..) {
                replacement.reinsert(name);
            }
        }
        (batches, looked_at)
    }

    /// Names that were taken and are not used come up again.
    fn put_back_names(&self, space: u32, pages: &[Page]) {
        let mut replacement = self.pager.replacement.lock();
        for &page in pages {
            replacement.reinsert(PageName::new(space, page));
        }
    }

    /// Begins to evict from every space that has pages to give.
    fn make_room(&mut self) -> Outcome {
        let short = self.pager.headroom_pages().cast_signed() - self.pager.room.free();
        let (batches, looked_at) = self.select((short.max(0) as usize).clamp(BATCH / 2, BATCH));
        self.looked_at += looked_at as u64;
        if looked_at == 0 {
            return Outcome::NoVictims;
        }
        if batches.is_empty() {
            // All of them were spared this time.
            return Outcome::Begun(0);
        }
        let (mut begun, mut full) = (0, false);
        for (index, mut pages) in batches {
            let Some(space) = self.pager.space(index).filter(|space| space.has_agent()) else {
                self.put_back_names(index, &pages);
                continue;
            };
            pages.sort_unstable();
            match self.begin(&space, &pages) {
                Outcome::Begun(count) => begun += count,
                Outcome::FarFull => full = true,
                Outcome::NoVictims => {}
            }
        }
        match (begun, full) {
            (0, true) if self.pager.reclaim_clean_slots(BATCH) == 0 => Outcome::FarFull,
            (0, false) => Outcome::NoVictims,
            _ => Outcome::Begun(begun),
        }
    }
}

impl Pager {
    /// Far memory is full, but some of it holds copies of pages that are also
    /// here: gives up to `want` of those slots up. Returns how many.
    pub fn reclaim_clean_slots(&self, want: usize) -> usize {
        let mut freed = 0;
        for space in self.all_spaces() {
            let mut table = space.lock();
            for (page, entry) in table.states.all() {
                if let (State::Resident, Some(slot)) = (entry.state(), entry.slot()) {
                    // The page stays protected; its next write finds it dirty already.
                    table.states.set(page, entry.with_slot(None));
                    self.slots.lock().release(slot);
                    freed += 1;
                    if freed == want {
                        return freed;
                    }
                }
            }
        }
        freed
    }
}
