//! Programs that are raced: each leads a process group of its own, has so long
//! and no longer, and is ended and reaped with all that it started.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use tombolo_host::process;

use super::interrupted;

/// How often a wait looks whether it is to end.
const LOOK: Duration = Duration::from_secs(1);
/// Most of a program's complaint that is repeated.
const COMPLAINT: usize = 200;

/// Why there is no output.
#[derive(Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The bench is to end.
    Interrupted,
    /// It took longer than it may.
    Hung(Duration),
    /// It did not start, or failed.
    Failed(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => text.write_str("interrupted"),
            Self::Hung(patience) => write!(text, "no end after {} s", patience.as_secs()),
            Self::Failed(reason) => text.write_str(reason),
        }
    }
}

impl From<String> for Trouble {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

/// A program that runs.
pub struct Running {
    name: String,
    child: Child,
    pidfd: OwnedFd,
    reaped: bool,
    output: Option<JoinHandle<String>>,
    complaints: Option<JoinHandle<String>>,
}

/// Reads all of a pipe beside the wait, so that it never fills up.
fn gather(pipe: Option<impl Read + Send + 'static>) -> Option<JoinHandle<String>> {
    let mut pipe = pipe?;
    Some(std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }))
}

/// A wait for a child that may be told to stop at any time.
fn ended(pidfd: &OwnedFd, patience: Duration) -> Result<(), Trouble> {
    let deadline = Instant::now() + patience;
    loop {
        if interrupted() {
            return Err(Trouble::Interrupted);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = left.min(LOOK).try_into().map_err(|_| Trouble::Hung(patience))?;
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&wait)) {
            Ok(0) if left.is_zero() => return Err(Trouble::Hung(patience)),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(Trouble::Failed(error.to_string())),
        }
    }
}

/// The last words of a program, on one line.
fn last_words(complaints: &str) -> String {
    let line = complaints.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it said nothing");
    line.chars().take(COMPLAINT).collect()
}

impl Running {
    /// Starts it. Its output is kept until it is asked for.
    pub fn start(mut command: Command) -> Result<Self, Trouble> {
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |error: io::Error| Trouble::Failed(format!("{name}: {error}"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let pidfd = match process::pidfd(child.id()) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(error));
            }
        };
        let (output, complaints) = (gather(child.stdout.take()), gather(child.stderr.take()));
        Ok(Self { name, child, pidfd, reaped: false, output, complaints })
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let now = rustix::time::Timespec::default();
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Waits for its end; what it printed. Everything that it started is ended, too.
    pub fn finish(mut self, patience: Duration) -> Result<String, Trouble> {
        ended(&self.pidfd, patience)?;
        let status = self.end().map_err(|error| Trouble::Failed(format!("{}: {error}", self.name)))?;
        let take = |pipe: &mut Option<JoinHandle<String>>| {
            pipe.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
        };
        let (output, complaints) = (take(&mut self.output), take(&mut self.complaints));
        if !status.success() {
            // Some complain on the standard output.
            let said = if complaints.trim().is_empty() { &output } else { &complaints };
            return Err(Trouble::Failed(format!("{status}: {}", last_words(said))));
        }
        Ok(output)
    }

    /// Ends the group and reaps its leader. Until it is reaped, its number is nobody else's.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if !self.reaped
            && let Some(group) = Pid::from_raw(self.child.id().cast_signed())
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let status = self.child.wait();
        self.reaped |= status.is_ok();
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Runs a program to its end; what it printed.
pub fn run(command: Command, patience: Duration) -> Result<String, Trouble> {
    Running::start(command)?.finish(patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_failures_are_told() {
        assert_eq!(run(shell("echo one; echo two >&2"), LONG), Ok("one\n".into()));
        let failed = run(shell("echo first >&2; echo cause >&2; exit 3"), LONG).unwrap_err();
        assert_eq!(failed, Trouble::Failed("exit status: 3: cause".into()));
        let failed = run(shell("echo cause; exit 3"), LONG).unwrap_err();
        assert_eq!(failed, Trouble::Failed("exit status: 3: cause".into()));
        let missing = run(Command::new("/no/such/program"), LONG).unwrap_err();
        assert!(missing.to_string().starts_with("/no/such/program: "), "{missing}");
    }

    #[test]
    fn more_output_than_a_pipe_holds_is_no_trouble() {
        let text = run(shell("head -c 1000000 /dev/zero | tr '\\0' x"), LONG).unwrap();
        assert_eq!(text.len(), 1_000_000);
    }

    #[test]
    fn what_hangs_is_ended_with_what_it_started() {
        // Both hold the pipe: its end is the end of both.
        let mut running = Running::start(shell("sleep 1000 & sleep 1000")).unwrap();
        let reader = running.output.take().unwrap();
        assert!(!running.has_ended());
        assert_eq!(running.finish(Duration::from_millis(50)), Err(Trouble::Hung(Duration::from_millis(50))));
        assert_eq!(reader.join().unwrap(), "");
    }
}
