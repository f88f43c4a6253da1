//! The control area: asking the supervisor for something by a page fault.
//!
//! A request takes one of [`REQUESTS`] places, each with a page of its own, so a
//! signal handler that interrupts a request can make another one. No lock is held
//! while a thread waits.

use core::cell::{Cell, UnsafeCell};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use crate::heap;
use crate::sys::{self, call};
use tombolo_pager_protocol::{
    AREA_PAGES, ATTACH_PAGE, Answer, CONTROL_PAGES, PAGE_BYTES, REQUEST_PAGE, REQUESTS, Request,
    STAGING_PAGE, STAGING_PAGES, UNSERVED,
};

pub const GUARD_INSTALL: i32 = 102;
pub const GUARD_REMOVE: i32 = 103;

/// First address of the area; 0 while there is none.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// A bit for each place that is taken.
static TAKEN: AtomicU64 = AtomicU64::new(0);
static NUMBER: AtomicU64 = AtomicU64::new(1);

struct Places(UnsafeCell<[Request; REQUESTS]>);
// SAFETY: a place is written only by the thread that took its bit; the supervisor reads it while that
// thread waits.
unsafe impl Sync for Places {}
static PLACES: Places =
    Places(UnsafeCell::new([Request { number: 0, operation: 0, start: 0, length: 0 }; REQUESTS]));

/// Makes the area. Called once, before any other thread exists.
pub fn establish() -> Result<(), i32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let base = sys::map(0, CONTROL_PAGES * PAGE_BYTES, protection, flags, -1, 0)?;
    let _ = sys::advise(base, CONTROL_PAGES * PAGE_BYTES, libc::MADV_NOHUGEPAGE);
    BASE.store(base, Ordering::Release);
    Ok(())
}

/// Unmaps the area, where no supervisor answers.
pub fn abandon() {
    let base = BASE.swap(0, Ordering::AcqRel);
    if base != 0 {
        let _ = sys::unmap(base, CONTROL_PAGES * PAGE_BYTES);
    }
}

/// First address of the area.
pub fn base() -> usize {
    BASE.load(Ordering::Acquire)
}

/// The whole area: its first address, and its bytes.
pub fn area() -> (usize, usize) {
    (base(), CONTROL_PAGES * PAGE_BYTES)
}

/// Where the supervisor finds the requests.
pub fn requests_address() -> usize {
    PLACES.0.get() as usize
}

/// First address of the staging areas.
pub fn staging() -> usize {
    base() + STAGING_PAGE * PAGE_BYTES
}

/// Drops pages of the area; returns whether that was possible. `MADV_DONTNEED` on a registered range waits
/// until the supervisor has read an event; installing and removing guards drops pages, too, and is no event.
/// Neither works on locked memory: where the program has locked all of its own (`mlockall`), the area
/// is unlocked again.
pub fn drop_pages(first: usize, pages: usize) -> bool {
    let (start, length) = (base() + first * PAGE_BYTES, pages * PAGE_BYTES);
    let drop = || {
        if sys::advise(start, length, GUARD_INSTALL).is_ok() {
            sys::advise(start, length, GUARD_REMOVE).is_ok()
        } else {
            sys::advise(start, length, libc::MADV_DONTNEED).is_ok()
        }
    };
    let (start, length) = area();
    drop() || (sys::unlock(start, length).is_ok() && drop())
}

/// Whether the staging areas are executable, too: the kernel moves pages only between mappings of the same rights.
static IS_EXECUTABLE: AtomicBool = AtomicBool::new(false);
static MAY_NOT_TURN: AtomicBool = AtomicBool::new(false);

/// Bytes of the staging areas.
pub const STAGING_BYTES: usize = STAGING_PAGES * PAGE_BYTES;
/// The rights that staging areas have in turn.
pub const STAGING_RIGHTS: [i32; 2] =
    [libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC];

/// Makes the staging areas executable, or takes that back; returns whether that was possible.
pub fn turn_staging() -> bool {
    if MAY_NOT_TURN.load(Ordering::Relaxed) {
        return false;
    }
    let executable = !IS_EXECUTABLE.load(Ordering::Relaxed);
    let rights = STAGING_RIGHTS[usize::from(executable)] as usize;
    // SAFETY: the areas are this library's own, and what lies there is read and written by the kernel only.
    let turned = unsafe { call(libc::SYS_mprotect, [staging(), STAGING_BYTES, rights, 0, 0, 0]) }.is_ok();
    if turned {
        IS_EXECUTABLE.store(executable, Ordering::Relaxed);
    } else {
        // Somebody forbids that, and may note each attempt.
        MAY_NOT_TURN.store(true, Ordering::Relaxed);
    }
    turned
}

/// Drops what lies in the staging areas; returns whether that was possible.
pub fn clear_staging() -> bool {
    drop_pages(STAGING_PAGE, STAGING_PAGES)
}

