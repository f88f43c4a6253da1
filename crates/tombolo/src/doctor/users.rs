//! What users other than root lack to run programs on far memory, and what root types to give it to them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Serialize;

use super::{LOCK_BYTES_ENOUGH, Outcome};

/// Something that users need.
#[derive(Debug, Serialize)]
pub struct Need {
    pub name: &'static str,
    pub outcome: Outcome,
    pub detail: String,
    /// What root types where it is missing.
    pub commands: Vec<String>,
}

/// The group whose members may have page faults served, once root has made it.
const GROUP: &str = "tombolo";
const DEVICE: &str = "/dev/userfaultfd";
const CAP_SYS_PTRACE: u32 = 19;

/// All that they need.
pub fn needs() -> Vec<Need> {
    vec![faults(), forks(), locked_memory()]
}

fn faults() -> Need {
    let is_for_all =
        fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|text| text.trim() == "1");
    let found = fs::metadata(DEVICE).map(|device| (device.mode(), device.gid()));
    let (outcome, detail) = match found {
        _ if is_for_all => (Outcome::Ok, "every user (vm.unprivileged_userfaultfd)".to_owned()),
        Ok((mode, group)) => openers(mode, group),
        Err(error) => (Outcome::Missing, format!("{DEVICE}: {error}")),
    };
    let commands = [
        format!("groupadd --system --force {GROUP}"),
        format!("usermod -aG {GROUP} USER"),
        format!(
            "echo 'KERNEL==\"userfaultfd\", GROUP=\"{GROUP}\", MODE=\"0660\"' > /etc/udev/rules.d/60-tombolo.rules"
        ),
        format!("chgrp {GROUP} {DEVICE} && chmod 660 {DEVICE}"),
    ];
    Need { name: "page faults", outcome, detail, commands: unless_ok(outcome, commands.to_vec()) }
}

/// Who may open the device.
fn openers(mode: u32, group: u32) -> (Outcome, String) {
    const READ_AND_WRITE: u32 = 0o6;
    if mode & READ_AND_WRITE == READ_AND_WRITE {
        (Outcome::Ok, format!("every user may open {DEVICE}"))
    } else if (mode >> 3) & READ_AND_WRITE == READ_AND_WRITE && group != 0 {
        let name = group_name(&fs::read_to_string("/etc/group").unwrap_or_default(), group);
        (Outcome::Ok, format!("group {name} may open {DEVICE}"))
    } else {
        (Outcome::Missing, format!("only root may open {DEVICE}"))
    }
}

fn group_name(groups: &str, number: u32) -> String {
    let fields = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut of_number = fields.filter(|fields| fields.get(2).is_some_and(|id| *id == number.to_string()));
    let name = of_number.next().and_then(|fields| fields.first().map(|name| (*name).to_owned()));
    name.unwrap_or_else(|| number.to_string())
}

fn forks() -> Need {
    let own = std::env::current_exe().unwrap_or_else(|_| "tombolo".into());
    let is_there = has_capability(&own);
    let outcome = if is_there { Outcome::Ok } else { Outcome::Missing };
    let detail = if is_there {
        "this file has cap_sys_ptrace".to_owned()
    } else {
        "this file lacks cap_sys_ptrace: forks are not seen".to_owned()
    };
    let commands = vec![format!("setcap cap_sys_ptrace+ep {}", own.display())];
    Need { name: "forks", outcome, detail, commands: unless_ok(outcome, commands) }
}

/// Whether who executes this file gets the capability.
fn has_capability(path: &Path) -> bool {
    let mut value = [0; 24];
    let length = rustix::fs::getxattr(path, "security.capability", &mut value).unwrap_or(0);
    gives_capability(&value[..length])
}

/// `struct vfs_cap_data`: words in little endian, of which the first has the flag and the second the capabilities.
fn gives_capability(value: &[u8]) -> bool {
    const EFFECTIVE: u32 = 1;
    let word = |at: usize| value.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    word(0).is_some_and(|word| word & EFFECTIVE != 0)
        && word(4).is_some_and(|permitted| permitted & (1 << CAP_SYS_PTRACE) != 0)
}

fn locked_memory() -> Need {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).maximum;
    let is_enough = limit.is_none_or(|bytes| bytes >= LOCK_BYTES_ENOUGH);
    let outcome = if is_enough { Outcome::Ok } else { Outcome::Limited };
    let detail = match limit {
        None => "unlimited".to_owned(),
        Some(bytes) => format!("{} KiB here; more keeps the supervisor out of swap", bytes / 1024),
    };
    let commands =
        vec![format!("echo '@{GROUP} - memlock unlimited' > /etc/security/limits.d/60-tombolo.conf")];
    Need { name: "locked memory", outcome, detail, commands: unless_ok(outcome, commands) }
}

fn unless_ok(outcome: Outcome, commands: Vec<String>) -> Vec<String> {
    if outcome == Outcome::Ok { Vec::new() } else { commands }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_open_the_device_is_said() {
        let outcome = |mode, group| openers(mode, group).0;
        assert_eq!(outcome(0o20_600, 0), Outcome::Missing);
        assert_eq!(outcome(0o20_660, 0), Outcome::Missing);
        assert_eq!(outcome(0o20_640, 990), Outcome::Missing);
        assert_eq!(outcome(0o20_660, 990), Outcome::Ok);
        assert_eq!(outcome(0o20_666, 0), Outcome::Ok);
        let groups = "root:x:0:\nbroken\ntombolo:x:990:one,two\n";
        assert_eq!([group_name(groups, 990), group_name(groups, 7)], ["tombolo", "7"]);
    }

    /// As `setcap` writes it: version 2 (20 bytes), or 3 (24).
    #[test]
    fn a_files_capability_is_read() {
        let value = |flags: u32, permitted: u32| [flags.to_le_bytes(), permitted.to_le_bytes()].concat();
        assert!(gives_capability(&value(0x0200_0001, 1 << CAP_SYS_PTRACE)));
        assert!(gives_capability(&value(0x0300_0001, u32::MAX)));
        assert!(!gives_capability(&value(0x0200_0000, 1 << CAP_SYS_PTRACE)));
        assert!(!gives_capability(&value(0x0200_0001, 1)));
        assert!(!gives_capability(&[1, 0, 0]) && !gives_capability(&[]));
    }
}
