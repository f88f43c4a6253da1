//! A memory cgroup with the kernel's own swap on zram behind it, where root allows it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tombolo_host::cgroup::{MemoryGroup, Relief, Relieved};
use tombolo_host::zram::ZramSwap;

/// A memory cgroup with a limit, and swap on zram, which is on only while this lasts: nothing that runs
/// later may get swapped.
pub struct LimitedMemory {
    // Dropped in this order: the relief writes to the group's files.
    relief: Option<Relief>,
    group: MemoryGroup,
    _zram: ZramSwap,
}

impl LimitedMemory {
    /// Sets both up: a cgroup of this name that may use `limit_bytes`, and swap for `swap_bytes` before
    /// compression. Waits so long for the end of another process's swap on zram.
    pub fn new(name: &str, limit_bytes: u64, swap_bytes: u64, patience: Duration) -> io::Result<Self> {
        let zram = ZramSwap::new(swap_bytes, patience)?;
        let group = MemoryGroup::new(&format!("{name}-{}", std::process::id()))?;
        group.limit(limit_bytes)?;
        let relief = Relief::start(&group, limit_bytes)?;
        Ok(Self { relief, group, _zram: zram })
    }

    /// The file that a process writes `0` to in order to join.
    pub fn procs(&self) -> PathBuf {
        self.group.procs()
    }

    /// The most bytes that were used at once.
    pub fn peak_bytes(&self) -> io::Result<u64> {
        self.group.peak_bytes()
    }

    /// What the group had to be given beyond its limit.
    pub fn relieved(&self) -> Relieved {
        self.relief.as_ref().map_or_else(Relieved::default, Relief::relieved)
    }
}

/// Pages that the kernel has read from swap since it started.
pub fn pages_swapped_in() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/vmstat")?;
    let count = text.lines().find_map(|line| line.strip_prefix("pswpin ")?.parse().ok());
    count.ok_or_else(|| io::Error::other("/proc/vmstat has no pswpin"))
}
