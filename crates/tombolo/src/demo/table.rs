//! What the demo prints for people.

use super::{Findings, Row};
use crate::output;
use crate::size::Size;

/// Prints the table.
pub fn print(findings: &Findings) {
    let link = match findings.link {
        super::Link::Shm => "shared memory",
        super::Link::Udp => "UDP",
    };
    output::line(&format!(
        "GNU sort of {}, working set {}; the rest of its memory at another process, over {link}.",
        Size(findings.input_bytes),
        Size(findings.working_set_bytes),
    ));
    output::line("");
    let titles = ["", "local", "time", "slowdown", "faults", "median", "p99", "in", "out", "output"];
    output::line(&columns(&titles.map(str::to_owned)));
    let none = || "-".to_owned();
    output::line(&columns(&[
        "without Tombolo".into(),
        none(),
        seconds(findings.plain_s),
        "1.00x".into(),
        none(),
        none(),
        none(),
        none(),
        none(),
        none(),
    ]));
    for row in &findings.runs {
        output::line(&columns(&cells(row)));
    }
    output::line("");
    output::line("faults: on pages at the lender; median and p99: time to serve one of them.");
    output::line(if findings.identical {
        "All outputs are identical."
    } else {
        "AN OUTPUT DIFFERS from the run without Tombolo: this is a bug, please report it."
    });
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
}
