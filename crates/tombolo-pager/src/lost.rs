//! An agent that ends while it has a command: somebody has killed it. What it had done by then, the page tables of its
//! program tell: it moves a page, or drops it, wholly or not at all. So the batch goes on as if it had answered.
//!
//! [`found_moved`] asks the page tables the same of an agent that lives, where the kernel has reported an error of a move.

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
    /// The agent did not get its command: it has ended, and what it was to do stays undone.
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

    /// The agent has hung up, at that time, or does not say what it should; this was its task. False: the batch has to wait, and
    /// stands last now.
    pub(crate) fn agent_lost(&mut self, mut batch: Batch, task: Task, since: Instant) -> bool {
        let told = match &task {
            // Pages that share frames are counted when they are looked at: nothing is in doubt.
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
                    // Rather no contents than wrong ones.
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
        // The program mostly ends before its agent, or executes another one, which nothing here concerns.
        if batch.space.is_memory_of(&batch.agent.program) {
            let agent = &batch.agent;
            let why = || format!("what its agent has evicted is not known ({})", agent.end());
            self.pager.end_program(&agent.program, why);
        }
        batch.space.lock().own_drops.clear();
        self.settle(batch)
    }
}

/// What can be told of a command whose agent was killed.
enum Told {
    /// It had done this. One page may have been dropped by it or by its program.
    Done { done: Done, doubtful: Option<Page> },
    /// It is just ending, or its program is changing its mappings or its threads, or no descriptor is left to look.
    NotYet,
    /// Its program has ended, too, or has executed another one, or cannot be looked at. Or it need not be told.
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

/// What an agent had done of its command when it ended, as its program's page tables tell; `look` looks at them by the number of a thread.
fn look_at_what_was_done(batch: &Batch, look: impl Fn(u32) -> io::Result<Told>) -> Told {
    // Its socket closes after it has given its memory up, and shortly before it has ended.
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
    // It was killed at this one.
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
    // Killed while it waited until the kernel's event was read: that is gone then, and so is the page. Of a drop of the
    // program's there would be an event. Where one has come, it is not known whose.
    let is_its_own = table.own_drops.contains(&range);
    // The next event of this range is the program's.
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
    // Each is in one place, whatever is changing elsewhere.
    Ok(if is_changing && !is_clear { Told::NotYet } else { Told::Done { done, doubtful: None } })
}

/// Which of these victims of a batch, each with its number there, lie in the staging area and not where they were. An error:
/// that cannot be told, now or at all.
pub(crate) fn found_moved(
    pager: &Pager,
    batch: &Batch,
    victims: &[(usize, &Victim)],
) -> io::Result<Vec<bool>> {
    // Nobody changes what is there until the next command. Mostly nothing is.
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
        // Another page may stand in its place, of which nothing is known yet.
        let is_unclear = stayed.iter().zip(&staged).any(|(stayed, staged)| *stayed && *staged);
        if is_changing && is_unclear {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        Ok(stayed.into_iter().zip(&staged).map(|(stayed, staged)| *staged && !stayed).collect())
    });
    // Faults that were read on the way.
    pager.serve_deferred();
    found
}

/// Looks at a space's memory by the number of a process that has it: its agent, else its program.
fn by_memory<T>(batch: &Batch, look: impl Fn(u32) -> io::Result<T>) -> io::Result<T> {
    let looked = look(batch.agent.pid);
    // Once it has ended, its number may be another process's.
    if looked.is_ok() && !batch.agent.has_ended() {
        return looked;
    }
    batch.space.by_program(&batch.agent.program, look)?.unwrap_or(Err(io::ErrorKind::NotFound.into()))
}
