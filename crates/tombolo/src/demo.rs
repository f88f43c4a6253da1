//! `tombolo demo`: the whole thing on one machine, with programs that everybody knows.
//!
//! A lender and a borrower run as separate processes, as a user would start
//! them, in a private directory. Programs get all, a half and a quarter of the memory they need: GNU sort,
//! which is the hardest for any paging; redis under load; and a scan of a large array. What they compute must
//! be the same as without Tombolo. Where root allows, the kernel's own swap on zram stands beside it.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::Value;
use tombolo_app::scratch::Scratch;

use crate::size::Size;
use crate::{Failure, doctor, output};

mod children;
mod compare;
mod input;
mod redis;
mod scan;
mod table;

use children::Child;
use compare::{Comparison, Place, Workload};
use redis::Redis;
use scan::Scan;
pub use scan::scan_array;

/// Arguments of `tombolo demo`.
#[derive(Args)]
pub struct Arguments {
    /// How lender and borrower are connected.
    #[arg(long, value_enum, default_value_t = Link::Shm)]
    link: Link,
    /// Only these programs, separated by commas; all of them unless given.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PROGRAM")]
    program: Vec<Program>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Link {
    /// Shared memory.
    Shm,
    /// UDP on the loopback interface.
    Udp,
}

/// A program of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Program {
    /// GNU sort.
    Sort,
    /// redis-server, asked for random keys.
    Redis,
    /// Sums of a large array.
    Scan,
}

/// What is lent; more than any program needs.
const LEND_BYTES: u64 = 384 << 20;
/// Local memory of the run that needs no far memory.
const ALL_LOCAL_BYTES: u64 = 512 << 20;
/// Room for sort's buffer: all of the input and its table of lines at once, so that it sorts in one go.
const BUFFER: &str = "--buffer-size=400M";

/// SIGINT or SIGTERM has come.
static STOP: AtomicBool = AtomicBool::new(false);

/// One run of sort under Tombolo.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    local_bytes: u64,
    resident_peak_bytes: u64,
    elapsed_s: f64,
    /// Against the run without Tombolo.
    slowdown: f64,
    /// Of any kind.
    faults: u64,
    /// On pages at the lender.
    far_faults: u64,
    /// Service time of those: median, 99th percentile, maximum.
    far_fault_ns: Value,
    bytes_in: u64,
    bytes_out: u64,
    /// The output is that of the run without Tombolo.
    identical: bool,
}

/// Everything the demo found out.
#[derive(Debug, Serialize)]
struct Findings {
    link: Link,
    /// All outputs of sort are identical; the other programs fail where they read a wrong byte.
    identical: bool,
    #[serde(flatten)]
    sort: Option<SortFindings>,
    /// All programs, beside the kernel's swap.
    compared: Vec<Comparison>,
    /// What was left out, and why.
    left_out: Vec<String>,
}

/// What sort found out.
#[derive(Debug, Serialize)]
struct SortFindings {
    input_bytes: u64,
    /// Far-capable memory that sort touches.
    working_set_bytes: u64,
    /// Time without Tombolo.
    plain_s: f64,
    runs: Vec<Row>,
}

/// Runs the demonstration; exit code 1 if an output differs.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    doctor::require_paging()?;
    let programs = match &arguments.program[..] {
        [] => &[Program::Sort, Program::Redis, Program::Scan][..],
        some => some,
    };
    if programs.contains(&Program::Sort) {
        check_sort()?;
    }
    tombolo_host::process::stop_on_signals(&STOP);
    let bar = progress();
    let result = demonstrate(arguments.link, programs, &bar);
    bar.finish_and_clear();
    let findings = result?;
    if arguments.json {
        output::json(&findings)?;
    } else {
        table::print(&findings);
    }
    Ok(u8::from(!findings.identical))
}

