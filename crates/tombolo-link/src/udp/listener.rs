//! Accepting UDP links.
//!
//! The listening socket sees only strangers. Nothing is kept for a hello: the session's number is a
//! cookie, and the session begins, with a socket of its own, when the stranger comes back with it: only
//! then is it known to be at the address it claims. Without keys the link is there at once; with keys it
//! is pending until both are verified.
//!
//! Anyone can send as many datagrams as the network carries. So a turn takes a bounded number of them,
//! and of beginnings, which cost more; the others wait in the socket, or are dropped by it. Of pending
//! handshakes, which cost their senders nothing, the oldest give way, but none that had no time for a round
//! trip yet. A handshake that can end does so before another one begins, so that those under way do not grow
//! in number while honest peers wait for the last answer.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use tombolo_host::event::EventFd;
use tombolo_host::timing::link::{GIVES_WAY_AFTER, HANDSHAKE_TIMEOUT, STRANGER_REPORT_INTERVAL};
use tombolo_host::udp::{MAX_CAUGHT, RECEIVE_BUFFER_BYTES, UdpSocket};

use super::batch::IncomingBatch;
use super::cookie::Cookies;
use super::keep_alive::End;
use super::responder::{Progress, Responder};
use super::wire::{self, FLAG_SECURE, HELLO_BYTES, Header, Kind, Malformed};
use super::{SOCKET_BUFFER_BYTES, Session, Settings, UdpLink, check_protected};
use crate::counters::Strangers as Counters;
use crate::identity::Identity;
use crate::{AcceptError, Address, Link, Listener, ListenerCounters, OpenError, PROTOCOL_VERSION, Security};

/// Sessions begun lately, each of which begins once.
const MAX_BEGUN: usize = 256;
/// Handshakes under way. Each has a socket and a buffer of 64 KiB, so all of them take 16 MiB.
const MAX_PENDING: usize = 256;
/// When this many are under way, a host that has [`MAX_PENDING_OF_HOST`] begins no more: the other places are for
/// other hosts. Below, one host may start as many nodes at once as it likes.
const CROWDED: usize = 192;
const MAX_PENDING_OF_HOST: usize = 32;
/// Sockets of pending handshakes looked at in one turn; the others stay readable.
const MAX_ADVANCED: usize = 32;
/// Datagrams heard in one turn: to answer one takes a few microseconds, so all of them take less than a
/// time slice.
const MAX_DATAGRAMS: usize = 64;
/// The most datagrams that are read of a batch that the kernel has put together, which is from one address:
/// an honest stranger sends one datagram at a time, and repeats it.
const MAX_OF_BATCH: usize = 4;
/// Sessions begun in one turn: each takes a socket, and with keys some tenths of a millisecond.
const MAX_BEGINNINGS: usize = 8;
/// Datagrams kept that new sockets have caught of others. What is dropped comes again.
const MAX_KEPT: usize = 64;

/// What the poller calls its own descriptors. Numbers of sessions are cookies, which are none of these but by a chance that costs one
/// turn.
const STRANGERS: u64 = 0;
const MORE: u64 = 1;
const FOUND: u64 = 2;

/// A handshake until both keys are verified.
#[derive(Debug)]
struct Pending {
    responder: Box<Responder>,
    begun: Instant,
}

impl Pending {
    fn host(&self) -> u128 {
        network(self.responder.peer().ip())
    }
}

/// What one host has for itself: an IPv4 address, or the first half of an IPv6 address.
#[must_use]
pub fn network(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits() >> 64 << 64,
    }
}

#[derive(Debug)]
struct Strangers {
    buffer: Vec<u8>,
    /// What the new sockets of sessions have caught of others, to be heard next.
    caught: VecDeque<(Vec<u8>, SocketAddr)>,
    /// The oldest first.
    pending: Vec<Pending>,
    /// Links that nobody has accepted yet.
    ready: VecDeque<Arc<UdpLink>>,
    /// Numbers of sessions that have begun.
    begun: VecDeque<u64>,
    /// Sessions begun in this turn.
    beginnings: usize,
    /// It has been said that no descriptors are left.
    told_of_descriptors: bool,
    refused: VecDeque<AcceptError>,
    /// When a stranger was last refused aloud.
    told: Option<Instant>,
}

