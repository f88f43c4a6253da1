//! Looks at what runs here of this user and root, and the rates that follow from two looks.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::{Value, json};
use tombolo_node::NodeStatus;

use crate::control::{self, Question};
use crate::size::Size;
use crate::status::Rates as LinkRates;
use crate::{local, net, output, side_by_side};

/// What there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum What {
    /// Programs on far memory.
    Programs,
    /// Nodes.
    Nodes,
    /// Uplinks that are shared, and their ports.
    Uplinks,
}

impl What {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Programs, Self::Nodes, Self::Uplinks];

    /// Whether both are said by the same process: another one may listen at the same place by now.
    fn is_of_one_process(self, before: &Value, now: &Value) -> bool {
        let key = match self {
            Self::Programs => "/supervisor_pid",
            Self::Nodes => "/process_id",
            Self::Uplinks => "/uplink/process_id",
        };
        before.pointer(key) == now.pointer(key)
    }

    /// What people call it.
    fn words(self) -> &'static str {
        match self {
            Self::Programs => "no program on far memory",
            Self::Nodes => "no node",
            Self::Uplinks => "no uplink",
        }
    }

    /// In JSON.
    fn key(self) -> &'static str {
        match self {
            Self::Programs => "programs",
            Self::Nodes => "nodes",
            Self::Uplinks => "uplinks",
        }
    }
}

/// A service, and what it has said, or why it has not.
struct Asked {
    what: What,
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
    by_kind: HashMap<What, Vec<Value>>,
    /// Those that do not answer.
    silent: Vec<Value>,
}

impl Seen {
    /// What is of a kind.
    pub fn of(&self, kind: What) -> &[Value] {
        self.by_kind.get(&kind).map_or(&[], Vec::as_slice)
    }

    /// Whether nothing has answered.
    pub fn is_empty(&self) -> bool {
        self.by_kind.values().all(Vec::is_empty)
    }

    /// What to say where nothing has answered.
    pub fn nothing(&self) -> String {
        let looked_for = What::ALL.into_iter().filter(|what| self.by_kind.contains_key(what));
        let words = looked_for.map(What::words).collect::<Vec<_>>().join(", ");
        let answers = if self.silent.is_empty() { "" } else { " and answers" };
        format!("nothing of this user runs here{answers}: {words}")
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

/// How long a service may take to say how it is. A bound, not a measurement.
const TIMEOUT: Duration = control::STATUS_TIMEOUT;
/// The same, of one that did not answer the last time: it is to hold up the others as little as may be.
const TIMEOUT_OF_SILENT: Duration = Duration::from_millis(100);

/// Remembers the last look.
pub struct Watch {
    what: Vec<What>,
    /// Whether nodes tell their counters.
    with_counters: bool,
    before: HashMap<String, (Instant, Value)>,
    /// Those that did not answer the last time. That was said.
    silent: HashSet<String>,
}

impl Watch {
    /// Looks at these kinds; at all, if there is none.
    pub fn new(what: &[What], with_counters: bool) -> Self {
        let is_wanted = |one: &What| what.is_empty() || what.contains(one);
        let what = What::ALL.into_iter().filter(is_wanted).collect();
        Self { what, with_counters, before: HashMap::new(), silent: HashSet::new() }
    }

    /// How each is. From the second look on with `per_s`, the rates since the last one. All are asked at once: a look takes as long as the
    /// slowest of them.
    pub fn look(&mut self) -> Seen {
        let mut seen = Seen::default();
        let (mut before, mut silent) = (HashMap::new(), HashSet::new());
        let asking = Asking { silent: &self.silent, with_counters: self.with_counters };
        let asked = side_by_side::ask(&self.what, |what| match what {
            What::Programs => asking.programs(),
            What::Nodes => asking.nodes(),
            What::Uplinks => asking.uplinks(),
        });
        for what in &self.what {
            seen.by_kind.insert(*what, Vec::new());
        }
        for Asked { what, place, name, answer, at } in asked.into_iter().flatten() {
            let status = match answer {
                Ok(status) => status,
                Err(reason) => {
                    if !self.silent.contains(&place) {
                        output::say(&format!("{reason}; it is left out"));
                    }
                    seen.silent.push(json!({ "kind": what.key(), "name": name, "reason": reason }));
                    silent.insert(place);
                    continue;
                }
            };
            let mut told = status.clone();
            if let Some((since, before)) = self.before.get(&place)
                && what.is_of_one_process(before, &status)
            {
                let rates = Rates { before, elapsed: at - *since };
                match what {
                    What::Programs => rates.of_program(&mut told),
                    What::Nodes => rates.of_node(&mut told),
                    What::Uplinks => rates.of_uplink(&mut told),
                }
            }
            seen.by_kind.entry(what).or_default().push(told);
            before.insert(place, (at, status));
        }
        (self.silent, self.before) = (silent, before);
        seen
    }
}

/// One look.
struct Asking<'a> {
    silent: &'a HashSet<String>,
    with_counters: bool,
}

impl Asking<'_> {
    fn timeout(&self, place: &str) -> Duration {
        if self.silent.contains(place) { TIMEOUT_OF_SILENT } else { TIMEOUT }
    }

