//! `tombolo sim run`: runs a scenario, once or in a sweep.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use serde_json::json;
use tombolo_sim::study::{self, Outcome, Scenario};

use super::perfetto;
use crate::failure::Failure;
use crate::output;

/// Arguments of `tombolo sim run`.
#[derive(Args)]
pub struct Arguments {
    /// A TOML file (platform, topology, workload, faults), or the name of an example.
    scenario: PathBuf,
    /// What random numbers are drawn from, in place of the file's seed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Another value, as in workload.bytes=65536 or constants.timeout=5.
    #[arg(long, value_name = "KEY=V", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Several values, each of which is run; with several keys, all combinations.
    #[arg(long, value_name = "KEY=A,B,..", value_parser = pair)]
    sweep: Vec<(String, String)>,
    /// Runs of each, with seeds that follow each other.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    repeat: u64,
    /// Threads, each with one run at a time [default: as many as processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    jobs: Option<u64>,
    /// Write a row for each run that could be made into this file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write what every part did when into this file, for ui.perfetto.dev: of one run.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print the scenario with all that was set, as a file, and run nothing.
    #[arg(long, conflicts_with_all = ["sweep", "csv", "trace", "json"])]
    show: bool,
    /// Print JSON: each run with its scenario and every counter.
    #[arg(long)]
    json: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("KEY=VALUE is wanted")?;
    if key.is_empty() || value.is_empty() {
        return Err("KEY=VALUE is wanted".into());
    }
    Ok((key.into(), value.into()))
}

/// An example, or a file.
fn text_of(scenario: &Path) -> Result<String, Failure> {
    if let Some(text) = scenario.to_str().and_then(Scenario::example) {
        return Ok(text.to_owned());
    }
    fs::read_to_string(scenario).map_err(|error| {
        let known = study::EXAMPLES.map(|(name, _)| name).join(", ");
        let name = scenario.display();
        Failure::new(format!("{name} is no example ({known}), and cannot be read as a file: {error}"))
    })
}

/// A run that is to be made: what was swept, and the scenario.
struct Planned {
    swept: Vec<(String, String)>,
    scenario: Scenario,
}

/// What is said of a sweep that cannot be.
fn wrong(text: impl Into<String>) -> Failure {
    Failure { text: text.into(), code: 2 }
}

/// What was swept, in front of what is said of a run.
fn named_point(swept: &[(String, String)], error: &study::StudyError) -> String {
    let point: String = swept.iter().map(|(key, value)| format!("{key}={value}: ")).collect();
    format!("{point}{error}")
}

/// Runs at most: each has a row.
const MOST_RUNS: u64 = 1_000_000;

fn plan(arguments: &Arguments, text: &str) -> Result<Vec<Planned>, Failure> {
    let mut points: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for (key, values) in &arguments.sweep {
        if key == "seed" {
            return Err(wrong("seeds are not swept: use --seed and --repeat"));
        }
        if arguments.sweep.iter().filter(|(other, _)| other == key).count() > 1 {
            return Err(wrong(format!("{key} is swept twice: name all of its values at once")));
        }
        let values: Vec<_> = values.split(',').map(str::trim).filter(|value| !value.is_empty()).collect();
        if values.is_empty() {
            return Err(wrong(format!("--sweep {key} has no values")));
        }
        let count = (points.len() as u64).saturating_mul(values.len() as u64);
        if count.saturating_mul(arguments.repeat) > MOST_RUNS {
            return Err(wrong(format!("these are more than {MOST_RUNS} runs")));
        }
        let with = |point: &Vec<(String, String)>, value: &str| {
            point.iter().cloned().chain([(key.clone(), value.to_owned())]).collect()
        };
        points = points.iter().flat_map(|point| values.iter().map(move |value| with(point, value))).collect();
    }
    let mut planned = Vec::new();
    for swept in points {
        let set: Vec<_> = arguments.set.iter().chain(&swept).cloned().collect();
        let scenario = Scenario::parse(text, &set).map_err(|error| wrong(named_point(&swept, &error)))?;
        let seed = arguments.seed.unwrap_or(scenario.seed);
        planned.extend((0..arguments.repeat).map(|number| Planned {
            swept: swept.clone(),
            scenario: Scenario { seed: seed.wrapping_add(number), ..scenario.clone() },
        }));
    }
    Ok(planned)
}

/// All of them, by so many threads: the outcomes in the order of the plan. `keeps`: the timeline, and what parts have counted.
fn run_all(planned: &[Planned], jobs: usize, keeps: (bool, bool)) -> Vec<Result<Outcome, String>> {
    let (keeps_timeline, keeps_parts) = keeps;
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Mutex<Option<Result<Outcome, study::StudyError>>>> =
        planned.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(planned.len()) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(one) = planned.get(number) else { return };
                    let mut outcome = study::run(&one.scenario, keeps_timeline);
                    if let (false, Ok(outcome)) = (keeps_parts, &mut outcome) {
                        outcome.parts.clear();
                    }
                    *outcomes[number].lock().expect("no thread panics while it holds this") = Some(outcome);
                }
            });
        }
    });
    outcomes
        .into_iter()
        .zip(planned)
        .map(|(outcome, one)| {
            let outcome = outcome.into_inner().expect("no thread has panicked").expect("all were run");
            outcome.map_err(|error| named_point(&one.swept, &error))
        })
        .collect()
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(path, bytes).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// A field of CSV.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}

