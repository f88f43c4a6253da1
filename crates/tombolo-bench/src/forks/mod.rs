//! `tombolo-bench forks`: a store that forks to write its contents down, as redis does, while its parent goes on writing; and a program that
//! forks a child that sleeps.
//!
//! ```text
//! tombolo-bench forks plain zram tombolo --binary target/release/tombolo --rounds 3
//! ```
//!
//! Half of the store's memory is local. Each racer runs once in each round, in turn. A run that fails is reported with the reason.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use tombolo_app::child::{self, STOP, interrupted};
use tombolo_app::scratch::Scratch;
use tombolo_app::swap::{LimitedMemory, pages_swapped_in};
use tombolo_app::{median, size};
use tombolo_host::sparse::Pages;
use tombolo_host::stops;
use tombolo_host::timing::host::ZRAM_TURN_TIMEOUT;

use crate::{Failure, result, this_binary};

pub mod store;

use store::Found;

/// Arguments of `tombolo-bench forks`.
#[derive(Args)]
pub struct Arguments {
    /// What serves the memory.
    #[arg(required = true)]
    peers: Vec<Peer>,
    /// How much the store has.
    #[arg(long, value_parser = size::bytes, default_value = "256M")]
    bytes: usize,
    /// How much of it may be local.
    #[arg(long, value_parser = size::bytes, default_value = "128M")]
    local: usize,
    /// How often to run each peer.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The `tombolo` to measure; may be given several times, to compare.
    #[arg(long)]
    binary: Vec<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What serves the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// Nothing: all of it is local.
    Plain,
    /// The kernel's swap on zram, in a memory cgroup.
    Zram,
    /// Each `--binary`, with a lender over shm.
    Tombolo,
}

/// The longest that one run may take.
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// What a lender has beyond the store.
const EXTRA_BYTES: usize = 64 << 20;

/// One who races, and what its runs found.
#[derive(Clone, Debug, Serialize)]
struct Row {
    racer: String,
    #[serde(skip)]
    peer: Peer,
    #[serde(skip)]
    binary: PathBuf,
    runs: Vec<Found>,
    /// The most of the store that was local, of each run.
    peak_bytes: Vec<u64>,
    failures: Vec<String>,
}

fn racers(arguments: &Arguments) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for &peer in &arguments.peers {
        let name = crate::name(&peer);
        let binaries = match peer {
            Peer::Tombolo if arguments.binary.is_empty() => {
                return Err(Failure::new("`tombolo` needs --binary PATH"));
            }
            Peer::Tombolo => arguments.binary.clone(),
            _ => vec![PathBuf::new()],
        };
        for binary in &binaries {
            let racer =
                if binaries.len() == 1 { name.clone() } else { format!("{name} {}", binary.display()) };
            let binary = binary.clone();
            rows.push(Row {
                racer,
                peer,
                binary,
                runs: Vec::new(),
                peak_bytes: Vec::new(),
                failures: Vec::new(),
            });
        }
    }
    Ok(rows)
}

fn store(arguments: &Arguments) -> Result<Command, Failure> {
    let mut command = Command::new(this_binary()?);
    command.args(["forking-store", "--bytes", &arguments.bytes.to_string()]);
    Ok(command)
}

fn far(arguments: &Arguments, binary: &Path) -> Result<(Found, u64), Failure> {
    let scratch = Scratch::new("bench-forks")?;
    let listen = format!("shm:{}", scratch.file("lender").display());
    // What parent and child have of their own is lent twice.
    let lent_bytes = arguments.bytes * 2 + EXTRA_BYTES;
    let mut command = Command::new(binary);
    command.args(["node", "--insecure", "--name", "bench", "--listen", &listen]);
    command.args(["--lend", &lent_bytes.to_string()]);
    let (_lender, address) = child::serve_node(&mut command)?;
    let report = scratch.file("report.json");
    let mut command = Command::new(binary);
    command.args(["run", "--quiet", "--insecure", "--from", &address, "--local"]);
    command.arg(arguments.local.to_string()).arg("--report").arg(&report).arg("--");
    let program = store(arguments)?;
    command.arg(program.get_program()).args(program.get_args());
    let found = result(&mut command, RUN_LIMIT)?;
    let report: Value = serde_json::from_slice(&std::fs::read(&report)?)?;
    let peak_bytes = report["resident_peak_bytes"]
        .as_u64()
        .ok_or_else(|| Failure::new("the report does not say how much was local"))?;
    Ok((found, peak_bytes))
}

