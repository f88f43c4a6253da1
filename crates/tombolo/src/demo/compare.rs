//! One program in all ways: plainly, under Tombolo, and with the kernel's swap on zram.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use serde::Serialize;
use serde_json::Value;
use tombolo_app::scratch::Scratch;
use tombolo_app::swap::{LimitedMemory, pages_swapped_in};
use tombolo_host::process::end_with_this_thread;
use tombolo_host::timing::command::DEMO_ZRAM_TURN_TIMEOUT;

use super::programs::{Ran, Workload};
use super::{ALL_LOCAL_BYTES, LEND_BYTES, STOP, child, tombolo};
use crate::failure::Failure;

use super::progress::Progress;

/// Parts of the working set that stay local: what they are called, and how many of four quarters they are.
pub const SHARES: [(&str, u64); 3] = [("three quarters", 3), ("a half", 2), ("a quarter", 1)];

/// The kernel now and then kills a program in a small cgroup although it could swap; such a run is made
/// again.
const SWAP_ATTEMPTS: usize = 3;

/// Each program touches several times as much; where less was served, something is wrong.
const WORKING_SET_LEAST_BYTES: u64 = 8 << 20;

/// How many runs a program makes.
pub fn steps(workload: &dyn Workload, has_swap: bool) -> usize {
    let with_swap =
        if has_swap { 1 + SHARES.len() + usize::from(workload.has_other_output_in_group()) } else { 0 };
    2 + SHARES.len() + with_swap
}

/// A cgroup that may use `limit_bytes`, and swap on zram behind it.
pub fn swap(limit_bytes: u64) -> io::Result<LimitedMemory> {
    LimitedMemory::new("tombolo-demo", limit_bytes, ALL_LOCAL_BYTES, DEMO_ZRAM_TURN_TIMEOUT)
}

/// Bytes in `quarters` quarters of the working set, rounded down to whole pages.
fn share_of(working_set_bytes: u64, quarters: u64) -> u64 {
    working_set_bytes * quarters / 4 / 4096 * 4096
}

/// Where a program runs.
pub enum Place<'a> {
    /// Nothing special.
    Plain,
    /// Without Tombolo or a cgroup, but with the output that the program writes in a cgroup (sort: to `/dev/null`): the measure of times with zram.
    PlainBesideGroup,
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
    /// What the kernel had to be given beyond the limit, on average, so that it did not kill the program.
    pub zram_excess_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zram_failure: Option<String>,
}

/// What a run with the kernel's swap came to.
#[derive(Clone, Copy)]
struct Swapped {
    seconds: f64,
    peak_bytes: u64,
    excess_bytes: u64,
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
    /// Time of [`Place::PlainBesideGroup`], by which times with zram are divided.
    pub plain_beside_zram_s: f64,
    /// Under Tombolo with a limit that it does not reach.
    pub all_local_s: f64,
    pub points: Vec<Point>,
    /// Each output under Tombolo is that of the run without it.
    pub identical: bool,
    /// Why a run under Tombolo did not come to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// What the runs have in common.
pub struct Demo<'a> {
    pub directory: &'a Scratch,
    /// This binary, in a copy without capabilities: the kernel ignores preloaded libraries for programs that have some.
    pub binary: &'a Path,
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
            Place::Plain | Place::PlainBesideGroup => {
                let mut command = Command::new(program);
                end_with_this_thread(&mut command);
                Ok(command)
            }
            Place::Tombolo(local_bytes) => {
                let mut command = tombolo()?;
                command.args(["run", "--quiet", "--insecure", "--from", self.address]);
                command.args(["--local", &local_bytes.to_string()]);
                command.args(["--remote", &(LEND_BYTES / 4 * 3).to_string(), "--report"]);
                command.arg(self.directory.file("report.json")).arg("--").arg(program);
                Ok(command)
            }
            Place::Group(limited) => {
                let mut command = Command::new("sh");
                command.args(["-c", "echo 0 >\"$0\" && exec \"$@\""]).arg(limited.procs()).arg(program);
                end_with_this_thread(&mut command);
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
        let mut found = Comparison {
            program: workload.name(),
            about: workload.about(),
            working_set_bytes: 0,
            plain_s: plain.seconds,
            plain_beside_zram_s: plain.seconds,
            all_local_s: 0.0,
            points: Vec::new(),
            identical: true,
            failure: None,
        };
        if let Err(failure) = self.add_tombolo(&mut found, &plain, run) {
            if STOP.load(Ordering::Acquire) {
                return Err(failure);
            }
            // What it has computed is not right: that is found, not a reason to find nothing.
            (found.identical, found.failure) = (false, Some(failure.text));
        } else if self.has_swap {
            self.add_swap(workload, &plain, &mut found)?;
        }
        Ok(found)
    }

