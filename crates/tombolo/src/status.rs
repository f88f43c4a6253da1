//! `tombolo status`: ask a node how it is.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tombolo_node::{Borrower, NamedSegment, NodeStatus, StatusClient};

use crate::asked::NodeArguments;
use crate::failure::Failure;
use crate::size::Size;
use crate::{local, output, table};

mod rates;
mod text;

pub use rates::Rates;

/// Between two looks at what has gone by the links, from which rates follow.
const INTERVAL: Duration = Duration::from_millis(300);
/// How long a node of this machine may take to answer. A bound, not a measurement.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Arguments of `tombolo status`.
#[derive(Args)]
pub struct Arguments {
    /// Print the counters of the engine, the links and the programs, too.
    #[arg(long)]
    counters: bool,
    #[command(flatten)]
    node: NodeArguments,
}

/// Who says how the node is.
enum Source {
    /// Its socket for questions.
    Here(local::Found),
    /// A link to it.
    Link(Box<StatusClient>),
}

impl Source {
    fn status(&self, counters: bool) -> Result<NodeStatus, Failure> {
        match self {
            Self::Here(found) => found
                .status(counters, TIMEOUT)
                .map_err(|error| Failure::new(format!("node `{}` does not answer: {error}", found.name()))),
            Self::Link(client) => Ok(client.ask(counters)?),
        }
    }
}

/// Prints the node's status.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let ask = &arguments.node.ask;
    let here = arguments.node.here("status")?;
    let ways = match &here {
        Some(found) => found.address().into(),
        None => arguments.node.ways("status")?,
    };
    let link = || -> Result<_, Failure> {
        let security = ask.security(&ways)?;
        Ok(ways.ask(|address| StatusClient::connect(address, &security))?)
    };
    let source = match here {
        Some(found) => Source::Here(found),
        None => Source::Link(Box::new(link()?)),
    };
    let mut status = source.status(arguments.counters)?;
    let mut rates = Rates::default();
    // Rates are those of the links.
    let borrowers = status.borrowers.iter().filter(|borrower| !borrower.is_mapped);
    let of_borrowers = borrowers.map(|borrower| &borrower.links);
    let of_neighbours = status.neighbours.iter().map(|neighbour| &neighbour.links);
    if of_borrowers.chain(of_neighbours).any(|links| !links.is_empty()) {
        let (before, since) = (status, Instant::now());
        std::thread::sleep(INTERVAL);
        status = source.status(arguments.counters)?;
        rates = Rates::between(&before, &status, since.elapsed());
    }
    let named = match status.named.segments {
        0 => Some(Vec::new()),
        // Who may ask how a node is may not always ask what it holds.
        _ => {
            let most = if ask.json { usize::MAX } else { text::MAX_NAMED };
            match &source {
                // A node that takes no more links tells no names.
                Source::Here(_) => link().ok().and_then(|link| link.named(most)),
                Source::Link(link) => link.named(most),
            }
        }
    };
    if ask.json {
        output::json(&in_json(&status, &rates, named.as_deref(), arguments.counters))?;
        return Ok(0);
    }
    let width = table::width();
    let mut lines = text::of(&status, &rates, named.as_deref(), &ways.to_string(), width);
    if arguments.counters {
        lines.extend(text::counters(&status.counters));
    }
    lines.iter().for_each(|line| output::line(line));
    Ok(0)
}

/// The whole status, with rates.
fn in_json(status: &NodeStatus, rates: &Rates, named: Option<&[NamedSegment]>, counters: bool) -> Value {
    let mut value = json!(status);
    for (list, rates) in [("borrowers", &rates.borrowers), ("neighbours", &rates.neighbours)] {
        let entries = value[list].as_array_mut();
        for (entry, rate) in entries.into_iter().flatten().zip(rates) {
            entry["per_s"] = json!(rate);
        }
    }
    if let Some(segments) = named {
        let entry = |segment: &NamedSegment| json!({ "name": segment.name, "bytes": segment.bytes, "age_s": segment.age_s });
        value["named"]["list"] = segments.iter().map(entry).collect();
    }
    if !counters && let Some(value) = value.as_object_mut() {
        value.remove("counters");
    }
    value
}

/// About a borrower: whatever is known of it, and what it has.
pub fn said_of(borrower: &Borrower) -> String {
    let Borrower { name, process_id, address, key, bytes, segments, .. } = borrower;
    let mut known: Vec<String> = Vec::new();
    known.extend(process_id.map(|process| format!("process {process}")));
    known.extend(address.clone());
    known.extend(key.as_ref().map(|key| format!("key {key}")));
    let name = if name.is_empty() { "(no name)" } else { name };
    let known = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
    format!("{name}{known}: {} in {segments} segment(s)", Size(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borrowers_are_told_by_whatever_is_known_of_them() {
        let near = Borrower {
            name: "near".into(),
            process_id: Some(7),
            bytes: 3 << 29,
            segments: 2,
            ..Borrower::default()
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

    #[test]
    fn json_has_counters_and_names_only_where_they_are_known() {
        let status = NodeStatus { counters: [("acks".to_owned(), 3)].into(), ..NodeStatus::default() };
        let value = in_json(&status, &Rates::default(), None, true);
        assert_eq!((&value["counters"]["acks"], &value["named"]["list"]), (&json!(3), &Value::Null));
        let value = in_json(&status, &Rates::default(), Some(&[]), false);
        assert_eq!((value.get("counters"), &value["named"]["list"]), (None, &json!([])));
        assert_eq!(value["named"]["segments"], 0);
    }
}
