//! Files into named segments of a node and back: the same bytes, or the old ones, or none.

use std::fs::{self, File};
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Lender, Link, PATIENCE, Running, Scratch, TOMBOLO, send, tombolo};

const LINKS: [Link; 2] = [Link::Shm, Link::Udp];

/// Bytes without a pattern, the same for the same seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    tombolo_random::Random::new(seed).fill(&mut bytes);
    bytes
}

/// `tombolo cp`, which must do it.
fn copy(from: &str, to: &str) -> String {
    let outcome = tombolo(&["cp", "--insecure", from, to]);
    assert_eq!(outcome.code(), 0, "cp {from} {to}: {}", outcome.stderr);
    assert_eq!(outcome.stderr, "");
    outcome.text()
}

fn start(arguments: &[&str]) -> Running {
    let mut command = Command::new(TOMBOLO);
    command.args(arguments);
    Running::start(command, Vec::new())
}

fn names(lender: &Lender) -> Vec<String> {
    let outcome = tombolo(&["ls", "--insecure", lender.address(), "--json"]);
    let entries: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("JSON");
    entries["segments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["name"].as_str().unwrap().to_owned())
        .collect()
}

fn fifo(scratch: &Scratch) -> String {
    let path = scratch.file("fifo");
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    path
}

#[test]
fn files_come_back_as_they_were() {
    let scratch = Scratch::new("copy");
    for link in LINKS {
        let lender = Lender::start(link, "64M");
        for (name, length) in
            [("odd", 13_000_007), ("page", 4096), ("piece", 1 << 20), ("one", 1), ("empty", 0)]
        {
            let (file, back) = (scratch.file(name), scratch.file("back"));
            let (bytes, place) = (noise(length as u64, length), format!("{}:{name}", lender.address()));
            fs::write(&file, &bytes).unwrap();
            let said = copy(&file, &place);
            let _ = fs::remove_file(&back);
            assert_eq!(said.split("SHA-256 ").last(), copy(&place, &back).split("SHA-256 ").last());
            assert!(fs::read(&back).unwrap() == bytes, "{link:?} {name}: not the same bytes");
        }
        assert_eq!(names(&lender), ["empty", "odd", "one", "page", "piece"]);
        let pages = (13_000_007u64.next_multiple_of(4096)) + (1 << 20) + 3 * 4096;
        assert_eq!(lender.lent_bytes(), pages);
        let status = tombolo(&["status", "--insecure", lender.address(), "--counters"]).text();
        let is_listed = |name: &String| status.lines().any(|line| line.starts_with(&format!("{name} ")));
        assert!(names(&lender).iter().all(is_listed) && status.contains("links:"), "{status}");
        for name in names(&lender) {
            assert_eq!(tombolo(&["rm", "--insecure", &format!("{}:{name}", lender.address())]).code(), 0);
        }
        assert_eq!(lender.lent_bytes(), 0);
    }
}

#[test]
fn what_is_said_of_a_copy_can_be_read_by_programs_and_checked_by_others() {
    let (scratch, lender) = (Scratch::new("copy"), Lender::start(Link::Shm, "4M"));
    let (file, place) = (scratch.file("abc"), format!("{}:abc", lender.address()));
    fs::write(&file, "abc").unwrap();
    let outcome = tombolo(&["cp", "--json", &file, &place]);
    let said: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("JSON");
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!((&said["bytes"], &said["sha256"]), (&3.into(), &sha256.into()));
    let listed: serde_json::Value =
        serde_json::from_slice(&tombolo(&["ls", lender.address(), "--json"]).stdout).unwrap();
    assert_eq!(
        (&listed["segments"][0]["bytes"], &listed["segments"][0]["sha256"]),
        (&3.into(), &sha256.into())
    );
    assert!(tombolo(&["ls", lender.address()]).text().contains(&sha256[..12]));
    let status = lender.status();
    let count = |name: &str| status["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}"));
    let named = &status["named"];
    assert_eq!(
        (&named["segments"], &named["bytes"], &named["list"][0]["name"]),
        (&1.into(), &3.into(), &"abc".into())
    );
    assert!(count("links_packets_received") > 0 && count("links_gone") > 0 && count("links_up") > 0);
    for name in ["links_forged", "links_replayed", "links_control_retransmitted", "timeouts", "blocks_low"] {
        count(name);
    }
    for code in
        ["slave_error", "decode_error", "no_context", "packet_corrupted", "domain_mismatch", "buffer_full"]
    {
        count(&format!("nacks_sent_{code}"));
        count(&format!("nacks_received_{code}"));
    }
}

