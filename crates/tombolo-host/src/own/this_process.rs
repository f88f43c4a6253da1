//! The memory of this process, to a thread of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, PoisonError, RwLock};

use super::pages::{
    Absence, Absent, MAX_ACCESS_PAGES, MAX_LOOK_PAGES, PAGE_BYTES, absent, is_there, pages_of,
};
use super::process_memory::{Denied, ProcessMemory, Reason, Right, WordChange};
use super::{OwnMemory, guarded};
use crate::copying::Words;
use crate::maps::{self, Permission};
use crate::shared::{SharedSpan, SharedSpanMut};

/// The memory of this process, as far as it is permitted. Clones share that.
#[derive(Clone, Debug)]
pub struct ThisProcess {
    /// `None`: this process may not look at its page map, as after `setuid`.
    page_map: Option<Arc<File>>,
    maps: Option<Arc<File>>,
    /// Where what may be reached begins, and the ends: several, while one more is asked for and not refused yet. Not locked
    /// while bytes are copied, which may take for ever.
    ranges: Ranges,
}

type Ranges = Arc<RwLock<BTreeMap<u64, Vec<u64>>>>;

impl ThisProcess {
    /// Nothing of it may be reached yet. A process that has given its user up may not open its own page map (one that is open already
    /// serves): then the kernel is asked by `mincore`, which tells what is there, and no more.
    pub fn new() -> io::Result<Self> {
        let open = |path| match File::open(path) {
            Ok(file) => Ok(Some(Arc::new(file))),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        };
        let (page_map, maps) = (open("/proc/self/pagemap")?, open("/proc/self/maps")?);
        Ok(Self { page_map, maps, ranges: Arc::default() })
    }

    fn check_maps(&self, address: u64, length_bytes: u32, right: Right) -> Result<(), Denied> {
        // Where it cannot be asked, the access finds out.
        self.maps.as_ref().map_or(Ok(()), |maps| check(maps, address, length_bytes, right))
    }

    /// This range may be reached until the permit is dropped.
    pub fn permit(&self, memory: &OwnMemory) -> Permit {
        let (start, end) = (memory.address(), memory.address().saturating_add(memory.len() as u64));
        self.ranges.write().unwrap_or_else(PoisonError::into_inner).entry(start).or_default().push(end);
        Permit { ranges: self.ranges.clone(), start, end }
    }

    /// Does something with a range, if it may be reached.
    fn reaching<R>(
        &self,
        address: u64,
        length_bytes: usize,
        access: impl FnOnce(*mut u8) -> R,
    ) -> Result<R, u64> {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let end = address.checked_add(length_bytes as u64).ok_or(address)?;
        let mut before = ranges.range(..=address).rev();
        let is_permitted = before.any(|(_, limits)| limits.iter().any(|limit| end <= *limit));
        drop(ranges);
        if is_permitted { Ok(access(with_exposed_provenance_mut(address as usize))) } else { Err(address) }
    }
}

/// That a range may be reached. Dropped, it may not any more, unless it was permitted twice; an access that goes on ends later.
#[derive(Debug)]
#[must_use = "dropped, it permits nothing"]
pub struct Permit {
    ranges: Ranges,
    start: u64,
    end: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        let Some(ends) = ranges.get_mut(&self.start) else { return };
        if let Some(index) = ends.iter().position(|end| *end == self.end) {
            ends.swap_remove(index);
        }
        if ends.is_empty() {
            ranges.remove(&self.start);
        }
    }
}

/// How many of these bytes the system call copied that this is the outcome of.
fn count(outcome: isize) -> usize {
    usize::try_from(outcome).unwrap_or(0)
}

impl ProcessMemory for ThisProcess {
    fn absent(&self, address: u64, length_bytes: u32, right: Right) -> Absent {
        match &self.page_map {
            Some(page_map) => absent(page_map, address, length_bytes, right),
            None => not_in_core(address, length_bytes),
        }
    }

    fn is_there(&self, address: u64, length_bytes: u32, right: Right) -> bool {
        match &self.page_map {
            Some(page_map) => is_there(page_map, address, length_bytes, right),
            None => in_core(address, length_bytes).is_some_and(|absent| absent.pages == 0),
        }
    }

