//! Decides whether a signal was sent to the front's group or to the front alone.
//!
//! Used where the front is in the program's group. A signal for the group reaches the witness as well, and before the
//! front: the kernel delivers to the newest members first. The witness's copy is called the twin; it has the same number
//! and sender. A signal with a twin was for the group. At most one signal of a number below 32 waits at a process, so the
//! front asks for a twin before and after it takes its own signal: a second one may come in between.

use tombolo_host::jobs::STOPS;
use tombolo_host::signals::{FIRST_QUEUED, SignalSet, Taken};

/// The queues in which signals of the front and the witness wait.
pub(super) trait Queues {
    /// Takes a signal of this number that waits at the front.
    fn own(&mut self, number: i32) -> Option<Taken>;
    /// Whether another signal of this number waits at the front.
    fn own_waits(&mut self, number: i32) -> bool;
    /// Takes a signal of this number that waits at the witness.
    fn twin(&mut self, number: i32) -> Option<Taken>;
    /// The numbers of the signals that wait at the witness.
    fn twins(&mut self) -> SignalSet;
    /// Waits until the signals that the witness has now have reached the front.
    fn settle(&mut self);
}

/// The target of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meant {
    /// Every process of the group: each has got the signal.
    Group,
    /// The front, which stands for the program.
    Process,
}

/// Maximum number of kept twins. More could only come if the front's queue of signals was full.
const KEPT_MAX: usize = 4096;

/// What is known of signals that the front has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The next signal of each of these numbers is the group's: its twin was taken already, or merged with another at the witness.
    announced: SignalSet,
    /// Twins of queued signals that the front has not taken yet.
    kept: Vec<Taken>,
}

impl Judge {
    /// Takes a signal that waits at the front.
    pub(super) fn take(&mut self, number: i32, queues: &mut impl Queues) -> Option<(Taken, Meant)> {
        if number >= FIRST_QUEUED {
            return self.take_queued(number, queues);
        }
        let was_announced = self.announced.contains(number);
        let before = queues.twin(number);
        if before.is_some() {
            queues.settle();
        }
        let Some(taken) = queues.own(number) else {
            if before.is_some() {
                self.announced = self.announced.with(number);
            }
            return None;
        };
        let twins = [before, queues.twin(number)];
        self.announced = self.announced.without(number);
        let is_its = was_announced || twins.iter().flatten().any(|twin| twin.is_like(&taken));
        // If another signal of this number waits now, it cannot be told which of the two was the group's. The next one
        // counts as the group's: losing a signal is better than doubling it.
        let is_open = match twins {
            [None, None] => false,
            [Some(_), None] => was_announced || !is_its,
            [_, Some(_)] => true,
        };
        if is_open {
            queues.settle();
            if queues.own_waits(number) {
                self.announced = self.announced.with(number);
            }
        }
        self.drop_opposites(number, queues);
        Some((taken, if is_its { Meant::Group } else { Meant::Process }))
    }

    fn take_queued(&mut self, number: i32, queues: &mut impl Queues) -> Option<(Taken, Meant)> {
        let taken = queues.own(number)?;
        if let Some(place) = self.kept.iter().position(|kept| *kept == taken) {
            self.kept.remove(place);
            return Some((taken, Meant::Group));
        }
        while let Some(twin) = queues.twin(number) {
            if twin == taken {
                return Some((taken, Meant::Group));
            }
            self.keep(twin);
        }
        Some((taken, Meant::Process))
    }

    fn keep(&mut self, twin: Taken) {
        if self.kept.len() == KEPT_MAX {
            self.kept.remove(0);
        }
        self.kept.push(twin);
    }

    /// Drops the witness's signals that have no counterpart at the front: they were sent to the witness alone, for instance
    /// by a service manager that signals each process. Called when no signal has come for a while. If they were kept, a
    /// later signal would be taken for their counterpart.
    pub(super) fn forget(&mut self, queues: &mut impl Queues) {
        self.announced = SignalSet::default();
        self.kept.clear();
        for number in queues.twins().iter() {
            while let Some(twin) = queues.twin(number) {
                queues.settle();
                // Drop the twin, unless its signal has just come for the group.
                if !queues.own_waits(number) {
                    continue;
                }
                if number < FIRST_QUEUED {
                    self.announced = self.announced.with(number);
                    break;
                }
                self.keep(twin);
            }
        }
    }

