//! Two namespaces, `eth0` in each, and what joins them: on one machine, or on two with a cable between them.

use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

use super::room::Room;
use crate::{Failure, this_binary};

/// What joins two namespaces of one machine.
pub const NEAR: [&str; 5] = ["veth", "bridge", "macvlan", "relay", "tombolo"];
/// What joins one with the network of another machine: the words behind a name say how its port is told of frames.
pub const FAR: [(&str, &[&str]); 5] = [
    ("vxlan", &[]),
    ("far", &[]),
    ("far-8", &["--coalesce-frames", "8", "--coalesce-usecs", "100"]),
    ("far-64", &["--coalesce-frames", "64", "--coalesce-usecs", "500"]),
    ("far-adaptive", &["--coalesce-frames", "64", "--coalesce-usecs", "500", "--coalesce-adaptive"]),
];
const CONTROLS: [&str; 2] = ["cubic", "bbr"];
const ADDRESS: &str = "10.81.0.2";

fn near(room: &mut Room, way: &str, tombolo: &Path) -> Result<(), Failure> {
    match way {
        "veth" => room.ip("link add eth0 netns {a} type veth peer name eth0 netns {b}"),
        "bridge" => {
            room.ip("-n {m} link add joint type bridge")?;
            room.ip("-n {m} link set joint up")?;
            for end in ["a", "b"] {
                room.ip(&format!("link add eth0 netns {{{end}}} type veth peer name end-{end} netns {{m}}"))?;
                room.ip(&format!("-n {{m}} link set end-{end} master joint up"))?;
            }
            Ok(())
        }
        "macvlan" => {
            room.ip("-n {m} link add name under type veth peer name other")?;
            for device in ["under", "other"] {
                room.ip(&format!("-n {{m}} link set {device} up"))?;
            }
            for end in ["a", "b"] {
                room.ip("-n {m} link add link under name end type macvlan mode bridge")?;
                room.ip(&format!("-n {{m}} link set end netns {{{end}}} name eth0"))?;
            }
            Ok(())
        }
        "relay" => {
            let mut relay = Command::new(this_binary()?);
            relay.arg("net-relay").args(["a", "b"].map(|end| room.namespace(end)));
            room.serve(&mut relay)
        }
        _ => {
            add_outward(room)?;
            let address = serve(room, tombolo, None, &[])?;
            for end in ["a", "b"] {
                attach(room, tombolo, None, &address, end)?;
            }
            Ok(())
        }
    }
}

/// Makes an interface `outward` that leads nowhere, for owners whose ports send to each other.
pub fn add_outward(room: &Room) -> Result<(), Failure> {
    room.ip("-n {m} link add name outward type veth peer name beyond")?;
    room.ip("-n {m} link set beyond up")
}

/// Starts an owner of the interface `outward`. Returns where it listens.
pub fn serve(
    room: &mut Room,
    tombolo: &Path,
    processor: Option<usize>,
    more: &[&str],
) -> Result<String, Failure> {
    let address = format!("shm:{}", room.file("owner"));
    let mut serve = room.command("m", processor, &tombolo.to_string_lossy());
    room.serve(serve.args(["net", "serve", "--uplink", "outward", "--listen", &address]).args(more))?;
    Ok(address)
}

/// Attaches `eth0` in a namespace.
pub fn attach(
    room: &mut Room,
    tombolo: &Path,
    processor: Option<usize>,
    address: &str,
    end: &str,
) -> Result<(), Failure> {
    let namespace = room.namespace(end);
    let mut attach = match processor {
        Some(processor) => {
            let mut command = Command::new("taskset");
            command.args(["-c", &processor.to_string()]).arg(tombolo);
            command
        }
        None => Command::new(tombolo),
    };
    room.serve(attach.args(["net", "attach", "--from", address, "--tap", "eth0", "--netns", &namespace]))
}

fn far(room: &mut Room, way: &str, coalescing: &[&str], tombolo: &Path) -> Result<(), Failure> {
    room.ip("link add cable netns {a} type veth peer name cable netns {m}")?;
    for (end, number) in [("a", 1), ("m", 2)] {
        room.ip(&format!("-n {{{end}}} address add 10.82.0.{number}/24 dev cable"))?;
        room.ip(&format!("-n {{{end}}} link set cable up"))?;
    }
    room.ip("link add eth0 netns {b} type veth peer name outward netns {m}")?;
    room.ip("-n {m} link set outward up")?;
    if way == "vxlan" {
        room.ip("-n {m} link add joint type bridge")?;
        room.ip("-n {m} link set joint up")?;
        for (end, name, local, remote) in [("a", "eth0", 1, 2), ("m", "tunnel", 2, 1)] {
            room.ip(&format!(
                "-n {{{end}}} link add {name} type vxlan id 7 local 10.82.0.{local} remote 10.82.0.{remote} dstport 4789"
            ))?;
        }
        room.ip("-n {m} link set tunnel master joint up")?;
        return room.ip("-n {m} link set outward master joint up");
    }
    for (key, other) in [("owner", "port"), ("port", "owner")] {
        let path = room.file(key);
        let output = Command::new(tombolo).args(["keygen", "--out", &path]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let public =
            text.lines().find(|line| !line.contains(' ')).ok_or_else(|| Failure::new("no key was made"))?;
        std::fs::write(room.file(&format!("for-{other}")), format!("{public}\n"))?;
    }
    let secure = |room: &Room, who: &str| {
        ["--key".into(), room.file(who), "--allow".into(), room.file(&format!("for-{who}"))]
    };
    let address = "udp:10.82.0.2:7400";
    let mut serve = room.command("m", None, &tombolo.to_string_lossy());
    serve
        .args(["net", "serve", "--uplink", "outward", "--listen", address])
        .args(coalescing)
        .args(secure(room, "owner"));
    room.serve(&mut serve)?;
    let mut attach = room.command("a", None, &tombolo.to_string_lossy());
    attach
        .args(["net", "attach", "--from", address, "--tap", "eth0"])
        .args(coalescing)
        .args(secure(room, "port"));
    room.serve(&mut attach)
}

/// Measures what joins two namespaces.
pub fn measure(way: &str, tombolo: &Path, seconds: u32) -> Result<Value, Failure> {
    let mut room = Room::new(&["a", "b", "m"])?;
    match FAR.iter().find(|(name, _)| *name == way) {
        Some((_, coalescing)) => far(&mut room, way, coalescing, tombolo)?,
        None => near(&mut room, way, tombolo)?,
    }
    for (end, number) in [("a", 1), ("b", 2)] {
        room.address(end, number)?;
    }
    room.await_reach("a", ADDRESS)?;
    let ends = ["a", "b"];
    let mut figures = Map::new();
    for control in CONTROLS {
        let (bytes_per_s, cpu_s_per_gb) = room.stream(ends, ADDRESS, control, seconds)?;
        figures.insert(format!("{control}_bytes_per_s"), json!(bytes_per_s));
        figures.insert(format!("{control}_cpu_s_per_gb"), json!(cpu_s_per_gb));
    }
    let (median_ns, p99_ns) = room.latency(ends, ADDRESS, None)?;
    figures.insert("one_way_ns".into(), json!(median_ns));
    figures.insert("one_way_p99_ns".into(), json!(p99_ns));
    figures.insert("packets_per_s".into(), json!(room.packets(ends, ADDRESS)?));
    Ok(figures.into())
}
