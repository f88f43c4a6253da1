//! `tombolo bench rdma`: transfers between two programs' domains, of one node or
//! of two, beside what the machine can do at best: a cache line that goes to
//! another processor and back, and a copy.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use tombolo_client::{Domain, Grant, Memory, Spec, Target, Who};
use tombolo_host::process;
use tombolo_host::shared::SharedMemory;

use super::children::{self, Guard, Scratch};
use super::summary::{Samples, Summary};
use crate::size::Size;
use crate::{Failure, output};

/// Arguments of `tombolo bench rdma`.
#[derive(Args)]
pub struct Arguments {
    /// Which way; both unless given.
    #[arg(long)]
    op: Option<Operation>,
    /// Between programs of one node (loopback), or of two over shm or UDP; all unless given.
    #[arg(long)]
    link: Option<Route>,
    /// Sizes of the transfers, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "16,64,1K,4K,16K,64K,1M")]
    sizes: Vec<Size>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Operation {
    /// From own memory to another domain's.
    Write,
    /// From another domain's memory to own.
    Read,
}

/// Between which programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Route {
    /// Of one node.
    Loopback,
    /// Of two nodes that share memory.
    Shm,
    /// Of two nodes over UDP on loopback.
    Udp,
}

const AREA: usize = 64 << 20;
const WARM_UP: usize = 200;
/// Each measurement ends when this much has been done, or this long has passed.
const SAMPLES: usize = 20_000;
const BYTES: u64 = 1 << 30;
const LONG: Duration = Duration::from_millis(700);
/// Transfers under way at once while throughput is measured.
const WINDOW: usize = 16;
const PATIENCE: Duration = Duration::from_secs(20);

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    link: Route,
    op: Operation,
    size_bytes: u64,
    /// From posting to done, one at a time.
    latency: Summary,
    /// With several under way.
    bytes_per_s: f64,
}

/// What the machine does at best.
#[derive(Debug, Serialize)]
struct Floor {
    /// A cache line to another processor and back, both polling.
    cache_line_round_trip_ns: f64,
    /// One copy of so many bytes, within the area that the transfers use.
    copies: Vec<Copy>,
}

#[derive(Debug, Serialize)]
struct Copy {
    size_bytes: u64,
    bytes_per_s: f64,
}

#[derive(Debug, Serialize)]
struct Outcome {
    processors: usize,
    floor: Floor,
    rows: Vec<Row>,
}

/// Two processors that hand a line to each other.
fn cache_line(first: usize, last: usize) -> Result<f64, Failure> {
    const ROUNDS: u64 = 200_000;
    let (ball, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = process::pin_thread(last);
            while !stop.load(Ordering::Relaxed) {
                let seen = ball.load(Ordering::Acquire);
                if seen % 2 == 1 {
                    ball.store(seen + 1, Ordering::Release);
                }
            }
        });
        let asked = scope.spawn(|| {
            process::pin_thread(first)?;
            let mut since = Instant::now();
            for round in 0..ROUNDS + ROUNDS / 10 {
                if round == ROUNDS / 10 {
                    since = Instant::now();
                }
                ball.store(2 * round + 1, Ordering::Release);
                while ball.load(Ordering::Acquire) != 2 * round + 2 {
                    if since.elapsed() > PATIENCE {
                        return Err(Failure::new("the other processor does not answer"));
                    }
                }
            }
            Ok(since.elapsed().as_nanos() as f64 / ROUNDS as f64)
        });
        let found = asked.join();
        stop.store(true, Ordering::Relaxed);
        found.map_err(|_| Failure::new("a thread failed"))?
    })
}

