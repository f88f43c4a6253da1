//! Who gets how much of a shaped uplink. What is checked are shares of what was sent, not speeds.

use std::time::Duration;

use serde_json::Value;

use super::{OUTSIDE, OUTSIDE_ADDRESS, Room};
use crate::common::{PATIENCE, Running, needs};

/// Jain's index: 1 if all are equal.
fn jain(values: &[f64]) -> f64 {
    let (sum, squares) =
        values.iter().fold((0.0, 0.0), |(sum, squares), value| (sum + value, squares + value * value));
    sum * sum / (values.len() as f64 * squares)
}

/// Frames and bytes on the wire that each port has sent.
fn sent(room: &Room, ports: usize) -> Vec<(f64, f64)> {
    let found = room.json(&["ls", "--json"]);
    let all = found["ports"].as_array().expect("ports");
    assert_eq!(all.len(), ports);
    let number = |value: &Value| value.as_f64().expect("a number");
    let sent = all.iter().map(|port| &port["counters"]["sent"]);
    // Preamble and gap of each frame are charged, too.
    sent.map(|sent| (number(&sent["frames"]), number(&sent["bytes"]) + 20.0 * number(&sent["frames"])))
        .collect()
}

/// A server outside for each port of this many, from 6000 on.
fn servers(room: &Room, count: usize) -> Vec<Running> {
    let start = |number: usize| {
        let port = (6000 + number).to_string();
        let server = room.start(OUTSIDE, &["iperf3", "-s", "-1", "-p", &port, "--forceflush"]);
        server.output_with("listening", PATIENCE);
        server
    };
    (0..count).map(start).collect()
}

/// Starts a client of the server of its number at a port; it sends until it is ended.
fn client(room: &Room, number: usize, more: &[&str]) -> Running {
    let server = (6000 + number).to_string();
    let words = ["iperf3", "-c", OUTSIDE_ADDRESS, "-p", &server, "-t", "300", "--forceflush"];
    room.start(&(number + 1).to_string(), &[&words, more].concat())
}

/// Until each has sent for a second and a half, whatever its clock says.
fn await_running(clients: &[Running]) {
    for client in clients {
        client.output_with("0.00-1.", PATIENCE);
    }
    std::thread::sleep(Duration::from_millis(1500));
}

/// Four ports send as much as they can, with different numbers of flows and sizes of frames; what each has sent in
/// some seconds in the middle: frames, bytes.
fn race(room: &Room, segments: [&str; 4]) -> Vec<(f64, f64)> {
    let serving = servers(room, 4);
    let flows = ["1", "2", "4", "8"];
    let sending: Vec<_> =
        (0..4).map(|number| client(room, number, &["-P", flows[number], "-M", segments[number]])).collect();
    await_running(&sending);
    let before = sent(room, 4);
    std::thread::sleep(Duration::from_secs(3));
    let after = sent(room, 4);
    drop((sending, serving));
    before.iter().zip(&after).map(|(before, after)| (after.0 - before.0, after.1 - before.1)).collect()
}

/// Races until the shares are right, five times at most: while this machine stands still for a moment, a port has nothing
/// to send, and the others have its share, rightly. A scheduler that is not fair is so each time.
fn shares_come_right(mut race: impl FnMut() -> Vec<f64>, are_right: impl Fn(&[f64]) -> bool) {
    let mut found = Vec::new();
    for _ in 0..5 {
        found.push(race());
        if found.last().is_some_and(|shares| are_right(shares)) {
            return;
        }
    }
    panic!("{found:?}");
}

#[test]
fn greedy_ports_get_their_shares_of_a_shaped_uplink() {
    needs!("ip", "iperf3");
    let Some(room) = Room::open(4, &["--rate", "300M"], &[]) else { return };
    let bytes = |raced: &[(f64, f64)]| raced.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>();
    shares_come_right(|| bytes(&race(&room, ["1400", "500", "900", "1200"])), |equal| jain(equal) >= 0.999);
    for weight in 1..=4 {
        let set = room.net(&["set", &room.port_name(weight), "--weight", &weight.to_string()]);
        assert!(set.status.success(), "{set:?}");
    }
    let are_weighted = |weighted: &[f64]| {
        let all: f64 = weighted.iter().sum();
        let is_right =
            |(weight, bytes): (u32, &f64)| (bytes / (all * f64::from(weight) / 10.0) - 1.0).abs() < 0.02;
        (1..).zip(weighted).all(is_right)
    };
    shares_come_right(|| bytes(&race(&room, ["1400"; 4])), are_weighted);
}

#[test]
fn by_frames_greedy_ports_send_as_many_frames() {
    needs!("ip", "iperf3");
    let Some(room) = Room::open(4, &["--rate", "200M", "--scheduler", "rr"], &[]) else { return };
    let frames = || race(&room, ["1400", "500", "900", "1200"]).iter().map(|(frames, _)| *frames).collect();
    shares_come_right(frames, |frames| jain(frames) >= 0.999);
}

/// A port that floods the uplink with the smallest frames leaves another its share.
#[test]
fn a_flood_of_small_frames_takes_no_more_than_its_share() {
    needs!("ip", "iperf3");
    let Some(room) = Room::open(2, &["--rate", "20M"], &[]) else { return };
    let serving = servers(&room, 2);
    // 18 bytes are frames of 64.
    let flooding = client(&room, 0, &["-u", "-b", "0", "-l", "18"]);
    let sending = [client(&room, 1, &[])];
    await_running(&sending);
    let before = sent(&room, 2);
    std::thread::sleep(Duration::from_secs(2));
    let after = sent(&room, 2);
    let shares: Vec<_> = before.iter().zip(&after).map(|(before, after)| after.1 - before.1).collect();
    drop((flooding, sending, serving));
    let all: f64 = shares.iter().sum();
    assert!(shares[1] >= 0.45 * all, "{shares:?}");
    // There was more of the flood, which was dropped in the queue of its own device.
    let said = room.ok("1", &["ip", "-s", "-j", "link", "show", "eth0"]);
    let device: Value = serde_json::from_str(&said).unwrap();
    assert!(device[0]["stats64"]["tx"]["dropped"].as_u64() > Some(1000), "{device:#}");
}
