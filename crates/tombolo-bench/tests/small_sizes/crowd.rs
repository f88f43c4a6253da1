//! `tombolo-bench freeing` and `hellos`: there is something to measure, and each finds it.

use std::process::Command;

use serde_json::Value;
use tombolo_host::testing::left_out;

fn found(arguments: &[&str]) -> Option<Value> {
    let Ok(binary) = std::env::var("TOMBOLO_BINARY") else {
        left_out(&format!("{arguments:?}: TOMBOLO_BINARY names no `tombolo` (`cargo xtask test` does)"));
        return None;
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo-bench"));
    let output =
        command.args(arguments).args(["--rounds", "1", "--json", "--binary", &binary]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// One after the other: what is freed is to be seen being freed.
#[test]
fn others_write_beside_what_is_freed_and_beside_a_flood() {
    let Some(freed) = found(&["freeing", "--size", "2G", "--count", "200"]) else { return };
    freeing(&freed);
    let Some(flooded) = found(&["hellos", "--rate", "5000", "--count", "500"]) else { return };
    flood(&flooded);
}

fn freeing(found: &Value) {
    assert_eq!(found["freeing"]["unanswered"], 0, "{found:#}");
    assert!(found["left_after_the_writes_bytes"][0].is_u64(), "{found:#}");
    assert!(found["freed_median_ms"].as_f64() > Some(0.0), "{found:#}");
}

fn flood(found: &Value) {
    assert_eq!(found["flooded"]["unanswered"], 0, "{found:#}");
    assert!(found["hellos_per_s"].as_f64() > Some(0.0), "{found:#}");
    assert_eq!(found["newcomers"], 5, "{found:#}");
}
