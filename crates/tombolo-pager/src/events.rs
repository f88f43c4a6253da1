//! Reads and handles what the kernel reports: faults, and changes of the address space.
//!
//! A space's events are read, decided and carried out under the lock of its table. From the moment an address space begins
//! to change, the kernel refuses to map pages (*again*), until the event of the change was read and the changing thread has
//! gone on.
//!
//! If one call reads several events, changes are handled first, in their order, and faults afterwards, because the program
//! has already gone on from the changes.
//!
//! Events are read only while the agent moves no page (the gate, see `protocol`). So a command that names a range which is
//! gone is cancelled before the program can map something else there.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use tombolo_core::pager::{PAGE_BYTES, Page, State, Table as States};
use tombolo_host::timing::pager as timing;
use tombolo_host::uffd::{Event, Userfaultfd};

use crate::locked::Locked;
use crate::pager::Pager;
use crate::serve::CHANGES_MAX;
use crate::space::{Agent, Gate, Space, Table};
use crate::stats::Counters;

/// How often a changing address space is looked at, 1 ms apart, before the caller gives up. A bound, not a measurement.
const LOOKS_MAX: u32 = 500;

/// A page fault: a thread waits for a page.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Index of its space.
    pub space: u32,
    /// The page.
    pub page: Page,
    /// Whether the access was a write.
    pub write: bool,
    /// Whether the page was present and write-protected.
    pub protected: bool,
    /// Number of the thread, in its own pid namespace.
    pub thread: u32,
    /// When the fault was read.
    pub since: Instant,
}

/// What [`Pager::serve_next`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Number of events that were read.
    pub events: u32,
    /// How many of them were faults.
    pub faults: u32,
    /// The thread of the last fault.
    pub thread: u32,
    /// Whether far memory was asked for a page.
    pub has_sent: bool,
    /// Whether pages of first touches are put off and can be mapped now.
    pub has_more: bool,
    /// Whether events could not be read now.
    pub is_blocked: bool,
}

/// Work that waits for an address space that is changing.
#[derive(Debug)]
pub enum Deferred {
    /// A fault.
    Fault(Fault),
    /// A page that has arrived.
    Arrival {
        /// The ticket that was given to far memory.
        ticket: u64,
        /// Its contents.
        contents: Box<PageBuffer>,
        /// When a thread began to wait for it.
        since: Option<Instant>,
    },
}

/// The contents of a page.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct PageBuffer(pub [u8; PAGE_BYTES as usize]);

impl Pager {
    /// Reads up to `most` events of a space and serves them. With `goes_on`, and if there are no events, maps the next
    /// pages of first touches.
    pub fn serve_next(&self, space: &Arc<Space>, most: usize, goes_on: bool) -> Served {
        let mut served = Served::default();
        let mut table = space.lock();
        let read = self.read(space, &mut table, most);
        (served.events, served.is_blocked) = (read.unwrap_or(0), read.is_none());
        let mut to_send = false;
        while let Some(fault) = table.faults.pop_front() {
            served.faults += 1;
            served.thread = fault.thread;
            to_send |= self.serve(space, &mut table, fault);
        }
        // The thread that touched the block first runs on while this handler maps the rest of it.
        let has_touched = goes_on && served.events == 0 && self.go_on_touching(space, &mut table);
        served.has_more = has_touched || (served.events > 0 && table.states.has_put_off());
        // Other threads that want the table have waited for longer than a fault takes.
        if has_touched {
            table.unlock_fairly()
        } else {
            drop(table)
        }
        if to_send {
            self.flush_far();
        }
        served.has_sent = to_send;
        served
    }

