//! Copies that are made in the background: in place of lost ones, and away from lenders that are drained or dead.
//!
//! A copy is made by reading one place of a slot into a buffer, writing the buffer to a new place, and attaching that
//! to the slot if the slot still has a user. Fewer copies than reads of front ends are under way at once, and their
//! rate is limited.

use std::collections::VecDeque;

use super::lenders::{Lender, LenderId, Place};
use super::slots::Phase;
use super::work::Work;
use super::{Action, Ended, LenderState, NoRoom, SlotId, Source, Store};

/// Slots that one call looks at when a lender is dead or drained. A bound, not a measurement.
const SWEEP_SLOTS: u32 = 4096;

/// Pause before the next copy begins when no buffer can be spared for it.
pub(super) const NO_BUFFER_PAUSE_NS: u64 = 1_000_000;

/// Pause before the next copy begins after one has failed, so that a lender that refuses is not asked at the full rate.
const FAILED_PAUSE_NS: u64 = 10_000_000;

/// Most slots that one call looks at in order to begin copies. A bound, not a measurement.
const LOOKS_MAX: u32 = 256;

/// Whether a copy has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    Yes,
    /// It is not needed, or waits for a lender.
    No,
    NoBuffer,
}

/// Slots that are to be copied.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Slots to look at.
    queue: VecDeque<SlotId>,
    /// Slots for which no lender had room; each once.
    waiting: VecDeque<SlotId>,
    /// Number of those, from the first on, that are to be looked at again.
    again: usize,
    /// One of those slots has a place at a lender that is drained or dead. The slot keeps this place only because other
    /// places are just being freed, and its copy may get one of them.
    waits_for_freeing: bool,
    /// Where the search for slots with places at dead or drained lenders goes on.
    sweep: Option<SlotId>,
    in_flight: u32,
    /// When the next copy may begin.
    next_ns: u64,
    /// Lenders that are being drained because they end, and when they end.
    ending: Vec<(LenderId, u64)>,
}

/// Copies at once, as a multiple of the usual number, while a lender is about to end.
const HURRY: u32 = 4;

impl Copies {
    /// All slots are to be looked at.
    pub(super) fn sweep(&mut self) {
        self.sweep = Some(0);
        self.look_again();
    }

    /// Slots that wait are to be looked at again: there may be room for their copies.
    pub(super) fn look_again(&mut self) {
        self.again = self.waiting.len();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sweep.is_none() && self.queue.is_empty() && self.again == 0 && self.in_flight == 0
    }

    /// When the next copy may begin, if any slot is to be looked at. `most`: the most copies at once.
    pub(super) fn next_deadline(&self, most: u32) -> Option<u64> {
        let may_begin = (!self.queue.is_empty() || self.again > 0) && self.in_flight < most;
        (self.sweep.is_some() || may_begin).then_some(self.next_ns)
    }
}

impl Store {
    /// Counts a stored slot's copies. If one is missing or is to be moved, queues the slot for a background copy.
    pub(super) fn look_at(&mut self, slot: SlotId) {
        let Some(known) = self.slots.get(slot).filter(|known| known.phase == Phase::Stored).copied() else {
            return;
        };
        let places = || known.places.into_iter().flatten();
        let live = places().filter(|&place| self.lenders.is_live(place)).count();
        let is_lost = !places().any(|place| self.lenders.is_readable(place));
        let is_degraded = !is_lost && live < usize::from(self.config.copies);
        let is_to_move = !is_lost && places().any(|place| self.lenders.is_to_leave(place));
        let needs_copy = is_degraded || is_to_move;
        self.degraded = self.degraded + u64::from(is_degraded) - u64::from(known.is_degraded);
        let queues = needs_copy && !known.is_queued && !known.is_copying;
        if let Some(known) = self.slots.get_mut(slot) {
            known.is_degraded = is_degraded;
            known.is_queued |= queues;
        }
        if queues {
            self.copies.queue.push_back(slot);
        }
    }

