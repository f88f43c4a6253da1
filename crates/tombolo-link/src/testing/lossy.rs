//! A link that loses some of what is sent, and nothing else: cheap enough to measure over it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_host::shared::{HeldSpan, SharedSpan};

use super::Random;
use crate::{
    ControlMessage, Link, LinkCounters, LinkError, LinkState, LossReason, Packet, PublicKey, SendError,
};

/// A link that loses packets.
#[derive(Debug)]
pub struct LossyLink {
    inner: Arc<dyn Link>,
    loss_per_mille: u32,
    random: Mutex<Random>,
}

impl LossyLink {
    /// Makes a link lose `loss_per_mille` packets in a thousand.
    pub fn new(inner: Arc<dyn Link>, loss_per_mille: u32, seed: u64) -> Self {
        Self { inner, loss_per_mille, random: Mutex::new(Random::new(seed)) }
    }
}

impl Link for LossyLink {
    fn max_packet_bytes(&self) -> usize {
        self.inner.max_packet_bytes()
    }

    fn send(&self, header: &[u8], payload: SharedSpan<'_>) -> Result<(), SendError> {
        if self.random.lock().per_mille(self.loss_per_mille) {
            return Ok(());
        }
        self.inner.send(header, payload)
    }

    fn send_sealed(
        &self,
        header_bytes: usize,
        payload: SharedSpan<'_>,
        seal: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), SendError> {
        if self.random.lock().per_mille(self.loss_per_mille) {
            return Ok(());
        }
        self.inner.send_sealed(header_bytes, payload, seal)
    }

    fn send_in_place(&self, header: &[u8], payload: HeldSpan) -> Result<(), SendError> {
        if self.random.lock().per_mille(self.loss_per_mille) {
            return Ok(());
        }
        self.inner.send_in_place(header, payload)
    }

    fn flush(&self) -> Result<(), LinkError> {
        self.inner.flush()
    }

    fn receive(&self, budget: usize, sink: &mut dyn FnMut(Packet<'_>)) -> Result<usize, LinkError> {
        self.inner.receive(budget, sink)
    }

    fn arm(&self) -> Result<bool, LinkError> {
        self.inner.arm()
    }

    fn tick(&self, now: Instant) -> Option<Instant> {
        self.inner.tick(now)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inner.descriptor()
    }

    fn send_control(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        self.inner.send_control(message, descriptors)
    }

    fn has_control(&self) -> bool {
        self.inner.has_control()
    }

    fn receive_control(&self) -> Result<Option<ControlMessage>, LinkError> {
        self.inner.receive_control()
    }

    fn state(&self) -> LinkState {
        self.inner.state()
    }

    fn set_outage(&self, outage: Duration) {
        self.inner.set_outage(outage);
    }

    fn is_suspect(&self) -> bool {
        self.inner.is_suspect()
    }

    fn supports_windows(&self) -> bool {
        self.inner.supports_windows()
    }

    fn protects_integrity(&self) -> bool {
        self.inner.protects_integrity()
    }

    fn peer_process_id(&self) -> Option<u32> {
        self.inner.peer_process_id()
    }

    fn peer_key(&self) -> Option<PublicKey> {
        self.inner.peer_key()
    }

    fn close(&self, reason: LossReason) {
        self.inner.close(reason);
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}
