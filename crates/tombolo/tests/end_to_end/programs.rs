//! Programs nobody here wrote, byte for byte as without Tombolo, with at most a
//! quarter of their memory local.

use std::fmt::Write as _;
use std::fs;

use tombolo_random::Random;

use crate::common::{Lender, Link, Program, Scratch, needs, once_more_if_exceeded, path_of, sized};

/// Lines that no sort finds in order, the same at every call.
pub fn lines(count: u64) -> String {
    let mut text = String::new();
    let mut random = Random::new(1);
    for number in 0..count {
        let _ = writeln!(text, "{:016x} line {number:0>120}", random.next());
    }
    text
}

fn sort(link: Link, lenders: usize) {
    let scratch = Scratch::new("sort");
    let input = scratch.file("input");
    // GNU sort needs about twice its input, less the overhead of short lines.
    let usual = if matches!(link, Link::Udp) { 45_000 } else { 110_000 };
    let many = if matches!(link, Link::Udp) { 300_000 } else { 1_000_000 };
    let count = sized(usual, many);
    fs::write(&input, lines(count)).unwrap();
    let lenders: Vec<_> = (0..lenders).map(|_| Lender::start(link, "2G")).collect();
    let lenders: Vec<_> = lenders.iter().collect();
    let buffer = sized("--buffer-size=400M", "--buffer-size=3G");
    let words = [&path_of("sort"), buffer, "--parallel=2", &input];
    let local = if matches!(link, Link::Udp) { sized("4M", "20M") } else { sized("6M", "48M") };
    let outcome = Program::new(&words).remote(sized("256M", "1500M")).same_on(&lenders, local);
    assert_eq!(outcome.stdout.iter().filter(|&&byte| byte == b'\n').count() as u64, count);
}

#[test]
fn gnu_sort_shm() {
    needs!("sort");
    sort(Link::Shm, 1);
}

#[test]
fn gnu_sort_udp() {
    needs!("sort");
    sort(Link::Udp, 1);
}

#[test]
fn gnu_sort_on_two_lenders() {
    needs!("sort");
    sort(Link::Shm, 2);
}

/// The example of the README, a 32nd of it: nothing is said of `--remote`, and the buffer is four times what is local.
#[test]
fn gnu_sort_with_what_is_borrowed_by_default() {
    needs!("sort");
    let scratch = Scratch::new("sort");
    let input = scratch.file("input");
    fs::write(&input, lines(150_000)).unwrap();
    let lender = Lender::start(Link::Shm, "128M");
    let sort = Program::new(&[&path_of("sort"), "-S", "32M", "--parallel=2", &input]);
    let outcome = sort.same_on(&[&lender], "8M");
    assert!(!outcome.stderr.contains("three quarters"), "{}", outcome.stderr);
}

fn python(link: Link, lenders: usize) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/dictionary.py");
    let lenders: Vec<_> = (0..lenders).map(|_| Lender::start(link, "2G")).collect();
    let lenders: Vec<_> = lenders.iter().collect();
    let count = sized("100000", "600000");
    let words = [&path_of("python3"), script, count];
    Program::new(&words).remote(sized("256M", "1500M")).same_on(&lenders, sized("10M", "60M"));
}

#[test]
fn a_python_dict_shm() {
    needs!("python3");
    python(Link::Shm, 1);
}

#[test]
fn a_python_dict_udp() {
    needs!("python3");
    python(Link::Udp, 1);
}

#[test]
fn a_python_dict_on_two_lenders_udp() {
    needs!("python3");
    python(Link::Udp, 2);
}

/// So many operations on so much memory, each verified. What it prints holds times, so only its verdict counts, not the
/// bytes.
pub fn stress_ng(bytes: &str, operations: &str, scratch: &Scratch) -> Vec<String> {
    let (program, temporary) = (path_of("stress-ng"), scratch.file(""));
    let words = [
        program.as_str(),
        "--vm",
        "1",
        "--vm-bytes",
        bytes,
        "--vm-method",
        "all",
        "--verify",
        "--vm-ops",
        operations,
        "--timeout",
        sized("60", "180"),
        "--seed",
        "7",
        "--temp-path",
        temporary.as_str(),
    ];
    words.map(str::to_owned).to_vec()
}

#[test]
fn stress_ng_verifies_its_memory() {
    needs!("stress-ng");
    let lender = Lender::start(Link::Shm, "2G");
    let scratch = Scratch::new("stress");
    // Some twenty of its methods, one after the other; all of them in a full run.
    let words = stress_ng(sized("16M", "128M"), sized("30000", "500000"), &scratch);
    let program = Program::new(&words)
        .remote(sized("256M", "1500M"))
        .patience(std::time::Duration::from_secs(sized(240, 1800)));
    let outcome = once_more_if_exceeded(|| {
        let outcome = program.run_on(&[&lender], sized("4M", "32M"));
        let text = format!("{}{}", outcome.text(), outcome.stderr);
        assert_eq!(outcome.code(), 0, "{text}");
        assert!(!text.contains("fail:"), "{text}");
        outcome
    });
    assert!(outcome.counter("pages_in") > 0 && outcome.counter("pages_out") > 0, "{:#}", outcome.report());
    outcome.assert_within_limit(100);
}
