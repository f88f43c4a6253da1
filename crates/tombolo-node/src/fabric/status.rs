//! The status of a node, as it tells other nodes: in JSON, so that an earlier version can read what a later one sends.
//!
//! A status is sent in parts that each fit into a control message. Each part begins with the fields of the node as a
//! whole. Its lists go on where those of the last part ended.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fabric::label;

/// The status of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Its program version.
    pub version: String,
    /// Its process, on its machine.
    pub process_id: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Where it listens for links.
    pub listens: Vec<String>,
    /// In how many seconds it ends at the latest, if it is about to end.
    pub ending_within_s: Option<u64>,
    /// What it may lend, in bytes.
    pub lend_bytes: u64,
    /// What is lent now, or held by named segments, in bytes.
    pub lent_bytes: u64,
    /// What could be lent now, in bytes.
    pub free_bytes: u64,
    /// What was given back and is not free yet, in bytes.
    pub being_freed_bytes: u64,
    /// Limits of its programs.
    pub limits: ProgramLimits,
    /// Totals of its named segments.
    pub named: NamedTotals,
    /// The nodes that it lends to.
    pub borrowers: Vec<Borrower>,
    /// The nodes that it is to be joined to, and others that are joined to it.
    pub neighbours: Vec<NeighbourStatus>,
    /// The processes that use its API.
    pub programs: Vec<ProgramStatus>,
    /// Counters of its engine, links and programs, where they were asked for.
    pub counters: BTreeMap<String, u64>,
}

/// Limits of the programs of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramLimits {
    /// Most processes with an open domain.
    pub domains: u64,
    /// Memory that all of them may allocate, in bytes.
    pub memory_bytes: u64,
    /// Most blocks under way at once.
    pub transactions: u64,
}

/// The named segments of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedTotals {
    /// How many there are.
    pub segments: u64,
    /// What they hold, in bytes.
    pub bytes: u64,
}

/// One borrower.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Borrower {
    /// Its name, as it introduced itself.
    pub name: String,
    /// Its process, where the link knows.
    pub process_id: Option<u32>,
    /// Its address, if it is or may be on another machine.
    pub address: Option<String>,
    /// The public key that it has proved, on a link that asks for keys.
    pub key: Option<String>,
    /// How much memory it holds, in bytes.
    pub bytes: u64,
    /// In how many segments it holds that.
    pub segments: u32,
    /// For how many seconds it has been linked.
    pub since_s: u64,
    /// Whether it maps the memory. What it reads and writes then passes no link, and is not counted here.
    pub is_mapped: bool,
    /// Its links.
    pub links: Vec<LinkStatus>,
}

/// The state of a neighbour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeighbourState {
    /// There is a link to it that answers.
    Joined,
    /// There are links to it, and none of them answers.
    Silent,
    /// There is no link to it.
    #[default]
    Absent,
    /// A state that only a later version knows.
    #[serde(other)]
    Other,
}

/// A node that this one is to be joined to, or that is joined to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NeighbourStatus {
    /// The number by which programs call it; 0 if it has none.
    pub number: u32,
    /// Its name, if it has introduced itself.
    pub name: String,
    /// Its process, where the link knows.
    pub process_id: Option<u32>,
    /// The public key that it has proved, on a link that asks for keys.
    pub key: Option<String>,
    /// The addresses at which it is dialed. For a node that has dialed this one: where it comes from, if that is known.
    pub addresses: Vec<String>,
    /// Whether this node is to be joined to it (`--peer`).
    pub is_wanted: bool,
    /// Its state.
    pub state: NeighbourState,
    /// For how many seconds it has been in this state.
    pub since_s: u64,
    /// Why it, or one of its addresses, could not be reached the last time.
    pub failure: Option<String>,
    /// The links to it.
    pub links: Vec<LinkStatus>,
}

/// A link to another node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkStatus {
    /// Which of the links to that node it is.
    pub path: u8,
    /// Address of its other end, if that is or may be another machine.
    pub address: Option<String>,
    /// Whether its other end answers.
    pub answers: bool,
    /// Bytes of the packets that were sent by it.
    pub sent_bytes: u64,
    /// Bytes of the packets that were received by it.
    pub received_bytes: u64,
    /// The largest packet that it takes now.
    pub packet_bytes: u64,
    /// Bytes that may be under way on it.
    pub window_bytes: u64,
    /// The smoothed round trip, if one was measured.
    pub round_trip_ns: Option<u64>,
    /// Blocks of transfers sent by it, repeated ones too.
    pub blocks_sent: u64,
}

/// A process that uses a node's API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramStatus {
    /// Its domain.
    pub domain: u16,
    /// Number of the process in the domain.
    pub process: u8,
    /// Its process, where the kernel says.
    pub process_id: Option<u32>,
    /// Its user, where the kernel says.
    pub user_id: Option<u32>,
    /// Transfers that it waits for.
    pub transfers: u32,
    /// Memory that it has allocated, in bytes.
    pub memory_bytes: u64,
    /// Parts of that memory that others may map.
    pub windows: u32,
    /// Memory of its own that it has registered, in bytes.
    pub registered_bytes: u64,
    /// Whether it has a mailbox, and so takes messages.
    pub has_mailbox: bool,
}