    /// Drops twins of signals that the kernel has discarded at the front. A continuation discards pending stop signals, and
    /// a stop signal discards a pending continuation. If it was for the front alone, the witness still has the twin of the
    /// discarded signal.
    fn drop_opposites(&mut self, number: i32, queues: &mut impl Queues) {
        let opposites: &[i32] = match number {
            libc::SIGCONT => &STOPS,
            number if STOPS.contains(&number) => &[libc::SIGCONT],
            _ => &[],
        };
        for opposite in opposites {
            if queues.own_waits(*opposite) {
                continue;
            }
            self.announced = self.announced.without(*opposite);
            if queues.twin(*opposite).is_some() {
                queues.settle();
                // The twin is of a signal that has just come for the group.
                if queues.own_waits(*opposite) {
                    self.announced = self.announced.with(*opposite);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tombolo_random::{Random, Seeds};

    use super::*;

    const NUMBER: i32 = libc::SIGUSR1;
    const QUEUED: i32 = 40;

    /// A process's signals of two numbers: at most one of `NUMBER`, and any number of `QUEUED`.
    #[derive(Default)]
    struct Waiting {
        one: Option<Taken>,
        queue: VecDeque<Taken>,
    }

    impl Waiting {
        fn send(&mut self, taken: Taken) {
            match taken.number {
                NUMBER => drop(self.one.get_or_insert(taken)),
                _ => self.queue.push_back(taken),
            }
        }

        fn take(&mut self, number: i32) -> Option<Taken> {
            match number {
                NUMBER => self.one.take(),
                QUEUED => self.queue.pop_front(),
                _ => None,
            }
        }
    }

    /// A simulation in which signals come at random while earlier ones are judged.
    struct World<'a> {
        random: &'a mut Random,
        front: Waiting,
        witness: Waiting,
        /// A signal for the group that has reached the witness, but not the front.
        between: Option<Taken>,
        /// For each number: how many signals were sent to the group and to the front.
        sent: [[u64; 2]; 2],
        left: u32,
    }

    impl World<'_> {
        fn happens(&mut self) {
            while self.random.one_in(2) {
                if let Some(taken) = self.between.take() {
                    self.front.send(taken);
                }
                if self.left == 0 {
                    return;
                }
                self.left -= 1;
                self.send();
            }
        }

        fn send(&mut self) {
            let is_for_group = self.random.one_in(2);
            let number = self.random.among(&[NUMBER, QUEUED]);
            // Two senders, which send the same again and again.
            let sender = self.random.below(2) as i32;
            let taken = Taken { number, code: 0, sender, user: 0, value: 0 };
            self.sent[usize::from(number == QUEUED)][usize::from(!is_for_group)] += 1;
            if is_for_group {
                self.witness.send(taken);
                self.between = Some(taken);
            } else {
                self.front.send(taken);
            }
        }

        fn settle(&mut self) {
            if let Some(taken) = self.between.take() {
                self.front.send(taken);
            }
        }
    }

    impl Queues for World<'_> {
        fn settle(&mut self) {
            World::settle(self);
        }

        fn own(&mut self, number: i32) -> Option<Taken> {
            self.happens();
            let taken = self.front.take(number);
            self.happens();
            taken
        }

        fn twins(&mut self) -> SignalSet {
            self.happens();
            let queued = if self.witness.queue.is_empty() { None } else { Some(QUEUED) };
            let both = self.witness.one.map(|_| NUMBER).into_iter().chain(queued);
            both.fold(SignalSet::default(), SignalSet::with)
        }

        fn own_waits(&mut self, number: i32) -> bool {
            self.happens();
            if number == NUMBER { self.front.one.is_some() } else { !self.front.queue.is_empty() }
        }

        fn twin(&mut self, number: i32) -> Option<Taken> {
            self.happens();
            let taken = self.witness.take(number);
            self.happens();
            taken
        }
    }

    fn judge_all(judge: &mut Judge, world: &mut World<'_>) -> [u64; 2] {
        let mut passed_on = [0; 2];
        loop {
            for (place, number) in [NUMBER, QUEUED].into_iter().enumerate() {
                if let Some((_, Meant::Process)) = judge.take(number, world) {
                    passed_on[place] += 1;
                }
            }
            world.settle();
            if world.front.one.is_none() && world.front.queue.is_empty() && world.left == 0 {
                return passed_on;
            }
        }
    }

    /// For queued signals, the judge always tells the target correctly. For the other signals, it passes none on that was
    /// for the group. Where these come one by one, even after a burst, it tells their target correctly, too.
    #[test]
    fn seeds() {
        let command = "cargo test -p tombolo-pager judge::tests::seeds";
        Seeds::from_environment(2000).run(command, |seed| {
            let mut random = Random::new(seed);
            let left = random.below(40) as u32;
            let mut world = World {
                random: &mut random,
                front: Waiting::default(),
                witness: Waiting::default(),
                between: None,
                sent: [[0; 2]; 2],
                left,
            };
            let mut judge = Judge::default();
            let [passed_on, queued_passed_on] = judge_all(&mut judge, &mut world);
            assert!(passed_on <= world.sent[0][1], "{passed_on} of {:?}", world.sent);
            assert_eq!(queued_passed_on, world.sent[1][1], "{:?}", world.sent);
            assert!(judge.kept.is_empty());
            for _ in 0..20 {
                // A service manager signals each process, the front before the witness.
                if world.random.one_in(4) {
                    let number = world.random.among(&[NUMBER, QUEUED]);
                    world.witness.send(Taken { number, code: 0, sender: 0, user: 0, value: 0 });
                    judge.forget(&mut world);
                }
                world.sent = [[0; 2]; 2];
                world.send();
                world.settle();
                let passed_on = judge_all(&mut judge, &mut world);
                assert_eq!(passed_on, [world.sent[0][1], world.sent[1][1]], "one after the other");
            }
        });
    }
}
