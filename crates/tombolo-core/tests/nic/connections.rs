//! Processes of the owner's machine come and go; some users connect by the thousand and attach nothing.

use std::collections::BTreeMap;

use tombolo_core::nic::connection::{
    ATTACH_TIMEOUT_NS, CONNECTIONS_MAX, CONNECTIONS_MAX_OF_OTHERS, CONNECTIONS_MAX_OF_USER, Caller,
    Connections, Rank, Refused,
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

/// A connection as it really is.
struct Real {
    user: u32,
    rank: Rank,
    since_ns: u64,
    has_attached: bool,
}

struct World {
    random: Random,
    now_ns: u64,
    connections: Connections,
    real: BTreeMap<u64, Real>,
    next: u64,
    planted: Planted,
}

impl World {
    fn new(seed: u64, planted: Planted) -> Self {
        let random = Random::new(seed);
        Self {
            random,
            now_ns: 0,
            connections: Connections::default(),
            real: BTreeMap::new(),
            next: 0,
            planted,
        }
    }

    fn others(&self) -> impl Iterator<Item = &Real> {
        self.real.values().filter(|real| real.rank != Rank::Owner)
    }

    /// So many of one user, at one moment.
    fn enter(&mut self, count: usize, user: u32, rank: Rank, is_overdue: bool) {
        let (mut all, mut others) = (self.real.len(), self.others().count());
        let mut own = self.others().filter(|real| real.user == user).count();
        let is_other = usize::from(rank != Rank::Owner);
        for _ in 0..count {
            self.next += 1;
            match self.connections.enter(self.now_ns, self.next, Caller { user, rank, is_overdue }) {
                Ok(()) => {
                    assert!(rank != Rank::Unlisted && !is_overdue && all < CONNECTIONS_MAX);
                    let has_room = others < CONNECTIONS_MAX_OF_OTHERS && own < CONNECTIONS_MAX_OF_USER;
                    assert!(rank == Rank::Owner || has_room);
                    let real = Real { user, rank, since_ns: self.now_ns, has_attached: false };
                    self.real.insert(self.next, real);
                    (all, others, own) = (all + 1, others + is_other, own + is_other);
                }
                Err(Refused::Unlisted(_)) => assert_eq!(rank, Rank::Unlisted),
                Err(Refused::Overdue(_)) => assert!(is_overdue),
                Err(Refused::Full) => assert!(all >= CONNECTIONS_MAX, "{all} are not all"),
                Err(Refused::OthersFull) => {
                    assert!(rank != Rank::Owner && others >= CONNECTIONS_MAX_OF_OTHERS);
                }
                Err(Refused::UserFull) => assert!(rank != Rank::Owner && own >= CONNECTIONS_MAX_OF_USER),
            }
        }
    }

    fn some(&mut self) -> Option<u64> {
        let index = self.random.below(self.real.len().max(1) as u64) as usize;
        self.real.keys().nth(index).copied()
    }

    fn step(&mut self) {
        self.now_ns += self.random.below(ATTACH_TIMEOUT_NS / 10);
        match self.random.below(10) {
            0..5 => {
                let user = self.random.below(20) as u32;
                let rank = match user {
                    0..2 => Rank::Owner,
                    2..15 => Rank::Listed,
                    _ => Rank::Unlisted,
                };
                let is_overdue = self.random.below(20) == 0;
                // Some come by the hundred, at one moment.
                let count = if self.random.below(4) == 0 { 1 + self.random.below(400) } else { 1 };
                self.enter(count as usize, user, rank, is_overdue);
            }
            5..8 => {
                if let Some(number) = self.some() {
                    if self.planted != Planted::AttachesForgotten {
                        self.connections.attached(number);
                    }
                    self.real.entry(number).and_modify(|real| real.has_attached = true);
                }
            }
            _ => {
                if let Some(number) = self.some() {
                    self.real.remove(&number);
                    if self.planted != Planted::EndsForgotten {
                        self.connections.left(number);
                    }
                }
            }
        }
        for number in self.connections.overdue(self.now_ns) {
            let real = self.real.get(&number).expect("it has ended, and that was said");
            assert!(real.rank == Rank::Listed && !real.has_attached, "it may stay");
            if self.planted != Planted::OverdueKept {
                self.real.remove(&number);
                self.connections.left(number);
            }
        }
        for real in self.others().filter(|real| !real.has_attached) {
            assert!(self.now_ns - real.since_ns <= ATTACH_TIMEOUT_NS, "it stays, and has attached nothing");
        }
    }

    fn all(mut self) {
        for _ in 0..300 {
            self.step();
        }
        // All go, and all is free again.
        for (number, _) in std::mem::take(&mut self.real) {
            if self.planted != Planted::EndsForgotten {
                self.connections.left(number);
            }
        }
        for user in 2..2 + (CONNECTIONS_MAX_OF_OTHERS / CONNECTIONS_MAX_OF_USER) as u32 {
            self.enter(CONNECTIONS_MAX_OF_USER, user, Rank::Listed, false);
        }
        self.enter(CONNECTIONS_MAX - CONNECTIONS_MAX_OF_OTHERS, 0, Rank::Owner, false);
        assert_eq!(self.real.len(), CONNECTIONS_MAX);
    }
}

#[test]
fn others_take_their_part_of_the_connections_and_do_not_stay_without_a_port() {
    Seeds::from_environment(100).run("cargo test -p tombolo-core --test nic", |seed| {
        World::new(seed, Planted::Nothing).all();
    });
}

#[test]
fn planted_mistakes_about_connections_are_found() {
    for planted in [Planted::EndsForgotten, Planted::AttachesForgotten, Planted::OverdueKept] {
        let found = (1..=30)
            .filter(|&seed| std::panic::catch_unwind(|| World::new(seed, planted).all()).is_err())
            .count();
        assert!(found > 0, "{planted:?}");
    }
}