/// The most entries of a status.
const MAX_ENTRIES: usize = 1_000_000;

/// Error: a node sends parts of its status without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its status has no end")]
pub struct EndlessStatus;

impl NodeStatus {
    /// Asks for all parts of a status, and puts them together. `ask` asks for the part that begins at an entry. It
    /// returns the part and the entry at which the next one begins, if there is more.
    ///
    /// # Errors
    /// Those of `ask`, and [`EndlessStatus`].
    pub fn of_parts<E: From<EndlessStatus>>(
        deadline: Instant,
        mut ask: impl FnMut(u64) -> Result<(Self, Option<u64>), E>,
    ) -> Result<Self, E> {
        let (mut status, mut next) = ask(0)?;
        let (mut from, mut entries) = (0, 0);
        while let Some(place) = next {
            // A correct node ends its status, and each part but the last has entries.
            let is_empty = std::mem::replace(&mut entries, status.entries()) == entries;
            if place <= from || is_empty || entries > MAX_ENTRIES || Instant::now() > deadline {
                return Err(EndlessStatus.into());
            }
            from = place;
            let (part, more) = ask(place)?;
            status.append(part);
            next = more;
        }
        Ok(status)
    }

    /// How many entries its lists have.
    fn entries(&self) -> usize {
        self.borrowers.len() + self.neighbours.len() + self.programs.len() + self.counters.len()
    }

    /// Appends the next part of the status.
    fn append(&mut self, part: Self) {
        self.borrowers.extend(part.borrowers);
        self.neighbours.extend(part.neighbours);
        self.programs.extend(part.programs);
        self.counters.extend(part.counters);
    }

    /// The status as it is sent, in JSON.
    pub(crate) fn text(&self) -> String {
        json_of(self)
    }

    /// Parses the text that another node has sent, and makes the texts in it harmless.
    pub(crate) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        Self::from_json(serde_json::from_str(text)?)
    }

    /// A status from JSON, with the texts in it made harmless.
    ///
    /// # Errors
    /// The value is no status.
    pub fn from_json(mut value: Value) -> Result<Self, serde_json::Error> {
        make_harmless(&mut value);
        serde_json::from_value(value)
    }
}

/// A value in JSON, as it is sent. All values that are sent here can be written as JSON.
pub(crate) fn json_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Makes all text in a value harmless for a terminal.
fn make_harmless(value: &mut Value) {
    match value {
        Value::String(text) => *text = label::reason(text),
        Value::Array(values) => values.iter_mut().for_each(make_harmless),
        Value::Object(entries) => {
            let harmless = std::mem::take(entries).into_iter().map(|(name, mut value)| {
                make_harmless(&mut value);
                (label::name(&name), value)
            });
            *entries = harmless.collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_later_version_says_beside_is_passed_over() {
        let status = NodeStatus { name: "lender".into(), lend_bytes: u64::MAX, ..NodeStatus::default() };
        assert_eq!(NodeStatus::parse(&status.text()).unwrap(), status);
        let later = r#"{"name": "lender", "lend_bytes": 18446744073709551615, "colour": ["blue", {"n": null}],
            "neighbours": [{"name": "east", "state": "dreaming", "mood": 7}]}"#;
        let read = NodeStatus::parse(later).unwrap();
        assert_eq!((&*read.name, read.lend_bytes), ("lender", u64::MAX));
        assert_eq!((&*read.neighbours[0].name, read.neighbours[0].state), ("east", NeighbourState::Other));
        NodeStatus::parse("[").unwrap_err();
        NodeStatus::parse(r#"{"borrowers": 7}"#).unwrap_err();
    }

    #[test]
    fn no_text_of_another_node_does_anything_to_a_terminal() {
        let evil = "\u{1b}[2J\u{202e}x\n";
        let status = NodeStatus {
            name: evil.into(),
            version: evil.into(),
            listens: vec![evil.into()],
            borrowers: vec![Borrower {
                name: evil.into(),
                address: Some(evil.into()),
                key: Some(evil.into()),
                ..Borrower::default()
            }],
            neighbours: vec![NeighbourStatus { failure: Some(evil.into()), ..NeighbourStatus::default() }],
            counters: BTreeMap::from([(evil.to_owned(), 1)]),
            ..NodeStatus::default()
        };
        let read = NodeStatus::parse(&status.text()).unwrap();
        assert!(!format!("{read:?}").contains("\\u{1b}") && !format!("{read:?}").contains("\\n"), "{read:?}");
        assert_eq!(read.name, "\u{FFFD}[2J\u{FFFD}x\u{FFFD}");
        assert_eq!(read.counters.keys().next().unwrap(), "\u{FFFD}[2J\u{FFFD}x\u{FFFD}");
    }
}
