//! The UDP link: two nodes that reach each other by datagrams.
//!
//! Packets of equal size are gathered and handed to the kernel in one call, and received the same
//! way (see [`tombolo_host::udp`]). Control messages are retransmitted until acknowledged
//! (`udp::control`). A side that has heard nothing for a while asks; one that asked in vain gives up.
//!
//! Each accepted session has a socket of its own, bound to the listener's address and connected to
//! its peer: the kernel finds the session of a datagram, and no thread stands between it and the
//! node that polls it.
//!
//! ```text
//! connector                                   listener
//!     │ ── hello (nonce, padded) ───────────────► │ listening socket
//!     │ ◄─ welcome (nonce, session) ───────────── │ session socket, bound beside it
//!     │ ── ping (session) ──────────────────────► │ now `accept` returns the link
//!     │ ◄═ packets · control, ack · ping, pong ═►  │
//!     │ ◄── bye ─────────────────────────────────►│
//! ```
//!
//! Until links are authenticated, only loopback addresses are used.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use tombolo_host::event::wait_readable;
use tombolo_host::shared::SharedSpan;
use tombolo_host::udp::UdpSocket;

use crate::counters::Counters;
use crate::{
    ControlMessage, Link, LinkCounters, LinkError, LinkState, LossReason, OpenError, Packet, SendError,
};

mod batch;
mod control;
mod handshake;
mod keep_alive;
mod listener;
mod wire;

use batch::{IncomingBatch, OutgoingBatch};
use control::ControlChannel;
use keep_alive::{KeepAlive, Verdict};
use wire::{FLAG_MORE, HEADER_BYTES, Header, Kind, LENGTH_BYTES, SEQUENCE_BYTES};

pub use listener::UdpListener;

/// The largest packet, where the route takes such datagrams: a 4 KiB payload and its headers.
pub const MAX_PACKET_BYTES: usize = 4096 + 128;
/// Small packets that may go before the largest one in its datagram, altogether.
const COMPANY_BYTES: usize = 256;
/// What we ask the kernel to buffer in each direction.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;
/// Datagrams other than packets handled in one `receive`, so that a peer cannot keep us there.
const MAX_OTHERS: usize = 256;

/// One end of a UDP link.
#[derive(Debug)]
pub struct UdpLink {
    socket: UdpSocket,
    session: u64,
    /// The nonce of the hello that this session answers; on the connecting side, that we sent.
    nonce: u64,
    max_packet_bytes: usize,
    sending: Mutex<OutgoingBatch>,
    receiving: Mutex<IncomingBatch>,
    control: Mutex<ControlChannel>,
    keep_alive: Mutex<KeepAlive>,
    /// When something was last heard, in nanoseconds since `opened`.
    heard_ns: AtomicU64,
    opened: Instant,
    /// The peer's address has refused a datagram; lost when all that came before has been read.
    refused: AtomicBool,
    lost: OnceLock<LossReason>,
    counters: Counters,
}

/// A refusal for addresses that other machines could reach.
fn check_loopback(address: SocketAddr) -> Result<(), OpenError> {
    if address.ip().to_canonical().is_loopback() { Ok(()) } else { Err(OpenError::NotLoopback(address)) }
}

impl UdpLink {
    /// Connects to the node that listens at an address, and keeps trying until the time is over.
    pub fn connect(address: SocketAddr, timeout: Duration) -> Result<Self, OpenError> {
        check_loopback(address)?;
        handshake::connect(address, timeout)
    }

