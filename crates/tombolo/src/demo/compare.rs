//! One program in all ways: plainly, under Tombolo, and with the kernel's swap on zram.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::process::Command;
use std::sync::atomic::Ordering;

use serde::Serialize;
use serde_json::Value;
use tombolo_app::swap::LimitedMemory;

use super::{ALL_LOCAL_BYTES, Demo, LEND_BYTES, STOP, children, step, tombolo};
use crate::Failure;

/// Parts of the working set that stay local, and their divisors.
pub const SHARES: [(&str, u64); 2] = [("one half", 2), ("one quarter", 4)];

/// The kernel now and then kills a program in a small cgroup although it could swap; such a run is made
/// again.
const SWAP_ATTEMPTS: usize = 3;

/// A cgroup that may use `limit_bytes`, and swap on zram behind it.
pub fn swap(limit_bytes: u64) -> io::Result<LimitedMemory> {
    LimitedMemory::new("tombolo-demo", limit_bytes, ALL_LOCAL_BYTES)
}

/// A share of the working set in whole pages: it is divided by `share`.
pub fn share_of(working_set_bytes: u64, share: u64) -> u64 {
    working_set_bytes / share / 4096 * 4096
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

/// A program that checks what it computes.
pub trait Workload {
    /// One word.
    fn name(&self) -> &'static str;
    /// Runs it; returns the seconds that its work took.
    fn run(&self, demo: &Demo<'_>, place: &Place<'_>) -> Result<f64, Failure>;
}

/// Times at one limit.
#[derive(Debug, Serialize)]
pub struct Point {
    pub local_bytes: u64,
    pub tombolo_s: f64,
    /// `None` where there is no zram, or the run with it failed.
    pub zram_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zram_failure: Option<String>,
}

/// One program's times.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub program: &'static str,
    /// Far-capable memory that it touches.
    pub working_set_bytes: u64,
    pub plain_s: f64,
    /// Under Tombolo with a limit that it does not reach.
    pub all_local_s: f64,
    /// At a half and a quarter.
    pub points: [Point; 2],
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
    pub fn report(&self) -> Result<Value, Failure> {
        Ok(serde_json::from_slice(&fs::read(self.directory.file("report.json"))?)?)
    }

    /// Runs a program in all ways.
    pub fn compare(&self, workload: &dyn Workload) -> Result<Comparison, Failure> {
        let run = |name: &str, place: &Place<'_>| {
            step(self.bar, format!("{}, {name}", workload.name()));
            workload.run(self, place)
        };
        let plain_s = run("without Tombolo", &Place::Plain)?;
        let mut tombolo_s = vec![run("all local", &Place::Tombolo(ALL_LOCAL_BYTES))?];
        let working_set_bytes = self.report()?["resident_peak_bytes"].as_u64().unwrap_or(0);
        for (name, share) in SHARES {
            tombolo_s.push(run(name, &Place::Tombolo(share_of(working_set_bytes, share)))?);
        }
        self.beside_swap(workload, working_set_bytes, plain_s, &tombolo_s)
    }

    /// Adds runs with the kernel's swap. `tombolo_s`: all local, and at each share.
    pub fn beside_swap(
        &self,
        workload: &dyn Workload,
        working_set_bytes: u64,
        plain_s: f64,
        tombolo_s: &[f64],
    ) -> Result<Comparison, Failure> {
        let mut beside_bytes = None;
        let mut point = |index: usize| {
            let (name, share) = SHARES[index];
            let local_bytes = share_of(working_set_bytes, share);
            let mut point =
                Point { local_bytes, tombolo_s: tombolo_s[index + 1], zram_s: None, zram_failure: None };
            if !self.has_swap {
                return Ok(point);
            }
            step(self.bar, format!("{}, {name}, swap on zram", workload.name()));
            let mut run = |local_bytes: u64| -> Result<f64, Failure> {
                let beside_bytes = match beside_bytes {
                    Some(bytes) => bytes,
                    None => {
                        // With room for everything: what it uses at most, less the working set.
                        let ample = swap(ALL_LOCAL_BYTES * 2)?;
                        workload.run(self, &Place::Group(&ample))?;
                        *beside_bytes.insert(ample.peak_bytes()?.saturating_sub(working_set_bytes))
                    }
                };
                let limited = swap(local_bytes + beside_bytes)?;
                workload.run(self, &Place::Group(&limited))
            };
            let mut outcome = run(local_bytes);
            for _ in 1..SWAP_ATTEMPTS {
                if outcome.is_ok() || STOP.load(Ordering::Acquire) {
                    break;
                }
                outcome = run(local_bytes);
            }
            match outcome {
                Ok(time_s) => point.zram_s = Some(time_s),
                Err(_) if STOP.load(Ordering::Acquire) => {
                    return Err(children::interrupted());
                }
                Err(failure) => point.zram_failure = Some(failure.text),
            }
            Ok(point)
        };
        Ok(Comparison {
            program: workload.name(),
            working_set_bytes,
            plain_s,
            all_local_s: tombolo_s[0],
            points: [point(0)?, point(1)?],
        })
    }
}
