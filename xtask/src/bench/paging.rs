//! `cargo xtask bench paging`: the figures of `tombolo-bench paging`, random reads beside a bare pager and
//! zram, starting, slowdown curves of three programs, and the page in `bench/` that shows all of it.
//!
//! Each program runs plainly, under Tombolo (shm) and with the kernel's own swap
//! on zram under a memory cgroup, at the same limits. `--local` limits the
//! program's heap and large mappings, the cgroup everything, so the cgroup gets
//! in addition what the program was measured to use beside its heap.
//!
//! A part that fails is a line of the page with the reason; the others keep their figures.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tombolo_host::sparse::Pages;
use tombolo_host::stops;

use super::{STOP, USAGE, build, folder, interrupted, page};

mod chart;
mod curve;
mod duckdb;
mod redis;
mod results;
mod surroundings;
mod targets;
mod workload;

/// Parts of the working set that stay local, in percent.
pub const LOCAL_PERCENT: [u64; 4] = [100, 75, 50, 25];

/// Programs that are measured, and the Debian package of each.
const NEEDED: [(&str, &str); 3] =
    [("sort", "coreutils"), ("redis-server", "redis-server"), ("mkswap", "util-linux")];

/// Parts of the bench that are no curves.
const PARTS: [&str; 4] = ["faults", "reads", "start", "forks"];

/// What was found, or why not.
struct Found {
    /// Of `tombolo-bench paging`.
    faults: Result<Value, String>,
    /// Of `tombolo-bench reads`.
    reads: Result<Value, String>,
    /// Of `tombolo-bench start`.
    start: Result<Value, String>,
    /// Of `tombolo-bench forks`.
    forks: Result<Value, String>,
    curves: Vec<Result<curve::Curve, String>>,
}

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
            "--only" if PARTS.iter().chain(&workload::NAMES).any(|name| name == value) => {
                options.only = Some(value.clone())
            }
            _ => return Err(USAGE.into()),
        }
    }
    Ok(options)
}

/// Runs a bench that prints JSON. One that has failed in parts prints what it has, too.
fn figures(binary: &Path, arguments: &[&str]) -> Result<Value, String> {
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    let name = format!("`{name} {}`", arguments.join(" "));
    let mut command = Command::new(binary);
    command.args(arguments).arg("--json").stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        if output.status.success() {
            format!("{name} printed no JSON: {error}")
        } else {
            format!("{name} failed ({})", output.status)
        }
    })
}

/// Memory that a virtual machine's host has not backed yet costs several times as much at its first touch:
/// as much as any part needs is touched before, as far as it is free.
fn prefault() {
    const NEEDED_BYTES: u64 = 3 << 30;
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free_kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<u64>().ok());
    let bytes = NEEDED_BYTES.min(free_kib.unwrap_or(0) * 1024 / 2);
    if let Ok(pages) = Pages::new(bytes as usize) {
        pages.prefault();
    }
}

/// Numbers of threads that read: up to one a processor, and more than that.
fn reading_threads(processors: usize) -> String {
    let wanted = [1, 2, 4, 8, 16].into_iter().filter(|&threads| threads <= processors || threads == 8);
    wanted.map(|threads: usize| threads.to_string()).collect::<Vec<_>>().join(",")
}

/// Measures all parts, or the only one that is wanted.
fn measure(options: &Options, tombolo: &Path, races: &Path) -> Result<(Found, Option<String>), String> {
    let wanted = |name: &str| options.only.as_ref().is_none_or(|only| only == name);
    let part = |name: &str, measure: &dyn Fn() -> Result<Value, String>| {
        if !wanted(name) {
            return Err("not asked for".to_owned());
        }
        eprintln!("bench: {name}");
        measure().inspect_err(|reason| eprintln!("bench: not measured: {name}: {reason}"))
    };
    prefault();
    let faults = part("faults", &|| figures(races, &["paging", "--binary", &tombolo.to_string_lossy()]));
    let rounds = options.runs.to_string();
    let reads = part("reads", &|| {
        let binary = tombolo.to_string_lossy();
        let threads = reading_threads(tombolo_host::process::processors().len());
        let racers = ["reads", "zram", "tombolo", "many", "bare", "--binary", &binary];
        figures(races, &[&racers[..], &["--rounds", &rounds, "--threads", &threads]].concat())
    });
    let start = part("start", &|| figures(races, &["start", "--binary", &tombolo.to_string_lossy()]));
    let forks = part("forks", &|| {
        let binary = tombolo.to_string_lossy();
        figures(races, &["forks", "plain", "zram", "tombolo", "--binary", &binary, "--rounds", &rounds])
    });
    let surroundings = surroundings::Surroundings::new(tombolo, races)?;
    let mut curves = Vec::new();
    for name in workload::NAMES.into_iter().filter(|name| wanted(name)) {
        if interrupted() {
            break;
        }
        let found = workload::find(name, &surroundings)
            .and_then(|workload| curve::measure(&surroundings, &*workload, options.runs))
            .map_err(|reason| format!("{name}: {reason}"));
        curves.push(found.inspect_err(|reason| eprintln!("bench: not measured: {reason}")));
    }
    if interrupted() {
        return Err("interrupted".into());
    }
    Ok((Found { faults, reads, start, forks, curves }, surroundings.no_swap().map(str::to_owned)))
}

/// Runs it. The arguments are those after `paging`.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let options = options(arguments)?;
    crate::packages::install_missing(&NEEDED, "not everything will be measured")?;
    let (tombolo, races) = (build("tombolo")?, build("tombolo-bench")?);
    stops::stop_on_signals(&STOP);
    let (found, no_swap) = measure(&options, &tombolo, &races)?;
    for target in targets::all(&found) {
        eprintln!("  {}", target.line());
    }
    let folder = folder();
    std::fs::create_dir_all(&folder).map_err(|error| format!("bench/: {error}"))?;
    for curve in found.curves.iter().flatten() {
        chart::draw(curve, &folder.join(format!("{}.svg", curve.name)))?;
    }
    if options.only.is_some() {
        eprintln!("bench: RESULTS.md is written by a whole run only");
        return Ok(());
    }
    let text = serde_json::to_string_pretty(&results::json(&found)).map_err(|error| error.to_string())?;
    page::keep(&folder, "paging.json", &(text + "\n"))?;
    page::write(&folder, "paging", &results::page(&found, no_swap.as_deref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_understood_or_refused() {
        let parse = |text: &str| options(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(parse("").unwrap().runs, 3);
        assert_eq!(parse("--runs 1 --only sort").unwrap().only.as_deref(), Some("sort"));
        assert_eq!(parse("--only reads").unwrap().only.as_deref(), Some("reads"));
        for wrong in ["other", "--runs", "--runs 0", "--only vi"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn there_are_threads_for_each_processor_and_a_crowd() {
        assert_eq!(reading_threads(2), "1,2,8");
        assert_eq!(reading_threads(16), "1,2,4,8,16");
    }

    #[test]
    fn a_bench_that_fails_in_parts_is_heard() {
        let shell = |script: &str| figures(Path::new("sh"), &["-c", script, "sh"]);
        assert_eq!(shell("echo 7; exit 1").unwrap(), 7);
        assert!(shell("exit 3").unwrap_err().contains("failed"));
        assert!(shell("echo words").unwrap_err().contains("no JSON"));
        assert!(figures(Path::new("/no/such/bench"), &[]).is_err());
    }
}
