//! Eviction, on a thread of its own, ahead of need, in batches.
//!
//! A dirty page is write-protected, read out of the program, checked for
//! zeroes, saved, and only then dropped; a write in between waits until the
//! page is gone and then faults it back. A clean page is protected already and
//! its contents are stored: it is just dropped. Dropping needs the agent, and
//! one message to it drops a whole batch: with threads running, dropping pages
//! one at a time is ten times dearer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_host::process::{self, Span};
use tombolo_host::sparse::page_is_zero;
use tombolo_host::uffd::PAGE_BYTES;

use crate::page::{Entry, State};
use crate::pager::Pager;
use crate::replacement::PageName;
use crate::space::Space;
use crate::stats::Counters;

/// Pages of one batch.
const BATCH: usize = 128;

/// A page on its way out.
#[derive(Clone, Copy, Debug)]
struct Victim {
    page: u32,
    slot: Option<u32>,
    /// The slot holds the contents already.
    clean: bool,
    /// Where the contents are (or will be) in this process.
    copy: u64,
    /// Which page of the staging memory that is, where the slot has no window.
    staged: Option<u32>,
    failed: bool,
}

/// What an attempt to make room came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// So many pages are gone.
    Evicted(u64),
    /// Nothing was found to evict.
    NoVictims,
    /// Dirty pages were found, and no far page to put them in.
    FarFull,
}

/// The evictor's own memory.
pub struct Evictor {
    pager: Arc<Pager>,
    message: Vec<u8>,
}

impl Evictor {
    /// An evictor for this pager.
    pub fn new(pager: Arc<Pager>) -> Self {
        Self { pager, message: Vec::with_capacity(16 * 1024) }
    }

