//! What the demo prints for people: at most 80 columns.

use super::compare::{Comparison, SHARES};
use super::{Findings, Link};
use crate::output;
use crate::size::Size;

/// Prints the table, and what follows from it.
pub fn print(findings: &Findings) {
    let link = match findings.link {
        Link::Shm => "shared memory",
        Link::Udp => "UDP",
    };
    output::line(&format!(
        "How long programs take with a part of their memory local and the rest at a\n\
         lender on this machine, over {link}, as multiples of their time\n\
         without Tombolo (all: everything local; zram: with the kernel's swap on zram\n\
         instead; one run each):\n"
    ));
    for line in table(&findings.programs) {
        output::line(&line);
    }
    for line in not_measured(&findings.programs) {
        output::paragraph(&line);
    }
    output::line("");
    for found in &findings.programs {
        output::line(&format!("{:8} {}", found.program, found.about));
    }
    for what in &findings.left_out {
        output::paragraph(&format!("left out: {what}"));
    }
    output::line("");
    output::paragraph(&finding(findings));
    if !findings.identical {
        return;
    }
    output::line("Outputs under Tombolo are those without it.");
    let tombolo = called();
    output::line(&format!(
        "\nNext, lend memory and run a program of your own with 256 MiB of it local:\n\n  \
         {tombolo} node --listen shm:/tmp/lender --lend 1G &\n  \
         {tombolo} run --from shm:/tmp/lender --local 256M -- PROGRAM ARGUMENTS",
    ));
}

/// What a user types for this binary: its name where the path has it, or else where it is.
fn called() -> String {
    let own = std::env::current_exe().unwrap_or_else(|_| "tombolo".into());
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let first =
        std::env::split_paths(&paths).map(|folder| folder.join("tombolo")).find(|path| path.is_file());
    let is_in_path = first.and_then(|path| path.canonicalize().ok()) == own.canonicalize().ok();
    let place =
        std::env::current_dir().ok().and_then(|folder| Some(own.strip_prefix(folder).ok()?.to_owned()));
    match (is_in_path, place) {
        (true, _) => "tombolo".to_owned(),
        (false, Some(place)) => place.display().to_string(),
        (false, None) => own.display().to_string(),
    }
}

/// Widths of the columns after the first.
const WIDTHS: [usize; 9] = [8, 7, 7, 7, 6, 7, 6, 7, 6];

fn row(cells: &[String]) -> String {
    let mut line = format!("{:8}", cells.first().map_or("", String::as_str));
    for (cell, width) in cells.iter().skip(1).zip(WIDTHS) {
        line.push_str(&format!(" {cell:>width$}"));
    }
    line.trim_end().to_owned()
}

fn table(programs: &[Comparison]) -> Vec<String> {
    let shares = SHARES.map(|(share, _)| share.to_owned());
    let above = format!("{:32} {:>14} {:>14} {:>14}", "", shares[0], shares[1], shares[2]);
    let titles = ["", "memory", "plain", "all", "tombolo", "zram", "tombolo", "zram", "tombolo", "zram"];
    let mut lines = vec![above, row(&titles.map(str::to_owned))];
    for found in programs {
        let times = |seconds: f64| multiple(seconds / found.plain_s);
        let mut cells = vec![
            found.program.to_owned(),
            Size(found.working_set_bytes).to_string(),
            format!("{:.2} s", found.plain_s),
            times(found.all_local_s),
        ];
        let beside_zram = |seconds: f64| multiple(seconds / found.plain_beside_zram_s);
        for point in &found.points {
            let zram = point.zram_s.map_or_else(|| "-".to_owned(), beside_zram);
            cells.extend([times(point.tombolo_s), zram]);
        }
        lines.push(row(&cells));
    }
    lines
}

/// Why cells of the table are empty.
fn not_measured(programs: &[Comparison]) -> Vec<String> {
    let reason = |found: &Comparison| {
        // Each limit may fail for a reason of its own; one is enough to know.
        let reason = found.points.iter().find_map(|point| point.zram_failure.as_ref())?;
        Some(format!("not measured: {} with swap on zram: {reason}", found.program))
    };
    programs.iter().filter_map(reason).collect()
}

