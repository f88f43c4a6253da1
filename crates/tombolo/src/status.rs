//! `tombolo status`: ask a node how it is.

use clap::Args;
use tombolo_node::{Borrower, NodeStatus};

use crate::asked::NodeArguments;
use crate::size::Size;
use crate::{Failure, output};

/// Arguments of `tombolo status`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    node: NodeArguments,
}

/// Prints the node's status.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let address = arguments.node.ways("status")?;
    let ask = &arguments.node.ask;
    let security = ask.security(&address)?;
    let status = address.ask(|address| tombolo_node::status_of(address, &security))?;
    if ask.json {
        output::json(&in_json(&status))?;
        return Ok(0);
    }
    output::line(&format!(
        "node {} (version {}, process {}), up {} s",
        status.name, status.version, status.process_id, status.uptime_s
    ));
    output::line(&format!("lent {} of {}", Size(status.lent_bytes), Size(status.lend_bytes)));
    for borrower in &status.borrowers {
        output::line(&format!("  {}", said_of(borrower)));
    }
    let count =
        |name: &str| status.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
    if count(ENDING) > 0 {
        output::line(
            "  it is about to end: it lends to nobody new, and waits for its borrowers and programs",
        );
    }
    if count("named_segments") > 0 {
        let (segments, bytes) = (count("named_segments"), Size(count("named_bytes")));
        output::line(&format!("  {bytes} in {segments} named segment(s): `tombolo ls {address}`"));
    }
    for group in groups(&status.counters) {
        output::line(&group);
    }
    Ok(0)
}

/// The whole status, with the counters by name.
fn in_json(status: &NodeStatus) -> serde_json::Value {
    let NodeStatus { name, version, process_id, uptime_s, lend_bytes, lent_bytes, borrowers, counters } =
        status;
    let counters: serde_json::Map<_, _> =
        counters.iter().map(|(name, count)| (name.clone(), (*count).into())).collect();
    serde_json::json!({
        "name": name,
        "version": version,
        "process_id": process_id,
        "uptime_s": uptime_s,
        "lend_bytes": lend_bytes,
        "lent_bytes": lent_bytes,
        "borrowers": borrowers,
        "counters": counters,
    })
}

/// About a borrower: whatever is known of it, and what it has.
pub fn said_of(borrower: &Borrower) -> String {
    let Borrower { name, process_id, address, key, bytes, segments } = borrower;
    let mut known: Vec<String> = Vec::new();
    known.extend(process_id.map(|process| format!("process {process}")));
    known.extend(address.clone());
    known.extend(key.as_ref().map(|key| format!("key {key}")));
    let name = if name.is_empty() { "(no name)" } else { name };
    let known = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
    format!("{name}{known}: {} in {segments} segment(s)", Size(*bytes))
}

/// What the names of counters begin with, and what they are counters of.
const GROUPS: [(&str, &str); 7] = [
    ("", "engine"),
    ("nacks_sent_", "negative acknowledgements sent"),
    ("nacks_received_", "negative acknowledgements received"),
    ("links_", "links"),
    ("peer_", "each peer"),
    ("strangers_", "strangers at the listener"),
    ("programs_", "programs"),
];
/// The counter that says whether the node is about to end.
const ENDING: &str = "is_ending";
/// The prefix of counters that the lines above have given in words.
const SAID: &str = "named_";

/// The counters that are not zero, each group under its heading.
fn groups(counters: &[(String, u64)]) -> Vec<String> {
    let mut lines = Vec::new();
    for (group, heading) in GROUPS {
        let of_group = |name: &str| {
            let others = GROUPS.iter().filter(|(other, _)| other.len() > group.len());
            !name.starts_with(SAID)
                && name != ENDING
                && name.starts_with(group)
                && !others.into_iter().any(|(other, _)| name.starts_with(other))
        };
        let some: Vec<_> = counters.iter().filter(|(name, count)| *count > 0 && of_group(name)).collect();
        if !some.is_empty() {
            lines.push(format!("{heading}:"));
        }
        for (name, count) in some {
            let count = if name.ends_with("_bytes") { Size(*count).to_string() } else { count.to_string() };
            lines.push(format!("  {:24} {count}", &name[group.len()..]));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_grouped_and_zero_ones_left_out() {
        let counters = [
            ("blocks_sent", 3),
            ("timeouts", 0),
            ("nacks_sent_buffer_full", 1),
            ("links_up", 2),
            ("links_forged", 0),
            ("peer_1_path_0_packet_bytes", 1430),
            ("programs_memory_bytes", 3 << 29),
            ("nacks_received_no_context", 0),
            ("named_segments", 4),
            ("acks", 5),
        ];
        let counters = counters.map(|(name, count)| (name.to_owned(), count));
        let lines: Vec<String> = groups(&counters)
            .iter()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "engine:",
                "blocks_sent 3",
                "acks 5",
                "negative acknowledgements sent:",
                "buffer_full 1",
                "links:",
                "up 2",
                "each peer:",
                "1_path_0_packet_bytes 1.4 KiB",
                "programs:",
                "memory_bytes 1.5 GiB",
            ]
        );
    }

    #[test]
    fn borrowers_are_told_by_whatever_is_known_of_them() {
        let near = Borrower {
            name: "near".into(),
            process_id: Some(7),
            address: None,
            key: None,
            bytes: 3 << 29,
            segments: 2,
        };
        assert_eq!(said_of(&near), "near (process 7): 1.5 GiB in 2 segment(s)");
        let far = Borrower {
            name: String::new(),
            process_id: None,
            address: Some("udp:10.0.0.1:7000".into()),
            key: Some("k".into()),
            ..near
        };
        assert_eq!(said_of(&far), "(no name) (udp:10.0.0.1:7000, key k): 1.5 GiB in 2 segment(s)");
    }
}
