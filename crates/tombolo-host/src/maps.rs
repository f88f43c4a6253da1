//! What a process has mapped, as the kernel answers by `/proc/PID/maps` (Linux 6.11).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// What a mapping may allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Its bytes may be read.
    Read = 1,
    /// They may be written.
    Write = 2,
    /// What is written is seen by others.
    Share = 8,
}

/// A mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Its first address.
    pub(crate) start: u64,
    /// The first address behind it.
    pub(crate) end: u64,
    /// Whether it shows a file.
    pub(crate) is_file: bool,
    permissions: u64,
}

impl Mapping {
    /// Whether it allows this.
    pub(crate) fn allows(self, permission: Permission) -> bool {
        self.permissions & permission as u64 != 0
    }
}

/// `struct procmap_query`, `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct MapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    permissions: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

/// Also the next mapping, where there is none at the address.
const OR_NEXT: u64 = 0x10;

/// The mapping at an address. ENOENT: there is none. ENOTTY or EINVAL: the kernel is older.
pub(crate) fn mapping_at(maps: &File, address: u64) -> io::Result<Mapping> {
    mapping(maps, address, 0)
}

/// The mapping at an address, or the next one behind it. Errors as of [`mapping_at`].
pub(crate) fn mapping_from(maps: &File, address: u64) -> io::Result<Mapping> {
    mapping(maps, address, OR_NEXT)
}

fn mapping(maps: &File, address: u64, flags: u64) -> io::Result<Mapping> {
    let mut query = MapQuery { size: size_of::<MapQuery>() as u64, flags, address, ..MapQuery::default() };
    let request = libc::_IOWR::<MapQuery>(u32::from(b'f'), 17);
    // SAFETY: the ioctl reads and writes the structure, whose size it is told, and no more: no buffers for names
    // are given.
    if unsafe { libc::ioctl(maps.as_raw_fd(), request, &raw mut query) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let MapQuery { start, end, permissions, .. } = query;
    Ok(Mapping { start, end, is_file: query.inode != 0, permissions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_says_what_it_allows() {
        let maps = File::open("/proc/self/maps").unwrap();
        let (text, stack) = (a_mapping_says_what_it_allows as *const () as u64, &raw const maps as u64);
        let (text, stack) = (mapping_at(&maps, text).unwrap(), mapping_at(&maps, stack).unwrap());
        assert!(text.allows(Permission::Read) && !text.allows(Permission::Write));
        assert!(stack.allows(Permission::Read) && stack.allows(Permission::Write));
        assert!(!text.allows(Permission::Share) && !stack.allows(Permission::Share));
        assert!(text.is_file && !stack.is_file);
        assert_eq!(mapping_at(&maps, 0).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
}
