//! What a port may not do.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use tombolo_host::net::{Interface, PacketSocket};
use tombolo_host::testing::{STRANGER, as_user, left_out};
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket, UnixError};

use super::{OUTSIDE, OUTSIDE_ADDRESS, Room, SILENCE, TOMBOLO, attach_with, open_to_all};
use crate::common::{PATIENCE, Running, needs};

/// Sends frames as they are given, in hexadecimal, so often.
const SENDS: &str = "
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(('eth0', 0))
for _ in range(int(sys.argv[1])):
    try: s.send(bytes.fromhex(sys.argv[2]))
    except OSError as error: print(error)
";

impl Room {
    fn mac(&self, port: usize) -> String {
        let status = self.json(&["show", &self.port_name(port), "--json"]);
        status["port"]["mac"].as_str().expect("an address").replace(':', "")
    }

    fn send(&self, port: usize, count: usize, frame: &str) {
        self.ok(&port.to_string(), &["python3", "-c", SENDS, &count.to_string(), frame]);
    }

    /// Watches what comes to a device.
    fn watch(&self, name: &str, device: &str) -> Running {
        let words = ["tcpdump", "-e", "-n", "-l", "--immediate-mode", "-i", device, "-Q", "in"];
        let watching = self.start(name, &words);
        watching.errors_with("listening on", PATIENCE);
        watching
    }

