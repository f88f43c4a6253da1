//! Memory that another process may write while we read it.
//!
//! Rings, lent segments and registered programs' memory are mapped by several processes, and the
//! other one may be hostile. A Rust reference to such bytes would promise the compiler that they
//! do not change, which nobody can promise. So they are reached only through spans (a pointer, a
//! length and the lifetime of the mapping behind it), and whatever is to be *interpreted* is
//! copied out first and read from the copy:
//!
//! ```text
//! SharedMemory ── span(offset, length) ──► SharedSpan ── copy_to ──► private bytes ──► parse
//!              ── span_mut ──► SharedSpanMut ◄── copy_from ── SharedSpan (bytes moved once)
//! ```
//!
//! A [`SharedMemory`] is a memfd sealed against resizing, so that a peer cannot truncate it under
//! us and turn our next access into a SIGBUS. [`SharedMemory::open`] checks that of memory received
//! from a peer before it maps anything.

mod span;
mod window;

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::passed::PassedDescriptor;
use crate::process;

pub use span::{SharedSpan, SharedSpanMut};
pub use window::{MappedWindow, MoveError, WindowEnd, WindowState, can_hold_writers_back};

/// A huge page, in bytes: what one entry of a processor's address cache can stand for, where 512 ordinary
/// pages need 512.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// An ordinary one.
const PAGE_BYTES: usize = 4096;

/// Why shared memory could not be made, mapped or reached.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum SharedMemoryError {
    /// A system call failed.
    #[error("{operation} of shared memory: {errno}{}", advice(*.errno))]
    System {
        /// What was being done.
        operation: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
    /// The peer's descriptor may still shrink under us.
    #[error("the peer's shared memory is not a memfd sealed against shrinking")]
    NotSealed,
    /// The descriptor does not have the size that was agreed.
    #[error("shared memory of {found_bytes} bytes where {expected_bytes} were agreed")]
    WrongSize {
        /// What was agreed.
        expected_bytes: usize,
        /// What the descriptor has.
        found_bytes: u64,
    },
    /// A range that is not inside the memory, or not aligned for what is asked.
    #[error(
        "{length_bytes} bytes at {offset_bytes} do not lie, aligned, in {memory_bytes} bytes of shared memory"
    )]
    OutOfRange {
        /// Where the range begins.
        offset_bytes: usize,
        /// How long it is.
        length_bytes: usize,
        /// How much memory there is.
        memory_bytes: usize,
    },
}

impl SharedMemoryError {
    fn system(operation: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { operation, errno }
    }
}

/// Maps a file; one of a huge page or more so that its huge pages can be mapped as
/// such, unless somebody else takes that place meanwhile.
fn map_aligned(file: impl AsFd, length_bytes: usize, access: ProtFlags) -> Result<NonNull<u8>, Errno> {
    if length_bytes >= HUGE_PAGE_BYTES
        && let Some(place) = aligned_place(length_bytes)
    {
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
        // SAFETY: what is mapped there, if anything, stays.
        let mapped = unsafe { rustix::mm::mmap(place, length_bytes, access, flags, &file, 0) };
        if let Ok(pointer) = mapped {
            return NonNull::new(pointer.cast()).ok_or(Errno::NOMEM);
        }
    }
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let pointer =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), length_bytes, access, MapFlags::SHARED, file, 0) };
    NonNull::new(pointer?.cast()).ok_or(Errno::NOMEM)
}

/// Where there is room for so much at a multiple of a huge page, a moment ago.
fn aligned_place(length_bytes: usize) -> Option<*mut c_void> {
    let room_bytes = length_bytes.checked_add(HUGE_PAGE_BYTES)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing, and goes as it came.
    let room = unsafe {
        let room =
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), room_bytes, ProtFlags::empty(), flags).ok()?;
        rustix::mm::munmap(room, room_bytes).ok()?;
        room
    };
    Some(room.cast::<u8>().wrapping_add(room.align_offset(HUGE_PAGE_BYTES)).cast())
}

/// What helps, where that is known.
fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => ": raise `ulimit -n`",
        Errno::NFILE => ": raise the system's `fs.file-max`",
        _ => "",
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A memfd of fixed size, mapped read-write.
pub struct SharedMemory {
    pointer: NonNull<u8>,
    length_bytes: usize,
    descriptor: OwnedFd,
}

