//! Large tables of atomic words and buffers, backed by pages only where touched.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A private anonymous mapping, zero at first.
#[derive(Debug)]
pub struct Pages {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is plain memory that belongs to this value; what is
// shared of it is handed out as atomics or raw addresses only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Reserves `length` bytes (rounded up to pages); memory is taken when touched.
    pub fn new(length: usize) -> io::Result<Self> {
        let length = length.next_multiple_of(4096).max(4096);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast())
            .map(|address| Self { address, length })
            .ok_or(io::ErrorKind::OutOfMemory.into())
    }

    /// First address.
    pub fn address(&self) -> u64 {
        self.address.as_ptr() as u64
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The whole mapping as words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, lives as long as self, and every
        // access to it through this view is atomic.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr().cast(), self.length / 8) }
    }

    /// Touches every page now, so that no first touch happens later.
    pub fn prefault(&self) {
        for word in self.words().iter().step_by(512) {
            word.fetch_or(0, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` and nothing borrowed from it outlives self.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

/// Whether the page at `address` holds only zeroes.
///
/// # Safety
///
/// `address` must be 8-byte aligned and 4096 readable bytes must follow it. They may change
/// meanwhile (then the answer is about some mixture).
pub unsafe fn page_is_zero(address: u64) -> bool {
    let words = address as *const u64;
    // Pages that are not zero mostly show it in their first words.
    let mut offset = 0;
    while offset < 512 {
        let mut any = 0u64;
        for index in 0..8 {
            // SAFETY: inside the page by the loop bounds, aligned by the caller's promise.
            any |= unsafe { words.add(offset + index).read_volatile() };
        }
        if any != 0 {
            return false;
        }
        offset += 8;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn pages_are_zero_until_written() {
        let pages = Pages::new(3 * 4096 - 5).unwrap();
        assert_eq!(pages.length(), 3 * 4096);
        // SAFETY: inside the mapping just made.
        assert!(unsafe { page_is_zero(pages.address() + 4096) });
        pages.words()[1023].store(1, Ordering::Relaxed);
        // SAFETY: inside the mapping just made.
        assert!(!unsafe { page_is_zero(pages.address() + 4096) });
        // SAFETY: inside the mapping just made.
        assert!(unsafe { page_is_zero(pages.address() + 8192) });
    }
}
