//! The measured program. It knows nothing of who serves its memory: the pager,
//! the kernel's swap, or nobody. It checks what it reads.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use tombolo_host::cpu::Stopwatch;
use tombolo_host::probe::{Area, PAGE_BYTES, PAGE_WORDS};
use tombolo_host::process;
use tombolo_random::Random;

use super::contents::{self, Permutation};
use crate::summary::{Samples, Summary};
use crate::{Failure, join_group, print_json};

const SEED: u64 = 5;
/// Words in a cache line, the size of a node of the chase.
const NODE_WORDS: usize = 8;
/// Rounds of the measurement of faults; the first is not counted.
const FAULT_ROUNDS: usize = 5;
/// Evictions that are under way end in this time.
const SETTLE: Duration = Duration::from_millis(100);
/// A chase that is slower than expected ends early.
const CHASE_MOST: Duration = Duration::from_secs(15);

/// Arguments of the measured program.
#[derive(Args)]
pub struct Arguments {
    /// What to do.
    kind: Kind,
    /// Memory to use, in bytes.
    #[arg(long)]
    area: usize,
    /// How much of it may be resident, in bytes.
    #[arg(long, default_value_t = 0)]
    local: usize,
    /// Accesses to measure.
    #[arg(long, default_value_t = 0)]
    count: usize,
    /// The second half of each page is zero.
    #[arg(long)]
    half: bool,
    /// Join the control group of this cgroup.procs file first.
    #[arg(long)]
    join: Option<PathBuf>,
}

/// What the measured program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Faults alone: pages that are far, each read once while there is room.
    Faults,
    /// Uniformly random reads of pages, evictions included.
    Reads,
    /// As `reads`, but half of the accesses write a word.
    Mixed,
    /// Writes of whole pages, one after the other, evictions included.
    Writes,
    /// A walk along a random cycle through all cache lines.
    Chase,
    /// Threads that allocate blocks, fill and free them.
    Churn,
}

/// Memory that was filled from the seed.
struct Filled {
    area: Area,
    /// Words of each page that are not zero.
    words: usize,
}

impl Filled {
    fn new(bytes: usize, half: bool) -> Result<Self, Failure> {
        let words = if half { PAGE_WORDS / 2 } else { PAGE_WORDS };
        Ok(Self { area: Area::new(bytes.div_ceil(PAGE_BYTES))?, words })
    }

    fn fill(&self, pages: std::ops::Range<usize>) {
        for page in pages {
            for word in 0..self.words {
                let index = page * PAGE_WORDS + word;
                self.area.write(index, contents::word(SEED, index));
            }
        }
    }

    /// Reads a random word of a page, takes the time of that, and checks it and another one.
    #[inline]
    fn timed_read(&self, page: usize, random: &mut Random) -> Result<u64, Failure> {
        let (first, second) = (random.index(self.words), random.index(self.words));
        let (first, second) = (page * PAGE_WORDS + first, page * PAGE_WORDS + second);
        let since = Instant::now();
        let found = self.area.read(first);
        let latency = since.elapsed();
        if found != contents::word(SEED, first) || self.area.read(second) != contents::word(SEED, second) {
            return Err(Failure::new(format!("page {page} does not hold what was written to it")));
        }
        Ok(latency.as_nanos() as u64)
    }

    /// The same, or, as often, takes the time of a write of what is there already, and checks another word.
    #[inline]
    fn timed_access(&self, page: usize, random: &mut Random) -> Result<u64, Failure> {
        if random.below(2) == 0 {
            return self.timed_read(page, random);
        }
        let (first, second) = (random.index(self.words), random.index(self.words));
        let (first, second) = (page * PAGE_WORDS + first, page * PAGE_WORDS + second);
        let value = contents::word(SEED, first);
        let since = Instant::now();
        self.area.write(first, value);
        let latency = since.elapsed();
        if self.area.read(second) != contents::word(SEED, second) {
            return Err(Failure::new(format!("page {page} does not hold what was written to it")));
        }
        Ok(latency.as_nanos() as u64)
    }
}

