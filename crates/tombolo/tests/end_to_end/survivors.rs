//! Programs nobody here wrote, with two copies of every far page, while a lender is added and lenders are killed and come
//! back (and are drained, where a program runs for long enough): the same output as without Tombolo, and no long pause.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Lender, Link, Outcome, PATIENCE, Program, Scratch, needs, path_of, sized, tombolo};
use crate::store::{PAUSE_MAX_MS, number, status_of};
use crate::{databases, programs, runtimes};

const LEND: &str = "1G";
/// Far memory in use before anything happens.
const USED_LEAST: u64 = 4 << 20;

/// What happens to lenders, one thing after the other.
const KILLED: usize = 0;
const ADDED: usize = 1;
const DRAINED: usize = 2;

/// Disturbs the lenders of a run until it is stopped.
struct Disturber {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<[u32; 3]>,
}

impl Disturber {
    /// The run has the first two of the lenders.
    fn start(run: u32, lenders: [Lender; 3]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut events = [0; 3];
            // Whatever is waited for is not there when the run is over.
            let _ = disturb(run, lenders, &stopped, &mut events);
            events
        });
        Self { stop, thread }
    }

    /// How often each kind of thing has happened.
    fn end(self) -> [u32; 3] {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the lenders are disturbed as they should be")
    }
}

