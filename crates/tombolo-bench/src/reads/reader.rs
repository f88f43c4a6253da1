//! The measured program: it fills an area, and then its threads read one word of uniformly random
//! pages, or of one page after the other. It knows nothing of what serves its memory, but for the bare pager, which it has to let in.

use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tombolo_app::size;
use tombolo_host::cpu::Stopwatch;
use tombolo_host::probe::{Area, PAGE_BYTES, PAGE_WORDS};
use tombolo_random::{Random, mix};

use super::bare::{self, BarePager};
use crate::{Failure, join_group};

/// Arguments of the measured program.
#[derive(Args, Clone)]
pub struct Arguments {
    /// Threads that read.
    #[arg(long)]
    pub threads: usize,
    /// Length of the area.
    #[arg(long, value_parser = size::bytes)]
    pub bytes: usize,
    /// How long to read, after as many reads as the area has pages.
    #[arg(long)]
    pub seconds: f64,
    /// What the pages hold.
    #[arg(long, default_value = "half")]
    pub fill: Fill,
    /// Which page is read next.
    #[arg(long, default_value = "random")]
    pub order: Order,
    /// Join the control group of this cgroup.procs file first.
    #[arg(long)]
    pub join: Option<PathBuf>,
    /// Be served by the bare pager.
    #[command(flatten)]
    pub bare: bare::Options,
}

/// Which page a thread reads next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Any.
    Random,
    /// The next one; threads begin at equal distances.
    Sequential,
}

/// What a page holds. It matters where pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fill {
    /// One word that is not zero.
    Word,
    /// Incompressible words in its first half, zeros in the second.
    Half,
    /// Incompressible words.
    Full,
}

impl Fill {
    /// Words of each page that are not zero.
    pub fn words(self) -> usize {
        match self {
            Self::Word => 1,
            Self::Half => PAGE_WORDS / 2,
            Self::Full => PAGE_WORDS,
        }
    }
}

/// What one run found.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Reads of all threads together.
    pub reads: u64,
    /// Wall time of the loop.
    pub wall_s: f64,
    /// CPU time of the whole machine during the loop.
    pub cpu_s: f64,
}

/// The word at an index of the area: incompressible.
pub fn word(index: usize) -> u64 {
    mix(index as u64)
}

/// What the threads share.
struct Loop<'a> {
    area: &'a Area,
    order: Order,
    threads: usize,
    warm_up: usize,
    /// Threads meet here before the loop and start it together.
    start: Barrier,
    stop: AtomicBool,
    reads: AtomicU64,
    wrong: AtomicBool,
}

impl Loop<'_> {
    /// Reads the next page of a thread that has read this many.
    fn read(&self, number: usize, random: &mut Random, done: usize) -> bool {
        let pages = self.area.pages();
        let page = match self.order {
            Order::Random => random.index(pages),
            Order::Sequential => (number * pages / self.threads + done) % pages,
        };
        let index = page * PAGE_WORDS;
        self.area.read(index) == word(index)
    }

    /// One thread's reads.
    fn run(&self, number: usize) {
        let mut random = Random::new(number as u64);
        let warm = (0..self.warm_up).all(|done| self.read(number, &mut random, done));
        self.start.wait();
        let mut reads = 0;
        let mut right = warm;
        while right && !self.stop.load(Ordering::Relaxed) {
            right = self.read(number, &mut random, self.warm_up + reads);
            reads += 1;
        }
        self.reads.fetch_add(reads as u64, Ordering::Relaxed);
        self.wrong.fetch_or(!right, Ordering::Relaxed);
    }
}

/// Reads with all threads at once.
fn measure(area: &Area, order: Order, threads: usize, time: Duration) -> Result<Found, Failure> {
    let shared = Loop {
        area,
        order,
        threads,
        warm_up: area.pages() / threads,
        start: Barrier::new(threads + 1),
        stop: AtomicBool::new(false),
        reads: AtomicU64::new(0),
        wrong: AtomicBool::new(false),
    };
    let (wall_s, cpu_s) = std::thread::scope(|scope| {
        for number in 0..threads {
            let shared = &shared;
            scope.spawn(move || shared.run(number));
        }
        shared.start.wait();
        let watch = Stopwatch::start();
        std::thread::sleep(time);
        shared.stop.store(true, Ordering::Relaxed);
        watch?.elapsed()
    })?;
    if shared.wrong.load(Ordering::Relaxed) {
        return Err(Failure::new("a page does not hold what was written to it"));
    }
    Ok(Found { reads: shared.reads.load(Ordering::Relaxed), wall_s, cpu_s })
}

/// Runs it and prints what it found as JSON.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.threads == 0 || arguments.bytes < PAGE_BYTES {
        return Err(Failure::new("at least one thread and one page are needed"));
    }
    let time = Duration::try_from_secs_f64(arguments.seconds)?;
    if let Some(procs) = &arguments.join {
        join_group(procs)?;
    }
    let area = Area::new(arguments.bytes / PAGE_BYTES)?;
    let found = if arguments.bare.local == 0 {
        for page in 0..area.pages() {
            for index in (page * PAGE_WORDS..).take(arguments.fill.words()) {
                area.write(index, word(index));
            }
        }
        measure(&area, arguments.order, arguments.threads, time)?
    } else {
        let pager = BarePager::start(&area, &arguments.bare, arguments.fill)?;
        std::thread::scope(|scope| {
            scope.spawn(|| pager.evict(&area));
            let found = measure(&area, arguments.order, arguments.threads, time);
            pager.stop();
            found
        })?
    };
    crate::print_json(&found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_read_what_was_written() {
        let area = Area::new(64).unwrap();
        (0..64).for_each(|page| area.write(page * PAGE_WORDS, word(page * PAGE_WORDS)));
        for order in [Order::Random, Order::Sequential] {
            let found = measure(&area, order, 3, Duration::from_millis(1)).unwrap();
            assert!(found.wall_s > 0.0);
        }
        area.write(5 * PAGE_WORDS, 1);
        // 64 reads of warm-up or those of the loop meet it.
        for order in [Order::Random, Order::Sequential] {
            assert!(measure(&area, order, 1, Duration::from_secs(1)).is_err());
        }
    }
}