/// Runs it and prints figures as JSON.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(procs) = &arguments.join {
        join_group(procs)?;
    }
    let is_pinned = arguments.kind != Kind::Churn;
    if let Some(&processor) = process::processors().first().filter(|_| is_pinned) {
        process::pin_thread(processor)?;
    }
    match arguments.kind {
        Kind::Faults => print_json(&faults(arguments)?),
        Kind::Reads => print_json(&accesses(arguments, Filled::timed_read)?),
        Kind::Mixed => print_json(&accesses(arguments, Filled::timed_access)?),
        Kind::Writes => print_json(&writes(arguments)?),
        Kind::Chase => print_json(&chase(arguments)?),
        Kind::Churn => print_json(&churn(arguments)?),
    }
}

/// The first half of the area goes to far memory while the second is written;
/// then the second is given up, and there is room to read from the first.
fn faults(arguments: &Arguments) -> Result<Summary, Failure> {
    let filled = Filled::new(arguments.area, arguments.half)?;
    let (pages, local_pages) = (filled.area.pages(), arguments.local / PAGE_BYTES);
    let half = pages / 2;
    let most = arguments.count.div_ceil(FAULT_ROUNDS - 1);
    let mut samples = Samples::new(most * (FAULT_ROUNDS - 1))?;
    let mut random = Random::new(SEED);
    filled.fill(0..half);
    for round in 0..FAULT_ROUNDS {
        filled.fill(half..pages);
        std::thread::sleep(SETTLE);
        filled.area.discard(half, pages - half)?;
        let resident = filled.area.resident()?;
        let mut far: Vec<usize> = (0..half).filter(|&page| !resident[page]).collect();
        // Well below the limit, or evictions ahead of need would begin.
        let room = (local_pages * 3 / 4).saturating_sub(half - far.len());
        random.shuffle(&mut far);
        far.truncate(room.min(most));
        for page in far {
            let latency = filled.timed_read(page, &mut random)?;
            if round > 0 {
                samples.note(latency);
            }
        }
    }
    samples.summary()
}

/// As many accesses as the area has pages bring the residents into their steady state first.
fn accesses(
    arguments: &Arguments,
    timed: fn(&Filled, usize, &mut Random) -> Result<u64, Failure>,
) -> Result<Summary, Failure> {
    let filled = Filled::new(arguments.area, arguments.half)?;
    let pages = filled.area.pages();
    let mut samples = Samples::new(arguments.count)?;
    let mut random = Random::new(SEED);
    filled.fill(0..pages);
    for _ in 0..pages.min(arguments.count) {
        timed(&filled, random.index(pages), &mut random)?;
    }
    let watch = Stopwatch::start()?;
    for _ in 0..arguments.count {
        samples.note(timed(&filled, random.index(pages), &mut random)?);
    }
    let (_, cpu_s) = watch.elapsed()?;
    Ok(samples.summary()?.with_cpu_seconds(cpu_s))
}

/// Each page is new when it is written: what is far is never read. The first round, in which memory is borrowed, is not
/// counted.
fn writes(arguments: &Arguments) -> Result<Summary, Failure> {
    const ROUNDS: usize = 3;
    let filled = Filled::new(arguments.area, arguments.half)?;
    let (pages, local_pages) = (filled.area.pages(), arguments.local / PAGE_BYTES);
    let mut samples = Samples::new(pages.saturating_sub(local_pages) * (ROUNDS - 1))?;
    let mut cpu_s = 0.0;
    for round in 0..ROUNDS {
        let mut watch = Stopwatch::start()?;
        for page in 0..pages {
            if page == local_pages {
                watch = Stopwatch::start()?;
            }
            let since = Instant::now();
            filled.fill(page..page + 1);
            // Before, nothing has to leave.
            if round > 0 && page >= local_pages {
                samples.note(since.elapsed().as_nanos() as u64);
            }
        }
        if round > 0 {
            cpu_s += watch.elapsed()?.1;
        }
        filled.area.discard(0, pages)?;
    }
    Ok(samples.summary()?.with_cpu_seconds(cpu_s))
}

