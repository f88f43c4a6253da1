//! What developers and CI run: `cargo xtask test | lint | ci | deb | headers | fuzz | recording | bench`.

use std::process::ExitCode;

mod bench;
mod command;
mod deb;
mod fuzz;
mod guest;
mod headers;
mod licences;
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
  lint                 formatting, clippy, documentation, the header for C, licences and sources of
                       dependencies; their known defects where cargo-deny is installed
  ci                   both, and nothing may be left out
  deb                  build a Debian package of the product
  headers              write the header for programs in C from the code
  fuzz [SECONDS] [TARGET...]
                       run every fuzz target, or these, for a minute each, or that long
  recording            run the first commands of README, and draw docs/recording.svg
  bench paging|rdma|faults|net
                       measure, and write a part of bench/RESULTS.md";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(1..).unwrap_or_default();
    let done = match (arguments.first().map(String::as_str), rest) {
        (Some("test"), _) => test::main(rest, tombolo_random::is_on("TOMBOLO_REQUIRE_ALL")),
        (Some("fuzz"), _) => fuzz::main(rest),
        (Some("bench"), _) => bench::main(rest),
        (Some("lint"), []) => lint::main(),
        // All of it: a part would look like all.
        (Some("ci"), []) => test::main(&[], true).and_then(|()| lint::main()),
        (Some("deb"), []) => deb::main(),
        (Some("headers"), []) => headers::write(),
        (Some("recording"), []) => recording::main(),
        (Some("help" | "--help" | "-h"), []) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
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