// SAFETY: the mapping belongs to the value until drop, and is only reached through spans (raw
// pointers) and atomics.
unsafe impl Send for SharedMemory {}
// SAFETY: as for Send.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New zeroed memory, sealed against resizing, to be passed to a peer.
    pub fn create(name: &str, length_bytes: usize) -> Result<Self, SharedMemoryError> {
        let memory = Self::create_growing_seals(name, length_bytes)?;
        rustix::fs::fcntl_add_seals(&memory.descriptor, SealFlags::SEAL)
            .map_err(SharedMemoryError::system("sealing"))?;
        Ok(memory)
    }

    /// Maps memory that a peer made: checks first that it has the agreed size and cannot shrink.
    pub fn open(
        descriptor: impl Into<PassedDescriptor>,
        length_bytes: usize,
    ) -> Result<Self, SharedMemoryError> {
        Self::open_as(descriptor.into(), length_bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn open_as(
        descriptor: PassedDescriptor,
        length_bytes: usize,
        access: ProtFlags,
    ) -> Result<Self, SharedMemoryError> {
        // Only memfds (and hugetlbfs) answer; EINVAL is another kind of file.
        let seals = rustix::fs::fcntl_get_seals(&descriptor).map_err(|_| SharedMemoryError::NotSealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(SharedMemoryError::NotSealed);
        }
        let found_bytes = rustix::fs::fstat(&descriptor)
            .map_err(SharedMemoryError::system("inspection"))?
            .st_size
            .cast_unsigned();
        if found_bytes != length_bytes as u64 {
            return Err(SharedMemoryError::WrongSize { expected_bytes: length_bytes, found_bytes });
        }
        Self::map_as(descriptor.into(), length_bytes, access)
    }

    fn map(descriptor: OwnedFd, length_bytes: usize) -> Result<Self, SharedMemoryError> {
        Self::map_as(descriptor, length_bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map_as(
        descriptor: OwnedFd,
        length_bytes: usize,
        access: ProtFlags,
    ) -> Result<Self, SharedMemoryError> {
        let failed = SharedMemoryError::system("mapping");
        let pointer = map_aligned(&descriptor, length_bytes, access).map_err(failed)?;
        Ok(Self { pointer, length_bytes, descriptor })
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.length_bytes
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.length_bytes == 0
    }

    /// Where the mapping begins; valid while `self` lives.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    /// Unmaps what is behind the first bytes, which are whole pages. No span may be left.
    fn unmap_end(&mut self, left_bytes: usize) {
        let Some(bytes) = self.length_bytes.checked_sub(left_bytes).filter(|bytes| *bytes > 0) else {
            return;
        };
        // SAFETY: this mapping is ours, reaches from the pointer over `length_bytes`, and every span
        // borrows `self`, so none outlives this exclusive borrow. An error could only mean wrong
        // arguments, and there is nobody to tell.
        let _ = unsafe { rustix::mm::munmap(self.pointer.as_ptr().add(left_bytes).cast::<c_void>(), bytes) };
        self.length_bytes = left_bytes;
    }

    /// Gives the pages of a range back to the system. Whoever has them mapped, here or in another process, reads zeroes
    /// from then on. This takes no lock of the address space.
    pub fn give_pages_back(&self, offset_bytes: usize, length_bytes: usize) -> Result<(), SharedMemoryError> {
        self.range(offset_bytes, length_bytes, 1)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.descriptor, flags, offset_bytes as u64, length_bytes as u64)
            .map_err(SharedMemoryError::system("giving pages back"))
    }

    /// From now on every access to the mapping fails, and what was mapped is given up. The addresses stay taken, so
    /// that an access that comes late meets nothing else there: the kernel's fail with EFAULT, other ones raise
    /// SIGSEGV.
    pub fn make_inaccessible(&self) -> Result<(), SharedMemoryError> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let place = self.pointer.as_ptr().cast::<c_void>();
        // SAFETY: the range is this mapping's own, and it is replaced in one step. A thread that still has a
        // pointer there gets a fault, as said.
        unsafe { rustix::mm::mmap_anonymous(place, self.length_bytes, ProtFlags::empty(), flags) }
            .map(|_| ())
            .map_err(SharedMemoryError::system("giving up a mapping"))
    }

    /// Copies bytes from other memory by way of the kernel, which also notices where either has become inaccessible.
    pub fn copy_by_kernel(
        &self,
        offset_bytes: usize,
        from: &Self,
        from_offset_bytes: usize,
        length_bytes: usize,
    ) -> Result<(), SharedMemoryError> {
        let target = self.range(offset_bytes, length_bytes, 1)?;
        let source = from.range(from_offset_bytes, length_bytes, 1)?;
        let span = |pointer: NonNull<u8>| {
            [process::Span { address: pointer.as_ptr() as u64, length: length_bytes as u64 }]
        };
        // SAFETY: the range belongs to shared memory, which no reference points into.
        let copied = unsafe { process::read_memory(std::process::id(), &span(target), &span(source)) };
        match copied {
            Ok(bytes) if bytes == length_bytes => Ok(()),
            _ => Err(SharedMemoryError::system("copying")(Errno::FAULT)),
        }
    }

    fn range(
        &self,
        offset_bytes: usize,
        length_bytes: usize,
        align: usize,
    ) -> Result<NonNull<u8>, SharedMemoryError> {
        let inside = offset_bytes.checked_add(length_bytes).is_some_and(|end| end <= self.length_bytes);
        if !inside || !offset_bytes.is_multiple_of(align) {
            return Err(SharedMemoryError::OutOfRange {
                offset_bytes,
                length_bytes,
                memory_bytes: self.length_bytes,
            });
        }
        // SAFETY: the offset lies inside the mapping, as just checked.
        Ok(unsafe { self.pointer.add(offset_bytes) })
    }

    /// Bytes of the memory, to read.
    pub fn span(
        &self,
        offset_bytes: usize,
        length_bytes: usize,
    ) -> Result<SharedSpan<'_>, SharedMemoryError> {
        let pointer = self.range(offset_bytes, length_bytes, 1)?;
        Ok(SharedSpan { pointer, length_bytes, memory: PhantomData })
    }

    /// Bytes of the memory, to write.
    pub fn span_mut(
        &self,
        offset_bytes: usize,
        length_bytes: usize,
    ) -> Result<SharedSpanMut<'_>, SharedMemoryError> {
        Ok(SharedSpanMut { span: self.span(offset_bytes, length_bytes)? })
    }

    /// A child made by `fork` does not have it.
    pub fn keep_from_children(&self) {
        // SAFETY: the mapping is ours, and stays as it is here.
        unsafe { libc::madvise(self.pointer.as_ptr().cast(), self.length_bytes, libc::MADV_DONTFORK) };
    }

    /// Maps a range, as far as it is inside, for writing: the first access to each of its pages then
    /// does not fault. Only a hint.
    pub fn populate(&self, offset_bytes: usize, length_bytes: usize) {
        let start = offset_bytes.min(self.length_bytes);
        let length_bytes = length_bytes.min(self.length_bytes - start);
        // SAFETY: the range lies inside the mapping, and populating changes no contents.
        unsafe {
            libc::madvise(self.pointer.as_ptr().add(start).cast(), length_bytes, libc::MADV_POPULATE_WRITE)
        };
    }

    /// Makes the range of [`HUGE_PAGE_BYTES`] at that offset one huge page, with what it holds, allocated
    /// and mapped here; whoever maps it, does so at once and as one. False: the kernel has none now, does not
    /// want to, or the range is not a whole one; all is as it was, but for a page that may have been allocated.
    pub fn make_huge(&self, offset_bytes: usize) -> bool {
        let end = offset_bytes.checked_add(HUGE_PAGE_BYTES);
        if !offset_bytes.is_multiple_of(HUGE_PAGE_BYTES) || end.is_none_or(|end| end > self.length_bytes) {
            return false;
        }
        // Where there is no page, there is nothing to put together.
        let one = FallocateFlags::empty();
        if rustix::fs::fallocate(&self.descriptor, one, offset_bytes as u64, 1).is_err() {
            return false;
        }
        let collapse = || {
            // SAFETY: the range lies inside the mapping, and to put pages together changes no contents.
            let outcome = unsafe {
                let start = self.pointer.as_ptr().add(offset_bytes);
                libc::madvise(start.cast(), HUGE_PAGE_BYTES, libc::MADV_COLLAPSE)
            };
            if outcome == 0 { Ok(()) } else { Err(last_error()) }
        };
        rustix::io::retry_on_intr(collapse).is_ok()
    }

    /// As [`Self::populate`], with huge pages as far as whole ones lie in the range and the kernel has them.
    pub fn populate_huge(&self, offset_bytes: usize, length_bytes: usize) {
        let end = offset_bytes.saturating_add(length_bytes).min(self.length_bytes);
        let mut next = offset_bytes.min(end).next_multiple_of(HUGE_PAGE_BYTES);
        while next.saturating_add(HUGE_PAGE_BYTES) <= end && self.make_huge(next) {
            next += HUGE_PAGE_BYTES;
        }
        self.populate(offset_bytes, length_bytes);
    }

    /// A 32-bit word of the memory that both processes change atomically.
    pub fn atomic_u32(&self, offset_bytes: usize) -> Result<&AtomicU32, SharedMemoryError> {
        let pointer = self.range(offset_bytes, 4, 4)?;
        // SAFETY: mapped while self lives, aligned (mappings are page-aligned, the offset was
        // checked), and an atomic may change under a shared reference.
        Ok(unsafe { AtomicU32::from_ptr(pointer.as_ptr().cast()) })
    }

    /// A 64-bit word of the memory that both processes change atomically.
    pub fn atomic_u64(&self, offset_bytes: usize) -> Result<&AtomicU64, SharedMemoryError> {
        let pointer = self.range(offset_bytes, 8, 8)?;
        // SAFETY: as in `atomic_u32`.
        Ok(unsafe { AtomicU64::from_ptr(pointer.as_ptr().cast()) })
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SharedMemory({} bytes)", self.length_bytes)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        self.unmap_end(0);
    }
}

