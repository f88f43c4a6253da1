//! What a port and its owner are to those who look at them and change them: in ethtool's words, in ours, and on the wire.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::{OUTSIDE, OUTSIDE_ADDRESS, Room, ip, run};
use crate::common::{PATIENCE, TOMBOLO, needs};

impl Room {
    /// What the kernel says of a device.
    fn device(&self, name: &str, device: &str) -> Value {
        let said = self.ok(name, &["ip", "-d", "-s", "-j", "link", "show", device]);
        let found: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        found[0].clone()
    }

    /// What a command of `tombolo net` prints; it succeeds.
    fn said(&self, words: &[&str]) -> String {
        let output = self.net(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn await_that(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !is_so(self) {
            assert!(since.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The number behind a name, a line of its own.
fn figure(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.trim().split_once(": "));
    let value = lines.find(|(known, _)| *known == name).map(|(_, value)| value);
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// A port with several queues at a shaped uplink: its device, `ethtool`, `ls`, `show` and `stats` agree.
#[test]
fn a_port_is_described_in_ethtools_words_and_ours() {
    needs!("ip", "ethtool", "iperf3", "ping");
    let Some(mut room) = Room::prepare(2) else { return };
    room.serve(&["--rate", "2G"]);
    room.attach(1, &["--queues", "4", "--guarantee", "100M"]);
    room.attach(2, &[]);
    room.reaches(1, "10.80.0.2");
    // Flows over all queues, to a port with one and back.
    let serving = room.start("2", &["iperf3", "-s", "--forceflush"]);
    serving.output_with("listening", PATIENCE);
    for more in [&["-P", "8"][..], &["-P", "8", "-R"], &["-u", "-R", "-b", "100M", "-l", "1400"]] {
        let words = [&["iperf3", "-J", "-t", "1", "-c", "10.80.0.2"], more].concat();
        let found: Value = serde_json::from_str(&room.ok("1", &words)).unwrap();
        let end = &found["end"];
        let received =
            if more.contains(&"-u") { &end["sum"]["bytes"] } else { &end["sum_received"]["bytes"] };
        assert!(received.as_u64() > Some(1_000_000), "{words:?}: {end:#}");
    }
    // A segment takes the uplink 2 ms, and is two full frames at least; as the rate changes, so does its length.
    assert_eq!(room.device("1", "eth0")["gso_max_size"], 65_536);
    for (rate, bytes) in [("200M", 50_000), ("100M", 25_000), ("0", 65_536), ("1M", 3000), ("2G", 65_536)] {
        room.said(&["set", "uplink", "--rate", rate]);
        room.await_that("segments follow the uplink's rate", |room| {
            room.device("1", "eth0")["gso_max_size"] == bytes
        });
    }
    let ethtool = |what| room.ok("1", &["ethtool", what, "eth0"]);
    assert!(ethtool("-i").contains("driver: tun"), "{}", ethtool("-i"));
    let features = ethtool("-k");
    for feature in ["tx-checksumming", "tcp-segmentation-offload", "tx-udp-segmentation"] {
        assert!(features.contains(&format!("{feature}: on")), "{features}");
    }
    let channels = ethtool("-l");
    let (_, current) = channels.split_once("Current hardware settings").expect("its settings");
    let combined = current.lines().find_map(|line| line.strip_prefix("Combined:")).map(str::trim);
    assert_eq!(combined, Some("4"), "{channels}");
    assert!(ethtool("-c").contains("rx-frames:"), "{}", ethtool("-c"));
    let name = room.port_name(1);
    let status = room.json(&["show", &name, "--json"]);
    let shown = room.said(&["show", &name]);
    for line in
        ["driver: tombolo", "link detected: yes", "queues: 4", "guarantee: 100Mbit/s", "vlans: untagged"]
    {
        assert!(shown.lines().any(|shown| shown.trim() == line), "{line} in {shown}");
    }
    assert!(shown.contains(status["port"]["mac"].as_str().unwrap()), "{shown}");
    // Counters by name, as `ethtool -S` has them.
    let counted = room.said(&["stats", &name]);
    let sent = &status["counters"]["sent"];
    assert!(figure(&counted, "tx_packets") >= sent["frames"].as_u64().unwrap(), "{counted}");
    assert!(figure(&counted, "tx_segments") < figure(&counted, "tx_packets"), "{counted}");
    assert!(figure(&counted, "rx_size_1024_to_1518") > 1000, "{counted}");
    assert_eq!(figure(&counted, "tx_dropped_wrong_source"), 0);
    let all = room.json(&["stats", "--json"]);
    assert!(all[&name]["sent"]["frames"].as_u64() >= sent["frames"].as_u64(), "{all:#}");
    assert!(all["uplink"]["received"].is_object(), "{all:#}");
    let listed = room.said(&["ls"]);
    assert!(
        listed.contains(&name) && listed.contains("uplink cable") && listed.contains("2Gbit/s"),
        "{listed}"
    );
    // Nothing was said of where the owner is: there is one.
    let found = room.at("owner", &[TOMBOLO, "net", "ls", "--from", &room.address(), "--json"]);
    assert!(found.status.success());
    for words in [&["ls"][..], &["show", "uplink"], &["show", &name, "--json"], &["stats"]] {
        let address = room.address();
        let words =
            [&["-c", "exec \"$@\" > /dev/full", "sh", TOMBOLO, "net"], words, &["--from", &address]].concat();
        let output = run("sh", &words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(125) && said.contains("standard output"), "{words:?}: {said}");
    }
    let uplink = room.said(&["show", "uplink"]);
    assert!(uplink.contains("rate: 2Gbit/s") && uplink.contains("registers"), "{uplink}");
}

/// Each option of `set` is what `show` says afterwards; a port keeps within its rate.
#[test]
fn what_is_set_holds() {
    needs!("ip", "iperf3", "ping");
    let Some(room) = Room::open(1, &[], &[]) else { return };
    let name = room.port_name(1);
    let port = || room.json(&["show", &name, "--json"])["port"].clone();
    for (words, field, value) in [
        (&["--weight", "3"][..], "weight", serde_json::json!(3)),
        (&["--guarantee", "5M"], "guaranteed_bits", 5_000_000.into()),
        (&["--promiscuous", "true"], "is_promiscuous", true.into()),
        (&["--promiscuous", "false"], "is_promiscuous", false.into()),
        (&["--address", "10.80.0.1,fd80::1"], "addresses", serde_json::json!(["10.80.0.1", "fd80::1"])),
        (&["--any-address"], "addresses", Value::Null),
        (&["--groups", "33:33:00:00:00:01"], "groups", serde_json::json!(["33:33:00:00:00:01"])),
        (&["--all-groups"], "groups", Value::Null),
        (&["--trunk", "0,5"], "vlans", serde_json::json!({ "trunk": [0, 5] })),
        (&["--vlan", "5"], "vlans", serde_json::json!({ "access": 5 })),
        (&["--vlan", "0"], "vlans", "untagged".into()),
        (&["--rate", "20M"], "rate_bits", 20_000_000.into()),
    ] {
        room.said(&[&["set", &name], words].concat());
        assert_eq!(port()[field], value, "{words:?}: {:#}", port());
    }
    let serving = room.start(OUTSIDE, &["iperf3", "-s", "-1", "--forceflush"]);
    serving.output_with("listening", PATIENCE);
    let sending = room.start("1", &["iperf3", "-c", OUTSIDE_ADDRESS, "-t", "300", "--forceflush"]);
    sending.output_with("0.00-1.", PATIENCE);
    let bytes = || {
        let sent = room.json(&["show", &name, "--json"])["counters"]["sent"].clone();
        let number = |name: &str| sent[name].as_u64().expect("a number");
        number("bytes") + 20 * number("frames")
    };
    let (begin, before) = (Instant::now(), bytes());
    std::thread::sleep(Duration::from_secs(2));
    let (after, took) = (bytes(), begin.elapsed());
    // No more than its rate in the time that has passed, and what it may save up.
    let most = 20e6 / 8.0 * took.as_secs_f64() * 1.05 + 150_000.0;
    assert!(after > before && ((after - before) as f64) < most, "{} bytes in {took:?}", after - before);
    room.said(&["set", &name, "--rate", "0"]);
    assert_eq!(port()["rate_bits"], 0);
}

/// What cannot be delivered, or was dropped before the owner has read it, is counted where it happens.
#[test]
fn lost_frames_are_counted() {
    needs!("ip", "ping", "python3");
    let Some(mut room) = Room::open(2, &[], &[]) else { return };
    room.reaches(1, "10.80.0.2");
    // A port whose device is down takes nothing.
    room.ip("2", "link set eth0 down").unwrap();
    let undelivered = |room: &Room| {
        let status = room.json(&["show", &room.port_name(2), "--json"]);
        status["counters"]["undelivered"].as_u64().expect("a number")
    };
    let before = undelivered(&room);
    assert!(!room.pings(1, "10.80.0.2", &[]));
    room.ok("1", &["python3", "-c", BROADCASTS, "eth0", "20"]);
    room.await_that("what a port does not take is counted", |room| undelivered(room) >= before + 20);
    // Frames go on coming meanwhile.
    let least = undelivered(&room);
    let dropped = figure(&room.said(&["stats", &room.port_name(2)]), "rx_dropped");
    assert!((least..=undelivered(&room)).contains(&dropped), "{dropped}, and {least} before");
    room.ip("2", "link set eth0 up").unwrap();
    room.reaches(1, "10.80.0.2");
    // An owner that stands still reads nothing: the uplink's socket is full, and so is the queue of a port's device, which
    // has a counter of its own.
    room.owner().signal(Signal::STOP);
    room.ok(OUTSIDE, &["python3", "-c", BROADCASTS, "cable", "30000"]);
    room.ok("1", &["python3", "-c", BROADCASTS, "eth0", "3000"]);
    room.owner().signal(Signal::CONT);
    let missed = |room: &Room| figure(&room.said(&["stats", "uplink"]), "rx_missed");
    room.await_that("what had no room at the uplink is counted", |room| missed(room) > 0);
    let dropped = room.device("1", "eth0")["stats64"]["tx"]["dropped"].as_u64();
    assert!(dropped > Some(1000), "{:#}", room.device("1", "eth0"));
    room.reaches(1, OUTSIDE_ADDRESS);
}

/// Broadcasts that are long, so often.
const BROADCASTS: &str = "
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
mac = bytes.fromhex(open('/sys/class/net/' + sys.argv[1] + '/address').read().strip().replace(':', ''))
frame = b'\\xff' * 6 + mac + b'\\x88\\xb5' + bytes(1400)
for _ in range(int(sys.argv[2])):
    try: s.send(frame)
    except OSError: pass
";

/// An uplink into the owner's own machine: a device that it makes.
#[test]
fn ports_reach_the_owners_machine_by_a_device() {
    needs!("ip", "ping", "iperf3");
    let Some(mut room) = Room::prepare(2) else { return };
    let address = room.address();
    let owner =
        room.start("owner", &[TOMBOLO, "net", "serve", "--listen", &address, "--uplink", "tap:inside"]);
    owner.output_with("serving", PATIENCE);
    room.owner = Some(owner);
    room.ip("owner", "address add 10.80.0.50/24 dev inside").unwrap();
    room.ip("owner", "link set inside up").unwrap();
    for port in [1, 2] {
        room.attach(port, &[]);
        room.reaches(port, "10.80.0.50");
    }
    assert!(room.ok("owner", &["ping", "-q", "-c", "2", "10.80.0.2"]).contains(" 0% packet loss"));
    let serving = room.start("owner", &["iperf3", "-s", "-1", "--forceflush"]);
    serving.output_with("listening", PATIENCE);
    let found: Value =
        serde_json::from_str(&room.ok("1", &["iperf3", "-J", "-n", "64M", "-c", "10.80.0.50"])).unwrap();
    // The server counts what it has read when the client says that all is sent.
    assert!(found["end"]["sum_received"]["bytes"].as_u64() > Some(32 << 20), "{:#}", found["end"]);
    let uplink = room.json(&["show", "uplink", "--json"]);
    assert!(uplink["interface"] == "inside" && uplink["has_carrier"] == true, "{uplink:#}");
    // The device goes with its owner.
    room.owner().signal(Signal::TERM);
    assert_eq!(room.owner.take().unwrap().wait(PATIENCE).code(), 0);
    assert!(!run("ip", &["-n", &room.namespace("owner"), "link", "show", "inside"]).status.success());
}

/// Containers end, and others come with their names and addresses.
#[test]
fn a_port_ends_with_its_namespace() {
    needs!("ip", "ping");
    // Others know its hardware address.
    const AS_BEFORE: [&str; 4] = ["--queues", "2", "--mac", "02:00:00:00:00:22"];
    let Some(mut room) = Room::open(2, &[], &[]) else { return };
    room.attached[2] = None;
    room.attach(2, &AS_BEFORE);
    room.reaches(1, "10.80.0.2");
    for _ in 0..2 {
        ip(&format!("netns delete {}", room.namespace("2"))).unwrap();
        let attached = room.attached[2].take().expect("it is attached");
        let outcome = attached.wait(PATIENCE);
        assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("the device eth0 is gone"), "{}", outcome.stderr);
        assert!(!room.pings(1, "10.80.0.2", &[]), "what has ended answers");
        // Its name is free.
        ip(&format!("netns add {}", room.namespace("2"))).unwrap();
        room.ip("2", "link set lo up").unwrap();
        room.attach(2, &AS_BEFORE);
        room.reaches(1, "10.80.0.2");
        room.reaches(2, OUTSIDE_ADDRESS);
    }
}

/// An operator deletes the uplink's interface, and makes one of the same name.
#[test]
fn an_uplink_that_comes_back_is_used_again() {
    needs!("ip", "ping");
    let Some(mut room) = Room::open(2, &[], &[]) else { return };
    room.reaches(1, OUTSIDE_ADDRESS);
    for round in 1..=2 {
        room.ip("owner", "link delete cable").unwrap();
        let since = Instant::now();
        while room.owner().errors().matches("the uplink is gone").count() < round {
            assert!(since.elapsed() < PATIENCE, "nothing is said: {}", room.owner().errors());
            std::thread::sleep(Duration::from_millis(20));
        }
        room.cable().unwrap();
        room.reaches(1, OUTSIDE_ADDRESS);
        room.reaches(2, OUTSIDE_ADDRESS);
        room.reaches(1, "10.80.0.2");
    }
}

/// A port whose frames wait for a shaped uplink is not watched meanwhile; afterwards it is again.
#[test]
fn a_port_that_has_waited_for_the_uplink_is_heard_again() {
    needs!("ip", "ping", "python3");
    const FLOODS: &str = "
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end = time.monotonic() + 1
while time.monotonic() < end:
    try: s.sendto(bytes(1400), ('10.80.0.100', 9))
    except BlockingIOError: pass
";
    let Some(room) = Room::open(2, &["--rate", "20M"], &[]) else { return };
    room.reaches(1, OUTSIDE_ADDRESS);
    for _ in 0..3 {
        room.ok("1", &["python3", "-c", FLOODS]);
        // What is in the device's queue takes half a second.
        room.reaches(1, OUTSIDE_ADDRESS);
        std::thread::sleep(Duration::from_millis(500));
        assert!(room.pings(1, OUTSIDE_ADDRESS, &[]), "it is not heard after a pause");
        assert!(room.pings(1, "10.80.0.2", &[]), "it is not heard after a pause");
    }
}
