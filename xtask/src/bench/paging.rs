//! `cargo xtask bench paging`: the figures of `tombolo bench paging`, slowdown
//! curves of three programs, and the page in `bench/` that shows both.
//!
//! Each program runs plainly, under Tombolo (shm) and with the kernel's own swap
//! on zram under a memory cgroup, at the same limits. `--local` limits the
//! program's heap and large mappings, the cgroup everything, so the cgroup gets
//! in addition what the program was measured to use beside its heap.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tombolo_host::process;

use super::{STOP, USAGE, build, folder, interrupted, median, page};

mod chart;
mod curve;
mod redis;
mod results;
mod surroundings;
mod workload;

/// Parts of the working set that stay local, in percent.
pub const LOCAL_PERCENT: [u64; 4] = [100, 75, 50, 25];

/// Programs that are measured, and the Debian package of each.
const NEEDED: [(&str, &str); 3] =
    [("sort", "coreutils"), ("redis-server", "redis-server"), ("mkswap", "util-linux")];

struct Options {
    runs: usize,
    only: Option<String>,
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options { runs: 3, only: None };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or(USAGE)?;
        match word.as_str() {
            "--runs" => options.runs = value.parse().ok().filter(|&runs| runs > 0).ok_or(USAGE)?,
            "--only" if ["sort", "redis", "chase"].contains(&value.as_str()) => {
                options.only = Some(value.clone())
            }
            _ => return Err(USAGE.into()),
        }
    }
    Ok(options)
}

/// What `tombolo bench paging` finds.
fn figures(tombolo: &Path) -> Result<Value, String> {
    let output = Command::new(tombolo)
        .args(["bench", "paging", "--json"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{}: {error}", tombolo.display()))?;
    if !output.status.success() {
        return Err("`tombolo bench paging` failed".into());
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("`tombolo bench paging` printed no JSON: {error}"))
}

/// Runs it. The arguments are those after `paging`.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let options = options(arguments)?;
    crate::packages::install_missing(&NEEDED, "not everything will be measured")?;
    let tombolo = build()?;
    process::stop_on_signals(&STOP);
    eprintln!("bench: faults and random reads");
    let figures = figures(&tombolo)?;
    let surroundings = surroundings::Surroundings::new(&tombolo)?;
    let mut curves = Vec::new();
    for workload in workload::all(&surroundings)? {
        if options.only.as_ref().is_none_or(|only| only == workload.name()) {
            curves.push(curve::measure(&surroundings, &*workload, options.runs)?);
        }
    }
    let folder = folder();
    std::fs::create_dir_all(&folder).map_err(|error| format!("bench/: {error}"))?;
    for curve in &curves {
        chart::draw(curve, &folder.join(format!("{}.svg", curve.name)))?;
    }
    if options.only.is_some() {
        eprintln!("bench: RESULTS.md is written by a whole run only");
        return Ok(());
    }
    let whole = results::json(&figures, &curves);
    let text = serde_json::to_string_pretty(&whole).map_err(|error| error.to_string())?;
    page::keep(&folder, "paging.json", &(text + "\n"))?;
    page::write(&folder, "paging", &results::page(&figures, &curves, &surroundings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_understood_or_refused() {
        let parse = |text: &str| options(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(parse("").unwrap().runs, 3);
        assert_eq!(parse("--runs 1 --only sort").unwrap().only.as_deref(), Some("sort"));
        for wrong in ["other", "--runs", "--runs 0", "--only vi"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
