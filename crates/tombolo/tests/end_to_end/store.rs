//! The far store under real programs: memory that is borrowed as it is needed, two copies, lenders that are killed,
//! stopped, added, drained and restarted while a program checks every word.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tombolo_random::Random;

use crate::common::{Lender, Link, PATIENCE, Program, Running, Scratch, compiled, needs, sized, tombolo};
use crate::paths::relay::Relay;
use crate::survivors::count_lives;

/// Suspicion comes after 1.5 s; a busy machine gets more than the half second that is promised beyond.
pub const PAUSE_MAX_MS: u64 = 6_000;

/// A program that checks its memory until it is told to stop.
struct Verifying {
    run: Running,
    stop: String,
    _scratch: Scratch,
}

impl Verifying {
    fn start(mib: u32, local: &str, lenders: &[&Lender], options: &[&str]) -> Self {
        let from: Vec<&str> = lenders.iter().map(|lender| lender.address()).collect();
        Self::start_from(mib, local, &from.join(","), options)
    }

    fn start_from(mib: u32, local: &str, from: &str, options: &[&str]) -> Self {
        let scratch = Scratch::new("verifying");
        let stop = scratch.file("stop");
        let program = Program::new(&[compiled("verifying", &[]), mib.to_string(), stop.clone()]);
        let run = program.outage("6s").options(options).start_from(from, local);
        run.output_with("filled", PATIENCE);
        Self { run, stop, _scratch: scratch }
    }

