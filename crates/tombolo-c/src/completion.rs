//! How far a transfer is, waiting for its end, and its release.

use std::time::Duration;

use crate::{Result, Started, Status, Transfer, bad_argument, wait_failure};

/// How far a transfer is. No system call, but one some ten times a second that finds out whether the
/// node is gone: then a transfer that has not ended is finished with error, and `tombolo_wait` says
/// `NODE_GONE`. Null is finished with error.
///
/// # Safety
/// `transfer` is null or not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_poll(transfer: *const Transfer) -> Status {
    // SAFETY: null or not released, as the caller promises.
    match unsafe { transfer.as_ref() }.map(|transfer| transfer.0.status()) {
        Some(tombolo_client::Status::Finished) => Status::Finished,
        Some(tombolo_client::Status::Ongoing) => Status::Ongoing,
        Some(tombolo_client::Status::Paused) => Status::Paused,
        Some(tombolo_client::Status::FinishedWithError(_)) | None => Status::FinishedWithError,
    }
}

/// Waits for the end of a transfer, at most this many milliseconds: polls for a moment, then sleeps. It
/// may be called again after `TIMED_OUT`.
///
/// # Safety
/// `transfer` is null or not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_wait(transfer: *const Transfer, milliseconds: u32) -> Result {
    // SAFETY: null or not released, as the caller promises.
    let Some(transfer) = (unsafe { transfer.as_ref() }) else {
        return bad_argument("tombolo_wait: transfer is null");
    };
    let timeout = Duration::from_millis(milliseconds.into());
    let ended = match &transfer.0 {
        Started::Plain(plain) => plain.wait(timeout),
        Started::Atomic(atomic) => atomic.wait(timeout).map(|_| ()),
    };
    ended.map_or_else(wait_failure, |()| Result::Ok)
}

/// Releases a transfer's handle; one that is on its way goes on. Null is nothing.
///
/// # Safety
/// `transfer` came from a function that starts one and is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_release(transfer: *mut Transfer) {
    if !transfer.is_null() {
        // SAFETY: from `Box::into_raw`, and the caller's last use.
        drop(unsafe { Box::from_raw(transfer) });
    }
}
