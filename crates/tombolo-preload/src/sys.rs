//! Raw system calls: no `errno`, no thread-local storage, no interposed names.
//!
//! None has the name of a function of libc's: a debugger that is told to call that would take it for that, and write its result
//! into the program's memory.
//!
//! The agent is a process that libc does not know, with the thread pointer
//! of the thread that made it, so it may not touch thread-local storage at all.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::protocol::PAGE_BYTES;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the preloaded library speaks x86-64 Linux only, so far");

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

pub fn unmap(address: usize, length: usize) -> Result {
    // SAFETY: as for mmap.
    unsafe { call(libc::SYS_munmap, [address, length, 0, 0, 0, 0]) }
}

pub fn unlock(address: usize, length: usize) -> Result {
    // SAFETY: munlock(2) changes no contents.
    unsafe { call(libc::SYS_munlock, [address, length, 0, 0, 0, 0]) }
}

pub fn advise(address: usize, length: usize, advice: i32) -> Result {
    // SAFETY: as for mmap.
    unsafe { call(libc::SYS_madvise, [address, length, advice as usize, 0, 0, 0]) }
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

pub fn remap(address: usize, old: usize, new: usize, flags: i32, target: usize) -> Result {
    // SAFETY: as for mmap.
    unsafe { call(libc::SYS_mremap, [address, old, new, flags as usize, target, 0]) }
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

/// Where glibc has the number of a thread, from the thread pointer on.
const NUMBER_OFFSET: usize = 0x2d0;
static LIBC_KNOWS_NUMBERS: AtomicBool = AtomicBool::new(false);

fn number_by_libc() -> u32 {
    let number: u32;
    // SAFETY: glibc's structure of a thread lies there, and is longer than that.
    unsafe {
        asm!("mov {0:e}, dword ptr fs:[{1}]", out(reg) number, in(reg) NUMBER_OFFSET, options(nostack, readonly));
    }
    number
}

/// Looks whether libc has the number of this thread where it is expected to be: in a child that was made by a raw system call it has
/// another one. Called before there is another thread.
pub fn learn_numbers() {
    LIBC_KNOWS_NUMBERS.store(ask_thread_id() == number_by_libc(), Ordering::Relaxed);
}

/// The number of the calling thread, as the kernel has it.
pub fn ask_thread_id() -> u32 {
    // SAFETY: gettid(2) takes nothing.
    unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(1) as u32
}

/// The number of the calling thread, as libc has it: a program that has forbidden itself most system calls may go on without this one. In
/// a child that shares memory, as `vfork` makes it, it is the number of the thread that has made it.
pub fn thread_id() -> u32 {
    if LIBC_KNOWS_NUMBERS.load(Ordering::Relaxed) { number_by_libc() } else { ask_thread_id() }
}

/// Whether a thread lives and has this memory: it is of this process, or of one that shares its memory, as
/// the parent of a `vfork` child does. Where the kernel does not compare memory, any living thread counts.
pub fn shares_memory(thread: u32) -> bool {
    const KCMP_VM: usize = 1;
    let (own, thread) = (thread_id() as usize, thread as usize);
    // SAFETY: all four calls take integers only; signal 0 asks whether there is such a thread.
    unsafe {
        let process = call(libc::SYS_getpid, [0; 6]).unwrap_or(0);
        if call(libc::SYS_tgkill, [process, thread, 0, 0, 0, 0]) != Err(libc::ESRCH) {
            return true;
        }
        match call(libc::SYS_kcmp, [own, thread, KCMP_VM, 0, 0, 0]) {
            Ok(order) => order == 0,
            Err(libc::ESRCH) => false,
            Err(_) => call(libc::SYS_tkill, [thread, 0, 0, 0, 0, 0]) != Err(libc::ESRCH),
        }
    }
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

/// Sleeps for this time, or until a signal has been handled.
pub fn sleep_us(microseconds: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: microseconds * 1000 };
    // SAFETY: the time outlives the call; no remainder is asked for.
    let _ = unsafe { call(libc::SYS_nanosleep, [core::ptr::from_ref(&time) as usize, 0, 0, 0, 0, 0]) };
}

/// Wakes `count` sleepers.
pub fn futex_wake(word: &AtomicU32, count: usize) {
    let address = core::ptr::from_ref(word) as usize;
    // SAFETY: FUTEX_WAKE does not access memory.
    let _ = unsafe { call(libc::SYS_futex, [address, libc::FUTEX_WAKE as usize, count, 0, 0, 0]) };
}

/// Blocks or unblocks all signals of this thread: returns the old mask.
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    let (new, previous) = (core::ptr::from_ref(&mask) as usize, core::ptr::from_mut(&mut old) as usize);
    // SAFETY: both masks are 8 bytes, as the kernel's sigset_t.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, new, previous, 8, 0, 0]) };
    old
}

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

pub fn errno() -> i32 {
    // SAFETY: __errno_location returns this thread's own errno.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(code: i32) {
    // SAFETY: __errno_location returns this thread's own errno.
    unsafe { *libc::__errno_location() = code };
}
