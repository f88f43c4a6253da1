//! The status of a node for people.

use std::collections::BTreeMap;

use tombolo_node::{Borrower, NamedSegment, NeighbourState, NeighbourStatus, NodeStatus, ProgramStatus};

use super::rates::{Rate, Rates};
use crate::duration::shown_s as time;
use crate::size::Size;
use crate::table::{self, Column};

/// Named segments that are listed; `tombolo ls` lists all.
pub const MAX_NAMED: usize = 8;

const BORROWERS: [Column; 8] = [
    Column::name("BORROWER"),
    Column::figure("HAS"),
    Column::figure("SEGMENTS"),
    Column::figure("SINCE"),
    Column::figure("PROCESS"),
    Column::figure("SENT/S"),
    Column::figure("RECEIVED/S"),
    Column::rest("ADDRESS"),
];
const NEIGHBOURS: [Column; 7] = [
    Column::name("NEIGHBOUR"),
    Column::figure("NUMBER"),
    Column::figure("STATE"),
    Column::figure("SINCE"),
    Column::figure("SENT/S"),
    Column::figure("RECEIVED/S"),
    Column::rest("ADDRESS"),
];
const PROGRAMS: [Column; 8] = [
    Column::figure("DOMAIN"),
    Column::figure("PROCESS"),
    Column::figure("USER"),
    Column::figure("TRANSFERS"),
    Column::figure("MEMORY"),
    Column::figure("WINDOWS"),
    Column::figure("REGISTERED"),
    Column::rest("MAILBOX"),
];
const NAMED: [Column; 3] = [Column::name("SEGMENT"), Column::figure("SIZE"), Column::figure("AGE")];

/// All but the counters. The node is named in what can be typed next.
pub fn of(
    status: &NodeStatus,
    rates: &Rates,
    named: Option<&[NamedSegment]>,
    node: &str,
    width: usize,
) -> Vec<String> {
    let NodeStatus { name, version, process_id, uptime_s, .. } = status;
    let mut lines =
        vec![format!("node {name} (version {version}, process {process_id}), up {}", time(*uptime_s))];
    if !status.listens.is_empty() {
        lines.push(format!("listens at {}", status.listens.join(", ")));
    }
    if let Some(within_s) = status.ending_within_s {
        lines.push(format!(
            "ends in {} at the latest, and waits for its borrowers and programs",
            time(within_s)
        ));
    }
    let mut lent = format!(
        "lent {} of {}, {} free",
        Size(status.lent_bytes),
        Size(status.lend_bytes),
        Size(status.free_bytes)
    );
    if status.being_freed_bytes > 0 {
        lent.push_str(&format!(", {} being freed", Size(status.being_freed_bytes)));
    }
    lines.push(lent);
    let rate_of = |rates: &[Option<Rate>], index: usize| rates.get(index).copied().flatten();
    let mut section = |columns: &[Column], rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            lines.push(String::new());
            lines.extend(table::lines(columns, &rows, width));
        }
    };
    let borrowers = status.borrowers.iter().enumerate();
    section(
        &BORROWERS,
        borrowers.map(|(index, borrower)| of_borrower(borrower, rate_of(&rates.borrowers, index))).collect(),
    );
    let neighbours = status.neighbours.iter().enumerate();
    section(
        &NEIGHBOURS,
        neighbours
            .map(|(index, neighbour)| of_neighbour(neighbour, rate_of(&rates.neighbours, index)))
            .collect(),
    );
    section(&PROGRAMS, status.programs.iter().map(of_program).collect());
    let segments = named.unwrap_or_default();
    section(&NAMED, segments.iter().take(MAX_NAMED).map(of_segment).collect());
    let (count, bytes) = (status.named.segments, Size(status.named.bytes));
    if named.is_none() {
        lines.push(format!("{count} named segments, {bytes}, whose names this key may not see"));
    } else if count > segments.len().min(MAX_NAMED) as u64 {
        lines.push(format!("{count} named segments, {bytes}: `tombolo ls {node}` lists all"));
    }
    lines
}

