//! `mmap` and its family: large anonymous private mappings come from the arena.
//!
//! A mapping inside the arena is never unmapped for the kernel, or it would
//! lose its registration: it is discarded at the supervisor, dropped, made
//! inaccessible, and its address space given out again.

use libc::{c_int, c_void, off_t, size_t};

use crate::protocol::{DISCARD, PAGE_BYTES};
use crate::sys::{self, set_errno, with_errno};
use crate::{arena, doorbell, start};

const UNFIT: c_int = libc::MAP_SHARED
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB
    | libc::MAP_LOCKED
    | libc::MAP_STACK
    | libc::MAP_32BIT;

fn round_up(length: usize) -> Option<usize> {
    length.checked_next_multiple_of(PAGE_BYTES)
}

/// The contents of a range are not wanted any more: it reads as zero from now on.
fn discard(address: usize, length: usize) -> sys::Result {
    doorbell::ring(DISCARD, address, length).ok_or(libc::ENOMEM)?;
    sys::madvise(address, length, libc::MADV_DONTNEED)
}

fn as_pointer(result: sys::Result) -> *mut c_void {
    with_errno(result) as *mut c_void
}

/// Address space for a new far mapping, accessible as asked.
fn map_far(length: usize, protection: c_int) -> Option<usize> {
    let address = arena::take(length)?;
    if protection != libc::PROT_NONE && sys::mprotect(address, length, protection).is_err() {
        arena::give_back(address, length);
        return None;
    }
    Some(address)
}

#[unsafe(no_mangle)]
pub extern "C" fn mmap(
    hint: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let anonymous = flags & (ANONYMOUS | libc::MAP_SHARED) == ANONYMOUS;
    if anonymous && flags & UNFIT == 0 && protection & libc::PROT_EXEC == 0 && start::wants(length) {
        if let Some(address) = round_up(length).and_then(|length| map_far(length, protection)) {
            return address as *mut c_void;
        }
    } else if flags & libc::MAP_FIXED != 0
        && let Some((start, inside)) =
            round_up(length).and_then(|length| arena::intersection(hint as usize, length))
    {
        // The program replaces what it has mapped. Fresh anonymous memory there stays far.
        if discard(start, inside).is_err() {
            set_errno(libc::ENOMEM);
            return libc::MAP_FAILED;
        }
        if anonymous && (start, Some(inside)) == (hint as usize, round_up(length)) {
            return match sys::mprotect(start, inside, protection) {
                Ok(_) => hint,
                Err(error) => as_pointer(Err(error)),
            };
        }
    }
    as_pointer(sys::mmap(hint as usize, length, protection, flags, descriptor, offset))
}

#[unsafe(no_mangle)]
pub extern "C" fn mmap64(
    hint: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    mmap(hint, length, protection, flags, descriptor, offset)
}

