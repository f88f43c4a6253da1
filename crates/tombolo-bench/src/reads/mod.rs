//! `tombolo-bench reads`: uniformly random reads, or sequential ones, not pinned, in an area of which a part is local.
//!
//! ```text
//! tombolo-bench reads bare zram tombolo --binary target/release/tombolo --threads 1,2,8 --rounds 3
//! ```
//!
//! In each round every peer runs once with each number of threads, in turn, so that a change of the
//! machine's speed meets all of them alike. A run that fails is reported with the reason, and the others go on.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tombolo_app::child::{STOP, interrupted};
use tombolo_app::size;
use tombolo_host::sparse::Pages;
use tombolo_host::{cpu, process, stops};

use crate::{Failure, result, this_binary};

pub mod bare;
mod far;
pub mod reader;
mod swap;
mod table;

use reader::{Fill, Order};

/// Arguments of `tombolo-bench reads`.
#[derive(Args)]
pub struct Arguments {
    /// What serves the memory.
    #[arg(required = true)]
    peers: Vec<Peer>,
    /// Numbers of threads that read, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1,2,8")]
    threads: Vec<usize>,
    /// Length of the area.
    #[arg(long, value_parser = size::bytes, default_value = "256M")]
    bytes: usize,
    /// How much of it may be local.
    #[arg(long, value_parser = size::bytes, default_value = "64M")]
    local: usize,
    /// How long to read, after as many reads as the area has pages.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// How often to run each peer.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// What the pages hold.
    #[arg(long, default_value = "half")]
    fill: Fill,
    /// Which page is read next.
    #[arg(long, default_value = "random")]
    order: Order,
    /// The `tombolo` to measure; may be given several times, to compare.
    #[arg(long)]
    binary: Vec<PathBuf>,
    /// Fault handlers of the bare pager; what is fastest for the number of threads unless given.
    #[arg(long)]
    handlers: Option<usize>,
    /// Events that a handler of the bare pager reads in one call; likewise.
    #[arg(long)]
    events: Option<usize>,
    /// The bare pager's handlers are threads of the reader's process.
    #[arg(long)]
    in_process: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What serves the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Peer {
    /// Nothing: all of the area is local.
    Plain,
    /// A pager that only faults, copies and evicts.
    Bare,
    /// The kernel's swap on zram, in a memory cgroup.
    Zram,
    /// Each `--binary`, with a lender over shm.
    Tombolo,
    /// Each `--binary` with 16 fault handlers, as it has on a machine of 16 processors.
    Many,
}

impl Peer {
    /// It is each of the `--binary`s.
    fn is_tombolo(self) -> bool {
        matches!(self, Self::Tombolo | Self::Many)
    }

    /// Fault handlers, if it is not said by the number of processors how many there are.
    fn handlers(self) -> Option<usize> {
        const MANY: usize = 16;
        (self == Self::Many).then_some(MANY)
    }
}

/// One who races.
#[derive(Clone, Debug)]
struct Racer {
    name: String,
    peer: Peer,
    binary: PathBuf,
}

/// What one peer needs for one run.
struct Run<'a> {
    arguments: &'a Arguments,
    threads: usize,
}

impl Run<'_> {
    /// Arguments of the measured program.
    fn reader(&self, seconds: f64) -> Vec<String> {
        let threads = self.threads.to_string();
        let (bytes, seconds) = (self.arguments.bytes.to_string(), seconds.to_string());
        let mut words = ["reader", "--threads", &threads, "--bytes", &bytes, "--seconds", &seconds]
            .map(str::to_owned)
            .to_vec();
        if let Some(fill) = self.arguments.fill.to_possible_value() {
            words.extend(["--fill".to_owned(), fill.get_name().to_owned()]);
        }
        if let Some(order) = self.arguments.order.to_possible_value() {
            words.extend(["--order".to_owned(), order.get_name().to_owned()]);
        }
        words
    }

    /// The longest that it may take.
    fn limit(&self) -> Duration {
        Duration::from_secs_f64(60.0 + self.arguments.seconds)
    }

    fn bare(&self) -> Vec<String> {
        let processors = process::processors().len();
        let (handlers, events) = if self.threads <= processors { (processors, 1) } else { (1, 16) };
        let handlers = self.arguments.handlers.unwrap_or(handlers);
        let events = self.arguments.events.unwrap_or(events);
        let mut words = self.reader(self.arguments.seconds);
        words.extend(["--local".to_owned(), self.arguments.local.to_string()]);
        words.extend(["--handlers".to_owned(), handlers.to_string()]);
        words.extend(["--events".to_owned(), events.to_string()]);
        if self.arguments.in_process {
            words.push("--in-process".to_owned());
        }
        words
    }

    fn measure(&self, racer: &Racer) -> Result<(reader::Found, Option<far::ByFault>), Failure> {
        let itself = |words: Vec<String>| -> Result<reader::Found, Failure> {
            let mut command = std::process::Command::new(this_binary()?);
            result(command.args(words), self.limit())
        };
        let alone = |found| (found, None);
        match racer.peer {
            Peer::Plain => itself(self.reader(self.arguments.seconds)).map(alone),
            Peer::Bare => itself(self.bare()).map(alone),
            Peer::Zram => swap::measure(self).map(alone),
            Peer::Tombolo | Peer::Many => far::measure(self, racer),
        }
    }
}

