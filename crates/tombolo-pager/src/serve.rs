//! Serving what the kernel reports: faults, and changes of the address space.
//!
//! A space's events are read, decided and carried out under the lock of its table. The
//! kernel refuses to map pages (*again*) from the moment an address space begins to
//! change until the change's event was read and the changing thread has gone on. So
//! whatever is mapped here is mapped by what the table says after the last change: where
//! the kernel says *again*, the next event is read and the fault is decided anew.
//!
//! Of several events that were read in one call, changes are dealt with first, in their order,
//! and faults afterwards, because the program has gone on from the changes already.
//!
//! Events are also read only while no command of the agent's is being carried out (the
//! gate, see `protocol`): a command that names a range which is gone is cancelled before
//! the program can map something else there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_core::pager::{Access, Decision, Outcome, PAGE_BYTES, Page, State, TOUCH_MAX};
use tombolo_host::uffd::{Event, UffdError, Userfaultfd};
use tombolo_node::FarEvent;

use crate::pager::{Fault, Pager};
use crate::space::{Gate, Space, Table};
use crate::stats::Counters;

/// Pages mapped for a first touch along a run even where room is short.
const TOUCH_CROWDED: u64 = 16;

/// Times that one fault is decided anew at once because the address space is changing.
const CHANGES_MAX: u32 = 8;

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is done, or will be by whoever ends what it waits for.
    Done,
    /// The address space is changing: decide anew.
    Again,
}

/// What [`Pager::serve_next`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Events that were read.
    pub events: u32,
    /// How many of them were faults.
    pub faults: u32,
    /// The thread of the last fault.
    pub thread: u32,
}

/// What waits for an address space that is changing.
#[derive(Debug)]
pub enum Deferred {
    /// A fault.
    Fault(Fault),
    /// A page that has arrived.
    Arrival {
        /// As given to far memory.
        ticket: u64,
        /// Its contents.
        contents: Box<PageBuffer>,
        /// Since when a thread has waited for it.
        since: Option<Instant>,
    },
}

/// The contents of a page.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct PageBuffer(pub [u8; PAGE_BYTES as usize]);

/// Names an operation of a space to far memory.
fn ticket(space: &Space, operation: Page) -> u64 {
    tombolo_core::pager::PageName::new(space.index, operation).word()
}

impl Pager {
    /// Reads up to `most` events of a space and serves them.
    pub fn serve_next(&self, space: &Arc<Space>, most: usize) -> Served {
        let mut served = Served::default();
        let mut table = space.lock();
        served.events = self.read(space, &mut table, most).unwrap_or(0);
        let mut to_send = false;
        while let Some(fault) = table.faults.pop_front() {
            served.faults += 1;
            served.thread = fault.thread;
            to_send |= self.serve(space, &mut table, fault);
        }
        drop(table);
        if to_send {
            self.far.flush();
        }
        served
    }

    /// Reads up to `most` events. Faults are noted in the table, to be served when the changes that were read with them
    /// are known; what is no fault is dealt with. Returns how many events there were. `None`: they cannot be
    /// read now.
    fn read(&self, space: &Arc<Space>, table: &mut Table, most: usize) -> Option<u32> {
        if table.closed {
            return Some(0);
        }
        let agent = space.agent();
        let gate = space.gate(agent.as_deref())?;
        let (mut count, mut since) = (0, None);
        let read = space.uffd.read_events(most, |event| {
            count += 1;
            if let Event::Fault { address, write, write_protected, thread } = event {
                table.faults.push_back(Fault {
                    space: space.index,
                    page: address / PAGE_BYTES,
                    write,
                    protected: write_protected,
                    thread,
                    since: *since.get_or_insert_with(Instant::now),
                });
            } else {
                self.changed(space, table, event, &gate);
            }
        });
        drop(gate);
        match read {
            Ok(()) => Some(count),
            Err(error) => {
                self.unreadable(space, &error);
                None
            }
        }
    }

