//! How a batch of pages leaves a program.
//!
//! Pages are **moved** to the staging area (`UFFDIO_MOVE`, by the agent): from then on
//! nobody writes them, and a thread that touches one waits. A *clean* page's contents are
//! stored already, and it is gone. The others are read from there and saved unless they are
//! zeroes. A page that a device or io_uring has pinned does not move, so a direct read into
//! it is not lost, as it would be if the page were copied and dropped. (Of a mapping that is not writable, the kernel
//! does not say whether a page is pinned.) Dropping pages of the program one at a time would also cost an event each.
//!
//! A page that a fork shares, or has shared, cannot be moved either. It is made this process's own, and tried again next, once.
//!
//! Only a page of a mapping that is not writable is **kept** mapped, write-protected, while it is
//! copied, and dropped afterwards; libc's calls that change mappings wait for the drop. Of a program that
//! changes mappings by system calls of its own, such pages stay.
//!
//! The agent answers when it can. Until then the batch waits, and others go on: the program
//! may be frozen, and its agent with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_core::pager::{
    Attempt, Entry, Frame, Left, Outcome as Ending, PAGE_BYTES, Page, PageName, State,
};
use tombolo_core::store::NoRoom;
use tombolo_host::process;
use tombolo_host::sparse::page_is_zero;
use tombolo_host::timing::pager as timing;
use tombolo_host::uffd::UffdError;
use tombolo_node::Written;

use crate::copy_out::{read_kept, read_moved};
use crate::evict::{Chosen, Evictor};
use crate::lost::found_moved;
use crate::pager::CopyBack;
use crate::protocol::{Done, STAGING_PAGES};
use crate::serve::{CHANGES_MAX, TookBack};
use crate::shared_out::Sharer;
use crate::sharing::Departure;
use crate::space::{Agent, Order, Space, Table, extend};
use crate::stats::Counters;

/// Pages of one batch.
pub const BATCH: usize = STAGING_PAGES;

/// Where the page is cannot be told. Above every error number.
const UNKNOWN: u8 = u8::MAX;
const EBUSY: u8 = libc::EBUSY as u8;
const EINVAL: u8 = libc::EINVAL as u8;
const ENOENT: u8 = libc::ENOENT as u8;

/// How a victim leaves, and how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Its contents are not stored: to be moved.
    Move,
    /// Its slot has the contents: to be moved away.
    Clean,
    /// In the staging area at this index.
    Moved(u32),
    /// Protected, copied unless it is clean, and then dropped.
    Keep,
    /// It has left the program, and its slot has the contents.
    Gone,
    /// It was not there. A clean one's slot has its contents; any other reads as zero.
    Absent,
    /// It was moved, and cannot be read: rather no contents than wrong ones.
    Unread,
    /// It stays as it was.
    Stay,
    /// It stays as it was, since the kernel does not move such a page.
    Refused,
    /// It was moved and could not be saved: it goes back.
    Back,
    /// It was wanted before it was saved, and is back already, but for children that share its end.
    Taken,
    /// A fork shares it, or it is pinned: it stays, and is made this process's own when it is tried next.
    Shared,
}

impl Way {
    /// Its contents are needed until they are mapped again everywhere.
    fn goes_back(self) -> bool {
        matches!(self, Self::Back | Self::Taken)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) page: Page,
    pub(crate) slot: Option<u32>,
    /// The slot has had the contents from the beginning.
    pub(crate) clean: bool,
    pub(crate) way: Way,
    /// It was to leave just now, and was shared.
    is_retry: bool,
    /// It shares this frame.
    pub(crate) frame: Option<Frame>,
    /// Where the contents go in this process: the slot's window, or staging memory.
    pub(crate) copy: u64,
    /// Which page of the staging memory that is, unless the contents go straight to the slot's window.
    staged: Option<u32>,
}

impl Victim {
    pub(crate) fn new(page: Page, slot: Option<u32>, clean: bool, way: Way, copy: u64) -> Self {
        Self { page, slot, clean, way, is_retry: false, frame: None, copy, staged: None }
    }

    pub(crate) fn with_frame(self, frame: Frame) -> Self {
        Self { frame: Some(frame), ..self }
    }

