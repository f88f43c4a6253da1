//! Python: records of customers, each a dictionary in a dictionary of all, that are made and then added up by city.

use std::process::Command;
use std::time::Instant;

use super::{Ran, Workload};
use crate::demo::compare::{Demo, Place};
use crate::demo::{Child, STOP};
use crate::failure::Failure;
use crate::run::check_program;

const SCRIPT: &str = "
people, state = {}, 1
for number in range(110_000):
    state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
    people['customer-%d' % number] = {'city': 'city-%d' % (state >> 55), 'age': 18 + (state >> 40) % 70, 'spent': state >> 44}
total = {}
for least in range(20, 60, 10):
    for name, person in people.items():
        if person['age'] >= least:
            total[person['city']] = total.get(person['city'], 0) + person['spent'] + int(name[9:])
print(len(people), sum(hash((int(city[5:]), spent)) for city, spent in total.items()))
";

/// The workload.
pub struct Python;

impl Python {
    /// The error: why it is left out.
    pub fn find() -> Result<Self, String> {
        check_program("python3".as_ref()).map_err(|failure| format!("python: {}", failure.text))?;
        let answer = Command::new("python3").args(["-S", "-s", "-c", "print(1_000)"]).output();
        match answer {
            Ok(answer) if answer.stdout == b"1000\n" => Ok(Self),
            _ => Err("python: this python3 does not run".into()),
        }
    }
}

impl Workload for Python {
    fn name(&self) -> &'static str {
        "python"
    }

    fn about(&self) -> &'static str {
        "python: records in dictionaries, added up by city"
    }

    fn run(&self, demo: &Demo<'_>, place: &Place<'_>) -> Result<Ran, Failure> {
        let mut command = demo.command(place, "python3".as_ref())?;
        // One order of hashing, so that runs can be compared; no packages of the user's own.
        command.args(["-S", "-s", "-c", SCRIPT]).env("PYTHONHASHSEED", "0");
        let since = Instant::now();
        let child = Child::start(&mut command, "python3", demo.directory)?;
        let output = child.output(&STOP, || demo.progress.tick(), std::io::read_to_string)?;
        Ok(Ran { seconds: since.elapsed().as_secs_f64(), output: Some(output) })
    }
}
