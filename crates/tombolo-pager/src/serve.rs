//! Serves faults.
//!
//! Pages are mapped according to the table after the last change of the address space. If the kernel says *again*, the next
//! event is read and the fault is decided anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use smallvec::SmallVec;
use tombolo_core::pager::{Access, Decision, PAGE_BYTES, Page, Spare, State};
use tombolo_core::store::{Gone, Store};
use tombolo_host::uffd::UffdError;

use crate::arrive::ticket;
use crate::events::{Deferred, Fault};
use crate::pager::Pager;
use crate::space::{Space, Table};
use crate::stats::{Counters, Stats};

/// Pages that a first touch maps while its thread waits, some 30 us.
const FIRST_PIECE: u32 = 16;
/// Pages mapped under one lock of the table, some 90 us.
pub(crate) const PIECE: u32 = 64;

/// Neighbours of a far page that are fetched ahead without an allocation.
const AHEAD: usize = 64;

/// Times that one fault is decided anew at once because the address space is changing.
pub(crate) const CHANGES_MAX: u32 = 8;

/// Result of an attempt to serve a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The fault is served, or will be when the operation that it waits for ends.
    Done,
    /// The address space is changing: the fault has to be decided anew.
    Again,
}

/// Result of taking a page back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TookBack {
    /// The page is mapped.
    Yes,
    /// The address space is changing.
    Again,
    /// The page cannot be mapped. Threads that wait for it are woken, now or at the end of its eviction.
    No,
}

/// Why a far page was neither mapped nor sent for.
#[derive(Debug)]
pub(crate) enum NotBrought {
    /// No lender has it any more.
    Lost,
    /// The kernel did not map it.
    Refused(UffdError),
}

impl From<UffdError> for NotBrought {
    fn from(error: UffdError) -> Self {
        Self::Refused(error)
    }
}

/// The part of the `count` pages from `first` on that lies in the aligned block of `size` pages around `page`. `size` is a
/// power of two.
fn around(page: Page, (first, count): (Page, u32), size: u32) -> (Page, u32) {
    let block = page & !u64::from(size - 1);
    let from = block.max(first);
    let end = (block + u64::from(size)).min(first + u64::from(count));
    (from, (end - from) as u32)
}

/// The part of a block that lies in the mapping of this page. A neighbouring mapping may be one that the program cannot use
/// (`PROT_NONE`). And if the pager asks the kernel to map pages of a neighbouring mapping that has none yet, the kernel
/// never merges the two mappings again, even if it refuses: `mremap` of both fails then. If the ends of the mapping cannot
/// be read, the part begins with the page.
fn within_mapping(space: &Space, page: Page, (first, count): (Page, u32)) -> (Page, u32) {
    let mapping = space.memory().and_then(|memory| memory.mapping_around(Space::address(page)));
    let block_end = first + u64::from(count);
    let (low, high) =
        mapping.map_or((page, block_end), |(start, end)| (start / PAGE_BYTES, end / PAGE_BYTES));
    let (first, end) = (first.max(low).min(page), block_end.min(high).max(page + 1));
    (first, (end - first) as u32)
}

impl Pager {
    /// Serves a fault. Returns whether far memory has something to send.
    pub(crate) fn serve(&self, space: &Arc<Space>, table: &mut Table, fault: Fault) -> bool {
        Counters::add(&self.stats.counters.faults, 1);
        for _ in 0..CHANGES_MAX {
            if table.closed {
                return false;
            }
            match self.try_serve(space, table, fault) {
                Step::Done => return std::mem::take(&mut table.to_send),
                Step::Again => {
                    if !self.read_change(space, table) {
                        break;
                    }
                }
            }
        }
        self.deferred.lock().push_back(Deferred::Fault(fault));
        std::mem::take(&mut table.to_send)
    }