    fn in_one_go(&self, accesses: &mut dyn FnMut()) {
        guarded::looking_once(accesses);
    }

    fn check(&self, address: u64, length_bytes: u32, right: Right) -> Result<(), Denied> {
        self.reaching(address, length_bytes as usize, |_| ())
            .map_err(|address| Denied { address, reason: Reason::NotMapped })?;
        self.check_maps(address, length_bytes, right)
    }

    fn read(&self, address: u64, into: SharedSpanMut<'_>) -> Result<(), u64> {
        let left = self.reaching(address, into.len(), |from| {
            if guarded::is_guarded() {
                // SAFETY: registered memory, to which its owner uses no reference while it is registered, and a span.
                unsafe { guarded::copy(into.as_mut_ptr(), from, into.len(), Words::OfSource) }
            } else {
                by_system_call(into.as_mut_ptr(), from, into.len())
            }
        })?;
        if left == 0 { Ok(()) } else { Err(address + (into.len() - left) as u64) }
    }

    fn write(&self, address: u64, bytes: SharedSpan<'_>) -> Result<(), u64> {
        let left = self.reaching(address, bytes.len(), |to| {
            if guarded::is_guarded() {
                // SAFETY: as in `read`.
                unsafe { guarded::copy(to, bytes.as_ptr(), bytes.len(), Words::OfDestination) }
            } else {
                by_system_call(to, bytes.as_ptr(), bytes.len())
            }
        })?;
        if left == 0 { Ok(()) } else { Err(address + (bytes.len() - left) as u64) }
    }

    fn write_words(&self, address: u64, words: [u64; 2]) -> Result<(), u64> {
        let is_aligned = address.is_multiple_of(8);
        self.reaching(address, 16, |at| {
            for (place, word) in words.iter().enumerate() {
                let at = at.wrapping_add(place * 8);
                // SAFETY: as in `read`; the word is aligned where it is stored as one.
                let is_stored = unsafe {
                    if guarded::is_guarded() {
                        if is_aligned {
                            guarded::store(at.cast(), *word)
                        } else {
                            guarded::copy(at, word.to_le_bytes().as_ptr(), 8, Words::OfDestination) == 0
                        }
                    } else {
                        by_system_call(at, word.to_le_bytes().as_ptr(), 8) == 0
                    }
                };
                if !is_stored {
                    return Err(address + place as u64 * 8);
                }
            }
            Ok(())
        })?
    }

    fn change_word(&self, address: u64, change: WordChange) -> Result<u64, Option<u64>> {
        if !guarded::is_guarded() || !address.is_multiple_of(8) {
            return Err(None);
        }
        let changed = self.reaching(address, 8, |at| {
            // SAFETY: as in `read`; the word is aligned.
            unsafe {
                match change {
                    WordChange::Add(operand) => guarded::fetch_add(at.cast(), operand),
                    WordChange::CompareSwap(compare, swap) => guarded::compare_swap(at.cast(), compare, swap),
                }
            }
        });
        changed.map_err(Some)?.ok_or(Some(address))
    }

    fn touch(&self, address: u64, length_bytes: u32, right: Right) -> Result<(), Denied> {
        // Not under the lock: this may take for ever.
        self.check(address, length_bytes, right)?;
        let start = address / PAGE_BYTES * PAGE_BYTES;
        let bytes = (address + u64::from(length_bytes) - start).next_multiple_of(PAGE_BYTES);
        let advice = match right {
            Right::Read => libc::MADV_POPULATE_READ,
            Right::Write => libc::MADV_POPULATE_WRITE,
        };
        if populate(start, bytes, advice) {
            return Ok(());
        }
        self.check_maps(address, length_bytes, right)?;
        // Others may need only those before it.
        let mut pages = (start..start + bytes).step_by(PAGE_BYTES as usize);
        match pages.find(|page| !populate(*page, PAGE_BYTES, advice) && !touch_page(*page, right)) {
            Some(page) => Err(Denied { address: page.max(address), reason: Reason::Unavailable }),
            None => Ok(()),
        }
    }
}