/// Drops what lies in `count` staging areas; returns whether that was possible.
pub fn clear_areas(first: usize, count: usize) -> bool {
    drop_pages(STAGING_PAGE + first * AREA_PAGES, count * AREA_PAGES)
}

fn read_answer(page: usize) -> Answer {
    // SAFETY: the page is mapped readable, and the supervisor fills it with an answer when it is touched.
    unsafe { ptr::read_volatile((base() + page * PAGE_BYTES) as *const Answer) }
}

/// Asks for something and waits for the answer's value. `None`: not served.
pub fn ask(operation: u64, start: usize, length: usize) -> Option<u64> {
    if base() == 0 {
        return None;
    }
    let own = heap::places();
    let before = own.get();
    let place = take_place(own);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let request = PLACES.0.get().cast::<Request>().wrapping_add(place);
    // SAFETY: the place was taken by this thread; volatile, because another process reads it. The number
    // comes last: a request without one is not carried out.
    unsafe {
        ptr::write_volatile(&raw mut (*request).number, 0);
        fence(Ordering::SeqCst);
        ptr::write_volatile(&raw mut (*request).operation, operation);
        ptr::write_volatile(&raw mut (*request).start, start as u64);
        ptr::write_volatile(&raw mut (*request).length, length as u64);
        fence(Ordering::SeqCst);
        ptr::write_volatile(&raw mut (*request).number, number);
    }
    fence(Ordering::SeqCst);
    let answer = loop {
        let answer = read_answer(REQUEST_PAGE + place);
        // The next request at this place must fault again; so must this one, if the page answers an earlier
        // request, whose fault was reported twice, or if it was filled before there was a request
        // ([`NO_REQUEST`]).
        let is_dropped = drop_pages(REQUEST_PAGE + place, 1);
        if answer.number == number || answer.number == 0 {
            break answer;
        }
        if !is_dropped {
            // It would be read for ever.
            break Answer::default();
        }
    };
    TAKEN.fetch_and(!(1 << place), Ordering::Release);
    own.set(before);
    (answer.served == 1).then_some(answer.value)
}

/// What of a program's path is told.
pub const UNSERVED_PATH_BYTES: usize = 1024;

struct UnservedPath(UnsafeCell<[u8; UNSERVED_PATH_BYTES]>);
// SAFETY: written only by the thread that has set IS_TELLING; the supervisor reads it while that thread waits.
unsafe impl Sync for UnservedPath {}
static UNSERVED_PATH: UnservedPath = UnservedPath(UnsafeCell::new([0; UNSERVED_PATH_BYTES]));
static IS_TELLING: AtomicBool = AtomicBool::new(false);

/// Tells the supervisor of a program that is about to be executed and cannot be served, unless another thread is doing that. The path is copied
/// to where no far memory is: the supervisor would wait for itself.
pub fn tell_unserved(reason: usize, path: &[u8]) {
    if IS_TELLING.swap(true, Ordering::Acquire) {
        ask(UNSERVED, 0, reason);
        return;
    }
    let target = UNSERVED_PATH.0.get().cast::<u8>();
    let length = path.len().min(UNSERVED_PATH_BYTES - 1);
    for (at, &byte) in path.iter().take(length).chain([&0]).enumerate() {
        // SAFETY: within the array, which this thread has taken; volatile, because another process reads it.
        unsafe { ptr::write_volatile(target.wrapping_add(at), byte) };
    }
    ask(UNSERVED, target as usize, reason);
    IS_TELLING.store(false, Ordering::Release);
}

/// `own`: the places that this thread has, which a child keeps that a signal handler forks while it waits.
fn take_place(own: &Cell<u64>) -> usize {
    let before = own.get();
    loop {
        let taken = TAKEN.load(Ordering::Relaxed);
        let place = (!taken).trailing_zeros() as usize;
        if place >= REQUESTS {
            // All in use by other threads, each for some microseconds.
            // SAFETY: sched_yield(2) takes nothing.
            let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
            continue;
        }
        let bit = 1 << place;
        own.set(before | bit);
        if TAKEN.compare_exchange(taken, taken | bit, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return place;
        }
    }
}

/// In a forked child: the requests of the parent's other threads do not exist here. Those of this thread do: a signal handler may have
/// forked, and return into one of them.
/// Returns the token that the child's agent names.
pub fn attach() -> Option<u64> {
    TAKEN.store(heap::places().get(), Ordering::Relaxed);
    IS_TELLING.store(false, Ordering::Relaxed);
    // The staging areas, too: what the parent's agent was moving is no concern of this process, and nobody counts it.
    drop_pages(ATTACH_PAGE, CONTROL_PAGES - ATTACH_PAGE);
    let answer = read_answer(ATTACH_PAGE);
    (answer.served == 1).then_some(answer.value)
}
