//! How far an address space is: whether it is one that a fork has made, and that a library has not begun yet.
//!
//! The fork handlers of libc are not run by `_Fork`, and not by a raw system call. So the word lies in a page that the kernel gives a forked
//! child empty, and that a child of `vfork`, which has its parent's memory, shares.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::sys::{self, PAGE_BYTES};
use crate::thread;

/// The word, and the page that it lies in. One static of a library.
pub struct ForkWord {
    /// Where the page is; 0: there is none.
    page: AtomicUsize,
}

/// In the word: the child was begun, or this is no child. 0: it was not; else the thread that begins it.
const BEGUN: u32 = u32::MAX;
/// Where the library's own words begin in the page.
const OWN_WORDS_OFFSET: usize = 64;
/// How many there are.
const OWN_WORDS: usize = (PAGE_BYTES - OWN_WORDS_OFFSET) / size_of::<usize>();
/// A thread that waits for another one to begin the child looks that often whether that one still lives.
const LOOK_MS: i64 = 1000;

impl Default for ForkWord {
    fn default() -> Self {
        Self::new()
    }
}

impl ForkWord {
    /// Without a page: no child is one.
    pub const fn new() -> Self {
        Self { page: AtomicUsize::new(0) }
    }

    #[inline]
    fn page(&self) -> Option<usize> {
        Some(self.page.load(Ordering::Acquire)).filter(|page| *page != 0)
    }

    #[inline]
    fn word(&self) -> Option<&AtomicU32> {
        // SAFETY: the page stays mapped as long as its address is stored, and is accessed atomically only.
        self.page().map(|page| unsafe { &*(page as *const AtomicU32) })
    }

    /// One of the library's words in that page: 0 in a child that a fork has made, until it is set there. `None`: there is no page, or no
    /// such word.
    #[inline]
    pub fn own_word(&self, number: usize) -> Option<&AtomicUsize> {
        let page = self.page().filter(|_| number < OWN_WORDS)?;
        // SAFETY: it lies within the page; see `word`.
        Some(unsafe { &*((page + OWN_WORDS_OFFSET) as *const AtomicUsize).add(number) })
    }

    /// Makes the page. Called once, before any other thread exists.
    ///
    /// # Errors
    ///
    /// As mmap(2) and madvise(2) say.
    pub fn establish(&self) -> Result<(), i32> {
        thread::learn_numbers();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = sys::map(0, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
        if let Err(error) = sys::advise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) {
            let _ = sys::unmap(page, PAGE_BYTES);
            return Err(error);
        }
        self.page.store(page, Ordering::Release);
        if let Some(word) = self.word() {
            word.store(BEGUN, Ordering::Release);
        }
        Ok(())
    }

    /// Unmaps the page. Called where the library does nothing in this process after all, before any other thread exists.
    pub fn abandon(&self) {
        let page = self.page.swap(0, Ordering::AcqRel);
        if page != 0 {
            let _ = sys::unmap(page, PAGE_BYTES);
        }
    }

