//! Raw system calls that the pager's library alone makes, beside those of [`tombolo_interpose::sys`], whose rules hold here, too.

use core::arch::asm;
use core::sync::atomic::AtomicU32;

pub use tombolo_interpose::sys::*;

/// Starts `entry` in a new process that shares memory with this one and nothing
/// else: no descriptors, no signal handlers, no thread group. Its end sends no signal,
/// and `wait(2)` without `__WCLONE` or `__WALL` does not see it. No tracer of this process becomes one of it.
/// `number` holds its process id from before `entry` runs until it has ended, and is zero then.
///
/// # Safety
///
/// `stack_top` must end a writable stack that nothing else uses, and `entry`
/// must follow this module's rules for code without thread-local storage.
pub unsafe fn spawn(stack_top: usize, entry: extern "C" fn() -> !, number: &'static AtomicU32) -> Result {
    let flags =
        libc::CLONE_VM | libc::CLONE_UNTRACED | libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_CLEARTID;
    let number = number.as_ptr() as usize;
    let mut result = libc::SYS_clone as isize;
    // SAFETY: the child starts on its own stack, aligned as the ABI wants before
    // a call, calls `entry`, and never comes back; the parent falls through. The kernel
    // writes the static word only.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") result,
            in("rdi") flags as usize,
            in("rsi") stack_top & !15,
            in("rdx") number, in("r10") number, in("r8") 0usize,
            in("r12") entry as usize,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    if result < 0 { Err(-result as i32) } else { Ok(result as usize) }
}

pub fn unlock(address: usize, length: usize) -> Result {
    // SAFETY: munlock(2) changes no contents.
    unsafe { call(libc::SYS_munlock, [address, length, 0, 0, 0, 0]) }
}

/// `PR_SET_MEMORY_MERGE`.
pub const SET_MEMORY_MERGE: i32 = 67;

/// The kernel merges no pages of this process with equal ones, from now on.
pub fn merge_no_memory() {
    // SAFETY: changes nothing that this process can see, but that its pages are its own. A kernel that does not merge refuses.
    let _ = unsafe { call(libc::SYS_prctl, [SET_MEMORY_MERGE as usize, 0, 0, 0, 0, 0]) };
}

/// Whether something is mapped everywhere in a range of whole pages.
pub fn is_mapped(address: usize, length: usize) -> bool {
    const PAGES: usize = 1024;
    const BYTES: usize = PAGES * PAGE_BYTES;
    let mut pages = [0_u8; PAGES];
    (0..length).step_by(BYTES).all(|offset| {
        let bytes = BYTES.min(length - offset);
        // SAFETY: the buffer has a byte for each page.
        unsafe { call(libc::SYS_mincore, [address + offset, bytes, pages.as_mut_ptr() as usize, 0, 0, 0]) }
            .is_ok()
    })
}

pub fn remap(address: usize, old: usize, new: usize, flags: i32, target: usize) -> Result {
    // SAFETY: as for mmap.
    unsafe { call(libc::SYS_mremap, [address, old, new, flags as usize, target, 0]) }
}

/// Processor time that a thread of this process has used; 0 where that cannot be said.
pub fn processor_time_ns(thread: u32) -> i64 {
    // As pthread_getcpuclockid(3) makes it: a clock of a thread, of what the scheduler has counted.
    const OF_A_THREAD: i32 = 4;
    const SCHEDULED: i32 = 2;
    let clock = !(thread as i32) << 3 | OF_A_THREAD | SCHEDULED;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let pointer = core::ptr::from_mut(&mut time) as usize;
    // SAFETY: the kernel fills the time.
    if unsafe { call(libc::SYS_clock_gettime, [clock as isize as usize, pointer, 0, 0, 0, 0]) }.is_err() {
        return 0;
    }
    // SAFETY: the kernel has written it; the compiler does not know.
    let time = unsafe { core::ptr::read_volatile(&raw const time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
