//! What a pager knows and decides: the state of each page of a program, which page
//! goes next, what to fetch ahead, and which far slots are in use.
//!
//! [`Table`] is the machine: the driver tells it what the kernel reports (faults,
//! forks, ranges that were discarded, unmapped or moved) and how operations ended,
//! and it says what to do. It copies no page and makes no system call.
//!
//! ```text
//!   kernel's events ----> Table ----> decisions: map zeroes, fetch, unprotect, wait, poison
//!   ends of operations -->  |  ---->  wake, free, follow
//!                           +-- Slots, Replacement, Prefetch
//! ```
//!
//! [`Eviction`] decides when pages leave; it is told of room, waiting faults, agents and the time.

mod eviction;
mod page;
mod prefetch;
mod replacement;
mod slots;
mod table;

pub use eviction::{Attempt, Bounds, Cause, Eviction, Step, View};
pub use page::{AGE_MASK, Entry, LIVES_MAX, PAGE_BYTES, Page, State};
pub use prefetch::{Ahead, Prefetch, TOUCH_MAX, Touches, WriteHabit};
pub use replacement::{PageName, Replacement};
pub use slots::Slots;
pub use table::{Access, Decision, Discarded, Finished, Follower, Forked, Outcome, Remapped, Table};
