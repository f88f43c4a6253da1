//! The UDP link: two nodes that reach each other by datagrams.
//!
//! Packets of equal size are gathered and handed to the kernel in one call, and received the same
//! way (see [`tombolo_host::udp`]). Control messages are retransmitted until acknowledged
//! (`udp::control`). A side that has heard nothing for a while asks; one that asked in vain pauses, and later
//! gives up (`udp::keep_alive`).
//!
//! Each accepted session has a socket of its own, bound to the listener's address and connected to
//! its peer: the kernel finds the session of a datagram, and no thread stands between it and the
//! node that polls it.
//!
//! A secure session, as between machines:
//!
//! ```text
//! connector                                   listener
//!     │ ── hello (nonce, padded) ───────────────► │ listening socket
//!     │ ◄─ welcome (nonce, session) ───────────── │ the session is a cookie: nothing is kept
//!     │ ── handshake 1 (session, nonce) ────────► │ the cookie fits: who asks is where it says
//!     │ ◄─ handshake 2 ────────────────────────── │ session socket, bound beside it
//!     │ ── handshake 3 ─────────────────────────► │ key on the list: `accept` returns the link
//!     │ ◄─ accepted, or refused ───────────────── │ from here on everything is sealed
//!     │ ◄═ packets · control, ack · ping, pong ═►  │
//!     │ ◄── bye ─────────────────────────────────►│
//! ```
//!
//! What the handshake says is in `udp::noise`, how datagrams are sealed in `udp::seal`; such a link
//! believes nothing that is not sealed, the network's own error messages included. An insecure
//! session, which is for loopback addresses only, has neither: its peer's first ping follows the
//! welcome and says the nonce again, the session's socket is made, and `accept` returns the link.
//!
//! How large datagrams may be is found out while the link lives (`udp::mtu`): probes and their answers
//! go between the others.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use tombolo_host::event::wait_readable;
use tombolo_host::shared::{HeldSpan, SharedSpan};
use tombolo_host::timing::link::MTU_PROBE_INTERVAL;
pub use tombolo_host::timing::link::{DEFAULT_OUTAGE, SUSPECT_AFTER};
use tombolo_host::udp::UdpSocket;

use crate::counters::Counters;
use crate::{
    Address, ControlMessage, Link, LinkCounters, LinkError, LinkState, LossReason, OpenError, Packet,
    PublicKey, Security, SendError,
};

mod batch;
mod control;
mod cookie;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod handshake;
mod incoming;
mod keep_alive;
mod listener;
mod mtu;
mod noise;
mod probing;
mod replay;
mod responder;
mod seal;
mod sending;
mod spare;
mod wire;

use batch::{IncomingBatch, OutgoingBatch};
use control::ControlChannel;
use keep_alive::{End, KeepAlive, Verdict};
use mtu::{FLOOR_BYTES, Path, PathMtu};
use noise::Seals;
use seal::{Opener, SEAL_BYTES, Sealer};
use wire::{FLAG_UNHEARD, HEADER_BYTES, Header, Kind, LENGTH_BYTES, SEQUENCE_BYTES};

pub use listener::{UdpListener, network};

/// The largest packet, where the route takes such datagrams: a block and its headers.
pub const MAX_PACKET_BYTES: usize = 16 * 1024 + 128;
/// Room for small packets before the largest one in the same datagram.
const SMALL_PACKETS_BYTES: usize = 256;
/// The size of the kernel's buffers that is asked for, in each direction.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;
/// The most probes in one call, so that a kernel that refuses all of them does not keep a thread there.
const MAX_PROBES: usize = 64;
/// The most datagrams other than packets that one `receive` handles, so that a peer cannot keep a thread there.
const MAX_OTHERS: usize = 256;

/// How many goodbyes are sent: some may be lost, and without one the peer waits for the whole outage.
const BYES: u32 = 3;

/// What can be chosen for links over UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long the size of datagrams stays before larger ones are tried again.
    pub probe_again: Duration,
    /// How long nothing may be heard before the link is lost, unless [`Link::set_outage`] says otherwise.
    pub outage: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { probe_again: MTU_PROBE_INTERVAL, outage: DEFAULT_OUTAGE }
    }
}

