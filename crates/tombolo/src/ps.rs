//! `tombolo ps`: what runs here of this user: programs on far memory, nodes, uplinks and their ports.

use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tombolo_net::protocol::{PortStatus, UplinkStatus};
use tombolo_node::{NodeStatus, Security, StatusClient};

use crate::failure::Failure;
use crate::size::Size;
use crate::table::{self, Column};
use crate::top::shown;
use crate::watch::{Watch, number, size};
use crate::{duration, local, net, output, side_by_side};

/// Between two looks at the counters, from which rates follow.
const INTERVAL: Duration = Duration::from_millis(300);

const PROGRAMS: [Column; 8] = [
    Column::name("PROGRAM"),
    Column::figure("PID"),
    Column::figure("LOCAL"),
    Column::figure("FAR"),
    Column::figure("COPIES"),
    Column::figure("FAULTS/S"),
    Column::figure("LONGEST"),
    Column::rest("LENDERS"),
];
const NODES: [Column; 7] = [
    Column::name("NODE"),
    Column::figure("PID"),
    Column::figure("UP"),
    Column::figure("LENT"),
    Column::figure("FREE"),
    Column::figure("BORROWERS"),
    Column::rest("NEIGHBOURS"),
];
const PORTS: [Column; 7] = [
    Column::name("UPLINK"),
    Column::name("PORT"),
    Column::figure("PID"),
    Column::figure("WEIGHT"),
    Column::figure("SENT"),
    Column::figure("RECEIVED"),
    Column::rest("STATE"),
];

/// What there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Programs on far memory.
    Programs,
    /// Nodes.
    Nodes,
    /// Uplinks that are shared, and their ports.
    Uplinks,
}

/// Arguments of `tombolo ps`.
#[derive(Args)]
pub struct Arguments {
    /// Of these kinds alone.
    #[arg(value_name = "KIND")]
    kinds: Vec<Kind>,
    /// Print JSON, and nothing else.
    #[arg(long)]
    json: bool,
}

/// Lists what runs.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let kinds = [Kind::Programs, Kind::Nodes, Kind::Uplinks];
    let kinds = kinds.map(|kind| (kind, arguments.kinds.is_empty() || arguments.kinds.contains(&kind)));
    // A process that does not answer delays no list of another kind.
    let found = side_by_side::ask(&kinds, |(kind, is_wanted)| match kind {
        _ if !is_wanted => Found::default(),
        Kind::Programs => Found { programs: programs(), ..Found::default() },
        Kind::Nodes => Found { nodes: nodes(arguments.json), ..Found::default() },
        Kind::Uplinks => Found { uplinks: uplinks(), ..Found::default() },
    });
    let found = found.into_iter().fold(Found::default(), Found::and);
    let Found { programs, nodes, uplinks } = found;
    if arguments.json {
        let uplinks: Vec<Value> =
            uplinks.iter().map(|(uplink, ports)| json!({ "uplink": uplink, "ports": ports })).collect();
        let nodes: Vec<Value> = nodes.iter().map(node_value).collect::<Result<_, _>>()?;
        output::json(&json!({ "programs": programs, "nodes": nodes, "uplinks": uplinks }))?;
        return Ok(0);
    }
    let sections = [
        (&PROGRAMS[..], programs.iter().map(row).collect()),
        (&NODES[..], nodes.iter().map(node_row).collect()),
        (&PORTS[..], uplinks.iter().flat_map(|(uplink, ports)| port_rows(uplink, ports)).collect::<Vec<_>>()),
    ];
    let mut lines: Vec<String> = Vec::new();
    for (columns, rows) in sections.into_iter().filter(|(_, rows): &(_, Vec<_>)| !rows.is_empty()) {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(table::lines(columns, &rows, table::width()));
    }
    if lines.is_empty() {
        lines.push("nothing of this user runs here: no program on far memory, no node, no uplink".to_owned());
    }
    lines.iter().for_each(|line| output::line(line));
    Ok(0)
}

/// What runs here.
#[derive(Default)]
struct Found {
    programs: Vec<Value>,
    /// By the name that commands take.
    nodes: Vec<(String, NodeStatus)>,
    uplinks: Vec<(UplinkStatus, Vec<PortStatus>)>,
}

