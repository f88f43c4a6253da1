//! The memory of another process, by descriptors that it passes.
//!
//! The program opens its own `mem`, `maps` and `pagemap` files of `/proc` and passes them on. A descriptor of
//! the first pins the address space, not the number of the process: after an exec or exit it reads
//! and writes nothing, whoever has the number then, and no ptrace permission is needed to use it.
//! The kernel lets it pass by `mprotect`, so the second is asked first what is allowed
//! (`PROCMAP_QUERY`, Linux 6.11; before that, nothing is asked). Pages that a userfaultfd serves
//! are absent for it until they are touched in another way ([`ProcessMemory::touch`]).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, PROC_SUPER_MAGIC};

use super::pages::{Absent, PAGE_BYTES, absent, is_there};
use super::process_memory::{Denied, ProcessMemory, Reason, Right, WordChange};
use super::this_process::check;
use crate::passed::PassedDescriptor;
use crate::process;
use crate::shared::{SharedSpan, SharedSpanMut};

/// What a program passes on: its own `mem`, `maps` and `pagemap`.
pub fn descriptors() -> io::Result<[OwnedFd; 3]> {
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    Ok([memory.into(), File::open("/proc/self/maps")?.into(), File::open("/proc/self/pagemap")?.into()])
}

/// Why a program's descriptors are not taken.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorError {
    /// One of them is something else.
    #[error("the descriptors are not /proc/{0}/mem, to read and write, /proc/{0}/maps and /proc/{0}/pagemap")]
    Other(u32),
    /// There are not as many as there should be.
    #[error(
        "memory is registered with three descriptors (/proc/self/mem, maps and pagemap), and one that is held"
    )]
    Count,
}

/// How often a page is brought in for a copy that does not find it then, before it cannot be had: it goes again at once, or is protected
/// from writes by a userfaultfd, which is no more than a refusal here.
const MAX_TOUCHES: u32 = 32;

/// The memory of another process, by its descriptors.
#[derive(Debug)]
pub struct ProgramMemory {
    memory: File,
    maps: File,
    /// `None`: the program's library is older, and no page is looked for.
    page_map: Option<File>,
    /// Passed beside the files, and held as long as they are: so the program sees when nobody has them any more.
    held: Option<PassedDescriptor>,
    process_id: u32,
}

impl ProgramMemory {
    /// Takes descriptors if they are what they should be: of that process, and of `/proc`. What a
    /// program might pass instead (a file that asks who writes to it, a pipe) is never written to.
    ///
    /// Where a program passes something else, it may make this wait.
    pub fn of(process_id: u32, descriptors: Vec<PassedDescriptor>) -> Result<Self, DescriptorError> {
        let mut descriptors = descriptors.into_iter();
        let (Some(memory), Some(maps), page_map, held, None) = (
            descriptors.next(),
            descriptors.next(),
            descriptors.next(),
            descriptors.next(),
            descriptors.next(),
        ) else {
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
        let is_page_map = page_map.as_ref().is_none_or(|file| is(file, "pagemap", OFlags::RDONLY));
        if !is(&memory, "mem", OFlags::RDWR) || !is(&maps, "maps", OFlags::RDONLY) || !is_page_map {
            return Err(DescriptorError::Other(process_id));
        }
        let file = |descriptor: PassedDescriptor| File::from(OwnedFd::from(descriptor));
        Ok(Self { memory: file(memory), maps: file(maps), page_map: page_map.map(file), held, process_id })
    }
}

impl ProgramMemory {
    /// Whose memory it is.
    pub fn process_id(&self) -> u32 {
        self.process_id
    }

    /// Whether absent pages can be looked for.
    pub fn has_page_map(&self) -> bool {
        self.page_map.is_some()
    }

    /// Copies `length` bytes at `address` by several calls of `piece`. A call is told how many bytes are copied already, and the address
    /// of the next one; it returns how many more it has copied. Where it copies none, the page there is brought in first (a userfaultfd
    /// may serve it). An error: the address of a page that cannot be had.
    fn copy(&self, address: u64, length: usize, piece: impl Fn(usize, i64) -> isize) -> Result<(), u64> {
        let (mut done, mut touches) = (0, 0);
        while done < length {
            let at = address + done as u64;
            match usize::try_from(piece(done, at.cast_signed())) {
                Ok(count @ 1..) => (done, touches) = (done + count, 0),
                _ if touches < MAX_TOUCHES
                    && process::read_exactly(self.process_id, at, &mut [0]).is_ok() =>
                {
                    touches += 1;
                }
                _ => return Err(at),
            }
        }
        Ok(())
    }

