//! What nothing of Tombolo takes part in: what the kernel and the processors take at best.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use serde::Serialize;
use tombolo_app::size::Size;
use tombolo_client::OwnMemory;
use tombolo_host::process;
use tombolo_host::shared::SharedMemory;

use super::{ANSWER_TIMEOUT, LEAST_SAMPLES, LONG, SAMPLES};
use crate::Failure;
use crate::rdma::floor::cache_line;
use crate::summary::Samples;

/// Transfers from here on are compared with those between memory of the node.
pub(super) const LARGE: u64 = 64 << 10;
/// One of the pieces in which [`two_copies_ns`] hands bytes over (a block between two nodes), and how many may be on their way (as
/// many as of one transfer).
const PIECE: usize = 16 << 10;
const PIECES: usize = 16;

/// What the kernel takes at best.
#[derive(Debug, Serialize)]
pub(super) struct Floor {
    /// A cache line to another processor and back, both polling.
    pub(super) cache_line_round_trip_ns: f64,
    /// To wake a thread that sleeps.
    pub(super) wake_ns: f64,
    /// To touch the pages of each size for the first time, in one call.
    pub(super) first_touch: Vec<(u64, f64)>,
    /// To copy each large size twice, through memory that two threads share.
    pub(super) two_copies: Vec<(u64, f64)>,
}

impl Floor {
    /// For those sizes, with threads on the first and the last processor.
    pub(super) fn measure(sizes: &[Size], [first, last]: [usize; 2]) -> Result<Self, Failure> {
        let first_touch = sizes.iter().map(|size| Ok((size.0, first_touch_ns(size.0 as usize)?)));
        let large = sizes.iter().filter(|size| size.0 >= LARGE);
        let two_copies = large.map(|size| Ok((size.0, two_copies_ns(size.0 as usize, first, last)?)));
        Ok(Self {
            cache_line_round_trip_ns: cache_line(first, last)?,
            wake_ns: wake_ns(first, last)?,
            first_touch: first_touch.collect::<Result<_, Failure>>()?,
            two_copies: two_copies.collect::<Result<_, Failure>>()?,
        })
    }
}

/// From waking a thread that sleeps on another processor until it runs: half of there and back. Both are pinned: on
/// one processor a wake is a switch, and takes a microsecond, and that is where two threads alone may be put.
fn wake_ns(first: usize, last: usize) -> Result<f64, Failure> {
    const ROUNDS: u32 = 2000;
    let turn = AtomicU32::new(0);
    let wait = |wanted: u32| {
        while turn.load(Ordering::Acquire) != wanted {
            std::thread::park();
        }
    };
    let pass = |to: &std::thread::Thread, next: u32| {
        turn.store(next, Ordering::Release);
        to.unpark();
    };
    let measured = std::thread::scope(|scope| {
        let asker = scope.spawn(|| {
            process::pin_thread(first)?;
            let asker = std::thread::current();
            let other = scope.spawn(move || {
                let pinned = process::pin_thread(last);
                for round in 0..ROUNDS {
                    wait(round * 2 + 1);
                    pass(&asker, round * 2 + 2);
                }
                pinned
            });
            let mut samples = Samples::new(ROUNDS as usize)?;
            for round in 0..ROUNDS {
                let since = Instant::now();
                pass(other.thread(), round * 2 + 1);
                wait(round * 2 + 2);
                samples.note(since.elapsed().as_nanos() as u64 / 2);
            }
            other.join().map_err(|_| Failure::new("a thread failed"))??;
            Ok::<_, Failure>(samples.summary()?.median_ns)
        });
        asker.join()
    });
    measured.map_err(|_| Failure::new("a thread failed"))?
}

fn first_touch_ns(size: usize) -> Result<f64, Failure> {
    let memory = OwnMemory::map(size.max(4096))?;
    let mut samples = Samples::new(SAMPLES)?;
    let since = Instant::now();
    for number in 0..SAMPLES {
        memory.give_back(0, size)?;
        let one = Instant::now();
        memory.bring_in(0, size)?;
        samples.note(one.elapsed().as_nanos() as u64);
        if number > LEAST_SAMPLES && since.elapsed() > LONG {
            break;
        }
    }
    Ok(samples.summary()?.median_ns)
}

/// Time to move bytes from one thread's memory to another's through a ring that both have: the first copies into it, the second out of
/// it, each on a processor of its own, and both poll. No design in which threads of both programs copy takes less: here no page is looked
/// at, nothing is ordered, and neither thread waits for a processor.
fn two_copies_ns(size: usize, first: usize, last: usize) -> Result<f64, Failure> {
    let memory = |bytes| -> Result<SharedMemory, Failure> {
        let memory = SharedMemory::create("tombolo-bench", bytes)?;
        memory.span_mut(0, bytes)?.fill(7);
        Ok(memory)
    };
    let (source, target, ring) = (memory(size)?, memory(size)?, memory(PIECE * PIECES)?);
    // How many pieces were put into the ring, and taken out, since the beginning.
    let (put, taken, ended) = (&AtomicUsize::new(0), &AtomicUsize::new(0), &AtomicBool::new(false));
    let in_ring = |number: usize| number % PIECES * PIECE;
    let await_count = |counter: &AtomicUsize, least: usize| {
        let since = Instant::now();
        while counter.load(Ordering::Acquire) < least {
            if ended.load(Ordering::Relaxed) || since.elapsed() > ANSWER_TIMEOUT {
                return Err(Failure::new("the other thread does not answer"));
            }
        }
        Ok(())
    };
    let takes = || -> Result<(), Failure> {
        process::pin_thread(last)?;
        for (number, offset) in (0..size).step_by(PIECE).cycle().enumerate() {
            let is_there = await_count(put, number + 1);
            if ended.load(Ordering::Relaxed) {
                break;
            }
            is_there?;
            let bytes = PIECE.min(size - offset);
            target.span_mut(offset, bytes)?.copy_from(ring.span(in_ring(number), bytes)?);
            taken.store(number + 1, Ordering::Release);
        }
        Ok(())
    };
    let puts = || -> Result<f64, Failure> {
        process::pin_thread(first)?;
        let mut samples = Samples::new(SAMPLES)?;
        let since = Instant::now();
        let mut number = 0;
        for sample in 0..SAMPLES {
            let one = Instant::now();
            for offset in (0..size).step_by(PIECE) {
                await_count(taken, (number + 1_usize).saturating_sub(PIECES))?;
                let bytes = PIECE.min(size - offset);
                ring.span_mut(in_ring(number), bytes)?.copy_from(source.span(offset, bytes)?);
                number += 1;
                put.store(number, Ordering::Release);
            }
            await_count(taken, number)?;
            samples.note(one.elapsed().as_nanos() as u64);
            if sample > LEAST_SAMPLES && since.elapsed() > LONG {
                break;
            }
        }
        Ok(samples.summary()?.median_ns)
    };
    std::thread::scope(|scope| {
        let taking = scope.spawn(takes);
        let putting = scope.spawn(puts);
        let median = putting.join();
        ended.store(true, Ordering::Relaxed);
        let failed = || Failure::new("a thread failed");
        taking.join().map_err(|_| failed())??;
        median.map_err(|_| failed())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_size_both_threads_end() {
        for size in [1, PIECE - 1, PIECE, 3 * PIECE + 5, PIECE * PIECES + 1] {
            let processors = process::processors();
            let (first, last) = (processors[0], processors[processors.len() - 1]);
            assert!(two_copies_ns(size, first, last).unwrap() > 0.0, "{size}");
        }
    }
}
