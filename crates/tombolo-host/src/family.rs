//! Whose child a process is, and what becomes of those whose parent has ended.

use std::collections::BTreeSet;

/// Where a process stands among others.
#[derive(Clone, Copy, Debug)]
struct Kin {
    is_stopped: bool,
    parent: u32,
    group: u32,
    session: u32,
}

fn kin(pid: u32) -> Option<Kin> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything. After it: the state, and these three.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_stopped = fields.next()? == "T";
    let mut numbers = fields.map(|field| field.parse().ok());
    Some(Kin { is_stopped, parent: numbers.next()??, group: numbers.next()??, session: numbers.next()?? })
}

/// Whether a process is stopped.
pub fn is_stopped(pid: u32) -> bool {
    kin(pid).is_some_and(|kin| kin.is_stopped)
}

/// The group of this process, which has no number here if it is from outside this pid namespace.
pub fn own_group() -> Option<rustix::process::Pid> {
    // SAFETY: getpgrp(2) only asks.
    rustix::process::Pid::from_raw(unsafe { libc::getpgrp() })
}

/// Whether this process is the leader of its session, which may be from outside this pid namespace.
pub fn leads_its_session() -> bool {
    // SAFETY: getsid(2) and getpid(2) only ask.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// The group of a process.
pub fn group(pid: u32) -> Option<u32> {
    kin(pid).map(|kin| kin.group)
}

/// Ends the stop of a job whose shell has ended. The process `pid` is such a job if it is stopped, this process has adopted it, and no
/// process of its session outside its group is left that could continue it. Its group gets SIGHUP and SIGCONT, which the kernel sends
/// to a group that becomes orphaned; it does not send them where the adopter is in the same session. (In another session it does.)
/// The group `looked_after` is continued by others.
pub fn end_stop_of_orphans(pid: u32, looked_after: u32) {
    let number = std::process::id();
    let (Some(stopped), Some(own)) = (kin(pid), kin(number)) else { return };
    if !stopped.is_stopped
        || stopped.parent != number
        || stopped.session != own.session
        || stopped.group == looked_after
    {
        return;
    }
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let kins = numbers.filter_map(|entry| kin(entry.file_name().to_str()?.parse().ok()?));
    let mut others = kins.filter(|kin| kin.group == stopped.group && kin.parent != number);
    let has_shell = others.any(|member| {
        kin(member.parent)
            .is_some_and(|parent| parent.session == stopped.session && parent.group != stopped.group)
    });
    if !has_shell && let Some(group) = rustix::process::Pid::from_raw(stopped.group.cast_signed()) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::HUP);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::CONT);
    }
}

/// Parents that are looked at, from a process upwards. A process with more of them counts as a stranger: the supervisor's reception
/// must not spend its time on a stranger's long chain.
const GENERATIONS_MAX: u32 = 256;
/// Attempts to follow a chain of parents: one may end meanwhile, and its children have another parent then.
const ATTEMPTS: u32 = 4;

/// Whether a process is this one, or descends from it. Where all descendants of a process stay with it when their parents end
/// (`PR_SET_CHILD_SUBREAPER`), these are all that it has ever started and that have not ended.
pub fn descends_from(pid: u32, ancestor: u32) -> bool {
    (0..ATTEMPTS).find_map(|_| try_to_descend(pid, ancestor)).unwrap_or(false)
}

/// `None`: a process of the chain has ended meanwhile.
fn try_to_descend(pid: u32, ancestor: u32) -> Option<bool> {
    let mut at = pid;
    for _ in 0..GENERATIONS_MAX {
        if at == ancestor {
            return Some(true);
        }
        match kin(at)?.parent {
            0 => return Some(false),
            parent => at = parent,
        }
    }
    Some(false)
}

/// The descendants of a process, those that have ended and not been waited for among them.
pub fn descendants(pid: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut left = children(pid);
    while let Some(next) = left.pop() {
        // One that ends meanwhile gives its children to another.
        if found.insert(next) {
            left.extend(children(next));
        }
    }
    found
}

fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    texts
        .flat_map(|text| {
            text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn children_and_their_children_descend() {
        let own = std::process::id();
        // The shell waits for its child, which waits for the end of its input.
        let mut shell = Command::new("sh").args(["-c", "cat; exit 0"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut of_shell = BTreeSet::new();
        for _ in 0..1000 {
            of_shell = descendants(shell.id());
            if !of_shell.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let cat = of_shell.pop_first().unwrap();
        assert!(of_shell.is_empty(), "{of_shell:?}");
        assert!(descends_from(cat, own) && descends_from(cat, shell.id()) && descends_from(own, own));
        assert!(!descends_from(own, shell.id()) && !descends_from(u32::MAX, own));
        let all = descendants(own);
        assert!(all.contains(&cat) && all.contains(&shell.id()), "{all:?}");
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
