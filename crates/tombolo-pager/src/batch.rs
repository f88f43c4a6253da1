//! How a batch of pages leaves a program.
//!
//! Pages are **moved** to the staging area (`UFFDIO_MOVE`, by the agent). From then on no thread writes them, and a thread
//! that touches one waits. A *clean* page is stored already, so its eviction is done then. The other pages are read from
//! the staging area and saved unless they hold only zeroes. A page that a device or io_uring has pinned does not move, so a
//! direct read into it is not lost, as it would be if the page were copied and dropped. (For a mapping that is not
//! writable, the kernel does not say whether a page is pinned.) Dropping pages of the program one at a time would also cost
//! an event each.
//!
//! A page that a fork shares, or has shared, cannot be moved either. The agent makes it the process's own, and the evictor
//! tries it once more next.
//!
//! Only a page of a mapping that is not writable is **kept** mapped, write-protected, while it is copied, and dropped
//! afterwards. libc's calls that change mappings wait for the drop. If a program changes mappings by raw system calls, such
//! pages stay.
//!
//! The agent answers when it can: the program may be frozen, and its agent with it. Until then the batch waits, and other
//! batches go on. While lenders write a batch, agents move the next pages, where room is still short
//! ([`UnderWay`](tombolo_core::pager::UnderWay)).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_core::pager::batch::{At, Contents, Event, Place, Victim, note_taken, sort_out, written};
use tombolo_core::pager::{Area, Attempt, Entry, Left, PAGE_BYTES, Page, PageName, State};
use tombolo_core::store::NoRoom;
use tombolo_host::process;
use tombolo_host::sparse::page_is_zero;
use tombolo_host::timing::pager as timing;
use tombolo_host::uffd::UffdError;
use tombolo_node::Written;

use crate::copy_out::{read_kept, read_moved};
use crate::evict::{Chosen, Evictor};
use crate::lost::found_moved;
use crate::pager::{CopyBack, Pager};
use crate::serve::{CHANGES_MAX, TookBack};
use crate::shared_out::Sharer;
use crate::sharing::Departure;
use crate::space::{Agent, Order, Space, Table, extend};
use crate::stats::Counters;
use tombolo_pager_protocol::{AREA_PAGES, Done};

/// Most pages of one batch.
pub const BATCH: usize = AREA_PAGES;

/// Status of a page that may or may not have been moved. Larger than every error number.
const UNKNOWN: u8 = u8::MAX;
const EBUSY: u8 = libc::EBUSY as u8;
const EINVAL: u8 = libc::EINVAL as u8;
const ENOENT: u8 = libc::ENOENT as u8;

/// Result of claiming pages.
pub(crate) struct Claimed {
    pub(crate) victims: Vec<Victim>,
    /// Why no more pages could be claimed.
    pub(crate) refused: Option<NoRoom>,
    /// The staging area to which the pages go.
    pub(crate) area: Option<Area>,
}

/// Pages of one space that are to leave.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Pages with names of their own, in order.
    pub(crate) chosen: Vec<Chosen>,
    /// Pages that share frames, in order.
    pub(crate) shared: Vec<Sharer>,
}

/// What an agent has been told to do with the pages of a batch.
pub(crate) enum Task {
    /// To make pages the process's own; these are to leave afterwards. The batch has no victims yet.
    Own(Leaving),
    /// To move the victims.
    Move,
    /// To drop these ranges, which are the kept victims.
    Drop(Vec<(Page, u32)>),
    /// To empty the staging areas; the command was sent at this time. The batch has no victims.
    Clear(Instant),
}

/// What ended evictions leave in a staging area, and how many of their pages were copies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Remainder {
    /// The staging area of these pages.
    pub(crate) area: Option<Area>,
    /// How many pages lie in this area until it is used again.
    pub(crate) staged: u32,
    /// How many of the pages were copies of shared ones.
    pub(crate) copies: u64,
}

/// What a batch waits for.
pub(crate) enum Awaits {
    /// The agent's answer.
    Agent(Task),
    /// The end of the agent, which hung up at this time: it is not known yet what it has done.
    End(Task, Instant),
    /// The page tables: the agent gave this answer at this time, and whether it is true cannot be checked now.
    Tables(Done, Instant),
    /// The staging memory, where another batch has pages. The agent gave this answer.
    Staging(Done),
    /// Pages that have to be mapped again in an address space that is changing.
    Rest,
}

