//! Memory as an ordinary program has it, for measuring what an access costs.
//!
//! Everything goes through libc's own `mmap` and `madvise`, so that a preloaded
//! library sees the calls as it would those of any other program, and every
//! access is one load or store of a word.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::process;

/// Size of a page in bytes.
pub const PAGE_BYTES: usize = 4096;
/// Words of 8 bytes in a page.
pub const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// A mapping of zeroed words.
#[derive(Debug)]
pub struct Area {
    address: NonNull<u64>,
    pages: usize,
}

// SAFETY: the mapping belongs to this value alone; no reference into it is ever made.
unsafe impl Send for Area {}
// SAFETY: as for Send; every access to the words is atomic.
unsafe impl Sync for Area {}

impl Area {
    /// Private anonymous memory, as large allocations of programs are.
    pub fn new(pages: usize) -> io::Result<Self> {
        Self::map(pages, libc::MAP_PRIVATE | libc::MAP_NORESERVE)
    }

    /// Memory that neither a pager takes for the program's heap (it is shared)
    /// nor the kernel swaps (it is locked): for the measurements themselves.
    pub fn for_results(pages: usize) -> io::Result<Self> {
        let area = Self::map(pages, libc::MAP_SHARED)?;
        // SAFETY: the range is exactly our mapping; locking does not change its contents.
        let result = unsafe { libc::mlock(area.address.as_ptr().cast(), area.length()) };
        // Without the privilege it is merely likely to stay.
        if result < 0 {
            (0..area.pages).for_each(|page| area.write(page * PAGE_WORDS, 0));
        }
        Ok(area)
    }

    fn map(pages: usize, flags: i32) -> io::Result<Self> {
        let pages = pages.max(1);
        let length = pages.checked_mul(PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, flags | libc::MAP_ANONYMOUS, -1, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let area = Self { address, pages };
        // Pages of 4 KiB are what is measured; on kernels without huge pages this fails, rightly.
        // SAFETY: the range is exactly our mapping; the advice does not change its contents.
        unsafe { libc::madvise(area.address.as_ptr().cast(), length, libc::MADV_NOHUGEPAGE) };
        Ok(area)
    }

    /// First address.
    pub fn address(&self) -> u64 {
        self.address.as_ptr() as u64
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.pages * PAGE_BYTES
    }

    /// Length in pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.pages * PAGE_WORDS, "word {index} is outside of the area");
        // SAFETY: the index was just checked against the mapping's length, the address is aligned, the
        // mapping lives as long as self, and its words are reached in no other way.
        unsafe { AtomicU64::from_ptr(self.address.as_ptr().add(index)) }
    }

    /// One load of a word.
    #[inline]
    pub fn read(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    /// One store of a word.
    #[inline]
    pub fn write(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// The contents of some pages are not wanted any more (`MADV_DONTNEED`).
    pub fn discard(&self, first_page: usize, pages: usize) -> io::Result<()> {
        assert!(first_page + pages <= self.pages, "a discard outside of the area");
        // SAFETY: the range is inside our mapping, whose words are atomics that may change at any time.
        let result = unsafe {
            libc::madvise(
                self.address.as_ptr().cast::<u8>().add(first_page * PAGE_BYTES).cast(),
                pages * PAGE_BYTES,
                libc::MADV_DONTNEED,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// What drops single pages of this area, many in one call.
    pub fn dropper(&self) -> io::Result<Dropper<'_>> {
        Ok(Dropper { area: self, pidfd: process::pidfd(std::process::id())? })
    }

    /// Which pages are in memory now: an access to them faults not, or hardly.
    pub fn resident(&self) -> io::Result<Vec<bool>> {
        let mut marks = vec![0u8; self.pages];
        // SAFETY: the range is our mapping, and the vector has one byte for each of its pages.
        let result =
            unsafe { libc::mincore(self.address.as_ptr().cast(), self.length(), marks.as_mut_ptr()) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(marks.into_iter().map(|mark| mark & 1 != 0).collect())
    }
}

/// Drops single pages of an area (`MADV_DONTNEED`), many in one call (Linux 6.13).
#[derive(Debug)]
pub struct Dropper<'a> {
    area: &'a Area,
    pidfd: OwnedFd,
}

impl Dropper<'_> {
    /// Drops these pages.
    pub fn discard(&self, pages: &[usize]) -> io::Result<()> {
        /// The kernel takes no more ranges in one call.
        const RANGES_IN_A_CALL: usize = 1024;
        for some in pages.chunks(RANGES_IN_A_CALL) {
            assert!(some.iter().all(|&page| page < self.area.pages), "a page outside of the area");
            let mut done = 0;
            while done < some.len() {
                let ranges: Vec<libc::iovec> = some[done..]
                    .iter()
                    .map(|&page| libc::iovec {
                        iov_base: self.area.address.as_ptr().wrapping_add(page * PAGE_WORDS).cast(),
                        iov_len: PAGE_BYTES,
                    })
                    .collect();
                // SAFETY: the ranges are pages of our mapping, as just checked, whose words are atomics
                // that may change at any time; the kernel reads as many of them as are passed.
                let advised_bytes = unsafe {
                    libc::syscall(
                        libc::SYS_process_madvise,
                        self.pidfd.as_raw_fd(),
                        ranges.as_ptr(),
                        ranges.len(),
                        libc::MADV_DONTNEED,
                        0,
                    )
                };
                if advised_bytes < PAGE_BYTES as i64 {
                    let error = io::Error::last_os_error();
                    return Err(if advised_bytes < 0 { error } else { io::ErrorKind::Interrupted.into() });
                }
                done += advised_bytes as usize / PAGE_BYTES;
            }
        }
        Ok(())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map`, and nothing borrowed from it outlives self.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_until_it_is_discarded() {
        let area = Area::new(4).unwrap();
        assert_eq!(area.resident().unwrap(), [false; 4]);
        for page in 0..4 {
            area.write(page * PAGE_WORDS + 7, page as u64 + 1);
        }
        assert_eq!(area.resident().unwrap(), [true; 4]);
        area.discard(1, 2).unwrap();
        assert_eq!(area.resident().unwrap(), [true, false, false, true]);
        let words: Vec<u64> = (0..4).map(|page| area.read(page * PAGE_WORDS + 7)).collect();
        assert_eq!(words, [1, 0, 0, 4]);
    }

    #[test]
    fn single_pages_are_dropped_in_one_call() {
        let area = Area::new(2000).unwrap();
        (0..2000).for_each(|page| area.write(page * PAGE_WORDS, 1));
        let odd: Vec<usize> = (0..1000).map(|number| number * 2 + 1).collect();
        match area.dropper().unwrap().discard(&odd) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM | libc::ENOSYS)) => {
                eprintln!("left out: this kernel does not let a process advise itself by ranges ({error})");
                return;
            }
            outcome => outcome.unwrap(),
        }
        assert!((0..2000).all(|page| area.read(page * PAGE_WORDS) == u64::from(page % 2 == 0)));
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_word_beyond_the_end_is_refused() {
        Area::new(1).unwrap().read(PAGE_WORDS);
    }
}
