//! A port of another machine: namespaces with a cable between them, and keys.

use std::fs;
use std::time::Instant;

use rustix::process::Signal;

use super::{OUTSIDE, OUTSIDE_ADDRESS, Room, TOMBOLO};
use crate::common::{PATIENCE, Running, needs};

const OWNER_ADDRESS: &str = "udp:10.81.0.1:7400";

/// A room in which the namespace of port 2 is another machine, joined to the owner's by a cable of its own.
struct Machines {
    room: Room,
    /// What the owner is told, and what a port at the other machine is.
    serve: Vec<String>,
    attach: Vec<String>,
}

impl Machines {
    fn open() -> Option<Self> {
        let room = Room::prepare(2)?;
        let [owner, other] = ["owner", "2"].map(|name| room.namespace(name));
        super::ip(&format!("link add backbone netns {owner} type veth peer name backbone netns {other}"))
            .unwrap();
        for (name, address) in [("owner", "10.81.0.1/24"), ("2", "10.81.0.2/24")] {
            room.ip(name, "link set backbone up").unwrap();
            room.ip(name, &format!("address add {address} dev backbone")).unwrap();
        }
        let key = |name: &str| {
            let public = room.ok("owner", &[TOMBOLO, "keygen", "--out", &room.scratch.file(name)]);
            public.lines().find(|line| !line.contains(' ')).expect("a key").to_owned()
        };
        let keys = ["owner.key", "port.key", "stranger.key"].map(key);
        fs::write(room.scratch.file("ports"), format!("{}\n", keys[1])).unwrap();
        fs::write(room.scratch.file("owners"), format!("{}\n", keys[0])).unwrap();
        let secure = |key: &str, allow: &str| {
            ["--key", &room.scratch.file(key), "--allow", &room.scratch.file(allow)]
                .map(str::to_owned)
                .to_vec()
        };
        let listen = ["--listen", OWNER_ADDRESS, "--metrics", "127.0.0.1:9184"].map(str::to_owned);
        let serve = [listen.to_vec(), secure("owner.key", "ports")].concat();
        let attach = secure("port.key", "owners");
        Some(Self { room, serve, attach })
    }

    fn serve(&mut self) {
        let words: Vec<&str> = self.serve.iter().map(String::as_str).collect();
        self.room.serve(&words);
    }