/// Pages on their way out of one space.
pub struct Batch {
    pub(crate) space: Arc<Space>,
    pub(crate) agent: Arc<Agent>,
    pub(crate) victims: Vec<Victim>,
    /// Pages that stay because they are shared. They are in no queue until the batch has ended.
    pub(crate) shared: Vec<PageName>,
    pub(crate) command: u32,
    /// The staging area to which the victims go.
    pub(crate) area: Option<Area>,
    /// What the agent had begun of its command when it answered (see `BEGUN_OFFSET`).
    pub(crate) begun: u32,
    pub(crate) awaits: Awaits,
}

impl Batch {
    /// Creates a batch of pages about which the agent is to get a command.
    pub(crate) fn new(
        space: &Arc<Space>,
        agent: Arc<Agent>,
        victims: Vec<Victim>,
        task: Task,
        command: u32,
    ) -> Self {
        let (space, awaits) = (space.clone(), Awaits::Agent(task));
        Self { space, agent, victims, shared: Vec::new(), command, area: None, begun: 0, awaits }
    }

    /// Number of pages that are to leave by this batch.
    fn pages(&self) -> usize {
        let own = match &self.awaits {
            Awaits::Agent(Task::Own(leaving)) => leaving.chosen.len() + leaving.shared.len(),
            _ => 0,
        };
        self.victims.len() + own
    }

    /// Whether its agent is emptying staging areas and does not count as frozen yet.
    pub(crate) fn is_being_cleared(&self) -> bool {
        matches!(self.awaits, Awaits::Agent(Task::Clear(since)) if since.elapsed() < timing::AGENT_FROZEN)
    }

    /// Whether it waits for its agent only.
    pub(crate) fn is_with_its_agent(&self) -> bool {
        matches!(self.awaits, Awaits::Agent(_))
    }
}

/// Result of an attempt for which no page could be claimed.
pub(crate) fn refused_attempt(refused: Option<NoRoom>) -> Attempt {
    match refused {
        Some(NoRoom::Full) => Attempt::FarFull,
        Some(NoRoom::NotYet) => Attempt::FarGrows,
        None => Attempt::NoVictims,
    }
}

impl Pager {
    /// Address in this process to which the contents of a victim are read, or were read. 0 if there is none.
    pub(crate) fn copy_of(&self, victim: &Victim) -> u64 {
        match victim.place() {
            Some(Place::Direct(address)) => address,
            Some(Place::Staged(Some(place))) => self.staging_place(place),
            _ => 0,
        }
    }
}

impl Evictor {
    /// Begins to evict as many of these pages as possible.
    pub(crate) fn begin(&mut self, space: &Arc<Space>, leaving: Leaving) -> Attempt {
        let Some(agent) = space.agent() else {
            self.stay_owned(space, leaving);
            return Attempt::NoVictims;
        };
        let command = self.next_command();
        let Claimed { victims, refused, area } = self.claim(space, &leaving, command);
        debug_assert_eq!(victims.is_empty(), area.is_none(), "victims without an area");
        if self.pager.far.slots().has_actions() {
            self.pager.flush_far();
        }
        if area.is_none() {
            return refused_attempt(refused);
        }
        Counters::add(&self.pager.stats.counters.batches, 1);
        let mut order = Order { area, ..Order::default() };
        for victim in &victims {
            extend(&mut order.move_out, victim.page);
        }
        // Without windows, sending keeps this thread awake, and a lender on this machine needs a processor, too.
        if self.pager.far.is_windowed() {
            self.placement.arrange(&self.pager.home);
        }
        let count = victims.len() as u64;
        let batch = Batch { area, ..Batch::new(space, agent, victims, Task::Move, command) };
        match space.send(&batch.agent, command, &order, &mut self.message) {
            Ok(()) => {
                for victim in &batch.victims {
                    if let Some(Place::Direct(address)) = victim.place() {
                        self.pager.far.warm(address);
                    }
                }
                self.eviction.commanded(command, self.now_ns());
                self.batches.push(batch);
            }
            Err(_) => {
                self.not_commanded(batch);
                return Attempt::NoVictims;
            }
        }
        Attempt::Begun(count)
    }

    pub(crate) fn next_command(&mut self) -> u32 {
        self.command = self.command.wrapping_add(1).max(1);
        self.command
    }

