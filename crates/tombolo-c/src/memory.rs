//! Memory of the node, and who else may use it.

use std::ffi::c_void;

use crate::{Domain, Grant, Memory, Result, bad_argument, grants_of, hand_out_memory, open_failure};

/// Allocates `bytes` of zeroed memory (whole pages of 4096); `grants` says what others may do with it.
///
/// # Safety
/// `domain` is open, `grants` has `grant_count` entries, `memory` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_allocate(
    domain: *const Domain,
    bytes: usize,
    grants: *const Grant,
    grant_count: usize,
    memory: *mut *mut Memory,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_allocate: domain is null");
    };
    if memory.is_null() || (grants.is_null() && grant_count > 0) {
        return bad_argument("tombolo_allocate: a pointer is null");
    }
    // SAFETY: there are as many entries as the caller promises.
    let Some(grants) = (unsafe { grants_of(grants, grant_count) }) else {
        return bad_argument("tombolo_allocate: a grant is for nobody");
    };
    // SAFETY: can be written, as the caller promises.
    unsafe { hand_out_memory(domain.domain.allocate(bytes, &grants), memory) }
}

/// Gives memory back: from now on no transfer reaches it, and its bytes are not mapped any more. The handle
/// is released whatever this returns; after `TIMED_OUT` the node frees the memory when it goes on.
///
/// # Safety
/// `domain` is open, `memory` came from `tombolo_allocate` of it and is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_free(domain: *const Domain, memory: *mut Memory) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_free: domain is null");
    };
    if memory.is_null() {
        return Result::Ok;
    }
    // SAFETY: from `Box::into_raw`, and the caller's last use.
    let memory = unsafe { Box::from_raw(memory) };
    domain.domain.free(memory.0).map_or_else(|error| open_failure(&error), |()| Result::Ok)
}

/// Where the memory is in this program; null for null. Others may change it, as far as its grants go.
///
/// # Safety
/// `memory` is null or allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_data(memory: *const Memory) -> *mut c_void {
    // SAFETY: null or allocated, as the caller promises.
    unsafe { memory.as_ref() }.map_or(std::ptr::null_mut(), |memory| memory.0.as_mut_ptr().cast())
}

/// Where the memory begins in the domain: for a `tombolo_spec`, and to tell others. 0 for null.
///
/// # Safety
/// `memory` is null or allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_address(memory: *const Memory) -> u64 {
    // SAFETY: null or allocated, as the caller promises.
    unsafe { memory.as_ref() }.map_or(0, |memory| memory.0.address())
}