    fn new(socket: UdpSocket, incoming: IncomingBatch, session: u64, nonce: u64) -> Result<Self, OpenError> {
        let system = |errno| OpenError::System { operation: "MTU of the route", errno };
        let datagram_bytes = socket.max_datagram_bytes().map_err(system)?;
        let around_bytes = HEADER_BYTES + LENGTH_BYTES;
        let max_packet_bytes = MAX_PACKET_BYTES.min(datagram_bytes.saturating_sub(around_bytes));
        let max_datagram_bytes = datagram_bytes.min(around_bytes + max_packet_bytes + COMPANY_BYTES);
        let head = Header::new(Kind::Packets, session).encode();
        let opened = Instant::now();
        Ok(Self {
            socket,
            session,
            nonce,
            max_packet_bytes,
            sending: Mutex::new(OutgoingBatch::new(head, max_datagram_bytes)),
            receiving: Mutex::new(incoming),
            control: Mutex::new(ControlChannel::new(max_packet_bytes.saturating_sub(SEQUENCE_BYTES))),
            keep_alive: Mutex::new(KeepAlive::new(opened)),
            heard_ns: AtomicU64::new(0),
            opened,
            refused: AtomicBool::new(false),
            lost: OnceLock::new(),
            counters: Counters::default(),
        })
    }

    /// Stops sending batches in one call, as a kernel that refuses to does. For tests and
    /// measurements.
    pub fn disable_segmentation(&self) {
        self.socket.disable_segmentation();
    }

    fn lose(&self, reason: LossReason) -> LossReason {
        *self.lost.get_or_init(|| reason)
    }

    fn check(&self) -> Result<(), LossReason> {
        if self.refused.load(Ordering::Relaxed)
            && let Some(mut incoming) = self.receiving.try_lock()
        {
            // A goodbye may wait in the socket, which says more than the refusal.
            self.pump(&mut incoming);
        }
        self.lost.get().map_or(Ok(()), |reason| Err(*reason))
    }

    fn heard(&self) {
        let nanoseconds = self.opened.elapsed().as_nanos();
        let nanoseconds = u64::try_from(nanoseconds).unwrap_or(u64::MAX);
        self.heard_ns.store(nanoseconds, Ordering::Relaxed);
    }

    fn heard_at(&self) -> Instant {
        self.opened + Duration::from_nanos(self.heard_ns.load(Ordering::Relaxed))
    }

    /// An error of the socket: the end is near, or a datagram is lost.
    fn failed(&self, errno: Errno) {
        if errno == Errno::CONNREFUSED {
            self.refused.store(true, Ordering::Relaxed);
        } else {
            self.counters.send_failures.add(1);
        }
    }

    /// Where the next datagram lies.
    fn next(&self, incoming: &mut IncomingBatch) -> Option<Range<usize>> {
        // The socket reports an error once, and before what it has received.
        for _ in 0..4 {
            match incoming.peek(&self.socket) {
                Ok(Some(range)) => return Some(range),
                Ok(None) => break,
                Err(errno) => self.failed(errno),
            }
        }
        if self.refused.load(Ordering::Relaxed) {
            self.lose(LossReason::Refused);
        }
        None
    }

    fn flush_locked(&self, batch: &mut OutgoingBatch) {
        match batch.flush(&self.socket) {
            Ok(()) | Err((Errno::AGAIN, _)) => {}
            Err((Errno::CONNREFUSED, _)) => self.failed(Errno::CONNREFUSED),
            Err((_, lost)) => self.counters.send_failures.add(lost as u64),
        }
    }

    /// Sends a small datagram at once. It may be lost like any other.
    fn send_datagram(&self, header: Header, body: &[&[u8]]) {
        let mut datagram = header.encode().to_vec();
        for part in body {
            datagram.extend_from_slice(part);
        }
        match self.socket.send(&datagram) {
            Ok(()) | Err(Errno::AGAIN) => {}
            Err(errno) => self.failed(errno),
        }
    }

    fn send_due_control(&self, control: &mut ControlChannel, now: Instant) {
        if let Some(due) = control.poll(now) {
            if due.again {
                self.counters.control_retransmitted.add(1);
            }
            let mut header = Header::new(Kind::Control, self.session);
            header.flags = if due.more { FLAG_MORE } else { 0 };
            self.send_datagram(header, &[&due.sequence.to_le_bytes(), due.text]);
        }
    }

