//! The engine for programs, by the command line.

use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tombolo_client::{Domain, Grant, Target, Who};

use crate::common::{Lender, Link, Running, Scratch, needs, tombolo};

fn json(arguments: &[&str]) -> serde_json::Value {
    let outcome = tombolo(arguments);
    assert_eq!(outcome.code(), 0, "{arguments:?}: {}", outcome.stderr);
    serde_json::from_slice(&outcome.stdout).expect("JSON")
}

#[test]
fn a_node_is_pinged() {
    needs!();
    let lender = Lender::start(Link::Shm, "1M");
    let found =
        json(&["ping", lender.address(), "--count", "50", "--interval", "0", "--size", "4K", "--json"]);
    assert_eq!((&found["sent"], &found["answered"]), (&50.into(), &50.into()));
    assert!(found["median_us"].as_f64().is_some_and(|median| median > 0.0));
    let text = tombolo(&["ping", lender.address(), "-c", "2", "--interval", "1"]);
    assert_eq!((text.code(), text.text().lines().count()), (0, 3), "{}", text.text());
    assert_eq!(lender.status()["lent_bytes"], 0, "the page comes back");
    tombolo(&["ping", "shm:/no/such/node", "-c", "1"]).assert_one_line(125, "no node answers");
    tombolo(&["ping", lender.address(), "--size", "5K"]).assert_one_line(125, "4 KiB");
    let empty = Lender::start(Link::Shm, "0");
    tombolo(&["ping", empty.address(), "-c", "1"]).assert_one_line(125, "--lend");
}

#[test]
fn a_place_for_programs_that_is_none_is_one_error() {
    let scratch = Scratch::new("programs");
    let (listen, file) = (format!("shm:{}", scratch.file("node")), scratch.file("file"));
    std::fs::write(&file, "").unwrap();
    for (place, text) in [(file.as_str(), "not a socket"), ("/no/such/folder/programs", "/no/such/folder")] {
        tombolo(&["node", "--listen", &listen, "--lend", "0", "--programs", place])
            .assert_one_line(125, text);
    }
}

#[test]
fn a_node_lends_at_once_whatever_its_peers_do() {
    let scratch = Scratch::new("peers");
    // One that is not there, and itself.
    let own = format!("shm:{}", scratch.file("own"));
    let absent = format!("shm:{}", scratch.file("absent"));
    let start = |listen: &str, peers: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
        command.args(["node", "--listen", listen, "--lend", "16M", "--name", "lender", "--peer", peers]);
        let node = Running::start(command, Vec::new());
        node.output_with(" at ", Duration::from_secs(30));
        node
    };
    let node = start(&own, &format!("{absent},{own}"));
    let status = tombolo(&["status", &own]);
    assert!(status.code() == 0 && status.text().contains("of 16 MiB"), "{}{}", status.text(), status.stderr);
    node.errors_with(&format!("cannot join {absent} now"), Duration::from_secs(30));
    node.errors_with(&format!("cannot join {own} now"), Duration::from_secs(30));
    for times in 1..3 {
        let late = start(&absent, &own);
        late.errors_with(&format!("joined {own} (`lender`)\n"), Duration::from_secs(30));
        let since = Instant::now();
        while node.errors().matches(&format!(" joined {absent} ")).count() < times {
            assert!(since.elapsed() < Duration::from_secs(30), "{}", node.errors());
            std::thread::sleep(Duration::from_millis(5));
        }
        late.signal(Signal::KILL);
        late.wait(Duration::from_secs(30));
        let since = Instant::now();
        while node.errors().matches(&format!(" lost {absent}: ")).count() < times {
            assert!(since.elapsed() < Duration::from_secs(30), "{}", node.errors());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert_eq!(node.errors().matches(" again\n").count(), 1, "{}", node.errors());
}

/// A window of a program at a node that is killed: who has it mapped goes on, and can tell.
#[test]
fn a_window_of_a_killed_node_stays_mapped_and_has_no_owner() {
    needs!();
    let scratch = Scratch::new("windows");
    let [near, far] = ["near", "far"].map(|name| scratch.file(name));
    let owning = Lender::start_with(Link::Shm, "0", &["--programs", &far]);
    let mapping = Lender::start_with(Link::Shm, "0", &["--programs", &near, "--peer", owning.address()]);
    mapping.errors_with("joined", Duration::from_secs(30));
    let owner = Domain::open(far.as_ref(), Some(1)).unwrap();
    let other = Domain::open(near.as_ref(), None).unwrap();
    let memory = owner.allocate_window(4096, &[Grant::all(Who::Anyone)]).unwrap();
    let window = other.map_window(Target { node: 1, domain: 1 }, memory.address()).unwrap();
    memory.word(0).unwrap().store(5, Ordering::Release);
    assert_eq!((window.fetch_add(0, 1), window.has_owner()), (Ok(5), true));
    owning.signal(Signal::KILL);
    let since = Instant::now();
    while window.has_owner() {
        assert!(since.elapsed() < Duration::from_secs(30), "the owner seems to live");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(window.load(0), Ok(6));
    owner.revoke_window(&memory).unwrap();
    window.word(0).unwrap().store(9, Ordering::SeqCst);
    assert_eq!(memory.word(0).unwrap().load(Ordering::SeqCst), 6, "the owner's memory is as it was");
}

#[test]
fn limits_of_programs_are_options() {
    needs!();
    let scratch = Scratch::new("limits");
    let socket = scratch.file("programs");
    let limits =
        ["--domains", "4096", "--program-memory", "8M", "--transactions", "32768", "--programs", &socket];
    let node = Lender::start_with(Link::Shm, "0", &limits);
    let status = node.status();
    let limits = serde_json::json!({ "domains": 4096, "memory_bytes": 8 << 20, "transactions": 32768 });
    assert_eq!(status["limits"], limits, "{status:#}");
    for (option, wrong) in [("--domains", "0"), ("--domains", "40000"), ("--transactions", "32769")] {
        let refused = tombolo(&["node", "--listen", "shm:/tmp/x", option, wrong]);
        assert_ne!(refused.code(), 0);
        assert!(refused.stderr.contains(option), "{}", refused.stderr);
    }
}
