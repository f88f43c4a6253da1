//! Some nodes, the network between them, and what can happen to both, in virtual time.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tombolo_core::fabric::neighbour::{
    Action, Change, Dial, DialOutcome, Event, Identity, LinkId, NeighbourId, Neighbours, Pauses, Proof,
};
use tombolo_core::rdma::Time;
use tombolo_random::Random;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;
pub const STEP: u64 = 20 * MS;
pub const DIAL_TIMEOUT: u64 = 2 * SECOND;
pub const SUSPECT: u64 = 1_500 * MS;
pub const OUTAGE: u64 = 10 * SECOND;
/// When all is healed: the longest pause, a dial that was under way, an outage, and the way to insist.
pub const SETTLED: u64 = OUTAGE + 4 * DIAL_TIMEOUT + 3 * 7 * SECOND;

/// What a test plants.
#[derive(Clone, Copy, PartialEq)]
pub enum Plant {
    Nothing,
    /// Each machine takes its own life for the smaller one, so that both keep what they have dialed.
    OwnDialsPreferred,
    /// No node hears that a link is lost.
    LossUnheard,
}

/// One side of a link.
struct End {
    node: usize,
    incarnation: u64,
    other: LinkId,
    heard_at: u64,
    suspect: bool,
}

pub struct Node {
    pub machine: Option<Neighbours>,
    incarnation: u64,
    pub wants: Vec<usize>,
    pub assigned: BTreeMap<u32, LinkId>,
    pub reports: Vec<(u32, Change)>,
}

enum Due {
    /// A question arrives at the node that is dialed.
    Asked {
        from: (usize, u64),
        to: usize,
        dial: Dial,
        insist: bool,
        probe: bool,
        path: bool,
    },
    Event {
        to: (usize, u64),
        event: Event,
    },
    Bye(LinkId),
    /// A dial is not waited for any longer.
    TimedOut {
        number: u64,
    },
}

pub struct World {
    pub random: Random,
    plant: Plant,
    now: u64,
    pub nodes: Vec<Node>,
    pub cut: BTreeSet<(usize, usize)>,
    /// Answers to dials that are lost.
    pub loss: u32,
    due: BTreeMap<(u64, u64), Due>,
    ends: BTreeMap<LinkId, End>,
    next_link: u32,
    next_due: u64,
    /// Dials that wait for the answer of the other side, by the link's end there.
    open: BTreeMap<LinkId, (u64, LinkId)>,
    dials: BTreeMap<u64, (usize, u64, Dial)>,
    /// The dialer's ends.
    dial_ends: BTreeMap<u64, LinkId>,
    next_dial: u64,
    over: HashSet<LinkId>,
    pub trouble: Option<String>,
}

fn life(node: usize, incarnation: u64) -> [u8; 16] {
    let mut random = Random::new((node as u64 + 1) * 0x9E37_79B9 + incarnation * 0x85EB_CA6B + 1);
    let (one, other) = (random.next(), random.next());
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&one.to_le_bytes());
    bytes[8..].copy_from_slice(&other.to_le_bytes());
    bytes
}

impl World {
    pub fn new(seed: u64, plant: Plant) -> Self {
        let mut random = Random::new(seed);
        let count = 2 + random.below(3) as usize;
        let mut nodes: Vec<Node> = (0..count)
            .map(|_| Node {
                machine: None,
                incarnation: 0,
                wants: Vec::new(),
                assigned: BTreeMap::new(),
                reports: Vec::new(),
            })
            .collect();
        for (node, state) in nodes.iter_mut().enumerate() {
            for other in 0..count {
                if other != node && random.per_mille(700) {
                    state.wants.push(other);
                    // Some name a node twice, or themselves.
                    if random.per_mille(100) {
                        state.wants.push(other);
                    }
                }
            }
            if random.per_mille(50) {
                state.wants.push(node);
            }
        }
        let loss = if random.per_mille(500) { random.below(400) as u32 } else { 0 };
        Self {
            random,
            plant,
            now: 0,
            nodes,
            cut: BTreeSet::new(),
            loss,
            due: BTreeMap::new(),
            ends: BTreeMap::new(),
            next_link: 0,
            next_due: 0,
            open: BTreeMap::new(),
            dials: BTreeMap::new(),
            dial_ends: BTreeMap::new(),
            next_dial: 0,
            over: HashSet::new(),
            trouble: None,
        }
    }

