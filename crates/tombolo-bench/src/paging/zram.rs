//! The same reads with the kernel's own swap on zram, under a memory cgroup.

use std::process::Command;

use tombolo_app::swap::pages_swapped_in;
use tombolo_host::cgroup::MemoryGroup;
use tombolo_host::timing::host::ZRAM_TURN_TIMEOUT;
use tombolo_host::zram::ZramSwap;

use super::PROBE_LIMIT;
use crate::summary::Summary;
use crate::{Failure, result, this_binary};

/// The kernel now and then kills a program in a small cgroup although it could
/// swap; such a run is made again.
const ATTEMPTS: usize = 4;

/// Kernel swap, which is on only while a program is measured with it, so that
/// nothing of the other measurements gets swapped.
pub struct KernelSwap {
    area_bytes: u64,
    algorithm: String,
    /// What a probe uses beside its area: libraries, stacks, page tables, samples.
    base_bytes: u64,
}

impl KernelSwap {
    /// Sets swap up for probes with areas of `area_bytes`.
    pub fn new(area_bytes: u64, arguments: &[String]) -> Result<Self, Failure> {
        let algorithm = ZramSwap::new(area_bytes * 2, ZRAM_TURN_TIMEOUT)?.algorithm();
        let mut swap = Self { area_bytes, algorithm, base_bytes: 0 };
        // Room for everything: what it uses at most, less the area, is the base.
        let (_, peak_bytes) = swap.run(area_bytes * 2, arguments)?;
        swap.base_bytes = peak_bytes.saturating_sub(area_bytes);
        Ok(swap)
    }

    /// How zram compresses.
    pub fn algorithm(&self) -> String {
        self.algorithm.clone()
    }

    /// What probes use beside their area.
    pub fn base_bytes(&self) -> u64 {
        self.base_bytes
    }

    /// Runs a probe that may keep `local_bytes` of its area in memory.
    pub fn probe(&self, local_bytes: u64, arguments: &[String]) -> Result<Summary, Failure> {
        let before = pages_swapped_in()?;
        let mut attempt = 1;
        let summary = loop {
            match self.run(local_bytes + self.base_bytes, arguments) {
                Ok((summary, _)) => break summary,
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                Err(failure) => return Err(failure),
            }
        };
        // Were the limit or the swap not in force, these would be reads of plain memory.
        if pages_swapped_in()? < before + summary.count / 4 {
            return Err(Failure::new("the kernel has not swapped under the cgroup's limit"));
        }
        Ok(summary)
    }

    fn run(&self, limit_bytes: u64, arguments: &[String]) -> Result<(Summary, u64), Failure> {
        let _zram = ZramSwap::new(self.area_bytes * 2, ZRAM_TURN_TIMEOUT)?;
        let group = MemoryGroup::new(&format!("tombolo-bench-{}", std::process::id()))?;
        group.limit(limit_bytes)?;
        let mut command = Command::new(this_binary()?);
        command.arg("probe").args(arguments).arg("--join").arg(group.procs());
        let summary = result(&mut command, PROBE_LIMIT)?;
        Ok((summary, group.peak_bytes()?))
    }
}
