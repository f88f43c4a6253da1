//! Programs with a memory of their own to manage: compressors, collectors, pools of processes. Each
//! gives the same bytes as without Tombolo, with at most a quarter of its memory local.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Lender, Link, Program, Running, Scratch, needs, path_of, sized};
use crate::programs::lines;

pub fn source(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).display().to_string()
}

/// Runs a compiler to its end.
fn build(program: &str, arguments: &[&str], environment: &[(&str, &str)]) {
    let mut command = Command::new(path_of(program));
    command.args(arguments).envs(environment.iter().copied());
    let outcome = Running::start(command, Vec::new()).wait(crate::common::PATIENCE);
    assert_eq!(outcome.code(), 0, "{program} {arguments:?}: {}{}", outcome.text(), outcome.stderr);
}

#[test]
fn xz_with_threads_packs_and_unpacks() {
    needs!("xz");
    let lender = Lender::start(Link::Shm, "2G");
    let scratch = Scratch::new("xz");
    let xz = path_of("xz");
    let (input, packed) = (scratch.file("input"), scratch.file("packed.xz"));
    fs::write(&input, lines(sized(12_000, 200_000))).expect("a file");
    let words = [&xz, "-T2", "-1", "--block-size=512KiB", "--keep", "--stdout", &input];
    Program::new(&words).remote(sized("256M", "1500M")).same_on(&[&lender], "8M");

    fs::write(&input, lines(sized(40_000, 300_000))).expect("a file");
    let words = [&xz, "-T2", "-1", "--block-size=1MiB", "--keep", "--stdout", &input];
    fs::write(&packed, Program::new(&words).plain().stdout).expect("a file");
    let words = [&xz, "-T2", "--decompress", "--keep", "--stdout", &packed];
    let unpacking = Program::new(&words).remote(sized("256M", "1500M")).same_on(&[&lender], "6M");
    assert!(unpacking.stdout == fs::read(&input).expect("a file"), "other bytes after unpacking");
}

#[test]
fn go_and_c_in_one_program() {
    needs!("go", "cc");
    let lender = Lender::start(Link::Shm, "1G");
    let scratch = Scratch::new("go");
    let program = scratch.file("collected");
    // A cache of its own would compile Go's library each time.
    let cache = std::env::temp_dir().join("tombolo-test-go").display().to_string();
    let environment =
        [("CGO_ENABLED", "1"), ("GOCACHE", cache.as_str()), ("GO111MODULE", "off"), ("GOTOOLCHAIN", "local")];
    build("go", &["build", "-o", &program, &source("collected.go")], &environment);
    Program::new(&[&program]).remote("512M").same_on(&[&lender], "20M");
}

/// A virtual machine whose collector has much to do.
pub fn java_words(collector: &str, scratch: &Scratch) -> Vec<String> {
    let classes = scratch.path().display().to_string();
    build("javac", &["-d", &classes, &source("Arrays.java")], &[]);
    let java = path_of("java");
    let words = [&java, collector, "-Xms160m", "-Xmx160m", "-Xshare:off", "-cp", &classes, "Arrays"];
    words.map(str::to_owned).to_vec()
}

fn java(collector: &str) {
    let lender = Lender::start(Link::Shm, "1G");
    let scratch = Scratch::new("java");
    Program::new(&java_words(collector, &scratch)).remote("512M").same_on(&[&lender], "40M");
}

#[test]
fn java_with_one_collecting_thread() {
    needs!("java", "javac");
    java("-XX:+UseSerialGC");
}

#[test]
fn java_with_many_collecting_threads() {
    needs!("java", "javac");
    java("-XX:+UseG1GC");
}

#[test]
fn node_with_a_large_map_and_buffers() {
    needs!("node");
    let lender = Lender::start(Link::Shm, "1G");
    let words = [&path_of("node"), &source("buffers.js")];
    Program::new(&words).remote("512M").same_on(&[&lender], "32M");
}

#[test]
fn python_with_forked_workers() {
    needs!("python3");
    let lender = Lender::start(Link::Shm, "2G");
    let words = [&path_of("python3"), &source("pool.py")];
    let outcome = Program::new(&words).remote("1G").forking().same_on(&[&lender], "16M");
    assert!(outcome.counter("forks") >= 3, "{:#}", outcome.report());
}