/// Hidden by itself where standard error is no terminal.
fn progress() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(5), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} [{bar:20}] {elapsed:>4} {msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Other sorts know neither `--parallel` nor `--buffer-size`.
fn check_sort() -> Result<(), Failure> {
    let version = Command::new("sort").arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    match version {
        Ok(answer) if String::from_utf8_lossy(&answer.stdout).contains("GNU") => Ok(()),
        Ok(_) => Err(Failure::new("the demo needs GNU sort, and this `sort` is another: install coreutils")),
        Err(error) => Err(Failure::new(format!("the demo needs GNU sort ({error}): install coreutils"))),
    }
}

fn demonstrate(link: Link, programs: &[Program], bar: &ProgressBar) -> Result<Findings, Failure> {
    let directory = Scratch::new("demo")?;
    let (lender, address) = start_lender(link, &directory)?;
    let mut left_out = Vec::new();
    let swap = compare::swap(ALL_LOCAL_BYTES).map(drop);
    let has_swap = swap.map_err(|reason| left_out.push(format!("kernel swap on zram: {reason}"))).is_ok();
    let demo = Demo { directory: &directory, address: &address, has_swap, bar };
    let mut findings = Findings { link, identical: true, sort: None, compared: Vec::new(), left_out };
    for program in programs {
        match program {
            Program::Sort => {
                let (found, compared) = demo.sort()?;
                findings.identical = found.runs.iter().all(|run| run.identical);
                findings.sort = Some(found);
                findings.compared.push(compared);
            }
            Program::Redis => match Redis::find(&directory) {
                Some(redis) => findings.compared.push(demo.compare(&redis)?),
                None => findings.left_out.push("redis under load: there is no redis-server".into()),
            },
            Program::Scan => findings.compared.push(demo.compare(&Scan)?),
        }
    }
    drop(lender);
    Ok(findings)
}

fn step(bar: &ProgressBar, text: impl Into<std::borrow::Cow<'static, str>>) {
    bar.inc(u64::from(!bar.message().is_empty()));
    bar.set_message(text);
    bar.tick();
}

fn disk(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::Interrupted {
        return children::interrupted();
    }
    let place = std::env::temp_dir();
    Failure::new(format!(
        "{}: {error}; the demo needs {} there (TMPDIR names another place)",
        place.display(),
        Size(3 * input::BYTES)
    ))
}

/// This binary once more, which ends when this process does.
fn tombolo() -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--end-with").arg(std::process::id().to_string());
    Ok(command)
}

fn start_lender(link: Link, directory: &Scratch) -> Result<(Child, String), Failure> {
    let listen = match link {
        Link::Shm => format!("shm:{}", directory.file("lender").display()),
        Link::Udp => "udp:127.0.0.1:0".to_owned(),
    };
    let mut command = tombolo()?;
    command.args([
        "node",
        "--insecure",
        "--name",
        "demo",
        "--listen",
        &listen,
        "--lend",
        &LEND_BYTES.to_string(),
        "--drain-timeout",
        "0",
    ]);
    let mut lender = Child::start(&mut command, "lender", directory)?;
    let address = lender.address(&STOP)?;
    Ok((lender, address))
}

fn sort_arguments(command: &mut Command, directory: &Scratch, input: &Path, output: &Path) {
    // In C order every byte counts; with one thread the times can be compared.
    command.env("LC_ALL", "C").args([BUFFER, "--parallel=1"]);
    command.arg("--temporary-directory").arg(directory.path()).arg("--output").arg(output).arg(input);
}

/// What the runs have in common.
struct Demo<'a> {
    directory: &'a Scratch,
    address: &'a str,
    /// Whether the kernel's swap on zram can be set up.
    has_swap: bool,
    bar: &'a ProgressBar,
}

/// Sort as the kernel's swap runs it. It writes nowhere: the cached pages of a file that it wrote would be
/// charged to its cgroup.
struct SortToNowhere;

