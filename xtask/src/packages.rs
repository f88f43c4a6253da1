//! Debian packages that the tests and benches need.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::{installed, run};

/// Installs what is missing of these (a program or a library, and the Debian package that has it), where that is
/// possible without asking; elsewhere says what follows from their missing.
pub fn install_missing(needed: &[(&str, &str)], consequence: &str) -> Result<(), String> {
    Policy::remove_left_over();
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
        // Another installation may be under way.
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["--option", "DPkg::Lock::Timeout=300"]);
        command
    };
    run(apt().args(["update", "--quiet"]))?;
    let policy = Policy::new();
    let done = run(apt().args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(&missing));
    drop(policy);
    done
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Keeps packages from starting daemons while it lasts: the tests start their own.
struct Policy(bool);

const POLICY_FILE: &str = "/usr/sbin/policy-rc.d";
/// One that was left behind by a run that was interrupted is ours, too.
const POLICY: &str =
    "#!/bin/sh\n# Until the packages that the tests of Tombolo need are installed.\nexit 101\n";

impl Policy {
    fn is_ours() -> bool {
        fs::read_to_string(POLICY_FILE).is_ok_and(|policy| policy == POLICY)
    }

    /// That of a run that was interrupted.
    fn remove_left_over() {
        if Self::is_ours() {
            let _ = fs::remove_file(POLICY_FILE);
        }
    }

    fn new() -> Self {
        // Somebody else's policy stays as it is.
        if Path::new(POLICY_FILE).exists() || fs::write(POLICY_FILE, POLICY).is_err() {
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
