//! `tombolo ps`: the programs of this user that run on far memory.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::control::{self, Question};
use crate::size::Size;
use crate::{Failure, output};

/// Between two looks at the counters, from which rates follow.
const INTERVAL: Duration = Duration::from_millis(300);

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
    output::line(&format!(
        "{:<16} {:>8} {:>10} {:>10} {:>6} {:>9} {:>9}  LENDERS",
        "NAME", "PID", "LOCAL", "FAR", "COPIES", "ONE-COPY", "FAULTS/S"
    ));
    for program in programs {
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let lenders: Vec<String> = program["far"]["lenders"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|lender| lender["state"] != "gone")
            .map(|lender| {
                let name = lender["name"].as_str().unwrap_or_default();
                let state = lender["state"].as_str().unwrap_or_default();
                let state = if state == "active" { String::new() } else { format!(" ({state})") };
                format!("{name}{state} {}", Size(number(&lender["used_bytes"])))
            })
            .collect();
        output::line(&format!(
            "{:<16} {:>8} {:>10} {:>10} {:>6} {:>9} {:>9}  {}",
            program["name"].as_str().unwrap_or_default(),
            number(&program["pid"]),
            Size(number(&program["resident_bytes"])).to_string(),
            Size(number(&program["far"]["used_bytes"])).to_string(),
            number(&program["far"]["copies"]),
            number(&program["far"]["one_copy_pages"]),
            number(&program["far_faults_per_s"]),
            lenders.join(", ")
        ));
    }
    Ok(0)
}

/// How each program is, with its rates.
fn programs() -> Vec<Value> {
    let since = Instant::now();
    let asked: Vec<_> =
        control::runs().into_iter().filter_map(|run| Some((run.ask(&Question::Status).ok()?, run))).collect();
    if asked.is_empty() {
        return Vec::new();
    }
    std::thread::sleep(INTERVAL);
    let rated = asked.into_iter().filter_map(|(before, run)| {
        let mut now = run.ask(&Question::Status).ok()?;
        let faults = |status: &Value| status["counters"]["far_faults"].as_u64().unwrap_or(0);
        let per_s = faults(&now).saturating_sub(faults(&before)) as f64 / since.elapsed().as_secs_f64();
        now["far_faults_per_s"] = json!(per_s.round() as u64);
        Some(now)
    });
    rated.collect()
}