    /// Reads up to `most` events. Changes are handled at once. Faults are noted in the table, to be served when the changes
    /// that were read with them are known. Returns the number of events, or `None` if they cannot be read now.
    fn read(&self, space: &Arc<Space>, table: &mut Table, most: usize) -> Option<u32> {
        if table.closed {
            return Some(0);
        }
        let agent = space.agent();
        let gate = space.gate(agent.as_deref())?;
        let (mut count, mut since) = (0, None);
        let changes = agent.as_deref().and_then(Agent::changes);
        Counters::add(&self.stats.counters.handler_reads, 1);
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
                self.changed(space, table, event, &gate, changes);
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

    /// Handles a change of the address space. Cancels the agent's command if its pages are not where they were; the part
    /// that has begun goes on.
    fn changed(
        &self,
        space: &Arc<Space>,
        table: &mut Table,
        event: Event,
        gate: &Gate<'_>,
        changes: Option<u32>,
    ) {
        let cancel = |table: &Table, is_void: bool| {
            let command = table.under_way.command();
            if is_void && command != 0 {
                gate.cancel(command);
            }
        };
        let slots = &self.far;
        let discarded = match event {
            Event::Fault { .. } | Event::Unknown(_) => return,
            Event::Fork(uffd) => {
                space.stop_touching(table);
                return self.adopt(space, table, uffd);
            }
            Event::Remove { start, end } => {
                if let Some(at) = table.own_drops.iter().position(|own| *own == (start, end)) {
                    table.own_drops.swap_remove(at);
                    return;
                }
                let discarded =
                    table.states.discard(start / PAGE_BYTES, end / PAGE_BYTES, &mut slots.slots());
                table.states.give_up(start / PAGE_BYTES, end / PAGE_BYTES);
                discarded
            }
            Event::Unmap { start, end } => {
                let unseen = space.note_change(gate.agent, changes);
                let discarded = table.states.unmap(start / PAGE_BYTES, end / PAGE_BYTES, &mut slots.slots());
                let touches = table.touches(start / PAGE_BYTES, end / PAGE_BYTES);
                // What this command drops must not hit a range that the next change of this kind has replaced.
                cancel(table, discarded.in_operation || unseen || touches);
                discarded
            }
            Event::Remap { from, to, length } => {
                let unseen = space.note_change(gate.agent, changes);
                let (from, to, count) = (from / PAGE_BYTES, to / PAGE_BYTES, length / PAGE_BYTES);
                let remapped = table.states.remap(from, to, count, &mut slots.slots());
                self.unreserve(space, remapped.resident);
                self.leave_frames(table);
                let touches = table.touches(from, from + count) || table.touches(to, to + count);
                cancel(table, remapped.in_operation || unseen || touches);
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
        self.leave_frames(table);
    }

    /// Called when an event cannot be read because no descriptor is left for a forked child, whose parent waits.
    fn unreadable(&self, space: &Arc<Space>, error: &io::Error) {
        let exhausted = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        if exhausted && self.use_spare_descriptor() {
            return;
        }
        if exhausted && let Some(program) = space.program() {
            let why = || "no file descriptor is left to serve a forked child (see `ulimit -n`)".into();
            self.end_program(&program, why);
        }
    }

    /// Looks at an address space while no thread is changing it: until the table is unlocked, no change begins that is not
    /// known. `look` may be called several times; the last result counts.
    pub(crate) fn look_at_rest<'a, T>(
        &self,
        space: &'a Arc<Space>,
        look: impl Fn(&Table) -> io::Result<T>,
    ) -> io::Result<(Locked<'a>, T)> {
        for _ in 0..LOOKS_MAX {
            let (table, seen, is_changing) = self.look(space, &look)?;
            if !is_changing {
                return Ok((table, seen));
            }
            drop(table);
            std::thread::sleep(timing::CHANGE_PAUSE);
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Looks at an address space after all changes that have begun were read, as long as no further change begins. Also
    /// returns whether one has begun.
    pub(crate) fn look<'a, T>(
        &self,
        space: &'a Arc<Space>,
        look: impl Fn(&Table) -> io::Result<T>,
    ) -> io::Result<(Locked<'a>, T, bool)> {
        let mut table = space.lock();
        for _ in 0..CHANGES_MAX {
            if !self.read_change(space, &mut table) {
                break;
            }
        }
        let seen = look(&table);
        // The kernel reports an address space as changing before it changes anything.
        let is_changing = space.is_changing();
        if !self.deferred.lock().is_empty() {
            // Faults that were read meanwhile; the evictor serves them.
            self.evictor.ring();
        }
        Ok((table, seen?, is_changing))
    }

    /// Reads one event while a fault is being served: a change is handled, another fault is deferred. Returns `false` if
    /// there was no event.
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
                self.flush_far();
            }
        }
    }

    /// Serves what was deferred. Returns whether something had to be deferred again.
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

    /// Adds the space of a forked child, which starts with its parent's table.
    fn adopt(&self, parent: &Arc<Space>, table: &mut Table, uffd: Userfaultfd) {
        Counters::add(&self.stats.counters.forks, 1);
        let mut uffd = Some(uffd);
        let mut make = |index| {
            let token = Space::new_token()?;
            let uffd = uffd.take().ok_or(io::ErrorKind::AlreadyExists)?;
            Ok(parent.child(index, uffd, token))
        };
        let child = match self.add_space(&mut make) {
            Ok(child) => child,
            Err(error) => {
                // If the descriptor were closed, the child would read zeroes. So it is kept, and the child waits, which the
                // user can see.
                self.unserved.lock().extend(uffd);
                (self.notify)(&format!("a forked child cannot be served, and waits: {error}"));
                return;
            }
        };
        // The table takes the locks piece by piece, since other threads need slots and frames meanwhile.
        let forked =
            table.states.fork(child.index, |work| work(&mut self.far.slots(), &mut self.sharing.frames()));
        self.leave_frames(table);
        let is_short = self.shared_by_fork(parent, &child, table, &forked);
        {
            let mut own = child.lock();
            own.states = forked.table;
            // The child may have run and written already. That is found out when its pages are verified.
            self.begin_to_share(&child, &mut own, is_short);
            if own.closed {
                // The fork has failed, and the space was closed already for that.
                self.free_states(&mut own);
                own.states = States::default();
                self.sharing.recount(&mut own);
                self.room.give_back(&child.account, child.account.pages());
                return;
            }
            if forked.resident > 0 {
                for (page, entry) in own.states.all() {
                    if entry.state() == State::Resident && entry.frame().is_none() {
                        self.queue(&child, &mut own, page, None);
                    }
                }
            }
        }
        // Only now, because the child's faults are served by its table.
        if let Err(error) = self.poll_space(&child) {
            (self.notify)(&format!("a forked child cannot be served: {error}"));
        }
        self.evictor.ring();
    }
}