/// A part of shared memory that keeps it mapped.
#[derive(Clone, Debug)]
pub struct HeldSpan {
    memory: Arc<SharedMemory>,
    offset_bytes: usize,
    length_bytes: usize,
}

impl HeldSpan {
    /// A range of that memory.
    pub fn new(
        memory: Arc<SharedMemory>,
        offset_bytes: usize,
        length_bytes: usize,
    ) -> Result<Self, SharedMemoryError> {
        memory.span(offset_bytes, length_bytes)?;
        Ok(Self { memory, offset_bytes, length_bytes })
    }

    /// Its bytes.
    pub fn span(&self) -> SharedSpan<'_> {
        // It was found to lie inside.
        self.memory.span(self.offset_bytes, self.length_bytes).unwrap_or(SharedSpan::empty())
    }

    /// A part of it; `None` if out of range.
    pub fn part(&self, offset_bytes: usize, length_bytes: usize) -> Option<Self> {
        self.span().part(offset_bytes, length_bytes)?;
        let memory = Arc::clone(&self.memory);
        Some(Self { memory, offset_bytes: self.offset_bytes + offset_bytes, length_bytes })
    }
}

/// Shared memory that is being unmapped piece by piece, from its end: to unmap much at once holds up every
/// other thread of the process that maps, unmaps or protects memory meanwhile.
///
/// The kernel frees the pages with the last mapping or descriptor of them, in this process or another.
#[derive(Debug)]
pub struct Unmapping(SharedMemory);

impl Unmapping {
    /// Begins. The memory is owned here, so no span of it is left.
    pub fn new(memory: SharedMemory) -> Self {
        Self(memory)
    }

    /// Unmaps whole pages, at most the given number of bytes. True: nothing is mapped any more.
    pub fn go_on(&mut self, bytes: usize) -> bool {
        let left_bytes = self.0.length_bytes.saturating_sub(bytes);
        self.0.unmap_end(left_bytes / PAGE_BYTES * PAGE_BYTES);
        self.0.length_bytes == 0
    }
}

#[cfg(test)]
mod tests;
