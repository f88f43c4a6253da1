//! Accepting UDP links.
//!
//! The listening socket sees only strangers. One that says hello gets a session, with a socket of
//! its own, which is pending until the stranger has used the session's number: only then is it
//! known to be at the address it claims, and `accept` returns the link.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::io::Errno;
use tombolo_host::udp::{RECEIVE_BUFFER_BYTES, UdpSocket};

use super::batch::IncomingBatch;
use super::wire::{self, HELLO_BYTES, Header, Kind, Malformed};
use super::{SOCKET_BUFFER_BYTES, UdpLink, check_loopback};
use crate::{AcceptError, Address, Link, LinkState, Listener, OpenError, PROTOCOL_VERSION};

/// How long a stranger may take to use its session.
const PATIENCE: Duration = Duration::from_secs(2);
/// Sessions not yet used, and events not yet taken; beyond, strangers must ask again.
const MAX_PENDING: usize = 64;
/// Batches taken from the listening socket in one go.
const MAX_BATCHES: usize = 64;

#[derive(Debug)]
struct Pending {
    link: Arc<UdpLink>,
    peer: SocketAddr,
    deadline: Instant,
}

#[derive(Debug)]
struct Strangers {
    buffer: Vec<u8>,
    pending: Vec<Pending>,
    refused: VecDeque<AcceptError>,
}

/// Waits for UDP links at an address.
#[derive(Debug)]
pub struct UdpListener {
    socket: UdpSocket,
    address: SocketAddr,
    /// Readable when the listening socket or a pending session is.
    poller: OwnedFd,
    strangers: Mutex<Strangers>,
}

