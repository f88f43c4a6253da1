//! Reads and writes under way, and the places that they claim.

use crate::lookup::Lookup;

use super::SlotId;
use super::lenders::{LenderId, Place};

/// Names a read or write that is under way. The caller reports its end once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io(u64);

impl Io {
    /// The name as a number, for a table of the caller's.
    pub fn into_word(self) -> u64 {
        self.0
    }

    /// The name that [`Io::into_word`] returned as this number.
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The name of the read that was begun `reads` reads after this one.
    #[must_use]
    pub fn offset(self, reads: u32) -> Self {
        Self(self.0 + u64::from(reads))
    }
}

/// What a read or write is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A front end's write of slots whose places follow each other at the lender from `first` on. The number with each
    /// slot says which of its two places is written.
    Save { slots: Vec<(SlotId, u8)>, first: Place },
    /// A front end's read.
    Read { read: u64, slot: SlotId, place: Place, buffer: u32 },
    /// The first half of a background copy: reads `from`.
    Fetch { slot: SlotId, from: Place, to: Place, buffer: u32 },
    /// The second half of a background copy: writes `to`.
    Store { slot: SlotId, to: Place, buffer: u32 },
    /// A background copy that was given up because a lender is silent or dead. Its places and its buffer are in use
    /// until its read or write has ended.
    Abandoned { claimed: Vec<Place>, buffer: u32 },
}

/// Reads and writes under way at one place.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    count: u32,
    /// The place becomes free when they have ended.
    is_freed: bool,
    /// A write that failed may still reach the place, so the place never becomes free.
    is_lost: bool,
}

/// Reads and writes under way.
#[derive(Debug, Default)]
pub(super) struct Works {
    next: u64,
    open: Lookup<u64, Work>,
    /// Number of these that are writes of front ends.
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

    /// Ends a read or write. `None`: it has ended before.
    pub(super) fn end(&mut self, io: Io) -> Option<Work> {
        let work = self.open.remove(&io.0)?;
        self.saves -= usize::from(matches!(work, Work::Save { .. }));
        Some(work)
    }

    /// The reads and writes under way at a lender, in the order in which they began.
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

    /// Marks a place to be freed when all reads and writes there have ended. False: none is under way, so the caller
    /// frees it now.
    pub(super) fn free_later(&mut self, place: Place) -> bool {
        match self.claims.get_mut(&place) {
            Some(claim) => {
                claim.is_freed = true;
                true
            }
            None => false,
        }
    }

    /// A write to a place has failed, but its bytes may still arrive: its claim never ends.
    pub(super) fn never_unclaim(&mut self, place: Place) {
        if let Some(claim) = self.claims.get_mut(&place) {
            claim.is_lost = true;
        }
    }

    /// Number of places of a lender that no slot needs, but that are not free because a failed write may still arrive
    /// there.
    pub(super) fn never_free(&self, lender: LenderId) -> u64 {
        let is_one =
            |place: &Place, claim: &Claim| place.lender() == lender && claim.is_freed && claim.is_lost;
        self.claims.count(is_one) as u64
    }

    /// A read or write at a place has ended. True: it was the last one, and the place was marked to be freed.
    pub(super) fn unclaim(&mut self, place: Place) -> bool {
        let Some(claim) = self.claims.get_mut(&place) else { return false };
        claim.count -= 1;
        if claim.count > 0 {
            return false;
        }
        self.claims.remove(&place).is_some_and(|claim| claim.is_freed)
    }

    /// Whether any place will become free when its reads and writes have ended.
    pub(super) fn is_freeing(&self) -> bool {
        self.claims.any(|_, claim| claim.is_freed && !claim.is_lost)
    }

    /// Drops the claims of a lender that is dead or drained: its memory is not used again, so no read or write there
    /// has to be waited for. Returns the places that were marked to be freed.
    pub(super) fn forget_claims(&mut self, lender: LenderId) -> Vec<Place> {
        let mut forgotten = self.claims.keys_of(|place, _| place.lender() == lender);
        forgotten.retain(|place| self.claims.remove(place).is_some_and(|claim| claim.is_freed));
        forgotten
    }

    /// Whether anything but writes of front ends is under way.
    pub(super) fn has_more_than_saves(&self) -> bool {
        self.open.len() > self.saves
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
