//! The shared-memory link: two processes of one machine.
//!
//! Packets go through two rings in one memfd (see [`tombolo_host::ring`]); a Unix socket carries
//! the handshake, control messages with their descriptors, wakes for a side that sleeps, and the
//! news of the peer's death, which the kernel delivers at once. While both sides are awake no
//! packet costs a system call.
//!
//! Wakes are one-byte messages on the socket and not an eventfd: a process that shares an eventfd can make
//! a write to it block for ever, and a socket send with `MSG_DONTWAIT` cannot be.
//!
//! ```text
//! connector                          listener: of a trusted user, says the kernel
//!     │ ── hello (magic, version) ──────► │
//!     │ ◄─ welcome (ring size) + memfd ── │   or: reject (its version)
//!     │ ═══════ ring 0 ◄   ring 1 ► ═════ │   packets
//!     │ ◄────── wake · control · bye ───► │   Unix socket
//! ```

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_host::process;
use tombolo_host::ring::{Consumer, Producer, PushError, RingError};
use tombolo_host::shared::{SharedMemory, SharedSpan};
use tombolo_host::timing::link::{
    SHM_LOOK_INTERVAL, SHM_LOOKS_APART, SHM_SOCKET_READ_INTERVAL, SUSPECT_AFTER,
};
use tombolo_host::unix::{MAX_DESCRIPTORS, SeqpacketSocket, UnixError};

use crate::counters::Counters;
use crate::link::{MAX_CONTROL_BYTES, PACKET_HEAD_BYTES};
use crate::{
    ControlMessage, Link, LinkCounters, LinkError, LinkState, LossReason, OpenError, Packet, SendError,
};

pub(crate) mod handshake;
mod listener;

pub use listener::ShmListener;

/// The largest packet: a block of 16 KiB and room for headers.
pub const MAX_PACKET_BYTES: usize = 16 * 1024 + 256;
/// The default size of each ring.
pub const DEFAULT_RING_BYTES: usize = 1 << 20;

/// The first byte of each message on the socket, after the handshake.
mod kind {
    pub(super) const WAKE: u8 = 0x10;
    pub(super) const CONTROL: u8 = 0x11;
    pub(super) const BYE: u8 = 0x12;
}

/// The most received control messages that wait for `receive_control`; more wait in the socket.
const INBOX_MESSAGES: usize = 64;
/// The most messages that are taken from the socket in one call, so that a peer cannot keep a thread there.
const PUMP_MESSAGES: usize = 128;

/// The most of a ring that is brought into memory before the first packet.
const POPULATED_BYTES: usize = 4 << 20;

/// Which end of the link this is: each has its own ring to write.
#[derive(Debug, Clone, Copy)]
enum Side {
    Listener,
    Connector,
}

#[derive(Debug)]
struct Sending {
    producer: Producer,
    /// Packets were pushed since the peer's sleeping flag was last checked.
    unflushed: bool,
    /// The size of the packet that found the ring full; `arm` wakes for room for it.
    refused_bytes: Option<usize>,
}

#[derive(Debug)]
struct Inbox {
    messages: VecDeque<ControlMessage>,
    buffer: Vec<u8>,
    pumped: Instant,
}

/// What shows whether the peer runs: a process that is stopped does not end, and its socket says nothing.
#[derive(Debug)]
struct Liveness {
    looked: Instant,
    /// Since when messages have lain in the socket at each look.
    unread_since: Option<Instant>,
}

impl Liveness {
    fn new(now: Instant) -> Self {
        Self { looked: now, unread_since: None }
    }

    /// Notes a look, and returns for how long the peer has read nothing.
    fn note(&mut self, is_unread: bool, now: Instant) -> Duration {
        if now.saturating_duration_since(self.looked) > SHM_LOOKS_APART {
            self.unread_since = None;
        }
        self.looked = now;
        match is_unread {
            true => now.saturating_duration_since(*self.unread_since.get_or_insert(now)),
            false => {
                self.unread_since = None;
                Duration::ZERO
            }
        }
    }
}

/// One end of a shared-memory link.
#[derive(Debug)]
pub struct ShmLink {
    sending: Mutex<Sending>,
    receiving: Mutex<Consumer>,
    inbox: Mutex<Inbox>,
    /// A thread sleeps on the socket or is about to: it would not hear of what another thread takes from there. Set
    /// under the lock of `inbox`, so that nobody is reading meanwhile who saw it unset.
    armed: AtomicBool,
    socket: SeqpacketSocket,
    lost: OnceLock<LossReason>,
    /// Of the side that connected.
    liveness: Option<Mutex<Liveness>>,
    /// Something has come since the last look.
    heard: AtomicBool,
    suspect: AtomicBool,
    peer_process_id: Option<u32>,
    peer_user: u32,
    peer_process: Option<Arc<OwnedFd>>,
    /// When it began.
    peer_began: Option<u64>,
    counters: Counters,
}

