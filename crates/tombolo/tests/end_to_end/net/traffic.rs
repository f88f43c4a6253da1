//! Ordinary traffic of ordinary programs.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{OUTSIDE, OUTSIDE_ADDRESS, Room, SILENCE, open_to_all};
use crate::common::{PATIENCE, Running, needs, sized};

#[test]
fn ports_and_a_host_outside_reach_each_other() {
    needs!("ip", "ping", "iperf3");
    let Some(room) = Room::open(4, &[], &["--mtu", "9000"]) else { return };
    for to in [OUTSIDE_ADDRESS, "10.80.0.2", "10.80.0.4", "fd80::100", "fd80::3"] {
        room.reaches(1, to);
    }
    let jumbo = ["-M", "do", "-s", "8972"];
    assert!(room.pings(2, OUTSIDE_ADDRESS, &jumbo) && room.pings(3, "10.80.0.4", &jumbo), "jumbo frames");
    // Both ways, between ports and with outside, TCP and UDP, one flow and several.
    for (server, address) in [("2", "10.80.0.2"), (OUTSIDE, OUTSIDE_ADDRESS), (OUTSIDE, "fd80::100")] {
        let udp = ["-u", "-b", "200M", "-l", "1400"];
        for more in [&[][..], &["-R"], &["-P", "4"], &udp, &[&["-R"], &udp[..]].concat()] {
            let serving = room.start(server, &["iperf3", "-s", "-1", "--forceflush"]);
            serving.output_with("listening", PATIENCE);
            let words = [&["iperf3", "-J", "-t", "1", "-c", address], more].concat();
            let found: serde_json::Value = serde_json::from_str(&room.ok("1", &words)).unwrap();
            let end = &found["end"];
            if more.contains(&"-u") {
                let number = |name: &str| end["sum"][name].as_u64().expect("a number");
                assert!(number("packets") - number("lost_packets") > 1000, "{words:?}: {end:#}");
            } else {
                assert!(end["sum_received"]["bytes"].as_u64() > Some(1_000_000), "{words:?}: {end:#}");
            }
            serving.wait(PATIENCE);
        }
    }
    let status = room.json(&["show", &room.port_name(1), "--json"]);
    let sent = &status["counters"]["sent"];
    assert!(sent["frames"].as_u64() > sent["segments"].as_u64(), "nothing was sent in segments: {status:#}");
    assert!(sent["by_size"][6].as_u64() > Some(0), "no long frames: {status:#}");
}

/// A file comes whole from a web server outside and from one at a port.
#[test]
fn a_file_is_fetched_from_nginx() {
    needs!("ip", "nginx", "wget");
    let Some(room) = Room::open(2, &[], &[]) else { return };
    let folder = room.scratch.path();
    let mut contents = vec![0; 24 << 20];
    tombolo_random::Random::new(1).fill(&mut contents);
    fs::write(folder.join("file"), &contents).unwrap();
    open_to_all(folder);
    for (server, address) in [(OUTSIDE, OUTSIDE_ADDRESS), ("2", "10.80.0.2")] {
        let pid = folder.join("nginx.pid");
        let text = format!(
            "daemon off; pid {}; error_log stderr; events {{}}\n\
             http {{ access_log off; server {{ listen 80; listen [::]:80; root {}; }} }}\n",
            pid.display(),
            folder.display()
        );
        let file = room.scratch.file("nginx.conf");
        fs::write(&file, text).unwrap();
        let serving = room.start(server, &["nginx", "-c", &file]);
        let got = room.scratch.file("got");
        let url = format!("http://{address}/file");
        let fetch = [
            "wget",
            "-q",
            "-t",
            "50",
            "--retry-connrefused",
            "--waitretry",
            "1",
            "-T",
            "20",
            "-O",
            &got,
            &url,
        ];
        room.ok("1", &fetch);
        assert!(fs::read(&got).unwrap() == contents, "the file from {server} differs");
        serving.signal(Signal::TERM);
        serving.wait(PATIENCE);
    }
}

