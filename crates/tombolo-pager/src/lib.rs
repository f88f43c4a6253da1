//! The pager: serves page faults of unmodified programs from far memory.
//!
//! ```text
//!  program + preloaded library        supervisor (this crate)            far memory
//!  arena (userfaultfd) --faults--> handlers, one a processor --reads--> windows or reads
//!  agent thread <--drop pages----- evictor --writes-------------------> windows or writes
//!  agent thread --hello, hang-up-> reception
//! ```
//!
//! [`run()`] starts a program under it and comes back when the program and all
//! its descendants have ended.

mod attach;
mod batch;
mod evict;
mod handler;
mod home;
mod page;
mod pager;
mod placement;
mod prefetch;
#[path = "../../tombolo-preload/src/protocol.rs"]
#[allow(dead_code, reason = "some of it is for the other end")]
mod protocol;
mod replacement;
mod requests;
mod run;
mod serve;
mod slots;
mod space;
mod stats;

pub use run::{Finished, LOCAL_LEAST_BYTES, Monitor, Options, RunError, run};
