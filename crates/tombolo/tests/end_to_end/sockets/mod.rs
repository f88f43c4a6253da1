//! Connections that are handed over: they do what TCP does, for programs that know nothing of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tombolo_host::testing::left_out;

use crate::common::{Outcome, PATIENCE, Running, Scratch, TOMBOLO, needs};

const SOON: Duration = Duration::from_secs(30);

/// A node, and a place for what it is asked by.
struct Machine {
    scratch: Scratch,
    node: Option<Running>,
}

impl Machine {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        // Programs that take another user ask, too.
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let mut machine = Self { scratch, node: None };
        machine.serve();
        machine
    }

    fn serve(&mut self) {
        let node = self.start(&["sockets", "serve", "--all-users"]);
        node.errors_with("connections are handed over", SOON);
        self.node = Some(node);
    }

    fn command(&self) -> Command {
        let mut command = Command::new(TOMBOLO);
        command.env("TOMBOLO_RUNTIME_DIR", self.scratch.path().join("run"));
        command
    }

    fn start(&self, words: &[&str]) -> Running {
        let mut command = self.command();
        command.args(words);
        Running::start(command, Vec::new())
    }

    /// A program with the library.
    fn program(&self, words: &[&str]) -> Running {
        self.start(&[&["sockets", "run", "--"], words].concat())
    }

    fn run(&self, words: &[&str]) -> Outcome {
        let outcome = self.program(words).wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{words:?}: {}{}", outcome.text(), outcome.stderr);
        outcome
    }

    fn status(&self) -> Value {
        let outcome = self.start(&["sockets", "status", "--json"]).wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        let all: Value = serde_json::from_slice(&outcome.stdout).unwrap();
        all["nodes"][0].clone()
    }

    fn count(&self, name: &str) -> u64 {
        let status = self.status();
        status["counters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {status:#}"))
    }

    fn awaits(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let since = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return;
            }
            assert!(since.elapsed() < SOON, "{what}: {status:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Somebody listens there with the library.
    fn awaits_listener(&self, port: u16) {
        let end = format!(":{port}");
        self.awaits("a listener", |status| {
            let all = status["listeners"].as_array().unwrap();
            all.iter().any(|one| one["at"].as_str().unwrap().ends_with(&end))
        });
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.signal(Signal::TERM);
            let outcome = node.wait(PATIENCE);
            if !std::thread::panicking() {
                assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
                assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
            }
        }
    }
}

fn asset(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end/sockets").join(name);
    path.to_str().expect("a text").to_owned()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

type Cases = BTreeMap<String, BTreeMap<String, Vec<String>>>;

fn cases(outcome: &Outcome) -> Cases {
    assert_eq!(outcome.code(), 0, "{}{}", outcome.text(), outcome.stderr);
    serde_json::from_slice(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {}", outcome.text()))
}

/// Differences, and modes: what is permitted, or what was found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Differences {
    notes: BTreeSet<[String; 3]>,
    modes: BTreeMap<String, BTreeSet<String>>,
}

fn permitted() -> Differences {
    let mut permitted = Differences::default();
    let text = fs::read_to_string(asset("permitted.txt")).unwrap();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let parts: Vec<_> = line.split(" | ").map(|part| part.trim_matches(['|', ' ']).to_owned()).collect();
        if let Some(case) = line.strip_prefix("mode ").and_then(|line| line.split(" |").next()) {
            let modes = line.split('|').nth(1).unwrap().split_whitespace().map(str::to_owned);
            permitted.modes.insert(case.to_owned(), modes.collect());
        } else {
            let [of, tcp, pair, _why] = parts.try_into().unwrap_or_else(|_| panic!("{line}"));
            permitted.notes.insert([of, tcp, pair]);
        }
    }
    permitted
}