fn of_borrower(borrower: &Borrower, rate: Option<Rate>) -> Vec<String> {
    let [sent, received] = per_s(rate);
    let key = borrower.key.as_deref().map(|key| format!("key {}", short(key)));
    let from: Vec<String> = borrower.address.iter().cloned().chain(key).collect();
    vec![
        name(&borrower.name),
        Size(borrower.bytes).to_string(),
        borrower.segments.to_string(),
        time(borrower.since_s),
        known(borrower.process_id),
        sent,
        received,
        from.join(", "),
    ]
}

fn of_neighbour(neighbour: &NeighbourStatus, rate: Option<Rate>) -> Vec<String> {
    let [sent, received] = per_s(rate);
    let state = match neighbour.state {
        NeighbourState::Joined => "joined",
        NeighbourState::Silent => "silent",
        NeighbourState::Absent => "absent",
        NeighbourState::Other => "?",
    };
    let mut rest: Vec<String> = neighbour.addresses.clone();
    rest.extend(neighbour.key.as_deref().map(|key| format!("key {}", short(key))));
    rest.extend(neighbour.process_id.map(|process| format!("process {process}")));
    if neighbour.state == NeighbourState::Joined {
        let silent = neighbour.links.iter().filter(|link| !link.answers);
        rest.extend(silent.map(|link| format!("{} is silent", link.address.as_deref().unwrap_or("a link"))));
    }
    let mut rest = rest.join(", ");
    if let Some(failure) = &neighbour.failure {
        rest.push_str(&format!(" ({failure})"));
    }
    vec![
        name(&neighbour.name),
        neighbour.number.to_string(),
        state.to_owned(),
        time(neighbour.since_s),
        sent,
        received,
        rest,
    ]
}

fn of_program(program: &ProgramStatus) -> Vec<String> {
    vec![
        program.domain.to_string(),
        known(program.process_id),
        known(program.user_id),
        program.transfers.to_string(),
        Size(program.memory_bytes).to_string(),
        program.windows.to_string(),
        Size(program.registered_bytes).to_string(),
        if program.has_mailbox { "yes" } else { "no" }.to_owned(),
    ]
}

fn of_segment(segment: &NamedSegment) -> Vec<String> {
    vec![segment.name.clone(), Size(segment.bytes).to_string(), time(segment.age_s)]
}

fn name(name: &str) -> String {
    if name.is_empty() { "-".to_owned() } else { name.to_owned() }
}

