//! A child process with collected output, a deadline, and no survivors.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::Scratch;

/// What a pipe has given so far.
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collected {
    fn new(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let target = bytes.clone();
        let reader = thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                target.lock().expect("no panics here").extend_from_slice(&buffer[..count]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn so_far(&self) -> Vec<u8> {
        self.bytes.lock().expect("no panics here").clone()
    }

    /// Everything until the pipe was closed; somebody may have inherited it, so not for ever.
    fn finish(&mut self) -> Vec<u8> {
        let since = Instant::now();
        if let Some(reader) = self.reader.take() {
            while !reader.is_finished() && since.elapsed() < Duration::from_secs(5) {
                thread::sleep(Duration::from_millis(5));
            }
            if !reader.is_finished() {
                eprintln!("somebody still holds its output: this is what came until now");
            }
        }
        self.so_far()
    }
}

/// A process in a group of its own, which is killed when this is dropped.
pub struct Running {
    child: Child,
    name: String,
    since: Instant,
    stdout: Collected,
    stderr: Collected,
    report: Option<(Scratch, PathBuf)>,
    ended: Option<ExitStatus>,
}

/// Away from the nodes that people run here.
pub fn runtime_directory() -> PathBuf {
    std::env::temp_dir().join(format!("tombolo-test-nodes-{}", rustix::process::geteuid().as_raw()))
}

impl Running {
    /// Starts it and feeds it `input`.
    pub fn start(mut command: Command, input: Vec<u8>) -> Self {
        let name = format!("{command:?}");
        if command.get_envs().all(|(variable, _)| variable != "TOMBOLO_RUNTIME_DIR") {
            command.env("TOMBOLO_RUNTIME_DIR", runtime_directory());
        }
        // What the developer's shell tells the product is not for tests.
        for variable in ["TOMBOLO_LOG", "TOMBOLO_KEY", "TOMBOLO_ALLOW"] {
            if command.get_envs().all(|(given, _)| given != variable) {
                command.env_remove(variable);
            }
        }
        // Where the runner ends this test, what it has started must not stay.
        tombolo_host::process::end_with_this_thread(&mut command);
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let since = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut stdin = child.stdin.take().expect("piped");
        // It may end without reading all: no concern of ours.
        thread::spawn(move || drop(stdin.write_all(&input)));
        let stdout = Collected::new(child.stdout.take().expect("piped"));
        let stderr = Collected::new(child.stderr.take().expect("piped"));
        Self { child, name, since, stdout, stderr, report: None, ended: None }
    }

    /// It writes a report to this file in this directory.
    pub fn with_report(mut self, scratch: Scratch, path: PathBuf) -> Self {
        self.report = Some((scratch, path));
        self
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn found(&self, what: &str, find: impl Fn() -> Option<u32>) -> u32 {
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(30) {
            if let Some(pid) = find() {
                return pid;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{} has no {what}", self.name)
    }

    /// The supervisor of `tombolo run`.
    pub fn supervisor_pid(&self) -> u32 {
        self.found("supervisor", || supervisor_of(self.pid()))
    }

    /// The program that `tombolo run` started.
    pub fn program_pid(&self) -> u32 {
        let supervisor = self.supervisor_pid();
        // The other child is its keeper, which is this binary, too.
        self.found("program", || {
            child_that(supervisor, |command| !command.starts_with(super::TOMBOLO.as_bytes()))
        })
    }

    /// Sends a signal that its thread of that name takes, once that has given itself the name.
    pub fn signal_thread(&self, name: &str, signal: Signal) {
        let has_name = |thread: &fs::DirEntry| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|found| found.trim() == name)
        };
        let since = Instant::now();
        let thread = loop {
            let mut threads = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().flatten();
            if let Some(thread) = threads.find(has_name) {
                break thread;
            }
            assert!(since.elapsed() < Duration::from_secs(30), "{} has no thread `{name}`", self.name);
            thread::sleep(Duration::from_millis(1));
        };
        send(thread.file_name().to_str().unwrap().parse().unwrap(), signal);
    }

    /// Sends a signal to it alone.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// What it has written to standard output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.stdout.so_far()).into_owned()
    }

    /// Waits until standard output contains `text`; returns all of it so far.
    pub fn output_with(&self, text: &str, limit: Duration) -> String {
        let since = Instant::now();
        loop {
            let output = String::from_utf8_lossy(&self.stdout.so_far()).into_owned();
            if output.contains(text) {
                return output;
            }
            if since.elapsed() > limit {
                let errors = String::from_utf8_lossy(&self.stderr.so_far()).into_owned();
                panic!("{}: no {text:?} after {limit:?}\nstdout: {output}\nstderr: {errors}", self.name);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it has written to standard error so far.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr.so_far()).into_owned()
    }

    /// Waits until standard error contains `text`.
    pub fn errors_with(&self, text: &str, limit: Duration) {
        let since = Instant::now();
        while !self.errors().contains(text) {
            assert!(since.elapsed() < limit, "{}: no {text:?} in: {}", self.name, self.errors());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end; a process that outlives the limit is a failure.
    pub fn wait(mut self, limit: Duration) -> Outcome {
        let status = self.await_end(limit);
        let elapsed = self.since.elapsed();
        let report = self
            .report
            .as_ref()
            .and_then(|(_, path)| fs::read(path).ok())
            .and_then(|text| serde_json::from_slice(&text).ok());
        Outcome {
            status,
            stdout: self.stdout.finish(),
            stderr: String::from_utf8_lossy(&self.stderr.finish()).into_owned(),
            elapsed,
            report,
        }
    }

    /// Waits for its end, after which the kernel has freed what it had; a process that outlives the limit is a failure.
    pub fn await_end(&mut self, limit: Duration) -> ExitStatus {
        let since = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                break status;
            }
            if since.elapsed() > limit {
                let output = String::from_utf8_lossy(&self.stdout.so_far()).into_owned();
                let errors = String::from_utf8_lossy(&self.stderr.so_far()).into_owned();
                panic!("{} hangs after {limit:?}\nstdout: {output:.2000}\nstderr: {errors:.2000}", self.name);
            }
            thread::sleep(Duration::from_millis(2));
        };
        self.ended = Some(status);
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The group is ours alone; as long as the child has not been reaped its number is not reused.
        if let Some(group) = Pid::from_raw(self.child.id() as i32)
            && self.ended.is_none()
        {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// The supervisor of this `tombolo run`: its other child is its witness, which goes by another name.
pub fn supervisor_of(front: u32) -> Option<u32> {
    child_that(front, |command| command.starts_with(super::TOMBOLO.as_bytes()))
}

/// The child of a process with such a command line.
fn child_that(parent: u32, is_so: impl Fn(&[u8]) -> bool) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let texts = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let is_meant = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        !command.is_empty() && is_so(&command)
    };
    let mut children = texts.flat_map(|text| {
        text.split_whitespace().map(|pid| pid.parse().expect("a process id")).collect::<Vec<u32>>()
    });
    children.find(is_meant)
}

/// Sends a signal to a process of this test.
pub fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id")).expect("not zero");
    // It may just have ended.
    let _ = kill_process(pid, signal);
}

/// Runs it, and once more if the limit was exceeded, and it was said: a program on far memory has as much as it needs
/// while its agent has had an order and no processor for two seconds, as on a machine that stands still. A defect
/// exceeds the limit twice.
pub fn once_more_if_exceeded(run: impl Fn() -> Outcome) -> Outcome {
    let outcome = run();
    if outcome.exceeds_local() { run() } else { outcome }
}

/// How a process ended.
pub struct Outcome {
    /// Its status.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: String,
    /// From start to end.
    pub elapsed: Duration,
    report: Option<serde_json::Value>,
}

impl Outcome {
    /// The exit code, or 128 and the signal.
    pub fn code(&self) -> i32 {
        self.status.code().or_else(|| self.status.signal().map(|signal| 128 + signal)).expect("one of them")
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The report of `tombolo run`.
    pub fn report(&self) -> &serde_json::Value {
        self.report.as_ref().unwrap_or_else(|| panic!("no report; stderr: {}", self.stderr))
    }

    /// A counter of the report.
    pub fn counter(&self, name: &str) -> u64 {
        self.report()["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}"))
    }

    /// The pager never kept more pages than this part of what `--local` allowed.
    pub fn assert_within_limit(&self, percent: u64) {
        let report = self.report();
        let (peak, limit) = (report["resident_peak_bytes"].as_u64(), report["local_bytes"].as_u64());
        let limit = limit.map(|bytes| bytes * percent / 100);
        assert!(peak > Some(0) && peak <= limit, "resident {peak:?} of {limit:?}: {}", self.stderr);
    }

    /// Whether the supervisor has said that the limit was exceeded.
    pub fn exceeds_local(&self) -> bool {
        self.stderr.contains("the program exceeds --local")
    }

    /// Exactly one line on standard error, which contains `text`.
    pub fn assert_one_line(&self, code: i32, text: &str) {
        assert_eq!(self.code(), code, "stderr: {}", self.stderr);
        assert!(self.stderr.contains(text), "no {text:?} in: {}", self.stderr);
        assert_eq!(self.stderr.trim_end().lines().count(), 1, "more than one line: {}", self.stderr);
    }
}
