//! Writing slots. A slot is stored when the lenders of all its places have acknowledged, or when one has and no lender
//! can be found for the other place.

use super::lenders::{LenderId, Place};
use super::slots::Phase;
use super::work::Work;
use super::{Action, Ended, Gone, SlotId, Source, Store};

/// State of one place of a slot that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copy {
    /// There is no place, or it was given up.
    None,
    /// To be written.
    New,
    /// Being written.
    Open,
    /// Written.
    Done,
    /// The write has failed.
    Failed,
}

/// A slot that is being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saving {
    staged: u32,
    checksum: Option<u32>,
    copies: [Copy; 2],
}

/// A slot to be written by [`Store::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which slot; it was taken, and not written yet.
    pub slot: SlotId,
    /// Which page of the staging memory has the data.
    pub staged: u32,
    /// CRC32C of the data, if reads are to be checked.
    pub checksum: Option<u32>,
}

/// Pages that follow each other both in the lender's segment and in the staging memory: they are sent as one write.
/// With each slot: which of its places is written.
struct Run {
    first: Place,
    staged: u32,
    slots: Vec<(SlotId, u8)>,
}

impl Run {
    fn is_followed_by(&self, place: Place, staged: u32) -> bool {
        let pages = self.slots.len() as u32;
        self.staged + pages == staged && self.first.is_followed_by(place, pages)
    }
}

impl Store {
    /// Writes slots from the staging memory. [`Action::Written`] reports the end of each. Until then, its data must
    /// stay in the staging memory. The caller releases a slot that could not be written.
    pub fn write(&mut self, pieces: &[Piece]) {
        let mut begun = Vec::with_capacity(pieces.len());
        for &Piece { slot, staged, checksum } in pieces {
            let known = self.slots.get_mut(slot).filter(|known| known.phase == Phase::Taken);
            let Some(known) = known else {
                self.actions.push_back(Action::Written { slot, result: Err(Gone) });
                continue;
            };
            known.phase = Phase::Saving;
            let copies = known.places.map(|place| if place.is_some() { Copy::New } else { Copy::None });
            self.saving.insert(slot, Saving { staged, checksum, copies });
            begun.push(slot);
        }
        self.advance(&begun);
    }

    /// Sets the checksum of a slot's data, if it is computed only while the slot is being written. To be called before
    /// anything reads the slot.
    pub fn set_checksum(&mut self, slot: SlotId, checksum: u32) {
        if let Some(saving) = self.saving.get_mut(&slot) {
            saving.checksum = Some(checksum);
        } else if let Some(known) = self.slots.get_mut(slot).filter(|known| known.phase == Phase::Stored) {
            known.checksum = Some(checksum);
        }
    }

    /// Goes on with the writing of slots after a change: sends the writes that are due, and ends slots whose writes
    /// have ended.
    fn advance(&mut self, slots: &[SlotId]) {
        let mut to_send = Vec::with_capacity(2 * slots.len());
        for copy in 0..2 {
            for &slot in slots {
                self.place_again(slot, copy);
                let Some(saving) = self.saving.get_mut(&slot) else { continue };
                if saving.copies[usize::from(copy)] == Copy::New {
                    saving.copies[usize::from(copy)] = Copy::Open;
                    to_send.push((slot, copy));
                }
            }
        }
        self.send(&to_send);
        for &slot in slots {
            self.end_if_written(slot);
        }
    }

    /// Replaces a place by one at a third lender, if its lender is silent or dead or its write has failed.
    fn place_again(&mut self, slot: SlotId, copy: u8) {
        let (index, other) = (usize::from(copy), usize::from(1 - copy));
        let Some(saving) = self.saving.get(&slot).copied() else { return };
        let places = self.places(slot);
        let Some(place) = places[index] else { return };
        let is_well = self.lenders.get(place.lender()).is_some_and(super::lenders::Lender::is_well);
        let is_live = self.lenders.is_live(place);
        let is_to_move = match saving.copies[index] {
            Copy::None => false,
            Copy::New | Copy::Open => !is_well,
            Copy::Done => !is_live,
            Copy::Failed => true,
        };
        if !is_to_move {
            return;
        }
        let mut except = vec![place.lender()];
        except.extend(places[other].map(Place::lender));
        // A silent lender may be dead, so a copy there is not safe.
        let is_heard =
            |place: Place| self.lenders.get(place.lender()).is_some_and(|lender| !lender.is_suspect());
        let is_other_safe = saving.copies[other] == Copy::Done
            && places[other].is_some_and(|place| self.lenders.is_live(place) && is_heard(place));
        let found = self.take_place(1, &except, None);
        if found.is_none() {
            self.grow_all();
        }
        // No other lender has room: the write waits for this lender, unless the other copy is safe.
        let may_wait = matches!(saving.copies[index], Copy::New | Copy::Open) && is_live;
        if found.is_none() && may_wait && !is_other_safe {
            return;
        }
        if let (Some(known), Some(saving)) = (self.slots.get_mut(slot), self.saving.get_mut(&slot)) {
            known.places[index] = found;
            saving.copies[index] = if found.is_some() { Copy::New } else { Copy::None };
        }
        self.counters.writes_moved += u64::from(found.is_some());
        self.free_place(place);
    }

