//! Who is disturbed by whom: a flood of small packets beside somebody who asks little, and greedy ports at a shaped uplink.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tombolo_app::child::{self, Guard};
use tombolo_host::cpu::Stopwatch;

use super::pair::{add_outward, attach, serve};
use super::room::Room;
use crate::{Failure, this_binary};

/// Two pairs: one floods, one asks.
pub const FLOODED: [&str; 2] = ["flood-relay", "flood-tombolo"];
/// Four greedy ones at a shaped uplink.
pub const SHARED: [&str; 2] = ["share-htb", "share-tombolo"];
/// Four greedy ones of `tombolo net` alone, by what the owner has counted on the wire: frames of different sizes, by bytes
/// and by frames, and weights of 1 to 4.
pub const COUNTED: [&str; 3] = ["share-bytes", "share-frames", "share-weights"];
/// Ways in which four greedy ports use a shaped uplink: name of the way, rate in Mb/s, and whether `tombolo net` shapes it (or HTB).
pub const UPLINKS: [(&str, u64, bool); 6] = [
    ("uplink-htb-100", 100, false),
    ("uplink-100", 100, true),
    ("uplink-htb-500", 500, false),
    ("uplink-500", 500, true),
    ("uplink-htb-2000", 2000, false),
    ("uplink-2000", 2000, true),
];
const RATE_MBIT: u64 = 2000;
/// Bytes of a segment of each greedy port, where they differ.
const SEGMENTS: [&str; 4] = ["1400", "500", "900", "1200"];
const PORTS: [&str; 5] = ["p1", "p2", "p3", "p4", "p5"];
/// Flows of each greedy port; the last port asks.
const FLOWS: [&str; 4] = ["1", "2", "4", "8"];
/// What moves frames has this processor, all others another.
const OWN: Option<usize> = Some(0);
const OTHER: Option<usize> = Some(1);

/// One way between two namespaces while two others are flooded with packets of 64 bytes.
pub fn flooded(way: &str, tombolo: &Path) -> Result<Value, Failure> {
    let names = ["a", "b", "c", "d"];
    let mut room = Room::new(&["a", "b", "c", "d", "m"])?;
    if way == "flood-relay" {
        let mut relay = Command::new("taskset");
        relay
            .args(["-c", "0"])
            .arg(this_binary()?)
            .arg("net-relay")
            .args(names.map(|name| room.namespace(name)));
        room.serve(&mut relay)?;
    } else {
        add_outward(&room)?;
        let address = serve(&mut room, tombolo, OWN, &[])?;
        for name in names {
            attach(&mut room, tombolo, OTHER, &address, name)?;
        }
    }
    for (number, name) in (1..).zip(names) {
        room.address(name, number)?;
    }
    room.await_reach("a", "10.81.0.2")?;
    room.await_reach("c", "10.81.0.4")?;
    let mut counting = room.own("b", OTHER)?;
    let (_counting, _) = child::serve(counting.args(["net-packets", "echo"]))?;
    let mut flood = room.own("a", OTHER)?;
    flood.args(["net-packets", "flood", "10.81.0.2", "--seconds", "60"]).stdout(Stdio::null());
    let _flood = child::spawn(&mut flood)?;
    std::thread::sleep(Duration::from_millis(700));
    let (median_ns, p99_ns) = room.latency(["c", "d"], "10.81.0.4", OTHER)?;
    Ok(json!({ "one_way_ns": median_ns, "one_way_p99_ns": p99_ns }))
}

/// Jain's index: 1 if all are equal.
fn jain(values: &[f64]) -> f64 {
    let (sum, squares) =
        values.iter().fold((0.0, 0.0), |(sum, squares), value| (sum + value, squares + value * value));
    sum * sum / (values.len() as f64 * squares)
}

/// Ports on a bridge, and an uplink whose rate they share by HTB.
fn bridge_with_htb(room: &Room, rate_mbit: u64) -> Result<(), Failure> {
    room.ip("-n {m} link add joint type bridge")?;
    room.ip("-n {m} link set joint up")?;
    room.ip("-n {m} link set outward master joint")?;
    for port in PORTS {
        room.ip(&format!("link add eth0 netns {{{port}}} type veth peer name {port} netns {{m}}"))?;
        room.ip(&format!("-n {{m}} link set {port} master joint up"))?;
    }
    limit_by_htb(room, rate_mbit)
}

fn limit_by_htb(room: &Room, rate_mbit: u64) -> Result<(), Failure> {
    let tc = |words: String| -> Result<(), Failure> {
        let output = room.command("m", None, "tc").args(words.split_whitespace()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(Failure::new(format!("tc {words}: {said}"))) }
    };
    tc("qdisc add dev outward root handle 1: htb default 9".into())?;
    tc(format!("class add dev outward parent 1: classid 1:100 htb rate {rate_mbit}mbit"))?;
    for number in 1..=PORTS.len() {
        let part = rate_mbit as usize / PORTS.len();
        tc(format!(
            "class add dev outward parent 1:100 classid 1:{number} htb rate {part}mbit ceil {rate_mbit}mbit"
        ))?;
        tc(format!(
            "filter add dev outward parent 1: protocol ip u32 match ip src 10.81.0.{number} flowid 1:{number}"
        ))?;
    }
    Ok(())
}

