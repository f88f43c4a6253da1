//! What tests that were killed have left behind: network namespaces and control groups, whose names have the number of the test's process.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// How the names of tests' namespaces begin. A process's number follows, and for the first ones another number.
const NAMESPACES: [(&str, usize); 4] = [("tombolo-e2e-", 2), ("tombolo-", 2), ("tn", 2), ("tbn", 1)];
const CONTROL_GROUPS: &str = "tombolo-test-";

/// Removes what belongs to no process that lives, and has none in it.
pub fn remove() {
    let ip = |words: &[&str]| -> Option<String> {
        let output = Command::new("ip").args(words).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let listed = ip(&["netns", "list"]).unwrap_or_default();
    for name in listed.lines().filter_map(|line| line.split_whitespace().next()) {
        let is_tests = NAMESPACES.iter().any(|&(prefix, numbers)| is_left_over(name, prefix, numbers));
        if is_tests && ip(&["netns", "pids", name]).is_some_and(|pids| pids.trim().is_empty()) {
            // It may be gone by now.
            let _ = ip(&["netns", "delete", name]);
        }
    }
    for controller in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        for group in fs::read_dir(controller.path()).into_iter().flatten().flatten() {
            if is_left_over(&group.file_name().to_string_lossy(), CONTROL_GROUPS, 2) {
                remove_group(&group.path());
            }
        }
    }
}

/// Its processes end; those that are frozen would not.
fn remove_group(group: &Path) {
    let _ = fs::write(group.join("freezer.state"), "THAWED");
    let tasks = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for process in tasks.lines().filter_map(|line| rustix::process::Pid::from_raw(line.parse().ok()?)) {
        let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
    }
    // It cannot be removed before they have ended: at the next run, perhaps.
    let _ = fs::remove_dir(group);
}

/// Whether a name has that many numbers after the prefix, and the first is no process's.
fn is_left_over(name: &str, prefix: &str, numbers: usize) -> bool {
    let Some(rest) = name.strip_prefix(prefix) else { return false };
    let parts: Vec<&str> = rest.split('-').collect();
    let are_numbers =
        parts.len() >= numbers && parts[..numbers].iter().all(|part| part.parse::<u32>().is_ok());
    are_numbers && !Path::new("/proc").join(parts[0]).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_the_number_of_a_process_that_lives_stays() {
        let (own, nobody) = (std::process::id(), u32::MAX);
        assert!(!is_left_over(&format!("tn{own}-0-owner"), "tn", 2));
        assert!(is_left_over(&format!("tn{nobody}-0-owner"), "tn", 2));
        assert!(is_left_over(&format!("tombolo-e2e-{nobody}-3-1"), "tombolo-e2e-", 2));
        // Others' may be called like that.
        for name in ["tn2", "tn100-owner", "tn-owner", "tnx7-0", "other"] {
            assert!(!is_left_over(name, "tn", 2), "{name}");
        }
    }
}
