//! State machine of the nodes that this one is to be joined to: compares the links that are wanted with those that
//! exist.
//!
//! A neighbour is wanted for good. While no link leads to it, it is dialed, after pauses that grow up to a bound. When
//! its link is lost, it is dialed again. Two nodes may want each other, so links come from both sides:
//!
//! ```text
//!                     dial's time      link lost
//!        ┌─ Waiting ─────────────► Dialing       (restarted: the answer at its address has another life)
//!        │     ▲  ▲    failed         │
//!        │     │  └───────────────────┤ answered: joined, or "there is a link already"
//!  a link│     │ link lost            ▼
//!  comes └─────┴────────────────── Joined ── suspect: its address is asked who answers there
//! ```
//!
//! **One link a pair.** The side that is dialed refuses a second link from the same life of the same node, unless the
//! dialer *insists*. A dialer insists if it was refused before but has no link: then the link that is known here is
//! dead. Two dials that cross are both accepted. Then both sides know of both links, and keep the one that the node
//! with the smaller life has dialed.
//!
//! **Identity.** A node is identified by what it has proved and by its life. A claim without a proof has no effect: a
//! link that comes without a proof is accepted, but counts as no neighbour's.
//!
//! **How.** `handle` events, then `poll` actions until there are none, and come back at `next_deadline` with
//! [`Event::Elapsed`]. Report the outcome of each dial once, with the [`Dial`] that came with the action.

use std::collections::{BTreeMap, VecDeque};

pub use super::back_off::Pauses;
use super::back_off::{BackOff, Jitter};
pub use super::events::{
    Action, Change, CloseReason, Dial, DialOutcome, Event, Identity, LinkId, NeighbourId, Proof,
};
use crate::rdma::Time;

#[derive(Debug)]
struct KnownLink {
    identity: Identity,
    /// Whether this node has dialed it.
    dialed: bool,
    suspect: bool,
}

#[derive(Debug)]
enum State {
    Waiting { until: Time, insist: bool },
    Dialing { number: u64, insist: bool },
    Joined { link: LinkId, since: Time },
}

/// The path by one address of a neighbour.
#[derive(Debug, PartialEq, Eq)]
enum Route {
    Up,
    Dialing(u64),
    Waiting(Time),
}

#[derive(Debug)]
enum ProbeState {
    Idle,
    Waiting(Time),
    Probing(u64),
}

#[derive(Debug)]
struct Neighbour {
    state: State,
    /// Index of the address that is dialed next, or by which the neighbour was found.
    address: usize,
    /// The node that answered a dial last.
    found: Option<Identity>,
    was_joined: bool,
    is_itself: bool,
    /// When its pause was last cut short, so that it was dialed at once, because a node had connected that may be this
    /// neighbour.
    hurried_at: Option<Time>,
    back_off: BackOff,
    probe: ProbeState,
    routes: Vec<Route>,
    path_back_off: BackOff,
}

/// The neighbours of one node.
#[derive(Debug)]
pub struct Neighbours {
    own_life: [u8; 16],
    pauses: Pauses,
    jitter: Jitter,
    neighbours: Vec<Neighbour>,
    links: BTreeMap<LinkId, KnownLink>,
    next_dial: u64,
    actions: VecDeque<Action>,
}

impl Neighbours {
    /// A machine for neighbours of which none is joined yet. `addresses` holds the number of addresses of each
    /// neighbour. The seed gives the jitter.
    pub fn new(own_life: [u8; 16], addresses: &[usize], pauses: Pauses, seed: u64, now: Time) -> Self {
        let neighbours = addresses.iter().map(|addresses| Neighbour {
            state: State::Waiting { until: now, insist: false },
            address: 0,
            found: None,
            was_joined: false,
            is_itself: false,
            hurried_at: None,
            back_off: BackOff::new(&pauses),
            probe: ProbeState::Idle,
            routes: (0..(*addresses).max(1)).map(|_| Route::Waiting(now)).collect(),
            path_back_off: BackOff::new(&pauses),
        });
        Self {
            own_life,
            pauses,
            jitter: Jitter::new(seed),
            neighbours: neighbours.collect(),
            links: BTreeMap::new(),
            next_dial: 0,
            actions: VecDeque::new(),
        }
    }