impl Workload for SortToNowhere {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn run(&self, demo: &Demo<'_>, place: &Place<'_>) -> Result<f64, Failure> {
        let mut command = demo.command(place, "sort".as_ref())?;
        sort_arguments(&mut command, demo.directory, &demo.directory.file("input"), Path::new("/dev/null"));
        let since = Instant::now();
        Child::start(&mut command, "sort", demo.directory)?.finish(&STOP, || demo.bar.tick())?;
        Ok(since.elapsed().as_secs_f64())
    }
}

impl Demo<'_> {
    fn sort(&self) -> Result<(SortFindings, Comparison), Failure> {
        step(self.bar, "making the input");
        let input = self.directory.file("input");
        let input_bytes = input::write(&input, &STOP, || self.bar.tick()).map_err(disk)?;

        step(self.bar, "sorting without Tombolo");
        let plain = self.directory.file("plain");
        let since = Instant::now();
        let mut sort = Command::new("sort");
        sort_arguments(&mut sort, self.directory, &input, &plain);
        Child::start(&mut sort, "sort", self.directory)?.finish(&STOP, || self.bar.tick())?;
        let plain_s = since.elapsed().as_secs_f64();

        let mut runs = vec![self.sort_row("all local", ALL_LOCAL_BYTES, plain_s)?];
        let working_set_bytes = runs[0].resident_peak_bytes;
        for (name, share) in compare::SHARES {
            runs.push(self.sort_row(name, compare::share_of(working_set_bytes, share), plain_s)?);
        }
        let tombolo_s: Vec<f64> = runs.iter().map(|run| run.elapsed_s).collect();
        let compared = self.beside_swap(&SortToNowhere, working_set_bytes, plain_s, &tombolo_s)?;
        Ok((SortFindings { input_bytes, working_set_bytes, plain_s, runs }, compared))
    }

    fn sort_row(&self, name: &'static str, local_bytes: u64, plain_s: f64) -> Result<Row, Failure> {
        step(self.bar, format!("sorting, {name}"));
        let output = self.directory.file("output");
        let mut command = self.command(&Place::Tombolo(local_bytes), "sort".as_ref())?;
        sort_arguments(&mut command, self.directory, &self.directory.file("input"), &output);
        Child::start(&mut command, "sort under tombolo", self.directory)?
            .finish(&STOP, || self.bar.tick())?;
        let identical = same_files(&self.directory.file("plain"), &output)?;
        fs::remove_file(&output)?;

        let report = self.report()?;
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let elapsed_s = report["elapsed_s"].as_f64().unwrap_or(0.0);
        Ok(Row {
            name,
            local_bytes: number(&report["local_bytes"]),
            resident_peak_bytes: number(&report["resident_peak_bytes"]),
            elapsed_s,
            slowdown: elapsed_s / plain_s,
            faults: number(&report["counters"]["faults"]),
            far_faults: number(&report["counters"]["far_faults"]),
            far_fault_ns: report["far_fault_ns"].clone(),
            bytes_in: number(&report["bytes_in"]),
            bytes_out: number(&report["bytes_out"]),
            identical,
        })
    }
}

/// Compares byte by byte.
fn same_files(left: &Path, right: &Path) -> io::Result<bool> {
    const CHUNK_BYTES: usize = 1 << 20;
    let open = |path| File::open(path).map(|file| BufReader::with_capacity(CHUNK_BYTES, file));
    let (mut left, mut right) = (open(left)?, open(right)?);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    loop {
        first.clear();
        second.clear();
        left.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut first)?;
        right.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut second)?;
        if first != second {
            return Ok(false);
        }
        if first.is_empty() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_the_same_only_if_every_byte_is() {
        let directory = Scratch::new("demo-test").unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.file(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let long = vec![7; (1 << 20) + 5];
        let mut other = long.clone();
        other[1 << 20] = 8;
        let first = write("first", &long);
        assert!(same_files(&first, &write("same", &long)).unwrap());
        assert!(!same_files(&first, &write("other", &other)).unwrap());
        assert!(!same_files(&first, &write("shorter", &long[1..])).unwrap());
        assert!(!same_files(&first, &write("empty", b"")).unwrap());
    }
}