/// Copies between two halves of shared memory, as the node does, walking through them as the transfers do.
fn copies(sizes: &[Size]) -> Result<Vec<Copy>, Failure> {
    let [from, to] = [SharedMemory::create("bench-from", AREA)?, SharedMemory::create("bench-to", AREA)?];
    from.populate(0, AREA);
    to.populate(0, AREA);
    let mut found = Vec::new();
    for &Size(size_bytes) in sizes {
        let size = size_bytes as usize;
        let mut places = Places::new(size);
        let (mut done, mut since) = (0, Instant::now());
        for round in 0.. {
            if round == WARM_UP {
                (done, since) = (0, Instant::now());
            }
            let at = places.next();
            to.span_mut(at, size)?.copy_from(from.span(at, size)?);
            done += size_bytes;
            if round > WARM_UP && (done >= 4 * BYTES || (round % 16 == 0 && since.elapsed() >= LONG)) {
                break;
            }
        }
        found.push(Copy { size_bytes, bytes_per_s: done as f64 / since.elapsed().as_secs_f64() });
    }
    Ok(found)
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
        let count = WINDOW.min(AREA / self.size.max(1)).max(1);
        self.at = (self.at + 1) % count;
        self.at * self.size
    }
}

/// The nodes of a route, and two domains.
struct Bench {
    _nodes: Vec<Guard>,
    near: Domain,
    _far: Domain,
    mine: Memory,
    theirs: Memory,
    target: Target,
}

fn start_node(
    scratch: &Scratch,
    number: usize,
    listen: &str,
    peer: Option<&str>,
) -> Result<(Guard, String, PathBuf), Failure> {
    let programs = scratch.file(&format!("programs-{number}"));
    let mut command = children::itself()?;
    command.args(["node", "--name", "bench", "--lend", "0", "--insecure", "--listen", listen, "--programs"]);
    command.arg(&programs);
    if let Some(peer) = peer {
        command.args(["--peer", peer]);
    }
    let (node, line) = children::start(&mut command)?;
    let address = line.rsplit(" at ").next().unwrap_or_default().to_owned();
    Ok((node, address, programs))
}

impl Bench {
    fn new(scratch: &Scratch, route: Route) -> Result<Self, Failure> {
        let shm = |number: usize| format!("shm:{}", scratch.file(&format!("node-{number}")).display());
        let (nodes, near, far, node) = match route {
            Route::Loopback => {
                let (node, _, programs) = start_node(scratch, 0, &shm(0), None)?;
                (vec![node], programs.clone(), programs, 0)
            }
            Route::Shm | Route::Udp => {
                let listen = if route == Route::Shm { shm(1) } else { "udp:127.0.0.1:0".to_owned() };
                let (far, address, far_programs) = start_node(scratch, 1, &listen, None)?;
                let (near, _, programs) = start_node(scratch, 2, &shm(2), Some(&address))?;
                (vec![near, far], programs, far_programs, 1)
            }
        };
        let (near, far) = (Domain::open(&near, Some(1))?, Domain::open(&far, Some(2))?);
        let mine = near.allocate(AREA, &[])?;
        let theirs = far.allocate(AREA, &[Grant::all(Who::Anyone)])?;
        let target = Target { node, domain: far.number() };
        Ok(Self { _nodes: nodes, near, _far: far, mine, theirs, target })
    }

    fn post(&self, op: Operation, at: usize, size: usize) -> Result<tombolo_client::Transfer, Failure> {
        let (mine, theirs) = (self.mine.address() + at as u64, self.theirs.address() + at as u64);
        Ok(match op {
            Operation::Write => self.near.write(self.target, Spec::new(mine, theirs, size as u32))?,
            Operation::Read => self.near.read(self.target, Spec::new(theirs, mine, size as u32))?,
        })
    }

    fn latency(&self, op: Operation, size: usize) -> Result<Summary, Failure> {
        let mut samples = Samples::new(SAMPLES)?;
        let mut places = Places::new(size);
        let begin = Instant::now();
        for number in 0..WARM_UP + SAMPLES {
            let at = places.next();
            let since = Instant::now();
            self.post(op, at, size)?.wait(PATIENCE)?;
            if number >= WARM_UP {
                samples.note(since.elapsed().as_nanos() as u64);
            }
            if number > WARM_UP && begin.elapsed() > LONG {
                break;
            }
        }
        samples.summary()
    }