/// A row for each run that was made: what was swept, the seed, the values.
fn table(planned: &[Planned], outcomes: &[Result<Outcome, String>]) -> String {
    let mut text = String::new();
    let swept = planned.first().map_or(&[][..], |one| &one.swept);
    let values = outcomes.iter().flatten().next().map_or(&[][..], |outcome| &outcome.values);
    let names = swept.iter().map(|(key, _)| field(key));
    let names = names.chain(["seed".to_owned()]).chain(values.iter().map(|(name, _)| name.clone()));
    let _ = writeln!(text, "{}", names.collect::<Vec<_>>().join(","));
    for (one, outcome) in planned.iter().zip(outcomes) {
        let Ok(outcome) = outcome else { continue };
        let fields = one.swept.iter().map(|(_, value)| field(value));
        let fields = fields.chain([one.scenario.seed.to_string()]);
        let fields = fields.chain(outcome.values.iter().map(|(_, value)| value.to_string()));
        let _ = writeln!(text, "{}", fields.collect::<Vec<_>>().join(","));
    }
    text
}

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let text = text_of(&arguments.scenario)?;
    let planned = plan(arguments, &text)?;
    if let (true, Some(one)) = (arguments.show, planned.first()) {
        // What an example is for stands at its beginning.
        text.lines().take_while(|line| line.starts_with('#')).for_each(output::line);
        let text = one.scenario.to_toml().map_err(|error| Failure::new(error.to_string()))?;
        output::line(text.trim_end());
        return Ok(0);
    }
    if arguments.trace.is_some() && planned.len() != 1 {
        return Err(wrong(format!("--trace is for one run, not {}", planned.len())));
    }
    // A file that cannot be written is known before hours have passed.
    for path in arguments.csv.iter().chain(&arguments.trace) {
        write(path, &[])?;
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.map_or(processors, |jobs| jobs as usize);
    let outcomes = run_all(&planned, jobs, (arguments.trace.is_some(), arguments.json));
    if let Some(path) = &arguments.csv {
        write(path, table(&planned, &outcomes).as_bytes())?;
    }
    if let (Some(path), [Ok(outcome)]) = (&arguments.trace, &outcomes[..]) {
        write(path, &perfetto::trace(outcome))?;
        if let Some(at) = outcome.tracks_cut_at {
            let us = at.picos() as f64 / 1e6;
            let path = path.display();
            output::say(&format!(
                "{path} is incomplete from {us:.1} us on: there was more than a timeline keeps"
            ));
        }
    }
    if arguments.json {
        let mut runs = Vec::new();
        for (one, outcome) in planned.iter().zip(&outcomes) {
            let platform = one.scenario.platform().map_err(|error| Failure::new(error.to_string()))?;
            let constants: serde_json::Map<_, _> =
                platform.constants().map(|(name, constant)| (name.to_owned(), json!(constant))).collect();
            let mut run = json!({
                "swept": named(&one.swept, |value| json!(value)),
                "scenario": one.scenario,
                "constants": constants,
            });
            match outcome {
                Ok(outcome) => {
                    run["values"] = named(&outcome.values, |value| json!(value));
                    run["parts"] = named(&outcome.parts, |values| named(values, |value| json!(value)));
                    run["trace_hash"] = json!(outcome.trace_hash);
                }
                Err(error) => run["error"] = json!(error),
            }
            runs.push(run);
        }
        output::json(&json!({ "runs": runs }))?;
        return failures(&outcomes);
    }
    for (one, outcome) in planned.iter().zip(&outcomes) {
        let Ok(outcome) = outcome else { continue };
        let swept = one.swept.iter().map(|(key, value)| format!("{key}={value} "));
        output::line(&format!("{}seed={}", swept.collect::<String>(), one.scenario.seed));
        for (name, value) in &outcome.values {
            output::line(&format!("  {name:<26} {}", crate::reproduce::short(*value)));
        }
    }
    failures(&outcomes)
}

/// Says why runs could not be made. Those that could have been printed.
fn failures(outcomes: &[Result<Outcome, String>]) -> Result<u8, Failure> {
    let errors: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    match (&errors[..], outcomes.len()) {
        ([], _) => Ok(0),
        ([error], 1) => Err(Failure::new((*error).clone())),
        (errors, all) => {
            errors.iter().for_each(|error| output::say(error));
            Err(Failure::new(format!("{} of {all} runs could not be made", errors.len())))
        }
    }
}

fn named<V>(pairs: &[(String, V)], value: impl Fn(&V) -> serde_json::Value) -> serde_json::Value {
    let pairs = pairs.iter().map(|(name, of)| (name.clone(), value(of)));
    pairs.collect::<serde_json::Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_with_a_comma_is_quoted() {
        assert_eq!(["a", "a,b", "a\"b"].map(field), ["a", "\"a,b\"", "\"a\"\"b\""]);
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(["a", "=b", "a="].iter().all(|text| pair(text).is_err()));
    }
}