    fn try_serve(&self, space: &Arc<Space>, table: &mut Table, fault: Fault) -> Step {
        let page = fault.page;
        // Events give a thread's number in its own pid namespace, so a thread of the program may have the evictor's number.
        let is_evictor = fault.thread == self.evictor_thread.load(Ordering::Relaxed)
            && space.is_read.load(Ordering::Acquire);
        if let Some(index) = space.control_page(page) {
            return self.serve_control(space, table, index, fault.thread, is_evictor);
        }
        let agent = space.agent().is_some_and(|agent| agent.own_pid == fault.thread);
        // An eviction waits for the agent and for the evictor, and room waits for the eviction.
        let agent = agent || is_evictor;
        let access = Access { write: fault.write, protected: fault.protected, agent };
        match table.states.decide(page, access) {
            Decision::Wait => {
                let state = table.states.get(page).state();
                let is_evicted = matches!(state, State::EvictCopy | State::EvictDrop);
                Counters::add(&self.stats.counters.eviction_waits, u64::from(is_evicted));
                if is_evicted || state == State::Fetching {
                    Stats::waits(table, page, fault.since);
                }
                Step::Done
            }
            Decision::TakeBack(began) => match self.take_back(space, table, began) {
                TookBack::Yes => {
                    self.stats.pause(fault.since.elapsed());
                    Step::Done
                }
                TookBack::Again => Step::Again,
                TookBack::No => Step::Done,
            },
            Decision::Zero => self.zero(space, table, fault, agent),
            Decision::ZeroAgain => self.zero_again(space, table, page),
            Decision::Fetch(slot) => self.fetch(space, table, fault, slot, agent),
            Decision::FetchAgain(slot) => self.fetch_again(space, table, fault, slot),
            Decision::Unprotect => self.unprotect(space, table, page),
            Decision::Copy(frame) => self.copy_shared(space, table, fault, frame),
            Decision::SharedAgain => {
                if self.shared_is_absent(space, table, page) {
                    return self.try_serve(space, table, fault);
                }
                Step::Done
            }
            Decision::Poison => self.poison_now(space, table, page),
        }
    }

    /// Serves a first touch: maps a few pages around this one as well. The rest of its block is mapped while no fault
    /// waits.
    fn zero(&self, space: &Arc<Space>, table: &mut Table, fault: Fault, agent: bool) -> Step {
        let page = fault.page;
        if !agent {
            table.states.asked_for(page);
        }
        let spare = self.room.spare(&space.account, self.headroom_pages());
        let beside = table.states.known_beside(page);
        // For the agent and the evictor, only the page itself is mapped.
        let block = if agent { (page, 1) } else { table.touches.block(page, beside, spare) };
        let block = if block.1 > 1 { within_mapping(space, page, block) } else { block };
        let nearest = around(page, block, FIRST_PIECE);
        let (mut first, mut count) = table.states.touched_with(page, nearest.0, nearest.1);
        let granted = self.reserve_for(space, agent, u64::from(count)) as u32;
        if granted == 0 {
            self.wait_for_room(fault);
            return Step::Done;
        }
        if granted < count {
            // The page itself is among them.
            first = first.max((page + 1).saturating_sub(u64::from(granted)));
            count = granted;
        }
        let wanted = count;
        let mut mapped = self.map_zeroes(space, table, first, count);
        while matches!(mapped, Err(UffdError::NotMapped)) && count > 1 {
            // The pages reach beyond the mapping.
            let fewer = around(page, (first, count), count.next_power_of_two() / 2);
            self.unreserve(space, u64::from(count - fewer.1));
            (first, count) = fewer;
            mapped = self.map_zeroes(space, table, first, count);
        }
        if let Ok(pages) = mapped
            && !(first..first + u64::from(pages)).contains(&page)
        {
            // A page between the mapped ones and this one is present, however it came there. So the page that the thread
            // asked for is mapped alone.
            table.states.grow(first, first + u64::from(pages));
            Counters::add(&self.stats.counters.zero_pages, u64::from(pages));
            self.unreserve(space, u64::from(count - pages) - 1);
            (first, count) = (page, 1);
            mapped = self.map_zeroes(space, table, page, 1);
        } else if matches!(mapped, Err(UffdError::Exists(_))) && first < page {
            self.unreserve(space, u64::from(count) - 1);
            (first, count) = (page, 1);
            mapped = self.map_zeroes(space, table, page, 1);
        }
        match mapped {
            Ok(pages) => {
                self.unreserve(space, u64::from(count - pages));
                let end = first + u64::from(pages);
                table.states.grow(first, end);
                self.stats.late_fault(fault.since);
                Counters::add(&self.stats.counters.zero_faults, 1);
                Counters::add(&self.stats.counters.zero_pages, u64::from(pages));
                table.touches.went_on(beside);
                if pages == wanted && block.1 > nearest.1 && spare == Spare::Ample {
                    table.states.put_off(page, block.0, block.0 + u64::from(block.1));
                }
                Step::Done
            }
            Err(error) => {
                self.unreserve(space, u64::from(count));
                match error {
                    UffdError::Again(_) => Step::Again,
                    UffdError::Exists(_) if table.states.may_have_guard(page) => {
                        space.wake_later(table, page, 1);
                        Step::Done
                    }
                    UffdError::Exists(_) => self.found_present(space, table, page, agent),
                    other => self.map_failed(space, table, page, &other),
                }
            }
        }
    }

