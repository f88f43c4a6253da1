//! An agent that ends while it has a command: somebody has killed it. What it had done by then, the page tables of its
//! program tell: it moves a page, or drops it, wholly or not at all. So the batch goes on as if it had answered.

use tombolo_host::timing::pager as timing;
use tombolo_host::{event, process};

use crate::batch::{Awaits, Batch, Victim, Way};
use crate::evict::Evictor;
use crate::pager::Pager;
use crate::protocol::{Done, STAGING_PAGES};
use crate::space::Space;

impl Evictor {
    /// The agent did not get its command: it has ended, and what it was to do stays undone.
    pub(crate) fn not_commanded(&mut self, mut batch: Batch) {
        let is_drop = batch.drops.take().is_some();
        for victim in &mut batch.victims {
            victim.way = match victim.way {
                Way::Move | Way::Clean => Way::Stay,
                Way::Keep => {
                    // It stays protected, and is stored.
                    victim.clean |= is_drop && victim.slot.is_some();
                    Way::Stay
                }
                other => other,
            };
        }
        batch.space.lock().own_drops.clear();
        self.settle(batch);
    }

    /// The agent has hung up, or does not say what it should.
    pub(crate) fn agent_lost(&mut self, mut batch: Batch) {
        if let Some(done) = what_was_done(&self.pager, &batch) {
            batch.awaits = Awaits::Staging(done);
            self.resume(batch);
            return;
        }
        let is_moving = batch.drops.take().is_none();
        for victim in &mut batch.victims {
            victim.way = match victim.way {
                // Where it is, is not known. Rather no contents than wrong ones.
                Way::Move if is_moving => Way::Unread,
                // Its slot has the contents.
                Way::Clean | Way::Keep => Way::Gone,
                other => other,
            };
        }
        // The program mostly ends before its agent, or executes another one, which nothing here concerns.
        if !batch.space.has_ended(&batch.agent.program) && !batch.space.is_unused() {
            let agent = &batch.agent;
            let why = || format!("what its agent has evicted is not known ({})", agent.end());
            self.pager.end_program(&agent.program, why);
        }
        batch.space.lock().own_drops.clear();
        self.settle(batch);
    }
}

/// What an agent had done of its command when it ended, as its program's page tables tell. `None`: it has not ended; or
/// its program has, too, or has executed another one; or a page may have been dropped by either of them.
fn what_was_done(pager: &Pager, batch: &Batch) -> Option<Done> {
    // Its socket closes after it has given its memory up, and shortly before it has ended.
    if event::wait_readable(&[batch.agent.process()], Some(timing::AGENT_END)) != Ok(true) {
        return None;
    }
    let program = &batch.agent.program;
    let hold = |pages: Vec<u64>| process::hold_something(program.pid, pages);
    let begun = batch.agent.begun();
    let mut done = Done { number: batch.command, dropped: 0, moved: [0; STAGING_PAGES] };
    if let Some(drops) = &batch.drops {
        let (table, left) = pager
            .look_at_rest(&batch.space, |table| {
                hold(drops.iter().map(|&(page, _)| Space::address(table.states.operation(page).0)).collect())
            })
            .ok()?;
        // All before the last that it began are dropped.
        let last = begun.saturating_sub(1);
        done.dropped = last;
        if let Some(&(page, _)) = drops.get(last as usize).filter(|_| begun > 0)
            && left.get(last as usize) == Some(&false)
        {
            let range = (Space::address(page), Space::address(page + 1));
            if !table.own_drops.contains(&range) {
                // It was dropped, and the program may have done that itself, just before.
                return None;
            }
        }
    } else {
        let staging = |index| batch.space.staging_address(index);
        let (_table, (stayed, moved)) = pager
            .look_at_rest(&batch.space, |table| {
                let now = |victim: &Victim| Space::address(table.states.operation(victim.page).0);
                let stayed = hold(batch.victims.iter().map(now).collect())?;
                let moved = hold((0u32..).zip(&batch.victims).map(|(index, _)| staging(index)).collect())?;
                Ok((stayed, moved))
            })
            .ok()?;
        for ((status, stayed), moved) in done.moved.iter_mut().zip(stayed).zip(moved) {
            *status = match (stayed, moved && begun > 0) {
                (true, _) => libc::ECANCELED as u8,
                (false, true) => 0,
                // The program has dropped it.
                (false, false) => libc::ENOENT as u8,
            };
        }
    }
    // Those were the pages of the right memory.
    batch.space.is_memory_of(program).then_some(done)
}
