//! Asking the supervisor for something: one page fault, no descriptor.

use core::cell::UnsafeCell;
use core::ptr;

use crate::lock::Lock;
use crate::protocol::{Answer, PAGE_BYTES, Request};
use crate::{arena, sys};

/// One request at a time; held across fork.
pub static LOCK: Lock = Lock::new();

struct Shared(UnsafeCell<Request>);
// SAFETY: written under LOCK only; the supervisor reads it while the writer waits.
unsafe impl Sync for Shared {}
static REQUEST: Shared = Shared(UnsafeCell::new(Request { operation: 0, start: 0, length: 0 }));

/// Where the supervisor finds the request.
pub fn request_address() -> usize {
    REQUEST.0.get() as usize
}

/// Sends a request and waits for the answer's value. `None`: not served.
pub fn ring(operation: u64, start: usize, length: usize) -> Option<u64> {
    let guard = LOCK.lock();
    let page = arena::base();
    // SAFETY: LOCK is held; volatile, because another process reads it.
    unsafe {
        ptr::write_volatile(
            REQUEST.0.get(),
            Request { operation, start: start as u64, length: length as u64 },
        );
    }
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    // SAFETY: the doorbell page is mapped readable and the supervisor fills it
    // with an answer when it is touched.
    let answer = unsafe { ptr::read_volatile(page as *const Answer) };
    // The next ring must fault again.
    let _ = sys::madvise(page, PAGE_BYTES, libc::MADV_DONTNEED);
    drop(guard);
    (answer.served == 1).then_some(answer.value)
}
