//! What takes long and must not hold up the engine: done on a thread of its own, a step of each in
//! turn, so that a short one need not wait for the end of a long one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// How far an errand is after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is more to be done.
    More,
    /// It waits for somebody else, and looks again in its next turn.
    Waits,
    /// Nothing is left.
    Over,
}

/// While all errands wait, they look again after this long.
const PAUSE: Duration = Duration::from_millis(1);

/// Something that takes many steps.
pub(crate) trait Errand: Send {
    /// Does some of it, for at most some tens of milliseconds. Does not wait.
    fn step(&mut self) -> Step;
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Box<dyn Errand>>,
    running: bool,
}

/// All errands of a node. The thread is there while there are any.
#[derive(Clone, Default)]
pub(crate) struct Errands(Arc<Mutex<Queue>>);

impl Errands {
    /// Takes one on. Err: there is no thread for it, and it is dropped.
    pub(crate) fn begin(&self, errand: Box<dyn Errand>) -> std::io::Result<()> {
        let mut queue = self.0.lock();
        queue.waiting.push_back(errand);
        if !queue.running {
            let errands = self.clone();
            let started = std::thread::Builder::new().name("errands".into()).spawn(move || errands.run());
            if let Err(error) = started {
                queue.waiting.clear();
                return Err(error);
            }
            queue.running = true;
        }
        Ok(())
    }

    fn run(&self) {
        // Errands in a row that wait.
        let mut idle = 0;
        loop {
            let mut queue = self.0.lock();
            let Some(mut errand) = queue.waiting.pop_front() else {
                queue.running = false;
                return;
            };
            drop(queue);
            let step = errand.step();
            idle = if step == Step::Waits { idle + 1 } else { 0 };
            if step == Step::Over {
                continue;
            }
            let mut queue = self.0.lock();
            queue.waiting.push_back(errand);
            if idle >= queue.waiting.len() {
                drop(queue);
                std::thread::sleep(PAUSE);
                idle = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    struct Steps(char, u32, Sender<char>);

    impl Errand for Steps {
        fn step(&mut self) -> Step {
            self.1 -= 1;
            self.2.send(self.0).unwrap();
            if self.1 > 0 { Step::More } else { Step::Over }
        }
    }

    struct Gate(std::sync::mpsc::Receiver<()>);

    impl Errand for Gate {
        fn step(&mut self) -> Step {
            let _ = self.0.recv();
            Step::Over
        }
    }

    struct Waiting(Arc<std::sync::atomic::AtomicBool>);

    impl Errand for Waiting {
        fn step(&mut self) -> Step {
            if self.0.load(std::sync::atomic::Ordering::Relaxed) { Step::Over } else { Step::Waits }
        }
    }

    #[test]
    fn those_that_wait_do_not_hold_up_others() {
        let errands = Errands::default();
        let enough = Arc::new(std::sync::atomic::AtomicBool::new(false));
        for _ in 0..100 {
            errands.begin(Box::new(Waiting(enough.clone()))).unwrap();
        }
        let (told, heard) = channel();
        errands.begin(Box::new(Steps('a', 50, told))).unwrap();
        for _ in 0..50 {
            assert_eq!(heard.recv_timeout(Duration::from_secs(60)).unwrap(), 'a');
        }
        enough.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    #[test]
    fn errands_take_turns_and_later_ones_find_a_thread_again() {
        let errands = Errands::default();
        let (told, heard) = channel();
        let (open, gate) = channel();
        errands.begin(Box::new(Gate(gate))).unwrap();
        errands.begin(Box::new(Steps('a', 3, told.clone()))).unwrap();
        errands.begin(Box::new(Steps('b', 1, told.clone()))).unwrap();
        open.send(()).unwrap();
        let next = || heard.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!([next(), next(), next(), next()], ['a', 'b', 'a', 'a']);
        errands.begin(Box::new(Steps('c', 1, told))).unwrap();
        assert_eq!(next(), 'c');
    }
}