    /// Does what a datagram other than a packet asks for.
    fn handle(&self, header: Header, body: &[u8]) {
        match header.kind {
            Kind::Hello => self.handle_hello(body),
            _ if header.session != self.session => self.counters.discarded.add(1),
            Kind::Control => {
                let Some((sequence, text)) = wire::sequence_of(body) else {
                    return self.counters.discarded.add(1);
                };
                let more = header.flags & FLAG_MORE != 0;
                match self.control.lock().arrived(sequence, text, more) {
                    Ok(true) => {
                        let header = Header::new(Kind::ControlAck, self.session);
                        self.send_datagram(header, &[&sequence.to_le_bytes()]);
                    }
                    Ok(false) => {}
                    Err(reason) => {
                        self.lose(reason);
                    }
                }
            }
            Kind::ControlAck => {
                if let Some((sequence, _)) = wire::sequence_of(body) {
                    let mut control = self.control.lock();
                    control.acknowledged(sequence);
                    self.send_due_control(&mut control, Instant::now());
                }
            }
            Kind::Ping => self.send_datagram(Header::new(Kind::Pong, self.session), &[]),
            Kind::Bye => {
                self.lose(LossReason::ClosedByPeer);
            }
            // A welcome is the answer to a hello that we repeated.
            Kind::Pong | Kind::Welcome => {}
            Kind::Packets | Kind::Reject => self.counters.discarded.add(1),
        }
    }

    /// A hello at a session that exists: our welcome was lost, or the peer has begun a new life at
    /// the same port.
    fn handle_hello(&self, body: &[u8]) {
        match wire::nonce_of(body) {
            Some(nonce) if nonce == self.nonce => self.send_welcome(),
            Some(_) => {
                self.lose(LossReason::ClosedByPeer);
            }
            None => self.counters.discarded.add(1),
        }
    }

    fn send_welcome(&self) {
        match self.socket.send(&wire::answer(Kind::Welcome, self.session, self.nonce)) {
            Ok(()) | Err(Errno::AGAIN) => {}
            Err(errno) => self.failed(errno),
        }
    }

    /// Handles datagrams up to the first packet of the session, which stays; true when there is
    /// one, or anything else of the session came.
    fn pump(&self, incoming: &mut IncomingBatch) -> bool {
        let mut alive = false;
        for _ in 0..MAX_OTHERS {
            let Some(range) = self.next(incoming) else {
                break;
            };
            match Header::decode(incoming.datagram(range.clone())) {
                Ok((header, _)) if header.kind == Kind::Packets && header.session == self.session => {
                    return true;
                }
                Ok((header, body)) => {
                    if header.session == self.session {
                        alive = true;
                        self.heard();
                    }
                    self.handle(header, body);
                }
                Err(_) => self.counters.discarded.add(1),
            }
            incoming.advance(&range);
        }
        alive
    }
}

impl Link for UdpLink {
    fn max_packet_bytes(&self) -> usize {
        self.max_packet_bytes
    }

    fn send(&self, header: &[u8], payload: SharedSpan<'_>) -> Result<(), SendError> {
        self.check()?;
        let bytes = header.len().saturating_add(payload.len());
        if bytes > self.max_packet_bytes {
            return Err(SendError::TooLarge { bytes, max_bytes: self.max_packet_bytes });
        }
        let mut batch = self.sending.lock();
        if !batch.push(header, payload) {
            self.flush_locked(&mut batch);
            self.check()?;
            if !batch.is_empty() || !batch.push(header, payload) {
                self.counters.full.add(1);
                return Err(SendError::Full);
            }
        }
        self.counters.packets_sent.add_exclusively(1);
        self.counters.bytes_sent.add_exclusively(bytes as u64);
        Ok(())
    }

    fn flush(&self) -> Result<(), LinkError> {
        self.flush_locked(&mut self.sending.lock());
        Ok(self.check()?)
    }

