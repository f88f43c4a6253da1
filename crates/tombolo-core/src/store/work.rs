//! Reads and writes under way, and the places that they claim.

use crate::lookup::Lookup;

use super::SlotId;
use super::lenders::{LenderId, Place};

/// Names a read or write under way. Its end is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io(u64);

impl Io {
    /// As a number, for a table of the caller's.
    pub fn into_word(self) -> u64 {
        self.0
    }

    /// From [`Io::into_word`].
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The name of the read that was begun `reads` reads later.
    #[must_use]
    pub fn offset(self, reads: u32) -> Self {
        Self(self.0 + u64::from(reads))
    }
}

/// What a read or write is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Slots of a front end, which follow each other from `first` on at the lender; the number is the place's in the slot.
    Save { slots: Vec<(SlotId, u8)>, first: Place },
    /// A front end's read.
    Read { read: u64, slot: SlotId, place: Place, buffer: u32 },
    /// The first half of a background copy.
    Fetch { slot: SlotId, from: Place, to: Place, buffer: u32 },
    /// The second half.
    Store { slot: SlotId, to: Place, buffer: u32 },
    /// A background copy that was given up because a lender is silent. It ends nevertheless.
    Abandoned { claimed: Vec<Place>, buffer: u32 },
}

/// Uses of a place.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    count: u32,
    /// It is free when they end.
    is_freed: bool,
    /// A write there may end at any time, so it is never free.
    is_lost: bool,
}

/// Reads and writes under way.
#[derive(Debug, Default)]
pub(super) struct Works {
    next: u64,
    open: Lookup<u64, Work>,
    /// How many of those are writes of a front end.
    saves: usize,
    claims: Lookup<Place, Claim>,
}

impl Work {
    /// The places it uses.
    fn places(&self) -> Vec<Place> {
        match self {
            Self::Save { slots, first } => (0..slots.len() as u32).map(|page| first.offset(page)).collect(),
            Self::Read { place, .. } => vec![*place],
            Self::Fetch { from, to, .. } => vec![*from, *to],
            Self::Store { to, .. } => vec![*to],
            Self::Abandoned { claimed, .. } => claimed.clone(),
        }
    }
}

impl Works {
    /// Begins a read or write: its places are claimed until [`Works::unclaim`] is called for each.
    pub(super) fn begin(&mut self, work: Work) -> Io {
        for place in work.places() {
            self.claims.get_or_insert(place, Claim::default()).count += 1;
        }
        self.next += 1;
        self.saves += usize::from(matches!(work, Work::Save { .. }));
        self.open.insert(self.next, work);
        Io(self.next)
    }

    pub(super) fn get(&self, io: Io) -> Option<&Work> {
        self.open.get(&io.0)
    }

    /// Ends one, unless it has ended before.
    pub(super) fn end(&mut self, io: Io) -> Option<Work> {
        let work = self.open.remove(&io.0)?;
        self.saves -= usize::from(matches!(work, Work::Save { .. }));
        Some(work)
    }

    /// Those at a lender, the first ones first.
    pub(super) fn at(&self, lender: LenderId) -> Vec<Work> {
        let is_there = |work: &Work| work.places().iter().any(|place| place.lender() == lender);
        let found = self.open.keys_of(|_, work| is_there(work));
        found.iter().filter_map(|io| self.open.get(io).cloned()).collect()
    }

    /// Gives up the background copies that wait for a lender. Returns the slot and the new place of each.
    pub(super) fn abandon_copies(&mut self, lender: LenderId) -> Vec<(SlotId, Place)> {
        let mut abandoned = Vec::new();
        for io in self.open.keys_of(|_, work| matches!(work, Work::Fetch { .. } | Work::Store { .. })) {
            let Some(work) = self.open.get_mut(&io) else { continue };
            let (slot, to, buffer, waits) = match *work {
                Work::Fetch { slot, from, to, buffer } => (slot, to, buffer, from.lender() == lender),
                Work::Store { slot, to, buffer } => (slot, to, buffer, to.lender() == lender),
                _ => continue,
            };
            if waits {
                *work = Work::Abandoned { claimed: work.places(), buffer };
                abandoned.push((slot, to));
            }
        }
        abandoned
    }

    /// A place is to be free. True: later, something uses it.
    pub(super) fn free_later(&mut self, place: Place) -> bool {
        match self.claims.get_mut(&place) {
            Some(claim) => {
                claim.is_freed = true;
                true
            }
            None => false,
        }
    }

    /// A write to a place has failed, and may arrive yet: its use does not end.
    pub(super) fn never_unclaim(&mut self, place: Place) {
        if let Some(claim) = self.claims.get_mut(&place) {
            claim.is_lost = true;
        }
    }

    /// Places of a lender that nobody needs, and that are not free because a write may still arrive there.
    pub(super) fn never_free(&self, lender: LenderId) -> u64 {
        let is_one =
            |place: &Place, claim: &Claim| place.lender() == lender && claim.is_freed && claim.is_lost;
        self.claims.count(is_one) as u64
    }

    /// One use of a place has ended. True: it was to be free, and is now.
    pub(super) fn unclaim(&mut self, place: Place) -> bool {
        let Some(claim) = self.claims.get_mut(&place) else { return false };
        claim.count -= 1;
        if claim.count > 0 {
            return false;
        }
        self.claims.remove(&place).is_some_and(|claim| claim.is_freed)
    }

    /// Whether a place will be free when its reads and writes have ended.
    pub(super) fn is_freeing(&self) -> bool {
        self.claims.any(|_, claim| claim.is_freed && !claim.is_lost)
    }

    /// A lender is dead: nothing of it is used again, so nothing has to be waited for. Returns the places that were
    /// to be free later.
    pub(super) fn forget_claims(&mut self, lender: LenderId) -> Vec<Place> {
        let mut forgotten = self.claims.keys_of(|place, _| place.lender() == lender);
        forgotten.retain(|place| self.claims.remove(place).is_some_and(|claim| claim.is_freed));
        forgotten
    }

    /// Whether there are others than writes of a front end.
    pub(super) fn has_more_than_saves(&self) -> bool {
        self.open.len() > self.saves
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