    /// Maps the next pages that first touches have put off. Returns `false` if there are none or they cannot be mapped now.
    pub(crate) fn go_on_touching(&self, space: &Arc<Space>, table: &mut Table) -> bool {
        if table.closed || self.room.spare(&space.account, self.headroom_pages()) != Spare::Ample {
            table.states.forget_put_off();
            return false;
        }
        let Some((first, count)) = table.states.next_put_off(PIECE) else { return false };
        // The mapping may have been split since.
        let mapping = space.memory().and_then(|memory| memory.mapping_around(Space::address(first)));
        let pages = mapping.map_or(0, |(_, end)| end / PAGE_BYTES - first).min(u64::from(count)) as u32;
        if pages == 0 {
            return true;
        }
        let count = pages;
        let granted = self.reserve(space, u64::from(count)) as u32;
        let mapped = if granted == 0 { Ok(0) } else { self.map_zeroes(space, table, first, granted) };
        let pages = *mapped.as_ref().unwrap_or(&0);
        self.unreserve(space, u64::from(granted - pages));
        Counters::add(&self.stats.counters.zero_pages, u64::from(pages));
        // Other errors are found when a thread asks for these pages.
        let is_changing = matches!(mapped, Err(UffdError::Again(_)));
        if is_changing {
            table.states.put_off(first, first, first + u64::from(count));
        }
        !is_changing && granted > 0
    }

    /// Handles a page that is present although the table says that it is absent. From now on it counts.
    fn found_present(&self, space: &Arc<Space>, table: &mut Table, page: Page, agent: bool) -> Step {
        if self.reserve_for(space, agent, 1) > 0 {
            table.states.found_present(page, &mut self.far.slots());
            self.queue(space, table, page, None);
        }
        space.wake_later(table, page, 1);
        Step::Done
    }

    /// Maps zero pages. Returns how many were mapped, at least one. The error `Exists`: the first page was present.
    fn map_zeroes(
        &self,
        space: &Arc<Space>,
        table: &mut Table,
        first: Page,
        count: u32,
    ) -> Result<u32, UffdError> {
        let mapped = if table.states.may_have_guard(first) {
            space.map_zero(table, first)
        } else {
            space.map(table, first, self.zeroes.address(), count, false)
        };
        let bytes = match mapped {
            Ok(bytes) => bytes,
            // Some pages were mapped, which is enough for now.
            Err(UffdError::Again(bytes) | UffdError::Exists(bytes)) if bytes > 0 => bytes,
            Err(error) => return Err(error),
        };
        let pages = (bytes as u64 / PAGE_BYTES) as u32;
        for page in first..first + u64::from(pages) {
            table.states.mapped(page, false, &mut self.far.slots());
            self.queue(space, table, page, None);
        }
        Ok(pages)
    }

    /// Maps a zero page where the page has room already and was found absent.
    fn zero_again(&self, space: &Arc<Space>, table: &mut Table, page: Page) -> Step {
        // A page that is being copied where it is mapped must not be written to.
        let protect = table.states.get(page).is_kept();
        let mapped = if table.states.may_have_guard(page) {
            if protect {
                // The call that respects guards maps writable pages only, so this fault waits until the copy has been made.
                return Step::Again;
            }
            space.map_zero(table, page)
        } else {
            space.map(table, page, self.zeroes.address(), 1, protect)
        };
        match mapped {
            Ok(_) => {
                Counters::add(&self.stats.counters.unseen_drops, 1);
                if table.states.get(page).state() == State::Resident {
                    table.states.mapped(page, false, &mut self.far.slots());
                    self.queue(space, table, page, None);
                } else {
                    table.states.zeroed(page);
                }
                Step::Done
            }
            Err(UffdError::Again(_)) => Step::Again,
            Err(UffdError::Exists(_)) => {
                // Two threads have asked for the page.
                space.wake_later(table, page, 1);
                Step::Done
            }
            Err(error) => self.map_failed(space, table, page, &error),
        }
    }