/// Datagrams that a program sends many at a time, of 1 to 40 bytes each. Kernels cut no segment into so short ones.
#[test]
fn datagrams_of_a_few_bytes_that_are_sent_together_arrive_once_each() {
    needs!("ip", "ping", "python3");
    const RECEIVES: &str = "
import collections, socket, sys
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20) # SO_RCVBUFFORCE
s.bind(('::', 5555))
s.settimeout(float(sys.argv[1]))
print('listening', flush=True)
came = collections.Counter()
while True:
    try: datagram = s.recv(65536)
    except TimeoutError: sys.exit('it never ended')
    if datagram == b'the end': break
    came[datagram] += 1
wrong = [(size, number) for size in range(2, 41) for number in range(30) if came[bytes([size, number] * size)[:size]] != 1]
print('wrong:', wrong, 'all:', sum(came.values()))
";
    const SENDS: &str = "
import socket, struct, sys, time
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 5555))
for size in range(2, 41):
    together = b''.join(bytes([size, number] * size)[:size] for number in range(30))
    s.sendmsg([together], [(17, 103, struct.pack('H', size))]) # SOL_UDP, UDP_SEGMENT
    time.sleep(0.01)
s.sendmsg([bytes(30)], [(17, 103, struct.pack('H', 1))])
s.send(b'the end')
";
    let Some(room) = Room::open(2, &[], &[]) else { return };
    let routes = [
        ("1", "2", "10.80.0.2"),
        ("1", "2", "fd80::2"),
        ("1", OUTSIDE, OUTSIDE_ADDRESS),
        ("1", OUTSIDE, "fd80::100"),
        (OUTSIDE, "2", "10.80.0.2"),
        (OUTSIDE, "2", "fd80::2"),
    ];
    for (from, to, address) in routes {
        let receiving = room.start(to, &["python3", "-c", RECEIVES, "30"]);
        receiving.output_with("listening", PATIENCE);
        room.ok(from, &["ping", "-c", "1", "-W", "5", address]);
        room.ok(from, &["python3", "-c", SENDS, address]);
        let outcome = receiving.wait(PATIENCE);
        // 30 of one byte, too.
        let expected = format!("wrong: [] all: {}", 39 * 30 + 30);
        assert!(
            outcome.text().contains(&expected),
            "{from} to {address}: {} {}",
            outcome.text(),
            outcome.stderr
        );
    }
}

/// What is for all comes to each of many ports once and in order, whether it is written to them in one step or in several.
#[test]
fn broadcasts_come_to_each_of_many_ports_once() {
    needs!("ip", "ping", "python3");
    const RECEIVES: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20) # SO_RCVBUFFORCE
s.bind(('', 5556))
s.settimeout(30)
print('listening', flush=True)
came = []
while b'the end' not in came: came.append(s.recv(2048))
print('in order:', came[:-1] == [b'%d' % number for number in range(200)], len(came))
";
    const SENDS: &str = "
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
for number in range(200):
    s.sendto(b'%d' % number, ('10.80.0.255', 5556))
    if number % 20 == 0: time.sleep(0.01)
s.sendto(b'the end', ('10.80.0.255', 5556))
";
    const PORTS: usize = 40;
    let Some(room) = Room::open(PORTS, &[], &[]) else { return };
    for (from, to) in [("1", ["2", "18", "40", OUTSIDE]), (OUTSIDE, ["1", "16", "17", "40"])] {
        let receiving = to.map(|to| room.start(to, &["python3", "-c", RECEIVES]));
        for receiver in &receiving {
            receiver.output_with("listening", PATIENCE);
        }
        room.ok(from, &["python3", "-c", SENDS]);
        for (receiver, to) in receiving.into_iter().zip(to) {
            let outcome = receiver.wait(PATIENCE);
            let said = format!("{} {}", outcome.text(), outcome.stderr);
            assert!(outcome.text().contains("in order: True 201"), "{from} to {to}: {said}");
        }
    }
}

