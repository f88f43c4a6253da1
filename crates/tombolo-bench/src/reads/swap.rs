//! The reader with the kernel's swap on zram, in a memory cgroup.

use std::process::Command;

use tombolo_host::cgroup::{MemoryGroup, Relief};
use tombolo_host::zram::ZramSwap;

use super::{Run, reader};
use crate::Failure;
use crate::processes;

/// The group may use the local bytes and, in addition, what the reader is measured to use beside its
/// area, so that no side is favoured.
pub fn measure(run: &Run<'_>) -> Result<reader::Found, Failure> {
    let bytes = run.arguments.bytes as u64;
    let zram = ZramSwap::new(bytes * 2)?;
    let (_, peak_bytes) = in_group(run, bytes * 2, 0.01)?;
    let beside_bytes = peak_bytes.saturating_sub(bytes);
    let before = pages_swapped_in()?;
    let (found, _) = in_group(run, run.arguments.local as u64 + beside_bytes, run.arguments.seconds)?;
    drop(zram);
    // Were the limit or the swap not in force, these would be reads of plain memory.
    if run.arguments.local < run.arguments.bytes && pages_swapped_in()? == before {
        return Err(Failure::new("the kernel has not swapped under the cgroup's limit"));
    }
    Ok(found)
}

fn in_group(run: &Run<'_>, limit_bytes: u64, seconds: f64) -> Result<(reader::Found, u64), Failure> {
    let group = MemoryGroup::new(&format!("tombolo-bench-reads-{}", std::process::id()))?;
    group.limit(limit_bytes)?;
    let relief = Relief::start(&group, limit_bytes)?;
    let mut command = Command::new(processes::this_binary()?);
    command.args(run.reader(seconds)).arg("--join").arg(group.procs());
    let found = processes::result(&mut command, run.limit());
    let peak_bytes = group.peak_bytes();
    // The relief writes to the group's files.
    drop(relief);
    Ok((found?, peak_bytes?))
}

/// The kernel's own count.
fn pages_swapped_in() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/vmstat")?;
    let count = text.lines().find_map(|line| line.strip_prefix("pswpin ")?.parse().ok());
    count.ok_or_else(|| Failure::new("/proc/vmstat has no pswpin"))
}
