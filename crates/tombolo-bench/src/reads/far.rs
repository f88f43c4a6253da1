//! The reader under `tombolo run`, with a lender over shm on the same machine.

use std::fs;
use std::process::Command;

use serde::Serialize;
use serde_json::Value;
use tombolo_app::child;
use tombolo_app::scratch::Scratch;

use super::{Racer, Run, reader};
use crate::{Failure, result, this_binary};

/// Far memory beside the area, for what else the reader allocates.
const EXTRA_BYTES: usize = 64 << 20;

/// What its fault handlers did for each fault of a run, by its report. Unlike times, these counts show on few processors what many
/// would pay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ByFault {
    /// Times that a handler was woken.
    pub wakes: f64,
    /// Calls by which handlers asked for faults.
    pub calls: f64,
    /// Switches of handlers to and from their processors.
    pub switches: f64,
}

impl ByFault {
    /// Of a report. Nothing where it has no such counters, as those of older editions.
    fn of_report(report: &Value) -> Option<Self> {
        let counter = |name: &str| report["counters"][name].as_f64();
        let faults = counter("faults").filter(|faults| *faults > 0.0)?;
        Some(Self {
            wakes: counter("handler_wakes")? / faults,
            calls: counter("handler_reads")? / faults,
            switches: counter("handler_switches")? / faults,
        })
    }
}

/// One run with this binary.
pub fn measure(run: &Run<'_>, racer: &Racer) -> Result<(reader::Found, Option<ByFault>), Failure> {
    let binary = &racer.binary;
    let scratch = Scratch::new("bench-reads")?;
    let lent_bytes = run.arguments.bytes + EXTRA_BYTES;
    let listen = format!("shm:{}", scratch.file("lender").display());
    let mut command = Command::new(binary);
    command.args(["node", "--insecure", "--name", "bench", "--listen", &listen]);
    command.args(["--lend", &(lent_bytes + EXTRA_BYTES).to_string()]);
    let (_lender, address) = child::serve_node(&mut command)?;
    let mut command = Command::new(binary);
    command.args([
        "run",
        "--quiet",
        "--insecure",
        "--from",
        &address,
        "--local",
        &run.arguments.local.to_string(),
    ]);
    command.args(["--remote", &lent_bytes.to_string()]);
    if let Some(handlers) = racer.peer.handlers() {
        command.args(["--handlers", &handlers.to_string()]);
    }
    let report = scratch.file("report.json");
    command.arg("--report").arg(&report).arg("--");
    command.arg(this_binary()?).args(run.reader(run.arguments.seconds));
    let found = result(&mut command, run.limit())?;
    let report: Value = serde_json::from_slice(&fs::read(report)?)?;
    Ok((found, ByFault::of_report(&report)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counters_are_told_by_the_fault() {
        let counters = json!({ "faults": 4, "handler_wakes": 2, "handler_reads": 8, "handler_switches": 3 });
        let found = ByFault::of_report(&json!({ "counters": counters }));
        assert_eq!(found, Some(ByFault { wakes: 0.5, calls: 2.0, switches: 0.75 }));
        for without in
            [json!({}), json!({ "counters": { "faults": 4 } }), json!({ "counters": { "faults": 0 } })]
        {
            assert_eq!(ByFault::of_report(&without), None);
        }
    }
}