impl Strangers {
    /// Room for one more handshake. If all places are taken, the oldest of the host that has the most
    /// gives way, or of the newcomer's own if that has as many; if each host has one, the oldest of all:
    /// an honest newcomer takes a round trip, and those who only keep places do not come back. False:
    /// many are under way, and the newcomer's host has its share of them, or the one that would give way
    /// has had no time for a round trip.
    fn make_room(&mut self, newcomer: IpAddr, now: Instant) -> bool {
        let of = |host| self.pending.iter().filter(|pending| pending.host() == host).count();
        let (newcomer, of_newcomer) = (network(newcomer), of(network(newcomer)));
        if of_newcomer >= MAX_PENDING_OF_HOST && self.pending.len() >= CROWDED {
            return false;
        }
        if self.pending.len() < MAX_PENDING {
            return true;
        }
        let greediest = self.pending.iter().map(Pending::host).max_by_key(|host| of(*host));
        let gives_way = match greediest {
            Some(greediest) if of(greediest) > of_newcomer + 1 => Some(greediest),
            _ if of_newcomer > 0 => Some(newcomer),
            _ => None,
        };
        let is_it = |pending: &Pending| gives_way.is_none_or(|host| pending.host() == host);
        let oldest = self.pending.iter().position(is_it);
        let oldest = oldest.filter(|index| now.duration_since(self.pending[*index].begun) >= GIVES_WAY_AFTER);
        if let Some(oldest) = oldest {
            self.give_up(oldest);
        }
        oldest.is_some()
    }

    /// Ends a handshake that came to nothing. Its peer may begin again with the number that it has.
    fn give_up(&mut self, index: usize) {
        let number = self.pending.remove(index).responder.session();
        self.begun.retain(|begun| *begun != number);
    }

    /// A session of that number begins; no other will.
    fn begin(&mut self, number: u64) {
        self.begun.truncate(MAX_BEGUN - 1);
        self.begun.push_front(number);
        self.beginnings += 1;
    }

