//! Which lenders are dialed and asked, over simulated nodes in virtual time: nodes die, are started again, are silent,
//! are about to end; users tell them to go and add them again; answers come late. In the end every node that is wanted
//! is a lender in its present life, and none was dialed that was not wanted.
//!
//! `TOMBOLO_SEED=7` repeats one seed, `TOMBOLO_SEEDS=5000` runs many, `TOMBOLO_SECONDS=1800` runs new ones for so long.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use tombolo_core::store::{LenderId, MemberId, Roster, RosterAction, Who};
use tombolo_random::{Random, Seeds};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// A lender is silent for so long before that is noticed, and before it is lost.
const SUSPECT_NS: u64 = 1_500 * MS;
const OUTAGE_NS: u64 = 6 * S;
/// Between two questions, and between two dials.
const PAUSE_NS: u64 = S;

/// A mistake in what carries actions out, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// A dial is not answered.
    ForgottenDial,
    /// A loss is not told.
    ForgottenLoss,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Dialed(MemberId),
    Who(LenderId),
    Ending(LenderId),
    Look(LenderId),
    Lost(LenderId),
    Poll,
    Step,
}

#[derive(Debug)]
struct Node {
    member: Option<MemberId>,
    life: u64,
    is_up: bool,
    is_ending: bool,
    silent_until_ns: u64,
    /// Whether the user wants it.
    is_wanted: bool,
}

/// A life of a node that was reached.
#[derive(Debug)]
struct Lender {
    node: usize,
    life: u64,
    is_lost: bool,
    is_draining: bool,
    /// Since when it is to be drained, as nobody wants its node.
    to_drain_since_ns: Option<u64>,
    /// Since when nothing is heard of it.
    silent_since_ns: Option<u64>,
    /// Whether the roster was told that it is silent, and since when it has thought so or not.
    is_silent: bool,
    silent_or_heard_since_ns: u64,
    /// When it answered each question last.
    answered_ns: [u64; 2],
}

struct World {
    random: Random,
    roster: Roster,
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending: BTreeMap<u64, Event>,
    sequence: u64,
    nodes: Vec<Node>,
    lenders: Vec<Lender>,
    /// Dials, and questions to lenders, that are not answered.
    dialing: BTreeSet<MemberId>,
    asked: BTreeSet<(u8, LenderId)>,
    /// When dials ended.
    dialed_ns: BTreeMap<MemberId, u64>,
    /// Actions that must follow from an answer at once.
    expected: Vec<RosterAction>,
    actions: u64,
    planted: Planted,
}

impl World {
    fn new(seed: u64, planted: Planted) -> Self {
        let mut random = Random::new(seed);
        let nodes = (0..1 + random.below(4)).map(|_| Node {
            member: None,
            life: 1,
            is_up: true,
            is_ending: false,
            silent_until_ns: 0,
            is_wanted: false,
        });
        let nodes = nodes.collect();
        Self {
            random,
            roster: Roster::default(),
            now_ns: 0,
            events: BinaryHeap::new(),
            pending: BTreeMap::new(),
            sequence: 0,
            nodes,
            lenders: Vec::new(),
            dialing: BTreeSet::new(),
            asked: BTreeSet::new(),
            dialed_ns: BTreeMap::new(),
            expected: Vec::new(),
            actions: 0,
            planted,
        }
    }

