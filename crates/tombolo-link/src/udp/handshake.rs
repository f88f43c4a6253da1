//! The connecting side's handshake: each question with growing pauses, until it is answered.
//!
//! What is bounded is the silence: each answer, also a welcome that says "not now" to the first message, begins
//! the time anew, [`ONCE_HEARD`] times as long as before the first one, up to [`MAX_BUSY`] times as much altogether.
//! So those that start at once get in one after the other, and that nobody is there is noticed as soon as before.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tombolo_host::event::wait_readable;
use tombolo_host::timing::link::{COOKIE_PERIOD, HANDSHAKE_RETRY_PAUSE};
use tombolo_host::udp::UdpSocket;

use super::batch::IncomingBatch;
use super::keep_alive::End;
use super::noise::{Handshake, Seals};
use super::wire::{self, FLAG_SECURE, Header, Kind, Malformed};
use super::{SOCKET_BUFFER_BYTES, Session, Settings, UdpLink};
use crate::identity::Identity;
use crate::{Address, OpenError, PROTOCOL_VERSION, PublicKey, Security};

/// A node that answers and is too busy to go on is asked for so many times the silence that is allowed, though no
/// longer than its cookie is good.
const MAX_BUSY: u32 = 10;

/// A node that has answered may be silent for so many times what it may be before: it has many to answer. Of 200
/// that started at once beside other load, 78 had to wait for more than three seconds for their last answer.
const ONCE_HEARD: u32 = 3;

/// Bits that nobody can guess.
pub(super) fn random_u64() -> Result<u64, OpenError> {
    let mut bytes = [0_u8; 8];
    // Eight bytes always come whole.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| OpenError::System { operation: "getrandom", errno })?;
    Ok(u64::from_ne_bytes(bytes))
}

fn system(operation: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::System { operation, errno }
}

pub(super) fn connect(
    peer: SocketAddr,
    security: &Security,
    timeout: Duration,
    settings: Settings,
) -> Result<UdpLink, OpenError> {
    let socket = UdpSocket::connect(peer).map_err(system("UDP socket"))?;
    socket.set_buffer_bytes(SOCKET_BUFFER_BYTES);
    let (began, incoming) = (Instant::now(), IncomingBatch::new());
    let (deadline, last_deadline) =
        (began + timeout, began + timeout.max(COOKIE_PERIOD.min(timeout.saturating_mul(MAX_BUSY))));
    let nonce = random_u64()?;
    let mut asking = Asking { socket, incoming, peer, nonce, began, timeout, deadline, last_deadline };
    let number = asking.hello(nonce, security.identity().is_some())?;
    let (seals, peer_key) = match security.identity() {
        Some(identity) => Some(asking.agree(identity, number, nonce)?),
        None => None,
    }
    .unzip();
    if seals.is_none() {
        asking.first_word(nonce, number)?;
    }
    let Asking { socket, incoming, .. } = asking;
    let (end, to_accept) = (End::Connecting, false);
    let session = Session { socket, incoming, number, nonce, seals, peer_key, end, to_accept, settings };
    let link = UdpLink::new(session)?;
    link.probe(Instant::now());
    Ok(link)
}

/// A socket on which questions are asked.
struct Asking {
    socket: UdpSocket,
    incoming: IncomingBatch,
    peer: SocketAddr,
    /// Of our hello.
    nonce: u64,
    began: Instant,
    /// The longest silence.
    timeout: Duration,
    /// When the silence has lasted so long.
    deadline: Instant,
    last_deadline: Instant,
}

impl Asking {
    fn address(&self) -> Address {
        Address::Udp(self.peer)
    }

    /// The session that a welcome grants.
    fn hello(&mut self, nonce: u64, secure: bool) -> Result<u64, OpenError> {
        let address = self.address();
        self.ask(&wire::hello(nonce, secure), |datagram| {
            let answer = Header::decode(datagram).map(|(header, body)| (header, wire::nonce_of(body)));
            match answer {
                Ok((header, echo)) if echo == Some(nonce) => {
                    let theirs_secure = header.flags & FLAG_SECURE != 0;
                    match header.kind {
                        Kind::Welcome if theirs_secure == secure => Ok(Some(header.session)),
                        Kind::Reject if theirs_secure != secure => {
                            Err(OpenError::SecurityMismatch { address: address.clone(), theirs_secure })
                        }
                        _ => Ok(None),
                    }
                }
                Err(Malformed::Version { theirs, kind: Some(Kind::Reject) }) => {
                    let ours = PROTOCOL_VERSION;
                    Err(OpenError::VersionMismatch { address: address.clone(), ours, theirs })
                }
                // Not an answer to us.
                Ok(_) | Err(_) => Ok(None),
            }
        })
    }

