//! `tombolo ps`: the programs of this user that run on far memory.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output;
use crate::table::{self, Column};
use crate::top::shown;
use crate::watch::{Watch, number, size};

/// Between two looks at the counters, from which rates follow.
const INTERVAL: Duration = Duration::from_millis(300);

const COLUMNS: [Column; 8] = [
    Column::name("NAME"),
    Column::figure("PID"),
    Column::figure("LOCAL"),
    Column::figure("FAR"),
    Column::figure("COPIES"),
    Column::figure("FAULTS/S"),
    Column::figure("LONGEST"),
    Column::rest("LENDERS"),
];

/// Arguments of `tombolo ps`.
#[derive(Args)]
pub struct Arguments {
    /// Print JSON, and nothing else.
    #[arg(long)]
    json: bool,
}

/// Lists the programs.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let programs = programs();
    if arguments.json {
        output::json(&json!({ "programs": programs }))?;
        return Ok(0);
    }
    if programs.is_empty() {
        output::line("no program of this user runs on far memory here");
        return Ok(0);
    }
    let rows: Vec<_> = programs.iter().map(row).collect();
    table::lines(&COLUMNS, &rows, table::width()).iter().for_each(|line| output::line(line));
    Ok(0)
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
        number(&program["pid"]).to_string(),
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
    std::thread::sleep(INTERVAL);
    watch.look()
}