    /// Claims those of the pages that can leave.
    fn claim(&self, space: &Space, leaving: &Leaving, command: u32) -> Claimed {
        let staging_pages = self.pager.far.staging().pages as usize;
        let mut table = space.lock();
        let Claimed { mut victims, mut refused, .. } = self.claim_shared(space, &mut table, &leaving.shared);
        // Pages of this batch that will need a place in the staging memory.
        let mut to_stage = victims.iter().filter(|victim| victim.is_staged()).count();
        let mut unnamed = Vec::new();
        let mut slots = self.pager.far.slots();
        let mut replacement = self.pager.replacement.lock();
        for &Chosen { page, is_retry } in &leaving.chosen {
            let entry = table.states.get(page).with_queued(false);
            table.states.set(page, entry);
            if entry.state() != State::Resident || entry.frame().is_some() || table.closed {
                // It may share a frame since it was chosen.
                unnamed.extend(entry.frame());
                continue;
            }
            let mut again = |entry: Entry| {
                replacement.reinsert(PageName::new(space.index, page));
                entry.with_queued(true).with_referenced(false)
            };
            if entry.is_referenced() || !space.can_evict(&table) || table.states.is_name(page) {
                table.states.set(page, again(entry));
                continue;
            }
            if let Some(slot) = entry.slot() {
                if slots.is_lost(slot) {
                    // The slot's contents are lost, so the resident page is the only copy.
                    slots.release(slot);
                    table.states.set(page, again(entry.with_slot(None)));
                    continue;
                }
                self.pager.habit.observe(false);
            }
            let (victim, leaving) = match Victim::of_resident(page, entry, &mut slots) {
                Ok(begun) => begun,
                Err(reason) => {
                    refused = Some(reason);
                    table.states.set(page, again(entry));
                    continue;
                }
            };
            if victim.is_staged() {
                if to_stage == staging_pages {
                    victim.slot().into_iter().for_each(|slot| slots.release(slot));
                    table.states.set(page, again(entry));
                    continue;
                }
                to_stage += 1;
            }
            table.states.set(page, leaving);
            victims.push(Victim { is_retry, ..victim });
        }
        let area = if victims.is_empty() { None } else { table.under_way.begin(command) };
        drop((replacement, slots, table));
        unnamed.into_iter().for_each(|frame| self.pager.put_back_frame(frame));
        victims.sort_unstable_by_key(|victim| victim.page);
        Claimed { victims, refused, area }
    }

    /// Gives places in the staging memory to the pages that are copied there rather than straight to a window. Returns
    /// `false` if another batch has pages there that still have to be mapped again.
    fn stage(&self, victims: &mut [Victim]) -> bool {
        let to_copy = victims.iter_mut().filter(|victim| victim.is_staged());
        let mut free = None;
        for (place, victim) in (0u32..).zip(to_copy) {
            if !*free.get_or_insert_with(|| self.is_staging_free()) {
                return false;
            }
            victim.stage(Some(place));
        }
        true
    }

    /// Whether no batch has pages in the staging memory.
    pub(crate) fn is_staging_free(&self) -> bool {
        !self.batches.iter().any(|batch| batch.victims.iter().any(|victim| victim.staged().is_some()))
    }

    /// Goes on with every batch whose agent has answered, and with every batch that waits for something else.
    pub(crate) fn collect(&mut self) {
        let mut index = 0;
        // Batches that begin meanwhile have their turn in the next pass: other work waits for what is done between passes.
        for _ in 0..self.batches.len() {
            let Some(batch) = self.batches.get(index) else { break };
            let answer = match batch.awaits {
                Awaits::Agent(_) => match batch.space.answer(&batch.agent) {
                    Ok(None) => {
                        index += 1;
                        continue;
                    }
                    // An answer with the number of another command is invalid.
                    answer => answer.ok().flatten().filter(|done| done.number == batch.command),
                },
                _ => None,
            };
            let batch = self.batches.swap_remove(index);
            if !self.go_on(batch, answer) {
                // The batch is the last one now. The batch that took its place has its turn in the next pass.
                index += 1;
            }
        }
    }

    /// Goes on with a batch; `answer` is its agent's answer, if there is one. Returns `false` if the batch has to wait; it
    /// is then the last one in the list.
    fn go_on(&mut self, mut batch: Batch, answer: Option<Done>) -> bool {
        match (std::mem::replace(&mut batch.awaits, Awaits::Rest), answer) {
            (Awaits::Agent(task), Some(done)) => self.answered(batch, task, done),
            (Awaits::Agent(task), None) => self.agent_lost(batch, task, Instant::now()),
            (Awaits::End(task, since), _) => self.agent_lost(batch, task, since),
            (Awaits::Tables(done, since), _) => self.look_at_tables(batch, done, since),
            (Awaits::Staging(done), _) => self.take_out(batch, done),
            (Awaits::Rest, _) => self.settle(batch),
        }
    }