    /// Goes on with the search for slots to be copied, and begins the copies that may begin now.
    pub(super) fn copy(&mut self, now_ns: u64) {
        if let Some(from) = self.copies.sweep {
            let end = from.saturating_add(SWEEP_SLOTS).min(self.slots.count());
            (from..end).for_each(|slot| self.look_at(slot));
            self.copies.sweep = (end < self.slots.count()).then_some(end);
        }
        if self.copies.waits_for_freeing && !self.works.is_freeing() {
            self.copies.waits_for_freeing = false;
            self.copies.look_again();
        }
        let pause_ns = self.copy_pause_ns(now_ns);
        // After a time without calls, at most one burst of copies is made up for.
        let burst_ns = pause_ns * u64::from(self.copies_at_once());
        self.copies.next_ns = self.copies.next_ns.max(now_ns.saturating_sub(burst_ns));
        let mut looks = 0;
        while self.copies.in_flight < self.copies_at_once() && self.copies.next_ns <= now_ns {
            let Some(slot) = self.next_to_copy() else { return };
            looks += 1;
            if looks > LOOKS_MAX {
                self.copies.next_ns = now_ns + NO_BUFFER_PAUSE_NS;
            }
            match self.begin_copy(slot) {
                Begun::Yes => self.copies.next_ns += pause_ns,
                Begun::No => {}
                Begun::NoBuffer => self.copies.next_ns = now_ns + NO_BUFFER_PAUSE_NS,
            }
        }
    }

    /// Most copies that are made at once.
    pub(super) fn copies_at_once(&self) -> u32 {
        self.config.copies_in_flight * if self.copies.ending.is_empty() { 1 } else { HURRY }
    }

    /// The time between the beginnings of two copies: the usual one, or less if a lender would end before all that it
    /// has is copied. A quarter of the lender's time is kept in reserve for failures.
    fn copy_pause_ns(&mut self, now_ns: u64) -> u64 {
        let usual_ns = 1_000_000_000 / u64::from(self.config.copies_per_s.max(1));
        let lenders = &self.lenders;
        let used_pages = |id: LenderId| {
            lenders.get(id).filter(|lender| lender.state() == LenderState::Draining).map(Lender::used_pages)
        };
        self.copies.ending.retain(|&(id, _)| used_pages(id).is_some());
        let needed =
            self.copies.ending.iter().filter_map(|&(id, end_ns)| {
                (end_ns.saturating_sub(now_ns) / 4 * 3).checked_div(used_pages(id)?)
            });
        needed.min().map_or(usual_ns, |needed_ns| needed_ns.min(usual_ns))
    }

    /// A lender that is being drained ends at this time: its pages are copied fast enough for that.
    pub fn ends_at(&mut self, lender: LenderId, end_ns: u64) {
        self.copies.ending.retain(|&(id, _)| id != lender);
        self.copies.ending.push((lender, end_ns));
    }

    /// Number of slots for whose copies no lender has room; 0 as long as other copies are to be made or room may still
    /// be found.
    pub fn without_room(&self) -> u64 {
        let copies = &self.copies;
        let is_stuck = copies.is_idle() && !self.works.is_freeing() && self.no_room(&[]) == NoRoom::Full;
        if is_stuck { copies.waiting.len() as u64 } else { 0 }
    }

    fn next_to_copy(&mut self) -> Option<SlotId> {
        if let Some(slot) = self.copies.queue.pop_front() {
            return Some(slot);
        }
        self.copies.again = self.copies.again.checked_sub(1)?;
        let slot = self.copies.waiting.pop_front()?;
        self.slots.set_parked(slot, false);
        Some(slot)
    }

    /// Begins to copy a slot, if it still needs a copy and one can be made.
    fn begin_copy(&mut self, slot: SlotId) -> Begun {
        let Some(known) = self.slots.get_mut(slot) else { return Begun::No };
        known.is_queued = false;
        if known.phase != Phase::Stored || known.is_copying || known.users == 0 {
            return Begun::No;
        }
        let places = known.places;
        let is_whole = |place: &Place| self.lenders.is_live(*place) && !self.lenders.is_to_leave(*place);
        let whole: Vec<Place> = places.into_iter().flatten().filter(is_whole).collect();
        if whole.len() >= usize::from(self.config.copies) {
            return Begun::No;
        }
        let source = places
            .into_iter()
            .flatten()
            .filter_map(|place| Some((self.lenders.cost_of_copying(place)?, place)))
            .filter(|((is_silent, ..), _)| !is_silent)
            .min_by_key(|(cost, _)| *cost);
        let Some((_, from)) = source else { return self.wait(slot) };
        let except: Vec<LenderId> = whole.iter().map(|place| place.lender()).collect();
        let Some(to) = self.place_for_copy(slot, &except) else {
            let is_leaving = places.into_iter().flatten().any(|place| self.lenders.is_to_leave(place));
            // A silent lender may be dead, so a copy there is not safe.
            let is_well = |place: &Place| self.lenders.get(place.lender()).is_some_and(Lender::is_well);
            if whole.iter().any(is_well) && is_leaving {
                match self.no_room(&except) {
                    NoRoom::Full => self.leave_with_one(slot),
                    NoRoom::NotYet => self.copies.waits_for_freeing |= self.works.is_freeing(),
                }
            }
            return self.wait(slot);
        };
        let Some(buffer) = self.reads.spare_buffer() else {
            self.free_place(to);
            self.requeue(slot);
            return Begun::NoBuffer;
        };
        let Some(location) = self.lenders.location(from) else { return Begun::No };
        if let Some(known) = self.slots.get_mut(slot) {
            known.is_copying = true;
        }
        self.copies.in_flight += 1;
        let io = self.works.begin(Work::Fetch { slot, from, to, buffer });
        self.actions.push_back(Action::Read { io, from: location, buffer, pages: 1 });
        Begun::Yes
    }

