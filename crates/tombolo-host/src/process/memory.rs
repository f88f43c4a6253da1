//! Reading another process's memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::maps;

/// A range of another process's memory, or of ours, in bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Span {
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Most ranges that one vectored call takes (`IOV_MAX`).
pub const SPANS_MAX: usize = 1024;

/// Copies the `remote` ranges of process `pid` to the `local` ranges of this
/// one, in order; returns the bytes copied, fewer where a range ends.
///
/// # Safety
///
/// Every local range must be writable memory of this process that no Rust
/// reference points into.
pub unsafe fn read_memory(pid: u32, local: &[Span], remote: &[Span]) -> io::Result<usize> {
    // SAFETY: Span has the layout of struct iovec; the local ranges are the
    // caller's promise; the kernel checks the remote ones.
    let count = unsafe {
        libc::process_vm_readv(
            pid as i32,
            local.as_ptr().cast(),
            local.len() as u64,
            remote.as_ptr().cast(),
            remote.len() as u64,
            0,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Reads exactly `buffer.len()` bytes at `address` of process `pid`.
pub fn read_exactly(pid: u32, address: u64, buffer: &mut [u8]) -> io::Result<()> {
    let length = buffer.len() as u64;
    let local = [Span { address: buffer.as_mut_ptr() as u64, length }];
    // SAFETY: the local range is exactly `buffer`, borrowed mutably for the call.
    let count = unsafe { read_memory(pid, &local, &[Span { address, length }])? };
    if count == buffer.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The memory that a process had when this was made: not that of a program which the process executes later, nor of another process
/// that gets its number.
#[derive(Debug)]
pub struct Memory {
    memory: File,
    /// Its mappings, of which the kernel can be asked.
    maps: Option<File>,
}

impl Memory {
    /// The memory of process `pid`, whose permission is asked for here and not for each read.
    pub fn of(pid: u32) -> io::Result<Self> {
        let maps = File::open(format!("/proc/{pid}/maps")).ok();
        Ok(Self { memory: File::open(format!("/proc/{pid}/mem"))?, maps })
    }

    /// Reads exactly `buffer.len()` bytes, also from pages that the process may not read itself (`PROT_NONE`). An error if the memory
    /// has ended.
    pub fn read_exactly(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(buffer, address)
    }

    /// The mapping around an address: its first address, and the one behind it. `None`: there is none, or the kernel does not tell (before
    /// Linux 6.11).
    pub fn mapping_around(&self, address: u64) -> Option<(u64, u64)> {
        let mapping = maps::mapping_at(self.maps.as_ref()?, address).ok()?;
        Some((mapping.start, mapping.end))
    }

    /// Reads exactly the bytes of `local`, into memory that no reference points into.
    ///
    /// # Safety
    ///
    /// As for [`read_memory`].
    pub unsafe fn read_to(&self, local: Span, address: u64) -> io::Result<()> {
        let mut done = 0;
        while done < local.length {
            // SAFETY: the caller's promise, for a part of the range.
            let count = unsafe {
                libc::pread64(
                    self.memory.as_raw_fd(),
                    (local.address + done) as *mut libc::c_void,
                    (local.length - done) as usize,
                    (address + done).cast_signed(),
                )
            };
            match count {
                1.. => done += count as u64,
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// An address of a process that can be read: the start of its first mapping.
    fn readable(pid: u32) -> u64 {
        let mappings = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        u64::from_str_radix(mappings.split('-').next().unwrap(), 16).unwrap()
    }

    #[test]
    fn memory_is_that_of_the_program_it_was_opened_for() {
        let mut shell = Command::new("sh");
        // Executes another program when it is told to.
        let mut child =
            shell.args(["-c", "read line; exec sleep 600"]).stdin(Stdio::piped()).spawn().unwrap();
        while std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap() != "sh\n" {
            std::thread::yield_now();
        }
        let memory = Memory::of(child.id()).unwrap();
        let at = readable(child.id());
        let (mut first, mut copy) = ([0u8; 4], [0u8; 4]);
        memory.read_exactly(at, &mut first).unwrap();
        assert_eq!(&first, b"\x7fELF");
        // SAFETY: the local range is `copy`, borrowed mutably for the call.
        unsafe { memory.read_to(Span { address: copy.as_mut_ptr() as u64, length: 4 }, at) }.unwrap();
        assert_eq!(copy, first);
        assert!(memory.read_exactly(0, &mut first).is_err());
        // The shell's end of the pipe closes with its memory.
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        while std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap() != "sleep\n" {
            std::thread::yield_now();
        }
        let at = readable(child.id());
        assert!(read_exactly(child.id(), at, &mut first).is_ok());
        assert!(memory.read_exactly(at, &mut first).is_err(), "another program's memory was read");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
