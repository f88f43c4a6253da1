//! `cargo xtask bench paging|rdma|faults|net|sim`: Tombolo beside others, on this machine, and
//! the page in `bench/` that shows it. Each bench writes a part of the page.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tombolo_app::child::{self, STOP, interrupted};
use tombolo_app::median;

use crate::command::cargo;

mod faults;
mod net;
mod page;
mod paging;
mod rdma;
mod sim;

const USAGE: &str = "\
usage: cargo xtask bench paging [--runs N] [--only faults|reads|start|forks|sort|redis|chase|duckdb|churn]
       cargo xtask bench rdma [--runs N]
       cargo xtask bench faults [--runs N]
       cargo xtask bench net [--runs N]
       cargo xtask bench sim [--runs N]";

/// Builds the release binary of a package, which has the same name; where it is.
pub fn build(package: &str) -> Result<PathBuf, String> {
    let mut command = cargo();
    command.args(["build", "--release", "--package", package, "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("{package} does not build"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut built = messages.filter(|message| message["target"]["name"] == package);
    built
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| "cargo does not say where the binary is".into())
}

/// Where pages, figures and pictures are kept.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench")
}

/// Runs a bench. The arguments are those after `bench`.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let rest = arguments.get(1..).unwrap_or_default();
    match arguments.first().map(String::as_str) {
        Some("paging") => paging::main(rest),
        Some("rdma") => rdma::main(rest),
        Some("faults") => faults::main(rest),
        Some("net") => net::main(rest),
        Some("sim") => sim::main(rest),
        _ => Err(USAGE.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_bench_is_refused() {
        assert_eq!(main(&[]), Err(USAGE.into()));
        assert_eq!(main(&["other".into()]), Err(USAGE.into()));
    }
}
