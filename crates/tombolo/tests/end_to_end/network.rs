//! Two machines in network namespaces, with keys, and a cable between them: they want each other, are started in
//! any order, restarted, the cable is pulled out under a running program, and strangers say hello in crowds.
//!
//! `TOMBOLO_FULL=1` restarts them 50 times, `TOMBOLO_RESTARTS=n` n times.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tombolo_host::testing::left_out;

use crate::common::{PATIENCE, Running, Scratch, TOMBOLO, compiled, needs, path_of, sized};
use crate::programs::lines;

/// How long two nodes that are both there may take to be joined: the longest pause between two dials, a dial that
/// is under way, and a slow machine.
const SOON: Duration = Duration::from_secs(60);

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split_whitespace()).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| format!("ip {words}: {said}"))
}

/// `one` 10.79.0.1 ── cable ── 10.79.0.2 `other`, each with a key, and both keys on its list.
pub struct Machines {
    name: String,
    pub homes: [Scratch; 2],
}

impl Machines {
    fn new() -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let homes = ["one", "other"].map(Scratch::new);
        let machines = Self { name: format!("tombolo-e2e-{}-{number}", std::process::id()), homes };
        for which in 0..2 {
            // One that was left behind by a killed test, whose process had this number.
            let _ = ip(&format!("netns delete {}", machines.place(which)));
            ip(&format!("netns add {}", machines.place(which)))?;
            machines.at(which, "link set lo up")?;
        }
        let [one, other] = [0, 1].map(|which| machines.place(which));
        ip(&format!("link add cable netns {one} type veth peer name cable netns {other}"))?;
        for which in 0..2 {
            machines.at(which, &format!("address add 10.79.0.{}/24 dev cable", which + 1))?;
            machines.at(which, "link set cable up")?;
        }
        let keys = [0, 1].map(|which| machines.start(which, &["keygen"]).wait(PATIENCE).text());
        for home in &machines.homes {
            let folder = home.path().join(".config/tombolo");
            fs::write(folder.join("allow"), keys.concat()).map_err(|error| error.to_string())?;
        }
        Ok(machines)
    }

    pub fn place(&self, which: usize) -> String {
        format!("{}-{which}", self.name)
    }

    pub fn at(&self, which: usize, words: &str) -> Result<(), String> {
        ip(&format!("-n {} {words}", self.place(which)))
    }

    pub fn address(which: usize) -> String {
        format!("udp:10.79.0.{}:7000", which + 1)
    }

    /// Starts `tombolo` at one of them.
    pub fn start(&self, which: usize, arguments: &[&str]) -> Running {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.place(which), TOMBOLO]).args(arguments);
        command.env("HOME", self.homes[which].path()).env_remove("XDG_CONFIG_HOME");
        // The program's own.
        command.env("LC_ALL", "C");
        Running::start(command, Vec::new())
    }

    /// A node that lends, and wants the other. It lends at once, whatever the other does.
    fn node(&self, which: usize) -> Running {
        self.node_with(which, &["--lend", "512M", "--peer", &Self::address(1 - which)])
    }

    /// A node with these arguments.
    pub fn node_with(&self, which: usize, arguments: &[&str]) -> Running {
        let (own, name) = (Self::address(which), format!("node-{which}"));
        let node = self.start(which, &[&["node", "--listen", &own, "--name", &name], arguments].concat());
        node.output_with(" at ", Duration::from_secs(30));
        node
    }

    fn cable(&self, state: &str) {
        self.at(0, &format!("link set cable {state}")).unwrap();
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for which in 0..2 {
            let _ = ip(&format!("netns delete {}", self.place(which)));
        }
    }
}

/// The machines, or `None`, loudly, where there may be none.
pub fn machines() -> Option<Machines> {
    match Machines::new() {
        Ok(machines) => Some(machines),
        Err(trouble) => {
            left_out(&format!("needs root and `ip`: {trouble}"));
            None
        }
    }
}

fn count(node: &Running, text: &str) -> usize {
    node.errors().matches(text).count()
}