    /// Handles an agent's answer, which says how much of its task it has done.
    pub(crate) fn answered(&mut self, mut batch: Batch, task: Task, done: Done) -> bool {
        match task {
            Task::Own(leaving) => self.owned(batch, leaving),
            Task::Move => {
                batch.begun = batch.agent.begun();
                return self.look_at_tables(batch, done, Instant::now());
            }
            Task::Drop(drops) => {
                self.dropped(&mut batch, &drops, done.dropped as usize);
                self.settle(batch);
            }
            Task::Clear(_) => {
                if batch.agent.begun() > 0 {
                    batch.space.clear_all_staged(&self.pager.room);
                }
                self.cleared(&batch.space, batch.command);
            }
        }
        true
    }

    /// Begins further evictions while a batch is being saved, which takes time: agents can move the next pages meanwhile.
    /// Does so only if the agent has nothing more to do for this batch, and room stays short even when all pages on their
    /// way out have left.
    fn begin_next(&mut self, batch: &Batch) {
        // Pages that were shared are made their processes' own before anything else, and that needs a space where nothing
        // else is under way. And while a lender is silent, pages that are moved out could not be fetched for long.
        if batch.victims.iter().any(|victim| victim.at == At::Kept)
            || self.pager.replacement.lock().has_retries()
            || self.pager.far.slots().waits_for_lender()
        {
            return;
        }
        batch.space.lock().under_way.answered(batch.command);
        let leaving = self.batches.iter().chain([batch]).map(Batch::pages).sum();
        if self.pager.short_of(leaving) == 0 {
            return;
        }
        let view = self.view(false);
        match self.make_room(leaving) {
            (attempt @ Attempt::Begun(1..), looked_at) => {
                self.eviction.made_room(attempt, looked_at as u64, &view);
            }
            // The main loop finds the same result and deals with it.
            (_, looked_at) => self.eviction.looked_at(looked_at as u64),
        }
    }

    /// The command to empty staging areas has ended, done or not.
    pub(crate) fn cleared(&self, space: &Arc<Space>, command: u32) {
        space.lock().under_way.ended(command, None);
        self.pager.close_if_ended(space);
    }

    /// Empties staging areas where much lies in them: pages of processes from which little is evicted stay there until the
    /// area is used again. The areas of the last batch's space are left.
    pub(crate) fn clear_staging(&mut self) {
        if self.pager.room.is_staging_full() {
            let last = self.last;
            self.empty_areas(|space| space != last);
        }
    }

    /// Tells the agents of the meant spaces to empty their staging areas, where something lies in them and no eviction is
    /// under way.
    pub(crate) fn empty_areas(&mut self, is_meant: impl Fn(u32) -> bool) {
        for space in self.pager.all_spaces() {
            let is_meant = space.has_staged() && is_meant(space.index);
            let Some(agent) = space.agent().filter(|_| is_meant) else { continue };
            let command = self.next_command();
            {
                let mut table = space.lock();
                if table.closed || !space.has_agent() || !table.under_way.begin_alone(command) {
                    continue;
                }
            }
            if space.send(&agent, command, &Order::default(), &mut self.message).is_err() {
                // The agent has ended, and most likely its program, too.
                self.cleared(&space, command);
                continue;
            }
            // `Eviction` is not told of this command: it would have the evictor wait for the answer before it evicts more.
            self.batches.push(Batch::new(&space, agent, Vec::new(), Task::Clear(Instant::now()), command));
        }
    }

    /// Handles an agent's answer to a move: checks it against the page tables, then takes the pages out.
    fn look_at_tables(&mut self, batch: Batch, mut done: Done, answered: Instant) -> bool {
        if !self.correct(&batch, &mut done, answered) {
            return self.await_later(batch, Awaits::Tables(done, answered));
        }
        self.take_out(batch, done)
    }

    /// Puts a batch at the end of the list, to wait for something that no event reports.
    pub(crate) fn await_later(&mut self, mut batch: Batch, what: Awaits) -> bool {
        self.eviction.returning(batch.command);
        batch.awaits = what;
        self.batches.push(batch);
        false
    }