    /// The address space has changed. What the agent was told and has not begun is void where its pages are
    /// not where they were.
    fn changed(&self, space: &Arc<Space>, table: &mut Table, event: Event, gate: &Gate<'_>) {
        let cancel = |table: &Table, in_operation: bool| {
            if in_operation && table.command != 0 {
                gate.cancel(table.command);
            }
        };
        let slots = &self.slots;
        let discarded = match event {
            Event::Fault { .. } | Event::Unknown(_) => return,
            Event::Fork(uffd) => return self.adopt(space, table, uffd),
            Event::Remove { start, end } => {
                if let Some(at) = table.own_drops.iter().position(|own| *own == (start, end)) {
                    table.own_drops.swap_remove(at);
                    return;
                }
                table.states.discard(start / PAGE_BYTES, end / PAGE_BYTES, &mut slots.lock())
            }
            Event::Unmap { start, end } => {
                let discarded = table.states.unmap(start / PAGE_BYTES, end / PAGE_BYTES, &mut slots.lock());
                cancel(table, discarded.in_operation);
                discarded
            }
            Event::Remap { from, to, length } => {
                let (from, to, count) = (from / PAGE_BYTES, to / PAGE_BYTES, length / PAGE_BYTES);
                let remapped = table.states.remap(from, to, count, &mut slots.lock());
                self.unreserve(space, remapped.resident);
                cancel(table, remapped.in_operation);
                for page in remapped.wake {
                    space.wake_later(table, page, 1);
                }
                for page in remapped.unqueued {
                    self.queue(space, table, page, None);
                }
                return;
            }
        };
        Counters::add(&self.stats.counters.discarded_pages, discarded.pages);
        self.unreserve(space, discarded.resident);
    }

    /// An event cannot be read: no descriptor is left for a forked child, whose parent waits.
    fn unreadable(&self, space: &Arc<Space>, error: &std::io::Error) {
        let exhausted = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        if exhausted && self.use_spare_descriptor() {
            return;
        }
        if exhausted && let Some(agent) = space.agent() {
            self.end_program(&agent, "no file descriptor is left to serve a forked child (see `ulimit -n`)");
        }
    }

    /// Reads an event while a fault is being served: a change is dealt with, another fault is put off.
    /// False: there was none.
    pub(crate) fn read_change(&self, space: &Arc<Space>, table: &mut Table) -> bool {
        let read = self.read(space, table, 1).is_some_and(|events| events > 0);
        if !table.faults.is_empty() {
            self.deferred.lock().extend(table.faults.drain(..).map(Deferred::Fault));
        }
        read
    }

    /// Serves a fault that was read earlier.
    pub fn serve_again(&self, fault: Fault) {
        if let Some(space) = self.space(fault.space) {
            let sent = self.serve(&space, &mut space.lock(), fault);
            if sent {
                self.far.flush();
            }
        }
    }

    /// Serves what was put off. Returns whether something had to be put off again.
    pub fn serve_deferred(&self) -> bool {
        let count = self.deferred.lock().len();
        for _ in 0..count {
            let next = self.deferred.lock().pop_front();
            match next {
                Some(Deferred::Fault(fault)) => self.serve_again(fault),
                Some(Deferred::Arrival { ticket, contents, since }) => {
                    self.arrived(ticket, Some(contents.0.as_ptr() as u64), since);
                }
                None => break,
            }
        }
        !self.deferred.lock().is_empty()
    }

    /// Returns whether far memory has something to send.
    fn serve(&self, space: &Arc<Space>, table: &mut Table, fault: Fault) -> bool {
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
        if let Some(index) = space.control_page(page) {
            return self.serve_control(space, table, index);
        }
        let agent = space.agent().is_some_and(|agent| agent.own_pid == fault.thread);
        let access = Access { write: fault.write, protected: fault.protected, agent };
        // An eviction waits for either of them, and room for the eviction.
        let agent = agent || fault.thread == self.evictor_thread.load(Ordering::Relaxed);
        match table.states.decide(page, access) {
            Decision::Wait => {
                let evicting = table.states.get(page).state() != State::Fetching;
                Counters::add(&self.stats.counters.eviction_waits, u64::from(evicting));
                Step::Done
            }
            Decision::Zero => self.zero(space, table, fault, agent),
            Decision::ZeroAgain => self.zero_again(space, table, page),
            Decision::Fetch(slot) => self.fetch(space, table, fault, slot, agent),
            Decision::Unprotect => self.unprotect(space, table, page),
            Decision::Poison => self.poison_now(space, table, page),
        }
    }

