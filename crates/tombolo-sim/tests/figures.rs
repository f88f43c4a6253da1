//! Every number and every claim of the documents' figures is as it was written down: a change of a machine that moves one is seen.

use std::fmt::Write;
use std::path::Path;

use tombolo_sim::figures::{Class, Report, Role, Score, figures};

/// Written anew by `TOMBOLO_BLESS=1`, where figures are meant to change.
const NUMBERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/figures/numbers.txt");

fn reports() -> Vec<Report> {
    figures().map(|figure| (figure.run)().unwrap_or_else(|error| panic!("{}: {error}", figure.id))).collect()
}

#[test]
fn figures_are_as_they_were_and_as_good_as_is_wanted() {
    let reports = reports();
    let mut found = String::new();
    for report in &reports {
        for number in &report.numbers {
            let role = if number.role == Role::Predicted { "predicted" } else { "" };
            writeln!(found, "{} {}: {:.4} {} {role}", report.id, number.what, number.found, number.unit)
                .expect("a string takes it");
        }
        for claim in &report.claims {
            writeln!(found, "{} {}: {}", report.id, claim.what, claim.holds).expect("a string takes it");
        }
    }
    // Lines end with what they say.
    let found = found.lines().map(|line| format!("{}\n", line.trim_end())).collect::<String>();
    if tombolo_random::is_on("TOMBOLO_BLESS") {
        std::fs::create_dir_all(Path::new(NUMBERS).parent().expect("a folder")).expect("a folder");
        std::fs::write(NUMBERS, &found).expect("it can be written");
    }
    let known = std::fs::read_to_string(NUMBERS).unwrap_or_default();
    for (known, found) in known.lines().zip(found.lines()) {
        assert_eq!(found, known, "a figure has changed: TOMBOLO_BLESS=1 if that is meant");
    }
    assert_eq!(found.lines().count(), known.lines().count(), "figures came or went: TOMBOLO_BLESS=1");
    // What the documents' reproduction is held to.
    let score = Score::of(&reports);
    assert!(!score.fails(), "{score:?}");
    for class in [Class::Hardware, Class::Protocol] {
        let of_class = Score::of(reports.iter().filter(|report| report.class == class));
        assert!(of_class.median_error_percent < Some(10.0), "{class:?}: {of_class:?}");
    }
    let plots: usize = reports.iter().map(|report| report.plots.len()).sum();
    assert!(plots >= 30, "{plots}");
}