impl ShmLink {
    /// Connects to the node that listens at a path, and keeps trying until the time is over.
    ///
    /// This process's own user must run it, or root: whoever listens sees and changes what is lent.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Self, OpenError> {
        handshake::connect(path, None, timeout)
    }

    /// As [`ShmLink::connect`], to a node that another user may run, too.
    pub fn connect_to_user(path: &Path, user_id: Option<u32>, timeout: Duration) -> Result<Self, OpenError> {
        handshake::connect(path, user_id, timeout)
    }

    fn new(
        socket: SeqpacketSocket,
        memory: SharedMemory,
        ring_bytes: usize,
        side: Side,
    ) -> Result<Self, OpenError> {
        if matches!(side, Side::Connector) {
            // Otherwise the first packets wait for the memory to be made; whoever accepts has others to serve.
            memory.populate_huge(0, memory.len().min(POPULATED_BYTES));
        }
        let memory = Arc::new(memory);
        let (first, second) = (0, tombolo_host::ring::footprint_bytes(ring_bytes));
        let (ours, theirs) = match side {
            Side::Listener => (first, second),
            Side::Connector => (second, first),
        };
        let producer = Producer::new(Arc::clone(&memory), ours, ring_bytes)?;
        let consumer = Consumer::new(memory, theirs, ring_bytes)?;
        let peer = socket.peer()?;
        let peer_process_id = peer.process_id;
        let peer_process =
            process::peer_pidfd(socket.as_fd(), peer_process_id.unwrap_or(0)).ok().map(Arc::new);
        // If the peer is still there afterwards, the number was not given to another process meanwhile.
        let began = peer_process_id.and_then(|id| process::began(id).ok());
        let peer_began =
            began.filter(|_| peer_process.as_ref().is_some_and(|peer| !process::has_ended(peer)));
        Ok(Self {
            sending: Mutex::new(Sending { producer, unflushed: false, refused_bytes: None }),
            receiving: Mutex::new(consumer),
            inbox: Mutex::new(Inbox {
                messages: VecDeque::new(),
                buffer: vec![0; 1 + MAX_CONTROL_BYTES],
                pumped: Instant::now(),
            }),
            armed: AtomicBool::new(false),
            socket,
            lost: OnceLock::new(),
            liveness: matches!(side, Side::Connector).then(|| Mutex::new(Liveness::new(Instant::now()))),
            heard: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            peer_process_id,
            peer_user: peer.user_id,
            peer_process,
            peer_began,
            counters: Counters::default(),
        })
    }

    /// Looks now and then whether the peer reads what it is sent.
    fn look_after_peer(&self, now: Instant) {
        let Some(mut liveness) = self.liveness.as_ref().and_then(Mutex::try_lock) else { return };
        if now.saturating_duration_since(liveness.looked) < SHM_LOOK_INTERVAL || self.lost.get().is_some() {
            return;
        }
        let has_heard = self.heard.swap(false, Ordering::Relaxed);
        let silence = liveness.note(!has_heard && self.socket.is_unread().unwrap_or(false), now);
        self.suspect.store(silence >= SUSPECT_AFTER, Ordering::Relaxed);
    }

    fn mark_lost(&self, reason: LossReason) -> LossReason {
        *self.lost.get_or_init(|| reason)
    }

    fn check(&self) -> Result<(), LossReason> {
        self.lost.get().map_or(Ok(()), |reason| Err(*reason))
    }

    /// A broken ring ends the link, and the peer is told by the end of the socket's life.
    fn ring<T>(&self, result: Result<T, RingError>) -> Result<T, LossReason> {
        result.map_err(|error| self.mark_lost(error.into()))
    }

    fn wake_peer(&self) {
        self.counters.wakes_sent.add(1);
        match self.socket.send(&[&[kind::WAKE]], &[]) {
            // A full socket is readable for the peer, so it does not sleep. The reader of the
            // socket will notice that the peer has gone, and why.
            Ok(()) | Err(UnixError::WouldBlock | UnixError::Closed) => {}
            Err(error) => {
                self.mark_lost(loss_of(&error));
            }
        }
    }

    fn flush_locked(&self, sending: &mut Sending) {
        if sending.unflushed {
            sending.unflushed = false;
            sending.producer.publish();
            if sending.producer.take_wake() {
                self.wake_peer();
            }
        }
    }

    /// Takes what has arrived on the socket: wakes, control messages, the end.
    fn pump(&self, inbox: &mut Inbox) {
        for _ in 0..PUMP_MESSAGES {
            if inbox.messages.len() >= INBOX_MESSAGES || self.lost.get().is_some() {
                return;
            }
            let received = self.socket.receive(&mut inbox.buffer);
            if received.is_ok() {
                self.heard.store(true, Ordering::Relaxed);
            }
            match received {
                Ok(received) => match inbox.buffer[..received.length_bytes].split_first() {
                    Some((&kind::WAKE, [])) => {}
                    Some((&kind::CONTROL, bytes)) if !bytes.is_empty() => {
                        inbox.messages.push_back(ControlMessage {
                            bytes: bytes.to_vec(),
                            descriptors: received.descriptors,
                        });
                    }
                    Some((&kind::BYE, [])) => {
                        self.mark_lost(LossReason::ClosedByPeer);
                    }
                    _ => {
                        self.mark_lost(LossReason::Protocol("an unknown message on the Unix socket"));
                    }
                },
                Err(UnixError::WouldBlock) => return,
                // No descriptors are left in this process: the message comes without those that it had.
                Err(UnixError::DescriptorsCut { length_bytes }) => {
                    match inbox.buffer[..length_bytes].split_first() {
                        Some((&kind::CONTROL, bytes)) if !bytes.is_empty() => {
                            let bytes = bytes.to_vec();
                            inbox.messages.push_back(ControlMessage { bytes, descriptors: Vec::new() });
                        }
                        _ => {
                            self.mark_lost(LossReason::Protocol("an unknown message on the Unix socket"));
                        }
                    }
                }
                Err(error) => {
                    self.mark_lost(loss_of(&error));
                }
            }
        }
    }
}

