//! `tombolo-bench forks`: what a child finds is what was there at the fork.

use std::process::Command;

use serde_json::Value;

fn forks(arguments: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo-bench"));
    command.arg("forks").args(arguments);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Takes 2 s, in which its child sleeps.
#[test]
fn a_store_that_forks_is_measured() {
    let (done, out, errors) =
        forks(&["plain", "tombolo", "--binary", "/no/such", "--bytes", "16M", "--rounds", "1", "--json"]);
    assert!(done, "{errors}");
    let found: Value = serde_json::from_str(&out).unwrap();
    let [plain, far] = [0, 1].map(|number| found["rows"][number].clone());
    assert_eq!(plain["failures"], Value::Array(Vec::new()), "{plain}");
    assert!(plain["runs"][0]["dump_writes"].as_u64() > Some(0), "{plain}");
    assert!(plain["runs"][0]["sleeping_us"].as_f64() > Some(0.0), "{plain}");
    assert!(far["failures"][0].as_str().unwrap().contains("/no/such"), "{far}");
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    for (arguments, reason) in [
        (&["tombolo"][..], "--binary"),
        (&["plain", "--rounds", "0"], "one round"),
        (&["plain", "--bytes", "1M"], "16M"),
    ] {
        let (done, _, errors) = forks(arguments);
        assert!(!done && errors.contains(reason), "{arguments:?}: {errors}");
    }
}
