//! Debian packages that the tests and benches need.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::{installed, run};

/// Installs what is missing of these (a program or a library, and the Debian package that has it), where that is
/// possible without asking; elsewhere says what follows from their missing.
pub fn install_missing(needed: &[(&str, &str)], consequence: &str) -> Result<(), String> {
    let missing: Vec<_> =
        needed.iter().filter(|(program, _)| !installed(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !installed("apt-get") || !is_root() {
        eprintln!("missing, so {consequence}: {packages} (apt-get install {packages})");
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
