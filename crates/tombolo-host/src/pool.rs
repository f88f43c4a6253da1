//! Work that blocks, on a few threads of its own: the engine's loop hands it over and goes on.
//!
//! ```text
//!   owner A: task task task ─┐                 ┌─► thread
//!   owner B: task            ├─ owners in turn ┼─► thread
//!   owner C: task task ──────┘                 └─► thread
//! ```
//!
//! A task is done in steps. Owners take turns, and so do the tasks of one owner; at most one thread is
//! busy for an owner. So an owner with much to do delays others by a step at most, and one whose step
//! never ends keeps one thread, and its own tasks waiting. Owners may be of a group, which keeps a bounded
//! number of threads busy: owners that somebody can have any number of keep no thread from the others.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::process;
use crate::timing::host::{POOL_REST_PAUSE, POOL_THREAD_MAX_IDLE, POOL_WAIT_PAUSE};

/// How far a task is after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More steps are needed.
    More,
    /// The task waits for another party, and checks again in its next turn.
    Waits,
    /// As [`Step::Waits`], for something that takes long: it checks again later.
    Rests,
    /// The task is done.
    Over,
}

/// Work that blocks, or takes many steps.
pub trait BlockingTask: Send {
    /// Does a part of the work, of tens of milliseconds at most unless the kernel makes it wait.
    fn step(&mut self) -> Step;
}

/// What a pool has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Threads at work at once, each for another owner.
    pub threads: usize,
    /// Threads at work at once for the owners of one group.
    pub threads_of_group: usize,
    /// Tasks that wait, of all owners.
    pub tasks: usize,
    /// Tasks that wait, of one owner.
    pub tasks_of_owner: usize,
}

/// Who goes first where there are fewer processors than threads that want one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// A pool's threads are as good as others.
    Normal,
    /// A pool's threads take what others leave: next to nothing of processors that others keep busy.
    StandsBack,
}

/// The party that a pool works for.
pub trait PoolOwner: Copy + Ord + Send + 'static {
    /// The group it belongs to, if it belongs to one.
    fn group(&self) -> Option<u32> {
        None
    }
}

/// A process id.
impl PoolOwner for u32 {}

/// Why a task was not taken. It has been dropped.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Too many tasks wait already, of this owner or of all.
    #[error("too much waits to be done already")]
    Full,
    /// There is no thread, and none can be started.
    #[error("the system starts no thread: {0}")]
    NoThread(io::Error),
}

struct Queued {
    task: Box<dyn BlockingTask>,
    /// It may be refused, and counts among those that are bounded.
    is_offered: bool,
}

struct Tasks {
    waiting: VecDeque<Queued>,
    /// Number of steps in a row after which the task waits.
    waits: usize,
    /// When the first of these is to check again.
    pause: Duration,
}

struct Group<Owner> {
    busy_threads: usize,
    /// Owners whose turn has come while the group had all its threads.
    held: VecDeque<Owner>,
}

struct State<Owner> {
    /// Owners that have tasks. Those that are in none of `turns`, `resting` and `held` have one running.
    owners: BTreeMap<Owner, Tasks>,
    /// Owners with tasks of which none is running, in the order of their turns.
    turns: VecDeque<Owner>,
    /// Owners all of whose tasks wait for somebody else, and until when.
    resting: VecDeque<(Instant, Owner)>,
    /// Groups with owners for which a thread is busy.
    groups: BTreeMap<u32, Group<Owner>>,
    threads_of_group: usize,
    /// Tasks of all owners that were offered, and wait.
    waiting: usize,
    threads: usize,
    /// Threads that have nothing to do.
    idle: usize,
}

impl<Owner: PoolOwner> State<Owner> {
    fn put(&mut self, owner: Owner, task: Queued) {
        self.waiting += usize::from(task.is_offered);
        let tasks = self.owners.entry(owner).or_insert_with(|| {
            self.turns.push_back(owner);
            Tasks { waiting: VecDeque::new(), waits: 0, pause: POOL_REST_PAUSE }
        });
        tasks.waiting.push_back(task);
        tasks.waits = 0;
        if let Some(place) = self.resting.iter().position(|(_, known)| *known == owner) {
            self.resting.remove(place);
            self.turns.push_back(owner);
        }
    }