    /// A first touch.
    fn zero(&self, space: &Arc<Space>, table: &mut Table, fault: Fault, agent: bool) -> Step {
        let page = fault.page;
        let (mut first, mut count) = table.touches.touch(page);
        // What runs ahead of the program must not push out what it uses.
        let free = self.room.free() - self.headroom_pages().cast_signed();
        let most = (free.max(0).cast_unsigned() / 4).clamp(TOUCH_CROWDED, u64::from(TOUCH_MAX)) as u32;
        if count > most {
            if first < page {
                first += u64::from(count - most);
            }
            count = most;
        }
        // A mapping that grew is known when it was touched there.
        let (low, high) = table.states.range(page).unwrap_or((page, page + u64::from(TOUCH_MAX)));
        let states = &table.states;
        let untouched =
            |page: Page| (low..high).contains(&page) && states.get(page).state() == State::Untouched;
        while first < page && !(first..page).all(untouched) {
            first += 1;
            count -= 1;
        }
        count = (0..count).take_while(|&step| untouched(first + u64::from(step))).count().max(1) as u32;
        let granted = self.reserve_for(space, agent, u64::from(count)) as u32;
        if granted == 0 {
            self.wait_for_room(fault);
            return Step::Done;
        }
        // The page that is waited for is the last one of a run downwards.
        if first < page {
            first += u64::from(count - granted);
        }
        let mut mapped = self.map_zeroes(space, table, first, granted);
        if matches!(mapped, Err(UffdError::NotMapped)) && granted > 1 {
            // The run reaches beyond the mapping: this page alone.
            self.unreserve(space, u64::from(granted) - 1);
            (first, count) = (page, 1);
            mapped = self.map_zeroes(space, table, page, 1);
        } else {
            count = granted;
        }
        match mapped {
            Ok(pages) => {
                self.unreserve(space, u64::from(count - pages));
                table.touches.mapped(page, first, pages);
                table.states.grow(first, first + u64::from(pages));
                Counters::add(&self.stats.counters.zero_faults, 1);
                Counters::add(&self.stats.counters.zero_pages, u64::from(pages));
                if (first..first + u64::from(pages)).contains(&page) {
                    Step::Done
                } else {
                    self.found_present(space, table, page, agent)
                }
            }
            Err(error) => {
                self.unreserve(space, u64::from(count));
                match error {
                    UffdError::Again(_) => Step::Again,
                    UffdError::Exists(_) => self.found_present(space, table, page, agent),
                    other => self.map_failed(space, table, page, &other),
                }
            }
        }
    }

    /// A page that is absent, by what the table says, is present. From now on it counts.
    fn found_present(&self, space: &Arc<Space>, table: &mut Table, page: Page, agent: bool) -> Step {
        if self.reserve_for(space, agent, 1) > 0 {
            table.states.found_present(page, &mut self.slots.lock());
            self.queue(space, table, page, None);
        }
        space.wake_later(table, page, 1);
        Step::Done
    }

    /// Maps zero pages; returns how many, at least one. `Exists`: the first was there.
    fn map_zeroes(
        &self,
        space: &Arc<Space>,
        table: &mut Table,
        first: Page,
        count: u32,
    ) -> Result<u32, UffdError> {
        let bytes = match space.map(table, first, self.zeroes.address(), count, false) {
            Ok(bytes) => bytes,
            // Some of them: enough for now.
            Err(UffdError::Again(bytes) | UffdError::Exists(bytes)) if bytes > 0 => bytes,
            Err(error) => return Err(error),
        };
        let pages = (bytes as u64 / PAGE_BYTES) as u32;
        for page in first..first + u64::from(pages) {
            table.states.mapped(page, false, &mut self.slots.lock());
            self.queue(space, table, page, None);
        }
        Ok(pages)
    }

    /// A page that has room already, and reads as zero.
    fn zero_again(&self, space: &Arc<Space>, table: &mut Table, page: Page) -> Step {
        match space.map(table, page, self.zeroes.address(), 1, false) {
            Ok(_) => {
                if table.states.get(page).state() == State::Resident {
                    table.states.mapped(page, false, &mut self.slots.lock());
                    self.queue(space, table, page, None);
                }
                Step::Done
            }
            Err(UffdError::Again(_)) => Step::Again,
            Err(UffdError::Exists(_)) => {
                // Two threads have asked for it.
                space.wake_later(table, page, 1);
                Step::Done
            }
            Err(error) => self.map_failed(space, table, page, &error),
        }
    }

