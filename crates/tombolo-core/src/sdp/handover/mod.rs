//! Sockets Direct between programs of one machine: a TCP connection is handed over to a pair of Unix sockets while it is being made (SDP §4.1.1,
//! §4.2.3).
//!
//! **What.** A node stands between a client and a server. The client passes its socket; the node connects it, keeps it, and gives the client one end
//! of a pair in its place. The server passes what it has accepted, and gets the other end. From then on the kernel alone carries the bytes.
//!
//! **Why.** Either side may be late, stopped or dead at each step, and a server may never ask: it may be a program without the library. It must
//! never come to one side on the pair and the other on TCP with nobody between them, and no byte may be lost.
//!
//! **How.** [`Handover`] is a plain state machine: it is given [`Event`]s and the time, and hands back [`Action`]s. It touches no socket.
//!
//! ```text
//!              connects                 has its end              asks              has its end
//!   client ──► examined ──► made ─────► taken by the client ───► asked ──────────► handed over ──► over
//!                 │           │              │                     │
//!                 ▼           ▼              ├─ the server is on ──┴─► relayed ───────────────────► over
//!                TCP      cancelled          │  TCP after all
//!                                            └─ the server's TCP is gone ─► reset
//! ```
//!
//! What each holds until the next step: the node has both ends of the pair and the client's TCP socket. It lets go of an end once its program says that
//! it has it, so an answer that is lost or late leaves the bytes where the node can still reach them.

mod listeners;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use listeners::Listeners;
pub use listeners::{Listener, ListenerId};

/// A time, in nanoseconds.
pub type Time = u64;

/// One end of a TCP connection. An IPv4 address is mapped into IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// The address. Zero: any, for a listener.
    pub address: [u8; 16],
    /// The port.
    pub port: u16,
}

/// A network namespace, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Space(pub u64);

/// A TCP connection of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Where it is.
    pub space: Space,
    /// Who has connected.
    pub client: Endpoint,
    /// Who has accepted.
    pub server: Endpoint,
}

/// Something that a program has asked and waits for. Given by the driver; none twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A connection that is offered to a server. None twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OfferId(pub u64);

/// Why a connection stays TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// No program with the library listens there.
    NoListener,
    /// A connection to that listener was accepted by a program without the library.
    AcceptedWithout,
    /// The connection could not be made, or not at once.
    NotConnected,
    /// The listener is not the one that was noted, or the connection leads elsewhere.
    Elsewhere,
    /// There is no room for more offers.
    Full,
    /// The node lacks descriptors or memory.
    NoMeans,
    /// It was not offered.
    NoOffer,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A program listens.
    Listens {
        /// What it listens at.
        listener: Listener,
    },
    /// A listener is gone.
    Closed {
        /// Which.
        listener: ListenerId,
    },
    /// A client wants to connect.
    Connects {
        /// Its request.
        request: RequestId,
        /// Where it is.
        space: Space,
        /// Where it wants to.
        to: Endpoint,
        /// Its user, unless that is the node's own, or root.
        other_user: Option<u32>,
    },
    /// What [`Action::Examine`] has found.
    Examined {
        /// Of which offer.
        offer: OfferId,
        /// The connection and who listens at its other end; or why there is none to offer.
        found: Result<(Flow, ListenerId), Reason>,
    },
    /// A server has accepted a connection.
    Accepts {
        /// Its request.
        request: RequestId,
        /// The connection.
        flow: Flow,
    },
    /// A program has the end that it was given.
    Taken {
        /// Its request.
        request: RequestId,
    },
    /// A program waits no longer: it has given up, or is dead, or the end could not be sent. It has no end, unless it has said so.
    Left {
        /// Its request.
        request: RequestId,
    },
    /// Bytes or the end of the stream have come by TCP from the server.
    Wrote {
        /// Of which offer.
        offer: OfferId,
    },
    /// The TCP connection is reset: its listener is closed, or its server dead.
    Reset {
        /// Of which offer.
        offer: OfferId,
    },
    /// What [`Action::Look`] has seen.
    Looked {
        /// Of which offer.
        offer: OfferId,
        /// Whether a program has accepted it.
        is_accepted: bool,
    },
    /// A relay has ended, or neither end of a pair is there any more.
    Over {
        /// Of which offer.
        offer: OfferId,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Find out who listens there, connect the client's socket without waiting, and make a pair. The answer is [`Event::Examined`].
    Examine {
        /// For which offer.
        offer: OfferId,
        /// Whose request.
        request: RequestId,
        /// Where to.
        to: Endpoint,
    },
    /// Answer that the connection stays TCP.
    Refuse {
        /// Whose request.
        request: RequestId,
        /// Why.
        reason: Reason,
    },
    /// Give the client its end. The answer is [`Event::Taken`] or [`Event::Left`].
    GiveToClient {
        /// Of which offer.
        offer: OfferId,
        /// Whose request.
        request: RequestId,
    },
    /// Give the server its end. The answer is [`Event::Taken`] or [`Event::Left`].
    GiveToServer {
        /// Of which offer.
        offer: OfferId,
        /// Whose request.
        request: RequestId,
    },
    /// See whether a program has accepted the connection. The answer is [`Event::Looked`].
    Look {
        /// Of which offer.
        offer: OfferId,
    },
    /// Both have their ends: let go of them, keep the TCP sockets until nobody has the pair, and say [`Event::Over`] then.
    Keep {
        /// Of which offer.
        offer: OfferId,
    },
    /// Carry bytes between the server's end of the pair and the client's TCP socket, and say [`Event::Over`] when they have ended.
    Relay {
        /// Of which offer.
        offer: OfferId,
    },
    /// Let the client see a reset connection, and close all that belongs to the offer.
    ResetClient {
        /// Of which offer.
        offer: OfferId,
    },
    /// Close all that belongs to the offer.
    Close {
        /// Of which offer.
        offer: OfferId,
    },
}

