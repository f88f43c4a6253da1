//! Looks at what runs here of this user and root, and the rates that follow from two looks.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::control::{self, Question};
use crate::size::Size;
use crate::{local, net, node_control, output, side_by_side};

/// What there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Kind {
    /// Programs on far memory.
    Programs,
    /// Nodes.
    Nodes,
    /// Uplinks that are shared, and their ports.
    Uplinks,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Programs, Self::Nodes, Self::Uplinks];

    /// In JSON.
    fn key(self) -> &'static str {
        match self {
            Self::Programs => "programs",
            Self::Nodes => "nodes",
            Self::Uplinks => "uplinks",
        }
    }
}

/// One that listens, and what it has said, or why it has not.
struct Asked {
    kind: Kind,
    /// No other one has it.
    place: String,
    name: String,
    answer: Result<Value, String>,
    at: Instant,
}

/// What was seen.
#[derive(Default)]
pub struct Seen {
    /// Of the kinds that were looked for.
    by_kind: HashMap<Kind, Vec<Value>>,
    /// Those that do not answer.
    silent: Vec<Value>,
}

impl Seen {
    /// What is of a kind.
    pub fn of(&self, kind: Kind) -> &[Value] {
        self.by_kind.get(&kind).map_or(&[], Vec::as_slice)
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.by_kind.values().all(Vec::is_empty)
    }

    /// As JSON: a kind that was not looked for is not there.
    pub fn in_json(&self) -> Value {
        let mut value = json!({ "silent": self.silent });
        for (kind, seen) in &self.by_kind {
            value[kind.key()] = json!(seen);
        }
        value
    }
}

/// Remembers the last look.
pub struct Watch {
    kinds: Vec<Kind>,
    /// Whether nodes tell their counters.
    with_counters: bool,
    before: HashMap<String, (Instant, Value)>,
    /// Of which it was said that they do not answer.
    silent: HashSet<String>,
}

impl Watch {
    /// Looks at these kinds; at all, if there is none.
    pub fn new(kinds: &[Kind], with_counters: bool) -> Self {
        let kinds = if kinds.is_empty() { Kind::ALL.to_vec() } else { kinds.to_vec() };
        Self { kinds, with_counters, before: HashMap::new(), silent: HashSet::new() }
    }

    /// How each is. From the second look on with `per_s`, the rates since the last one.
    pub fn look(&mut self) -> Seen {
        let mut seen = Seen::default();
        let (mut before, mut silent) = (HashMap::new(), HashSet::new());
        let with_counters = self.with_counters;
        // Who does not answer delays no other kind.
        let asked = side_by_side::ask(&self.kinds, |kind| match kind {
            Kind::Programs => programs(),
            Kind::Nodes => nodes(with_counters),
            Kind::Uplinks => uplinks(),
        });
        for kind in &self.kinds {
            seen.by_kind.insert(*kind, Vec::new());
        }
        for Asked { kind, place, name, answer, at } in asked.into_iter().flatten() {
            let status = match answer {
                Ok(status) => status,
                Err(reason) => {
                    if !self.silent.contains(&place) {
                        output::say(&format!("{reason}; it is left out"));
                    }
                    seen.silent.push(json!({ "kind": kind.key(), "name": name, "reason": reason }));
                    silent.insert(place);
                    continue;
                }
            };
            let mut told = status.clone();
            if let Some((since, before)) = self.before.get(&place) {
                let rates = Rates { before, elapsed_s: (at - *since).as_secs_f64() };
                match kind {
                    Kind::Programs => rates.of_program(&mut told),
                    Kind::Nodes => rates.of_node(&mut told),
                    Kind::Uplinks => rates.of_uplink(&mut told),
                }
            }
            seen.by_kind.entry(kind).or_default().push(told);
            before.insert(place, (at, status));
        }
        (self.silent, self.before) = (silent, before);
        seen
    }
}

fn programs() -> Vec<Asked> {
    let runs = control::runs();
    let answers = side_by_side::ask(&runs, |run| (run.ask(&Question::Status), Instant::now()));
    let asked = runs.iter().zip(answers).map(|(run, (answer, at))| {
        let answer = answer.and_then(|status| match status {
            Value::Object(_) => Ok(status),
            _ => Err(format!("the run of process {} answers no status", run.pid)),
        });
        // Runs in different pid namespaces may have the same number.
        let place = run.path().display().to_string();
        Asked { kind: Kind::Programs, place, name: run.pid.to_string(), answer, at }
    });
    asked.collect()
}