/// A tunnel over ports that may have one address each: what the kernels leave to be cut lies within it.
#[test]
fn a_tunnel_carries_long_segments() {
    needs!("ip", "ping", "iperf3");
    let Some(mut room) = Room::open(2, &[], &[]) else { return };
    for port in [1, 2] {
        room.attached[port] = None;
        room.attach(port, &["--address", &format!("10.80.0.{port},fd80::{port}")]);
    }
    room.reaches(1, OUTSIDE_ADDRESS);
    room.reaches(2, OUTSIDE_ADDRESS);
    let ends = [("1", "eth0", "10.80.0.1"), ("2", "eth0", "10.80.0.2"), (OUTSIDE, "cable", OUTSIDE_ADDRESS)];
    let tunnels = [(7, "1", "2"), (8, OUTSIDE, "2"), (9, "1", OUTSIDE)];
    for (number, from, to) in tunnels {
        for (end, other) in [(from, to), (to, from)] {
            let of = |name: &str| *ends.iter().find(|known| known.0 == name).expect("an end");
            let ((_, device, local), (_, _, remote)) = (of(end), of(other));
            let last = if end == from { 1 } else { 2 };
            room.ip(
                end,
                &format!(
                    "link add tunnel{number} type vxlan id {number} local {local} remote {remote} dev {device} dstport {}",
                    4780 + number
                ),
            )
            .unwrap();
            room.ip(end, &format!("address add 10.90.{number}.{last}/24 dev tunnel{number}")).unwrap();
            room.ip(end, &format!("link set tunnel{number} mtu 1450 up")).unwrap();
        }
        let to_address = format!("10.90.{number}.2");
        room.ok(from, &["ping", "-c", "2", "-W", "5", &to_address]);
        let serving = room.start(to, &["iperf3", "-s", "-1", "-B", &to_address, "--forceflush"]);
        serving.output_with("listening", PATIENCE);
        let said = room.ok(from, &["iperf3", "-c", &to_address, "-n", "30M", "-C", "cubic", "-J"]);
        let said: serde_json::Value = serde_json::from_str(&said).expect("what iperf3 says");
        let received = said["end"]["sum_received"]["bytes"].as_u64();
        // What is under way at the end is not counted.
        assert!(received >= Some(25 << 20), "{from} to {to}: {received:?}");
        let again = said["end"]["sum_sent"]["retransmits"].as_u64();
        let seconds = said["end"]["sum_received"]["seconds"].as_f64();
        let _ = writeln!(std::io::stderr(), "    {from} to {to}: {again:?} sent again, {seconds:?} s");
        serving.wait(PATIENCE);
    }
    let refused: u64 = [1, 2].map(|port| room.refused(port, "bad_offload")).iter().sum();
    assert_eq!(refused, 0, "segments were refused");
    let uplink = room.json(&["show", "uplink", "--json"]);
    assert_eq!(uplink["counters"]["refused"]["bad_offload"].as_u64(), Some(0), "{uplink:#}");
}

/// An address by DHCP from a server outside.
#[test]
fn dhcp_from_outside_gives_a_port_its_address() {
    needs!("ip", "dnsmasq", "busybox");
    let Some(room) = Room::open(1, &[], &[]) else { return };
    room.ip("1", "address flush dev eth0").unwrap();
    let range = "--dhcp-range=10.80.0.200,10.80.0.220,1h";
    let leases = format!("--dhcp-leasefile={}", room.scratch.file("leases"));
    let words = ["dnsmasq", "--no-daemon", "--port=0", "--interface=cable", "--user=root", range, &leases];
    let serving = room.start(OUTSIDE, &words);
    let said = room
        .ok("1", &["busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-t", "20", "-T", "1", "-s", "/bin/true"]);
    assert!(said.contains("lease of 10.80.0.2"), "{said}");
    serving.signal(Signal::TERM);
    serving.wait(PATIENCE);
}

const HEARS: &str = "
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 7777))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
             struct.pack('4s4s', socket.inet_aton('239.1.2.3'), socket.inet_aton(sys.argv[1])))
s.settimeout(float(sys.argv[2]))
print('listening', flush=True)
try:
    print(s.recv(100).decode())
except TimeoutError:
    print('nothing')
";

const SAYS: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
s.sendto(b'to the group', ('239.1.2.3', 7777))
";