    /// Gives up a slot's place at a lender that is drained or dead: the other copy is safe, and there is no third
    /// lender.
    fn leave_with_one(&mut self, slot: SlotId) {
        let places = self.places(slot);
        let leaving =
            places.iter().position(|place| place.is_some_and(|place| self.lenders.is_to_leave(place)));
        let Some((index, place)) = leaving.and_then(|index| Some((index, places[index]?))) else { return };
        if let Some(known) = self.slots.get_mut(slot) {
            known.places[index] = None;
            // The caller lets the slot wait, so `look_at` must not queue it, too.
            known.is_queued = true;
        }
        self.look_at(slot);
        self.retire(slot, place);
    }

    /// Lets a slot wait: no lender has room for its copy, or only silent lenders have its data.
    fn wait(&mut self, slot: SlotId) -> Begun {
        if let Some(known) = self.slots.get_mut(slot) {
            known.is_queued = true;
            if self.slots.set_parked(slot, true) {
                self.copies.waiting.push_back(slot);
            }
        }
        Begun::No
    }

    fn requeue(&mut self, slot: SlotId) {
        if let Some(known) = self.slots.get_mut(slot).filter(|known| !known.is_queued) {
            known.is_queued = true;
            self.copies.queue.push_back(slot);
        }
    }

    /// The first half of a copy, the read, has ended.
    pub(super) fn fetch_ended(
        &mut self,
        now_ns: u64,
        (slot, from, to, buffer): (SlotId, Place, Place, u32),
        ended: Ended,
    ) {
        self.unclaim(from);
        let is_good = match ended {
            Ended::Failed | Ended::MayStillArrive => false,
            Ended::Done { checksum } => self.is_as_written(slot, checksum),
        };
        let has_user = self.slots.get(slot).is_some_and(|slot| slot.users > 0);
        let can_go_on =
            is_good && has_user && self.lenders.get(to.lender()).is_some_and(|lender| lender.is_well());
        let Some(location) = self.lenders.location(to).filter(|_| can_go_on) else {
            self.unclaim(to);
            self.free_place(to);
            if !matches!(ended, Ended::Done { .. }) {
                self.copies.next_ns = self.copies.next_ns.max(now_ns + FAILED_PAUSE_NS);
            }
            return self.copy_ended(
                now_ns,
                slot,
                buffer,
                matches!(ended, Ended::Done { .. }) && !is_good,
                from,
            );
        };
        // The second half claims the place before the claim of the first half ends.
        let io = self.works.begin(Work::Store { slot, to, buffer });
        self.unclaim(to);
        self.actions.push_back(Action::Write { io, to: location, from: Source::Buffer(buffer), pages: 1 });
    }