/// The group may use the local bytes and, in addition, what the program uses beside its store.
fn zram(arguments: &Arguments) -> Result<(Found, u64), Failure> {
    let in_group = |limit_bytes: u64| -> Result<(Found, u64), Failure> {
        let swap_bytes = arguments.bytes as u64 * 3;
        let group = LimitedMemory::new("tombolo-bench-forks", limit_bytes, swap_bytes, ZRAM_TURN_TIMEOUT)?;
        let mut command = store(arguments)?;
        command.arg("--join").arg(group.procs());
        let found = result(&mut command, RUN_LIMIT)?;
        Ok((found, group.peak_bytes()?.max(limit_bytes + group.relieved().most_bytes)))
    };
    let bytes = arguments.bytes as u64;
    let mut small = store(arguments)?;
    small.arg("--fill-only");
    let beside_bytes = {
        let group = LimitedMemory::new("tombolo-bench-forks", bytes * 4, bytes, ZRAM_TURN_TIMEOUT)?;
        small.arg("--join").arg(group.procs());
        let _: Value = result(&mut small, RUN_LIMIT)?;
        group.peak_bytes()?.saturating_sub(bytes)
    };
    let before = pages_swapped_in()?;
    let (found, peak_bytes) = in_group(arguments.local as u64 + beside_bytes)?;
    if arguments.local < arguments.bytes && pages_swapped_in()? == before {
        return Err(Failure::new("the kernel has not swapped under the cgroup's limit"));
    }
    Ok((found, peak_bytes.saturating_sub(beside_bytes)))
}

fn measure(arguments: &Arguments, row: &mut Row) {
    let found = match row.peer {
        Peer::Plain => store(arguments)
            .and_then(|mut command| Ok((result(&mut command, RUN_LIMIT)?, arguments.bytes as u64))),
        Peer::Zram => zram(arguments),
        Peer::Tombolo => far(arguments, &row.binary),
    };
    match found {
        Ok((found, peak_bytes)) => {
            row.runs.push(found);
            row.peak_bytes.push(peak_bytes);
        }
        Err(Failure(reason)) => row.failures.push(reason),
    }
}

/// Runs the race and prints what was found.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.rounds == 0 || arguments.bytes < 16 << 20 || arguments.local < 8 << 20 {
        return Err(Failure::new("at least one round, --bytes 16M and --local 8M are needed"));
    }
    let mut rows = racers(arguments)?;
    stops::stop_on_signals(&STOP);
    for _ in 0..arguments.rounds {
        for row in &mut rows {
            // The store, its copies and what is far: memory that was never touched costs more.
            Pages::new(arguments.bytes * 3)?.prefault();
            measure(arguments, row);
            if interrupted() {
                return Err(Failure::new("interrupted"));
            }
            eprintln!("{}", line(row));
        }
    }
    if arguments.json {
        let (bytes, local_bytes) = (arguments.bytes, arguments.local);
        return crate::print_json(&serde_json::json!({
            "bytes": bytes, "local_bytes": local_bytes, "rounds": arguments.rounds, "rows": rows,
        }));
    }
    rows.iter().for_each(|row| println!("{}", line(row)));
    Ok(())
}

/// One racer's line: medians of its runs, and the worst of them where a program waits.
fn line(row: &Row) -> String {
    let mut line = format!("{:10}", row.racer);
    let of = |figure: fn(&Found) -> f64| row.runs.iter().map(figure).collect::<Vec<_>>();
    if let (Some(dump_s), Some(wall_s), Some(sleeping_us)) =
        (median(&of(|run| run.dump_s)), median(&of(|run| run.wall_s)), median(&of(|run| run.sleeping_us)))
    {
        let worst = |figures: Vec<f64>| figures.into_iter().fold(0.0, f64::max);
        line += &format!(
            " dump {dump_s:.2} s, 64 writes meanwhile {:.1} ms at most; with a sleeping child {sleeping_us:.2} µs a write, \
             {:.1} ms at most; all {wall_s:.2} s",
            worst(of(|run| run.dump_worst_ms)),
            worst(of(|run| run.sleeping_worst_ms)),
        );
    }
    if let Some(peak) = row.peak_bytes.iter().max() {
        line += &format!("; {} MiB local at most", peak >> 20);
    }
    for reason in &row.failures {
        line += &format!(" not measured: {reason}");
    }
    line
}
