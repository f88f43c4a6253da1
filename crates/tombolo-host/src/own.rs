//! Memory of a program that other processes read and write, where the program has it: the
//! program's side ([`OwnMemory`], [`descriptors`]) and the other's ([`ProgramMemory`]).
//!
//! The program opens its own `mem` and `maps` files of `/proc` and passes them on. A descriptor of
//! the first pins the address space, not the number of the process: after an exec or exit it reads
//! and writes nothing, whoever has the number then, and no ptrace permission is needed to use it.
//! The kernel lets it pass by `mprotect`, so the second is asked first what is allowed
//! (`PROCMAP_QUERY`, Linux 6.11; before that, nothing is asked). Pages that a userfaultfd serves
//! are absent for it until somebody else has touched them, which [`ProgramMemory`] does.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{OFlags, PROC_SUPER_MAGIC};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::maps::{self, Permission};
use crate::passed::PassedDescriptor;
use crate::process;
use crate::shared::{SharedMemoryError, SharedSpan, SharedSpanMut};

const PAGE_BYTES: u64 = 4096;

/// A range of this process's memory that others may change at any moment: never a Rust reference.
#[derive(Debug)]
pub struct OwnMemory {
    start: NonNull<u8>,
    length_bytes: usize,
    /// Whether to unmap it on drop.
    mapped: bool,
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
        Ok(Self { start, length_bytes, mapped: true })
    }

    /// Memory that is mapped already. It stays mapped when this is dropped.
    ///
    /// # Safety
    ///
    /// No Rust reference is used for these bytes while others may change them, and nothing else that
    /// would mind comes to this range while it is registered, or may become so: a registration that failed
    /// without the node's refusal is settled first.
    pub unsafe fn from_raw(start: NonNull<u8>, length_bytes: usize) -> Self {
        Self { start, length_bytes, mapped: false }
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
        // SAFETY: mapped while `self` lives: by `map`, or as the caller of `from_raw` promised.
        let whole = unsafe { SharedSpan::from_raw(self.start.as_ptr(), self.length_bytes) };
        whole.part(offset, length).ok_or_else(|| self.out_of_range(offset, length))
    }

    /// Bytes of it, to write.
    pub fn span_mut(&self, offset: usize, length: usize) -> Result<SharedSpanMut<'_>, SharedMemoryError> {
        // SAFETY: as in `span`; writable by the same promises.
        let whole = unsafe { SharedSpanMut::from_raw(self.start.as_ptr(), self.length_bytes) };
        whole.part(offset, length).ok_or_else(|| self.out_of_range(offset, length))
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
        if self.mapped {
            // SAFETY: the mapping is ours, and every span borrows `self`, so none outlives it.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), self.length_bytes) };
        }
    }
}

/// What a program passes on: its own `mem` and `maps`.
pub fn descriptors() -> io::Result<[OwnedFd; 2]> {
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    Ok([memory.into(), File::open("/proc/self/maps")?.into()])
}

/// Why a program's descriptors are not taken.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorError {
    /// One of them is something else.
    #[error("the descriptors are not /proc/{0}/mem, to read and write, and /proc/{0}/maps")]
    Other(u32),
    /// There are not two.
    #[error("memory is registered with two descriptors: /proc/self/mem and /proc/self/maps")]
    Count,
}

/// Why a program's memory was not read or written.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
pub enum AccessError {
    /// The memory is not mapped, or may not be accessed so.
    #[error("the program has no such memory")]
    Nothing,
    /// The transfer was given up meanwhile.
    #[error("given up")]
    GivenUp,
}

/// The memory of another process, by its descriptors.
#[derive(Debug)]
pub struct ProgramMemory {
    memory: File,
    maps: File,
    process_id: u32,
}

