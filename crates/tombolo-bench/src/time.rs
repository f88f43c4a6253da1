//! `tombolo-bench time`: a program's wall time, and the CPU time of the whole machine meanwhile.
//!
//! The clock runs beside the program, wherever that runs: under `tombolo run` or in a cgroup. So all
//! ways of running it are timed alike, and none with what has to be set up before.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use serde_json::json;
use tombolo_host::cpu::Stopwatch;

use crate::Failure;

/// Arguments of `tombolo-bench time`.
#[derive(Args)]
pub struct Arguments {
    /// Where to write the times.
    #[arg(long, value_name = "FILE.json")]
    output: PathBuf,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the program. That it fails is this command's failure.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    let (program, rest) = arguments.command.split_first().ok_or_else(|| Failure::new("no program given"))?;
    let name = program.to_string_lossy();
    let watch = Stopwatch::start()?;
    let status = Command::new(program).args(rest).status();
    let (wall_s, cpu_s) = watch.elapsed()?;
    let status = status.map_err(|error| Failure::new(format!("cannot start {name}: {error}")))?;
    if !status.success() {
        return Err(Failure::new(format!("{name}: {status}")));
    }
    let times = json!({ "wall_s": wall_s, "cpu_s": cpu_s });
    std::fs::write(&arguments.output, times.to_string())
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", arguments.output.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(output: PathBuf, command: &[&str]) -> Result<(), Failure> {
        main(&Arguments { output, command: command.iter().map(OsString::from).collect() })
    }

    #[test]
    fn times_are_written_for_a_program_that_succeeds() {
        let file = std::env::temp_dir().join(format!("tombolo-bench-time-{}", std::process::id()));
        assert!(timed(file.clone(), &["false"]).unwrap_err().0.contains("false"));
        assert!(!file.exists());
        assert!(timed(file.clone(), &["/no/such/program"]).unwrap_err().0.contains("cannot start"));
        timed(file.clone(), &["true"]).unwrap();
        let times: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let _ = std::fs::remove_file(&file);
        assert!(times["wall_s"].as_f64() > Some(0.0), "{times}");
        assert!(times["cpu_s"].as_f64() >= Some(0.0), "{times}");
    }
}
