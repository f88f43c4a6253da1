//! The traits that every link implements, and the words they use.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_host::event;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::shared::{HeldSpan, SharedSpan};

use crate::{
    AcceptError, Address, LinkCounters, LinkError, ListenerCounters, LossReason, PublicKey, SendError,
};

/// The largest control message.
pub const MAX_CONTROL_BYTES: usize = 16 * 1024;

/// How much of a packet's beginning is copied out before it is handed to the sink, to be parsed.
pub const PACKET_HEAD_BYTES: usize = 256;

/// A received packet, valid while the sink runs.
///
/// On a shared-memory link the packet still lies where its sender can write. So its beginning is a
/// private copy, safe to parse, and the rest is a span, to be copied once to where it belongs.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    head: &'a [u8],
    whole: SharedSpan<'a>,
    /// The whole packet, if no other process can write to it.
    private: Option<&'a [u8]>,
}

impl<'a> Packet<'a> {
    /// A packet of private bytes.
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        Self { head: &bytes[..bytes.len().min(PACKET_HEAD_BYTES)], whole: bytes.into(), private: Some(bytes) }
    }

    /// A packet in shared memory; its beginning is copied to `scratch`.
    pub(crate) fn from_shared(whole: SharedSpan<'a>, scratch: &'a mut [u8; PACKET_HEAD_BYTES]) -> Self {
        let length_bytes = whole.copy_to(scratch);
        Self { head: &scratch[..length_bytes], whole, private: None }
    }

    /// The whole packet's length.
    pub fn len(&self) -> usize {
        self.whole.len()
    }

    /// True for a packet without bytes.
    pub fn is_empty(&self) -> bool {
        self.whole.is_empty()
    }

    /// The first [`PACKET_HEAD_BYTES`] (or all, when shorter): private, so it can be parsed.
    pub fn head(&self) -> &'a [u8] {
        self.head
    }

    /// All bytes, the head's included. They may change while they are looked at.
    pub fn span(&self) -> SharedSpan<'a> {
        self.whole
    }

    /// All bytes, and nobody else can change them: the packet's own, or a copy in `scratch`.
    pub fn stable<'s>(&self, scratch: &'s mut Vec<u8>) -> &'s [u8]
    where
        'a: 's,
    {
        if let Some(bytes) = self.private {
            return bytes;
        }
        scratch.clear();
        self.whole.append_to(scratch);
        scratch
    }

    /// What follows the first bytes, or None when the packet is shorter: the payload after a
    /// header of that size.
    pub fn payload(&self, header_bytes: usize) -> Option<SharedSpan<'a>> {
        let length_bytes = self.whole.len().checked_sub(header_bytes)?;
        self.whole.part(header_bytes, length_bytes)
    }

    /// A private copy of all bytes, the head's as they were parsed.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.head.to_vec();
        if let Some(rest) = self.payload(self.head.len()) {
            rest.append_to(&mut bytes);
        }
        bytes
    }
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Packet({} bytes)", self.len())
    }
}

/// A received control message.
#[derive(Debug, Default)]
pub struct ControlMessage {
    /// What it says.
    pub bytes: Vec<u8>,
    /// The descriptors that came with it, closed on exec. They are the peer's choice: check what
    /// they are before use.
    pub descriptors: Vec<PassedDescriptor>,
}

/// Whether a link can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// It can be used.
    Up,
    /// It cannot be used any more.
    Lost(LossReason),
}

/// One end of a connection between two nodes.
///
/// Any thread may call any method; sending and receiving each serialise on a mutex of their own, so
/// one thread can send while another receives. No method blocks but [`Link::wait`]. Dropping the
/// last reference closes the link and tells the peer.
pub trait Link: Send + Sync + fmt::Debug {
    /// The largest packet, header and payload together, that `send` takes now. It may change at any time,
    /// as the path does; what was larger is then [`SendError::TooLarge`] or lost.
    fn max_packet_bytes(&self) -> usize;

