//! An owner: it listens, answers, and has its thread move frames.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tombolo_client::{Domain, Embedded, Target};
use tombolo_core::nic::connection::{Caller, Connections};
use tombolo_core::nic::session::{Greeting, Sessions, Standing, Unwelcome};
use tombolo_core::nic::{Coalescing, Exchange, Limits, Mode, Turns};
use tombolo_host::process;
use tombolo_host::timing::net::{CHECK_INTERVAL, WAKE};
use tombolo_host::unix::{PeerIdentity, SeqpacketListener, SeqpacketSocket, UnixError};
use tombolo_node::identity::{KeyPair, Permission, Ticket};
use tombolo_node::{Address, Peer, Security, harmless_reason};

use crate::allowance::Listed;
use crate::control::{Asker, Control, SEGMENT_BYTES_MAX};
use crate::far::{self, OWNER_DOMAIN, RING_BYTES};
use crate::frames::End;
use crate::letters::{Letter, Ring};
use crate::parties::Party;
use crate::protocol::{Answer, MESSAGE_BYTES_MAX};
use crate::station::{Kind, News, Station};
use crate::uplink::{Uplink, UplinkName};
use crate::worker::{Handle, Worker, nanoseconds};

/// The settings of an owner.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface of the uplink.
    pub uplink: UplinkName,
    /// Bits a second that the uplink is shaped to. 0: no limit.
    pub rate_bits: u64,
    /// What ports take turns by.
    pub turns: Turns,
    /// Whether ports reach each other.
    pub mode: Mode,
    /// The uplink's MTU, if it is to be changed.
    pub mtu: Option<u32>,
    /// Where ports of other machines connect, and with which keys. `None`: nowhere.
    pub far: Option<(Address, Security)>,
    /// When ports of other machines are notified of frames.
    pub coalescing: Coalescing,
    /// The file that says what ports have, and who may attach them.
    pub allowances: Option<PathBuf>,
}

/// Most connections that are accepted from one listener before other work has its turn.
const ACCEPTED_AT_ONCE: usize = 16;
/// The node inside this process, for ports of other machines.
struct Far {
    /// The link by which each session has begun.
    links: HashMap<u64, Arc<Peer>>,
    /// Decides which ports of other machines have pipes.
    sessions: Sessions,
    coalescing: Coalescing,
    security: Security,
    /// The reading of the list of keys that was asked for last.
    reading: Option<Ticket>,
    /// The reading takes too long, and a warning was logged.
    hangs: bool,
    domain: Domain,
    /// The node. It is the last field, so that everything that uses it is dropped before.
    embedded: Embedded,
}

/// An owner that listens.
pub struct Owner {
    listeners: Vec<SeqpacketListener>,
    control: Control,
    uplink: UplinkName,
    /// The uplink's MTU, if it is to be changed.
    mtu: Option<u32>,
    interface: tombolo_host::net::Interface,
    index: u32,
    /// A copy of the uplink's descriptor.
    end: End<OwnedFd>,
    /// Set while the uplink is gone: the reason why it cannot be opened again. Empty: there is no interface of its name.
    why_away: Option<String>,
    sockets: HashMap<u64, (SeqpacketSocket, PeerIdentity)>,
    /// Decides which processes of this machine are connected.
    connections: Connections,
    begin: Instant,
    next_connection: u64,
    /// Dropped after `control`, whose thread uses it.
    far: Option<Far>,
}

fn standing_of(link: Option<&Peer>) -> Standing {
    let link = link.filter(|link| link.loss().is_none());
    Standing {
        is_there: link.is_some(),
        is_permitted: link.is_some_and(|link| link.permits(Permission::Port)),
    }
}