    /// The next thing to do.
    #[must_use]
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to come back with [`Event::Elapsed`], at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let of = |neighbour: &Neighbour| {
            let dial = match neighbour.state {
                State::Waiting { until, .. } => Some(until),
                State::Dialing { .. } | State::Joined { .. } => None,
            };
            let probe = match neighbour.probe {
                ProbeState::Waiting(until) => Some(until),
                ProbeState::Idle | ProbeState::Probing(_) => None,
            };
            let routes = neighbour.routes.iter().filter_map(|route| match route {
                Route::Waiting(until) if matches!(neighbour.state, State::Joined { .. }) => Some(*until),
                _ => None,
            });
            dial.into_iter().chain(probe).chain(routes).min()
        };
        self.neighbours.iter().filter_map(of).min()
    }

    /// The link that leads to a neighbour.
    #[must_use]
    pub fn link_of(&self, neighbour: NeighbourId) -> Option<LinkId> {
        match self.neighbours.get(neighbour.0 as usize)?.state {
            State::Joined { link, .. } => Some(link),
            State::Waiting { .. } | State::Dialing { .. } => None,
        }
    }

    /// Handles an event. Call [`Self::poll`] afterwards.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Elapsed => {}
            Event::Dialed(dial, outcome) => self.dialed(now, &dial, outcome),
            Event::Probed(dial, found) => self.probed(now, &dial, found),
            Event::PathAdded(dial, is_up) => self.path_added(now, &dial, is_up),
            Event::Came { link, identity, insists } => self.came(now, link, identity, insists),
            Event::Suspected(link, is_suspect) => self.suspected(now, link, is_suspect),
            Event::Lost(link) => self.lost(now, link),
            Event::PathLost(neighbour, address) => self.path_lost(now, neighbour, address),
        }
        self.begin_due(now);
    }

    fn new_dial(&mut self, index: usize, address: usize) -> Dial {
        self.next_dial += 1;
        Dial { number: self.next_dial, neighbour: NeighbourId(index as u32), address }
    }

    /// Begins the dials whose time has come.
    fn begin_due(&mut self, now: Time) {
        for index in 0..self.neighbours.len() {
            match self.neighbours[index].state {
                State::Waiting { until, insist } if until <= now => {
                    if self.same_node_is_dialed(index) {
                        // The outcome of that dial may hold for this neighbour, too.
                        let until = now.after_ns(self.jitter.around(self.pauses.first_ns));
                        self.neighbours[index].state = State::Waiting { until, insist };
                        continue;
                    }
                    let dial = self.new_dial(index, self.neighbours[index].address);
                    self.neighbours[index].state = State::Dialing { number: dial.number, insist };
                    self.actions.push_back(Action::Dial { dial, insist });
                }
                State::Joined { link, .. } => self.begin_due_paths(now, index, link),
                State::Waiting { .. } | State::Dialing { .. } => {}
            }
            if let ProbeState::Waiting(until) = self.neighbours[index].probe
                && until <= now
            {
                let dial = self.new_dial(index, self.neighbours[index].address);
                self.neighbours[index].probe = ProbeState::Probing(dial.number);
                self.actions.push_back(Action::Probe(dial));
            }
        }
    }

    fn begin_due_paths(&mut self, now: Time, index: usize, link: LinkId) {
        for address in 0..self.neighbours[index].routes.len() {
            if matches!(self.neighbours[index].routes[address], Route::Waiting(until) if until <= now) {
                let dial = self.new_dial(index, address);
                self.neighbours[index].routes[address] = Route::Dialing(dial.number);
                self.actions.push_back(Action::AddPath(dial, link));
            }
        }
    }

    /// Whether the node that was last found for a neighbour is being dialed for another neighbour.
    fn same_node_is_dialed(&self, index: usize) -> bool {
        let Some(found) = self.neighbours[index].found else { return false };
        self.neighbours.iter().enumerate().any(|(other, neighbour)| {
            other != index
                && neighbour.found == Some(found)
                && matches!(neighbour.state, State::Dialing { .. })
        })
    }

    fn wait(&mut self, now: Time, index: usize, insist: bool) {
        let neighbour = &mut self.neighbours[index];
        let pause_ns = neighbour.back_off.pause_ns(&self.pauses, &mut self.jitter);
        neighbour.state = State::Waiting { until: now.after_ns(pause_ns), insist };
    }

    fn dialed(&mut self, now: Time, dial: &Dial, outcome: DialOutcome) {
        let index = dial.neighbour.0 as usize;
        let state = self.neighbours.get(index).map(|neighbour| &neighbour.state);
        let was_insistent = match state {
            Some(State::Dialing { number, insist }) if *number == dial.number => Some(*insist),
            // A link from the neighbour came meanwhile.
            Some(_) => None,
            None => return,
        };
        match outcome {
            DialOutcome::Failed => {
                if was_insistent.is_some() {
                    let neighbour = &mut self.neighbours[index];
                    neighbour.address = (dial.address + 1) % neighbour.routes.len();
                    self.wait(now, index, was_insistent == Some(true));
                }
            }
            DialOutcome::Joined(link, identity) => {
                self.neighbours[index].found = Some(identity);
                if identity.life == self.own_life {
                    self.actions.push_back(Action::Close(link, CloseReason::Duplicate));
                    return self.reached_itself(now, index);
                }
                self.links.insert(link, KnownLink { identity, dialed: true, suspect: false });
                if was_insistent == Some(true) {
                    // The other side has closed all other links.
                    self.close_others(now, link);
                } else {
                    self.close_duplicates(now, link);
                }
                self.join_all(now, identity);
                if self.link_of(dial.neighbour).is_none() {
                    self.wait(now, index, false);
                }
            }
            DialOutcome::Refused(identity) => {
                self.neighbours[index].found = Some(identity);
                if identity.life == self.own_life {
                    return self.reached_itself(now, index);
                }
                self.join_all(now, identity);
                if was_insistent.is_some() && self.link_of(dial.neighbour).is_none() {
                    let pause_ns = self.jitter.around(self.pauses.first_ns);
                    let until = now.after_ns(pause_ns);
                    self.neighbours[index].state = State::Waiting { until, insist: true };
                }
            }
        }
    }

    fn reached_itself(&mut self, now: Time, index: usize) {
        let until = now.after_ns(self.jitter.around(self.pauses.longest_ns));
        let neighbour = &mut self.neighbours[index];
        neighbour.state = State::Waiting { until, insist: false };
        neighbour.address = (neighbour.address + 1) % neighbour.routes.len();
        if !std::mem::replace(&mut neighbour.is_itself, true) {
            self.actions.push_back(Action::Report(NeighbourId(index as u32), Change::IsItself));
        }
    }

    /// The known links to one node. A link that came without a proof is not known.
    fn links_to(&self, identity: Identity) -> Vec<LinkId> {
        let same = |link: &KnownLink| link.identity == identity;
        self.links.iter().filter(|(_, known)| same(known)).map(|(link, _)| *link).collect()
    }

    /// Closes all links but one to the node of the newest link. If two dials have crossed, both sides keep the link
    /// that the smaller life has dialed. If one side has dialed twice, the newer link is kept, because that side has
    /// given up the older one.
    fn close_duplicates(&mut self, now: Time, newest: LinkId) {
        let Some(KnownLink { identity, .. }) = self.links.get(&newest) else { return };
        let identity = *identity;
        if identity.proof == Proof::Nothing {
            return;
        }
        let own_dials = self.own_life < identity.life;
        let all = self.links_to(identity);
        let preferred = |link: &&LinkId| self.links[*link].dialed == own_dials;
        let kept = all.iter().filter(preferred).max_by_key(|link| (**link == newest, **link));
        let kept = kept.copied().unwrap_or(newest);
        self.close_others(now, kept);
    }

    /// Closes all other links to the node that `kept` leads to.
    fn close_others(&mut self, now: Time, kept: LinkId) {
        let Some(KnownLink { identity, .. }) = self.links.get(&kept) else { return };
        let identity = *identity;
        if identity.proof == Proof::Nothing {
            return;
        }
        for link in self.links_to(identity).into_iter().filter(|link| *link != kept) {
            self.links.remove(&link);
            self.actions.push_back(Action::Close(link, CloseReason::Duplicate));
            for index in 0..self.neighbours.len() {
                if matches!(self.neighbours[index].state, State::Joined { link: lost, .. } if lost == link) {
                    self.assign(now, index, kept);
                }
            }
        }
    }

    /// Notes as joined all neighbours for which the node with this identity was found.
    fn join_all(&mut self, now: Time, identity: Identity) {
        let Some(link) = self.links_to(identity).into_iter().next_back() else { return };
        for index in 0..self.neighbours.len() {
            let neighbour = &self.neighbours[index];
            if neighbour.found != Some(identity) || matches!(neighbour.state, State::Joined { .. }) {
                continue;
            }
            self.assign(now, index, link);
            let neighbour = &mut self.neighbours[index];
            let change = if std::mem::replace(&mut neighbour.was_joined, true) {
                Change::JoinedAgain
            } else {
                Change::Joined
            };
            self.actions.push_back(Action::Report(NeighbourId(index as u32), change));
        }
    }

    fn assign(&mut self, now: Time, index: usize, link: LinkId) {
        let dialed = self.links.get(&link).is_some_and(|link| link.dialed);
        let neighbour = &mut self.neighbours[index];
        neighbour.state = State::Joined { link, since: now };
        neighbour.probe = ProbeState::Idle;
        neighbour.is_itself = false;
        neighbour.path_back_off.reset(&self.pauses);
        // If the other side has dialed, its link counts as the path by the first address.
        let first = if dialed { neighbour.address } else { 0 };
        let at = now.after_ns(if dialed { 0 } else { self.jitter.around(self.pauses.first_ns) });
        for (address, route) in neighbour.routes.iter_mut().enumerate() {
            *route = if address == first { Route::Up } else { Route::Waiting(at) };
        }
        self.actions.push_back(Action::Assign(NeighbourId(index as u32), Some(link)));
    }

    fn came(&mut self, now: Time, link: LinkId, identity: Identity, insists: bool) {
        if identity.life == self.own_life {
            // This node has dialed itself.
            return self.actions.push_back(Action::Answer(link, false));
        }
        if identity.proof == Proof::Nothing {
            return self.actions.push_back(Action::Answer(link, true));
        }
        let is_known = !self.links_to(identity).is_empty();
        if is_known && !insists {
            return self.actions.push_back(Action::Answer(link, false));
        }
        self.actions.push_back(Action::Answer(link, true));
        self.links.insert(link, KnownLink { identity, dialed: false, suspect: false });
        self.close_others(now, link);
        self.join_all(now, identity);
        self.expect_neighbour(now, identity);
    }

    /// Called when a node has connected: dials or probes at once each neighbour that the node may be. The node may be a
    /// neighbour that was away, or the next life of one, and only the neighbour's address tells. A node that connects
    /// again and again must not keep absent neighbours dialed. So a neighbour's pause is cut short only once in the
    /// longest pause, unless the node is known to be that neighbour.
    fn expect_neighbour(&mut self, now: Time, identity: Identity) {
        let longest_ns = self.pauses.longest_ns;
        for neighbour in &mut self.neighbours {
            let is_it = neighbour.found.is_some_and(|found| found.proof == identity.proof);
            let was_hurried = neighbour.hurried_at.is_some_and(|at| now < at.after_ns(longest_ns));
            match (&mut neighbour.state, &neighbour.probe) {
                (State::Waiting { until, .. }, _) if !neighbour.is_itself && (is_it || !was_hurried) => {
                    *until = now;
                    neighbour.hurried_at = Some(now);
                }
                (State::Joined { .. }, ProbeState::Idle | ProbeState::Waiting(_))
                    if neighbour.found.is_some_and(|found| found.proof == identity.proof)
                        && neighbour.found != Some(identity) =>
                {
                    neighbour.probe = ProbeState::Waiting(now);
                }
                _ => {}
            }
        }
    }

    fn suspected(&mut self, now: Time, link: LinkId, is_suspect: bool) {
        let Some(known) = self.links.get_mut(&link) else { return };
        known.suspect = is_suspect;
        for index in 0..self.neighbours.len() {
            if !matches!(self.neighbours[index].state, State::Joined { link: own, .. } if own == link) {
                continue;
            }
            let at = now.after_ns(self.jitter.around(self.pauses.first_ns));
            let probe = &mut self.neighbours[index].probe;
            match (is_suspect, &*probe) {
                (true, ProbeState::Idle) => *probe = ProbeState::Waiting(at),
                (true, ProbeState::Waiting(_) | ProbeState::Probing(_)) => {}
                (false, _) => *probe = ProbeState::Idle,
            }
        }
    }

    fn probed(&mut self, now: Time, dial: &Dial, found: Option<Identity>) {
        let index = dial.neighbour.0 as usize;
        let Some(neighbour) = self.neighbours.get(index) else { return };
        let State::Joined { link, .. } = neighbour.state else { return };
        if !matches!(neighbour.probe, ProbeState::Probing(number) if number == dial.number) {
            return;
        }
        let Some(known) = self.links.get(&link) else { return };
        let identity = known.identity;
        let is_suspect = known.suspect;
        if found.is_some_and(|found| found.life != identity.life) {
            self.actions.push_back(Action::Close(link, CloseReason::Restarted));
            self.lost(now, link);
            self.neighbours[index].state = State::Waiting { until: now, insist: false };
            return;
        }
        let at = now.after_ns(self.jitter.around(self.pauses.probe_ns));
        self.neighbours[index].probe = if is_suspect { ProbeState::Waiting(at) } else { ProbeState::Idle };
    }

    fn lost(&mut self, now: Time, link: LinkId) {
        if self.links.remove(&link).is_none() {
            return;
        }
        for index in 0..self.neighbours.len() {
            let State::Joined { link: own, since } = self.neighbours[index].state else { continue };
            if own != link {
                continue;
            }
            let neighbour = &mut self.neighbours[index];
            neighbour.probe = ProbeState::Idle;
            if now.since_ns(since) >= self.pauses.lasting_ns {
                neighbour.back_off.reset(&self.pauses);
            }
            let id = NeighbourId(index as u32);
            self.actions.push_back(Action::Assign(id, None));
            self.actions.push_back(Action::Report(id, Change::Lost));
            self.wait(now, index, false);
        }
    }

    fn path_added(&mut self, now: Time, dial: &Dial, is_up: bool) {
        let Some(neighbour) = self.neighbours.get_mut(dial.neighbour.0 as usize) else { return };
        let Some(route) = neighbour.routes.get_mut(dial.address) else { return };
        if *route != Route::Dialing(dial.number) {
            return;
        }
        if is_up {
            *route = Route::Up;
            neighbour.path_back_off.reset(&self.pauses);
        } else {
            let pause_ns = neighbour.path_back_off.pause_ns(&self.pauses, &mut self.jitter);
            *route = Route::Waiting(now.after_ns(pause_ns));
        }
    }

    fn path_lost(&mut self, now: Time, neighbour: NeighbourId, address: usize) {
        let at = now.after_ns(self.jitter.around(self.pauses.first_ns));
        if let Some(neighbour) = self.neighbours.get_mut(neighbour.0 as usize)
            && let Some(route) = neighbour.routes.get_mut(address)
            && *route == Route::Up
        {
            *route = Route::Waiting(at);
        }
    }
}
