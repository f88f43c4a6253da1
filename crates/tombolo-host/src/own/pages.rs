//! Which pages of a range are there, as the kernel's page tables say (`/proc/PID/pagemap`).

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::process_memory::Right;

/// A page.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of one access, at most: a block between two programs of one node.
pub const MAX_ACCESS_BYTES: u32 = 64 * 1024;
/// Pages that one access touches, at most.
pub const MAX_ACCESS_PAGES: usize = (MAX_ACCESS_BYTES as u64 / PAGE_BYTES) as usize + 1;
/// Bytes of accesses side by side that are looked at with one call, at most ([`super::ProcessMemory::is_there`]). The kernel takes 1 µs for a
/// call, and some 20 ns for a page.
pub const MAX_LOOK_BYTES: u32 = 256 * 1024;
pub(super) const MAX_LOOK_PAGES: usize = (MAX_LOOK_BYTES as u64 / PAGE_BYTES) as usize + 1;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// Of a file, or shared memory.
const FILE: u64 = 1 << 61;
const WRITE_PROTECTED: u64 = 1 << 57;
const EXCLUSIVE: u64 = 1 << 56;

/// Why an access to a page would fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// There is none: never touched, given back, or moved away by whoever serves the range.
    Missing,
    /// The kernel has swapped it out, or is moving it.
    Swapped,
    /// It is shared with another process until one of the two writes (fork), or is the kernel's page of zeros.
    CopyOnWrite,
    /// A userfaultfd protects it from writes.
    WriteProtected,
}

impl Absence {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Missing, Self::Swapped, Self::CopyOnWrite, Self::WriteProtected];
}

/// The pages of a range at which an access would fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Absent {
    /// Bit `i`: the page `i` behind that of the range's first byte.
    pub pages: u32,
    /// Of the first of them.
    pub kind: Option<Absence>,
}

/// How many pages a range touches.
pub fn pages_of(address: u64, length_bytes: u32) -> usize {
    (address % PAGE_BYTES + u64::from(length_bytes)).div_ceil(PAGE_BYTES) as usize
}

/// Why an access to a page with this entry would fault.
fn absence(entry: u64, right: Right) -> Option<Absence> {
    if entry & PRESENT == 0 {
        return Some(if entry & SWAPPED == 0 { Absence::Missing } else { Absence::Swapped });
    }
    match right {
        Right::Read => None,
        Right::Write if entry & WRITE_PROTECTED != 0 => Some(Absence::WriteProtected),
        Right::Write => (entry & (FILE | EXCLUSIVE) == 0).then_some(Absence::CopyOnWrite),
    }
}

/// What an access to each page of a range would meet, as far as the kernel says, which is asked once, for `MOST` pages at most.
fn look<const MOST: usize>(
    page_map: &File,
    address: u64,
    length_bytes: u32,
    right: Right,
    mut meet: impl FnMut(usize, Option<Absence>),
) {
    let count = pages_of(address, length_bytes).min(MOST);
    let mut entries = [[0; 8]; MOST];
    let found = page_map.read_at(entries[..count].as_flattened_mut(), address / PAGE_BYTES * 8);
    for (page, entry) in entries[..found.unwrap_or(0) / 8].iter().enumerate() {
        meet(page, absence(u64::from_ne_bytes(*entry), right));
    }
}

/// The pages of a range at which an access would fault. What the kernel does not say is taken to be there.
pub(super) fn absent(page_map: &File, address: u64, length_bytes: u32, right: Right) -> Absent {
    let mut absent = Absent::default();
    look::<MAX_ACCESS_PAGES>(page_map, address, length_bytes, right, |page, kind| {
        if let Some(kind) = kind {
            absent.pages |= 1 << page;
            absent.kind.get_or_insert(kind);
        }
    });
    absent
}

/// Whether an access to no page of a range would fault. What the kernel does not say is taken to be there.
pub(super) fn is_there(page_map: &File, address: u64, length_bytes: u32, right: Right) -> bool {
    let mut is_there = true;
    look::<MAX_LOOK_PAGES>(page_map, address, length_bytes, right, |_, kind| is_there &= kind.is_none());
    is_there
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own::OwnMemory;

    #[test]
    fn the_kinds_of_absence_are_told_apart() {
        let page_map = File::open("/proc/self/pagemap").unwrap();
        let memory = OwnMemory::map(4 * 4096).unwrap();
        let look = |right| absent(&page_map, memory.address() + 100, 3 * 4096, right);
        assert_eq!(look(Right::Read), Absent { pages: 0b1111, kind: Some(Absence::Missing) });
        memory.write(4096, &[1; 8192]).unwrap();
        assert_eq!(look(Right::Write), Absent { pages: 0b1001, kind: Some(Absence::Missing) });
        // A page that is only read is the kernel's.
        let mut byte = [0; 4];
        memory.read(0, &mut byte).unwrap();
        std::hint::black_box(byte);
        memory.write(3 * 4096, &[1]).unwrap();
        assert_eq!(look(Right::Read), Absent::default());
        assert_eq!(look(Right::Write), Absent { pages: 0b0001, kind: Some(Absence::CopyOnWrite) });
        assert_eq!(absent(&page_map, memory.address() + 4096, 1, Right::Write), Absent::default());
        assert_eq!([pages_of(0, 0), pages_of(4095, 2), pages_of(1, 4096)], [0, 2, 2]);
    }

    #[test]
    fn a_page_that_is_absent_among_many_is_seen() {
        let page_map = File::open("/proc/self/pagemap").unwrap();
        let bytes = MAX_LOOK_BYTES as usize;
        let memory = OwnMemory::map(bytes + 4096).unwrap();
        let is_there = |offset, right| is_there(&page_map, memory.address() + offset, MAX_LOOK_BYTES, right);
        memory.write(0, &vec![1; bytes]).unwrap();
        assert!(is_there(0, Right::Write));
        // It reaches into one page more.
        assert!(!is_there(1, Right::Read));
        memory.write(bytes, &[1]).unwrap();
        assert!(is_there(1, Right::Read));
        for page in [0, 31, 64] {
            memory.give_back(page * 4096, 4096).unwrap();
            assert!(!is_there(1, Right::Read), "page {page}");
            memory.write(page * 4096, &[1]).unwrap();
        }
    }
}
