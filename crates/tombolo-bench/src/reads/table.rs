//! The outcome as people read it.

use super::far::ByFault;
use super::{Outcome, Row};
use tombolo_app::median;

/// One racer's line.
pub fn line(row: &Row) -> String {
    let mut line =
        format!("{:10} {} thread{}:", row.racer, row.threads, if row.threads == 1 { "" } else { "s" });
    if let (Some(wall_us), Some(cpu_us)) = (median(&row.wall_us), median(&row.cpu_us)) {
        line += &format!(" wall {wall_us:.2} µs, CPU {cpu_us:.2} µs a read");
        if row.wall_us.len() > 1 {
            line += &format!(" (medians of {})", row.wall_us.len());
        }
    }
    let by_fault = |figure: fn(&ByFault) -> f64| median(&row.handlers.iter().map(figure).collect::<Vec<_>>());
    if let (Some(wakes), Some(calls), Some(switches)) =
        (by_fault(|by| by.wakes), by_fault(|by| by.calls), by_fault(|by| by.switches))
    {
        line += &format!("; a fault: {wakes:.2} wakes, {calls:.2} calls, {switches:.2} switches of handlers");
    }
    for reason in &row.failures {
        line += &format!(" not measured: {reason}");
    }
    line
}

/// The whole table.
pub fn lines(outcome: &Outcome) -> Vec<String> {
    let mut lines: Vec<String> = outcome.rows.iter().map(line).collect();
    let figure = |row: &Row| Some((median(&row.wall_us)?, median(&row.cpu_us)?));
    for row in outcome.rows.iter().filter(|row| row.racer != "bare") {
        let bare = outcome.rows.iter().find(|other| other.racer == "bare" && other.threads == row.threads);
        if let (Some((wall, cpu)), Some((bare_wall, bare_cpu))) = (figure(row), bare.and_then(figure)) {
            lines.push(format!(
                "{:10} {} threads / bare: wall {:.2}, CPU {:.2}",
                row.racer,
                row.threads,
                wall / bare_wall,
                cpu / bare_cpu
            ));
        }
    }
    lines.push(format!(
        "before the runs others kept up to {:.2} processors busy; CPU is that of the whole machine",
        outcome.others_busy_processors
    ));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_said_beside_what_did_not() {
        let row = |racer: &str, wall_us: &[f64], failures: &[&str]| Row {
            racer: racer.into(),
            threads: 2,
            wall_us: wall_us.to_vec(),
            cpu_us: wall_us.iter().map(|wall| wall * 2.0).collect(),
            handlers: vec![
                ByFault { wakes: 0.5, calls: 2.0, switches: 1.0 };
                usize::from(racer == "tombolo")
            ],
            failures: failures.iter().map(|&reason| reason.to_owned()).collect(),
        };
        let outcome = Outcome {
            processors: 2,
            kernel: "6.18".into(),
            bytes: 256 << 20,
            local_bytes: 64 << 20,
            seconds: 1.0,
            rounds: 3,
            others_busy_processors: 0.5,
            rows: vec![
                row("bare", &[5.0, 4.0, 9.0], &[]),
                row("zram", &[], &["needs root"]),
                row("tombolo", &[6.0, 6.0], &["it crashed"]),
            ],
        };
        let text = lines(&outcome).join("\n");
        for part in [
            "bare       2 threads: wall 5.00 µs, CPU 10.00 µs a read (medians of 3)",
            "zram       2 threads: not measured: needs root",
            "wall 6.00 µs, CPU 12.00 µs a read (medians of 2); a fault: 0.50 wakes, 2.00 calls, 1.00 switches of handlers not measured: it crashed",
            "tombolo    2 threads / bare: wall 1.20, CPU 1.20",
            "0.50 processors",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains("zram       2 threads / bare"));
    }
}
