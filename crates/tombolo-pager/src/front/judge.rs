//! For whom a signal was: the front's group, or the front alone.
//!
//! What is sent to the group reaches the witness, too, and before the front: the kernel begins with those that came to the group last. So a
//! signal for which there is a twin at the witness was for the group. Of the signals below 32 one at most waits at each of the two, so it is
//! looked for a twin before and after the front takes its own: a second one may come between.

use tombolo_host::signals::{FIRST_QUEUED, SignalSet, Taken};

/// Where signals wait.
pub(super) trait Queues {
    /// Takes one of the front's.
    fn own(&mut self, number: i32) -> Option<Taken>;
    /// Whether another one waits at the front.
    fn own_waits(&mut self, number: i32) -> bool;
    /// Takes one of the witness's.
    fn twin(&mut self, number: i32) -> Option<Taken>;
    /// Waits until what the witness has now has come to the front, too.
    fn settle(&mut self);
}

/// For whom a signal was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meant {
    /// Every process of the group, each of which has it.
    Group,
    /// The front, which stands for the program.
    Process,
}

/// Twins of queued signals that are kept at most. There are more only if the front's queue was full when theirs came.
const KEPT_MAX: usize = 4096;
const STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// What is known of signals that the front has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The next ones of these numbers are the group's: their twins were taken.
    announced: SignalSet,
    /// Twins of queued signals that come later.
    kept: Vec<Taken>,
}

impl Judge {
    /// Takes a signal that waits at the front.
    pub(super) fn take(&mut self, number: i32, queues: &mut impl Queues) -> Option<(Taken, Meant)> {
        if number >= FIRST_QUEUED {
            return self.take_queued(number, queues);
        }
        let before = u32::from(self.announced.contains(number)) + u32::from(queues.twin(number).is_some());
        if before > 0 {
            queues.settle();
        }
        let Some(taken) = queues.own(number) else {
            if before > 0 {
                self.announced = self.announced.with(number);
            }
            return None;
        };
        let after = queues.twin(number).is_some();
        self.announced = self.announced.without(number);
        if after || before > 1 {
            queues.settle();
            if queues.own_waits(number) {
                self.announced = self.announced.with(number);
            }
        }
        self.drop_opposites(number, queues);
        // Where another one waits, this one may have been the front's, and that one be the group's; or both are the group's, and the witness
        // had but one of them. None is to come twice.
        let is_for_group = before > 0 || after;
        Some((taken, if is_for_group { Meant::Group } else { Meant::Process }))
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
            if self.kept.len() == KEPT_MAX {
                self.kept.remove(0);
            }
            self.kept.push(twin);
        }
        Some((taken, Meant::Process))
    }

    /// A signal that continues a process drops those that stop it, and the other way round: where one was for the front alone, the witness
    /// still has what the front has not.
    fn drop_opposites(&mut self, number: i32, queues: &mut impl Queues) {
        let opposites: &[i32] = match number {
            libc::SIGCONT => &STOPS,
            number if STOPS.contains(&number) => &[libc::SIGCONT],
            _ => &[],
        };
        for opposite in opposites {
            if !queues.own_waits(*opposite) {
                self.announced = self.announced.without(*opposite);
                let _ = queues.twin(*opposite);
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

    /// A process's signals of two numbers: of one at most one waits.
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

    /// Signals come at random while others are judged.
    struct World<'a> {
        random: &'a mut Random,
        front: Waiting,
        witness: Waiting,
        /// The witness has it, and the front has not yet.
        between: Option<Taken>,
        /// For the group, for the front.
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

    /// Queued signals are all told apart. Of others none that was for the group is passed on as well; where they come one by one, and after
    /// any turmoil, they are told apart, too.
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
                world.sent = [[0; 2]; 2];
                world.send();
                world.settle();
                let passed_on = judge_all(&mut judge, &mut world);
                assert_eq!(passed_on, [world.sent[0][1], world.sent[1][1]], "one after the other");
            }
        });
    }
}
