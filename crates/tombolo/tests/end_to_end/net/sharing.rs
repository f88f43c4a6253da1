//! Who gets how much of a shaped uplink. What is checked are shares of what was sent, not speeds.

use serde_json::Value;

use super::{OUTSIDE, OUTSIDE_ADDRESS, Room};
use crate::common::{PATIENCE, needs};

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

/// Four ports send as much as they can, with different numbers of flows and sizes of frames; what each has sent in
/// some seconds in the middle: frames, bytes.
fn race(room: &Room, segments: [&str; 4]) -> Vec<(f64, f64)> {
    let mut serving = Vec::new();
    let mut sending = Vec::new();
    for (number, (flows, segment)) in ["1", "2", "4", "8"].into_iter().zip(segments).enumerate() {
        let port = (6000 + number).to_string();
        let server = room.start(OUTSIDE, &["iperf3", "-s", "-1", "-p", &port, "--forceflush"]);
        server.output_with("listening", PATIENCE);
        serving.push(server);
        let words = [
            "iperf3",
            "-c",
            OUTSIDE_ADDRESS,
            "-p",
            &port,
            "-t",
            "6",
            "-P",
            flows,
            "-M",
            segment,
            "--forceflush",
        ];
        sending.push(room.start(&(number + 1).to_string(), &words));
    }
    for sender in &sending {
        // The second second has begun: all are at their share.
        sender.output_with("1.00-2.00", PATIENCE);
    }
    let before = sent(room, 4);
    for sender in &sending {
        sender.output_with("4.00-5.00", PATIENCE);
    }
    let after = sent(room, 4);
    for process in sending.into_iter().chain(serving) {
        assert_eq!(process.wait(PATIENCE).code(), 0);
    }
    before.iter().zip(&after).map(|(before, after)| (after.0 - before.0, after.1 - before.1)).collect()
}

#[test]
fn greedy_ports_get_their_shares_of_a_shaped_uplink() {
    needs!("ip", "iperf3");
    let Some(room) = Room::open(4, &["--rate", "300M"], &[]) else { return };
    let bytes = |raced: &[(f64, f64)]| raced.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>();
    let equal = bytes(&race(&room, ["1400", "500", "900", "1200"]));
    assert!(jain(&equal) >= 0.999, "{equal:?}");
    for weight in 1..=4 {
        let set = room.net(&["set", &room.port_name(weight), "--weight", &weight.to_string()]);
        assert!(set.status.success(), "{set:?}");
    }
    let weighted = bytes(&race(&room, ["1400"; 4]));
    let all: f64 = weighted.iter().sum();
    for (weight, bytes) in (1..).zip(&weighted) {
        let right = all * f64::from(weight) / 10.0;
        assert!((bytes / right - 1.0).abs() < 0.02, "{weighted:?}");
    }
}

#[test]
fn by_frames_greedy_ports_send_as_many_frames() {
    needs!("ip", "iperf3");
    let Some(room) = Room::open(4, &["--rate", "200M", "--scheduler", "rr"], &[]) else { return };
    let frames: Vec<_> =
        race(&room, ["1400", "500", "900", "1200"]).iter().map(|(frames, _)| *frames).collect();
    assert!(jain(&frames) >= 0.999, "{frames:?}");
}

/// A port that floods the uplink with the smallest frames leaves another its share.
#[test]
fn a_flood_of_small_frames_takes_no_more_than_its_share() {
    needs!("ip", "iperf3");
    let Some(room) = Room::open(2, &["--rate", "100M"], &[]) else { return };
    let start = |port: &str| {
        let server = room.start(OUTSIDE, &["iperf3", "-s", "-1", "-p", port, "--forceflush"]);
        server.output_with("listening", PATIENCE);
        server
    };
    let serving = [start("6001"), start("6002")];
    let flood = [
        "iperf3",
        "-c",
        OUTSIDE_ADDRESS,
        "-p",
        "6001",
        "-u",
        "-b",
        "0",
        "-l",
        "18",
        "-t",
        "6",
        "--forceflush",
    ];
    let flooding = room.start("1", &flood);
    flooding.output_with("0.00-1.00", PATIENCE);
    let words = ["iperf3", "-c", OUTSIDE_ADDRESS, "-p", "6002", "-t", "4", "--forceflush"];
    let sending = room.start("2", &words);
    sending.output_with("1.00-2.00", PATIENCE);
    let before = sent(&room, 2);
    sending.output_with("2.00-3.00", PATIENCE);
    let after = sent(&room, 2);
    let shares: Vec<_> = before.iter().zip(&after).map(|(before, after)| after.1 - before.1).collect();
    assert!(shares[1] >= 0.95 * shares[0], "{shares:?}");
    sending.wait(PATIENCE);
    drop(flooding);
    drop(serving);
}
