//! What developers and CI run: `cargo xtask test | lint | ci | headers | fuzz | recording | bench`.

use std::process::ExitCode;

mod bench;
mod command;
mod fuzz;
mod guest;
mod headers;
mod lint;
mod packages;
mod recording;
mod test;
mod tools;

const USAGE: &str = "\
usage: cargo xtask <task>

  test [--full] [NAME...]
                       install what the tests need, then run all, or those whose names contain a NAME
                       (--full: long soaks, more seeds, large programs;
                       TOMBOLO_REQUIRE_ALL=1: leaving a test out is a failure)
  lint                 formatting, clippy, documentation, licences and advisories
  ci                   both, and nothing may be left out
  headers              write the header for programs in C from the code
  fuzz [SECONDS] [TARGET...]
                       run every fuzz target, or these, for a minute each, or that long
  recording            run the first commands of README, and draw docs/recording.svg
  bench paging|rdma|faults|net
                       measure, and write a part of bench/RESULTS.md";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(1..).unwrap_or_default();
    let done = match arguments.first().map(String::as_str) {
        Some("test") => test::main(rest, false),
        Some("lint") => lint::main(),
        Some("ci") => test::main(rest, true).and_then(|()| lint::main()),
        Some("headers") => headers::write(),
        Some("fuzz") => fuzz::main(rest),
        Some("recording") => recording::main(),
        Some("bench") => bench::main(rest),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}
