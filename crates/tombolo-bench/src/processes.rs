//! The processes of a race: each leads a process group of its own, has a time limit, and is ended and
//! reaped with everything that it started.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::de::DeserializeOwned;
use tombolo_host::{event, process};

use crate::Failure;

/// Set by SIGINT and SIGTERM: a race ends between two waits, so that what it set up is taken down.
pub static STOP: AtomicBool = AtomicBool::new(false);

/// How often a wait checks whether the race is to end.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A directory for sockets, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one for this purpose, which only this user can read.
    pub fn new(purpose: &str) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("tombolo-bench-{purpose}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process, ended with its group when dropped.
pub struct Group(Child);

impl Group {
    /// Starts it.
    pub fn start(command: &mut Command) -> Result<Self, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).process_group(0).spawn();
        Ok(Self(child.map_err(|error| Failure::new(format!("cannot start {name}: {error}")))?))
    }

    /// Waits for its end.
    fn wait(&self, limit: Duration) -> Result<(), Failure> {
        let pidfd = process::pidfd(self.0.id())?;
        let deadline = Instant::now() + limit;
        loop {
            if STOP.load(Ordering::Relaxed) {
                return Err(Failure::new("interrupted"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if event::wait_readable(&[pidfd.as_fd()], Some(left.min(CHECK_INTERVAL)))? {
                return Ok(());
            }
            if left.is_zero() {
                return Err(Failure::new(format!("it had not ended after {} s", limit.as_secs())));
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(leader, Signal::KILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This binary, to be started again.
pub fn this_binary() -> Result<PathBuf, Failure> {
    Ok(std::env::current_exe()?)
}

/// The last line of what a program complained of.
fn last_line(complaints: &str) -> &str {
    complaints.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it said nothing")
}

/// Runs a program to its end; returns what it printed, which is less than a pipe holds.
pub fn finish(command: &mut Command, limit: Duration) -> Result<String, Failure> {
    let mut group = Group::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    group.wait(limit)?;
    let status = group.0.wait()?;
    let (mut output, mut complaints) = (String::new(), String::new());
    if let Some(mut pipe) = group.0.stdout.take() {
        pipe.read_to_string(&mut output)?;
    }
    if !status.success() {
        if let Some(mut pipe) = group.0.stderr.take() {
            pipe.read_to_string(&mut complaints)?;
        }
        return Err(Failure::new(format!("{status}: {}", last_line(&complaints))));
    }
    Ok(output)
}

/// Runs a program to its end; it prints one JSON value.
pub fn result<T: DeserializeOwned>(command: &mut Command, limit: Duration) -> Result<T, Failure> {
    serde_json::from_str(&finish(command, limit)?)
        .map_err(|error| Failure::new(format!("it printed no result: {error}")))
}

/// The middle one, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let high = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { high } else { (values[middle - 1] + high) / 2.0 })
}

/// Starts a server, which says in its first line where it listens (`… at ADDRESS`).
pub fn server(command: &mut Command) -> Result<(Group, String), Failure> {
    let mut group = Group::start(command.stdout(Stdio::piped()).stderr(Stdio::null()))?;
    let mut line = String::new();
    if let Some(output) = group.0.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    match line.trim().rsplit_once(" at ") {
        Some((_, address)) => Ok((group, address.to_owned())),
        None => Err(Failure::new("the lender did not start")),
    }
}

/// Makes the calling process a member of a control group.
pub fn join(procs: &Path) -> Result<(), Failure> {
    fs::write(procs, "0").map_err(|error| Failure::new(format!("cannot join {}: {error}", procs.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_gives_a_result_or_a_reason() {
        let limit = Duration::from_secs(60);
        assert_eq!(result::<u32>(&mut shell("echo 7"), limit).unwrap(), 7);
        let reason = |script, limit| result::<u32>(&mut shell(script), limit).unwrap_err().0;
        assert!(reason("echo one >&2; echo broken >&2; exit 3", limit).contains("broken"));
        assert!(reason("echo words", limit).contains("no result"));
        assert!(reason("sleep 600 & sleep 600", Duration::ZERO).contains("not ended"));
        assert!(result::<u32>(&mut Command::new("/no/such/program"), limit).is_err());
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_server_says_where_it_listens() {
        assert_eq!(server(&mut shell("echo lends at shm:/tmp/x; sleep 600")).unwrap().1, "shm:/tmp/x");
        assert!(server(&mut shell("exit 1")).is_err());
    }
}
