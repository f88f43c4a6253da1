//! Eviction of pages that forks share.
//!
//! A frame has left when all of its holders have. Its contents are saved once: the first holder leaves like a page whose
//! contents are not stored, and the others follow like pages whose contents are stored. The kernel does not move a shared
//! page, so the agent makes it the process's own first; the page stays write-protected meanwhile. The agent does this by
//! touching pages, and another page may come to stand at an address that it touches. So nothing else of the space is on its
//! way out during that command.
//!
//! A page that the agent has made its process's own is a copy with memory of its own. It counts against the limit from the
//! time the agent is told to make it. So a copy is made only when there is a far page for it, and at most as many are made
//! at once as there is room for. A page that does not leave after all counts as its space's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use tombolo_core::pager::batch::{Contents, Place, Victim};
use tombolo_core::pager::{Attempt, Entry, Frame, Frames, Page, PageName, Saved, State};
use tombolo_core::store::{NoRoom, Store};

use crate::batch::{Batch, Claimed, Leaving, Task, refused_attempt};
use crate::evict::Evictor;
use crate::pager::Pager;
use crate::space::{Order, Space, Table, extend};
use crate::stats::Counters;

/// Most holders that leave at once: a page may have many holders, each with an agent of its own.
const HOLDERS_AT_ONCE: u64 = 512;

/// A page that is to leave and shares a frame. The frame is in no queue under its own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharer {
    pub(crate) page: Page,
    pub(crate) frame: Frame,
    /// The slot that was taken for its contents if they are not stored yet, with the address for direct access if there is
    /// one.
    pub(crate) place: Option<(u32, Option<u64>)>,
}

/// Whether a page of a space can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ability {
    Now,
    /// When its agent has carried out a command.
    Soon,
    /// When its agent has said hello, or gets a processor again.
    Later,
    /// Its space has no agent, and gets none.
    Never,
}

fn ability(space: &Space, table: &Table, is_late: impl Fn(u32) -> bool) -> Ability {
    if space.has_agent() {
        return match table.under_way.command() {
            0 if table.under_way.is_nothing() => Ability::Now,
            // A batch still has to wait for something before it can end.
            0 => Ability::Later,
            command if is_late(command) => Ability::Later,
            _ => Ability::Soon,
        };
    }
    if space.awaits_agent() { Ability::Later } else { Ability::Never }
}

impl Pager {
    /// Finds the pages that have to leave so that these frames can leave, by space. The frames are in no queue under their
    /// own names. `is_late`: whether an agent has had a command for long.
    pub(crate) fn holders_of(
        &self,
        chosen: &[Frame],
        is_late: impl Fn(u32) -> bool,
    ) -> BTreeMap<u32, Leaving> {
        let mut leaving: BTreeMap<u32, Leaving> = BTreeMap::new();
        if chosen.is_empty() {
            return leaving;
        }
        let pages: Vec<(Frame, Page)> = {
            let frames = self.sharing.frames();
            chosen.iter().map(|&frame| (frame, frames.page(frame))).collect()
        };
        let mut found: Vec<Vec<(u32, Page, Ability)>> = vec![Vec::new(); chosen.len()];
        for space in self.all_spaces() {
            let table = space.lock();
            if table.closed || table.states.shared_pages() == 0 {
                continue;
            }
            let ability = ability(&space, &table, &is_late);
            for (&(frame, page), found) in pages.iter().zip(&mut found) {
                found.extend(table.states.holder(frame, page).map(|page| (space.index, page, ability)));
            }
        }
        let mut possible = self.room.possible_copies().min(HOLDERS_AT_ONCE) as usize;
        for (&(frame, _), holders) in pages.iter().zip(&found) {
            let any = |what| holders.iter().any(|(_, _, ability)| *ability == what);
            let is_stuck = any(Ability::Never);
            self.set_stuck([frame], is_stuck);
            // A frame is saved once: if it is not saved yet, only one of its holders leaves first.
            let is_saved = self.sharing.frames().saved(frame) != Saved::Not;
            let able = holders.iter().filter(|(_, _, ability)| *ability == Ability::Now);
            let able: Vec<_> = able.take(if is_saved { possible } else { possible.min(1) }).collect();
            if is_stuck {
                // A holder that leaves frees nothing while others keep the frame, so the frame is worth nothing unless all
                // can leave.
                self.put_aside_frame(frame);
            } else if any(Ability::Later) {
                self.put_back_frame(frame);
            } else if possible > 0 && able.is_empty() && any(Ability::Soon) {
                self.retry_frame(frame);
            } else if !able.is_empty() {
                possible -= able.len();
                for &&(space, page, _) in &able {
                    leaving.entry(space).or_default().shared.push(Sharer { page, frame, place: None });
                }
            } else {
                self.put_back_frame(frame);
            }
        }
        leaving.values_mut().for_each(|leaving| leaving.shared.sort_unstable_by_key(|sharer| sharer.page));
        leaving
    }