    /// Serves a fault on a page that is in far memory.
    fn fetch(&self, space: &Arc<Space>, table: &mut Table, fault: Fault, slot: u32, agent: bool) -> Step {
        let page = fault.page;
        if self.reserve_for(space, agent, 1) == 0 {
            if self.far.slots().is_lost(slot) {
                return self.poison_lost(space, table, page);
            }
            self.wait_for_room(fault);
            return Step::Done;
        }
        let protect = !fault.write && self.habit.protect();
        match self.bring(space, table, page, slot, protect, Some(fault.since)) {
            Ok(()) => {}
            Err(error) => {
                self.unreserve(space, 1);
                return match error {
                    NotBrought::Lost => self.poison_lost(space, table, page),
                    NotBrought::Refused(UffdError::Again(_)) => Step::Again,
                    NotBrought::Refused(UffdError::Exists(_)) => {
                        self.found_present(space, table, page, agent)
                    }
                    NotBrought::Refused(other) => self.map_failed(space, table, page, &other),
                };
            }
        }
        Counters::add(&self.stats.counters.far_faults, 1);
        let windowed = table.states.get(page).state() == State::Resident;
        if windowed {
            self.stats.far_fault(fault.since.elapsed());
        }
        let taken = 1 + self.fetch_ahead(space, table, page, protect);
        Counters::add(&self.stats.counters.pages_in, taken);
        Step::Done
    }

    /// Fetches the neighbours of a page that was fetched, as far as there is room. Returns how many.
    fn fetch_ahead(&self, space: &Arc<Space>, table: &mut Table, page: Page, protect: bool) -> u64 {
        let ahead = table.prefetch.fault(page);
        let mut wanted: SmallVec<[(Page, u32); AHEAD]> = SmallVec::new();
        for step in 1..=i64::from(ahead.count) {
            let Some(next) = page.checked_add_signed(ahead.stride * step) else { break };
            let entry = table.states.get(next);
            let free = entry.state() == State::Remote && !table.states.is_name(next);
            wanted.extend(entry.slot().filter(|_| free).map(|slot| (next, slot)));
        }
        let room = self.room.free() - (self.headroom_pages() / 4).cast_signed();
        wanted.truncate(usize::try_from(room).unwrap_or(0));
        if wanted.is_empty() {
            return 0;
        }
        let granted = self.reserve(space, wanted.len() as u64) as usize;
        wanted.truncate(granted);
        let mut brought = 0;
        while let Some(rest) = wanted.get(brought..).filter(|rest| !rest.is_empty()) {
            match self.bring_run(space, table, rest, protect) {
                Ok(pages) => brought += pages,
                // The page is fetched, or found lost, when a thread asks for it.
                Err(_) => break,
            }
        }
        self.unreserve(space, (granted - brought) as u64);
        Counters::add(&self.stats.counters.prefetched_pages, brought as u64);
        brought as u64
    }

    /// Fetches far pages that no thread has asked for. If the first can be mapped from its window, the same call maps those
    /// behind it that follow it both in memory and in the window. Otherwise sends for the first only. Room for all was
    /// reserved. Returns how many pages were mapped or sent for.
    fn bring_run(
        &self,
        space: &Arc<Space>,
        table: &mut Table,
        wanted: &[(Page, u32)],
        protect: bool,
    ) -> Result<usize, NotBrought> {
        let Some(&(first, slot)) = wanted.first() else { return Ok(0) };
        let run = {
            let mut slots = self.far.slots();
            let pinned = slots.pin(slot).map_err(|Gone| NotBrought::Lost)?;
            pinned.map(|address| {
                let follows = |slots: &mut Store, (at, &(page, slot)): (u64, &(Page, u32))| {
                    let place = address + at * PAGE_BYTES;
                    page == first + at
                        && slots.direct(slot) == Some(place)
                        && slots.pin(slot) == Ok(Some(place))
                };
                let more = (1..).zip(wanted.iter().skip(1)).take_while(|next| follows(&mut slots, *next));
                (address, 1 + more.count())
            })
        };
        let Some((address, count)) = run else {
            return self.bring(space, table, first, slot, protect, None).map(|()| 1);
        };
        let mut fewer = count as u32;
        let mut mapped = space.map(table, first, address, fewer, protect);
        while matches!(mapped, Err(UffdError::NotMapped)) && fewer > 1 {
            // The pages reach beyond the mapping.
            fewer /= 2;
            mapped = space.map(table, first, address, fewer, protect);
        }
        let bytes = match &mapped {
            Ok(bytes) | Err(UffdError::Again(bytes) | UffdError::Exists(bytes)) => *bytes,
            Err(_) => 0,
        };
        let pages = bytes / PAGE_BYTES as usize;
        {
            let mut slots = self.far.slots();
            wanted.iter().take(count).for_each(|(_, slot)| slots.unpin(*slot));
            if pages == 0 {
                if matches!(mapped, Err(UffdError::BadSource)) {
                    slots.direct_read_failed(slot, address);
                }
                return Err(mapped.err().unwrap_or(UffdError::Again(0)).into());
            }
            for page in first..first + pages as u64 {
                table.states.mapped(page, protect, &mut slots);
            }
        }
        for page in first..first + pages as u64 {
            // A page that no thread has asked for is queued as if it had never been evicted: it has to prove itself.
            self.queue(space, table, page, None);
        }
        Ok(pages)
    }

