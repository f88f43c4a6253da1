//! What takes long and must not hold up the engine: done on a thread of its own, a step of each in
//! turn, so that a short one need not wait for the end of a long one.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

/// Something that takes many steps.
pub(crate) trait Errand: Send {
    /// Does some of it, for at most some tens of milliseconds. False: it is over.
    fn step(&mut self) -> bool;
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
        loop {
            let mut queue = self.0.lock();
            let Some(mut errand) = queue.waiting.pop_front() else {
                queue.running = false;
                return;
            };
            drop(queue);
            if errand.step() {
                self.0.lock().waiting.push_back(errand);
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
        fn step(&mut self) -> bool {
            self.1 -= 1;
            self.2.send(self.0).unwrap();
            self.1 > 0
        }
    }

    struct Gate(std::sync::mpsc::Receiver<()>);

    impl Errand for Gate {
        fn step(&mut self) -> bool {
            let _ = self.0.recv();
            false
        }
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
