//! `malloc` and its family, over mimalloc, whose memory comes from our `mmap`. What programs expect of glibc's holds: each block
//! is aligned to 16 bytes, `realloc` to nothing frees, and `free` keeps `errno`.
//!
//! Each exported symbol (`no_mangle`) has the name, the arguments and the meaning of libc's, which it takes the place of.

use core::cell::Cell;

use libc::{c_int, c_void, size_t};
use libmimalloc_sys as mi;

use tombolo_interpose::errno::{errno, set_errno};

// SAFETY: declared as the headers of the allocator have them.
unsafe extern "C" {
    // See fork.c.
    fn tombolo_forks() -> *mut u64;
    fn tombolo_places() -> *mut u64;
    fn tombolo_heap_before_fork() -> bool;
    fn tombolo_heap_after_fork();
    fn tombolo_heap_in_child(had_threads: bool);
    fn tombolo_has_threads() -> bool;
}

/// This thread's forks under way; see `forking`.
pub fn forks() -> &'static Cell<u64> {
    // SAFETY: thread-local, so that nobody else changes it; it lives as long as the thread, which alone uses the
    // reference.
    unsafe { Cell::from_mut(&mut *tombolo_forks()) }
}

/// This thread's requests under way; see `control`.
pub fn places() -> &'static Cell<u64> {
    // SAFETY: as in `forks`.
    unsafe { Cell::from_mut(&mut *tombolo_places()) }
}

/// Whether the process has, or had, more than one thread.
pub fn has_threads() -> bool {
    // SAFETY: no precondition.
    unsafe { tombolo_has_threads() }
}

/// Takes the heap's lock, which a fork holds; `false`: it cannot be had.
pub fn before_fork() -> bool {
    // SAFETY: no precondition.
    unsafe { tombolo_heap_before_fork() }
}

/// Releases what [`before_fork`] took.
pub fn after_fork() {
    // SAFETY: this thread holds it.
    unsafe { tombolo_heap_after_fork() }
}

/// Ends in a child what the parent's other threads were in the middle of.
pub fn in_child(parent_had_threads: bool) {
    // SAFETY: the child has no other thread yet.
    unsafe { tombolo_heap_in_child(parent_had_threads) }
}

/// As of glibc's `malloc`, and of what C has as the strictest type.
const ALIGNMENT: size_t = 16;
/// mimalloc aligns blocks of 9 bytes or more to 16, and smaller ones to 8.
const SIZE_LEAST: size_t = 9;

#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: size_t) -> *mut c_void {
    // SAFETY: no precondition.
    or_no_memory(unsafe { mi::mi_malloc(size.max(SIZE_LEAST)) })
}

#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else {
        set_errno(libc::ENOMEM);
        return core::ptr::null_mut();
    };
    // SAFETY: no precondition.
    or_no_memory(unsafe { mi::mi_zalloc(bytes.max(SIZE_LEAST)) })
}

/// # Safety
///
/// As POSIX says: `block` is null or came from this family and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: size_t) -> *mut c_void {
    if size == 0 && !block.is_null() {
        // SAFETY: the caller's promise.
        unsafe { free(block) };
        return core::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    or_no_memory(unsafe { mi::mi_realloc(block, size.max(SIZE_LEAST)) })
}

/// # Safety
///
/// As for [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: size_t, size: size_t) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else {
        set_errno(libc::ENOMEM);
        return core::ptr::null_mut();
    };
    // SAFETY: the caller's promise.
    unsafe { realloc(block, bytes) }
}

/// # Safety
///
/// As for [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // Memory that goes back to the kernel may be locked, which the kernel refuses.
    let before = errno();
    // SAFETY: the caller's promise.
    unsafe { mi::mi_free(block) };
    set_errno(before);
}

/// # Safety
///
/// As for [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *const c_void) -> size_t {
    // SAFETY: the caller's promise.
    unsafe { mi::mi_usable_size(block) }
}

fn aligned(alignment: size_t, size: size_t) -> *mut c_void {
    if !alignment.is_power_of_two() {
        set_errno(libc::EINVAL);
        return core::ptr::null_mut();
    }
    // SAFETY: the alignment is a power of two.
    or_no_memory(unsafe { mi::mi_malloc_aligned(size.max(SIZE_LEAST), alignment.max(ALIGNMENT)) })
}

#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: size_t, size: size_t) -> *mut c_void {
    aligned(alignment.checked_next_power_of_two().unwrap_or(0), size)
}

#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: size_t, size: size_t) -> *mut c_void {
    aligned(alignment, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: size_t) -> *mut c_void {
    aligned(4096, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: size_t) -> *mut c_void {
    aligned(4096, size.checked_next_multiple_of(4096).unwrap_or(size))
}

/// # Safety
///
/// As POSIX says: `block` points to where the address goes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(block: *mut *mut c_void, alignment: size_t, size: size_t) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: the alignment is a power of two.
    let made = unsafe { mi::mi_malloc_aligned(size.max(SIZE_LEAST), alignment.max(ALIGNMENT)) };
    if made.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *block = made };
    0
}

fn or_no_memory(block: *mut c_void) -> *mut c_void {
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block
}