    /// A page that is in far memory.
    fn fetch(&self, space: &Arc<Space>, table: &mut Table, fault: Fault, slot: u32, agent: bool) -> Step {
        let page = fault.page;
        if self.far.is_lost(slot) {
            return self.poison_now(space, table, page);
        }
        if self.reserve_for(space, agent, 1) == 0 {
            self.wait_for_room(fault);
            return Step::Done;
        }
        let protect = !fault.write && self.habit.protect();
        match self.bring(space, table, page, slot, protect, Some(fault.since)) {
            Ok(()) => {}
            Err(error) => {
                self.unreserve(space, 1);
                return match error {
                    UffdError::Again(_) => Step::Again,
                    UffdError::Exists(_) => self.found_present(space, table, page, agent),
                    other => self.map_failed(space, table, page, &other),
                };
            }
        }
        Counters::add(&self.stats.counters.far_faults, 1);
        let windowed = table.states.get(page).state() == State::Resident;
        if windowed {
            self.stats.far_fault(fault.since.elapsed());
        }
        let ahead = table.prefetch.fault(page);
        let mut taken = 1;
        for step in 1..=i64::from(ahead.count) {
            let Some(next) = page.checked_add_signed(ahead.stride * step) else { break };
            let entry = table.states.get(next);
            let free = entry.state() == State::Remote && !table.states.is_name(next);
            let Some(slot) = entry.slot().filter(|_| free) else { continue };
            let room = self.room.free() > (self.headroom_pages() / 4).cast_signed();
            if self.far.is_lost(slot) || !room || self.reserve(space, 1) == 0 {
                break;
            }
            if self.bring(space, table, next, slot, protect, None).is_err() {
                // It is fetched when it is asked for.
                self.unreserve(space, 1);
                break;
            }
            taken += 1;
            Counters::add(&self.stats.counters.prefetched_pages, 1);
        }
        Counters::add(&self.stats.counters.pages_in, taken);
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
    ) -> Result<(), UffdError> {
        let Some(window) = self.far.window(slot) else {
            let operation = table.states.fetching(page, !protect);
            self.far.read(slot, ticket(space, operation), since);
            table.to_send = true;
            return Ok(());
        };
        space.map(table, page, window.address, 1, protect)?;
        let (_, evicted_at) = table.states.mapped(page, protect, &mut self.slots.lock());
        self.queue(space, table, page, evicted_at);
        Ok(())
    }

    /// Claims room for up to `want` pages. The agent is never refused: an
    /// eviction may be waiting for it.
    fn reserve_for(&self, space: &Space, agent: bool, want: u64) -> u64 {
        let granted = self.reserve(space, want);
        if granted > 0 || !agent {
            return granted;
        }
        self.room.take(&space.account, 1);
        1
    }

    fn wait_for_room(&self, fault: Fault) {
        Counters::add(&self.stats.counters.room_waits, 1);
        self.widen_headroom();
        self.waiting.lock().push_back(fault);
        self.evictor.ring();
    }