    /// Serves a fault on a page that has room already and is stored. In most cases the page is present: then a copy is
    /// refused, and no lender is asked.
    fn fetch_again(&self, space: &Arc<Space>, table: &mut Table, fault: Fault, slot: u32) -> Step {
        let page = fault.page;
        if self.far.slots().direct(slot).is_none() && space.holds(page) == Some(true) {
            space.wake_later(table, page, 1);
            return Step::Done;
        }
        let protect = !fault.write && self.habit.protect();
        match self.bring(space, table, page, slot, protect, Some(fault.since)) {
            Ok(()) => {
                // A page that was only sent for may be present, so it is not counted.
                let is_mapped = table.states.get(page).state() == State::Resident;
                Counters::add(&self.stats.counters.unseen_drops, u64::from(is_mapped));
                Step::Done
            }
            Err(NotBrought::Refused(UffdError::Again(_))) => Step::Again,
            Err(NotBrought::Refused(UffdError::Exists(_) | UffdError::NotMapped | UffdError::Gone)) => {
                space.wake_later(table, page, 1);
                Step::Done
            }
            // The thread faults again, as after any fault for which the kernel has no memory.
            Err(NotBrought::Refused(error)) if error.is_out_of_memory() => {
                space.wake_later(table, page, 1);
                Step::Done
            }
            Err(_) => self.poison_absent(space, table, page),
        }
    }

    /// Poisons a page that the table calls resident if it is absent: its contents are lost then, and a thread that touches
    /// it gets SIGBUS rather than zeroes.
    fn poison_absent(&self, space: &Arc<Space>, table: &mut Table, page: Page) -> Step {
        match space.uffd.poison(Space::address(page), PAGE_BYTES as usize) {
            Ok(()) => {
                table.states.lost(page, &mut self.far.slots());
                self.unreserve(space, 1);
            }
            Err(UffdError::Again(_)) => return Step::Again,
            Err(_) => {}
        }
        space.wake_later(table, page, 1);
        Step::Done
    }

    /// Maps a far page from its window, or sends for it. Room for it was reserved.
    pub(crate) fn bring(
        &self,
        space: &Arc<Space>,
        table: &mut Table,
        page: Page,
        slot: u32,
        protect: bool,
        since: Option<Instant>,
    ) -> Result<(), NotBrought> {
        let pinned = self.far.slots().pin(slot).map_err(|Gone| NotBrought::Lost)?;
        let Some(address) = pinned else {
            let operation = table.states.fetching(page, !protect, since.is_some());
            self.far.read(slot, ticket(space, operation), since);
            table.to_send = true;
            return Ok(());
        };
        let mapped = space.map(table, page, address, 1, protect);
        let (_, evicted_at) = {
            let mut slots = self.far.slots();
            slots.unpin(slot);
            match mapped {
                // Its lender may have died meanwhile, so another copy is looked for.
                Err(UffdError::BadSource) if slots.direct_read_failed(slot, address) => {
                    return Err(UffdError::Again(0).into());
                }
                other => other?,
            };
            table.states.mapped(page, protect, &mut slots)
        };
        // A page that no thread has asked for is queued as if it had never been evicted: it has to prove itself.
        self.queue(space, table, page, evicted_at.filter(|_| since.is_some()));
        Ok(())
    }

    /// Maps a page that is being saved, from the place where its contents are until then. Its eviction is undone.
    pub(crate) fn take_back(&self, space: &Arc<Space>, table: &mut Table, began: Page) -> TookBack {
        let (page, entry) = table.states.operation(began);
        let Ok(at) = table.saving.binary_search_by_key(&began, |(began, _)| *began) else {
            return TookBack::No;
        };
        let (_, source) = table.saving[at];
        match space.map(table, page, source, 1, false) {
            Ok(_) => {}
            Err(UffdError::Exists(_)) => space.wake_later(table, page, 1),
            Err(UffdError::Again(_)) => return TookBack::Again,
            // The end of the page's eviction wakes the threads that wait for it.
            Err(error) if error.is_out_of_memory() => {
                table.states.set(page, entry.with_waiter(true));
                return TookBack::No;
            }
            // The mapping is gone: threads that wait for the page fault again, and find what is there then.
            Err(_) => {
                space.wake_later(table, page, 1);
                return TookBack::No;
            }
        }
        table.states.taken_back(began);
        self.stats.waited(table, page);
        Counters::add(&self.stats.counters.taken_back, 1);
        TookBack::Yes
    }

