//! When pages leave, when the evictor sleeps, and when the limit gives way.
//!
//! [`Eviction`] is told what the driver sees before each step ([`View`]) and how each step ended; it says what
//! the next step is. It knows which agents have a command, and since when. The driver chooses the pages,
//! sends the commands, and sleeps.
//!
//! Three promises, whatever the agents do:
//! - A fault that waits for room is served, or given up within the bounds of [`Bounds`]: it never hangs.
//! - The limit does not give way, and no fault ends in SIGBUS, until an attempt to evict that began after the fault has
//!   failed. Nor does this happen while an agent is about to begin, or works on a command that it got less than
//!   [`Bounds::agent_frozen_ns`] ago, unless no page has left for even longer.
//! - Steps that achieve nothing are followed by a sleep: the evictor does not take the processor of an agent
//!   that it waits for.

use std::collections::BTreeMap;

use super::page::LIVES_MAX;

/// The number of pages that a round counts with at least, however few can be evicted.
const ROUND_LEAST: u64 = 16 * 1024;
/// An attempt to evict that found no page to claim is counted as if the evictor had looked at this many names: so a
/// round ends also where no page is queued.
const LOOK_COST: u64 = 1024;

/// Spans of time, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// An agent that has not answered for this long is late: the evictor turns to other spaces meanwhile.
    pub agent_late_ns: u64,
    /// The evictor does not wait for an agent that has not answered for this long.
    pub agent_frozen_ns: u64,
    /// Pause where only pages of late agents were found.
    pub late_pause_ns: u64,
    /// Pause where the pages that were found could not be claimed.
    pub claim_pause_ns: u64,
    /// Pause before work that was put off because an address space was changing is tried again.
    pub change_pause_ns: u64,
    /// The limit gives way only when no page has left for this long while room was short.
    pub fruitless_ns: u64,
    /// Longest sleep while nothing is to be done.
    pub sleep_max_ns: u64,
}

/// What the driver sees before a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The clock.
    pub now_ns: u64,
    /// Less room is free than the pager is to keep free.
    pub is_short: bool,
    /// There is room for at least one page.
    pub has_room: bool,
    /// Number of faults that wait for room.
    pub waiting: usize,
    /// Work was put off because an address space is changing.
    pub put_off: bool,
    /// Number of address spaces.
    pub spaces: usize,
    /// Pages that count against the limit.
    pub evictable: u64,
    /// A forked child is about to get its agent: until then, pages that it shares with others cannot leave. Or an agent
    /// is at work on a command that [`Eviction`] is not told of.
    pub awaits_agent: bool,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sleep until room is needed, at most for this time.
    Sleep {
        /// The longest time, in nanoseconds.
        ns: u64,
    },
    /// Sleep until an agent has answered, at most for this time.
    AwaitAgents {
        /// The longest time, in nanoseconds.
        ns: u64,
    },
    /// There is room: serve the faults that wait.
    Serve,
    /// Choose pages, and command their agents; [`Eviction::made_room`] is told what came of it.
    MakeRoom,
    /// Nothing can leave: the first of the waiting faults cannot be served within the limit.
    GiveUp {
        /// Number of these faults.
        faults: usize,
        /// Why nothing can leave.
        cause: Cause,
    },
}

/// Why no page can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Pages could leave, but no far page is free for them.
    FarFull,
    /// The resident pages cannot leave: they are locked or pinned, or their agents are frozen.
    Immovable,
}

/// What came of an attempt to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// This number of pages is on its way out. Zero: the evictor spares all pages that it looked at, this time.
    Begun(u64),
    /// No page was found that could be claimed.
    NoVictims,
    /// Pages were found, but no far page to put them in.
    FarFull,
    /// Pages were found, but far memory for them is still being borrowed.
    FarGrows,
}

/// A command of an agent that has not ended.
#[derive(Clone, Copy, Debug)]
struct Command {
    since_ns: u64,
    /// The agent has answered, but pages are still to be mapped again in an address space that is changing.
    is_returning: bool,
}

