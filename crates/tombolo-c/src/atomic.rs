//! Atomic operations on words of other domains.

use std::time::Duration;

use tombolo_client::PostError;

use crate::{Domain, Result, Started, Target, Transfer, bad_argument, hand_out, wait_failure};

// SAFETY: whoever calls passes a domain that is null or valid, and a place for the transfer that is null or writable.
unsafe fn change(
    domain: *const Domain,
    transfer: *mut *mut Transfer,
    post: impl FnOnce(&tombolo_client::Domain) -> std::result::Result<tombolo_client::Atomic, PostError>,
) -> Result {
    // SAFETY: null or valid, as the callers' callers promise.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("an atomic operation without a domain");
    };
    if transfer.is_null() {
        return bad_argument("an atomic operation without a place for its handle");
    }
    // SAFETY: can be written, as the callers' callers promise.
    unsafe { hand_out(post(&domain.domain).map(Started::Atomic), transfer) }
}

/// Starts adding to the word of 8 bytes at an address (a multiple of 8) of the target. It is carried out
/// once, atomically with other such operations and with atomic instructions of the programs there;
/// overflow wraps. The memory must be granted for reading and writing.
///
/// # Safety
/// `domain` is open, `transfer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_fetch_add(
    domain: *const Domain,
    target: Target,
    address: u64,
    operand: u64,
    transfer: *mut *mut Transfer,
) -> Result {
    // SAFETY: as the caller promises.
    unsafe { change(domain, transfer, |domain| domain.fetch_add(target.into(), address, operand)) }
}

/// As `tombolo_fetch_add`: puts `swap` there if `compare` is there.
///
/// # Safety
/// `domain` is open, `transfer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_compare_swap(
    domain: *const Domain,
    target: Target,
    address: u64,
    compare: u64,
    swap: u64,
    transfer: *mut *mut Transfer,
) -> Result {
    let post = |domain: &tombolo_client::Domain| domain.compare_swap(target.into(), address, compare, swap);
    // SAFETY: as the caller promises.
    unsafe { change(domain, transfer, post) }
}

/// Waits, as `tombolo_wait`, for the end of an atomic operation, and says what the word was before.
///
/// # Safety
/// `transfer` is null or not released, `before` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_wait_word(
    transfer: *const Transfer,
    milliseconds: u32,
    before: *mut u64,
) -> Result {
    // SAFETY: null or not released, as the caller promises.
    let Some(Transfer(Started::Atomic(atomic))) = (unsafe { transfer.as_ref() }) else {
        return bad_argument("tombolo_wait_word: transfer is null, or no atomic operation");
    };
    if before.is_null() {
        return bad_argument("tombolo_wait_word: before is null");
    }
    match atomic.wait(Duration::from_millis(milliseconds.into())) {
        Ok(word) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { before.write(word) };
            Result::Ok
        }
        Err(error) => wait_failure(error),
    }
}