    /// Sends writes. Pages that follow each other at both ends are sent as one write.
    fn send(&mut self, writes: &[(SlotId, u8)]) {
        let most = self.config.stripe_pages as usize;
        let mut run: Option<Run> = None;
        for &(slot, copy) in writes {
            let Some(staged) = self.saving.get(&slot).map(|saving| saving.staged) else { continue };
            let Some(place) = self.places(slot)[usize::from(copy)] else { continue };
            match &mut run {
                // A write has at most `most` pages, so that parts end before the whole and the writer sees progress.
                Some(run) if run.slots.len() < most && run.is_followed_by(place, staged) => {
                    run.slots.push((slot, copy));
                }
                _ => {
                    let next = Run { first: place, staged, slots: vec![(slot, copy)] };
                    if let Some(whole) = run.replace(next) {
                        self.send_run(whole);
                    }
                }
            }
        }
        if let Some(whole) = run {
            self.send_run(whole);
        }
    }

    fn send_run(&mut self, Run { first, staged, slots }: Run) {
        let Some(to) = self.lenders.location(first) else { return };
        let pages = slots.len() as u32;
        let io = self.works.begin(Work::Save { slots, first });
        self.actions.push_back(Action::Write { io, to, from: Source::Staged(staged), pages });
    }

    /// If all writes of a slot have ended, reports whether it is stored.
    fn end_if_written(&mut self, slot: SlotId) {
        let Some(saving) = self.saving.get(&slot) else { return };
        if saving.copies.iter().any(|copy| matches!(copy, Copy::New | Copy::Open)) {
            return;
        }
        let (checksum, copies) = (saving.checksum, saving.copies);
        self.saving.remove(&slot);
        let mut result = Err(Gone);
        for (index, copy) in copies.into_iter().enumerate() {
            let Some(place) = self.places(slot)[index] else { continue };
            if copy == Copy::Done && self.lenders.is_readable(place) {
                result = Ok(());
            } else if copies.contains(&Copy::Done) {
                if let Some(known) = self.slots.get_mut(slot) {
                    known.places[index] = None;
                }
                self.free_place(place);
            }
        }
        match result {
            Ok(()) => self.stored(slot, checksum),
            Err(Gone) => {
                if let Some(known) = self.slots.get_mut(slot) {
                    known.phase = Phase::Taken;
                }
            }
        }
        self.actions.push_back(Action::Written { slot, result });
        self.free_if_unused(slot);
    }

    /// A write of front ends' slots has ended.
    pub(super) fn save_ended(&mut self, slots: &[(SlotId, u8)], first: Place, ended: Ended) {
        let mut told = Vec::with_capacity(slots.len());
        for (page, &(slot, copy)) in (0u32..).zip(slots) {
            let place = first.offset(page);
            let is_current = self.places(slot)[usize::from(copy)] == Some(place);
            if let Some(saving) = self.saving.get_mut(&slot).filter(|_| is_current)
                && saving.copies[usize::from(copy)] == Copy::Open
            {
                let is_done = matches!(ended, Ended::Done { .. });
                saving.copies[usize::from(copy)] = if is_done { Copy::Done } else { Copy::Failed };
                told.push(slot);
            }
            self.write_ended(place, ended);
        }
        self.advance(&told);
    }

    /// There may be room at other lenders: moves writes there that wait for a silent lender.
    pub(super) fn move_waiting_writes(&mut self) {
        let slots = self.saving.keys_of(|_, _| true);
        self.advance(&slots);
    }

    /// Moves the writes to a silent or dead lender to other lenders.
    pub(super) fn move_writes_of(&mut self, lender: LenderId) {
        let slots = self.saving.keys_of(|&slot, _| {
            self.places(slot).into_iter().flatten().any(|place| place.lender() == lender)
        });
        self.advance(&slots);
    }
}
