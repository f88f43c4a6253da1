//! `cargo xtask test`: all tests of the workspace, with the programs they need.
//!
//! Everything is built once, in the profile `dev`, which is nearly as fast as the product and has debug assertions and
//! overflow checks; end-to-end tests run that binary. The product's own (`--release`) is built beside it where a test is
//! about it.
//! cargo-nextest runs each test in a process of its own; `.config/nextest.toml` says what may not run side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tombolo_host::stops;

use crate::command::{cargo, installed, root, run};
use crate::{bench, deb, guest, packages, tools};

mod leftovers;
mod results;
mod stages;

use results::{Results, Tally};
use stages::Stages;

/// Programs and libraries that the tests run, and the Debian package of each.
const NEEDED: [(&str, &str); 42] = [
    ("sort", "coreutils"),
    ("cc", "gcc"),
    ("python3", "python3"),
    ("setcap", "libcap2-bin"),
    ("musl-gcc", "musl-tools"),
    ("valgrind", "valgrind"),
    ("setpriv", "util-linux"),
    ("systemd-analyze", "systemd"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("prometheus", "prometheus"),
    ("promtool", "prometheus"),
    ("redis-server", "redis-server"),
    ("redis-benchmark", "redis-tools"),
    ("curl", "curl"),
    ("sqlite3", "sqlite3"),
    ("stress-ng", "stress-ng"),
    ("ip", "iproute2"),
    ("ping", "iputils-ping"),
    ("iperf3", "iperf3"),
    ("nginx", "nginx-light"),
    ("wget", "wget"),
    ("dnsmasq", "dnsmasq-base"),
    ("keepalived", "keepalived"),
    ("radvd", "radvd"),
    ("wg", "wireguard-tools"),
    ("wireguard-go", "wireguard-go"),
    ("busybox", "busybox"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("ethtool", "ethtool"),
    ("tcpdump", "tcpdump"),
    ("tshark", "tshark"),
    ("memcached", "memcached"),
    ("xz", "xz-utils"),
    ("go", "golang-go"),
    ("java", "default-jre-headless"),
    ("javac", "default-jdk-headless"),
    ("node", "nodejs"),
    ("gdb", "gdb"),
    ("strace", "strace"),
    ("libjemalloc.so.2", "libjemalloc2"),
    ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    ("libmimalloc.so.2.0", "libmimalloc2.0"),
];

/// The developer has interrupted the tests.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How many of the slowest tests are listed at the end.
const SLOWEST: usize = 20;

/// What the command line asks for.
struct Options<'a> {
    /// Long soaks, many seeds, large programs (`TOMBOLO_FULL=1`).
    full: bool,
    /// What would be left out is a failure (`TOMBOLO_REQUIRE_ALL=1`).
    require_all: bool,
    /// Only tests whose names contain one of these; none: all tests.
    names: Vec<&'a str>,
}

impl<'a> Options<'a> {
    fn parse(arguments: &'a [String], require_all: bool) -> Result<Self, String> {
        let mut options = Self { full: tombolo_random::is_full(), require_all, names: Vec::new() };
        for argument in arguments {
            match argument.as_str() {
                "--full" => options.full = true,
                flag if flag.starts_with('-') => {
                    return Err(format!(
                        "cargo xtask test knows no {flag}: there are --full and names of tests"
                    ));
                }
                "" => return Err("cargo xtask test: an empty name would be that of every test".to_owned()),
                name => options.names.push(name),
            }
        }
        Ok(options)
    }

    /// As `.config/nextest.toml` calls it.
    fn profile(&self) -> &'static str {
        // Soaks are given their time.
        if self.full || std::env::var_os("TOMBOLO_SECONDS").is_some() { "full" } else { "default" }
    }

    /// Every interleaving of the two ends of a ring; of those with more than four preemptions, which take minutes, only at full size.
    fn loom(&self, target: &Path) -> Command {
        let mut command = cargo();
        command.args(["test", "--package", "tombolo-host", "--lib", "loom_tests"]);
        command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target.join("loom"));
        if !self.full {
            command.env("LOOM_MAX_PREEMPTIONS", "4");
        }
        command
    }

    /// Tells tests what is wanted of them.
    fn environment(&self, command: &mut Command) {
        for (variable, is_wanted) in [("TOMBOLO_FULL", self.full), ("TOMBOLO_REQUIRE_ALL", self.require_all)]
        {
            if is_wanted {
                command.env(variable, "1");
            }
        }
    }
}

