//! `cargo xtask bench faults`: transfers to and from memory of programs' own whose pages are absent, beside pages that are
//! present, pinned or touched before; and windows. The figures are those of `tombolo-bench faults`, medians over the runs.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tombolo_host::stops;

use super::{STOP, USAGE, build, folder, interrupted, median, page};

/// The ways of the table behind the node's memory and present pages.
const WAYS: [(&str, &str); 5] = [
    ("pinned", "pinned"),
    ("touched", "touched"),
    ("page", "touch-a-page"),
    ("ahead", "touch-ahead (4)"),
    ("adaptive", "adaptive"),
];
const LINKS: [&str; 3] = ["loopback", "shm", "udp"];
const ENDS: [&str; 3] = ["source", "destination", "both"];

fn runs(arguments: &[String]) -> Result<usize, String> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(3),
        ["--runs", runs] => runs.parse().ok().filter(|&runs| runs > 0).ok_or(USAGE.into()),
        _ => Err(USAGE.into()),
    }
}

fn measure(bench: &Path, tombolo: &Path) -> Result<Value, String> {
    let mut command = Command::new(bench);
    command.args(["faults", "--json", "--binary"]).arg(tombolo).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("`tombolo-bench faults`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`tombolo-bench faults` failed ({})", output.status));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("`tombolo-bench faults` printed no JSON: {error}"))
}

/// The median of a figure over all runs.
fn over(runs: &[Value], figure: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
    median(&runs.iter().filter_map(figure).collect::<Vec<_>>())
}

/// The median latency of a row in µs, over all runs.
fn latency_us(runs: &[Value], link: &str, way: &str, absent: &str, size: u64) -> Option<f64> {
    let of_run = |run: &Value| {
        let row = run["rows"].as_array()?.iter().find(|row| {
            (row["link"].as_str(), row["way"].as_str(), row["absent"].as_str(), row["size_bytes"].as_u64())
                == (Some(link), Some(way), Some(absent), Some(size))
        });
        row?["latency"]["median_ns"].as_f64()
    };
    over(runs, of_run).map(|ns| ns / 1000.0)
}

/// What is to be reached: its name, the ratio, and its bound.
fn targets(runs: &[Value]) -> Vec<(String, Option<f64>, f64)> {
    let first = runs.first().and_then(|run| run["ratios"].as_array()).cloned().unwrap_or_default();
    let of = |title: &str| {
        over(runs, |run| {
            let ratios = run["ratios"].as_array()?;
            ratios.iter().find(|ratio| ratio[0].as_str() == Some(title))?[1].as_f64()
        })
    };
    first
        .iter()
        .filter_map(|ratio| Some((ratio[0].as_str()?.to_owned(), ratio[2].as_f64()?)))
        .map(|(title, bound)| (title.clone(), of(&title), bound))
        .collect()
}

fn cell(us: Option<f64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 100.0 => format!("{us:.1}"),
        Some(us) => format!("{us:.0}"),
    }
}

fn sizes(runs: &[Value]) -> Vec<u64> {
    let touches = runs.first().and_then(|run| run["floor"]["first_touch"].as_array());
    touches.into_iter().flatten().filter_map(|touch| touch[0].as_u64()).collect()
}

fn named(size: u64) -> String {
    match size {
        0..1024 => format!("{size} B"),
        1024..0x10_0000 => format!("{} KiB", size >> 10),
        _ => format!("{} MiB", size >> 20),
    }
}

