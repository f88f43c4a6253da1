//! What a pager knows and decides: the state of each page of a program, which page is evicted next, and what to fetch
//! ahead. Where far pages are stored is known to [`crate::store`].
//!
//! [`Table`] is the machine: the driver tells it what the kernel reports (faults,
//! forks, ranges that were discarded, unmapped or moved) and how operations ended,
//! and it says what to do. It copies no page and makes no system call.
//!
//! ```text
//!   kernel's events ----> Table ----> decisions: map zeroes, fetch, unprotect, wait, poison
//!   ends of operations -->  |  ---->  wake, free, follow
//!                           +-- Store, Replacement, Prefetch
//! ```
//!
//! [`Eviction`] decides when pages leave, from the room, the waiting faults, the agents' commands and the time.
//! [`batch`] describes the way of a page out of the program, and [`UnderWay`] says what of a space may be on its way
//! out at once.

pub mod batch;
mod eviction;
mod frames;
mod page;
mod prefetch;
mod ranges;
mod replacement;
mod table;
mod unasked;
mod under_way;

pub use eviction::{Attempt, Bounds, Cause, Eviction, Step, View};
pub use frames::{Frame, Frames, Remains, Saved};
pub use page::{AGE_MASK, Entry, LIVES_MAX, PAGE_BYTES, Page, State};
pub use prefetch::{Ahead, Prefetch, Spare, TOUCH_MAX, Touches, WriteHabit};
pub use replacement::{PageName, Replacement};
pub use table::{
    Access, Decision, Discarded, Finished, Follower, Forked, Left, Outcome, Remapped, Seen, Table,
};
pub use under_way::{AREAS, Area, UnderWay};
