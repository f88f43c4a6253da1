//! The node: one thread, which waits for programs' questions and for what becomes of connections.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use tombolo_core::sdp::handover::{
    Action, Event, Handover, Limits, Listener, ListenerId, Mode, OfferId, Reason, RequestId, Space,
};
use tombolo_host::event::EventFd;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::sockets::{self, Diagnosis};
use tombolo_host::unix::{PeerIdentity, Received, SeqpacketListener, SeqpacketSocket, UnixError};
use tombolo_sockets_protocol::messages::{ANSWER_BYTES, Answer, REQUEST_BYTES, Request, TAKEN, VALUE_BYTES};
use tombolo_sockets_protocol::name::End;

use crate::closing::Closing;
use crate::offers::{self, Attempt, Held, Wish};
use crate::relay::{self, Flowing, Relay};
use crate::status::{self, Status};
use crate::table::Table;
use crate::{ends, offers::All};

/// Why a node cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its socket cannot be made.
    #[error(transparent)]
    Socket(#[from] UnixError),
    /// Something that it needs is not there.
    #[error("{what}: {errno}")]
    Means {
        /// What.
        what: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
}

fn means(what: &'static str) -> impl Fn(Errno) -> NodeError {
    move |errno| NodeError::Means { what, errno }
}

const LIMITS: Limits = Limits {
    offers_max: 100_000,
    offers_of_user_max: 10_000,
    listeners_max: 4096,
    first_look: 30_000_000,
    last_look: 1_000_000_000,
};
/// Questions that are open at a time. A further program is hung up on: its connection is TCP.
const REQUESTS_MAX: usize = 4096;
/// Questions of the processes of one other user that are open at a time.
const REQUESTS_OF_USER_MAX: usize = 256;
/// Who has connected and asks nothing, or was answered and does not go, is hung up on after so long. (Who was given an end is waited for.)
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Who connects is taken so many at a time; others are served between.
const ACCEPTS_MAX: usize = 64;
/// Events that are taken at once.
const EVENTS: usize = 64;
/// How often listeners are looked at, whether they are there still.
const LISTENERS_INTERVAL: Duration = Duration::from_secs(2);
/// How often pairs are looked at, whether anybody has them still. A look passes over all Unix sockets of the machine.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// How long a thread waits for a status.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// Kinds of descriptors that are waited for, in the upper bits of a key.
const KIND_SHIFT: u32 = 60;
const LISTENER: u64 = 0;
const REQUEST: u64 = 1;
const CLIENT_TCP: u64 = 2;
const RELAY: u64 = 3;
const CLOSING: u64 = 4;
const STATUS: u64 = 5;

const fn key(kind: u64, number: u64) -> u64 {
    kind << KIND_SHIFT | number
}

/// A question that is open.
#[derive(Debug)]
struct Asked {
    socket: SeqpacketSocket,
    since: Instant,
    peer: Option<PeerIdentity>,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Nothing was received yet.
    Unread,
    /// A client's wish, until it is examined.
    Connect { wish: Option<Box<Wish>>, space: Space, is_begun: bool },
    /// What a server has accepted, until it has its end.
    Accept { socket: Option<PassedDescriptor>, token: u64 },
    /// The end of a program that ends: it is as closed when the connection ends.
    Ending(PassedDescriptor),
    /// It was answered.
    Answered,
}

/// What other threads ask of a node.
#[derive(Debug)]
pub struct Shared {
    /// Wakes the node, which then says how it is.
    wanted: EventFd,
    /// How often it has said so, and what.
    status: Mutex<(u64, Status)>,
    said: Condvar,
}

impl Shared {
    /// How the node is. `None`: it does not say within a second.
    pub fn status(&self) -> Option<Status> {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let before = status.0;
        self.wanted.signal().ok()?;
        let said = self.said.wait_timeout_while(status, STATUS_TIMEOUT, |status| status.0 == before);
        let (status, waited) = said.unwrap_or_else(PoisonError::into_inner);
        (!waited.timed_out()).then(|| status.1.clone())
    }
}

/// A node.
#[derive(Debug)]
pub struct Node {
    listener: SeqpacketListener,
    epoll: OwnedFd,
    diagnosis: Diagnosis,
    own_space: Space,
    handover: Handover,
    table: Table,
    begin: Instant,
    asked: BTreeMap<RequestId, Asked>,
    next_request: u64,
    offers: All,
    /// Connections that were handed over, and whether neither of its ends was there at the last look.
    kept: BTreeMap<OfferId, bool>,
    next_sweep: Instant,
    next_listeners: Instant,
    relays: BTreeMap<OfferId, Relay>,
    /// Those that could go on at once.
    busy_relays: BTreeSet<OfferId>,
    /// For their bytes.
    buffer: Vec<u8>,
    closing: Closing,
    shared: Arc<Shared>,
}

impl Node {
    /// A node that programs ask at `listener`, with its table at `table`.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(listener: SeqpacketListener, table: &Path) -> Result<Self, NodeError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(means("no epoll"))?;
        let diagnosis = Diagnosis::new().map_err(means("the kernel says nothing of sockets (sock_diag)"))?;
        let probe = ends::pair().map_err(means("no pair of sockets"))?;
        let inode = ends::inode(probe.0.as_fd()).map_err(means("no inode"))?;
        if !diagnosis.unix_inodes().map_err(means("the kernel lists no Unix sockets"))?.contains(&inode) {
            return Err(NodeError::Means {
                what: "the kernel lists no Unix sockets (unix_diag)",
                errno: Errno::NOENT,
            });
        }
        let own_space =
            ends::space(diagnosis.as_fd()).map_err(means("the network namespace has no number"))?;
        let mut table = Table::new(table).map_err(means("the table cannot be made"))?;
        let wanted = EventFd::new().map_err(means("no eventfd"))?;
        epoll::add(&epoll, &wanted, EventData::new_u64(key(STATUS, 0)), EventFlags::IN)
            .map_err(means("no epoll"))?;
        epoll::add(&epoll, &listener, EventData::new_u64(key(LISTENER, 0)), EventFlags::IN)
            .map_err(means("no epoll"))?;
        let shared = Arc::new(Shared { wanted, status: Mutex::default(), said: Condvar::new() });
        // Higher than those of a node before this one, whose connections may still be there.
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_micros() as u64);
        let first = time.max(table.last_id() + 1);
        table.begin(first);
        Ok(Self {
            listener,
            epoll,
            diagnosis,
            own_space,
            handover: Handover::new(LIMITS, first),
            table,
            begin: Instant::now(),
            asked: BTreeMap::new(),
            next_request: 1,
            offers: All::new(),
            kept: BTreeMap::new(),
            next_sweep: Instant::now() + SWEEP_INTERVAL,
            next_listeners: Instant::now() + LISTENERS_INTERVAL,
            relays: BTreeMap::new(),
            busy_relays: BTreeSet::new(),
            buffer: vec![0; relay::BUFFER_BYTES],
            closing: Closing::default(),
            shared,
        })
    }

    /// For other threads.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Serves until `is_over` says so after a signal, or until nobody has listened or been connected for `idle`.
    ///
    /// # Errors
    /// The kernel takes no more waits.
    pub fn run(mut self, idle: Option<Duration>, is_over: fn() -> bool) -> io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let mut busy = Instant::now();
        while !is_over() {
            let timeout = self.timeout();
            events.clear();
            let spec = tombolo_host::event::timespec(timeout);
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&spec)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let keys: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
            let is_quiet = keys.is_empty();
            for key in keys {
                let number = key & ((1 << KIND_SHIFT) - 1);
                match key >> KIND_SHIFT {
                    LISTENER => self.accept(),
                    REQUEST => self.receive(RequestId(number)),
                    CLIENT_TCP => self.heard_of_tcp(OfferId(number)),
                    RELAY => self.relay(OfferId(number)),
                    CLOSING => {
                        if let Some(end) = self.closing.heard(number) {
                            self.ignore(end.as_fd());
                        }
                    }
                    _ => {
                        let _ = self.shared.wanted.drain();
                        self.say_status();
                    }
                }
            }
            for offer in self.busy_relays.clone() {
                self.relay(offer);
            }
            let now = self.now();
            if self.handover.next_deadline().is_some_and(|at| at <= now) {
                self.handover.tick(now);
                self.act();
            }
            if self.next_sweep <= Instant::now() {
                self.sweep();
                if self.next_listeners <= Instant::now() {
                    self.hang_up_on_silent();
                    self.look_at_listeners();
                    self.next_listeners = Instant::now() + LISTENERS_INTERVAL;
                }
                let is_calm = self.offers.is_empty() && self.closing.len() == 0;
                self.next_sweep = Instant::now() + if is_calm { LISTENERS_INTERVAL } else { SWEEP_INTERVAL };
            }
            let is_idle = self.offers.is_empty() && self.relays.is_empty() && self.asked.is_empty();
            if !is_quiet || !is_idle || !self.is_without_listeners() {
                busy = Instant::now();
            }
            if idle.is_some_and(|idle| busy.elapsed() >= idle) {
                break;
            }
        }
        Ok(())
    }

    fn timeout(&self) -> Duration {
        if !self.busy_relays.is_empty() {
            return Duration::ZERO;
        }
        let left = self.next_sweep.saturating_duration_since(Instant::now());
        let until =
            self.handover.next_deadline().map(|at| Duration::from_nanos(at.saturating_sub(self.now())));
        until.map_or(left, |until| until.min(left))
    }

    fn is_without_listeners(&self) -> bool {
        self.handover.listeners().next().is_none()
    }

    fn wait_for(&self, socket: BorrowedFd<'_>, key: u64, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, EventData::new_u64(key), flags)
    }

    /// No more is heard of it. Who else has it would make it be heard of otherwise, also when it is closed here.
    fn ignore(&self, socket: BorrowedFd<'_>) {
        // If it was not there, nothing is left to do.
        let _ = epoll::delete(&self.epoll, socket);
    }

    fn ignore_held(&self, held: &Held) {
        if let Some(socket) = &held.client_tcp {
            self.ignore(socket.as_fd());
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let Ok(Some(socket)) = self.listener.accept() else { return };
            let peer = socket.peer().ok();
            let is_let_in =
                peer.is_some_and(|peer| self.has_room_for(&peer)) && self.asked.len() < REQUESTS_MAX;
            if !is_let_in {
                continue;
            }
            let id = RequestId(self.next_request);
            self.next_request += 1;
            if self.wait_for(socket.as_fd(), key(REQUEST, id.0), EventFlags::IN).is_ok() {
                self.asked.insert(id, Asked { socket, since: Instant::now(), peer, what: What::Unread });
                // What it asks has come with it, mostly.
                self.receive(id);
            }
        }
    }

    /// Who may ask: processes of any user, if the socket's file lets them connect. What they have in their hands says what they may.
    fn has_room_for(&self, peer: &PeerIdentity) -> bool {
        let of_user = |asked: &&Asked| asked.peer.is_some_and(|other| other.user_id == peer.user_id);
        peer.is_own_or_root() || self.asked.values().filter(of_user).count() < REQUESTS_OF_USER_MAX
    }

    fn receive(&mut self, id: RequestId) {
        let mut buffer = [0; REQUEST_BYTES];
        let Some(asked) = self.asked.get_mut(&id) else { return };
        match asked.socket.receive(&mut buffer) {
            Err(UnixError::WouldBlock) => {}
            Err(_) => self.end(id, false),
            Ok(received) => {
                let message = buffer.get(..received.length_bytes).unwrap_or(&[]);
                match asked.what {
                    What::Unread => {
                        let request = Request::decode(message);
                        self.question(id, request, received);
                    }
                    _ => self.end(id, message == TAKEN),
                }
            }
        }
    }

    /// The end of a question.
    fn end(&mut self, id: RequestId, is_taken: bool) {
        let Some(asked) = self.asked.remove(&id) else { return };
        self.ignore(asked.socket.as_fd());
        if let What::Ending(end) = asked.what {
            let _ = rustix::net::shutdown(&end, rustix::net::Shutdown::Write);
            return self.keep_closed(end);
        }
        let is_of_offer = matches!(asked.what, What::Connect { .. } | What::Accept { .. });
        if let What::Accept { socket: Some(socket), .. } = asked.what
            && is_taken
            && let Some(held) = self.waits_for_server(id)
        {
            held.server_tcp = Some(socket);
        }
        if is_of_offer {
            self.event(if is_taken { Event::Taken { request: id } } else { Event::Left { request: id } });
        }
    }

    fn question(&mut self, id: RequestId, request: Option<Request>, received: Received) {
        let mut descriptors = received.descriptors.into_iter();
        // What is none of TCP is closed by another thread: that may take long.
        let passed = descriptors.next();
        let tcp = |passed: Option<PassedDescriptor>| {
            let passed = passed?;
            ends::check_tcp(passed.as_fd()).ok()?;
            let space = ends::space(passed.as_fd()).ok()?;
            Some((passed, space))
        };
        match request {
            None => self.end(id, false),
            Some(Request::Table) => {
                let shown = self.table.shown();
                if let Some(asked) = self.asked.get_mut(&id) {
                    let _ = asked.socket.send(&[&Answer::Done.encode()], &[shown]);
                    asked.what = What::Answered;
                }
            }
            Some(Request::Listen) => {
                if let Some((socket, space)) = tcp(passed).filter(|(_, space)| *space == self.own_space) {
                    self.listens(id, &socket, space);
                }
                self.answer(id, &Answer::Done);
            }
            Some(Request::Connect { token, to }) => match tcp(passed) {
                Some((socket, space)) if space == self.own_space && !ends::is_special(socket.as_fd()) => {
                    let wish = Some(Box::new(Wish { socket, to, token }));
                    if let Some(asked) = self.asked.get_mut(&id) {
                        asked.what = What::Connect { wish, space, is_begun: false };
                    }
                    let to = ends::endpoint(&ends::socket_address(&to));
                    let peer = self.asked.get(&id).and_then(|asked| asked.peer);
                    let other_user = peer.filter(|peer| !peer.is_own_or_root()).map(|peer| peer.user_id);
                    self.event(Event::Connects { request: id, space, to, other_user });
                }
                _ => self.answer(id, &Answer::Tcp { is_begun: false }),
            },
            Some(Request::Accept { token }) => {
                let known = tcp(passed).and_then(|(socket, space)| {
                    let (server, client) = ends::names(socket.as_fd()).ok()?;
                    Some((socket, ends::flow(space, &client, &server)))
                });
                match known {
                    Some((socket, flow)) => {
                        if let Some(asked) = self.asked.get_mut(&id) {
                            asked.what = What::Accept { socket: Some(socket), token };
                        }
                        self.event(Event::Accepts { request: id, flow });
                    }
                    None => self.answer(id, &Answer::Tcp { is_begun: false }),
                }
            }
            Some(Request::Close) => {
                self.end(id, false);
                passed.into_iter().for_each(|end| self.keep_closed(end));
            }
            Some(Request::CloseAtEnd) => {
                if let (Some(asked), Some(end)) = (self.asked.get_mut(&id), passed) {
                    asked.what = What::Ending(end);
                }
            }
            Some(Request::Get { level, name, length }) => {
                let answer = self.option(passed, level, name, length as usize);
                self.answer(id, &answer);
            }
            Some(Request::Set { level, name, length, value }) => {
                let length = length as usize;
                if let Some(socket) = self.tcp_of(passed).filter(|_| ends::may_set(level, name, length)) {
                    // A fresh socket has taken it before.
                    let _ = sockets::set_option(socket, level, name, value.get(..length).unwrap_or(&[]));
                }
                self.end(id, false);
            }
        }
    }

    /// Keeps an end that a program has closed, if it is one of an offer of this node.
    fn keep_closed(&mut self, end: PassedDescriptor) {
        let Some(End { id, .. }) = ends::of(end.as_fd()) else { return };
        let Ok(inode) = ends::inode(end.as_fd()) else { return };
        if !self.offers.get(&OfferId(id)).is_some_and(|held| held.inodes.contains(&inode)) {
            return;
        }
        let flags = EventFlags::IN | EventFlags::RDHUP;
        let number = u64::from(inode);
        let Self { closing, epoll, .. } = self;
        if let Some(end) = closing.keep(number, end) {
            let _ = epoll::add(epoll, end, EventData::new_u64(key(CLOSING, number)), flags);
        }
    }

    /// The socket of TCP that an end stands for. Who has the end may ask for it.
    fn tcp_of(&self, passed: Option<PassedDescriptor>) -> Option<BorrowedFd<'_>> {
        let passed = passed?;
        let End { id, is_server, .. } = ends::of(passed.as_fd())?;
        let offer = OfferId(id);
        let held = self.offers.get(&offer)?;
        if !held.inodes.contains(&ends::inode(passed.as_fd()).ok()?) {
            return None;
        }
        // The server has its end, and that it says so is not read yet.
        let given = || {
            self.asked.iter().find_map(|(request, asked)| match &asked.what {
                What::Accept { socket, .. } if self.handover.asked_by(*request) == Some(offer) => {
                    socket.as_ref()
                }
                _ => None,
            })
        };
        let relayed = || self.relays.get(&offer).map(|relay| &relay.tcp);
        let socket = if is_server {
            held.server_tcp.as_ref().or_else(given)
        } else {
            held.client_tcp.as_ref().or_else(relayed)
        };
        Some(socket?.as_fd())
    }

    fn option(&self, end: Option<PassedDescriptor>, level: i32, name: i32, room: usize) -> Answer {
        let mut value = [0; VALUE_BYTES];
        let Some(socket) = self.tcp_of(end) else {
            return Answer::Value { error: libc::ENOTCONN, length: 0, value };
        };
        let target = value.get_mut(..room).unwrap_or(&mut []);
        match sockets::option(socket, level, name, target) {
            Ok(length) => {
                let length = u32::try_from(length.min(room)).unwrap_or(0);
                Answer::Value { error: 0, length, value }
            }
            Err(error) => Answer::Value { error: error.raw_os_error(), length: 0, value: [0; VALUE_BYTES] },
        }
    }

    fn listens(&mut self, id: RequestId, socket: &PassedDescriptor, space: Space) {
        let is_listening = sockets::number(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1);
        let at = rustix::net::getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok());
        let (Some(at), Ok((cookie, _))) = (at.filter(|_| is_listening), sockets::cookies(socket.as_fd()))
        else {
            return;
        };
        let peer = self.asked.get(&id).and_then(|asked| asked.peer);
        let listener = Listener {
            id: ListenerId(cookie),
            space,
            at: ends::endpoint(&at),
            process: peer.and_then(|peer| peer.process_id).unwrap_or(0),
            user: peer.map_or(u32::MAX, |peer| peer.user_id),
        };
        self.event(Event::Listens { listener });
    }

    fn answer(&mut self, id: RequestId, answer: &Answer) {
        if let Some(asked) = self.asked.get_mut(&id) {
            let bytes: [u8; ANSWER_BYTES] = answer.encode();
            let _ = asked.socket.send(&[&bytes], &[]);
            asked.what = What::Answered;
        }
    }

    fn event(&mut self, event: Event) {
        self.handover.handle(self.now(), event);
        self.act();
    }

    /// Shows what has changed, and does what is to be done.
    fn act(&mut self) {
        loop {
            self.table.show(&mut self.handover);
            let Some(action) = self.handover.poll() else { return };
            let now = self.now();
            match action {
                Action::Examine { offer, request, .. } => {
                    let found = self.examine(offer, request);
                    self.handover.handle(now, Event::Examined { offer, found });
                }
                Action::Refuse { request, reason } => {
                    let is_begun = match self.asked.get(&request).map(|asked| &asked.what) {
                        Some(What::Connect { is_begun, .. }) => *is_begun,
                        _ => false,
                    };
                    tracing::debug!(?reason, "a connection stays TCP");
                    self.answer(request, &Answer::Tcp { is_begun });
                }
                Action::GiveToClient { offer, request } => {
                    let end = self.offers.get(&offer).and_then(|held| held.client_end.as_ref());
                    let is_sent = end.is_some_and(|end| self.give(request, offer, end));
                    if !is_sent {
                        self.handover.handle(now, Event::Left { request });
                    }
                }
                Action::GiveToServer { offer, request } => {
                    if !self.give_to_server(offer, request) {
                        self.handover.handle(now, Event::Left { request });
                    }
                }
                Action::Look { offer } => {
                    let names = self.offers.get(&offer).map(|held| held.names);
                    let seen = names.and_then(|(client, server)| self.diagnosis.tcp(server, client).ok());
                    let is_accepted = seen.flatten().is_some_and(|socket| socket.inode != 0);
                    self.handover.handle(now, Event::Looked { offer, is_accepted });
                }
                Action::Keep { offer } => {
                    if let Some(held) = self.offers.get_mut(&offer) {
                        (held.client_end, held.server_end) = (None, None);
                        if let Some(socket) = &held.client_tcp {
                            let _ = epoll::delete(&self.epoll, socket);
                        }
                        self.kept.insert(offer, false);
                    }
                }
                Action::Relay { offer } => {
                    if !self.begin_relay(offer) {
                        self.handover.handle(now, Event::Over { offer });
                    }
                }
                Action::ResetClient { offer } => {
                    if let Some(held) = self.offers.remove(&offer) {
                        self.ignore_held(&held);
                        offers::reset_client(held);
                    }
                }
                Action::Close { offer } => {
                    if let Some(held) = self.offers.remove(&offer) {
                        self.ignore_held(&held);
                    }
                    self.kept.remove(&offer);
                    self.end_relay(offer);
                }
            }
        }
    }

    fn examine(
        &mut self,
        offer: OfferId,
        request: RequestId,
    ) -> Result<(tombolo_core::sdp::handover::Flow, ListenerId), Reason> {
        self.table.note_id(offer.0);
        let Some(Asked { what: What::Connect { wish, space, is_begun }, .. }) = self.asked.get_mut(&request)
        else {
            return Err(Reason::NotConnected);
        };
        let Some(wish) = wish.take() else { return Err(Reason::NotConnected) };
        match offers::attempt(*wish, offer, *space, &self.diagnosis) {
            Attempt::Made(held, flow, listener) => {
                *is_begun = true;
                if let Some(socket) = &held.client_tcp {
                    // Once for all that comes at one time: the bytes stay where they are.
                    let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
                    let _ = self.wait_for(socket.as_fd(), key(CLIENT_TCP, offer.0), flags);
                }
                self.offers.insert(offer, *held);
                Ok((flow, listener))
            }
            Attempt::Not { reason, is_begun: begun } => {
                *is_begun = begun;
                Err(reason)
            }
        }
    }

    fn give(&self, request: RequestId, offer: OfferId, end: &PassedDescriptor) -> bool {
        let Some(asked) = self.asked.get(&request) else { return false };
        asked.socket.send(&[&Answer::End { id: offer.0 }.encode()], &[end.as_fd()]).is_ok()
    }

    fn give_to_server(&mut self, offer: OfferId, request: RequestId) -> bool {
        let (Some(held), Some(asked)) = (self.offers.get(&offer), self.asked.get(&request)) else {
            return false;
        };
        let What::Accept { socket: Some(socket), token } = &asked.what else { return false };
        let (Some(server_end), Ok((local, remote))) = (&held.server_end, ends::names(socket.as_fd())) else {
            return false;
        };
        let (local, remote) = (ends::address_of(&local), ends::address_of(&remote));
        let end = End { is_server: true, id: offer.0, token: *token, local, remote };
        ends::name(server_end.as_fd(), &end).is_ok() && self.give(request, offer, server_end)
    }

    /// What the node holds of the offer whose server that request is of.
    fn waits_for_server(&mut self, request: RequestId) -> Option<&mut Held> {
        let offer = self.handover.asked_by(request)?;
        self.offers.get_mut(&offer)
    }

    fn heard_of_tcp(&mut self, offer: OfferId) {
        let Some(socket) = self.offers.get(&offer).and_then(|held| held.client_tcp.as_ref()) else { return };
        let error = sockets::number(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
        let state = ends::state(socket.as_fd());
        let is_reset = error != Ok(0) || state == Ok(sockets::state::CLOSED);
        // The client may have ended its own reading: that says nothing of the server.
        let has_written = rustix::io::ioctl_fionread(socket).is_ok_and(|bytes| bytes > 0)
            || state == Ok(sockets::state::PEER_HAS_CLOSED);
        if is_reset {
            self.event(Event::Reset { offer });
        } else if has_written {
            self.event(Event::Wrote { offer });
        }
    }

    fn begin_relay(&mut self, offer: OfferId) -> bool {
        let Some(held) = self.offers.get_mut(&offer) else { return false };
        held.client_end = None;
        let (Some(end), Some(tcp)) = (held.server_end.take(), held.client_tcp.take()) else { return false };
        self.ignore(tcp.as_fd());
        let relay = Relay::new(end, tcp);
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let added = [&relay.end, &relay.tcp]
            .map(|socket| self.wait_for(socket.as_fd(), key(RELAY, offer.0), flags).is_ok());
        self.relays.insert(offer, relay);
        added == [true; 2]
    }

    fn end_relay(&mut self, offer: OfferId) {
        if let Some(relay) = self.relays.remove(&offer) {
            self.ignore(relay.end.as_fd());
            self.ignore(relay.tcp.as_fd());
        }
    }

    fn relay(&mut self, offer: OfferId) {
        self.busy_relays.remove(&offer);
        match self.relays.get_mut(&offer).map(|relay| relay.go_on(&mut self.buffer)) {
            Some(Flowing::Over) => self.event(Event::Over { offer }),
            Some(Flowing::More) => drop(self.busy_relays.insert(offer)),
            Some(Flowing::Open) | None => {}
        }
    }

    /// Hangs up on those who neither ask nor go.
    fn hang_up_on_silent(&mut self) {
        let is_silent = |asked: &Asked| {
            matches!(asked.what, What::Unread | What::Answered) && asked.since.elapsed() >= SILENCE_MAX
        };
        let silent: Vec<_> =
            self.asked.iter().filter(|(_, asked)| is_silent(asked)).map(|(id, _)| *id).collect();
        for id in silent {
            self.end(id, false);
        }
    }

    /// Forgets listeners that are gone.
    fn look_at_listeners(&mut self) {
        if self.is_without_listeners() {
            return;
        }
        let Ok(there) = self.diagnosis.listening() else { return };
        let is_gone =
            |listener: &Listener| listener.space == self.own_space && !there.contains(&listener.id.0);
        let all = self.handover.listeners().map(|(listener, _)| listener);
        let gone: Vec<_> = all.filter(|listener| is_gone(listener)).map(|listener| listener.id).collect();
        for listener in gone {
            self.event(Event::Closed { listener });
        }
    }

    /// Pairs that nobody has are over: their ends are not in the kernel's list, twice. (What comes and goes meanwhile may make it leave out one.)
    fn sweep(&mut self) {
        for end in self.closing.expired(Instant::now()) {
            self.ignore(end.as_fd());
        }
        if self.kept.is_empty() {
            return;
        }
        let Ok(there) = self.diagnosis.unix_inodes() else { return };
        let mut over = Vec::new();
        for (offer, was_absent) in &mut self.kept {
            let Some(held) = self.offers.get(offer) else { continue };
            let is_absent = held.inodes.iter().all(|inode| !there.contains(inode));
            if is_absent && *was_absent {
                over.push(*offer);
            }
            *was_absent = is_absent;
        }
        for offer in over {
            self.event(Event::Over { offer });
        }
    }

    fn say_status(&self) {
        let mode = |mode| match mode {
            Mode::Offered => "offered",
            Mode::HandedOver => "handed-over",
            Mode::Relayed => "relayed",
        };
        let connection = |(id, _, now): (OfferId, _, Mode)| {
            let held = self.offers.get(&id)?;
            let (client, server) = (held.names.0.to_string(), held.names.1.to_string());
            Some(status::Connection { id: id.0, client, server, mode: mode(now).into() })
        };
        let listener = |(listener, is_offered): (&Listener, bool)| {
            let at = SocketAddr::new(
                std::net::Ipv6Addr::from(listener.at.address).to_canonical(),
                listener.at.port,
            );
            let (process, user) = (listener.process, listener.user);
            status::Listener { at: at.to_string(), process, user, is_offered }
        };
        let counters = self.handover.counters();
        let named = [
            ("handed_over", counters.handed_over),
            ("relayed", counters.relayed),
            ("cancelled", counters.cancelled),
            ("reset", counters.reset),
            ("closing", self.closing.len() as u64),
        ];
        let refused =
            counters.refused.iter().map(|(reason, count)| (reason_name(*reason).to_owned(), *count));
        let status = Status {
            process_id: std::process::id(),
            connections: self.handover.all().filter_map(connection).take(status::CONNECTIONS_MAX).collect(),
            connections_count: self.offers.len(),
            listeners: self.handover.listeners().map(listener).take(status::LISTENERS_MAX).collect(),
            counters: named.map(|(name, count)| (name.to_owned(), count)).into(),
            refused: refused.collect(),
        };
        let mut shared = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner);
        *shared = (shared.0 + 1, status);
        self.shared.said.notify_all();
    }
}

/// What a reason is called where people read it.
fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::NoListener => "no-listener",
        Reason::AcceptedWithout => "accepted-without",
        Reason::NotConnected => "not-connected",
        Reason::Elsewhere => "elsewhere",
        Reason::Full => "full",
        Reason::NoMeans => "no-means",
        Reason::NoOffer => "no-offer",
    }
}
