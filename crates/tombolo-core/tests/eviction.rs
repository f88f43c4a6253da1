//! The evictor's decisions in virtual time, with agents that are late, frozen or find every page pinned: no fault
//! hangs, the limit does not give way too early, and nothing is looked at again and again without a sleep.
//!
//! `TOMBOLO_SEED=7` repeats one seed, `TOMBOLO_SEEDS=5000` runs many.

use std::collections::VecDeque;

use tombolo_core::pager::{Attempt, Bounds, Cause, Eviction, LIVES_MAX, Step, View};
use tombolo_random::{Random, Seeds};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

const BOUNDS: Bounds = Bounds {
    agent_late_ns: 20 * MS,
    agent_frozen_ns: 2_000 * MS,
    late_pause_ns: MS,
    claim_pause_ns: 100 * US,
    change_pause_ns: MS,
    fruitless_ns: 250 * MS,
    sleep_max_ns: 200 * MS,
};

/// Names looked at in one attempt, at most.
const LOOK_MAX: u64 = 1024;
/// Pages of one command, at most.
const BATCH: u64 = 128;
/// Room that is kept free.
const HEADROOM: i64 = 64;
/// Least number of names that are looked at before it is said that none can leave.
const ROUND_LEAST: u64 = 16 * 1024;

/// A program thread's fault that waits.
struct Waiting {
    since_ns: u64,
    /// An attempt that began after it found far memory full.
    saw_full: bool,
    /// An attempt that began after it has ended without a page.
    saw_attempt: bool,
}

/// A command under way.
struct Command {
    number: u32,
    since_ns: u64,
    answer_ns: u64,
    pages: u64,
    /// It is to be looked at again until then: the address space is changing.
    returning_until_ns: Option<u64>,
}

#[derive(Default)]
struct Space {
    pages: u64,
    /// Nothing leaves.
    is_pinned: bool,
    /// Does not answer before.
    frozen_until_ns: u64,
    command: Option<Command>,
}