/// Namespaces for ports and a host outside, with an uplink for the owner.
fn prepare() -> Result<Room, Failure> {
    let room = Room::new(&["p1", "p2", "p3", "p4", "p5", "out", "m"])?;
    room.ip("link add eth0 netns {out} type veth peer name outward netns {m}")?;
    room.ip("-n {m} link set outward up")?;
    room.address("out", 100)?;
    Ok(room)
}

/// Gives ports their addresses.
fn await_ports(room: &Room) -> Result<(), Failure> {
    for (number, port) in (1..).zip(PORTS) {
        room.address(port, number)?;
        room.await_reach(port, "10.81.0.100")?;
    }
    Ok(())
}

/// A server outside for each greedy port.
fn servers(room: &Room) -> Result<Vec<Guard>, Failure> {
    let start = |number| {
        let mut server = room.command("out", None, "iperf3");
        server.args(["-s", "-1", "--forceflush", "-p", &format!("600{number}")]);
        Ok(child::serve(&mut server)?.0)
    };
    let servers: Result<Vec<_>, Failure> = (0..FLOWS.len()).map(start).collect();
    std::thread::sleep(Duration::from_millis(200));
    servers
}

/// The client of a greedy port.
fn client(room: &Room, number: usize, seconds: u32) -> Command {
    let mut client = room.command(PORTS[number], None, "iperf3");
    client.args(["-C", "cubic", "-t", &seconds.to_string(), "-P", FLOWS[number], "-c", "10.81.0.100"]);
    client.args(["-p", &format!("600{number}")]).stdin(Stdio::null());
    client
}

/// What each greedy port has sent: frames, and what they took of the wire, with preambles and gaps.
fn sent(room: &Room, tombolo: &Path, address: &str) -> Result<Vec<(f64, f64)>, Failure> {
    let output = Command::new(tombolo).args(["net", "ls", "--json", "--from", address]).output()?;
    let found: Value = serde_json::from_slice(&output.stdout)?;
    let ports = found["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |name: &&str| {
        let namespace = room.namespace(name);
        let port = ports.iter().find(|port| port["port"]["namespace"] == namespace.as_str());
        let sent = port.map(|port| &port["counters"]["sent"]);
        let number = |name: &str| sent.and_then(|sent| sent[name].as_f64());
        let figures = number("frames").zip(number("bytes"));
        let (frames, bytes) = figures.ok_or_else(|| Failure::new("a port has no counters"))?;
        Ok((frames, bytes + 20.0 * frames))
    };
    PORTS[..FLOWS.len()].iter().map(of).collect()
}

/// Four greedy ports with different numbers of flows, counted on the wire.
pub fn counted(way: &str, tombolo: &Path, seconds: u32) -> Result<Value, Failure> {
    let mut room = prepare()?;
    let rate = format!("{RATE_MBIT}M");
    let scheduler = if way == "share-frames" { "rr" } else { "drr" };
    let address = serve(&mut room, tombolo, None, &["--rate", &rate, "--scheduler", scheduler])?;
    for port in PORTS {
        attach(&mut room, tombolo, None, &address, port)?;
    }
    await_ports(&room)?;
    let weights = [1.0, 2.0, 3.0, 4.0];
    if way == "share-weights" {
        for (port, weight) in PORTS.iter().zip(weights) {
            let name = format!("eth0@{}", room.namespace(port));
            let words = ["net", "set", &name, "--weight", &weight.to_string(), "--from", &address];
            let output = Command::new(tombolo).args(words).output()?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(Failure::new(format!("`tombolo net set`: {said}")));
            }
        }
    }
    let _servers = servers(&room)?;
    let clients: Result<Vec<Guard>, Failure> = (0..FLOWS.len())
        .map(|number| {
            let mut client = client(&room, number, seconds + 60);
            if way != "share-weights" {
                client.args(["-M", SEGMENTS[number]]);
            }
            child::spawn(client.stdout(Stdio::null())).map_err(Failure::from)
        })
        .collect();
    let _clients = clients?;
    // While flows grow, nothing counts.
    std::thread::sleep(Duration::from_secs(3));
    let (before, begin) = (sent(&room, tombolo, &address)?, Instant::now());
    std::thread::sleep(Duration::from_secs((seconds + 2).into()));
    let (after, took) = (sent(&room, tombolo, &address)?, begin.elapsed());
    let raced = before.iter().zip(&after).map(|(before, after)| (after.0 - before.0, after.1 - before.1));
    let (frames, bytes): (Vec<f64>, Vec<f64>) = raced.unzip();
    let all: f64 = bytes.iter().sum();
    let right = weights.map(|weight| all * weight / weights.iter().sum::<f64>());
    let off = bytes.iter().zip(right).map(|(bytes, right)| (bytes / right - 1.0).abs());
    Ok(json!({
        "jain_bytes": jain(&bytes),
        "jain_frames": jain(&frames),
        "off_by": off.fold(0.0, f64::max),
        "used": all * 8.0 / took.as_secs_f64() / (RATE_MBIT as f64 * 1e6),
    }))
}

