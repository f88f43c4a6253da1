//! Forks: what must not be halfway when the kernel copies the address space, and what a child makes anew.
//!
//! The kernel reports a fork after it has copied the page tables. What another thread unmaps or moves in
//! between may be reported first, and would then be missing in what the supervisor takes the child's
//! memory for. So the fork holds what calls that change memory hold (`memory::change`).
//!
//! Fork handlers of other libraries may wait for other threads, which may wait for what the fork holds. So
//! the handlers in here are the first to be registered (see build.rs): libc runs them last before the fork,
//! and first after it.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::timing::RECHECK_MS;
use crate::{agent, control, heap, memory, sys};
use tombolo_interpose::thread;
use tombolo_pager_protocol::{FORKING, PAGE_BYTES};

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
        // What is written after the fork takes local memory, of which the supervisor hears where it is protected.
        let _ = control::ask(FORKING, 0, 0);
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
    // A fork handler of the program's, or a signal's handler, may have changed memory before.
    if claim_child() {
        begin_child(had_threads);
    }
}

/// Address of the word that says how far this address space is; 0: there is none. The word lies in a page
/// that a forked child finds empty, and that a child made by `vfork` shares.
static PROGRESS: AtomicUsize = AtomicUsize::new(0);
/// In the word: the child was begun, or this is no child. 0: it was not; else the thread that begins it.
const BEGUN: u32 = u32::MAX;

fn progress() -> Option<&'static AtomicU32> {
    let address = PROGRESS.load(Ordering::Acquire);
    // SAFETY: the page stays mapped as long as its address is stored, and is accessed atomically only.
    (address != 0).then(|| unsafe { &*(address as *const AtomicU32) })
}

/// In the page of that word: the address of the gate, which a forked child does not inherit either.
const GATE_ADDRESS_OFFSET: usize = 64;

fn gate_address() -> Option<&'static AtomicUsize> {
    let address = PROGRESS.load(Ordering::Acquire);
    // SAFETY: the page stays mapped as long as its address is stored, and is accessed atomically only.
    (address != 0).then(|| unsafe { &*((address + GATE_ADDRESS_OFFSET) as *const AtomicUsize) })
}

/// The gate of this address space, once its agent has made one. It stays mapped.
pub fn gate() -> Option<usize> {
    gate_address().map(|word| word.load(Ordering::Acquire)).filter(|&gate| gate != 0)
}

/// The agent has made a gate.
pub fn set_gate(gate: usize) {
    if let Some(word) = gate_address() {
        word.store(gate, Ordering::Release);
    }
}

/// Makes that page. Called once, before any other thread exists.
pub fn establish() -> Result<(), i32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let page = sys::map(0, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
    if let Err(error) = sys::advise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) {
        let _ = sys::unmap(page, PAGE_BYTES);
        return Err(error);
    }
    PROGRESS.store(page, Ordering::Release);
    if let Some(word) = progress() {
        word.store(BEGUN, Ordering::Release);
    }
    Ok(())
}

/// Unmaps the page, where no supervisor answers.
pub fn abandon() {
    let page = PROGRESS.swap(0, Ordering::AcqRel);
    if page != 0 {
        let _ = sys::unmap(page, PAGE_BYTES);
    }
}

/// Whether this thread is the one that begins this child.
fn claim_child() -> bool {
    progress().is_some_and(|word| {
        word.compare_exchange(0, thread::thread_id(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    })
}

/// A child that was made by a raw system call has no agent yet: no fork handler has run.
pub fn attach_if_forked() {
    let Some(word) = progress() else { return };
    let progress = word.load(Ordering::Acquire);
    if progress == BEGUN {
        return;
    }
    if progress == 0 {
        thread::learn_numbers();
    }
    if claim_child() {
        heap::forks().set(0);
        begin_child(true);
        return;
    }
    let own = thread::thread_id();
    loop {
        let beginner = word.load(Ordering::Acquire);
        // A signal handler has interrupted this thread while it began the child.
        if beginner == BEGUN || beginner == own {
            return;
        }
        if sys::futex_wait(word, beginner, RECHECK_MS) && !thread::shares_memory(beginner) {
            // It was killed: what this thread maps stays local.
            return;
        }
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
    if let Some(word) = progress() {
        word.store(BEGUN, Ordering::Release);
        sys::futex_wake(word, i32::MAX as usize);
    }
}
