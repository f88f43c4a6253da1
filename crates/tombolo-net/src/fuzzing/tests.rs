//! Runs the fuzzers' corpus and random bytes in an ordinary test run.

use super::*;
use crate::letters::Ring;

#[path = "../../../../fuzz/replay.rs"]
mod replay;

fn both(name: &str, target: replay::Target) {
    replay::corpus(name, target);
    replay::random(name, target);
}

#[test]
fn letters() {
    let ring = Ring { address: 1 << 56, bytes: 1 << 20 };
    for (name, letter) in [
        ("hello", Letter::Hello { version: 1, session: 7, ring }),
        ("welcome", Letter::Welcome { session: 7, ring }),
        ("refused", Letter::Refused { session: 7, reason: "no" }),
        ("batch", Letter::Batch { session: 7, from: 0, start: 0, length: 64, credit: 0, inline: None }),
        (
            "inline",
            Letter::Batch { session: 7, from: 8, start: 8, length: 8, credit: 8, inline: Some(&[7; 8]) },
        ),
        ("credit", Letter::Credit { session: 7, head: 1 << 40 }),
        ("bye", Letter::Bye { session: 7 }),
    ] {
        replay::sample("letter", name, &letter.to_bytes());
    }
    both("letter", letter);
}

#[test]
fn requests() {
    let attach = r#"{"version":1,"ask":{"attach":{"name":"eth0@web","tap":"eth0","namespace":"web","mac":"02:00:00:00:00:07","mtu":1500,"weight":2,"rate_bits":0,"guaranteed_bits":5,"vlans":{"trunk":[0,5]},"addresses":["10.0.0.1","fd80::1"],"is_promiscuous":false,"groups":["33:33:00:00:00:01"]}}}"#;
    assert!(serde_json::from_str::<Request>(attach).is_ok());
    for (name, text) in [
        ("attach", attach),
        ("list", r#"{"version":1,"ask":{"list":{"after":null}}}"#),
        ("set", r#"{"version":1,"ask":{"set":{"port":"a","changes":{"weight":3,"addresses":null}}}}"#),
        ("set-uplink", r#"{"version":1,"ask":{"set_uplink":{"rate_bits":1000000}}}"#),
        ("attached", r#"{"attached":{"has_carrier":true,"segment_bytes_max":65536,"mtu":1500}}"#),
    ] {
        replay::sample("request", name, text.as_bytes());
    }
    both("request", request);
}

#[test]
fn files_of_ports() {
    let key = "tombolo-public:".to_owned() + &"9c".repeat(32);
    let far = format!("far from={key} guarantee=100M vlan=5 mac=02:00:00:00:00:08\n");
    for (name, text) in [
        ("web", "web from=user:1000 weight=2 rate=500M address=10.0.0.2,fd80::2 mac=02:00:00:00:00:07\n"),
        ("far", far.as_str()),
        ("trunk", "# all\nweb trunk=0,5,6 promiscuous=true groups=33:33:00:00:00:01 # a switch\n\n"),
    ] {
        replay::sample("ports_file", name, text.as_bytes());
    }
    both("ports_file", ports_file);
}