struct World {
    random: Random,
    eviction: Eviction,
    now_ns: u64,
    limit: i64,
    allowance: i64,
    far_free: u64,
    spaces: Vec<Space>,
    waiting: VecDeque<Waiting>,
    /// When each thread faults next; `None`: it waits.
    threads: Vec<Option<u64>>,
    next_command: u32,
    /// Since when room is short and no page has left.
    fruitless_since_ns: Option<u64>,
    /// The limit gave way, or a fault was given up, since a page left.
    gave_up: Option<Cause>,
    idle_steps: u64,
    given_up: u64,
    rung: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let count = random.range(1, 4);
        let pinned = random.below(4);
        let spaces = (0..count)
            .map(|index| Space {
                pages: 0,
                is_pinned: index < pinned && random.one_in(2),
                ..Space::default()
            })
            .collect();
        let threads = (0..random.range(1, 8)).map(|_| Some(random.below(MS))).collect();
        let far_free = if random.one_in(3) { random.below(2_000) } else { u64::MAX / 2 };
        Self {
            eviction: Eviction::new(BOUNDS),
            now_ns: random.below(1_000 * MS),
            limit: random.range(128, 2_000).cast_signed(),
            allowance: 0,
            far_free,
            spaces,
            waiting: VecDeque::new(),
            threads,
            next_command: 1,
            fruitless_since_ns: None,
            gave_up: None,
            idle_steps: 0,
            given_up: 0,
            rung: false,
            random,
        }
    }

    fn resident(&self) -> u64 {
        self.spaces.iter().map(|space| space.pages).sum()
    }

    fn free(&self) -> i64 {
        self.limit + self.allowance - self.resident().cast_signed()
    }

    fn is_short(&self) -> bool {
        self.free() < HEADROOM
    }

    fn view(&self) -> View {
        View {
            now_ns: self.now_ns,
            is_short: self.is_short(),
            has_room: self.free() > 0,
            waiting: self.waiting.len(),
            put_off: false,
            spaces: self.spaces.len(),
            evictable: self.resident(),
            awaits_agent: false,
        }
    }

    fn take_page(&mut self) {
        let space = self.random.index(self.spaces.len());
        self.spaces[space].pages += 1;
    }

    /// Threads fault, programs freeze and free memory, until this time or the evictor is woken.
    fn programs(&mut self, until_ns: u64, wakes: bool) {
        loop {
            let next =
                (0..self.threads.len()).filter_map(|thread| Some((self.threads[thread]?, thread))).min();
            let Some((at_ns, thread)) = next.filter(|&(at_ns, _)| at_ns <= until_ns) else { break };
            self.now_ns = self.now_ns.max(at_ns);
            if self.random.one_in(2_000) {
                let space = self.random.index(self.spaces.len());
                self.spaces[space].frozen_until_ns = self.now_ns + self.random.below(6_000) * MS;
            }
            if self.random.one_in(3_000) {
                let space = self.random.index(self.spaces.len());
                self.spaces[space].pages /= 2;
                self.far_free = self.far_free.saturating_add(100);
            }
            if self.free() > 0 {
                self.take_page();
                let pause = if self.random.one_in(1_000) { 3_000 * MS } else { 50 * US };
                self.threads[thread] = Some(self.now_ns + 1 + self.random.below(pause));
                self.rung |= self.free() <= HEADROOM / 2;
            } else {
                self.threads[thread] = None;
                let since_ns = self.now_ns;
                self.waiting.push_back(Waiting { since_ns, saw_full: false, saw_attempt: false });
                self.rung = true;
            }
            if wakes && self.rung {
                return;
            }
        }
        self.now_ns = self.now_ns.max(until_ns);
    }

    /// A thread that waited goes on.
    fn resume(&mut self) {
        if let Some(thread) = self.threads.iter().position(Option::is_none) {
            self.threads[thread] = Some(self.now_ns + 1 + self.random.below(50 * US));
        }
    }

    fn agents(&mut self) {
        for index in 0..self.spaces.len() {
            let now_ns = self.now_ns;
            let space = &mut self.spaces[index];
            let Some(command) = &mut space.command else { continue };
            if command.answer_ns.max(space.frozen_until_ns) > now_ns {
                continue;
            }
            if command.returning_until_ns.is_none() && self.random.one_in(50) {
                command.returning_until_ns = Some(now_ns + self.random.below(5 * MS));
                self.eviction.returning(command.number);
            }
            if command.returning_until_ns.is_some_and(|until_ns| until_ns > now_ns) {
                continue;
            }
            let (number, pages) = (command.number, command.pages);
            space.command = None;
            let left = if space.is_pinned { 0 } else { pages.min(space.pages) };
            space.pages -= left;
            if left > 0 {
                self.fruitless_since_ns = Some(now_ns);
                self.gave_up = None;
                self.allowance -= self.allowance.min(left.div_ceil(4).cast_signed());
                self.idle_steps = 0;
            }
            self.eviction.evicted(left, now_ns);
            self.eviction.ended(number);
        }
    }

    fn make_room(&mut self) -> (Attempt, u64) {
        let (mut begun, mut full, mut looked_at) = (0, false, 0);
        for index in 0..self.spaces.len() {
            let spared = self.random.one_in(4);
            let space = &mut self.spaces[index];
            if space.pages == 0 {
                continue;
            }
            if space.command.is_some() || spared {
                looked_at = LOOK_MAX;
                continue;
            }
            let pages = space.pages.min(BATCH - begun.min(BATCH - 1));
            looked_at += pages;
            if pages > self.far_free {
                full = true;
                continue;
            }
            let number = self.next_command;
            self.next_command += 1;
            let answer_ns = match self.random.below(100) {
                0 => self.random.below(3_000 * MS),
                1..10 => self.random.below(100 * MS),
                _ => 300 * US,
            };
            space.command = Some(Command {
                number,
                since_ns: self.now_ns,
                answer_ns: self.now_ns + answer_ns,
                pages,
                returning_until_ns: None,
            });
            if !space.is_pinned {
                self.far_free -= pages.min(self.random.below(pages + 1));
            }
            self.eviction.commanded(number, self.now_ns);
            begun += pages;
        }
        let attempt = match (begun, full, looked_at) {
            (0, _, 0) => Attempt::NoVictims,
            (0, true, _) => Attempt::FarFull,
            _ => Attempt::Begun(begun),
        };
        (attempt, looked_at.min(LOOK_MAX))
    }

    fn give_up(&mut self, faults: usize, cause: Cause) {
        assert!(faults > 0 && faults <= self.waiting.len(), "{faults} of {}", self.waiting.len());
        let fruitless_ns = self.fruitless_since_ns.map_or(0, |since_ns| self.now_ns - since_ns);
        assert!(
            self.gave_up == Some(cause) || fruitless_ns >= BOUNDS.fruitless_ns,
            "given up after {fruitless_ns} ns"
        );
        let at_work = self.spaces.iter().filter_map(|space| space.command.as_ref());
        let at_work =
            at_work.filter(|command| self.now_ns - command.since_ns < BOUNDS.agent_frozen_ns).count();
        let for_ever = fruitless_ns >= BOUNDS.fruitless_ns + BOUNDS.agent_frozen_ns;
        assert!(at_work == 0 || for_ever, "given up while {at_work} agents are at work");
        for _ in 0..faults {
            let fault = self.waiting.pop_front().expect("a fault");
            match cause {
                Cause::FarFull => {
                    assert!(fault.saw_full, "SIGBUS for a fault that came after far memory was full")
                }
                Cause::Immovable => assert!(fault.saw_attempt, "nothing was tried for a fault"),
            }
            if cause == Cause::Immovable {
                self.allowance += 1;
                self.take_page();
            }
            self.resume();
        }
        if cause == Cause::Immovable {
            self.allowance += 64;
        }
        self.gave_up = Some(cause);
        self.given_up += 1;
    }

    fn step(&mut self) {
        self.agents();
        self.fruitless_since_ns = self.is_short().then(|| self.fruitless_since_ns.unwrap_or(self.now_ns));
        let view = self.view();
        self.idle_steps += 1;
        match self.eviction.next(&view) {
            Step::Sleep { ns } => {
                assert!(ns > 0, "a sleep of no length");
                // A program that faulted meanwhile has woken the evictor.
                if !self.rung {
                    self.programs(self.now_ns.saturating_add(ns), true);
                }
                self.rung = false;
                self.idle_steps = 0;
            }
            Step::AwaitAgents { ns } => {
                assert!(ns > 0, "a sleep of no length");
                let answers = self.spaces.iter().filter_map(|space| {
                    space.command.as_ref().map(|command| command.answer_ns.max(space.frozen_until_ns))
                });
                // One that is returning has answered: it does not wake anybody.
                let answer_ns = answers.filter(|&at_ns| at_ns > self.now_ns).min().unwrap_or(u64::MAX);
                self.programs(answer_ns.min(self.now_ns.saturating_add(ns)), false);
                self.idle_steps = 0;
            }
            Step::Serve => {
                assert!(view.has_room);
                for _ in 0..view.waiting {
                    let fault = self.waiting.pop_front().expect("a fault");
                    if self.free() > 0 {
                        self.take_page();
                        self.resume();
                    } else {
                        self.waiting.push_back(fault);
                    }
                }
                self.idle_steps = 0;
            }
            Step::MakeRoom => {
                let (attempt, looked_at) = self.make_room();
                for fault in self.waiting.iter_mut().take(view.waiting) {
                    fault.saw_attempt = true;
                    fault.saw_full |= attempt == Attempt::FarFull;
                }
                if let Attempt::Begun(1..) = attempt {
                    self.idle_steps = 0;
                }
                self.eviction.made_room(attempt, looked_at, &view);
                // While it looks, the programs go on.
                self.programs(self.now_ns + 10 * US, false);
            }
            Step::GiveUp { faults, cause } => {
                self.give_up(faults, cause);
                self.idle_steps = 0;
            }
        }
        // As many as it takes to look at every page as often as one is spared.
        let idle_steps_max = (u64::from(LIVES_MAX) + 2) * self.resident().max(ROUND_LEAST) / LOOK_MAX;
        assert!(self.idle_steps <= idle_steps_max, "{} steps without a sleep", self.idle_steps);
        let since_ns = self.fruitless_since_ns.unwrap_or(self.now_ns);
        for fault in &self.waiting {
            // Since the fault, and since the last page left, whichever is later.
            let waited_ns = self.now_ns - fault.since_ns.max(since_ns);
            let bound_ns = BOUNDS.agent_frozen_ns + BOUNDS.fruitless_ns + 200 * MS;
            assert!(waited_ns <= bound_ns, "a fault has waited for {} ms", waited_ns / MS);
        }
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..3_000 {
        world.step();
    }
}

#[test]
fn seeds() {
    Seeds::from_environment(300).run("cargo test -p tombolo-core --test eviction", run);
}
