//! The programs of the curves: a sort, random GETs at a redis server, a pointer chase, a table in DuckDB, and
//! threads that allocate, fill and free.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tombolo_random::Random;

use super::super::median;
use super::duckdb::DuckDb;
use super::redis::Redis;
use super::surroundings::{Place, Surroundings};

/// Something to run again and again.
pub trait Workload {
    /// One word, also the name of the chart's file.
    fn name(&self) -> &'static str;
    /// What it does, in a line.
    fn title(&self) -> &'static str;
    /// What a cost of it is.
    fn unit(&self) -> Unit;
    /// Runs it; returns its cost.
    fn run(&self, place: &Place<'_>) -> Result<Cost, String>;
}

/// What a run costs, in the workload's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Wall time.
    pub wall: f64,
    /// CPU time of the whole machine meanwhile.
    pub cpu: f64,
}

impl Cost {
    /// The median of each.
    pub fn median(costs: &[Self]) -> Option<Self> {
        let of = |pick: fn(&Self) -> f64| median(&costs.iter().map(pick).collect::<Vec<_>>());
        Some(Self { wall: of(|cost| cost.wall)?, cpu: of(|cost| cost.cpu)? })
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds of a whole run.
    Seconds,
    /// Nanoseconds of one operation.
    Nanoseconds,
}

impl Unit {
    /// A cost as text.
    pub fn show(self, cost: f64) -> String {
        match self {
            Self::Seconds => format!("{cost:.2} s"),
            Self::Nanoseconds => format!("{:.2} µs", cost / 1000.0),
        }
    }
}

/// The names of all workloads.
pub const NAMES: [&str; 5] = ["sort", "redis", "chase", "duckdb", "churn"];

/// The workload of this name, if this machine can run it.
pub fn find(name: &str, surroundings: &Surroundings) -> Result<Box<dyn Workload>, String> {
    match name {
        "sort" => Ok(Box::new(Sort::new(surroundings)?)),
        "redis" => match Redis::new(surroundings) {
            Some(redis) => Ok(Box::new(redis)),
            None => Err("there is no redis-server".into()),
        },
        "duckdb" => Ok(Box::new(DuckDb::new(surroundings)?)),
        "churn" => Ok(Box::new(Churn { program: surroundings.races.clone() })),
        _ => Ok(Box::new(Chase { program: surroundings.races.clone() })),
    }
}

/// Whole programs, by `tombolo-bench`, which takes the time beside the program: Tombolo's own start and the lending come before it.
pub struct Timed {
    clock: PathBuf,
    times: PathBuf,
}

impl Timed {
    pub fn new(surroundings: &Surroundings) -> Self {
        Self { clock: surroundings.races.clone(), times: surroundings.file("times.json") }
    }

    /// Runs a program with these variables: its cost, and what it printed.
    pub fn run(
        &self,
        place: &Place<'_>,
        program: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<(Cost, Vec<u8>), String> {
        let mut command = place.command(&self.clock.to_string_lossy());
        command.arg("time").arg("--output").arg(&self.times).arg("--").args(program);
        command.envs(variables.iter().copied());
        let _ = std::fs::remove_file(&self.times);
        let printed = finish(command)?;
        let times = std::fs::read(&self.times).map_err(|error| format!("the times: {error}"))?;
        let times: Value = serde_json::from_slice(&times).map_err(|error| error.to_string())?;
        let seconds = |field: &str| times[field].as_f64().ok_or("the clock reported no time");
        Ok((Cost { wall: seconds("wall_s")?, cpu: seconds("cpu_s")? }, printed))
    }
}

/// GNU sort of text lines, in memory, one thread.
struct Sort {
    input: PathBuf,
    timed: Timed,
}

const LINES: usize = 1_600_000;
/// The buffer that sort may use; given, because by default it looks at how much
/// memory is free, which differs between the ways of running it.
const SORT_BUFFER: &str = "600M";

impl Sort {
    /// The input is written here, so that its cached pages are charged to nobody who is measured.
    fn new(surroundings: &Surroundings) -> Result<Self, String> {
        let input = surroundings.file("lines.txt");
        let write = || -> std::io::Result<()> {
            let mut file = BufWriter::new(File::create(&input)?);
            let mut random = Random::new(1);
            for _ in 0..LINES {
                writeln!(file, "{:016x}{:016x}{:016x}", random.next(), random.next(), random.next())?;
            }
            file.into_inner()?.sync_all()
        };
        write().map_err(|error| format!("the input of sort: {error}"))?;
        Ok(Self { input, timed: Timed::new(surroundings) })
    }
}

/// Runs a command to its end; returns what it printed.
fn finish(mut command: Command) -> Result<Vec<u8>, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(output.stdout)
}

impl Workload for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn title(&self) -> &'static str {
        "GNU sort of 80 MB of lines, in memory, one thread"
    }

    fn unit(&self) -> Unit {
        Unit::Seconds
    }

    fn run(&self, place: &Place<'_>) -> Result<Cost, String> {
        let input = self.input.to_string_lossy();
        let program = ["sort", "--parallel=1", "-S", SORT_BUFFER, "-o", "/dev/null", &*input];
        Ok(self.timed.run(place, &program, &[("LC_ALL", "C")])?.0)
    }
}

/// A walk along a random cycle through all cache lines of an area.
struct Chase {
    /// `tombolo-bench`.
    program: PathBuf,
}

const CHASE_BYTES: usize = 150 << 20;
const CHASE_STEPS: usize = 300_000;

impl Workload for Chase {
    fn name(&self) -> &'static str {
        "chase"
    }

    fn title(&self) -> &'static str {
        "pointer chase, uniformly random over 150 MiB, 64 nodes a page"
    }

    fn unit(&self) -> Unit {
        Unit::Nanoseconds
    }

    fn run(&self, place: &Place<'_>) -> Result<Cost, String> {
        probe(place, &self.program, "chase", CHASE_BYTES, CHASE_STEPS)
    }
}

/// A probe of `tombolo-bench`: the cost of one of its steps.
fn probe(place: &Place<'_>, program: &Path, kind: &str, bytes: usize, count: usize) -> Result<Cost, String> {
    let mut command = place.command(&program.to_string_lossy());
    command.args(["probe", kind, "--area", &bytes.to_string(), "--count", &count.to_string()]);
    let found: Value = serde_json::from_slice(&finish(command)?).map_err(|error| error.to_string())?;
    let nanoseconds = |field: &str| found[field].as_f64().ok_or(format!("the probe {kind} reported no time"));
    Ok(Cost { wall: nanoseconds("mean_ns")?, cpu: nanoseconds("cpu_ns")? })
}

/// Threads that allocate blocks, fill and free them.
struct Churn {
    /// `tombolo-bench`.
    program: PathBuf,
}

const CHURN_BYTES: usize = 200 << 20;
const CHURN_PAGES: usize = 400_000;

impl Workload for Churn {
    fn name(&self) -> &'static str {
        "churn"
    }

    fn title(&self) -> &'static str {
        "two threads that allocate, fill and free blocks of 64 KiB to 16 MiB, a page of them"
    }

    fn unit(&self) -> Unit {
        Unit::Nanoseconds
    }

    fn run(&self, place: &Place<'_>) -> Result<Cost, String> {
        probe(place, &self.program, "churn", CHURN_BYTES, CHURN_PAGES)
    }
}
