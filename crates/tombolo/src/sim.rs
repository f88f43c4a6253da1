//! `tombolo sim`: the protocol's machines in virtual time.

mod perfetto;
mod platforms;
mod run;

use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use tombolo_sim::fuzz;
use tombolo_sim::kernel::Trace;

use crate::failure::Failure;

use crate::{duration, output};

/// Arguments of `tombolo sim`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Draw scenarios from seeds, run them, and check every byte.
    ///
    /// Exit codes: 0 nothing is wrong, 1 a seed shows a defect.
    Fuzz(FuzzArguments),
    /// Run a scenario of your own: a platform, nodes, a workload, faults.
    Run(run::Arguments),
    /// List the platforms, or the constants of one: what each is, and where it is from.
    Platforms(platforms::Arguments),
    /// Find the fitted constants of a platform from their targets, or check those of its file.
    ///
    /// Exit codes: 0 all is well, 1 with --check: a target is missed by more than 1 %.
    Fit(platforms::FitArguments),
}

#[derive(Args)]
struct FuzzArguments {
    /// What is simulated.
    #[arg(long, value_enum, default_value_t = World::Engine)]
    world: World,
    /// How many seeds are run [default: 300, or as many as the time allows].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// The first seed; the others follow.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// For how long at most, as in 30m.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    time: Option<Duration>,
    /// Print JSON: one object, with the hash of all that has happened.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum World {
    /// Two engines, and wires between them that lose, repeat, reorder and damage packets.
    Engine,
    /// TCP connections that a node hands over to pairs of sockets, between programs that are late, stopped or dead at each step.
    Handover,
}

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    match &arguments.command {
        Command::Fuzz(arguments) => fuzz(arguments),
        Command::Run(arguments) => run::main(arguments),
        Command::Platforms(arguments) => platforms::main(arguments),
        Command::Fit(arguments) => platforms::fit(arguments),
    }
}

fn fuzz(arguments: &FuzzArguments) -> Result<u8, Failure> {
    const USUAL_SEEDS: u64 = 300;
    let world = match arguments.world {
        World::Engine => fuzz::World::Engine,
        World::Handover => fuzz::World::Handover,
    };
    let name = world.name();
    let most = arguments.seeds.unwrap_or(if arguments.time.is_some() { u64::MAX } else { USUAL_SEEDS });
    // What a seed shows is told below.
    std::panic::set_hook(Box::new(|_| {}));
    let since = Instant::now();
    let is_over = || arguments.time.is_some_and(|time| since.elapsed() >= time);
    let (mut trace, mut count, mut failed) = (Trace::NONE, 0, None);
    while count < most && failed.is_none() && (count == 0 || !is_over()) {
        match world.run(arguments.seed.wrapping_add(count)) {
            Ok(next) => trace = trace.then(next),
            Err(failure) => failed = Some(failure),
        }
        count += 1;
    }
    let _ = std::panic::take_hook();
    let per_s = count as f64 / since.elapsed().as_secs_f64();
    if arguments.json {
        output::json(&json!({
            "world": name,
            "seed": arguments.seed,
            "seeds": count,
            "seeds_per_s": per_s,
            "trace_hash": trace.to_string(),
            "failed": failed.as_ref().map(|failure| json!({
                "seed": failure.seed,
                "what": failure.what,
                "options": failure.options,
            })),
        }))?;
    } else if let Some(failure) = &failed {
        output::line(&failure.options);
        output::line(&failure.to_string());
        let seed = failure.seed;
        output::line(&format!("to repeat it: tombolo sim fuzz --world {name} --seed {seed} --seeds 1"));
    } else {
        output::line(&format!(
            "{count} seeds of {name}, from {} on: nothing is wrong; {per_s:.0} seeds a second, trace {trace}",
            arguments.seed
        ));
    }
    Ok(u8::from(failed.is_some()))
}
