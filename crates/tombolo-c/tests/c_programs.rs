//! The examples in C, compiled against the header and the library, and run at a node.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tombolo_host::unix::SeqpacketListener;
use tombolo_node::{Address, Limits, Node, Security};

/// Where the library is: beside this test.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tombolo-c-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn compile(name: &str) -> PathBuf {
    compile_in("examples", name)
}

fn compile_in(directory: &str, name: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Two tests may run the same one.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let program = folder().join(format!("{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    let mut command = Command::new("cc");
    command
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-o"])
        .arg(&program);
    command.arg(package.join(directory).join(name).with_extension("c"));
    command.arg("-I").arg(package.join("include")).arg("-L").arg(libraries());
    command.arg("-ltombolo_c").arg(format!("-Wl,-rpath,{}", libraries().display()));
    let output = command.output().expect("the tests need a C compiler (apt-get install gcc)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs a program at a node of its own.
fn run(name: &str, arguments: &[&Path]) -> Output {
    run_program(name, &compile(name), arguments)
}

fn run_program(name: &str, program: &Path, arguments: &[&Path]) -> Output {
    let socket = folder().join(format!("{name}-programs"));
    // `all_to_all` opens 64.
    let limits = Limits { domains: 64, ..Limits::default() };
    let node = Arc::new(Node::with_limits("c", 0, 0, limits).unwrap());
    let listener =
        tombolo_node::listen(&Address::Shm(folder().join(format!("{name}-link"))), &Security::Insecure)
            .unwrap();
    let programs = SeqpacketListener::bind(&socket).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| tombolo_node::serve(&node, &*listener, &stop, &|_| {}));
        scope.spawn(|| tombolo_node::receive_programs(&node, &programs, &stop));
        let mut command = Command::new("timeout");
        // Not a library of an earlier build.
        command.arg("60").arg(program).arg(&socket).args(arguments).env_remove("LD_LIBRARY_PATH");
        let output = command.output();
        stop.store(true, Ordering::Relaxed);
        output.unwrap()
    })
}

fn said(output: &Output) -> String {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    out
}

#[test]
fn ping_pong() {
    assert!(said(&run("ping_pong", &[])).starts_with("2000 rounds"));
}

#[test]
fn key_value() {
    assert_eq!(said(&run("key_value", &[])), "3000 lookups, 1500 found\n");
}

#[test]
fn tally() {
    assert_eq!(said(&run("tally", &[])), "1000 tickets drawn\n");
}

#[test]
fn lock() {
    assert_eq!(said(&run("lock", &[])), "1000 turns, each alone\n");
}

#[test]
fn messages() {
    assert_eq!(said(&run("messages", &[])), "2000 messages, each in its turn\n");
}

#[test]
fn window() {
    assert_eq!(said(&run("window", &[])), "20000 changes, none read torn\n");
}

#[test]
fn all_to_all() {
    assert_eq!(said(&run("all_to_all", &[])), "4096 parts exchanged by 64 domains\n");
}

#[test]
fn event_loop() {
    assert_eq!(said(&run("event_loop", &[])), "200 parts moved\n");
}

#[test]
fn send_file() {
    let (from, to) = (folder().join("from"), folder().join("to"));
    let bytes: Vec<u8> =
        (0..3_000_001_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&from, &bytes).unwrap();
    assert_eq!(said(&run("send_file", &[&from, &to])), "3000001 bytes sent\n");
    assert!(std::fs::read(&to).unwrap() == bytes);
}

#[test]
fn lists() {
    let program = compile_in("tests", "lists");
    assert_eq!(said(&run_program("lists", &program, &[])), "every piece came\n");
}

/// Waits for some seconds, until a page is given up.
#[test]
fn registration() {
    let program = compile_in("tests", "registration");
    assert_eq!(said(&run_program("registration", &program, &[])), "registered no longer\n");
}

#[test]
fn forked() {
    let program = compile_in("tests", "forked");
    assert_eq!(said(&run_program("forked", &program, &[])), "each has its own\n");
}

#[test]
fn faults() {
    let program = compile_in("tests", "faults");
    assert_eq!(said(&run_program("faults", &program, &[])), "every page came\n");
}

#[test]
fn errors_are_values_with_a_text() {
    let program = compile("key_value");
    let output = Command::new(program).arg("/no/such/socket").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("tombolo_open") && text.contains("tombolo node --programs"), "{text}");
}
