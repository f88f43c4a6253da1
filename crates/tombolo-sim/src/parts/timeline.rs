//! What parts do when: for pictures of a run.

use crate::kernel::{PartId, Time};

/// Something that a part does for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which part.
    pub part: PartId,
    /// Which of its tracks: on each, one thing follows the other.
    pub track: &'static str,
    /// What it does.
    pub name: &'static str,
    /// From when.
    pub from: Time,
    /// Until when.
    pub to: Time,
    /// What it is for: slices of one flow belong together; 0: nothing.
    pub flow: u32,
}

/// Slices of a run at most: 56 bytes each, and more than a picture shows.
const MOST_SLICES: usize = 4_000_000;

/// The slices of a run, as parts have noted them: some before they begin.
#[derive(Debug, Default)]
pub struct Timeline {
    slices: Vec<Slice>,
    /// When the earliest one begins that was not kept.
    cut_at: Option<Time>,
}

impl Timeline {
    /// Those that were kept.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// From when on slices are left out, if there were more than are kept.
    pub fn cut_at(&self) -> Option<Time> {
        self.cut_at
    }

    pub(super) fn take(&mut self) -> Vec<Slice> {
        std::mem::take(&mut self.slices)
    }

    pub(super) fn add(&mut self, slice: Slice) {
        if self.slices.len() < MOST_SLICES {
            self.slices.push(slice);
        } else {
            self.cut_at = Some(self.cut_at.map_or(slice.from, |earliest| earliest.min(slice.from)));
        }
    }
}