    /// The task whose turn it is.
    fn next(&mut self, now: Instant) -> Option<(Owner, Queued)> {
        while let Some((until, owner)) = self.resting.front().copied()
            && until <= now
        {
            self.resting.pop_front();
            self.turns.push_back(owner);
        }
        while let Some(owner) = self.turns.pop_front() {
            if !self.enter_group(owner) {
                continue;
            }
            if let Some(task) = self.owners.get_mut(&owner).and_then(|tasks| tasks.waiting.pop_front()) {
                self.waiting -= usize::from(task.is_offered);
                return Some((owner, task));
            }
            self.leave_group(owner);
        }
        None
    }

    /// Reserves a thread for this owner. False: its group has all its threads busy; the owner waits for one of them.
    fn enter_group(&mut self, owner: Owner) -> bool {
        let Some(number) = owner.group() else { return true };
        let group =
            self.groups.entry(number).or_insert_with(|| Group { busy_threads: 0, held: VecDeque::new() });
        if group.busy_threads >= self.threads_of_group {
            group.held.push_back(owner);
            return false;
        }
        group.busy_threads += 1;
        true
    }

    /// A thread works for this owner no longer.
    fn leave_group(&mut self, owner: Owner) {
        let Some(number) = owner.group() else { return };
        let Some(group) = self.groups.get_mut(&number) else { return };
        group.busy_threads -= 1;
        if let Some(held) = group.held.pop_front() {
            self.turns.push_back(held);
        } else if group.busy_threads == 0 {
            self.groups.remove(&number);
        }
    }

    /// Notes a step of this owner: `task` is the rest, if there is one.
    fn stepped(&mut self, owner: Owner, task: Option<Queued>, step: Step) {
        self.leave_group(owner);
        let Some(tasks) = self.owners.get_mut(&owner) else { return };
        let pause = match step {
            Step::Waits => Some(POOL_WAIT_PAUSE),
            Step::Rests => Some(POOL_REST_PAUSE),
            Step::More | Step::Over => None,
        };
        match pause {
            Some(pause) if tasks.waits > 0 => tasks.pause = tasks.pause.min(pause),
            Some(pause) => tasks.pause = pause,
            None => {}
        }
        tasks.waits = if pause.is_some() { tasks.waits + 1 } else { 0 };
        if let Some(task) = task {
            self.waiting += usize::from(task.is_offered);
            tasks.waiting.push_back(task);
        }
        if tasks.waiting.is_empty() {
            self.owners.remove(&owner);
        } else if tasks.waits >= tasks.waiting.len() {
            tasks.waits = 0;
            let until = Instant::now() + tasks.pause;
            let place = self.resting.partition_point(|(other, _)| *other <= until);
            self.resting.insert(place, (until, owner));
        } else {
            self.turns.push_back(owner);
        }
    }
}

struct Shared<Owner> {
    name: &'static str,
    limits: PoolLimits,
    urgency: Urgency,
    state: Mutex<State<Owner>>,
    work: Condvar,
}

impl<Owner> Shared<Owner> {
    fn lock(&self) -> MutexGuard<'_, State<Owner>> {
        // No step runs under the lock, so a panic leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pool of threads. They are there while there is something to do, and end soon after.
pub struct Pool<Owner>(Arc<Shared<Owner>>);

impl<Owner> Clone for Pool<Owner> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Owner> std::fmt::Debug for Pool<Owner> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pool").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl<Owner: PoolOwner> Pool<Owner> {
    /// A pool whose threads have this name.
    pub fn new(name: &'static str, limits: PoolLimits, urgency: Urgency) -> Self {
        let state = State {
            owners: BTreeMap::new(),
            turns: VecDeque::new(),
            resting: VecDeque::new(),
            groups: BTreeMap::new(),
            threads_of_group: limits.threads_of_group,
            waiting: 0,
            threads: 0,
            idle: 0,
        };
        Self(Arc::new(Shared { name, limits, urgency, state: Mutex::new(state), work: Condvar::new() }))
    }

    /// Takes a task on, if there is room.
    pub fn offer(&self, owner: Owner, task: Box<dyn BlockingTask>) -> Result<(), PoolError> {
        let mut state = self.0.lock();
        let offered = |tasks: &Tasks| tasks.waiting.iter().filter(|task| task.is_offered).count();
        let of_owner = state.owners.get(&owner).map_or(0, offered);
        if state.waiting >= self.0.limits.tasks || of_owner >= self.0.limits.tasks_of_owner {
            return Err(PoolError::Full);
        }
        if state.threads == 0 {
            self.start_thread(&mut state).map_err(PoolError::NoThread)?;
        }
        state.put(owner, Queued { task, is_offered: true });
        self.call_thread(&mut state);
        Ok(())
    }

