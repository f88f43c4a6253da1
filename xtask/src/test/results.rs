//! What a run of tests came to.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::path::Path;
use std::process::{Command, Stdio};

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// A test that has run.
#[derive(Debug, PartialEq)]
struct Test {
    /// Its package and binary.
    binary: String,
    name: String,
    seconds: f64,
    has_passed: bool,
}

/// All tests of a run by cargo-nextest.
#[derive(Debug, Default)]
pub struct Results(Vec<Test>);

impl Results {
    /// Reads the JUnit file that nextest writes at its end.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("cargo-nextest has written no results: {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let document = roxmltree::Document::parse(text).map_err(|error| error.to_string())?;
        let mut tests = Vec::new();
        for case in document.descendants().filter(|node| node.has_tag_name("testcase")) {
            let attribute = |name| case.attribute(name).ok_or_else(|| format!("a test without `{name}`"));
            let failed =
                |child: roxmltree::Node<'_, '_>| child.has_tag_name("failure") || child.has_tag_name("error");
            tests.push(Test {
                binary: attribute("classname")?.to_owned(),
                name: attribute("name")?.to_owned(),
                seconds: attribute("time")?.parse().map_err(|error| format!("a time: {error}"))?,
                has_passed: !case.children().any(failed),
            });
        }
        Ok(Self(tests))
    }

    pub fn tally(&self) -> Tally {
        let passed = self.0.iter().filter(|test| test.has_passed).count() as u64;
        Tally { passed, failed: self.0.len() as u64 - passed }
    }

    /// The slowest tests, one a line.
    pub fn slowest(&self, count: usize) -> String {
        let mut tests: Vec<_> = self.0.iter().collect();
        tests.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        tests.truncate(count);
        let mut text = format!("\nthe {} slowest tests\n", tests.len());
        for test in tests {
            let _ = writeln!(text, "{:8.1} s  {} {}", test.seconds, test.binary, test.name);
        }
        text
    }
}

/// Runs `cargo test`, passes on what it prints, and adds up its tallies. Where tests fail, or are ignored, that is added to `failures`.
pub fn run_libtest(what: &str, command: &mut Command, failures: &mut Vec<String>) -> Result<Tally, String> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cargo: {error}"))?;
    let mut tally = Tally::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            tally += tally_of(&line).unwrap_or_default();
            println!("{line}");
        }
    }
    let status = child.wait().map_err(|error| format!("{what}: {error}"))?;
    if !status.success() {
        failures.push(format!("{what}: {status}"));
    } else if tally.failed > 0 {
        failures.push(format!("{what}: {} ignored", tally.failed));
    }
    Ok(tally)
}

/// Of a line such as `test result: ok. 3 passed; 0 failed; 0 ignored; …`. What is ignored was not shown to pass.
fn tally_of(line: &str) -> Option<Tally> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |word: &str| {
        let part = numbers.split(';').map(str::trim).find_map(|part| part.strip_suffix(word))?;
        part.trim().parse().ok()
    };
    Some(Tally { passed: number("passed")?, failed: number("failed")? + number("ignored")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JUNIT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0" time="3.5">
  <testsuite name="tombolo-core::nic" tests="2" disabled="0" errors="0" failures="1">
    <testcase name="slow" classname="tombolo-core::nic" time="2.5"></testcase>
    <testcase name="wrong" classname="tombolo-core::nic" time="0.5"><failure type="test failure">no</failure></testcase>
  </testsuite>
  <testsuite name="tombolo"><testcase name="quick" classname="tombolo" time="0.25"/></testsuite>
</testsuites>"#;

    #[test]
    fn results_are_counted_and_the_slowest_come_first() {
        let results = Results::parse(JUNIT).unwrap();
        assert_eq!(results.tally(), Tally { passed: 2, failed: 1 });
        let text = results.slowest(2);
        assert_eq!(text.lines().nth(2).map(str::trim), Some("2.5 s  tombolo-core::nic slow"));
        assert!(text.contains("wrong") && !text.contains("quick"), "{text}");
        assert!(Results::parse("<testcase name='a'/>").is_err() && Results::parse("").is_err());
    }

    #[test]
    fn a_closing_line_of_cargo_test_is_understood() {
        let line = "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(tally_of(line), Some(Tally { passed: 3, failed: 3 }));
        assert_eq!(tally_of("running 3 tests"), None);
    }
}