    fn programs(&self) -> Vec<Asked> {
        let asked = side_by_side::ask(&control::runs(), |run| {
            // Runs in different pid namespaces may have the same number.
            let place = run.path().display().to_string();
            let answer = run.ask_within(&Question::Status, self.timeout(&place))?;
            let answer = answer.and_then(|status| match status {
                Value::Object(_) => Ok(status),
                _ => Err(format!("the run of process {} answers no status", run.pid)),
            });
            Some(Asked { what: What::Programs, place, name: run.pid.to_string(), answer, at: Instant::now() })
        });
        asked.into_iter().flatten().collect()
    }

    fn nodes(&self) -> Vec<Asked> {
        let asked = side_by_side::ask(&local::nodes(), |node| {
            let (place, name) = (node.address().to_string(), node.name().to_owned());
            let answer = match node.status(self.with_counters, self.timeout(&place)) {
                Err(error) if error.is_gone() => return None,
                Err(error) => Err(error.to_string()),
                Ok(status) => serde_json::to_value(status).map_err(|error| error.to_string()),
            };
            let answer = answer.map_err(|reason| format!("node `{name}` does not answer: {reason}"));
            let answer = answer.map(|mut status| {
                // The name that commands take.
                status["local_name"] = json!(name);
                status
            });
            Some(Asked { what: What::Nodes, place, name, answer, at: Instant::now() })
        });
        asked.into_iter().flatten().collect()
    }

    fn uplinks(&self) -> Vec<Asked> {
        let asked = side_by_side::ask(&net::owners(), |path| {
            let place = path.display().to_string();
            let answer = net::all_at(path, self.timeout(&place))?
                .map(|(uplink, ports)| json!({ "uplink": uplink, "ports": ports }))
                .map_err(|reason| format!("the owner at {place}: {reason}"));
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Some(Asked { what: What::Uplinks, place, name, answer, at: Instant::now() })
        });
        asked.into_iter().flatten().collect()
    }
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
    elapsed: Duration,
}

