//! `tombolo sockets status`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tombolo_control::place::{self, Kind};
use tombolo_control::{Trust, ask_once};
use tombolo_sockets::status::Status;

use super::serve::{Answer, Question, VERSION};
use crate::failure::Failure;
use crate::output;
use crate::table::{self, Column};

const TIMEOUT: Duration = Duration::from_secs(2);

/// Arguments of `tombolo sockets status`.
#[derive(Args)]
pub struct Arguments {
    /// Print JSON, and nothing else.
    #[arg(long)]
    json: bool,
}

/// Nodes of this user's, and how each is.
pub fn all() -> Vec<(PathBuf, Result<Status, String>)> {
    let ask = |path: PathBuf| {
        let answer = ask_once::<_, Answer>(&path, Trust::Own, VERSION, &Question::Status, TIMEOUT);
        let status = match answer {
            Ok(Answer::Status(status)) => Ok(*status),
            Ok(Answer::Failed(reason)) => Err(reason),
            Err(error) if error.is_gone() => return None,
            Err(error) => Err(error.to_string()),
        };
        Some((path, status))
    };
    place::find(Kind::SOCKETS).found.into_iter().filter_map(|found| ask(found.path)).collect()
}

const CONNECTIONS: [Column; 3] = [Column::name("CLIENT"), Column::name("SERVER"), Column::name("MODE")];
const LISTENERS: [Column; 4] = [
    Column::name("LISTENER"),
    Column::figure("PROCESS"),
    Column::figure("USER"),
    Column::name("HANDED OVER"),
];

/// Shows it.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let all = all();
    if arguments.json {
        let nodes: Vec<_> = all.iter().filter_map(|(_, status)| status.as_ref().ok()).collect();
        let silent: Vec<_> = all
            .iter()
            .filter_map(|(path, status)| Some(json!({ "path": path, "reason": status.as_ref().err()? })))
            .collect();
        output::json(&json!({ "nodes": nodes, "silent": silent }))?;
        return Ok(0);
    }
    if all.is_empty() {
        return Err(Failure::new("no `tombolo sockets serve` of this user runs on this machine"));
    }
    for (path, status) in &all {
        match status {
            Ok(status) => show(status),
            Err(reason) => output::say(&format!("{}: {reason}", path.display())),
        }
    }
    Ok(0)
}

fn show(status: &Status) {
    let counted = |name: &str| status.counters.get(name).copied().unwrap_or(0);
    output::line(&format!(
        "node {}: {} connections now; handed over {}, relayed {}, cancelled {}, reset {}",
        status.process_id,
        status.connections_count,
        counted("handed_over"),
        counted("relayed"),
        counted("cancelled"),
        counted("reset"),
    ));
    let refused: Vec<_> = status.refused.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    if !refused.is_empty() {
        output::line(&format!("stayed TCP: {}", refused.join(", ")));
    }
    let listeners = status.listeners.iter().map(|one| {
        let is_offered = if one.is_offered { "yes" } else { "no: accepted by a program without the library" };
        vec![one.at.clone(), one.process.to_string(), one.user.to_string(), is_offered.to_owned()]
    });
    let connections =
        status.connections.iter().map(|one| vec![one.client.clone(), one.server.clone(), one.mode.clone()]);
    let (listeners, connections): (Vec<_>, Vec<_>) = (listeners.collect(), connections.collect());
    let print = |columns: &[Column], rows: &[Vec<String>]| {
        if !rows.is_empty() {
            table::lines(columns, rows, table::width()).iter().for_each(|line| output::line(line));
        }
    };
    print(&LISTENERS, &listeners);
    print(&CONNECTIONS, &connections);
}
