//! What is compared, and how it should come out.

use serde_json::{Value, json};

use super::super::median;
use super::Found;
use super::curve::Curve;

/// A figure and the most that it should be.
#[derive(Debug, PartialEq)]
pub struct Target {
    /// What is divided by what, or measured.
    pub name: String,
    /// What was measured.
    pub measured: f64,
    /// The most that it should be.
    pub target: f64,
    /// Behind both figures; nothing for ratios.
    pub unit: &'static str,
}

impl Target {
    fn ratio(name: impl Into<String>, measured: f64, target: f64) -> Self {
        Self { name: name.into(), measured, target, unit: "" }
    }

    fn reached(&self) -> bool {
        self.measured <= self.target
    }

    fn verdict(&self) -> &'static str {
        if self.reached() { "reached" } else { "**not reached**" }
    }

    /// A row of the page.
    pub fn row(&self) -> String {
        let Self { name, measured, target, unit } = self;
        format!("| {name} | {measured:.2}{unit} | ≤ {target}{unit} | {} |", self.verdict())
    }

    /// A line for the terminal.
    pub fn line(&self) -> String {
        let Self { name, measured, target, unit } = self;
        let verdict = if self.reached() { "reached" } else { "NOT REACHED" };
        format!("{name}: {measured:.2}{unit} (<= {target}{unit}: {verdict})")
    }

    /// For other programs.
    pub fn json(&self) -> Value {
        json!({
            "name": self.name,
            "measured": self.measured,
            "target": self.target,
            "unit": self.unit.trim(),
            "reached": self.reached(),
        })
    }
}

/// The median of a row of `tombolo-bench reads`, in microseconds.
pub fn microseconds(row: &Value, field: &str) -> Option<f64> {
    median(&row[field].as_array()?.iter().filter_map(Value::as_f64).collect::<Vec<_>>())
}

/// The row of a racer.
pub fn row<'a>(reads: &'a Value, racer: &str, threads: u64) -> Option<&'a Value> {
    reads["rows"].as_array()?.iter().find(|row| row["racer"] == racer && row["threads"] == threads)
}

/// Numbers of threads, in the order of the rows.
pub fn threads(reads: &Value) -> Vec<u64> {
    let mut all: Vec<u64> =
        reads["rows"].as_array().into_iter().flatten().filter_map(|row| row["threads"].as_u64()).collect();
    all.dedup();
    all
}

/// A figure of a row.
type Figure = fn(&Value) -> Option<f64>;

/// What many handlers may not make worse, and how it is found.
const MANY: [(&str, Figure); 2] =
    [("CPU", |row| microseconds(row, "cpu_us")), ("wakes a fault", |row| by_fault(row, "wakes"))];

/// The median of what handlers did for each fault.
pub fn by_fault(row: &Value, field: &str) -> Option<f64> {
    median(&row["handlers"].as_array()?.iter().filter_map(|run| run[field].as_f64()).collect::<Vec<_>>())
}

fn of_reads(reads: &Value, targets: &mut Vec<Target>) {
    for threads in threads(reads) {
        for (field, what) in [("wall_us", "wall"), ("cpu_us", "CPU")] {
            let figure = |racer| microseconds(row(reads, racer, threads)?, field);
            if let (Some(ours), Some(bare)) = (figure("tombolo"), figure("bare")) {
                let name = format!("random reads, not pinned, {threads} threads: {what} / bare pager");
                targets.push(Target::ratio(name, ours / bare, 1.15));
            }
        }
        let wall = |racer| microseconds(row(reads, racer, threads)?, "wall_us");
        if let (Some(ours), Some(zram)) = (wall("tombolo"), wall("zram")) {
            let name = format!("random reads, not pinned, {threads} threads: wall / zram");
            targets.push(Target::ratio(name, ours / zram, 1.2));
        }
        for (what, figure) in MANY {
            let figure = |racer| figure(row(reads, racer, threads)?);
            if let (Some(many), Some(ours)) = (figure("many"), figure("tombolo")) {
                let name = format!(
                    "random reads, not pinned, {threads} threads: {what}, 16 handlers / as many as processors"
                );
                targets.push(Target::ratio(name, many / ours, 1.1));
            }
        }
    }
}