    /// Continues after a move: the pages that have left are saved, and the others stay.
    pub(crate) fn take_out(&mut self, mut batch: Batch, done: Done) -> bool {
        if !self.stage(&mut batch.victims) {
            return self.await_later(batch, Awaits::Staging(done));
        }
        if let Some(area) = batch.area.filter(|_| batch.begun > 0) {
            // The agent has emptied these areas first. The pages that lie there now count at their old place until their
            // evictions end.
            batch.space.clear_staged(&self.pager.room, area.all());
        }
        self.moved(&mut batch, &done);
        self.keep(&mut batch);
        batch.space.is_read.store(true, Ordering::Release);
        read_moved(&self.pager, (&batch.space, batch.area), &batch.agent, &mut batch.victims);
        read_kept(&self.pager, &batch.space, &batch.agent, &mut batch.victims);
        batch.space.is_read.store(false, Ordering::Release);
        let to_save = self.sort_out(&mut batch.victims);
        let left = |victim: &&Victim| matches!(victim.at, At::Moved(_) | At::Gone);
        let is_zero = |victim: &&Victim| victim.contents == Contents::Zero;
        let zeroes = batch.victims.iter().filter(left).filter(is_zero).count();
        let left = batch.victims.iter().filter(left).count();
        batch.space.lock().touches.left(zeroes, left, batch.victims.len());
        if !to_save.is_empty() {
            self.end_settled(&mut batch);
            self.save(&mut batch, &to_save);
        }
        // Not later: the agent's second command may take long, and other batches need the staging memory.
        self.return_pages(&mut batch);
        self.drop_kept(batch);
        true
    }

    /// Ends the evictions of the victims for which no lender has to be waited for. Threads that wait for their pages fault
    /// again.
    fn end_settled(&mut self, batch: &mut Batch) {
        let (settled, left): (Vec<_>, Vec<_>) = batch.victims.iter().partition(|victim| victim.is_settled());
        batch.victims = left;
        let shared = self.end_and_count(&batch.space, batch.area, settled);
        debug_assert!(shared.is_empty(), "such a page has not left");
    }

    /// Ends evictions, and counts those whose pages have left. Returns the names of the pages that stay because they are
    /// shared; they are in no queue.
    fn end_and_count(
        &mut self,
        space: &Arc<Space>,
        area: Option<Area>,
        victims: Vec<Victim>,
    ) -> Vec<PageName> {
        let left = victims.iter().filter(|victim| victim.leaves());
        self.evicted(left.count() as u64);
        // These pages lie in the area until it is used again.
        let staged = victims.iter().filter(|victim| victim.is_in_area).count() as u32;
        let copies = victims.iter().filter(|victim| victim.frame.is_some()).count() as u64;
        self.end(space, victims, Remainder { area, staged, copies })
    }

    /// Maps the pages again that could not be evicted. Those that cannot be mapped yet keep their place in the staging
    /// memory.
    fn return_pages(&self, batch: &mut Batch) {
        for victim in batch.victims.iter_mut().filter(|victim| victim.goes_back()) {
            let (copy, is_here) = (self.pager.copy_of(victim), victim.at == At::Taken);
            match self.pager.copy_back(&batch.space, victim.page, copy, is_here) {
                CopyBack::Mapped => victim.happened(Event::Returned),
                CopyBack::Later => {}
                // The page is lost rather than have wrong contents.
                CopyBack::Failed => victim.happened(Event::NotReturned),
            }
        }
        for victim in batch.victims.iter_mut().filter(|victim| !victim.goes_back()) {
            victim.stage(None);
        }
    }

    /// Finds pages that were moved although the kernel has reported an error, as Linux 6.18 does (decision 2). Returns
    /// `false` if the page tables cannot be read now; after a time limit such pages count as unknown.
    fn correct(&self, batch: &Batch, done: &mut Done, since: Instant) -> bool {
        // The kernel refuses a pinned or shared page before it moves anything. And an agent that has begun nothing has not
        // emptied the staging area, either.
        let is_doubtful = |status: u8| !matches!(status, 0 | EBUSY) && batch.begun > 0;
        let doubtful: Vec<(usize, &Victim)> = (batch.victims.iter().enumerate().zip(&done.moved))
            .filter(|(_, status)| is_doubtful(**status))
            .map(|(victim, _)| victim)
            .collect();
        if doubtful.is_empty() {
            return true;
        }
        let found = match found_moved(&self.pager, batch, &doubtful) {
            Ok(found) => found,
            Err(_) if since.elapsed() < timing::AGENT_GONE => return false,
            Err(_) => {
                for (index, _) in doubtful {
                    done.moved.get_mut(index).into_iter().for_each(|status| *status = UNKNOWN);
                }
                return true;
            }
        };
        for ((index, _), is_moved) in doubtful.into_iter().zip(found) {
            if let Some(status) = done.moved.get_mut(index).filter(|_| is_moved) {
                *status = 0;
                Counters::add(&self.pager.stats.counters.moves_misreported, 1);
            }
        }
        true
    }

