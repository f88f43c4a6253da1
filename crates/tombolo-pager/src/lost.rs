//! Deals with an agent that was killed while it had a command. The page tables of its program tell what it had done by
//! then: it moves or drops a page wholly or not at all. So the batch goes on as if the agent had answered.
//!
//! [`found_moved`] looks at the page tables in the same way where an agent lives and the kernel has reported an error of a
//! move.

use std::io;
use std::time::Instant;

use tombolo_core::pager::Page;
use tombolo_core::pager::batch::{At, Event, Victim};
use tombolo_host::timing::pager as timing;
use tombolo_host::{pagemap, process};

use crate::batch::{Awaits, Batch, Task};
use crate::evict::Evictor;
use crate::pager::Pager;
use crate::space::Space;
use tombolo_pager_protocol::{AREA_PAGES, Done};

impl Evictor {
    /// Ends a batch whose agent did not get its command because it has ended: the pages that it should have moved or
    /// dropped stay.
    pub(crate) fn not_commanded(&mut self, mut batch: Batch) {
        for victim in &mut batch.victims {
            if matches!(victim.at, At::Ordered | At::Kept) {
                victim.happened(Event::NotOrdered);
            }
        }
        batch.space.lock().own_drops.clear();
        let awaits = std::mem::replace(&mut batch.awaits, Awaits::Rest);
        let space = batch.space.clone();
        self.settle(batch);
        if let Awaits::Agent(Task::Own(leaving)) = awaits {
            self.stay_owned(&space, leaving);
        }
    }

    /// Goes on with a batch whose agent has hung up, or has sent an invalid answer, at the time `since`; `task` was its
    /// task. Returns `false` if the batch has to wait; it is then the last one in the list.
    pub(crate) fn agent_lost(&mut self, mut batch: Batch, task: Task, since: Instant) -> bool {
        let told = match &task {
            // Pages that share frames are counted when they are verified, so nothing is in doubt here.
            Task::Own(_) if !batch.agent.has_ended() => Told::NotYet,
            Task::Own(_) | Task::Clear(_) => Told::Never,
            Task::Move => look_at_what_was_done(&batch, |thread| what_was_moved(&self.pager, &batch, thread)),
            Task::Drop(drops) => {
                look_at_what_was_done(&batch, |thread| what_was_dropped(&self.pager, &batch, drops, thread))
            }
        };
        if matches!(told, Told::NotYet) && since.elapsed() < timing::AGENT_GONE {
            return self.await_later(batch, Awaits::End(task, since));
        }
        match (task, told) {
            (Task::Own(leaving), _) => {
                let space = batch.space.clone();
                self.settle(batch);
                self.stay_owned(&space, leaving);
                return true;
            }
            (Task::Clear(_), _) => {
                self.cleared(&batch.space, batch.command);
                return true;
            }
            (task, Told::Done { done, doubtful }) => {
                for victim in batch.victims.iter_mut().filter(|victim| Some(victim.page) == doubtful) {
                    // The page is lost rather than have wrong contents.
                    victim.happened(Event::Doubtful);
                }
                batch.begun = batch.agent.begun();
                return match task {
                    Task::Move => self.take_out(batch, done),
                    other => self.answered(batch, other, done),
                };
            }
            _ => {}
        }
        for victim in &mut batch.victims {
            if matches!(victim.at, At::Ordered | At::Kept) {
                victim.happened(Event::AgentLost);
            }
        }
        // In most cases the program has ended before its agent, or has executed another program, which must not be ended
        // for this.
        if batch.space.is_memory_of(&batch.agent.program) {
            let agent = &batch.agent;
            let why = || format!("what its agent has evicted is not known ({})", agent.end());
            self.pager.end_program(&agent.program, why);
        }
        batch.space.lock().own_drops.clear();
        self.settle(batch)
    }
}

/// What is known of a command whose agent was killed.
enum Told {
    /// The agent had done this. One page may have been dropped by the agent or by its program.
    Done { done: Done, doubtful: Option<Page> },
    /// Not known yet: the agent is just ending, or its program is changing its mappings or its threads, or no descriptor or
    /// memory is left to look.
    NotYet,
    /// Never known, or not needed: the program has ended, too, or has executed another one, or its page tables cannot be
    /// read.
    Never,
}

impl From<io::Error> for Told {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => Self::NotYet,
            _ if error.kind() == io::ErrorKind::ResourceBusy => Self::NotYet,
            _ => Self::Never,
        }
    }
}

/// Finds out how much of its command an agent had carried out when it ended. `look` reads the page tables of the program by
/// the number of one of its threads.
fn look_at_what_was_done(batch: &Batch, look: impl Fn(u32) -> io::Result<Told>) -> Told {
    // The agent's socket closes after the agent has released its memory, and shortly before it has ended.
    if !batch.agent.has_ended() {
        return Told::NotYet;
    }
    match batch.space.by_program(&batch.agent.program, look) {
        Ok(Some(told)) => told.unwrap_or_else(Told::from),
        Ok(None) => Told::Never,
        Err(error) => Told::from(error),
    }
}

