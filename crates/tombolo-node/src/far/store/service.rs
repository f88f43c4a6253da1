//! The store's own thread: keeps links alive, notices lenders that are silent, dials those that come back, and carries
//! out what no thread of the front end does.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_core::store::{LenderId, NoOtherLender};
use tombolo_host::event;
use tombolo_host::timing::node as timing;
use tombolo_link::Address;

use super::lender::Job;
use super::{FarStore, Lender};
use crate::fabric::neighbourhood;
use crate::far::asking::BorrowError;
use crate::far::front::FarEvent;

/// Why a lender cannot be added or drained.
#[derive(Debug, thiserror::Error)]
pub enum LenderError {
    /// There is none of that name or address.
    #[error("no lender is called `{0}` or listens there")]
    Unknown(String),
    /// It is one already.
    #[error("{0} is a lender already")]
    Known(Address),
    /// It is the only one.
    #[error("{0}")]
    NoOther(#[from] NoOtherLender),
    /// It cannot be borrowed from.
    #[error("{0}")]
    Borrow(#[from] BorrowError),
}

impl FarStore {
    /// Adds a lender by its addresses while the store is in use.
    pub fn add_lender(self: &Arc<Self>, ways: &[Address]) -> Result<(), LenderError> {
        let known = self.lenders().iter().any(|lender| {
            !lender.is_lost()
                && !lender.is_leaving.load(Ordering::Relaxed)
                && ways.iter().any(|way| lender.ways.contains(way))
        });
        if let Some(first) = ways.first().filter(|_| known) {
            return Err(LenderError::Known(first.clone()));
        }
        self.dial(ways)?;
        self.carry_out();
        Ok(())
    }

    /// Moves everything away from a lender, which is named by an address or its name; it ends later.
    pub fn drain_lender(&self, named: &str) -> Result<(), LenderError> {
        let found: Vec<Arc<Lender>> = self
            .lenders()
            .iter()
            .filter(|lender| {
                !lender.is_lost()
                    && (lender.name() == named || lender.ways.iter().any(|way| way.to_string() == named))
            })
            .cloned()
            .collect();
        if found.is_empty() {
            return Err(LenderError::Unknown(named.to_owned()));
        }
        for lender in found {
            self.store.lock().drain(lender.id)?;
            lender.is_leaving.store(true, Ordering::Relaxed);
        }
        self.carry_out();
        self.ring();
        Ok(())
    }

    /// A lender is about to end: everything is moved away from it, if there is another one.
    pub(super) fn leave_ending(&self, ending: &Lender) {
        if self.state_of(ending.id) == "active" && self.store.lock().drain(ending.id).is_ok() {
            self.carry_out();
            self.tell(FarEvent::Notice(format!(
                "lender {} is about to end: what it has is moved to others",
                ending.address()
            )));
        }
    }

    /// Asks lenders now and then whether they are about to end.
    fn ask_whether_ending(&self) {
        let now_s = self.epoch.elapsed().as_secs();
        if self.asked_at_s.swap(now_s, Ordering::Relaxed) == now_s {
            return;
        }
        for lender in self.lenders().iter() {
            let is_of_use = !lender.is_lost() && !lender.peer.is_waiting();
            if is_of_use && !lender.is_asked.swap(true, Ordering::Relaxed) {
                lender.give(Job::AskWhetherEnding);
            }
        }
    }

    /// One round of keeping the links alive and noticing those that are not.
    pub(super) fn look_after(self: &Arc<Self>) -> bool {
        if self.stop.load(Ordering::Relaxed) {
            return false;
        }
        self.node.tick();
        self.note_suspects();
        self.ask_absent_lenders();
        self.ask_whether_ending();
        // Nobody polls the links with windows for packets: there are none.
        let lenders = self.lenders();
        let windowed: Vec<&Arc<Lender>> =
            lenders.iter().filter(|lender| lender.is_windowed && !lender.is_lost()).collect();
        for lender in &windowed {
            if self.node.arm(&lender.peer).unwrap_or(true) {
                self.node.drive(&lender.peer);
            }
        }
        self.carry_out();
        self.node.pump();
        let deadline = self.store.lock().next_deadline();
        let sleep = deadline.map_or(timing::WINDOWS_MAX_SLEEP, |at_ns| {
            Duration::from_nanos(at_ns.saturating_sub(self.now_ns()))
                .clamp(timing::FAR_STORE_MIN_SLEEP, timing::WINDOWS_MAX_SLEEP)
        });
        let links = windowed.iter().map(|lender| lender.peer.link.descriptor());
        let descriptors: Vec<_> = links.chain([self.work.as_fd()]).collect();
        let _ = event::wait_readable(&descriptors, Some(sleep));
        let _ = rustix::io::read(&self.work, &mut [0u8; 8]);
        true
    }

    /// Tells the store which lenders are silent.
    fn note_suspects(&self) {
        let lenders = self.lenders();
        for lender in lenders.iter().filter(|lender| !lender.is_lost()) {
            let is_suspect = lender.peer.is_waiting();
            if lender.is_suspect.swap(is_suspect, Ordering::Relaxed) != is_suspect {
                self.store.lock().set_suspect(self.now_ns(), lender.id, is_suspect);
                self.carry_out();
            }
        }
    }

    /// A lender that was started again answers at its address while its old link is silent: what it lent is gone, and
    /// nothing is waited for. One that is lost is dialed, and is a new lender when it is back.
    fn ask_absent_lenders(self: &Arc<Self>) {
        let Some(security) = self.security.get() else { return };
        let lenders = self.lenders();
        let absent: Vec<Arc<Lender>> = lenders
            .iter()
            .filter(|lender| {
                let is_gone = lender.is_lost() && !lender.is_replaced.load(Ordering::Relaxed);
                let is_silent = !lender.is_lost() && lender.peer.is_waiting();
                (is_gone || is_silent) && !lender.is_leaving.load(Ordering::Relaxed)
            })
            .cloned()
            .collect();
        if absent.is_empty() || self.is_asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let (weak, security, is_asking) = (Arc::downgrade(self), security.clone(), self.is_asking.clone());
        let started = std::thread::Builder::new().name("probe".into()).spawn(move || {
            for lender in absent {
                let Some(store) = weak.upgrade().filter(|store| !store.stop.load(Ordering::Relaxed)) else {
                    break;
                };
                if !lender.is_lost() {
                    neighbourhood::close_if_restarted(
                        &*store.node,
                        &lender.peer,
                        lender.address(),
                        &security,
                    );
                } else if store.dial(&lender.ways).is_ok() {
                    lender.is_replaced.store(true, Ordering::Relaxed);
                    store.ring();
                }
            }
            std::thread::sleep(timing::PROBE_PAUSE);
            is_asking.store(false, Ordering::Release);
        });
        if started.is_err() {
            self.is_asking.store(false, Ordering::Release);
        }
    }

    /// How a lender is, for messages.
    pub(super) fn state_of(&self, id: LenderId) -> &'static str {
        use tombolo_core::store::LenderState;
        match self.store.lock().lender(id) {
            Some(status) => match (status.state, status.is_suspect) {
                (LenderState::Active, true) => "suspect",
                (LenderState::Active, false) => "active",
                (LenderState::Draining, _) => "draining",
                (LenderState::DeadReadable, _) => "dead",
                (LenderState::Gone, _) => "gone",
            },
            None => "gone",
        }
    }
}