/// A multicast comes to all ports and the outside; not to a port that is not to get that group.
#[test]
fn multicasts_come_to_those_that_are_to_get_them() {
    needs!("ip", "python3");
    let Some(mut room) = Room::open(3, &[], &[]) else { return };
    // All that a port needs for IPv4, without the group.
    room.attached[3] = None;
    room.attach(3, &["--groups", "33:33:00:00:00:01"]);
    room.reaches(3, OUTSIDE_ADDRESS);
    let listen = |name: &str, address: &str, seconds: &str| {
        let hearing = room.start(name, &["python3", "-c", HEARS, address, seconds]);
        hearing.output_with("listening", PATIENCE);
        hearing
    };
    for (from, address) in [("1", "10.80.0.1"), (OUTSIDE, OUTSIDE_ADDRESS)] {
        let mut hearing = vec![listen("2", "10.80.0.2", "60")];
        hearing.push(match from {
            OUTSIDE => listen("1", "10.80.0.1", "60"),
            _ => listen(OUTSIDE, OUTSIDE_ADDRESS, "60"),
        });
        let deaf = listen("3", "10.80.0.3", "300");
        room.ok(from, &["python3", "-c", SAYS, address]);
        for hearing in hearing {
            assert!(hearing.wait(PATIENCE).text().contains("to the group"), "from {from}");
        }
        std::thread::sleep(SILENCE);
        assert!(!deaf.output().contains("to the group"), "from {from}");
    }
}

/// The packets of a capture file, by their bytes: how often each was seen.
fn frames(path: &str) -> BTreeMap<Vec<u8>, usize> {
    let bytes = fs::read(path).unwrap();
    let mut rest = bytes.get(24..).expect("a capture file");
    let mut found = BTreeMap::new();
    while let Some((header, more)) = rest.split_at_checked(16) {
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(word(8), word(12), "a frame is cut off");
        let (frame, after) = more.split_at(word(8));
        *found.entry(frame.to_vec()).or_default() += 1;
        rest = after;
    }
    found
}

/// What goes by at the device of port 1 and at the host outside.
struct Capture {
    files: [String; 2],
    capturing: Vec<Running>,
}

impl Capture {
    fn start(room: &Room, filter: &str) -> Self {
        let files = ["one", "other"].map(|name| room.scratch.file(name));
        let start = |(name, device, file): (&str, &str, &String)| {
            let words = [
                "tcpdump",
                "-q",
                "-U",
                "--immediate-mode",
                "-B",
                "65536",
                "-i",
                device,
                "-w",
                file,
                "-Z",
                "root",
            ];
            let capturing = room.start(name, &[&words[..], &[filter]].concat());
            capturing.errors_with("listening on", PATIENCE);
            capturing
        };
        let capturing = [("1", "eth0", &files[0]), (OUTSIDE, "cable", &files[1])].map(start).into();
        Self { files, capturing }
    }

    /// Ends it; nothing was missed.
    fn end(self) -> [String; 2] {
        std::thread::sleep(SILENCE);
        for capturing in &self.capturing {
            capturing.signal(Signal::INT);
        }
        for capturing in self.capturing {
            let outcome = capturing.wait(PATIENCE);
            assert!(outcome.stderr.contains("\n0 packets dropped by kernel"), "{}", outcome.stderr);
        }
        self.files
    }
}

/// What each side of the first connection in a capture file has sent.
fn streams(file: &str) -> [String; 2] {
    let output = super::run("tshark", &["-r", file, "-q", "-z", "follow,tcp,raw,0"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut found = [String::new(), String::new()];
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (which, text) = line.strip_prefix('\t').map_or((0, line), |rest| (1, rest));
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            found[which].push_str(text);
        }
    }
    found
}

/// With all offloads, captures differ in their frames; the bytes of a connection are the same on both sides, and those that
/// were sent.
#[test]
fn streams_on_both_sides_agree_where_all_is_offloaded() {
    needs!("ip", "tcpdump", "tshark", "python3");
    let Some(room) = Room::open(1, &[], &[]) else { return };
    room.reaches(1, OUTSIDE_ADDRESS);
    const ECHOES: &str = "
import socket
s = socket.create_server(('', 7000)); print('listening', flush=True)
c, _ = s.accept()
all = bytearray()
while (part := c.recv(1 << 16)): all += part
c.sendall(all[::-1]); c.close()
";
    const SENDS: &str = "
import socket, random, sys
data = random.Random(11).randbytes(3 << 20)
c = socket.create_connection((sys.argv[1], 7000), 20)
c.settimeout(60)
c.sendall(data); c.shutdown(socket.SHUT_WR)
back = bytearray()
while (part := c.recv(1 << 16)): back += part
assert back == data[::-1], 'other bytes came back'
";
    let serving = room.start(OUTSIDE, &["python3", "-c", ECHOES]);
    serving.output_with("listening", PATIENCE);
    let capture = Capture::start(&room, "tcp port 7000");
    room.ok("1", &["python3", "-c", SENDS, OUTSIDE_ADDRESS]);
    let files = capture.end();
    let lengths = files.each_ref().map(|file| frames(file).into_keys().map(|frame| frame.len()).max());
    assert!(lengths[0] > Some(9000), "no segments were sent whole: {lengths:?}");
    let [one, other] = files.each_ref().map(|file| streams(file));
    let sent = one.each_ref().map(String::len);
    assert_eq!(sent, [2 * (3 << 20); 2], "both directions are whole");
    assert!(one == other, "the two sides have seen different bytes");
}

