//! `tombolo-bench net`: its processes work together, and every figure is there.

use std::process::Command;

use serde_json::Value;
use tombolo_host::testing::left_out;

#[test]
fn namespaces_are_joined_and_measured() {
    let missing = ["ip", "iperf3", "ping", "taskset", "tc"].iter().find(|name| {
        !["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
            .iter()
            .any(|folder| std::path::Path::new(folder).join(name).exists())
    });
    if let Some(name) = missing {
        return left_out(&format!("`{name}` is not installed"));
    }
    if !rustix::process::geteuid().is_root() {
        return left_out("needs root, to make network namespaces");
    }
    let Some(binary) = std::env::var_os("TOMBOLO_BINARY") else {
        return left_out("TOMBOLO_BINARY names no `tombolo` (`cargo xtask test` does)");
    };
    let ways = "relay,far,flood-tombolo,share-htb";
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo-bench"));
    command.args(["net", "--json", "--rounds", "1", "--seconds", "1", "--way", ways, "--binary"]).arg(binary);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    for way in ways.split(',') {
        let names = match way.split('-').next() {
            Some("flood") => &["one_way_ns", "one_way_p99_ns"][..],
            Some("share") => &["jain", "used", "cpu_s", "one_way_ns"],
            _ => &["cubic_bytes_per_s", "bbr_cpu_s_per_gb", "one_way_ns", "packets_per_s"],
        };
        for name in names {
            assert!(
                found[way][0][name].as_f64().is_some_and(|figure| figure > 0.0),
                "{way}, {name}: {found:#}"
            );
        }
    }
}
