//! The measured program: it fills its memory, forks a child that reads all of it, as it was at the fork, while it writes random pages
//! itself; and then forks one that sleeps. It knows nothing of what serves its memory.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};
use tombolo_app::size;
use tombolo_host::cpu::Stopwatch;
use tombolo_host::probe::{Area, PAGE_BYTES, PAGE_WORDS};
use tombolo_host::split::{self, Half};
use tombolo_random::{Random, mix};

use crate::{Failure, join_group};

/// Arguments of the measured program.
#[derive(Args, Clone)]
pub struct Arguments {
    /// How much it has.
    #[arg(long, value_parser = size::bytes)]
    pub bytes: usize,
    /// Fill the memory, and nothing else.
    #[arg(long)]
    pub fill_only: bool,
    /// Join the control group of this cgroup.procs file first.
    #[arg(long)]
    pub join: Option<PathBuf>,
}

/// What one run found.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// How long the fork took in the parent.
    pub fork_ms: f64,
    /// From the fork until the child has read all.
    pub dump_s: f64,
    /// Writes of the parent meanwhile.
    pub dump_writes: u64,
    /// The longest that 64 of them took.
    pub dump_worst_ms: f64,
    /// A write of the parent while its child sleeps.
    pub sleeping_us: f64,
    /// The longest that one of them took.
    pub sleeping_worst_ms: f64,
    /// All of it, from the first fork on.
    pub wall_s: f64,
    /// CPU time of the whole machine meanwhile.
    pub cpu_s: f64,
}

/// Writes between two looks at the child, and at the clock.
const BATCH: usize = 64;
/// How long writes beside a sleeping child are measured.
const SLEEPING: Duration = Duration::from_secs(2);

/// First word of a page after this number of writes to it.
fn word(page: usize, writes: u64) -> u64 {
    mix(page as u64) ^ writes
}

struct Store {
    area: Area,
    /// How often each page was written.
    writes: Vec<u64>,
    random: Random,
}

impl Store {
    fn new(bytes: usize) -> Result<Self, Failure> {
        let area = Area::new(bytes / PAGE_BYTES)?;
        let writes = vec![0; area.pages()];
        for page in 0..area.pages() {
            area.write(page * PAGE_WORDS, word(page, 0));
            // Half of a page can be compressed.
            for index in (page * PAGE_WORDS + 1..).take(PAGE_WORDS / 2) {
                area.write(index, mix(index as u64));
            }
        }
        Ok(Self { area, writes, random: Random::new(1) })
    }

    fn write_one(&mut self) {
        let page = self.random.index(self.area.pages());
        self.writes[page] += 1;
        self.area.write(page * PAGE_WORDS, word(page, self.writes[page]));
    }

    fn is_right(&self) -> bool {
        (0..self.area.pages()).all(|page| {
            let index = page * PAGE_WORDS;
            self.area.read(index) == word(page, self.writes[page])
                && self.area.read(index + 1) == mix(index as u64 + 1)
        })
    }

    /// Forks; the child runs this, and ends with its outcome.
    fn fork(child: impl FnOnce() -> bool) -> Result<Pid, Failure> {
        match split::fork()? {
            Half::Parent { child } => Ok(child),
            Half::Child => std::process::exit(i32::from(!child())),
        }
    }

    fn dump(&mut self, found: &mut Found) -> Result<(), Failure> {
        let since = Instant::now();
        let child = Self::fork(|| self.is_right())?;
        found.fork_ms = since.elapsed().as_secs_f64() * 1e3;
        loop {
            let batch = Instant::now();
            (0..BATCH).for_each(|_| self.write_one());
            found.dump_worst_ms = found.dump_worst_ms.max(batch.elapsed().as_secs_f64() * 1e3);
            found.dump_writes += BATCH as u64;
            if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG)? {
                found.dump_s = since.elapsed().as_secs_f64();
                return match status.exit_status() {
                    Some(0) => Ok(()),
                    _ => Err(Failure::new("the child has not found what was there at the fork")),
                };
            }
        }
    }

    fn beside_a_sleeper(&mut self, found: &mut Found) -> Result<(), Failure> {
        let child = Self::fork(|| {
            loop {
                std::thread::sleep(SLEEPING);
            }
        })?;
        let (since, mut writes) = (Instant::now(), 0);
        while since.elapsed() < SLEEPING {
            let one = Instant::now();
            self.write_one();
            found.sleeping_worst_ms = found.sleeping_worst_ms.max(one.elapsed().as_secs_f64() * 1e3);
            writes += 1;
        }
        found.sleeping_us = since.elapsed().as_secs_f64() * 1e6 / f64::from(writes);
        kill_process(child, Signal::KILL)?;
        waitpid(Some(child), WaitOptions::empty())?;
        Ok(())
    }
}

/// Runs it and prints what it found as JSON.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(procs) = &arguments.join {
        join_group(procs)?;
    }
    let mut store = Store::new(arguments.bytes.max(PAGE_BYTES))?;
    let mut found = Found::default();
    if !arguments.fill_only {
        let watch = Stopwatch::start()?;
        store.dump(&mut found)?;
        store.beside_a_sleeper(&mut found)?;
        (found.wall_s, found.cpu_s) = watch.elapsed()?;
        if !store.is_right() {
            return Err(Failure::new("the store has not what was written to it"));
        }
    }
    crate::print_json(&found)
}
