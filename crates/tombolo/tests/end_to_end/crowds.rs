//! Many at once at one node: named segments, programs, borrowers.
//!
//! `TOMBOLO_FULL=1`: 2,000 segments, 500 programs and 200 borrowers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tombolo_client::{Domain, Grant, Spec, Target, Who};

use crate::common::{PATIENCE, Running, Scratch, compiled, needs, sized};
use crate::network::{Machines, machines};

/// What a node says of itself, asked from the other machine.
fn status(machines: &Machines) -> serde_json::Value {
    json(machines, &["status", "--json", "--counters", &Machines::address(1)])
}

fn json(machines: &Machines, arguments: &[&str]) -> serde_json::Value {
    let outcome = machines.start(0, arguments).wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{arguments:?}: {}", outcome.stderr);
    serde_json::from_slice(&outcome.stdout).expect("JSON")
}

/// The bytes of a segment: as many as its number says, so that each is another.
fn bytes_of(number: usize) -> Vec<u8> {
    format!("segment {number}\n").repeat(1 + number % 400).into_bytes()
}

#[test]
fn many_named_segments_are_made_listed_read_and_deleted_by_another_machine() {
    let Some(machines) = machines() else { return };
    let _node = machines.node_with(1, &["--lend", "64M"]);
    let count = sized(60, 2000);
    let (from, to) = (machines.homes[0].file("from"), machines.homes[0].file("to"));
    let name = |number: usize| format!("segment-{number:04}");
    let place = |number: usize| format!("{}:{}", Machines::address(1), name(number));
    let done = |arguments: &[&str]| {
        let outcome = machines.start(0, arguments).wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{arguments:?}: {}", outcome.stderr);
    };
    for number in 0..count {
        fs::write(&from, bytes_of(number)).unwrap();
        done(&["cp", &from, &place(number)]);
    }
    let listed = json(&machines, &["ls", "--json", &Machines::address(1)]);
    let listed = listed["segments"].as_array().expect("a list");
    let found = listed.iter().map(|segment| (segment["name"].as_str(), segment["bytes"].as_u64()));
    let names: Vec<String> = (0..count).map(name).collect();
    let wanted = (0..count).map(|number| (Some(names[number].as_str()), Some(bytes_of(number).len() as u64)));
    assert!(found.eq(wanted), "{listed:?}");
    let status_now = status(&machines);
    assert_eq!(status_now["named"]["segments"], count as u64);
    let pages: u64 = (0..count).map(|number| bytes_of(number).len().next_multiple_of(4096) as u64).sum();
    assert_eq!(status_now["lent_bytes"], pages);
    for number in (0..count).step_by(count / 20) {
        done(&["cp", &place(number), &to]);
        assert!(fs::read(&to).unwrap() == bytes_of(number), "segment {number}");
    }
    for numbers in (0..count).collect::<Vec<_>>().chunks(200) {
        let places: Vec<String> = numbers.iter().map(|number| place(*number)).collect();
        let words: Vec<&str> = ["rm"].into_iter().chain(places.iter().map(String::as_str)).collect();
        done(&words);
    }
    let status_now = status(&machines);
    assert_eq!((&status_now["named"]["segments"], &status_now["lent_bytes"]), (&0.into(), &0.into()));
}

/// Where a program of a crowd finds its node and the office, and how many they are.
const CROWD: &str = "TOMBOLO_TEST_CROWD";
/// What each program has of the office's memory.
const DESK_BYTES: usize = 4096;
const ROUNDS: usize = 10;

fn desk_bytes(program: u64, round: usize) -> Vec<u8> {
    let word = program << 32 | round as u64 | 1 << 63;
    word.to_le_bytes().repeat(DESK_BYTES / 8)
}

/// What a program of a crowd does, in a process of its own.
fn work(place: &str) {
    let mut words = place.split(',');
    let mut word = || words.next().expect("four words");
    let socket = PathBuf::from(word());
    let mut number = || word().parse::<u64>().expect("a number");
    let (domain, counter, count) = (number(), number(), number());
    let office = Target { node: 0, domain: domain as u16 };
    let domain = Domain::open(&socket, None).unwrap();
    let memory = domain.allocate(2 * DESK_BYTES, &[]).unwrap();
    let add = |more| domain.fetch_add(office, counter, more).unwrap().wait(PATIENCE).unwrap();
    let own = add(1);
    let since = Instant::now();
    while add(0) < count {
        assert!(since.elapsed() < PATIENCE, "not all programs came");
        std::thread::sleep(Duration::from_millis(50));
    }
    let desk = counter + (1 + own) * DESK_BYTES as u64;
    let (out, back) = (memory.address(), memory.address() + DESK_BYTES as u64);
    for round in 0..ROUNDS {
        let bytes = desk_bytes(own, round);
        memory.write(0, &bytes).unwrap();
        let there = Spec::new(out, desk, DESK_BYTES as u32);
        domain.write(office, there).unwrap().wait(PATIENCE).unwrap();
        let here = Spec::new(desk, back, DESK_BYTES as u32);
        domain.read(office, here).unwrap().wait(PATIENCE).unwrap();
        let mut found = vec![0; DESK_BYTES];
        memory.read(DESK_BYTES, &mut found).unwrap();
        assert!(found == bytes, "program {own}, round {round}");
    }
    domain.send(office, &own.to_le_bytes()).unwrap().wait(PATIENCE).unwrap();
}