    fn receive(&self, budget: usize, sink: &mut dyn FnMut(Packet<'_>)) -> Result<usize, LinkError> {
        let mut incoming = self.receiving.lock();
        let (mut count, mut others, mut bytes) = (0, 0, 0);
        while count < budget && others < MAX_OTHERS {
            let Some(range) = self.next(&mut incoming) else {
                break;
            };
            match Header::decode(incoming.datagram(range.clone())) {
                Ok((header, _)) if header.kind == Kind::Packets && header.session == self.session => {
                    // None: padding, or nonsense that the packets' own checks would not pass.
                    if let Some(packet) = incoming.packet(&range) {
                        count += 1;
                        bytes += packet.len() as u64;
                        sink(Packet::from_bytes(packet));
                    } else {
                        others += 1;
                    }
                    continue;
                }
                Ok((header, body)) => {
                    others += 1;
                    if header.session == self.session {
                        self.heard();
                    }
                    self.handle(header, body);
                }
                Err(_) => {
                    others += 1;
                    self.counters.discarded.add(1);
                }
            }
            incoming.advance(&range);
        }
        if count == 0 {
            self.check()?;
            return Ok(0);
        }
        self.heard();
        self.counters.packets_received.add_exclusively(count as u64);
        self.counters.bytes_received.add_exclusively(bytes);
        Ok(count)
    }

    fn arm(&self) -> Result<bool, LinkError> {
        let unsent = {
            let mut batch = self.sending.lock();
            self.flush_locked(&mut batch);
            !batch.is_empty()
        };
        // What is still in the socket shows at the descriptor.
        Ok(unsent
            || self.lost.get().is_some()
            || self.control.lock().has_message()
            || self.receiving.lock().has_more())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn send_control(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        self.check()?;
        crate::link::check_control(message)?;
        if !descriptors.is_empty() {
            return Err(SendError::Descriptors(descriptors.len()));
        }
        let mut control = self.control.lock();
        if !control.queue(message) {
            return Err(SendError::Full);
        }
        self.counters.control_sent.add(1);
        self.send_due_control(&mut control, Instant::now());
        Ok(())
    }

    fn receive_control(&self) -> Result<Option<ControlMessage>, LinkError> {
        let mut message = self.control.lock().take();
        if message.is_none() {
            self.pump(&mut self.receiving.lock());
            message = self.control.lock().take();
        }
        match message {
            Some(bytes) => {
                self.counters.control_received.add(1);
                Ok(Some(ControlMessage { bytes, descriptors: Vec::new() }))
            }
            None => {
                self.check()?;
                Ok(None)
            }
        }
    }

    fn has_control(&self) -> bool {
        self.control.lock().has_message()
    }

    fn tick(&self, now: Instant) -> Option<Instant> {
        if self.lost.get().is_some() {
            return None;
        }
        let control_deadline = {
            let mut control = self.control.lock();
            self.send_due_control(&mut control, now);
            control.deadline()
        };
        let (verdict, deadline) = self.keep_alive.lock().tick(now, self.heard_at());
        match verdict {
            Verdict::Quiet => {}
            Verdict::Ping => {
                self.counters.pings_sent.add(1);
                self.send_datagram(Header::new(Kind::Ping, self.session), &[]);
            }
            Verdict::Silent(duration) => {
                // Datagrams that we have not come round to receive are no silence.
                let unread = wait_readable(&[self.socket.as_fd()], Some(Duration::ZERO));
                if !unread.unwrap_or(false) {
                    self.lose(LossReason::Silent(duration));
                    return None;
                }
            }
        }
        Some(control_deadline.map_or(deadline, |control| control.min(deadline)))
    }

    fn state(&self) -> LinkState {
        let _ = self.check();
        self.lost.get().map_or(LinkState::Up, |reason| LinkState::Lost(*reason))
    }

    fn supports_windows(&self) -> bool {
        false
    }

    fn counters(&self) -> LinkCounters {
        self.counters.snapshot()
    }
}

impl Drop for UdpLink {
    fn drop(&mut self) {
        let _ = self.sending.get_mut().flush(&self.socket);
        if self.lost.get().is_none() {
            let bye = Header::new(Kind::Bye, self.session).encode();
            // If it is lost, silence will say the same later.
            let _ = self.socket.send(&bye);
        }
    }
}