fn compare(tcp: &Cases, pair: &Cases) -> Differences {
    let mut found = Differences::default();
    assert_eq!(tcp.keys().collect::<Vec<_>>(), pair.keys().collect::<Vec<_>>());
    for (case, sides) in tcp {
        for side in ["client", "server"] {
            let [tcp, pair] = [&sides[side], &pair[case][side]];
            for number in 0..tcp.len().max(pair.len()) {
                let note = |notes: &[String]| notes.get(number).cloned().unwrap_or_else(|| "nothing".into());
                if tcp.get(number) != pair.get(number) {
                    found.notes.insert([format!("{case} {side}"), note(tcp), note(pair)]);
                }
            }
        }
        let modes: BTreeSet<_> =
            ["client modes", "server modes"].iter().flat_map(|key| pair[case][*key].clone()).collect();
        if modes != ["handed-over".to_owned()].into() {
            found.modes.insert(case.clone(), modes);
        }
    }
    found
}

#[test]
fn sockets_do_what_tcp_does() {
    needs!("python3");
    if !rustix::process::geteuid().is_root() {
        return left_out("a program that takes another user needs root");
    }
    let machine = Machine::new("cases");
    let script = asset("cases.py");
    for transport in ["tcp4", "tcp6", "mapped"] {
        let mut command = Command::new("python3");
        command.args([&script, transport]);
        let tcp = cases(&Running::start(command, Vec::new()).wait(PATIENCE));
        let pair = cases(&machine.run(&["python3", &script, transport]));
        assert_eq!(compare(&tcp, &pair), permitted(), "{transport}");
    }
    machine.awaits("all is let go of", |status| status["connections_count"] == 0);
}

#[test]
fn redis_and_its_clients_are_handed_over() {
    needs!("redis-server", "redis-benchmark", "redis-cli");
    let machine = Machine::new("redis");
    let port = free_port();
    let words = ["redis-server", "--port", &port.to_string(), "--save", "", "--appendonly", "no"];
    let server = machine.program(&words);
    machine.awaits_listener(port);
    let cli = |words: &[&str]| {
        machine.run(&[&["redis-cli", "-p", &port.to_string()], words].concat()).text().trim().to_owned()
    };
    assert_eq!(cli(&["set", "key", "value"]), "OK");
    assert_eq!(cli(&["get", "key"]), "value");
    let benchmark = ["redis-benchmark", "-p", &port.to_string(), "-q", "-n", "20000", "-c", "50"];
    machine.run(&[&benchmark[..], &["-t", "set,get,lpush", "-P", "4"]].concat());
    // The server sees the addresses that its clients have.
    assert!(cli(&["client", "list"]).contains("addr=127.0.0.1:"), "{}", cli(&["client", "list"]));
    assert!(machine.count("handed_over") >= 150, "{:#}", machine.status());
    assert_eq!(machine.count("relayed"), 0);
    // A client without the library, too.
    let mut plain = Command::new("redis-cli");
    plain.args(["-p", &port.to_string(), "get", "key"]);
    assert_eq!(Running::start(plain, Vec::new()).wait(PATIENCE).text(), "value\n");
    server.signal(Signal::TERM);
    server.wait(PATIENCE);
    machine.awaits("all is let go of", |status| status["connections_count"] == 0);
}

#[test]
fn nginx_serves_and_reloads() {
    needs!("nginx", "curl");
    let machine = Machine::new("nginx");
    let (port, root) = (free_port(), machine.scratch.path().join("www"));
    fs::create_dir(&root).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    let file: Vec<u8> = (0..30_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for length in [1, 1000, file.len()] {
        fs::write(root.join(length.to_string()), &file[..length]).unwrap();
    }
    let settings = machine.scratch.file("nginx.conf");
    let text = format!(
        "worker_processes 2; daemon off; pid {pid}; error_log stderr;
         events {{ worker_connections 512; }}
         http {{ access_log off; sendfile on; {temporary}
                 server {{ listen 127.0.0.1:{port}; root {root}; }} }}",
        pid = machine.scratch.file("nginx.pid"),
        root = root.display(),
        temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {}/{name};", machine.scratch.path().display()))
            .join(" "),
    );
    fs::write(&settings, text).unwrap();
    let server = machine.program(&["nginx", "-e", "stderr", "-c", &settings]);
    machine.awaits_listener(port);
    let check = || {
        for length in [1, 1000, file.len()] {
            let url = format!("http://127.0.0.1:{port}/{length}");
            let outcome = machine.run(&["curl", "--silent", "--fail", &url]);
            assert!(outcome.stdout == file[..length], "{length}: {} bytes came", outcome.stdout.len());
        }
    };
    check();
    assert_eq!((machine.count("handed_over"), machine.count("relayed")), (3, 0), "{:#}", machine.status());
    // New workers, of another user.
    server.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(500));
    check();
    assert_eq!((machine.count("handed_over"), machine.count("relayed")), (6, 0), "{:#}", machine.status());
    server.signal(Signal::TERM);
    server.wait(PATIENCE);
}