fn loss_of(error: &UnixError) -> LossReason {
    match error {
        UnixError::Closed => LossReason::PeerGone,
        UnixError::Overdue => LossReason::Protocol("more file descriptors than can be closed"),
        UnixError::Truncated => LossReason::Protocol("an oversized message on the Unix socket"),
        UnixError::System { operation, errno } => LossReason::System { operation, errno: *errno },
        _ => LossReason::Protocol("the Unix socket failed"),
    }
}

impl Link for ShmLink {
    fn max_packet_bytes(&self) -> usize {
        MAX_PACKET_BYTES
    }

    fn send(&self, header: &[u8], payload: SharedSpan<'_>) -> Result<(), SendError> {
        self.check()?;
        let bytes = header.len().saturating_add(payload.len());
        if bytes > MAX_PACKET_BYTES {
            return Err(SendError::TooLarge { bytes, max_bytes: MAX_PACKET_BYTES });
        }
        let mut sending = self.sending.lock();
        match sending.producer.push(header, payload) {
            Ok(()) => {
                sending.unflushed = true;
                sending.refused_bytes = None;
                self.counters.packets_sent.add_exclusively(1);
                self.counters.bytes_sent.add_exclusively(bytes as u64);
                Ok(())
            }
            Err(PushError::Full) => {
                sending.refused_bytes = Some(bytes);
                self.counters.full.add_exclusively(1);
                // The peer makes room only while it is awake.
                self.flush_locked(&mut sending);
                Err(SendError::Full)
            }
            Err(PushError::TooLarge) => {
                Err(SendError::TooLarge { bytes, max_bytes: sending.producer.max_packet_bytes() })
            }
            Err(PushError::Broken(error)) => Err(self.mark_lost(error.into()).into()),
        }
    }

    fn flush(&self) -> Result<(), LinkError> {
        self.check()?;
        self.flush_locked(&mut self.sending.lock());
        Ok(())
    }