    /// Verifies all holders of the frames that are to leave, before one of them leaves: until then the page tables tell
    /// that the pages are shared. A frame with a holder that cannot be verified now does not leave.
    pub(crate) fn verify_holders(&self, leaving: &mut BTreeMap<u32, Leaving>) {
        let mut frames: Vec<(Frame, Page)> = {
            let known = self.sharing.frames();
            let sharers = leaving.values().flat_map(|leaving| &leaving.shared);
            sharers.map(|sharer| (sharer.frame, known.page(sharer.frame))).collect()
        };
        if frames.is_empty() {
            return;
        }
        frames.sort_unstable();
        frames.dedup();
        let mut doubtful = Vec::new();
        for space in self.all_spaces() {
            let mut table = space.lock();
            if table.closed || table.states.unverified_pages() == 0 {
                continue;
            }
            let held = frames.iter().filter_map(|&(frame, page)| table.states.holder(frame, page));
            let mut pages: Vec<Page> = held.filter(|page| !table.states.get(*page).is_verified()).collect();
            if pages.is_empty() {
                continue;
            }
            pages.sort_unstable();
            let mut ranges: Vec<(Page, Page)> = Vec::new();
            for &page in &pages {
                match ranges.last_mut() {
                    Some((_, end)) if *end == page => *end += 1,
                    _ => ranges.push((page, page + 1)),
                }
            }
            if space.named_program().is_some() && self.verify(&space, &mut table, &ranges).is_ok() {
                continue;
            }
            let unverified = pages.iter().map(|page| table.states.get(*page));
            doubtful.extend(unverified.filter(|entry| !entry.is_verified()).filter_map(Entry::frame));
        }
        if doubtful.is_empty() {
            return;
        }
        doubtful.sort_unstable();
        for leaving in leaving.values_mut() {
            leaving.shared.retain(|sharer| doubtful.binary_search(&sharer.frame).is_err());
        }
        doubtful.dedup();
        doubtful.into_iter().for_each(|frame| self.put_back_frame(frame));
    }

    /// Puts a frame that was to leave back into a queue.
    pub(crate) fn put_back_frame(&self, frame: Frame) {
        if self.sharing.frames().enqueue(frame) {
            self.replacement.lock().reinsert(PageName::of_frame(frame));
        }
    }

    /// Puts a frame back so that it comes up before all others.
    fn retry_frame(&self, frame: Frame) {
        if self.sharing.frames().enqueue(frame) {
            self.replacement.lock().retry([PageName::of_frame(frame)]);
        }
    }

    /// Puts a frame aside that cannot leave because one of its holders cannot.
    fn put_aside_frame(&self, frame: Frame) {
        if self.sharing.frames().enqueue(frame) {
            self.replacement.lock().refused(PageName::of_frame(frame));
        }
    }
}

