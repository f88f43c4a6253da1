//! Waiting for a transfer or a message: polling for a while, then sleeping until the node wakes the program.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_channel::{Status, Waiting};
use tombolo_host::timing::client::{
    DRIVE_BEFORE_SLEEP, DRIVE_QUIET, GATHER_PAUSE, MAX_GATHER, MAX_SLEEP, POLL_BEFORE_SLEEP, SPIN,
};

use crate::error::WaitError;
use crate::inner::{Inner, RungChannels};
use crate::own_access::Polling;

/// While at least this many transfers are under way at a node in this process, up to as many new ones
/// are sent together: they wait for each other while completions come in ([`GATHER_PAUSE`], [`MAX_GATHER`]).
const MAX_GATHERED: u32 = 8;

impl Inner {
    /// Waits until a transfer ends, or the time is over.
    pub(crate) fn wait_for(&self, slot: usize, timeout: Duration) -> Result<Status, WaitError> {
        let mut status = Status::Ongoing;
        self.wait_until_for(Some(slot), timeout, || {
            status = self.page.status(slot);
            status != Status::Ongoing
        })?;
        Ok(status)
    }

    /// Waits until `is_so` returns true, which the node announces, or the time is over.
    pub(crate) fn wait_until(&self, timeout: Duration, is_so: impl FnMut() -> bool) -> Result<(), WaitError> {
        self.wait_until_for(None, timeout, is_so)
    }

    /// As [`Self::wait_until`]. With a slot, the condition becomes true with the end of that slot's transfer.
    fn wait_until_for(
        &self,
        slot: Option<usize>,
        timeout: Duration,
        mut is_so: impl FnMut() -> bool,
    ) -> Result<(), WaitError> {
        if is_so() {
            return Ok(());
        }
        let since = Instant::now();
        let poll = Duration::from_nanos(self.poll_ns.load(Ordering::Relaxed)).max(*POLL_BEFORE_SLEEP.start());
        let (mut sleeping, mut quiet_from) = (false, Duration::ZERO);
        let mut polling = Polling::begin(self);
        let outcome = loop {
            let ended = if sleeping {
                // Anew each time: a thread that sleeps no more takes it back, also when this one has begun to.
                self.page.wait_by(Waiting::Futex);
                self.page.ended()
            } else {
                0
            };
            if let Some(polling) = &polling {
                polling.serve();
            }
            let so = is_so();
            let waited = since.elapsed();
            if so || waited >= timeout {
                self.waited(waited);
                // A program that polls with short timeouts, or none, notices the node's end here.
                break if !so && self.notices_node_gone() && !is_so() {
                    Err(WaitError::NodeGone)
                } else {
                    Ok(())
                };
            }
            if let Some(progress) = self.progress.as_ref().filter(|_| waited < DRIVE_BEFORE_SLEEP) {
                // While many small transfers are under way, new ones are sent together.
                let gathers = waited < quiet_from + GATHER_PAUSE && waited < MAX_GATHER && self.gathers();
                if progress.0(if gathers { RungChannels::Leave } else { RungChannels::Start }) > 0 {
                    quiet_from = waited;
                } else if waited > quiet_from + DRIVE_QUIET {
                    std::thread::yield_now();
                }
            } else if waited < SPIN {
                std::hint::spin_loop();
            } else if waited < poll {
                // The node may need this processor.
                std::thread::yield_now();
            } else if !sleeping {
                // The node is told first; a transfer that ended before that is seen in the next round.
                sleeping = true;
                polling = None;
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                self.page.wait_by(Waiting::Futex);
            } else {
                self.page.sleep(ended, MAX_SLEEP.min(timeout - waited), slot);
                self.settle_late_answers();
                if self.page.ended() == ended && self.is_node_gone() {
                    break Err(WaitError::NodeGone);
                }
            }
        };
        if sleeping && self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.page.wait_no_more_by(Waiting::Futex);
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                self.page.wait_by(Waiting::Futex);
            }
        }
        outcome
    }

    /// Whether new transfers wait for more: a few are new, and many are under way.
    pub(crate) fn gathers(&self) -> bool {
        let rung = self.page.rung().count_ones();
        (1..MAX_GATHERED).contains(&rung) && self.channels.used() >= rung + MAX_GATHERED
    }

    /// Adapts how long a wait polls before it sleeps: longer after waits that ended while polling could catch them,
    /// shorter after long ones.
    fn waited(&self, waited: Duration) {
        let before = self.poll_ns.load(Ordering::Relaxed);
        let wanted = if waited * 2 <= *POLL_BEFORE_SLEEP.end() { waited.as_nanos() as u64 * 2 } else { 0 };
        self.poll_ns.store(wanted.max(before - before / 8), Ordering::Relaxed);
    }
}
