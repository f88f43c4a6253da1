//! The far store under real programs: memory that is borrowed as it is needed, two copies, lenders that are killed,
//! stopped, added, drained and restarted while a program checks every word.

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tombolo_random::Random;

use crate::common::{Lender, Link, PATIENCE, Program, Running, Scratch, compiled, full, needs, tombolo};

/// Suspicion comes after 1.5 s; a busy machine gets more than the half second that is promised beyond.
const PAUSE_MAX_MS: u64 = 6_000;

/// A program that checks its memory until it is told to stop.
struct Verifying {
    run: Running,
    stop: String,
    _scratch: Scratch,
}

impl Verifying {
    fn start(mib: u32, local: &str, lenders: &[&Lender], options: &[&str]) -> Self {
        let scratch = Scratch::new("verifying");
        let stop = scratch.file("stop");
        let program = Program::new(&[compiled("verifying", &[]), mib.to_string(), stop.clone()]);
        let run = program.outage("6s").options(options).start_on(lenders, local);
        run.output_with("filled", PATIENCE);
        Self { run, stop, _scratch: scratch }
    }

    /// What `tombolo ps` says of it.
    fn status(&self) -> Value {
        let found = tombolo(&["ps", "--json"]);
        let all: Value = serde_json::from_slice(&found.stdout).expect("ps prints JSON");
        let supervisor = u64::from(self.run.pid());
        let programs = all["programs"].as_array().cloned().unwrap_or_default();
        programs.into_iter().find(|program| program["supervisor_pid"] == supervisor).unwrap_or_else(|| {
            panic!("{supervisor} is not there: {} {}", self.run.output(), self.run.errors())
        })
    }

