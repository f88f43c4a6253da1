//! Access to this process's own memory that survives a fault: where a page cannot be had, an access ends with an
//! error instead of a signal.
//!
//! The accesses are a few instructions in assembly. A handler of SIGSEGV and SIGBUS looks at where the fault
//! happened: at one of them, the thread goes on behind it, and the access reports the fault; anywhere else, the
//! handler that was there before is called. So nothing changes for the program. Where a program has
//! put a handler of its own in front ([`is_guarded`] is false), or on other processors than x86-64, there are no
//! such accesses, and the caller uses system calls.

use std::cell::Cell;

#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::{compare_swap, copy, fetch_add, store};

#[cfg(not(target_arch = "x86_64"))]
pub(super) use other::{compare_swap, copy, fetch_add, store};

#[cfg(not(target_arch = "x86_64"))]
use other as here;
#[cfg(target_arch = "x86_64")]
use x86_64 as here;

thread_local! {
    /// What this thread has found, while it makes several accesses.
    static FOUND: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Whether a fault at one of the accesses comes to our handler. The first call puts the handler there. The kernel is asked, by
/// two calls, as the program may put another handler in front at any moment.
pub(super) fn is_guarded() -> bool {
    FOUND.get().unwrap_or_else(here::is_guarded)
}

/// Asks for several accesses at once.
pub(super) fn looking_once(accesses: &mut dyn FnMut()) {
    /// Whatever ends the accesses.
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            FOUND.set(None);
        }
    }
    FOUND.set(Some(here::is_guarded()));
    let _ended = Ended;
    accesses();
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::sync::OnceLock;

    use crate::copying::{Words, copy_instructions};

    std::arch::global_asm!(
        ".pushsection .text.tombolo_guarded,\"ax\",@progbits",
        copy_instructions!("tombolo_guarded_copy"),
        ".hidden tombolo_guarded_store",
        ".globl tombolo_guarded_store",
        // rdi: where, rsi: the word. Returns 0, or 1 after a fault.
        "tombolo_guarded_store:",
        "mov [rdi], rsi",
        "xor eax, eax",
        "ret",
        ".hidden tombolo_guarded_add",
        ".globl tombolo_guarded_add",
        // rdi: where, rsi: the operand, rdx: where the word before goes. Returns 0, or 1 after a fault.
        "tombolo_guarded_add:",
        "lock xadd [rdi], rsi",
        "mov [rdx], rsi",
        "xor eax, eax",
        "ret",
        ".hidden tombolo_guarded_swap",
        ".globl tombolo_guarded_swap",
        // rdi: where, rsi: compare, rdx: swap, rcx: where the word before goes. Returns 0, or 1 after a fault.
        "tombolo_guarded_swap:",
        "mov rax, rsi",
        ".hidden tombolo_guarded_swap_access",
        ".globl tombolo_guarded_swap_access",
        "tombolo_guarded_swap_access:",
        "lock cmpxchg [rdi], rdx",
        "mov [rcx], rax",
        "xor eax, eax",
        "ret",
        ".hidden tombolo_guarded_word_fault",
        ".globl tombolo_guarded_word_fault",
        "tombolo_guarded_word_fault:",
        "mov eax, 1",
        "ret",
        ".popsection",
    );

    // SAFETY: the functions above, with their arguments in the registers in which C passes them; the others are labels, never called.
    unsafe extern "C" {
        fn tombolo_guarded_copy(to: *mut u8, from: *const u8, bytes: usize, head: usize) -> usize;
        fn tombolo_guarded_copy_main();
        fn tombolo_guarded_copy_words();
        fn tombolo_guarded_copy_again();
        fn tombolo_guarded_copy_bytes();
        fn tombolo_guarded_copy_end();
        fn tombolo_guarded_store(at: *mut u64, word: u64) -> u32;
        fn tombolo_guarded_add(at: *mut u64, operand: u64, before: *mut u64) -> u32;
        fn tombolo_guarded_swap(at: *mut u64, compare: u64, swap: u64, before: *mut u64) -> u32;
        fn tombolo_guarded_swap_access();
        fn tombolo_guarded_word_fault();
    }

    /// The signals of a page that cannot be had.
    const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

    /// What was done with the signals before, in the order of [`SIGNALS`].
    static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();

    /// Where a thread goes on that faulted at this instruction, if it is one of the accesses.
    fn after_fault(instruction: usize) -> Option<usize> {
        let address = |function: unsafe extern "C" fn()| function as *const () as usize;
        let words = [
            tombolo_guarded_store as *const () as usize,
            tombolo_guarded_add as *const () as usize,
            address(tombolo_guarded_swap_access),
        ];
        // A copy goes on in smaller steps, up to the byte that faults.
        let [main, less, again, bytes, end] = [
            tombolo_guarded_copy_main,
            tombolo_guarded_copy_words,
            tombolo_guarded_copy_again,
            tombolo_guarded_copy_bytes,
            tombolo_guarded_copy_end,
        ]
        .map(address);
        let start = tombolo_guarded_copy as *const () as usize;
        let steps = [(start..main, bytes), (main..less, less), (less..again, again), (again..end, end)];
        let step = steps.iter().find(|(part, _)| part.contains(&instruction));
        let word = words.contains(&instruction).then(|| address(tombolo_guarded_word_fault));
        step.map(|(_, after)| *after).or(word)
    }

    extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes the context of the thread, which nobody else uses during the handler.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let instruction = &mut registers[libc::REG_RIP as usize];
        // SAFETY: the kernel passes it. What a process has sent is no fault, wherever the thread was.
        let is_sent = unsafe { (*info).si_code <= 0 };
        if let Some(after) = after_fault(*instruction as usize).filter(|_| !is_sent) {
            *instruction = after as i64;
            return;
        }
        let place = SIGNALS.iter().position(|known| *known == signal).unwrap_or(0);
        let Some(before) = BEFORE.get().map(|before| &before[place]) else { return };
        // SAFETY: the action is the one that the program had; it is called as the kernel would have called it. Where
        // there was none, it is put back, and the same instruction faults again; what was sent is sent again.
        unsafe {
            match before.sa_sigaction {
                libc::SIG_IGN if is_sent => {}
                libc::SIG_DFL if is_sent => {
                    libc::sigaction(signal, std::ptr::from_ref(before), std::ptr::null_mut());
                    libc::raise(signal);
                }
                libc::SIG_DFL | libc::SIG_IGN => {
                    libc::sigaction(signal, std::ptr::from_ref(before), std::ptr::null_mut());
                }
                handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(handler);
                    handler(signal, info, context);
                }
                handler => {
                    let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                    handler(signal);
                }
            }
        }
    }

    /// What is done with a signal now.
    fn action_of(signal: libc::c_int) -> libc::sigaction {
        // SAFETY: an all-zero sigaction is valid; the call writes it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            action
        }
    }

    pub(crate) fn is_guarded() -> bool {
        BEFORE.get_or_init(|| {
            SIGNALS.map(|signal| {
                let before = action_of(signal);
                // SAFETY: all-zero is a valid action; the handler makes async-signal-safe calls alone, on the thread's
                // signal stack if it has one, and blocks no more than the one before.
                unsafe {
                    let mut action: libc::sigaction = std::mem::zeroed();
                    action.sa_sigaction = on_fault as *const () as usize;
                    action.sa_flags =
                        libc::SA_SIGINFO | libc::SA_ONSTACK | before.sa_flags & libc::SA_NODEFER;
                    action.sa_mask = before.sa_mask;
                    libc::sigaction(signal, &raw const action, std::ptr::null_mut());
                }
                before
            })
        });
        SIGNALS.iter().all(|signal| action_of(*signal).sa_sigaction == on_fault as *const () as usize)
    }

    /// Copies bytes; how many were not copied, because the next one faults.
    ///
    /// # Safety
    /// No Rust reference is used for either range, and [`is_guarded`] was true.
    pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize, words: Words) -> usize {
        // SAFETY: as the caller promises; a fault ends the copy early.
        unsafe { tombolo_guarded_copy(to, from, bytes, words.head(to, from, bytes)) }
    }

    /// Stores an aligned word; false if that faults.
    ///
    /// # Safety
    /// As for [`copy`].
    pub(crate) unsafe fn store(at: *mut u64, word: u64) -> bool {
        // SAFETY: as for `copy`.
        unsafe { tombolo_guarded_store(at, word) == 0 }
    }

    /// Adds to an aligned word; what it was before.
    ///
    /// # Safety
    /// As for [`copy`].
    pub(crate) unsafe fn fetch_add(at: *mut u64, operand: u64) -> Option<u64> {
        let mut before = 0;
        // SAFETY: as for `copy`; `before` is ours.
        unsafe { tombolo_guarded_add(at, operand, &raw mut before) == 0 }.then_some(before)
    }

    /// Puts `swap` into an aligned word if `compare` is there; what it was before.
    ///
    /// # Safety
    /// As for [`copy`].
    pub(crate) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64) -> Option<u64> {
        let mut before = 0;
        // SAFETY: as for `fetch_add`.
        unsafe { tombolo_guarded_swap(at, compare, swap, &raw mut before) == 0 }.then_some(before)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod other {
    use crate::copying::Words;

    pub(crate) fn is_guarded() -> bool {
        false
    }

    /// # Safety
    ///
    /// None: it dereferences nothing.
    pub(crate) unsafe fn copy(_to: *mut u8, _from: *const u8, bytes: usize, _words: Words) -> usize {
        bytes
    }

    /// # Safety
    ///
    /// None: it dereferences nothing.
    pub(crate) unsafe fn store(_at: *mut u64, _word: u64) -> bool {
        false
    }

    /// # Safety
    ///
    /// None: it dereferences nothing.
    pub(crate) unsafe fn fetch_add(_at: *mut u64, _operand: u64) -> Option<u64> {
        None
    }

    /// # Safety
    ///
    /// None: it dereferences nothing.
    pub(crate) unsafe fn compare_swap(_at: *mut u64, _compare: u64, _swap: u64) -> Option<u64> {
        None
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::copying::Words;
    use crate::own::OwnMemory;

    #[test]
    fn accesses_end_at_the_page_that_cannot_be_had() {
        assert!(is_guarded());
        let memory = OwnMemory::map(3 * 4096).unwrap();
        let start = memory.as_mut_ptr();
        let source = vec![7_u8; 3 * 4096];
        let protect = |flags| {
            // SAFETY: the second page of a mapping that nobody else uses.
            unsafe { rustix::mm::mprotect(start.add(4096).cast(), 4096, flags).unwrap() }
        };
        // SAFETY: a mapping of our own, to which no reference exists, and a vector that is only read.
        unsafe {
            assert_eq!(copy(start, source.as_ptr(), 3 * 4096, Words::OfDestination), 0);
            protect(rustix::mm::MprotectFlags::READ);
            assert_eq!(copy(start.add(4000), source.as_ptr(), 200, Words::OfDestination), 104);
            let word = start.add(4096).cast::<u64>();
            assert!(!store(word, 1));
            assert_eq!((fetch_add(word, 1), compare_swap(word, 0, 1)), (None, None));
            let mut found = [0_u8; 200];
            assert_eq!(copy(found.as_mut_ptr(), start.add(4000), 200, Words::OfSource), 0);
            protect(rustix::mm::MprotectFlags::empty());
            assert_eq!(copy(found.as_mut_ptr(), start.add(4000), 200, Words::OfSource), 104);
            let word = start.cast::<u64>();
            assert!(store(word, 40));
            assert_eq!((fetch_add(word, 2), fetch_add(word, 0)), (Some(40), Some(42)));
            assert_eq!((compare_swap(word, 41, 1), compare_swap(word, 42, 1)), (Some(42), Some(42)));
            assert_eq!(fetch_add(word, 0), Some(1));
        }
    }

    #[test]
    fn other_faults_go_to_the_handler_that_was_there() {
        // In a child, which ends by it.
        match std::env::var("TOMBOLO_TEST_FAULT").as_deref() {
            Ok("fault") => {
                assert!(is_guarded());
                // SAFETY: it is not: this is to end the process.
                unsafe { std::ptr::without_provenance::<u8>(8).read_volatile() };
            }
            Ok(_) => {
                // SAFETY: as in a program in C, and then a signal is sent to this thread.
                unsafe {
                    libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                    assert!(is_guarded());
                    libc::raise(libc::SIGSEGV);
                }
                return;
            }
            Err(_) => {}
        }
        for how in ["fault", "sent"] {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["own::guarded::tests::other_faults_go_to_the_handler_that_was_there", "--exact"])
                .env("TOMBOLO_TEST_FAULT", how)
                .output()
                .unwrap();
            let signal = std::os::unix::process::ExitStatusExt::signal(&child.status);
            assert_eq!(signal, Some(libc::SIGSEGV), "{how}");
        }
    }
}