#[unsafe(no_mangle)]
pub extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    let start = address as usize;
    let Some((inside, bytes)) = round_up(length).and_then(|length| arena::intersection(start, length)) else {
        return with_errno(sys::munmap(start, length)) as c_int;
    };
    if !start.is_multiple_of(PAGE_BYTES) || length == 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    if start < inside {
        let _ = sys::munmap(start, inside - start);
    }
    let (end, inside_end) = (start + length, inside + bytes);
    if end > inside_end {
        let _ = sys::munmap(inside_end, end - inside_end);
    }
    let released = discard(inside, bytes).and_then(|_| sys::mprotect(inside, bytes, libc::PROT_NONE));
    if released.is_ok() {
        arena::give_back(inside, bytes);
    }
    with_errno(released.map(|_| 0)) as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn madvise(address: *mut c_void, length: size_t, advice: c_int) -> c_int {
    let start = address as usize;
    if let Some((inside, bytes)) = round_up(length).and_then(|length| arena::intersection(start, length)) {
        match advice {
            // FREE may drop at any time; at once is one of them.
            libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED | libc::MADV_FREE
                if start.is_multiple_of(PAGE_BYTES) =>
            {
                let dropped = discard(inside, bytes).map(|_| 0);
                return with_errno(dropped) as c_int;
            }
            // Transparent huge pages would be split at every eviction.
            libc::MADV_HUGEPAGE | libc::MADV_COLLAPSE => return 0,
            // A child's pages come from its parent's table, contents and all: who
            // relies on a wipe must hear that there is none.
            libc::MADV_WIPEONFORK => {
                set_errno(libc::EINVAL);
                return -1;
            }
            // Advice about the kernel's own reclaim.
            libc::MADV_COLD | libc::MADV_PAGEOUT => return 0,
            _ => {}
        }
    }
    with_errno(sys::madvise(start, length, advice)) as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn posix_madvise(address: *mut c_void, length: size_t, advice: c_int) -> c_int {
    // POSIX_MADV_DONTNEED must not lose data: as in libc, it does nothing.
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    sys::madvise(address as usize, length, advice).err().unwrap_or(0)
}

/// Far memory cannot be locked: that is what makes it far. Said as the kernel
/// says it when it could not lock everything.
fn refuse_lock() -> c_int {
    set_errno(libc::EAGAIN);
    -1
}

fn is_far(address: *const c_void, length: size_t) -> bool {
    round_up(length).is_some_and(|length| arena::intersection(address as usize, length).is_some())
}

#[unsafe(no_mangle)]
pub extern "C" fn mlock(address: *const c_void, length: size_t) -> c_int {
    mlock2(address, length, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn mlock2(address: *const c_void, length: size_t, flags: libc::c_uint) -> c_int {
    if is_far(address, length) {
        return refuse_lock();
    }
    // SAFETY: locking does not change what memory holds.
    let locked = unsafe { sys::call(libc::SYS_mlock2, [address as usize, length, flags as usize, 0, 0, 0]) };
    with_errno(locked) as c_int
}

#[unsafe(no_mangle)]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    if start::far() {
        return refuse_lock();
    }
    // SAFETY: as for mlock2.
    with_errno(unsafe { sys::call(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) }) as c_int
}

/// The variadic fifth argument arrives in its register whether it was passed or not.
#[unsafe(no_mangle)]
pub extern "C" fn mremap(
    address: *mut c_void,
    old_length: size_t,
    new_length: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let start = address as usize;
    let far = round_up(old_length.max(1)).and_then(|length| arena::intersection(start, length)).is_some();
    let onto_far = flags & libc::MREMAP_FIXED != 0
        && round_up(new_length).and_then(|length| arena::intersection(target as usize, length)).is_some();
    if !far && !onto_far {
        return as_pointer(sys::mremap(start, old_length, new_length, flags, target as usize));
    }
    as_pointer(remap_far(start, old_length, new_length, flags, target as usize))
}

fn remap_far(start: usize, old_length: usize, new_length: usize, flags: c_int, target: usize) -> sys::Result {
    let old = round_up(old_length).ok_or(libc::EINVAL)?;
    let new = round_up(new_length).filter(|&new| new > 0).ok_or(libc::EINVAL)?;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let keep_old = flags & libc::MREMAP_DONTUNMAP != 0;
    // A zero old length duplicates a *shared* mapping, which far memory never is.
    if !start.is_multiple_of(PAGE_BYTES) || old == 0 || (keep_old && new != old) {
        return Err(libc::EINVAL);
    }
    if !fixed && !keep_old {
        if new <= old {
            if new < old && munmap((start + new) as *mut c_void, old - new) != 0 {
                return Err(libc::ENOMEM);
            }
            return Ok(start);
        }
        if arena::take_at(start + old, new - old) {
            let grown = sys::mprotect(start + old, new - old, libc::PROT_READ | libc::PROT_WRITE);
            if grown.is_ok() {
                return Ok(start);
            }
            arena::give_back(start + old, new - old);
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            return Err(libc::ENOMEM);
        }
    }
    let moved = if fixed {
        if !target.is_multiple_of(PAGE_BYTES) || (target < start + old && start < target + new) {
            return Err(libc::EINVAL);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let mapped = mmap(target as *mut c_void, new, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if mapped == libc::MAP_FAILED {
            return Err(libc::ENOMEM);
        }
        target
    } else {
        map_far(new, libc::PROT_READ | libc::PROT_WRITE).ok_or(libc::ENOMEM)?
    };
    // SAFETY: both ranges are mapped, the new one is fresh, and they do not overlap.
    unsafe { core::ptr::copy_nonoverlapping(start as *const u8, moved as *mut u8, old.min(new)) };
    if keep_old {
        discard(start, old)?;
    } else if munmap(start as *mut c_void, old) != 0 {
        return Err(libc::ENOMEM);
    }
    Ok(moved)
}