    /// Whether the calling thread is the one that is to begin this child. It says so by [`Self::begun`].
    pub fn claim_child(&self) -> bool {
        self.word().is_some_and(|word| {
            word.compare_exchange(0, thread::thread_id(), Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    /// The child has been begun.
    pub fn begun(&self) {
        if let Some(word) = self.word() {
            word.store(BEGUN, Ordering::Release);
            sys::futex_wake(word, i32::MAX as usize);
        }
    }

    /// To be called where a child may be that no fork handler has been run in. As [`Self::claim_child`]; and where another thread begins the
    /// child, it waits until that has done so. A signal handler that has interrupted that thread does not wait.
    #[inline]
    pub fn claim_unbegun_child(&self) -> bool {
        match self.word() {
            Some(word) if word.load(Ordering::Acquire) != BEGUN => self.claim_or_wait(word),
            _ => false,
        }
    }

    #[cold]
    fn claim_or_wait(&self, word: &AtomicU32) -> bool {
        if word.load(Ordering::Acquire) == 0 {
            thread::learn_numbers();
        }
        if self.claim_child() {
            return true;
        }
        let own = thread::thread_id();
        loop {
            let beginner = word.load(Ordering::Acquire);
            if beginner == BEGUN || beginner == own {
                return false;
            }
            if sys::futex_wait(word, beginner, LOOK_MS) && !thread::shares_memory(beginner) {
                // It was killed, and nobody begins this child.
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;

    /// What `test` says in a child, as its exit status: one that was made without libc's fork handlers, as `flags` say.
    fn in_child<Test: Fn() -> u8>(flags: i32, test: &Test) -> u8 {
        extern "C" fn run<Test: Fn() -> u8>(test: *mut libc::c_void) -> i32 {
            // SAFETY: it is the test, which outlives the child. The child ends without what libc does at an exit.
            unsafe { libc::_exit(i32::from((*test.cast::<Test>())())) }
        }
        let mut stack = std::vec![0u128; 4096];
        let argument = core::ptr::from_ref(test).cast_mut().cast();
        // SAFETY: the child has a stack of its own. It takes no lock; where it shares the memory, this thread waits for its end.
        unsafe {
            let top = stack.as_mut_ptr_range().end.cast();
            let child = libc::clone(run::<Test>, top, flags | libc::SIGCHLD, argument);
            assert!(child > 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert!(libc::WIFEXITED(status), "{status}");
            libc::WEXITSTATUS(status) as u8
        }
    }

    #[test]
    fn a_forked_child_is_begun_once_and_its_own_words_are_empty() {
        let word = ForkWord::new();
        assert!(word.own_word(0).is_none() && !word.claim_child() && !word.claim_unbegun_child());
        word.establish().unwrap();
        assert!(!word.claim_child() && !word.claim_unbegun_child(), "this is no child");
        word.own_word(OWN_WORDS - 1).unwrap().store(7, Ordering::Relaxed);
        assert!(word.own_word(OWN_WORDS).is_none());
        let own = |word: &ForkWord| word.own_word(OWN_WORDS - 1).unwrap().load(Ordering::Relaxed) as u8;
        let of_child = in_child(0, &|| {
            let empty = own(&word) == 0;
            let first = word.claim_unbegun_child();
            // As in a signal handler meanwhile.
            let second = word.claim_unbegun_child() || word.claim_child();
            word.begun();
            let third = word.claim_unbegun_child();
            let of_grandchild = in_child(0, &|| u8::from(word.claim_child()));
            u8::from(empty) | u8::from(first) << 1 | u8::from(second | third) << 2 | of_grandchild << 3
        });
        assert_eq!(of_child, 0b1011);
        assert_eq!(own(&word), 7);
        word.abandon();
        assert!(word.own_word(0).is_none());
    }

    #[test]
    fn a_child_that_shares_the_memory_is_none() {
        let word = ForkWord::new();
        word.establish().unwrap();
        word.own_word(0).unwrap().store(7, Ordering::Relaxed);
        let of_child = in_child(libc::CLONE_VM | libc::CLONE_VFORK, &|| {
            let own = word.own_word(0).unwrap().load(Ordering::Relaxed) as u8;
            u8::from(word.claim_child() || word.claim_unbegun_child()) << 4 | own
        });
        assert_eq!(of_child, 7);
        word.abandon();
    }

    #[test]
    fn a_thread_waits_for_the_one_that_begins_the_child_as_long_as_that_lives() {
        let word = ForkWord::new();
        word.establish().unwrap();
        let state = word.word().unwrap();
        // As if this were a child that another thread begins.
        let (ask, begins) = (AtomicU32::new(0), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                state.store(thread::thread_id(), Ordering::Release);
                begins.wait();
                std::thread::sleep(Duration::from_millis(50));
                ask.store(1, Ordering::Release);
                word.begun();
            });
            begins.wait();
            assert!(!word.claim_unbegun_child());
            assert_eq!(ask.load(Ordering::Acquire), 1, "it has waited");
        });
        // No thread has that number: whoever began the child was killed.
        state.store(0x3fff_fffe, Ordering::Release);
        assert!(!word.claim_unbegun_child());
        word.abandon();
    }
}
