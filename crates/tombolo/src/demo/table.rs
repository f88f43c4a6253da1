//! What the demo prints for people.

use super::{Findings, Row, SortFindings};
use crate::output;
use crate::size::Size;

/// Prints the tables.
pub fn print(findings: &Findings) {
    let link = match findings.link {
        super::Link::Shm => "shared memory",
        super::Link::Udp => "UDP",
    };
    output::line(&format!("Programs with all, a half and a quarter of their memory; the rest over {link}."));
    if let Some(sort) = &findings.sort {
        print_sort(sort);
    }
    output::line("");
    compared(findings).iter().for_each(|line| output::line(line));
    output::line("");
    for what in &findings.left_out {
        output::line(&format!("left out: {what}"));
    }
    output::line(if findings.identical && findings.sort.is_none() {
        "All that was read is what was written."
    } else if findings.identical {
        "All outputs are identical."
    } else {
        "AN OUTPUT DIFFERS from the run without Tombolo: this is a bug, please report it."
    });
}

/// How many times as long as a plain run each program took.
fn compared(findings: &Findings) -> Vec<String> {
    let row = |cells: [String; 8]| {
        const WIDTHS: [usize; 7] = [11, 9, 9, 12, 9, 15, 9];
        let mut line = format!("{:6}", cells[0]);
        for (cell, width) in cells[1..].iter().zip(WIDTHS) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        line.trim_end().to_owned()
    };
    let titles = ["", "working set", "plain", "all local", "one half", "zram", "one quarter", "zram"];
    let mut lines = vec![row(titles.map(str::to_owned))];
    for found in &findings.compared {
        let times = |time_s: Option<f64>| match time_s {
            Some(time_s) => format!("{:.2}x", time_s / found.plain_s),
            None => "-".to_owned(),
        };
        let [half, quarter] = &found.points;
        lines.push(row([
            found.program.to_owned(),
            Size(found.working_set_bytes).to_string(),
            seconds(found.plain_s),
            times(Some(found.all_local_s)),
            times(Some(half.tombolo_s)),
            times(half.zram_s),
            times(Some(quarter.tombolo_s)),
            times(quarter.zram_s),
        ]));
    }
    for found in &findings.compared {
        for reason in found.points.iter().filter_map(|point| point.zram_failure.as_ref()) {
            lines.push(format!("not measured: {} with swap on zram: {reason}", found.program));
        }
    }
    lines
}

fn print_sort(sort: &SortFindings) {
    output::line("");
    output::line(&format!(
        "GNU sort of {}, working set {}:",
        Size(sort.input_bytes),
        Size(sort.working_set_bytes),
    ));
    output::line("");
    let titles = ["", "local", "time", "slowdown", "faults", "median", "p99", "in", "out", "output"];
    output::line(&columns(&titles.map(str::to_owned)));
    let none = || "-".to_owned();
    output::line(&columns(&[
        "without Tombolo".into(),
        none(),
        seconds(sort.plain_s),
        "1.00x".into(),
        none(),
        none(),
        none(),
        none(),
        none(),
        none(),
    ]));
    for row in &sort.runs {
        output::line(&columns(&cells(row)));
    }
    output::line("");
    output::line("faults: on pages at the lender; median and p99: time to serve one of them.");
}

fn cells(row: &Row) -> [String; 10] {
    let served = |name: &str| match row.far_fault_ns[name].as_u64() {
        Some(time_ns) if row.far_faults > 0 => microseconds(time_ns),
        _ => "-".to_owned(),
    };
    [
        row.name.to_owned(),
        // The limit of the first run is larger than anything it uses.
        Size(row.local_bytes.min(row.resident_peak_bytes)).to_string(),
        seconds(row.elapsed_s),
        format!("{:.2}x", row.slowdown),
        row.far_faults.to_string(),
        served("median"),
        served("p99"),
        Size(row.bytes_in).to_string(),
        Size(row.bytes_out).to_string(),
        if row.identical { "identical" } else { "DIFFERS" }.to_owned(),
    ]
}

fn columns(cells: &[String; 10]) -> String {
    const WIDTHS: [usize; 9] = [8, 8, 9, 8, 8, 8, 8, 8, 10];
    let mut line = format!("{:15}", cells[0]);
    for (cell, width) in cells[1..].iter().zip(WIDTHS) {
        line.push_str(&format!("  {cell:>width$}"));
    }
    line.trim_end().to_owned()
}

fn seconds(time_s: f64) -> String {
    format!("{time_s:.2} s")
}

fn microseconds(time_ns: u64) -> String {
    format!("{:.1} us", time_ns as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::super::compare::{Comparison, Point};
    use super::*;

    #[test]
    fn columns_stand_under_each_other() {
        let titles = ["", "local", "time", "slowdown", "faults", "median", "p99", "in", "out", "output"];
        let cells = [
            "one quarter",
            "42 MiB",
            "12.34 s",
            "4.12x",
            "123456",
            "8.1 us",
            "99.9 us",
            "1.2 GiB",
            "1.1 GiB",
            "identical",
        ];
        let (titles, cells) = (columns(&titles.map(str::to_owned)), columns(&cells.map(str::to_owned)));
        assert_eq!(titles.find("time").map(|at| at + 4), cells.find("12.34 s").map(|at| at + 7));
        assert_eq!(titles.len(), cells.len() - "identical".len() + "identical".len());
    }

    #[test]
    fn what_zram_could_not_do_is_said_and_the_rest_stays() {
        let point = |tombolo_s, zram_s, failure: Option<&str>| Point {
            local_bytes: 1,
            tombolo_s,
            zram_s,
            zram_failure: failure.map(str::to_owned),
        };
        let findings = Findings {
            link: super::super::Link::Shm,
            identical: true,
            sort: None,
            compared: vec![Comparison {
                program: "scan",
                working_set_bytes: 1 << 20,
                plain_s: 2.0,
                all_local_s: 2.0,
                points: [point(3.0, Some(5.0), None), point(7.0, None, Some("killed"))],
            }],
            left_out: Vec::new(),
        };
        let lines = compared(&findings);
        assert_eq!(lines.len(), 3);
        for part in ["scan", "2.00 s", "1.00x", "1.50x", "2.50x", "3.50x", "-"] {
            assert!(lines[1].contains(part), "{part} is missing in {}", lines[1]);
        }
        assert_eq!(lines[2], "not measured: scan with swap on zram: killed");
    }
}
