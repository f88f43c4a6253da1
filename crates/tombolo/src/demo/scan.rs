//! Sums of a large array, again and again: the access pattern of analyses and of machine learning.

use serde_json::Value;

use super::children::Child;
use super::compare::{Place, Workload};
use super::{Demo, STOP};
use crate::Failure;

const BYTES: usize = 128 << 20;
const PASSES: usize = 4;

/// The workload: this binary once more.
pub struct Scan;

impl Workload for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn run(&self, demo: &Demo<'_>, place: &Place<'_>) -> Result<f64, Failure> {
        let mut command = demo.command(place, std::env::current_exe()?.as_os_str())?;
        command.args(["bench", "probe", "scan", "--half", "--area", &BYTES.to_string()]);
        command.args(["--count", &PASSES.to_string()]);
        let child = Child::start(command, "scan", demo.directory)?;
        let found: Value = serde_json::from_str(&child.output(&STOP, || demo.bar.tick())?)?;
        found["wall_s"].as_f64().ok_or_else(|| Failure::new("the scan told no time"))
    }
}
