//! A link that passes everything on to another, but for what a test alters.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_host::shared::{HeldSpan, SharedSpan};

use crate::{
    Address, ControlMessage, Link, LinkCounters, LinkError, LinkState, LossReason, Packet, PublicKey,
    SendError,
};

/// Whether a packet goes to the link below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It does.
    Send,
    /// It is lost: the sender does not notice.
    Lose,
    /// The link is full: the sender has to try again.
    Refuse,
}

/// What a test alters of a link. Each method gets the link below; without its own version of a method, an
/// alteration leaves that as it is.
pub trait Alteration: Send + Sync + fmt::Debug {
    /// Asked once for each packet, however it is sent.
    fn admit(&self) -> Admission {
        Admission::Send
    }

    /// Whether this alteration needs each packet in one piece: then [`Self::send`] gets all of them.
    fn needs_whole_packets(&self) -> bool {
        false
    }

    /// [`Link::send`].
    fn send(&self, link: &dyn Link, header: &[u8], payload: SharedSpan<'_>) -> Result<(), SendError> {
        link.send(header, payload)
    }

    /// [`Link::flush`].
    fn flush(&self, link: &dyn Link) -> Result<(), LinkError> {
        link.flush()
    }

    /// [`Link::arm`].
    fn arm(&self, link: &dyn Link) -> Result<bool, LinkError> {
        link.arm()
    }

    /// [`Link::tick`].
    fn tick(&self, link: &dyn Link, now: Instant) -> Option<Instant> {
        link.tick(now)
    }

    /// [`Link::set_outage`].
    fn set_outage(&self, link: &dyn Link, outage: Duration) {
        link.set_outage(outage);
    }

    /// [`Link::protects_integrity`].
    fn protects_integrity(&self, link: &dyn Link) -> bool {
        link.protects_integrity()
    }

    /// [`Link::peer_key`].
    fn peer_key(&self, link: &dyn Link) -> Option<PublicKey> {
        link.peer_key()
    }
}

/// A link with an alteration.
#[derive(Debug)]
pub struct Altered<A> {
    link: Arc<dyn Link>,
    alteration: A,
}

impl<A: Alteration> Altered<A> {
    /// Puts an alteration before a link.
    pub fn with(link: Arc<dyn Link>, alteration: A) -> Self {
        Self { link, alteration }
    }

    /// The alteration.
    pub fn alteration(&self) -> &A {
        &self.alteration
    }

    fn admitted(&self, send: impl FnOnce() -> Result<(), SendError>) -> Result<(), SendError> {
        match self.alteration.admit() {
            Admission::Send => send(),
            Admission::Lose => Ok(()),
            Admission::Refuse => Err(SendError::Full),
        }
    }
}

impl<A: Alteration> Link for Altered<A> {
    fn max_packet_bytes(&self) -> usize {
        self.link.max_packet_bytes()
    }

    fn send(&self, header: &[u8], payload: SharedSpan<'_>) -> Result<(), SendError> {
        self.admitted(|| self.alteration.send(&*self.link, header, payload))
    }

    fn send_sealed(
        &self,
        header_bytes: usize,
        payload: SharedSpan<'_>,
        seal: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), SendError> {
        self.admitted(|| {
            if !self.alteration.needs_whole_packets() {
                return self.link.send_sealed(header_bytes, payload, seal);
            }
            let mut packet = vec![0; header_bytes];
            payload.append_to(&mut packet);
            seal(&mut packet);
            self.alteration.send(&*self.link, &packet, SharedSpan::empty())
        })
    }

    fn send_in_place(&self, header: &[u8], payload: HeldSpan) -> Result<(), SendError> {
        self.admitted(|| {
            if self.alteration.needs_whole_packets() {
                return self.alteration.send(&*self.link, header, payload.span());
            }
            self.link.send_in_place(header, payload)
        })
    }

    fn flush(&self) -> Result<(), LinkError> {
        self.alteration.flush(&*self.link)
    }

    fn receive(&self, budget: usize, sink: &mut dyn FnMut(Packet<'_>)) -> Result<usize, LinkError> {
        self.link.receive(budget, sink)
    }

    fn arm(&self) -> Result<bool, LinkError> {
        self.alteration.arm(&*self.link)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.link.descriptor()
    }

    fn send_control(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        self.link.send_control(message, descriptors)
    }

    fn receive_control(&self) -> Result<Option<ControlMessage>, LinkError> {
        self.link.receive_control()
    }

    fn has_control(&self) -> bool {
        self.link.has_control()
    }

    fn tick(&self, now: Instant) -> Option<Instant> {
        self.alteration.tick(&*self.link, now)
    }

    fn state(&self) -> LinkState {
        self.link.state()
    }

    fn set_outage(&self, outage: Duration) {
        self.alteration.set_outage(&*self.link, outage);
    }

    fn is_suspect(&self) -> bool {
        self.link.is_suspect()
    }

    fn supports_windows(&self) -> bool {
        self.link.supports_windows()
    }

    fn protects_integrity(&self) -> bool {
        self.alteration.protects_integrity(&*self.link)
    }

    fn peer_process_id(&self) -> Option<u32> {
        self.link.peer_process_id()
    }

    fn peer_process_identity(&self) -> Option<(u32, u64)> {
        self.link.peer_process_identity()
    }

    fn peer_user(&self) -> Option<u32> {
        self.link.peer_user()
    }

    fn peer_key(&self) -> Option<PublicKey> {
        self.alteration.peer_key(&*self.link)
    }

    fn close(&self, reason: LossReason) {
        self.link.close(reason);
    }

    fn peer_address(&self) -> Option<Address> {
        self.link.peer_address()
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
}
