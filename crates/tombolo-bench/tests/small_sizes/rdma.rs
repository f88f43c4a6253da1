//! `tombolo-bench rdma` and the parts of `tombolo-bench paging`: their processes work together, and every figure is there.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tombolo-bench")).args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = bench(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `tombolo`: the one that `TOMBOLO_BINARY` names, or it is built as these tests are. Cargo hands a test the
/// binaries of its own package only.
fn tombolo() -> String {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let path = BUILT.get_or_init(|| {
        if let Some(binary) = std::env::var_os("TOMBOLO_BINARY") {
            return binary.into();
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--package", "tombolo", "--message-format", "json-render-diagnostics"]);
        let output = cargo.stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "tombolo does not build");
        let messages = String::from_utf8(output.stdout).unwrap();
        let executable = messages
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|message| message["target"]["name"] == "tombolo")
            .find_map(|message| message["executable"].as_str().map(PathBuf::from));
        executable.expect("cargo names the binary")
    });
    path.to_str().unwrap().to_owned()
}

fn rdma(link: &str, how: &str, op: &str, sizes: &str) -> Value {
    let mut arguments = vec!["rdma", "--link", link, "--how", how, "--op", op, "--sizes", sizes, "--json"];
    arguments.extend(["--milliseconds", "40"]);
    let binary = if how == "node" { tombolo() } else { String::new() };
    if how == "node" {
        arguments.extend(["--binary", &binary]);
    }
    json(&arguments)
}

#[test]
fn programs_of_one_node_and_of_two_are_measured() {
    for (link, how, op, sizes) in [
        ("loopback", "node", "write", "16,64K"),
        ("shm", "node", "read", "64K"),
        ("shm", "embedded", "ping-pong", "16"),
        // What the bare network does takes seconds, once.
        ("udp,udp-sealed,udp-loss", "embedded", "write", "64K"),
    ] {
        let found = rdma(link, how, op, sizes);
        let count = sizes.split(',').count();
        let rows = found["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), count * link.split(',').count(), "{found}");
        assert!(rows.iter().all(|row| row["bytes_per_s"].as_f64().is_some_and(|rate| rate > 0.0)), "{found}");
        for floor in ["copies", "udp", "udp_ping_pong", "udp_packets", "udp_packets_ping_pong"] {
            assert_eq!(found["floor"][floor].as_array().map(Vec::len), Some(count), "{floor}");
        }
    }
    for (how, op, size) in [("node", "atomic", "64"), ("embedded", "mailbox", "1K")] {
        let found = rdma("shm", how, op, size);
        assert_eq!(found["rows"].as_array().map(Vec::len), Some(1), "{found}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_a_reason() {
    for (arguments, reason) in [
        (&["rdma", "--how", "embedded", "--sizes", "1G"][..], "sizes go up to"),
        (&["rdma"], "--binary"),
        (&["paging"], "--binary"),
        (&["paging", "--binary", "tombolo", "--passes", "0"], "one pass"),
    ] {
        let output = bench(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && complaint.contains(reason), "{arguments:?}: {complaint}");
    }
}

#[test]
fn the_measured_program_reports_figures_of_any_memory() {
    for kind in ["reads", "mixed", "chase"] {
        let found = json(&["probe", kind, "--area", "16777216", "--count", "4000"]);
        assert!(found["count"].as_u64() >= Some(4000) && found["mean_ns"].as_f64() > Some(0.0), "{found}");
    }
    // In plain memory no page is far, so there are no faults to measure, which is said.
    let output = bench(&["probe", "faults", "--area", "16777216", "--local", "8388608", "--count", "4000"]);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && complaint.contains("nothing was measured"), "{complaint}");
}

#[test]
fn the_far_end_of_a_bare_round_trip_answers() {
    let mut far = Command::new(env!("CARGO_BIN_EXE_tombolo-bench"));
    let mut far = far.arg("echo").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(far.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    near.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    near.send_to(&[0; 48], line.trim()).unwrap();
    let length = near.recv(&mut [0; 8192]);
    far.kill().unwrap();
    far.wait().unwrap();
    assert_eq!(length.unwrap(), 4096);
}
