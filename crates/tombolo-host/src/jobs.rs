//! Job control: stopped processes, process groups, sessions, and orphaned groups.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::family::{Kin, kin, kin_in};
use crate::{process, signals};

/// Whether a process is stopped. One whose first thread has ended is stopped when the others are.
pub fn is_stopped(pid: u32) -> bool {
    all_threads(pid, &["T"])
}

/// Whether a process is stopped, or halted by a tracer, which looks alike: for one of which the kernel has said that it has stopped.
pub fn is_stopped_or_traced(pid: u32) -> bool {
    all_threads(pid, &["T", "t"])
}

/// Whether at least one thread is in one of these states, and each other thread is, too, or has ended.
fn all_threads(pid: u32, states: &[&str]) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut is_any = false;
    for kin in threads.filter_map(|thread| kin_in(&thread.path())) {
        match kin.state.as_str() {
            "Z" | "X" => {}
            state if states.contains(&state) => is_any = true,
            _ => return false,
        }
    }
    is_any
}

/// The group of this process, which has no number here if it is from outside this pid namespace.
pub fn own_group() -> Option<Pid> {
    // SAFETY: getpgrp(2) only asks.
    Pid::from_raw(unsafe { libc::getpgrp() })
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

/// Whether a process has made itself a group.
pub fn leads_its_group(pid: u32) -> bool {
    group(pid) == Some(pid)
}

/// Sends SIGHUP and SIGCONT to a group, as the kernel does when a stopped group becomes orphaned.
pub fn end_stop_of(group: u32) {
    pass_on(group, libc::SIGHUP);
    pass_on(group, libc::SIGCONT);
}

/// Sends a signal to a group. Does nothing if the group is gone, or is group 1, a container's first process's.
pub fn pass_on(group: u32, number: i32) {
    if has_name(group) {
        // SAFETY: kill(2) takes two integers; the group is none of the numbers that mean others.
        unsafe { libc::kill(-group.cast_signed(), number) };
    }
}

/// The signals of a terminal that stop a process.
pub const STOPS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Continues a process if it is stopped, and returns whether it was. A blocked stop signal that waits for the process is sent again, since
/// SIGCONT discards it.
pub fn go_on(pidfd: &OwnedFd, pid: u32) -> bool {
    // For a process that a tracer has halted, SIGCONT changes nothing.
    if !is_stopped_or_traced(pid) {
        return false;
    }
    let pending = signals::pending_for(pid);
    let dropped = STOPS.into_iter().filter(|stop| pending.contains(*stop));
    for number in [libc::SIGCONT].into_iter().chain(dropped) {
        // It may have ended.
        let _ = process::signal(pidfd, number);
    }
    true
}

/// Whether a group has members.
pub fn is_group(group: u32) -> bool {
    // SAFETY: as above; signal 0 is none.
    has_name(group) && unsafe { libc::kill(-group.cast_signed(), 0) } == 0
}

/// Makes `to` the foreground group of the controlling terminal if `from` is. Returns whether it was. The caller has blocked SIGTTOU.
pub fn hand_terminal_on(from: u32, to: u32) -> bool {
    let Ok(terminal) = rustix::fs::open("/dev/tty", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let is_foreground =
        rustix::termios::tcgetpgrp(&terminal).is_ok_and(|group| group.as_raw_pid().cast_unsigned() == from);
    let to = Pid::from_raw(to.cast_signed());
    is_foreground && to.is_some_and(|to| rustix::termios::tcsetpgrp(&terminal, to).is_ok())
}

/// Whether this may be sent to: 1 as a group's number would mean every process.
fn has_name(group: u32) -> bool {
    group > 1
}

/// Whether a group is not orphaned: a member's parent is in the same session and in another group, and could continue the group. The parents
/// `except` do not count.
pub fn is_looked_after(group: u32, session: u32, except: &[u32]) -> bool {
    all_kin().any(|its| {
        its.group == group && !except.contains(&its.parent) && looks_after(its.parent, group, session)
    })
}

/// Whether a process could continue the group, one of whose processes is its child. A parent of which nothing is known counts as one that
/// could: it may be outside this pid namespace, where the session is from outside, too; or `/proc` does not show it.
pub fn looks_after(parent: u32, group: u32, session: u32) -> bool {
    match kin(parent) {
        Some(kin) => kin.session == session && kin.group != group,
        None if parent == 0 => session == 0,
        None => Pid::from_raw(parent.cast_signed())
            .is_some_and(|parent| rustix::process::test_kill_process(parent) == Err(Errno::PERM)),
    }
}

/// The parent of a process and its session.
pub fn parent_and_session(pid: u32) -> Option<(u32, u32)> {
    kin(pid).map(|kin| (kin.parent, kin.session))
}

fn all_kin() -> impl Iterator<Item = Kin> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| kin(entry.file_name().to_str()?.parse().ok()?))
}