fn nodes(with_counters: bool) -> Vec<Asked> {
    let nodes = local::nodes();
    let answers = side_by_side::ask(&nodes, |node| {
        let client = node.client().map_err(node_control::StatusError::from);
        let status = client.and_then(|client| node_control::status(client, with_counters));
        (status.map_err(|error| error.to_string()), Instant::now())
    });
    let asked = nodes.iter().zip(answers).map(|(node, (answer, at))| {
        let name = node.name().to_owned();
        let answer = answer.and_then(|status| {
            let mut value = serde_json::to_value(status).map_err(|error| error.to_string())?;
            // The name that commands take.
            value["local_name"] = json!(name);
            Ok(value)
        });
        let answer = answer.map_err(|reason| format!("node `{name}` does not answer: {reason}"));
        Asked { kind: Kind::Nodes, place: node.address().to_string(), name, answer, at }
    });
    asked.collect()
}

fn uplinks() -> Vec<Asked> {
    let owners = net::owners();
    let answers = side_by_side::ask(&owners, |(_, client)| (net::show::all(client), Instant::now()));
    let asked = owners.iter().zip(answers).map(|((path, _), (answer, at))| {
        let place = path.display().to_string();
        let answer = answer
            .map(|(uplink, ports)| json!({ "uplink": uplink, "ports": ports }))
            .map_err(|error| format!("the owner at {place}: {}", error.text));
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Asked { kind: Kind::Uplinks, place, name, answer, at }
    });
    asked.collect()
}

/// A number in a status.
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A number of bytes in a status.
pub fn size(value: &Value) -> String {
    Size(number(value)).to_string()
}

/// The word at a key.
pub fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Adds what follows from an earlier status.
struct Rates<'a> {
    before: &'a Value,
    elapsed_s: f64,
}

impl Rates<'_> {
    fn per_s(&self, after: u64, before: u64) -> u64 {
        (after.saturating_sub(before) as f64 / self.elapsed_s).round() as u64
    }

    fn of_program(&self, status: &mut Value) {
        let before = self.before;
        let rate = |after: &Value, before: &Value| self.per_s(number(after), number(before));
        let counter = |name: &str| rate(&status["counters"][name], &before["counters"][name]);
        let far = |name: &str| rate(&status["far"][name], &before["far"][name]);
        let rates = json!({
            "far_faults": counter("far_faults"),
            "bytes_in": counter("pages_in") * 4096,
            "bytes_out": counter("pages_out") * 4096,
            "copies": far("copies_restored") + far("copies_moved"),
            "p99_us": late_us(&status["pauses"]["histogram"], &before["pauses"]["histogram"]),
        });
        status["per_s"] = rates;
        let lenders = status.pointer_mut("/far/lenders").and_then(Value::as_array_mut);
        for lender in lenders.into_iter().flatten().filter(|lender| lender.is_object()) {
            let known = before["far"]["lenders"].as_array().into_iter().flatten();
            let is_it = |earlier: &&Value| ["name", "address"].iter().all(|key| earlier[key] == lender[key]);
            let earlier = known.clone().find(is_it).unwrap_or(&Value::Null);
            let (read, written) = (
                rate(&lender["read_bytes"], &earlier["read_bytes"]),
                rate(&lender["written_bytes"], &earlier["written_bytes"]),
            );
            lender["per_s"] = json!({ "read_bytes": read, "written_bytes": written });
        }
    }

    fn of_node(&self, status: &mut Value) {
        let sum = |status: &Value, name: &str| -> u64 {
            let ends = ["borrowers", "neighbours"].into_iter().flat_map(|list| status[list].as_array());
            let links = ends.flatten().flat_map(|end| end["links"].as_array()).flatten();
            links.map(|link| number(&link[name])).sum()
        };
        let rate = |name: &str| self.per_s(sum(status, name), sum(self.before, name));
        status["per_s"] =
            json!({ "sent_bytes": rate("sent_bytes"), "received_bytes": rate("received_bytes") });
    }

    fn of_uplink(&self, status: &mut Value) {
        let rates = |after: &Value, before: &Value| {
            let of = |direction: &str| {
                let bytes = |of: &Value| number(&of["counters"][direction]["bytes"]);
                self.per_s(bytes(after), bytes(before))
            };
            let dropped = self.per_s(dropped(after), dropped(before));
            json!({ "sent_bytes": of("sent"), "received_bytes": of("received"), "dropped": dropped })
        };
        let of_uplink = rates(&status["uplink"], &self.before["uplink"]);
        status["uplink"]["per_s"] = of_uplink;
        for port in status["ports"].as_array_mut().into_iter().flatten() {
            let known = self.before["ports"].as_array().into_iter().flatten();
            let earlier = known.clone().find(|earlier| earlier["port"]["name"] == port["port"]["name"]);
            let of_port = rates(port, earlier.unwrap_or(&Value::Null));
            port["per_s"] = of_port;
        }
    }
}