impl UdpListener {
    /// Listens at a loopback address; port 0 lets the system choose one.
    pub fn bind(address: SocketAddr) -> Result<Self, OpenError> {
        check_loopback(address)?;
        let system = |operation| move |errno| OpenError::System { operation, errno };
        let socket = UdpSocket::bind(address).map_err(|errno| match errno {
            Errno::ADDRINUSE => OpenError::InUse(Address::Udp(address)),
            errno => system("UDP bind")(errno),
        })?;
        let address = socket.local_address().map_err(system("UDP address"))?;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        epoll::add(&poller, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(system("epoll"))?;
        let strangers = Strangers {
            buffer: vec![0; RECEIVE_BUFFER_BYTES],
            pending: Vec::new(),
            refused: VecDeque::new(),
        };
        Ok(Self { socket, address, poller, strangers: Mutex::new(strangers) })
    }

    /// Reads what strangers sent to the listening socket.
    fn hear(&self, strangers: &mut Strangers) -> Result<(), OpenError> {
        for _ in 0..MAX_BATCHES {
            let mut buffer = std::mem::take(&mut strangers.buffer);
            let received = self.socket.receive(&mut buffer);
            let mut result = Ok(());
            if let Ok(batch) = received
                && let Some(from) = batch.from
            {
                for datagram in buffer[..batch.length_bytes].chunks(batch.segment_bytes.max(1)) {
                    result = result.and(self.hear_datagram(strangers, datagram, from));
                }
            }
            strangers.buffer = buffer;
            result?;
            // Other errors are about datagrams of ours that met nobody.
            if matches!(received, Err(Errno::AGAIN)) {
                break;
            }
        }
        Ok(())
    }

    fn hear_datagram(
        &self,
        strangers: &mut Strangers,
        datagram: &[u8],
        from: SocketAddr,
    ) -> Result<(), OpenError> {
        // A shorter hello could make us send more than we were sent.
        if datagram.len() < HELLO_BYTES {
            return Ok(());
        }
        match Header::decode(datagram) {
            Ok((header, body)) if header.kind == Kind::Hello => match wire::nonce_of(body) {
                Some(nonce) => self.hear_hello(strangers, nonce, from),
                None => Ok(()),
            },
            Err(Malformed::Version { theirs, kind: Some(Kind::Hello) }) => {
                let nonce = datagram.get(wire::HEADER_BYTES..).and_then(wire::nonce_of);
                let reject = wire::answer(Kind::Reject, 0, nonce.unwrap_or(0));
                // It asks again if this is lost.
                let _ = self.socket.send_to(&reject, from);
                if strangers.refused.len() < MAX_PENDING {
                    let ours = PROTOCOL_VERSION;
                    strangers.refused.push_back(AcceptError::VersionMismatch { ours, theirs });
                }
                Ok(())
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn hear_hello(&self, strangers: &mut Strangers, nonce: u64, from: SocketAddr) -> Result<(), OpenError> {
        if let Some(known) =
            strangers.pending.iter().find(|pending| pending.peer == from && pending.link.nonce == nonce)
        {
            known.link.send_welcome();
            return Ok(());
        }
        if strangers.pending.len() >= MAX_PENDING {
            return Ok(());
        }
        let system = |operation| move |errno| OpenError::System { operation, errno };
        let socket = match self.socket.bind_beside(from) {
            Ok(socket) => socket,
            // An address that cannot be answered, such as port 0.
            Err(Errno::INVAL | Errno::ADDRNOTAVAIL | Errno::NETUNREACH | Errno::ACCESS) => {
                return Ok(());
            }
            Err(errno) => return Err(system("UDP session socket")(errno)),
        };
        socket.set_buffer_bytes(SOCKET_BUFFER_BYTES);
        // What it caught between binding and connecting, of others who say hello just now.
        let mut caught = vec![0; RECEIVE_BUFFER_BYTES];
        let mut others = Vec::new();
        for _ in 0..MAX_BATCHES {
            let Ok(batch) = socket.receive(&mut caught) else {
                break;
            };
            if let Some(other) = batch.from.filter(|other| *other != from) {
                let datagrams = caught[..batch.length_bytes].chunks(batch.segment_bytes.max(1));
                others.extend(datagrams.map(|datagram| (datagram.to_vec(), other)));
            }
        }
        let session = super::handshake::random_u64()?;
        let link = Arc::new(UdpLink::new(socket, IncomingBatch::new(), session, nonce)?);
        epoll::add(&self.poller, &link.socket, epoll::EventData::new_u64(1), epoll::EventFlags::IN)
            .map_err(system("epoll"))?;
        link.send_welcome();
        let deadline = Instant::now() + PATIENCE;
        strangers.pending.push(Pending { link, peer: from, deadline });
        // Depth is bounded by MAX_PENDING, since each level makes a session.
        for (datagram, other) in others {
            self.hear_datagram(strangers, &datagram, other)?;
        }
        Ok(())
    }

    /// The first pending session that its peer has used; drops those that died or took too long.
    fn confirmed(&self, strangers: &mut Strangers) -> Option<Arc<UdpLink>> {
        let now = Instant::now();
        let mut next = 0;
        while next < strangers.pending.len() {
            let pending = &strangers.pending[next];
            let used = pending.link.pump(&mut pending.link.receiving.lock());
            let alive = pending.link.state() == LinkState::Up;
            if used && alive {
                let link = strangers.pending.remove(next).link;
                let _ = epoll::delete(&self.poller, &link.socket);
                return Some(link);
            }
            if alive && now < pending.deadline {
                next += 1;
            } else {
                strangers.pending.remove(next);
            }
        }
        None
    }
}

impl Listener for UdpListener {
    fn accept(&self) -> Result<Option<Arc<dyn Link>>, AcceptError> {
        let mut strangers = self.strangers.lock();
        let heard = self.hear(&mut strangers);
        if let Some(refused) = strangers.refused.pop_front() {
            return Err(refused);
        }
        if let Some(link) = self.confirmed(&mut strangers) {
            return Ok(Some(link));
        }
        heard?;
        Ok(None)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn address(&self) -> Address {
        Address::Udp(self.address)
    }
}
