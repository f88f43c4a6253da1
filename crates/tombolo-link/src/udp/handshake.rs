//! The connecting side's handshake: hello, with growing pauses, until welcome.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tombolo_host::event::wait_readable;
use tombolo_host::udp::UdpSocket;

use super::batch::IncomingBatch;
use super::wire::{self, Header, Kind, Malformed};
use super::{SOCKET_BUFFER_BYTES, UdpLink};
use crate::{Address, OpenError, PROTOCOL_VERSION};

/// First and longest pause before hello is said again.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// Bits that nobody can guess.
pub(super) fn random_u64() -> Result<u64, OpenError> {
    let mut bytes = [0_u8; 8];
    // Eight bytes always come whole.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| OpenError::System { operation: "getrandom", errno })?;
    Ok(u64::from_ne_bytes(bytes))
}

pub(super) fn connect(peer: SocketAddr, timeout: Duration) -> Result<UdpLink, OpenError> {
    let system = |operation| move |errno| OpenError::System { operation, errno };
    let socket = UdpSocket::connect(peer).map_err(system("UDP socket"))?;
    socket.set_buffer_bytes(SOCKET_BUFFER_BYTES);
    let nonce = random_u64()?;
    let hello = wire::hello(nonce);
    let deadline = Instant::now() + timeout;
    let mut incoming = IncomingBatch::new();
    let mut pause = RETRY_AFTER.0;
    loop {
        match socket.send(&hello) {
            // Refused: what the previous hello met. The node may only be starting.
            Ok(()) | Err(Errno::AGAIN | Errno::CONNREFUSED) => {}
            Err(errno) => return Err(system("UDP send")(errno)),
        }
        let retry_at = (Instant::now() + pause).min(deadline);
        if let Some(session) = await_answer(&socket, &mut incoming, nonce, retry_at, peer)? {
            let link = UdpLink::new(socket, incoming, session, nonce)?;
            // The first word of the session, which the listener waits for.
            link.send_datagram(Header::new(Kind::Ping, session), &[]);
            return Ok(link);
        }
        if Instant::now() >= deadline {
            return Err(OpenError::NoAnswer { address: Address::Udp(peer), waited: timeout });
        }
        pause = (pause * 2).min(RETRY_AFTER.1);
    }
}

/// The session that a welcome grants, or None when none came in time.
fn await_answer(
    socket: &UdpSocket,
    incoming: &mut IncomingBatch,
    nonce: u64,
    until: Instant,
    peer: SocketAddr,
) -> Result<Option<u64>, OpenError> {
    loop {
        match incoming.peek(socket) {
            Ok(Some(range)) => {
                let answer = Header::decode(incoming.datagram(range.clone()));
                let answer = answer.map(|(header, body)| (header, wire::nonce_of(body)));
                incoming.advance(&range);
                match answer {
                    Ok((header, echo)) if header.kind == Kind::Welcome && echo == Some(nonce) => {
                        return Ok(Some(header.session));
                    }
                    Err(Malformed::Version { theirs, kind: Some(Kind::Reject) }) => {
                        return Err(OpenError::VersionMismatch {
                            address: Address::Udp(peer),
                            ours: PROTOCOL_VERSION,
                            theirs,
                        });
                    }
                    // Not an answer to us.
                    Ok(_) | Err(_) => {}
                }
                continue;
            }
            Ok(None) => {}
            Err(Errno::CONNREFUSED) => {
                // Readable no more: without this pause we would ask as fast as it refuses.
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                return Ok(None);
            }
            Err(errno) => {
                return Err(OpenError::System { operation: "UDP receive", errno });
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        wait_readable(&[socket.as_fd()], Some(left))
            .map_err(|errno| OpenError::System { operation: "poll", errno })?;
    }
}