    /// Its contents go by the staging memory.
    fn is_staged(&self) -> bool {
        !self.clean && self.slot.is_some() && (self.copy == 0 || self.staged.is_some())
    }

    /// It has left the program, and waits for no lender and no agent.
    fn is_settled(&self) -> bool {
        match self.way {
            Way::Gone | Way::Absent => true,
            Way::Moved(_) => self.staged.is_none(),
            _ => false,
        }
    }

    /// It has left the program, and its contents are in the staging memory.
    fn is_offered_back(&self) -> bool {
        self.staged.is_some() && matches!(self.way, Way::Moved(_))
    }
}

/// What came of claiming pages.
pub(crate) struct Claimed {
    pub(crate) victims: Vec<Victim>,
    /// Why there are no more of them.
    pub(crate) refused: Option<NoRoom>,
}

/// Pages of one space that are to leave.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// In order.
    pub(crate) chosen: Vec<Chosen>,
    /// Those that share frames, in order.
    pub(crate) shared: Vec<Sharer>,
}

/// Pages on their way out of one space, while its agent carries out a command.
pub struct Batch {
    pub(crate) space: Arc<Space>,
    pub(crate) agent: Arc<Agent>,
    pub(crate) victims: Vec<Victim>,
    /// Pages that the agent was told to make the process's own, and others, which are to leave then. There are no victims yet.
    pub(crate) to_own: Option<Leaving>,
    /// Ranges that the agent was told to drop, in the second command.
    pub(crate) drops: Option<Vec<(Page, u32)>>,
    /// Pages that stay because they are shared. They are in no queue until the batch has ended.
    pub(crate) shared: Vec<PageName>,
    pub(crate) command: u32,
    pub(crate) awaits: Awaits,
}

/// What a batch waits for.
pub(crate) enum Awaits {
    Agent,
    /// The agent has answered this, at that time; whether it is so cannot be looked at now.
    Tables(Done, Instant),
    /// It has done this; another batch has pages in the staging memory.
    Staging(Done),
    /// Pages are to be mapped again in an address space that is changing.
    Rest,
    /// The agent has hung up, at that time; what it has done cannot be told yet.
    End(Instant),
}

impl Batch {
    /// It waits for its agent, and for nothing else.
    pub(crate) fn is_with_its_agent(&self) -> bool {
        matches!(self.awaits, Awaits::Agent)
    }
}

/// What came of an attempt for which no page could be claimed.
pub(crate) fn refused_attempt(refused: Option<NoRoom>) -> Attempt {
    match refused {
        Some(NoRoom::Full) => Attempt::FarFull,
        Some(NoRoom::NotYet) => Attempt::FarGrows,
        None => Attempt::NoVictims,
    }
}

/// Those that were offered and are not offered any more have been taken back.
fn note_taken(victims: &mut [Victim], left: &[Page]) {
    for victim in victims.iter_mut().filter(|victim| victim.is_offered_back()) {
        if left.binary_search(&victim.page).is_err() {
            victim.way = Way::Taken;
        }
    }
}