fn what_was_dropped(pager: &Pager, batch: &Batch, drops: &[(Page, u32)], thread: u32) -> io::Result<Told> {
    let begun = batch.agent.begun();
    let mut done = Done { number: batch.command, dropped: begun / 2, moved: [0; AREA_PAGES] };
    // The agent was killed while it dropped this page.
    let Some(&(page, _)) = drops.get(done.dropped as usize).filter(|_| begun % 2 == 1) else {
        return Ok(Told::Done { done, doubtful: None });
    };
    let (mut table, is_left, is_changing) = pager.look(&batch.space, |table| {
        let now = Space::address(table.states.operation(page).0);
        Ok(pagemap::hold_something(thread, [now])?.contains(&true))
    })?;
    if is_changing || !process::has_thread(batch.agent.program.pid, thread) {
        return Ok(Told::NotYet);
    }
    if is_left {
        return Ok(Told::Done { done, doubtful: None });
    }
    done.dropped += 1;
    let range = (Space::address(page), Space::address(page + 1));
    // The page is gone. If no event of this range was read, the agent dropped it: it was killed while it waited for
    // its event to be read, and that took the event away. (A drop by the program would have been read.) If one was
    // read, it may have been the agent's or the program's: the page is doubtful.
    let is_its_own = table.own_drops.contains(&range);
    // From now on, an event of this range is the program's.
    table.own_drops.retain(|own| *own != range);
    Ok(Told::Done { done, doubtful: (!is_its_own).then_some(page) })
}

fn what_was_moved(pager: &Pager, batch: &Batch, thread: u32) -> io::Result<Told> {
    let begun = batch.agent.begun();
    let mut done = Done { number: batch.command, dropped: 0, moved: [0; AREA_PAGES] };
    let staging = |index| batch.space.staging_address(batch.area, index);
    let (_table, (stayed, moved), is_changing) = pager.look(&batch.space, |table| {
        let now = |victim: &Victim| Space::address(table.states.operation(victim.page).0);
        let stayed = pagemap::hold_something(thread, batch.victims.iter().map(now))?;
        let moved =
            pagemap::hold_something(thread, (0u32..).zip(&batch.victims).map(|(index, _)| staging(index)))?;
        Ok((stayed, moved))
    })?;
    let mut is_clear = true;
    for ((status, stayed), moved) in done.moved.iter_mut().zip(stayed).zip(moved) {
        let moved = moved && begun > 0;
        is_clear &= stayed != moved;
        *status = match (stayed, moved) {
            (true, _) => libc::ECANCELED as u8,
            (false, true) => 0,
            // The program has dropped it.
            (false, false) => libc::ENOENT as u8,
        };
    }
    // If each page is in exactly one place, the result is certain even though mappings are changing.
    Ok(if is_changing && !is_clear { Told::NotYet } else { Told::Done { done, doubtful: None } })
}

/// Which of these victims of a batch, each given with its index there, lie in the staging area and not where they were.
///
/// # Errors
///
/// The page tables cannot be read, now or at all.
pub(crate) fn found_moved(
    pager: &Pager,
    batch: &Batch,
    victims: &[(usize, &Victim)],
) -> io::Result<Vec<bool>> {
    // Until the next command, no one changes the staging area. Most of the time it holds none of these pages.
    let staged = by_memory(batch, |process| {
        let address = |(index, _): &(usize, &Victim)| batch.space.staging_address(batch.area, *index as u32);
        pagemap::hold_something(process, victims.iter().map(address))
    })?;
    if !staged.contains(&true) {
        return Ok(staged);
    }
    let found = by_memory(batch, |process| {
        let (_table, stayed, is_changing) = pager.look(&batch.space, |table| {
            let now = |(_, victim): &(usize, &Victim)| Space::address(table.states.operation(victim.page).0);
            pagemap::hold_something(process, victims.iter().map(now))
        })?;
        // A new page whose event was not read yet may have taken the place of one that was moved.
        let is_unclear = stayed.iter().zip(&staged).any(|(stayed, staged)| *stayed && *staged);
        if is_changing && is_unclear {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        Ok(stayed.into_iter().zip(&staged).map(|(stayed, staged)| *staged && !stayed).collect())
    });
    // Serves the faults that were read meanwhile.
    pager.serve_deferred();
    found
}

/// Looks at a space's memory by the number of a process that has it: its agent, or else its program.
fn by_memory<T>(batch: &Batch, look: impl Fn(u32) -> io::Result<T>) -> io::Result<T> {
    let looked = look(batch.agent.pid);
    // When the agent has ended, its number may be another process's.
    if looked.is_ok() && !batch.agent.has_ended() {
        return looked;
    }
    batch.space.by_program(&batch.agent.program, look)?.unwrap_or(Err(io::ErrorKind::NotFound.into()))
}
