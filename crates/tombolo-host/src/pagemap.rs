//! What the kernel's page tables say of a process's pages (`/proc/PID/pagemap`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const PAGE_BYTES: u64 = 4096;
const ENTRY_BYTES: usize = 8;
/// Bits of an entry.
const IN_MEMORY: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const MAPPED_ONCE: u64 = 1 << 56;

/// One page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Nothing is there.
    Nothing,
    /// It is in memory, and other mappings may have it, too.
    InMemory,
    /// It is in memory, and no other mapping has it.
    InMemoryAlone,
    /// It is swapped out, or on its way between two places in memory.
    Elsewhere,
}

fn held(entry: u64) -> Held {
    match (entry & IN_MEMORY != 0, entry & SWAPPED != 0) {
        (true, _) if entry & MAPPED_ONCE != 0 => Held::InMemoryAlone,
        (true, _) => Held::InMemory,
        (false, true) => Held::Elsewhere,
        (false, false) => Held::Nothing,
    }
}

fn open(pid: u32) -> io::Result<File> {
    File::open(format!("/proc/{pid}/pagemap"))
}

/// For the pages of a process at these addresses: whether each holds something, in memory or swapped.
pub fn hold_something(pid: u32, addresses: impl IntoIterator<Item = u64>) -> io::Result<Vec<bool>> {
    let entries = open(pid)?;
    let look = |address: u64| {
        let mut entry = [0u8; ENTRY_BYTES];
        entries.read_exact_at(&mut entry, address / PAGE_BYTES * ENTRY_BYTES as u64)?;
        Ok(held(u64::from_ne_bytes(entry)) != Held::Nothing)
    };
    addresses.into_iter().map(look).collect()
}

/// What is at the pages of a process in these runs: address of the first, and number of pages.
pub fn look(pid: u32, runs: &[(u64, u64)]) -> io::Result<Vec<Held>> {
    let entries = open(pid)?;
    let pages: u64 = runs.iter().map(|(_, count)| *count).sum();
    let mut bytes = vec![0u8; pages as usize * ENTRY_BYTES];
    let mut rest = bytes.as_mut_slice();
    for (address, count) in runs {
        let (part, behind) = rest.split_at_mut(*count as usize * ENTRY_BYTES);
        entries.read_exact_at(part, address / PAGE_BYTES * ENTRY_BYTES as u64)?;
        rest = behind;
    }
    let entries = bytes.chunks_exact(ENTRY_BYTES);
    Ok(entries.map(|entry| held(u64::from_ne_bytes(entry.try_into().unwrap_or_default()))).collect())
}

/// Whether the kernel has merged pages of a process with equal ones, of which the page tables say that they are shared.
pub fn has_merged_pages(pid: u32) -> bool {
    // Not there: the kernel cannot merge.
    let merged = std::fs::read_to_string(format!("/proc/{pid}/ksm_merging_pages"));
    merged.is_ok_and(|text| text.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_something_once_it_was_written() {
        let mut pages = vec![0u8; 4 * 4096];
        let first = (pages.as_ptr() as u64).next_multiple_of(4096);
        // SAFETY: whole pages of the vector, whose contents are zeroes anyway.
        unsafe { libc::madvise(first as *mut libc::c_void, 2 * 4096, libc::MADV_DONTNEED) };
        let at = (first - pages.as_ptr() as u64) as usize;
        pages[at + 4096] = 1;
        let own = std::process::id();
        assert_eq!(hold_something(own, [first, first + 4096, 0]).unwrap(), [false, true, false]);
        assert_eq!(look(own, &[(first, 2)]).unwrap(), [Held::Nothing, Held::InMemoryAlone]);
        let backwards = look(own, &[(first + 4096, 1), (first, 1)]).unwrap();
        assert_eq!(backwards, [Held::InMemoryAlone, Held::Nothing]);
        assert!(hold_something(u32::MAX, [0]).is_err() && look(u32::MAX, &[(0, 1)]).is_err());
        assert!(!has_merged_pages(own));
    }

    #[test]
    fn a_page_that_a_fork_shares_is_not_alone() {
        let memory = vec![1u8; 2 * 4096];
        let page = (memory.as_ptr() as u64).next_multiple_of(4096);
        let own = std::process::id();
        assert_eq!(look(own, &[(page, 1)]).unwrap(), [Held::InMemoryAlone]);
        // SAFETY: the child calls nothing but `pause`, until it is ended.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: as above.
                unsafe { libc::pause() };
            }
        }
        let shared = look(own, &[(page, 1)]);
        // `process_vm_readv` pins the page. The kernel gives this process a page of its own first, so that whoever has pinned it sees what
        // this process writes there later.
        crate::process::read_exactly(own, page, &mut [0]).unwrap();
        let own_again = look(own, &[(page, 1)]);
        // SAFETY: the child of this process.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(shared.unwrap(), [Held::InMemory]);
        assert_eq!(
            own_again.unwrap(),
            [Held::InMemoryAlone],
            "what was read to be pinned is the process's own"
        );
        assert_eq!(look(own, &[(page, 1)]).unwrap(), [Held::InMemoryAlone]);
    }
}