    fn throughput(&self, op: Operation, size: usize) -> Result<f64, Failure> {
        let mut places = Places::new(size);
        let mut under_way = VecDeque::with_capacity(WINDOW);
        let (mut done, mut since, mut number) = (0, Instant::now(), 0);
        loop {
            while under_way.len() < WINDOW {
                under_way.push_back(self.post(op, places.next(), size)?);
            }
            if let Some(oldest) = under_way.pop_front() {
                oldest.wait(PATIENCE)?;
            }
            number += 1;
            done += size as u64;
            if number == WARM_UP.min(64) {
                (done, since) = (0, Instant::now());
            } else if number > WARM_UP && (done >= BYTES || (number % 16 == 0 && since.elapsed() >= LONG)) {
                break;
            }
        }
        let rate = done as f64 / since.elapsed().as_secs_f64();
        for transfer in under_way {
            transfer.wait(PATIENCE)?;
        }
        Ok(rate)
    }
}

fn measure(arguments: &Arguments) -> Result<Outcome, Failure> {
    let processors = process::processors();
    let (first, last) = (processors[0], processors[processors.len() - 1]);
    if let Some(Size(wrong)) = arguments.sizes.iter().find(|size| size.0 > (AREA / 2) as u64) {
        return Err(Failure::new(format!(
            "sizes go up to {}, and {} is more",
            Size((AREA / 2) as u64),
            Size(*wrong)
        )));
    }
    let floor =
        Floor { cache_line_round_trip_ns: cache_line(first, last)?, copies: copies(&arguments.sizes)? };
    let scratch = Scratch::new()?;
    let mut rows = Vec::new();
    for link in [Route::Loopback, Route::Shm, Route::Udp] {
        if arguments.link.is_some_and(|only| only != link) {
            continue;
        }
        // Nodes begin on the last processor; this program is on the first.
        process::pin_thread(last)?;
        let bench = Bench::new(&scratch, link);
        process::pin_thread(first)?;
        let bench = bench?;
        for op in [Operation::Write, Operation::Read] {
            if arguments.op.is_some_and(|only| only != op) {
                continue;
            }
            for &Size(size_bytes) in &arguments.sizes {
                let size = size_bytes as usize;
                let latency = bench.latency(op, size)?;
                let bytes_per_s = bench.throughput(op, size)?;
                rows.push(Row { link, op, size_bytes, latency, bytes_per_s });
            }
        }
    }
    Ok(Outcome { processors: processors.len(), floor, rows })
}

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    // A thread of its own: its pin is its own, too.
    let outcome = std::thread::scope(|scope| scope.spawn(|| measure(arguments)).join());
    let outcome = outcome.map_err(|_| Failure::new("the measuring thread failed"))??;
    if arguments.json {
        output::json(&outcome)?;
        return Ok(0);
    }
    let floor = &outcome.floor;
    output::line(&format!(
        "a cache line to another processor and back: {:.0} ns",
        floor.cache_line_round_trip_ns
    ));
    output::line("");
    output::line("link      op        size     median       99 %        GB/s   of a copy");
    for row in &outcome.rows {
        let copy = floor.copies.iter().find(|copy| copy.size_bytes == row.size_bytes);
        let share = copy.map_or(f64::NAN, |copy| row.bytes_per_s / copy.bytes_per_s);
        let (link, op) = (format!("{:?}", row.link).to_lowercase(), format!("{:?}", row.op).to_lowercase());
        output::line(&format!(
            "{link:8}  {op:5} {:>8} {:>8.2} µs {:>8.2} µs {:>10.2} {:>10.2}",
            Size(row.size_bytes).to_string(),
            row.latency.median_ns / 1000.0,
            row.latency.p99_ns / 1000.0,
            row.bytes_per_s / 1e9,
            share,
        ));
    }
    if outcome.processors < 4 {
        output::line("");
        output::line(&format!(
            "shm and UDP are three busy parties on {} processors: they share them.",
            outcome.processors
        ));
    }
    Ok(0)
}