    fn wait_until(&self, what: &str, limit: Duration, is_so: impl Fn(&Value) -> bool) -> Value {
        let since = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(since.elapsed() < limit, "not yet {what}: {status:#}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn lenders(&self, words: &[&str]) {
        let pid = self.run.pid().to_string();
        let words: Vec<&str> =
            ["lenders", words[0], &pid].into_iter().chain(words[1..].iter().copied()).collect();
        let done = tombolo(&words);
        assert_eq!(done.code(), 0, "{words:?}: {}", done.stderr);
    }

    /// Every word was right; the report, and the longest pause.
    fn end(self) -> Value {
        fs::write(&self.stop, "").unwrap();
        let outcome = self.run.wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{} {}", outcome.text(), outcome.stderr);
        let text = outcome.text();
        let pause_ms: u64 = text
            .split("longest pause ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("no pause in {text}"));
        let _ = writeln!(std::io::stderr(), "    longest pause {pause_ms} ms");
        assert!(pause_ms < PAUSE_MAX_MS, "a pause of {pause_ms} ms");
        outcome.report().clone()
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Lender `index` of a status.
fn lender(status: &Value, index: usize) -> &Value {
    &status["far"]["lenders"][index]
}

#[test]
fn what_is_not_needed_is_not_borrowed() {
    needs!("true");
    let lender = Lender::start(Link::Shm, "4G");
    let outcome = Program::new(&["true"]).run_on(&[&lender], "64M");
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert_eq!(outcome.report()["borrowed_bytes"], 0, "{:#}", outcome.report());
}

/// More than any default would have borrowed, on little local memory.
#[test]
fn far_memory_grows_with_what_is_stored() {
    needs!("cc");
    for link in [Link::Shm, Link::Udp] {
        let lender = Lender::start(link, "2G");
        let mib = if full() { 1536 } else { 300 };
        let verifying = Verifying::start(mib, "16M", &[&lender], &[]);
        let status = verifying.status();
        let (used, borrowed) =
            (number(&status["far"]["used_bytes"]), number(&status["far"]["borrowed_bytes"]));
        assert!(used > u64::from(mib - 20) << 20 && borrowed >= used, "{status:#}");
        assert!(borrowed < 2 * used + (64 << 20), "much more is borrowed than is used: {status:#}");
        verifying.end();
        lender.wait_until_free(PATIENCE);
    }
}

/// Two lenders, two copies; one of them is killed, and comes back.
fn a_lender_is_killed(link: Link, options: &[&str]) {
    let mut lenders = [(); 2].map(|()| Lender::start(link, "512M"));
    let options: Vec<&str> = ["--copies", "2"].into_iter().chain(options.iter().copied()).collect();
    let verifying = Verifying::start(64, "16M", &lenders.each_ref(), &options);
    let status = verifying.wait_until("two copies", PATIENCE, |status| status["far"]["one_copy_pages"] == 0);
    assert!(number(&status["far"]["used_bytes"]) > 32 << 20, "{status:#}");
    lenders[0].node().signal(Signal::KILL);
    verifying
        .wait_until("the lender is missed", PATIENCE, |status| number(&status["far"]["one_copy_pages"]) > 0);
    lenders[0].start_again("512M");
    // The next life is a lender of its own, and gets the missing copies.
    verifying.wait_until("two copies again", PATIENCE, |status| {
        status["far"]["one_copy_pages"] == 0 && status["far"]["lenders"].as_array().map(Vec::len) == Some(3)
    });
    lenders[1].node().signal(Signal::KILL);
    std::thread::sleep(Duration::from_secs(1));
    let report = verifying.end();
    assert!(number(&report["far"]["copies_restored"]) > 1000, "{report:#}");
    assert_eq!(report["far"]["corrupt_pages"], 0);
    assert_eq!(report["counters"]["lost_pages"], 0);
}

#[test]
fn a_killed_lender_of_two_loses_nothing_shm() {
    needs!("cc");
    a_lender_is_killed(Link::Shm, &["--give-up-dead"]);
}

#[test]
fn a_killed_lender_of_two_loses_nothing_udp() {
    needs!("cc");
    a_lender_is_killed(Link::Udp, &[]);
}

/// With one copy, what a dead lender has lent is mapped here still: it is read, and copied to the other lender.
#[test]
fn the_windows_of_a_dead_lender_are_evacuated() {
    needs!("cc");
    let mut lenders = [(); 2].map(|()| Lender::start(Link::Shm, "512M"));
    let verifying = Verifying::start(64, "16M", &lenders.each_ref(), &[]);
    lenders[0].node().signal(Signal::KILL);
    verifying.wait_until("nothing is left there", PATIENCE, |status| lender(status, 0)["state"] == "gone");
    let report = verifying.end();
    assert!(number(&report["far"]["copies_moved"]) > 1000, "{report:#}");
}

#[test]
fn lenders_are_added_and_drained_while_a_program_runs() {
    needs!("cc");
    for link in [Link::Shm, Link::Udp] {
        let (first, second) = (Lender::start(link, "512M"), Lender::start(Link::Udp, "512M"));
        let verifying = Verifying::start(64, "16M", &[&first], &[]);
        verifying.lenders(&["add", second.address()]);
        verifying.lenders(&["drain", first.address()]);
        verifying.wait_until("drained", PATIENCE, |status| lender(status, 0)["state"] == "gone");
        first.wait_until_free(PATIENCE);
        let twice = tombolo(&["lenders", "add", &verifying.run.pid().to_string(), second.address()]);
        assert!(twice.code() == 125 && twice.stderr.contains("already"), "{}", twice.stderr);
        let report = verifying.end();
        assert!(number(&report["far"]["copies_moved"]) > 1000, "{report:#}");
        assert_eq!(report["counters"]["lost_pages"], 0);
    }
}

/// SIGTERM of a lender moves its pages to the other one, and then it ends: nothing is lost, also with one copy.
#[test]
fn a_lender_that_ends_is_left_in_time() {
    needs!("cc");
    let mut lenders = [(); 2].map(|()| Lender::start(Link::Udp, "512M"));
    let verifying = Verifying::start(64, "16M", &lenders.each_ref(), &[]);
    lenders[0].node().signal(Signal::TERM);
    verifying.wait_until("drained", PATIENCE, |status| lender(status, 0)["state"] == "gone");
    let report = verifying.end();
    assert_eq!(report["counters"]["lost_pages"], 0);
    let [ended, _] = lenders;
    assert_eq!(ended.wait().code(), 0);
}

#[test]
fn programs_that_are_not_there_are_said() {
    let found = tombolo(&["lenders", "ls", "no-such-program-anywhere"]);
    assert_eq!(found.code(), 125);
    assert!(found.stderr.contains("no program"), "{}", found.stderr);
}

/// Three lenders of which one at a time is killed, stopped, drained or comes back, under verifying programs with two
/// copies. `TOMBOLO_SECONDS` says for how long; `TOMBOLO_SEED` repeats the order of events.
#[test]
fn nothing_is_lost_while_lenders_come_and_go() {
    needs!("cc");
    let seconds = std::env::var("TOMBOLO_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    let programs = if seconds > 60 { 4 } else { 2 };
    let mut random = Random::for_test(1);
    let mut lenders = [(); 3].map(|()| Lender::start(Link::Udp, "1G"));
    let verifying: Vec<Verifying> =
        (0..programs).map(|_| Verifying::start(40, "8M", &lenders.each_ref(), &["--copies", "2"])).collect();
    let since = Instant::now();
    let mut events = [0; 4];
    while since.elapsed() < Duration::from_secs(seconds) {
        // One at a time: two copies bear one loss.
        for program in &verifying {
            program.wait_until("two copies", PATIENCE, |status| status["far"]["one_copy_pages"] == 0);
        }
        let index = random.index(lenders.len());
        let kind = random.index(4);
        events[kind] += 1;
        let node = lenders[index].address().to_owned();
        match kind {
            0 => {
                lenders[index].node().signal(Signal::KILL);
                std::thread::sleep(Duration::from_millis(random.range(100, 2_500)));
                lenders[index].start_again("1G");
            }
            1 => {
                let stopped =
                    if seconds > 60 { random.range(1_000, 20_000) } else { random.range(1_000, 8_000) };
                lenders[index].node().signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(stopped));
                lenders[index].node().signal(Signal::CONT);
            }
            2 => {
                // Ends in order, and is there again.
                lenders[index].node().signal(Signal::TERM);
                std::thread::sleep(Duration::from_millis(random.range(2_000, 6_000)));
                lenders[index].node().signal(Signal::KILL);
                lenders[index].start_again("1G");
            }
            _ => {
                for program in &verifying {
                    let pid = program.run.pid().to_string();
                    // It may have been drained before.
                    let _ = tombolo(&["lenders", "drain", &pid, &node]);
                }
                std::thread::sleep(Duration::from_millis(random.range(500, 3_000)));
                for program in &verifying {
                    let pid = program.run.pid().to_string();
                    let _ = tombolo(&["lenders", "add", &pid, &node]);
                }
            }
        }
        // Every program has all three again.
        for program in &verifying {
            let pid = program.run.pid().to_string();
            program.wait_until("three lenders", PATIENCE, |status| {
                let lenders = status["far"]["lenders"].as_array().cloned().unwrap_or_default();
                let active = lenders.iter().filter(|lender| lender["state"] == "active").count();
                if active < 3 {
                    let _ = tombolo(&["lenders", "add", &pid, &node]);
                }
                active == 3
            });
        }
    }
    let _ = writeln!(std::io::stderr(), "    killed, stopped, ended, drained: {events:?}");
    for program in verifying {
        let report = program.end();
        assert_eq!(report["counters"]["lost_pages"], 0, "{report:#}");
        assert_eq!(report["far"]["corrupt_pages"], 0, "{report:#}");
    }
}