    /// Notes a stranger that does not fit and has proved nothing.
    fn refuse(&mut self, error: AcceptError) {
        let now = Instant::now();
        if self.told.is_none_or(|told| now.duration_since(told) >= STRANGER_REPORT_INTERVAL) {
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
    /// In the poller: readable while links wait to be accepted, or what sockets have caught to be heard.
    more: EventFd,
    /// In the poller: readable when keys of pending sessions have been looked up.
    found: Arc<EventFd>,
    cookies: Cookies,
    /// With keys: ours, and the list.
    identity: Option<Arc<Identity>>,
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
        let cookies = Cookies::new(Instant::now()).map_err(system("getrandom"))?;
        let identity = security.identity().cloned();
        let socket = UdpSocket::bind(address).map_err(|errno| match errno {
            Errno::ADDRINUSE => OpenError::InUse(Address::Udp(address)),
            errno => system("UDP bind")(errno),
        })?;
        let address = socket.local_address().map_err(system("UDP address"))?;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        epoll::add(&poller, &socket, epoll::EventData::new_u64(STRANGERS), epoll::EventFlags::IN)
            .map_err(system("epoll"))?;
        let more = EventFd::new().map_err(system("eventfd"))?;
        epoll::add(&poller, &more, epoll::EventData::new_u64(MORE), epoll::EventFlags::IN)
            .map_err(system("epoll"))?;
        let found = Arc::new(EventFd::new().map_err(system("eventfd"))?);
        epoll::add(&poller, &found, epoll::EventData::new_u64(FOUND), epoll::EventFlags::IN)
            .map_err(system("epoll"))?;
        let strangers = Strangers {
            buffer: vec![0; RECEIVE_BUFFER_BYTES],
            caught: VecDeque::new(),
            pending: Vec::new(),
            ready: VecDeque::new(),
            begun: VecDeque::new(),
            beginnings: 0,
            told_of_descriptors: false,
            refused: VecDeque::new(),
            told: None,
        };
        let counters = Counters::default();
        let strangers = Mutex::new(strangers);
        Ok(Self { socket, address, poller, more, found, cookies, identity, strangers, settings, counters })
    }

    /// Hears some of what strangers sent to the listening socket.
    fn hear(&self, strangers: &mut Strangers) -> Result<(), OpenError> {
        strangers.beginnings = 0;
        let mut heard = 0;
        while heard < MAX_DATAGRAMS && strangers.beginnings < MAX_BEGINNINGS {
            heard += 1;
            if let Some((datagram, from)) = strangers.caught.pop_front() {
                self.hear_datagram(strangers, &datagram, from)?;
                continue;
            }
            let mut buffer = std::mem::take(&mut strangers.buffer);
            let received = self.socket.receive_from(&mut buffer);
            let mut result = Ok(());
            if let Ok((batch, Some(from))) = received {
                let datagrams = buffer[..batch.length_bytes].chunks(batch.segment_bytes.max(1));
                let too_many = datagrams.len().saturating_sub(MAX_OF_BATCH);
                self.counters.discarded.add(too_many as u64);
                for datagram in datagrams.take(MAX_OF_BATCH) {
                    result = result.and(self.hear_datagram(strangers, datagram, from));
                    heard += 1;
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
        let decoded = Header::decode(datagram);
        if let Ok((header @ Header { kind: Kind::Ping, .. }, body)) = decoded {
            return match wire::nonce_of(body) {
                Some(nonce) => self.hear_first_word(strangers, header.session, nonce, from),
                None => self.discard(),
            };
        }
        // A shorter hello could make us send more than we were sent.
        if datagram.len() < HELLO_BYTES {
            return self.discard();
        }
        match decoded {
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
        let reject = wire::answer(Kind::Reject, self.identity.is_some(), 0, nonce);
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
        let ours_secure = self.identity.is_some();
        if (header.flags & FLAG_SECURE != 0) != ours_secure {
            self.reject(nonce, from);
            strangers.refuse(AcceptError::SecurityMismatch { ours_secure });
            return Ok(());
        }
        self.counters.hellos.add(1);
        let session = self.cookies.bake(from, nonce, Instant::now());
        let _ = self.socket.send_to(&wire::answer(Kind::Welcome, ours_secure, session, nonce), from);
        Ok(())
    }

    /// A socket for one peer, without what others sent; None: its address cannot be answered, or there are no
    /// descriptors.
    fn session_socket(
        &self,
        strangers: &mut Strangers,
        from: SocketAddr,
    ) -> Result<Option<UdpSocket>, OpenError> {
        let socket = match self.socket.bind_beside(from) {
            Ok(socket) => socket,
            // An address that cannot be answered, such as port 0.
            Err(Errno::INVAL | Errno::ADDRNOTAVAIL | Errno::NETUNREACH | Errno::ACCESS) => {
                return Ok(None);
            }
            // It asks again; that there are none is said once.
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                self.counters.turned_away.add(1);
                if !std::mem::replace(&mut strangers.told_of_descriptors, true) {
                    strangers.refused.push_back(OpenError::NoDescriptors { errno }.into());
                }
                return Ok(None);
            }
            Err(errno) => return Err(system("UDP session socket")(errno)),
        };
        strangers.told_of_descriptors = false;
        // What it caught of others would be taken for the peer's: a hello among them would end the session.
        let mut caught = vec![0; RECEIVE_BUFFER_BYTES];
        for _ in 0..MAX_CAUGHT {
            let Ok((batch, sender)) = socket.receive_from(&mut caught) else {
                break;
            };
            if let Some(other) = sender.filter(|other| *other != from) {
                let room = MAX_KEPT.saturating_sub(strangers.caught.len()).min(MAX_OF_BATCH);
                let datagrams = caught[..batch.length_bytes].chunks(batch.segment_bytes.max(1));
                strangers.caught.extend(datagrams.take(room).map(|datagram| (datagram.to_vec(), other)));
            }
        }
        socket.set_buffer_bytes(SOCKET_BUFFER_BYTES);
        Ok(Some(socket))
    }

    /// Whether that stranger has been given this number where it says it is, and has not used it.
    fn may_begin(&self, strangers: &Strangers, number: u64, nonce: u64, from: SocketAddr) -> bool {
        !strangers.begun.contains(&number) && self.cookies.fits(number, from, nonce, Instant::now())
    }

    /// Without keys, whoever knows its number has a link.
    fn hear_first_word(
        &self,
        strangers: &mut Strangers,
        number: u64,
        nonce: u64,
        from: SocketAddr,
    ) -> Result<(), OpenError> {
        if self.identity.is_some() || !self.may_begin(strangers, number, nonce, from) {
            return self.discard();
        }
        let Some(socket) = self.session_socket(strangers, from)? else { return Ok(()) };
        strangers.begin(number);
        let (incoming, settings) = (IncomingBatch::new(), self.settings);
        let (seals, peer_key, to_accept) = (None, None, false);
        let end = End::Listening;
        let session = Session { socket, incoming, number, nonce, seals, peer_key, end, to_accept, settings };
        let link = Arc::new(UdpLink::new(session)?);
        link.send_datagram(Header::new(Kind::Pong, number), &[]);
        strangers.ready.push_back(link);
        self.counters.begun.add(1);
        Ok(())
    }

    /// The first message of a handshake begins a session, if its number is a cookie of ours.
    fn hear_handshake(
        &self,
        strangers: &mut Strangers,
        header: Header,
        body: &[u8],
        from: SocketAddr,
    ) -> Result<(), OpenError> {
        let (Some(identity), Some((nonce, first))) = (&self.identity, wire::handshake_of(body, 1)) else {
            return self.discard();
        };
        let number = header.session;
        if !self.may_begin(strangers, number, nonce, from) {
            return self.discard();
        }
        let (before, now) = (strangers.pending.len(), Instant::now());
        let room = strangers.make_room(from.ip(), now);
        if !room || strangers.pending.len() < before {
            self.counters.turned_away.add(1);
        }
        if !room {
            // Not now: the peer hears that somebody is here, and asks again.
            let welcome = wire::answer(Kind::Welcome, true, number, nonce);
            let _ = self.socket.send_to(&welcome, from);
            return Ok(());
        }
        let Some(socket) = self.session_socket(strangers, from)? else { return Ok(()) };
        let responder = Responder::new(socket, identity.clone(), from, (number, nonce), first, &self.found)?;
        let Some(responder) = responder else { return self.discard() };
        strangers.begin(number);
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.poller, &responder.socket, data, epoll::EventFlags::IN).map_err(system("epoll"))?;
        strangers.pending.push(Pending { responder: Box::new(responder), begun: now });
        self.counters.begun.add(1);
        Ok(())
    }

    /// The first pending session whose key has been looked up, and how it goes on.
    fn first_looked_up(&self, strangers: &mut Strangers) -> Option<(usize, Progress)> {
        let _ = self.found.drain();
        for (index, pending) in strangers.pending.iter_mut().enumerate() {
            match pending.responder.look_up() {
                Progress::Waiting => {}
                progress => {
                    // There may be others.
                    let _ = self.found.signal();
                    return Some((index, progress));
                }
            }
        }
        None
    }

    /// The next link that is ready; drops handshakes that failed or took too long.
    fn ready(&self, strangers: &mut Strangers) -> Result<Option<Arc<UdpLink>>, AcceptError> {
        let mut events = Vec::with_capacity(MAX_ADVANCED);
        let now_at_once = rustix::event::Timespec::default();
        match epoll::wait(&self.poller, spare_capacity(&mut events), Some(&now_at_once)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(system("epoll")(errno).into()),
        }
        for event in events {
            let number = event.data.u64();
            let is_it = |pending: &Pending| pending.responder.session() == number;
            let progress = match strangers.pending.iter().position(is_it) {
                Some(index) => Some((index, strangers.pending[index].responder.advance())),
                None if number == FOUND => self.first_looked_up(strangers),
                // The listening socket, or `more`.
                None => None,
            };
            match progress {
                None | Some((_, Progress::Waiting)) => {}
                // It stays for a while, in case the peer has not heard.
                Some((_, Progress::Refused(error))) => {
                    self.counters.refused.add(1);
                    return Err(error);
                }
                Some((index, Progress::Agreed)) => {
                    let Pending { responder, .. } = strangers.pending.remove(index);
                    let _ = epoll::delete(&self.poller, &responder.socket);
                    return Ok(responder.into_link(self.settings)?.map(Arc::new));
                }
            }
        }
        let now = Instant::now();
        // All of them have the same time, so the oldest ends first.
        while strangers.pending.first().is_some_and(|oldest| now >= oldest.begun + HANDSHAKE_TIMEOUT) {
            self.counters.abandoned.add(1);
            strangers.give_up(0);
        }
        Ok(None)
    }
}

impl Listener for UdpListener {
    fn accept(&self) -> Result<Option<Arc<dyn Link>>, AcceptError> {
        let mut strangers = self.strangers.lock();
        let mut heard = Ok(());
        // Who has come so far goes first: each beginning that is heard ends in one of these.
        let mut link = strangers.ready.pop_front();
        if link.is_none() && strangers.refused.is_empty() {
            link = self.ready(&mut strangers)?;
        }
        if link.is_none() && strangers.refused.is_empty() {
            let _ = self.more.drain();
            heard = self.hear(&mut strangers);
            link = strangers.ready.pop_front();
        }
        // One of them is returned now, a link first.
        let refused = if link.is_none() { strangers.refused.pop_front() } else { None };
        if !(strangers.refused.is_empty() && strangers.ready.is_empty() && strangers.caught.is_empty()) {
            let _ = self.more.signal();
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        if let Some(link) = link {
            self.counters.accepted.add(1);
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
