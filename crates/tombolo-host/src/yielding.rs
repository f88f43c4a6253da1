//! Giving the processor to others between two looks of a thread that polls.
//!
//! Such a thread is always ready to run, and the scheduler moves none that has run only just now. So two that wait for
//! each other may stay on one processor, each answering only when the other yields, while the other processor has none but
//! a thread that stands back: also when one of them sleeps for a moment, since on a busy machine the scheduler looks for
//! no other processor for who wakes. So a thread that has shared its processor for some time moves to another one by
//! itself.

use std::io;
use std::time::{Duration, Instant};

use crate::timing::host as timing;

/// So many yields in a row, in each of which another thread has run, are no chance: a thread that runs now and then,
/// as an interrupt's does, is met once. A bound, not a measurement.
const SHARED_YIELDS: u64 = 16;

/// The yields of a thread of ours: whoever else changes what processors it may run on at the very moment in which it moves
/// has the change undone. Not for threads of which more poll than there are processors: they move in vain.
#[derive(Debug)]
pub struct Yielder {
    start: Instant,
    /// Yields since the last in which nobody else has run.
    shared: u64,
    /// After so many of them it moves: drawn, since where both of two move at once, they meet again.
    bound: u64,
    /// After `start`: it does not move again before.
    next: Duration,
    pause: Duration,
}

impl Default for Yielder {
    fn default() -> Self {
        let bound = draw(std::process::id().into());
        let (next, pause) = (Duration::ZERO, *timing::MOVE_PAUSE.start());
        Self { start: Instant::now(), shared: 0, bound, next, pause }
    }
}

impl Yielder {
    /// Lets another thread run that is ready to on this processor. Where there was one each time lately, this thread
    /// moves.
    pub fn yield_now(&mut self) {
        let since = Instant::now();
        std::thread::yield_now();
        let now = Instant::now();
        if self.has_to_move(now - since, now - self.start) {
            // Where it may not, it stays.
            let _ = move_away();
        }
    }

    /// After a yield that took so long.
    fn has_to_move(&mut self, took: Duration, now: Duration) -> bool {
        if took < timing::SHARED_YIELD {
            self.shared = 0;
            return false;
        }
        self.shared += 1;
        if self.shared < self.bound || now < self.next {
            return false;
        }
        // Where the last move has helped, it was alone for some time.
        if now > self.next + *timing::MOVE_PAUSE.end() {
            self.pause = *timing::MOVE_PAUSE.start();
        }
        (self.shared, self.bound) = (0, draw(u64::from(now.subsec_nanos())));
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(*timing::MOVE_PAUSE.end());
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
fn draw(number: u64) -> u64 {
    SHARED_YIELDS + number % SHARED_YIELDS
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Duration = Duration::from_nanos(400);
    const WITH_ANOTHER: Duration = Duration::from_micros(10);

    /// When it moves in this span, yielding every so often.
    fn moves(yielder: &mut Yielder, span: std::ops::Range<u64>, took: Duration) -> Vec<u64> {
        span.filter(|ms| (0..1000).any(|_| yielder.has_to_move(took, Duration::from_millis(*ms)))).collect()
    }

    #[test]
    fn a_thread_that_shares_its_processor_moves_more_and_more_seldom() {
        let mut yielder = Yielder::default();
        assert_eq!(moves(&mut yielder, 0..1000, ALONE), []);
        let shared = moves(&mut yielder, 1000..3000, WITH_ANOTHER);
        let pauses: Vec<u64> = shared.windows(2).map(|pair| pair[1] - pair[0]).take(8).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 160]);
        assert_eq!(moves(&mut yielder, 3000..4000, ALONE), []);
        assert_eq!(moves(&mut yielder, 4000..4008, WITH_ANOTHER), [4000, 4002, 4006]);
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
        let mut yielder = Yielder::default();
        for ms in 1..10_000 {
            let took = if ms % 10 == 0 { ALONE } else { WITH_ANOTHER };
            assert!(!yielder.has_to_move(took, Duration::from_millis(ms)));
        }
    }
}