    /// What it was made of, for [`Self::of`] in another process.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let files = [Some(&self.memory), Some(&self.maps), self.page_map.as_ref()];
        files.into_iter().flatten().map(AsFd::as_fd).chain(self.held.as_ref().map(AsFd::as_fd)).collect()
    }
}

impl ProcessMemory for ProgramMemory {
    fn absent(&self, address: u64, length_bytes: u32, _right: Right) -> Absent {
        // The kernel makes the copy that a fork has put off when bytes are written from here.
        let page_map = self.page_map.as_ref();
        page_map.map_or_else(Absent::default, |page_map| absent(page_map, address, length_bytes, Right::Read))
    }

    fn is_there(&self, address: u64, length_bytes: u32, _right: Right) -> bool {
        let page_map = self.page_map.as_ref();
        page_map.is_none_or(|page_map| is_there(page_map, address, length_bytes, Right::Read))
    }

    fn check(&self, address: u64, length_bytes: u32, right: Right) -> Result<(), Denied> {
        check(&self.maps, address, length_bytes, right)
    }

    fn read(&self, address: u64, into: SharedSpanMut<'_>) -> Result<(), u64> {
        // The kernel passes by `mprotect` here.
        self.check(address, into.len() as u32, Right::Read).map_err(|denied| denied.address)?;
        self.copy(address, into.len(), |done, at| {
            // SAFETY: the kernel writes the rest of the span, to which no reference exists.
            unsafe {
                let rest = into.as_mut_ptr().add(done).cast();
                libc::pread(self.memory.as_raw_fd(), rest, into.len() - done, at)
            }
        })
    }

    fn write(&self, address: u64, bytes: SharedSpan<'_>) -> Result<(), u64> {
        self.check(address, bytes.len() as u32, Right::Write).map_err(|denied| denied.address)?;
        self.copy(address, bytes.len(), |done, at| {
            // SAFETY: the kernel reads the rest of the span, to which no reference exists.
            unsafe {
                let rest = bytes.as_ptr().add(done).cast();
                libc::pwrite(self.memory.as_raw_fd(), rest, bytes.len() - done, at)
            }
        })
    }

    fn write_words(&self, address: u64, words: [u64; 2]) -> Result<(), u64> {
        for (place, word) in words.iter().enumerate() {
            self.write(address + place as u64 * 8, SharedSpan::from(word.to_le_bytes().as_slice()))?;
        }
        Ok(())
    }

    fn change_word(&self, _address: u64, _change: WordChange) -> Result<u64, Option<u64>> {
        // No call of the kernel changes a word of another process in one step.
        Err(None)
    }