    /// Notes for each page what became of the order to move it.
    fn moved(&self, batch: &mut Batch, done: &Done) {
        for (index, victim) in (0u32..).zip(&mut batch.victims) {
            let status = done.moved.get(index as usize).copied().unwrap_or(EINVAL);
            let writable =
                || process::is_writable(batch.agent.pid, Space::address(victim.page)).ok().flatten();
            victim.happened(match status {
                0 => Event::Moved(index),
                UNKNOWN => Event::PerhapsMoved,
                // The page's state says that it is mapped, and it is not: the program dropped it, or moved it away.
                ENOENT => Event::NotThere,
                EBUSY => Event::Busy,
                EINVAL if batch.begun > 0 => match writable() {
                    Some(false) if !batch.space.changes_unseen() => Event::ReadOnly,
                    // Its mapping may be locked, for instance.
                    Some(_) => Event::Refused,
                    None => Event::Changing,
                },
                // The page could not be moved now: mappings were changing.
                _ => Event::Changing,
            });
        }
    }

    /// Protects the kept victims: from here on a write to one waits. A page that the program has moved elsewhere meanwhile
    /// was not moved out, so it stays.
    fn keep(&self, batch: &mut Batch) {
        let mut table = batch.space.lock();
        for victim in &mut batch.victims {
            let entry = table.states.operation(victim.page).1;
            // It has been moved elsewhere since, or it was elsewhere when the agent looked for it and is back.
            let moved_elsewhere = table.states.is_name(victim.page);
            match victim.at {
                At::Absent if moved_elsewhere => victim.happened(Event::Elsewhere),
                At::Kept if moved_elsewhere || entry.is_discarded() => victim.happened(Event::Elsewhere),
                At::Kept => {
                    let address = Space::address(victim.page);
                    if batch.space.uffd.write_protect(address, PAGE_BYTES as usize, true).is_err() {
                        victim.happened(Event::NotKept);
                        continue;
                    }
                    // Its mapping may have been made writable before the page was protected, and a device may write to the
                    // page: the copy might miss that. From now on a thread that wants to write waits.
                    if !victim.is_stored()
                        && !matches!(process::is_writable(batch.agent.pid, address), Ok(Some(false)))
                    {
                        let _ = batch.space.uffd.write_protect(address, PAGE_BYTES as usize, false);
                        victim.happened(Event::NotKept);
                        continue;
                    }
                    table.states.set(victim.page, entry.with_kept(true));
                }
                _ => {}
            }
        }
    }

    /// Releases the slots of pages that hold only zeroes. Returns the slots that are to be saved, and their pages in the
    /// staging memory.
    fn sort_out(&self, victims: &mut [Victim]) -> Vec<(u32, u32)> {
        let counters = &self.pager.stats.counters;
        let (read, mut zeroes) = (victims.iter().filter(|victim| victim.is_to_be_read()).count(), 0);
        let is_zero = |victim: &Victim| {
            // SAFETY: a page of a window or of the staging memory, just written, page-aligned.
            let is_zero = unsafe { page_is_zero(self.pager.copy_of(victim)) };
            zeroes += u64::from(is_zero);
            is_zero
        };
        // The pages are examined before the slots are locked, for which other threads have to wait.
        let zero: Vec<bool> = victims.iter().filter(|victim| victim.is_to_be_read()).map(is_zero).collect();
        let mut zero = zero.into_iter();
        let to_save = sort_out(victims, &mut self.pager.far.slots(), |_| zero.next().unwrap_or_default());
        Counters::add(&counters.zero_drops, zeroes);
        Counters::add(&counters.pages_out, read as u64 - zeroes);
        to_save
    }

    /// Saves slots. Until that is done, a thread that touches one of their pages takes it back.
    fn save(&mut self, batch: &mut Batch, to_save: &[(u32, u32)]) {
        let space = batch.space.clone();
        self.offer_back(&space, &mut batch.victims);
        let is_taken = |slot: u32| {
            batch.victims.iter().any(|victim| victim.slot() == Some(slot) && victim.at == At::Taken)
        };
        let left: Vec<_> = to_save.iter().copied().filter(|(slot, _)| !is_taken(*slot)).collect();
        let mut failed = Vec::new();
        if !left.is_empty() {
            self.pager.attend_far(|far| far.write(&left));
            self.begin_next(batch);
            failed = self.await_written();
        }
        self.withdraw(&space, &mut batch.victims);
        written(&mut batch.victims, &failed);
    }

