//! The reader with the kernel's swap on zram, in a memory cgroup.

use std::process::Command;

use tombolo_app::swap::{LimitedMemory, pages_swapped_in};
use tombolo_host::timing::host::ZRAM_TURN_TIMEOUT;

use super::{Run, reader};
use crate::{Failure, result, this_binary};

/// The group may use the local bytes and, in addition, what the reader is measured to use beside its
/// area, so that no side is favoured.
pub fn measure(run: &Run<'_>) -> Result<reader::Found, Failure> {
    let bytes = run.arguments.bytes as u64;
    let (_, peak_bytes) = in_group(run, bytes * 2, 0.01)?;
    let beside_bytes = peak_bytes.saturating_sub(bytes);
    let before = pages_swapped_in()?;
    let (found, _) = in_group(run, run.arguments.local as u64 + beside_bytes, run.arguments.seconds)?;
    // Were the limit or the swap not in force, these would be reads of plain memory.
    if run.arguments.local < run.arguments.bytes && pages_swapped_in()? == before {
        return Err(Failure::new("the kernel has not swapped under the cgroup's limit"));
    }
    Ok(found)
}

fn in_group(run: &Run<'_>, limit_bytes: u64, seconds: f64) -> Result<(reader::Found, u64), Failure> {
    let swap_bytes = run.arguments.bytes as u64 * 2;
    let group = LimitedMemory::new("tombolo-bench-reads", limit_bytes, swap_bytes, ZRAM_TURN_TIMEOUT)?;
    let mut command = Command::new(this_binary()?);
    command.args(run.reader(seconds)).arg("--join").arg(group.procs());
    let found = result(&mut command, run.limit())?;
    Ok((found, group.peak_bytes()?))
}