/// Tests that run the product as users build it.
const OF_THE_PRODUCT: &str = "binary(end_to_end) & test(/^(demonstration|guide|packages)::/)";

/// Runs everything, or the tests whose names contain one of `arguments`. With `require_all`, what would be left out is
/// a failure.
pub fn main(arguments: &[String], require_all: bool) -> Result<(), String> {
    let options = Options::parse(arguments, require_all)?;
    if require_all && tombolo_random::is_on("TOMBOLO_BLESS") {
        return Err("TOMBOLO_BLESS=1 would have every sample agree with the code".to_owned());
    }
    let mut stages = Stages::default();
    stages.run("Debian packages", || {
        let consequence = "some tests will be left out";
        packages::install_missing(&NEEDED, consequence).or_else(|error| {
            if require_all {
                return Err(error);
            }
            eprintln!("{error}: {consequence}");
            Ok(())
        })
    })?;
    leftovers::remove();
    let nextest = stages.run("cargo-nextest", || tools::find(&tools::NEXTEST))?;
    let target = target_directory()?;
    stages.run("a kernel for virtual machines", || {
        if let Err(reason) = guest::prepare(&target.join("guest")) {
            eprintln!("there are no virtual machines, so some tests will be left out: {reason}");
        }
        Ok(())
    })?;
    let runner = Runner { options: &options, nextest: &nextest, target: &target };
    let build_tests = || run(runner.command("run").arg("--no-run"));
    let product = if options.names.is_empty() {
        // Side by side: the product's last step keeps one processor busy for minutes.
        Some(stages.run("build of tests and product", || {
            std::thread::scope(|scope| {
                let product = scope.spawn(|| bench::build("tombolo"));
                build_tests()?;
                product.join().unwrap_or_else(|_| Err("building the product has panicked".into()))
            })
        })?)
    } else {
        stages.run("build of the tests", build_tests)?;
        for name in &options.names {
            if !runner.has(&[name], "all()")? {
                return Err(format!("no test's name contains {name}"));
            }
        }
        match runner.has(&options.names, OF_THE_PRODUCT)? {
            true => Some(stages.run("build of the product", || bench::build("tombolo"))?),
            false => None,
        }
    };
    let package = match &product {
        Some(product) if installed("dpkg-shlibdeps") => {
            Some(stages.run("Debian package of the product", || deb::build(product))?)
        }
        _ => None,
    };
    for notes in [runner.left_out(), runner.seeds()] {
        let _ = fs::remove_file(notes);
    }

    let mut failures = Vec::new();
    // The runner ends its tests; what they have come to is said below.
    stops::stop_on_signals(&INTERRUPTED);
    let tests =
        stages.run("tests", || Ok(runner.run(product.as_deref(), package.as_deref(), &mut failures)))?;
    let mut tally = tests.tally();
    let is_interrupted = || INTERRUPTED.load(Ordering::Relaxed);
    if options.names.is_empty() && !is_interrupted() {
        tally += stages.run("interleavings of a ring's two ends (loom)", || {
            results::run_libtest("loom", &mut options.loom(&target), &mut failures)
        })?;
    }
    if options.names.is_empty() && !is_interrupted() {
        // Examples in the documentation have no names that one would give.
        tally += stages.run("examples in the documentation", || {
            let mut command = cargo();
            command.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
            options.environment(&mut command);
            results::run_libtest("examples in the documentation", &mut command, &mut failures)
        })?;
    }
    if is_interrupted() {
        failures.push("interrupted: not all tests were run".to_owned());
    }
    print!("{}", tests.slowest(SLOWEST));
    print!("{stages}");
    say_seeds(&runner.seeds());
    let left_out = match say_left_out(&runner.left_out()) {
        0 => String::new(),
        count => format!(", {count} of those that passed left out, or a part of them"),
    };
    let Tally { passed, failed } = tally;
    println!("{passed} passed, {failed} failed{left_out}, in {}", stages::minutes(stages.total()));
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.join("\n")),
    }
}

/// Runs cargo-nextest.
struct Runner<'a> {
    options: &'a Options<'a>,
    /// The program.
    nextest: &'a Path,
    /// Cargo's target directory.
    target: &'a Path,
}