impl Owner {
    /// Opens the uplink and listens at these paths, and at `own`, where only this process's user and root connect.
    ///
    /// # Errors
    /// Another process listens there, or this process may not open the uplink.
    pub fn open(options: &Options, paths: &[&Path], own: Option<SeqpacketListener>) -> io::Result<Self> {
        // Each connection needs a descriptor, and each port needs one for each of its queues.
        process::raise_descriptor_limit();
        let listed = options.allowances.as_deref().map(Listed::open).transpose().map_err(io::Error::other)?;
        let mut listeners = Vec::with_capacity(paths.len() + 1);
        for path in paths.iter().copied() {
            let listener = SeqpacketListener::bind(path).map_err(io::Error::other)?;
            // `let_in` checks the user of each connection.
            if options.allowances.is_some() && !listener.let_all_connect().map_err(io::Error::other)? {
                tracing::warn!(
                    at = %path.display(),
                    "other users are not let in here: this kernel (before Linux 6.16) would let them pass file descriptors \
                     that take as long to close as they like"
                );
            }
            listeners.push(listener);
        }
        listeners.extend(own);
        let uplink = Uplink::open(&options.uplink, options.mtu)?;
        let interface = tombolo_host::net::Interface::open(uplink.interface().name())?;
        let limits = Limits {
            turns: options.turns,
            rate: Some(options.rate_bits / 8).filter(|rate| *rate > 0),
            wake_ns: nanoseconds(WAKE),
            segment_bytes_max: u64::from(SEGMENT_BYTES_MAX),
            mtu: interface.mtu()?,
        };
        let has_carrier = interface.is_running()?;
        let (mut station, mut far) = (None, None);
        if let Some((listen, security)) = &options.far {
            let name = format!("net {}", interface.name());
            let embedded = far::embed(&name, listen.clone(), security.clone()).map_err(io::Error::other)?;
            let domain = embedded.open_undriven(Some(OWNER_DOMAIN)).map_err(io::Error::other)?;
            let node = embedded.node().clone();
            let party_of = move |number: u32| {
                let key = node.key_of(number);
                key.map_or(Party::Node(number), |key| Party::Key(key.to_bytes()))
            };
            station =
                Some(Station::open(domain.clone(), true, Box::new(party_of)).map_err(io::Error::other)?);
            far = Some(Far {
                links: HashMap::new(),
                sessions: Sessions::new(RING_BYTES),
                coalescing: options.coalescing,
                security: security.clone(),
                reading: None,
                hangs: false,
                domain,
                embedded,
            });
        }
        let end = uplink.copy()?;
        let worker = Handle::start(Exchange::new(options.mode, limits), uplink, station)?;
        // With a key that stays the same, ports get the hardware addresses that an earlier owner has given them.
        let keys = match &options.far {
            Some((_, Security::Secure(identity))) => identity.keys.clone(),
            Some((_, Security::Insecure)) | None => KeyPair::generate().map_err(io::Error::other)?,
        };
        let control = Control::new(worker, has_carrier, limits.mtu, options.coalescing, listed, keys);
        let index = interface.index()?;
        Ok(Self {
            listeners,
            control,
            uplink: options.uplink.clone(),
            mtu: options.mtu,
            interface,
            index,
            end,
            why_away: None,
            sockets: HashMap::new(),
            connections: Connections::default(),
            begin: Instant::now(),
            next_connection: 0,
            far,
        })
    }

    /// The address at which ports of other machines connect, with the UDP port that the system has chosen.
    pub fn far_address(&self) -> Option<&Address> {
        self.far.as_ref().map(|far| far.embedded.address())
    }

