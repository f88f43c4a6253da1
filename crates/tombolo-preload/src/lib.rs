//! Preloaded into programs that run under the pager.
//!
//! It gives the program's `malloc` and large anonymous `mmap` addresses inside
//! the **arena**, one range reserved at start and registered with userfaultfd,
//! whose faults the supervisor (`tombolo run`) serves. Everything else goes
//! straight to the kernel. Without `TOMBOLO_PAGER` in the environment, or when
//! the supervisor declines, the program runs as if this library were only
//! another allocator.
//!
//! ```text
//!  program threads                     agent (a thread, own descriptor table)
//!  malloc -> mimalloc -> mmap --+      holds socket + userfaultfd
//!  mmap, munmap, madvise -------+      drops evicted pages when told
//!        |                             ends the program if the supervisor dies
//!        | doorbell page (fault)            |  Unix socket
//!        v                                  v
//!  ------------------- supervisor (tombolo run) -----------------------
//! ```
//!
//! Rules in here: nothing allocates, nothing panics, no descriptor enters the
//! program's table, and `errno` is set as the replaced function would.
#![allow(missing_docs, reason = "exported symbols carry the names and meanings of POSIX")]

mod agent;
mod arena;
mod children;
mod doorbell;
mod heap;
mod lock;
mod memory;
mod protocol;
mod start;
mod sys;