#[test]
fn standard_input_and_output_directories_and_links_are_where_one_copies_too() {
    let (scratch, lender) = (Scratch::new("copy"), Lender::start(Link::Shm, "16M"));
    let (bytes, place) = (noise(3, 3_000_001), format!("{}:piped", lender.address()));
    let mut command = Command::new(TOMBOLO);
    command.args(["cp", "-", &place]);
    let outcome = Running::start(command, bytes.clone()).wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(tombolo(&["cp", &place, "-"]).stdout == bytes, "standard output has other bytes");
    copy(&place, scratch.path().to_str().unwrap());
    assert!(fs::read(scratch.file("piped")).unwrap() == bytes);
    let (target, link) = (scratch.file("target"), scratch.file("link"));
    fs::write(&target, "old").unwrap();
    std::os::unix::fs::symlink("target", &link).unwrap();
    copy(&place, &link);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read(&target).unwrap() == bytes);
    let left: Vec<_> =
        fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "temporary files are left: {left:?}");
}

#[test]
fn who_reads_the_old_bytes_reads_them_to_the_end() {
    const LENGTH: usize = 24_000_001;
    for link in LINKS {
        let (scratch, lender) = (Scratch::new("copy"), Lender::start(link, "96M"));
        let (file, place, pipe) = (scratch.file("file"), format!("{}:x", lender.address()), fifo(&scratch));
        let (old, new) = (noise(1, LENGTH), noise(2, LENGTH));
        fs::write(&file, &old).unwrap();
        copy(&file, &place);
        let reader = start(&["cp", "--insecure", &place, &pipe]);
        // Its other end opens the pipe when it has opened the segment, and not before.
        let mut end = File::open(&pipe).unwrap();
        fs::write(&file, &new).unwrap();
        copy(&file, &place);
        let size = (LENGTH as u64).next_multiple_of(4096);
        assert_eq!(lender.lent_bytes(), 2 * size, "both are there");
        let mut bytes = Vec::new();
        end.read_to_end(&mut bytes).unwrap();
        assert_eq!(reader.wait(PATIENCE).code(), 0);
        assert!(bytes == old, "{link:?}: the reader has got other bytes");
        assert!(tombolo(&["cp", "--insecure", &place, "-"]).stdout == new);
        let since = Instant::now();
        while lender.lent_bytes() != size {
            assert!(since.elapsed() < PATIENCE, "the old memory does not come back");
        }
    }
}

#[test]
fn a_copy_that_dies_leaves_the_old_bytes_and_no_memory_taken() {
    const LARGE: u64 = 256 << 20;
    for link in LINKS {
        let (scratch, lender) = (Scratch::new("copy"), Lender::start(link, "300M"));
        let (old, large) = (scratch.file("old"), scratch.file("large"));
        let place = format!("{}:x", lender.address());
        fs::write(&old, "old").unwrap();
        File::create(&large).unwrap().set_len(LARGE).unwrap();
        // One that is through before it can be killed is tried again.
        let mut killed = false;
        for _ in 0..50 {
            copy(&old, &place);
            let writer = start(&["cp", "--insecure", &large, &place]);
            let since = Instant::now();
            while lender.lent_bytes() < LARGE {
                assert!(since.elapsed() < PATIENCE, "the copy does not begin");
            }
            send(writer.pid(), Signal::KILL);
            killed = writer.wait(PATIENCE).code() != 0;
            if killed {
                break;
            }
        }
        assert!(killed, "{link:?}: it is always faster");
        let since = Instant::now();
        while lender.lent_bytes() != 4096 {
            assert!(since.elapsed() < PATIENCE, "{link:?}: its memory does not come back");
        }
        assert_eq!(tombolo(&["cp", "--insecure", &place, "-"]).text(), "old");
        assert_eq!(names(&lender), ["x"]);
    }
}

#[test]
fn a_node_that_dies_in_the_middle_leaves_the_old_file() {
    for link in LINKS {
        let (scratch, mut lender) = (Scratch::new("copy"), Lender::start(link, "64M"));
        let (file, place, pipe) = (scratch.file("file"), format!("{}:x", lender.address()), fifo(&scratch));
        fs::write(&file, noise(1, 30_000_000)).unwrap();
        copy(&file, &place);
        let reader = start(&["cp", "--insecure", &place, &pipe]);
        let mut end = File::open(&pipe).unwrap();
        end.read_exact(&mut [0; 100]).unwrap();
        lender.node().signal(Signal::KILL);
        let mut rest = Vec::new();
        end.read_to_end(&mut rest).unwrap();
        assert!(rest.len() < 29_000_000, "all of it was on its way");
        reader.wait(PATIENCE).assert_one_line(125, "is gone");
        let gone = tombolo(&["cp", "--insecure", &place, &file]);
        assert_eq!(gone.code(), 125);
        assert_eq!(fs::metadata(&file).unwrap().len(), 30_000_000, "the file is still there");
    }
}

