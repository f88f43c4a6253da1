//! `tombolo reproduce`: the documents' figures, from the machines of this repository on modelled hardware.

mod page;
mod picture;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use tombolo_sim::figures::{Document, Report, Role, Score, figures};
use tombolo_sim::platform::Platform;

use crate::failure::Failure;

use crate::output;

/// Arguments of `tombolo reproduce`.
#[derive(Args)]
pub struct Arguments {
    /// A figure (Q-16B), a document (QOS), or all of them.
    #[arg(default_value = "all", value_name = "ID|DOCUMENT|all")]
    which: String,
    /// Write a page, pictures, tables and JSON into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the figures.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let chosen: Vec<_> = figures()
        .filter(|figure| {
            let names = ["all", figure.id, figure.document.name()];
            names.iter().any(|name| name.eq_ignore_ascii_case(&arguments.which))
        })
        .collect();
    if chosen.is_empty() {
        let known: Vec<_> = figures().map(|figure| figure.id).collect();
        let text = format!("there is no figure {}: there are {}", arguments.which, known.join(", "));
        return Err(Failure { text, code: 2 });
    }
    let mut reports = Vec::new();
    for figure in chosen {
        reports.push((figure.run)().map_err(|error| Failure::new(error.to_string()))?);
    }
    let score = Score::of(&reports);
    if let Some(folder) = &arguments.out {
        write(folder, &reports)?;
    }
    if arguments.json {
        output::json(&json!({ "score": score, "figures": reports }))?;
    } else {
        reports.iter().for_each(print);
        print_score(&score);
        if let Some(folder) = &arguments.out {
            output::line(&format!("The page is {}.", folder.join("index.html").display()));
        }
    }
    Ok(u8::from(score.fails()))
}

/// A number as short as its size allows.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// What a number counts for, in a word.
fn role(role: Role) -> &'static str {
    match role {
        Role::Fitted => "fitted",
        Role::Predicted => "predicted",
        Role::Shown => "shown",
    }
}

fn print(report: &Report) {
    output::line(&format!("{}  {} ({})", report.id, report.title, report.section));
    for number in &report.numbers {
        let role = role(number.role);
        output::line(&format!(
            "  {:<52} {:>8} {:>8} {:<5} {:>6.1} %  {role}",
            number.what,
            short(number.stated),
            short(number.found),
            number.unit,
            number.error_percent()
        ));
    }
    for claim in &report.claims {
        let holds = if claim.holds { "holds" } else { "fails" };
        output::line(&format!("  {holds}: {} ({})", claim.what, claim.found.trim()));
    }
    let notes = report.numbers.iter().filter_map(|number| number.note);
    // One that is for several numbers is said once.
    let notes: BTreeSet<_> = notes.chain(report.claims.iter().filter_map(|claim| claim.note)).collect();
    for note in notes {
        output::line(&format!("  note: {note}"));
    }
}

fn print_score(score: &Score) {
    let error = score.median_error_percent.map_or_else(|| "none".into(), |percent| format!("{percent:.1} %"));
    output::line(&format!(
        "{} numbers fitted, {} predicted (median error {error}); {} of {} claims hold.",
        score.fitted, score.predicted, score.hold, score.claims
    ));
    for (count, what) in [
        (score.misfits, "fits missed by more than 1 %"),
        (score.unexplained, "predictions off by more than 30 %, unexplained"),
        (score.unexplained_claims, "claims that fail, unexplained"),
    ] {
        if count > 0 {
            output::line(&format!("{count} {what}."));
        }
    }
}

/// The name of a plot's files.
fn file_name(report: &Report, number: usize) -> String {
    format!("{}-{}", report.id, number + 1)
}

fn write(folder: &Path, reports: &[Report]) -> Result<(), Failure> {
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    };
    fs::create_dir_all(folder).map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
    let mut pictures = Vec::new();
    for report in reports {
        let mut of_report = Vec::new();
        for (number, plot) in report.plots.iter().enumerate() {
            let name = file_name(report, number);
            let picture = picture::draw(plot).map_err(|error| Failure::new(format!("{name}: {error}")))?;
            put(&format!("{name}.svg"), &picture)?;
            put(&format!("{name}.csv"), &table(plot))?;
            of_report.push(picture);
        }
        pictures.push(of_report);
    }
    let mut names: Vec<_> = reports.iter().map(|report| report.platform).collect();
    names.sort_unstable();
    names.dedup();
    let platforms =
        names.iter().filter_map(|name| Some(((*name).to_owned(), constants(&Platform::named(name)?))));
    let platforms: serde_json::Map<_, _> = platforms.collect();
    let results = json!({ "score": Score::of(reports), "platforms": platforms, "figures": reports });
    put("results.json", &serde_json::to_string_pretty(&results)?)?;
    put("index.html", &page::page(reports, &pictures))
}

/// The constants of a platform: what a result was made with.
fn constants(platform: &Platform) -> serde_json::Value {
    let constants = platform.constants().map(|(name, constant)| (name.to_owned(), json!(constant)));
    json!(constants.collect::<serde_json::Map<_, _>>())
}

/// A plot as CSV: what is stated has the name "stated".
fn table(plot: &tombolo_sim::figures::Plot) -> String {
    let mut text = format!("series,{},{}\n", plot.axes.0, plot.axes.1);
    let curves = plot.curves.iter().map(|curve| (curve.name.as_str(), &curve.points));
    for (name, points) in curves.chain([("stated", &plot.marks)]) {
        for (x, y) in points {
            text.push_str(&format!("{name},{x},{y}\n"));
        }
    }
    text
}

/// The documents of these reports, in order.
fn documents(reports: &[Report]) -> Vec<Document> {
    let mut documents: Vec<_> = reports.iter().map(|report| report.document).collect();
    documents.sort_unstable();
    documents.dedup();
    documents
}
