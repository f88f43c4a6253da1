//! Ports of other machines come and go, with their nodes and their keys; some greet by the hundred and attach nothing.

use std::collections::BTreeMap;

use tombolo_core::nic::pipe::RING_BYTES_MIN;
use tombolo_core::nic::session::{
    ATTACH_TIMEOUT_NS, CHECK_INTERVAL_NS, Greeting, SESSIONS_MAX, SESSIONS_MAX_OF_KEY, SESSIONS_MAX_OF_NODE,
    Sessions, Standing, Unwelcome, VERSION,
};
use tombolo_random::{Random, Seeds};

/// A mistake in what carries it out, which must be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    Nothing,
    /// What has gone is not said to have.
    EndsForgotten,
    /// What has attached is not said to have.
    AttachesForgotten,
    /// What is overdue is not ended.
    OverdueKept,
}

/// A port as it really is.
struct Port {
    node: u32,
    since_ns: u64,
    has_attached: bool,
    /// Since when it has no right to be.
    unwelcome_since_ns: Option<u64>,
}

struct World {
    random: Random,
    now_ns: u64,
    sessions: Sessions,
    nodes: Vec<Standing>,
    /// The key of each.
    keys: Vec<Option<[u8; 32]>>,
    ports: BTreeMap<u64, Port>,
    next: u64,
    planted: Planted,
}

const GOOD: Standing = Standing { is_there: true, is_permitted: true };

impl World {
    fn new(seed: u64, planted: Planted) -> Self {
        let mut random = Random::new(seed);
        let count = 1 + random.below(30);
        let nodes = (0..count).map(|_| GOOD).collect();
        let keys =
            (0..count).map(|_| random.below(4) as u8).map(|key| (key > 0).then_some([key; 32])).collect();
        let sessions = Sessions::new(RING_BYTES_MIN);
        Self { random, now_ns: 0, sessions, nodes, keys, ports: BTreeMap::new(), next: 0, planted }
    }

    fn of_node(&self, node: u32) -> usize {
        self.ports.values().filter(|port| port.node == node).count()
    }

    fn of_key(&self, key: Option<[u8; 32]>) -> usize {
        let is_of_it = |port: &&Port| key.is_some() && self.keys[port.node as usize] == key;
        self.ports.values().filter(is_of_it).count()
    }

    fn greet(&mut self) {
        let node = self.random.below(self.nodes.len() as u64) as u32;
        let proved = self.keys[node as usize];
        let mut greeting =
            Greeting { node, proved, version: VERSION, ring_bytes: RING_BYTES_MIN, has_place: true };
        match self.random.below(20) {
            0 => greeting.version += 1,
            1 => greeting.ring_bytes *= 2,
            2 => greeting.has_place = false,
            _ => {}
        }
        let (key, standing) = (self.next, self.nodes[node as usize]);
        self.next += 1;
        let found = self.sessions.greet(self.now_ns, key, greeting, standing);
        let (all, own, of_key) = (self.ports.len(), self.of_node(node), self.of_key(proved));
        // Who is right and has room is let in, and nobody else.
        match found {
            Ok(()) => {
                assert!(standing == GOOD && greeting.version == VERSION && greeting.has_place);
                assert!(of_key < SESSIONS_MAX_OF_KEY, "{of_key} of a key");
                assert!(
                    greeting.ring_bytes == RING_BYTES_MIN && all < SESSIONS_MAX && own < SESSIONS_MAX_OF_NODE
                );
                let port =
                    Port { node, since_ns: self.now_ns, has_attached: false, unwelcome_since_ns: None };
                self.ports.insert(key, port);
            }
            Err(Unwelcome::Full) => assert!(all >= SESSIONS_MAX, "{all} are not all"),
            Err(Unwelcome::NodeFull) => assert!(own >= SESSIONS_MAX_OF_NODE, "{own} are not all of a node"),
            Err(Unwelcome::KeyFull) => {
                assert!(of_key >= SESSIONS_MAX_OF_KEY, "{of_key} are not all of a key")
            }
            Err(Unwelcome::Gone) => assert!(!standing.is_there),
            Err(Unwelcome::NotPermitted) => assert!(!standing.is_permitted),
            Err(Unwelcome::Version(version)) => assert!(version != VERSION),
            Err(Unwelcome::Ring(_)) => {
                assert!(!greeting.has_place || greeting.ring_bytes != RING_BYTES_MIN);
            }
        }
    }