/// What one racer needed for a read, with one number of threads.
#[derive(Clone, Debug, Serialize)]
struct Row {
    racer: String,
    threads: usize,
    /// Wall time of the loop by the reads of all threads, of each run.
    wall_us: Vec<f64>,
    /// CPU time of the machine by the reads, of each run.
    cpu_us: Vec<f64>,
    /// What Tombolo's handlers did for each fault, of each run.
    handlers: Vec<far::ByFault>,
    /// Why runs have no result.
    failures: Vec<String>,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
struct Outcome {
    processors: usize,
    kernel: String,
    bytes: usize,
    local_bytes: usize,
    seconds: f64,
    rounds: usize,
    /// The most processors that were busy before a run, when nothing of the race was running.
    others_busy_processors: f64,
    rows: Vec<Row>,
}

/// How long the machine is watched before each run.
const WATCH: Duration = Duration::from_millis(300);

/// Touches as much memory as a run needs, and gives it back: memory that a virtual machine's host has
/// not backed yet costs several times as much at its first touch.
fn prefault(bytes: usize) -> Result<(), Failure> {
    Pages::new(bytes)?.prefault();
    Ok(())
}

fn racers(arguments: &Arguments) -> Result<Vec<Racer>, Failure> {
    let mut racers = Vec::new();
    for &peer in &arguments.peers {
        let name = peer.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        if !peer.is_tombolo() {
            racers.push(Racer { name, peer, binary: PathBuf::new() });
            continue;
        }
        if arguments.binary.is_empty() {
            return Err(Failure::new(format!("`{name}` needs --binary PATH")));
        }
        for binary in &arguments.binary {
            let name = if arguments.binary.len() == 1 {
                name.clone()
            } else {
                format!("{name} {}", binary.display())
            };
            racers.push(Racer { name, peer, binary: binary.clone() });
        }
    }
    Ok(racers)
}

fn check(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.threads.contains(&0) || arguments.rounds == 0 {
        return Err(Failure::new("at least one thread and one round are needed"));
    }
    if arguments.bytes < 1 << 20 || arguments.local < 1 << 20 {
        return Err(Failure::new("--bytes and --local have to be at least 1M"));
    }
    if !(0.01..=3600.0).contains(&arguments.seconds) {
        return Err(Failure::new("--seconds has to be between 0.01 and 3600"));
    }
    Ok(())
}

/// Runs the race and prints what was found.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    check(arguments)?;
    let racers = racers(arguments)?;
    stops::stop_on_signals(&STOP);
    let mut rows: Vec<Row> = Vec::new();
    for &threads in &arguments.threads {
        rows.extend(racers.iter().map(|racer| Row {
            racer: racer.name.clone(),
            threads,
            wall_us: Vec::new(),
            cpu_us: Vec::new(),
            handlers: Vec::new(),
            failures: Vec::new(),
        }));
    }
    let mut others_busy_processors = 0f64;
    for _ in 0..arguments.rounds {
        let runs =
            arguments.threads.iter().flat_map(|&threads| racers.iter().map(move |racer| (threads, racer)));
        for ((threads, racer), row) in runs.zip(&mut rows) {
            // The area, its far copy, and what lies between.
            prefault(arguments.bytes * 5 / 2)?;
            others_busy_processors = others_busy_processors.max(cpu::busy_processors(WATCH)?);
            match (Run { arguments, threads }).measure(racer) {
                Ok((found, handlers)) if found.reads > 0 => {
                    let reads = found.reads as f64 / 1e6;
                    row.wall_us.push(found.wall_s / reads);
                    row.cpu_us.push(found.cpu_s / reads);
                    row.handlers.extend(handlers);
                }
                Ok(_) => row.failures.push("not a single read ended".into()),
                Err(Failure(reason)) => row.failures.push(reason),
            }
            if interrupted() {
                return Err(Failure::new("interrupted"));
            }
            eprintln!("{}", table::line(row));
        }
    }
    let outcome = Outcome {
        processors: process::processors().len(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        bytes: arguments.bytes,
        local_bytes: arguments.local,
        seconds: arguments.seconds,
        rounds: arguments.rounds,
        others_busy_processors,
        rows,
    };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        table::lines(&outcome).iter().for_each(|line| println!("{line}"));
    }
    Ok(())
}
