//! Sums of a large array, again and again: the access pattern of analyses and of machine learning.

use serde_json::{Value, json};
use tombolo_host::cpu::Stopwatch;
use tombolo_host::probe::{Area, PAGE_BYTES, PAGE_WORDS};
use tombolo_random::mix;

use super::children::Child;
use super::compare::{Place, Workload};
use super::{Demo, STOP};
use crate::{Failure, output};

const BYTES: usize = 128 << 20;
/// The rest of each page is zero: about half-compressible, as the memory of programs often is.
const WORDS_PER_PAGE: usize = PAGE_WORDS / 2;
const PASSES: usize = 4;

/// The workload: this binary once more.
pub struct Scan;

impl Workload for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn run(&self, demo: &Demo<'_>, place: &Place<'_>) -> Result<f64, Failure> {
        let mut command = demo.command(place, std::env::current_exe()?.as_os_str())?;
        let child = Child::start(command.arg("demo-scan"), "scan", demo.directory)?;
        let found: Value = serde_json::from_str(&child.output(&STOP, || demo.bar.tick())?)?;
        found["wall_s"].as_f64().ok_or_else(|| Failure::new("the scan reported no time"))
    }
}

/// The program: fills the array, sums it several times, and checks the sums.
pub fn scan_array() -> Result<u8, Failure> {
    let array = Area::new(BYTES / PAGE_BYTES)?;
    let mut expected = 0u64;
    for page in 0..array.pages() {
        for index in (page * PAGE_WORDS..).take(WORDS_PER_PAGE) {
            let word = mix(index as u64);
            array.write(index, word);
            expected = expected.wrapping_add(word);
        }
    }
    let watch = Stopwatch::start()?;
    for _ in 0..PASSES {
        let sum =
            (0..array.pages() * PAGE_WORDS).fold(0u64, |sum, index| sum.wrapping_add(array.read(index)));
        if sum != expected {
            return Err(Failure::new("the array does not hold what was written to it"));
        }
    }
    let (wall_s, cpu_s) = watch.elapsed()?;
    output::json(&json!({ "wall_s": wall_s, "cpu_s": cpu_s }))?;
    Ok(0)
}
