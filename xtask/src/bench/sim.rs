//! `cargo xtask bench sim`: how fast the simulator is. The figures are those of `tombolo-bench sim`, medians over its rounds.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{USAGE, build, folder, page};

fn rounds(arguments: &[String]) -> Result<usize, String> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(5),
        ["--runs", runs] => runs.parse().ok().filter(|&runs| runs > 0).ok_or(USAGE.into()),
        _ => Err(USAGE.into()),
    }
}

fn measure(bench: &Path, rounds: usize) -> Result<Value, String> {
    let mut command = Command::new(bench);
    command.args(["sim", "--json", "--rounds", &rounds.to_string()]).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("`tombolo-bench sim`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`tombolo-bench sim` failed ({})", output.status));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("`tombolo-bench sim` printed no JSON: {error}"))
}

/// The part of the page.
fn text(found: &Value) -> Result<String, std::fmt::Error> {
    let mut page = String::new();
    writeln!(page, "## The simulator\n\nWritten by `cargo xtask bench sim`.\n")?;
    let seeds = found["seeds_per_s"].as_f64().unwrap_or(f64::NAN);
    writeln!(
        page,
        "The engine's world runs {seeds:.0} seeds a second, on one processor. Packets of 256 bytes"
    )?;
    writeln!(page, "that one engine writes to another over a link, both engines and the link included:\n")?;
    writeln!(page, "| written | millions of packets a second | most memory |\n| ---: | ---: | ---: |")?;
    for row in found["packets"].as_array().into_iter().flatten() {
        let (mebibytes, rate) = (row["bytes"].as_u64().unwrap_or(0) >> 20, row["packets_per_s"].as_f64());
        let memory = row["peak_kib"].as_u64().unwrap_or(0) >> 10;
        writeln!(page, "| {mebibytes} MiB | {:.2} | {memory} MiB |", rate.unwrap_or(f64::NAN) / 1e6)?;
    }
    Ok(page)
}

/// Measures, and writes the part.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let rounds = rounds(arguments)?;
    let found = measure(&build("tombolo-bench")?, rounds)?;
    page::write(&folder(), "sim", &text(&found).map_err(|error| error.to_string())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_part_has_a_row_for_each_size() {
        let rows = json!([{ "bytes": 1 << 28, "packets_per_s": 2_500_000.0, "peak_kib": 9_000 }]);
        let part = text(&json!({ "seeds_per_s": 120.4, "packets": rows })).expect("a string takes it");
        assert!(part.contains("runs 120 seeds") && part.contains("| 256 MiB | 2.50 | 8 MiB |"), "{part}");
        assert!(rounds(&["--runs".into(), "0".into()]).is_err() && rounds(&[]) == Ok(5));
    }
}
