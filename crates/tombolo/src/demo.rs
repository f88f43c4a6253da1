//! `tombolo demo`: the whole thing on one machine, with programs such as people have.
//!
//! A lender and a borrower run as separate processes, as a user would start them, in a private directory. Each program
//! gets all, three quarters, a half and a quarter of the memory that it needs, and what it computes must be the same as
//! without Tombolo. Where root allows, the kernel's own swap on zram stands beside it.

use std::fs;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tombolo_app::scratch::Scratch;

use crate::failure::Failure;

use crate::{doctor, output};

mod child;
mod compare;
mod programs;
mod progress;
mod table;

use child::Child;
use compare::{Comparison, Demo};
use programs::{Program, Workload};
pub use programs::{columns, store};
use progress::Progress;

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

/// What is lent; more than any program needs.
const LEND_BYTES: u64 = 384 << 20;
/// Local memory of the run that needs no far memory.
const ALL_LOCAL_BYTES: u64 = 512 << 20;

/// SIGINT, SIGTERM or SIGHUP has come.
static STOP: AtomicBool = AtomicBool::new(false);

/// Everything the demo found out.
#[derive(Debug, Serialize)]
struct Findings {
    link: Link,
    /// Each output is that of the run without Tombolo.
    identical: bool,
    programs: Vec<Comparison>,
    /// What was left out, and why.
    left_out: Vec<String>,
}

/// Runs the demonstration; exit code 1 if an output differs.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    doctor::require_paging()?;
    let programs = match &arguments.program[..] {
        [] => Program::value_variants(),
        some => some,
    };
    tombolo_host::stops::stop_on_signals(&STOP);
    let findings = demonstrate(arguments.link, programs, !arguments.program.is_empty())?;
    if arguments.json {
        output::json(&findings)?;
    } else {
        table::print(&findings);
    }
    Ok(u8::from(!findings.identical))
}

/// Where the user has named the programs, each must be there.
fn demonstrate(link: Link, programs: &[Program], are_named: bool) -> Result<Findings, Failure> {
    let directory = Scratch::new("demo")?;
    let mut left_out = Vec::new();
    let mut workloads: Vec<Box<dyn Workload>> = Vec::new();
    for program in programs {
        match program.prepare(&directory)? {
            Ok(workload) => workloads.push(workload),
            Err(reason) if are_named => return Err(Failure::new(reason)),
            Err(reason) => left_out.push(reason),
        }
    }
    let swap = compare::swap(ALL_LOCAL_BYTES).map(drop);
    let has_swap = swap.map_err(|reason| left_out.push(format!("kernel swap on zram: {reason}"))).is_ok();
    let steps = workloads.iter().map(|workload| compare::steps(&**workload, has_swap)).sum();
    let progress = Progress::new(steps);
    let (lender, address) = start_lender(link, &directory)?;
    let binary = directory.file("tombolo");
    fs::copy(std::env::current_exe()?, &binary)
        .map_err(|error| Failure::new(format!("{}: {error}", binary.display())))?;
    let demo =
        Demo { directory: &directory, binary: &binary, address: &address, has_swap, progress: &progress };
    let compared =
        workloads.iter().map(|workload| demo.compare(&**workload)).collect::<Result<Vec<_>, _>>()?;
    drop(lender);
    progress.end();
    Ok(Findings {
        link,
        identical: compared.iter().all(|found| found.identical),
        programs: compared,
        left_out,
    })
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
