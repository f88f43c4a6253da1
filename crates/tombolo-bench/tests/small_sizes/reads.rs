//! `tombolo-bench reads`: its processes work together, and no figure is lost.

use std::process::{Command, Output};

use serde_json::Value;

fn reads(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo-bench"));
    command.arg("reads").args(arguments).args(["--bytes", "16M", "--seconds", "0.2", "--threads", "1,3"]);
    command.output().unwrap()
}

fn rows(arguments: &[&str]) -> Vec<Value> {
    let output = reads(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    found["rows"].as_array().unwrap().clone()
}

/// What needs a privilege or a kernel that is not there is left out, loudly.
fn left_out(row: &Value) -> bool {
    let reason = row["failures"][0].as_str().unwrap_or_default().to_owned();
    let missing = ["Operation not permitted", "Function not implemented"];
    if missing.iter().any(|text| reason.contains(text)) {
        tombolo_host::testing::left_out(&format!("the bare pager: {reason}"));
        return true;
    }
    false
}

#[test]
fn plain_memory_and_the_bare_pager_hold_what_was_written() {
    for pager in [&["--handlers", "2"][..], &["--handlers", "1", "--events", "16"], &["--in-process"]] {
        for row in rows(&[&["plain", "bare", "--local", "8M"], pager].concat()) {
            if row["racer"] == "bare" && left_out(&row) {
                continue;
            }
            assert_eq!(row["failures"], Value::Array(Vec::new()), "{pager:?}: {row}");
            assert!(row["wall_us"][0].as_f64() > Some(0.0), "{pager:?}: {row}");
        }
    }
}

#[test]
fn a_peer_that_fails_leaves_the_others_their_figures() {
    let rows = rows(&["tombolo", "plain", "--binary", "/no/such/tombolo", "--rounds", "2"]);
    assert_eq!(rows.len(), 4);
    for row in rows {
        let failures = row["failures"].as_array().unwrap();
        if row["racer"] == "plain" {
            assert_eq!((failures.len(), row["wall_us"].as_array().unwrap().len()), (0, 2), "{row}");
        } else {
            assert!(failures[0].as_str().unwrap().contains("/no/such/tombolo"), "{row}");
            assert_eq!(failures.len(), 2, "{row}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    for (arguments, reason) in [
        (&["tombolo"][..], "--binary"),
        (&["plain", "--rounds", "0"], "one round"),
        (&["plain", "--local", "1K"], "at least 1M"),
        (&["swap"], "swap"),
    ] {
        let output = reads(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && complaint.contains(reason), "{arguments:?}: {complaint}");
    }
}