/// What bounds an owner of offers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most offers, those handed over among them.
    pub offers_max: usize,
    /// Most offers to clients of one user who is neither the node's own nor root.
    pub offers_of_user_max: usize,
    /// Most listeners. The oldest is forgotten.
    pub listeners_max: usize,
    /// After the client has its end: until a look at what the server does. Later looks wait twice as long each.
    pub first_look: Time,
    /// The longest time between two looks.
    pub last_look: Time,
}

/// An offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The driver finds out what there is.
    Examining { request: RequestId },
    /// The client is given its end.
    Made { client: RequestId, server: Server },
    /// The client has its end. Nobody has asked for the other one.
    TakenByClient { look: Look },
    /// The server is given its end.
    Asked { server: RequestId },
    /// Both have their ends.
    HandedOver,
    /// The client is on the pair, the server on TCP.
    Relayed,
}

/// What the server has done before the client had its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    /// Nothing.
    Silent,
    /// It has asked, and waits.
    Waits(RequestId),
    /// It has asked and given up, or written: it is on TCP.
    OnTcp(Proof),
    /// Its connection is gone.
    Gone,
}

/// What it shows that a server is on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// It has asked, so it has the library, and was late.
    Asked,
    /// It has not asked, and uses the connection.
    NeverAsked,
}

/// When to look at what the server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    /// The next time.
    at: Time,
    /// From then on until the one after.
    wait: Time,
    /// The last look has shown that a program has accepted the connection, and not asked.
    was_accepted: bool,
    /// A look is under way.
    is_under_way: bool,
}

#[derive(Clone, Copy, Debug)]
struct Offer {
    state: State,
    /// Known once it is examined.
    flow: Option<(Flow, ListenerId)>,
    /// The port that was asked for.
    port: u16,
    /// The client's user, unless that is the node's own, or root.
    user: Option<u32>,
}

/// What an offer is, for those who ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Not both have their ends yet.
    Offered,
    /// Both have.
    HandedOver,
    /// The node carries the bytes.
    Relayed,
}

/// How often what has happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections handed over.
    pub handed_over: u64,
    /// Connections relayed.
    pub relayed: u64,
    /// Offers that ended before the client had its end.
    pub cancelled: u64,
    /// Clients whose server was gone.
    pub reset: u64,
    /// Requests that were refused, by reason.
    pub refused: BTreeMap<Reason, u64>,
}

/// The offers of a node.
#[derive(Debug)]
pub struct Handover {
    limits: Limits,
    listeners: Listeners,
    offers: BTreeMap<OfferId, Offer>,
    flows: BTreeMap<Flow, OfferId>,
    requests: BTreeMap<RequestId, OfferId>,
    /// Offers to clients of other users.
    by_user: BTreeMap<u32, usize>,
    looks: BTreeSet<(Time, OfferId)>,
    /// Offers that a server may ask for, by port.
    open: BTreeMap<u16, u32>,
    /// Ports for which [`Handover::is_offered`] or [`Handover::open_at`] may have changed.
    changed: BTreeSet<u16>,
    actions: VecDeque<Action>,
    next: u64,
    counters: Counters,
}

