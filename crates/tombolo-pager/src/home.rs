//! Tracks where faults happen, so that only the handler on that processor is woken.
//!
//! A fault wakes every handler that does not rest, or only one of them if there are many. The handler on the processor of
//! the faulting thread serves it in a few microseconds. If another handler is first, the thread has to be woken across
//! processors, which costs several times as much. So the processor of the faulting thread is sampled, and while all recent
//! samples name the same one, the handlers elsewhere rest.
//!
//! A *crowd* is more faulting threads than there are handlers, or more than two of a single program. A program's page table
//! is served by one handler at a time anyway, and with a crowd the processors are busy. So one handler serves all faults,
//! many with each call, and the others rest. (Bare faults of one program on 16 processors, with 4 and 16 threads, took 3.2
//! and 3.5 us with one handler. With a handler on each processor they took 11 and 4.5 us, and 25 and 10 times the processor
//! time.)

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Value of a handler: there is no single home.
const ANYWHERE: usize = usize::MAX;
/// Number of latest samples that must agree on a home.
const AGREE: usize = 3;
/// Number of samples among which threads are counted. So with this many handlers or more, threads of several programs are
/// no crowd: a single handler would delay all of them.
const SAMPLES: usize = 8;
/// A program with more faulting threads than this is a crowd, however many handlers there are.
const ONES_OWN: usize = 2;

/// Where a fault was seen to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// In this space.
    pub space: u32,
    /// To this thread.
    pub thread: u32,
    /// On this processor.
    pub processor: usize,
}

/// What was seen of one fault.
#[derive(Clone, Copy, Debug)]
struct Sample {
    handler: usize,
    space: u32,
    thread: u32,
}

/// The handler that all faults are for, if there is one.
#[derive(Debug)]
pub struct Home {
    handler: AtomicUsize,
    crowded: AtomicBool,
    /// The latest samples, and the place of the next one.
    recent: Mutex<([Sample; SAMPLES], usize)>,
    /// All processors; the first ones have a handler each.
    processors: Vec<usize>,
    handlers: usize,
}

impl Home {
    /// Creates the tracker for a handler on each of the first `handlers` of these processors. With one processor, there is
    /// nothing to choose.
    pub fn new(processors: &[usize], handlers: usize) -> Self {
        Self {
            handler: AtomicUsize::new(ANYWHERE),
            crowded: AtomicBool::new(false),
            recent: Mutex::new(([Sample { handler: ANYWHERE, space: 0, thread: 0 }; SAMPLES], 0)),
            processors: processors.to_vec(),
            handlers,
        }
    }

    /// Whether another handler than this one is to serve all faults.
    pub fn is_elsewhere(&self, handler: usize) -> bool {
        let home = self.handler.load(Ordering::Relaxed);
        home != ANYWHERE && home != handler
    }

    /// The processor where all faults happen, if there is one.
    pub fn processor(&self) -> Option<usize> {
        if self.is_crowded() {
            return None;
        }
        self.processors.get(self.handler.load(Ordering::Relaxed)).copied()
    }

    /// Whether one handler serves all faults, because many threads have them.
    pub fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    /// All processors.
    pub fn processors(&self) -> &[usize] {
        &self.processors
    }

    /// Notes a fault that handler `observer` has seen. Returns whether the home, or whether there is a crowd, has changed.
    pub fn observe(&self, observer: usize, Seen { space, thread, processor }: Seen) -> bool {
        if self.processors.len() < 2 {
            return false;
        }
        let handler = self.processors.iter().position(|&known| known == processor);
        // Faults on a processor without a handler are served by any handler.
        let handler = handler.filter(|&handler| handler < self.handlers).unwrap_or(ANYWHERE);
        let mut recent = self.recent.lock();
        let (samples, turn) = &mut *recent;
        samples[*turn % SAMPLES] = Sample { handler, space, thread };
        let latest = |age: usize| samples[(*turn + SAMPLES - age) % SAMPLES];
        let agree = (0..AGREE).all(|age| latest(age).handler == handler);
        let known = || samples.iter().filter(|sample| sample.thread != 0);
        let of = |space: u32| known().filter(move |sample| sample.space == space);
        let distinct = |samples: &mut dyn Iterator<Item = &Sample>| {
            let mut threads: Vec<u32> = samples.map(|sample| sample.thread).collect();
            threads.sort_unstable();
            threads.dedup();
            threads.len()
        };
        // A single sample of another program changes nothing.
        let most = known().map(|sample| sample.space).max_by_key(|&space| of(space).count()).unwrap_or(space);
        let is_ones_own = of(most).count() + 1 >= known().count();
        let crowded = distinct(&mut known()) > self.handlers
            || (is_ones_own && distinct(&mut of(most)) > self.handlers.min(ONES_OWN));
        *turn += 1;
        let before = self.handler.load(Ordering::Relaxed);
        let was_crowded = self.crowded.swap(crowded, Ordering::Relaxed);
        let home = match (crowded, was_crowded, agree) {
            (true, true, _) => before,
            (true, false, _) => observer,
            (false, _, true) => handler,
            (false, _, false) => ANYWHERE,
        };
        self.handler.store(home, Ordering::Relaxed);
        home != before || crowded != was_crowded
    }
}

