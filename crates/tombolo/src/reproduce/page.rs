//! All figures as one page: a file without scripts, with its pictures inside.

use tombolo_sim::figures::{Class, Report, Score};
use tombolo_sim::platform::{Kind, Platform};

use super::{documents, role, short};

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:.5em 0}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:left}\
td.n{text-align:right;font-variant-numeric:tabular-nums}.bad{color:#b00}svg{max-width:100%;height:auto}\
small{color:#666}h2{margin-top:2em}";

/// Text as HTML.
fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The page of these reports, each with its pictures.
pub fn page(reports: &[Report], pictures: &[Vec<String>]) -> String {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Tombolo: the documents' figures</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>The documents' figures</h1>\n"
    );
    for class in [Class::Hardware, Class::Protocol] {
        let score = Score::of(reports.iter().filter(|report| report.class == class));
        let name = match class {
            Class::Hardware => "Only modelled hardware takes part",
            Class::Protocol => "Machines of the core take part",
        };
        text += &format!("<p>{name}: {}</p>\n", in_words(&score));
    }
    for document in documents(reports) {
        let of_document = || reports.iter().filter(|report| report.document == document);
        text += &format!("<h2>{}</h2>\n<p>{}</p>\n", document.name(), in_words(&Score::of(of_document())));
        let mut platforms: Vec<_> = of_document().map(|report| report.platform).collect();
        platforms.sort_unstable();
        platforms.dedup();
        platforms.iter().for_each(|name| text += &constants(name));
        for (report, pictures) in
            reports.iter().zip(pictures).filter(|(report, _)| report.document == document)
        {
            text += &section(report, pictures);
        }
    }
    text + "</body>\n</html>\n"
}

fn in_words(score: &Score) -> String {
    let error = score
        .median_error_percent
        .map_or_else(String::new, |percent| format!(", median error {percent:.1} %"));
    let more = if score.fitted > score.predicted { " More was fitted than predicted." } else { "" };
    format!(
        "{} numbers fitted, {} predicted{error}; {} of {} claims hold.{more}",
        score.fitted, score.predicted, score.hold, score.claims
    )
}

/// The constants of a platform, by kind.
fn constants(name: &str) -> String {
    let Some(platform) = Platform::named(name) else { return String::new() };
    let count = |kind| platform.constants().filter(|(_, constant)| constant.kind == kind).count();
    let mut text = format!(
        "<details><summary>{name}: {} constants stated, {} derived, {} fitted, {} assumed</summary>\n<table>\n",
        count(Kind::Stated),
        count(Kind::Derived),
        count(Kind::Fitted),
        count(Kind::Assumed)
    );
    for (name, constant) in platform.constants() {
        let from = [&constant.source, &constant.derivation, &constant.target, &constant.reason];
        let from: Vec<_> = from.into_iter().flatten().map(String::as_str).collect();
        text += &format!(
            "<tr><td>{}<br><small>{}</small></td><td class=\"n\">{} {}</td><td>{}</td><td>{}</td></tr>\n",
            plain(name),
            plain(constant.what.as_deref().unwrap_or_default()),
            constant.value,
            constant.unit,
            constant.kind,
            plain(&from.join("; "))
        );
    }
    text + "</table></details>\n"
}

fn section(report: &Report, pictures: &[String]) -> String {
    let mut text = format!(
        "<h3 id=\"{0}\">{0}: {1}</h3>\n<p><small>{2}; {3}</small><br>Mechanism: {4}.</p>\n",
        report.id,
        plain(report.title),
        plain(report.section),
        report.platform,
        plain(report.mechanism)
    );
    if !report.numbers.is_empty() {
        text += "<table><tr><th></th><th>paper</th><th>model</th><th>error</th><th></th></tr>\n";
        for number in &report.numbers {
            let role = role(number.role);
            text += &format!(
                "<tr><td>{}{}</td><td class=\"n\">{} {}</td><td class=\"n\">{}</td><td class=\"n\">{:+.1} %</td><td>{role}</td></tr>\n",
                plain(&number.what),
                number.note.map_or_else(String::new, |note| format!("<br><small>{}</small>", plain(note))),
                short(number.stated),
                number.unit,
                short(number.found),
                number.error_percent()
            );
        }
        text += "</table>\n";
    }
    if !report.claims.is_empty() {
        text += "<ul>\n";
        for claim in &report.claims {
            let (class, holds) =
                if claim.holds { ("", "holds") } else { (" class=\"bad\"", "does not hold") };
            text += &format!(
                "<li{class}>{}: {holds} ({}){}</li>\n",
                plain(&claim.what),
                plain(claim.found.trim()),
                claim.note.map_or_else(String::new, |note| format!(". {}", plain(note)))
            );
        }
        text += "</ul>\n";
    }
    pictures.iter().for_each(|picture| text += picture);
    text
}