    pub fn fail(&mut self, what: String) {
        let now = self.now / MS;
        self.trouble.get_or_insert_with(|| format!("at {now} ms: {what}"));
    }

    fn identity(&self, node: usize) -> Identity {
        let mut key = [0; 32];
        key[0] = node as u8;
        Identity { proof: Proof::Key(key), life: life(node, self.nodes[node].incarnation) }
    }

    fn is(&self, (node, incarnation): (usize, u64)) -> bool {
        self.nodes[node].machine.is_some() && self.nodes[node].incarnation == incarnation
    }

    fn reaches(&self, one: usize, other: usize) -> bool {
        !self.cut.contains(&(one.min(other), one.max(other)))
    }

    fn at(&mut self, delay: u64, due: Due) {
        self.next_due += 1;
        self.due.insert((self.now + delay, self.next_due), due);
    }

    fn trip(&mut self) -> u64 {
        match self.random.below(3) {
            0 => self.random.below(MS),
            1 => self.random.below(40 * MS),
            _ => self.random.below(300 * MS),
        }
    }

    pub fn start(&mut self, node: usize) {
        self.stop(node);
        self.nodes[node].incarnation += 1;
        let own = match self.plant {
            Plant::OwnDialsPreferred => [0; 16],
            _ => life(node, self.nodes[node].incarnation),
        };
        let seed = self.random.next();
        let addresses = vec![1; self.nodes[node].wants.len()];
        let machine = Neighbours::new(own, &addresses, Pauses::default(), seed, Time(self.now));
        self.nodes[node].machine = Some(machine);
        self.event(node, Event::Elapsed);
    }

    fn stop(&mut self, node: usize) {
        let polite = self.random.per_mille(500);
        self.nodes[node].machine = None;
        self.nodes[node].assigned.clear();
        self.nodes[node].reports.clear();
        let own: Vec<LinkId> =
            self.ends.iter().filter(|(_, end)| end.node == node).map(|(link, _)| *link).collect();
        for link in own {
            self.end(link, polite);
        }
    }

    /// One side has done with a link; the other hears of it, or does not.
    fn end(&mut self, link: LinkId, says_so: bool) {
        self.over.insert(link);
        if let Some(end) = self.ends.remove(&link)
            && says_so
            && let Some(other) = self.ends.get(&end.other)
            && self.reaches(end.node, other.node)
            && !self.random.per_mille(self.loss)
        {
            let delay = self.trip();
            self.at(delay, Due::Bye(end.other));
        }
    }

    fn event(&mut self, node: usize, event: Event) {
        let now = Time(self.now);
        if matches!((self.plant, &event), (Plant::LossUnheard, Event::Lost(_))) {
            return;
        }
        let Some(machine) = &mut self.nodes[node].machine else { return };
        machine.handle(now, event);
        while let Some(action) = self.nodes[node].machine.as_mut().and_then(Neighbours::poll) {
            self.act(node, action);
        }
        self.check(node);
    }

    fn check(&mut self, node: usize) {
        let Some(machine) = &self.nodes[node].machine else { return };
        for wanted in 0..self.nodes[node].wants.len() as u32 {
            let said = machine.link_of(NeighbourId(wanted));
            if said != self.nodes[node].assigned.get(&wanted).copied() {
                return self
                    .fail(format!("node {node}: neighbour {wanted} is at {said:?}, and that was not said"));
            }
        }
    }

