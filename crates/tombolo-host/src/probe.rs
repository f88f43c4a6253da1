//! Memory as an ordinary program has it, for measuring what an access costs.
//!
//! Everything goes through libc's own `mmap` and `madvise`, so that a preloaded
//! library sees the calls as it would those of any other program, and every
//! access is a volatile load or store of one word that no compiler moves or drops.

use std::io;
use std::ptr::NonNull;

/// Size of a page in bytes.
pub const PAGE_BYTES: usize = 4096;
/// Words of 8 bytes in a page.
pub const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// A mapping of zeroed words, used by one thread.
#[derive(Debug)]
pub struct Area {
    address: NonNull<u64>,
    pages: usize,
}

// SAFETY: the mapping belongs to this value alone; no reference into it is ever made.
unsafe impl Send for Area {}

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

    fn word(&self, index: usize) -> *mut u64 {
        assert!(index < self.pages * PAGE_WORDS, "word {index} is outside of the area");
        // SAFETY: the index was just checked against the mapping's length.
        unsafe { self.address.as_ptr().add(index) }
    }

    /// One load of a word.
    #[inline]
    pub fn read(&self, index: usize) -> u64 {
        // SAFETY: `word` gives an aligned address inside the mapping, any content of which is a u64.
        unsafe { self.word(index).read_volatile() }
    }

    /// One store of a word.
    #[inline]
    pub fn write(&self, index: usize, value: u64) {
        // SAFETY: as in `read`; the mapping is writable and nothing in Rust borrows from it.
        unsafe { self.word(index).write_volatile(value) }
    }

    /// The contents of some pages are not wanted any more (`MADV_DONTNEED`).
    pub fn discard(&self, first_page: usize, pages: usize) -> io::Result<()> {
        assert!(first_page + pages <= self.pages, "a discard outside of the area");
        // SAFETY: the range is inside our mapping, into which there are no references.
        let result = unsafe {
            libc::madvise(
                self.address.as_ptr().cast::<u8>().add(first_page * PAGE_BYTES).cast(),
                pages * PAGE_BYTES,
                libc::MADV_DONTNEED,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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
    #[should_panic(expected = "outside")]
    fn a_word_beyond_the_end_is_refused() {
        Area::new(1).unwrap().read(PAGE_WORDS);
    }
}
