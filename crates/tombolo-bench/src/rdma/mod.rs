//! `tombolo-bench rdma`: transfers between two programs' domains, at one node, at
//! two, or with nodes inside the programs, beside what the machine can do at best.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tombolo_app::scratch::Scratch;
use tombolo_app::size::Size;
use tombolo_client::Memory;
use tombolo_host::process;

use crate::summary::Summary;
use crate::{Failure, name, print_json};

pub mod bare;
pub mod far;
pub mod floor;
mod interference;
mod measure;
pub mod pair;
mod targets;

use floor::Floor;
use interference::Interference;
use pair::Pair;
use targets::Target;

/// Arguments of `tombolo-bench rdma`.
#[derive(Args)]
pub struct Arguments {
    /// The `tombolo` whose nodes are measured; not needed with `--how embedded`.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// What is measured; everything unless given.
    #[arg(long, value_delimiter = ',')]
    op: Vec<Operation>,
    /// Between programs of one node (loopback), or of two; all unless given.
    #[arg(long, value_delimiter = ',')]
    link: Vec<Route>,
    /// With nodes in processes of their own, or inside the programs; both unless given.
    #[arg(long, value_delimiter = ',')]
    how: Vec<Engine>,
    /// Sizes of the transfers, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "16,64,256,1K,4K,16K,64K,256K,1M")]
    sizes: Vec<Size>,
    /// How long each figure is measured, in milliseconds.
    #[arg(long, default_value_t = 250)]
    milliseconds: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// From own memory to another domain's.
    Write,
    /// From another domain's memory to own.
    Read,
    /// A word of another domain is added to.
    Atomic,
    /// A message, and the same back.
    Mailbox,
    /// A write with a notification that the other program polls for, and the same back.
    PingPong,
}

/// Between which programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Of one node.
    Loopback,
    /// Of two nodes that share memory.
    Shm,
    /// Of two nodes over UDP on loopback, without keys.
    Udp,
    /// UDP, authenticated and encrypted.
    UdpSealed,
    /// UDP without keys that loses 1 % of the packets.
    UdpLoss,
}

/// Where the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// In a node, a process of its own.
    Node,
    /// Inside the program.
    Embedded,
}

/// Memory of each program.
const AREA: usize = 64 << 20;
/// Memory that nobody has touched yet costs many times what is measured.
fn touch(memory: &Memory) -> Result<(), Failure> {
    let zeros = vec![0; 1 << 20];
    (0..AREA).step_by(zeros.len()).try_for_each(|offset| memory.write(offset, &zeros))?;
    Ok(())
}

/// Where the words are that the programs poll, at the end of it.
const WORDS: usize = AREA - 4096;
/// The first byte of a message that is to be sent back, and of one that is not.
const ECHO: u8 = 1;
const DISCARD: u8 = 0;
const WARM_UP: usize = 200;
/// Each measurement ends when this much has been done, or this long has passed.
const SAMPLES: usize = 20_000;
const BYTES: u64 = 1 << 30;
static LONG_MS: AtomicU64 = AtomicU64::new(0);

fn long() -> Duration {
    Duration::from_millis(LONG_MS.load(Ordering::Relaxed))
}

/// Transfers under way at once while throughput is measured.
const WINDOW: usize = 16;
/// How long either side waits for the other; nothing that is measured takes nearly as long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    link: Route,
    how: Engine,
    op: Operation,
    size_bytes: u64,
    /// From posting to done, one at a time; of a message or a ping-pong, half of there and back.
    latency: Summary,
    /// With several under way; of a ping-pong, the size by the latency.
    bytes_per_s: f64,
}

#[derive(Debug, Serialize)]
struct Outcome {
    processors: usize,
    floor: Floor,
    rows: Vec<Row>,
    interference: Vec<Interference>,
    targets: Vec<Target>,
}

/// Where transfers go, one after the other: [`WINDOW`] places, so that the memory is warm.
struct Places {
    size: usize,
    at: usize,
}

impl Places {
    fn new(size: usize) -> Self {
        Self { size: size.next_multiple_of(64), at: 0 }
    }

    fn next(&mut self) -> usize {
        let count = WINDOW.min(WORDS / self.size.max(1)).max(1);
        self.at = (self.at + 1) % count;
        self.at * self.size
    }
}

impl Route {
    const ALL: [Self; 5] = [Self::Loopback, Self::Shm, Self::Udp, Self::UdpSealed, Self::UdpLoss];

    /// Which engines make sense: at home there is no link, and protection and loss are the link's.
    fn engines(self) -> &'static [Engine] {
        match self {
            Self::Loopback => &[Engine::Node],
            Self::Shm | Self::Udp => &[Engine::Node, Engine::Embedded],
            Self::UdpSealed | Self::UdpLoss => &[Engine::Embedded],
        }
    }

    fn operations(self) -> &'static [Operation] {
        match self {
            Self::UdpLoss => &[Operation::Write],
            Self::UdpSealed => &[Operation::Write, Operation::PingPong],
            Self::Loopback | Self::Shm | Self::Udp => &[
                Operation::Write,
                Operation::Read,
                Operation::Atomic,
                Operation::Mailbox,
                Operation::PingPong,
            ],
        }
    }
}