    fn act(&mut self, node: usize, action: Action) {
        let from = (node, self.nodes[node].incarnation);
        match action {
            Action::Dial { dial, insist } => self.dial(from, dial, insist, false, false),
            Action::Probe(dial) => self.dial(from, dial, false, true, false),
            Action::AddPath(dial, _) => self.dial(from, dial, false, false, true),
            Action::Answer(link, accept) => {
                let Some((number, theirs)) = self.open.remove(&link) else { return };
                let (identity, delay, lost) =
                    (self.identity(node), self.trip(), self.random.per_mille(self.loss));
                if !accept {
                    self.ends.remove(&link);
                    self.over.insert(link);
                }
                let Some((dialer, _, _)) = self.dials.get(&number) else {
                    // It has given up, and said so.
                    return self.end(theirs, true);
                };
                if lost || !self.reaches(node, *dialer) {
                    return;
                }
                let Some((dialer, incarnation, dial)) = self.dials.remove(&number) else { return };
                let outcome = match accept {
                    true => DialOutcome::Joined(theirs, identity),
                    false => DialOutcome::Refused(identity),
                };
                if !accept {
                    self.ends.remove(&theirs);
                    self.over.insert(theirs);
                }
                let event = Event::Dialed(dial, outcome);
                self.at(delay, Due::Event { to: (dialer, incarnation), event });
            }
            Action::Close(link, _) => self.end(link, true),
            Action::Assign(neighbour, Some(link)) => {
                if self.over.contains(&link) {
                    self.fail(format!("node {node}: {neighbour:?} is given {link:?}, which is over"));
                }
                self.nodes[node].assigned.insert(neighbour.0, link);
            }
            Action::Assign(neighbour, None) => {
                self.nodes[node].assigned.remove(&neighbour.0);
            }
            Action::Report(neighbour, change) => {
                let before = self.nodes[node].reports.iter().rev().find(|(known, _)| *known == neighbour.0);
                if before.is_some_and(|(_, before)| *before == change) {
                    self.fail(format!("node {node}: {neighbour:?}: {change:?} is said twice"));
                }
                self.nodes[node].reports.push((neighbour.0, change));
            }
        }
    }

    fn dial(&mut self, from: (usize, u64), dial: Dial, insist: bool, probe: bool, path: bool) {
        let to = self.nodes[from.0].wants[dial.neighbour().0 as usize];
        let delay = self.trip();
        self.at(delay, Due::Asked { from, to, dial, insist, probe, path });
    }

    fn new_end(&mut self, node: usize) -> LinkId {
        self.next_link += 1;
        let link = LinkId(self.next_link);
        let incarnation = self.nodes[node].incarnation;
        let end = End { node, incarnation, other: LinkId(0), heard_at: self.now, suspect: false };
        self.ends.insert(link, end);
        link
    }

    fn deliver(&mut self, due: Due) {
        match due {
            Due::Event { to, event } => {
                if self.is(to) {
                    // A link that was lost while its dial's answer was on the way.
                    if let Event::Dialed(_, DialOutcome::Joined(link, _)) = &event
                        && !self.ends.contains_key(link)
                    {
                        let Event::Dialed(dial, _) = event else { return };
                        return self.event(to.0, Event::Dialed(dial, DialOutcome::Failed));
                    }
                    self.event(to.0, event);
                }
            }
            Due::Bye(link) => {
                if let Some(end) = self.ends.remove(&link) {
                    self.over.insert(link);
                    if self.is((end.node, end.incarnation)) {
                        self.event(end.node, Event::Lost(link));
                    }
                }
            }
            Due::TimedOut { number } => {
                if let Some((node, incarnation, dial)) = self.dials.remove(&number) {
                    if let Some(own) = self.dial_ends.remove(&number) {
                        self.end(own, true);
                    }
                    if self.is((node, incarnation)) {
                        self.event(node, Event::Dialed(dial, DialOutcome::Failed));
                    }
                }
            }
            Due::Asked { from, to, dial, insist, probe, path } => {
                if !self.is(from) {
                    return;
                }
                if self.nodes[to].machine.is_none()
                    || !self.reaches(from.0, to)
                    || self.random.per_mille(self.loss)
                {
                    let event = match (probe, path) {
                        (true, _) => Event::Probed(dial, None),
                        (_, true) => Event::PathAdded(dial, false),
                        _ => Event::Dialed(dial, DialOutcome::Failed),
                    };
                    return self.at(DIAL_TIMEOUT, Due::Event { to: from, event });
                }
                if probe {
                    let (found, delay) = (Some(self.identity(to)), self.trip());
                    return self.at(delay, Due::Event { to: from, event: Event::Probed(dial, found) });
                }
                let (mine, theirs) = (self.new_end(from.0), self.new_end(to));
                for (link, other) in [(mine, theirs), (theirs, mine)] {
                    if let Some(end) = self.ends.get_mut(&link) {
                        end.other = other;
                    }
                }
                self.next_dial += 1;
                let number = self.next_dial;
                self.dials.insert(number, (from.0, from.1, dial));
                self.open.insert(theirs, (number, mine));
                self.dial_ends.insert(number, mine);
                self.at(DIAL_TIMEOUT, Due::TimedOut { number });
                let identity = self.identity(from.0);
                self.event(to, Event::Came { link: theirs, identity, insists: insist });
            }
        }
    }