    /// What `tombolo ps` says of it.
    fn status(&self) -> Value {
        let pid = self.run.pid();
        status_of(pid)
            .unwrap_or_else(|| panic!("{pid} is not there: {} {}", self.run.output(), self.run.errors()))
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

/// What `tombolo ps` says of a run, if it is there.
pub fn status_of(run_pid: u32) -> Option<Value> {
    let found = tombolo(&["ps", "programs", "--json"]);
    let all: Value = serde_json::from_slice(&found.stdout).expect("ps prints JSON");
    let programs = all["programs"].as_array().cloned().unwrap_or_default();
    programs.into_iter().find(|program| program["run_pid"] == u64::from(run_pid))
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// How the last life of a lender is, by a status.
fn state<'a>(status: &'a Value, of: &Lender) -> &'a str {
    let lives = status["far"]["lenders"].as_array().expect("a list");
    let last = lives.iter().rfind(|life| life["address"] == of.address());
    last.and_then(|life| life["state"].as_str()).unwrap_or("not there")
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
        let mib = sized(300, 1024);
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
        status["far"]["one_copy_pages"] == 0 && count_lives(status) == 3
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
    verifying.wait_until("nothing is left there", PATIENCE, |status| state(status, &lenders[0]) == "gone");
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
        // Both have that name.
        let either = tombolo(&["lenders", "drain", &verifying.run.pid().to_string(), "lender"]);
        assert!(either.code() == 125 && either.stderr.contains("several lenders"), "{}", either.stderr);
        verifying.lenders(&["drain", first.address()]);
        verifying.wait_until("drained", PATIENCE, |status| state(status, &first) == "gone");
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
    verifying.wait_until("drained", PATIENCE, |status| state(status, &lenders[0]) == "gone");
    let said = format!("lender {} ends in ", lenders[0].address());
    verifying.run.errors_with(&said, PATIENCE);
    assert!(verifying.run.errors().contains("at the latest: what it has is moved to others"));
    // Nobody is there for what the other one has.
    lenders[1].node().signal(Signal::TERM);
    let said = format!("lender {} ends in ", lenders[1].address());
    verifying.run.errors_with(&said, PATIENCE);
    assert!(verifying.run.errors().contains("s at the latest, and no other lender is there"));
    let report = verifying.end();
    assert_eq!(report["counters"]["lost_pages"], 0);
    for lender in lenders {
        assert_eq!(lender.wait().code(), 0);
    }
}

/// SIGTERM of a lender, and the other one is too small for what it has: that is said, and the next one that comes takes it.
#[test]
fn a_lender_that_ends_while_the_other_is_full_is_told_of() {
    needs!("cc");
    let (mut first, small) = (Lender::start(Link::Udp, "256M"), Lender::start(Link::Udp, "4M"));
    let verifying = Verifying::start(32, "8M", &[&first, &small], &[]);
    first.node().signal(Signal::TERM);
    let said = format!("are to be moved away from lender {}: add one", first.address());
    verifying.run.errors_with(&said, PATIENCE);
    let third = Lender::start(Link::Udp, "256M");
    verifying.lenders(&["add", third.address()]);
    assert_eq!(first.wait().code(), 0);
    let report = verifying.end();
    assert_eq!(report["counters"]["lost_pages"], 0, "{report:#}");
}

/// Also where there are as many lenders as copies, and one of them is full.
#[test]
fn fewer_copies_than_promised_are_told_of() {
    needs!("cc");
    let (large, mut small) = (Lender::start(Link::Shm, "256M"), Lender::start(Link::Shm, "4M"));
    let verifying = Verifying::start(32, "8M", &[&large], &["--copies", "2"]);
    let said = "there are to be 2 copies of each far page, and 1 lender(s) for them";
    verifying.run.errors_with(said, PATIENCE);
    verifying.lenders(&["add", small.address()]);
    verifying.run.errors_with("MiB that are to have a second copy: add one", PATIENCE);
    small.node().signal(Signal::KILL);
    let since = Instant::now();
    while verifying.run.errors().matches(said).count() < 2 {
        assert!(since.elapsed() < PATIENCE, "{}", verifying.run.errors());
        std::thread::sleep(Duration::from_millis(10));
    }
    verifying.end();
}

/// Nothing of a lender's lives is left behind: no links, no descriptors.
#[test]
fn a_lender_that_is_killed_again_and_again_fills_nothing() {
    needs!("cc");
    let (kept, mut killed) = (Lender::start(Link::Udp, "256M"), Lender::start(Link::Shm, "256M"));
    let verifying = Verifying::start(24, "8M", &[&kept, &killed], &[]);
    let supervisor = verifying.run.supervisor_pid();
    let descriptors = || fs::read_dir(format!("/proc/{supervisor}/fd")).unwrap().count();
    let mut after_each = Vec::new();
    for round in 0..sized(6, 50) {
        killed.node().signal(Signal::KILL);
        verifying.wait_until("gone", PATIENCE, |status| state(status, &killed) == "gone");
        killed.start_again("256M");
        verifying.wait_until("back", PATIENCE, |status| {
            state(status, &killed) == "active" && count_lives(status) == round + 3
        });
        after_each.push(descriptors());
    }
    let (first, last) = (after_each[0], after_each[after_each.len() - 1]);
    // Some are open for a moment only.
    assert!(last < first + 4, "{after_each:?}");
    let status = verifying.status();
    assert_eq!(status["far"]["lenders"].as_array().map(Vec::len), Some(3), "{status:#}");
    verifying.end();
}

/// A drain that is refused, since there is no other lender, leaves things as they were: the lender is awaited when it dies,
/// though an earlier life of it was drained. One that is away can be told to stay away.
#[test]
fn a_refused_drain_changes_nothing_and_an_absent_lender_can_be_given_up() {
    needs!("cc");
    let (mut first, second) = (Lender::start(Link::Udp, "512M"), Lender::start(Link::Udp, "512M"));
    let verifying = Verifying::start(32, "8M", &[&first, &second], &["--copies", "2"]);
    verifying.lenders(&["drain", first.address()]);
    verifying.wait_until("drained", PATIENCE, |status| state(status, &first) == "gone");
    verifying.lenders(&["add", first.address()]);
    verifying.wait_until("copied", PATIENCE, |status| {
        state(status, &first) == "active" && status["far"]["one_copy_pages"] == 0
    });
    verifying.lenders(&["drain", second.address()]);
    verifying.wait_until("drained", PATIENCE, |status| state(status, &second) == "gone");
    // The only one, of which an earlier life was drained.
    let refused = tombolo(&["lenders", "drain", &verifying.run.pid().to_string(), first.address()]);
    assert!(refused.code() != 0 && refused.stderr.contains("add one first"), "{}", refused.stderr);
    verifying.lenders(&["add", second.address()]);
    verifying.wait_until("copied", PATIENCE, |status| {
        state(status, &second) == "active" && status["far"]["one_copy_pages"] == 0
    });
    first.node().signal(Signal::KILL);
    first.start_again("512M");
    verifying.wait_until("dialed again", PATIENCE, |status| count_lives(status) == 5);
    verifying.wait_until("copied", PATIENCE, |status| {
        state(status, &first) == "active" && status["far"]["one_copy_pages"] == 0
    });
    // Away, and given up: it is not dialed any more.
    first.node().signal(Signal::KILL);
    verifying.wait_until("lost", PATIENCE, |status| state(status, &first) != "active");
    verifying.lenders(&["drain", first.address()]);
    first.start_again("512M");
    std::thread::sleep(Duration::from_secs(4));
    // A dial that was under way may have reached it, and then it is drained.
    verifying.wait_until("left alone", PATIENCE, |status| {
        state(status, &first) == "gone" && count_lives(status) <= 6
    });
    verifying.end();
}

#[test]
fn programs_that_are_not_there_are_said() {
    let found = tombolo(&["lenders", "ls", "no-such-program-anywhere"]);
    assert_eq!(found.code(), 125);
    assert!(found.stderr.contains("no program"), "{}", found.stderr);
}

/// A page that is wanted while lenders have not acknowledged it is there at once: one of them is stopped.
#[test]
fn what_is_being_saved_is_given_back() {
    needs!("cc");
    let mut lenders = [(); 2].map(|()| Lender::start(Link::Udp, "512M"));
    let verifying = Verifying::start(40, "8M", &lenders.each_ref(), &["--copies", "2"]);
    let since = Instant::now();
    // Whether the program wants such a page is up to its random numbers, and to how far it comes meanwhile.
    while number(&verifying.status()["counters"]["taken_back"]) == 0 {
        assert!(since.elapsed() < PATIENCE, "no page was taken back: {:#}", verifying.status());
        lenders[0].node().signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(600));
        lenders[0].node().signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(200));
    }
    let report = verifying.end();
    assert!(number(&report["counters"]["taken_back"]) > 0, "{report:#}");
    assert_eq!(report["far"]["stored_with_one_copy"], 0, "not yet suspect: {report:#}");
}