/// What has arrived, and what opens it in a secure session.
#[derive(Debug)]
struct Receiving {
    incoming: IncomingBatch,
    opener: Option<Opener>,
}

/// What a handshake has led to.
#[derive(Debug)]
struct Session {
    socket: UdpSocket,
    /// What has been received already.
    incoming: IncomingBatch,
    number: u64,
    nonce: u64,
    /// `None` on a link without keys.
    seals: Option<Seals>,
    /// The key that the peer has proved.
    peer_key: Option<PublicKey>,
    end: End,
    /// Whether the peer waits to be told that it is accepted, and asks again if that is lost.
    to_accept: bool,
    settings: Settings,
}

/// One end of a UDP link.
#[derive(Debug)]
pub struct UdpLink {
    socket: UdpSocket,
    session: u64,
    /// The nonce of the hello that this session answers; on the connecting side, that we sent.
    nonce: u64,
    /// What a datagram of one packet has besides the packet.
    around_bytes: usize,
    /// How large datagrams may be now, as `mtu` says.
    datagram_bytes: AtomicUsize,
    /// The largest that went since the last tick.
    largest_sent_bytes: AtomicUsize,
    /// The largest that came since a probe was last answered.
    largest_heard_bytes: AtomicUsize,
    mtu: Mutex<PathMtu>,
    sending: Mutex<OutgoingBatch>,
    receiving: Mutex<Receiving>,
    /// In a secure session; locked last.
    sealer: Option<Mutex<Sealer>>,
    /// The key that the peer has proved, in a secure session.
    peer_key: Option<PublicKey>,
    /// The peer may not know yet that it is accepted.
    to_accept: AtomicBool,
    control: Mutex<ControlChannel>,
    /// A control message waits to be taken.
    has_control: AtomicBool,
    keep_alive: Mutex<KeepAlive>,
    /// A datagram of the peer has come since the last tick.
    heard: AtomicBool,
    /// Nothing passes in one direction at least, as of the last tick.
    suspect: AtomicBool,
    /// The peer's address has refused a datagram; lost when all that came before has been read.
    refused: AtomicBool,
    lost: OnceLock<LossReason>,
    counters: Counters,
}

/// A refusal to go without protection where other machines could listen or join in.
fn check_protected(address: SocketAddr, security: &Security) -> Result<(), OpenError> {
    let safe = address.ip().to_canonical().is_loopback() || matches!(security, Security::Secure(_));
    if safe { Ok(()) } else { Err(OpenError::NotLoopback(address)) }
}

impl UdpLink {
    /// Connects to the node that listens at an address, and keeps trying until nothing has been heard for so long;
    /// a node that answers and is busy is asked for up to ten times as long.
    pub fn connect(address: SocketAddr, security: &Security, timeout: Duration) -> Result<Self, OpenError> {
        Self::connect_with(address, security, timeout, Settings::default())
    }

    /// The same, with other settings.
    pub fn connect_with(
        address: SocketAddr,
        security: &Security,
        timeout: Duration,
        settings: Settings,
    ) -> Result<Self, OpenError> {
        check_protected(address, security)?;
        handshake::connect(address, security, timeout, settings)
    }

