//! What a thread that copies to and from a program's memory needs of it.

use crate::shared::{SharedSpan, SharedSpanMut};

use super::pages::Absent;

/// What is to be done with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Its bytes are read.
    Read,
    /// They are written, or changed.
    Write,
}

/// A change of one word, in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordChange {
    /// Adds; overflow wraps.
    Add(u64),
    /// Puts the second there if the first is.
    CompareSwap(u64, u64),
}

/// Why memory cannot be reached so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing is mapped there.
    NotMapped,
    /// The mapping does not allow it.
    Protected,
    /// The mapping allows it, and its page cannot be had: it lies behind the end of a file, or was poisoned.
    Unavailable,
}

/// An address that cannot be reached so, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The first such byte of the range.
    pub address: u64,
    /// Why.
    pub reason: Reason,
}

/// The memory of a program, to a thread that copies for it. No range is longer than
/// [`super::MAX_ACCESS_BYTES`], but for [`Self::is_there`]. An access ends with an error where a page cannot be had, whatever the program
/// does to its mappings meanwhile; it may have been carried out in part then.
pub trait ProcessMemory: Send + Sync {
    /// The pages of a range at which an access would fault, a moment ago.
    fn absent(&self, address: u64, length_bytes: u32, right: Right) -> Absent;

    /// Whether an access to no page of a range would have faulted a moment ago; up to [`super::MAX_LOOK_BYTES`].
    fn is_there(&self, address: u64, length_bytes: u32, right: Right) -> bool;

    /// Makes several accesses, one after the other. What is the same for all of them is found out once.
    fn in_one_go(&self, accesses: &mut dyn FnMut()) {
        accesses();
    }

    /// The first byte of a range that the program itself could not access so, as its mappings say.
    fn check(&self, address: u64, length_bytes: u32, right: Right) -> Result<(), Denied>;

    /// Copies bytes out. The error is the address of the first that was not copied.
    fn read(&self, address: u64, into: SharedSpanMut<'_>) -> Result<(), u64>;

    /// Copies bytes in, as [`Self::read`].
    fn write(&self, address: u64, bytes: SharedSpan<'_>) -> Result<(), u64>;

    /// Writes two words that lie side by side, the first before the last.
    fn write_words(&self, address: u64, words: [u64; 2]) -> Result<(), u64>;

    /// Changes an aligned word in one step; what it was before. The error is its address, or `None` where this
    /// cannot be done.
    fn change_word(&self, address: u64, change: WordChange) -> Result<u64, Option<u64>>;

    /// Brings the pages of a range in, for as long as that takes.
    fn touch(&self, address: u64, length_bytes: u32, right: Right) -> Result<(), Denied>;
}
