//! Domains whose bells the engine's loop looks at, round after round.
//!
//! A few are all looked at. Of many, those that are quiet for a while are told that nobody looks,
//! as when the loop sleeps: then their program's next bell comes with a message, which brings them back.
//! So thousands of quiet programs cost nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;

use super::domain::ProgramDomain;
use super::domains::{Domains, Programs};

/// Number of domains that are looked at even if they are quiet. Each costs a round of the loop one load. A bound,
/// not a measurement.
const LOOKED_AT: usize = 64;

/// The domains whose doorbells are looked at.
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
        // A thread that found a bell of this domain in an older table may call this after the process has left, and another process
        // may have its number by now.
        let is_here = awake.get(&domain.key()).is_some_and(|known| Arc::ptr_eq(known, domain));
        if !is_here && !domain.has_left.load(Ordering::Relaxed) {
            domain.rang.store(true, Ordering::Relaxed);
            domain.page.wake_up();
            Arc::make_mut(&mut awake).insert(domain.key(), domain.clone());
        }
    }

    /// Its process has left.
    pub(super) fn remove(&self, domain: &Arc<ProgramDomain>) {
        let mut awake = self.0.write();
        domain.has_left.store(true, Ordering::Relaxed);
        if awake.get(&domain.key()).is_some_and(|known| Arc::ptr_eq(known, domain)) {
            Arc::make_mut(&mut awake).remove(&domain.key());
        }
    }

    /// Leaves out those that have not rung since the last time, if they are many.
    fn leave_out_quiet(&self) {
        let mut awake = self.0.write();
        if awake.len() <= LOOKED_AT {
            return;
        }
        Arc::make_mut(&mut awake).retain(|_, domain| {
            // Said first, then looked again: a bell in between is seen here, a later one is told.
            let stays = domain.rang.swap(false, Ordering::Relaxed) || domain.page.fall_asleep();
            if stays {
                domain.page.wake_up();
            }
            stays
        });
    }
}

impl Programs {
    /// The loop's, now and then.
    pub(crate) fn leave_out_quiet(&self) {
        self.awake.leave_out_quiet();
    }
}