/// The part of the page.
fn text(runs: &[Value]) -> Result<String, std::fmt::Error> {
    let mut page = String::new();
    writeln!(page, "## Absent pages and windows\n\nWritten by `cargo xtask bench faults`.\n")?;
    writeln!(page, "| compared | measured | target | |\n| --- | ---: | ---: | --- |")?;
    for (title, ratio, bound) in targets(runs) {
        let (ratio, verdict) = match ratio {
            None => ("-".into(), "not measured"),
            Some(ratio) if ratio <= bound => (format!("{ratio:.2}"), "reached"),
            Some(ratio) => (format!("{ratio:.2}"), "**not reached**"),
        };
        writeln!(page, "| {title} | {ratio} | ≤ {bound} | {verdict} |")?;
    }
    writeln!(
        page,
        "\nA write from program to program, each with memory of its own, not pinned to processors; medians in µs. *Node's*: \
         memory of the node at\nboth ends. *Present*: all pages are there. *Pinned*: `mlock` before and `munlock` after each \
         transfer; *touched*: the\nprogram writes a word of each page before it. The last three are given to the node as they \
         are, with its three policies.\n"
    )?;
    let ways = WAYS.map(|(_, title)| title).join(" | ");
    writeln!(page, "| link, size | node's | present | absent at | {ways} |")?;
    writeln!(page, "| --- | ---: | ---: | --- |{}", " ---: |".repeat(WAYS.len()))?;
    for link in LINKS {
        for size in sizes(runs) {
            let [node, present] =
                ["node", "present"].map(|way| cell(latency_us(runs, link, way, "none", size)));
            for (line, end) in ENDS.into_iter().enumerate() {
                let first = match line {
                    0 => format!("{link}, {} | {node} | {present}", named(size)),
                    _ => " | | ".into(),
                };
                let cells = WAYS.map(|(way, _)| cell(latency_us(runs, link, way, end, size))).join(" | ");
                writeln!(page, "| {first} | {end} | {cells} |")?;
            }
        }
    }
    let floor = |name: &str| over(runs, |run| run["floor"][name].as_f64());
    let by_size = |name: &str| {
        let of = |size: u64| {
            over(runs, |run| {
                let found = run["floor"][name].as_array()?;
                found.iter().find(|one| one[0].as_u64() == Some(size))?[1].as_f64()
            })
        };
        let text = |size| of(size).map(|ns| format!("{} {} µs", named(size), cell(Some(ns / 1000.0))));
        sizes(runs).into_iter().filter_map(text).collect::<Vec<_>>().join(", ")
    };
    writeln!(
        page,
        "\nA wake of a thread takes {} µs, a cache line to the other processor and back {} ns; the kernel's first touch: {}.",
        cell(floor("wake_ns").map(|ns| ns / 1000.0)),
        cell(floor("cache_line_round_trip_ns")),
        by_size("first_touch")
    )?;
    let two_copies = by_size("two_copies");
    if !two_copies.is_empty() {
        writeln!(
            page,
            "Two threads, each on a processor of its own, of which one copies into a ring and the other out of it, and which \
             poll, take: {two_copies}."
        )?;
    }
    if let Some(sparse) = runs.first().map(|run| &run["sparse"]).filter(|sparse| sparse.is_object()) {
        let mib = |name: &str| {
            sparse[name].as_f64().map_or("-".into(), |bytes| format!("{:.1}", bytes / 1048576.0))
        };
        writeln!(
            page,
            "\nOf {} MiB that are registered, transfers wrote {} MiB, all over them: {} MiB are in memory then, and {} MiB \
             where all of\nit is pinned, as registering does elsewhere.",
            mib("registered_bytes"),
            mib("used_bytes"),
            mib("brought_in_bytes"),
            mib("pinned_bytes")
        )?;
    }
    let mut gains = Vec::new();
    for (end, document) in [("destination", "1.7"), ("source", "3.9")] {
        let of = |way| latency_us(runs, "shm", way, end, 16 << 10);
        if let Some((page_us, ahead_us)) = of("page").zip(of("ahead")) {
            gains.push(format!("{:.1} at the {end} (FAULT Fig 4.2-4.7: {document})", page_us / ahead_us));
        }
    }
    if !gains.is_empty() {
        writeln!(
            page,
            "\nTouch-ahead is so many times as fast as touch-a-page, 16 KiB over shm: {}. The document's figures are those of its\n\
             hardware, for the model to reproduce.",
            gains.join(", ")
        )?;
    }
    Ok(page)
}

/// Runs it. The arguments are those after `faults`.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let count = runs(arguments)?;
    let (tombolo, bench) = (build("tombolo")?, build("tombolo-bench")?);
    stops::stop_on_signals(&STOP);
    let mut found = Vec::new();
    for run in 1..=count {
        if interrupted() {
            return Err("interrupted".into());
        }
        eprintln!("bench: faults, run {run} of {count}");
        found.push(measure(&bench, &tombolo)?);
    }
    for (title, ratio, bound) in targets(&found) {
        eprintln!("  {title}: {} (≤ {bound})", ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")));
    }
    let text = text(&found).map_err(|error| error.to_string())?;
    let figures =
        serde_json::to_string_pretty(&json!({ "runs": found })).map_err(|error| error.to_string())?;
    page::keep(&folder(), "faults.json", &(figures + "\n"))?;
    page::write(&folder(), "faults", &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_understood_or_refused() {
        let parse = |text: &str| runs(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!((parse(""), parse("--runs 2")), (Ok(3), Ok(2)));
        for wrong in ["other", "--runs", "--runs 0", "--runs 1 more"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_page_shows_medians_verdicts_and_what_was_not_measured() {
        let run = |us: f64, ratio: f64| {
            json!({
                "floor": { "wake_ns": 2000.0, "cache_line_round_trip_ns": 70.0, "first_touch": [[16384, 5000.0]],
                           "two_copies": [[16384, 3000.0]] },
                "rows": [
                    { "link": "shm", "way": "page", "absent": "source", "size_bytes": 16384,
                      "latency": { "median_ns": us * 1000.0 } },
                    { "link": "shm", "way": "ahead", "absent": "source", "size_bytes": 16384,
                      "latency": { "median_ns": us * 500.0 } },
                ],
                "sparse": { "registered_bytes": 1048576, "used_bytes": 524288, "brought_in_bytes": 524288,
                            "pinned_bytes": 1048576 },
                "ratios": [["a / b", ratio, 1.25], ["c / d", 1.0, 1.5]],
            })
        };
        let page = text(&[run(10.0, 1.0), run(90.0, 1.3), run(20.0, 2.0)]).unwrap();
        for line in [
            "| a / b | 1.30 | ≤ 1.25 | **not reached** |",
            "| c / d | 1.00 | ≤ 1.5 | reached |",
            "| shm, 16 KiB | - | - | source | - | - | 20.0 | 10.0 | - |",
            "2.0 at the source",
            "16 KiB 5.0 µs",
            "which poll, take: 16 KiB 3.0 µs.",
            "Of 1.0 MiB that are registered",
        ] {
            assert!(page.contains(line), "no {line} in:\n{page}");
        }
    }
}