impl Rates<'_> {
    fn per_s(&self, after: u64, before: u64) -> u64 {
        (after.saturating_sub(before) as f64 / self.elapsed.as_secs_f64()).round() as u64
    }

    fn of_program(&self, status: &mut Value) {
        let before = self.before;
        let rate = |after: &Value, before: &Value| self.per_s(number(after), number(before));
        let counter = |name: &str| rate(&status["counters"][name], &before["counters"][name]);
        let far = |name: &str| rate(&status["far"][name], &before["far"][name]);
        let rates = json!({
            "far_faults": counter("far_faults"),
            "bytes_in": counter("pages_in").saturating_mul(4096),
            "bytes_out": counter("pages_out").saturating_mul(4096),
            "copies": far("copies_restored").saturating_add(far("copies_moved")),
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

    /// Of all of its links together.
    fn of_node(&self, status: &mut Value) {
        let read = |status: &Value| serde_json::from_value::<NodeStatus>(status.clone());
        let (Ok(before), Ok(now)) = (read(self.before), read(status)) else { return };
        let rates = LinkRates::between(&before, &now, self.elapsed);
        let (mut sent, mut received) = (0u64, 0u64);
        for rate in rates.borrowers.iter().chain(&rates.neighbours).flatten() {
            sent = sent.saturating_add(rate.sent_bytes);
            received = received.saturating_add(rate.received_bytes);
        }
        status["per_s"] = json!({ "sent_bytes": sent, "received_bytes": received });
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
    refused.saturating_add(number(&counters["undelivered"])).saturating_add(number(&counters["overflowed"]))
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
    let total = since.iter().fold(0u64, |total, (_, count)| total.saturating_add(*count));
    let mut left = total - total / 100;
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
        let rates = Rates { before: &before, elapsed: Duration::from_secs(2) };
        // One has come since, and one is gone.
        let mut now = status(30, &[lender("stays", 9192), lender("new", 4)]);
        rates.of_program(&mut now);
        assert_eq!(now["per_s"]["far_faults"], 10);
        assert_eq!(now["far"]["lenders"][0]["per_s"]["read_bytes"], 4096);
        assert_eq!(now["far"]["lenders"][1]["per_s"]["read_bytes"], 2);
    }

    #[test]
    fn another_process_at_the_same_place_has_no_rates_yet() {
        let node = |process: u32| json!({ "process_id": process });
        assert!(What::Nodes.is_of_one_process(&node(1), &node(1)));
        assert!(!What::Nodes.is_of_one_process(&node(1), &node(2)));
        let run = |process: u32| json!({ "supervisor_pid": process });
        assert!(!What::Programs.is_of_one_process(&run(1), &run(2)));
        let owner = |process: u32| json!({ "uplink": { "process_id": process } });
        assert!(What::Uplinks.is_of_one_process(&owner(1), &owner(1)));
        assert!(!What::Uplinks.is_of_one_process(&owner(1), &owner(2)));
    }

    #[test]
    fn what_was_not_looked_for_is_not_said_to_be_absent() {
        let mut seen = Seen { by_kind: [(What::Nodes, Vec::new())].into(), silent: Vec::new() };
        assert_eq!(seen.nothing(), "nothing of this user runs here: no node");
        seen.silent.push(json!({}));
        assert_eq!(seen.nothing(), "nothing of this user runs here and answers: no node");
    }

    #[test]
    fn rates_of_nodes_and_ports_are_those_of_their_links_and_counters() {
        let link = |sent: u64| json!([{ "path": 0, "sent_bytes": sent }]);
        let borrower = |name: &str, sent: u64| json!({ "name": name, "links": link(sent) });
        let before =
            json!({ "borrowers": [borrower("gone", 1 << 40), borrower("stays", 100)], "neighbours": [] });
        let mut now = json!({ "borrowers": [borrower("stays", 300)], "neighbours": [] });
        Rates { before: &before, elapsed: Duration::from_secs(2) }.of_node(&mut now);
        assert_eq!((&now["per_s"]["sent_bytes"], &now["per_s"]["received_bytes"]), (&json!(100), &json!(0)));
        let uplink = |sent: u64, refused: u64| {
            let counters = json!({ "sent": { "bytes": sent }, "received": { "bytes": 5 }, "refused": { "x": refused }, "undelivered": 1 });
            json!({ "uplink": { "counters": counters }, "ports": [{ "port": { "name": "web" }, "counters": counters }] })
        };
        let before = uplink(100, 1);
        let mut now = uplink(300, 9);
        Rates { before: &before, elapsed: Duration::from_secs(2) }.of_uplink(&mut now);
        let wanted = json!({ "sent_bytes": 100, "received_bytes": 0, "dropped": 4 });
        assert_eq!((&now["uplink"]["per_s"], &now["ports"][0]["per_s"]), (&wanted, &wanted));
    }
}