/// Until the run is like that. `None`: it is over.
fn wait_until(run: u32, stop: &AtomicBool, what: &str, is_so: impl Fn(&Value) -> bool) -> Option<()> {
    let since = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match status_of(run) {
            Some(status) if is_so(&status) => return Some(()),
            Some(status) => assert!(since.elapsed() < PATIENCE, "not yet {what}: {status:#}"),
            None => {}
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

fn lenders_of(status: &Value) -> impl Iterator<Item = &Value> {
    status["far"]["lenders"].as_array().into_iter().flatten()
}

/// How many lives of lenders the run has seen.
pub fn count_lives(status: &Value) -> u64 {
    number(&status["far"]["lender_lives"])
}

fn disturb(run: u32, mut lenders: [Lender; 3], stop: &AtomicBool, events: &mut [u32; 3]) -> Option<()> {
    let active = |status: &Value| lenders_of(status).filter(|lender| lender["state"] == "active").count();
    let all_twice = |lenders: usize| {
        move |status: &Value| {
            let far = &status["far"];
            number(&far["used_bytes"]) >= USED_LEAST
                && far["one_copy_pages"] == 0
                && far["copies_waiting"] == 0
                && active(status) >= lenders
        }
    };
    let pid = run.to_string();
    let ask = |what: &str, lender: &Lender| tombolo(&["lenders", what, &pid, lender.address()]).code() == 0;
    wait_until(run, stop, "two copies of all", all_twice(2))?;
    events[ADDED] += u32::from(ask("add", &lenders[2]));
    loop {
        for killed in [0, 2] {
            wait_until(run, stop, "two copies of all", all_twice(3))?;
            let lives = count_lives(&status_of(run)?);
            lenders[killed].node().signal(Signal::KILL);
            events[KILLED] += 1;
            std::thread::sleep(Duration::from_millis(300));
            lenders[killed].start_again(LEND);
            // Until then, its loss may not have been noticed, and another one must not be killed.
            wait_until(run, stop, "it is back", |status| count_lives(status) > lives)?;
        }
        wait_until(run, stop, "two copies of all", all_twice(3))?;
        if ask("drain", &lenders[1]) {
            wait_until(run, stop, "a lender is left", |status| {
                let is_draining = |lender: &Value| lender["state"] == "draining";
                active(status) == 2 && !lenders_of(status).any(is_draining)
            })?;
            events[DRAINED] += 1;
            while !ask("add", &lenders[1]) {
                wait_until(run, stop, "it may be added", |_| true)?;
            }
            events[ADDED] += 1;
        }
    }
}

const UDP: usize = 0;
const SHM: usize = 1;
const WAYS: [(Link, &[&str]); 2] =
    [(Link::Udp, &["--copies", "2"]), (Link::Shm, &["--copies", "2", "--give-up-dead"])];

fn three(link: Link) -> ([Lender; 3], String) {
    let lenders = [(); 3].map(|()| Lender::start(link, LEND));
    let from = format!("{},{}", lenders[0].address(), lenders[1].address());
    (lenders, from)
}

/// How often a program is run that is over before the first lender is killed: a quick machine is through with it in
/// less than a second.
const RUNS_MAX: usize = 10;

/// Runs it, and once more where it was over before a lender was killed.
fn until_one_is_killed(what: &str, mut run: impl FnMut() -> (Outcome, [u32; 3])) {
    for _ in 0..RUNS_MAX {
        let (outcome, events) = run();
        check(what, &outcome, events);
        if events[KILLED] > 0 {
            return;
        }
    }
    panic!("{what} was over before anything happened, {RUNS_MAX} times");
}

fn check(what: &str, outcome: &Outcome, events: [u32; 3]) {
    let report = outcome.report();
    let pause_ms = number(&report["pauses"]["longest_ns"]) / 1_000_000;
    let [killed, added, drained] = events;
    let _ = writeln!(
        std::io::stderr(),
        "    {what}: {killed} killed, {added} added, {drained} drained; longest pause {pause_ms} ms, {} copies \
         restored, {} moved",
        report["far"]["copies_restored"],
        report["far"]["copies_moved"],
    );
    assert_eq!(report["counters"]["lost_pages"], 0, "{report:#}");
    assert_eq!(report["far"]["corrupt_pages"], 0, "{report:#}");
    assert!(pause_ms < PAUSE_MAX_MS, "a pause of {pause_ms} ms: {report:#}");
}

/// Runs it on lenders that come and go, and plainly unless its output differs each time; one of the ways, and in a full run all. Sort is
/// run in all of them always.
fn survives(what: &str, program: &Program, local: &str, is_compared: bool, way: usize) {
    for (link, options) in ways(way) {
        survives_on(what, program, local, is_compared, (link, options));
    }
}

fn ways(usual: usize) -> impl Iterator<Item = (Link, &'static [&'static str])> {
    WAYS.into_iter()
        .enumerate()
        .filter(move |(way, _)| *way == usual || tombolo_random::is_full())
        .map(|(_, way)| way)
}

fn survives_on(
    what: &str,
    program: &Program,
    local: &str,
    is_compared: bool,
    (link, options): (Link, &[&str]),
) {
    let plain = is_compared.then(|| program.plain());
    until_one_is_killed(what, || {
        let (lenders, from) = three(link);
        let run = program.clone().outage("6s").options(options).start_from(&from, local);
        let disturber = Disturber::start(run.pid(), lenders);
        let outcome = run.wait(Duration::from_secs(sized(300, 1800)));
        let events = disturber.end();
        assert_eq!(outcome.code(), 0, "{what}: {}{}", outcome.text(), outcome.stderr);
        if let Some(plain) = &plain {
            assert!(plain.stdout == outcome.stdout, "{what}: the output differs from a plain run");
        }
        (outcome, events)
    });
}

#[test]
fn gnu_sort_survives_its_lenders() {
    needs!("sort");
    for (link, options) in WAYS {
        let scratch = Scratch::new("sort");
        let input = scratch.file("input");
        // Each line is a fault or two, which over shared memory take a few microseconds: it must last long enough for
        // something to happen.
        let (count, local) = if matches!(link, Link::Udp) { (55_000, "6M") } else { (170_000, "9M") };
        std::fs::write(&input, programs::lines(sized(count, 300_000))).unwrap();
        let sort = Program::new(&[&path_of("sort"), "--buffer-size=400M", "--parallel=2", &input]);
        survives_on("sort", &sort, sized(local, "16M"), true, (link, options));
    }
}

#[test]
fn sqlite_survives_its_lenders() {
    needs!("sqlite3");
    let script = databases::script(sized(25_000, 200_000));
    let sqlite = Program::new(&[&path_of("sqlite3"), "-batch", ":memory:"]).input(script);
    survives("sqlite", &sqlite, "8M", true, UDP);
}

#[test]
fn stress_ng_survives_its_lenders() {
    needs!("stress-ng");
    let scratch = Scratch::new("stress");
    // As much as it takes for several methods to come to their verification.
    let words = programs::stress_ng(sized("24M", "48M"), sized("12000", "200000"), &scratch);
    survives("stress-ng", &Program::new(&words), sized("8M", "16M"), false, SHM);
}

#[test]
fn java_survives_its_lenders() {
    needs!("java", "javac");
    let scratch = Scratch::new("java");
    let java = Program::new(&runtimes::java_words("-XX:+UseG1GC", &scratch));
    survives("java", &java, "32M", true, SHM);
}

#[test]
fn redis_survives_its_lenders() {
    needs!("redis-server");
    for (link, options) in ways(UDP) {
        until_one_is_killed("redis", || {
            let (lenders, from) = three(link);
            let mut disturber = None;
            let outcome = databases::fill_and_dump(&from, options, |run| {
                disturber = Some(Disturber::start(run, lenders));
            });
            (outcome, disturber.expect("the server has started").end())
        });
    }
}