impl Handover {
    /// Without offers. Their numbers begin with `first`.
    pub fn new(limits: Limits, first: u64) -> Self {
        Self {
            limits,
            listeners: Listeners::new(limits.listeners_max),
            offers: BTreeMap::new(),
            flows: BTreeMap::new(),
            requests: BTreeMap::new(),
            by_user: BTreeMap::new(),
            looks: BTreeSet::new(),
            open: BTreeMap::new(),
            changed: BTreeSet::new(),
            actions: VecDeque::new(),
            next: first,
            counters: Counters::default(),
        }
    }

    /// Takes what has happened.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Listens { listener } => self.changed.extend(self.listeners.note(listener)),
            Event::Closed { listener } => self.changed.extend(self.listeners.close(listener)),
            Event::Connects { request, space, to, other_user } => {
                self.connects(request, space, to, other_user);
            }
            Event::Examined { offer, found } => self.examined(offer, found),
            Event::Accepts { request, flow } => self.accepts(request, flow),
            Event::Taken { request } => self.taken(now, request),
            Event::Left { request } => self.left(request),
            Event::Wrote { offer } => self.wrote(offer),
            Event::Reset { offer } => self.reset(offer),
            Event::Looked { offer, is_accepted } => self.looked(now, offer, is_accepted),
            Event::Over { offer } => self.over(offer),
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// To be called when [`Self::next_deadline`] has come.
    pub fn tick(&mut self, now: Time) {
        while let Some(&(at, offer)) = self.looks.first().filter(|(at, _)| *at <= now) {
            self.looks.remove(&(at, offer));
            if let Some(Offer { state: State::TakenByClient { look }, .. }) = self.offers.get_mut(&offer) {
                look.is_under_way = true;
                self.actions.push_back(Action::Look { offer });
            }
        }
    }

    /// When [`Self::tick`] is to be called.
    pub fn next_deadline(&self) -> Option<Time> {
        self.looks.first().map(|(at, _)| *at)
    }

    /// Whether a listener at that port gets offers.
    pub fn is_offered(&self, port: u16) -> bool {
        self.listeners.is_offered(port)
    }

    /// How many offers are there that a server at that port may ask for.
    pub fn open_at(&self, port: u16) -> u32 {
        self.open.get(&port).copied().unwrap_or(0)
    }

    /// Ports for which [`Self::is_offered`] or [`Self::open_at`] may have changed. To be shown to programs before the next action is carried out.
    pub fn take_changed(&mut self) -> BTreeSet<u16> {
        std::mem::take(&mut self.changed)
    }

