//! One program in all ways: plainly, under Tombolo, and with the kernel's swap on zram.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::process::Command;
use std::sync::atomic::Ordering;

use serde::Serialize;
use serde_json::Value;
use tombolo_app::scratch::Scratch;
use tombolo_app::swap::LimitedMemory;

use super::programs::{Ran, Workload};
use super::{ALL_LOCAL_BYTES, LEND_BYTES, STOP, child, tombolo};
use crate::Failure;

use super::progress::Progress;

/// Parts of the working set that stay local: what they are called, and how many of four quarters they are.
pub const SHARES: [(&str, u64); 3] = [("three quarters", 3), ("a half", 2), ("a quarter", 1)];

/// The kernel now and then kills a program in a small cgroup although it could swap; such a run is made
/// again.
const SWAP_ATTEMPTS: usize = 3;

/// How many runs a program makes.
pub fn steps(has_swap: bool) -> usize {
    let with_swap = if has_swap { 1 + SHARES.len() } else { 0 };
    2 + SHARES.len() + with_swap
}

/// A cgroup that may use `limit_bytes`, and swap on zram behind it.
pub fn swap(limit_bytes: u64) -> io::Result<LimitedMemory> {
    LimitedMemory::new("tombolo-demo", limit_bytes, ALL_LOCAL_BYTES)
}

/// Bytes in `quarters` quarters of the working set, rounded down to whole pages.
fn share_of(working_set_bytes: u64, quarters: u64) -> u64 {
    working_set_bytes * quarters / 4 / 4096 * 4096
}

/// Where a program runs.
pub enum Place<'a> {
    /// Nothing special.
    Plain,
    /// Under Tombolo with this many bytes local.
    Tombolo(u64),
    /// In a memory cgroup.
    Group(&'a LimitedMemory),
}

/// Times at one limit.
#[derive(Debug, Serialize)]
pub struct Point {
    /// As [`SHARES`] calls it.
    pub share: &'static str,
    pub local_bytes: u64,
    /// The most that Tombolo kept local.
    pub resident_peak_bytes: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub tombolo_s: f64,
    /// `None` where there is no zram, or the run with it failed.
    pub zram_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zram_failure: Option<String>,
}

/// What one program found out.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub program: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    /// Far-capable memory that it touches.
    pub working_set_bytes: u64,
    pub plain_s: f64,
    /// Under Tombolo with a limit that it does not reach.
    pub all_local_s: f64,
    pub points: Vec<Point>,
    /// Each output under Tombolo is that of the run without it.
    pub identical: bool,
}

/// What the runs have in common.
pub struct Demo<'a> {
    pub directory: &'a Scratch,
    /// The lender's.
    pub address: &'a str,
    /// Whether the kernel's swap on zram can be set up.
    pub has_swap: bool,
    pub progress: &'a Progress,
}

impl Demo<'_> {
    /// A command that runs a program there.
    pub fn command(&self, place: &Place<'_>, program: &OsStr) -> Result<Command, Failure> {
        match place {
            Place::Plain => Ok(Command::new(program)),
            Place::Tombolo(local_bytes) => {
                let mut command = tombolo()?;
                command.args(["run", "--insecure", "--from", self.address]);
                command.args(["--local", &local_bytes.to_string()]);
                command.args(["--remote", &(LEND_BYTES / 4 * 3).to_string(), "--report"]);
                command.arg(self.directory.file("report.json")).arg("--").arg(program);
                Ok(command)
            }
            Place::Group(limited) => {
                let mut command = Command::new("sh");
                command.args(["-c", "echo 0 >\"$0\" && exec \"$@\""]).arg(limited.procs()).arg(program);
                Ok(command)
            }
        }
    }

    /// What the run under Tombolo that has just ended reported.
    fn report(&self) -> Result<Value, Failure> {
        Ok(serde_json::from_slice(&fs::read(self.directory.file("report.json"))?)?)
    }

    /// Runs a program in all ways.
    pub fn compare(&self, workload: &dyn Workload) -> Result<Comparison, Failure> {
        let run = |name: &str, place: &Place<'_>| {
            self.progress.step(workload.name(), name);
            workload.run(self, place)
        };
        let plain = run("without Tombolo", &Place::Plain)?;
        let all_local = run("all local", &Place::Tombolo(ALL_LOCAL_BYTES))?;
        let working_set_bytes = self.report()?["resident_peak_bytes"].as_u64().unwrap_or(0);
        let is_same = |ran: &Ran| ran.output == plain.output;
        let mut identical = is_same(&all_local);
        let mut points = Vec::new();
        for (share, quarters) in SHARES {
            let local_bytes = share_of(working_set_bytes, quarters);
            let ran = run(share, &Place::Tombolo(local_bytes))?;
            identical &= is_same(&ran);
            let report = self.report()?;
            let number = |name: &str| report[name].as_u64().unwrap_or(0);
            points.push(Point {
                share,
                local_bytes,
                resident_peak_bytes: number("resident_peak_bytes"),
                bytes_in: number("bytes_in"),
                bytes_out: number("bytes_out"),
                tombolo_s: ran.seconds,
                zram_s: None,
                zram_failure: None,
            });
        }
        if self.has_swap {
            self.add_swap(workload, working_set_bytes, &mut points)?;
        }
        Ok(Comparison {
            program: workload.name(),
            about: workload.about(),
            working_set_bytes,
            plain_s: plain.seconds,
            all_local_s: all_local.seconds,
            points,
            identical,
        })
    }

    /// Adds runs with the kernel's swap.
    fn add_swap(
        &self,
        workload: &dyn Workload,
        working_set_bytes: u64,
        points: &mut [Point],
    ) -> Result<(), Failure> {
        let attempt = |limit_bytes: u64| -> Result<(f64, u64), Failure> {
            let limited = swap(limit_bytes)?;
            let ran = workload.run(self, &Place::Group(&limited))?;
            Ok((ran.seconds, limited.peak_bytes()?))
        };
        let measure = |limit_bytes: u64| -> Result<Result<(f64, u64), String>, Failure> {
            let mut outcome = attempt(limit_bytes);
            for _ in 1..SWAP_ATTEMPTS {
                if outcome.is_ok() || STOP.load(Ordering::Acquire) {
                    break;
                }
                outcome = attempt(limit_bytes);
            }
            if STOP.load(Ordering::Acquire) {
                return Err(child::interrupted());
            }
            Ok(outcome.map_err(|failure| failure.text))
        };
        // With room for everything: what it uses at most, less the working set, it has beside that.
        self.progress.step(workload.name(), "its memory in a cgroup");
        let ample = measure(ALL_LOCAL_BYTES * 2)?;
        for point in points {
            self.progress.step(workload.name(), &format!("{}, swap on zram", point.share));
            let measured = match &ample {
                Ok((_, peak_bytes)) => {
                    measure(point.local_bytes + peak_bytes.saturating_sub(working_set_bytes))?
                }
                Err(reason) => Err(reason.clone()),
            };
            match measured {
                Ok((seconds, _)) => point.zram_s = Some(seconds),
                Err(reason) => point.zram_failure = Some(reason),
            }
        }
        Ok(())
    }
}
