//! Memory that the kernel accesses without waiting for a page that is far. It is made local.
//!
//! - When a thread ends, the kernel clears a word of libc's on the thread's stack, and marks the robust mutexes that the thread holds.
//!   Where their pages are far it does neither, and whoever joins the thread or waits for such a mutex waits for ever.
//!   Stacks that libc makes are local anyway.
//! - Locking and unlocking a mutex that inherits priorities is done under the kernel's own locks, and fails (`EFAULT`).

use core::ffi::c_void;

use libc::{c_int, pthread_attr_t, pthread_mutex_t, pthread_mutexattr_t, pthread_t};

use crate::{control, memory, start};
use tombolo_interpose::real::Real;
use tombolo_pager_protocol::PAGE_BYTES;

static CREATE: Real = Real::new(c"pthread_create");
static MUTEX_INIT: Real = Real::new(c"pthread_mutex_init");

type Create = unsafe extern "C" fn(
    *mut pthread_t,
    *const pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;
type MutexInit = unsafe extern "C" fn(*mut pthread_mutex_t, *const pthread_mutexattr_t) -> c_int;

// SAFETY: declared as POSIX has it; the libc crate leaves it out.
unsafe extern "C" {
    fn pthread_attr_getstack(
        attributes: *const pthread_attr_t,
        address: *mut *mut c_void,
        bytes: *mut usize,
    ) -> c_int;
}

/// Looked up while the library is loaded.
pub fn find_real_functions() {
    CREATE.address();
    MUTEX_INIT.address();
}

/// How much is made local around a mutex or a stack's end: each local range is a mapping of its own, and the kernel lets a process
/// have some 65,000.
const CHUNK_BYTES: usize = 16 * PAGE_BYTES;

/// Makes the pages local in which these bytes lie, and those around them. Where that is not possible (no mapping is left, or a lender is
/// silent for long), they stay as they are: mostly they are there when the kernel comes.
fn keep(start: usize, end: usize) {
    let around = |bytes: usize| (start & !(bytes - 1), end.next_multiple_of(bytes));
    let make_local = |(first, end): (usize, usize)| memory::localise(first, end - first).is_ok();
    let (first, last) = around(CHUNK_BYTES);
    // What this library has for itself is registered, too, and stays so.
    let (own, own_length) = control::area();
    let own = own..own + own_length;
    let is_beside_it = first < own.end && own.start < last;
    // The pages themselves were just accessed.
    if is_beside_it || !make_local((first, last)) {
        make_local(around(PAGE_BYTES));
    }
}

/// libc has its structure of a thread at the end of a stack that it is given: 2304 bytes, and what aligning takes.
const THREAD_BYTES: usize = PAGE_BYTES;

/// # Safety
///
/// As POSIX says, here and below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    routine: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    let real = CREATE.address();
    if real == 0 {
        return libc::ENOSYS;
    }
    if !attributes.is_null() && start::far() {
        let (mut address, mut bytes) = (core::ptr::null_mut(), 0);
        // SAFETY: the caller's promise; the other pointers are of this function.
        let found = unsafe { pthread_attr_getstack(attributes, &raw mut address, &raw mut bytes) };
        // Without a stack of its own, libc says that it ends at 0.
        let end = (address as usize).wrapping_add(bytes);
        if found == 0 && end > THREAD_BYTES {
            for at in [end - THREAD_BYTES, end - 1] {
                // It waits for a page as any access does, and longer than a request may.
                // SAFETY: the caller's promise: the stack is the new thread's.
                unsafe { core::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
            }
            keep(end - THREAD_BYTES, end);
        }
    }
    // SAFETY: the caller's promise; the address is libc's function of that name.
    unsafe { core::mem::transmute::<usize, Create>(real)(thread, attributes, routine, argument) }
}

/// # Safety
///
/// See [`pthread_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut pthread_mutex_t,
    attributes: *const pthread_mutexattr_t,
) -> c_int {
    let real = MUTEX_INIT.address();
    if real == 0 {
        return libc::ENOSYS;
    }
    let (mut robustness, mut protocol) = (libc::PTHREAD_MUTEX_STALLED, libc::PTHREAD_PRIO_NONE);
    if !attributes.is_null() {
        // SAFETY: the caller's promise; the other pointers are of this function.
        unsafe {
            libc::pthread_mutexattr_getrobust(attributes, &raw mut robustness);
            libc::pthread_mutexattr_getprotocol(attributes, &raw mut protocol);
        }
    }
    // SAFETY: the caller's promise; the address is libc's function of that name. It brings the page in.
    let result = unsafe { core::mem::transmute::<usize, MutexInit>(real)(mutex, attributes) };
    let address = mutex as usize;
    if (robustness == libc::PTHREAD_MUTEX_ROBUST || protocol == libc::PTHREAD_PRIO_INHERIT) && start::far() {
        keep(address, address + size_of::<pthread_mutex_t>());
    }
    result
}