/// Whether the TCP checksum of a frame is 0xFFFF, and right. Where a sum comes out as 0, the kernel writes that
/// (`skb_checksum_help`), and to a receiver it is the same (RFC 1624, section 3); tshark calls it wrong.
///
/// # Panics
///
/// If it is 0xFFFF and wrong.
fn is_whole_negative_zero(frame: &[u8]) -> bool {
    let packet = etherparse::SlicedPacket::from_ethernet(frame).expect("a frame");
    let (Some(etherparse::NetSlice::Ipv4(ip)), Some(etherparse::TransportSlice::Tcp(tcp))) =
        (&packet.net, &packet.transport)
    else {
        return false;
    };
    if tcp.checksum() != 0xffff {
        return false;
    }
    assert_eq!(
        tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()),
        Ok(0),
        "0xFFFF is not the checksum of {frame:02x?}"
    );
    true
}

#[test]
fn a_checksum_of_all_ones_is_right_where_the_sum_is_zero() {
    let ip =
        etherparse::Ipv4Header::new(24, 9, etherparse::IpNumber::TCP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
    let ethernet = etherparse::Ethernet2Header {
        source: [2; 6],
        destination: [3; 6],
        ether_type: etherparse::EtherType::IPV4,
    };
    let frame = |sequence, checksum: Option<u16>| {
        let mut tcp = etherparse::TcpHeader::new(1, 2, sequence, 4);
        let right = tcp.calc_checksum_ipv4(&ip, b"1234").unwrap();
        tcp.checksum = checksum.unwrap_or(right);
        (right, [&ethernet.to_bytes()[..], &ip.to_bytes(), &tcp.to_bytes(), b"1234"].concat())
    };
    // What is left to the sum goes into the sequence number.
    let (rest, _) = frame(0, None);
    assert_eq!(frame(u32::from(rest), None).0, 0);
    assert!(is_whole_negative_zero(&frame(u32::from(rest), Some(0xffff)).1));
    assert!(!is_whole_negative_zero(&frame(0, None).1));
    let wrong = frame(0, Some(0xffff)).1;
    assert!(std::panic::catch_unwind(|| is_whole_negative_zero(&wrong)).is_err());
}

/// Captures on both sides agree frame by frame, and all checksums are valid, where nothing is offloaded.
#[test]
fn captures_on_both_sides_agree_where_nothing_is_offloaded() {
    needs!("ip", "tcpdump", "tshark", "ethtool", "iperf3");
    let Some(room) = Room::open(1, &[], &[]) else { return };
    for (name, device) in [("1", "eth0"), (OUTSIDE, "cable")] {
        room.ok(
            name,
            &["ethtool", "-K", device, "tx", "off", "sg", "off", "tso", "off", "gso", "off", "gro", "off"],
        );
    }
    room.reaches(1, OUTSIDE_ADDRESS);
    let capture = Capture::start(&room, "tcp port 5201 or icmp");
    assert!(room.pings(1, OUTSIDE_ADDRESS, &["-s", "1000"]));
    // Not so fast that the devices' own queues overflow, behind the one capture and before the other.
    let bytes = sized("8M", "160M");
    for more in [&[][..], &["-R"]] {
        let serving = room.start(OUTSIDE, &["iperf3", "-s", "-1", "--forceflush"]);
        serving.output_with("listening", PATIENCE);
        let words = ["iperf3", "-c", OUTSIDE_ADDRESS, "-n", bytes, "-b", "100M"];
        room.ok("1", &[&words[..], more].concat());
        serving.wait(PATIENCE);
    }
    let files = capture.end();
    let [one, other] = files.each_ref().map(|file| frames(file));
    assert!(one.len() > 1000, "only {} frames", one.len());
    assert!(one == other, "{} and {} different frames", one.len(), other.len());
    let whole =
        one.iter().filter(|(frame, _)| is_whole_negative_zero(frame)).map(|(_, count)| count).sum::<usize>();
    let count = one.values().sum::<usize>();
    let _ = writeln!(std::io::stderr(), "    {count} frames, {whole} with a TCP checksum of 0xFFFF");
    for file in &files {
        let wrong = "(tcp.checksum.status == \"Bad\" and tcp.checksum != 0xffff) or ip.checksum.status == \"Bad\" \
                     or icmp.checksum.status == 0";
        let check =
            ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-r", file, "-Y", wrong];
        let output = super::run("tshark", &check);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// The owner is killed and started again, and so is a port: connections of the others live on.
#[test]
fn a_connection_outlives_its_owner_and_other_ports() {
    needs!("ip", "python3", "ping");
    let Some(mut room) = Room::open(3, &[], &[]) else { return };
    room.reaches(1, "10.80.0.2");
    const SERVES: &str = "
import socket
s = socket.create_server(('', 7000)); print('listening', flush=True)
c, _ = s.accept()
while (data := c.recv(100)): c.sendall(data)
";
    const ASKS: &str = "
import socket, time
c = socket.create_connection(('10.80.0.2', 7000), 20)
c.settimeout(100)
for n in range(1000000):
    c.sendall(b'%08d' % n)
    got = b''
    while len(got) < 8: got += c.recv(8 - len(got))
    assert got == b'%08d' % n, got
    if n % 50 == 0: print('round', n, flush=True)
    time.sleep(0.002)
";
    let serving = room.start("2", &["python3", "-c", SERVES]);
    serving.output_with("listening", PATIENCE);
    let asking = room.start("1", &["python3", "-c", ASKS]);
    asking.output_with("round", PATIENCE);
    let goes_on = || {
        let before = asking.output().len();
        let since = Instant::now();
        while asking.output().len() < before + 20 {
            assert!(since.elapsed() < PATIENCE, "the connection stands still: {}", asking.errors());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // What was changed while it ran is not forgotten.
    let set = ["--weight", "7", "--rate", "900M", "--guarantee", "1M", "--address", "10.80.0.1,fd80::1"];
    let changed = room.net(&[&["set", &room.port_name(1)], &set[..]].concat());
    assert!(changed.status.success(), "{changed:?}");
    let port = room.json(&["show", &room.port_name(1), "--json"])["port"].clone();
    assert!(port["weight"] == 7 && port["rate_bits"] == 900_000_000, "{port:#}");
    for signal in [Signal::KILL, Signal::TERM] {
        room.owner().signal(signal);
        room.owner().await_end(PATIENCE);
        // Until there is another one, the devices stay, without carrier.
        let since = Instant::now();
        while !room.ok("1", &["ip", "link", "show", "eth0"]).contains("NO-CARRIER") {
            assert!(since.elapsed() < PATIENCE, "it has a carrier without an owner");
            std::thread::sleep(Duration::from_millis(10));
        }
        room.serve(&[]);
        goes_on();
        assert_eq!(room.json(&["show", &room.port_name(1), "--json"])["port"], port);
    }
    // The uplink's cable is out: ports see that.
    room.ip(OUTSIDE, "link set cable down").unwrap();
    let since = Instant::now();
    while !room.ok("1", &["ip", "link", "show", "eth0"]).contains("NO-CARRIER") {
        assert!(since.elapsed() < PATIENCE, "it has a carrier while the uplink has none");
        std::thread::sleep(Duration::from_millis(10));
    }
    room.ip(OUTSIDE, "link set cable up").unwrap();
    goes_on();
    // Another port ends, by force, and comes back.
    for _ in 0..3 {
        room.attached[3].as_mut().unwrap().signal(Signal::KILL);
        room.attached[3] = None;
        room.await_device(3, false);
        goes_on();
        room.attach(3, &[]);
        room.reaches(3, "10.80.0.1");
    }
    assert_eq!(room.json(&["ls", "--json"])["ports"].as_array().map(Vec::len), Some(3));
}