/// Reads on which processor a thread last ran.
#[derive(Debug, Default)]
pub struct Sampler {
    /// The thread seen last and its open file: opening the file costs as much as reading it.
    open: Option<(u32, File)>,
}

impl Sampler {
    /// The processor that a thread last ran on.
    pub fn processor_of(&mut self, thread: u32) -> Option<usize> {
        if self.open.as_ref().is_none_or(|(known, _)| *known != thread) {
            let file = File::open(format!("/proc/{thread}/task/{thread}/stat")).ok()?;
            self.open = Some((thread, file));
        }
        let (_, file) = self.open.as_ref()?;
        let mut text = [0u8; 512];
        let Ok(length) = file.read_at(&mut text, 0) else {
            // The thread has ended, and its number may be another thread's later.
            self.open = None;
            return None;
        };
        parse_processor(text.get(..length)?)
    }
}

/// Reads field 39 of `/proc/PID/stat`. The second field may hold anything in parentheses.
fn parse_processor(stat: &[u8]) -> Option<usize> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_rest_only_while_all_faults_are_elsewhere() {
        let home = Home::new(&[4, 7], 2);
        assert!(!home.is_elsewhere(0) && !home.is_elsewhere(1));
        let observe = |processor| home.observe(0, Seen { space: 1, thread: 5, processor });
        for _ in 0..AGREE {
            observe(7);
        }
        assert!(home.is_elsewhere(0) && !home.is_elsewhere(1));
        assert!(observe(4), "a thread elsewhere, or this one has moved");
        assert!(!home.is_elsewhere(0) && !home.is_elsewhere(1));
        observe(4);
        observe(4);
        assert!(!home.is_elsewhere(0) && home.is_elsewhere(1));
        assert!(observe(99), "a processor without a handler");
        assert!(!home.is_elsewhere(1));
    }

    #[test]
    fn a_processor_beyond_the_handlers_puts_none_to_rest() {
        let processors: Vec<usize> = (0..64).collect();
        let home = Home::new(&processors, 16);
        for _ in 0..AGREE {
            home.observe(0, Seen { space: 1, thread: 5, processor: 40 });
        }
        assert!((0..16).all(|handler| !home.is_elsewhere(handler)));
        assert_eq!(home.processor(), None);
    }

    #[test]
    fn one_handler_serves_a_crowd() {
        let home = Home::new(&[4, 7], 2);
        let processor = |thread| if thread % 2 == 0 { 4 } else { 7 };
        let observe = |thread| home.observe(1, Seen { space: 1, thread, processor: processor(thread) });
        assert!(!observe(10) && !observe(11));
        assert!(observe(12), "three threads");
        assert!(home.is_crowded() && home.is_elsewhere(0) && !home.is_elsewhere(1));
        assert_eq!(home.processor(), None);
        let changed = (0..SAMPLES as u32).filter(|sample| {
            let thread = 20 + sample % 2;
            home.observe(0, Seen { space: 1, thread, processor: 4 })
        });
        let changed = changed.count();
        assert!(changed > 0 && !home.is_crowded(), "two threads");
        assert_eq!(home.processor(), Some(4));
    }

    /// One page table is served by one handler at a time anyway. The tables of several programs are served at the same
    /// time.
    #[test]
    fn threads_of_one_program_are_a_crowd_before_those_of_several() {
        let processors: Vec<usize> = (0..16).collect();
        let home = Home::new(&processors, 16);
        let observe =
            |space, thread| home.observe(3, Seen { space, thread, processor: thread as usize % 16 });
        for thread in 1..=8 {
            observe(thread % 4, thread);
        }
        assert!(!home.is_crowded(), "eight threads of four programs");
        for thread in 1..=SAMPLES as u32 {
            observe(7, thread % 3 + 1);
        }
        assert!(home.is_crowded() && !home.is_elsewhere(3) && home.is_elsewhere(0), "three of one");
        observe(8, 20);
        assert!(home.is_crowded(), "one of another");
        observe(8, 21);
        assert!(!home.is_crowded());
    }

    #[test]
    fn one_processor_is_no_choice() {
        let home = Home::new(&[0], 2);
        for _ in 0..9 {
            assert!(!home.observe(0, Seen { space: 1, thread: 5, processor: 0 }));
        }
        assert!(!home.is_elsewhere(1));
    }

    #[test]
    fn this_thread_runs_somewhere() {
        let mut sampler = Sampler::default();
        assert!(sampler.processor_of(std::process::id()).is_some());
        assert!(sampler.processor_of(std::process::id()).is_some());
        assert_eq!(sampler.processor_of(u32::MAX), None);
        assert_eq!(parse_processor(b"1 (a) b) S 1"), None);
        assert_eq!(parse_processor(b""), None);
    }
}
