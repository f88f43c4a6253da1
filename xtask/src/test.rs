//! `cargo xtask test`: all tests of the workspace, with the programs they need.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::{cargo, installed, run};

/// Programs of the end-to-end tests, and the Debian package of each.
const NEEDED: [(&str, &str); 6] = [
    ("sort", "coreutils"),
    ("cc", "gcc"),
    ("python3", "python3"),
    ("redis-server", "redis-server"),
    ("sqlite3", "sqlite3"),
    ("stress-ng", "stress-ng"),
];

/// Runs everything; with `require_all`, what would be left out is a failure.
pub fn main(arguments: &[String], require_all: bool) -> Result<(), String> {
    install_missing()?;
    let cargo = || {
        let mut command = cargo();
        if require_all {
            command.env("TOMBOLO_REQUIRE_ALL", "1");
        }
        command
    };
    // With debug assertions: overflow and broken invariants are found here.
    run(cargo().args(["test", "--workspace", "--exclude", "tombolo"]))?;
    // As users run it: the end-to-end tests are about the real thing, and its speed.
    run(cargo().args(["test", "--release", "--package", "tombolo", "--bins"]))?;
    let mut end_to_end = cargo();
    end_to_end.args(["test", "--release", "--package", "tombolo", "--test", "end_to_end", "--"]);
    run(end_to_end.args(arguments))
}

/// Installs what is missing, where that is possible without asking.
fn install_missing() -> Result<(), String> {
    let missing: Vec<_> =
        NEEDED.into_iter().filter(|(program, _)| !installed(program)).map(|(_, package)| package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !installed("apt-get") || !is_root() {
        eprintln!("missing, so some tests will be left out: {packages} (apt-get install {packages})");
        return Ok(());
    }
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run(apt().args(["update", "--quiet"]))?;
    let policy = Policy::new();
    let done = run(apt().args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(&missing));
    drop(policy);
    done
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    user.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}

/// Keeps packages from starting daemons while it lasts: the tests start their own.
struct Policy(bool);

const POLICY_FILE: &str = "/usr/sbin/policy-rc.d";

impl Policy {
    fn new() -> Self {
        // Somebody else's policy stays as it is.
        if Path::new(POLICY_FILE).exists() || fs::write(POLICY_FILE, "#!/bin/sh\nexit 101\n").is_err() {
            return Self(false);
        }
        use std::os::unix::fs::PermissionsExt;
        let _ = fs::set_permissions(POLICY_FILE, fs::Permissions::from_mode(0o755));
        Self(true)
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if self.0 {
            let _ = fs::remove_file(POLICY_FILE);
        }
    }
}
