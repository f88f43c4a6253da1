//! Handles the events of far memory: pages that arrive, lenders that are lost, links that change.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_core::pager::{Outcome, PAGE_BYTES, Page, PageName, State};
use tombolo_host::process;
use tombolo_host::uffd::UffdError;
use tombolo_node::{FarEvent, FarMemory};

use crate::events::{Deferred, PageBuffer};
use crate::pager::Pager;
use crate::serve::CHANGES_MAX;
use crate::space::{Space, Table};
use crate::stats::Counters;

/// Pages that are examined before other threads may lock the slots: some ten microseconds.
const SCANNED_AT_ONCE: usize = 4096;

/// The ticket that names an operation of a space to far memory.
pub(crate) fn ticket(space: &Space, operation: Page) -> u64 {
    PageName::new(space.index, operation).word()
}

impl Pager {
    /// Calls `work` on far memory, and handles the events that follow.
    pub(crate) fn attend_far(&self, work: impl FnOnce(&dyn FarMemory)) {
        let far = &*self.far;
        far.events().attend(
            || work(far),
            |events| {
                while !events.is_empty() {
                    while let Some(event) = events.take() {
                        self.far_event(event);
                    }
                    // Sends reads that have waited for a buffer.
                    if far.slots().has_actions() {
                        far.flush();
                    }
                }
            },
        );
    }

    /// Sends what waits to be sent to lenders.
    pub(crate) fn flush_far(&self) {
        self.attend_far(|far| far.flush());
    }

    /// Moves transfers along.
    pub(crate) fn progress_far(&self) {
        self.attend_far(|far| far.progress());
    }

    fn far_event(&self, event: FarEvent) {
        match event {
            FarEvent::Arrived(arrived) => {
                self.arrived(arrived.ticket, arrived.address, arrived.since);
                self.far.done(arrived);
            }
            FarEvent::PathLost { address, reason } => self.path_gone(&address, &reason),
            FarEvent::LenderLost { lender, reason } => self.lender_gone(&lender, &reason),
            FarEvent::LenderAdded { lender } => {
                self.poll_links();
                (self.notify)(&format!("lender {lender} has come"));
            }
            FarEvent::LenderDrained { lender } => {
                self.poll_links();
                (self.notify)(&format!("nothing of the program is left at lender {lender}"));
            }
            FarEvent::LinksChanged => self.poll_links(),
            FarEvent::Notice(text) => (self.notify)(&text),
        }
    }