    /// Queues one packet, header and payload side by side.
    ///
    /// The bytes have been copied when it returns. The peer may see the packet at once, or only
    /// after [`Link::flush`]; so call that after the last of a batch, and before sleeping.
    /// [`SendError::Full`] is back-pressure: nothing was taken; [`Link::arm`] then wakes for room.
    fn send(&self, header: &[u8], payload: SharedSpan<'_>) -> Result<(), SendError>;

    /// Queues one packet whose header depends on the bytes of the payload as they are sent, such as
    /// a checksum: `seal` gets the packet, private, with `header_bytes` of room before the payload,
    /// and writes the header there. As [`Link::send`] otherwise.
    fn send_sealed(
        &self,
        header_bytes: usize,
        payload: SharedSpan<'_>,
        seal: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), SendError> {
        let mut packet = vec![0; header_bytes];
        payload.append_to(&mut packet);
        seal(&mut packet);
        let (header, payload) = packet.split_at(header_bytes);
        self.send(header, SharedSpan::from(payload))
    }

    /// As [`Link::send`], but the bytes may be read as late as by [`Link::flush`], and are if the link can spare
    /// a copy by it: what others have made of them by then is what arrives, whatever the header says of them.
    fn send_in_place(&self, header: &[u8], payload: HeldSpan) -> Result<(), SendError> {
        self.send(header, payload.span())
    }

    /// Pushes out what is batched and wakes the peer if it sleeps.
    fn flush(&self) -> Result<(), LinkError>;

    /// Hands up to `budget` packets that have arrived to `sink`, and returns how many.
    ///
    /// The sink may call any method of this link but `receive` and `receive_control`, which it
    /// would wait for itself to finish. Packets that came before the link was lost are still handed
    /// out; the error follows when there are none left.
    fn receive(&self, budget: usize, sink: &mut dyn FnMut(Packet<'_>)) -> Result<usize, LinkError>;

    /// Prepares to sleep on the descriptor. True: there is something to do, so do not sleep.
    ///
    /// After false, the descriptor becomes readable with the next packet, control message, or loss
    /// of the link, or with room when the last `send` found the link full. It flushes first. Waking
    /// up for nothing is possible: receive, and arm again.
    fn arm(&self) -> Result<bool, LinkError>;

    /// Readable when there is something to do, once [`Link::arm`] has said false. Never read from
    /// it; for poll and epoll.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Sleeps until there may be something to do (true) or the time is over (false); runs the
    /// timers meanwhile.
    fn wait(&self, timeout: Duration) -> Result<bool, LinkError> {
        let deadline = Instant::now() + timeout;
        loop {
            if self.arm()? {
                return Ok(true);
            }
            let now = Instant::now();
            let timer = self.tick(now);
            if self.state() != LinkState::Up {
                return Ok(true);
            }
            let until = timer.map_or(deadline, |timer| timer.min(deadline));
            let left = until.saturating_duration_since(now);
            let ready = event::wait_readable(&[self.descriptor()], Some(left))
                .map_err(|errno| LossReason::System { operation: "poll", errno })?;
            if ready {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }

    /// Queues one control message of 1 to [`MAX_CONTROL_BYTES`] bytes: delivered once and in order,
    /// unless the link is lost. Sent at once; needs no flush.
    ///
    /// Descriptors can go along where [`Link::supports_windows`] says so, at most
    /// [`MAX_DESCRIPTORS`](crate::MAX_DESCRIPTORS).
    fn send_control(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SendError>;

    /// The next control message that has arrived.
    ///
    /// Messages may be queued behind packets that nobody has received yet: a loop that receives
    /// both comes to both.
    fn receive_control(&self) -> Result<Option<ControlMessage>, LinkError>;

    /// Whether [`Link::receive`] may have found control messages. Makes no system call, as
    /// [`Link::receive_control`] may.
    fn has_control(&self) -> bool {
        true
    }

    /// Runs the timers: keep-alive, retransmission of control messages, detection of silence. Takes nothing from the
    /// descriptor while a thread sleeps on that.
    ///
    /// Call it by the instant it returns (None: no timer), and at least every few hundred
    /// milliseconds while polling without sleeping; early calls are harmless and cheap.
    fn tick(&self, now: Instant) -> Option<Instant>;

    /// Whether the peer is still there, as far as known.
    fn state(&self) -> LinkState;

    /// How long nothing may be heard of the peer before the link is lost, where that is all that shows its
    /// end. The side that connected decides: the other waits at least as long.
    fn set_outage(&self, _outage: Duration) {}

    /// Whether nothing has been heard for a while, in one direction at least: what is sent now is probably
    /// lost. Either that ends, or the link does, after the outage. As of the last [`Link::tick`].
    fn is_suspect(&self) -> bool {
        false
    }

    /// True when descriptors can be passed, so that memory can be shared with the peer.
    fn supports_windows(&self) -> bool;

    /// True when no byte can change between the two ends unnoticed, by accident or by malice: packets
    /// need no checksums of their own.
    fn protects_integrity(&self) -> bool;

    /// The peer's process on this machine, as the kernel says, where known.
    fn peer_process_id(&self) -> Option<u32> {
        None
    }

    /// The number of that process, and when the process began, in ticks since the kernel started. No other process ever has both.
    fn peer_process_identity(&self) -> Option<(u32, u64)> {
        None
    }

    /// The user that this process was when it connected, as the kernel says, where known.
    fn peer_user(&self) -> Option<u32> {
        None
    }

    /// A pidfd of that process, where it is known which it is, whatever has become of it.
    fn peer_process(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// The key that the peer has proved, on a link that asks for keys.
    fn peer_key(&self) -> Option<PublicKey> {
        None
    }

    /// Ends the link. The peer learns the reason where the link can carry it, and this side's methods fail with the
    /// same reason.
    fn close(&self, reason: LossReason);

    /// Where the peer is, on a link between machines.
    fn peer_address(&self) -> Option<Address> {
        None
    }

    /// What it has done so far.
    fn counters(&self) -> LinkCounters;
}

/// Waits for nodes that connect.
pub trait Listener: Send + Sync + fmt::Debug {
    /// The next link whose handshake is complete, or None. Does not block.
    ///
    /// An error is about one peer; the listener goes on. It also does the work of handshakes, so
    /// call it whenever the descriptor is readable, until it says None.
    fn accept(&self) -> Result<Option<Arc<dyn Link>>, AcceptError>;

    /// Readable when `accept` has something to do.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Where it listens, with the port that the system chose when 0 was asked for.
    fn address(&self) -> Address;

    /// What strangers have said to it; zero where only those can speak whom the system lets in.
    fn counters(&self) -> ListenerCounters {
        ListenerCounters::default()
    }

    /// Sleeps until a link is accepted (or refused), or the time is over.
    fn accept_within(&self, timeout: Duration) -> Result<Option<Arc<dyn Link>>, AcceptError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(link) = self.accept()? {
                return Ok(Some(link));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let failed = |errno| crate::OpenError::System { operation: "poll", errno };
            if !event::wait_readable(&[self.descriptor()], Some(left)).map_err(failed)? {
                return Ok(None);
            }
        }
    }
}

/// Checks the size of a control message, as every link must.
pub(crate) fn check_control(message: &[u8]) -> Result<(), SendError> {
    if message.is_empty() || message.len() > MAX_CONTROL_BYTES {
        return Err(SendError::TooLarge { bytes: message.len(), max_bytes: MAX_CONTROL_BYTES });
    }
    Ok(())
}