/// Ends the stop of a job whose shell has ended. The process `pid` is such a job if it is stopped, this process has adopted it, and no
/// process of its session outside its group is left that could continue it. Its group gets what the kernel sends to a group that becomes
/// orphaned; the kernel does not do it where the adopter is in the same session. (In another session it does.) The front continues
/// its group itself.
pub fn end_stop_of_orphans(pid: u32, front_group: u32) {
    let number = std::process::id();
    let (Some(stopped), Some(own)) = (kin(pid), kin(number)) else { return };
    if !is_stopped(pid)
        || stopped.parent != number
        || stopped.session != own.session
        || stopped.group == front_group
    {
        return;
    }
    if !is_looked_after(stopped.group, stopped.session, &[number]) {
        end_stop_of(stopped.group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn a_process_is_stopped_when_all_its_threads_are() {
        let mut sleeper = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(sleeper.id().cast_signed()).unwrap();
        assert!(!is_stopped(sleeper.id()) && !is_stopped_or_traced(sleeper.id()));
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        while !is_stopped(sleeper.id()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(is_stopped_or_traced(sleeper.id()));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(!is_stopped(sleeper.id()));
        // This one runs, whatever its other threads do.
        assert!(!is_stopped(std::process::id()));
    }

    #[test]
    fn a_stop_that_came_before_the_continuation_still_waits() {
        use std::io::Read;
        let script = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP]); print('ready', flush=True); time.sleep(600)";
        let started = Command::new("python3").args(["-c", script]).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = started else { return crate::testing::left_out("`python3` is not installed") };
        child.stdout.take().unwrap().read_exact(&mut [0; 5]).unwrap();
        let pidfd = process::pidfd(child.id()).unwrap();
        assert!(!go_on(&pidfd, child.id()));
        process::signal(&pidfd, libc::SIGSTOP).unwrap();
        while !is_stopped(child.id()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        process::signal(&pidfd, libc::SIGTSTP).unwrap();
        assert!(go_on(&pidfd, child.id()));
        assert!(!is_stopped(child.id()) && signals::pending_for(child.id()).contains(libc::SIGTSTP));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_group_is_looked_after_by_a_parent_outside_it() {
        use std::os::unix::process::CommandExt;
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let (own, group) = (std::process::id(), child.id());
        let (_, session) = parent_and_session(own).unwrap();
        assert!(leads_its_group(group));
        assert!(is_looked_after(group, session, &[]));
        assert!(!is_looked_after(group, session, &[own]));
        // A parent in the same group, or in another session, does not count.
        assert!(!looks_after(own, super::group(own).unwrap(), session));
        assert!(!looks_after(own, group, session + 1));
        // A parent outside the pid namespace counts for a session from outside, which has the number 0 here.
        assert!(looks_after(0, group, 0) && !looks_after(0, group, session.max(1)));
        assert!(is_group(group) && !is_group(1) && !is_group(u32::MAX / 2));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
