//! The status of the processes that use a node's API.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::domain::ProgramDomain;
use super::domains::Programs;
use crate::fabric::status::{ProgramLimits, ProgramStatus};

/// Bytes that each process of a domain has allocated, and its number of windows, by domain and life.
pub(crate) type MemoryByProcess = HashMap<(u16, u32), (u64, u32)>;

impl Programs {
    /// The limits of programs.
    pub(crate) fn limits(&self) -> ProgramLimits {
        ProgramLimits {
            domains: self.limits.domains.into(),
            memory_bytes: self.limits.program_memory_bytes,
            transactions: self.limits.transactions.into(),
        }
    }

    /// Sums the allocated memory of each process.
    pub(crate) fn memory_by_process(&self) -> MemoryByProcess {
        let mut all = MemoryByProcess::new();
        for ((number, _), region) in &*self.regions.read() {
            let (bytes, windows) = all.entry((*number, region.life)).or_default();
            *bytes += region.segment.memory().len() as u64;
            *windows += u32::from(region.window.is_some());
        }
        all
    }

    /// The status of one process of a domain.
    pub(crate) fn status(&self, domain: &Arc<ProgramDomain>, memory: &MemoryByProcess) -> ProgramStatus {
        let peer = domain.socket.peer().ok();
        let (memory_bytes, windows) = memory.get(&(domain.number, domain.life)).copied().unwrap_or_default();
        ProgramStatus {
            domain: domain.number,
            process: domain.process,
            process_id: peer.and_then(|peer| peer.process_id),
            user_id: peer.map(|peer| peer.user_id),
            transfers: domain.busy.load(Ordering::Relaxed).count_ones(),
            memory_bytes,
            windows,
            registered_bytes: domain.own.bytes(),
            has_mailbox: domain.mailbox_state.get().is_some(),
        }
    }
}
