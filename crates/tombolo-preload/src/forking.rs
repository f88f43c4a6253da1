//! Forks: what must not be halfway when the kernel copies the address space, and what a child makes anew.
//!
//! The kernel reports a fork after it has copied the page tables. What another thread unmaps or moves in
//! between may be reported first, and would then be missing in what the supervisor takes the child's
//! memory for. So the fork holds what calls that change memory hold (`memory::change`).
//!
//! Fork handlers of other libraries may wait for other threads, which may wait for what the fork holds. So
//! the handlers in here are the first to be registered (see build.rs): libc runs them last before the fork,
//! and first after it.

use core::sync::atomic::Ordering;

use crate::{agent, control, heap, memory};
use tombolo_interpose::fork_word::{Beginning, ForkWord};
use tombolo_pager_protocol::FORKING;

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
    // This process may itself be a child that no handler was run for.
    attach_if_forked();
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
        // What is written after the fork takes local memory, of which the supervisor hears where it is protected.
        let _ = control::ask(FORKING, 0, 0);
        memory::begin_fork();
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
    if !WORD.is_there() {
        // In local memory there is no agent, but this allocator.
        heap::in_child(had_threads);
    }
    // A fork handler of the program's, or a signal's handler, may have changed memory before.
    WORD.begin(|| begin_child(had_threads));
}

/// Whether this address space is one that a fork has made, and that has no agent yet.
pub static WORD: ForkWord = ForkWord::new();

/// Of [`WORD`]'s own words: the address of the gate, which a forked child does not inherit either.
const GATE: usize = 0;

/// The gate of this address space, once its agent has made one. It stays mapped.
pub fn gate() -> Option<usize> {
    WORD.own_word(GATE).map(|word| word.load(Ordering::Acquire)).filter(|&gate| gate != 0)
}

/// The agent has made a gate.
pub fn set_gate(gate: usize) {
    if let Some(word) = WORD.own_word(GATE) {
        word.store(gate, Ordering::Release);
    }
}

/// A child that was made by a raw system call has no agent yet: no fork handler has run.
pub fn attach_if_forked() {
    let begin = || {
        heap::forks().set(0);
        begin_child(true);
    };
    if WORD.begin_unless_begun(begin) == Beginning::Lost {
        memory::forget_other_threads();
    }
}

/// Called by the one thread that has claimed the child.
fn begin_child(parent_had_threads: bool) {
    memory::forget_other_threads();
    // The child's pages are served already; with an agent they can be evicted, too. Where none can be
    // made (a seccomp filter, no processes left), they stay, and the supervisor says so.
    if let Some(token) = control::attach() {
        let _ = agent::start(token);
    }
    heap::in_child(parent_had_threads);
}
