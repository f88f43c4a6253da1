//! Raw system calls: no `errno`, no thread-local storage, no interposed names.
//!
//! So they can be made where libc is not ready yet, and by a process that libc does not know and that has the thread pointer of the
//! thread that has made it.

use core::arch::asm;
use core::sync::atomic::AtomicU32;

/// Size of a page.
pub const PAGE_BYTES: usize = 4096;

/// The result of a system call: a value, or a positive error number.
pub type Result = core::result::Result<usize, i32>;

/// Makes a system call.
///
/// # Safety
///
/// As the system call itself: every address passed must be good for what the
/// kernel does with it.
#[inline]
pub unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> Result {
    let mut result = number as isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the Linux x86-64 convention; rcx and r11 are clobbered by the instruction.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) { Err(-result as i32) } else { Ok(result as usize) }
}

/// `mmap`.
pub fn map(
    address: usize,
    length: usize,
    protection: i32,
    flags: i32,
    descriptor: i32,
    offset: i64,
) -> Result {
    let arguments =
        [address, length, protection as usize, flags as usize, descriptor as isize as usize, offset as usize];
    // SAFETY: what a program may pass to mmap(2) is the program's business.
    unsafe { call(libc::SYS_mmap, arguments) }
}

/// `munmap`.
pub fn unmap(address: usize, length: usize) -> Result {
    // SAFETY: as for mmap.
    unsafe { call(libc::SYS_munmap, [address, length, 0, 0, 0, 0]) }
}

/// `madvise`.
pub fn advise(address: usize, length: usize, advice: i32) -> Result {
    // SAFETY: as for mmap.
    unsafe { call(libc::SYS_madvise, [address, length, advice as usize, 0, 0, 0]) }
}

/// Reads words of this process, at an address that may be anything.
pub fn read_own(address: usize, words: &mut [usize]) -> core::result::Result<(), i32> {
    let bytes = size_of_val(words);
    let (to, from) = ([words.as_mut_ptr() as usize, bytes], [address, bytes]);
    // SAFETY: getpid takes nothing, and the other call writes as many bytes as the slice has.
    unsafe {
        let own = call(libc::SYS_getpid, [0; 6])?;
        let arguments = [own, to.as_ptr() as usize, 1, from.as_ptr() as usize, 1, 0];
        match call(libc::SYS_process_vm_readv, arguments)? {
            read if read == bytes => Ok(()),
            _ => Err(libc::EFAULT),
        }
    }
}

/// Sleeps while `*word == value`, at most that long (or wakes spuriously). Returns whether the time is over.
pub fn futex_wait(word: &AtomicU32, value: u32, limit_ms: i64) -> bool {
    let address = core::ptr::from_ref(word) as usize;
    let time = libc::timespec { tv_sec: limit_ms / 1000, tv_nsec: limit_ms % 1000 * 1_000_000 };
    let arguments =
        [address, libc::FUTEX_WAIT as usize, value as usize, core::ptr::from_ref(&time) as usize, 0, 0];
    // SAFETY: the word and the time outlive the call; the kernel only reads them.
    unsafe { call(libc::SYS_futex, arguments) == Err(libc::ETIMEDOUT) }
}

/// Wakes `count` sleepers.
pub fn futex_wake(word: &AtomicU32, count: usize) {
    let address = core::ptr::from_ref(word) as usize;
    // SAFETY: FUTEX_WAKE does not access memory.
    let _ = unsafe { call(libc::SYS_futex, [address, libc::FUTEX_WAKE as usize, count, 0, 0, 0]) };
}

/// Sleeps for this time, or until a signal has been handled.
pub fn sleep_us(microseconds: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: microseconds * 1000 };
    // SAFETY: the time outlives the call; no remainder is asked for.
    let _ = unsafe { call(libc::SYS_nanosleep, [core::ptr::from_ref(&time) as usize, 0, 0, 0, 0, 0]) };
}

/// Blocks or unblocks all signals of this thread: returns the old mask.
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    let (new, previous) = (core::ptr::from_ref(&mask) as usize, core::ptr::from_mut(&mut old) as usize);
    // SAFETY: both masks are 8 bytes, as the kernel's sigset_t.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, new, previous, 8, 0, 0]) };
    old
}

/// Copies bytes of this process, from an address that may be anything; how many there were.
pub fn read_bytes(address: usize, bytes: &mut [u8]) -> Result {
    // SAFETY: it writes as many bytes as the slice has.
    unsafe { copy_own(libc::SYS_process_vm_readv, bytes.as_mut_ptr() as usize, address, bytes.len()) }
}

/// Copies bytes to an address of this process that may be anything; how many could be written there.
///
/// # Safety
///
/// What lies there is the caller's to change.
pub unsafe fn write_bytes(address: usize, bytes: &[u8]) -> Result {
    // SAFETY: it reads the slice; the rest is the caller's promise.
    unsafe { copy_own(libc::SYS_process_vm_writev, bytes.as_ptr() as usize, address, bytes.len()) }
}

/// # Safety
///
/// `own` is good for what the call does with it.
unsafe fn copy_own(number: libc::c_long, own: usize, address: usize, bytes: usize) -> Result {
    let (here, there) = ([own, bytes], [address, bytes]);
    // SAFETY: getpid takes nothing; the rest is the caller's promise.
    unsafe {
        let process = call(libc::SYS_getpid, [0; 6])?;
        call(number, [process, here.as_ptr() as usize, 1, there.as_ptr() as usize, 1, 0])
    }
}
