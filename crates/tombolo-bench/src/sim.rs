//! `tombolo-bench sim`: how many packets of 256 bytes the simulator moves in a second, from one engine to another over a link, and how many
//! seeds of the engine's world it runs.

use std::time::Instant;

use clap::Args;
use serde_json::json;
use tombolo_app::{median, size};
use tombolo_sim::boards::qfdb::{PEER, Setup, board};
use tombolo_sim::figures::qos::transfer;
use tombolo_sim::fuzz::World;
use tombolo_sim::hosts::{EngineHost, Program};
use tombolo_sim::kernel::Span;
use tombolo_sim::platform::Platform;

use crate::{Failure, print_json};

/// Arguments of `tombolo-bench sim`.
#[derive(Args)]
pub struct Arguments {
    /// How much is written in each round; and a quarter of it, and four times as much.
    #[arg(long, value_parser = size::bytes, default_value = "256M")]
    bytes: usize,
    /// Seeds of each round.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// How often each is measured.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Packets of one run, in a second.
fn packets_per_s(bytes: usize) -> Result<f64, Failure> {
    const EACH: u32 = 16 << 20;
    let platform = Platform::named("exanest-qfdb").ok_or_else(|| Failure::new("no platform"))?;
    let mut board = board(&platform, &Setup::default())?;
    let program = Program {
        peer: PEER,
        transfer: transfer(tombolo_core::rdma::Direction::Write, EACH),
        count: (bytes as u64).div_ceil(EACH.into()),
        outstanding: 4,
        gap: Span::ZERO,
    };
    let program = board.program(program);
    let since = Instant::now();
    board.run(&platform, program)?;
    let took = since.elapsed().as_secs_f64();
    let host = board.world.part::<EngineHost>(board.nodes[1]).ok_or_else(|| Failure::new("no node"))?;
    Ok(host.counters().packets_placed as f64 / took)
}

/// The most memory that this process has had.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Seeds of one run, in a second.
fn seeds_per_s(seeds: u64) -> Result<f64, Failure> {
    let since = Instant::now();
    for seed in 1..=seeds {
        World::Engine.run(seed)?;
    }
    Ok(seeds as f64 / since.elapsed().as_secs_f64())
}

/// Measures and prints.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.rounds == 0 || arguments.seeds == 0 {
        return Err(Failure::new("at least one round of one seed is needed"));
    }
    let mut rows = Vec::new();
    // From small to large: the most memory that was there only grows.
    for bytes in [arguments.bytes / 4, arguments.bytes, arguments.bytes.saturating_mul(4)] {
        let rates = (0..arguments.rounds).map(|_| packets_per_s(bytes)).collect::<Result<Vec<_>, _>>()?;
        rows.push((bytes, median(&rates).unwrap_or(f64::NAN), peak_kib()));
    }
    let seeds = (0..arguments.rounds).map(|_| seeds_per_s(arguments.seeds)).collect::<Result<Vec<_>, _>>()?;
    let seeds = median(&seeds).unwrap_or(f64::NAN);
    if arguments.json {
        let packets = rows.iter().map(
            |(bytes, rate, peak_kib)| json!({ "bytes": bytes, "packets_per_s": rate, "peak_kib": peak_kib }),
        );
        return print_json(&json!({ "packets": packets.collect::<Vec<_>>(), "seeds_per_s": seeds }));
    }
    for (bytes, rate, peak_kib) in rows {
        println!(
            "{:.2} million packets of 256 bytes a second, of {} MiB; {} MiB of memory at most",
            rate / 1e6,
            bytes >> 20,
            peak_kib >> 10
        );
    }
    println!("{seeds:.0} seeds of the engine's world a second");
    Ok(())
}