    /// A page could not be mapped.
    fn map_failed(&self, space: &Arc<Space>, table: &mut Table, page: Page, error: &UffdError) -> Step {
        match error {
            // Unmapped in the meantime: a thread that waits faults again, and finds what is there now.
            UffdError::NotMapped | UffdError::Gone => {
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

    /// A write to a protected page.
    fn unprotect(&self, space: &Arc<Space>, table: &mut Table, page: Page) -> Step {
        match space.unprotect(table, page) {
            Err(UffdError::Again(_)) => return Step::Again,
            Err(_) => {
                space.wake_later(table, page, 1);
            }
            Ok(()) => {}
        }
        // From now on the page may differ from its slot.
        if table.states.written(page, &mut self.slots.lock()) {
            Counters::add(&self.stats.counters.write_faults, 1);
            self.habit.observe(true);
        }
        Step::Done
    }

    /// A page that cannot be served raises SIGBUS from now on. False: it is not one any more, or its address
    /// space is changing.
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

    pub(crate) fn poison_now(&self, space: &Arc<Space>, table: &mut Table, page: Page) -> Step {
        match space.uffd.poison(Space::address(page), PAGE_BYTES as usize) {
            Err(UffdError::Again(_)) => return Step::Again,
            // A fork left it (see `Table::fork`): what is there is the program's, and good.
            Err(UffdError::Exists(_))
                if matches!(table.states.get(page).state(), State::Remote | State::Lost) =>
            {
                self.room.take(&space.account, 1);
                table.states.found_present(page, &mut self.slots.lock());
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
        table.states.lost(page, &mut self.slots.lock());
        Step::Done
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
        let name = tombolo_core::pager::PageName::from_word(ticket);
        let Some(space) = self.space(name.space()) else { return };
        let mut guard = space.lock();
        let table = &mut *guard;
        for _ in 0..CHANGES_MAX {
            let (page, entry) = table.states.operation(name.page());
            if table.closed || entry.state() != State::Fetching {
                return;
            }
            let Some(source) = source else {
                return self.fetch_failed(&space, table, name.page());
            };
            let protect = !entry.is_writable();
            let (mut woken, mut present) = (false, false);
            if !entry.is_discarded() {
                match space.map(table, page, source, 1, protect) {
                    Ok(_) => woken = true,
                    // A fork left it (see `Table::fork`): what is there is the program's.
                    Err(UffdError::Exists(_)) => present = true,
                    // It was unmapped, and the kernel will tell.
                    Err(UffdError::NotMapped | UffdError::Gone) => {}
                    Err(UffdError::Again(_)) => {
                        if self.read_change(&space, table) {
                            continue;
                        }
                        break;
                    }
                    Err(error) => {
                        self.say_once(
                            "map",
                            &format!("a page could not be mapped ({error}); the program gets SIGBUS"),
                        );
                        return self.fetch_failed(&space, table, name.page());
                    }
                }
            }
            let evicted_at = Some(entry.age());
            let finished = {
                let mut slots = self.slots.lock();
                let slot = entry.slot().filter(|&slot| {
                    let keep = (protect && !present) || entry.is_discarded();
                    if !keep {
                        slots.release(slot);
                    }
                    keep
                });
                table.states.finish(name.page(), Outcome::Stays(slot), 0, &mut slots)
            };
            if finished.unqueued {
                self.queue(&space, table, finished.page, evicted_at);
            }
            // Mapping the page has woken the threads that wait for it.
            for page in finished.wake.into_iter().filter(|&other| !woken || other != page) {
                space.wake_later(table, page, 1);
            }
            self.unreserve(&space, u64::from(finished.freed));
            if let Some(since) = since {
                self.stats.far_fault(since.elapsed());
            }
            return;
        }
        drop(guard);
        // The source is there during this call only.
        if let Some(source) = source {
            let mut contents = Box::new(PageBuffer([0; PAGE_BYTES as usize]));
            if tombolo_host::process::read_exactly(std::process::id(), source, &mut contents.0).is_ok() {
                self.deferred.lock().push_back(Deferred::Arrival { ticket, contents, since });
            }
        }
    }

    /// A page cannot be fetched: its lender is gone.
    fn fetch_failed(&self, space: &Arc<Space>, table: &mut Table, began: Page) {
        let finished = {
            let mut slots = self.slots.lock();
            let (_, entry) = table.states.operation(began);
            if let Some(slot) = entry.slot() {
                slots.release(slot);
            }
            table.states.finish(began, Outcome::Lost, 0, &mut slots)
        };
        self.unreserve(space, u64::from(finished.freed));
        // A thread that waits faults again, and finds the page lost.
        for page in finished.wake {
            space.wake_later(table, page, 1);
        }
    }

    /// The process forked: the child starts with its parent's table.
    fn adopt(&self, parent: &Arc<Space>, table: &mut Table, uffd: Userfaultfd) {
        Counters::add(&self.stats.counters.forks, 1);
        let mut uffd = Some(uffd);
        let mut make = |index| {
            let token = Space::new_token()?;
            let uffd = uffd.take().ok_or(std::io::ErrorKind::AlreadyExists)?;
            Ok(Space::new(index, uffd, parent.control, parent.requests, token))
        };
        let child = match self.add_space(&mut make) {
            Ok(child) => child,
            Err(error) => {
                // Without this descriptor it would read zeroes. So it waits, which can be seen.
                self.unserved.lock().extend(uffd);
                (self.notify)(&format!("a forked child cannot be served, and waits: {error}"));
                return;
            }
        };
        let forked = table.states.fork(child.index, &mut self.slots.lock());
        {
            let mut own = child.lock();
            if own.closed {
                // The fork has failed, and that was noticed already.
                let mut slots = self.slots.lock();
                for slot in forked.table.all().iter().filter_map(|(_, entry)| entry.slot()) {
                    slots.release(slot);
                }
                return;
            }
            own.states = forked.table;
            for (page, entry) in own.states.all() {
                if entry.state() == State::Resident {
                    self.queue(&child, &mut own, page, None);
                }
            }
            self.room.take(&child.account, forked.resident);
        }
        // Only now: its faults are served by its table.
        if let Err(error) = self.poll_space(&child) {
            (self.notify)(&format!("a forked child cannot be served: {error}"));
        }
        self.evictor.ring();
    }
}
