//! Awake domains: those whose doorbells the engine's loop checks in each round.
//!
//! If there are few domains, all are awake. If there are many, domains that have not rung for a while are told that the
//! loop does not check their doorbells, as when the loop sleeps. The next bell of such a program comes with a message,
//! which makes the domain awake again. So thousands of quiet programs cost nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;

use super::domain::ProgramDomain;
use super::domains::{Domains, Programs};

/// Number of domains that stay awake even if they are quiet. Each costs one load in each round of the loop. A bound,
/// not a measurement.
const LOOKED_AT: usize = 64;

/// The awake domains.
#[derive(Debug, Default)]
pub(crate) struct Awake(RwLock<Arc<Domains>>);

impl Awake {
    /// All awake domains.
    pub(crate) fn domains(&self) -> Arc<Domains> {
        self.0.read().clone()
    }

    /// All awake domains, if one of them has rung.
    pub(crate) fn if_rung(&self) -> Option<Arc<Domains>> {
        let domains = self.0.read();
        domains.values().any(|domain| domain.page.rung() != 0).then(|| domains.clone())
    }

    pub(super) fn add(&self, domain: &Arc<ProgramDomain>) {
        let mut awake = self.0.write();
        // A thread that found a bell of this domain in an older table may call this after the process has left. Another
        // process may have the same number by now.
        let is_here = awake.get(&domain.key()).is_some_and(|known| Arc::ptr_eq(known, domain));
        if !is_here && !domain.has_left.load(Ordering::Relaxed) {
            domain.rang.store(true, Ordering::Relaxed);
            domain.page.wake_up();
            Arc::make_mut(&mut awake).insert(domain.key(), domain.clone());
        }
    }

    /// Removes a domain whose process has left.
    pub(super) fn remove(&self, domain: &Arc<ProgramDomain>) {
        let mut awake = self.0.write();
        domain.has_left.store(true, Ordering::Relaxed);
        if awake.get(&domain.key()).is_some_and(|known| Arc::ptr_eq(known, domain)) {
            Arc::make_mut(&mut awake).remove(&domain.key());
        }
    }

    /// If there are many domains, removes those that have not rung since the last call.
    fn leave_out_quiet(&self) {
        let mut awake = self.0.write();
        if awake.len() <= LOOKED_AT {
            return;
        }
        Arc::make_mut(&mut awake).retain(|_, domain| {
            // First tell the domain that its bell is not checked, then check it once more: a bell rung in between is
            // seen here, and a later bell comes with a message.
            let stays = domain.rang.swap(false, Ordering::Relaxed) || domain.page.fall_asleep();
            if stays {
                domain.page.wake_up();
            }
            stays
        });
    }
}

impl Programs {
    /// Removes quiet domains if there are many. Called by the loop now and then.
    pub(crate) fn leave_out_quiet(&self) {
        self.awake.leave_out_quiet();
    }
}
