//! Windows: memory of this program that others map, and theirs that this one maps.

use std::ffi::c_void;

use crate::{
    Domain, Grant, Memory, Result, Target, Window, bad_argument, fail, grants_of, hand_out_memory,
    open_failure,
};

/// As `tombolo_allocate`, memory that programs with a grant can also map (`tombolo_map_window`), at this node or at one
/// with a link over shared memory. They may all read it, and all or none of them may write it. Memory for reading only can
/// be written by nobody but this program.
///
/// # Safety
/// As for `tombolo_allocate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_allocate_window(
    domain: *const Domain,
    bytes: usize,
    grants: *const Grant,
    grant_count: usize,
    memory: *mut *mut Memory,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_allocate_window: domain is null");
    };
    if memory.is_null() || (grants.is_null() && grant_count > 0) {
        return bad_argument("tombolo_allocate_window: a pointer is null");
    }
    // SAFETY: there are as many entries as the caller promises.
    let Some(grants) = (unsafe { grants_of(grants, grant_count) }) else {
        return bad_argument("tombolo_allocate_window: a grant is for nobody");
    };
    // SAFETY: can be written, as the caller promises.
    unsafe { hand_out_memory(domain.domain.allocate_window(bytes, &grants), memory) }
}

/// Takes a window back: after `OK`, nobody else reaches the memory, and it is plain memory of the domain, with no grants, at the
/// same addresses. All that this program has written is there, also what its threads write meanwhile; a system call that
/// writes there may fail with `EFAULT`. Those who have it mapped are told by `tombolo_check_window`. No transfer of this
/// program may reach it meanwhile. After an error others may reach it still, transfers may be refused, and this can be tried again.
///
/// # Safety
/// `domain` is open, `memory` came from `tombolo_allocate_window` of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_revoke_window(domain: *const Domain, memory: *const Memory) -> Result {
    // SAFETY: null or as the caller promises.
    let (Some(domain), Some(memory)) = (unsafe { domain.as_ref() }, unsafe { memory.as_ref() }) else {
        return bad_argument("tombolo_revoke_window: domain or memory is null");
    };
    domain.domain.revoke_window(&memory.0).map_or_else(|error| open_failure(&error), |()| Result::Ok)
}

/// Maps a window of another domain, which begins there at `address`: what is loaded and stored here is loaded and stored
/// there. It stays mapped until `tombolo_unmap_window`, whatever its owner does.
///
/// # Safety
/// `domain` is open, `window` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_map_window(
    domain: *const Domain,
    of: Target,
    address: u64,
    window: *mut *mut Window,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_map_window: domain is null");
    };
    if window.is_null() {
        return bad_argument("tombolo_map_window: window is null");
    }
    match domain.domain.map_window(of.into(), address) {
        Ok(mapped) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { window.write(Box::into_raw(Box::new(Window(mapped)))) };
            Result::Ok
        }
        Err(error) => open_failure(&error),
    }
}

/// Where the window is in this program; null for null. To write there is a fault if it is for reading only.
///
/// # Safety
/// `window` is null or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_window_data(window: *const Window) -> *mut c_void {
    // SAFETY: null or mapped, as the caller promises.
    unsafe { window.as_ref() }.map_or(std::ptr::null_mut(), |window| window.0.as_mut_ptr().cast())
}

/// How many bytes the window has; 0 for null.
///
/// # Safety
/// `window` is null or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_window_length(window: *const Window) -> usize {
    // SAFETY: null or mapped, as the caller promises.
    unsafe { window.as_ref() }.map_or(0, |window| window.0.len())
}

/// Whether the window can be written.
///
/// # Safety
/// `window` is null or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_window_is_writable(window: *const Window) -> bool {
    // SAFETY: null or mapped, as the caller promises.
    unsafe { window.as_ref() }.is_some_and(|window| window.0.is_writable())
}

/// `OK`: all that was loaded from the window before came from the owner's memory, and all that was stored before is there.
/// `FAILED`: it was revoked or freed. No system call.
///
/// # Safety
/// `window` is mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_check_window(window: *const Window) -> Result {
    // SAFETY: null or mapped, as the caller promises.
    let Some(window) = (unsafe { window.as_ref() }) else {
        return bad_argument("tombolo_check_window: window is null");
    };
    window.0.check().map_or_else(|end| fail(Result::Failed, &end.to_string()), |()| Result::Ok)
}

/// Whether the node of the window's owner lives. If it was killed, `tombolo_check_window` keeps returning OK; this call finds
/// out. A system call.
///
/// # Safety
/// `window` is null or mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_window_has_owner(window: *const Window) -> bool {
    // SAFETY: null or mapped, as the caller promises.
    unsafe { window.as_ref() }.is_some_and(|window| window.0.has_owner())
}

/// Unmaps a window. Null is nothing.
///
/// # Safety
/// `window` came from `tombolo_map_window` and is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_unmap_window(window: *mut Window) {
    if !window.is_null() {
        // SAFETY: from `Box::into_raw`, and the caller's last use.
        drop(unsafe { Box::from_raw(window) });
    }
}
