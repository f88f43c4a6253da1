//! Nodes that want each other, in virtual time: seeds draw who wants whom, start orders, restarts, flaps, cuts
//! and lost answers. First safety: no neighbour is reached by a link that is over, no number is used twice, and
//! no pair keeps two links. Then liveness: when all is healed, every neighbour that is wanted is joined within a
//! bound, to its present life, and nothing moves any more.
//!
//! `TOMBOLO_SEED=7` repeats one seed, `TOMBOLO_SEEDS=5000` runs many.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tombolo_core::fabric::neighbour::{
    Action, Change, Dial, DialOutcome, Event, Identity, LinkId, NeighbourId, Neighbours, Pauses, Proof,
};
use tombolo_core::rdma::Time;
use tombolo_random::{Random, Seeds};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const STEP: u64 = 20 * MS;
const DIAL_TIMEOUT: u64 = 2 * SECOND;
const SUSPECT: u64 = 1_500 * MS;
const OUTAGE: u64 = 10 * SECOND;
/// When all is healed: the longest pause, a dial that was under way, an outage, and the way to insist.
const SETTLED: u64 = OUTAGE + 4 * DIAL_TIMEOUT + 3 * 7 * SECOND;

/// What a test plants.
#[derive(Clone, Copy, PartialEq)]
enum Plant {
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

struct Node {
    machine: Option<Neighbours>,
    incarnation: u64,
    wants: Vec<usize>,
    assigned: BTreeMap<u32, LinkId>,
    reports: Vec<(u32, Change)>,
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

struct World {
    random: Random,
    plant: Plant,
    now: u64,
    nodes: Vec<Node>,
    cut: BTreeSet<(usize, usize)>,
    /// Answers to dials that are lost.
    loss: u32,
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
    trouble: Option<String>,
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
    fn new(seed: u64, plant: Plant) -> Self {
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

    fn fail(&mut self, what: String) {
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

    fn start(&mut self, node: usize) {
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

    fn run(&mut self, duration: u64) {
        let until = self.now + duration;
        while self.now < until && self.trouble.is_none() {
            self.step();
        }
    }

    fn disturb(&mut self) {
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
    fn settled(&mut self) {
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

fn run(seed: u64, plant: Plant) -> Result<(), String> {
    let mut world = World::new(seed, plant);
    // All open to each other at once, and nothing else happens.
    let is_calm = seed.is_multiple_of(4);
    if is_calm {
        world.loss = 0;
        // A node that is named twice may be joined twice at first.
        world.nodes.iter_mut().for_each(|node| node.wants.dedup());
        (0..world.nodes.len()).for_each(|node| world.start(node));
    }
    for _ in 0..if is_calm { 0 } else { world.random.below(30) } {
        world.disturb();
        let pause = match world.random.below(3) {
            0 => world.random.below(200 * MS),
            1 => world.random.below(3 * SECOND),
            _ => world.random.below(15 * SECOND),
        };
        world.run(pause);
    }
    world.cut.clear();
    world.loss = 0;
    for node in 0..world.nodes.len() {
        if world.nodes[node].machine.is_none() {
            world.start(node);
        }
    }
    world.run(SETTLED);
    world.settled();
    let before: Vec<_> = world.nodes.iter().map(|node| node.assigned.clone()).collect();
    world.run(30 * SECOND);
    world.settled();
    let after: Vec<_> = world.nodes.iter().map(|node| node.assigned.clone()).collect();
    if before != after {
        world.fail(format!("links move while nothing happens: {before:?}, {after:?}"));
    }
    if is_calm
        && world.nodes.iter().any(|node| node.reports.iter().any(|(_, change)| *change == Change::Lost))
    {
        world.fail("a neighbour was lost though nothing happened".into());
    }
    world.trouble.map_or(Ok(()), Err)
}

#[test]
fn nodes_that_want_each_other_are_joined_by_one_link() {
    Seeds::from_environment(500).run("cargo test -p tombolo-core --test neighbours", |seed| {
        if let Err(trouble) = run(seed, Plant::Nothing) {
            panic!("seed {seed}: {trouble}");
        }
    });
}

/// The seeds find what they are for.
#[test]
fn planted_faults_are_found() {
    for (plant, expected) in
        [(Plant::OwnDialsPreferred, "was lost though nothing"), (Plant::LossUnheard, "does not reach")]
    {
        let found: Vec<String> = (0..300).filter_map(|seed| run(seed, plant).err()).collect();
        assert!(found.iter().any(|trouble| trouble.contains(expected)), "{expected}: {found:?}");
        eprintln!("{} of 300: {found:?}", found.len());
    }
}

fn key(byte: u8, life: u8) -> Identity {
    Identity { proof: Proof::Key([byte; 32]), life: [life; 16] }
}

fn actions(machine: &mut Neighbours) -> Vec<Action> {
    std::iter::from_fn(|| machine.poll()).collect()
}

#[test]
fn a_neighbour_is_joined_by_its_other_address_and_then_by_both() {
    let mut machine = Neighbours::new([5; 16], &[2], Pauses::default(), 1, Time(0));
    machine.handle(Time(0), Event::Elapsed);
    let Some(Action::Dial { dial, insist: false }) = machine.poll() else { panic!("no dial") };
    assert_eq!(dial.address(), 0);
    machine.handle(Time(0), Event::Dialed(dial, DialOutcome::Failed));
    let later = machine.next_deadline().unwrap();
    machine.handle(later, Event::Elapsed);
    let Some(Action::Dial { dial, .. }) = machine.poll() else { panic!("no second dial") };
    assert_eq!(dial.address(), 1);
    machine.handle(later, Event::Dialed(dial, DialOutcome::Joined(LinkId(9), key(1, 1))));
    let neighbour = NeighbourId(0);
    let mut done = actions(&mut machine);
    let Some(Action::AddPath(path, LinkId(9))) = done.pop() else { panic!("no path: {done:?}") };
    assert_eq!(path.address(), 0);
    assert_eq!(done, [Action::Assign(neighbour, Some(LinkId(9))), Action::Report(neighbour, Change::Joined)]);
    machine.handle(later, Event::PathAdded(path, true));
    // The path is lost, and comes again; the neighbour stays joined.
    machine.handle(later, Event::PathLost(neighbour, 0));
    let later = machine.next_deadline().unwrap();
    machine.handle(later, Event::Elapsed);
    assert!(matches!(actions(&mut machine)[..], [Action::AddPath(..)]));
    assert_eq!(machine.link_of(neighbour), Some(LinkId(9)));
}

#[test]
fn a_neighbour_that_restarted_is_seen_by_its_life_and_one_that_is_silent_is_waited_for() {
    let mut machine = Neighbours::new([5; 16], &[1], Pauses::default(), 1, Time(0));
    machine.handle(Time(0), Event::Elapsed);
    let Some(Action::Dial { dial, .. }) = machine.poll() else { panic!("no dial") };
    machine.handle(Time(0), Event::Dialed(dial, DialOutcome::Joined(LinkId(1), key(1, 1))));
    let _ = actions(&mut machine);
    let now = Time(60 * SECOND);
    machine.handle(now, Event::Suspected(LinkId(1), true));
    for found in [None, Some(key(1, 1)), Some(key(1, 2))] {
        let later = machine.next_deadline().unwrap();
        machine.handle(later, Event::Elapsed);
        let Some(Action::Probe(probe)) = machine.poll() else { panic!("it is not asked") };
        assert_eq!(machine.poll(), None);
        machine.handle(later, Event::Probed(probe, found));
    }
    let done = actions(&mut machine);
    assert!(matches!(done[0], Action::Close(LinkId(1), _)), "{done:?}");
    assert!(matches!(done.last(), Some(Action::Dial { insist: false, .. })), "{done:?}");
}

#[test]
fn a_link_that_is_dead_on_one_side_gives_way_to_one_that_is_insisted_on() {
    // The side that has lost it.
    let mut machine = Neighbours::new([5; 16], &[1], Pauses::default(), 1, Time(0));
    machine.handle(Time(0), Event::Elapsed);
    let Some(Action::Dial { dial, insist: false }) = machine.poll() else { panic!("no dial") };
    machine.handle(Time(0), Event::Dialed(dial, DialOutcome::Refused(key(1, 1))));
    assert_eq!(machine.poll(), None);
    let soon = machine.next_deadline().unwrap();
    assert!(soon < Time(SECOND));
    machine.handle(soon, Event::Elapsed);
    assert!(matches!(machine.poll(), Some(Action::Dial { insist: true, .. })));
    // The side that still has it.
    let mut machine = Neighbours::new([5; 16], &[], Pauses::default(), 1, Time(0));
    machine.handle(Time(0), Event::Came { link: LinkId(1), identity: key(1, 1), insists: false });
    machine.handle(Time(0), Event::Came { link: LinkId(2), identity: key(1, 1), insists: false });
    assert_eq!(actions(&mut machine), [Action::Answer(LinkId(1), true), Action::Answer(LinkId(2), false)]);
    machine.handle(Time(0), Event::Came { link: LinkId(3), identity: key(1, 1), insists: true });
    let done = actions(&mut machine);
    assert_eq!(done[0], Action::Answer(LinkId(3), true));
    assert!(matches!(done[1..], [Action::Close(LinkId(1), _)]), "{done:?}");
}

#[test]
fn what_nothing_proves_counts_for_nobody() {
    let mut machine = Neighbours::new([5; 16], &[1], Pauses::default(), 1, Time(0));
    machine.handle(Time(0), Event::Elapsed);
    let Some(Action::Dial { dial, .. }) = machine.poll() else { panic!("no dial") };
    let unproved = Identity { proof: Proof::Nothing, life: [1; 16] };
    machine.handle(Time(0), Event::Dialed(dial, DialOutcome::Joined(LinkId(1), unproved)));
    let _ = actions(&mut machine);
    machine.handle(Time(0), Event::Came { link: LinkId(2), identity: unproved, insists: true });
    assert_eq!(actions(&mut machine), [Action::Answer(LinkId(2), true)]);
    assert_eq!(machine.link_of(NeighbourId(0)), Some(LinkId(1)));
}
