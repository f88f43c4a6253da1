//! Serving faults: decide under the table's lock, act without it, settle under
//! it again.
//!
//! Events are *read* under the lock, too. The kernel refuses to map pages from
//! the moment a fork begins to copy page tables until its event is read, so at
//! that moment, with the lock held, the table says what the child has.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::MutexGuard;
use tombolo_host::uffd::{Event, PAGE_BYTES, UffdError, Userfaultfd};
use tombolo_node::FarEvent;

use crate::page::{Entry, State};
use crate::pager::{Fault, Pager};
use crate::prefetch::TOUCH_MAX;
use crate::protocol::RESERVED_PAGES;
use crate::space::{Space, Table};
use crate::stats::Counters;

/// Pages mapped for a first touch along a run even where room is short.
const TOUCH_CROWDED: u64 = 16;

/// Pages to map from consecutive memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    pub(crate) page: u32,
    pub(crate) count: u32,
    pub(crate) source: u64,
    /// Map write-protected: the slot stays valid until the first write.
    pub(crate) protect: bool,
}

/// What a fault needs, decided under the lock.
enum Plan {
    Nothing,
    /// The page should be present; if it is not, the program dropped it behind our back.
    Probe,
    Zero(Run),
    /// The page that is waited for is in the first.
    Copy(Run, Vec<Run>),
    Sent,
    Unprotect,
    Poison,
    Doorbell,
}

/// What [`Pager::serve_next`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// No event.
    Nothing,
    /// An event that is no fault.
    Event,
    /// A fault of this thread.
    Fault(u32),
}

fn ticket(space: &Space, page: u32) -> u64 {
    u64::from(space.index) << 32 | u64::from(page)
}

impl Pager {
    /// Reads and serves the next event of a space.
    pub fn serve_next(&self, space: &Arc<Space>) -> Served {
        let table = space.table.lock();
        if table.closed {
            return Served::Nothing;
        }
        match space.uffd.read_event() {
            Ok(Some(Event::Fault { address, write, write_protected, thread })) => {
                let Some(page) = space.page_at(address) else { return Served::Event };
                let fault = Fault {
                    space: space.index,
                    page,
                    write,
                    protected: write_protected,
                    thread,
                    since: Instant::now(),
                };
                self.serve(space, table, fault);
                Served::Fault(thread)
            }
            Ok(Some(Event::Fork(uffd))) => {
                self.adopt(space, &table, uffd);
                Served::Event
            }
            Ok(Some(Event::Remap { .. } | Event::Unknown(_))) => Served::Event,
            Ok(None) | Err(_) => Served::Nothing,
        }
    }

    /// Serves a fault that was read earlier.
    pub fn serve_again(&self, fault: Fault) {
        if let Some(space) = self.space(fault.space) {
            let table = space.table.lock();
            self.serve(&space, table, fault);
        }
    }

    /// Serves the faults that somebody read while busy with another one.
    pub fn serve_deferred(&self) {
        loop {
            let next = self.deferred.lock().pop_front();
            match next {
                Some(fault) => self.serve_again(fault),
                None => return,
            }
        }
    }

    fn serve(&self, space: &Arc<Space>, mut table: MutexGuard<'_, Table>, fault: Fault) {
        if table.closed {
            return;
        }
        let plan = self.decide(space, &mut table, fault);
        drop(table);
        Counters::add(&self.stats.counters.faults, 1);
        let page = fault.page;
        match plan {
            Plan::Nothing => {}
            Plan::Sent => self.far.flush(),
            Plan::Probe => {
                let run = Run { page, count: 1, source: self.zeroes.address(), protect: false };
                self.map(space, run, false);
            }
            Plan::Zero(run) => self.map(space, run, true),
            Plan::Copy(first, ahead) => {
                self.map(space, first, true);
                self.stats.far_fault(fault.since.elapsed());
                for run in ahead {
                    self.map(space, run, true);
                }
            }
            Plan::Unprotect => self.unprotect(space, page),
            Plan::Poison => self.poison(space, page),
            Plan::Doorbell => self.answer_doorbell(space, fault.thread),
        }
    }

    fn decide(&self, space: &Arc<Space>, table: &mut Table, fault: Fault) -> Plan {
        let page = fault.page;
        if page == 0 {
            return Plan::Doorbell;
        }
        if (page as usize) < RESERVED_PAGES {
            return Plan::Probe;
        }
        let entry = table.get(page);
        match entry.state() {
            State::Lost => Plan::Poison,
            State::EvictCopy if entry.is_kept() && !fault.protected => Plan::Probe,
            State::EvictCopy | State::EvictDrop => {
                Counters::add(&self.stats.counters.eviction_waits, 1);
                table.set(page, entry.with_waiter(true));
                Plan::Nothing
            }
            // Mapped for reading a moment ago, and not settled yet: a writer came too early.
            State::Installing if fault.protected => {
                table.set(page, entry.with_waiter(true));
                Plan::Nothing
            }
            // Whoever maps it wakes everybody.
            State::Installing => Plan::Nothing,
            State::Fetching => {
                table.set(page, entry.with_writable(entry.is_writable() || fault.write));
                Plan::Nothing
            }
            State::Resident | State::Untouched | State::Remote if fault.protected => Plan::Unprotect,
            State::Resident => Plan::Probe,
            State::Untouched => self.plan_zero(space, table, fault),
            State::Remote => self.plan_fetch(space, table, fault, entry),
        }
    }