/// Four greedy ports with different numbers of flows, and one that asks: shares, use of the uplink, latency.
pub fn shared(way: &str, tombolo: &Path, seconds: u32) -> Result<Value, Failure> {
    let mut room = prepare()?;
    if way == "share-htb" {
        bridge_with_htb(&room, RATE_MBIT)?;
    } else {
        let address = serve(&mut room, tombolo, None, &["--rate", &format!("{RATE_MBIT}M")])?;
        for port in PORTS {
            attach(&mut room, tombolo, None, &address, port)?;
        }
    }
    await_ports(&room)?;
    let mut running = Vec::new();
    let _servers = servers(&room)?;
    let watch = Stopwatch::start()?;
    // The first two seconds, while flows grow, do not count.
    for number in 0..FLOWS.len() {
        let mut client = client(&room, number, seconds + 4);
        running.push(client.args(["-J", "-O", "2"]).stdout(Stdio::piped()).spawn()?);
    }
    std::thread::sleep(Duration::from_secs(3));
    let (median_ns, p99_ns) = room.latency(["p5", "out"], "10.81.0.100", None)?;
    let mut rates = Vec::new();
    for client in running {
        let output = client.wait_with_output()?;
        let found: Value = serde_json::from_slice(&output.stdout)?;
        let rate = found["end"]["sum_received"]["bits_per_second"].as_f64();
        rates.push(rate.ok_or_else(|| Failure::new(format!("iperf3 measured nothing: {}", found["error"])))?);
    }
    let (_, cpu_s) = watch.elapsed()?;
    let all: f64 = rates.iter().sum();
    Ok(json!({
        "jain": jain(&rates),
        "used": all / (RATE_MBIT as f64 * 1e6),
        "cpu_s": cpu_s,
        "one_way_ns": median_ns,
        "one_way_p99_ns": p99_ns,
    }))
}

/// Bytes that have come outside by the uplink.
fn came(room: &Room) -> Result<f64, Failure> {
    let mut read = room.command("out", None, "cat");
    let output = read.arg("/sys/class/net/eth0/statistics/rx_bytes").output()?;
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .map_err(|_| Failure::new("the interface outside has no counters"))
}

/// What the uplink's owner has sent there, on the wire.
fn sent_on_wire(tombolo: &Path, address: &str) -> Result<f64, Failure> {
    let words = ["net", "show", "uplink", "--json", "--from", address];
    let found: Value = serde_json::from_slice(&Command::new(tombolo).args(words).output()?.stdout)?;
    let sent = &found["counters"]["sent"];
    let (frames, bytes) = sent["frames"]
        .as_f64()
        .zip(sent["bytes"].as_f64())
        .ok_or_else(|| Failure::new("the uplink has no counters"))?;
    Ok(bytes + 20.0 * frames)
}

/// Four greedy ports at a shaped uplink: how much of its rate is used, the CPU time of the whole machine for a second of it, and
/// then what a port that asks little waits beside them.
pub fn uplink(
    &(_, rate_mbit, is_ours): &(&str, u64, bool),
    tombolo: &Path,
    seconds: u32,
) -> Result<Value, Failure> {
    let mut room = prepare()?;
    let mut address = None;
    if is_ours {
        let owner = serve(&mut room, tombolo, None, &["--rate", &format!("{rate_mbit}M")])?;
        for port in PORTS {
            attach(&mut room, tombolo, None, &owner, port)?;
        }
        address = Some(owner);
    } else {
        bridge_with_htb(&room, rate_mbit)?;
    }
    await_ports(&room)?;
    let _servers = servers(&room)?;
    let clients: Result<Vec<Guard>, Failure> = (0..FLOWS.len())
        .map(|number| {
            let mut client = client(&room, number, seconds + 60);
            child::spawn(client.stdout(Stdio::null())).map_err(Failure::from)
        })
        .collect();
    let _clients = clients?;
    // While flows grow, nothing counts.
    std::thread::sleep(Duration::from_secs(3));
    let count = || match &address {
        Some(address) => sent_on_wire(tombolo, address),
        None => came(&room),
    };
    let before = count()?;
    let (watch, begin) = (Stopwatch::start()?, Instant::now());
    std::thread::sleep(Duration::from_secs((seconds + 2).into()));
    let (_, cpu_s) = watch.elapsed()?;
    let (after, took) = (count()?, begin.elapsed());
    let (median_ns, p99_ns) = room.latency(["p5", "out"], "10.81.0.100", None)?;
    Ok(json!({
        "used": (after - before) * 8.0 / took.as_secs_f64() / (rate_mbit as f64 * 1e6),
        "cpu_s": cpu_s / took.as_secs_f64(),
        "one_way_ns": median_ns,
        "one_way_p99_ns": p99_ns,
    }))
}