/// Two lenders die at once: the program that had pages at both, and nowhere else, gets SIGBUS; the other one goes on.
#[test]
fn where_two_die_only_those_with_pages_there_end() {
    needs!("cc");
    let mut lenders = [(); 3].map(|()| Lender::start(Link::Udp, "512M"));
    let [first, second, third] = &lenders;
    let lost = Verifying::start(40, "8M", &[first, second], &["--copies", "2"]);
    let kept = Verifying::start(40, "8M", &[second, third], &["--copies", "2"]);
    for verifying in [&lost, &kept] {
        verifying.wait_until("two copies", PATIENCE, |status| status["far"]["one_copy_pages"] == 0);
    }
    lenders[0].node().signal(Signal::KILL);
    lenders[1].node().signal(Signal::KILL);
    let outcome = lost.run.wait(PATIENCE);
    assert_eq!(outcome.code(), 128 + 7, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("sending it SIGBUS"), "{}", outcome.stderr);
    assert!(outcome.counter("lost_pages") > 1000, "{:#}", outcome.report());
    std::thread::sleep(Duration::from_secs(1));
    let report = kept.end();
    assert_eq!(report["counters"]["lost_pages"], 0, "{report:#}");
}

/// What `top` and Prometheus see of a run.
#[test]
fn a_run_is_seen_while_it_lasts() {
    needs!("cc");
    let lenders = [(); 2].map(|()| Lender::start_with(Link::Shm, "512M", &["--metrics", "127.0.0.1:0"]));
    let verifying =
        Verifying::start(40, "8M", &lenders.each_ref(), &["--copies", "2", "--metrics", "127.0.0.1:0"]);
    let looks = tombolo(&["top", "--json", "--count", "2", "--interval", "1s"]);
    let looks: Vec<Value> =
        looks.text().lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    assert_eq!(looks.len(), 2);
    let programs = looks[1]["programs"].as_array().unwrap();
    let of_run = programs.iter().find(|program| program["run_pid"] == verifying.run.pid()).unwrap();
    assert!(number(&of_run["per_s"]["far_faults"]) > 0, "{of_run:#}");
    assert!(number(&of_run["pauses"]["longest_ns"]) > 0, "{of_run:#}");
    assert!(number(&of_run["far"]["lenders"][0]["per_s"]["written_bytes"]) > 0, "{of_run:#}");
    let text = tombolo(&["top", "--count", "1"]).text();
    assert!(text.contains("verifying") && text.contains(lenders[0].address()), "{text}");

    let metrics = scrape(&verifying.run.errors());
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {metrics}"))
    };
    assert!(!metrics.contains("Not described"), "{metrics}");
    assert!(value("tombolo_run_far_bytes{") > f64::from(16 << 20));
    assert!(value("tombolo_run_far_faults_total{") > 0.0);
    assert!(value("tombolo_run_pause_seconds_count{") > 0.0);
    assert!(value("tombolo_run_lender_written_bytes_total{") > f64::from(16 << 20));
    verifying.end();
    for mut lender in lenders {
        let said = format!("{}{}", lender.node().output(), lender.node().errors());
        let metrics = scrape(&said);
        assert!(
            metrics.contains("tombolo_node_lent_bytes{") && !metrics.contains("Not described"),
            "{metrics}"
        );
    }
}

