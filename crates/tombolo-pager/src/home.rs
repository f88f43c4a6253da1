//! Where faults happen, so that only the handler on that processor is woken.
//!
//! A fault wakes every handler that does not rest. The one on the processor of
//! the faulting thread serves it in a few microseconds; where another one wins,
//! the thread has to be woken across processors, which costs several times as
//! much. So the processor of the faulting thread is sampled, and while all recent
//! samples name the same one, the handlers elsewhere rest.
//!
//! While more threads fault than there are handlers (a *crowd*), processors are busy anyway:
//! one handler then serves all faults, many with each call, and the others rest.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// No single home.
const ANYWHERE: usize = usize::MAX;
/// Samples that must agree.
const AGREE: usize = 3;
/// Samples among which threads are counted. So with this many handlers or more there is no crowd: one handler
/// for all of them would be the one that all wait for.
const SAMPLES: usize = 8;

/// What was seen of one fault.
#[derive(Clone, Copy, Debug)]
struct Sample {
    handler: usize,
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
    /// With a handler on each of the first `handlers` of these processors. With one processor, there is
    /// nothing to choose.
    pub fn new(processors: &[usize], handlers: usize) -> Self {
        Self {
            handler: AtomicUsize::new(ANYWHERE),
            crowded: AtomicBool::new(false),
            recent: Mutex::new(([Sample { handler: ANYWHERE, thread: 0 }; SAMPLES], 0)),
            processors: processors.to_vec(),
            handlers,
        }
    }

    /// Whether faults are for another handler than this.
    pub fn is_elsewhere(&self, handler: usize) -> bool {
        let home = self.handler.load(Ordering::Relaxed);
        home != ANYWHERE && home != handler
    }

    /// The processor where all faults happen, if it is one.
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

    /// A fault of this thread happened on this processor, by what handler `observer` saw. Returns whether
    /// anything has changed for the handlers.
    pub fn observe(&self, observer: usize, thread: u32, processor: usize) -> bool {
        if self.processors.len() < 2 {
            return false;
        }
        let handler = self.processors.iter().position(|&known| known == processor);
        // A processor without a handler is served from anywhere.
        let handler = handler.filter(|&handler| handler < self.handlers).unwrap_or(ANYWHERE);
        let mut recent = self.recent.lock();
        let (samples, turn) = &mut *recent;
        samples[*turn % SAMPLES] = Sample { handler, thread };
        let latest = |age: usize| samples[(*turn + SAMPLES - age) % SAMPLES];
        let agree = (0..AGREE).all(|age| latest(age).handler == handler);
        let distinct = (0..SAMPLES)
            .filter(|&place| {
                let thread = samples[place].thread;
                thread != 0 && samples[..place].iter().all(|other| other.thread != thread)
            })
            .count();
        let crowded = distinct > self.handlers;
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

/// Looks where threads last ran.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Opening the file costs as much as reading it.
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
            // The thread has ended; its number may be given to another.
            self.open = None;
            return None;
        };
        parse_processor(text.get(..length)?)
    }
}

/// Field 39 of `/proc/PID/stat`; the second may hold anything in parentheses.
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
        for _ in 0..AGREE {
            home.observe(0, 5, 7);
        }
        assert!(home.is_elsewhere(0) && !home.is_elsewhere(1));
        assert!(home.observe(0, 5, 4), "a thread elsewhere, or this one has moved");
        assert!(!home.is_elsewhere(0) && !home.is_elsewhere(1));
        home.observe(0, 5, 4);
        home.observe(0, 5, 4);
        assert!(!home.is_elsewhere(0) && home.is_elsewhere(1));
        assert!(home.observe(0, 5, 99), "a processor without a handler");
        assert!(!home.is_elsewhere(1));
    }

    #[test]
    fn a_processor_beyond_the_handlers_puts_none_to_rest() {
        let processors: Vec<usize> = (0..64).collect();
        let home = Home::new(&processors, 16);
        for _ in 0..AGREE {
            home.observe(0, 5, 40);
        }
        assert!((0..16).all(|handler| !home.is_elsewhere(handler)));
        assert_eq!(home.processor(), None);
    }

    #[test]
    fn one_handler_serves_a_crowd() {
        let home = Home::new(&[4, 7], 2);
        let observe = |thread| home.observe(1, thread, if thread % 2 == 0 { 4 } else { 7 });
        assert!(!observe(10) && !observe(11));
        assert!(observe(12), "three threads");
        assert!(home.is_crowded() && home.is_elsewhere(0) && !home.is_elsewhere(1));
        assert_eq!(home.processor(), None);
        let changed = (0..SAMPLES).filter(|sample| home.observe(0, 20 + *sample as u32 % 2, 4)).count();
        assert!(changed > 0 && !home.is_crowded(), "two threads");
        assert_eq!(home.processor(), Some(4));
    }

    #[test]
    fn one_processor_is_no_choice() {
        let home = Home::new(&[0], 2);
        for _ in 0..9 {
            assert!(!home.observe(0, 5, 0));
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
