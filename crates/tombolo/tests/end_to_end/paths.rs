//! Several addresses of one node: all are used, and one that fails costs nothing but time.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tombolo_node::Address;

use crate::common::{
    Lender, Link, PATIENCE, Program, Running, Scratch, TOMBOLO, compiled, needs, path_of, tombolo,
};
use crate::programs::lines;

#[allow(dead_code, reason = "it is made to eavesdrop, too")]
#[path = "../../../tombolo-client/tests/peers/relay.rs"]
pub mod relay;

use relay::Relay;

/// As much by each path is enough to know that it is used.
const SHARE_BYTES: u64 = 1 << 20;

fn two_ways(lender: &Lender) -> ([Relay; 2], String) {
    let address: Address = lender.address().parse().unwrap();
    let relays = [(); 2].map(|()| Relay::to(&address, 0));
    let both = format!("{}+{}", relays[0].address, relays[1].address);
    (relays, both)
}

/// Polls until something is so; fails with what the process says when that takes too long.
fn wait_until(what: &str, run: &Running, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "still not: {what}\n{}", run.errors());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Both paths carry from now on.
fn both_carry(relays: &[Relay; 2], run: &Running) {
    let before = relays.each_ref().map(Relay::carried_bytes);
    wait_until("both paths carry", run, || {
        relays.iter().zip(before).all(|(relay, before)| relay.carried_bytes() > before + SHARE_BYTES)
    });
}

#[test]
fn a_program_does_not_notice_that_a_path_is_cut() {
    needs!("sort");
    let scratch = Scratch::new("paths");
    let input = scratch.file("input");
    fs::write(&input, lines(45_000)).unwrap();
    let words = [&path_of("sort"), "--buffer-size=400M", "--parallel=2", &input];
    // The other path carries on as soon as one is suspect, however long that may last.
    let program = Program::new(&words).remote("128M").outage("1h");
    let plain = program.plain();
    for which in [0, 1] {
        let lender = Lender::start(Link::Udp, "1G");
        let (relays, both) = two_ways(&lender);
        let run = program.start_from(&both, "6M");
        both_carry(&relays, &run);
        relays[which].cut(true);
        let outcome = run.wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        assert!(outcome.stdout == plain.stdout, "path {which} was cut, and the output differs");
        assert!(outcome.counter("lost_pages") == 0 && !outcome.stderr.contains("SIGBUS"));
        lender.wait_until_free(PATIENCE);
    }
}

