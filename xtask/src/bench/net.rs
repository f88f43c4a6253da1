//! `cargo xtask bench net`: two namespaces joined by `tombolo net`, beside veth, a bridge, macvlan and a bare relay. The
//! figures are those of `tombolo-bench net`, medians over the rounds.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tombolo_host::process;

use super::{STOP, USAGE, build, folder, median, page};
use crate::packages;

/// What the ways are called on the page.
const WAYS: [(&str, &str); 5] = [
    ("veth", "veth pair"),
    ("bridge", "veth and bridge"),
    ("macvlan", "macvlan"),
    ("relay", "bare relay between two TAPs"),
    ("tombolo", "tombolo net"),
];
/// Figures that are compared with the bare relay's: title, name, bound, and whether more is better.
const TARGETS: [(&str, &str, f64, bool); 4] = [
    ("a TCP stream (cubic), as a multiple of the bare relay's", "cubic_bytes_per_s", 0.9, true),
    ("a TCP stream (bbr), as a multiple of the bare relay's", "bbr_bytes_per_s", 0.9, true),
    ("64 bytes one way, as a multiple of the bare relay's", "one_way_ns", 1.2, false),
    ("packets of 64 bytes a second, as a multiple of the bare relay's", "packets_per_s", 0.9, true),
];
const NEEDED: [(&str, &str); 3] = [("ip", "iproute2"), ("iperf3", "iperf3"), ("ping", "iputils-ping")];

fn rounds(arguments: &[String]) -> Result<u32, String> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(5),
        ["--runs", runs] => runs.parse().ok().filter(|&runs| runs > 0).ok_or(USAGE.into()),
        _ => Err(USAGE.into()),
    }
}

fn measure(bench: &Path, tombolo: &Path, rounds: u32) -> Result<Value, String> {
    let mut command = Command::new(bench);
    command.args(["net", "--json", "--rounds", &rounds.to_string(), "--binary"]).arg(tombolo);
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("`tombolo-bench net`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`tombolo-bench net` failed ({})", output.status));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("`tombolo-bench net` printed no JSON: {error}"))
}

/// The median of a figure of a way.
fn figure(found: &Value, way: &str, name: &str) -> Option<f64> {
    let rounds = found[way].as_array()?;
    median(&rounds.iter().filter_map(|round| round[name].as_f64()).collect::<Vec<_>>())
}

/// Each target: title, ratio, bound, whether it is reached.
fn targets(found: &Value) -> Vec<(&'static str, Option<f64>, String, bool)> {
    let of = |(title, name, bound, more_is_better): (&'static str, &str, f64, bool)| {
        let ratio =
            figure(found, "tombolo", name).zip(figure(found, "relay", name)).map(|(ours, bare)| ours / bare);
        let is_reached =
            ratio.is_some_and(|ratio| if more_is_better { ratio >= bound } else { ratio <= bound });
        (title, ratio, format!("{} {bound}", if more_is_better { "≥" } else { "≤" }), is_reached)
    };
    TARGETS.into_iter().map(of).collect()
}

fn text(found: &Value) -> Result<String, std::fmt::Error> {
    let mut page = String::new();
    writeln!(page, "## One interface for many namespaces\n\nWritten by `cargo xtask bench net`.\n")?;
    writeln!(page, "| compared | measured | target | |\n| --- | ---: | ---: | --- |")?;
    for (title, ratio, bound, is_reached) in targets(found) {
        let ratio = ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        writeln!(
            page,
            "| {title} | {ratio} | {bound} | {} |",
            if is_reached { "reached" } else { "**not reached**" }
        )?;
    }
    writeln!(
        page,
        "\nTwo namespaces, one iperf3 stream from one to the other, then 18 bytes by UDP (64 on the wire) there and back, then\n\
         as many of these as go through; nothing is pinned. The bare relay is a loop that reads each of two TAP devices with\n\
         offload headers and writes to the other; it has the niceness of `tombolo net serve`, -15. One way is half a round\n\
         trip, median and 99th percentile; the target is of the medians. CPU time is that of the whole machine.\n"
    )?;
    writeln!(
        page,
        "| way | cubic, Gb/s | CPU s/GB | bbr, Gb/s | CPU s/GB | one way, µs | 99 %, µs | packets/s |"
    )?;
    writeln!(page, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    for (way, title) in WAYS {
        let cell = |name: &str, factor: f64, digits: usize| match figure(found, way, name) {
            Some(figure) => format!("{:.digits$}", figure * factor),
            None => "-".into(),
        };
        writeln!(
            page,
            "| {title} | {} | {} | {} | {} | {} | {} | {} |",
            cell("cubic_bytes_per_s", 8e-9, 1),
            cell("cubic_cpu_s_per_gb", 1.0, 2),
            cell("bbr_bytes_per_s", 8e-9, 1),
            cell("bbr_cpu_s_per_gb", 1.0, 2),
            cell("one_way_ns", 1e-3, 1),
            cell("one_way_p99_ns", 1e-3, 1),
            cell("packets_per_s", 1.0, 0),
        )?;
    }
    Ok(page)
}

/// Runs it. The arguments are those after `net`.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let rounds = rounds(arguments)?;
    packages::install_missing(&NEEDED, "nothing can be measured")?;
    let (tombolo, bench) = (build("tombolo")?, build("tombolo-bench")?);
    process::stop_on_signals(&STOP);
    let found = measure(&bench, &tombolo, rounds)?;
    let text = text(&found).map_err(|error| error.to_string())?;
    let figures = serde_json::to_string_pretty(&found).map_err(|error| error.to_string())?;
    page::keep(&folder(), "net.json", &(figures + "\n"))?;
    page::write(&folder(), "net", &text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_shows_medians_and_verdicts() {
        let round = |rate: f64, ns: f64| json!({ "cubic_bytes_per_s": rate, "one_way_ns": ns });
        let found = json!({
            "relay": [round(1e9, 20_000.0), round(2e9, 20_000.0), round(9e9, 20_000.0)],
            "tombolo": [round(1.9e9, 30_000.0)],
        });
        let page = text(&found).unwrap();
        for line in [
            "| a TCP stream (cubic), as a multiple of the bare relay's | 0.95 | ≥ 0.9 | reached |",
            "| a TCP stream (bbr), as a multiple of the bare relay's | - | ≥ 0.9 | **not reached** |",
            "| 64 bytes one way, as a multiple of the bare relay's | 1.50 | ≤ 1.2 | **not reached** |",
            "| bare relay between two TAPs | 16.0 | - | - | - | 20.0 | - | - |",
        ] {
            assert!(page.contains(line), "no {line} in:\n{page}");
        }
        assert_eq!((rounds(&[]), rounds(&["--runs".into(), "2".into()])), (Ok(5), Ok(2)));
        assert!(rounds(&["2".into()]).is_err());
    }
}