fn known(number: Option<u32>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

/// The beginning of a key, as `tombolo node` logs it.
fn short(key: &str) -> &str {
    let digits = key.rsplit(':').next().unwrap_or(key);
    digits.get(..8).unwrap_or(digits)
}

fn per_s(rate: Option<Rate>) -> [String; 2] {
    match rate {
        Some(rate) => [rate.sent_bytes, rate.received_bytes].map(|bytes| Size(bytes).to_string()),
        None => ["-".to_owned(), "-".to_owned()],
    }
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

/// The counters that are not zero, each group under its heading.
pub fn counters(counters: &BTreeMap<String, u64>) -> Vec<String> {
    let mut lines = Vec::new();
    for (group, heading) in GROUPS {
        let is_of_group = |name: &str| {
            let mut others = GROUPS.iter().filter(|(other, _)| other.len() > group.len());
            name.starts_with(group) && !others.any(|(other, _)| name.starts_with(other))
        };
        let some = counters.iter().filter(|(name, count)| **count > 0 && is_of_group(name));
        let some: Vec<(&str, u64)> = some.map(|(name, count)| (&name[group.len()..], *count)).collect();
        if !some.is_empty() {
            lines.extend([String::new(), format!("{heading}:")]);
        }
        let longest = some.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, count) in some {
            let count = if name.ends_with("_bytes") { Size(count).to_string() } else { count.to_string() };
            lines.push(format!("  {name:longest$} {count:>12}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use tombolo_node::{LinkStatus, NamedTotals};

    use super::*;

    #[test]
    fn counters_are_grouped_and_zero_ones_left_out() {
        let counted = [
            ("blocks_sent", 3),
            ("timeouts", 0),
            ("nacks_sent_buffer_full", 1),
            ("links_up", 2),
            ("links_forged", 0),
            ("peer_1_path_0_packet_bytes", 1430),
            ("programs_memory_bytes", 3 << 29),
            ("nacks_received_no_context", 0),
            ("acks", 5),
        ];
        let counted = counted.map(|(name, count)| (name.to_owned(), count)).into();
        let lines: Vec<String> = counters(&counted)
            .iter()
            .filter(|line| !line.is_empty())
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "engine:",
                "acks 5",
                "blocks_sent 3",
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
    fn a_status_says_all_in_80_columns() {
        let link = LinkStatus { answers: true, ..LinkStatus::default() };
        let status = NodeStatus {
            name: "lender".into(),
            version: "0.1.0".into(),
            process_id: 19440,
            uptime_s: 3 * 3600,
            listens: vec!["shm:/run/tombolo/lender".into(), "udp:192.0.2.1:7000".into()],
            ending_within_s: Some(25),
            lend_bytes: 16 << 20,
            lent_bytes: 4 << 20,
            free_bytes: 11 << 20,
            being_freed_bytes: 1 << 20,
            named: NamedTotals { segments: 9, bytes: 13 << 20 },
            borrowers: vec![Borrower {
                name: "run sort".into(),
                process_id: Some(19512),
                bytes: 4 << 20,
                segments: 1,
                since_s: 12,
                is_mapped: true,
                ..Borrower::default()
            }],
            neighbours: vec![
                NeighbourStatus {
                    number: 1,
                    name: "east".into(),
                    key: Some("tombolo-public:0123456789abcdef".into()),
                    addresses: vec!["udp:192.0.2.2:7000".into()],
                    is_wanted: true,
                    state: NeighbourState::Joined,
                    since_s: 7200,
                    links: vec![link],
                    ..NeighbourStatus::default()
                },
                NeighbourStatus {
                    number: 2,
                    addresses: vec!["udp:192.0.2.3:7000".into()],
                    since_s: 300,
                    failure: Some("no answer".into()),
                    ..NeighbourStatus::default()
                },
            ],
            programs: vec![ProgramStatus { domain: 7, memory_bytes: 64 << 20, ..ProgramStatus::default() }],
            ..NodeStatus::default()
        };
        let rates = Rates {
            borrowers: vec![None],
            neighbours: vec![Some(Rate { sent_bytes: 1 << 20, received_bytes: 0 }), None],
        };
        let lines = of(&status, &rates, Some(&[]), "lender", 80);
        let wanted = "node lender (version 0.1.0, process 19440), up 3 h
listens at shm:/run/tombolo/lender, udp:192.0.2.1:7000
ends in 25 s at the latest, and waits for its borrowers and programs
lent 4 MiB of 16 MiB, 11 MiB free, 1 MiB being freed

BORROWER   HAS SEGMENTS SINCE PROCESS SENT/S RECEIVED/S ADDRESS
run sort 4 MiB        1  12 s   19512      -          -

NEIGHBOUR NUMBER  STATE SINCE SENT/S RECEIVED/S ADDRESS
east           1 joined   2 h  1 MiB        0 B udp:192.0.2.2:7000, key 01234567
-              2 absent 5 min      -          - udp:192.0.2.3:7000 (no answer)

DOMAIN PROCESS USER TRANSFERS MEMORY WINDOWS REGISTERED MAILBOX
     7       -    -         0 64 MiB       0        0 B no
9 named segments, 13 MiB: `tombolo ls lender` lists all";
        assert_eq!(lines.join("\n"), wanted);
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
    }
}