/// Every node names the next; several are in each page.
fn chase(arguments: &Arguments) -> Result<serde_json::Value, Failure> {
    let area = Area::new(arguments.area.div_ceil(PAGE_BYTES))?;
    let nodes = area.pages() * PAGE_WORDS / NODE_WORDS;
    let order = Permutation::new(SEED, nodes);
    let at = |position: u64| order.forward(position % nodes as u64);
    for node in 0..nodes as u64 {
        let first = node as usize * NODE_WORDS;
        area.write(first, at(order.backward(node) + 1));
        // About half-compressible, as the memory of programs often is.
        (first + 1..first + NODE_WORDS / 2).for_each(|word| area.write(word, contents::word(SEED, word)));
    }
    let mut node = at(0);
    let warm_up = arguments.count / 4;
    for _ in 0..warm_up {
        node = area.read(node as usize * NODE_WORDS);
    }
    let (watch, since) = (Stopwatch::start()?, Instant::now());
    let mut steps = 0;
    while steps < arguments.count && since.elapsed() < CHASE_MOST {
        for _ in 0..256 {
            node = area.read(node as usize * NODE_WORDS);
        }
        steps += 256;
    }
    let (wall_s, cpu_s) = watch.elapsed()?;
    if node != at((warm_up + steps) as u64) {
        return Err(Failure::new("the chase has left its path"));
    }
    let each_ns = |seconds: f64| seconds * 1e9 / steps.max(1) as f64;
    Ok(json!({ "count": steps, "mean_ns": each_ns(wall_s), "cpu_ns": each_ns(cpu_s) }))
}

/// Threads of the churn.
const CHURNERS: usize = 2;
/// Blocks of the churn have at least two to the power of one of these, all as likely, and less than twice as many bytes.
const BLOCKS: std::ops::Range<u32> = 16..24;

/// What a block of the churn holds.
struct Block {
    words: Vec<u64>,
    seed: u64,
}

impl Block {
    /// Allocated and filled.
    fn new(bytes: usize, seed: u64) -> Self {
        let mut words = Vec::with_capacity(bytes / size_of::<u64>());
        words.extend((0..bytes / size_of::<u64>()).map(|word| seed ^ word as u64));
        Self { words, seed }
    }

    fn is_right(&self) -> bool {
        self.words
            .iter()
            .step_by(PAGE_WORDS)
            .zip(0u64..)
            .all(|(word, page)| *word == self.seed ^ (page * PAGE_WORDS as u64))
    }
}

/// Allocates, fills and frees blocks until `pages` pages were filled. Returns whether each block held what was written to it.
fn churner(bytes: usize, pages: usize, seed: u64) -> bool {
    let mut random = Random::new(seed);
    let (mut held, mut blocks, mut filled) = (0, std::collections::VecDeque::<Block>::new(), 0);
    let mut is_right = true;
    while filled < pages {
        let shift = BLOCKS.start + random.below(u64::from(BLOCKS.end - BLOCKS.start)) as u32;
        let size = (1 << shift) + random.index(1 << shift) / PAGE_BYTES * PAGE_BYTES;
        while held + size > bytes
            && let Some(oldest) = blocks.pop_front()
        {
            is_right &= oldest.is_right();
            held -= oldest.words.len() * size_of::<u64>();
        }
        blocks.push_back(Block::new(size, random.next()));
        held += size;
        filled += size / PAGE_BYTES;
    }
    is_right && blocks.iter().all(Block::is_right)
}

/// What a page costs that is allocated, filled, looked at and freed.
fn churn(arguments: &Arguments) -> Result<serde_json::Value, Failure> {
    let (bytes, pages) = (arguments.area / CHURNERS, arguments.count / CHURNERS);
    let rounds = |pages| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CHURNERS)
                .map(|number| scope.spawn(move || churner(bytes, pages, SEED + number as u64)))
                .collect();
            threads.into_iter().all(|thread| thread.join().unwrap_or(false))
        })
    };
    let watch = Stopwatch::start()?;
    if !rounds(pages) {
        return Err(Failure::new("a block does not hold what was written to it"));
    }
    let (wall_s, cpu_s) = watch.elapsed()?;
    let each_ns = |seconds: f64| seconds * 1e9 / (pages * CHURNERS).max(1) as f64;
    Ok(json!({ "count": pages * CHURNERS, "mean_ns": each_ns(wall_s), "cpu_ns": each_ns(cpu_s) }))
}
