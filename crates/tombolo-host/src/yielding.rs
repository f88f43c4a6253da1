//! Giving the processor to others between two looks of a thread that polls.
//!
//! Such a thread is always ready to run, and the scheduler moves none that has run only just now. So two that wait for
//! each other may stay on one processor, each answering only when the other yields, while the other processor has none but
//! a thread that stands back: also when one of them sleeps for a moment, since on a busy machine the scheduler looks for
//! no other processor for who wakes. So a thread that has shared its processor for some time moves to another one by
//! itself.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::timing::host as timing;

/// So many yields in a row, in each of which another thread has run, are no chance: a thread that runs now and then,
/// as an interrupt's does, is met once. A bound, not a measurement.
const SHARED_YIELDS: u32 = 16;

/// The yields of a thread of ours: whoever else changes what processors it may run on at the very moment in which it moves
/// has the change undone.
#[derive(Debug)]
pub struct Yielder {
    start: Instant,
    /// Yields since the last in which nobody else has run.
    shared: AtomicU32,
    /// After so many of them it moves: drawn, since where both of two move at once, they meet again.
    bound: AtomicU32,
    /// Nanoseconds after `start` before which it does not move again.
    next_ns: AtomicU64,
    pause_ns: AtomicU64,
}

impl Default for Yielder {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            shared: AtomicU32::new(0),
            bound: AtomicU32::new(draw(std::process::id().into())),
            next_ns: AtomicU64::new(0),
            pause_ns: AtomicU64::new(nanoseconds(*timing::MOVE_PAUSE.start())),
        }
    }
}

impl Yielder {
    /// Lets another thread run that is ready to on this processor. Where there was one each time lately, this thread
    /// moves.
    pub fn yield_now(&self) {
        let since = Instant::now();
        std::thread::yield_now();
        let now = Instant::now();
        if self.has_to_move(now - since, now - self.start) {
            // Where it may not, it stays.
            let _ = move_away();
        }
    }

    /// After a yield that took so long.
    fn has_to_move(&self, took: Duration, now: Duration) -> bool {
        if took < timing::SHARED_YIELD {
            self.shared.store(0, Ordering::Relaxed);
            return false;
        }
        let shared = self.shared.load(Ordering::Relaxed).saturating_add(1);
        self.shared.store(shared, Ordering::Relaxed);
        let (now_ns, next_ns) = (nanoseconds(now), self.next_ns.load(Ordering::Relaxed));
        if shared < self.bound.load(Ordering::Relaxed) || now_ns < next_ns {
            return false;
        }
        let (first_ns, last_ns) =
            (nanoseconds(*timing::MOVE_PAUSE.start()), nanoseconds(*timing::MOVE_PAUSE.end()));
        // Where the last move has helped, it was alone for some time.
        let pause_ns = match now_ns > next_ns.saturating_add(last_ns) {
            true => first_ns,
            false => self.pause_ns.load(Ordering::Relaxed),
        };
        self.shared.store(0, Ordering::Relaxed);
        self.bound.store(draw(now_ns), Ordering::Relaxed);
        self.next_ns.store(now_ns.saturating_add(pause_ns), Ordering::Relaxed);
        self.pause_ns.store((pause_ns * 2).min(last_ns), Ordering::Relaxed);
        true
    }
}

/// Has this thread run on another processor than now, if it may.
fn move_away() -> io::Result<()> {
    let all = rustix::thread::sched_getaffinity(None)?;
    let mut others = all;
    others.unset(rustix::thread::sched_getcpu());
    if others.count() > 0 {
        rustix::thread::sched_setaffinity(None, &others)?;
        rustix::thread::sched_setaffinity(None, &all)?;
    }
    Ok(())
}

/// A bound, by a number that differs from thread to thread.
fn draw(number: u64) -> u32 {
    SHARED_YIELDS + (number % u64::from(SHARED_YIELDS)) as u32
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Duration = Duration::from_nanos(400);
    const WITH_ANOTHER: Duration = Duration::from_micros(10);

    /// When it moves in this span, yielding every so often.
    fn moves(yielder: &Yielder, span: std::ops::Range<u64>, took: Duration) -> Vec<u64> {
        span.filter(|ms| (0..1000).any(|_| yielder.has_to_move(took, Duration::from_millis(*ms)))).collect()
    }

    #[test]
    fn a_thread_that_shares_its_processor_moves_more_and_more_seldom() {
        let yielder = Yielder::default();
        assert_eq!(moves(&yielder, 0..1000, ALONE), []);
        let shared = moves(&yielder, 1000..3000, WITH_ANOTHER);
        let pauses: Vec<u64> = shared.windows(2).map(|pair| pair[1] - pair[0]).take(8).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 160]);
        assert_eq!(moves(&yielder, 3000..4000, ALONE), []);
        assert_eq!(moves(&yielder, 4000..4008, WITH_ANOTHER), [4000, 4002, 4006]);
    }

    #[test]
    fn a_thread_that_moves_may_run_where_it_might_before() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        move_away().unwrap();
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before);
        let mut one = rustix::thread::CpuSet::new();
        one.set(rustix::thread::sched_getcpu());
        std::thread::spawn(move || {
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            move_away().unwrap();
            assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), one);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_runs_now_and_then_moves_nobody() {
        let yielder = Yielder::default();
        for ms in 1..10_000 {
            let took = if ms % 10 == 0 { ALONE } else { WITH_ANOTHER };
            assert!(!yielder.has_to_move(took, Duration::from_millis(ms)));
        }
    }
}
