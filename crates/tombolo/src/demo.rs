//! `tombolo demo`: the whole thing on one machine, with a program that everybody has.
//!
//! A lender and a borrower run as separate processes, as a user would start
//! them, in a private directory. GNU sort gets all, a half and a quarter of the
//! memory it needs; its outputs must be the same, byte for byte, as without Tombolo.

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

use crate::size::Size;
use crate::{Failure, doctor, output};

mod children;
mod directory;
mod input;
mod table;

use children::Child;
use directory::Directory;

/// Arguments of `tombolo demo`.
#[derive(Args)]
pub struct Arguments {
    /// How lender and borrower are connected.
    #[arg(long, value_enum, default_value_t = Link::Shm)]
    link: Link,
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

/// What is lent; more than sort needs.
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
    input_bytes: u64,
    /// Far-capable memory that sort touches.
    working_set_bytes: u64,
    /// Time without Tombolo.
    plain_s: f64,
    runs: Vec<Row>,
    identical: bool,
}

/// Runs the demonstration; exit code 1 if an output differs.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    doctor::require_paging()?;
    check_sort()?;
    tombolo_host::process::stop_on_signals(&STOP);
    let bar = progress();
    let result = demonstrate(arguments.link, &bar);
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

fn demonstrate(link: Link, bar: &ProgressBar) -> Result<Findings, Failure> {
    let directory = Directory::new()?;
    let (lender, address) = start_lender(link, &directory)?;

    step(bar, "making the input");
    let input = directory.file("input");
    let input_bytes = input::write(&input, &STOP, || bar.tick()).map_err(disk)?;

    step(bar, "sorting without Tombolo");
    let plain = directory.file("plain");
    let since = Instant::now();
    let mut sort = Command::new("sort");
    sort_arguments(&mut sort, &directory, &input, &plain);
    Child::start(sort, "sort", &directory)?.finish(&STOP, || bar.tick())?;
    let plain_s = since.elapsed().as_secs_f64();

    let sorting = Sorting { directory: &directory, address: &address, plain_s, bar };
    let mut runs = vec![sorting.run("all local", ALL_LOCAL_BYTES)?];
    let working_set_bytes = runs[0].resident_peak_bytes;
    for (name, share) in [("one half", 2), ("one quarter", 4)] {
        runs.push(sorting.run(name, working_set_bytes / share / 4096 * 4096)?);
    }
    drop(lender);
    let identical = runs.iter().all(|run| run.identical);
    Ok(Findings { link, input_bytes, working_set_bytes, plain_s, runs, identical })
}

fn step(bar: &ProgressBar, text: &'static str) {
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

fn start_lender(link: Link, directory: &Directory) -> Result<(Child, String), Failure> {
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
    let mut lender = Child::start(command, "lender", directory)?;
    let address = lender.address(&STOP)?;
    Ok((lender, address))
}

fn sort_arguments(command: &mut Command, directory: &Directory, input: &Path, output: &Path) {
    // In C order every byte counts; with one thread the times can be compared.
    command.env("LC_ALL", "C").args([BUFFER, "--parallel=1"]);
    command.arg("--temporary-directory").arg(directory.path()).arg("--output").arg(output).arg(input);
}

/// What the runs of sort have in common.
struct Sorting<'a> {
    directory: &'a Directory,
    address: &'a str,
    plain_s: f64,
    bar: &'a ProgressBar,
}

impl Sorting<'_> {
    fn run(&self, name: &'static str, local_bytes: u64) -> Result<Row, Failure> {
        step(
            self.bar,
            match name {
                "all local" => "sorting, all memory local",
                "one half" => "sorting, one half local",
                _ => "sorting, one quarter local",
            },
        );
        let (report, output) = (self.directory.file("report.json"), self.directory.file("output"));
        let mut command = tombolo()?;
        command.args(["run", "--insecure", "--from", self.address, "--local", &local_bytes.to_string()]);
        command.args(["--remote", &(LEND_BYTES / 4 * 3).to_string(), "--report"]).arg(&report);
        command.arg("--").arg("sort");
        sort_arguments(&mut command, self.directory, &self.directory.file("input"), &output);
        Child::start(command, "sort under tombolo", self.directory)?.finish(&STOP, || self.bar.tick())?;
        let identical = same_files(&self.directory.file("plain"), &output)?;
        fs::remove_file(&output)?;

        let report: Value = serde_json::from_slice(&fs::read(&report)?)?;
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let elapsed_s = report["elapsed_s"].as_f64().unwrap_or(0.0);
        Ok(Row {
            name,
            local_bytes: number(&report["local_bytes"]),
            resident_peak_bytes: number(&report["resident_peak_bytes"]),
            elapsed_s,
            slowdown: elapsed_s / self.plain_s,
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
        let directory = Directory::new().unwrap();
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