    fn receive(&self, budget: usize, sink: &mut dyn FnMut(Packet<'_>)) -> Result<usize, LinkError> {
        let mut consumer = self.receiving.lock();
        consumer.disarm();
        if self.armed.load(Ordering::Relaxed) {
            self.armed.store(false, Ordering::Relaxed);
        }
        let mut scratch = [0; PACKET_HEAD_BYTES];
        let (mut count, mut bytes) = (0, 0);
        // A ring that the peer broke is not looked at again, whatever it shows now.
        let broken = matches!(self.lost.get(), Some(LossReason::Ring(_) | LossReason::Protocol(_)));
        while count < budget && !broken {
            let popped = consumer.pop(|span| {
                bytes += span.len() as u64;
                sink(Packet::from_shared(span, &mut scratch));
            });
            match self.ring(popped) {
                Ok(true) => count += 1,
                Ok(false) | Err(_) => break,
            }
        }
        if count == 0 {
            self.check()?;
            return Ok(0);
        }
        consumer.release();
        if !self.heard.load(Ordering::Relaxed) {
            self.heard.store(true, Ordering::Relaxed);
        }
        self.counters.packets_received.add_exclusively(count as u64);
        self.counters.bytes_received.add_exclusively(bytes);
        if consumer.take_room_wake() {
            self.wake_peer();
        }
        Ok(count)
    }

    fn arm(&self) -> Result<bool, LinkError> {
        {
            // First: a wake that is still in the socket must not hide a later sleep.
            let mut inbox = self.inbox.lock();
            self.armed.store(true, Ordering::Relaxed);
            self.pump(&mut inbox);
            if !inbox.messages.is_empty() {
                return Ok(true);
            }
        }
        if self.lost.get().is_some() {
            // `receive` hands out what is left, then says why.
            return Ok(true);
        }
        {
            let mut sending = self.sending.lock();
            self.flush_locked(&mut sending);
            if let Some(bytes) = sending.refused_bytes
                && self.ring(sending.producer.arm_for_room(bytes))?
            {
                sending.refused_bytes = None;
                return Ok(true);
            }
        }
        let mut consumer = self.receiving.lock();
        let ready = self.ring(consumer.arm())?;
        // A thread that received meanwhile took it back, and another one may have read the socket since.
        if !ready && !self.armed.swap(true, Ordering::Relaxed) {
            drop(consumer);
            return Ok(true);
        }
        Ok(ready)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn send_control(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        self.check()?;
        crate::link::check_control(message)?;
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(SendError::Descriptors(descriptors.len()));
        }
        match self.socket.send(&[&[kind::CONTROL], message], descriptors) {
            Ok(()) => {
                self.counters.control_sent.add(1);
                Ok(())
            }
            Err(UnixError::WouldBlock) => Err(SendError::Full),
            // The peer has gone. What it said before, its goodbye included, is read first, and by whoever reads the
            // socket: a link that is lost is not read any more.
            Err(UnixError::Closed) => {
                self.pump(&mut self.inbox.lock());
                self.check()?;
                Err(SendError::Full)
            }
            Err(error) => {
                // The socket may still hold the reason that the peer gave for its end.
                self.pump(&mut self.inbox.lock());
                Err(self.mark_lost(loss_of(&error)).into())
            }
        }
    }

    fn has_control(&self) -> bool {
        // A thread that polls the rings reads the socket now and then (`tick`); one that sleeps, when it is armed.
        self.inbox.try_lock().is_none_or(|inbox| !inbox.messages.is_empty())
    }

    fn receive_control(&self) -> Result<Option<ControlMessage>, LinkError> {
        let mut inbox = self.inbox.lock();
        if inbox.messages.is_empty() {
            self.pump(&mut inbox);
        }
        match inbox.messages.pop_front() {
            Some(message) => {
                self.counters.control_received.add(1);
                Ok(Some(message))
            }
            None => {
                self.check()?;
                Ok(None)
            }
        }
    }

    fn tick(&self, now: Instant) -> Option<Instant> {
        self.look_after_peer(now);
        // This is for a thread that polls the rings only. One that sleeps hears from the socket, so nothing may be
        // taken from there.
        if let Some(mut inbox) = self.inbox.try_lock()
            && !self.armed.load(Ordering::Relaxed)
            && now.saturating_duration_since(inbox.pumped) >= SHM_SOCKET_READ_INTERVAL
        {
            inbox.pumped = now;
            self.pump(&mut inbox);
        }
        // While something is unread.
        let liveness = self.liveness.as_ref().filter(|_| self.lost.get().is_none())?.try_lock()?;
        liveness.unread_since.map(|_| now + SHM_LOOK_INTERVAL)
    }

    fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    fn state(&self) -> LinkState {
        self.lost.get().map_or(LinkState::Up, |reason| LinkState::Lost(*reason))
    }

    fn supports_windows(&self) -> bool {
        true
    }

    fn protects_integrity(&self) -> bool {
        true
    }

    fn peer_process_id(&self) -> Option<u32> {
        self.peer_process_id
    }

    fn peer_process_identity(&self) -> Option<(u32, u64)> {
        self.peer_process_id.zip(self.peer_began)
    }

    fn peer_user(&self) -> Option<u32> {
        Some(self.peer_user)
    }

    fn peer_process(&self) -> Option<Arc<OwnedFd>> {
        self.peer_process.clone()
    }

    fn close(&self, reason: LossReason) {
        if self.lost.set(reason).is_ok() {
            // If the socket is full, its end tells the peer, too, but without a reason.
            let _ = self.socket.send(&[&[kind::BYE]], &[]);
        }
    }

    fn counters(&self) -> LinkCounters {
        self.counters.snapshot()
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.close(LossReason::ClosedByPeer);
    }
}