    /// Has each absent page brought by whoever serves it: by a read of one byte, which harms nobody even if the number
    /// of the process had gone to another meanwhile.
    fn touch(&self, address: u64, length_bytes: u32, right: Right) -> Result<(), Denied> {
        self.check(address, length_bytes, right)?;
        let end = address + u64::from(length_bytes);
        let mut at = address;
        while at < end {
            let next = (at / PAGE_BYTES + 1) * PAGE_BYTES;
            process::read_exactly(self.process_id, at, &mut [0])
                .map_err(|_| Denied { address: at, reason: Reason::Unavailable })?;
            at = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventFd;
    use crate::own::OwnMemory;

    fn of_this_process() -> ProgramMemory {
        ProgramMemory::of(std::process::id(), descriptors().unwrap().map(PassedDescriptor::from).into())
            .unwrap()
    }

    fn write(program: &ProgramMemory, address: u64, bytes: &[u8]) -> Result<(), u64> {
        program.write(address, SharedSpan::from(bytes))
    }

    fn read(program: &ProgramMemory, address: u64, bytes: &mut [u8]) -> Result<(), u64> {
        // SAFETY: a slice that nobody else uses.
        program.read(address, unsafe { SharedSpanMut::from_raw(bytes.as_mut_ptr(), bytes.len()) })
    }

    #[test]
    fn memory_is_reached_as_far_as_it_goes() {
        let (program, memory) = (of_this_process(), OwnMemory::map(8192).unwrap());
        let bytes: Vec<u8> = (0..8192).map(|index| (index % 251) as u8).collect();
        write(&program, memory.address() + 5, &bytes[5..5000]).unwrap();
        let mut found = vec![0; 4995];
        memory.read(5, &mut found).unwrap();
        assert!(found == bytes[5..5000]);
        read(&program, memory.address() + 5, &mut found[..100]).unwrap();
        assert!(found[..100] == bytes[5..105]);
        program.write_words(memory.address() + 16, [3, 4]).unwrap();
        assert_eq!(memory.word(24).unwrap().load(std::sync::atomic::Ordering::Relaxed), 4);
        assert_eq!(read(&program, 8, &mut [0]), Err(8));
        assert_eq!(write(&program, u64::MAX - 3, &[0; 8]), Err(u64::MAX - 3));
        let address = memory.address();
        assert_eq!(program.touch(address, 8192, Right::Write), Ok(()));
        drop(memory);
        assert_eq!(write(&program, address, &[1]), Err(address));
        let denied = Denied { address, reason: Reason::NotMapped };
        assert_eq!(program.touch(address, 1, Right::Read), Err(denied));
    }

    /// A pager whose pages go before they are copied.
    #[test]
    fn pages_that_a_userfaultfd_serves_are_brought_in_by_the_copy() {
        use crate::uffd::{Event, FEATURE_POISON, Userfaultfd};
        use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
        let Ok(uffd) = Userfaultfd::for_this_process() else {
            return crate::testing::left_out("no userfaultfd");
        };
        uffd.enable(FEATURE_POISON).unwrap();
        let (program, memory) = (of_this_process(), OwnMemory::map(4 * 4096).unwrap());
        let at = memory.address();
        uffd.register_missing(at, 4 * 4096).unwrap();
        let (is_over, served) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let zeroes = OwnMemory::map(4096).unwrap();
                while !is_over.load(Ordering::SeqCst) {
                    match uffd.read_event().unwrap() {
                        Some(Event::Fault { address, .. }) => {
                            served.fetch_add(1, Ordering::SeqCst);
                            uffd.copy(address / 4096 * 4096, zeroes.address(), 4096, false).unwrap();
                        }
                        _ => std::thread::yield_now(),
                    }
                }
            });
            write(&program, at + 100, &[7; 9000]).unwrap();
            let mut found = [1; 9200];
            read(&program, at, &mut found).unwrap();
            assert!(found[100..9100] == [7; 9000] && found[..100] == [0; 100] && found[9100..] == [0; 100]);
            assert_eq!(served.load(Ordering::SeqCst), 3);
            // The last one is not there for anybody.
            uffd.poison(at + 3 * 4096, 4096).unwrap();
            assert_eq!(write(&program, at + 3 * 4096 - 8, &[7; 16]), Err(at + 3 * 4096));
            is_over.store(true, Ordering::SeqCst);
        });
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
        let (address, second) = (memory.address() + 4000, memory.address() + 4096);
        protect(rustix::mm::MprotectFlags::READ);
        assert_eq!(write(&program, address, &[1; 200]), Err(second));
        read(&program, address, &mut [0; 200]).unwrap();
        protect(rustix::mm::MprotectFlags::empty());
        assert_eq!(read(&program, address, &mut [0; 200]), Err(second));
        write(&program, address, &[1; 96]).unwrap();
    }

    #[test]
    fn other_descriptors_are_refused() {
        let own = std::process::id();
        let file = |path: &str| OwnedFd::from(File::open(path).unwrap());
        let [memory, maps, page_map] = descriptors().unwrap();
        let twin = |descriptor: &OwnedFd| descriptor.try_clone().unwrap();
        let of = |passed: Vec<OwnedFd>| {
            ProgramMemory::of(own, passed.into_iter().map(PassedDescriptor::from).collect())
        };
        assert!(of(vec![twin(&memory), twin(&maps), twin(&page_map)]).is_ok());
        assert!(of(vec![twin(&memory), twin(&maps)]).is_ok());
        for wrong in [
            vec![twin(&maps), twin(&memory)],
            vec![file("/proc/self/mem"), twin(&maps)],
            vec![file("/dev/null"), twin(&maps)],
            vec![OwnedFd::from(File::create("/proc/self/comm").unwrap()), twin(&maps)],
            vec![twin(&memory), file("/proc/self/status")],
            vec![EventFd::new().unwrap().into(), twin(&maps)],
            vec![twin(&memory), twin(&maps), file("/proc/self/status")],
        ] {
            assert_eq!(of(wrong).unwrap_err(), DescriptorError::Other(own));
        }
        let many = vec![twin(&memory), twin(&maps), twin(&page_map), twin(&maps), twin(&maps)];
        for wrong in [vec![twin(&memory)], many] {
            assert_eq!(of(wrong).unwrap_err(), DescriptorError::Count);
        }
        let other = ProgramMemory::of(own + 1, vec![memory.into(), maps.into()]).unwrap_err();
        assert_eq!(other, DescriptorError::Other(own + 1));
    }
}
