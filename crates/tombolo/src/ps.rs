//! `tombolo ps`: what runs here of this user: programs on far memory, nodes, uplinks and their ports.

use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::table::{self, Column};
use crate::top::shown;
use crate::watch::{Watch, What, number, size, word};
use crate::{cells, output};

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

/// Arguments of `tombolo ps`.
#[derive(Args)]
pub struct Arguments {
    /// Only these kinds; all of them unless given.
    #[arg(value_name = "KIND")]
    kinds: Vec<What>,
    /// Print JSON, and nothing else.
    #[arg(long)]
    json: bool,
}

/// Lists what runs.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let mut watch = Watch::new(&arguments.kinds, arguments.json);
    let mut seen = watch.look();
    if !seen.is_empty() {
        thread::sleep(INTERVAL);
        seen = watch.look();
    }
    if arguments.json {
        output::json(&seen.in_json())?;
        return Ok(0);
    }
    let sections = [
        (&PROGRAMS[..], seen.of(What::Programs).iter().map(program).collect::<Vec<_>>()),
        (&NODES[..], seen.of(What::Nodes).iter().map(cells::node).collect()),
        (&PORTS[..], seen.of(What::Uplinks).iter().flat_map(|uplink| cells::ports(uplink, port)).collect()),
    ];
    let mut lines = table::sections(&sections, table::width());
    if lines.is_empty() {
        lines.push(seen.nothing());
    }
    lines.iter().for_each(|line| output::line(line));
    Ok(0)
}

/// PID to RECEIVED of a port, or of an uplink.
fn port(port: &Value) -> Vec<String> {
    let cell = |value: &Value| value.as_u64().map_or_else(|| "-".to_owned(), |number| number.to_string());
    let bytes = |direction: &str| size(&port["counters"][direction]["bytes"]);
    vec![cell(&port["process"]), cell(&port["port"]["weight"]), bytes("sent"), bytes("received")]
}

fn program(program: &Value) -> Vec<String> {
    let lenders: Vec<String> = cells::present_lenders(program)
        .map(|lender| {
            let state = word(lender, "state");
            let state = if state == "active" { String::new() } else { format!(" ({state})") };
            format!("{}{state} {}", word(lender, "name"), size(&lender["used_bytes"]))
        })
        .collect();
    vec![
        word(program, "name").to_owned(),
        program["pid"].as_u64().map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        size(&program["resident_bytes"]),
        size(&program["far"]["used_bytes"]),
        number(&program["far"]["copies"]).to_string(),
        number(&program["per_s"]["far_faults"]).to_string(),
        shown(number(&program["pauses"]["longest_ns"])),
        lenders.join(", "),
    ]
}