    /// Serves until `is_over` returns true. If the uplink is deleted, the owner waits for it to come back. Meanwhile, ports still
    /// reach each other.
    ///
    /// # Errors
    /// Waiting fails, or the thread that moves frames has ended.
    pub fn serve(&mut self, is_over: impl Fn() -> bool) -> io::Result<()> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: CHECK_INTERVAL.subsec_nanos().into() };
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        while !is_over() {
            let numbers: Vec<u64> = self.sockets.keys().copied().collect();
            let sockets = numbers.iter().filter_map(|number| self.sockets.get(number));
            let mut waits: Vec<_> =
                self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
            let told = self.control.worker().told();
            waits.push(PollFd::from_borrowed_fd(told, PollFlags::IN));
            waits.extend(sockets.map(|(socket, _)| PollFd::new(socket, PollFlags::IN)));
            match poll(&mut waits, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
            drop(waits);
            let (listeners, sockets) = ready.split_at(self.listeners.len() + 1);
            let listeners = &listeners[..self.listeners.len()];
            let ready_numbers: Vec<u64> =
                numbers.iter().zip(sockets).filter(|(_, ready)| **ready).map(|(number, _)| *number).collect();
            // This comes before the other queries, since it makes `told` unreadable.
            let news = self.control.worker().take_news();
            // This comes before another port can get the same number.
            for number in self.control.take_gone() {
                self.hang_up(number);
            }
            for news in news {
                self.hear(news);
            }
            self.check_nodes();
            for number in self.connections.overdue(self.now_ns()) {
                self.hang_up(number);
            }
            for number in ready_numbers {
                self.receive(number, &mut buffer);
            }
            if listeners.contains(&true) {
                self.accept();
            }
            if self.control.is_of_no_use() {
                return Err(io::Error::other("frames are not moved any more"));
            }
            self.look_at_uplink();
            self.report_ports();
        }
        Ok(())
    }

    /// Follows the uplink's name, carrier and MTU, and opens it again when it has gone and come back.
    fn look_at_uplink(&mut self) {
        // The interface may have got another name at any moment, so there are two tries. An interface that has its old name is a
        // different one.
        let state = (0..2).find_map(|_| {
            let is_named = self.interface.index().ok() == Some(self.index);
            (is_named || self.interface.rename(self.index).is_ok())
                .then(|| self.interface.is_running().ok().zip(self.interface.mtu().ok()))
                .flatten()
        });
        let is_bound = Uplink::is_bound(&self.end);
        if let Some((is_running, mtu)) = state.filter(|_| is_bound && !self.control.worker().is_uplink_gone())
        {
            self.why_away = None;
            return self.control.set_uplink_state(is_running, mtu);
        }
        if self.why_away.is_none() {
            tracing::warn!(
                uplink = self.interface.name(),
                "the uplink is gone: it is used again when it comes back"
            );
            self.why_away = Some(String::new());
            self.control.lose_carrier();
        }
        match self.take_uplink_back() {
            Ok(true) => {
                tracing::info!(uplink = self.interface.name(), "the uplink is back");
                self.why_away = None;
            }
            Ok(false) => {}
            Err(error) => {
                let reason = error.to_string();
                if self.why_away.as_ref() != Some(&reason) {
                    tracing::warn!(reason, "the uplink cannot be used again");
                    self.why_away = Some(reason);
                }
            }
        }
    }

    /// Opens the uplink as at the start. Returns false if there is no interface of its name.
    fn take_uplink_back(&mut self) -> io::Result<bool> {
        if let UplinkName::Interface(name) = &self.uplink
            && tombolo_host::net::Interface::open(name).is_err()
        {
            return Ok(false);
        }
        let uplink = Uplink::open(&self.uplink, self.mtu)?;
        let end = uplink.copy()?;
        let interface = tombolo_host::net::Interface::open(uplink.interface().name())?;
        let index = interface.index()?;
        self.control.worker().replace_uplink(uplink)?;
        (self.interface, self.index, self.end) = (interface, index, end);
        Ok(true)
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.begin.elapsed())
    }

    fn accept(&mut self) {
        for index in 0..self.listeners.len() {
            for _ in 0..ACCEPTED_AT_ONCE {
                match self.listeners[index].accept() {
                    Ok(Some(socket)) => self.let_in(socket),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(%error, "a connection is not accepted");
                        break;
                    }
                }
            }
        }
    }

    fn let_in(&mut self, socket: SeqpacketSocket) {
        // A peer that the kernel cannot identify gets no answer.
        let Ok(peer) = socket.peer() else { return };
        let (user, rank, is_overdue) = (peer.user_id, self.control.rank(peer), socket.is_overdue());
        let (now_ns, number) = (self.now_ns(), self.next_connection);
        let entered = self.connections.enter(now_ns, number, Caller { user, rank, is_overdue });
        let refused = entered.err().map(|refused| refused.to_string());
        if let Some(reason) = refused.or_else(|| socket.let_in().err().map(|error| error.to_string())) {
            self.connections.left(number);
            // Any process can cause this as often as it likes, so it is not a warning.
            tracing::debug!(user, reason, "a connection is refused");
            send(&socket, &Answer::Refused(reason));
            return;
        }
        self.sockets.insert(number, (socket, peer));
        self.next_connection += 1;
    }

    fn receive(&mut self, number: u64, buffer: &mut [u8]) {
        let Some((socket, peer)) = self.sockets.get(&number) else { return };
        let answer = match socket.receive(buffer) {
            Ok(received) => {
                let message = buffer.get(..received.length_bytes).unwrap_or_default();
                self.control.answer(number, Asker::Near(*peer, received.descriptors), message)
            }
            Err(UnixError::WouldBlock) => return,
            Err(error) => {
                if matches!(error, UnixError::Truncated | UnixError::DescriptorsCut { .. }) {
                    send(socket, &Answer::Refused(error.to_string()));
                }
                self.hang_up(number);
                return;
            }
        };
        if matches!(answer, Answer::Attached { .. }) {
            self.connections.attached(number);
        }
        if !send(socket, &answer) {
            self.hang_up(number);
        }
    }

    fn hang_up(&mut self, number: u64) {
        self.control.hung_up(number);
        self.sockets.remove(&number);
        self.connections.left(number);
        if let Some(far) = &mut self.far
            && far.sessions.ended(number)
        {
            far.links.remove(&number);
            let remove = move |worker: &mut Worker| worker.station.as_mut()?.remove(number);
            if let Ok(Some(memories)) = self.control.call(remove) {
                far::free(&far.domain, memories);
            }
        }
    }

    /// Handles news from another node.
    fn hear(&mut self, news: News) {
        match news {
            News::Hello { from, session, ring, version } => {
                self.post(from, |_, station| station.greeted());
                if let Err(reason) = self.connect(from, session, ring, version) {
                    let link = self.far.as_ref().and_then(|far| far::find_node(&far.embedded, from.node));
                    let key = link.and_then(|link| link.key()).map(|key| key.to_string());
                    self.control.say_refused(&key.unwrap_or_else(|| format!("node {}", from.node)), &reason);
                    self.post(from, move |to, station| {
                        // A message has a limited length.
                        let reason: String = reason.chars().take(200).collect();
                        station.post(to, Letter::Refused { session, reason: &reason });
                    });
                }
            }
            News::Control { key, bytes } => {
                let Some(link) = self.far.as_ref().and_then(|far| far.links.get(&key)) else { return };
                let answer =
                    self.control.answer(key, Asker::Far { node: link.name(), key: link.key() }, &bytes);
                let heed =
                    move |worker: &mut Worker| worker.station.as_mut().map(|station| station.heeded(key));
                // If that thread has ended, the owner ends, too.
                let _ = self.control.call(heed);
                if !self.say(key, &answer) {
                    self.hang_up(key);
                }
            }
            News::Ended { key, reason } => {
                tracing::info!(reason = harmless_reason(&reason), "a port of another machine has gone");
                self.hang_up(key);
            }
            // These are for ports.
            News::Welcome { .. } | News::Refused { .. } => {}
        }
    }

    fn post(&self, to: Target, what: impl FnOnce(Target, &mut Station) + Send + 'static) {
        // If that thread has ended, the owner ends, too.
        let _ = self.control.call(move |worker| worker.station.as_mut().map(|station| what(to, station)));
    }

    /// Makes pipes to a port of another machine.
    fn connect(&mut self, peer: Target, session: u64, there: Ring, version: u16) -> Result<(), String> {
        let now_ns = self.now_ns();
        let far = self.far.as_mut().ok_or("no ports of other machines are served")?;
        let link = far::find_node(&far.embedded, peer.node).ok_or_else(|| Unwelcome::Gone.to_string())?;
        let greeting = Greeting {
            node: peer.node,
            proved: link.key().map(|key| key.to_bytes()),
            version,
            ring_bytes: there.bytes,
            has_place: there.is_possible(),
        };
        let key = self.next_connection;
        self.next_connection += 1;
        far.sessions
            .greet(now_ns, key, greeting, standing_of(Some(&link)))
            .map_err(|reason| reason.to_string())?;
        let memories = match far::memories(&far.domain, peer) {
            Ok(memories) => memories,
            Err(error) => {
                far.sessions.ended(key);
                return Err(error.to_string());
            }
        };
        let ring = Ring { address: memories.ring.address(), bytes: RING_BYTES };
        let how = far.coalescing;
        far.links.insert(key, link);
        self.post(peer, move |to, station| {
            station.add(key, to, session, memories, there, how);
            station.post(to, Letter::Welcome { session, ring });
        });
        Ok(())
    }

    /// Ends the ports of nodes that have gone, or that may not attach ports any more.
    fn check_nodes(&mut self) {
        let now_ns = self.now_ns();
        let Some(far) = self.far.as_mut().filter(|far| far.sessions.is_due(now_ns)) else { return };
        // The reading was asked for at the last check. It is finished by now unless the file system hangs.
        if let Security::Secure(identity) = &far.security {
            let found = far.reading.map(|reading| identity.reader.answer(reading));
            match &found {
                Some(Some(Ok(rights))) => drop(far.embedded.node().close_unlisted(rights)),
                Some(Some(Err(error))) => {
                    tracing::warn!(%error, "the list of keys cannot be read: links stay as they are");
                }
                Some(None) if !far.hangs => tracing::warn!(
                    "the list of keys has not been read within a second: links stay as they are until it is"
                ),
                Some(None) | None => {}
            }
            far.hangs = matches!(found, Some(None));
            if !far.hangs {
                far.reading = Some(identity.reader.ask(None));
            }
        }
        self.control.connections().for_each(|connection| far.sessions.attached(connection));
        let links = &far.links;
        let gone = far.sessions.overdue(now_ns, |key| standing_of(links.get(&key).map(|link| &**link)));
        for key in gone {
            tracing::info!("a port of another machine has gone, or may not be any more");
            self.hang_up(key);
        }
    }

    /// Sends an answer to a port. Returns false if the port has gone, or does not read what it is sent.
    fn say(&self, number: u64, answer: &Answer) -> bool {
        if let Some((socket, _)) = self.sockets.get(&number) {
            return send(socket, answer);
        }
        let Ok(message) = serde_json::to_vec(answer) else { return false };
        let push = move |worker: &mut Worker| {
            let now_ns = worker.now_ns();
            let station = worker.station.as_mut();
            station
                .is_some_and(|station| station.push(now_ns, number, Kind::Control, &[IoSlice::new(&message)]))
        };
        self.control.call(push).unwrap_or(false)
    }

    /// Tells ports about changes of the uplink, and of themselves.
    fn report_ports(&mut self) {
        let mut news = self.control.take_changed();
        if let Some(answer) = self.control.take_news() {
            news.extend(self.control.connections().map(|number| (number, answer.clone())));
        }
        for (number, answer) in news {
            if !self.say(number, &answer) {
                self.hang_up(number);
            }
        }
    }
}

/// Sends an answer. Returns false if the peer has gone, or does not read what it is sent.
fn send(socket: &SeqpacketSocket, answer: &Answer) -> bool {
    serde_json::to_vec(answer).is_ok_and(|message| socket.send(&[&message], &[]).is_ok())
}