    /// Begins a session without keys: the number shows that we are where we say.
    fn first_word(&mut self, nonce: u64, session: u64) -> Result<(), OpenError> {
        self.ask(&wire::first_word(session, nonce), |datagram| {
            let heard = Header::decode(datagram).ok().filter(|(header, _)| header.session == session);
            // Were it not a pong, that is lost, and what came in its place comes again.
            Ok(heard.filter(|(header, _)| header.kind != Kind::Welcome).map(|_| ()))
        })
    }

    /// The keys of the session, once each side has found the other on its list.
    fn agree(
        &mut self,
        identity: &Identity,
        session: u64,
        nonce: u64,
    ) -> Result<(Seals, PublicKey), OpenError> {
        let mut handshake = Handshake::initiator(&identity.keys, session, nonce)?;
        let first = wire::handshake(session, nonce, 1, &handshake.write()?);
        let of_session = |header: &Header, kind| header.kind == kind && header.session == session;
        let key = self.ask(&first, |datagram| {
            let Ok((header, body)) = Header::decode(datagram) else { return Ok(None) };
            if !of_session(&header, Kind::Handshake) {
                return Ok(None);
            }
            // What is not genuine is no answer, nor is a welcome: there is no place for us yet.
            Ok(wire::handshake_of(body, 2).and_then(|(_, second)| handshake.read_second(second).ok()))
        })?;
        let rights = identity.reader.wait(self.deadline.saturating_duration_since(Instant::now()))?;
        let welcome = rights.of(&key).is_some();
        let (third, mut seals) = handshake.finish_initiator(welcome)?;
        let third = wire::handshake(session, nonce, 3, &third);
        let address = self.address();
        if !welcome {
            // So that the other side can say why. If it is lost, that one waits in vain.
            let _ = self.socket.send(&third);
            return Err(OpenError::PeerNotAllowed { address, key, list: identity.allowed.to_string() });
        }
        let accepted = self.ask(&third, |datagram| {
            let Ok((header, _)) = Header::decode(datagram) else { return Ok(None) };
            let accepted = of_session(&header, Kind::Accepted);
            if !accepted && !of_session(&header, Kind::Refused) {
                return Ok(None);
            }
            Ok(seals.opener.open(datagram).is_ok().then_some(accepted))
        })?;
        if accepted {
            Ok((seals, key))
        } else {
            Err(OpenError::NotOnTheirList { address, key: identity.keys.public() })
        }
    }

    /// Sends a question, again and again, until a datagram answers it.
    fn ask<T>(
        &mut self,
        question: &[u8],
        mut answer: impl FnMut(&mut [u8]) -> Result<Option<T>, OpenError>,
    ) -> Result<T, OpenError> {
        let mut pause = HANDSHAKE_RETRY_PAUSE.0;
        loop {
            match self.socket.send(question) {
                // Refused: what the previous question met. The node may only be starting.
                Ok(()) | Err(Errno::AGAIN | Errno::CONNREFUSED) => {}
                Err(errno) => return Err(system("UDP send")(errno)),
            }
            let retry_at = (Instant::now() + pause).min(self.deadline);
            let answer = self.await_answer(retry_at, &mut answer)?;
            if let Some(answer) = answer {
                self.heard();
                return Ok(answer);
            }
            if Instant::now() >= self.deadline {
                return Err(OpenError::NoAnswer {
                    address: self.address(),
                    waited: self.deadline - self.began,
                });
            }
            pause = (pause * 2).min(HANDSHAKE_RETRY_PAUSE.1);
        }
    }

    /// The node is there: the silence begins anew.
    fn heard(&mut self) {
        self.deadline = (Instant::now() + self.timeout.saturating_mul(ONCE_HEARD)).min(self.last_deadline);
    }

    /// The answer, or None when none came in time.
    fn await_answer<T>(
        &mut self,
        until: Instant,
        answer: &mut impl FnMut(&mut [u8]) -> Result<Option<T>, OpenError>,
    ) -> Result<Option<T>, OpenError> {
        loop {
            match self.incoming.peek(&self.socket) {
                Ok(Some(range)) => {
                    let datagram = self.incoming.datagram_mut(range.clone());
                    let decoded = Header::decode(datagram);
                    let is_welcome = decoded.is_ok_and(|(header, body)| {
                        header.kind == Kind::Welcome && wire::nonce_of(body) == Some(self.nonce)
                    });
                    let answer = answer(datagram);
                    self.incoming.advance(&range);
                    if is_welcome {
                        self.heard();
                    }
                    if let Some(answer) = answer? {
                        return Ok(Some(answer));
                    }
                    if Instant::now() < until {
                        continue;
                    }
                }
                Ok(None) => {}
                Err(Errno::CONNREFUSED) => {
                    // Readable no more: without this pause we would ask as fast as it refuses.
                    std::thread::sleep(until.saturating_duration_since(Instant::now()));
                    return Ok(None);
                }
                Err(errno) => return Err(system("UDP receive")(errno)),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            wait_readable(&[self.socket.as_fd()], Some(left)).map_err(system("poll"))?;
        }
    }
}
