//! Preloaded into programs that run under the pager.
//!
//! It makes the program's `malloc` take its memory by `mmap`, and registers large
//! anonymous mappings with the supervisor (`tombolo run`), which serves their faults.
//! Everything else goes straight to the kernel. Without `TOMBOLO_PAGER` in the
//! environment, or when the supervisor declines, the program runs as if this library
//! were only another allocator.
//!
//! ```text
//!  program threads                     agent (a process that shares the memory)
//!  malloc -> mimalloc -> mmap --+      holds socket, userfaultfd and gate
//!  mmap ------------------------+      moves and drops pages when told
//!        | register: a fault in        ends the program if the supervisor dies
//!        | the control area                 |  Unix socket
//!        v                                  v
//!  ------------------- supervisor (tombolo run) -----------------------
//!        ^ faults, forks, unmap, remove and remap events: from the kernel
//! ```
//!
//! The rules of [`tombolo_interpose`] hold in here.
#![allow(missing_docs, reason = "exported symbols carry the names and meanings of POSIX")]

mod agent;
mod commands;
mod control;
mod forking;
mod heap;
mod loaded;
mod memory;
mod start;
mod sys;
mod timing;
mod unwaited;
