//! The pager: serves page faults of unmodified programs from far memory.
//!
//! ```text
//!  program + preloaded library        supervisor (this crate)            far memory
//!  mappings (userfaultfd) --faults--> handlers, one a processor --reads--> windows or reads
//!  agent process <--move pages------ evictor --writes--------------------> windows or writes
//!  agent process --hello, hang-up--> reception
//!                                    front, which stands for the program at the shell; keeper, which outlives all
//! ```
//!
//! [`run()`] starts a program under the pager and returns when the program and all its descendants have ended.

mod arrive;
mod attach;
mod batch;
mod copy_out;
mod events;
mod evict;
pub mod front;
mod handler;
mod home;
mod keeper;
mod locked;
mod lost;
mod pager;
mod placement;
mod requests;
mod room;
mod run;
mod run_directory;
mod serve;
mod shared_out;
mod sharing;
mod space;
mod stats;
mod unserved;

pub use keeper::keep;
pub use run::{Finished, HANDLERS_MAX, LOCAL_LEAST_BYTES, Monitor, Options, RunError, run};
pub use run_directory::Library;
pub use stats::PauseSummary;
pub use tombolo_interpose::fitness;
pub use unserved::{Executed, UnservedSummary};
