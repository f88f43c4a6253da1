//! Whether this is still the process that something was made in, or a child made by fork, which has a copy of it.
//!
//! A process id does not tell: parent and child can both be 1, each in a pid namespace of its own. So there is a word in a page that the
//! kernel empties in a child (`MADV_WIPEONFORK`), and the first thread that finds it empty gives the process a new number.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A process, told apart from those that it is a copy of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLife(u64);

/// The last number that was given: a child begins with that of its parent.
static LAST: AtomicU64 = AtomicU64::new(0);

impl ProcessLife {
    /// That of this process.
    pub fn now() -> Self {
        let Some(word) = word() else { return Self(std::process::id().into()) };
        let known = word.load(Ordering::Relaxed);
        if known != 0 {
            return Self(known);
        }
        let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        // Of several threads that find it empty, one gives the number.
        match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Self(fresh),
            Err(known) => Self(known),
        }
    }

    /// Whether this is that process.
    pub fn is_now(self) -> bool {
        self == Self::now()
    }
}

/// The word, in a page that is mapped once and stays. `None`: there is none to be had.
fn word() -> Option<&'static AtomicU64> {
    static WORD: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    *WORD.get_or_init(|| map().ok())
}

fn map() -> io::Result<&'static AtomicU64> {
    let bytes = crate::own::PAGE_BYTES as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which nobody else has, is never unmapped, and begins with an aligned word of zeros.
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if libc::madvise(page, bytes, libc::MADV_WIPEONFORK) != 0 {
            let error = io::Error::last_os_error();
            libc::munmap(page, bytes);
            return Err(error);
        }
        Ok(AtomicU64::from_ptr(page.cast()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process() {
        let here = ProcessLife::now();
        assert!(here.is_now());
        // SAFETY: the child loads and stores words, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_other = !here.is_now() && ProcessLife::now().is_now();
            // SAFETY: ends the child, without what the test's process would do at its end.
            unsafe { libc::_exit(i32::from(!is_other)) };
        }
        let mut status = -1;
        // SAFETY: a child of ours that nobody else waits for.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child takes itself for its parent");
        assert!(here.is_now());
    }
}
