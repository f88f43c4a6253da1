//! Forks: what must not be halfway when the kernel copies the address space, and what a child makes anew.
//!
//! The kernel reports a fork after it has copied the page tables. What another thread unmaps or moves in
//! between may be reported first, and would then be missing in what the supervisor takes the child's
//! memory for. So the fork holds what calls that change memory hold (`memory::change`).

use crate::{agent, control, heap, memory};

/// Bits of one fork in [`heap::forks`].
const BITS: u32 = 3;
const HOLDS_CHANGES: u64 = 1;
const HOLDS_HEAP: u64 = 2;
const HAS_THREADS: u64 = 4;

/// Has libc run what is in here around each fork.
pub fn install_handlers() {
    // SAFETY: the handlers obey the rules for fork handlers; libc copies the pointers.
    unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
}

extern "C" fn before() {
    let mut bits = 0;
    if heap::has_threads() {
        bits |= HAS_THREADS;
    }
    // A thread that holds one of the two never waits for the other, so their order is free.
    if heap::before_fork() {
        bits |= HOLDS_HEAP;
    }
    if memory::hold_for_fork() {
        bits |= HOLDS_CHANGES;
    }
    let forks = heap::forks();
    forks.set(forks.get() << BITS | bits);
}

extern "C" fn after_in_parent() {
    let forks = heap::forks();
    let bits = forks.get();
    forks.set(bits >> BITS);
    if bits & HOLDS_CHANGES != 0 {
        memory::release_after_fork();
    }
    if bits & HOLDS_HEAP != 0 {
        heap::after_fork();
    }
}

extern "C" fn after_in_child() {
    let had_threads = heap::forks().replace(0) & HAS_THREADS != 0;
    begin_child(had_threads);
}

/// A child that was made by a raw system call has no agent yet: no fork handler has run.
pub fn attach_if_forked() {
    if agent::is_missing() {
        heap::forks().set(0);
        begin_child(true);
    }
}

fn begin_child(parent_had_threads: bool) {
    memory::forget_other_threads();
    // The child's pages are served already; with an agent they can be evicted, too. Where none can be
    // made (a seccomp filter, no processes left), they stay, and the supervisor says so.
    if let Some(token) = control::attach() {
        let _ = agent::start(token);
    }
    heap::in_child(parent_had_threads);
}
