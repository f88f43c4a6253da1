//! `tombolo net`: namespaces that share an uplink, a host outside, and real programs between them.

use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tombolo_host::testing::left_out;
use tombolo_host::unix::{SeqpacketSocket, UnixError};

use crate::common::{PATIENCE, Running, Scratch, TOMBOLO};

mod devices;
mod guarded;
mod guests;
mod isolation;
mod machines;
mod sharing;
mod traffic;

/// Runs a command to its end.
fn run(program: &str, words: &[&str]) -> Output {
    let output = Command::new(program).args(words).output();
    output.unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn ip(words: &str) -> Result<(), String> {
    let output = run("ip", &words.split_whitespace().collect::<Vec<_>>());
    let said = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| format!("ip {words}: {said}"))
}

/// A namespace of its own for the owner, one for a host outside, and some for ports.
///
/// ```text
///   port 1 ── eth0 10.80.0.1 ┐
///   port 2 ── eth0 10.80.0.2 ┼── owner ── cable ── outside 10.80.0.100
///   ...                      ┘
/// ```
///
/// IPv6 addresses are fd80::1, fd80::2, ... and fd80::100.
struct Room {
    prefix: String,
    ports: usize,
    scratch: Scratch,
    owner: Option<Running>,
    attached: Vec<Option<Running>>,
}

const OUTSIDE: &str = "outside";
const OUTSIDE_ADDRESS: &str = "10.80.0.100";

impl Room {
    /// Makes all, with cables and addresses, and attaches the ports. `None`: it is said what is missing.
    fn open(ports: usize, serve: &[&str], attach: &[&str]) -> Option<Self> {
        let mut room = Self::prepare(ports)?;
        room.serve(serve);
        for port in 1..=ports {
            room.attach(port, attach);
        }
        Some(room)
    }

