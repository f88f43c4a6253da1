//! Lenders, runs and scratch directories. Whatever a test starts ends with it.

mod process;
mod resp;
mod scratch;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tombolo_host::testing::left_out;

pub use process::{Outcome, Running, once_more_if_exceeded, runtime_directory, send, supervisor_of};
pub use resp::Resp;
pub use scratch::{Scratch, compiled};

/// The binary under test.
pub const TOMBOLO: &str = env!("CARGO_BIN_EXE_tombolo");

/// The product as it is handed to users, which `cargo xtask test` has built; says so where there is none.
pub fn product() -> Option<String> {
    let binary = std::env::var("TOMBOLO_RELEASE_BINARY");
    if binary.is_err() {
        left_out(
            "TOMBOLO_RELEASE_BINARY names no `tombolo` that was built with --release (`cargo xtask test` does)",
        );
    }
    binary.ok()
}

/// No test waits longer than this for a process, however slow the machine, unless it is run in full.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// How a lender is reached.
#[derive(Clone, Copy, Debug)]
pub enum Link {
    /// Shared memory.
    Shm,
    /// UDP on the loopback interface.
    Udp,
}

/// A lending node in its own process.
pub struct Lender {
    node: Running,
    address: String,
    _scratch: Scratch,
}

impl Lender {
    /// Starts a node again where a lender was, which was told to end: it has its port and its memory until it has ended.
    pub fn start_again(&mut self, lend: &str) {
        self.node.await_end(PATIENCE);
        let mut command = Command::new(TOMBOLO);
        command.args(["node", "--insecure", "--listen", &self.address, "--lend", lend, "--name", "lender"]);
        let node = Running::start(command, Vec::new());
        node.output_with(" at ", Duration::from_secs(30));
        self.node = node;
    }

    /// Starts a node that lends `lend`, and waits until it listens.
    pub fn start(link: Link, lend: &str) -> Self {
        Self::start_with(link, lend, &[])
    }

    /// The same, with more arguments.
    pub fn start_with(link: Link, lend: &str, more: &[&str]) -> Self {
        let scratch = Scratch::new("lender");
        let listen = match link {
            Link::Shm => format!("shm:{}", scratch.path().join("node").display()),
            Link::Udp => "udp:127.0.0.1:0".into(),
        };
        let mut command = Command::new(TOMBOLO);
        command.args(["node", "--insecure", "--listen", &listen, "--lend", lend, "--name", "lender"]);
        command.args(more);
        let node = Running::start(command, Vec::new());
        let line = node.output_with(" at ", Duration::from_secs(30));
        let address =
            line.lines().next().and_then(|line| line.rsplit(" at ").next()).expect("an address").into();
        Self { node, address, _scratch: scratch }
    }

    /// Its address, for `--from`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process.
    pub fn node(&mut self) -> &mut Running {
        &mut self.node
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.node.signal(signal);
    }

    /// Waits until it has said that on standard error.
    pub fn errors_with(&self, text: &str, limit: Duration) {
        self.node.errors_with(text, limit);
    }

    /// Waits for its end.
    pub fn wait(self) -> Outcome {
        self.node.wait(PATIENCE)
    }

    /// What `tombolo status --json` says.
    pub fn status(&self) -> serde_json::Value {
        // It is asked when it has most to do, and `status` waits for three seconds only. One that never answers is
        // a failure all the same.
        let since = Instant::now();
        let outcome = loop {
            let outcome = tombolo(&["status", "--insecure", &self.address, "--json", "--counters"]);
            let is_late = outcome.code() != 0 && outcome.stderr.contains("answer");
            if !is_late || since.elapsed() > Duration::from_secs(60) {
                break outcome;
            }
        };
        assert_eq!(outcome.code(), 0, "status: {}", outcome.stderr);
        serde_json::from_slice(&outcome.stdout).expect("status prints JSON")
    }

    /// Bytes it lends now.
    pub fn lent_bytes(&self) -> u64 {
        self.status()["lent_bytes"].as_u64().expect("a number")
    }