    /// The offer that a request is of, as long as that is open.
    pub fn asked_by(&self, request: RequestId) -> Option<OfferId> {
        self.requests.get(&request).copied()
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All offers whose connection is known.
    pub fn all(&self) -> impl Iterator<Item = (OfferId, Flow, Mode)> {
        self.offers.iter().filter_map(|(id, offer)| {
            let mode = match offer.state {
                State::HandedOver => Mode::HandedOver,
                State::Relayed => Mode::Relayed,
                _ => Mode::Offered,
            };
            offer.flow.map(|(flow, _)| (*id, flow, mode))
        })
    }

    /// All listeners.
    pub fn listeners(&self) -> impl Iterator<Item = (&Listener, bool)> {
        self.listeners.all()
    }

    fn refuse(&mut self, request: RequestId, reason: Reason) {
        *self.counters.refused.entry(reason).or_default() += 1;
        self.actions.push_back(Action::Refuse { request, reason });
    }

    fn connects(&mut self, request: RequestId, space: Space, to: Endpoint, user: Option<u32>) {
        if let Err(reason) = self.listeners.find(space, to) {
            return self.refuse(request, reason);
        }
        let of_user = user.map_or(0, |user| self.by_user.get(&user).copied().unwrap_or(0));
        if self.offers.len() >= self.limits.offers_max || of_user >= self.limits.offers_of_user_max {
            return self.refuse(request, Reason::Full);
        }
        if let Some(user) = user {
            *self.by_user.entry(user).or_default() += 1;
        }
        let id = OfferId(self.next);
        self.next += 1;
        let offer = Offer { state: State::Examining { request }, flow: None, port: to.port, user };
        self.offers.insert(id, offer);
        self.requests.insert(request, id);
        // Before the connection is made: a server that accepts it at once is to ask.
        *self.open.entry(to.port).or_default() += 1;
        self.changed.insert(to.port);
        self.actions.push_back(Action::Examine { offer: id, request, to });
    }

    fn examined(&mut self, id: OfferId, found: Result<(Flow, ListenerId), Reason>) {
        let Some(&Offer { state: State::Examining { request }, .. }) = self.offers.get(&id) else { return };
        // Two connections of one name: the older one is no longer what its name says.
        let found = found.and_then(|(flow, listener)| match self.listeners.check(listener) {
            Ok(()) if self.flows.contains_key(&flow) => Err(Reason::Elsewhere),
            Ok(()) => Ok((flow, listener)),
            Err(reason) => Err(reason),
        });
        match found {
            Err(reason) => {
                self.remove(id);
                // The client may have left meanwhile.
                if self.requests.remove(&request).is_some() {
                    self.refuse(request, reason);
                }
                self.actions.push_back(Action::Close { offer: id });
            }
            Ok((flow, listener)) => {
                self.flows.insert(flow, id);
                let is_there = self.requests.contains_key(&request);
                if let Some(offer) = self.offers.get_mut(&id) {
                    offer.flow = Some((flow, listener));
                    offer.state = State::Made { client: request, server: Server::Silent };
                }
                if is_there {
                    self.actions.push_back(Action::GiveToClient { offer: id, request });
                } else {
                    self.cancel(id);
                }
            }
        }
    }

    fn accepts(&mut self, request: RequestId, flow: Flow) {
        let Some(&id) = self.flows.get(&flow) else { return self.refuse(request, Reason::NoOffer) };
        let Some(offer) = self.offers.get_mut(&id) else { return self.refuse(request, Reason::NoOffer) };
        match &mut offer.state {
            State::Made { server: server @ Server::Silent, .. } => {
                *server = Server::Waits(request);
                self.requests.insert(request, id);
            }
            State::TakenByClient { look } => {
                let at = look.at;
                offer.state = State::Asked { server: request };
                self.looks.remove(&(at, id));
                self.requests.insert(request, id);
                self.actions.push_back(Action::GiveToServer { offer: id, request });
            }
            _ => self.refuse(request, Reason::NoOffer),
        }
    }

    fn taken(&mut self, now: Time, request: RequestId) {
        let Some(id) = self.requests.remove(&request) else { return };
        let Some(offer) = self.offers.get_mut(&id) else { return };
        match offer.state {
            State::Made { client, server } if client == request => match server {
                Server::Silent => {
                    let (at, wait) = (now.saturating_add(self.limits.first_look), self.limits.first_look);
                    let look = Look { at, wait, was_accepted: false, is_under_way: false };
                    offer.state = State::TakenByClient { look };
                    self.looks.insert((at, id));
                }
                Server::Waits(server) => {
                    offer.state = State::Asked { server };
                    self.actions.push_back(Action::GiveToServer { offer: id, request: server });
                }
                Server::OnTcp(proof) => self.relay(id, proof),
                Server::Gone => self.reset_client(id),
            },
            // It says so before it was given anything: that is no program of ours.
            State::Made { server: Server::Waits(waits), client } if waits == request => {
                offer.state = State::Made { client, server: Server::OnTcp(Proof::Asked) };
            }
            State::Asked { server } if server == request => {
                offer.state = State::HandedOver;
                self.counters.handed_over += 1;
                self.close_offer_to_server(id);
                self.actions.push_back(Action::Keep { offer: id });
            }
            _ => {}
        }
    }

    fn left(&mut self, request: RequestId) {
        let Some(id) = self.requests.remove(&request) else { return };
        let Some(offer) = self.offers.get_mut(&id) else { return };
        match &mut offer.state {
            // What is found out is cancelled then.
            State::Examining { .. } | State::TakenByClient { .. } | State::HandedOver | State::Relayed => {}
            State::Made { client, .. } if *client == request => self.cancel(id),
            State::Made { server, .. } => *server = Server::OnTcp(Proof::Asked),
            State::Asked { .. } => self.relay(id, Proof::Asked),
        }
    }

    fn wrote(&mut self, id: OfferId) {
        match self.offers.get_mut(&id).map(|offer| &mut offer.state) {
            Some(State::Made { server, .. }) => match *server {
                Server::Silent => *server = Server::OnTcp(Proof::NeverAsked),
                Server::Waits(_) | Server::OnTcp(_) | Server::Gone => {}
            },
            Some(State::TakenByClient { .. }) => self.relay(id, Proof::NeverAsked),
            _ => {}
        }
    }

    fn reset(&mut self, id: OfferId) {
        match self.offers.get_mut(&id).map(|offer| &mut offer.state) {
            Some(State::Made { server, .. }) => {
                if let Server::Waits(request) = std::mem::replace(server, Server::Gone) {
                    self.requests.remove(&request);
                    self.refuse(request, Reason::NoOffer);
                }
            }
            Some(State::TakenByClient { .. }) => self.reset_client(id),
            _ => {}
        }
    }

    fn looked(&mut self, now: Time, id: OfferId, is_accepted: bool) {
        let Some(Offer { state: State::TakenByClient { look }, .. }) = self.offers.get_mut(&id) else {
            return;
        };
        if !look.is_under_way {
            return;
        }
        if is_accepted && look.was_accepted {
            return self.relay(id, Proof::NeverAsked);
        }
        // Who has accepted it asks at once, unless it is stopped.
        let wait = if is_accepted { self.limits.first_look } else { look.wait.saturating_mul(2) };
        let wait = wait.min(self.limits.last_look);
        *look = Look { at: now.saturating_add(wait), wait, was_accepted: is_accepted, is_under_way: false };
        self.looks.insert((look.at, id));
    }

    fn over(&mut self, id: OfferId) {
        if matches!(self.offers.get(&id), Some(Offer { state: State::HandedOver | State::Relayed, .. })) {
            self.remove(id);
            self.actions.push_back(Action::Close { offer: id });
        }
    }

    /// The client has its end, and the server is on TCP.
    fn relay(&mut self, id: OfferId, proof: Proof) {
        let Some(offer) = self.offers.get_mut(&id) else { return };
        if let Some((_, listener)) = offer.flow.filter(|_| proof == Proof::NeverAsked) {
            self.changed.extend(self.listeners.accepts_without(listener));
        }
        self.stop_looking(id);
        self.close_offer_to_server(id);
        if let Some(offer) = self.offers.get_mut(&id) {
            offer.state = State::Relayed;
        }
        self.counters.relayed += 1;
        self.actions.push_back(Action::Relay { offer: id });
    }

    fn reset_client(&mut self, id: OfferId) {
        self.remove(id);
        self.counters.reset += 1;
        self.actions.push_back(Action::ResetClient { offer: id });
    }

    /// The client has no end: it is on TCP, or dead.
    fn cancel(&mut self, id: OfferId) {
        let server = match self.offers.get(&id).map(|offer| offer.state) {
            Some(State::Made { server: Server::Waits(request), .. }) => Some(request),
            _ => None,
        };
        self.remove(id);
        if let Some(request) = server {
            self.requests.remove(&request);
            self.refuse(request, Reason::NoOffer);
        }
        self.counters.cancelled += 1;
        self.actions.push_back(Action::Close { offer: id });
    }

    fn stop_looking(&mut self, id: OfferId) {
        if let Some(Offer { state: State::TakenByClient { look }, .. }) = self.offers.get(&id) {
            self.looks.remove(&(look.at, id));
        }
    }

    /// No server asks for it any more.
    fn close_offer_to_server(&mut self, id: OfferId) {
        let Some(offer) = self.offers.get_mut(&id) else { return };
        if matches!(offer.state, State::Relayed) {
            return;
        }
        if let Some((flow, _)) = offer.flow {
            self.flows.remove(&flow);
        }
        self.changed.insert(offer.port);
        if let Some(count) = self.open.get_mut(&offer.port) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&offer.port);
            }
        }
    }

    fn remove(&mut self, id: OfferId) {
        self.stop_looking(id);
        if let Some(Offer { state, .. }) = self.offers.get(&id)
            && !matches!(state, State::HandedOver | State::Relayed)
        {
            self.close_offer_to_server(id);
        }
        let user = self.offers.remove(&id).and_then(|offer| offer.user);
        if let Some((user, count)) = user.and_then(|user| Some((user, self.by_user.get_mut(&user)?))) {
            *count -= 1;
            if *count == 0 {
                self.by_user.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests;
