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
        // SAFETY: it is mapped, and nobody else knows it yet.
        unsafe { &*(page as *const AtomicU32) }.store(BEGUN, Ordering::Release);
        self.page.store(page, Ordering::Release);
        Ok(())
    }

    /// Unmaps the page. Called where the library does nothing in this process after all, before any other thread exists.
    pub fn abandon(&self) {
        let page = self.page.swap(0, Ordering::AcqRel);
        if page != 0 {
            let _ = sys::unmap(page, PAGE_BYTES);
        }
    }

    /// Whether there is a page.
    pub fn is_there(&self) -> bool {
        self.page().is_some()
    }

    /// Begins this child by `begin`, if the calling thread is the one to do it. No signal handler comes between: it might leave `begin` for
    /// good, and others wait for its end.
    pub fn begin(&self, begin: impl FnOnce()) -> Beginning {
        let Some(word) = self.word() else { return Beginning::Over };
        let mask = sys::set_signal_mask(u64::MAX);
        let is_mine =
            word.compare_exchange(0, thread::thread_id(), Ordering::AcqRel, Ordering::Acquire).is_ok();
        if is_mine {
            begin();
            word.store(BEGUN, Ordering::Release);
            sys::futex_wake(word, i32::MAX as usize);
        }
        sys::set_signal_mask(mask);
        if is_mine { Beginning::Mine } else { Beginning::Over }
    }

    /// To be called where a child may be that no fork handler has been run in. As [`Self::begin`]; and where another thread begins the
    /// child, it waits until that has done so.
    #[inline]
    pub fn begin_unless_begun(&self, begin: impl FnOnce()) -> Beginning {
        match self.word() {
            Some(word) if word.load(Ordering::Acquire) != BEGUN => self.begin_or_wait(word, begin),
            _ => Beginning::Over,
        }
    }

    #[cold]
    fn begin_or_wait(&self, word: &AtomicU32, begin: impl FnOnce()) -> Beginning {
        if word.load(Ordering::Acquire) == 0 {
            thread::learn_numbers();
        }
        if self.begin(begin) == Beginning::Mine {
            return Beginning::Mine;
        }
        let own = thread::thread_id();
        loop {
            let beginner = word.load(Ordering::Acquire);
            // What `begin` calls may come here.
            if beginner == BEGUN || beginner == own {
                return Beginning::Over;
            }
            if sys::futex_wait(word, beginner, LOOK_MS)
                && !thread::shares_memory(beginner)
                && word.compare_exchange(beginner, BEGUN, Ordering::AcqRel, Ordering::Acquire).is_ok()
            {
                sys::futex_wake(word, i32::MAX as usize);
                return Beginning::Lost;
            }
        }
    }
}

/// What has come of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// The calling thread has begun it.
    Mine,
    /// Nothing was to be done: it is none, or another thread has begun it, or this one is at it.
    Over,
    /// The thread that began it was killed at it: the child does without. One thread alone is told so.
    Lost,
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
        let nothing = || unreachable!("there is no child");
        assert!(word.own_word(0).is_none() && !word.is_there());
        assert_eq!([word.begin(nothing), word.begin_unless_begun(nothing)], [Beginning::Over; 2]);
        word.establish().unwrap();
        assert_eq!([word.begin(nothing), word.begin_unless_begun(nothing)], [Beginning::Over; 2]);
        word.own_word(OWN_WORDS - 1).unwrap().store(7, Ordering::Relaxed);
        assert!(word.own_word(OWN_WORDS).is_none());
        let own = |word: &ForkWord| word.own_word(OWN_WORDS - 1).unwrap().load(Ordering::Relaxed) as u8;
        let of_child = in_child(0, &|| {
            let empty = own(&word) == 0;
            let (mut calls, mut inner) = (0, 0);
            let first = word.begin_unless_begun(|| {
                calls += 1;
                // As what is called by it.
                inner += u8::from(word.begin_unless_begun(|| inner += 1) == Beginning::Over);
            });
            let second = word.begin_unless_begun(|| calls += 1);
            let is_right = (first, second, calls, inner) == (Beginning::Mine, Beginning::Over, 1, 1);
            let of_grandchild = in_child(0, &|| u8::from(word.begin(|| {}) == Beginning::Mine));
            u8::from(empty) | u8::from(is_right) << 1 | of_grandchild << 2
        });
        assert_eq!(of_child, 0b111);
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
            let is_over =
                word.begin(|| {}) == Beginning::Over && word.begin_unless_begun(|| {}) == Beginning::Over;
            u8::from(is_over) << 4 | own
        });
        assert_eq!(of_child, 1 << 4 | 7);
        word.abandon();
    }

    #[test]
    fn a_thread_waits_for_the_one_that_begins_the_child_as_long_as_that_lives() {
        let word = ForkWord::new();
        word.establish().unwrap();
        let state = word.word().unwrap();
        // As if this were a child.
        state.store(0, Ordering::Release);
        let (done, begins) = (AtomicU32::new(0), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                word.begin(|| {
                    begins.wait();
                    std::thread::sleep(Duration::from_millis(50));
                    done.store(1, Ordering::Release);
                });
            });
            begins.wait();
            assert_eq!(word.begin_unless_begun(|| unreachable!("another does")), Beginning::Over);
            assert_eq!(done.load(Ordering::Acquire), 1, "it has waited");
        });
        // No thread has that number: whoever began the child was killed. One is told, and nobody waits again.
        state.store(0x3fff_fffe, Ordering::Release);
        let told: std::vec::Vec<_> = std::thread::scope(|scope| {
            let waiting: std::vec::Vec<_> = (0..3)
                .map(|_| scope.spawn(|| word.begin_unless_begun(|| unreachable!("it was lost"))))
                .collect();
            waiting.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(told.iter().filter(|told| **told == Beginning::Lost).count(), 1, "{told:?}");
        word.abandon();
    }

    #[test]
    fn no_signal_comes_while_a_child_is_begun() {
        static HANDLED: AtomicU32 = AtomicU32::new(0);
        extern "C" fn handle(_: i32) {
            HANDLED.fetch_add(1, Ordering::Relaxed);
        }
        let word = ForkWord::new();
        word.establish().unwrap();
        word.word().unwrap().store(0, Ordering::Release);
        // SAFETY: a handler that counts; the signal goes to this thread.
        unsafe {
            libc::signal(libc::SIGUSR1, handle as extern "C" fn(i32) as usize);
            let raise = || {
                libc::raise(libc::SIGUSR1);
                HANDLED.load(Ordering::Relaxed)
            };
            let mut meanwhile = None;
            assert_eq!(word.begin(|| meanwhile = Some(raise())), Beginning::Mine);
            assert_eq!((meanwhile, HANDLED.load(Ordering::Relaxed), raise()), (Some(0), 1, 2));
        }
        word.abandon();
    }
}