/// The evictor's decisions.
#[derive(Debug)]
pub struct Eviction {
    bounds: Bounds,
    commands: BTreeMap<u32, Command>,
    /// Number of names looked at since a page left.
    looked_at: u64,
    /// Since when room has been short and no page has left.
    fruitless_since_ns: Option<u64>,
    /// Why faults were given up last, if no page has left since. Further faults with the same cause are given up
    /// without another look at all pages.
    gave_up: Option<Cause>,
    /// The number of waiting faults that came before the latest attempt that found far memory full.
    full_for: usize,
    /// The number of waiting faults that came before the latest attempt that found no page to evict.
    fruitless_for: usize,
    /// The number of waiting faults that came before the latest attempt of any kind.
    tried_for: usize,
    /// Pause before the next attempt, if any.
    pause_ns: Option<u64>,
    /// When the driver was to ask for the next step.
    due_ns: Option<u64>,
}

impl Eviction {
    /// The decisions of an evictor that has nothing under way.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            commands: BTreeMap::new(),
            looked_at: 0,
            fruitless_since_ns: None,
            gave_up: None,
            full_for: 0,
            fruitless_for: 0,
            tried_for: 0,
            pause_ns: None,
            due_ns: None,
        }
    }

    /// An agent has got a command.
    pub fn commanded(&mut self, command: u32, now_ns: u64) {
        self.commands.insert(command, Command { since_ns: now_ns, is_returning: false });
    }

    /// The agent of a command has answered, but its pages cannot be mapped again yet.
    pub fn returning(&mut self, command: u32) {
        if let Some(command) = self.commands.get_mut(&command) {
            command.is_returning = true;
        }
    }

    /// A command has ended, successfully or not.
    pub fn ended(&mut self, command: u32) {
        self.looked_at += LOOK_COST;
        self.commands.remove(&command);
    }

    /// Whether an agent has had this command for long.
    pub fn is_late(&self, command: u32, now_ns: u64) -> bool {
        let since_ns = self.commands.get(&command).map_or(now_ns, |command| command.since_ns);
        now_ns.saturating_sub(since_ns) > self.bounds.agent_late_ns
    }

    /// Pages have left.
    pub fn evicted(&mut self, pages: u64, now_ns: u64) {
        if pages > 0 {
            self.looked_at = 0;
            self.fruitless_since_ns = self.fruitless_since_ns.map(|_| now_ns);
            self.gave_up = None;
            self.forget_attempts();
        }
    }

    /// The evictor has looked at this number of names, and no page has left for that yet.
    pub fn looked_at(&mut self, names: u64) {
        self.looked_at += names;
    }

    /// Reports what came of a [`Step::MakeRoom`], which looked at `looked_at` names. `view`: the one by which that step
    /// was decided.
    pub fn made_room(&mut self, attempt: Attempt, looked_at: u64, view: &View) {
        self.looked_at += looked_at;
        if let Attempt::NoVictims | Attempt::FarFull = attempt {
            self.looked_at += LOOK_COST;
        }
        let round_is_over = self.looked_at > round(view.evictable);
        self.tried_for = view.waiting;
        match attempt {
            // Whether these pages leave is not known yet. If they do, `evicted` forgets the attempts.
            Attempt::Begun(1..) => {
                self.full_for = 0;
                self.fruitless_for = if round_is_over { view.waiting } else { 0 };
            }
            Attempt::Begun(0) if round_is_over => self.fruitless_for = view.waiting,
            Attempt::Begun(0) => {}
            Attempt::NoVictims => (self.full_for, self.fruitless_for) = (0, view.waiting),
            Attempt::FarFull => self.full_for = view.waiting,
            // Lenders answer or are given up, so no fault waits for ever.
            Attempt::FarGrows => {
                self.looked_at = 0;
                self.fruitless_since_ns = self.fruitless_since_ns.map(|_| view.now_ns);
                self.gave_up = None;
                self.forget_attempts();
            }
        }
        self.pause_ns = match attempt {
            Attempt::Begun(1..) => None,
            // All pages were looked at: nothing changes before an agent or a program does something.
            _ if round_is_over && view.waiting == 0 => Some(self.bounds.agent_late_ns),
            // While agents are at work, their pages are spared however often they are looked at.
            Attempt::Begun(0) if self.is_at_work(view.now_ns) || round_is_over => {
                Some(self.bounds.late_pause_ns)
            }
            // A page that was spared once or twice is not spared the next time.
            Attempt::Begun(0) => None,
            Attempt::NoVictims if view.awaits_agent => Some(self.bounds.late_pause_ns),
            // Pages that could not be claimed may be free a moment later.
            Attempt::NoVictims | Attempt::FarFull => Some(self.bounds.claim_pause_ns),
            Attempt::FarGrows => Some(self.bounds.late_pause_ns),
        };
    }

    /// What to do now.
    pub fn next(&mut self, view: &View) -> Step {
        self.note_absence(view.now_ns);
        let step = self.decide(view);
        let sleep_ns = match step {
            Step::Sleep { ns } | Step::AwaitAgents { ns } => ns,
            Step::Serve | Step::MakeRoom | Step::GiveUp { .. } => 0,
        };
        self.due_ns = Some(view.now_ns.saturating_add(sleep_ns));
        step
    }

    /// If the driver asks for a step much later than planned, the evictor was stopped or had no processor. Most likely,
    /// the same is true of its agents: that time does not count against them.
    fn note_absence(&mut self, now_ns: u64) {
        let late_ns = self.due_ns.map_or(0, |due_ns| now_ns.saturating_sub(due_ns));
        if late_ns <= self.bounds.agent_frozen_ns / 4 {
            return;
        }
        let later = |since_ns: u64| since_ns.saturating_add(late_ns).min(now_ns);
        self.commands.values_mut().for_each(|command| command.since_ns = later(command.since_ns));
        self.fruitless_since_ns = self.fruitless_since_ns.map(later);
    }

    fn decide(&mut self, view: &View) -> Step {
        let now_ns = view.now_ns;
        self.fruitless_since_ns = view.is_short.then(|| self.fruitless_since_ns.unwrap_or(now_ns));
        if view.waiting > 0 && view.has_room {
            // Faults that find no room wait again, behind the others.
            self.forget_attempts();
            return Step::Serve;
        }
        if let Some((faults, cause)) = self.hopeless(view) {
            self.forget_attempts();
            self.gave_up = Some(cause);
            return Step::GiveUp { faults, cause };
        }
        if let Some(ns) = self.agents_pause(view) {
            return Step::AwaitAgents { ns };
        }
        if !view.is_short {
            self.pause_ns = None;
            return Step::Sleep { ns: self.idle_ns(view) };
        }
        match self.pause_ns.take() {
            Some(ns) if self.commands.is_empty() => Step::Sleep { ns: self.change_ns(view).min(ns) },
            Some(ns) => Step::AwaitAgents { ns: self.change_ns(view).min(ns) },
            None => Step::MakeRoom,
        }
    }

    /// The number of faults that have waited in vain, and why: if every page was looked at as often as it can be
    /// spared, for long enough, and none could leave.
    fn hopeless(&self, view: &View) -> Option<(usize, Cause)> {
        if !view.is_short {
            return None;
        }
        let fruitless_ns = self.fruitless_since_ns.map_or(0, |since_ns| view.now_ns.saturating_sub(since_ns));
        // A bound for agents that always answer in time and never let a page go.
        let for_ever = fruitless_ns > self.bounds.fruitless_ns + self.bounds.agent_frozen_ns;
        let (faults, cause) = match (self.full_for, self.fruitless_for) {
            (0, 0) if for_ever => (self.tried_for, Cause::Immovable),
            (0, barren) => (barren, Cause::Immovable),
            (full, _) => (full, Cause::FarFull),
        };
        let round_is_over = self.looked_at > round(view.evictable) && fruitless_ns > self.bounds.fruitless_ns;
        let is_awaited = view.awaits_agent || self.is_at_work(view.now_ns);
        let over = for_ever || (!is_awaited && (self.gave_up == Some(cause) || round_is_over));
        let faults = faults.min(view.waiting);
        (over && faults > 0).then_some((faults, cause))
    }

    fn forget_attempts(&mut self) {
        (self.full_for, self.fruitless_for, self.tried_for) = (0, 0, 0);
    }

    /// How long each agent has had its command. Agents that count as frozen are left out.
    fn working(&self, now_ns: u64) -> impl Iterator<Item = u64> {
        let ages = self.commands.values().map(move |command| now_ns.saturating_sub(command.since_ns));
        ages.filter(|&age_ns| age_ns < self.bounds.agent_frozen_ns)
    }

    /// Whether an agent that does not count as frozen has a command: pages may be on their way out.
    fn is_at_work(&self, now_ns: u64) -> bool {
        self.working(now_ns).next().is_some()
    }

    /// How long to wait for agents before anything else is done. `None`: no agent is at work, or all that are at work
    /// are late and another space may have pages to give.
    fn agents_pause(&self, view: &View) -> Option<u64> {
        // One space may have a command with its agent, and also a batch that waits to be mapped again: the latter does
        // not count.
        let with_agents = self.commands.values().filter(|command| !command.is_returning).count();
        let others = view.spaces > with_agents;
        let late = |age_ns| age_ns > self.bounds.agent_late_ns;
        if !self.is_at_work(view.now_ns) || (others && self.working(view.now_ns).all(late)) {
            return None;
        }
        Some(self.idle_ns(view))
    }

    /// How long the evictor may sleep if nothing wakes it.
    fn idle_ns(&self, view: &View) -> u64 {
        let agents_ns =
            if self.commands.is_empty() { self.bounds.sleep_max_ns } else { self.bounds.agent_late_ns };
        agents_ns.min(self.change_ns(view))
    }

    /// How long it is until an address space that was changing is to be looked at again; `u64::MAX` if there is none.
    fn change_ns(&self, view: &View) -> u64 {
        let any = view.put_off || self.commands.values().any(|command| command.is_returning);
        if any { self.bounds.change_pause_ns } else { u64::MAX }
    }
}