    /// What keep-alive notices.
    fn listen(&mut self) {
        let all: Vec<LinkId> = self.ends.keys().copied().collect();
        for link in all {
            let Some(end) = self.ends.get(&link) else { continue };
            let (node, incarnation, other) = (end.node, end.incarnation, end.other);
            let hears = self.ends.get(&other).is_some_and(|other| self.reaches(node, other.node));
            let now = self.now;
            let Some(end) = self.ends.get_mut(&link) else { continue };
            let silence = now - end.heard_at;
            if hears {
                end.heard_at = now;
                if std::mem::take(&mut end.suspect) && self.is((node, incarnation)) {
                    self.event(node, Event::Suspected(link, false));
                }
            } else if silence > OUTAGE {
                self.ends.remove(&link);
                self.over.insert(link);
                if self.is((node, incarnation)) {
                    self.event(node, Event::Lost(link));
                }
            } else if silence > SUSPECT
                && !std::mem::replace(&mut end.suspect, true)
                && self.is((node, incarnation))
            {
                self.event(node, Event::Suspected(link, true));
            }
        }
    }

    fn step(&mut self) {
        let until = self.now + STEP;
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= until) {
            let ((at, _), due) = entry.remove_entry();
            self.now = self.now.max(at);
            self.deliver(due);
        }
        self.now = until;
        for node in 0..self.nodes.len() {
            let deadline = self.nodes[node].machine.as_ref().and_then(Neighbours::next_deadline);
            if deadline.is_some_and(|deadline| deadline.0 <= self.now) {
                self.event(node, Event::Elapsed);
                let next = self.nodes[node].machine.as_ref().and_then(Neighbours::next_deadline);
                if next.is_some_and(|next| next.0 <= self.now) {
                    self.fail(format!("node {node} has a deadline that stays due"));
                }
            }
        }
        self.listen();
    }

    pub fn run(&mut self, duration: u64) {
        let until = self.now + duration;
        while self.now < until && self.trouble.is_none() {
            self.step();
        }
    }

    pub fn disturb(&mut self) {
        let count = self.nodes.len() as u64;
        let node = self.random.below(count) as usize;
        match self.random.below(6) {
            0 | 1 => self.start(node),
            2 => self.stop(node),
            _ => {
                let other = self.random.below(count) as usize;
                let pair = (node.min(other), node.max(other));
                if node != other && !self.cut.remove(&pair) {
                    self.cut.insert(pair);
                }
            }
        }
    }

    /// All that is wanted is there, and once.
    pub fn settled(&mut self) {
        let mut pairs: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for (link, end) in &self.ends {
            let Some(other) = self.ends.get(&end.other) else { continue };
            if link < &end.other {
                *pairs.entry((end.node.min(other.node), end.node.max(other.node))).or_default() += 1;
            }
        }
        if let Some((pair, count)) = pairs.iter().find(|(_, count)| **count > 1) {
            return self.fail(format!("the nodes {pair:?} keep {count} links"));
        }
        for node in 0..self.nodes.len() {
            for (wanted, other) in self.nodes[node].wants.clone().into_iter().enumerate() {
                let link = self.nodes[node].assigned.get(&(wanted as u32)).copied();
                if other == node {
                    if link.is_some() {
                        return self.fail(format!("node {node} is joined to itself"));
                    }
                    continue;
                }
                let leads_to = link.and_then(|link| self.ends.get(&self.ends.get(&link)?.other));
                if leads_to.is_none_or(|end| !self.is((other, end.incarnation)) || end.node != other) {
                    return self.fail(format!("node {node} does not reach {other}: {link:?}"));
                }
            }
        }
    }
}
