//! Accepting UDP links.
//!
//! The listening socket sees only strangers. Without keys, one that says hello gets a session, with a
//! socket of its own, which is pending until the stranger has used the session's number: only then
//! is it known to be at the address it claims, and `accept` returns the link.
//!
//! With keys, nothing is kept for a hello: the session's number is a cookie, and the session begins
//! when the stranger comes back with it. It is pending until both keys are verified.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::io::Errno;
use tombolo_host::udp::{RECEIVE_BUFFER_BYTES, UdpSocket};

use super::batch::IncomingBatch;
use super::cookie::Cookies;
use super::keep_alive::End;
use super::responder::{Progress, Responder};
use super::wire::{self, FLAG_SECURE, HELLO_BYTES, Header, Kind, Malformed};
use super::{SOCKET_BUFFER_BYTES, Session, Settings, UdpLink, check_protected};
use crate::counters::Strangers as Counters;
use crate::identity::Identity;
use crate::{
    AcceptError, Address, Link, LinkState, Listener, ListenerCounters, OpenError, PROTOCOL_VERSION, Security,
};

/// How long a stranger may take to use its session.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take to agree on keys, on a network that loses much.
const KEYS_PATIENCE: Duration = Duration::from_secs(5);
/// Strangers that do not fit are told of once in so long: anyone can send such datagrams.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// Sessions begun lately, each of which begins once.
const MAX_BEGUN: usize = 256;
/// Sessions not yet used; beyond, strangers must ask again.
const MAX_PENDING: usize = 64;
/// Batches taken from the listening socket in one go.
const MAX_BATCHES: usize = 64;

/// A session on its way.
#[derive(Debug)]
enum Pending {
    /// Without keys: until its number is used.
    Plain { link: Arc<UdpLink>, peer: SocketAddr, deadline: Instant },
    /// With keys: until both are verified.
    Keys { responder: Box<Responder>, deadline: Instant },
}

/// What became of a pending session.
enum Outcome {
    Waits,
    Ready,
    Refused(AcceptError),
    Over,
}

impl Pending {
    fn advance(&mut self, now: Instant) -> Outcome {
        let waits = |deadline: Instant| if now < deadline { Outcome::Waits } else { Outcome::Over };
        match self {
            Self::Plain { link, deadline, .. } => {
                let used = link.pump(&mut link.receiving.lock());
                match link.state() == LinkState::Up {
                    true if used => Outcome::Ready,
                    true => waits(*deadline),
                    false => Outcome::Over,
                }
            }
            Self::Keys { responder, deadline } => match responder.advance() {
                Progress::Agreed => Outcome::Ready,
                Progress::Refused(error) => Outcome::Refused(error),
                Progress::Waiting => waits(*deadline),
            },
        }
    }

    fn peer(&self) -> SocketAddr {
        match self {
            Self::Plain { peer, .. } => *peer,
            Self::Keys { responder, .. } => responder.peer(),
        }
    }

    fn socket(&self) -> &UdpSocket {
        match self {
            Self::Plain { link, .. } => &link.socket,
            Self::Keys { responder, .. } => &responder.socket,
        }
    }
}

/// What one host has for itself: an IPv4 address, or the first half of an IPv6 address.
fn network(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits() >> 64 << 64,
    }
}

/// What a session's new socket caught of others who came just then.
type Others = Vec<(Vec<u8>, SocketAddr)>;

#[derive(Debug)]
struct Strangers {
    buffer: Vec<u8>,
    pending: Vec<Pending>,
    /// Numbers of secure sessions that have begun.
    begun: VecDeque<u64>,
    refused: VecDeque<AcceptError>,
    /// When a stranger was last refused aloud.
    told: Option<Instant>,
}

impl Strangers {
    /// Room for one more pending session, if need be of the host that has the most; false when that
    /// is the newcomer's own. So nobody keeps others out by beginning many.
    fn make_room(&mut self, newcomer: IpAddr) -> bool {
        if self.pending.len() < MAX_PENDING {
            return true;
        }
        let of = |host| self.pending.iter().filter(|pending| network(pending.peer().ip()) == host).count();
        let hosts = self.pending.iter().map(|pending| network(pending.peer().ip()));
        let Some(greediest) = hosts.max_by_key(|host| of(*host)) else { return false };
        if of(network(newcomer)) + 1 >= of(greediest) {
            return false;
        }
        let oldest = self.pending.iter().position(|pending| network(pending.peer().ip()) == greediest);
        oldest.is_some_and(|oldest| {
            self.pending.remove(oldest);
            true
        })
    }

    /// Notes a stranger that does not fit and has proved nothing.
    fn refuse(&mut self, error: AcceptError) {
        let now = Instant::now();
        if self.told.is_none_or(|told| now.duration_since(told) >= TELL_AFTER) {
            self.told = Some(now);
            self.refused.push_back(error);
        }
    }
}