/// Number of names in a round, in which each page can be spared as often as it has lives, and is looked at once more.
fn round(evictable: u64) -> u64 {
    (u64::from(LIVES_MAX) + 1) * evictable.max(ROUND_LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The evictor and its agents were stopped for long, as by a terminal or a machine that slept.
    #[test]
    fn time_that_the_evictor_was_away_counts_against_nobody() {
        let bounds = Bounds {
            agent_late_ns: 20 * MS,
            agent_frozen_ns: 2000 * MS,
            late_pause_ns: MS,
            claim_pause_ns: MS,
            change_pause_ns: MS,
            fruitless_ns: 500 * MS,
            sleep_max_ns: 1000 * MS,
        };
        for is_away in [true, false] {
            let mut eviction = Eviction::new(bounds);
            let mut view =
                View { is_short: true, waiting: 1, spaces: 1, evictable: 10_000, ..View::default() };
            assert_eq!(eviction.next(&view), Step::MakeRoom);
            eviction.commanded(1, 0);
            // Everything was looked at as often as a page is spared, and nothing else can leave.
            eviction.made_room(Attempt::NoVictims, 1 << 30, &view);
            let mut gave_up_ns = None;
            while view.now_ns < 60_000 * MS && gave_up_ns.is_none() {
                match eviction.next(&view) {
                    Step::GiveUp { .. } => gave_up_ns = Some(view.now_ns),
                    Step::Sleep { ns } | Step::AwaitAgents { ns } => view.now_ns += ns.max(1),
                    Step::MakeRoom => eviction.made_room(Attempt::NoVictims, 1 << 30, &view),
                    Step::Serve => panic!("there is no room"),
                }
                if is_away && (1000 * MS..1100 * MS).contains(&view.now_ns) {
                    view.now_ns += 30_000 * MS;
                }
            }
            let gave_up_ms = gave_up_ns.map_or(0, |ns| ns / MS);
            let away_ms = if is_away { 30_000 } else { 0 };
            assert!((away_ms + 2000..away_ms + 3000).contains(&gave_up_ms), "{gave_up_ms}");
        }
    }
}