    /// The second half of a copy, the write, has ended.
    pub(super) fn store_ended(
        &mut self,
        now_ns: u64,
        (slot, to, buffer): (SlotId, Place, u32),
        ended: Ended,
    ) {
        self.write_ended(to, ended);
        let is_done = matches!(ended, Ended::Done { .. });
        if !is_done {
            self.copies.next_ns = self.copies.next_ns.max(now_ns + FAILED_PAUSE_NS);
        }
        let is_written = is_done && self.lenders.is_live(to);
        let places = self.places(slot);
        // The place that the new one replaces. In this order: one that cannot be read any more, a missing one, one at a
        // dead lender, one at a lender that is being drained.
        let use_of = |place: Option<Place>| match place {
            None if self.config.copies > 1 => Some(1),
            None => None,
            Some(place) if !self.lenders.is_readable(place) => Some(0),
            Some(place) if !self.lenders.is_live(place) => Some(2),
            Some(place) if self.lenders.is_to_leave(place) => Some(3),
            Some(_) => None,
        };
        let index = (0..places.len())
            .filter_map(|index| Some((use_of(places[index])?, index)))
            .min()
            .map(|(_, index)| index);
        let has_user = self.slots.get(slot).is_some_and(|slot| slot.users > 0);
        match index.filter(|_| is_written && has_user) {
            Some(index) => {
                let left = places[index];
                if let Some(known) = self.slots.get_mut(slot) {
                    known.places[index] = Some(to);
                }
                let is_moved = left.is_some_and(|place| self.lenders.is_readable(place));
                self.counters.copies_moved += u64::from(is_moved);
                self.counters.copies_restored += u64::from(!is_moved);
                if let Some(place) = left {
                    self.retire(slot, place);
                }
            }
            None => self.free_place(to),
        }
        self.copy_ended(now_ns, slot, buffer, false, to);
    }

    fn copy_ended(&mut self, now_ns: u64, slot: SlotId, buffer: u32, is_corrupt: bool, from: Place) {
        self.copies.in_flight -= 1;
        if let Some(known) = self.slots.get_mut(slot) {
            known.is_copying = false;
        }
        self.buffer_done(now_ns, buffer);
        if is_corrupt {
            if !self.has_other(slot, from) {
                // The copy at `from` is corrupt and no other place of the slot can be read: the slot waits.
                self.wait(slot);
                self.free_if_unused(slot);
                return;
            }
            self.give_up_place(slot, from);
        }
        self.look_at(slot);
        self.free_if_unused(slot);
    }

    /// Gives up the background copies that wait for a silent or dead lender. They are made again from another lender,
    /// or to another.
    pub(super) fn give_up_copies_of(&mut self, lender: LenderId) {
        for (slot, to) in self.works.abandon_copies(lender) {
            self.free_place(to);
            self.copies.in_flight -= 1;
            if let Some(known) = self.slots.get_mut(slot) {
                known.is_copying = false;
            }
            self.look_at(slot);
            self.free_if_unused(slot);
        }
    }

    /// Frees a place that a slot has given up; if a front end may be reading it directly, only after that.
    pub(super) fn retire(&mut self, slot: SlotId, place: Place) {
        if self.slots.get(slot).is_some_and(|slot| slot.pins > 0) {
            self.retired.entry(slot).or_default().push(place);
        } else {
            self.free_place(place);
        }
    }

    /// A read or write has ended.
    pub(super) fn work_ended(&mut self, now_ns: u64, work: Work, ended: Ended) {
        if matches!(ended, Ended::Done { .. }) {
            match &work {
                Work::Save { slots, first } => self.note_written(*first, slots.len() as u64),
                Work::Store { to, .. } => self.note_written(*to, 1),
                Work::Read { place: from, .. } | Work::Fetch { from, .. } => {
                    if let Some(lender) = self.lenders.get_mut(from.lender()) {
                        lender.traffic.pages_read += 1;
                    }
                }
                Work::Abandoned { .. } => {}
            }
        }
        match work {
            Work::Save { slots, first } => self.save_ended(&slots, first, ended),
            Work::Read { read, slot, place, buffer } => {
                self.read_ended(now_ns, (read, slot, place, buffer), ended);
            }
            Work::Fetch { slot, from, to, buffer } => {
                self.fetch_ended(now_ns, (slot, from, to, buffer), ended);
            }
            Work::Store { slot, to, buffer } => self.store_ended(now_ns, (slot, to, buffer), ended),
            Work::Abandoned { claimed, buffer } => {
                for place in claimed {
                    self.write_ended(place, ended);
                }
                self.buffer_done(now_ns, buffer);
            }
        }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.works.is_empty() && self.reads_open() == 0 && self.saving.is_empty() && self.copies.is_idle()
    }
}
impl Store {
    /// What is under way, for messages.
    pub fn under_way(&self) -> String {
        format!("{:?}, saving {:?}, reads {}, {:?}", self.works, self.saving, self.reads_open(), self.copies)
    }
}