    /// Takes on a task that gives something back, such as memory: never refused, since nobody could do
    /// anything else with it. There are no more of these than was given out, which the caller bounds.
    ///
    /// False: there is no thread, and none can be started; the task waits until another is given.
    pub fn give_back(&self, owner: Owner, task: Box<dyn BlockingTask>) -> bool {
        let mut state = self.0.lock();
        state.put(owner, Queued { task, is_offered: false });
        self.call_thread(&mut state);
        state.threads > 0
    }

    /// How many tasks of an owner wait.
    pub fn waiting_of(&self, owner: Owner) -> usize {
        self.0.lock().owners.get(&owner).map_or(0, |tasks| tasks.waiting.len())
    }

    /// How many tasks of a group's owners wait.
    pub fn waiting_of_group(&self, group: u32) -> usize {
        let state = self.0.lock();
        let of_group = state.owners.iter().filter(|(owner, _)| owner.group() == Some(group));
        of_group.map(|(_, tasks)| tasks.waiting.len()).sum()
    }

    /// Starts or wakes a thread for an owner that waits for its turn.
    fn call_thread(&self, state: &mut State<Owner>) {
        if state.turns.len() > state.idle && state.threads < self.0.limits.threads {
            // Where none can be started, the others come to it, or the next that is started.
            let _ = self.start_thread(state);
        }
        self.0.work.notify_one();
    }

    fn start_thread(&self, state: &mut State<Owner>) -> io::Result<()> {
        let pool = self.clone();
        std::thread::Builder::new().name(self.0.name.into()).spawn(move || {
            if pool.0.urgency == Urgency::StandsBack {
                process::stand_back();
            }
            pool.run();
        })?;
        state.threads += 1;
        Ok(())
    }

