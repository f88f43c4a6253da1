//! Who is disturbed by whom: a flood of small packets beside somebody who asks little, and greedy ports at a shaped uplink.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tombolo_app::child;
use tombolo_host::cpu::Stopwatch;

use super::pair::{add_outward, attach, serve};
use super::room::Room;
use crate::{Failure, this_binary};

/// Two pairs: one floods, one asks.
pub const FLOODED: [&str; 2] = ["flood-relay", "flood-tombolo"];
/// Four greedy ones at a shaped uplink.
pub const SHARED: [&str; 2] = ["share-htb", "share-tombolo"];
const RATE_MBIT: u64 = 2000;
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

fn limit_by_htb(room: &Room) -> Result<(), Failure> {
    let tc = |words: String| -> Result<(), Failure> {
        let output = room.command("m", None, "tc").args(words.split_whitespace()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(Failure::new(format!("tc {words}: {said}"))) }
    };
    tc("qdisc add dev outward root handle 1: htb default 9".into())?;
    tc(format!("class add dev outward parent 1: classid 1:100 htb rate {RATE_MBIT}mbit"))?;
    for number in 1..=PORTS.len() {
        let part = RATE_MBIT as usize / PORTS.len();
        tc(format!(
            "class add dev outward parent 1:100 classid 1:{number} htb rate {part}mbit ceil {RATE_MBIT}mbit"
        ))?;
        tc(format!(
            "filter add dev outward parent 1: protocol ip u32 match ip src 10.81.0.{number} flowid 1:{number}"
        ))?;
    }
    Ok(())
}

/// Four greedy ports with different numbers of flows, and one that asks: shares, use of the uplink, latency.
pub fn shared(way: &str, tombolo: &Path, seconds: u32) -> Result<Value, Failure> {
    let mut room = Room::new(&["p1", "p2", "p3", "p4", "p5", "out", "m"])?;
    room.ip("link add eth0 netns {out} type veth peer name outward netns {m}")?;
    room.ip("-n {m} link set outward up")?;
    room.address("out", 100)?;
    if way == "share-htb" {
        room.ip("-n {m} link add joint type bridge")?;
        room.ip("-n {m} link set joint up")?;
        room.ip("-n {m} link set outward master joint")?;
        for port in PORTS {
            room.ip(&format!("link add eth0 netns {{{port}}} type veth peer name {port} netns {{m}}"))?;
            room.ip(&format!("-n {{m}} link set {port} master joint up"))?;
        }
        limit_by_htb(&room)?;
    } else {
        let address = serve(&mut room, tombolo, None, &["--rate", &format!("{RATE_MBIT}M")])?;
        for port in PORTS {
            attach(&mut room, tombolo, None, &address, port)?;
        }
    }
    for (number, port) in (1..).zip(PORTS) {
        room.address(port, number)?;
        room.await_reach(port, "10.81.0.100")?;
    }
    let mut running = Vec::new();
    let servers: Result<Vec<_>, Failure> = (0..FLOWS.len())
        .map(|number| {
            let mut server = room.command("out", None, "iperf3");
            server.args(["-s", "-1", "--forceflush", "-p", &format!("600{number}")]);
            Ok(child::serve(&mut server)?.0)
        })
        .collect();
    let _servers = servers?;
    std::thread::sleep(Duration::from_millis(200));
    let watch = Stopwatch::start()?;
    // The first two seconds, while flows grow, do not count.
    let seconds = (seconds + 4).to_string();
    for (number, flows) in FLOWS.into_iter().enumerate() {
        let mut client = room.command(PORTS[number], None, "iperf3");
        client.args(["-J", "-C", "cubic", "-O", "2", "-t", &seconds, "-P", flows, "-c", "10.81.0.100"]);
        client.args(["-p", &format!("600{number}")]).stdin(Stdio::null()).stdout(Stdio::piped());
        running.push(client.spawn()?);
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
