//! Other processes: programs that are run to their end, and servers.
//!
//! A program that is run ([`run`], [`Running`]) leads a process group of its own, has a time limit, and is
//! ended and reaped with everything that it started. A server ([`serve`]) stays in the caller's process
//! group, so that Ctrl-C reaches it, too, and ends when its [`Guard`] is dropped.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use tombolo_host::process;
use tombolo_host::timing::command::CHILD_CHECK_INTERVAL;

/// Set by SIGINT and SIGTERM, where the main function asks for that: the caller ends between two waits, so
/// that what it set up is taken down.
pub static STOP: AtomicBool = AtomicBool::new(false);

/// Whether the caller is to end.
pub fn interrupted() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// The most characters of a program's last line that an error repeats.
const MAX_REASON_CHARACTERS: usize = 200;

/// A child process, killed and reaped when dropped.
#[derive(Debug)]
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The name of a command's program.
fn name_of(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// Starts a child process that ends with its guard. Its standard streams are as the command says.
pub fn spawn(command: &mut Command) -> Result<Guard, Trouble> {
    let child = command.spawn();
    child.map(Guard).map_err(|error| Trouble::Failed(format!("cannot start {}: {error}", name_of(command))))
}

/// Starts a server and waits for the first line that it prints.
pub fn serve(command: &mut Command) -> Result<(Guard, String), Trouble> {
    let mut server = spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()))?;
    let mut line = String::new();
    // It prints that line, or ends.
    if let Some(output) = server.0.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(|error| Trouble::Failed(error.to_string()))?;
    }
    match line.trim() {
        "" => Err(Trouble::Failed(format!("{} did not start", name_of(command)))),
        line => Ok((server, line.to_owned())),
    }
}

/// Starts a node, which says in its first line where it listens.
pub fn serve_node(command: &mut Command) -> Result<(Guard, String), Trouble> {
    let (node, line) = serve(command)?;
    match line.rsplit_once(" at ") {
        Some((_, address)) => Ok((node, address.to_owned())),
        None => Err(Trouble::Failed(format!("the node said `{line}` instead of its address"))),
    }
}

/// Why a child process has no result.
#[derive(Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The caller is to end.
    Interrupted,
    /// It had not ended at its time limit.
    TimedOut(Duration),
    /// It did not start, or failed.
    Failed(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => text.write_str("interrupted"),
            Self::TimedOut(limit) => write!(text, "it had not ended after {} s", limit.as_secs()),
            Self::Failed(reason) => text.write_str(reason),
        }
    }
}

impl std::error::Error for Trouble {}

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

/// Waits for the end of a child.
fn wait(pidfd: &OwnedFd, limit: Duration) -> Result<(), Trouble> {
    let deadline = Instant::now() + limit;
    loop {
        if interrupted() {
            return Err(Trouble::Interrupted);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let pause = left.min(CHILD_CHECK_INTERVAL).try_into().map_err(|_| Trouble::TimedOut(limit))?;
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&pause)) {
            Ok(0) if left.is_zero() => return Err(Trouble::TimedOut(limit)),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(Trouble::Failed(error.to_string())),
        }
    }
}

/// The last line of what a program complained of.
fn last_line(complaints: &str) -> String {
    let line = complaints.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it said nothing");
    line.chars().take(MAX_REASON_CHARACTERS).collect()
}

impl Running {
    /// Starts it. Its output is kept until it is asked for.
    pub fn start(command: &mut Command) -> Result<Self, Trouble> {
        let name = name_of(command);
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

    /// Waits for its end, and returns what it printed. Everything that it started is ended, too.
    pub fn finish(mut self, limit: Duration) -> Result<String, Trouble> {
        wait(&self.pidfd, limit)?;
        let status = self.end().map_err(|error| Trouble::Failed(format!("{}: {error}", self.name)))?;
        let take = |pipe: &mut Option<JoinHandle<String>>| {
            pipe.take().and_then(|reader| reader.join().ok()).unwrap_or_default()
        };
        let (output, complaints) = (take(&mut self.output), take(&mut self.complaints));
        if !status.success() {
            // Some complain on the standard output.
            let said = if complaints.trim().is_empty() { &output } else { &complaints };
            return Err(Trouble::Failed(format!("{status}: {}", last_line(said))));
        }
        Ok(output)
    }

    /// Ends the group and reaps its leader. Until the leader is reaped, no other process has its number.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if !self.reaped
            && let Some(group) = Pid::from_raw(self.child.id().cast_signed())
        {
            let _ = kill_process_group(group, Signal::KILL);
            // It may have left its group.
            let _ = self.child.kill();
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

/// Runs a program to its end, and returns what it printed.
pub fn run(command: &mut Command, limit: Duration) -> Result<String, Trouble> {
    Running::start(command)?.finish(limit)
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
        assert_eq!(run(&mut shell("echo one; echo two >&2"), LONG), Ok("one\n".into()));
        let failed = run(&mut shell("echo first >&2; echo cause >&2; exit 3"), LONG).unwrap_err();
        assert_eq!(failed, Trouble::Failed("exit status: 3: cause".into()));
        let failed = run(&mut shell("echo cause; exit 3"), LONG).unwrap_err();
        assert_eq!(failed, Trouble::Failed("exit status: 3: cause".into()));
        let missing = run(&mut Command::new("/no/such/program"), LONG).unwrap_err();
        assert!(missing.to_string().starts_with("/no/such/program: "), "{missing}");
    }

    #[test]
    fn more_output_than_a_pipe_holds_is_no_trouble() {
        let text = run(&mut shell("head -c 1000000 /dev/zero | tr '\\0' x"), LONG).unwrap();
        assert_eq!(text.len(), 1_000_000);
    }

    #[test]
    fn what_hangs_is_ended_with_what_it_started() {
        // Both hold the pipe: its end is the end of both.
        let mut running = Running::start(&mut shell("sleep 1000 & sleep 1000")).unwrap();
        let reader = running.output.take().unwrap();
        assert!(!running.has_ended());
        assert_eq!(
            running.finish(Duration::from_millis(50)),
            Err(Trouble::TimedOut(Duration::from_millis(50)))
        );
        assert_eq!(reader.join().unwrap(), "");
    }

    #[test]
    fn a_server_says_where_it_listens() {
        let (_server, address) = serve_node(&mut shell("echo lends at shm:/tmp/x; exec sleep 600")).unwrap();
        assert_eq!(address, "shm:/tmp/x");
        assert!(serve(&mut shell("exit 1")).unwrap_err().to_string().contains("did not start"));
        assert!(serve_node(&mut shell("echo words")).unwrap_err().to_string().contains("words"));
        assert!(serve(&mut Command::new("/no/such/server")).is_err());
    }

    #[test]
    fn a_guarded_child_ends_with_its_guard() {
        let guard = spawn(Command::new("sleep").arg("600")).unwrap();
        let process = format!("/proc/{}", guard.0.id());
        assert!(std::path::Path::new(&process).exists());
        drop(guard);
        assert!(!std::path::Path::new(&process).exists());
    }
}