    /// Evicts whenever room is short, until the run is over.
    pub fn run(mut self) {
        let mut stuck = 0;
        while !self.pager.stopping.load(Ordering::Relaxed) {
            if !self.is_short() && self.pager.waiting.lock().is_empty() {
                self.pager.evictor.wait(Duration::from_millis(200));
                continue;
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

    fn is_short(&self) -> bool {
        self.pager.resident.load(Ordering::Relaxed) + self.pager.headroom_pages > self.pager.limit_pages
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

    fn make_room(&mut self) -> Outcome {
        let mut batches: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        {
            let mut replacement = self.pager.replacement.lock();
            let short = (self.pager.resident.load(Ordering::Relaxed) + self.pager.headroom_pages)
                .saturating_sub(self.pager.limit_pages);
            let count = (short as usize).clamp(BATCH / 2, BATCH);
            for _ in 0..count {
                let Some(PageName { space, page }) = replacement.pop() else { break };
                batches.entry(space).or_default().push(page);
            }
        }
        if batches.is_empty() {
            return Outcome::NoVictims;
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

    fn evict(&mut self, space: &Arc<Space>, pages: &[u32]) -> Outcome {
        let (mut victims, full) = self.claim(space, pages);
        if victims.is_empty() {
            return if full { Outcome::FarFull } else { Outcome::NoVictims };
        }
        Counters::add(&self.pager.stats.counters.batches, 1);
        self.protect(space, &mut victims);
        self.read_out(space, &mut victims);
        self.save(&mut victims);
        self.undo_failed(space, &mut victims);
        let evicted = self.drop_all(space, &victims);
        if evicted == 0 && full { Outcome::FarFull } else { Outcome::Evicted(evicted) }
    }

    /// Claims those of the pages that are to go.
    fn claim(&self, space: &Space, pages: &[u32]) -> (Vec<Victim>, bool) {
        let mut victims = Vec::with_capacity(pages.len());
        let mut full = false;
        let staging = self.pager.far.staging();
        let mut staged = 0;
        let mut table = space.table.lock();
        let mut slots = self.pager.slots.lock();
        let mut replacement = self.pager.replacement.lock();
        for &page in pages {
            let entry = table.get(page).with_queued(false);
            table.set(page, entry);
            if entry.state() != State::Resident || table.closed {
                continue;
            }
            let mut again = |entry: Entry| {
                replacement.reinsert(PageName { space: space.index, page });
                entry.with_queued(true).with_referenced(false)
            };
            if entry.is_referenced() || !space.has_agent.load(Ordering::Acquire) {
                table.set(page, again(entry));
                continue;
            }
            if let Some(slot) = entry.slot() {
                if self.pager.far.is_lost(slot) {
                    // Its contents are here only, now.
                    slots.release(slot);
                    table.set(page, again(entry.with_slot(None)));
                    continue;
                }
                self.pager.habit.observe(false);
                table.set(page, entry.with_state(State::EvictDrop));
                victims.push(Victim { page, slot: Some(slot), clean: true, copy: 0, staged: None, failed: false });
                continue;
            }
            let Some(slot) = slots.take() else {
                full = true;
                table.set(page, again(entry));
                continue;
            };
            let (copy, stage) = match self.pager.far.window(slot) {
                Some(window) => (window.address, None),
                None if staged < staging.pages => {
                    staged += 1;
                    (staging.address + u64::from(staged - 1) * PAGE_BYTES as u64, Some(staged - 1))
                }
                None => {
                    slots.release(slot);
                    table.set(page, again(entry));
                    continue;
                }
            };
            table.set(page, entry.with_state(State::EvictCopy).with_slot(Some(slot)));
            victims.push(Victim { page, slot: Some(slot), clean: false, copy, staged: stage, failed: false });
        }
        (victims, full)
    }

    /// From here on a write to a dirty victim waits.
    fn protect(&self, space: &Space, victims: &mut [Victim]) {
        let mut start = 0;
        while let Some(first) = victims.get(start).copied() {
            let mut end = start + 1;
            if first.clean {
                start = end;
                continue;
            }
            while victims.get(end).is_some_and(|next| !next.clean && next.page == first.page + (end - start) as u32) {
                end += 1;
            }
            let length = (end - start) * PAGE_BYTES;
            if space.uffd.write_protect(space.address(first.page), length, true).is_err() {
                // A fork under way, or a hole in the run: page by page.
                for victim in &mut victims[start..end] {
                    victim.failed =
                        space.uffd.write_protect(space.address(victim.page), PAGE_BYTES, true).is_err();
                }
            }
            start = end;
        }
    }

    /// Copies the dirty victims out of the program.
    fn read_out(&self, space: &Space, victims: &mut [Victim]) {
        let pid = space.pid.load(Ordering::Relaxed);
        let mut local: Vec<Span> = Vec::with_capacity(victims.len());
        let mut remote: Vec<Span> = Vec::with_capacity(victims.len());
        let mut from = 0;
        while from < victims.len() {
            local.clear();
            remote.clear();
            for victim in victims[from..].iter().filter(|victim| !victim.clean && !victim.failed) {
                extend(&mut local, victim.copy);
                extend(&mut remote, space.address(victim.page));
            }
            if local.is_empty() {
                return;
            }
            // SAFETY: the local ranges are far windows or the bounce buffer, which
            // no reference points into, and whose slots belong to these victims.
            let mut bytes = unsafe { process::read_memory(pid, &local, &remote) }.unwrap_or(0);
            // The first page that was not read whole cannot be: it stays.
            let mut stopped = None;
            for (index, victim) in victims.iter_mut().enumerate().skip(from) {
                if victim.clean || victim.failed {
                    continue;
                }
                if bytes < PAGE_BYTES {
                    victim.failed = true;
                    stopped = Some(index + 1);
                    break;
                }
                bytes -= PAGE_BYTES;
            }
            let Some(next) = stopped else { return };
            from = next;
        }
    }

    /// Gives the slots of zero pages back, and sends the others where there is no window.
    fn save(&self, victims: &mut [Victim]) {
        let counters = &self.pager.stats.counters;
        let mut send = Vec::new();
        for victim in victims.iter_mut().filter(|victim| !victim.clean && !victim.failed) {
            let Some(slot) = victim.slot else { continue };
            // SAFETY: a page of a window or of the bounce buffer, just written.
            if unsafe { page_is_zero(victim.copy) } {
                self.pager.slots.lock().release(slot);
                victim.slot = None;
                Counters::add(&counters.zero_drops, 1);
                continue;
            }
            Counters::add(&counters.pages_out, 1);
            send.extend(victim.staged.map(|staged| (slot, staged)));
        }
        if send.is_empty() {
            return;
        }
        if self.pager.far.write(&send).is_err() {
            for victim in victims.iter_mut().filter(|victim| victim.staged.is_some() && victim.slot.is_some()) {
                victim.failed = true;
            }
        }
    }

    /// Victims that could not be saved stay what they were.
    fn undo_failed(&self, space: &Arc<Space>, victims: &mut Vec<Victim>) {
        if !victims.iter().any(|victim| victim.failed) {
            return;
        }
        let mut waiters = Vec::new();
        let mut freed = 0;
        {
            let mut table = space.table.lock();
            for victim in victims.iter().filter(|victim| victim.failed) {
                Counters::add(&self.pager.stats.counters.evictions_undone, 1);
                if let Some(slot) = victim.slot {
                    self.pager.slots.lock().release(slot);
                }
                let entry = table.get(victim.page);
                waiters.extend(entry.has_waiter().then_some(victim.page));
                let entry = if entry.is_discarded() {
                    freed += 1;
                    Entry(0)
                } else {
                    entry.with_slot(None).with_state(State::Resident).with_waiter(false).with_queued(true)
                };
                if entry.is_queued() {
                    let name = PageName { space: space.index, page: victim.page };
                    self.pager.replacement.lock().reinsert(name);
                }
                if !table.closed {
                    table.set(victim.page, entry);
                }
            }
        }
        self.pager.unreserve(space, freed);
        for page in waiters {
            // They find the page as it is and fault again if they must.
            let _ = space.uffd.wake(space.address(page), PAGE_BYTES);
        }
        victims.retain(|victim| !victim.failed);
    }

    /// Unmaps the saved victims and settles their entries.
    fn drop_all(&mut self, space: &Arc<Space>, victims: &[Victim]) -> u64 {
        if victims.is_empty() {
            return 0;
        }
        {
            let mut table = space.table.lock();
            if table.closed {
                return 0;
            }
            for victim in victims.iter().filter(|victim| !victim.clean) {
                let entry = table.get(victim.page).with_slot(victim.slot).with_state(State::EvictDrop);
                table.set(victim.page, entry);
            }
        }
        let mut spans: Vec<(u32, u32)> = Vec::with_capacity(victims.len());
        for victim in victims {
            match spans.last_mut() {
                Some((first, count)) if *first + *count == victim.page => *count += 1,
                _ => spans.push((victim.page, 1)),
            }
        }
        if let Err(error) = space.drop_pages(&spans, &mut self.message) {
            // The pages are saved and protected; whether they are still mapped is
            // not known, and nothing here depends on it (see `Space::inherit`).
            if !matches!(error.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset) {
                self.pager.say_once("drop", &format!("pages could not be dropped: {error}; they stay in local memory"));
            }
        }
        self.settle(space, victims)
    }

    fn settle(&self, space: &Arc<Space>, victims: &[Victim]) -> u64 {
        let counters = &self.pager.stats.counters;
        let mut waiters = Vec::new();
        {
            let mut table = space.table.lock();
            if table.closed {
                return 0;
            }
            let mut slots = self.pager.slots.lock();
            let mut replacement = self.pager.replacement.lock();
            replacement.advance(victims.len() as u64);
            let age = replacement.age();
            for victim in victims {
                let entry = table.get(victim.page);
                waiters.extend(entry.has_waiter().then_some(victim.page));
                let slot = victim.slot;
                let gone = if entry.is_discarded() {
                    if let Some(slot) = slot {
                        slots.release(slot);
                    }
                    Entry(0)
                } else {
                    let state = if slot.is_some() { State::Remote } else { State::Untouched };
                    Entry(0).with_state(state).with_slot(slot).with_age(age)
                };
                table.set(victim.page, gone.with_queued(entry.is_queued()));
                Counters::add(&counters.clean_drops, u64::from(victim.clean));
            }
        }
        self.pager.unreserve(space, victims.len() as u64);
        for page in waiters {
            let _ = space.uffd.wake(space.address(page), PAGE_BYTES);
        }
        victims.len() as u64
    }
}

/// Adds a page to a list of spans, joining it to the last where they touch.
fn extend(spans: &mut Vec<Span>, address: u64) {
    match spans.last_mut() {
        Some(last) if last.address + last.length == address => last.length += PAGE_BYTES as u64,
        _ => spans.push(Span { address, length: PAGE_BYTES as u64 }),
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