    /// Until that many frames of a port were dropped for this reason.
    fn await_refused(&self, port: usize, reason: &str, count: u64) {
        let since = Instant::now();
        while self.refused(port, reason) < count {
            let all = self.json(&["show", &self.port_name(port), "--json"]);
            assert!(since.elapsed() < PATIENCE, "{reason}: {all:#}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_port_speaks_for_itself_only() {
    needs!("ip", "ping", "python3");
    let Some(mut room) = Room::open(2, &[], &[]) else { return };
    room.attached[2] = None;
    room.attach(2, &["--address", "10.80.0.2,fd80::2"]);
    room.reaches(2, OUTSIDE_ADDRESS);
    room.reaches(2, "fd80::100");
    room.reaches(1, "10.80.0.2");
    let [one, two] = [room.mac(1), room.mac(2)];
    let watching = room.watch("1", "eth0");
    // Another source, the other's, that of a group; for nobody; of another virtual network; longer than its port sends,
    // though its device lets it.
    let rest = format!("88b5{}", "00".repeat(46));
    // A packet of its own, of no known protocol.
    let packet = format!("08004500002e0000000040fd00000a5000020a500001{}", "00".repeat(26));
    room.send(2, 5, &format!("{one}020000000099{packet}"));
    room.send(2, 5, &format!("ffffffffffff{one}{packet}"));
    room.send(2, 5, &format!("ffffffffffff010000000001{packet}"));
    room.await_refused(2, "wrong_source", 15);
    // What is neither IP nor ARP, by type, by length (802.2), and with SNAP.
    room.send(2, 5, &format!("{one}{two}{rest}"));
    room.send(2, 5, &format!("{one}{two}0026424203{}", "00".repeat(43)));
    room.send(2, 5, &format!("{one}{two}0026aaaa030000000800{}", "00".repeat(38)));
    room.await_refused(2, "other_protocol", 15);
    room.send(2, 5, &format!("0180c2000001{two}8808{}", "00".repeat(46)));
    room.await_refused(2, "link_local", 5);
    room.send(2, 5, &format!("{two}{two}{packet}"));
    room.await_refused(2, "unknown_destination", 5);
    room.send(2, 5, &format!("{one}{two}81000005{packet}"));
    room.await_refused(2, "wrong_vlan", 5);
    room.ip("2", "link set eth0 mtu 9000").unwrap();
    room.send(2, 5, &format!("{one}{two}88b5{}", "00".repeat(4000)));
    room.await_refused(2, "too_long", 5);
    room.ip("2", "link set eth0 mtu 1500").unwrap();
    // ARP for an address that it does not have, and with another's hardware address.
    let arp = |mac: &str, ip: &str| {
        format!("ffffffffffff{two}080600010800060400 02{mac}{ip}{one}0a500001").replace(' ', "")
    };
    room.send(2, 5, &arp(&two, "0a500063"));
    room.await_refused(2, "wrong_address", 5);
    let spoofed = room.refused(2, "wrong_source");
    room.send(2, 5, &arp(&one, "0a500002"));
    room.await_refused(2, "wrong_source", spoofed + 5);
    std::thread::sleep(SILENCE);
    let came = watching.output();
    for spoofed in ["0x88b5", "0x8808", "10.80.0.99", "02:00:00:00:00:99"] {
        assert!(!came.contains(spoofed), "{spoofed} came through: {came}");
    }
    // It would have seen them.
    room.send(2, 1, &format!("{one}{two}{packet}"));
    watching.output_with("ip-proto-253", PATIENCE);
    // Its own address is changed, and another one added, by the programs in its namespace.
    room.ip("2", "address add 10.80.0.77/24 dev eth0").unwrap();
    assert!(!room.pings(2, OUTSIDE_ADDRESS, &["-I", "10.80.0.77"]), "it speaks as 10.80.0.77");
    assert!(room.pings(2, OUTSIDE_ADDRESS, &["-I", "10.80.0.2"]));
    room.ip("2", "link set eth0 address 02:00:00:00:00:99").unwrap();
    assert!(!room.pings(2, OUTSIDE_ADDRESS, &[]), "it speaks with another hardware address");
    // The other one noticed nothing, and can be told to be as free.
    assert!(room.pings(1, OUTSIDE_ADDRESS, &[]));
    room.attached[2] = None;
    room.attach(2, &["--address", "10.80.0.2,fd80::2"]);
    room.ip("2", "address add 10.80.0.77/24 dev eth0").unwrap();
    let set = room.net(&["set", &room.port_name(2), "--any-address"]);
    assert!(set.status.success(), "{set:?}");
    room.reaches(2, OUTSIDE_ADDRESS);
    assert!(room.pings(2, OUTSIDE_ADDRESS, &["-I", "10.80.0.77"]));
}

/// Offload headers that a program makes up itself, by a packet socket: what the kernel lets through and does not fit is
/// dropped, counted, and disturbs nobody.
#[test]
fn broken_offload_headers_disturb_nobody() {
    needs!("ip", "ping", "python3");
    const SENDS_HEADERS: &str = "
import socket, random, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(('eth0', 0))
s.setsockopt(263, 15, 1) # SOL_PACKET, PACKET_VNET_HDR
random.seed(int(sys.argv[2]))
mac = bytes.fromhex(sys.argv[1])
sent = 0
for n in range(20000):
    header = bytes(random.choice([0, 1, 1, 3, 4, 5, 20, 34, 54, 255, random.randrange(256)]) for _ in range(10))
    length = random.choice([14, 15, 33, 54, 60, 1514, 1515, 3000, 20000])
    body = bytes([8, 0, 0x45]) + bytes(8) + bytes([random.choice([6, 17, 1])]) + bytes(22) + bytes([0x50]) + bytes(length)
    try: s.send(header + b'\\xff' * 6 + mac + body[:max(0, length - 12)]); sent += 1
    except OSError: pass
print('sent', sent)
";
    const NEARLY_RIGHT: &str = "
import random, socket, struct, subprocess
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.setsockopt(263, 15, 1) # PACKET_VNET_HDR
s.bind(('eth0', 0))
mac = open('/sys/class/net/eth0/address').read().strip().replace(':', '')
ethernet = bytes.fromhex('ffffffffffff' + mac)
def ipv4(protocol, rest): return struct.pack('>BBHHHBBH4s4s', 0x45, 0, 20 + len(rest), 7, 0, 64, protocol, 0,
                                            bytes([10, 80, 0, 1]), bytes([10, 80, 0, 100])) + rest
def ipv6(protocol, rest): return struct.pack('>IHBB16s16s', 6 << 28, len(rest), protocol, 64,
                                            bytes(15) + bytes([1]), bytes(15) + bytes([2])) + rest
tcp = struct.pack('>HHIIHHHH', 1, 2, 3, 4, 5 << 12 | 0x10, 100, 0, 0)
udp = struct.pack('>HHHH', 1, 2, 8 + 4000, 0)
bodies = [b'\\x08\\x00' + ipv4(6, tcp + bytes(4000)), b'\\x86\\xdd' + ipv6(6, tcp + bytes(4000)),
          b'\\x08\\x00' + ipv4(17, udp + bytes(4000)), b'\\x86\\xdd' + ipv6(17, udp + bytes(4000)),
          b'\\x08\\x06' + bytes(46), b'\\x08\\x00' + bytes(60), b'\\x08\\x00' + ipv4(6, tcp)[:30], b'', b'\\x08',
          b'\\x81\\x00\\x00\\x05\\x08\\x00' + ipv4(6, tcp + bytes(3000)), b'\\x88\\xa8' + bytes(70), bytes(9200)]
numbers = [0, 1, 13, 14, 20, 34, 54, 74, 100, 1000, 1448, 4054, 8999, 32767, 65535]
random.seed(5)
taken = 0
for round in range(12000):
    body = random.choice(bodies)
    if round % 3 == 0 and body:
        body = bytearray(body); body[random.randrange(len(body))] ^= 1 << random.randrange(8)
    header = struct.pack('<BBHHHH', random.choice([0, 1, 1, 2, 3, 255]), random.choice([0, 1, 3, 4, 5, 0x81, 0x84, 77]),
                         *(random.choice(numbers) for _ in range(4)))
    if round % 2 == 0: # nearly right
        four = random.choice([0, 1])
        header = struct.pack('<BBHHHH', 1, random.choice([1, 4, 5]), random.choice([0, 54, 74, 42, 62, 4000]),
                             random.choice([1000, 1448, 8000]), random.choice([34, 54, 4000]), random.choice([6, 16]))
    try: taken += s.send(header + ethernet + bytes(body)) > 0
    except OSError: pass
print(taken)
";
    let Some(room) = Room::open(3, &[], &[]) else { return };
    room.reaches(1, OUTSIDE_ADDRESS);
    let colon_free = room.mac(2);
    let pinging = room.start("1", &["ping", "-i", "0.05", "-c", "60", "-q", "10.80.0.3"]);
    for seed in ["1", "2"] {
        let said = room.ok("2", &["python3", "-c", SENDS_HEADERS, &colon_free, seed]);
        assert!(!said.contains("sent 0"), "{said}");
    }
    let segments = |room: &Room| {
        let status = room.json(&["show", &room.port_name(2), "--json"]);
        status["counters"]["sent"]["segments"].as_u64().expect("a number")
    };
    let before = segments(&room);
    let taken: u64 = room.ok("2", &["python3", "-c", NEARLY_RIGHT]).trim().parse().unwrap();
    let sent = segments(&room) - before;
    // What is right goes through.
    assert!(taken > 500 && sent > 100, "{sent} of {taken}");
    // What did not fit was dropped here, or by the kernel before.
    let dropped = ["bad_offload", "malformed", "too_long"].map(|reason| room.refused(2, reason));
    assert!(dropped.iter().sum::<u64>() > 0, "{dropped:?}");
    let outcome = pinging.wait(PATIENCE);
    assert!(outcome.text().contains(" 0% packet loss"), "{}", outcome.text());
    room.reaches(2, "10.80.0.3");
}

/// What a kernel writes for an offloaded checksum may be anything, anywhere: the sender chooses what is summed, and where the sum is put. So it
/// could turn an address of the sender's into another's after the frame was looked at.
#[test]
fn no_checksum_turns_an_address_into_another() {
    needs!("ip", "ping", "python3", "tcpdump");
    const SPOOFS: &str = "
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.setsockopt(263, 15, 1) # SOL_PACKET, PACKET_VNET_HDR
s.bind(('eth0', 0))
own = bytes.fromhex(open('/sys/class/net/eth0/address').read().strip().replace(':', ''))
every = bytes([255] * 6)
def total(data):
    data += bytes(len(data) % 2)
    words = sum(struct.unpack('>%dH' % (len(data) // 2), data))
    while words > 0xffff: words = (words >> 16) + (words & 0xffff)
    return words
# The last two bytes are chosen so that the sum of all from `start` on becomes `wanted`.
def send(frame, start, offset, wanted):
    frame += bytes(len(frame) % 2)
    spare = (0xffff - wanted - total(frame[start:])) % 0xffff
    frame += struct.pack('>H', spare)
    assert 0xffff - total(frame[start:]) == wanted
    s.send(struct.pack('<BBHHHH', 1, 0, 0, 0, start, offset) + frame)
def arp(address): return every + own + struct.pack('>HHHBBH', 0x806, 1, 0x800, 6, 4, 2) + own + bytes(address) + every + bytes([10, 80, 0, 100])
send(arp([10, 80, 0, 2]) + bytes(18), 20, 10, 0x0001)
# The two bytes that are chosen belong to it.
def udp(to, data): return struct.pack('>HHHH', 5, to, 8 + len(data) + 2, 0) + data
def ipv4(rest): return struct.pack('>HBBHHHBBH4s4s', 0x800, 0x45, 0, 20 + len(rest) + 2, 1, 0, 64, 17, 0, bytes([10, 80, 0, 2]), bytes([10, 80, 0, 100])) + rest
send(every + own + ipv4(udp(9, b'not from 10.80.0.2')), 20, 8, 0x0063)
mine = socket.inet_pton(socket.AF_INET6, 'fd80::2')
icmp = struct.pack('>BBHBBHII', 0, 0, 0, 64, 0, 1800, 0, 0)
send(bytes.fromhex('333300000001') + own + struct.pack('>HIHBB', 0x86dd, 6 << 28, len(icmp), 58, 255) + mine + socket.inet_pton(socket.AF_INET6, 'ff02::1') + icmp, 54, 0, 0x8600)
# And one that is its own.
send(every + own + ipv4(udp(10, b'its own.')), 34, 6, 0x1234)
print('sent')
";
    let Some(mut room) = Room::open(2, &[], &[]) else { return };
    room.attached[2] = None;
    room.attach(2, &["--address", "10.80.0.2,fd80::2"]);
    room.reaches(2, OUTSIDE_ADDRESS);
    let watching = [room.watch("1", "eth0"), room.watch(OUTSIDE, "cable")];
    let said = room.ok("2", &["python3", "-c", SPOOFS]);
    assert_eq!(said.trim(), "sent");
    room.await_refused(2, "wrong_address", 2);
    room.await_refused(2, "not_its_to_offer", 1);
    for watching in &watching {
        watching.output_with("10.80.0.2.5 > 10.80.0.100.10", PATIENCE);
        let came = watching.output();
        for spoofed in ["10.80.0.1 is-at", "10.80.0.99", "router advertisement"] {
            assert!(!came.contains(spoofed), "{spoofed} came through: {came}");
        }
    }
}

/// A queue all of whose frames the kernel cannot describe takes its turns as others do, and is counted.
#[test]
fn frames_that_cannot_be_described_take_their_turns() {
    needs!("ip", "ping", "python3");
    const ATTACHES: &str = "
import fcntl, json, socket, struct, subprocess, sys
tap = open('/dev/net/tun', 'r+b', buffering=0)
fcntl.ioctl(tap, 0x400454ca, struct.pack('16sH22x', b'bad', 0x0002 | 0x1000 | 0x4000)) # TUNSETIFF: TAP, NO_PI, VNET_HDR
import os; os.set_blocking(tap.fileno(), False)
owner = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
owner.connect(sys.argv[1])
socket.send_fds(owner, [json.dumps({'version': 1, 'ask': {'attach': json.loads(sys.argv[2])}}).encode()], [tap.fileno()])
print(owner.recv(65536).decode(), flush=True)
fcntl.ioctl(tap, 0x400454d8, struct.pack('i', 1 << 20)) # TUNSETVNETHDRSZ: no buffer is as large
subprocess.run(['ip', 'link', 'set', 'bad', 'up'], check=True)
flood = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
flood.bind(('bad', 0))
frame = b'\\xff' * 6 + bytes([2, 0, 0, 0, 0, 0x77]) + bytes(100)
print('floods', flush=True)
while True:
    try: flood.send(frame)
    except OSError: pass
";
    let Some(room) = Room::open(2, &[], &[]) else { return };
    let mut port = room.json(&["show", &room.port_name(1), "--json"])["port"].clone();
    (port["name"], port["mac"]) = ("bad".into(), "02:00:00:00:00:77".into());
    let flood = room.start("1", &["python3", "-c", ATTACHES, &room.scratch.file("owner"), &port.to_string()]);
    flood.output_with("floods", PATIENCE);
    room.reaches(2, OUTSIDE_ADDRESS);
    room.reaches(2, "10.80.0.1");
    let since = Instant::now();
    let malformed = || {
        let status = room.json(&["show", "bad", "--json"]);
        status["counters"]["refused"]["malformed"].as_u64().unwrap_or(0)
    };
    while malformed() < 1000 {
        assert!(since.elapsed() < PATIENCE, "{}: {} {}", malformed(), flood.output(), flood.errors());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ports of different virtual networks do not meet; a trunk, and the outside, see both with their tags.
#[test]
fn virtual_networks_are_apart() {
    needs!("ip", "tcpdump", "python3");
    let Some(mut room) = Room::prepare(4) else { return };
    room.serve(&[]);
    for (port, more) in
        [(1, ["--vlan", "5"]), (2, ["--vlan", "5"]), (3, ["--vlan", "6"]), (4, ["--trunk", "5,6"])]
    {
        room.attach(port, &more);
    }
    let watching = ["1", "2", "3", "4", OUTSIDE].map(|name| {
        let device = if name == OUTSIDE { "cable" } else { "eth0" };
        (name, room.watch(name, device))
    });
    let outside = "020000000100";
    // Each is known by its type: who sends, with what tag, and who gets it, with what tag.
    let (none, five, six) = (None, Some(5), Some(6));
    let cases = [
        ("1", none, "88b5", &[("2", none), ("4", five), (OUTSIDE, five)][..]),
        ("3", none, "88b6", &[("4", six), (OUTSIDE, six)]),
        ("4", five, "88b7", &[("1", none), ("2", none), (OUTSIDE, five)]),
        ("4", six, "88b8", &[("3", none), (OUTSIDE, six)]),
        (OUTSIDE, five, "88b9", &[("1", none), ("2", none), ("4", five)]),
        (OUTSIDE, Some(7), "88ba", &[]),
        (OUTSIDE, none, "88bb", &[]),
        ("4", Some(7), "88bc", &[]),
        ("4", none, "88bd", &[]),
        ("1", five, "88be", &[]),
    ];
    for (from, tag, kind, _) in cases {
        let source = if from == OUTSIDE { outside.to_owned() } else { room.mac(from.parse().unwrap()) };
        let tag = tag.map(|tag| format!("8100{tag:04x}")).unwrap_or_default();
        let frame = format!("ffffffffffff{source}{tag}{kind}{}", "00".repeat(46));
        let device = if from == OUTSIDE { "cable" } else { "eth0" };
        room.ok(from, &["python3", "-c", &SENDS.replace("eth0", device), "1", &frame]);
    }
    for (from, _, kind, to) in cases {
        for (name, vlan) in to {
            let (_, watching) = watching.iter().find(|(known, _)| known == name).expect("it is watched");
            let output = watching.output_with(&format!("(0x{kind})"), PATIENCE);
            let line = output.lines().find(|line| line.contains(&format!("(0x{kind})"))).expect("just seen");
            let seen = line.split_once("vlan ").map(|(_, rest)| rest.split(',').next().unwrap_or_default());
            assert_eq!(
                seen,
                vlan.map(|vlan| vlan.to_string()).as_deref(),
                "{kind} from {from} at {name}: {line}"
            );
        }
    }
    std::thread::sleep(SILENCE);
    for (from, _, kind, to) in cases {
        for (name, watching) in &watching {
            let comes = to.iter().any(|(known, _)| known == name);
            assert_eq!(
                watching.output().contains(&format!("(0x{kind})")),
                comes,
                "{kind} from {from} at {name}"
            );
        }
    }
}

/// The processor time of a process's threads that move frames, and that write aside.
fn spent_ns(pid: u32) -> [u64; 2] {
    let mut spent = [0; 2];
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let time = read("schedstat").split_whitespace().next().and_then(|time| time.parse::<u64>().ok());
        for (spent, name) in spent.iter_mut().zip(["frames", "frames aside"]) {
            if read("comm").trim() == name {
                *spent += time.unwrap_or(0);
            }
        }
    }
    spent
}

/// Each frame for a port goes through the filters that its programs have made, while the owner writes it.
#[test]
fn a_port_whose_filters_take_long_keeps_no_other_waiting() {
    needs!("ip", "ping", "tc", "iperf3");
    let Some(room) = Room::open(3, &[], &[]) else { return };
    room.reaches(2, "10.80.0.1");
    room.ok("1", &["tc", "qdisc", "add", "dev", "eth0", "clsact"]);
    // Some 8 ns each.
    let filters: String = (0..20_000)
        .map(|number| {
            let (high, low) = (number / 250, number % 250);
            format!(
                "filter add dev eth0 ingress prio 1 protocol ip u32 match ip src 1.2.{high}.{low}/32 flowid 1:1\n"
            )
        })
        .collect();
    let file = room.scratch.file("filters");
    std::fs::write(&file, filters).unwrap();
    room.ok("1", &["tc", "-batch", &file]);
    let is_aside = || room.json(&["show", &room.port_name(1), "--json"])["is_written_aside"] == true;
    assert!(!is_aside(), "nothing was sent there yet");
    let before = spent_ns(room.owner.as_ref().unwrap().pid());
    let flood = ["ping", "-q", "-f", "-c", "2000", "10.80.0.1"];
    let said = room.ok("2", &flood);
    assert!(said.contains("2000 received"), "{said}");
    assert!(is_aside(), "{:#}", room.json(&["show", &room.port_name(1), "--json"]));
    // That has taken the time of a thread of its own, and not of the one that serves all.
    let after = spent_ns(room.owner.as_ref().unwrap().pid());
    let [frames, aside] = [0, 1].map(|thread: usize| after[thread] - before[thread]);
    assert!(aside > frames, "{aside} ns aside, {frames} ns for all frames");
    // Segments go there, too, and others are served.
    let bulk = room.start("1", &["iperf3", "-s", "-1", "--forceflush"]);
    bulk.output_with("listening", PATIENCE);
    room.ok("2", &["iperf3", "-c", "10.80.0.1", "-n", "4M"]);
    room.reaches(2, "10.80.0.3");
    room.reaches(2, OUTSIDE_ADDRESS);
    assert!(is_aside());
    let metered = room.json(&["show", &room.port_name(1), "--json"]);
    // The sender ends when all is on its way.
    assert!(metered["counters"]["received"]["bytes"].as_u64() > Some(1 << 20), "{metered:#}");
    assert!(room.json(&["show", &room.port_name(2), "--json"])["is_written_aside"] == false);
    // It is as the others once that is over.
    room.ok("1", &["tc", "qdisc", "del", "dev", "eth0", "clsact"]);
    let since = Instant::now();
    while is_aside() {
        assert!(since.elapsed() < PATIENCE, "it stays aside");
        room.reaches(2, "10.80.0.1");
    }
    room.reaches(1, OUTSIDE_ADDRESS);
}

/// Ports that may reach the uplink only.
#[test]
fn private_ports_do_not_reach_each_other() {
    needs!("ip", "ping");
    let Some(room) = Room::open(2, &["--mode", "private"], &[]) else { return };
    room.reaches(1, OUTSIDE_ADDRESS);
    room.reaches(2, OUTSIDE_ADDRESS);
    assert!(!room.pings(1, "10.80.0.2", &[]));
}

/// A user without privileges attaches the port that is theirs, in namespaces of their own, and gets what the owner says.
#[test]
fn another_user_attaches_what_is_theirs_and_no_more() {
    needs!("ip", "ping", "setpriv", "unshare");
    let Some(mut room) = Room::prepare(1) else { return };
    let probe = SeqpacketListener::bind(room.scratch.file("probe").as_ref()).unwrap();
    if !probe.let_all_connect().unwrap() {
        return left_out("ports of other users need SO_PASSRIGHTS (Linux 6.16)");
    }
    let ports = room.scratch.file("ports");
    let list = |lines: &str| std::fs::write(&ports, lines).unwrap();
    list(
        "theirs from=user:65534 rate=50M weight=3 mac=02:00:00:00:00:41\nspare from=user:65534 mac=02:00:00:00:00:43\n",
    );
    open_to_all(room.scratch.path());
    room.serve(&["--ports", &ports]);
    room.attach(1, &[]);
    let address = room.address();
    let tun = room.scratch.file("tun");
    let attach = |more: &str| {
        let script = format!(
            "{TOMBOLO} net attach --from {address} {more} & \
             until ip address add dev eth0 10.80.0.41/24; do sleep 0.1; done 2>/dev/null; \
             until ping -q -c 1 -W 1 10.80.0.1; do sleep 0.1; done; echo reached; wait"
        );
        // Where only root may open the device of TAPs, they have another one, as udev would make it.
        let outer = format!(
            "[ -e {tun} ] || mknod -m 666 {tun} c 10 200; mount --bind {tun} /dev/net/tun; \
             exec setpriv --reuid 65534 --regid 65534 --clear-groups \
             unshare --user --net --map-root-user sh -c '{script}'"
        );
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "sh", "-c", &outer]);
        Running::start(command, Vec::new())
    };
    let mac = "--mac 02:00:00:00:00:41";
    // Neither another's name, nor what is shared, nor another address.
    for (more, reason) in [
        ("--tap eth0 --name other", "user:65534 may not attach a port that is called other"),
        (&format!("--tap eth0 --name theirs --weight 9 {mac}"), "a weight only the uplink's owner gives"),
        (
            &format!("--tap eth0 --name theirs --vlan 5 {mac}"),
            "virtual networks only the uplink's owner gives",
        ),
        ("--tap eth0 --name theirs --mac 02:00:00:00:00:42", "has the address 02:00:00:00:00:41"),
    ] {
        attach(more).errors_with(reason, PATIENCE);
    }
    let theirs = attach(&format!("--tap eth0 --name theirs {mac}"));
    theirs.output_with("reached", PATIENCE);
    let status = room.json(&["show", "theirs", "--json"]);
    assert_eq!(status["user"], 65534, "{status:#}");
    assert_eq!(status["is_written_aside"], true, "{status:#}");
    assert_eq!(
        (&status["port"]["weight"], &status["port"]["rate_bits"]),
        (&3.into(), &50_000_000.into()),
        "{status:#}"
    );
    // Nor an interface: they cannot open one as `attach` does, but can pass a socket that somebody else has opened.
    let socket = PacketSocket::open(&Interface::open("lo").unwrap()).unwrap();
    let mut port = status["port"].clone();
    (port["name"], port["weight"], port["mac"]) = ("spare".into(), 1.into(), "02:00:00:00:00:43".into());
    let owner = room.scratch.file("owner");
    let answer = as_user(STRANGER, || {
        let client = SeqpacketSocket::connect(owner.as_ref()).unwrap();
        attach_with(&client, &port, socket.as_fd())
    });
    assert!(answer.contains("only the uplink's owner attaches interfaces"), "{answer}");
    // Nor do they stay connected without a port.
    let idle = as_user(STRANGER, || SeqpacketSocket::connect(owner.as_ref()).unwrap());
    let since = Instant::now();
    while idle.receive(&mut [0; 64]).is_err_and(|error| matches!(error, UnixError::WouldBlock)) {
        assert!(since.elapsed() < PATIENCE, "it is connected still");
        std::thread::sleep(Duration::from_millis(20));
    }
    // One whom the file does not name is told so, and passes nothing before.
    let answer = as_user(STRANGER - 1, || {
        let client = SeqpacketSocket::connect(owner.as_ref()).unwrap();
        let since = Instant::now();
        loop {
            match client.send(&[b"take this"], &[socket.as_fd()]) {
                Err(UnixError::TakesNone) => {}
                Err(UnixError::Closed) => break,
                other => panic!("{other:?}"),
            }
            assert!(since.elapsed() < PATIENCE, "it is connected still");
        }
        let mut buffer = [0; 1024];
        let received = client.receive(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..received.length_bytes]).into_owned()
    });
    assert!(answer.contains("user:65533 is none of them"), "{answer}");
    // They ask and change nothing.
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", TOMBOLO, "net"];
    for words in [&["ls"][..], &["set", "theirs", "--weight", "1000"]] {
        let output = room.at("1", &[&user, words, &["--from", &address]].concat());
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && complaint.contains("only the uplink's owner"), "{complaint}");
    }
    // What the file says now is what the port has when its owner is back.
    list("theirs from=user:65534 weight=5 mac=02:00:00:00:00:41\n");
    room.owner().signal(rustix::process::Signal::KILL);
    room.owner.take().unwrap().wait(PATIENCE);
    room.serve(&["--ports", &ports]);
    let since = Instant::now();
    let weight = |room: &Room| {
        let all = room.json(&["ls", "--json"])["ports"].clone();
        let of = |port: &serde_json::Value| port["port"]["name"] == "theirs" && port["port"]["weight"] == 5;
        all.as_array().is_some_and(|all| all.iter().any(of))
    };
    while !weight(&room) {
        assert!(since.elapsed() < PATIENCE, "it does not come back: {}", theirs.errors());
        std::thread::sleep(Duration::from_millis(20));
    }
    // A file that says nothing lets nobody in, and is no start.
    list("theirs weight\n");
    attach(&format!("--tap eth0 --name theirs {mac}"))
        .errors_with("the owner lets in its own user", PATIENCE);
    let unused = format!("shm:{}", room.scratch.file("unused"));
    let again = room
        .at("owner", &[TOMBOLO, "net", "serve", "--uplink", "cable", "--listen", &unused, "--ports", &ports]);
    assert!(
        String::from_utf8_lossy(&again.stderr).contains("line 1: `weight` is no NAME=VALUE"),
        "{again:?}"
    );
}