/// The pages of a range that are not in memory, as `mincore` says. What is not mapped is not in memory.
fn not_in_core(address: u64, length_bytes: u32) -> Absent {
    let first = address / PAGE_BYTES * PAGE_BYTES;
    in_core(address, length_bytes).unwrap_or_else(|| {
        let mut absent = Absent { pages: 0, kind: Some(Absence::Missing) };
        for page in 0..pages_of(address, length_bytes).min(MAX_ACCESS_PAGES) {
            let is_there = in_core(first + page as u64 * PAGE_BYTES, 1).is_some_and(|found| found.pages == 0);
            absent.pages |= u32::from(!is_there) << page;
        }
        absent
    })
}

/// The pages of a mapped range that are not in memory. `None`: a part of the range is not mapped, and the kernel tells nothing of the rest.
fn in_core(address: u64, length_bytes: u32) -> Option<Absent> {
    let count = pages_of(address, length_bytes).min(MAX_LOOK_PAGES);
    let mut found = [0_u8; MAX_LOOK_PAGES];
    let start = with_exposed_provenance_mut::<libc::c_void>((address / PAGE_BYTES * PAGE_BYTES) as usize);
    // SAFETY: the call writes one byte for each page, for which there is room, and touches no page.
    let asked = unsafe { libc::mincore(start, count * PAGE_BYTES as usize, found.as_mut_ptr()) };
    let mut absent = Absent::default();
    for page in (0..count).filter(|page| found[*page] & 1 == 0) {
        // Of a longer range than an access, it counts only whether there is one.
        absent.pages |= 1_u32.checked_shl(page as u32).unwrap_or(1 << 31);
        absent.kind = Some(Absence::Missing);
    }
    (asked == 0).then_some(absent)
}

/// Brings whole pages in; false if one cannot be had.
fn populate(start: u64, bytes: u64, advice: i32) -> bool {
    loop {
        let pointer = with_exposed_provenance_mut::<libc::c_void>(start as usize);
        // SAFETY: populating brings pages in, and changes no contents.
        if unsafe { libc::madvise(pointer, bytes as usize, advice) } == 0 {
            return true;
        }
        let error = io::Error::last_os_error().raw_os_error();
        if !matches!(error, Some(libc::EINTR | libc::EAGAIN)) {
            return false;
        }
    }
}

/// Touches a page as the program does: a userfaultfd of an unprivileged program serves the faults of programs, and none of the kernel's.
/// False if the page cannot be had.
fn touch_page(page: u64, right: Right) -> bool {
    let at = with_exposed_provenance_mut::<u8>(page as usize);
    let mut byte = 0_u8;
    // SAFETY: an aligned word of a page that is mapped and may be reached so; to load it, or to add nothing to it in one step, changes no
    // contents, and where the mapping is gone the access ends with an error.
    unsafe {
        guarded::is_guarded()
            && match right {
                Right::Read => guarded::copy(&raw mut byte, at, 1, Words::OfSource) == 0,
                Right::Write => guarded::fetch_add(at.cast(), 0).is_some(),
            }
    }
}

/// Copies within this process by system calls, which end where a page cannot be had; how many bytes are left.
fn by_system_call(to: *mut u8, from: *const u8, bytes: usize) -> usize {
    let local = libc::iovec { iov_base: to.cast(), iov_len: bytes };
    let remote = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: bytes };
    // SAFETY: the call checks both ranges, of which nobody uses references.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    bytes - count(copied)
}