/// A node that is killed is missed by nobody; the next one hands over new connections.
#[test]
fn the_node_may_die() {
    needs!("python3");
    let mut machine = Machine::new("node-dies");
    let script = "
import os, socket, sys, threading
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
def serve(connection):
    while data := connection.recv(1000):
        connection.sendall(data.upper())
    connection.close()
def accept():
    while True:
        threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
def connect():
    return socket.create_connection(('127.0.0.1', int(sys.argv[1])))
def talk(all):
    for number, one in enumerate(all):
        one.sendall(b'n%d' % number)
        assert one.recv(100) == b'N%d' % number
all = [connect() for _ in range(50)]
talk(all)
print('connected', flush=True)
sys.stdin.readline()
";
    let port = free_port().to_string();
    // It waits until the node is another one.
    let rest = "
talk(all)
# Whoever waits in accept tells the new node of its listener when it waits again.
first = connect()
time.sleep(0.5)
later = [connect() for _ in range(5)]
talk(later)
print('talked', flush=True)
";
    let go = machine.scratch.file("go");
    let waits = format!("import time\nwhile not os.path.exists({go:?}): time.sleep(0.01)\n");
    let script = script.replace("sys.stdin.readline()", &waits) + rest;
    let program = machine.program(&["python3", "-c", &script, &port]);
    program.output_with("connected", SOON);
    machine.awaits("fifty connections", |status| status["connections_count"] == 50);
    assert_eq!(machine.count("handed_over"), 50);
    let node = machine.node.take().unwrap();
    node.signal(Signal::KILL);
    node.wait(PATIENCE);
    machine.serve();
    fs::write(&go, "").unwrap();
    let outcome = program.wait(PATIENCE);
    assert_eq!((outcome.code(), outcome.text().as_str()), (0, "connected\ntalked\n"), "{}", outcome.stderr);
    assert_eq!(machine.count("handed_over"), 5, "{:#}", machine.status());
}

/// A stopped node keeps nobody waiting for long.
#[test]
fn the_node_may_be_stopped() {
    needs!("python3");
    let machine = Machine::new("node-stops");
    let script = "
import os, signal, socket, sys, time
listener = socket.create_server(('127.0.0.1', 0))
os.kill(int(sys.argv[1]), signal.SIGSTOP)
since = time.time()
one = socket.create_connection(listener.getsockname())
other = listener.accept()[0]
one.sendall(b'x')
assert other.recv(10) == b'x'
assert time.time() - since < 5, time.time() - since
os.kill(int(sys.argv[1]), signal.SIGCONT)
time.sleep(0.5)
other.sendall(b'y')
assert one.recv(10) == b'y'
one.close()
assert other.recv(10) == b''
";
    let node = machine.node.as_ref().unwrap().pid().to_string();
    machine.run(&["python3", "-c", script, &node]);
    machine.awaits("nothing is left", |status| status["connections_count"] == 0);
}