impl Evictor {
    /// Begins to evict pages. If some have to be made the process's own first, tells their agent to do so.
    pub(crate) fn begin_or_own(&mut self, space: &Arc<Space>, mut leaving: Leaving) -> Attempt {
        let Some(agent) = space.agent() else {
            self.put_back(space, leaving);
            return Attempt::NoVictims;
        };
        let refused = if leaving.shared.is_empty() { None } else { self.take_places(space, &mut leaving) };
        let mut pages: Vec<Page> = leaving.shared.iter().map(|sharer| sharer.page).collect();
        pages.extend(leaving.chosen.iter().filter(|chosen| chosen.is_retry).map(|chosen| chosen.page));
        if pages.is_empty() {
            return match self.begin(space, leaving) {
                Attempt::NoVictims => refused_attempt(refused),
                attempt => attempt,
            };
        }
        pages.sort_unstable();
        let command = self.next_command();
        let mut order = Order::default();
        {
            let mut table = space.lock();
            if table.closed || !space.can_evict(&table) || !table.under_way.begin_alone(command) {
                drop(table);
                self.put_back(space, leaving);
                return Attempt::NoVictims;
            }
            let is_here = |page: &&Page| table.states.get(**page).state() == State::Resident;
            pages.iter().filter(is_here).for_each(|page| extend(&mut order.own, *page));
            table.touching.clone_from(&order.own);
        }
        let count = (leaving.shared.len() + leaving.chosen.len()) as u64;
        // Pages that were found shared when they were to move are counted already.
        self.pager.room.add_copies(leaving.shared.len() as u64);
        let batch = Batch::new(space, agent, Vec::new(), Task::Own(leaving), command);
        if space.send(&batch.agent, command, &order, &mut self.message).is_err() {
            self.not_commanded(batch);
            return Attempt::NoVictims;
        }
        self.eviction.commanded(command, self.now_ns());
        self.batches.push(batch);
        Attempt::Begun(count)
    }

    /// Takes slots for contents that are not stored. Pages that get no slot, or cannot leave, are put back into a queue.
    /// Returns why no slot could be taken, if that happened.
    fn take_places(&self, space: &Space, leaving: &mut Leaving) -> Option<NoRoom> {
        let (mut left, mut refused, mut to_stage) = (Vec::new(), None, 0);
        {
            let table = space.lock();
            let mut slots = self.pager.far.slots();
            let mut frames = self.pager.sharing.frames();
            let staging_pages = self.pager.far.staging().pages as usize;
            leaving.shared.retain_mut(|sharer| {
                let entry = table.states.get(sharer.page);
                let is_possible = entry.frame() == Some(sharer.frame)
                    && entry.is_verified()
                    && !table.states.is_name(sharer.page)
                    && !table.closed;
                let mut is_ready = is_possible;
                if is_possible && self.is_saved(sharer.frame, &mut slots, &mut frames).is_none() {
                    match slots.take() {
                        Ok((slot, None)) if to_stage == staging_pages => {
                            slots.release(slot);
                            is_ready = false;
                        }
                        Ok((slot, direct)) => {
                            to_stage += usize::from(direct.is_none());
                            sharer.place = Some((slot, direct));
                        }
                        Err(reason) => {
                            refused = Some(reason);
                            is_ready = false;
                        }
                    }
                }
                if !is_ready {
                    left.push(sharer.frame);
                }
                is_ready
            });
        }
        if self.pager.far.slots().has_actions() {
            self.pager.flush_far();
        }
        left.into_iter().for_each(|frame| self.pager.put_back_frame(frame));
        refused
    }

    /// Where a frame's contents are stored. `None` if they are not, or if the slot is lost.
    fn is_saved(&self, frame: Frame, slots: &mut Store, frames: &mut Frames) -> Option<Saved> {
        match frames.saved(frame) {
            Saved::Not => None,
            Saved::Slot(slot) if slots.is_lost(slot) => {
                // The resident page is now the only copy.
                frames.forget(frame, slots);
                None
            }
            saved => Some(saved),
        }
    }

    /// Continues when the agent has made pages the process's own: begins to evict them.
    pub(crate) fn owned(&mut self, batch: Batch, leaving: Leaving) {
        let space = batch.space.clone();
        self.settle(batch);
        if space.has_agent() {
            self.begin(&space, leaving);
        } else {
            self.stay_owned(&space, leaving);
        }
    }

    /// Keeps pages that the agent was told to make the process's own: they do not leave.
    pub(crate) fn stay_owned(&self, space: &Space, mut leaving: Leaving) {
        let sharers = std::mem::take(&mut leaving.shared);
        {
            let mut table = space.lock();
            sharers.into_iter().for_each(|sharer| self.not_claimed(space, &mut table, sharer));
        }
        self.put_back(space, leaving);
    }