    /// A first touch.
    fn plan_zero(&self, space: &Arc<Space>, table: &mut Table, fault: Fault) -> Plan {
        let page = fault.page;
        let (mut first, mut count) = table.touches.touch(page);
        // What runs ahead of the program must not push out what it uses.
        let free =
            self.limit_pages.saturating_sub(self.resident.load(Ordering::Relaxed) + self.headroom_pages());
        let most = (free / 4).clamp(TOUCH_CROWDED, u64::from(TOUCH_MAX)) as u32;
        if count > most {
            if first < page {
                first += count - most;
            }
            count = most;
        }
        let untouched = |table: &Table, page: u32| {
            page as usize >= RESERVED_PAGES
                && table
                    .find(i64::from(page), space.pages)
                    .is_some_and(|(_, entry)| entry.state() == State::Untouched)
        };
        while first < page && !(first..page).all(|page| untouched(table, page)) {
            first += 1;
            count -= 1;
        }
        count = (0..count).take_while(|&step| untouched(table, first + step)).count() as u32;
        let granted = self.reserve_for(space, fault, u64::from(count)) as u32;
        if granted == 0 {
            return self.wait_for_room(fault);
        }
        // The page that is waited for is the last one of a run downwards.
        if first < page {
            first += count - granted;
        }
        table.touches.mapped(page, first, granted);
        for page in first..first + granted {
            let entry = table.get(page);
            table.set(page, entry.with_state(State::Installing));
        }
        Counters::add(&self.stats.counters.zero_faults, 1);
        Counters::add(&self.stats.counters.zero_pages, u64::from(granted));
        Plan::Zero(Run { page: first, count: granted, source: self.zeroes.address(), protect: false })
    }

    /// A page that is in far memory.
    fn plan_fetch(&self, space: &Arc<Space>, table: &mut Table, fault: Fault, entry: Entry) -> Plan {
        let Some(slot) = entry.slot() else { return Plan::Poison };
        if self.far.is_lost(slot) {
            table.set(fault.page, entry.with_state(State::Lost));
            return Plan::Poison;
        }
        if self.reserve_for(space, fault, 1) == 0 {
            return self.wait_for_room(fault);
        }
        Counters::add(&self.stats.counters.far_faults, 1);
        let protect = !fault.write && self.habit.protect();
        let ahead = table.prefetch.fault(fault.page);
        let windowed = self.far.window(slot).is_some();
        let mut first = Run::default();
        // Allocates only when pages are fetched ahead.
        let mut more: Vec<Run> = Vec::new();
        let mut taken = 0u64;
        for step in 0..=i64::from(ahead.count) {
            let Some((page, entry)) = table.find(i64::from(fault.page) + ahead.stride * step, space.pages)
            else {
                break;
            };
            let Some(slot) = entry.slot().filter(|_| entry.state() == State::Remote) else { continue };
            if step > 0 {
                let room =
                    self.resident.load(Ordering::Relaxed) + self.headroom_pages() / 4 < self.limit_pages;
                if self.far.is_lost(slot) || !room || self.reserve(space, 1) == 0 {
                    break;
                }
                Counters::add(&self.stats.counters.prefetched_pages, 1);
            }
            taken += 1;
            if !windowed {
                table.set(page, entry.with_state(State::Fetching).with_writable(!protect));
                self.far.read(slot, ticket(space, page), (step == 0).then_some(fault.since));
                continue;
            }
            let Some(window) = self.far.window(slot) else {
                self.unreserve(space, 1);
                break;
            };
            table.set(page, entry.with_state(State::Installing));
            let run = more.last_mut().unwrap_or(&mut first);
            let follows = run.page + run.count == page
                && run.source + u64::from(run.count) * PAGE_BYTES as u64 == window.address;
            if follows {
                run.count += 1;
            } else {
                let run = Run { page, count: 1, source: window.address, protect };
                if step == 0 { first = run } else { more.push(run) }
            }
        }
        Counters::add(&self.stats.counters.pages_in, taken);
        if windowed { Plan::Copy(first, more) } else { Plan::Sent }
    }