    fn at(&mut self, after_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((self.now_ns + after_ns, self.sequence)));
        self.pending.insert(self.sequence, event);
    }

    fn node_of(&self, member: MemberId) -> usize {
        self.nodes.iter().position(|node| node.member == Some(member)).expect("a node")
    }

    fn answers(&self, node: usize) -> bool {
        self.nodes[node].is_up && self.nodes[node].silent_until_ns <= self.now_ns
    }

    /// Somebody connects to a node.
    fn connect(&mut self, node: usize) -> Option<LenderId> {
        let life = self.nodes[node].life;
        let is_known = |lender: &Lender| lender.node == node && lender.life == life && !lender.is_lost;
        if !self.answers(node) || self.lenders.iter().any(is_known) {
            return None;
        }
        let id = LenderId(self.lenders.len() as u32);
        let lender = Lender {
            node,
            life,
            is_lost: false,
            is_draining: false,
            to_drain_since_ns: None,
            silent_since_ns: None,
            is_silent: false,
            silent_or_heard_since_ns: self.now_ns,
            answered_ns: [0; 2],
        };
        self.lenders.push(lender);
        self.at(100 * MS, Event::Look(id));
        if self.now_ns < 60 * S && self.random.one_in(10) {
            // It answers, and ends the link.
            let soon = 1 + self.random.below(50 * MS);
            self.at(soon, Event::Lost(id));
        }
        Some(id)
    }

    /// The user wants a node.
    fn add(&mut self, node: usize) {
        let member = self.nodes[node].member;
        if member.is_some_and(|member| self.roster.is_present(member)) {
            return;
        }
        let Some(lender) = self.connect(node) else { return };
        self.nodes[node].is_wanted = true;
        match member {
            Some(member) => self.roster.came(self.now_ns, member, lender),
            None => self.nodes[node].member = Some(self.roster.add(self.now_ns, lender, true)),
        }
    }

    fn lose(&mut self, id: LenderId) {
        let lender = &mut self.lenders[id.0 as usize];
        if !std::mem::replace(&mut lender.is_lost, true) {
            let is_forgotten = self.planted == Planted::ForgottenLoss && self.random.one_in(2);
            if !is_forgotten {
                self.roster.lost(id);
            }
        }
    }

    fn carry_out(&mut self, action: RosterAction) {
        self.actions += 1;
        let delay =
            if self.random.one_in(10) { self.random.below(4 * S) } else { self.random.below(10 * MS) };
        match action {
            RosterAction::Dial(member) => {
                let node = self.node_of(member);
                assert!(self.nodes[node].is_wanted, "one is dialed that nobody wants");
                assert!(self.dialing.insert(member), "one is dialed twice at once");
                let ended_ns = self.dialed_ns.get(&member);
                assert!(ended_ns.is_none_or(|ended_ns| self.now_ns >= ended_ns + PAUSE_NS), "no pause");
                let is_forgotten = self.planted == Planted::ForgottenDial && self.random.one_in(4);
                if !is_forgotten {
                    self.at(delay, Event::Dialed(member));
                }
            }
            RosterAction::AskWho(_, id) => {
                let lender = &self.lenders[id.0 as usize];
                assert!(!lender.is_lost && lender.silent_since_ns.is_some(), "{lender:?} is not silent");
                assert!(self.asked.insert((0, id)), "two questions at once");
                self.at(delay, Event::Who(id));
            }
            RosterAction::AskWhetherEnding(member, id) => {
                assert!(self.nodes[self.node_of(member)].is_wanted);
                assert!(!self.lenders[id.0 as usize].is_lost);
                assert!(self.asked.insert((1, id)), "two questions at once");
                self.at(delay, Event::Ending(id));
            }
            RosterAction::Close(id) => {
                let lender = &self.lenders[id.0 as usize];
                assert!(lender.life < self.nodes[lender.node].life, "the link to a living one is ended");
                self.at(delay, Event::Lost(id));
            }
            RosterAction::Drain(id) => {
                assert!(!self.nodes[self.lenders[id.0 as usize].node].is_wanted);
                assert!(!self.lenders[id.0 as usize].is_draining, "it is drained twice");
                let has_begun = self.random.one_in(2);
                self.lenders[id.0 as usize].is_draining = has_begun;
                self.lenders[id.0 as usize].to_drain_since_ns = (!has_begun).then_some(self.now_ns);
                self.roster.drains(self.now_ns, id, has_begun);
            }
            RosterAction::Leave(id) => {
                if self.random.one_in(2) {
                    self.lenders[id.0 as usize].is_draining = true;
                    self.roster.leaves(id);
                }
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Dialed(member) => {
                self.dialing.remove(&member);
                let node = self.node_of(member);
                let reached = self.connect(node);
                self.dialed_ns.insert(member, self.now_ns);
                if let Some(id) = reached.filter(|_| !self.nodes[node].is_wanted) {
                    self.lenders[id.0 as usize].to_drain_since_ns = Some(self.now_ns);
                }
                self.roster.dialed(self.now_ns, member, reached);
            }
            Event::Who(id) => {
                self.asked.remove(&(0, id));
                let (node, life) = (self.lenders[id.0 as usize].node, self.lenders[id.0 as usize].life);
                let who = match self.answers(node) {
                    false => Who::Unknown,
                    true if self.nodes[node].life == life => Who::Same,
                    true => Who::NextLife,
                };
                self.lenders[id.0 as usize].answered_ns[0] = self.now_ns;
                if who == Who::NextLife && self.is_current(id) {
                    self.expected.push(RosterAction::Close(id));
                }
                self.roster.answered(self.now_ns, id, who);
            }
            Event::Ending(id) => {
                self.asked.remove(&(1, id));
                let (node, life) = (self.lenders[id.0 as usize].node, self.lenders[id.0 as usize].life);
                let is_ending =
                    self.answers(node) && self.nodes[node].life == life && self.nodes[node].is_ending;
                self.lenders[id.0 as usize].answered_ns[1] = self.now_ns;
                if is_ending && self.is_current(id) {
                    self.expected.push(RosterAction::Leave(id));
                }
                self.roster.said_whether_ending(self.now_ns, id, is_ending);
            }
            // What a driver sees of a link.
            Event::Look(id) => {
                let lender = &self.lenders[id.0 as usize];
                if lender.is_lost {
                    return;
                }
                let is_heard = self.answers(lender.node) && self.nodes[lender.node].life == lender.life;
                let since_ns = if is_heard { None } else { lender.silent_since_ns.or(Some(self.now_ns)) };
                let for_ns = since_ns.map_or(0, |since_ns| self.now_ns - since_ns);
                self.lenders[id.0 as usize].silent_since_ns = since_ns;
                self.check_questions(id);
                let is_silent = for_ns >= SUSPECT_NS;
                let lender = &mut self.lenders[id.0 as usize];
                if lender.is_silent != is_silent {
                    (lender.is_silent, lender.silent_or_heard_since_ns) = (is_silent, self.now_ns);
                }
                self.roster.set_silent(id, is_silent);
                if for_ns >= OUTAGE_NS {
                    self.lose(id);
                } else {
                    self.at(100 * MS, Event::Look(id));
                }
            }
            Event::Lost(id) => self.lose(id),
            Event::Poll => {}
            Event::Step => {
                self.step();
                if self.now_ns < 60 * S {
                    let pause = self.random.below(2 * S);
                    self.at(pause, Event::Step);
                }
            }
        }
        while let Some(action) = self.roster.poll(self.now_ns) {
            self.expected.retain(|expected| *expected != action);
            self.carry_out(action);
        }
        assert!(self.expected.is_empty(), "nothing follows from an answer: {:?}", self.expected);
        if let Some(at_ns) = self.roster.next_deadline() {
            assert!(at_ns > self.now_ns, "a deadline that is over is no reason to come back");
            self.at(at_ns - self.now_ns, Event::Poll);
        }
    }

    /// Whether it is what its node was reached by last, and not lost.
    fn is_current(&self, id: LenderId) -> bool {
        let lender = &self.lenders[id.0 as usize];
        let later = self.lenders.iter().skip(id.0 as usize + 1);
        !lender.is_lost && !later.clone().any(|later| later.node == lender.node)
    }

    /// A silent lender is looked for, and one that is heard and wanted is asked whether it is about to end.
    fn check_questions(&self, id: LenderId) {
        let lender = &self.lenders[id.0 as usize];
        let question = usize::from(!lender.is_silent);
        let is_asked = lender.is_silent || (self.nodes[lender.node].is_wanted && !lender.is_draining);
        if let Some(since_ns) = lender.to_drain_since_ns
            && self.is_current(id)
            && !lender.is_silent
            && !self.nodes[lender.node].is_wanted
        {
            let since_ns = since_ns.max(lender.silent_or_heard_since_ns);
            assert!(self.now_ns <= since_ns + PAUSE_NS, "it is never drained: {lender:?}");
        }
        if self.is_current(id) && is_asked && !self.asked.contains(&(question as u8, id)) {
            let since_ns = lender.answered_ns[question].max(lender.silent_or_heard_since_ns);
            assert!(self.now_ns <= since_ns + PAUSE_NS, "it is not asked: {lender:?}");
        }
    }

    fn step(&mut self) {
        let index = self.random.index(self.nodes.len());
        let node = &mut self.nodes[index];
        match self.random.below(8) {
            0..3 => self.add(index),
            3 => node.is_up = false,
            4 => (node.life, node.is_up, node.is_ending) = (node.life + 1, true, false),
            5 => node.silent_until_ns = self.now_ns + self.random.below(10 * S),
            6 => node.is_ending = true,
            _ => {
                // Also while it is lost, or being dialed.
                if let (Some(member), true) = (node.member, node.is_wanted) {
                    node.is_wanted = false;
                    self.roster.dismiss(member);
                    for lender in self.lenders.iter_mut().filter(|lender| lender.node == index) {
                        lender.is_draining = true;
                    }
                }
            }
        }
    }

    fn run_until(&mut self, end_ns: u64) {
        while let Some(&Reverse((at_ns, sequence))) = self.events.peek() {
            if at_ns > end_ns {
                break;
            }
            self.events.pop();
            self.now_ns = at_ns;
            if let Some(event) = self.pending.remove(&sequence) {
                self.event(event);
            }
        }
        self.now_ns = end_ns;
    }

    fn run(mut self) -> Self {
        for node in 0..self.nodes.len() {
            self.add(node);
        }
        self.event(Event::Poll);
        self.at(0, Event::Step);
        self.run_until(62 * S);
        for node in &mut self.nodes {
            (node.life, node.is_up, node.is_ending) = (node.life + u64::from(!node.is_up), true, false);
        }
        self.run_until(100 * S);
        let questions = 100 * 2 * self.nodes.len() as u64;
        assert!(self.actions < questions, "{} actions in 100 s", self.actions);
        for (index, node) in self.nodes.iter().enumerate() {
            let alive: Vec<_> =
                self.lenders.iter().filter(|lender| lender.node == index && !lender.is_lost).collect();
            assert!(alive.len() < 2, "{alive:?}");
            assert!(node.is_wanted || alive.iter().all(|lender| lender.is_draining), "{node:?}: {alive:?}");
            if node.is_wanted {
                assert!(node.member.is_some_and(|member| self.roster.is_present(member)), "{node:?}");
                assert!(alive.iter().any(|lender| lender.life == node.life), "{node:?}: {alive:?}");
            }
        }
        self
    }
}

#[test]
fn every_node_that_is_wanted_is_a_lender_in_its_present_life() {
    let (mut actions, mut lives) = (0, 0);
    Seeds::from_environment(400).run("cargo test -p tombolo-core --test roster", |seed| {
        let world = World::new(seed, Planted::Nothing).run();
        actions += world.actions;
        lives += world.lenders.len();
    });
    println!("{actions} actions, {lives} lives of lenders");
}

#[test]
fn planted_mistakes_are_found() {
    for planted in [Planted::ForgottenDial, Planted::ForgottenLoss] {
        let is_found = |seed: &u64| std::panic::catch_unwind(|| World::new(*seed, planted).run()).is_err();
        assert!((1..=60).filter(is_found).count() > 0, "{planted:?}");
    }
}
