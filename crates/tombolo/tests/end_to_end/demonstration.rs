//! `tombolo demo`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{PATIENCE, Running, TOMBOLO, needs, product};

/// Runs the demo with these programs, and checks what it has found.
fn demo(link: &str, programs: &[&str]) {
    let Some(product) = product() else { return };
    let words = ["demo", "--link", link, "--program", &programs.join(","), "--json"];
    let run = || {
        let mut command = Command::new(&product);
        command.args(words);
        let outcome = Running::start(command, Vec::new()).wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        serde_json::from_slice::<Value>(&outcome.stdout).expect("one JSON object")
    };
    let exceeds = |point: &Value| point["resident_peak_bytes"].as_u64() > point["local_bytes"].as_u64();
    let mut json = run();
    // As in `once_more_if_exceeded`; what the supervisor says is not to be seen here.
    if points(&json).iter().any(exceeds) {
        json = run();
    }
    assert_eq!((&json["identical"], &json["link"]), (&true.into(), &link.into()), "{json:#}");
    let found = json["programs"].as_array().expect("programs");
    assert!(found.iter().map(|found| &found["program"]).eq(programs), "{json:#}");
    for found in found {
        assert!(found["plain_s"].as_f64() > Some(0.0), "{json:#}");
        assert!(found["working_set_bytes"].as_u64() > Some(40 << 20), "{json:#}");
    }
    let left_out = json["left_out"].to_string().contains("zram");
    // Now and then the kernel kills a program in a small cgroup, but not each time.
    let measured = points(&json).iter().filter(|point| point["zram_s"].as_f64() > Some(0.0)).count();
    assert!(measured > 0 || left_out, "{json:#}");
    if left_out {
        tombolo_host::testing::left_out("swap on zram beside Tombolo");
    }
    assert_eq!(points(&json).len(), 3 * programs.len());
    for point in points(&json) {
        assert!(point["bytes_in"].as_u64() > Some(0) && point["bytes_out"].as_u64() > Some(0), "{json:#}");
        assert!(point["tombolo_s"].as_f64() > Some(0.0) && !exceeds(&point), "{json:#}");
        let measured = point["zram_s"].as_f64() > Some(0.0);
        assert!(measured || left_out || point["zram_failure"].is_string(), "{json:#}");
    }
}

fn points(json: &Value) -> Vec<Value> {
    let programs = json["programs"].as_array().expect("programs");
    programs.iter().flat_map(|found| found["points"].as_array().expect("points").clone()).collect()
}

#[test]
fn the_demo_succeeds_shm() {
    needs!("sort");
    demo("shm", &["sort"]);
}

#[test]
fn the_demo_succeeds_udp() {
    needs!();
    demo("udp", &["columns"]);
}

/// The whole demo is run by the test of README.
#[test]
fn the_demo_prints_a_table() {
    needs!();
    let Some(product) = product() else { return };
    let mut command = Command::new(&product);
    command.args(["demo", "--program", "store"]);
    let outcome = Running::start(command, Vec::new()).wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    let text = outcome.text();
    for word in [
        "memory",
        "all",
        "a half",
        "a quarter",
        "store",
        "zram",
        "Finding: ",
        "Outputs under Tombolo are those without it.",
        "--from",
    ] {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
    // Where it is not in the path, what to type next begins with where it is.
    let (table, next) = text.split_once("\nNext").expect("what to do next");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "more than 80 columns:\n{text}");
    assert!(next.contains(&format!("{product} run --from")), "{next}");
    let is_step = |line: &str| line.starts_with("tombolo: demo: store, ");
    assert!(outcome.stderr.lines().all(is_step), "progress where there is no terminal: {}", outcome.stderr);
    assert!(outcome.stderr.lines().count() >= 5, "{}", outcome.stderr);
}

/// Directories of a demo with this process id.
fn left_behind(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(std::env::temp_dir()).expect("it is there").flatten();
    let name = format!("tombolo-demo-{pid}");
    entries.map(|entry| entry.path()).filter(|path| path.ends_with(&name)).collect()
}

/// The command lines of the processes in the group of this demo.
fn members(group: u32) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("it is there").flatten();
    entries
        .filter(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            fields.first() != Some(&"Z") && fields.get(2) == Some(&group.to_string().as_str())
        })
        .map(|entry| fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default().replace('\0', " "))
        .collect()
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    needs!("sort");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut command = Command::new(TOMBOLO);
        command.args(["demo", "--program", "sort"]);
        let demo = Running::start(command, Vec::new());
        let pid = demo.pid();
        let since = std::time::Instant::now();
        let words = |pid: &u32| {
            let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.replace('\0', " ")
        };
        // A sort on far memory. Those who serve it have a group of their own.
        let started = loop {
            let started = tombolo_host::family::descendants(pid);
            let has = |is_it: &dyn Fn(&str) -> bool| started.iter().any(|pid| is_it(&words(pid)));
            if has(&|command| command.contains(" run --quiet"))
                && has(&|command| command.starts_with("sort "))
            {
                break started;
            }
            assert!(since.elapsed() < PATIENCE, "the demo does not get going");
            std::thread::sleep(Duration::from_millis(20));
        };
        demo.signal(signal);
        let since = std::time::Instant::now();
        let outcome = demo.wait(Duration::from_secs(20));
        assert_ne!(outcome.code(), 0);
        while !members(pid).is_empty() || started.iter().any(|pid| !words(pid).is_empty()) {
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