/// Processes that end with the test.
struct Crowd(Vec<(Child, PathBuf)>);

impl Crowd {
    fn start(count: usize, place: &str, scratch: &Path) -> Self {
        let mut crowd = Self(Vec::new());
        for number in 0..count {
            let errors = scratch.join(format!("errors-{number}"));
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "crowds::a_program_of_a_crowd", "--nocapture", "--test-threads=1"]);
            command.env(CROWD, place).stdin(Stdio::null()).stdout(Stdio::null());
            let child = command.stderr(File::create(&errors).unwrap()).spawn().unwrap();
            crowd.0.push((child, errors));
        }
        crowd
    }

    /// Waits until all have ended well.
    fn wait(mut self) {
        let since = Instant::now();
        for (child, errors) in &mut self.0 {
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                assert!(since.elapsed() < PATIENCE, "a program does not end");
                std::thread::sleep(Duration::from_millis(5));
            };
            assert!(status.success(), "{status}: {}", fs::read_to_string(errors).unwrap());
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// So many programs, each a process, at one node with their domains open at once.
fn programs(count: usize) {
    let scratch = Scratch::new("crowd");
    let socket = scratch.file("programs");
    let listen = format!("shm:{}", scratch.file("node"));
    let domains = (count + 1).to_string();
    let mut command = Command::new(crate::common::TOMBOLO);
    command.args(["node", "--listen", &listen, "--lend", "0", "--programs", &socket, "--domains", &domains]);
    let node = Running::start(command, Vec::new());
    node.output_with(" at ", Duration::from_secs(30));
    let domain = Domain::open(Path::new(&socket), None).unwrap();
    let bytes = (1 + count) * DESK_BYTES;
    let memory = domain.allocate(bytes, &[Grant::all(Who::Anyone)]).unwrap();
    let mailbox = domain.open_mailbox((count as u32).next_power_of_two(), &[Who::Anyone]).unwrap();
    let place = format!("{socket},{},{},{count}", domain.number(), memory.address());
    let crowd = Crowd::start(count, &place, scratch.path());
    let mut done: Vec<u64> = (0..count)
        .map(|_| {
            let mail = mailbox.receive(PATIENCE).unwrap();
            u64::from_le_bytes(mail.bytes.as_slice().try_into().expect("eight bytes"))
        })
        .collect();
    crowd.wait();
    done.sort_unstable();
    assert!(done.into_iter().eq(0..count as u64), "each has done its work once");
    for program in 0..count {
        let mut found = vec![0; DESK_BYTES];
        memory.read((1 + program) * DESK_BYTES, &mut found).unwrap();
        assert!(found == desk_bytes(program as u64, ROUNDS - 1), "program {program}");
    }
}

#[test]
fn a_program_of_a_crowd() {
    match std::env::var(CROWD) {
        Ok(place) => work(&place),
        // Not started by a crowd: a crowd of one.
        Err(_) => programs(1),
    }
}

#[test]
fn many_programs_of_one_node_are_all_served() {
    programs(sized(20, 500));
}

#[test]
fn many_borrowers_of_one_node_have_their_pages() {
    needs!("cc");
    let Some(machines) = machines() else { return };
    let _node = machines.node_with(1, &["--lend", "2G"]);
    let (hold, count) = (compiled("hold", &[]), sized(8, 200));
    let lender = Machines::address(1);
    let words = ["run", "--from", &lender, "--local", "4M", "--remote", "8M", "--", &hold, "6", "rest"];
    let mut runs: Vec<Running> = Vec::new();
    while runs.len() < count {
        let next = runs.len();
        // Each connection may take three seconds. More at once than twice the processors of a small machine would
        // have to wait for one for as long.
        runs.extend((0..4).map(|_| machines.start(0, &words)));
        for run in &runs[next..] {
            // It has read back what it had written.
            run.output_with("holding", PATIENCE);
        }
    }
    let status_now = status(&machines);
    let borrowers = status_now["borrowers"].as_array().expect("a list");
    assert_eq!(borrowers.len(), count);
    let bytes = borrowers.iter().map(|borrower| borrower["bytes"].as_u64().unwrap_or(0));
    // What is far of 6 MiB, and no more than a quarter beyond what may be.
    assert!(bytes.clone().all(|bytes| (4 << 20..=10 << 20).contains(&bytes)), "{borrowers:?}");
    assert_eq!(status_now["lent_bytes"], bytes.sum::<u64>());
    for run in &runs {
        run.signal(Signal::TERM);
    }
    for run in runs {
        assert_eq!(run.wait(PATIENCE).code(), 143);
    }
    let since = Instant::now();
    while status(&machines)["lent_bytes"] != 0 {
        assert!(since.elapsed() < PATIENCE, "memory is not given back");
        std::thread::sleep(Duration::from_millis(100));
    }
}
