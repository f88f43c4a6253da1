//! What packages bring: the package itself, installed in a root of its own, used as an operator does, and removed; alerts
//! and the dashboard.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tombolo_host::testing::left_out;

use crate::common::{PATIENCE, Running, Scratch, needs, product};

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

fn check(program: &str, arguments: &[&str], folder: &Path) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    let outcome = Running::start(command, Vec::new()).wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{program} {arguments:?}: {}{}", outcome.text(), outcome.stderr);
}

/// The steps are those of `operator.py`, which says what each shows.
#[test]
fn an_operator_installs_uses_and_removes_the_package() {
    needs!("python3", "dpkg", "ip", "unshare", "nsenter", "prometheus");
    if product().is_none() {
        return;
    }
    let Ok(package) = std::env::var("TOMBOLO_PACKAGE") else {
        left_out(
            "TOMBOLO_PACKAGE names no package (`cargo xtask test` makes it where dpkg-dev is installed)",
        );
        return;
    };
    if !rustix::process::geteuid().is_root() {
        left_out("only root has a root of its own");
        return;
    }
    let scratch = Scratch::new("operator");
    let steps = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end/packages/operator.py");
    let mut command = Command::new("unshare");
    // What is mounted and whoever is started there ends with it.
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "python3"]);
    command.arg(steps).args([&package, scratch.path().to_str().expect("a text")]);
    let outcome = Running::start(command, Vec::new()).wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{}{}", outcome.text(), outcome.stderr);
    assert!(outcome.text().ends_with("all steps done\n"), "{}{}", outcome.text(), outcome.stderr);
}

#[test]
fn alerts_are_those_that_their_tests_expect() {
    needs!("promtool");
    let folder = packaging("prometheus");
    check("promtool", &["check", "rules", "tombolo.rules.yml"], &folder);
    check("promtool", &["test", "rules", "tombolo.rules.test.yml"], &folder);
}

/// Each expression of the dashboard is one that Prometheus understands.
#[test]
fn the_dashboard_asks_what_prometheus_understands() {
    needs!("promtool");
    let text = fs::read(packaging("grafana/tombolo.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let expressions: Vec<String> =
        targets.map(|target| target["expr"].as_str().unwrap().replace("$__rate_interval", "5m")).collect();
    assert!(expressions.len() > 20);
    let rule = |(number, expression): (usize, &String)| serde_json::json!({ "record": format!("dashboard:{number}"), "expr": expression });
    let rules: Vec<_> = expressions.iter().enumerate().map(rule).collect();
    let rules = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    let scratch = Scratch::new("dashboard");
    // JSON is YAML.
    fs::write(scratch.file("rules.yml"), rules.to_string()).unwrap();
    check("promtool", &["check", "rules", "rules.yml"], scratch.path());
}
