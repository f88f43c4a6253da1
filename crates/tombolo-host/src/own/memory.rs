//! A range of memory that a program registers.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::pages::PAGE_BYTES;
use crate::shared::{SharedMemoryError, SharedSpan, SharedSpanMut};

/// No mapping lies at or above, unless it was asked for there: 47 bits of addresses.
const ADDRESS_SPACE_END: usize = 1 << 47;

/// A range of this process's memory that others may change at any moment: never a Rust reference.
#[derive(Debug)]
pub struct OwnMemory {
    start: NonNull<u8>,
    length_bytes: usize,
    kind: Kind,
}

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Whole pages, which are unmapped on drop.
    Mapped,
    /// It was mapped already.
    Raw,
    /// All addresses, whatever is mapped there when: no byte is reached by this.
    AddressSpace,
}

// SAFETY: plain memory that is only reached through spans (raw pointers) and atomics.
unsafe impl Send for OwnMemory {}
// SAFETY: as for Send.
unsafe impl Sync for OwnMemory {}

impl OwnMemory {
    /// New private memory, zeroed, in whole pages.
    pub fn map(length_bytes: usize) -> Result<Self, SharedMemoryError> {
        let system = |errno| SharedMemoryError::System { operation: "mapping", errno };
        let length_bytes =
            length_bytes.max(1).checked_next_multiple_of(PAGE_BYTES as usize).ok_or(system(Errno::NOMEM))?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), length_bytes, protection, flags)
                .map_err(system)?
        };
        let start = NonNull::new(start.cast()).ok_or(system(Errno::NOMEM))?;
        Ok(Self { start, length_bytes, kind: Kind::Mapped })
    }

    /// Memory that is mapped already. It stays mapped when this is dropped.
    ///
    /// # Safety
    ///
    /// The range stays mapped, to read and write, while this lives: its methods do both. No Rust reference is used for these
    /// bytes while others may change them, and nothing else that would mind comes to this range while it is registered, or may become so: a registration that failed
    /// without the node's refusal is settled first.
    pub unsafe fn from_raw(start: NonNull<u8>, length_bytes: usize) -> Self {
        Self { start, length_bytes, kind: Kind::Raw }
    }

    /// All memory that this process has, and will have: each address but those of the first page. Its methods reach none of it.
    ///
    /// # Safety
    ///
    /// Those to whom it is granted once it is registered may change anything in this process.
    pub unsafe fn address_space() -> Self {
        let start = std::ptr::with_exposed_provenance_mut(PAGE_BYTES as usize);
        let start = NonNull::new(start).unwrap_or(NonNull::dangling());
        Self { start, length_bytes: ADDRESS_SPACE_END - PAGE_BYTES as usize, kind: Kind::AddressSpace }
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.length_bytes
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.length_bytes == 0
    }

    /// Where it begins, for those who can deal with memory that others change.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn out_of_range(&self, offset_bytes: usize, length_bytes: usize) -> SharedMemoryError {
        SharedMemoryError::OutOfRange { offset_bytes, length_bytes, memory_bytes: self.length_bytes }
    }

    /// Bytes of it, to read.
    pub fn span(&self, offset: usize, length: usize) -> Result<SharedSpan<'_>, SharedMemoryError> {
        if self.kind == Kind::AddressSpace {
            return Err(self.out_of_range(offset, length));
        }
        // SAFETY: mapped while `self` lives: by `map`, or as the caller of `from_raw` promised.
        let whole = unsafe { SharedSpan::from_raw(self.start.as_ptr(), self.length_bytes) };
        whole.part(offset, length).ok_or_else(|| self.out_of_range(offset, length))
    }

    /// Bytes of it, to write.
    pub fn span_mut(&self, offset: usize, length: usize) -> Result<SharedSpanMut<'_>, SharedMemoryError> {
        if self.kind == Kind::AddressSpace {
            return Err(self.out_of_range(offset, length));
        }
        // SAFETY: as in `span`; writable by the same promises.
        let whole = unsafe { SharedSpanMut::from_raw(self.start.as_ptr(), self.length_bytes) };
        whole.part(offset, length).ok_or_else(|| self.out_of_range(offset, length))
    }

    /// Whole pages around a part of it: where they begin, and their bytes.
    fn pages(&self, offset: usize, length: usize) -> Result<(*mut c_void, usize), SharedMemoryError> {
        let span = self.span_mut(offset, length)?;
        let inside = span.as_mut_ptr() as usize % PAGE_BYTES as usize;
        let bytes = (inside + length).next_multiple_of(PAGE_BYTES as usize);
        Ok((span.as_mut_ptr().wrapping_sub(inside).cast(), bytes))
    }

    /// Gives the pages around a part of it back to the kernel: they read as zeros, and are absent until they are used. Of
    /// memory that was mapped already ([`Self::from_raw`]), only the pages that lie in that part.
    pub fn give_back(&self, offset: usize, length: usize) -> Result<(), SharedMemoryError> {
        let (mut start, mut bytes) = self.pages(offset, length)?;
        if self.kind != Kind::Mapped {
            let before = (self.start.as_ptr() as usize + offset) - start as usize;
            let skipped = before.next_multiple_of(PAGE_BYTES as usize);
            let end = (before + length) / PAGE_BYTES as usize * PAGE_BYTES as usize;
            (start, bytes) = (start.wrapping_byte_add(skipped), end.saturating_sub(skipped));
        }
        // SAFETY: bytes that others may change at any moment become zeros.
        unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxDontNeed) }
            .map_err(|errno| SharedMemoryError::System { operation: "giving back", errno })
    }

    /// Brings the pages around a part of it in, for writing.
    pub fn bring_in(&self, offset: usize, length: usize) -> Result<(), SharedMemoryError> {
        let (start, bytes) = self.pages(offset, length)?;
        // SAFETY: no byte changes.
        unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxPopulateWrite) }
            .map_err(|errno| SharedMemoryError::System { operation: "bringing in", errno })
    }

    /// Keeps the pages around a part of it in memory, and brings them in.
    pub fn lock(&self, offset: usize, length: usize) -> Result<(), SharedMemoryError> {
        let (start, bytes) = self.pages(offset, length)?;
        // SAFETY: no byte changes.
        unsafe { rustix::mm::mlock(start, bytes) }
            .map_err(|errno| SharedMemoryError::System { operation: "locking", errno })
    }

    /// Ends what [`Self::lock`] did.
    pub fn unlock(&self, offset: usize, length: usize) -> Result<(), SharedMemoryError> {
        let (start, bytes) = self.pages(offset, length)?;
        // SAFETY: no byte changes.
        unsafe { rustix::mm::munlock(start, bytes) }
            .map_err(|errno| SharedMemoryError::System { operation: "unlocking", errno })
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), SharedMemoryError> {
        self.span_mut(offset, bytes.len())?.copy_from(bytes.into());
        Ok(())
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), SharedMemoryError> {
        self.span(offset, bytes.len())?.copy_to(bytes);
        Ok(())
    }

    /// An aligned word of it.
    pub fn word(&self, offset: usize) -> Result<&AtomicU64, SharedMemoryError> {
        let pointer = self.span_mut(offset, 8)?.as_mut_ptr().cast::<u64>();
        if !pointer.is_aligned() {
            return Err(self.out_of_range(offset, 8));
        }
        // SAFETY: inside the range, aligned, and an atomic may change under a shared reference.
        Ok(unsafe { AtomicU64::from_ptr(pointer) })
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        if self.kind == Kind::Mapped {
            // SAFETY: the mapping is ours, and every span borrows `self`, so none outlives it.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), self.length_bytes) };
        }
    }
}