fn of_curve(curve: &Curve, targets: &mut Vec<Target>) {
    // Its slowdown within its limit, and its time beside zram by the part that is local.
    let (within, beside_zram): (f64, &[(u64, f64)]) = match curve.name {
        "sort" => (1.05, &[(50, 0.9), (25, 0.9)]),
        "redis" => (1.05, &[]),
        "duckdb" => (1.1, &[(50, 1.1)]),
        "churn" => (1.1, &[]),
        _ => return,
    };
    let name = curve.name;
    if let Some(slowdown) = curve.slowdown(&curve.within) {
        targets.push(Target::ratio(format!("{name} within its limit / plain"), slowdown, within));
    }
    if matches!(name, "duckdb" | "churn") {
        targets.extend(
            curve
                .cpu_within()
                .map(|ratio| Target::ratio(format!("{name} within its limit / plain, CPU"), ratio, within)),
        );
        targets.extend(curve.faults_a_page.map(|faults| {
            Target::ratio(format!("{name} within its limit: faults a fresh page"), faults, 0.03125)
        }));
    }
    for (percent, most) in beside_zram {
        if let Some(ratio) = curve.to_kernel(*percent) {
            targets.push(Target::ratio(format!("{name}, {percent} % local / zram"), ratio, *most));
        }
    }
}

/// All targets whose figures were measured.
pub fn all(found: &Found) -> Vec<Target> {
    let mut targets = Vec::new();
    for target in found.faults.iter().flat_map(|faults| faults["targets"].as_array()).flatten() {
        if let (Some(name), Some(ratio), Some(most)) =
            (target["name"].as_str(), target["ratio"].as_f64(), target["target"].as_f64())
        {
            targets.push(Target::ratio(name.trim(), ratio, most));
        }
    }
    if let Ok(reads) = &found.reads {
        of_reads(reads, &mut targets);
    }
    let beyond_s = found.start.as_ref().ok().and_then(|start| start["beyond_connecting_s"].as_f64());
    if let Some(beyond_s) = beyond_s {
        let name = "starting and ending `true`, beyond connecting".to_owned();
        targets.push(Target { name, measured: beyond_s * 1000.0, target: 50.0, unit: " ms" });
    }
    found.curves.iter().flatten().for_each(|curve| of_curve(curve, &mut targets));
    targets
}

#[cfg(test)]
mod tests {
    use super::super::curve::Point;
    use super::super::workload::{Cost, Unit};
    use super::*;

    #[test]
    fn what_was_measured_is_compared_and_nothing_else() {
        let racer = |name: &str, threads: u64, us: &[f64]| json!({ "racer": name, "threads": threads, "wall_us": us, "cpu_us": us });
        let rows = [
            racer("bare", 1, &[5.0, 4.0, 9.0]),
            racer("tombolo", 1, &[6.0]),
            racer("bare", 8, &[]),
            racer("tombolo", 8, &[6.0]),
        ];
        let cost = |wall| Cost { wall, cpu: wall };
        let point = |percent, tombolo| Point {
            percent,
            local_bytes: 1,
            tombolo,
            kernel: Ok(cost(4.0)),
            kernel_retries: 0,
            kernel_limit_bytes: 1,
            kernel_relieved: Default::default(),
        };
        let found = Found {
            faults: Ok(json!({ "targets": [{ "name": "  a / b", "ratio": 1.0, "target": 1.1 }] })),
            reads: Ok(json!({ "rows": rows })),
            start: Ok(json!({ "beyond_connecting_s": 0.06 })),
            forks: Err("not asked for".to_owned()),
            curves: vec![
                Err("redis: none".into()),
                Ok(Curve {
                    name: "sort",
                    title: "a title",
                    unit: Unit::Seconds,
                    working_set_bytes: 1,
                    base_bytes: 1,
                    plain: cost(1.0),
                    huge: Ok(cost(1.0)),
                    within: Ok(cost(1.1)),
                    faults_a_page: None,
                    points: vec![point(50, Ok(cost(3.0))), point(25, Err("killed".into()))],
                }),
            ],
        };
        let lines: Vec<String> = all(&found).iter().map(Target::line).collect();
        assert_eq!(
            lines,
            [
                "a / b: 1.00 (<= 1.1: reached)",
                "random reads, not pinned, 1 threads: wall / bare pager: 1.20 (<= 1.15: NOT REACHED)",
                "random reads, not pinned, 1 threads: CPU / bare pager: 1.20 (<= 1.15: NOT REACHED)",
                "starting and ending `true`, beyond connecting: 60.00 ms (<= 50 ms: NOT REACHED)",
                "sort within its limit / plain: 1.10 (<= 1.05: NOT REACHED)",
                "sort, 50 % local / zram: 0.75 (<= 0.9: reached)",
            ]
        );
        let nothing = || Err("not asked for".to_owned());
        let found = Found {
            faults: nothing(),
            reads: nothing(),
            start: nothing(),
            forks: nothing(),
            curves: Vec::new(),
        };
        assert_eq!(all(&found), []);
    }
}