impl Found {
    fn and(mut self, other: Self) -> Self {
        self.programs.extend(other.programs);
        self.nodes.extend(other.nodes);
        self.uplinks.extend(other.uplinks);
        self
    }
}

/// How each node of this machine is that answers.
fn nodes(with_counters: bool) -> Vec<(String, NodeStatus)> {
    let nodes = local::node_addresses();
    let answers = side_by_side::ask(&nodes, |(_, address)| {
        StatusClient::connect(address, &Security::Insecure).and_then(|client| client.ask(with_counters))
    });
    let answered = nodes.into_iter().zip(answers).filter_map(|((name, _), answer)| match answer {
        Ok(status) => Some((name, status)),
        Err(error) => {
            output::say(&format!("node `{name}` does not answer, and is left out: {error}"));
            None
        }
    });
    answered.collect()
}

/// How each uplink is, with its ports, whose owner answers.
fn uplinks() -> Vec<(UplinkStatus, Vec<PortStatus>)> {
    let owners = net::owners();
    let answers = side_by_side::ask(&owners, |(_, client)| net::show::all(client));
    let answered = owners.iter().zip(answers).filter_map(|((path, _), answer)| match answer {
        Ok(all) => Some(all),
        Err(error) => {
            output::say(&format!("the owner at {} is left out: {}", path.display(), error.text));
            None
        }
    });
    answered.collect()
}

/// What a node says, and the name that commands take.
fn node_value((name, node): &(String, NodeStatus)) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(node)?;
    value["local_name"] = json!(name);
    Ok(value)
}

fn node_row((name, node): &(String, NodeStatus)) -> Vec<String> {
    let of_state = |state| node.neighbours.iter().filter(|neighbour| neighbour.state == state).count();
    let joined = of_state(tombolo_node::NeighbourState::Joined);
    let mut neighbours = joined.to_string();
    if joined < node.neighbours.len() {
        neighbours.push_str(&format!(", {} away", node.neighbours.len() - joined));
    }
    vec![
        name.clone(),
        node.process_id.to_string(),
        duration::shown_s(node.uptime_s),
        Size(node.lent_bytes).to_string(),
        Size(node.free_bytes).to_string(),
        node.borrowers.len().to_string(),
        neighbours,
    ]
}

/// A row for each port; of an uplink without ports, one for itself.
fn port_rows(uplink: &UplinkStatus, ports: &[PortStatus]) -> Vec<Vec<String>> {
    let state = if uplink.has_carrier { "" } else { "no carrier" };
    let row = |cells: [String; 5]| {
        let mut row = vec![uplink.interface.clone()];
        row.extend(cells);
        row.push(state.to_owned());
        row
    };
    if ports.is_empty() {
        return vec![row(["-"; 5].map(str::to_owned))];
    }
    let of_port = |PortStatus { port, process, counters, .. }: &PortStatus| {
        row([
            port.name.clone(),
            process.map_or_else(|| "-".to_owned(), |process| process.to_string()),
            port.weight.to_string(),
            Size(counters.sent.bytes).to_string(),
            Size(counters.received.bytes).to_string(),
        ])
    };
    ports.iter().map(of_port).collect()
}

fn row(program: &Value) -> Vec<String> {
    let lenders: Vec<String> = program["far"]["lenders"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|lender| lender["state"] != "gone")
        .map(|lender| {
            let name = lender["name"].as_str().unwrap_or_default();
            let state = lender["state"].as_str().unwrap_or_default();
            let state = if state == "active" { String::new() } else { format!(" ({state})") };
            format!("{name}{state} {}", size(&lender["used_bytes"]))
        })
        .collect();
    vec![
        program["name"].as_str().unwrap_or_default().to_owned(),
        program["pid"].as_u64().map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        size(&program["resident_bytes"]),
        size(&program["far"]["used_bytes"]),
        number(&program["far"]["copies"]).to_string(),
        number(&program["per_s"]["far_faults"]).to_string(),
        shown(number(&program["pauses"]["longest_ns"])),
        lenders.join(", "),
    ]
}

/// How each program is, with its rates.
fn programs() -> Vec<Value> {
    let mut watch = Watch::default();
    if watch.look().is_empty() {
        return Vec::new();
    }
    thread::sleep(INTERVAL);
    watch.look()
}