/// Whether the mappings of a process allow an access. Kernels before 6.11 are not asked.
pub(super) fn check(maps: &File, address: u64, length_bytes: u32, right: Right) -> Result<(), Denied> {
    let permission = match right {
        Right::Read => Permission::Read,
        Right::Write => Permission::Write,
    };
    let mut at = address;
    let end = address.checked_add(length_bytes.into());
    let end = end.ok_or(Denied { address, reason: Reason::NotMapped })?;
    while at < end {
        let mapping = match maps::mapping_at(maps, at) {
            Ok(mapping) => mapping,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => return Ok(()),
            Err(_) => return Err(Denied { address: at, reason: Reason::NotMapped }),
        };
        if !mapping.allows(permission) || mapping.end <= at {
            return Err(Denied { address: at, reason: Reason::Protected });
        }
        at = mapping.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a process that has given its user up.
    #[test]
    fn absent_pages_are_seen_without_proc() {
        let (process, memory) = (ThisProcess::new().unwrap(), OwnMemory::map(80 * 4096).unwrap());
        let process = ThisProcess { page_map: None, maps: None, ..process };
        let (address, _permit) = (memory.address(), process.permit(&memory));
        memory.write(4096, &[1; 4096]).unwrap();
        let missing = Absent { pages: 0b101, kind: Some(Absence::Missing) };
        assert_eq!(process.absent(address + 100, 2 * 4096 + 1, Right::Write), missing);
        assert_eq!(process.touch(address, 3 * 4096, Right::Write), Ok(()));
        assert_eq!(process.absent(address + 100, 2 * 4096 + 1, Right::Write), Absent::default());
        assert_eq!(process.write(address + 8000, SharedSpan::from([5; 300].as_slice())), Ok(()));
        // Beyond the pages that an access has.
        memory.write(0, &[1; 79 * 4096]).unwrap();
        assert!(process.is_there(address, 64 * 4096, Right::Write));
        memory.give_back(60 * 4096, 4096).unwrap();
        assert!(!process.is_there(address, 64 * 4096, Right::Write));
        // A hole hides nothing.
        // SAFETY: pages of a mapping that nobody else uses.
        unsafe { rustix::mm::munmap(memory.as_mut_ptr().add(62 * 4096).cast(), 4096).unwrap() };
        assert!(!process.is_there(address + 61 * 4096, 2 * 4096, Right::Write));
        let missing = Absent { pages: 0b101, kind: Some(Absence::Missing) };
        assert_eq!(process.absent(address + 60 * 4096, 3 * 4096, Right::Write), missing);
        // SAFETY: a page of a mapping that nobody else uses.
        unsafe {
            let first = memory.as_mut_ptr().cast();
            rustix::mm::mprotect(first, 4096, rustix::mm::MprotectFlags::READ).unwrap();
        }
        assert_eq!(process.write(address, SharedSpan::from([5; 8].as_slice())), Err(address));
        let denied = process.touch(address, 4096, Right::Write).unwrap_err();
        assert_eq!((denied.address, denied.reason), (address, Reason::Unavailable));
    }

    #[test]
    fn what_is_permitted_is_reached_and_nothing_else() {
        let (process, memory) = (ThisProcess::new().unwrap(), OwnMemory::map(2 * 4096).unwrap());
        let (address, bytes) = (memory.address(), [5; 100]);
        let write = |at| process.write(at, SharedSpan::from(bytes.as_slice()));
        assert_eq!(write(address), Err(address));
        let first = process.permit(&memory);
        assert_eq!(process.touch(address, 4096, Right::Write), Ok(()));
        assert_eq!(process.absent(address, 8192, Right::Write).pages, 0b10);
        assert_eq!([write(address), write(address + 8092)], [Ok(()), Ok(())]);
        assert_eq!(write(address + 8093), Err(address + 8093));
        assert_eq!(process.write_words(address + 8, [1, 2]), Ok(()));
        assert_eq!(process.change_word(address + 8, WordChange::Add(4)), Ok(1));
        assert_eq!(process.change_word(address + 9, WordChange::Add(4)), Err(None));
        assert_eq!(memory.word(8).unwrap().load(std::sync::atomic::Ordering::Relaxed), 5);
        // SAFETY: a page of a mapping that nobody else uses.
        unsafe {
            let second = memory.as_mut_ptr().add(4096).cast();
            rustix::mm::mprotect(second, 4096, rustix::mm::MprotectFlags::READ).unwrap();
        }
        let denied = Denied { address: address + 4096, reason: Reason::Protected };
        assert_eq!(process.check(address, 8192, Right::Write), Err(denied));
        assert_eq!(process.touch(address + 4000, 4096, Right::Write), Err(denied));
        assert_eq!(write(address + 4050), Err(address + 4096));
        // Asked for once more, and refused: the first stays.
        // SAFETY: the first page of the same memory, reached through the same spans.
        let part = unsafe { OwnMemory::from_raw(std::ptr::NonNull::new(memory.as_mut_ptr()).unwrap(), 8) };
        let of_part = process.permit(&part);
        assert_eq!(write(address + 1000), Ok(()));
        let again = process.permit(&memory);
        drop((of_part, again));
        assert_eq!(write(address), Ok(()));
        drop(first);
        assert_eq!(write(address), Err(address));
    }
}