/// Frames from and for a port, or the uplink, that were dropped.
fn dropped(status: &Value) -> u64 {
    let counters = &status["counters"];
    let refused: u64 =
        counters["refused"].as_object().into_iter().flatten().map(|(_, count)| number(count)).sum();
    refused + number(&counters["undelivered"]) + number(&counters["overflowed"])
}

/// The time in microseconds within which 99 of 100 pauses since then ended, as well as the histogram tells. 0: there was
/// none.
fn late_us(now: &Value, before: &Value) -> u64 {
    let counts = |histogram: &Value| -> HashMap<u64, u64> {
        let buckets = histogram.as_array().into_iter().flatten();
        buckets.map(|bucket| (number(&bucket["up_to_us"]), number(&bucket["count"]))).collect()
    };
    let before = counts(before);
    let mut since: Vec<(u64, u64)> = counts(now)
        .into_iter()
        .map(|(most_us, count)| (most_us, count - before.get(&most_us).copied().unwrap_or(0).min(count)))
        .collect();
    since.sort_unstable();
    let total: u64 = since.iter().map(|(_, count)| count).sum();
    let mut left = (total * 99).div_ceil(100);
    for (most_us, count) in since {
        if left > 0 && count >= left {
            return most_us;
        }
        left -= count;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(buckets: &[(u64, u64)]) -> Value {
        buckets.iter().map(|(most_us, count)| json!({ "up_to_us": most_us, "count": count })).collect()
    }

    #[test]
    fn what_was_slow_before_does_not_count() {
        let before = histogram(&[(8, 5), (1024, 500)]);
        let now = histogram(&[(8, 104), (16, 1), (1024, 500)]);
        assert_eq!(late_us(&now, &before), 8);
        let now = histogram(&[(8, 104), (16, 2), (1024, 500)]);
        assert_eq!(late_us(&now, &before), 16);
        assert_eq!(late_us(&before, &before), 0);
        assert_eq!(late_us(&Value::Null, &before), 0);
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let lender = |name: &str, read: u64| json!({ "name": name, "read_bytes": read });
        let status = |faults: u64, lenders: &[Value]| json!({ "counters": { "far_faults": faults }, "far": { "lenders": lenders } });
        let before = status(10, &[lender("gone", 1 << 30), lender("stays", 1000)]);
        let rates = Rates { before: &before, elapsed_s: 2.0 };
        // One has come since, and one is gone.
        let mut now = status(30, &[lender("stays", 9192), lender("new", 4)]);
        rates.of_program(&mut now);
        assert_eq!(now["per_s"]["far_faults"], 10);
        assert_eq!(now["far"]["lenders"][0]["per_s"]["read_bytes"], 4096);
        assert_eq!(now["far"]["lenders"][1]["per_s"]["read_bytes"], 2);
    }

    #[test]
    fn rates_of_nodes_and_ports_are_those_of_their_links_and_counters() {
        let node = |sent: u64| json!({ "borrowers": [{ "links": [{ "sent_bytes": sent }] }], "neighbours": [{ "links": [{ "sent_bytes": 7 }] }] });
        let before = node(100);
        let mut now = node(300);
        Rates { before: &before, elapsed_s: 2.0 }.of_node(&mut now);
        assert_eq!((&now["per_s"]["sent_bytes"], &now["per_s"]["received_bytes"]), (&json!(100), &json!(0)));
        let uplink = |sent: u64, refused: u64| {
            let counters = json!({ "sent": { "bytes": sent }, "received": { "bytes": 5 }, "refused": { "x": refused }, "undelivered": 1 });
            json!({ "uplink": { "counters": counters }, "ports": [{ "port": { "name": "web" }, "counters": counters }] })
        };
        let before = uplink(100, 1);
        let mut now = uplink(300, 9);
        Rates { before: &before, elapsed_s: 2.0 }.of_uplink(&mut now);
        let wanted = json!({ "sent_bytes": 100, "received_bytes": 0, "dropped": 4 });
        assert_eq!((&now["uplink"]["per_s"], &now["ports"][0]["per_s"]), (&wanted, &wanted));
    }
}
