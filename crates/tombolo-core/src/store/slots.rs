//! The table of slots.

use super::SlotId;
use super::lenders::Place;

/// State of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is not in use.
    #[default]
    Free,
    /// It was taken, and not written yet.
    Taken,
    /// It is being written.
    Saving,
    /// Its data is safe.
    Stored,
}

/// One slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) places: [Option<Place>; 2],
    /// CRC32C of the data, if it was computed.
    pub(super) checksum: Option<u32>,
    pub(super) users: u16,
    /// Direct reads under way.
    pub(super) pins: u8,
    pub(super) phase: Phase,
    /// It waits for a copy to be made or moved.
    pub(super) is_queued: bool,
    /// Its number is in the list of slots that wait for a lender. It may have been put there for an earlier slot with
    /// this number.
    pub(super) is_parked: bool,
    /// A copy of it is being made.
    pub(super) is_copying: bool,
    /// It is counted as a slot with too few copies.
    pub(super) is_degraded: bool,
}

/// Number of slots in one piece of the table. The table grows by pieces, because moving a long array would take
/// milliseconds.
const PIECE: usize = 4096;

/// All slots.
#[derive(Debug, Default)]
pub(super) struct SlotTable {
    pieces: Vec<Box<[Slot]>>,
    free: Vec<SlotId>,
    used: u32,
}

impl SlotTable {
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Number of slots in the table, free ones included: all numbers that were ever used are below this.
    pub(super) fn count(&self) -> u32 {
        (self.pieces.len() * PIECE) as u32
    }

    pub(super) fn get(&self, slot: SlotId) -> Option<&Slot> {
        let found = self.pieces.get(slot as usize / PIECE)?.get(slot as usize % PIECE)?;
        (found.phase != Phase::Free).then_some(found)
    }

    pub(super) fn get_mut(&mut self, slot: SlotId) -> Option<&mut Slot> {
        let found = self.pieces.get_mut(slot as usize / PIECE)?.get_mut(slot as usize % PIECE)?;
        (found.phase != Phase::Free).then_some(found)
    }

    /// Takes a free slot, with these places and one user. `None`: all 32-bit numbers are in use.
    pub(super) fn take(&mut self, places: [Option<Place>; 2]) -> Option<SlotId> {
        if self.free.is_empty() {
            let first = u32::try_from(self.pieces.len() * PIECE).ok()?;
            let end = first.checked_add(PIECE as u32)?;
            self.pieces.push(vec![Slot::default(); PIECE].into());
            self.free.extend((first..end).rev());
        }
        let slot = self.free.pop()?;
        let known = self.pieces.get_mut(slot as usize / PIECE)?.get_mut(slot as usize % PIECE)?;
        let is_parked = known.is_parked;
        *known = Slot { places, users: 1, phase: Phase::Taken, is_parked, ..Slot::default() };
        self.used += 1;
        Some(slot)
    }

    /// Notes whether a slot's number is in the list of slots that wait for a lender. Returns whether that has changed.
    pub(super) fn set_parked(&mut self, slot: SlotId, is_parked: bool) -> bool {
        let piece = self.pieces.get_mut(slot as usize / PIECE);
        piece
            .and_then(|piece| piece.get_mut(slot as usize % PIECE))
            .is_some_and(|slot| std::mem::replace(&mut slot.is_parked, is_parked) != is_parked)
    }

    pub(super) fn free(&mut self, slot: SlotId) {
        if let Some(known) = self.get_mut(slot) {
            *known = Slot { is_parked: known.is_parked, ..Slot::default() };
            self.free.push(slot);
            self.used -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_small_and_used_again() {
        assert!(size_of::<Slot>() <= 32, "{}", size_of::<Slot>());
        let mut table = SlotTable::default();
        let first = table.take([None; 2]).unwrap();
        assert_eq!((first, table.used()), (0, 1));
        table.free(first);
        table.free(first);
        assert_eq!((table.used(), table.take([None; 2])), (0, Some(first)));
        assert!(table.get(1).is_none() && table.get(u32::MAX).is_none());
    }
}