/// Reads the metrics of a process that said where they are.
fn scrape(said: &str) -> String {
    let at = said.split("http://").nth(1).and_then(|rest| rest.split("/metrics").next());
    let at = at.unwrap_or_else(|| panic!("no address of metrics in {said}"));
    let mut stream = TcpStream::connect(at).expect("metrics are served");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}

/// Three lenders of which one at a time is killed, stopped, drained or comes back, and one of which has a link that is
/// cut, under verifying programs with two copies: each of these once at least. `TOMBOLO_SECONDS` says for how long;
/// `TOMBOLO_SEED` repeats the order of events.
#[test]
fn nothing_is_lost_while_lenders_come_and_go() {
    needs!("cc");
    let seconds = tombolo_random::amount("TOMBOLO_SECONDS").unwrap_or(sized(10, 180));
    let programs = if seconds > 60 { 4 } else { 2 };
    let mut random = Random::for_test(1);
    let mut lenders = [(); 3].map(|()| Lender::start(Link::Udp, "1G"));
    // The last one is at the other end of a link that can be cut.
    let relay = Relay::to(&lenders[2].address().parse().unwrap(), 0);
    let reached =
        [lenders[0].address().to_owned(), lenders[1].address().to_owned(), relay.address.to_string()];
    let from = reached.join(",");
    let verifying: Vec<Verifying> =
        (0..programs).map(|_| Verifying::start_from(40, "8M", &from, &["--copies", "2"])).collect();
    let since = Instant::now();
    let mut events = [0; 5];
    let mut kinds = Vec::new();
    while since.elapsed() < Duration::from_secs(seconds) || events.contains(&0) {
        // One at a time: two copies bear one loss.
        for program in &verifying {
            program.wait_until("two copies", PATIENCE, |status| status["far"]["one_copy_pages"] == 0);
        }
        let lives: Vec<u64> = verifying.iter().map(|program| count_lives(&program.status())).collect();
        let index = random.index(lenders.len());
        if kinds.is_empty() {
            kinds.extend(0..5);
        }
        let kind = kinds.swap_remove(random.index(kinds.len()));
        events[kind] += 1;
        let node = if kind == 4 { reached[2].clone() } else { reached[index].clone() };
        let silent_ms = if seconds > 60 { random.range(1_000, 20_000) } else { random.range(1_000, 4_000) };
        match kind {
            0 => {
                lenders[index].node().signal(Signal::KILL);
                std::thread::sleep(Duration::from_millis(random.range(100, 2_500)));
                lenders[index].start_again("1G");
            }
            1 => {
                lenders[index].node().signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(silent_ms));
                lenders[index].node().signal(Signal::CONT);
            }
            2 => {
                // Ends in order, and is there again.
                lenders[index].node().signal(Signal::TERM);
                std::thread::sleep(Duration::from_millis(random.range(2_000, 6_000)));
                lenders[index].node().signal(Signal::KILL);
                lenders[index].start_again("1G");
            }
            4 => {
                relay.cut(true);
                std::thread::sleep(Duration::from_millis(silent_ms));
                relay.cut(false);
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
        // Every program has all three again. Until a killed one has come back, its loss may not have been noticed.
        for (program, lives) in verifying.iter().zip(lives) {
            if kind == 0 {
                program.wait_until("the next life", PATIENCE, |status| count_lives(status) > lives);
            }
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
    let _ = writeln!(std::io::stderr(), "    killed, stopped, ended, drained, cut: {events:?}");
    for program in verifying {
        let report = program.end();
        assert_eq!(report["counters"]["lost_pages"], 0, "{report:#}");
        assert_eq!(report["far"]["corrupt_pages"], 0, "{report:#}");
    }
}