    fn some_port(&mut self) -> Option<u64> {
        let count = self.ports.len() as u64;
        let index = self.random.below(count.max(1)) as usize;
        self.ports.keys().nth(index).copied()
    }

    fn step(&mut self) {
        self.now_ns += self.random.below(CHECK_INTERVAL_NS / 2);
        match self.random.below(10) {
            0..4 => (0..1 + self.random.below(12)).for_each(|_| self.greet()),
            4..7 => {
                if let Some(key) = self.some_port() {
                    if self.planted != Planted::AttachesForgotten {
                        self.sessions.attached(key);
                    }
                    self.ports.entry(key).and_modify(|port| port.has_attached = true);
                }
            }
            7 => {
                if let Some(key) = self.some_port() {
                    self.ports.remove(&key);
                    if self.planted != Planted::EndsForgotten {
                        assert!(self.sessions.ended(key));
                    }
                }
            }
            _ => {
                let node = self.random.below(self.nodes.len() as u64) as usize;
                let standing = &mut self.nodes[node];
                match self.random.below(3) {
                    0 => standing.is_there = !standing.is_there,
                    1 => standing.is_permitted = !standing.is_permitted,
                    _ => *standing = GOOD,
                }
            }
        }
        for port in self.ports.values_mut() {
            let is_late = !port.has_attached && self.now_ns - port.since_ns > ATTACH_TIMEOUT_NS;
            let is_welcome = self.nodes[port.node as usize] == GOOD && !is_late;
            match port.unwelcome_since_ns {
                _ if is_welcome => port.unwelcome_since_ns = None,
                None => port.unwelcome_since_ns = Some(self.now_ns),
                Some(_) => {}
            }
        }
        if self.sessions.is_due(self.now_ns) {
            let overdue = self.sessions.overdue(self.now_ns, |key| {
                self.ports.get(&key).map_or(GOOD, |port| self.nodes[port.node as usize])
            });
            for key in overdue {
                let port = self.ports.get(&key).expect("it has ended, and that was said");
                assert!(port.unwelcome_since_ns.is_some(), "a good port is ended");
                if self.planted != Planted::OverdueKept {
                    self.ports.remove(&key);
                    assert!(self.sessions.ended(key) && !self.sessions.ended(key));
                }
            }
        }
        for port in self.ports.values() {
            let since = port.unwelcome_since_ns.map_or(0, |since| self.now_ns - since);
            assert!(since <= 2 * CHECK_INTERVAL_NS, "it stays for {since} ns");
        }
    }

    fn all(mut self) {
        for _ in 0..400 {
            self.step();
        }
        // All go, and all is free: each node has its part again.
        for (key, _) in std::mem::take(&mut self.ports) {
            if self.planted != Planted::EndsForgotten {
                self.sessions.ended(key);
            }
        }
        self.nodes.iter_mut().for_each(|standing| *standing = GOOD);
        for node in 0..self.nodes.len().min(SESSIONS_MAX / SESSIONS_MAX_OF_NODE) as u32 {
            for _ in 0..SESSIONS_MAX_OF_NODE {
                // A node without a key is bounded by its own limit only.
                let (proved, ring_bytes) = (None, RING_BYTES_MIN);
                let greeting = Greeting { node, proved, version: VERSION, ring_bytes, has_place: true };
                self.next += 1;
                assert_eq!(self.sessions.greet(self.now_ns, self.next, greeting, GOOD), Ok(()));
                assert_eq!(self.sessions.node(self.next), Some(node));
            }
        }
    }
}

#[test]
fn those_that_are_welcome_are_let_in_and_stay_and_others_go() {
    Seeds::from_environment(300).run("cargo test -p tombolo-core --test nic", |seed| {
        World::new(seed, Planted::Nothing).all();
    });
}

#[test]
fn planted_mistakes_about_sessions_are_found() {
    for planted in [Planted::EndsForgotten, Planted::AttachesForgotten, Planted::OverdueKept] {
        let found = (1..=30)
            .filter(|&seed| std::panic::catch_unwind(|| World::new(seed, planted).all()).is_err())
            .count();
        assert!(found > 0, "{planted:?}");
    }
}