    /// Serves a fault even though there is no room: nothing could be evicted.
    pub fn serve_beyond_limit(&self, fault: Fault) {
        self.overdraft.fetch_add(1, Ordering::Relaxed);
        self.serve_again(fault);
    }

    /// Claims room for up to `want` pages. The agent is never refused: an
    /// eviction may be waiting for it.
    fn reserve_for(&self, space: &Space, fault: Fault, want: u64) -> u64 {
        let granted = self.reserve(space, want);
        if granted > 0 || fault.thread != space.agent_thread.load(Ordering::Relaxed) {
            return granted;
        }
        self.overdraft.fetch_add(1, Ordering::Relaxed);
        self.reserve(space, 1)
    }

    fn wait_for_room(&self, fault: Fault) -> Plan {
        Counters::add(&self.stats.counters.room_waits, 1);
        self.widen_headroom();
        self.waiting.lock().push_back(fault);
        self.evictor.ring();
        Plan::Nothing
    }

    /// Maps the pages of a run. `claimed`: their entries say *Installing* and
    /// room was reserved for them; otherwise this only probes for holes.
    pub(crate) fn map(&self, space: &Arc<Space>, run: Run, claimed: bool) {
        let mut done = 0u32;
        while done < run.count {
            let page = run.page + done;
            let offset = u64::from(done) * PAGE_BYTES as u64;
            let rest = (run.count - done) as usize * PAGE_BYTES;
            let (mapped, error) =
                match space.uffd.copy(space.address(page), run.source + offset, rest, run.protect) {
                    Ok(bytes) => (bytes, None),
                    Err(UffdError::Again(bytes)) => (bytes, Some(UffdError::Again(0))),
                    Err(UffdError::Exists(bytes)) => (bytes, Some(UffdError::Exists(0))),
                    Err(other) => (0, Some(other)),
                };
            let mapped = (mapped / PAGE_BYTES) as u32;
            if claimed && mapped > 0 {
                self.settle(space, page, mapped, run.protect);
            }
            done += mapped;
            let Some(error) = error else { continue };
            let page = run.page + done;
            match error {
                UffdError::Again(_) => self.read_past_change(space),
                UffdError::Exists(_) => {
                    // Present, by whatever way: nothing is known of its contents but that they are the program's.
                    if claimed {
                        self.settle(space, page, 1, false);
                    }
                    let _ = space.uffd.wake(space.address(page), PAGE_BYTES);
                    done += 1;
                }
                UffdError::Gone => return,
                other => {
                    self.map_failed(space, page, run.count - done, claimed, &other);
                    return;
                }
            }
        }
    }

    /// Pages are mapped: their entries say so from now on.
    fn settle(&self, space: &Arc<Space>, first: u32, count: u32, protect: bool) {
        let mut table = space.table.lock();
        if table.closed {
            return;
        }
        for page in first..first + count {
            let entry = table.get(page);
            if entry.state() != State::Installing {
                continue;
            }
            if entry.has_waiter() {
                let _ = space.uffd.wake(space.address(page), PAGE_BYTES);
            }
            let evicted_at = entry.slot().map(|_| entry.age());
            let mut settled = entry.with_state(State::Resident).with_writable(false).with_waiter(false);
            if !protect && let Some(slot) = entry.slot() {
                self.slots.lock().release(slot);
                settled = settled.with_slot(None);
            }
            table.set(page, self.queue(space, page, settled, evicted_at));
        }
    }

    /// Pages could not be mapped.
    fn map_failed(&self, space: &Arc<Space>, first: u32, count: u32, claimed: bool, error: &UffdError) {
        if claimed {
            let mut table = space.table.lock();
            for page in first..first + count {
                let entry = table.get(page);
                let back = if entry.slot().is_some() { State::Remote } else { State::Untouched };
                table.set(page, entry.with_state(back).with_waiter(false));
                if entry.has_waiter() {
                    let _ = space.uffd.wake(space.address(page), PAGE_BYTES);
                }
            }
            drop(table);
            self.unreserve(space, u64::from(count));
        }
        match error {
            // Unmapped in the meantime: whoever waits faults again, and finds what is there now.
            UffdError::NotMapped => {
                let _ = space.uffd.wake(space.address(first), count as usize * PAGE_BYTES);
            }
            other => {
                self.say_once(
                    "map",
                    &format!("a page could not be mapped ({other}); the program gets SIGBUS"),
                );
                self.poison(space, first);
            }
        }
    }

    /// The address space is changing: the event that ends the change may be ours
    /// to read. Faults read on the way are served later.
    fn read_past_change(&self, space: &Arc<Space>) {
        let table = space.table.lock();
        match space.uffd.read_event() {
            Ok(Some(Event::Fork(uffd))) => self.adopt(space, &table, uffd),
            Ok(Some(Event::Fault { address, write, write_protected, thread })) => {
                if let Some(page) = space.page_at(address) {
                    let since = Instant::now();
                    let fault =
                        Fault { space: space.index, page, write, protected: write_protected, thread, since };
                    self.deferred.lock().push_back(fault);
                }
            }
            _ => {
                drop(table);
                std::thread::yield_now();
            }
        }
    }