    fn words<'a>(&'a self, security: &'a [String], tap: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut words =
            vec![TOMBOLO, "net", "attach", "--from", OWNER_ADDRESS, "--tap", tap, "--name", "far"];
        words.extend(security.iter().map(String::as_str));
        words.extend(more);
        words
    }

    /// Attaches a port at the other machine.
    fn attach(&self, more: &[&str]) -> Running {
        let attached = self.room.start("2", &self.words(&self.attach, "eth0", more));
        attached.output_with("attached", PATIENCE);
        self.room.ip("2", "address add dev eth0 10.80.0.2/24").unwrap();
        self.room.ip("2", "address add dev eth0 fd80::2/64 nodad").unwrap();
        attached
    }

    fn is_listed(&self) -> bool {
        let ports = self.room.json(&["ls", "--json"])["ports"].clone();
        ports.as_array().is_some_and(|ports| ports.iter().any(|port| port["port"]["name"] == "far"))
    }

    fn await_carrier(&self, is_there: bool) {
        let since = Instant::now();
        while self.room.ok("2", &["ip", "link", "show", "eth0"]).contains("NO-CARRIER") == is_there {
            assert!(since.elapsed() < PATIENCE, "a carrier: {}", !is_there);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

const SENDS: &str = "
import socket, hashlib, random, sys
data = random.Random(7).randbytes(24 << 20)
c = socket.create_connection((sys.argv[1], 7000), 20)
c.settimeout(100)
c.sendall(data); c.shutdown(socket.SHUT_WR)
back = hashlib.sha256()
while (part := c.recv(1 << 16)): back.update(part)
assert back.digest() == hashlib.sha256(data).digest(), 'other bytes came back'
print('the same', flush=True)
";
const SENDS_BACK: &str = "
import socket
s = socket.create_server(('', 7000)); print('listening', flush=True)
while True:
    c, _ = s.accept()
    all = bytearray()
    while (part := c.recv(1 << 16)): all += part
    c.sendall(all); c.close()
";

#[test]
fn a_port_of_another_machine_is_one_like_others() {
    needs!("ip", "ping", "python3", "iperf3");
    let Some(mut machines) = Machines::open() else { return };
    machines.serve();
    machines.room.attach(1, &["--mtu", "9000"]);
    let mut attached = machines.attach(&["--mtu", "9000"]);
    for to in [OUTSIDE_ADDRESS, "10.80.0.1", "fd80::100", "fd80::1"] {
        machines.room.reaches(2, to);
    }
    assert!(machines.room.pings(2, OUTSIDE_ADDRESS, &["-M", "do", "-s", "8972"]), "jumbo frames");
    let status = machines.room.json(&["show", "far", "--json"]);
    assert!(status["node"].is_string() && status["process"].is_null(), "{status:#}");
    assert_eq!(status["driver"]["link_detected"], true, "{status:#}");
    let uplink = machines.room.json(&["show", "uplink", "--json"]);
    assert_eq!(uplink["registers"].as_array().map(Vec::len), Some(9), "{uplink:#}");
    const READS: &str = "
import urllib.request
print(urllib.request.urlopen('http://127.0.0.1:9184/metrics', timeout=20).read().decode())
";
    let metrics = machines.room.ok("owner", &["python3", "-c", READS]);
    let is_sent = |line: &str| {
        let of = "tombolo_net_frames_total{uplink=\"cable\",port=\"far\",direction=\"sent\"} ";
        line.strip_prefix(of).is_some_and(|count| count != "0")
    };
    assert!(metrics.lines().any(is_sent), "{metrics}");
    // Bytes come as they were sent: no checksum of the kernel's guards them on the way, as segments have none.
    for (server, address) in [(OUTSIDE, OUTSIDE_ADDRESS), ("1", "10.80.0.1")] {
        let serving = machines.room.start(server, &["python3", "-c", SENDS_BACK]);
        serving.output_with("listening", PATIENCE);
        machines.room.ok("2", &["python3", "-c", SENDS, address]);
    }
    // More than the other side takes is dropped, and nothing stands still.
    let serving = machines.room.start(OUTSIDE, &["iperf3", "-s", "-1", "--forceflush"]);
    serving.output_with("listening", PATIENCE);
    machines.room.ok("2", &["iperf3", "-t", "1", "-u", "-b", "0", "-l", "64", "-c", OUTSIDE_ADDRESS]);
    machines.room.reaches(2, OUTSIDE_ADDRESS);
    // What it may do is checked at the owner.
    machines.room.ok("2", &["ip", "link", "set", "eth0", "address", "02:00:00:00:00:99"]);
    assert!(!machines.room.pings(2, OUTSIDE_ADDRESS, &[]), "it has another hardware address");
    attached.signal(Signal::TERM);
    assert_eq!(attached.wait(PATIENCE).code(), 0);
    let since = Instant::now();
    while machines.is_listed() {
        assert!(since.elapsed() < PATIENCE, "a port that has ended is listed");
    }
    // A port whose frames are announced in groups works as well.
    attached =
        machines.attach(&["--coalesce-frames", "32", "--coalesce-usecs", "500", "--coalesce-adaptive"]);
    machines.room.reaches(2, OUTSIDE_ADDRESS);
    let serving = machines.room.start("1", &["python3", "-c", SENDS_BACK]);
    serving.output_with("listening", PATIENCE);
    machines.room.ok("2", &["python3", "-c", SENDS, "10.80.0.1"]);
    drop((serving, attached));
}

#[test]
fn ports_of_other_machines_and_their_owners_come_and_go() {
    needs!("ip", "ping");
    let Some(mut machines) = Machines::open() else { return };
    // Nobody is there yet.
    let early = machines.room.at("2", &machines.words(&machines.attach, "eth0", &[]));
    assert!(!early.status.success() && !early.stderr.is_empty());
    machines.serve();
    // A stranger's key is on no list.
    let stranger = [
        "--key",
        &machines.room.scratch.file("stranger.key"),
        "--allow",
        &machines.room.scratch.file("owners"),
    ];
    let stranger = stranger.map(str::to_owned);
    let refused = machines.room.at("2", &machines.words(&stranger, "eth0", &[]));
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && complaint.contains("10.81.0.1"), "{complaint}");
    assert!(!machines.is_listed());
    let attached = machines.attach(&[]);
    machines.room.reaches(2, OUTSIDE_ADDRESS);
    // The owner has given it an address; one of its choice could be the gateway's.
    let chosen = ["--mac", "02:00:00:00:00:64"];
    let refused = machines.room.at("2", &machines.words(&machines.attach, "eth1", &chosen));
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && complaint.contains("the owner gives"), "{complaint}");
    let said = machines.room.owner().errors();
    assert!(said.contains("a port is refused") && said.contains("a link is refused"), "{said}");
    // A second one of that name.
    let second = machines.room.at("2", &machines.words(&machines.attach, "eth1", &[]));
    let complaint = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && complaint.contains("another port is called far"), "{complaint}");
    machines.room.reaches(2, OUTSIDE_ADDRESS);
    for signal in [Signal::KILL, Signal::TERM] {
        machines.room.owner().signal(signal);
        machines.room.owner().await_end(PATIENCE);
        machines.await_carrier(false);
        machines.serve();
        machines.await_carrier(true);
        machines.room.reaches(2, OUTSIDE_ADDRESS);
    }
    // A cut that is longer than the outage, and one that is shorter.
    for length_ms in [500, 4000] {
        machines.room.ip("owner", "link set backbone down").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(length_ms));
        machines.room.ip("owner", "link set backbone up").unwrap();
        machines.room.reaches(2, OUTSIDE_ADDRESS);
    }
    // One that was killed is started again at once.
    attached.signal(Signal::KILL);
    machines.room.await_device(2, false);
    drop(attached);
    let attached = machines.attach(&[]);
    machines.room.reaches(2, OUTSIDE_ADDRESS);
    attached.signal(Signal::KILL);
    let since = Instant::now();
    while machines.is_listed() {
        assert!(since.elapsed() < PATIENCE, "a port that was killed is listed");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // Its key may have a link, and no ports; that is looked at again and again.
    let list = machines.room.scratch.file("ports");
    let key = fs::read_to_string(&list).unwrap().trim().to_owned();
    fs::write(&list, format!("{key} may=borrow\n")).unwrap();
    drop(attached);
    let refused = machines.room.at("2", &machines.words(&machines.attach, "eth0", &[]));
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && complaint.contains("may=port"), "{complaint}");
    fs::write(&list, format!("{key} may=port\n")).unwrap();
    let attached = machines.attach(&[]);
    machines.room.reaches(2, OUTSIDE_ADDRESS);
    fs::write(&list, "").unwrap();
    machines.await_carrier(false);
    drop(attached);
}