impl Runner<'_> {
    /// A task of cargo-nextest on the whole workspace.
    fn command(&self, task: &str) -> Command {
        let mut command = Command::new(self.nextest);
        // As if Cargo had called it.
        command.env("CARGO", cargo().get_program()).current_dir(root());
        // What is ignored would be neither run nor told.
        command.args(["nextest", task, "--workspace", "--run-ignored", "all"]);
        self.options.environment(&mut command);
        command
    }

    /// A file to which tests add what they leave out.
    fn left_out(&self) -> PathBuf {
        self.target.join("left-out")
    }

    /// A file to which tests add how many of their seeds they have run, where those were not all.
    fn seeds(&self) -> PathBuf {
        self.target.join("seeds-run")
    }

    /// Whether there is a test of this filter whose name contains one of these.
    fn has(&self, names: &[&str], filter: &str) -> Result<bool, String> {
        let mut command = self.command("list");
        command.args(["--message-format", "json", "-E", filter]).args(names);
        let output =
            command.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo-nextest: {error}"))?;
        if !output.status.success() {
            return Err(format!("cargo nextest list: {}", output.status));
        }
        let listed: serde_json::Value =
            serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo nextest list: {error}"))?;
        let suites = listed["rust-suites"].as_object().into_iter().flatten().map(|(_, suite)| suite);
        let mut tests = suites.filter_map(|suite| suite["testcases"].as_object()).flatten();
        Ok(tests.any(|(_, test)| test["filter-match"]["status"] == "matches"))
    }

    /// Runs the tests that are asked for. A test that fails is among the results, and a failure of the run.
    fn run(&self, product: Option<&Path>, package: Option<&Path>, failures: &mut Vec<String>) -> Results {
        let profile = self.options.profile();
        // There, wherever Cargo builds.
        let report = root().join("target/nextest").join(profile).join("junit.xml");
        let _ = fs::remove_file(&report);
        let mut command = self.command("run");
        command.env("TOMBOLO_LEFT_OUT", self.left_out()).env("TOMBOLO_SEEDS_RUN", self.seeds());
        // Tests of other packages than its own run it.
        command.env("TOMBOLO_BINARY", self.target.join("debug/tombolo"));
        if let Some(product) = product {
            command.env("TOMBOLO_RELEASE_BINARY", product);
        }
        if let Some(package) = package {
            command.env("TOMBOLO_PACKAGE", package);
        }
        // Many tests wait most of the time; `.config/nextest.toml` says which do not.
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        command.args(["--test-threads", &(3 * processors).to_string(), "--profile", profile]);
        command.args(&self.options.names);
        failures.extend(run_to_its_end(&mut command).err());
        Results::read(&report).unwrap_or_else(|error| {
            failures.push(error);
            Results::default()
        })
    }
}

/// As [`run`]; an interrupt has it end its tests, for which it has some time.
fn run_to_its_end(command: &mut Command) -> Result<(), String> {
    const TO_END: Duration = Duration::from_secs(20);
    let mut child = command.spawn().map_err(|error| format!("cargo-nextest: {error}"))?;
    let mut interrupted: Option<Instant> = None;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| format!("cargo-nextest: {error}"))? {
            break status;
        }
        // A terminal has told it, too; `kill` has not.
        let since =
            INTERRUPTED.load(Ordering::Relaxed).then(|| *interrupted.get_or_insert_with(Instant::now));
        if since.is_some_and(|since| since.elapsed() > TO_END) {
            if let Some(runner) = Pid::from_raw(child.id().cast_signed()) {
                let _ = kill_process(runner, Signal::TERM);
            }
            interrupted = Some(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    if status.success() { Ok(()) } else { Err(format!("cargo-nextest: {status}")) }
}

/// Where Cargo builds.
fn target_directory() -> Result<PathBuf, String> {
    let output =
        cargo().args(["metadata", "--format-version", "1", "--no-deps"]).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo metadata: {error}"))?;
    let found: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    found["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .ok_or_else(|| "cargo metadata names no target".into())
}

/// Prints which tests had no time for all of their seeds.
fn say_seeds(file: &Path) {
    let text = fs::read_to_string(file).unwrap_or_default();
    let tests: Vec<String> = text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(test, count)| format!("{test} ({count})"))
        .collect();
    if !tests.is_empty() {
        println!("not all seeds were run, for want of time: {}", tests.join(", "));
    }
}

/// Prints which tests were left out, by reason. Returns how many.
fn say_left_out(file: &Path) -> usize {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (test, reason) in text.lines().filter_map(|line| line.split_once('\t')) {
        reasons.entry(reason).or_default().push(test);
    }
    for (reason, tests) in &reasons {
        println!("LEFT OUT, {}: {}", reason, tests.join(", "));
    }
    reasons.values().flatten().collect::<BTreeSet<_>>().len()
}