    /// Waits until the slots are written. Returns the slots that could not be saved.
    fn await_written(&self) -> Vec<u32> {
        let mut written = Written::Soon;
        loop {
            // Pages for which other threads wait arrive meanwhile.
            self.pager.attend_far(|far| written = far.write_on());
            // While no fault comes, no other thread serves what this one has deferred.
            self.pager.serve_deferred();
            match written {
                Written::All(failed) => return failed,
                Written::Soon => {}
                Written::Later(timeout) => self.pager.far.wait_written(timeout),
            }
        }
    }

    /// Offers the pages that are being saved: from now on, a thread that touches one gets it back and does not wait for
    /// lenders. If a thread already waits for one, it gets the page now, and the page is not saved.
    fn offer_back(&self, space: &Arc<Space>, victims: &mut [Victim]) {
        let mut guard = space.lock();
        let table = &mut *guard;
        let offered = victims.iter().filter(|victim| victim.is_offered_back());
        // Victims stand in the order of their pages.
        table.saving = offered.map(|victim| (victim.page, self.pager.copy_of(victim))).collect();
        table.states.offer(table.saving.iter().map(|(page, _)| *page).collect());
        for victim in victims.iter().filter(|victim| victim.is_offered_back()) {
            for _ in 0..CHANGES_MAX {
                let is_awaited = table.states.is_awaited(victim.page);
                let is_changing =
                    is_awaited && self.pager.take_back(space, table, victim.page) == TookBack::Again;
                if !is_changing || !self.pager.read_change(space, table) {
                    break;
                }
            }
        }
        note_taken(victims, table.states.offered());
    }

    /// Ends the offer of [`Self::offer_back`]: the pages have been saved.
    fn withdraw(&self, space: &Space, victims: &mut [Victim]) {
        let mut table = space.lock();
        table.saving.clear();
        let left = table.states.withdraw();
        drop(table);
        note_taken(victims, &left);
    }

    /// Has the agent drop the kept victims, whose contents are safe now.
    fn drop_kept(&mut self, mut batch: Batch) {
        if !batch.victims.iter().any(|victim| victim.at == At::Kept) {
            self.settle(batch);
            return;
        }
        let (mut order, command) = (Order::default(), self.next_command());
        {
            let mut guard = batch.space.lock();
            let table = &mut *guard;
            for victim in &mut batch.victims {
                let (now, entry) = table.states.operation(victim.page);
                let is_there = now == victim.page && !entry.is_discarded() && !table.closed;
                match victim.at {
                    At::Kept if !is_there || batch.space.changes_unseen() => {
                        victim.happened(Event::Elsewhere)
                    }
                    At::Kept => {
                        if !victim.is_stored() {
                            // A child that is forked from now on finds the contents in the slot, or the page present.
                            let saved = entry.with_state(State::EvictDrop).with_slot(victim.slot());
                            table.states.set(victim.page, saved);
                        }
                        // Each page is a range of its own: for a range over several mappings, the kernel reports each part.
                        order.drop.push((victim.page, 1));
                    }
                    _ => {}
                }
            }
            if !order.drop.is_empty() {
                table.under_way.follow(batch.command, command);
            }
            table.own_drops = order
                .drop
                .iter()
                .map(|&(first, count)| (Space::address(first), Space::address(first + u64::from(count))))
                .collect();
        }
        // All other evictions end before the agent touches anything.
        let (left, over): (Vec<_>, Vec<_>) =
            batch.victims.drain(..).partition(|victim| victim.at == At::Kept || victim.goes_back());
        batch.victims = left;
        batch.shared = self.end_and_count(&batch.space, batch.area, over);
        if order.drop.is_empty() {
            self.settle(batch);
            return;
        }
        batch.awaits = Awaits::Agent(Task::Drop(order.drop.clone()));
        self.eviction.ended(std::mem::replace(&mut batch.command, command));
        match batch.space.send(&batch.agent, command, &order, &mut self.message) {
            Ok(()) => {
                self.eviction.commanded(command, self.now_ns());
                self.batches.push(batch);
            }
            Err(_) => self.not_commanded(batch),
        }
    }