impl Evictor {
    /// Begins to evict those of these pages that can be.
    pub(crate) fn begin(&mut self, space: &Arc<Space>, leaving: Leaving) -> Attempt {
        let Some(agent) = space.agent() else {
            self.stay_owned(space, leaving);
            return Attempt::NoVictims;
        };
        let command = self.next_command();
        let Claimed { victims, refused } = self.claim(space, &leaving, command);
        if self.pager.far.slots().has_actions() {
            self.pager.flush_far();
        }
        if victims.is_empty() {
            return refused_attempt(refused);
        }
        Counters::add(&self.pager.stats.counters.batches, 1);
        let mut order = Order::default();
        for victim in &victims {
            extend(&mut order.move_out, victim.page);
        }
        // Otherwise sending keeps this thread awake, and a lender on this machine needs a processor, too.
        if self.pager.far.is_windowed() {
            self.placement.arrange(&self.pager.home);
        }
        let count = victims.len() as u64;
        let batch = Batch {
            space: space.clone(),
            agent,
            victims,
            to_own: None,
            drops: None,
            shared: Vec::new(),
            command,
            awaits: Awaits::Agent,
        };
        match space.send(&batch.agent, command, &order, &mut self.message) {
            Ok(()) => {
                for victim in batch.victims.iter().filter(|victim| victim.copy != 0) {
                    self.pager.far.warm(victim.copy);
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

    /// Claims those of the pages that are to go.
    fn claim(&self, space: &Space, leaving: &Leaving, command: u32) -> Claimed {
        let staging_pages = self.pager.far.staging().pages as usize;
        let mut table = space.lock();
        let Claimed { mut victims, mut refused } = self.claim_shared(space, &mut table, &leaving.shared);
        // Pages of this batch that will need a place in the staging memory.
        let mut to_stage = victims.iter().filter(|victim| victim.is_staged()).count();
        let mut unnamed = Vec::new();
        let mut slots = self.pager.far.slots();
        let mut replacement = self.pager.replacement.lock();
        for &Chosen { page, is_retry } in &leaving.chosen {
            let entry = table.states.get(page).with_queued(false);
            table.states.set(page, entry);
            if entry.state() != State::Resident || entry.frame().is_some() || table.closed {
                // It shares a frame since it was chosen, perhaps.
                unnamed.extend(entry.frame());
                continue;
            }
            let mut again = |entry: Entry| {
                replacement.reinsert(PageName::new(space.index, page));
                entry.with_queued(true).with_referenced(false)
            };
            if entry.is_referenced() || table.command != 0 || !space.has_agent() || table.states.is_name(page)
            {
                table.states.set(page, again(entry));
                continue;
            }
            if let Some(slot) = entry.slot() {
                if slots.is_lost(slot) {
                    // Its contents are here only, now.
                    slots.release(slot);
                    table.states.set(page, again(entry.with_slot(None)));
                    continue;
                }
                self.pager.habit.observe(false);
                table.states.set(page, entry.with_eviction(State::EvictDrop, Some(slot)));
                victims.push(Victim { is_retry, ..Victim::new(page, Some(slot), true, Way::Clean, 0) });
                continue;
            }
            let (slot, direct) = match slots.take() {
                Ok(taken) => taken,
                Err(reason) => {
                    refused = Some(reason);
                    table.states.set(page, again(entry));
                    continue;
                }
            };
            let copy = match direct {
                Some(address) => address,
                None if to_stage < staging_pages => {
                    to_stage += 1;
                    0
                }
                None => {
                    slots.release(slot);
                    table.states.set(page, again(entry));
                    continue;
                }
            };
            table.states.set(page, entry.with_eviction(State::EvictCopy, None));
            victims.push(Victim { is_retry, ..Victim::new(page, Some(slot), false, Way::Move, copy) });
        }
        if !victims.is_empty() {
            table.command = command;
        }
        drop((replacement, slots, table));
        unnamed.into_iter().for_each(|frame| self.pager.put_back_frame(frame));
        victims.sort_unstable_by_key(|victim| victim.page);
        Claimed { victims, refused }
    }

    /// Gives the pages that are to be copied, and not straight to a window, their places in the staging memory.
    /// False: another batch has pages there that are still to go back.
    fn stage(&self, victims: &mut [Victim]) -> bool {
        let to_copy = victims.iter_mut().filter(|victim| victim.is_staged());
        let mut free = None;
        for (place, victim) in (0u32..).zip(to_copy) {
            if !*free.get_or_insert_with(|| self.is_staging_free()) {
                return false;
            }
            victim.staged = Some(place);
            victim.copy = self.pager.staging_place(place);
        }
        true
    }

    /// Whether no batch has pages in the staging memory.
    pub(crate) fn is_staging_free(&self) -> bool {
        !self.batches.iter().any(|batch| batch.victims.iter().any(|victim| victim.staged.is_some()))
    }

    /// Goes on with every batch whose agent has answered.
    pub(crate) fn collect(&mut self) {
        let mut index = 0;
        while let Some(batch) = self.batches.get(index) {
            if !batch.is_with_its_agent() {
                let batch = self.batches.swap_remove(index);
                if !self.resume(batch) {
                    // It stands last now; the one that stands here comes in the next pass.
                    index += 1;
                }
                continue;
            }
            match batch.space.answer(&batch.agent) {
                Ok(None) => index += 1,
                Ok(Some(done)) if done.number == batch.command => {
                    let mut batch = self.batches.swap_remove(index);
                    batch.awaits = Awaits::Tables(done, Instant::now());
                    self.resume(batch);
                }
                // An answer to another command: not what an agent of ours says.
                Ok(Some(_)) | Err(_) => {
                    let batch = self.batches.swap_remove(index);
                    if !self.agent_lost(batch, Instant::now()) {
                        index += 1;
                    }
                }
            }
        }
    }

    /// Goes on with a batch whose agent has answered. False: it has to wait, and stands last now.
    pub(crate) fn resume(&mut self, mut batch: Batch) -> bool {
        if let Some(leaving) = batch.to_own.take() {
            self.owned(batch, leaving);
            return true;
        }
        let (mut done, answered) = match std::mem::replace(&mut batch.awaits, Awaits::Agent) {
            Awaits::Tables(done, since) => (done, Some(since)),
            Awaits::Staging(done) => (done, None),
            Awaits::End(since) => return self.agent_lost(batch, since),
            Awaits::Agent | Awaits::Rest => return self.settle(batch),
        };
        if let Some(drops) = batch.drops.take() {
            self.dropped(&mut batch, &drops, done.dropped as usize);
            self.settle(batch);
            return true;
        }
        if let Some(since) = answered
            && !self.correct(&batch, &mut done, since)
        {
            self.eviction.returning(batch.command);
            batch.awaits = Awaits::Tables(done, since);
            self.batches.push(batch);
            return false;
        }
        if !self.stage(&mut batch.victims) {
            self.eviction.returning(batch.command);
            batch.awaits = Awaits::Staging(done);
            self.batches.push(batch);
            return false;
        }
        self.moved(&mut batch, &done);
        self.keep(&mut batch);
        batch.space.is_read.store(true, Ordering::Release);
        read_moved(&batch.space, &batch.agent, &mut batch.victims);
        read_kept(&batch.space, &batch.agent, &mut batch.victims);
        batch.space.is_read.store(false, Ordering::Release);
        let to_save = self.sort_out(&mut batch.victims);
        let moved = |victim: &&Victim| matches!(victim.way, Way::Moved(_) | Way::Gone);
        let left = batch.victims.iter().filter(moved).count();
        let is_zero = |victim: &&Victim| !victim.clean && victim.slot.is_none();
        let zeroes = batch.victims.iter().filter(moved).filter(is_zero).count();
        batch.space.lock().touches.left(zeroes, left, batch.victims.len());
        if !to_save.is_empty() {
            self.end_settled(&mut batch);
            self.save(&batch.space, &mut batch.victims, &to_save);
        }
        // Not later: the agent's second command may take long, and others need the staging memory.
        self.return_pages(&mut batch);
        self.drop_kept(batch);
        true
    }

    /// Ends the evictions of victims that wait for no lender: threads that wait for their pages fault again.
    fn end_settled(&mut self, batch: &mut Batch) {
        let (settled, left): (Vec<_>, Vec<_>) = batch.victims.iter().partition(|victim| victim.is_settled());
        batch.victims = left;
        let shared = self.end_and_count(&batch.space, settled);
        debug_assert!(shared.is_empty(), "such a page has not left");
    }

    /// Ends evictions, and counts those whose pages have left. Returns the names of the pages that are shared: they are in no queue.
    fn end_and_count(&mut self, space: &Arc<Space>, victims: Vec<Victim>) -> Vec<PageName> {
        let left =
            victims.iter().filter(|victim| !matches!(victim.way, Way::Stay | Way::Refused | Way::Shared));
        self.evicted(left.count() as u64);
        self.end(space, victims)
    }

    /// Maps the pages that stay, after all. Those that cannot be mapped yet keep their place in the staging memory.
    fn return_pages(&self, batch: &mut Batch) {
        for victim in batch.victims.iter_mut().filter(|victim| victim.way.goes_back()) {
            let is_here = victim.way == Way::Taken;
            victim.way = match self.pager.copy_back(&batch.space, victim.page, victim.copy, is_here) {
                CopyBack::Mapped => Way::Stay,
                CopyBack::Later => continue,
                // Rather no contents than wrong ones.
                CopyBack::Failed => Way::Unread,
            };
        }
        for victim in batch.victims.iter_mut().filter(|victim| !victim.way.goes_back()) {
            victim.staged = None;
        }
    }

    /// Finds pages that were moved although the kernel has reported an error: Linux 6.18 does that (decision 2). False: the
    /// page tables cannot be looked at now, and have not been for long.
    fn correct(&self, batch: &Batch, done: &mut Done, since: Instant) -> bool {
        // A page that is pinned or shared is refused before anything is moved. And an agent that has begun nothing has not
        // cleared the staging area, either.
        let is_doubtful = |status: u8| !matches!(status, 0 | EBUSY) && batch.agent.begun() > 0;
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

    /// What became of the pages that were to be moved.
    fn moved(&self, batch: &mut Batch, done: &Done) {
        for (index, victim) in (0u32..).zip(&mut batch.victims) {
            let status = done.moved.get(index as usize).copied().unwrap_or(EINVAL);
            let writable =
                || process::is_writable(batch.agent.pid, Space::address(victim.page)).ok().flatten();
            let refused = || match status {
                // Its state says that it is mapped, and it is not: the program dropped it, or moved it away.
                ENOENT => Way::Absent,
                // It is pinned, or another fork shares it.
                EBUSY if victim.is_retry => Way::Stay,
                EBUSY => Way::Shared,
                EINVAL if batch.agent.begun() > 0 => match writable() {
                    Some(false) if !batch.space.changes_unseen() => Way::Keep,
                    // Its mapping is locked, too, perhaps.
                    Some(_) => Way::Refused,
                    None => Way::Stay,
                },
                // Not now: mappings were changing.
                _ => Way::Stay,
            };
            victim.way = match status {
                0 | UNKNOWN if victim.clean => Way::Gone,
                0 => Way::Moved(index),
                // Rather no contents than wrong ones.
                UNKNOWN => Way::Unread,
                _ => refused(),
            };
        }
    }

    /// From here on a write to a kept victim waits. And what the program moved elsewhere meanwhile
    /// was not moved out, so it stays.
    fn keep(&self, batch: &mut Batch) {
        let mut table = batch.space.lock();
        for victim in &mut batch.victims {
            let (now, entry) = table.states.operation(victim.page);
            let moved_elsewhere = now != victim.page;
            match victim.way {
                Way::Absent if moved_elsewhere => victim.way = Way::Stay,
                Way::Keep if moved_elsewhere || entry.is_discarded() => victim.way = Way::Stay,
                Way::Keep => {
                    let address = Space::address(victim.page);
                    if batch.space.uffd.write_protect(address, PAGE_BYTES as usize, true).is_err() {
                        victim.way = Way::Stay;
                        continue;
                    }
                    // Its mapping may have been made writable before it was protected, and a device may write to
                    // the page: what is copied now would not be the last word. From now on whoever wants to write
                    // waits.
                    if !victim.clean
                        && !matches!(process::is_writable(batch.agent.pid, address), Ok(Some(false)))
                    {
                        let _ = batch.space.uffd.write_protect(address, PAGE_BYTES as usize, false);
                        victim.way = Way::Stay;
                        continue;
                    }
                    table.states.set(victim.page, entry.with_kept(true));
                }
                _ => {}
            }
        }
    }

    /// Gives the slots of zero pages back. Returns the slots that are to be saved, and their pages in the staging memory.
    fn sort_out(&self, victims: &mut [Victim]) -> Vec<(u32, u32)> {
        let counters = &self.pager.stats.counters;
        let mut to_save = Vec::new();
        for victim in victims.iter_mut().filter(|victim| !victim.clean) {
            let Some(slot) = victim.slot.filter(|_| matches!(victim.way, Way::Moved(_) | Way::Keep)) else {
                continue;
            };
            // SAFETY: a page of a window or of the staging memory, just written, page-aligned.
            if unsafe { page_is_zero(victim.copy) } {
                self.pager.far.slots().release(slot);
                (victim.slot, victim.staged) = (None, None);
                Counters::add(&counters.zero_drops, 1);
                continue;
            }
            Counters::add(&counters.pages_out, 1);
            match victim.staged {
                Some(staged) => to_save.push((slot, staged)),
                None if self.pager.far.slots().commit(slot, None).is_err() => victim.way = Way::Unread,
                None => {}
            }
        }
        to_save
    }

    /// Saves slots. Meanwhile their pages can be taken back.
    fn save(&self, space: &Arc<Space>, victims: &mut [Victim], to_save: &[(u32, u32)]) {
        self.offer_back(space, victims);
        let is_taken =
            |slot: u32| victims.iter().any(|victim| victim.slot == Some(slot) && victim.way == Way::Taken);
        let left: Vec<_> = to_save.iter().copied().filter(|(slot, _)| !is_taken(*slot)).collect();
        let failed = if left.is_empty() { Vec::new() } else { self.write_far(&left) };
        self.withdraw(space, victims);
        for victim in victims.iter_mut().filter(|victim| victim.staged.is_some()) {
            if victim.slot.is_some_and(|slot| failed.contains(&slot)) {
                victim.way = match victim.way {
                    Way::Moved(_) => Way::Back,
                    Way::Keep => Way::Stay,
                    way => way,
                };
            }
        }
    }

    /// Has slots written. Returns those that are not safe.
    fn write_far(&self, slots: &[(u32, u32)]) -> Vec<u32> {
        let mut written = Written::Soon;
        self.pager.attend_far(|far| far.write(slots));
        loop {
            // Pages that others wait for arrive meanwhile.
            self.pager.attend_far(|far| written = far.write_on());
            // What this thread has put off, nobody else looks at while no fault comes.
            self.pager.serve_deferred();
            match written {
                Written::All(failed) => return failed,
                Written::Soon => {}
                Written::Later(timeout) => self.pager.far.wait_written(timeout),
            }
        }
    }

    /// From now on, a thread that touches a page which is being saved gets it back: it does not wait for lenders. One
    /// that waits already gets it now, and the page is not saved.
    fn offer_back(&self, space: &Arc<Space>, victims: &mut [Victim]) {
        let mut guard = space.lock();
        let table = &mut *guard;
        let offered = victims.iter().filter(|victim| victim.is_offered_back());
        // Victims stand in the order of their pages.
        table.saving = offered.map(|victim| (victim.page, victim.copy)).collect();
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

    /// What has been saved is not offered any more.
    fn withdraw(&self, space: &Space, victims: &mut [Victim]) {
        let mut table = space.lock();
        table.saving.clear();
        let left = table.states.withdraw();
        drop(table);
        note_taken(victims, &left);
    }

    /// Has the kept victims dropped, whose contents are safe now.
    fn drop_kept(&mut self, mut batch: Batch) {
        let any = batch.victims.iter().any(|victim| victim.way == Way::Keep);
        if !any {
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
                match victim.way {
                    Way::Keep if !is_there || batch.space.changes_unseen() => victim.way = Way::Stay,
                    Way::Keep => {
                        if !victim.clean {
                            // A fork from now on finds the contents in the slot, or the page present.
                            let saved = entry.with_state(State::EvictDrop).with_slot(victim.slot);
                            table.states.set(victim.page, saved);
                        }
                        // One by one: of a range over several mappings, the kernel reports each part.
                        order.drop.push((victim.page, 1));
                    }
                    _ => {}
                }
            }
            if !order.drop.is_empty() {
                table.command = command;
            }
            table.own_drops = order
                .drop
                .iter()
                .map(|&(first, count)| (Space::address(first), Space::address(first + u64::from(count))))
                .collect();
        }
        // All others are over before the agent touches anything.
        let (left, over): (Vec<_>, Vec<_>) =
            batch.victims.drain(..).partition(|victim| victim.way == Way::Keep || victim.way.goes_back());
        batch.victims = left;
        batch.shared = self.end_and_count(&batch.space, over);
        if order.drop.is_empty() {
            self.settle(batch);
            return;
        }
        batch.drops = Some(order.drop.clone());
        self.eviction.ended(std::mem::replace(&mut batch.command, command));
        match batch.space.send(&batch.agent, command, &order, &mut self.message) {
            Ok(()) => {
                self.eviction.commanded(command, self.now_ns());
                self.batches.push(batch);
            }
            Err(_) => self.not_commanded(batch),
        }
    }

    /// The agent has dropped the first `count` of these ranges.
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
            let way = if index < count {
                if !is_here {
                    self.look_at_dropped(&batch.space, table, page);
                }
                Way::Gone
            } else {
                if reported && is_here {
                    // It was the program that dropped exactly this range.
                    table.states.discard(page, page + 1, &mut self.pager.far.slots());
                    self.pager.leave_frames(table);
                }
                Way::Stay
            };
            for victim in batch.victims.iter_mut().filter(|victim| victim.way == Way::Keep) {
                if victim.page == page {
                    victim.way = way;
                    // What stays is protected and stored.
                    victim.clean |= way == Way::Stay && victim.slot.is_some();
                }
            }
        }
        table.own_drops.clear();
    }

    /// A page was dropped, and another one has come to stand in its place, perhaps before the drop: libc's calls wait
    /// for drops, so the program has moved it there by a system call of its own, its first. If the page is not
    /// there, it was dropped instead, and whoever touches it gets SIGBUS rather than zeroes.
    fn look_at_dropped(&self, space: &Arc<Space>, table: &mut Table, page: Page) {
        if table.states.get(page).state() != State::Resident || table.closed {
            return;
        }
        let poisoned = space.at_rest(space.uffd.poison(Space::address(page), PAGE_BYTES as usize));
        // Where the mappings are changing again, a thread that touches the page has it poisoned, unless it is there.
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

    /// The victims are gone, or stay: their entries say so, and threads that waited try again. False: some have
    /// to be mapped again, and cannot yet.
    pub(crate) fn settle(&mut self, mut batch: Batch) -> bool {
        self.return_pages(&mut batch);
        if batch.victims.iter().any(|victim| victim.way.goes_back()) {
            batch.awaits = Awaits::Rest;
            self.eviction.returning(batch.command);
            self.batches.push(batch);
            return false;
        }
        if let Some(leaving) = batch.to_own.take() {
            self.stay_owned(&batch.space, leaving);
        }
        let victims = std::mem::take(&mut batch.victims);
        batch.shared.extend(self.end_and_count(&batch.space, victims));
        {
            let mut table = batch.space.lock();
            table.command = 0;
            table.touching.clear();
        }
        if !batch.shared.is_empty() {
            self.pager.replacement.lock().retry(batch.shared);
        }
        self.eviction.ended(batch.command);
        self.pager.close_if_ended(&batch.space);
        true
    }

    fn end(&self, space: &Arc<Space>, victims: Vec<Victim>) -> Vec<PageName> {
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
                let ending = match victim.way {
                    Way::Moved(_) | Way::Gone | Way::Keep => victim.slot.map_or(Ending::Zero, Ending::Saved),
                    Way::Absent => victim.slot.filter(|_| victim.clean).map_or(Ending::Zero, Ending::Saved),
                    Way::Unread => Ending::Lost,
                    Way::Refused => Ending::Refused(victim.slot.filter(|_| victim.clean)),
                    Way::Shared => Ending::Shared(victim.slot.filter(|_| victim.clean)),
                    Way::Stay | Way::Back | Way::Taken | Way::Move | Way::Clean => {
                        Ending::Stays(victim.slot.filter(|_| victim.clean))
                    }
                };
                Counters::add(&counters.evictions_undone, u64::from(ending.stays()));
                Counters::add(&counters.clean_drops, u64::from(victim.clean && victim.way == Way::Gone));
                if let Some(slot) = victim.slot.filter(|_| ending.slot().is_none()) {
                    slots.release(slot);
                }
                endings.push((victim.page, ending));
            }
        }
        let shared = self.pager.end_operations(space, endings);
        self.pager.frames_left(&left, Departure::Evicted);
        shared
    }
}