#[test]
fn a_signal_ends_a_copy_that_waits() {
    let (scratch, lender) = (Scratch::new("copy"), Lender::start(Link::Shm, "4M"));
    let (file, place, pipe) = (scratch.file("file"), format!("{}:x", lender.address()), fifo(&scratch));
    fs::write(&file, "x").unwrap();
    copy(&file, &place);
    let (get, put) = (["cp", &place, &pipe], ["cp", &pipe, &place]);
    // Under nohup the command goes on, as its user wants.
    let ignored = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = ignored.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    let ignores_hangups = u64::from_str_radix(ignored, 16).unwrap() & 1 != 0;
    let hangup = if ignores_hangups { Signal::TERM } else { Signal::HUP };
    let cases = [
        (get, Signal::INT, false),
        (put, Signal::INT, false),
        (put, hangup, false),
        (get, Signal::INT, true),
    ];
    for (arguments, signal, misses_it) in cases {
        let waiting = start(&arguments);
        let since = Instant::now();
        // `open` and `openat` have these numbers: it sleeps there, with its handler in place.
        let path = format!("/proc/{}/syscall", waiting.pid());
        while !fs::read_to_string(&path)
            .is_ok_and(|call| ["2 ", "257 "].iter().any(|open| call.starts_with(open)))
        {
            assert!(since.elapsed() < Duration::from_secs(60), "it does not wait for the pipe's other end");
        }
        if misses_it {
            // As if it had come just before: to a thread that does not wait there.
            waiting.signal_thread("copy", signal);
        } else {
            waiting.signal(signal);
        }
        waiting.wait(Duration::from_secs(60)).assert_one_line(130, "interrupted");
    }
    assert_eq!(names(&lender), ["x"]);
}

#[test]
fn what_cannot_be_copied_is_one_clear_error() {
    let (scratch, lender) = (Scratch::new("copy"), Lender::start(Link::Shm, "1M"));
    let (address, file, large) = (lender.address(), scratch.file("file"), scratch.file("large"));
    fs::write(&file, "text").unwrap();
    fs::write(&large, noise(1, 2 << 20)).unwrap();
    let at = |name: &str| format!("{address}:{name}");
    let long = "x".repeat(256);
    copy(&file, &at("known"));
    for (from, to, code, text) in [
        (&*at("knwon"), "-", 1, "did you mean `known`?"),
        (&at("else"), "-", 1, "tombolo ls"),
        (&at("a/b"), "-", 125, "'/'"),
        (&at(".."), "-", 125, "`..`"),
        (&at(&long), "-", 125, "256 bytes"),
        (&file, &at("a\tb"), 125, r"'\t'"),
        (&file, address, 125, ":NAME"),
        (&at(""), "-", 125, ":NAME"),
        (&file, &large, 125, "ADDR:NAME"),
        (&at("known"), &at("other"), 125, "from node to node"),
        (&large, &at("large"), 125, "no room for 2 MiB"),
        (&large, &at("known"), 125, "--lend"),
        (&scratch.file("none"), &at("x"), 125, "No such file"),
        (scratch.path().to_str().unwrap(), &at("x"), 125, "is a directory"),
        (&at("known"), "/no/such/folder/file", 125, "No such file"),
        (&at("known"), "/dev/full", 125, "No space left"),
        (&file, "shm:/no/such/node:x", 125, "no node answers"),
        (&file, "udp:127.0.0.1:x", 125, "HOST:PORT"),
    ] {
        tombolo(&["cp", from, to]).assert_one_line(code, text);
    }
    tombolo(&["cp", "--json", &at("known"), "-"]).assert_one_line(125, "--json");
    tombolo(&["rm", &at("else")]).assert_one_line(1, "else");
    tombolo(&["ls", "shm:/no/such/node"]).assert_one_line(125, "no node answers");
    assert_eq!(names(&lender), ["known"]);
    assert_eq!(lender.lent_bytes(), 4096, "what failed has left nothing");
}