impl ProgramMemory {
    /// Takes descriptors if they are what they should be: of that process, and of `/proc`. What a
    /// program might pass instead (a file that asks who writes to it, a pipe) is never written to.
    ///
    /// Where a program passes something else, it may make this wait.
    pub fn of(process_id: u32, descriptors: Vec<PassedDescriptor>) -> Result<Self, DescriptorError> {
        let Ok([memory, maps]) = <[PassedDescriptor; 2]>::try_from(descriptors) else {
            return Err(DescriptorError::Count);
        };
        let is = |descriptor: &PassedDescriptor, name: &str, mode: OFlags| {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()));
            let flags = rustix::fs::fcntl_getfl(descriptor);
            // The check that asks the file system comes last: the program may serve that file system itself.
            path.is_ok_and(|path| path.as_os_str() == format!("/proc/{process_id}/{name}").as_str())
                && flags.is_ok_and(|flags| flags & OFlags::RWMODE == mode && !flags.contains(OFlags::PATH))
                && rustix::fs::fstatfs(descriptor).is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC)
        };
        if !is(&memory, "mem", OFlags::RDWR) || !is(&maps, "maps", OFlags::RDONLY) {
            return Err(DescriptorError::Other(process_id));
        }
        let file = |descriptor: PassedDescriptor| File::from(OwnedFd::from(descriptor));
        Ok(Self { memory: file(memory), maps: file(maps), process_id })
    }

    /// Fills `bytes` from there. Waits for pages that somebody has to bring; `wanted` says after
    /// that whether to go on.
    pub fn read(&self, address: u64, bytes: &mut [u8], wanted: impl Fn() -> bool) -> Result<(), AccessError> {
        self.allows(address, bytes.len() as u64, Permission::Read)?;
        let mut done = 0;
        while done < bytes.len() {
            let at = address + done as u64;
            match self.memory.read_at(&mut bytes[done..], at) {
                Ok(count) if count > 0 => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => {
                    // Each call ends at the end of a page.
                    let end = bytes.len().min(done + (PAGE_BYTES - at % PAGE_BYTES) as usize);
                    self.bring(at, &wanted)?;
                    match self.memory.read_at(&mut bytes[done..end], at) {
                        Ok(count) if count > 0 => done += count,
                        _ => return Err(AccessError::Nothing),
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes bytes there; see [`Self::read`]. Bytes before an address that is none may have been written.
    pub fn write(&self, address: u64, bytes: &[u8], wanted: impl Fn() -> bool) -> Result<(), AccessError> {
        self.allows(address, bytes.len() as u64, Permission::Write)?;
        let mut done = 0;
        while done < bytes.len() {
            let at = address + done as u64;
            match self.memory.write_at(&bytes[done..], at) {
                Ok(count) if count > 0 => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => {
                    let end = bytes.len().min(done + (PAGE_BYTES - at % PAGE_BYTES) as usize);
                    self.bring(at, &wanted)?;
                    match self.memory.write_at(&bytes[done..end], at) {
                        Ok(count) if count > 0 => done += count,
                        _ => return Err(AccessError::Nothing),
                    }
                }
            }
        }
        Ok(())
    }

    /// Has an absent page brought by whoever serves it: by a read of one byte, which harms nobody
    /// even if the number of the process had gone to another meanwhile.
    fn bring(&self, address: u64, wanted: impl Fn() -> bool) -> Result<(), AccessError> {
        self.allows(address, 1, Permission::Read)?;
        process::read_exactly(self.process_id, address, &mut [0]).map_err(|_| AccessError::Nothing)?;
        if wanted() { Ok(()) } else { Err(AccessError::GivenUp) }
    }

    /// Whether the program itself could access the range so.
    fn allows(&self, address: u64, length_bytes: u64, permission: Permission) -> Result<(), AccessError> {
        let end = address.checked_add(length_bytes).ok_or(AccessError::Nothing)?;
        let mut at = address;
        while at < end {
            let mapping = match maps::mapping_at(&self.maps, at) {
                Ok(mapping) => mapping,
                // The kernel is older than this question.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                    return Ok(());
                }
                Err(_) => return Err(AccessError::Nothing),
            };
            if !mapping.allows(permission) || mapping.end <= at {
                return Err(AccessError::Nothing);
            }
            at = mapping.end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventFd;

    fn of_this_process() -> ProgramMemory {
        ProgramMemory::of(std::process::id(), descriptors().unwrap().map(PassedDescriptor::from).into())
            .unwrap()
    }

    #[test]
    fn memory_is_reached_as_far_as_it_goes() {
        let (program, memory) = (of_this_process(), OwnMemory::map(8192).unwrap());
        let bytes: Vec<u8> = (0..8192).map(|index| (index % 251) as u8).collect();
        program.write(memory.address() + 5, &bytes[5..5000], || true).unwrap();
        let mut found = vec![0; 4995];
        memory.read(5, &mut found).unwrap();
        assert!(found == bytes[5..5000]);
        program.read(memory.address() + 5, &mut found[..100], || true).unwrap();
        assert!(found[..100] == bytes[5..105]);
        assert_eq!(program.read(8, &mut [0], || true), Err(AccessError::Nothing));
        assert_eq!(program.write(u64::MAX - 3, &[0; 8], || true), Err(AccessError::Nothing));
        let address = memory.address();
        drop(memory);
        assert_eq!(program.write(address, &[1], || true), Err(AccessError::Nothing));
    }

    #[test]
    fn protection_holds() {
        let (program, memory) = (of_this_process(), OwnMemory::map(8192).unwrap());
        let protect = |flags| {
            // SAFETY: the second page of a mapping that nobody else uses.
            unsafe {
                rustix::mm::mprotect(memory.as_mut_ptr().add(4096).cast(), 4096, flags).unwrap();
            }
        };
        let address = memory.address() + 4000;
        protect(rustix::mm::MprotectFlags::READ);
        assert_eq!(program.write(address, &[1; 200], || true), Err(AccessError::Nothing));
        program.read(address, &mut [0; 200], || true).unwrap();
        protect(rustix::mm::MprotectFlags::empty());
        assert_eq!(program.read(address, &mut [0; 200], || true), Err(AccessError::Nothing));
        program.write(address, &[1; 96], || true).unwrap();
    }

    #[test]
    fn other_descriptors_are_refused() {
        let own = std::process::id();
        let file = |path: &str| OwnedFd::from(File::open(path).unwrap());
        let [memory, maps] = descriptors().unwrap();
        let twin = |descriptor: &OwnedFd| descriptor.try_clone().unwrap();
        assert!(ProgramMemory::of(own, vec![twin(&memory).into(), twin(&maps).into()]).is_ok());
        for wrong in [
            vec![twin(&maps), twin(&memory)],
            vec![file("/proc/self/mem"), twin(&maps)],
            vec![file("/dev/null"), twin(&maps)],
            vec![OwnedFd::from(File::create("/proc/self/comm").unwrap()), twin(&maps)],
            vec![twin(&memory), file("/proc/self/status")],
            vec![EventFd::new().unwrap().into(), twin(&maps)],
        ] {
            let wrong = wrong.into_iter().map(PassedDescriptor::from).collect();
            assert_eq!(ProgramMemory::of(own, wrong).unwrap_err(), DescriptorError::Other(own));
        }
        assert_eq!(ProgramMemory::of(own, vec![twin(&memory).into()]).unwrap_err(), DescriptorError::Count);
        let other = ProgramMemory::of(own + 1, vec![memory.into(), maps.into()]).unwrap_err();
        assert_eq!(other, DescriptorError::Other(own + 1));
    }
}
