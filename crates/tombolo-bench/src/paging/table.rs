//! The outcome as people read it.

use super::Outcome;

fn microseconds(nanoseconds: f64) -> String {
    format!("{:.2} µs", nanoseconds / 1000.0)
}

/// The table's lines.
pub fn lines(outcome: &Outcome) -> Vec<String> {
    let mut lines = vec![outcome.heading(), String::new()];
    let cpu = "machine CPU";
    lines
        .push(format!("{:40} {:>11} {:>11} {:>11} {cpu:>11} {:>9}", "", "median", "99 %", "mean", "samples"));
    for (row, summary) in &outcome.rows {
        lines.push(format!(
            "{:40} {:>11} {:>11} {:>11} {:>11} {:>9}",
            row.title(),
            microseconds(summary.median_ns),
            microseconds(summary.p99_ns),
            microseconds(summary.mean_ns),
            summary.cpu_ns.map_or_else(|| "-".to_owned(), microseconds),
            summary.count,
        ));
    }
    lines.push(String::new());
    lines.push(format!("{:40} {:>11} {:>11}", "ratio (faults: medians; reads: means)", "measured", "target"));
    for target in &outcome.targets {
        let verdict = if target.reached { "reached" } else { "NOT REACHED" };
        lines.push(format!(
            "{:40} {:>11} {:>11}  {verdict}",
            target.name,
            format!("{:.2}", target.ratio),
            format!("<= {}", target.target)
        ));
    }
    lines.extend(outcome.not_measured.iter().map(|what| format!("not measured: {what}")));
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{Row, Target};
    use super::*;
    use crate::summary::Summary;

    #[test]
    fn what_is_missing_is_said() {
        let summary = Summary { count: 3, median_ns: 6500.0, p99_ns: 9000.0, mean_ns: 6700.0, cpu_ns: None };
        let outcome = Outcome {
            kernel: "6.18".into(),
            processors: 2,
            passes: 3,
            reads_local_bytes: 64 << 20,
            reads_area_bytes: 256 << 20,
            zram_algorithm: None,
            cgroup_base_bytes: None,
            rows: BTreeMap::from([(Row::Floor, summary)]),
            targets: vec![Target { name: "one / other", ratio: 1.6, target: 1.5, reached: false }],
            not_measured: vec!["zram: no root".into()],
        };
        let text = lines(&outcome).join("\n");
        for part in ["6.50 µs", "9.00 µs", "NOT REACHED", "not measured: zram: no root"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