    /// Waits until nothing is lent; how long that took.
    pub fn wait_until_free(&self, limit: Duration) -> Duration {
        let since = Instant::now();
        loop {
            let lent = self.lent_bytes();
            if lent == 0 {
                return since.elapsed();
            }
            assert!(since.elapsed() < limit, "{lent} bytes still lent after {:?}", since.elapsed());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Runs `tombolo` with these arguments to its end.
pub fn tombolo(arguments: &[&str]) -> Outcome {
    let mut command = Command::new(TOMBOLO);
    command.args(arguments);
    Running::start(command, Vec::new()).wait(PATIENCE)
}

/// A program to run plainly, or under `tombolo run`.
#[derive(Clone)]
pub struct Program {
    words: Vec<String>,
    input: Vec<u8>,
    remote: Option<String>,
    minimum: Option<String>,
    outage: Option<String>,
    options: Vec<String>,
    variables: Vec<(String, String)>,
    before: Vec<String>,
    patience: Duration,
    limit_percent: u64,
}

impl Program {
    /// The program and its arguments.
    pub fn new<S: AsRef<str>>(words: &[S]) -> Self {
        let words = words.iter().map(|word| word.as_ref().to_owned()).collect();
        Self {
            words,
            input: Vec::new(),
            remote: None,
            minimum: None,
            outage: None,
            options: Vec::new(),
            variables: Vec::new(),
            before: Vec::new(),
            patience: sized(PATIENCE, 10 * PATIENCE),
            limit_percent: 100,
        }
    }

    /// What it reads on standard input.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// How much to borrow, instead of the default.
    pub fn remote(mut self, size: &str) -> Self {
        self.remote = Some(size.into());
        self
    }

    /// How long a lender may be silent, instead of the default.
    pub fn outage(mut self, time: &str) -> Self {
        self.outage = Some(time.into());
        self
    }

    /// Further options of `tombolo run`.
    pub fn options(mut self, words: &[&str]) -> Self {
        self.options = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Mappings of at least this size are far, instead of the default.
    pub fn minimum(mut self, size: &str) -> Self {
        self.minimum = Some(size.into());
        self
    }

    /// A variable of its environment, and of `tombolo run`.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// A command that executes `tombolo run`, to be written before it.
    pub fn under(mut self, words: &[&str]) -> Self {
        self.before = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// It forks at any moment of an eviction, and writes at once. What is copied before the fork is known of may exceed the limit for a
    /// moment; and what a process had that has ended counts until its agent has ended, too, for which that needs a processor.
    pub fn forking(mut self) -> Self {
        self.limit_percent = 250;
        self
    }

    /// Gives up on it after this long.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    fn environment(&self, command: &mut Command) {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        // One order of sorting and of hashing, so that outputs can be compared.
        command.env("LC_ALL", "C").env("PYTHONHASHSEED", "0");
    }

    /// Runs it without Tombolo.
    pub fn plain(&self) -> Outcome {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        self.environment(&mut command);
        Running::start(command, self.input.clone()).wait(self.patience)
    }

    /// Starts it on the memory of `lenders`.
    pub fn start_on(&self, lenders: &[&Lender], local: &str) -> Running {
        let addresses: Vec<_> = lenders.iter().map(|lender| lender.address()).collect();
        self.start_from(&addresses.join(","), local)
    }

    /// The same, the lenders as they are written on the command line.
    pub fn start_from(&self, from: &str, local: &str) -> Running {
        let scratch = Scratch::new("run");
        let report = scratch.path().join("report.json");
        let mut words = self.before.iter().map(String::as_str).chain([TOMBOLO]);
        let mut command = Command::new(words.next().unwrap_or(TOMBOLO));
        command.args(words);
        command
            .args(["run", "--quiet", "--insecure", "--from", from, "--local", local, "--report"])
            .arg(&report);
        if let Some(remote) = &self.remote {
            command.args(["--remote", remote]);
        }
        if let Some(minimum) = &self.minimum {
            command.args(["--minimum", minimum]);
        }
        if let Some(outage) = &self.outage {
            command.args(["--outage", outage]);
        }
        command.args(&self.options).arg("--").args(&self.words);
        self.environment(&mut command);
        Running::start(command, self.input.clone()).with_report(scratch, report)
    }

    /// Runs it on the memory of `lenders`.
    pub fn run_on(&self, lenders: &[&Lender], local: &str) -> Outcome {
        self.start_on(lenders, local).wait(self.patience)
    }

    /// Runs it plainly and on far memory: status and output must be the same,
    /// pages must have gone out and come back, and the limit must have held.
    pub fn same_on(&self, lenders: &[&Lender], local: &str) -> Outcome {
        let plain = self.plain();
        assert_eq!(plain.code(), 0, "{:?} fails without Tombolo: {}", self.words, plain.stderr);
        let far = once_more_if_exceeded(|| {
            let far = self.run_on(lenders, local);
            assert_eq!(far.code(), 0, "{:?}\nstdout: {}\nstderr: {}", self.words, far.text(), far.stderr);
            assert!(
                plain.stdout == far.stdout,
                "{:?}: the output differs from a plain run\nplain: {:.400}\nfar: {:.400}",
                self.words,
                plain.text(),
                far.text()
            );
            far
        });
        let report = far.report();
        assert!(report["bytes_out"].as_u64() > Some(0), "nothing was evicted: {report:#}");
        assert!(report["bytes_in"].as_u64() > Some(0), "nothing was fetched: {report:#}");
        far.assert_within_limit(self.limit_percent);
        let _ = writeln!(
            std::io::stderr(),
            "    {}: plain {:.2} s, --local {local} {:.2} s, {} MiB in, {} MiB out",
            Path::new(&self.words[0]).file_name().unwrap_or_default().to_string_lossy(),
            plain.elapsed.as_secs_f64(),
            far.elapsed.as_secs_f64(),
            report["bytes_in"].as_u64().unwrap_or(0) >> 20,
            report["bytes_out"].as_u64().unwrap_or(0) >> 20,
        );
        far
    }
}

/// Whether the full sizes are wanted.
pub use tombolo_random::is_full as full;

/// `small` in ordinary tests, `large` in full ones.
pub fn sized<T>(small: T, large: T) -> T {
    if full() { large } else { small }
}

/// The executable of this name.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // The usual places first: a version manager's wrapper script elsewhere is not the program itself.
    ["/usr/bin", "/usr/sbin", "/bin"]
        .map(PathBuf::from)
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// The executable of this name, which `able` has found.
pub fn path_of(name: &str) -> String {
    find(name).expect("checked before").display().to_string()
}

/// Whether programs can be run on far memory here, and these are installed;
/// says so if not.
pub fn able(programs: &[&str]) -> bool {
    static PAGING: OnceLock<Option<String>> = OnceLock::new();
    let unable = PAGING.get_or_init(|| {
        let doctor = tombolo(&["doctor"]);
        assert!([0, 1].contains(&doctor.code()), "doctor itself fails: {}{}", doctor.text(), doctor.stderr);
        (doctor.code() != 0).then(|| doctor.text())
    });
    let missing = programs.iter().find(|name| find(name).is_none());
    let reason = match (unable, missing) {
        (Some(text), _) => format!("this machine cannot serve page faults:\n{text}"),
        (None, Some(name)) => format!("`{name}` is not installed (`cargo xtask test` installs it)"),
        (None, None) => return true,
    };
    left_out(&reason);
    false
}

/// The shared library of this name; says so if it is not installed.
pub fn library(name: &str) -> Option<String> {
    let file = Path::new("/usr/lib/x86_64-linux-gnu").join(name);
    if !file.is_file() {
        left_out(&format!("`{name}` is not installed (`cargo xtask test` installs it)"));
        return None;
    }
    Some(file.display().to_string())
}

/// Returns from the test, loudly, where this machine lacks something.
macro_rules! needs {
    ($($program:literal),*) => {
        if !crate::common::able(&[$($program),*]) {
            return;
        }
    };
}
pub(crate) use needs;