    /// Adds runs under Tombolo.
    fn add_tombolo(
        &self,
        found: &mut Comparison,
        plain: &Ran,
        run: impl Fn(&str, &Place<'_>) -> Result<Ran, Failure>,
    ) -> Result<(), Failure> {
        let all_local = run("all local", &Place::Tombolo(ALL_LOCAL_BYTES))?;
        found.all_local_s = all_local.seconds;
        found.identical &= all_local.output == plain.output;
        found.working_set_bytes = self.report()?["resident_peak_bytes"].as_u64().unwrap_or(0);
        if found.working_set_bytes < WORKING_SET_LEAST_BYTES {
            return Err(Failure::new("hardly anything of its memory was served"));
        }
        for (share, quarters) in SHARES {
            let local_bytes = share_of(found.working_set_bytes, quarters);
            let ran = run(share, &Place::Tombolo(local_bytes))?;
            found.identical &= ran.output == plain.output;
            let report = self.report()?;
            let number = |name: &str| report[name].as_u64().unwrap_or(0);
            found.points.push(Point {
                share,
                local_bytes,
                resident_peak_bytes: number("resident_peak_bytes"),
                bytes_in: number("bytes_in"),
                bytes_out: number("bytes_out"),
                tombolo_s: ran.seconds,
                zram_s: None,
                zram_excess_bytes: 0,
                zram_failure: None,
            });
        }
        Ok(())
    }

    /// Adds runs with the kernel's swap.
    fn add_swap(&self, workload: &dyn Workload, plain: &Ran, found: &mut Comparison) -> Result<(), Failure> {
        let attempt = |limit_bytes: u64, is_ample: bool| -> Result<Swapped, Failure> {
            let limited = swap(limit_bytes)?;
            let before = pages_swapped_in()?;
            let ran = workload.run(self, &Place::Group(&limited))?;
            if ran.output.is_some() && ran.output != plain.output {
                return Err(Failure::new("its output differs"));
            }
            if !is_ample && pages_swapped_in()? == before {
                return Err(Failure::new("nothing was swapped"));
            }
            let excess_bytes = limited.relieved().mean_bytes;
            Ok(Swapped { seconds: ran.seconds, peak_bytes: limited.peak_bytes()?, excess_bytes })
        };
        let measure = |limit_bytes: u64, is_ample: bool| -> Result<Result<Swapped, String>, Failure> {
            let mut outcome = attempt(limit_bytes, is_ample);
            for _ in 1..SWAP_ATTEMPTS {
                if outcome.is_ok() || STOP.load(Ordering::Acquire) {
                    break;
                }
                outcome = attempt(limit_bytes, is_ample);
            }
            if STOP.load(Ordering::Acquire) {
                return Err(child::interrupted());
            }
            Ok(outcome.map_err(|failure| failure.text))
        };
        if workload.has_other_output_in_group() {
            self.progress.step(workload.name(), "without Tombolo, as with swap");
            found.plain_beside_zram_s = workload.run(self, &Place::PlainBesideGroup)?.seconds;
        }
        // With room for everything: what it uses at most, less the working set, it has beside that.
        self.progress.step(workload.name(), "its memory in a cgroup");
        let ample = measure(ALL_LOCAL_BYTES * 2, true)?;
        for point in &mut found.points {
            self.progress.step(workload.name(), &format!("{}, swap on zram", point.share));
            let measured = match &ample {
                Ok(all) => {
                    let beside_bytes = all.peak_bytes.saturating_sub(found.working_set_bytes);
                    measure(point.local_bytes + beside_bytes, false)?
                }
                Err(reason) => Err(reason.clone()),
            };
            match measured {
                Ok(swapped) => {
                    point.zram_s = Some(swapped.seconds);
                    point.zram_excess_bytes = swapped.excess_bytes;
                }
                Err(reason) => point.zram_failure = Some(reason),
            }
        }
        Ok(())
    }
}
