//! How the processes are that use a node's API, for whoever asks the node.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::domain::ProgramDomain;
use super::domains::Programs;
use crate::fabric::status::{ProgramLimits, ProgramStatus};

impl Programs {
    /// What programs may have.
    pub(crate) fn limits(&self) -> ProgramLimits {
        ProgramLimits {
            domains: self.limits.domains.into(),
            memory_bytes: self.limits.program_memory_bytes,
            transactions: self.limits.transactions.into(),
        }
    }

    /// How one of them is.
    pub(crate) fn status(&self, domain: &Arc<ProgramDomain>) -> ProgramStatus {
        let peer = domain.socket.peer().ok();
        let (mut memory_bytes, mut windows) = (0, 0);
        let regions = self.regions.read();
        let of_domain = regions.range((domain.number, 0)..=(domain.number, u64::MAX));
        for (_, region) in of_domain.filter(|(_, region)| region.life == domain.life) {
            memory_bytes += region.segment.memory().len() as u64;
            windows += u32::from(region.window.is_some());
        }
        drop(regions);
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
