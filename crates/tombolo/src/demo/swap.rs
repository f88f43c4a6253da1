//! The kernel's own swap on zram, in a memory cgroup, where root allows it.

use std::io;
use std::path::PathBuf;

use tombolo_host::cgroup::{MemoryGroup, Relief};
use tombolo_host::zram::ZramSwap;

use super::ALL_LOCAL_BYTES;

/// That there is swap on zram. It is on only while a program runs with it.
pub struct Swap(());

/// A cgroup with a limit, and swap behind it.
pub struct Limited {
    // Dropped in this order.
    relief: Option<Relief>,
    group: MemoryGroup,
    _zram: ZramSwap,
}

impl Swap {
    /// Looks whether it can be set up; else, why not.
    pub fn find() -> io::Result<Self> {
        let swap = Self(());
        swap.limit(ALL_LOCAL_BYTES)?;
        Ok(swap)
    }

    /// Sets both up for one run.
    pub fn limit(&self, bytes: u64) -> io::Result<Limited> {
        let zram = ZramSwap::new(ALL_LOCAL_BYTES)?;
        let group = MemoryGroup::new(&format!("tombolo-demo-{}", std::process::id()))?;
        group.limit(bytes)?;
        let relief = Relief::start(&group, bytes)?;
        Ok(Limited { relief, group, _zram: zram })
    }
}

impl Limited {
    /// The file that a process writes `0` to in order to join.
    pub fn procs(&self) -> PathBuf {
        self.group.procs()
    }

    /// Most bytes that were used at once.
    pub fn peak_bytes(&self) -> io::Result<u64> {
        self.group.peak_bytes()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // It writes to the group's files.
        drop(self.relief.take());
    }
}
