//! `tombolo demo`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{PATIENCE, Running, TOMBOLO, needs, tombolo};

fn demo(link: &str, programs: &str) -> serde_json::Value {
    let outcome = tombolo(&["demo", "--link", link, "--program", programs, "--json"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    serde_json::from_slice(&outcome.stdout).expect("one JSON object")
}

fn sort(link: &str) {
    let exceeds = |json: &serde_json::Value| {
        let mut runs = json["runs"].as_array().expect("runs").iter().skip(1);
        runs.any(|run| run["resident_peak_bytes"].as_u64() > run["local_bytes"].as_u64())
    };
    let mut json = demo(link, "sort");
    // As in `once_more_if_exceeded`; what the supervisor says is not to be seen here.
    if exceeds(&json) {
        json = demo(link, "sort");
    }
    assert_eq!(json["identical"], true, "{json:#}");
    assert_eq!(json["link"], link);
    let runs = json["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 3);
    assert_eq!(runs[0]["bytes_out"], 0, "all local: {json:#}");
    for run in &runs[1..] {
        assert!(run["bytes_out"].as_u64() > Some(0), "{json:#}");
        assert!(run["resident_peak_bytes"].as_u64() <= run["local_bytes"].as_u64(), "{json:#}");
    }
}

/// Checks a program's times; zram has some, or it is said why not.
fn compared(json: &serde_json::Value, program: &str) {
    let all = json["compared"].as_array().expect("comparisons");
    let found = all.iter().find(|found| found["program"] == program).expect("the program");
    assert!(found["plain_s"].as_f64() > Some(0.0), "{json:#}");
    assert!(found["working_set_bytes"].as_u64() > Some(100 << 20), "{json:#}");
    let left_out = json["left_out"].to_string().contains("zram");
    for point in found["points"].as_array().expect("points") {
        assert!(point["tombolo_s"].as_f64() > Some(0.0), "{json:#}");
        let measured = point["zram_s"].as_f64() > Some(0.0);
        assert!(measured || left_out || point["zram_failure"].is_string(), "{json:#}");
    }
}

#[test]
fn the_demo_scans_and_serves_redis_beside_swap() {
    needs!("redis-server");
    let json = demo("shm", "redis,scan");
    assert!(json["runs"].is_null(), "no sort was asked for: {json:#}");
    compared(&json, "redis");
    compared(&json, "scan");
}

#[test]
fn the_demo_succeeds_udp() {
    needs!("sort");
    sort("udp");
}

#[test]
fn the_demo_prints_a_table() {
    needs!("sort");
    let outcome = tombolo(&["demo"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    for word in ["all local", "one half", "one quarter", "slowdown", "identical", "zram", "scan"] {
        assert!(outcome.text().contains(word), "no {word:?} in:\n{}", outcome.text());
    }
    assert_eq!(outcome.stderr, "", "no progress bar where there is no terminal");
}

/// Directories of a demo with this process id.
fn left_behind(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(std::env::temp_dir()).expect("it is there").flatten();
    let name = format!("tombolo-demo-{pid}");
    entries.map(|entry| entry.path()).filter(|path| path.ends_with(&name)).collect()
}

/// Processes whose parent is, or was, in the group of this demo.
fn members(group: u32) -> usize {
    let entries = fs::read_dir("/proc").expect("it is there").flatten();
    entries
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
        .filter(|stat| {
            let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            fields.first() != Some(&"Z") && fields.get(2) == Some(&group.to_string().as_str())
        })
        .count()
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    needs!("sort");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut command = std::process::Command::new(TOMBOLO);
        command.arg("demo");
        let demo = Running::start(command, Vec::new());
        let pid = demo.pid();
        let since = std::time::Instant::now();
        // The demo itself, its lender, its run and the sort.
        while members(pid) < 3 {
            assert!(since.elapsed() < PATIENCE, "the demo does not get going");
            std::thread::sleep(Duration::from_millis(20));
        }
        demo.signal(signal);
        let since = std::time::Instant::now();
        let outcome = demo.wait(Duration::from_secs(20));
        assert_ne!(outcome.code(), 0);
        while members(pid) > 0 {
            assert!(since.elapsed() < Duration::from_secs(20), "{signal:?}: processes stay behind");
            std::thread::sleep(Duration::from_millis(20));
        }
        if signal == Signal::KILL {
            // Nobody was left to tidy up.
            left_behind(pid).iter().for_each(|path| drop(fs::remove_dir_all(path)));
        }
        assert_eq!(left_behind(pid), Vec::<PathBuf>::new(), "{signal:?}");
    }
}