    /// A write to a protected page. The protection comes off under the lock: an
    /// eviction relies on it from the moment it has claimed the page.
    fn unprotect(&self, space: &Arc<Space>, page: u32) {
        loop {
            let mut table = space.table.lock();
            let entry = table.get(page);
            match entry.state() {
                State::Resident => {
                    if let Some(slot) = entry.slot() {
                        // From now on the page may differ from its slot.
                        Counters::add(&self.stats.counters.write_faults, 1);
                        self.habit.observe(true);
                        self.slots.lock().release(slot);
                    }
                    table.set(page, entry.with_slot(None).with_referenced(true));
                }
                // Whoever ends this state wakes the writer.
                State::EvictCopy | State::EvictDrop | State::Installing => {
                    table.set(page, entry.with_waiter(true));
                    return;
                }
                // Mapping it wakes everybody.
                State::Fetching => return,
                // An old event, or a page that a fork left mapped (see `Space::inherit`).
                State::Untouched | State::Remote | State::Lost => {}
            }
            let protection = space.uffd.write_protect(space.address(page), PAGE_BYTES, false);
            drop(table);
            match protection {
                Err(UffdError::Again(_)) => self.read_past_change(space),
                Err(_) => {
                    let _ = space.uffd.wake(space.address(page), PAGE_BYTES);
                    return;
                }
                Ok(()) => return,
            }
        }
    }

    /// A page that cannot be served raises SIGBUS from now on.
    pub fn poison(&self, space: &Arc<Space>, page: u32) {
        {
            let mut table = space.table.lock();
            let entry = table.get(page);
            if let Some(slot) = entry.slot() {
                self.slots.lock().release(slot);
            }
            table.set(page, entry.with_slot(None).with_state(State::Lost));
        }
        loop {
            match space.uffd.poison(space.address(page), PAGE_BYTES) {
                Err(UffdError::Again(_)) => self.read_past_change(space),
                Err(UffdError::Exists(_)) => {
                    let _ = space.uffd.wake(space.address(page), PAGE_BYTES);
                    return;
                }
                _ => return,
            }
        }
    }

    /// Far memory has something to say.
    pub fn far_event(&self, event: FarEvent) {
        match event {
            FarEvent::Arrived { ticket, address, since } => self.arrived(ticket, address, since),
            FarEvent::PathLost { address, reason } => self.path_gone(&address, &reason),
            FarEvent::LenderLost { lender, reason } => self.lender_gone(&lender, &reason),
        }
    }

    /// A read of far memory has ended; `source` is where the page is. `since` then a thread has waited for it.
    fn arrived(&self, ticket: u64, source: Option<u64>, since: Option<Instant>) {
        let Some(space) = self.space((ticket >> 32) as u32) else { return };
        let page = ticket as u32;
        let protect = {
            let mut table = space.table.lock();
            let entry = table.get(page);
            if table.closed || entry.state() != State::Fetching {
                // The space has ended.
                let _ = space.uffd.wake(space.address(page), PAGE_BYTES);
                return;
            }
            if source.is_none() {
                table.set(page, entry.with_state(State::Remote));
            } else {
                table.set(page, entry.with_state(State::Installing));
            }
            !entry.is_writable()
        };
        let Some(source) = source else {
            self.unreserve(&space, 1);
            self.poison(&space, page);
            return;
        };
        self.map(&space, Run { page, count: 1, source, protect }, true);
        if let Some(since) = since {
            self.stats.far_fault(since.elapsed());
        }
    }

    /// The process forked: the child starts with its parent's table.
    fn adopt(&self, parent: &Arc<Space>, table: &Table, uffd: Userfaultfd) {
        Counters::add(&self.stats.counters.forks, 1);
        let bytes = u64::from(parent.pages) * PAGE_BYTES as u64;
        let made = self.add_space(|index| Space::new(index, 0, uffd, parent.arena, bytes, parent.request));
        let child = match made {
            Ok(child) => child,
            Err(error) => {
                (self.notify)(&format!("a forked child cannot be served: {error}"));
                return;
            }
        };
        let mut slots = self.slots.lock();
        let resident = child.inherit(table, |slot| slots.share(slot));
        drop(slots);
        self.resident.fetch_add(resident, Ordering::Relaxed);
        {
            let mut table = child.table.lock();
            for page in 0..table.high_water {
                let entry = table.get(page);
                if entry.state() == State::Resident {
                    let queued = self.queue(&child, page, entry, None);
                    table.set(page, queued);
                }
            }
        }
        self.evictor.ring();
    }
}
