//! Fuzzing: every target of `fuzz/` runs for a given time, as many at once as there are processors.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::command::{root, run};
use crate::tools;

/// How long each target runs unless the caller says otherwise.
const SECONDS: u32 = 60;

/// Runs all targets, or those that are named, for `SECONDS` each (or for as long as the first argument says, if that is a number).
pub fn main(arguments: &[String]) -> Result<(), String> {
    let (seconds, named) = match arguments.split_first() {
        Some((first, rest)) if first.parse::<u32>().is_ok() => (first.parse().unwrap_or(SECONDS), rest),
        _ => (SECONDS, arguments),
    };
    if seconds == 0 {
        return Err("for how many seconds? 0 would be for ever".to_owned());
    }
    let program = &tools::find(&tools::FUZZ)?;
    let listed = fuzz(program, "list").stderr(Stdio::inherit()).output();
    let listed = listed.map_err(|error| format!("cargo fuzz list: {error}"))?;
    if !listed.status.success() || listed.stdout.is_empty() {
        return Err(format!("cargo fuzz list: {}", listed.status));
    }
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let known: Vec<&str> = listed.lines().collect();
    if let Some(unknown) = named.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("no fuzz target is called {unknown}; there are {}", known.join(", ")));
    }
    run(fuzz(program, "build").args(["--sanitizer", "none"]))?;
    let is_named = |target: &&&str| named.is_empty() || named.iter().any(|name| name == **target);
    let targets: Vec<&str> = known.iter().filter(is_named).copied().collect();
    let (next, failed) = (Mutex::new(targets.iter()), Mutex::new(Vec::new()));
    let lanes = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let target = next.lock().ok().and_then(|mut next| next.next());
                    let Some(target) = target else { return };
                    if let Err(error) = run_target(program, target, seconds) {
                        eprintln!("{target}: {error}");
                        if let Ok(mut failed) = failed.lock() {
                            failed.push(*target);
                        }
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        Ok(failed) if failed.is_empty() => Ok(()),
        Ok(failed) => Err(format!("failed: {}; what failed is in fuzz/artifacts", failed.join(", "))),
        Err(_) => Err("a thread has panicked".to_owned()),
    }
}

fn fuzz(program: &Path, task: &str) -> Command {
    let mut command = Command::new(program);
    // As if `cargo fuzz` had been called. Its instrumentation is unstable.
    command.args(["fuzz", task]).current_dir(root()).env("RUSTC_BOOTSTRAP", "1");
    // Each target is linked for itself; the product's slow linking would be done for all of them.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    command
}

fn run_target(program: &Path, target: &str, seconds: u32) -> Result<(), String> {
    let corpus = root().join("target/corpora").join(target);
    std::fs::create_dir_all(&corpus).map_err(|error| format!("{}: {error}", corpus.display()))?;
    let mut command = fuzz(program, "run");
    command.arg(target).args(["--sanitizer", "none"]).arg(&corpus);
    command.arg("--").arg(format!("-max_total_time={seconds}"));
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cargo fuzz run: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{}\n{said}", output.status));
    }
    let runs = said.lines().rev().find(|line| line.starts_with("Done ")).unwrap_or("done");
    println!("{target}: {runs}");
    Ok(())
}
