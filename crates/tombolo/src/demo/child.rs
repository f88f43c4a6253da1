//! Child processes of the demo: none outlives it, whatever happens.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{self, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use tombolo_app::scratch::Scratch;

use crate::failure::Failure;
use tombolo_host::timing::command::{DEMO_CHECK_INTERVAL, DEMO_END_TIMEOUT, DEMO_RUN_TIMEOUT};

/// A child process; ended when dropped.
pub struct Child {
    child: process::Child,
    name: &'static str,
    errors: PathBuf,
    ended: bool,
}

/// The failure after Ctrl-C.
pub fn interrupted() -> Failure {
    Failure { text: "interrupted".into(), code: 130 }
}

impl Child {
    /// Starts it; what it says on standard error is kept for later.
    pub fn start(command: &mut Command, name: &'static str, directory: &Scratch) -> Result<Self, Failure> {
        let errors = directory.file(&format!("{name}.log"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&errors)?);
        let child =
            command.spawn().map_err(|error| Failure::new(format!("cannot start the {name}: {error}")))?;
        Ok(Self { child, name, errors, ended: false })
    }

    /// Where the lender listens, as it says in its first line.
    pub fn address(&mut self, stop: &AtomicBool) -> Result<String, Failure> {
        let mut line = String::new();
        // It prints that line, or ends: no wait without end.
        if let Some(output) = self.child.stdout.take() {
            let mut reader: BufReader<ChildStdout> = BufReader::new(output);
            reader.read_line(&mut line)?;
        }
        match line.trim_end().rsplit_once(" at ") {
            Some((_, address)) => Ok(address.to_owned()),
            None if stop.load(Ordering::Acquire) => Err(interrupted()),
            None => Err(self.failure("did not start")),
        }
    }

    /// Waits for its success, while `read` reads what it prints; returns what that has made of it.
    pub fn output<T: Send>(
        mut self,
        stop: &AtomicBool,
        tick: impl FnMut(),
        read: impl FnOnce(ChildStdout) -> io::Result<T> + Send,
    ) -> Result<T, Failure> {
        let output = self.child.stdout.take().ok_or_else(|| self.failure("has no output"))?;
        thread::scope(|scope| {
            let reading = scope.spawn(|| read(output));
            // Where it has not succeeded it is ended here: then there is nothing more to be read.
            let ended = self.succeed(stop, tick);
            if let Err(failure) = ended {
                drop(self);
                return Err(failure);
            }
            Ok(reading.join().unwrap_or_else(|_| Err(io::Error::other("what it printed cannot be read")))?)
        })
    }

    fn succeed(&mut self, stop: &AtomicBool, mut tick: impl FnMut()) -> Result<(), Failure> {
        let since = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if stop.load(Ordering::Acquire) {
                return Err(interrupted());
            }
            if since.elapsed() > DEMO_RUN_TIMEOUT {
                return Err(self.failure("does not come to an end"));
            }
            tick();
            thread::sleep(DEMO_CHECK_INTERVAL);
        };
        self.ended = true;
        // Ctrl-C reaches the whole group: a child may be the first to end by it.
        if stop.load(Ordering::Acquire) {
            return Err(interrupted());
        }
        if status.success() { Ok(()) } else { Err(self.failure(&describe(status))) }
    }

    /// What it has said, in one line.
    fn failure(&self, what: &str) -> Failure {
        let said = fs::read_to_string(&self.errors).unwrap_or_default();
        let said: Vec<_> = said.lines().map(|line| line.trim_start_matches("tombolo: ")).collect();
        Failure::new(format!("the {} {what}: {}", self.name, said.join("; ")))
    }
}

fn describe(status: ExitStatus) -> String {
    format!("failed ({status})")
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // Not reaped yet, so the number is still this child's.
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let since = Instant::now();
        while since.elapsed() < DEMO_END_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(DEMO_CHECK_INTERVAL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