/// Waits for UDP links at an address.
#[derive(Debug)]
pub struct UdpListener {
    socket: UdpSocket,
    address: SocketAddr,
    /// Readable when the listening socket or a pending session is.
    poller: OwnedFd,
    /// With keys: ours, the list, and what cookies are made with.
    keys: Option<(Arc<Identity>, Cookies)>,
    strangers: Mutex<Strangers>,
    settings: Settings,
    counters: Counters,
}

fn system(operation: &'static str) -> impl Fn(Errno) -> OpenError {
    move |errno| OpenError::System { operation, errno }
}

impl UdpListener {
    /// Listens at an address, which without keys must be a loopback address; port 0 lets the system
    /// choose one.
    pub fn bind(address: SocketAddr, security: &Security) -> Result<Self, OpenError> {
        Self::bind_with(address, security, Settings::default())
    }

    /// The same, with other settings for its links.
    pub fn bind_with(
        address: SocketAddr,
        security: &Security,
        settings: Settings,
    ) -> Result<Self, OpenError> {
        check_protected(address, security)?;
        let keys = match security.identity() {
            Some(identity) => {
                let cookies = Cookies::new(Instant::now()).map_err(system("getrandom"))?;
                Some((identity.clone(), cookies))
            }
            None => None,
        };
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
            begun: VecDeque::new(),
            refused: VecDeque::new(),
            told: None,
        };
        let counters = Counters::default();
        Ok(Self { socket, address, poller, keys, strangers: Mutex::new(strangers), settings, counters })
    }

    /// Reads what strangers sent to the listening socket.
    fn hear(&self, strangers: &mut Strangers) -> Result<(), OpenError> {
        for _ in 0..MAX_BATCHES {
            let mut buffer = std::mem::take(&mut strangers.buffer);
            let received = self.socket.receive_from(&mut buffer);
            let mut result = Ok(());
            if let Ok((batch, Some(from))) = received {
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
            return self.discard();
        }
        match Header::decode(datagram) {
            Ok((header, body)) => match (header.kind, wire::nonce_of(body)) {
                (Kind::Hello, Some(nonce)) => self.hear_hello(strangers, header, nonce, from),
                (Kind::Handshake, _) => self.hear_handshake(strangers, header, body, from),
                _ => self.discard(),
            },
            Err(Malformed::Version { theirs, kind: Some(Kind::Hello) }) => {
                let nonce = datagram.get(wire::HEADER_BYTES..).and_then(wire::nonce_of);
                self.reject(nonce.unwrap_or(0), from);
                strangers.refuse(AcceptError::VersionMismatch { ours: PROTOCOL_VERSION, theirs });
                Ok(())
            }
            Err(_) => self.discard(),
        }
    }

    fn discard(&self) -> Result<(), OpenError> {
        self.counters.discarded.add(1);
        Ok(())
    }

    /// It asks again if this is lost.
    fn reject(&self, nonce: u64, from: SocketAddr) {
        let reject = wire::answer(Kind::Reject, self.keys.is_some(), 0, nonce);
        let _ = self.socket.send_to(&reject, from);
        self.counters.refused.add(1);
    }

    fn hear_hello(
        &self,
        strangers: &mut Strangers,
        header: Header,
        nonce: u64,
        from: SocketAddr,
    ) -> Result<(), OpenError> {
        let ours_secure = self.keys.is_some();
        if (header.flags & FLAG_SECURE != 0) != ours_secure {
            self.reject(nonce, from);
            strangers.refuse(AcceptError::SecurityMismatch { ours_secure });
            return Ok(());
        }
        self.counters.hellos.add(1);
        let Some((_, cookies)) = &self.keys else { return self.begin_plain(strangers, nonce, from) };
        let session = cookies.bake(from, nonce, Instant::now());
        let _ = self.socket.send_to(&wire::answer(Kind::Welcome, true, session, nonce), from);
        Ok(())
    }

    /// A socket for one peer, and what it caught of others; None: its address cannot be answered, or
    /// there are too many already.
    fn session_socket(
        &self,
        strangers: &mut Strangers,
        from: SocketAddr,
    ) -> Result<Option<(UdpSocket, Others)>, OpenError> {
        let before = strangers.pending.len();
        let room = strangers.make_room(from.ip());
        if !room || strangers.pending.len() < before {
            self.counters.turned_away.add(1);
        }
        if !room {
            return Ok(None);
        }
        let socket = match self.socket.bind_beside(from) {
            Ok(socket) => socket,
            // An address that cannot be answered, such as port 0.
            Err(Errno::INVAL | Errno::ADDRNOTAVAIL | Errno::NETUNREACH | Errno::ACCESS) => {
                return Ok(None);
            }
            Err(errno) => return Err(system("UDP session socket")(errno)),
        };
        socket.set_buffer_bytes(SOCKET_BUFFER_BYTES);
        // What it caught between binding and connecting, of others who say hello just now.
        let mut caught = vec![0; RECEIVE_BUFFER_BYTES];
        let mut others = Vec::new();
        for _ in 0..MAX_BATCHES {
            let Ok((batch, sender)) = socket.receive_from(&mut caught) else {
                break;
            };
            if let Some(other) = sender.filter(|other| *other != from) {
                let datagrams = caught[..batch.length_bytes].chunks(batch.segment_bytes.max(1));
                others.extend(datagrams.map(|datagram| (datagram.to_vec(), other)));
            }
        }
        Ok(Some((socket, others)))
    }

    /// Keeps a session until it is ready, and hears what its socket caught.
    fn keep(&self, strangers: &mut Strangers, pending: Pending, others: Others) -> Result<(), OpenError> {
        epoll::add(&self.poller, pending.socket(), epoll::EventData::new_u64(1), epoll::EventFlags::IN)
            .map_err(system("epoll"))?;
        strangers.pending.push(pending);
        self.counters.begun.add(1);
        // Depth is bounded by MAX_PENDING, since each level makes a session.
        for (datagram, other) in others {
            self.hear_datagram(strangers, &datagram, other)?;
        }
        Ok(())
    }

    /// A hello without keys.
    fn begin_plain(&self, strangers: &mut Strangers, nonce: u64, from: SocketAddr) -> Result<(), OpenError> {
        for pending in &strangers.pending {
            if let Pending::Plain { link, peer, .. } = pending
                && *peer == from
                && link.nonce == nonce
            {
                link.send_welcome();
                return Ok(());
            }
        }
        let Some((socket, others)) = self.session_socket(strangers, from)? else { return Ok(()) };
        let number = super::handshake::random_u64()?;
        let incoming = IncomingBatch::new();
        let settings = self.settings;
        let (seals, peer_key, to_accept) = (None, None, false);
        let end = End::Listening;
        let session = Session { socket, incoming, number, nonce, seals, peer_key, end, to_accept, settings };
        let link = Arc::new(UdpLink::new(session)?);
        link.send_welcome();
        let deadline = Instant::now() + PATIENCE;
        self.keep(strangers, Pending::Plain { link, peer: from, deadline }, others)
    }

    /// The first message of a handshake begins a session, if its number is a cookie of ours.
    fn hear_handshake(
        &self,
        strangers: &mut Strangers,
        header: Header,
        body: &[u8],
        from: SocketAddr,
    ) -> Result<(), OpenError> {
        let (Some((identity, cookies)), Some((nonce, first))) = (&self.keys, wire::handshake_of(body, 1))
        else {
            return self.discard();
        };
        let number = header.session;
        if strangers.begun.contains(&number) || !cookies.fits(number, from, nonce, Instant::now()) {
            return self.discard();
        }
        let Some((socket, others)) = self.session_socket(strangers, from)? else { return Ok(()) };
        let responder = Responder::new(socket, identity.clone(), from, (number, nonce), first)?;
        let Some(responder) = responder else { return self.discard() };
        strangers.begun.truncate(MAX_BEGUN - 1);
        strangers.begun.push_front(number);
        let deadline = Instant::now() + KEYS_PATIENCE;
        self.keep(strangers, Pending::Keys { responder: Box::new(responder), deadline }, others)
    }

    /// The first pending session that is ready; drops those that died or took too long.
    fn ready(&self, strangers: &mut Strangers) -> Result<Option<Arc<UdpLink>>, AcceptError> {
        let now = Instant::now();
        let mut next = 0;
        while next < strangers.pending.len() {
            match strangers.pending[next].advance(now) {
                Outcome::Waits => next += 1,
                Outcome::Over => {
                    self.counters.abandoned.add(1);
                    drop(strangers.pending.remove(next));
                }
                // It stays for a while, in case the peer has not heard.
                Outcome::Refused(error) => {
                    self.counters.refused.add(1);
                    return Err(error);
                }
                Outcome::Ready => {
                    let pending = strangers.pending.remove(next);
                    let _ = epoll::delete(&self.poller, pending.socket());
                    self.counters.accepted.add(1);
                    return match pending {
                        Pending::Plain { link, .. } => Ok(Some(link)),
                        Pending::Keys { responder, .. } => {
                            Ok(responder.into_link(self.settings)?.map(Arc::new))
                        }
                    };
                }
            }
        }
        Ok(None)
    }
}

impl Listener for UdpListener {
    fn accept(&self) -> Result<Option<Arc<dyn Link>>, AcceptError> {
        let mut strangers = self.strangers.lock();
        let heard = self.hear(&mut strangers);
        if let Some(refused) = strangers.refused.pop_front() {
            return Err(refused);
        }
        if let Some(link) = self.ready(&mut strangers)? {
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

    fn counters(&self) -> ListenerCounters {
        self.counters.snapshot()
    }
}
