//! The examples in C, compiled against the header and the library, and run at a node.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tombolo_host::unix::SeqpacketListener;
use tombolo_node::{Address, Limits, Node, Security};

/// Where the library is: beside this test.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Of this process. Those of tests that have ended go.
fn folder() -> PathBuf {
    const PREFIX: &str = "tombolo-c-";
    let all = std::env::temp_dir();
    for entry in std::fs::read_dir(&all).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(PREFIX).filter(|number| number.parse::<u32>().is_ok());
        if process.is_some_and(|number| !Path::new("/proc").join(number).exists()) {
            // Another test may do the same, and a stranger's folder stays.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let folder = all.join(format!("{PREFIX}{}", std::process::id()));
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

/// A node with its threads, for programs in C.
struct Host {
    node: Arc<Node>,
    address: Address,
    programs: PathBuf,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Host {
    /// A node that listens there and is joined to these.
    fn start(name: &str, listen: &Address, others: &[&Address]) -> Self {
        // `all_to_all` opens 64.
        let limits = Limits { domains: 64, ..Limits::default() };
        let node = Arc::new(Node::with_limits("c", 0, 0, limits).unwrap());
        for other in others {
            node.join(other, &Security::Insecure, Duration::from_secs(20)).unwrap();
        }
        let listener = tombolo_node::listen(listen, &Security::Insecure).unwrap();
        let (address, programs) = (listener.address(), folder().join(format!("{name}-programs")));
        let socket = SeqpacketListener::bind(&programs).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (serving, receiving) = ((node.clone(), stop.clone()), (node.clone(), stop.clone()));
        let threads = vec![
            std::thread::spawn(move || tombolo_node::serve(&serving.0, &*listener, &serving.1, &|_| {})),
            std::thread::spawn(move || tombolo_node::receive_programs(&receiving.0, &socket, &receiving.1)),
        ];
        Self { node, address, programs, stop, threads }
    }

    fn shm(name: &str) -> Address {
        Address::Shm(folder().join(format!("{name}-link")))
    }

    /// One node, or, with a link, two.
    fn some(name: &str, link: Option<&Address>) -> Vec<Self> {
        let first = Self::start(name, link.unwrap_or(&Self::shm(name)), &[]);
        let Some(_) = link else { return vec![first] };
        let other = format!("{name}-other");
        let second = Self::start(&other, &Self::shm(&other), &[&first.address]);
        vec![first, second]
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Runs a program at these nodes, whose sockets come behind its other arguments.
fn run_at(nodes: &[Host], program: &Path, arguments: &[&Path]) -> Output {
    let mut command = Command::new("timeout");
    // Not a library of an earlier build.
    command.arg("60").arg(program).args(arguments).env_remove("LD_LIBRARY_PATH");
    command.args(nodes.iter().map(|node| &node.programs)).output().unwrap()
}

/// Runs an example at a node of its own.
fn run(name: &str) -> Output {
    run_at(&Host::some(name, None), &compile(name), &[])
}

/// Runs a test program at a node of its own.
fn run_test(name: &str) -> String {
    said(&run_at(&Host::some(name, None), &compile_in("tests", name), &[]))
}

/// Runs an example of two processes at one node, and at two, joined by each kind of link.
fn run_at_one_and_two(name: &str, arguments: &[&Path], check: impl Fn(String)) {
    let program = compile(name);
    let shm = Some(Host::shm(&format!("{name}-two")));
    let mut links = vec![None, shm, Some("udp:127.0.0.1:0".parse().unwrap())];
    if name == "window" {
        // Only a link over shared memory can have one.
        links.pop();
    }
    for (number, link) in links.iter().enumerate() {
        let nodes = Host::some(&format!("{name}-{number}"), link.as_ref());
        check(said(&run_at(&nodes, &program, arguments)));
        if let [first, _] = &nodes[..] {
            let counters = first.node.status().counters;
            let counted = ["links_packets_received", "programs_windows_mapped"];
            let has_crossed = |name: &&str| counters.get(*name).is_some_and(|count| *count > 0);
            assert!(counted.iter().any(has_crossed), "not by the link");
        }
    }
}

fn said(output: &Output) -> String {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    out
}

#[test]
fn ping_pong() {
    run_at_one_and_two("ping_pong", &[], |text| assert!(text.starts_with("2000 rounds"), "{text}"));
}

#[test]
fn key_value() {
    run_at_one_and_two("key_value", &[], |text| assert_eq!(text, "3000 lookups, 1500 found\n"));
}

#[test]
fn tally() {
    run_at_one_and_two("tally", &[], |text| assert_eq!(text, "1000 tickets drawn\n"));
}

#[test]
fn lock() {
    run_at_one_and_two("lock", &[], |text| assert_eq!(text, "1000 turns, each alone\n"));
}

#[test]
fn workers() {
    assert_eq!(said(&run("workers")), "numbers of 3 processes in one domain: their sum is 71994000\n");
}

#[test]
fn messages() {
    run_at_one_and_two("messages", &[], |text| assert_eq!(text, "2000 messages, each in its turn\n"));
}

#[test]
fn window() {
    run_at_one_and_two("window", &[], |text| assert_eq!(text, "20000 changes, none read torn\n"));
}

#[test]
fn all_to_all() {
    assert_eq!(said(&run("all_to_all")), "4096 parts exchanged by 64 domains\n");
}

#[test]
fn event_loop() {
    assert_eq!(said(&run("event_loop")), "200 parts moved\n");
}

#[test]
fn send_file() {
    let (from, to) = (folder().join("from"), folder().join("to"));
    let bytes: Vec<u8> =
        (0..3_000_001_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&from, &bytes).unwrap();
    run_at_one_and_two("send_file", &[&from, &to], |text| {
        assert_eq!(text, "3000001 bytes sent\n");
        assert!(std::fs::read(&to).unwrap() == bytes);
        std::fs::remove_file(&to).unwrap();
    });
}

#[test]
fn lists() {
    assert_eq!(run_test("lists"), "every piece came\n");
}

/// Handles of memory, and a queue whose ends are waited for with epoll.
#[test]
fn handles() {
    let program = compile_in("tests", "handles");
    for (name, link) in [("handles", None), ("handles-two", Some(Host::shm("handles-far")))] {
        let nodes = Host::some(name, link.as_ref());
        assert_eq!(said(&run_at(&nodes, &program, &[])), "300 pieces by handle\n");
    }
}

/// Waits for some seconds, until a page is given up.
#[test]
fn registration() {
    assert_eq!(run_test("registration"), "registered no longer\n");
}

#[test]
fn forked() {
    assert_eq!(run_test("forked"), "each has its own\n");
}

#[test]
fn faults() {
    assert_eq!(run_test("faults"), "every page came\n");
}

#[test]
fn errors_are_values_with_a_text() {
    let program = compile("key_value");
    let output = Command::new(program).arg("/no/such/socket").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("tombolo_open") && text.contains("tombolo node --programs"), "{text}");
}