    /// Handles the end of a read of far memory. `source`: address of the page's contents, `None` if the read failed.
    /// `since`: when a thread began to wait for the page.
    pub(crate) fn arrived(&self, ticket: u64, source: Option<u64>, since: Option<Instant>) {
        let name = PageName::from_word(ticket);
        let Some(space) = self.space(name.space()) else { return };
        let mut guard = space.lock();
        let table = &mut *guard;
        for _ in 0..CHANGES_MAX {
            let (page, entry) = table.states.operation(name.page());
            if table.closed || entry.state() != State::Fetching {
                return;
            }
            let Some(source) = source else {
                if !entry.is_discarded() {
                    // A page that failed for another reason is not counted as lost with the next lender that is lost.
                    let is_lost = entry.slot().is_some_and(|slot| self.far.slots().is_lost(slot));
                    table.lost_on_the_way += u64::from(is_lost);
                    self.say_once(
                        "fetch",
                        "a page could not be had from its lenders: the program gets SIGBUS if it uses it",
                    );
                }
                return self.fetch_failed(&space, table, name.page());
            };
            let protect = !entry.is_writable();
            let (mut woken, mut present) = (false, false);
            if !entry.is_discarded() {
                match space.map(table, page, source, 1, protect) {
                    Ok(_) => woken = true,
                    // A fork left the page there (see `Table::fork`): it is the program's.
                    Err(UffdError::Exists(_)) => present = true,
                    // The range was unmapped, and an event will tell.
                    Err(UffdError::NotMapped | UffdError::Gone) => {}
                    Err(UffdError::Again(_)) => {
                        if self.read_change(&space, table) {
                            continue;
                        }
                        break;
                    }
                    // The page stays far. A thread that waits faults again, as after any fault for which the kernel has no
                    // memory.
                    Err(error) if error.is_out_of_memory() && entry.slot().is_some() => {
                        return self.fetch_put_off(&space, table, name.page());
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
            let is_asked_for = since.is_some() || entry.has_waiter();
            let evicted_at = is_asked_for.then_some(entry.age());
            let finished = {
                let mut slots = self.far.slots();
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
            self.stats.waited(table, finished.page);
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
        // The contents are at `source` during this call only.
        if let Some(source) = source {
            let mut contents = Box::new(PageBuffer([0; PAGE_BYTES as usize]));
            if process::read_exactly(std::process::id(), source, &mut contents.0).is_ok() {
                self.deferred.lock().push_back(Deferred::Arrival { ticket, contents, since });
                return;
            }
            // The page is far again: a thread that touches it has it fetched once more.
            let mut table = space.lock();
            if !table.closed && table.states.operation(name.page()).1.state() == State::Fetching {
                self.fetch_put_off(&space, &mut table, name.page());
            }
        }
    }

    /// Ends a fetch for which the kernel has no memory: the page is far as before.
    fn fetch_put_off(&self, space: &Arc<Space>, table: &mut Table, began: Page) {
        let finished = {
            let mut slots = self.far.slots();
            let (_, entry) = table.states.operation(began);
            let outcome = entry.slot().map_or(Outcome::Lost, Outcome::Saved);
            table.states.finish(began, outcome, entry.age(), &mut slots)
        };
        self.unreserve(space, u64::from(finished.freed));
        for page in finished.wake {
            self.stats.waited(table, page);
            space.wake_later(table, page, 1);
        }
    }

    /// Ends a fetch that has failed, mostly because the page's lender is gone: the page is lost.
    fn fetch_failed(&self, space: &Arc<Space>, table: &mut Table, began: Page) {
        let (_, entry) = table.states.operation(began);
        let is_discarded = entry.is_discarded();
        let finished = {
            let mut slots = self.far.slots();
            if let Some(slot) = entry.slot() {
                slots.release(slot);
            }
            table.states.finish(began, Outcome::Lost, 0, &mut slots)
        };
        Counters::add(&self.stats.counters.lost_pages, u64::from(!is_discarded));
        self.unreserve(space, u64::from(finished.freed));
        // A thread that waits faults again, and finds the page lost.
        for page in finished.wake {
            self.stats.waited(table, page);
            space.wake_later(table, page, 1);
        }
    }

    /// Updates the poll sets after links have come or gone.
    fn poll_links(&self) {
        // Under one lock, so that no caller overwrites newer links with the ones it saw earlier.
        let _in_order = self.polling.lock();
        for poll in &self.polls {
            poll.set_far(&*self.far);
        }
    }

    /// Handles the loss of one of several links to a lender. The other links carry its pages.
    fn path_gone(&self, address: &str, why: &str) {
        self.poll_links();
        (self.notify)(&format!("the link to {address} is gone ({why}); others to that lender are left"));
    }

    /// Handles the loss of a lender. Every process that had pages there and nowhere else gets SIGBUS now: its memory is
    /// incomplete.
    fn lender_gone(&self, who: &str, why: &str) {
        self.poll_links();
        let mut hurt = Vec::new();
        for space in self.all_spaces() {
            let mut table = space.lock();
            // Pages on their way here are counted in `lost_pages` when their fetches fail, so they are not counted in it
            // here.
            let (mut lost, mut on_the_way) = (0, std::mem::take(&mut table.lost_on_the_way));
            // These pages are counted in `lost_pages` when they are found lost.
            let mut leaving = 0;
            // In pieces, since other threads need the slots meanwhile.
            for entries in table.states.all().chunks(SCANNED_AT_ONCE) {
                let mut slots = self.far.slots();
                for &(page, entry) in entries {
                    if !entry.slot().is_some_and(|slot| slots.is_lost(slot)) {
                        continue;
                    }
                    match entry.state() {
                        State::Remote => {
                            // In the state `Lost`, the page is not counted again with the next lender.
                            table.states.lost(page, &mut slots);
                            lost += 1;
                        }
                        State::EvictDrop => leaving += 1,
                        State::Fetching if !entry.is_discarded() => on_the_way += 1,
                        _ => {}
                    }
                }
            }
            drop(table);
            Counters::add(&self.stats.counters.lost_pages, lost);
            if lost + leaving + on_the_way > 0 {
                hurt.push((space, lost + leaving + on_the_way));
            }
        }
        // A thread that waited for one of those pages faults again, finds it lost, and gets its SIGBUS then.
        let untold = self.lost_untold.swap(0, Ordering::Relaxed);
        if hurt.is_empty() {
            let what = match untold * PAGE_BYTES / 1024 {
                0 => "nothing of the program is lost with it".to_owned(),
                // A process touched one of the lost pages before this message, and has ended by that.
                kib => format!("and with it {kib} KiB of what has ended"),
            };
            (self.notify)(&format!("lender {who} is gone ({why}); {what}"));
            return;
        }
        for (space, lost) in hurt {
            let program = space.program();
            let whose = match (&program, space.parent.pid) {
                (Some(program), _) => format!("process {}", program.pid),
                (None, Some(parent)) => format!("a child of process {parent}"),
                (None, None) => "a process that has ended".to_owned(),
            };
            // Before the message. A child that has had no agent gets its SIGBUS when it touches one of the lost pages.
            if let Some(program) = program {
                let _ = process::signal(&program.pidfd, libc::SIGBUS);
            }
            (self.notify)(&format!(
                "lender {who} is gone ({why}), and with it {} KiB of {whose}: sending it SIGBUS",
                lost * PAGE_BYTES / 1024
            ));
        }
    }
}