    fn new(session: Session) -> Result<Self, OpenError> {
        let Session { socket, incoming, number, nonce, seals, peer_key, end, to_accept, settings } = session;
        let system = |errno| OpenError::System { operation: "MTU of the route", errno };
        let sealed = seals.is_some();
        let around_bytes = HEADER_BYTES + LENGTH_BYTES + if sealed { SEAL_BYTES } else { 0 };
        let path = Path {
            route_bytes: socket.max_datagram_bytes().map_err(system)?,
            useful_bytes: around_bytes + MAX_PACKET_BYTES + SMALL_PACKETS_BYTES,
            headers_bytes: socket.headers_bytes().map_err(system)?,
            local: socket.local_address().map_err(system)?.ip().to_canonical().is_loopback(),
            probe_again: settings.probe_again,
        };
        // They go again as they are, whatever becomes of the path meanwhile.
        let fragment_bytes = path.route_bytes.min(FLOOR_BYTES).saturating_sub(around_bytes + SEQUENCE_BYTES);
        let header = Header::new(Kind::Packets, number);
        let (sealer, opener) = seals.map(|seals| (Mutex::new(seals.sealer), seals.opener)).unzip();
        let opened = Instant::now();
        let mtu = PathMtu::new(path, opened);
        Ok(Self {
            socket,
            session: number,
            nonce,
            around_bytes,
            datagram_bytes: AtomicUsize::new(mtu.present()),
            largest_sent_bytes: AtomicUsize::new(0),
            largest_heard_bytes: AtomicUsize::new(0),
            sending: Mutex::new(OutgoingBatch::new(header, sealed, mtu.present())),
            mtu: Mutex::new(mtu),
            receiving: Mutex::new(Receiving { incoming, opener }),
            sealer,
            peer_key,
            to_accept: AtomicBool::new(to_accept),
            control: Mutex::new(ControlChannel::new(fragment_bytes)),
            has_control: AtomicBool::new(false),
            keep_alive: Mutex::new(KeepAlive::new(end, settings.outage, opened)),
            heard: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
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

    fn mark_lost(&self, reason: LossReason) -> LossReason {
        *self.lost.get_or_init(|| reason)
    }

    fn check(&self) -> Result<(), LossReason> {
        if self.refused.load(Ordering::Relaxed)
            && let Some(mut receiving) = self.receiving.try_lock()
        {
            // A goodbye may wait in the socket, which says more than the refusal.
            self.pump(&mut receiving);
        }
        self.lost.get().map_or(Ok(()), |reason| Err(*reason))
    }

    fn heard(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// An error of the socket: the end is near, or a datagram is lost.
    fn failed(&self, errno: Errno) {
        // That nobody is there anyone on the way can say: a secure session waits for silence.
        if errno == Errno::CONNREFUSED && self.sealer.is_none() {
            self.refused.store(true, Ordering::Relaxed);
        } else if errno == Errno::MSGSIZE {
            // So does a router, about a datagram that has gone.
            self.with_mtu(PathMtu::hinted);
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
            self.mark_lost(LossReason::Refused);
        }
        None
    }

    /// Asks for a sign of life.
    fn ping(&self) {
        self.counters.pings_sent.add(1);
        let mut header = Header::new(Kind::Ping, self.session);
        let outage = {
            let keep_alive = self.keep_alive.lock();
            if keep_alive.hears_nothing(Instant::now()) {
                header.flags = FLAG_UNHEARD;
            }
            keep_alive.outage_to_say()
        };
        match outage {
            Some(outage) => self.send_datagram(header, &[&wire::outage(outage)]),
            None => self.send_datagram(header, &[]),
        }
    }

    /// Whether the socket has datagrams that were not received.
    fn has_unread(&self) -> bool {
        wait_readable(&[self.socket.as_fd()], Some(Duration::ZERO)).unwrap_or(false)
    }

    fn take_control(&self) -> Option<Vec<u8>> {
        let mut control = self.control.lock();
        let message = control.take();
        self.has_control.store(control.has_message(), Ordering::Release);
        message
    }
}

impl Link for UdpLink {
    fn max_packet_bytes(&self) -> usize {
        self.packet_bytes(self.datagram_bytes.load(Ordering::Relaxed))
    }

    fn send(&self, header: &[u8], payload: SharedSpan<'_>) -> Result<(), SendError> {
        self.send_sealed(header.len(), payload, &mut |packet| packet[..header.len()].copy_from_slice(header))
    }

    fn send_sealed(
        &self,
        header_bytes: usize,
        payload: SharedSpan<'_>,
        seal: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), SendError> {
        let bytes = header_bytes.saturating_add(payload.len());
        self.add(bytes, &mut |batch| batch.push_sealed(header_bytes, payload, seal))
    }

    fn send_in_place(&self, header: &[u8], payload: HeldSpan) -> Result<(), SendError> {
        if self.sealer.is_some() {
            // It is sealed where it is copied to.
            return self.send(header, payload.span());
        }
        let bytes = header.len().saturating_add(payload.span().len());
        self.add(bytes, &mut |batch| batch.push_in_place(header, &payload))
    }

    fn flush(&self) -> Result<(), LinkError> {
        self.flush_locked(&mut self.sending.lock());
        Ok(self.check()?)
    }

    fn receive(&self, budget: usize, sink: &mut dyn FnMut(Packet<'_>)) -> Result<usize, LinkError> {
        let mut receiving = self.receiving.lock();
        let (mut count, mut others, mut bytes) = (0, 0, 0);
        while count < budget && others < MAX_OTHERS {
            let Some(range) = self.next(&mut receiving.incoming) else {
                break;
            };
            match self.understand(&mut receiving, &range) {
                Some((header, body)) if header.kind == Kind::Packets && header.session == self.session => {
                    // `None`: padding, or bytes that are no packet.
                    if let Some(packet) = receiving.incoming.packet(&range, &body) {
                        count += 1;
                        bytes += packet.len() as u64;
                        sink(Packet::from_bytes(packet));
                    } else {
                        others += 1;
                    }
                    continue;
                }
                Some((header, body)) => {
                    others += 1;
                    if header.session == self.session {
                        self.heard();
                    }
                    let sender = receiving.incoming.sender();
                    self.handle(header, receiving.incoming.datagram(body), sender);
                }
                None => others += 1,
            }
            receiving.incoming.advance(&range);
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
            || self.has_control()
            || self.receiving.lock().incoming.has_more())
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
        let mut message = self.take_control();
        if message.is_none() {
            self.pump(&mut self.receiving.lock());
            message = self.take_control();
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
        self.has_control.load(Ordering::Acquire)
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
        let (verdict, deadline, is_suspect) = {
            let mut keep_alive = self.keep_alive.lock();
            let (verdict, deadline) = keep_alive.tick(now, self.heard.swap(false, Ordering::Relaxed));
            (verdict, deadline, keep_alive.is_suspect(now))
        };
        // Datagrams that wait in the socket count as heard.
        let is_suspect = is_suspect && (self.is_suspect() || !self.has_unread());
        self.suspect.store(is_suspect, Ordering::Relaxed);
        match verdict {
            Verdict::Quiet => {}
            Verdict::Ping => self.ping(),
            Verdict::Silent(duration) => {
                if !self.has_unread() {
                    // The other side may hear us all the same.
                    self.send_datagram(Header::new(Kind::Bye, self.session), &[]);
                    self.mark_lost(LossReason::Silent(duration));
                    return None;
                }
            }
        }
        let deadline = deadline.min(self.probe(now));
        Some(control_deadline.map_or(deadline, |control| control.min(deadline)))
    }

    fn state(&self) -> LinkState {
        let _ = self.check();
        self.lost.get().map_or(LinkState::Up, |reason| LinkState::Lost(*reason))
    }

    fn set_outage(&self, outage: Duration) {
        if self.keep_alive.lock().set_outage(outage) {
            self.ping();
        }
    }

    fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    fn supports_windows(&self) -> bool {
        false
    }

    fn protects_integrity(&self) -> bool {
        self.sealer.is_some()
    }

    fn peer_key(&self) -> Option<PublicKey> {
        self.peer_key
    }

    fn close(&self, reason: LossReason) {
        let _ = self.flush();
        if self.lost.set(reason).is_err() {
            return;
        }
        let why: &[u8] = match reason {
            LossReason::KeyRemoved => &[wire::BYE_KEY_REMOVED],
            LossReason::TooManyLinks => &[wire::BYE_TOO_MANY],
            _ => &[],
        };
        // If all goodbyes are lost, the peer notices the silence after the outage.
        for _ in 0..BYES {
            self.send_datagram(Header::new(Kind::Bye, self.session), &[why]);
        }
    }

    fn peer_address(&self) -> Option<Address> {
        self.socket.peer_address().ok().map(Address::Udp)
    }

    fn counters(&self) -> LinkCounters {
        self.counters.snapshot()
    }
}

impl Drop for UdpLink {
    fn drop(&mut self) {
        self.close(LossReason::ClosedByPeer);
    }
}
