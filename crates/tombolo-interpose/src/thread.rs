//! The numbers of threads, as libc and the kernel have them.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::sys::call;

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
/// another one. There only the first thread has a wrong number, so another one cannot say that all are right.
pub fn learn_numbers() {
    let own = ask_thread_id();
    // SAFETY: getpid(2) takes nothing.
    let is_first = unsafe { call(libc::SYS_getpid, [0; 6]) } == Ok(own as usize);
    LIBC_KNOWS_NUMBERS.store(is_first && own == number_by_libc(), Ordering::Relaxed);
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
