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

/// The slices of a run, as they began.
#[derive(Debug, Default)]
pub struct Timeline {
    /// All of them.
    pub slices: Vec<Slice>,
}
