//! The heap of programs on far memory: other allocators preloaded beside ours, threads that give back what
//! others took, forks in the middle of all that.

use std::path::Path;
use std::process::Command;

use crate::common::{Lender, Link, Outcome, Program, Scratch, compiled, library, needs};

/// Runs it plainly and on far memory.
fn far(program: &Program, local: &str) -> Outcome {
    let lender = Lender::start(Link::Shm, "2G");
    program.clone().remote("1G").same_on(&[&lender], local)
}

fn beside(name: &str) {
    let Some(library) = library(name) else { return };
    let words = [compiled("allocators", &[]), "48".into()];
    // The children end while the parent goes on: one at a time.
    let outcome = far(&Program::new(&words).variable("LD_PRELOAD", &library).forking(), "12M");
    assert!(outcome.counter("forks") >= 12, "{:#}", outcome.report());
}

#[test]
fn threads_and_forks_beside_jemalloc() {
    needs!("cc");
    beside("libjemalloc.so.2");
}

#[test]
fn threads_and_forks_beside_tcmalloc() {
    needs!("cc");
    beside("libtcmalloc_minimal.so.4");
}

#[test]
fn threads_and_forks_beside_mimalloc() {
    needs!("cc");
    beside("libmimalloc.so.2.0");
}

#[test]
fn children_use_the_heap_that_another_thread_was_changing() {
    needs!("cc");
    let words = [compiled("crossing", &[]), "24".into()];
    let outcome = far(&Program::new(&words).forking(), "6M");
    assert!(outcome.counter("forks") >= 40, "{:#}", outcome.report());
}

#[test]
fn a_thread_that_never_used_malloc_forks() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    let outcome = Program::new(&[compiled("bare_forks", &[])]).remote("256M").run_on(&[&lender], "8M");
    assert_eq!((outcome.code(), outcome.text().as_str()), (0, "150 forks\n"), "{}", outcome.stderr);
    assert!(outcome.counter("forks") >= 150, "{:#}", outcome.report());
}

/// What glibc's own `malloc` promises, and programs rely on.
#[test]
fn blocks_are_as_glibc_gives_them() {
    needs!("cc");
    if !rustix::process::geteuid().is_root() {
        return tombolo_host::testing::left_out("locking all memory needs root");
    }
    let lender = Lender::start(Link::Shm, "512M");
    let program = Program::new(&[compiled("contract", &["-O0", "-fno-builtin"])]).remote("256M");
    for outcome in [program.plain(), program.run_on(&[&lender], "64M")] {
        assert_eq!((outcome.code(), outcome.text().as_str()), (0, "kept\n"), "{}", outcome.stderr);
    }
}

/// As PHP loads its extensions.
#[test]
fn a_library_that_is_bound_deeply_shares_the_heap() {
    needs!("cc");
    let scratch = Scratch::new("deep");
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/deep_library.c");
    let mut command = Command::new("cc");
    command.args(["-O1", "-shared", "-fPIC", "-o"]).arg(scratch.path().join("libdeep.so")).arg(library);
    assert!(command.status().unwrap().success());
    let path = format!("-Wl,--enable-new-dtags,-rpath,{}", scratch.path().display());
    let outcome = far(&Program::new(&[compiled("deep", &[&path]), "24".into()]), "8M");
    assert!(outcome.counter("pages_out") > 0, "{:#}", outcome.report());
}