    /// Handles the agent's answer that it has dropped the first `count` of these ranges.
    fn dropped(&self, batch: &mut Batch, drops: &[(Page, u32)], count: usize) {
        let mut guard = batch.space.lock();
        let table = &mut *guard;
        for (index, &(page, _)) in drops.iter().enumerate() {
            let range = (Space::address(page), Space::address(page + 1));
            let reported = match table.own_drops.iter().position(|own| *own == range) {
                Some(at) => {
                    table.own_drops.swap_remove(at);
                    false
                }
                None => true,
            };
            let (now, entry) = table.states.operation(page);
            let is_here = now == page && table.states.get(page) == entry;
            let event = if index < count {
                Counters::add(&self.pager.stats.counters.read_only_drops, 1);
                if !is_here {
                    self.look_at_dropped(&batch.space, table, page);
                }
                Event::Dropped
            } else {
                if reported && is_here {
                    // The program, not the agent, dropped exactly this range.
                    table.states.discard(page, page + 1, &mut self.pager.far.slots());
                    self.pager.leave_frames(table);
                }
                Event::NotDropped
            };
            let kept = batch.victims.iter_mut().filter(|victim| victim.at == At::Kept);
            kept.filter(|victim| victim.page == page).for_each(|victim| victim.happened(event));
        }
        table.own_drops.clear();
    }

    /// Checks a place where a page was dropped and another page has come to stand, perhaps before the drop. libc's calls
    /// wait for drops, so the program has moved the page there by its first raw system call. If the page is absent, it was
    /// dropped in place of the other, and a thread that touches it gets SIGBUS rather than zeroes.
    fn look_at_dropped(&self, space: &Arc<Space>, table: &mut Table, page: Page) {
        if table.states.get(page).state() != State::Resident || table.closed {
            return;
        }
        let poisoned = space.at_rest(space.uffd.poison(Space::address(page), PAGE_BYTES as usize));
        // If the mappings are changing again, the page counts as lost: a thread that touches it has it poisoned then, if it
        // is absent.
        if !matches!(poisoned, Err(UffdError::Exists(_) | UffdError::NotMapped | UffdError::Gone)) {
            let shares = table.states.get(page).frame().is_some();
            table.states.lost(page, &mut self.pager.far.slots());
            self.pager.unreserve(space, u64::from(!shares));
            self.pager.leave_frames(table);
            self.pager.say_once(
                "dropped",
                "a page that the program moved by a system call of its own was dropped in place of the one before: \
                 the program gets SIGBUS if it uses it",
            );
        }
    }

    /// Ends the evictions of a batch: sets the entries of its victims, which are gone or stay, and wakes the threads that
    /// waited. Returns `false` if some victims have to be mapped again and cannot be yet.
    pub(crate) fn settle(&mut self, mut batch: Batch) -> bool {
        self.return_pages(&mut batch);
        if batch.victims.iter().any(Victim::goes_back) {
            return self.await_later(batch, Awaits::Rest);
        }
        let victims = std::mem::take(&mut batch.victims);
        batch.shared.extend(self.end_and_count(&batch.space, batch.area, victims));
        {
            let mut table = batch.space.lock();
            if table.under_way.command() == batch.command {
                table.touching.clear();
            }
            table.under_way.ended(batch.command, batch.area);
        }
        if !batch.shared.is_empty() {
            self.pager.replacement.lock().retry(batch.shared);
        }
        self.eviction.ended(batch.command);
        self.pager.close_if_ended(&batch.space);
        self.last = batch.space.index;
        true
    }

    fn end(&self, space: &Arc<Space>, victims: Vec<Victim>, remainder: Remainder) -> Vec<PageName> {
        if victims.is_empty() {
            return Vec::new();
        }
        let counters = &self.pager.stats.counters;
        let mut endings = Vec::with_capacity(victims.len());
        self.save_frames(space, &victims);
        let frames = victims.iter().filter_map(|victim| victim.frame);
        let left: Vec<Left> = frames.map(|frame| Left { frame, was_queued: true }).collect();
        {
            let mut slots = self.pager.far.slots();
            for victim in victims {
                let ending = victim.end(&mut slots);
                Counters::add(&counters.evictions_undone, u64::from(ending.stays()));
                Counters::add(&counters.clean_drops, u64::from(victim.is_stored() && victim.at == At::Gone));
                endings.push((victim.page, ending));
            }
        }
        let shared = self.pager.end_operations(space, endings, remainder);
        self.pager.frames_left(&left, Departure::Evicted);
        shared
    }
}