#[test]
fn a_path_that_was_cut_is_left_and_joined_again() {
    needs!("cc");
    for which in [0, 1] {
        // One lender has two paths, the other one.
        let lenders = [Link::Udp, Link::Udp].map(|link| Lender::start(link, "256M"));
        let (relays, both) = two_ways(&lenders[0]);
        // It goes on touching all of its memory, and ends at a wrong byte.
        let words = [compiled("hold", &[]), "64".into(), "check".into()];
        let from = format!("{both},{}", lenders[1].address());
        let run = Program::new(&words).remote("128M").start_from(&from, "8M");
        both_carry(&relays, &run);
        relays[which].cut(true);
        let gone = format!("the link to {} is gone", relays[which].address);
        wait_until("the cut path is left", &run, || run.errors().contains(&gone));
        let before = relays[1 - which].carried_bytes();
        wait_until("the other carries on", &run, || {
            relays[1 - which].carried_bytes() > before + 4 * SHARE_BYTES
        });
        relays[which].cut(false);
        both_carry(&relays, &run);
        run.signal(Signal::TERM);
        let outcome = run.wait(PATIENCE);
        assert_eq!(outcome.code(), 143, "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
}

#[test]
fn the_last_path_takes_the_lender_with_it() {
    needs!("cc");
    let lender = Lender::start(Link::Udp, "256M");
    let (relays, both) = two_ways(&lender);
    let words = [compiled("hold", &[]), "64".into(), "check".into()];
    // The relays are threads of this process, which may be without a processor for seconds.
    let run = Program::new(&words).remote("128M").outage("5s").start_from(&both, "8M");
    both_carry(&relays, &run);
    relays.iter().for_each(|relay| relay.cut(true));
    let outcome = run.wait(PATIENCE);
    assert_eq!(outcome.code(), 135, "SIGBUS; stderr: {}", outcome.stderr);
    assert!(outcome.stderr.contains("sending it SIGBUS"), "{}", outcome.stderr);
}

#[test]
fn a_file_is_copied_by_two_paths_of_which_one_is_cut() {
    let scratch = Scratch::new("paths");
    let (file, back) = (scratch.file("file"), scratch.file("back"));
    let bytes = lines(250_000).into_bytes();
    fs::write(&file, &bytes).unwrap();
    for which in [0, 1] {
        let lender = Lender::start(Link::Udp, "256M");
        let (relays, both) = two_ways(&lender);
        let place = format!("{both}:file");
        for (from, to) in [(&file, &place), (&place, &back)] {
            let mut command = Command::new(TOMBOLO);
            // What is asked goes by the other path, too, long before this one is lost.
            command.args(["cp", "--insecure", "--outage", "1h", from, to]);
            let cp = Running::start(command, Vec::new());
            both_carry(&relays, &cp);
            relays[which].cut(true);
            let outcome = cp.wait(PATIENCE);
            assert_eq!(outcome.code(), 0, "{which} {from}: {}", outcome.stderr);
            relays[which].cut(false);
        }
        assert!(fs::read(&back).unwrap() == bytes, "path {which} was cut, and the bytes differ");
        fs::remove_file(&back).unwrap();
        // What is only asked is asked by one that answers.
        relays[which].cut(true);
        let listed = tombolo(&["ls", "--insecure", &both]);
        assert!(listed.code() == 0 && listed.text().contains("file"), "{}", listed.stderr);
        assert_eq!(listed.stderr.is_empty(), which == 1, "{}", listed.stderr);
        assert_eq!(tombolo(&["status", "--insecure", &both]).code(), 0);
        assert_eq!(tombolo(&["rm", "--insecure", &place]).code(), 0);
    }
}

#[test]
fn each_path_is_pinged_by_itself() {
    let lender = Lender::start(Link::Udp, "1M");
    let (relays, both) = two_ways(&lender);
    let ping = |timeout: &str| {
        let words =
            ["ping", "--insecure", &both, "-c", "3", "--interval", "0", "--timeout", timeout, "--json"];
        tombolo(&words)
    };
    let outcomes =
        |said: &str| serde_json::from_str::<serde_json::Value>(said).expect("JSON")["addresses"].clone();
    let outcome = ping("60s");
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    let said = outcomes(&outcome.text());
    for (index, relay) in relays.iter().enumerate() {
        assert_eq!(said[index]["address"], relay.address.to_string());
        assert_eq!(said[index]["answered"], 3);
    }
    relays[0].cut(true);
    // The other path has its answer within this time, too.
    let outcome = ping("10s");
    assert_eq!(outcome.code(), 1);
    assert!(outcome.stderr.contains(&relays[0].address.to_string()), "{}", outcome.stderr);
    let said = outcomes(&outcome.text());
    assert_eq!((&said[0]["answered"], &said[1]["answered"]), (&0.into(), &3.into()));
}

#[test]
fn addresses_that_do_not_go_together_are_one_clear_error_each() {
    let error = |arguments: &[&str], text: &str| {
        let outcome = tombolo(arguments);
        assert!([2, 125].contains(&outcome.code()), "{arguments:?}: {}", outcome.code());
        let first = outcome.stderr.lines().next().unwrap_or_default();
        assert!(first.contains(text), "{arguments:?}: {}", outcome.stderr);
    };
    let from = |from: &str, text: &str| {
        error(&["run", "--insecure", "--from", from, "--local", "16M", "--", "true"], text);
    };
    let one = "udp:127.0.0.1:9";
    from(&format!("{one}+{one}"), "named twice");
    from(&format!("{one}+udp:127.0.0.1:8,{one}"), "named twice");
    from(&format!("{one}+127.0.0.1:8"), "written in full");
    from(&format!("{one}+udp:127.0.0.1"), "HOST:PORT");
    from(&format!("{one}+shm:/tmp/node"), "on this machine");
    error(&["cp", "--insecure", "/etc/passwd", &format!("{one}+shm:/tmp/node:x")], "on this machine");
    error(&["cp", "--insecure", "/etc/passwd", &format!("{one}+{one}:x")], "named twice");
    error(&["ping", &format!("{one}+")], "written in full");
    // Two nodes are no two ways to one.
    let lenders = [Link::Udp, Link::Udp].map(|link| Lender::start(link, "64M"));
    let mixed = format!("{}+{}", lenders[0].address(), lenders[1].address());
    error(&["cp", "--insecure", "/etc/passwd", &format!("{mixed}:x")], "is it another one?");
    if crate::common::able(&[]) {
        from(&mixed, "is it another one?");
    }
}
