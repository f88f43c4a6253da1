//! The part of `bench/RESULTS.md`, and `bench/paging.json`.

use std::fmt::Write;

use serde_json::{Value, json};

use super::curve::Curve;
use super::surroundings::Surroundings;

/// Titles of the figures, by their names in the JSON; the order is the table's.
const ROWS: [(&str, &str); 8] = [
    ("floor", "floor: bare userfaultfd, 4 KiB copied"),
    ("fault_shm", "Tombolo fault, shm"),
    ("fault_udp", "Tombolo fault, UDP"),
    ("round_trip", "bare UDP round trip, 4 KiB back"),
    ("reads_shm", "random reads, Tombolo shm"),
    ("reads_zram", "random reads, kernel swap on zram"),
    ("reads_shm_half", "random reads, half-compressible, Tombolo shm"),
    ("reads_zram_half", "random reads, half-compressible, kernel swap on zram"),
];

/// Everything, for other programs.
pub fn json(figures: &Value, curves: &[Curve]) -> Value {
    let cost = |cost: &Result<f64, String>| match cost {
        Ok(cost) => json!(cost),
        Err(error) => json!({ "error": error }),
    };
    let curves: Vec<Value> = curves
        .iter()
        .map(|curve| {
            let points: Vec<Value> = curve
                .points
                .iter()
                .map(|point| {
                    json!({
                        "local_percent": point.percent,
                        "local_bytes": point.local_bytes,
                        "tombolo": cost(&point.tombolo),
                        "zram": cost(&point.kernel),
                        "zram_runs_repeated": point.kernel_retries,
                        "zram_beyond_limit_bytes": point.kernel_relieved_bytes,
                    })
                })
                .collect();
            json!({
                "name": curve.name,
                "title": curve.title,
                "unit": format!("{:?}", curve.unit).to_lowercase(),
                "working_set_bytes": curve.working_set_bytes,
                "base_bytes": curve.base_bytes,
                "plain": curve.plain,
                "points": points,
            })
        })
        .collect();
    json!({ "paging": figures, "curves": curves })
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

fn paging_table(page: &mut String, figures: &Value) {
    let microseconds = |value: &Value| format!("{:.2}", value.as_f64().unwrap_or(f64::NAN) / 1000.0);
    let _ = writeln!(page, "| µs | median | 99 % | mean |\n| --- | ---: | ---: | ---: |");
    for (name, title) in ROWS {
        let row = &figures["rows"][name];
        if row.is_object() {
            let [median, high, mean] =
                ["median_ns", "p99_ns", "mean_ns"].map(|field| microseconds(&row[field]));
            let _ = writeln!(page, "| {title} | {median} | {high} | {mean} |");
        }
    }
    let _ = writeln!(page, "\n| ratio | measured | target | |\n| --- | ---: | ---: | --- |");
    for target in figures["targets"].as_array().into_iter().flatten() {
        let number = |field: &str| target[field].as_f64().unwrap_or(f64::NAN);
        let name = target["name"].as_str().unwrap_or_default().trim();
        let verdict = if target["reached"] == true { "reached" } else { "not reached" };
        let _ = writeln!(page, "| {name} | {:.2} | ≤ {:.1} | {verdict} |", number("ratio"), number("target"));
    }
    for what in figures["not_measured"].as_array().into_iter().flatten() {
        let _ = writeln!(page, "\nNot measured: {}.", what.as_str().unwrap_or_default());
    }
}

fn curve_section(page: &mut String, curve: &Curve) {
    let _ = writeln!(page, "\n#### {}\n\n![slowdown of {}]({}.svg)\n", curve.title, curve.name, curve.name);
    let _ = writeln!(
        page,
        "Working set {}, beside it {}; a plain run costs {}.\n",
        mebibytes(curve.working_set_bytes),
        mebibytes(curve.base_bytes),
        curve.unit.show(curve.plain)
    );
    let _ = writeln!(page, "| local | Tombolo, shm | slowdown | kernel swap on zram | slowdown |");
    let _ = writeln!(page, "| ---: | ---: | ---: | ---: | ---: |");
    for point in &curve.points {
        let cells = |cost: &Result<f64, String>| match cost {
            Ok(cost) => format!("{} | {:.2}", curve.unit.show(*cost), cost / curve.plain),
            Err(error) => format!("{} | -", error.replace('|', "/").replace('\n', " ")),
        };
        let _ =
            writeln!(page, "| {} % | {} | {} |", point.percent, cells(&point.tombolo), cells(&point.kernel));
    }
    let retries: u32 = curve.points.iter().map(|point| point.kernel_retries).sum();
    if retries > 0 {
        let _ = writeln!(
            page,
            "\nThe kernel found nothing to reclaim in {retries} run(s) in the cgroup; they were made again."
        );
    }
    for point in curve.points.iter().filter(|point| point.kernel_relieved_bytes > 0) {
        let _ = writeln!(
            page,
            "\nAt {} % it did so each time: the run that counts had up to {} more than the limit, for moments.",
            point.percent,
            mebibytes(point.kernel_relieved_bytes)
        );
    }
    let verdict =
        curve.half().and_then(|point| Some((point.tombolo.as_ref().ok()?, point.kernel.as_ref().ok()?)));
    let verdict = match verdict {
        Some((ours, theirs)) if ours < theirs => format!("yes ({:.2} of its cost)", ours / theirs),
        Some((ours, theirs)) => format!("no ({:.2} of its cost)", ours / theirs),
        None => "not measured".to_owned(),
    };
    let _ = writeln!(page, "\nFaster than zram at 50 % local: **{verdict}**.");
}

/// The page.
pub fn page(figures: &Value, curves: &[Curve], surroundings: &Surroundings) -> String {
    let mut page = String::from(HEADING);
    let _ = writeln!(
        page,
        "A virtual machine with {} processors, Linux {}; zram compresses with {}.\n",
        figures["processors"],
        figures["kernel"].as_str().unwrap_or("?"),
        figures["zram_algorithm"].as_str().unwrap_or("nothing: it was not there"),
    );
    page.push_str("### Faults and random reads\n\n");
    paging_table(&mut page, figures);
    let bytes = |field: &str| mebibytes(figures[field].as_u64().unwrap_or(0));
    let _ = writeln!(
        page,
        "\nMedians of {} passes. Random reads: {} with {} local, each page checked.",
        figures["passes"],
        bytes("reads_area_bytes"),
        bytes("reads_local_bytes")
    );
    page.push_str(HOW_FIGURES);
    page.push_str("\n### Slowdown curves\n");
    if let Some(reason) = surroundings.no_swap() {
        let _ = writeln!(page, "\nKernel swap on zram was not measured: {reason}.");
    }
    for curve in curves {
        curve_section(&mut page, curve);
    }
    page.push_str(HOW_CURVES);
    page
}

const HEADING: &str = "## Paging\n\nWritten by `cargo xtask bench paging`.\n\n";

const HOW_FIGURES: &str = "
- *Floor*: one handler thread on each processor, pinned, in another process than the faulting thread, each with a poll
  set of its own; it reads the event and copies 4 KiB from shared memory, and nothing else. The faulting thread is pinned
  to the first processor, and times one load. Tombolo's faults are timed by the same code.
- *Tombolo fault*: there is room for the page, so nothing is evicted meanwhile.
- *Bare round trip*: 48 bytes out and 4 KiB back on loopback; the asking side polls, the answering process, on the last
  processor, polls for 60 µs and sleeps then.
- *Random reads*: uniformly random pages, hits included, evictions included. Their ratio is one of means, because a
  program waits for the sum. Kernel swap runs the same program in a memory cgroup that may use the same bytes and, in
  addition, what the program was measured to use beside the area. Evictions of the kernel are made by the program's own
  thread, those of Tombolo mostly by a thread on another processor.
";

const HOW_CURVES: &str = "
### How the curves are made

The *working set* is the most that a program's heap and large mappings take with plenty of local memory. Tombolo gets a
part of it as `--local`. Kernel swap gets the same bytes as its cgroup's limit and, so that neither side is favoured,
what the program uses beside its heap in addition (its peak in a cgroup with plenty of memory, less the working set).
Both keep the rest in this machine's memory outside of the limit: a lender's over shm, or zram's. Costs are medians of
the runs; ways of running take turns; a run of more than 20 s is not repeated. Now and then the kernel finds nothing to
reclaim in the cgroup, although swap is free, and would kill the program. Here it waits instead, and the limit is raised
in steps of 256 KiB, each for as long as the kernel needs to get below it again; such runs are repeated, and count only
where there is no other.
";