    /// As [`Room::open`], without an owner and ports.
    fn prepare(ports: usize) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("tn{}-{number}", std::process::id());
        let attached = (0..=ports).map(|_| None).collect();
        let room = Self { prefix, ports, scratch: Scratch::new("net"), owner: None, attached };
        match room.build() {
            Ok(()) => Some(room),
            Err(reason) => {
                let is_allowed = !["not permitted", "denied"].iter().any(|word| reason.contains(word));
                assert!(!is_allowed, "namespaces that share an uplink: {reason}");
                left_out(&format!("namespaces that share an uplink: {reason}"));
                None
            }
        }
    }

    fn build(&self) -> Result<(), String> {
        for name in self.names() {
            // One that was left behind by a killed test, whose process had this number.
            let _ = ip(&format!("netns delete {}", self.namespace(&name)));
            ip(&format!("netns add {}", self.namespace(&name)))?;
            self.ip(&name, "link set lo up")?;
        }
        self.cable()
    }

    /// Joins the owner with the host outside, which has the same hardware address each time: nobody's neighbour table is wrong after
    /// the cable was replaced.
    fn cable(&self) -> Result<(), String> {
        let [owner, outside] = ["owner", OUTSIDE].map(|name| self.namespace(name));
        ip(&format!(
            "link add cable mtu 9000 netns {owner} type veth peer name cable mtu 9000 address 02:00:00:80:01:00 netns {outside}"
        ))?;
        self.ip("owner", "link set cable up")?;
        self.ip(OUTSIDE, "link set cable up")?;
        self.ip(OUTSIDE, &format!("address add {OUTSIDE_ADDRESS}/24 dev cable"))?;
        self.ip(OUTSIDE, "address add fd80::100/64 dev cable nodad")
    }

    fn names(&self) -> Vec<String> {
        let ports = (1..=self.ports).map(|port| port.to_string());
        ["owner", OUTSIDE].map(str::to_owned).into_iter().chain(ports).collect()
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn ip(&self, name: &str, words: &str) -> Result<(), String> {
        ip(&format!("-n {} {words}", self.namespace(name)))
    }

    /// A command in a namespace.
    fn command(&self, name: &str, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(name)]).args(words).env("LC_ALL", "C");
        command
    }

    /// Runs a command to its end in a namespace.
    fn at(&self, name: &str, words: &[&str]) -> Output {
        self.command(name, words).output().unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The same; it succeeds.
    fn ok(&self, name: &str, words: &[&str]) -> String {
        let output = self.at(name, words);
        let (said, complained) = (&output.stdout, &output.stderr);
        let both = format!("{}{}", String::from_utf8_lossy(said), String::from_utf8_lossy(complained));
        assert!(output.status.success(), "{words:?} at {name}: {both}");
        both
    }

    /// Starts a server in a namespace.
    fn start(&self, name: &str, words: &[&str]) -> Running {
        Running::start(self.command(name, words), Vec::new())
    }

    fn address(&self) -> String {
        format!("shm:{}", self.scratch.file("owner"))
    }

    /// Starts the owner of the uplink.
    fn serve(&mut self, more: &[&str]) {
        let address = self.address();
        let mut words = vec![TOMBOLO, "net", "serve", "--listen", &address, "--uplink", "cable"];
        words.extend(more);
        let owner = self.start("owner", &words);
        owner.output_with("serving", PATIENCE);
        self.owner = Some(owner);
    }

    fn owner(&mut self) -> &mut Running {
        self.owner.as_mut().expect("it serves")
    }

    /// The words that attach a port.
    fn attach_words<'a>(&self, namespace: &'a str, address: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut words =
            vec![TOMBOLO, "net", "attach", "--from", address, "--tap", "eth0", "--netns", namespace];
        words.extend(more);
        words
    }

    /// Attaches a port, and gives it its addresses.
    fn attach(&mut self, port: usize, more: &[&str]) {
        let (namespace, address) = (self.namespace(&port.to_string()), self.address());
        let words = self.attach_words(&namespace, &address, more);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        let attached = Running::start(command, Vec::new());
        attached.output_with("attached", PATIENCE);
        self.attached[port] = Some(attached);
        for address in [format!("10.80.0.{port}/24"), format!("fd80::{port}/64 nodad")] {
            self.ip(&port.to_string(), &format!("address add dev eth0 {address}")).unwrap();
        }
    }

    /// What `tombolo net` prints as JSON.
    fn json(&self, words: &[&str]) -> Value {
        let output = self.net(words);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {output:?}"))
    }

    /// Runs a command of `tombolo net` to its end.
    fn net(&self, words: &[&str]) -> Output {
        let address = self.address();
        run(TOMBOLO, &[&["net"], words, &["--from", &address]].concat())
    }

    fn port_name(&self, port: usize) -> String {
        format!("eth0@{}", self.namespace(&port.to_string()))
    }

    /// How many frames of a port were dropped for this reason.
    fn refused(&self, port: usize, reason: &str) -> u64 {
        let status = self.json(&["show", &self.port_name(port), "--json"]);
        let all = &status["counters"]["refused"];
        all[reason].as_u64().unwrap_or_else(|| panic!("{reason} in {all:#}"))
    }

    /// Until a port has its device, or has none.
    fn await_device(&self, port: usize, is_there: bool) {
        let since = Instant::now();
        while self.at(&port.to_string(), &["ip", "link", "show", "eth0"]).status.success() != is_there {
            assert!(since.elapsed() < PATIENCE, "the device of port {port}: {}", !is_there);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn pings(&self, from: usize, to: &str, more: &[&str]) -> bool {
        let words = [&["ping", "-q", "-c", "3", "-i", "0.05", "-W", "1"], more, &[to]].concat();
        self.at(&from.to_string(), &words).status.success()
    }

    /// Pings until an answer comes: what has just been set up takes its time.
    fn reaches(&self, from: usize, to: &str) {
        let since = Instant::now();
        while !self.pings(from, to, &[]) {
            assert!(since.elapsed() < PATIENCE, "{from} does not reach {to}");
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.attached.clear();
        // An owner that ends by itself removes its sockets.
        if let Some(owner) = self.owner.take() {
            owner.signal(Signal::TERM);
            let (pid, since) = (owner.pid(), Instant::now());
            // A dead one whose parent has not asked yet has no file open.
            let is_there = || std::fs::read_link(format!("/proc/{pid}/exe")).is_ok();
            while is_there() && since.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        for name in self.names() {
            let _ = ip(&format!("netns delete {}", self.namespace(&name)));
        }
    }
}

/// Asks an owner to attach a port with this descriptor; what it answers.
fn attach_with(client: &SeqpacketSocket, port: &Value, descriptor: BorrowedFd<'_>) -> String {
    let request = serde_json::json!({ "version": 1, "ask": { "attach": port } }).to_string();
    let since = Instant::now();
    // It takes descriptors of those whom it has let in.
    while let Err(error) = client.send(&[request.as_bytes()], &[descriptor]) {
        assert!(matches!(error, UnixError::TakesNone) && since.elapsed() < PATIENCE, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut buffer = vec![0; 65536];
    loop {
        match client.receive(&mut buffer) {
            Ok(received) => return String::from_utf8_lossy(&buffer[..received.length_bytes]).into_owned(),
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Processes that have queues of TAP devices open, and their states.
fn holders_of_tap_devices() -> Vec<String> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()) {
        let links = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
        if targets.any(|target| target == std::path::Path::new("/dev/net/tun")) {
            found.push(std::fs::read_to_string(process.join("stat")).unwrap_or_default());
        }
    }
    found
}

/// Lets other users come to what is in a directory.
fn open_to_all(directory: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// What does not come.
const SILENCE: Duration = Duration::from_millis(300);

#[test]
fn a_port_that_cannot_be_is_refused_with_a_reason() {
    crate::common::needs!("ip");
    let Some(mut room) = Room::open(1, &[], &[]) else { return };
    let (namespace, address) = (room.namespace("1"), room.address());
    let other = room.namespace("outside");
    for (namespace, more, reason) in [
        (namespace.as_str(), &[][..], "cannot make the TAP device eth0"),
        (&other, &["--name", &room.port_name(1)], "another port is called"),
        (&other, &["--mac", "01:00:00:00:00:01"], "hardware address"),
        (&other, &["--vlan", "4095"], "no VLAN 4095"),
        (&other, &["--mtu", "20"], "20"),
        (&other, &["--name", "uplink"], "a port cannot be called uplink"),
        (&other, &["--rate", "fast"], "no rate in bits a second"),
        ("there-is-none", &[], "there-is-none"),
    ] {
        let words = room.attach_words(namespace, &address, more);
        let output = run(words[0], &words[1..]);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && complaint.contains(reason), "{more:?}: {complaint}");
        // Nothing is left of it.
        let device = room.at(OUTSIDE, &["ip", "-details", "link", "show", "eth0"]);
        let left = String::from_utf8_lossy(&device.stdout);
        assert!(!device.status.success(), "{more:?}: {left}; held by {:?}", holders_of_tap_devices());
    }
    // Another port with the same hardware address.
    let mac = room.json(&["ls", "--json"])["ports"][0]["port"]["mac"].as_str().unwrap().to_owned();
    let words = room.attach_words(&other, &address, &["--mac", &mac]);
    let complaint = String::from_utf8_lossy(&run(words[0], &words[1..]).stderr).into_owned();
    assert!(complaint.contains(&format!("another port has the address {mac}")), "{complaint}");
    for (words, reason) in [
        (&["show", "none"][..], "there is no port none"),
        (&["set", &room.port_name(1)], "nothing is to be set"),
        (&["set", "uplink", "--weight", "2"], "--rate can be set"),
        (&["set", &room.port_name(1), "--weight", "0"], "0 is not in 1..=1000"),
    ] {
        let output = room.net(words);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && complaint.contains(reason), "{words:?}: {complaint}");
    }
    // Rubbish at the owner's socket disturbs nobody.
    let socket = room.scratch.file("owner");
    for rubbish in [&b"rubbish"[..], b"{}", b"{\"version\":9,\"ask\":\"list\"}", &[0; 60_000]] {
        let client = SeqpacketSocket::connect(socket.as_ref()).unwrap();
        client.send(&[rubbish], &[]).unwrap();
    }
    // A descriptor that is no TAP.
    let client = SeqpacketSocket::connect(socket.as_ref()).unwrap();
    let file = std::fs::File::open("/dev/zero").unwrap();
    let port = room.json(&["ls", "--json"])["ports"][0]["port"].clone();
    let mut port = port.clone();
    port["name"] = "zeroes".into();
    port["mac"] = "02:00:00:00:00:77".into();
    let answer = attach_with(&client, &port, file.as_fd());
    assert!(answer.contains("no queues of a TAP device"), "{answer}");
    room.reaches(1, OUTSIDE_ADDRESS);
    assert_eq!(room.json(&["ls", "--json"])["ports"].as_array().map(Vec::len), Some(1));
    // When it ends, so does the device.
    room.attached[1].as_mut().unwrap().signal(Signal::TERM);
    assert_eq!(room.attached[1].take().unwrap().wait(PATIENCE).code(), 0);
    room.await_device(1, false);
    room.owner().signal(Signal::TERM);
    assert_eq!(room.owner.take().unwrap().wait(PATIENCE).code(), 0);
}