pub fn joined_times(node: &Running, times: usize) {
    let since = Instant::now();
    while count(node, " joined ") < times {
        assert!(since.elapsed() < SOON, "not joined {times} times: {}", node.errors());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A counter of a node, as it says itself.
fn counter(machines: &Machines, which: usize, name: &str) -> u64 {
    let words = ["status", "--json", "--counters", &Machines::address(which)];
    let asked = machines.start(1 - which, &words).wait(PATIENCE);
    assert_eq!(asked.code(), 0, "{}", asked.stderr);
    let status: serde_json::Value = serde_json::from_slice(&asked.stdout).expect("JSON");
    status["counters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {status:#}"))
}

/// The links of a node, without the one by which it is asked.
fn links(machines: &Machines, which: usize) -> u64 {
    counter(machines, which, "links_up") - 1
}

fn one_link(machines: &Machines) {
    let since = Instant::now();
    loop {
        let links = [0, 1].map(|which| links(machines, which));
        if links == [1, 1] {
            return;
        }
        assert!(since.elapsed() < SOON, "{links:?} links");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn nodes_that_name_each_other_are_joined_in_any_order_and_after_every_restart() {
    let Some(machines) = machines() else { return };
    for first in 0..2 {
        let lone = machines.node(first);
        lone.errors_with("cannot join", SOON);
        let late = machines.node(1 - first);
        [&lone, &late].into_iter().for_each(|node| joined_times(node, 1));
        one_link(&machines);
    }
    let mut nodes = [0, 1].map(|which| Some(machines.node(which)));
    let mut joined = [1, 1];
    let restarts = tombolo_random::amount("TOMBOLO_RESTARTS").unwrap_or(sized(5, 50));
    for round in 0..restarts as usize {
        for (node, times) in nodes.iter().flatten().zip(joined) {
            joined_times(node, times);
        }
        one_link(&machines);
        let which = round % 2;
        let node = nodes[which].take().expect("it runs");
        // Politely, or so that the other has to find out.
        let is_polite = round % 3 == 0;
        node.signal(if is_polite { Signal::TERM } else { Signal::KILL });
        node.wait(PATIENCE);
        if is_polite && let Some(other) = &nodes[1 - which] {
            other.errors_with("closed by peer", SOON);
        }
        nodes[which] = Some(machines.node(which));
        joined[which] = 1;
        joined[1 - which] += 1;
    }
    for (node, times) in nodes.iter().flatten().zip(joined) {
        joined_times(node, times);
        // Each change is said once.
        assert_eq!(count(node, " lost "), times - 1, "{}", node.errors());
    }
    one_link(&machines);
}

#[test]
fn a_cable_that_was_out_for_seconds_costs_nothing_but_time() {
    needs!("sort");
    for seconds in sized(vec![3], vec![1, 3, 9]) {
        out_for(Duration::from_secs(seconds));
    }
}

/// A program that pages, and what it prints plainly.
struct Sort {
    words: [String; 4],
    output: Vec<u8>,
}

impl Sort {
    /// One for that machine.
    fn new(machines: &Machines, which: usize) -> Self {
        let input = machines.homes[which].file("input");
        fs::write(&input, lines(70_000)).unwrap();
        let words = [path_of("sort"), "--buffer-size=400M".into(), "--parallel=2".into(), input];
        let mut plain = Command::new(&words[0]);
        plain.args(&words[1..]).env("LC_ALL", "C");
        let output = Running::start(plain, Vec::new()).wait(PATIENCE).stdout;
        Self { words, output }
    }
}

fn out_for(time: Duration) {
    let Some(machines) = machines() else { return };
    let sort = Sort::new(&machines, 0);
    let nodes = [0, 1].map(|which| machines.node(which));
    nodes.iter().for_each(|node| joined_times(node, 1));
    let report = machines.homes[0].file("report.json");
    let mut arguments = vec!["run", "--from", "udp:10.79.0.2:7000", "--local", "8M", "--remote", "128M"];
    arguments.extend(["--report", &report, "--"]);
    arguments.extend(sort.words.iter().map(String::as_str));
    let run = machines.start(0, &arguments);
    // It has begun to page.
    wait_for_traffic(&machines, 4 << 20);
    machines.cable("down");
    std::thread::sleep(time);
    machines.cable("up");
    let outcome = run.wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(outcome.stdout == sort.output, "the output differs");
    assert!(!outcome.stderr.contains("gone") && !outcome.stderr.contains("SIGBUS"), "{}", outcome.stderr);
    assert!(Path::new(&report).exists());
    for node in &nodes {
        assert_eq!(count(node, " lost "), 0, "{}", node.errors());
        assert_eq!(count(node, " joined "), 1, "{}", node.errors());
    }
}

/// A lender that is killed and started again has nothing of what it lent: the program need not wait for the
/// outage to hear of that.
#[test]
fn a_lender_that_was_started_again_is_known_by_its_life() {
    needs!("cc");
    let Some(machines) = machines() else { return };
    let lender = machines.node(1);
    let hold = compiled("hold", &[]);
    let run = machines.start(
        0,
        &[
            "run",
            "--from",
            "udp:10.79.0.2:7000",
            "--local",
            "8M",
            "--remote",
            "128M",
            "--outage",
            "1h",
            "--",
            &hold,
            "64",
            "check",
        ],
    );
    run.output_with("holding", Duration::from_secs(120));
    lender.signal(Signal::KILL);
    lender.wait(PATIENCE);
    let _again = machines.node(1);
    let outcome = run.wait(PATIENCE);
    assert_eq!(outcome.code(), 135, "SIGBUS; stderr: {}", outcome.stderr);
    assert!(outcome.stderr.contains("started again"), "{}", outcome.stderr);
}

/// Strangers at the second machine that say hello from ever other addresses, until this is dropped.
struct Strangers {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
    /// The one that has shown the others how to say it.
    _first: Running,
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Strangers {
    /// Number of source addresses. Together they send some thousands of hellos a second.
    const ADDRESSES: u32 = 2048;

    fn start(machines: &Machines) -> Self {
        // The network of the thread alone.
        let network = File::open(format!("/var/run/netns/{}", machines.place(1))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (found, find) = channel();
        let (begun, begin) = channel();
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || {
                let kind = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(network.as_fd(), kind).unwrap();
                let heard = UdpSocket::bind("127.0.0.1:0").unwrap();
                heard.set_read_timeout(Some(PATIENCE)).unwrap();
                found.send(heard.local_addr().unwrap()).unwrap();
                let mut hello = vec![0; 2048];
                let length = heard.recv(&mut hello).unwrap();
                hello.truncate(length);
                begun.send(()).unwrap();
                Self::flood(&hello, &stop)
            }
        });
        // What a stranger says first, to a port that never answers.
        let address = format!("udp:{}", find.recv_timeout(PATIENCE).unwrap());
        let stranger = machines.start(1, &["ping", &address, "--count", "1"]);
        begin.recv_timeout(PATIENCE).unwrap();
        Self { stop, thread: Some(thread), _first: stranger }
    }

    /// Says it from all addresses; how often.
    fn flood(hello: &[u8], stop: &AtomicBool) -> u64 {
        let (mut count, mut sockets) = (0_u64, VecDeque::new());
        let mut hello = hello.to_vec();
        while !stop.load(Ordering::Relaxed) {
            let number = (count % u64::from(Self::ADDRESSES)) as u32;
            let from = std::net::Ipv4Addr::from(0x0A50_0000 + 1 + number);
            let socket = UdpSocket::bind((from, 0)).unwrap();
            // Another one each time, so that none is a repetition.
            hello[16..24].copy_from_slice(&(count + 1).to_le_bytes());
            let _ = socket.send_to(&hello, "10.79.0.1:7000");
            count += 1;
            sockets.push_back(socket);
            // Answers come to somebody for a while.
            if sockets.len() > 256 {
                sockets.pop_front();
            }
            if count.is_multiple_of(16) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        count
    }

    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map_or(0, |thread| thread.join().unwrap())
    }
}

/// A neighbour, a program on the node's memory and newcomers, beside strangers that never go on after their hello.
#[test]
fn strangers_that_say_hello_keep_nobody_out() {
    needs!("sort");
    let Some(machines) = machines() else { return };
    machines.at(1, "route add local 10.80.0.0/16 dev lo").unwrap();
    machines.at(0, "route add 10.80.0.0/16 via 10.79.0.2 dev cable").unwrap();
    let nodes = [0, 1].map(|which| machines.node(which));
    nodes.iter().for_each(|node| joined_times(node, 1));
    let sort = Sort::new(&machines, 1);
    let strangers = Strangers::start(&machines);
    let mut arguments =
        vec!["run", "--from", "udp:10.79.0.1:7000", "--local", "8M", "--remote", "128M", "--"];
    arguments.extend(sort.words.iter().map(String::as_str));
    let run = machines.start(1, &arguments);
    for _ in 0..10 {
        let newcomer = machines.start(1, &["ping", "udp:10.79.0.1:7000", "--count", "3", "--interval", "1"]);
        let outcome = newcomer.wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        assert!(outcome.text().contains("3 sent, 3 answered"), "{}", outcome.text());
    }
    let outcome = run.wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(outcome.stdout == sort.output, "the output differs");
    let said = strangers.end();
    let heard = counter(&machines, 0, "strangers_hellos");
    assert!(said > 1000 && heard > 1000, "{said} hellos, of which {heard} were heard");
    one_link(&machines);
    for node in &nodes {
        assert_eq!((count(node, " lost "), count(node, " joined ")), (0, 1), "{}", node.errors());
    }
}

/// Waits until that much has gone out by the cable.
fn wait_for_traffic(machines: &Machines, bytes: u64) {
    let place = machines.place(0);
    let since = Instant::now();
    loop {
        let words = ["netns", "exec", &place, "cat", "/sys/class/net/cable/statistics/tx_bytes"];
        let output = Command::new("ip").args(words).output().expect("ip");
        let sent = String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().unwrap_or(0);
        if sent > bytes {
            return;
        }
        assert!(since.elapsed() < PATIENCE, "{sent} bytes have gone out");
        std::thread::sleep(Duration::from_millis(5));
    }
}