#[test]
fn a_server_without_the_library_behind_a_listener_with_it_is_relayed() {
    needs!("python3");
    let machine = Machine::new("relayed");
    // A raw system call, as of a program that is linked statically.
    let script = "
import ctypes, os, socket, time
listener = socket.create_server(('127.0.0.1', 0))
libc = ctypes.CDLL(None)
for answers_first in (True, False, True):
    child = os.fork()
    if child == 0:
        server = socket.socket(fileno=libc.syscall(43, listener.fileno(), 0, 0))
        if answers_first:
            server.sendall(b'welcome')
        data = b''
        while part := server.recv(1 << 16):
            data += part
        server.sendall(data[::-1])
        server.close()
        os._exit(0)
    client = socket.create_connection(listener.getsockname())
    if answers_first:
        assert client.recv(100) == b'welcome'
    data = bytes(range(256)) * 4000
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)
    back = b''
    while part := client.recv(1 << 16):
        back += part
    assert back == data[::-1], len(back)
    client.close()
    assert os.waitpid(child, 0)[1] == 0
";
    machine.run(&["python3", "-c", script]);
    // Once: then that listener gets no more offers.
    assert_eq!((machine.count("relayed"), machine.count("handed_over")), (1, 0), "{:#}", machine.status());
    assert_eq!(machine.status()["refused"]["accepted-without"], Value::Null, "programs do not even ask");
    machine.awaits("nothing is left", |status| status["connections_count"] == 0);
}

#[test]
fn rules_say_what_stays_tcp() {
    needs!("python3");
    let machine = Machine::new("rules");
    let script = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
one = socket.create_connection(listener.getsockname())
other = listener.accept()[0]
one.sendall(b'x')
assert other.recv(10) == b'x'
";
    let rules = machine.scratch.file("rules");
    let mut expected = 0;
    for (text, is_handed_over) in [
        ("use tcp client * *:*\n", false),
        ("use tcp server python3 127.0.0.1:*\n", false),
        ("use tcp client curl *:*\nuse tcp server * 10.0.0.0/8:*\n", true),
    ] {
        fs::write(&rules, text).unwrap();
        let outcome = machine
            .start(&["sockets", "run", "--config", &rules, "--", "python3", "-c", script])
            .wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        expected += u64::from(is_handed_over);
        assert_eq!(machine.count("handed_over"), expected, "{text}");
    }
    fs::write(&rules, "log\nuse udp client * *:*\n").unwrap();
    let outcome = machine.start(&["sockets", "run", "--config", &rules, "--", "true"]).wait(PATIENCE);
    outcome.assert_one_line(125, "line 2: `use` is followed by `tcp`, `sdp` or `both`");
    let outcome = machine.start(&["sockets", "run", "--config", "/none", "--", "true"]).wait(PATIENCE);
    outcome.assert_one_line(125, "rules in /none: No such file");
    let outcome = machine.start(&["sockets", "run", "--", "/no/such/program"]).wait(PATIENCE);
    outcome.assert_one_line(125, "cannot run /no/such/program: No such file");
}

/// A program that is far memory's is handed over, too.
#[test]
fn both_libraries_are_in_one_program() {
    needs!("python3");
    let machine = Machine::new("both");
    let lender = crate::common::Lender::start(crate::common::Link::Shm, "256M");
    let script = "
import socket, subprocess, sys
listener = socket.create_server(('127.0.0.1', 0))
one = socket.create_connection(listener.getsockname())
other = listener.accept()[0]
block = bytes(16 << 20)
one.settimeout(60)
import threading
threading.Thread(target=lambda: (one.sendall(block), one.close())).start()
count = 0
while part := other.recv(1 << 20):
    count += len(part)
assert count == len(block), count
if len(sys.argv) > 1:
    maps = open('/proc/self/maps').read()
    assert 'libtombolo-sockets' in maps and 'tombolo-pager' in maps, maps
else:
    subprocess.run([sys.executable, sys.argv[0] or '-c', open('/proc/self/cmdline').read().split('\\0')[2], 'again'], check=True, env={'TOMBOLO_RUNTIME_DIR': 'none'})
";
    let inner = ["sockets", "run", "--", TOMBOLO, "run", "--quiet", "--insecure", "--from", lender.address()];
    let words = [&inner[..], &["--local", "16M", "--", "python3", "-c", script]].concat();
    let outcome = machine.start(&words).wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{}{}", outcome.text(), outcome.stderr);
    assert_eq!(machine.count("handed_over"), 2, "{:#}", machine.status());
}
