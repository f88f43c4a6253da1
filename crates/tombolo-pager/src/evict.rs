//! Eviction, on a thread of its own, ahead of need, in batches: which pages, and
//! what if there is no room. How a batch leaves is in [`crate::batch`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::batch::{BATCH, Outcome};
use crate::page::State;
use crate::pager::Pager;
use crate::placement::Placement;
use crate::replacement::PageName;

/// Batches without a waiting fault after which less room is kept free.
const CALM: u32 = 64;

/// How long after a far fault the evictor stays up.
const LINGER: Duration = Duration::from_micros(100);

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
}

impl Evictor {
    /// An evictor for this pager.
    pub fn new(pager: Arc<Pager>) -> Self {
        let windowed = pager.far.window(0).is_some();
        Self { pager, message: Vec::with_capacity(16 * 1024), placement: Placement::default(), windowed }
    }

    /// Evicts whenever room is short, until the run is over.
    pub fn run(mut self) {
        let mut stuck = 0;
        let (mut calm, mut waits) = (0, 0);
        while !self.pager.stopping.load(Ordering::Relaxed) {
            if !self.is_short() && self.pager.waiting.lock().is_empty() {
                if !(self.windowed && self.linger()) {
                    self.pager.evictor.wait(Duration::from_millis(200));
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
            let outcome = if self.is_short() { self.make_room() } else { Outcome::Evicted(0) };
            match outcome {
                Outcome::Evicted(_) => stuck = 0,
                Outcome::NoVictims | Outcome::FarFull => {
                    stuck += 1;
                    // Evictions that were given up (a fork) succeed a moment later.
                    std::thread::sleep(Duration::from_micros(if stuck < 20 { 100 } else { 2_000 }));
                }
            }
            if stuck >= 50 && !self.pager.waiting.lock().is_empty() {
                self.give_up(outcome);
            } else {
                self.serve_waiting();
            }
        }
    }

    /// Stays up while pages keep coming in, giving way to everybody: they will
    /// have to go out soon. To wake this thread costs the faulting processor more
    /// than a fault does, and the kernel takes a processor that sleeps for a good
    /// place to move the program to, away from its handler. True: there is work.
    fn linger(&self) -> bool {
        let fetched = || self.pager.stats.counters.far_faults.load(Ordering::Relaxed);
        let (mut seen, mut since) = (fetched(), Instant::now());
        while !self.is_short() && self.pager.waiting.lock().is_empty() {
            std::thread::yield_now();
            let now = fetched();
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > LINGER || self.pager.stopping.load(Ordering::Relaxed) {
                return false;
            }
        }
        true
    }

    fn is_short(&self) -> bool {
        self.pager.resident.load(Ordering::Relaxed) + self.pager.headroom_pages() > self.pager.limit_pages
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

    /// No room can be made. A fault that cannot be served must not hang.
    fn give_up(&self, outcome: Outcome) {
        let next = self.pager.waiting.lock().pop_front();
        let Some(fault) = next else { return };
        let Some(space) = self.pager.space(fault.space) else { return };
        if outcome == Outcome::FarFull {
            self.pager.say_once(
                "full",
                "local and far memory are both full: the program gets SIGBUS; lend or ask for more with --remote",
            );
            self.pager.poison(&space, fault.page);
        } else {
            // Nothing here can be evicted (no agent yet, or locked pages): the limit gives way.
            self.pager.serve_beyond_limit(fault);
        }
    }

    /// Takes names from the queues until `want` of them are to go, by space and in
    /// order. Spares those that were used, or came back quickly before.
    /// Also returns how many were looked at.
    fn select(&self, want: usize) -> (BTreeMap<u32, Vec<u32>>, usize) {
        let mut batches: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let (mut found, mut looked_at) = (0, 0);
        let mut names = Vec::with_capacity(BATCH);
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
            while let Some(&PageName { space: index, .. }) = names.get(at) {
                let end = names[at..]
                    .iter()
                    .position(|name| name.space != index)
                    .map_or(names.len(), |more| at + more);
                let run = &names[at..end];
                at = end;
                let Some(space) = self.pager.space(index) else { continue };
                let mut table = space.table.lock();
                for &name in run {
                    let entry = table.get(name.page);
                    if entry.state() != State::Resident {
                        table.set(name.page, entry.with_queued(false));
                    } else if entry.is_referenced() || entry.lives() > 0 {
                        let lives = entry.lives().saturating_sub(1);
                        table.set(name.page, entry.with_referenced(false).with_lives(lives));
                        spared.push(name);
                    } else {
                        batches.entry(index).or_default().push(name.page);
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

    fn make_room(&mut self) -> Outcome {
        let short = (self.pager.resident.load(Ordering::Relaxed) + self.pager.headroom_pages())
            .saturating_sub(self.pager.limit_pages);
        let (batches, looked_at) = self.select((short as usize).clamp(BATCH / 2, BATCH));
        if looked_at == 0 {
            return Outcome::NoVictims;
        }
        if batches.is_empty() {
            // All of them were spared this time: that is progress.
            return Outcome::Evicted(0);
        }
        let (mut evicted, mut full) = (0, false);
        for (index, mut pages) in batches {
            let Some(space) = self.pager.space(index) else { continue };
            pages.sort_unstable();
            match self.evict(&space, &pages) {
                Outcome::Evicted(count) => evicted += count,
                Outcome::FarFull => full = true,
                Outcome::NoVictims => {}
            }
            self.pager.finish_pending(&space);
        }
        match (evicted, full) {
            (0, true) if self.pager.reclaim_clean_slots(BATCH) == 0 => Outcome::FarFull,
            (0, false) => Outcome::NoVictims,
            _ => Outcome::Evicted(evicted),
        }
    }
}

impl Pager {
    /// Far memory is full, but some of it holds copies of pages that are also
    /// here: gives up to `want` of those slots up. Returns how many.
    pub fn reclaim_clean_slots(&self, want: usize) -> usize {
        let mut freed = 0;
        for space in self.all_spaces() {
            let mut table = space.table.lock();
            for page in 0..table.high_water {
                let entry = table.get(page);
                if let (State::Resident, Some(slot)) = (entry.state(), entry.slot()) {
                    // The page stays protected; its next write finds it dirty already.
                    table.set(page, entry.with_slot(None));
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
