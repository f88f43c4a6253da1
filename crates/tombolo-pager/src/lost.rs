//! An agent that ends while it has a command: somebody has killed it. What it had done by then, the page tables of its
//! program tell: it moves a page, or drops it, wholly or not at all. So the batch goes on as if it had answered.

use tombolo_host::timing::pager as timing;
use tombolo_host::{event, process};

use crate::batch::{Awaits, Batch, Way};
use crate::evict::Evictor;
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
        if let Some(done) = what_was_done(&batch) {
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
        // The program mostly ends before its agent.
        if !batch.space.has_ended(&batch.agent.program) {
            let agent = &batch.agent;
            let why = || format!("what its agent has evicted is not known ({})", agent.end());
            self.pager.end_program(&agent.program, why);
        }
        batch.space.lock().own_drops.clear();
        self.settle(batch);
    }
}

/// What an agent had done of its command when it ended. `None`: it has not ended, or its program has, too, or has
/// executed another one.
fn what_was_done(batch: &Batch) -> Option<Done> {
    // Its socket closes after it has given its memory up, and shortly before it has ended.
    if event::wait_readable(&[batch.agent.process()], Some(timing::AGENT_END)) != Ok(true) {
        return None;
    }
    let program = batch.agent.program.pid;
    let mut done = Done { number: batch.command, dropped: 0, moved: [0; STAGING_PAGES] };
    if let Some(drops) = &batch.drops {
        let left =
            process::hold_something(program, drops.iter().map(|&(page, _)| Space::address(page))).ok()?;
        done.dropped = left.iter().take_while(|&&is_left| !is_left).count() as u32;
    } else {
        let pages: Vec<u64> = {
            let table = batch.space.lock();
            // Where the program has moved them.
            batch.victims.iter().map(|victim| Space::address(table.states.operation(victim.page).0)).collect()
        };
        let stayed = process::hold_something(program, pages).ok()?;
        let places = (0u32..).zip(&batch.victims).map(|(index, _)| batch.space.staging_address(index));
        let moved = process::hold_something(program, places).ok()?;
        for ((status, stayed), moved) in done.moved.iter_mut().zip(stayed).zip(moved) {
            *status = match (stayed, moved) {
                (true, _) => libc::ECANCELED as u8,
                (false, true) => 0,
                // The program has dropped it, or moved it away.
                (false, false) => libc::ENOENT as u8,
            };
        }
    }
    // Those were the pages of the right memory.
    batch.space.is_memory_of(&batch.agent.program).then_some(done)
}