fn multiple(times: f64) -> String {
    if times < 10.0 { format!("{times:.2}x") } else { format!("{times:.0}x") }
}

/// The finding, in sentences.
fn finding(findings: &Findings) -> String {
    let wrong: Vec<String> = findings
        .programs
        .iter()
        .filter(|found| !found.identical)
        .map(|found| match &found.failure {
            Some(failure) => format!("{} FAILED under Tombolo: {failure}.", found.program),
            None => format!("AN OUTPUT of {} DIFFERS from that of the run without Tombolo.", found.program),
        })
        .collect();
    if !wrong.is_empty() {
        return format!("{} This is a bug, please report it.", wrong.join(" "));
    }
    let half = |found: &Comparison| {
        let point = found.points.iter().find(|point| point.share == "a half")?;
        Some((found.program, point.tombolo_s / found.plain_s))
    };
    let mut times: Vec<(&str, f64)> = findings.programs.iter().filter_map(half).collect();
    times.sort_by(|one, other| one.1.total_cmp(&other.1));
    let best = times.first().map_or_else(String::new, |(program, times)| {
        let rest = match times {
            ..1.03 => "is as fast with half of its memory elsewhere".to_owned(),
            times => format!("takes {} as long with half of its memory elsewhere", multiple(*times)),
        };
        format!("{program} {rest}")
    });
    let worst = match times.last() {
        Some((program, times)) if findings.programs.len() > 1 => {
            format!(", {program} {} as long", multiple(*times))
        }
        _ => String::new(),
    };
    format!("Finding: {best}{worst}.")
}

#[cfg(test)]
mod tests {
    use super::super::compare::Point;
    use super::*;

    fn found(program: &'static str, plain_s: f64, zram_failure: Option<&str>) -> Comparison {
        let points = SHARES.map(|(share, quarters)| Point {
            share,
            local_bytes: quarters << 24,
            resident_peak_bytes: quarters << 24,
            bytes_in: 1,
            bytes_out: 1,
            tombolo_s: 22.0 / quarters as f64,
            zram_s: zram_failure.is_none().then_some(50.0),
            zram_excess_bytes: 0,
            zram_failure: zram_failure.map(str::to_owned),
        });
        Comparison {
            program,
            about: "a program",
            working_set_bytes: 64 << 20,
            plain_s,
            plain_beside_zram_s: plain_s,
            all_local_s: 2.1,
            points: points.into(),
            identical: true,
            failure: None,
        }
    }

    #[test]
    fn a_table_fits_a_terminal_and_says_what_was_not_measured() {
        let programs = [found("columns", 2.0, None), found("sort", 2.0, Some("killed"))];
        let lines = table(&programs);
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|line| line.len() <= 80), "{lines:#?}");
        for part in ["columns", "64 MiB", "2.00 s", "1.05x", "3.67x", "5.50x", "11x", "25x"] {
            assert!(lines[2].contains(part), "{part} is missing in {}", lines[2]);
        }
        assert!(lines[3].ends_with(" 11x      -"), "{}", lines[3]);
        assert_eq!(not_measured(&programs), ["not measured: sort with swap on zram: killed"]);
        // Titles end where their columns end.
        assert_eq!(lines[1].find("plain").map(|at| at + 5), lines[2].find("2.00 s").map(|at| at + 6));
    }

    #[test]
    fn a_finding_names_the_best_and_the_worst() {
        let mut findings = Findings {
            link: Link::Shm,
            identical: true,
            programs: vec![found("sort", 1.0, None), found("store", 10.8, None)],
            left_out: Vec::new(),
        };
        let text = finding(&findings);
        assert!(
            text.contains("store is as fast with half of its memory elsewhere") && text.contains("sort 11x"),
            "{text}"
        );
        findings.programs[1].plain_s = 5.0;
        assert!(finding(&findings).contains("store takes 2.20x as long"), "{}", finding(&findings));
        (findings.identical, findings.programs[0].identical) = (false, false);
        assert!(finding(&findings).contains("AN OUTPUT of sort DIFFERS"), "{}", finding(&findings));
        findings.programs[0].failure = Some("ended by signal 11".into());
        assert!(finding(&findings).contains("sort FAILED under Tombolo: ended"), "{}", finding(&findings));
    }
}
