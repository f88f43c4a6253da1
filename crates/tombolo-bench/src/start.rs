//! `tombolo-bench start`: how long `tombolo run … true` takes, beside `true` alone. What its report says
//! borrowing took is shown apart: it depends on how much is borrowed and on the lender.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tombolo_app::child::{self, STOP};
use tombolo_app::scratch::Scratch;
use tombolo_app::{median, size};
use tombolo_host::cpu::Stopwatch;
use tombolo_host::stops;

use crate::{Failure, print_json};

const PROGRAM: &str = "/bin/true";
/// The longest that one run may take.
const RUN_LIMIT: Duration = Duration::from_secs(60);

/// Arguments of `tombolo-bench start`.
#[derive(Args)]
pub struct Arguments {
    /// The `tombolo` to measure.
    #[arg(long)]
    binary: PathBuf,
    /// How often to start the program in each way.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// How much to borrow.
    #[arg(long, value_parser = size::bytes, default_value = "256M")]
    remote: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Wall and CPU times of the runs of one way.
#[derive(Default)]
struct Times {
    wall_s: Vec<f64>,
    cpu_s: Vec<f64>,
}

impl Times {
    fn note(
        &mut self,
        command: &mut Command,
        beyond_s: impl FnOnce() -> Result<f64, Failure>,
    ) -> Result<(), Failure> {
        let watch = Stopwatch::start()?;
        child::run(command, RUN_LIMIT)?;
        let (wall_s, cpu_s) = watch.elapsed()?;
        self.wall_s.push(wall_s - beyond_s()?);
        self.cpu_s.push(cpu_s);
        Ok(())
    }

    fn median_s(&self) -> f64 {
        median(&self.wall_s).unwrap_or(f64::NAN)
    }

    /// A single start is shorter than what /proc/stat resolves, so this is a mean.
    fn mean_cpu_s(&self) -> f64 {
        self.cpu_s.iter().sum::<f64>() / self.cpu_s.len() as f64
    }
}

/// Measures and prints.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.rounds == 0 {
        return Err(Failure::new("at least one round is needed"));
    }
    stops::stop_on_signals(&STOP);
    let scratch = Scratch::new("bench-start")?;
    let lent_bytes = arguments.remote.saturating_mul(2).to_string();
    let listen = format!("shm:{}", scratch.file("lender").display());
    let mut command = Command::new(&arguments.binary);
    command.args(["node", "--insecure", "--name", "bench", "--listen", &listen, "--lend", &lent_bytes]);
    let (_lender, address) = child::serve_node(&mut command)?;
    let report = scratch.file("report.json");
    let mut connecting_s = Vec::new();
    let (mut plain, mut far) = (Times::default(), Times::default());
    // The first round finds cold caches and is not counted.
    for round in 0..=arguments.rounds {
        if round == 1 {
            (plain, far) = (Times::default(), Times::default());
            connecting_s.clear();
        }
        plain.note(&mut Command::new(PROGRAM), || Ok(0.0))?;
        let mut command = Command::new(&arguments.binary);
        command.args(["run", "--quiet", "--insecure", "--from", &address, "--local", "64M", "--remote"]);
        command.arg(arguments.remote.to_string()).arg("--report").arg(&report).args(["--", PROGRAM]);
        far.note(&mut command, || {
            let found: Value = serde_json::from_slice(&std::fs::read(&report)?)?;
            let took_s = found["connecting_s"]
                .as_f64()
                .ok_or_else(|| Failure::new("the report does not say how long connecting took"))?;
            connecting_s.push(took_s);
            Ok(took_s)
        })?;
    }
    let found = json!({
        "rounds": arguments.rounds,
        "borrowed_bytes": arguments.remote,
        "plain_s": plain.median_s(),
        "plain_cpu_s": plain.mean_cpu_s(),
        "beyond_connecting_s": far.median_s(),
        "with_connecting_cpu_s": far.mean_cpu_s(),
        "connecting_s": median(&connecting_s),
    });
    if arguments.json {
        print_json(&found)?;
    } else {
        let milliseconds = |field: &str| found[field].as_f64().unwrap_or(f64::NAN) * 1000.0;
        println!(
            "{PROGRAM}: {:.1} ms (CPU {:.1} ms); under `tombolo run`: {:.1} ms beyond connecting, which took {:.1} ms (CPU {:.1} ms with it)",
            milliseconds("plain_s"),
            milliseconds("plain_cpu_s"),
            milliseconds("beyond_connecting_s"),
            milliseconds("connecting_s"),
            milliseconds("with_connecting_cpu_s"),
        );
    }
    Ok(())
}