    /// Claims room for up to `want` pages. The agent is never refused: an
    /// eviction may be waiting for it.
    pub(crate) fn reserve_for(&self, space: &Space, agent: bool, want: u64) -> u64 {
        let granted = self.reserve(space, want);
        if granted > 0 || !agent {
            return granted;
        }
        self.room.take(&space.account, 1);
        1
    }

    pub(crate) fn wait_for_room(&self, fault: Fault) {
        Counters::add(&self.stats.counters.room_waits, 1);
        self.widen_headroom();
        self.waiting.lock().push_back(fault);
        self.evictor.ring();
    }

    /// Handles an error of mapping a page.
    fn map_failed(&self, space: &Arc<Space>, table: &mut Table, page: Page, error: &UffdError) -> Step {
        match error {
            // Unmapped in the meantime: a thread that waits faults again, and finds what is there now.
            UffdError::NotMapped | UffdError::Gone => {
                space.wake_later(table, page, 1);
                Step::Done
            }
            // The thread faults again, as after any fault for which the kernel has no memory.
            other if other.is_out_of_memory() => {
                space.wake_later(table, page, 1);
                Step::Done
            }
            other => {
                self.say_once(
                    "map",
                    &format!("a page could not be mapped ({other}); the program gets SIGBUS"),
                );
                self.poison_now(space, table, page)
            }
        }
    }

    /// Serves a write to a protected page.
    fn unprotect(&self, space: &Arc<Space>, table: &mut Table, page: Page) -> Step {
        match space.unprotect(table, page) {
            Err(UffdError::Again(_)) => return Step::Again,
            Err(_) => {
                space.wake_later(table, page, 1);
            }
            Ok(()) => {}
        }
        // From now on the page may differ from its slot.
        if table.states.written(page, &mut self.far.slots()) {
            Counters::add(&self.stats.counters.write_faults, 1);
            self.habit.observe(true);
        }
        Step::Done
    }

    /// Makes a page that cannot be served raise SIGBUS. Returns `false` if the page is no longer untouched or far, or its
    /// address space keeps changing.
    #[must_use]
    pub fn poison(&self, space: &Arc<Space>, page: Page) -> bool {
        let mut table = space.lock();
        for _ in 0..CHANGES_MAX {
            if table.closed {
                return true;
            }
            if !matches!(table.states.get(page).state(), State::Untouched | State::Remote) {
                return false;
            }
            if self.poison_now(space, &mut table, page) == Step::Done {
                return true;
            }
            self.read_change(space, &mut table);
        }
        false
    }

    /// Poisons a page that is lost with its lender. The message about the lender's end is still to come.
    fn poison_lost(&self, space: &Arc<Space>, table: &mut Table, page: Page) -> Step {
        let step = self.poison_now(space, table, page);
        if step == Step::Done && table.states.get(page).state() == State::Lost {
            self.lost_untold.fetch_add(1, Ordering::Relaxed);
            Counters::add(&self.stats.counters.lost_pages, 1);
        }
        step
    }

    pub(crate) fn poison_now(&self, space: &Arc<Space>, table: &mut Table, page: Page) -> Step {
        match space.uffd.poison(Space::address(page), PAGE_BYTES as usize) {
            Err(UffdError::Again(_)) => return Step::Again,
            // A fork left the page there (see `Table::fork`): it is the program's, with the right contents.
            Err(UffdError::Exists(_))
                if matches!(table.states.get(page).state(), State::Remote | State::Lost) =>
            {
                self.room.take(&space.account, 1);
                table.states.found_present(page, &mut self.far.slots());
                self.queue(space, table, page, None);
                let _ = space.unprotect(table, page);
                space.wake_later(table, page, 1);
                return Step::Done;
            }
            Err(_) => {
                space.wake_later(table, page, 1);
            }
            Ok(()) => {}
        }
        table.states.lost(page, &mut self.far.slots());
        Step::Done
    }
}
