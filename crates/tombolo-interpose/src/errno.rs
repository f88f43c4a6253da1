//! `errno`, and what functions return that set it.

use crate::sys::Result;

/// Sets `errno` and returns -1 or the value, as libc's wrappers do.
pub fn with_errno(result: Result) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(code) => {
            set_errno(code);
            -1
        }
    }
}

/// That of this thread.
pub fn errno() -> i32 {
    // SAFETY: __errno_location returns this thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Sets that of this thread.
pub fn set_errno(code: i32) {
    // SAFETY: __errno_location returns this thread's own errno.
    unsafe { *libc::__errno_location() = code };
}
