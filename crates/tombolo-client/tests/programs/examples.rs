//! The examples do what they say.

use std::path::{Path, PathBuf};
use std::process::Command;

use tombolo_node::Limits;

use crate::harness::{Host, shm};

fn run(name: &str, arguments: &[&Path]) -> String {
    // `all_to_all` opens 64.
    let limits = Limits { domains: 64, ..Limits::default() };
    let (host, _) = Host::start_with("examples", &shm(), &[], limits);
    // Built by cargo with the tests, beside the folder of this one.
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(program.is_file(), "no {}: cargo build -p tombolo-client --examples", program.display());
    let output =
        Command::new("timeout").arg("60").arg(program).arg(&host.programs).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}: {said:?}", output.status);
    said[0].clone()
}

#[test]
fn ping_pong() {
    assert!(run("ping_pong", &[]).starts_with("2000 rounds"));
}

#[test]
fn key_value() {
    assert_eq!(run("key_value", &[]), "3000 lookups, 1500 found\n");
}

#[test]
fn tally() {
    assert_eq!(run("tally", &[]), "3000 tickets drawn by 3 workers\n");
}

#[test]
fn lock() {
    assert_eq!(run("lock", &[]), "900 turns of 3 workers, each alone\n");
}

#[test]
fn messages() {
    assert_eq!(run("messages", &[]), "3000 messages, each in its turn\n");
}

#[test]
fn window() {
    assert_eq!(run("window", &[]), "20000 changes, read by 2, none torn\n");
}

#[test]
fn all_to_all() {
    assert_eq!(run("all_to_all", &[]), "4096 parts exchanged by 64 domains\n");
}

#[test]
fn workers() {
    assert_eq!(run("workers", &[]), "numbers of 3 processes in one domain: their sum is 71994000\n");
}

#[test]
fn event_loop() {
    assert_eq!(run("event_loop", &[]), "200 parts moved\n");
}

#[test]
fn send_file() {
    let file = |name: &str| -> PathBuf {
        std::env::temp_dir().join(format!("tombolo-example-{}-{name}", std::process::id()))
    };
    let (from, to) = (file("from"), file("to"));
    let bytes = crate::harness::pattern(8, 3_000_001);
    std::fs::write(&from, &bytes).unwrap();
    assert_eq!(run("send_file", &[&from, &to]), "3000001 bytes sent\n");
    assert!(std::fs::read(&to).unwrap() == bytes);
}