    /// Keeps one page that the agent was told to make the process's own: it counts as its space's own now.
    fn not_claimed(&self, space: &Space, table: &mut Table, sharer: Sharer) {
        if let Some((slot, _)) = sharer.place {
            self.pager.far.slots().release(slot);
        }
        self.pager.room.remove_copies(1);
        if table.states.get(sharer.page).frame() == Some(sharer.frame) && !table.closed {
            self.pager.own_shared(space, table, sharer.page);
        }
        self.pager.put_back_frame(sharer.frame);
    }

    /// Claims those of the pages that can leave. They share frames and have been made their process's own.
    pub(crate) fn claim_shared(&self, space: &Space, table: &mut Table, sharers: &[Sharer]) -> Claimed {
        let (mut victims, mut refused) = (Vec::with_capacity(sharers.len()), None);
        for &sharer in sharers {
            let entry = table.states.get(sharer.page);
            let is_possible = entry.frame() == Some(sharer.frame)
                && entry.is_verified()
                && !table.states.is_name(sharer.page)
                && !table.closed
                && space.can_evict(table);
            match is_possible.then(|| self.claim_frame(table, sharer)) {
                Some(Ok(victim)) => victims.push(victim),
                Some(Err(reason)) => {
                    refused = reason.or(refused);
                    self.not_claimed(space, table, Sharer { place: None, ..sharer });
                }
                None => self.not_claimed(space, table, sharer),
            }
        }
        Counters::add(&self.pager.stats.counters.shared_drops, victims.len() as u64);
        Claimed { victims, refused, area: None }
    }

    /// Makes a page that shares a frame a victim.
    ///
    /// # Errors
    ///
    /// Why there is no place for its contents. The place in `sharer` is released or used in any case.
    fn claim_frame(&self, table: &mut Table, sharer: Sharer) -> Result<Victim, Option<NoRoom>> {
        let Sharer { page, frame, place } = sharer;
        let entry = table.states.get(page);
        let mut slots = self.pager.far.slots();
        let mut frames = self.pager.sharing.frames();
        let saved = self.is_saved(frame, &mut slots, &mut frames);
        if let (Some(_), Some((slot, _))) = (saved, place) {
            // Another holder has left meanwhile.
            slots.release(slot);
        }
        let contents = match (saved, place) {
            (Some(Saved::Zero), _) => Contents::Stored(None),
            (Some(Saved::Slot(slot)), _) if slots.share(slot) => Contents::Stored(Some(slot)),
            (Some(_), _) => return Err(None),
            // The stored contents were lost meanwhile.
            (None, None) => match Contents::to_store(&mut slots).map_err(Some)? {
                Contents::New(slot, Place::Staged(_)) => {
                    slots.release(slot);
                    return Err(None);
                }
                contents => contents,
            },
            (None, Some((slot, direct))) => Contents::placed(slot, direct),
        };
        let victim = Victim::new(page, contents);
        let state = if victim.is_stored() { State::EvictDrop } else { State::EvictCopy };
        let slot = victim.slot().filter(|_| victim.is_stored());
        table.states.set(page, entry.with_eviction(state, slot).with_queued(false).with_referenced(false));
        Ok(victim.with_frame(frame))
    }

    /// Called before evictions end: what was saved from a page that shares a frame counts as saved for the frame, too, if
    /// the page still was the frame's when it was saved.
    pub(crate) fn save_frames(&self, space: &Arc<Space>, victims: &[Victim]) {
        let saved = victims.iter().filter(|victim| victim.is_newly_saved());
        let mut saved = saved.filter_map(|victim| Some((victim, victim.frame?))).peekable();
        if saved.peek().is_none() {
            return;
        }
        let table = space.lock();
        let mut slots = self.pager.far.slots();
        let mut frames = self.pager.sharing.frames();
        for (victim, frame) in saved {
            let (now, entry) = table.states.operation(victim.page);
            if now != victim.page || entry.is_discarded() {
                continue;
            }
            match victim.slot() {
                Some(slot) if slots.share(slot) => frames.set_saved(frame, Saved::Slot(slot), &mut slots),
                Some(_) => {}
                None => frames.set_saved(frame, Saved::Zero, &mut slots),
            }
        }
    }
}