    fn run(&self) {
        let mut state = self.0.lock();
        let mut idle_since = None;
        loop {
            let now = Instant::now();
            let Some((owner, mut task)) = state.next(now) else {
                let ends = *idle_since.get_or_insert(now) + POOL_THREAD_MAX_IDLE;
                let wakes = state.resting.front().map_or(ends, |(until, _)| *until);
                // Somebody stays for those who rest.
                if ends <= now && (state.resting.is_empty() || state.idle > 0) {
                    state.threads -= 1;
                    return;
                }
                state.idle += 1;
                let pause = wakes.saturating_duration_since(now);
                state = self.0.work.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
                state.idle -= 1;
                continue;
            };
            idle_since = None;
            // While this thread is busy, others may have to go on.
            if !state.turns.is_empty() {
                self.call_thread(&mut state);
            }
            drop(state);
            // A task that panics is over; those of others go on.
            let step = catch_unwind(AssertUnwindSafe(|| task.task.step())).unwrap_or(Step::Over);
            let mut task = Some(task);
            if step == Step::Over {
                // To let go of what it holds may block as well.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(task.take())));
            }
            state = self.0.lock();
            state.stepped(owner, task, step);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);
    const LIMITS: PoolLimits =
        PoolLimits { threads: 2, threads_of_group: 1, tasks: 300, tasks_of_owner: 200 };

    /// Says its name in each step.
    struct Steps(char, u32, Sender<char>);

    impl BlockingTask for Steps {
        fn step(&mut self) -> Step {
            self.1 -= 1;
            self.2.send(self.0).unwrap();
            if self.1 > 0 { Step::More } else { Step::Over }
        }
    }

    /// Hangs until it is let go.
    struct Gate(Sender<()>, Receiver<()>);

    impl Gate {
        /// The gate, and how to wait until it hangs and let it go.
        fn new() -> (Box<Self>, Receiver<()>, Sender<()>) {
            let ((hangs, hung), (open, opened)) = (channel(), channel());
            (Box::new(Self(hangs, opened)), hung, open)
        }
    }

    impl BlockingTask for Gate {
        fn step(&mut self) -> Step {
            self.0.send(()).unwrap();
            let _ = self.1.recv();
            Step::Over
        }
    }

    struct Waiting(Arc<AtomicBool>);

    impl BlockingTask for Waiting {
        fn step(&mut self) -> Step {
            if self.0.load(Ordering::Relaxed) { Step::Over } else { Step::Waits }
        }
    }

    #[test]
    fn tasks_that_wait_hold_up_no_others_of_their_owner() {
        let pool = Pool::new("test", LIMITS, Urgency::Normal);
        let enough = Arc::new(AtomicBool::new(false));
        for _ in 0..100 {
            pool.offer(0, Box::new(Waiting(enough.clone()))).unwrap();
        }
        let (sender, said) = channel();
        pool.offer(0, Box::new(Steps('a', 50, sender))).unwrap();
        for _ in 0..50 {
            assert_eq!(said.recv_timeout(TIMEOUT).unwrap(), 'a');
        }
        enough.store(true, Ordering::Relaxed);
    }

    #[test]
    fn tasks_of_one_owner_take_turns_and_later_ones_find_a_thread_again() {
        let pool = Pool::new("test", LIMITS, Urgency::Normal);
        let (sender, said) = channel();
        let (gate, hung, open) = Gate::new();
        pool.offer(0, gate).unwrap();
        hung.recv_timeout(TIMEOUT).unwrap();
        pool.offer(0, Box::new(Steps('a', 3, sender.clone()))).unwrap();
        pool.offer(0, Box::new(Steps('b', 1, sender.clone()))).unwrap();
        open.send(()).unwrap();
        let next = || said.recv_timeout(TIMEOUT).unwrap();
        assert_eq!([next(), next(), next(), next()], ['a', 'b', 'a', 'a']);
        // Until the threads have ended for want of work.
        let since = Instant::now();
        while pool.0.lock().threads > 0 {
            assert!(since.elapsed() < TIMEOUT, "threads do not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        pool.offer(0, Box::new(Steps('c', 1, sender))).unwrap();
        assert_eq!(next(), 'c');
    }

    #[test]
    fn a_task_that_hangs_holds_up_no_other_owner_and_takes_one_thread() {
        let pool = Pool::new("test", LIMITS, Urgency::Normal);
        let (sender, said) = channel();
        let (gate, hung, open) = Gate::new();
        pool.offer(0, gate).unwrap();
        hung.recv_timeout(TIMEOUT).unwrap();
        // These wait for the first of their owner, and not on the other thread.
        pool.offer(0, Box::new(Steps('x', 1, sender.clone()))).unwrap();
        for owner in 1..50 {
            pool.offer(owner, Box::new(Steps('a', 2, sender.clone()))).unwrap();
        }
        for _ in 0..98 {
            assert_eq!(said.recv_timeout(TIMEOUT).unwrap(), 'a');
        }
        assert_eq!(pool.waiting_of(0), 1);
        open.send(()).unwrap();
        assert_eq!(said.recv_timeout(TIMEOUT).unwrap(), 'x');
    }

    #[test]
    fn what_is_given_back_does_not_keep_anything_from_being_offered() {
        let pool = Pool::new("test", LIMITS, Urgency::Normal);
        let (sender, said) = channel();
        let (gate, hung, open) = Gate::new();
        pool.offer(0, gate).unwrap();
        hung.recv_timeout(TIMEOUT).unwrap();
        let many = LIMITS.tasks + LIMITS.tasks_of_owner;
        for _ in 0..many {
            assert!(pool.give_back(0, Box::new(Steps('b', 1, sender.clone()))));
        }
        for _ in 0..LIMITS.tasks_of_owner {
            pool.offer(0, Box::new(Steps('o', 1, sender.clone()))).unwrap();
        }
        let one_more = pool.offer(0, Box::new(Steps('o', 1, sender.clone())));
        assert!(matches!(one_more, Err(PoolError::Full)));
        open.send(()).unwrap();
        for _ in 0..many + LIMITS.tasks_of_owner {
            said.recv_timeout(TIMEOUT).unwrap();
        }
    }

    /// An owner, and its group.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    struct Member(u32, Option<u32>);

    impl PoolOwner for Member {
        fn group(&self) -> Option<u32> {
            self.1
        }
    }

    #[test]
    fn owners_of_a_group_that_hang_leave_threads_to_others_and_are_served_in_turn() {
        let limits = PoolLimits { threads: 4, threads_of_group: 2, ..LIMITS };
        let pool = Pool::new("test", limits, Urgency::Normal);
        let gates: Vec<_> = (0..6).map(|_| Gate::new()).collect();
        let mut hanging = Vec::new();
        for (number, (gate, hung, open)) in gates.into_iter().enumerate() {
            pool.offer(Member(number as u32, Some(7)), gate).unwrap();
            hanging.push((hung, open));
        }
        for (hung, _) in &hanging[..2] {
            hung.recv_timeout(TIMEOUT).unwrap();
        }
        // Another group, and an owner of none.
        let (sender, said) = channel();
        for (number, group) in [(10, Some(8)), (11, None), (12, Some(8)), (13, None)] {
            pool.offer(Member(number, group), Box::new(Steps('a', 3, sender.clone()))).unwrap();
        }
        for _ in 0..12 {
            assert_eq!(said.recv_timeout(TIMEOUT).unwrap(), 'a');
        }
        assert!(hanging[2..].iter().all(|(hung, _)| hung.try_recv().is_err()), "a third thread hangs");
        for at in 0..hanging.len() {
            hanging[at].1.send(()).unwrap();
            if let Some((hung, _)) = hanging.get(at + 2) {
                hung.recv_timeout(TIMEOUT).unwrap();
            }
        }
        let since = Instant::now();
        while !pool.0.lock().groups.is_empty() {
            assert!(since.elapsed() < TIMEOUT, "a group is busy without tasks");
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_owner_with_many_tasks_delays_another_by_a_step() {
        let pool = Pool::new("test", PoolLimits { threads: 1, ..LIMITS }, Urgency::Normal);
        let (sender, said) = channel();
        let (gate, hung, open) = Gate::new();
        pool.offer(0, gate).unwrap();
        hung.recv_timeout(TIMEOUT).unwrap();
        for _ in 0..100 {
            pool.offer(1, Box::new(Steps('a', 10, sender.clone()))).unwrap();
        }
        pool.offer(2, Box::new(Steps('b', 2, sender.clone()))).unwrap();
        open.send(()).unwrap();
        let next = || said.recv_timeout(TIMEOUT).unwrap();
        assert_eq!([next(), next(), next(), next()], ['a', 'b', 'a', 'b']);
    }

    #[test]
    fn what_waits_is_bounded_by_owner_and_together_but_for_what_is_given_back() {
        let pool = Pool::new(
            "test",
            PoolLimits { threads: 1, tasks: 3, tasks_of_owner: 2, ..LIMITS },
            Urgency::Normal,
        );
        let (sender, said) = channel();
        let (gate, hung, open) = Gate::new();
        pool.offer(0, gate).unwrap();
        hung.recv_timeout(TIMEOUT).unwrap();
        let offer = |owner| pool.offer(owner, Box::new(Steps('a', 1, sender.clone())));
        assert!(offer(1).is_ok() && offer(1).is_ok());
        assert!(matches!(offer(1), Err(PoolError::Full)), "of one owner");
        assert!(offer(2).is_ok());
        assert!(matches!(offer(3), Err(PoolError::Full)), "of all");
        pool.give_back(1, Box::new(Steps('b', 1, sender.clone())));
        open.send(()).unwrap();
        let said: Vec<char> = (0..4).map(|_| said.recv_timeout(TIMEOUT).unwrap()).collect();
        assert_eq!(said.iter().filter(|name| **name == 'b').count(), 1);
    }

    #[test]
    fn threads_that_stand_back_take_what_others_leave() {
        struct Tells(Sender<bool>);
        impl BlockingTask for Tells {
            fn step(&mut self) -> Step {
                let _ = self.0.send(process::stands_back());
                Step::Over
            }
        }
        let (sender, said) = channel();
        let stands_back = |urgency| {
            Pool::new("test", LIMITS, urgency).offer(1, Box::new(Tells(sender.clone()))).unwrap();
            said.recv_timeout(TIMEOUT).unwrap()
        };
        let found = [Urgency::Normal, Urgency::StandsBack, Urgency::Normal].map(stands_back);
        assert_eq!(found, [false, true, false]);
    }

    #[test]
    fn an_owner_whose_tasks_wait_for_long_is_asked_less_often() {
        struct RestsFor(u32, Sender<()>);
        impl BlockingTask for RestsFor {
            fn step(&mut self) -> Step {
                self.0 -= 1;
                let _ = self.1.send(());
                if self.0 > 0 { Step::Rests } else { Step::Over }
            }
        }
        let pool = Pool::new("test", LIMITS, Urgency::Normal);
        let ((sender, said), since) = (channel(), Instant::now());
        pool.offer(0, Box::new(RestsFor(5, sender))).unwrap();
        for _ in 0..5 {
            said.recv_timeout(TIMEOUT).unwrap();
        }
        assert!(since.elapsed() >= POOL_REST_PAUSE * 4);
    }

    #[test]
    fn a_task_that_panics_is_over_and_others_go_on() {
        struct Panics;
        impl BlockingTask for Panics {
            fn step(&mut self) -> Step {
                panic!("as the test wants")
            }
        }
        let pool = Pool::new("test", PoolLimits { threads: 1, ..LIMITS }, Urgency::Normal);
        let (sender, said) = channel();
        pool.offer(0, Box::new(Panics)).unwrap();
        pool.offer(0, Box::new(Steps('a', 1, sender))).unwrap();
        assert_eq!(said.recv_timeout(TIMEOUT).unwrap(), 'a');
    }
}