impl Operation {
    fn takes(self, size: usize) -> bool {
        match self {
            Self::Write | Self::Read | Self::PingPong => true,
            Self::Atomic => size == 64,
            Self::Mailbox => size <= tombolo_client::MAX_MAIL_BYTES,
        }
    }
}

fn is_wanted<T: PartialEq>(wanted: &[T], one: &T) -> bool {
    wanted.is_empty() || wanted.contains(one)
}

fn measure(arguments: &Arguments) -> Result<Outcome, Failure> {
    let processors = process::processors();
    let (first, last) = (processors[0], processors[processors.len() - 1]);
    let most = (AREA / 4) as u64;
    if let Some(Size(wrong)) = arguments.sizes.iter().find(|size| size.0 > most || size.0 == 0) {
        return Err(Failure::new(format!(
            "sizes go up to {} from 1, and {wrong} is not between",
            Size(most)
        )));
    }
    let embedded_only = arguments.how == [Engine::Embedded];
    if arguments.binary.is_none() && !embedded_only {
        return Err(Failure::new("nodes need --binary PATH; without it, use --how embedded"));
    }
    let floor = Floor::measure(first, last, &arguments.sizes)?;
    let scratch = Scratch::new("bench-rdma")?;
    let (mut rows, mut interference) = (Vec::new(), Vec::new());
    for link in Route::ALL.into_iter().filter(|link| is_wanted(&arguments.link, link)) {
        for &how in link.engines().iter().filter(|how| is_wanted(&arguments.how, how)) {
            let binary = arguments.binary.as_deref().unwrap_or(Path::new(""));
            let mut pair = Pair::start(binary, &scratch, link, how, [first, last])?;
            for &op in link.operations().iter().filter(|op| is_wanted(&arguments.op, op)) {
                // One-sided operations need the other program only if the engine is inside.
                let both = matches!(op, Operation::PingPong | Operation::Mailbox);
                pair.far_polls(both || how == Engine::Embedded)?;
                for &Size(size_bytes) in &arguments.sizes {
                    let size = size_bytes as usize;
                    if !op.takes(size) {
                        continue;
                    }
                    let latency = pair.latency(op, size)?;
                    let bytes_per_s = match op {
                        Operation::PingPong => size as f64 / latency.median_ns * 1e9,
                        _ => pair.throughput(op, size)?,
                    };
                    rows.push(Row { link, how, op, size_bytes, latency, bytes_per_s });
                }
            }
            if is_wanted(&arguments.op, &Operation::Write)
                && !matches!(link, Route::UdpSealed | Route::UdpLoss)
            {
                pair.far_polls(how == Engine::Embedded)?;
                let (idle, busy) = pair.interference()?;
                interference.push(Interference { link, how, idle, busy });
            }
        }
    }
    let targets = targets::judge(&floor, &rows, &interference);
    Ok(Outcome { processors: processors.len(), floor, rows, interference, targets })
}

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    LONG_MS.store(arguments.milliseconds, Ordering::Relaxed);
    // A thread of its own: its pin is its own, too.
    let outcome = std::thread::scope(|scope| scope.spawn(|| measure(arguments)).join());
    let outcome = outcome.map_err(|_| Failure::new("the measuring thread failed"))??;
    if arguments.json {
        return print_json(&outcome);
    }
    let floor = &outcome.floor;
    let line_ns = floor.cache_line_round_trip_ns;
    println!("a cache line to another processor and back: {line_ns:.0} ns");
    println!();
    println!(
        "link        how       op            size     median       99 %       GB/s   of a copy   of bare UDP",
    );
    for row in &outcome.rows {
        let share = |rates: &[floor::Rate]| {
            let rate = rates.iter().find(|rate| rate.size_bytes == row.size_bytes);
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.2}", row.bytes_per_s / rate.bytes_per_s))
        };
        println!(
            "{:10}  {:8}  {:9} {:>8} {:>7.2} µs {:>7.2} µs {:>10.2} {:>11} {:>13}",
            name(&row.link),
            name(&row.how),
            name(&row.op),
            Size(row.size_bytes).to_string(),
            row.latency.median_ns / 1000.0,
            row.latency.p99_ns / 1000.0,
            row.bytes_per_s / 1e9,
            share(&floor.copies),
            share(&floor.udp),
        );
    }
    println!();
    for Interference { link, how, idle, busy } in &outcome.interference {
        println!(
            "{}, {}: writes of 64 B take {:.2} µs (99 %: {:.2}), beside a large transfer {:.2} µs (99 %: {:.2})",
            name(link),
            name(how),
            idle.median_ns / 1000.0,
            idle.p99_ns / 1000.0,
            busy.median_ns / 1000.0,
            busy.p99_ns / 1000.0,
        );
    }
    println!();
    for target in &outcome.targets {
        println!("{target}");
    }
    if outcome.processors < 4 {
        println!();
        println!(
            "Nodes of their own and two programs are up to four busy parties on {} processors: they share them.",
            outcome.processors
        );
    }
    Ok(())
}
