//! The part of `bench/RESULTS.md`, and `bench/paging.json`.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Found;
use super::curve::Curve;
use super::targets::{self, microseconds, row, threads};
use super::workload::Cost;

/// Titles of the figures, by their names in the JSON; the order is the table's.
const ROWS: [(&str, &str); 16] = [
    ("floor", "floor: bare userfaultfd, 4 KiB copied"),
    ("fault_shm", "Tombolo fault, shm"),
    ("fault_udp", "Tombolo fault, UDP"),
    ("round_trip", "bare UDP round trip, 4 KiB back"),
    ("reads_shm", "random reads, Tombolo shm"),
    ("reads_zram", "random reads, kernel swap on zram"),
    ("reads_shm_half", "random reads, half-compressible, Tombolo shm"),
    ("reads_zram_half", "random reads, half-compressible, kernel swap on zram"),
    ("mixed_shm", "random reads and writes, Tombolo shm"),
    ("mixed_zram", "random reads and writes, kernel swap on zram"),
    ("fault_shm_twice", "Tombolo fault, shm, two copies"),
    ("fault_udp_twice", "Tombolo fault, UDP, two copies"),
    ("writes_shm", "pages written and evicted, shm"),
    ("writes_shm_twice", "pages written and evicted, shm, two copies"),
    ("writes_udp", "pages written and evicted, UDP"),
    ("writes_udp_twice", "pages written and evicted, UDP, two copies"),
];

fn cost_json(cost: &Result<Cost, String>) -> Value {
    match cost {
        Ok(cost) => json!({ "wall": cost.wall, "cpu": cost.cpu }),
        Err(error) => json!({ "error": error }),
    }
}

fn curve_json(curve: &Curve) -> Value {
    let points: Vec<Value> = curve
        .points
        .iter()
        .map(|point| {
            json!({
                "local_percent": point.percent,
                "local_bytes": point.local_bytes,
                "tombolo": cost_json(&point.tombolo),
                "zram": cost_json(&point.kernel),
                "zram_runs_repeated": point.kernel_retries,
                "zram_beyond_limit_bytes": point.kernel_relieved.most_bytes,
                "zram_beyond_limit_mean_bytes": point.kernel_relieved.mean_bytes,
            })
        })
        .collect();
    json!({
        "name": curve.name,
        "title": curve.title,
        "unit": format!("{:?}", curve.unit).to_lowercase(),
        "working_set_bytes": curve.working_set_bytes,
        "base_bytes": curve.base_bytes,
        "plain": cost_json(&Ok(curve.plain)),
        "plain_with_huge_pages": cost_json(&curve.huge),
        "within_limit": cost_json(&curve.within),
        "faults_a_fresh_page_within_limit": curve.faults_a_page,
        "points": points,
    })
}

/// Everything, for other programs.
pub fn json(found: &Found) -> Value {
    let part = |part: &Result<Value, String>| match part {
        Ok(value) => value.clone(),
        Err(error) => json!({ "error": error }),
    };
    let curve = |curve: &Result<Curve, String>| match curve {
        Ok(curve) => curve_json(curve),
        Err(error) => json!({ "error": error }),
    };
    json!({
        "paging": part(&found.faults),
        "reads": part(&found.reads),
        "start": part(&found.start),
        "forks": part(&found.forks),
        "curves": found.curves.iter().map(curve).collect::<Vec<_>>(),
        "targets": targets::all(found).iter().map(targets::Target::json).collect::<Vec<_>>(),
    })
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

/// A reason on one line, as a cell or a line of its own.
fn plain_text(reason: &str) -> String {
    reason.trim().replace('|', "/").replace('\n', " ")
}

fn faults_section(page: &mut String, faults: &Value) {
    let us =
        |value: &Value| value.as_f64().map_or_else(|| "-".to_owned(), |ns| format!("{:.2}", ns / 1000.0));
    let _ = writeln!(page, "| µs | median | 99 % | mean | machine CPU |");
    let _ = writeln!(page, "| --- | ---: | ---: | ---: | ---: |");
    for (name, title) in ROWS {
        let row = &faults["rows"][name];
        if row.is_object() {
            let [median, high, mean, cpu] =
                ["median_ns", "p99_ns", "mean_ns", "cpu_ns"].map(|field| us(&row[field]));
            let _ = writeln!(page, "| {title} | {median} | {high} | {mean} | {cpu} |");
        }
    }
    for what in faults["not_measured"].as_array().into_iter().flatten() {
        let _ = writeln!(page, "\nNot measured: {}.", plain_text(what.as_str().unwrap_or_default()));
    }
    let bytes = |field: &str| mebibytes(faults[field].as_u64().unwrap_or(0));
    let _ = writeln!(
        page,
        "\nMedians of {} passes. Random reads: {} with {} local, each page checked.",
        faults["passes"],
        bytes("reads_area_bytes"),
        bytes("reads_local_bytes")
    );
    if let Some(share) = floor_by_swap(faults) {
        let _ = writeln!(
            page,
            "\nWhat no pager in user space goes below: the floor's mean, for the part of the reads that finds its page \
             far, is {share:.2} of what a read costs with zram, evictions not counted.",
        );
    }
    page.push_str(HOW_FIGURES);
}

/// What random reads would cost if each fault took what the floor takes, and nothing else took time: by what they cost
/// with the kernel's swap.
fn floor_by_swap(faults: &Value) -> Option<f64> {
    let mean = |name: &str| faults["rows"][name]["mean_ns"].as_f64();
    let bytes = |field: &str| faults[field].as_f64();
    let far = 1.0 - bytes("reads_local_bytes")? / bytes("reads_area_bytes")?;
    Some(mean("floor")? * far / mean("reads_zram")?)
}

/// Racers of the random reads that are not pinned, and their titles.
const RACERS: [(&str, &str); 4] = [
    ("zram", "kernel swap on zram"),
    ("tombolo", "Tombolo, shm"),
    ("many", "Tombolo, shm, 16 fault handlers"),
    ("bare", "bare pager"),
];

fn reads_section(page: &mut String, reads: &Value) {
    let _ = write!(page, "| µs a read, wall / machine CPU |");
    for threads in threads(reads) {
        let _ = write!(page, " {threads} thread{} |", if threads == 1 { "" } else { "s" });
    }
    let _ = writeln!(page, "\n| --- |{}", " ---: |".repeat(threads(reads).len()));
    let mut failures = Vec::new();
    for (racer, title) in RACERS {
        let _ = write!(page, "| {title} |");
        for threads in threads(reads) {
            let found = row(reads, racer, threads);
            let figure = |field| found.and_then(|row| microseconds(row, field));
            let _ = match (figure("wall_us"), figure("cpu_us")) {
                (Some(wall), Some(cpu)) => write!(page, " {wall:.2} / {cpu:.2} |"),
                _ => write!(page, " - |"),
            };
            let reasons = found.and_then(|row| row["failures"].as_array()).into_iter().flatten();
            failures.extend(reasons.map(|reason| (title, threads, reason.as_str().unwrap_or_default())));
        }
        page.push('\n');
    }
    handlers_table(page, reads);
    for (title, threads, reason) in failures {
        let _ =
            writeln!(page, "\nNot measured: a run of {title}, threads {threads}: {}.", plain_text(reason));
    }
    let bytes = |field: &str| mebibytes(reads[field].as_u64().unwrap_or(0));
    let _ = writeln!(
        page,
        "\n{} with {} local, medians of {} runs of {} s, by turns. Before the runs, others kept up to {:.2} \
         processors busy.",
        bytes("bytes"),
        bytes("local_bytes"),
        reads["rounds"],
        reads["seconds"],
        reads["others_busy_processors"].as_f64().unwrap_or(f64::NAN),
    );
    page.push_str(HOW_READS);
    page.push_str(WHAT_STOPS_READS);
}

/// What handlers did for each fault.
fn handlers_table(page: &mut String, reads: &Value) {
    let mut rows = String::new();
    for (racer, title) in RACERS {
        for threads in threads(reads) {
            let found = row(reads, racer, threads);
            let figure = |field| found.and_then(|row| targets::by_fault(row, field));
            if let (Some(wakes), Some(calls), Some(switches)) =
                (figure("wakes"), figure("calls"), figure("switches"))
            {
                let _ = writeln!(rows, "| {title} | {threads} | {wakes:.2} | {calls:.2} | {switches:.2} |");
            }
        }
    }
    if !rows.is_empty() {
        page.push_str(
            "\n| a fault | threads | wakes of handlers | calls for faults | switches of handlers |\n",
        );
        page.push_str("| --- | ---: | ---: | ---: | ---: |\n");
        page.push_str(&rows);
    }
}

fn start_section(page: &mut String, start: &Value) {
    let milliseconds = |field: &str| start[field].as_f64().unwrap_or(f64::NAN) * 1000.0;
    let _ = writeln!(
        page,
        "`true` takes {:.1} ms (CPU {:.1} ms) plainly, and under `tombolo run` {:.1} ms beyond connecting, \
         which takes {:.1} ms (memory is borrowed as it is needed); CPU with it: {:.1} ms. Medians of {} runs, CPU times their means; by turns.",
        milliseconds("plain_s"),
        milliseconds("plain_cpu_s"),
        milliseconds("beyond_connecting_s"),
        milliseconds("connecting_s"),
        milliseconds("with_connecting_cpu_s"),
        start["rounds"],
    );
}

fn forks_section(page: &mut String, forks: &Value) {
    let _ = writeln!(
        page,
        "| | dump | 64 writes meanwhile, at most | a write beside a sleeping child | at most | all | local at most |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    let mut failures = Vec::new();
    for row in forks["rows"].as_array().into_iter().flatten() {
        let name = row["racer"].as_str().unwrap_or_default();
        let runs = row["runs"].as_array().map_or(&[][..], Vec::as_slice);
        let of = |field: &str| runs.iter().filter_map(|run| run[field].as_f64()).collect::<Vec<_>>();
        let middle = |field: &str| tombolo_app::median(&of(field)).unwrap_or(f64::NAN);
        let worst = |field: &str| of(field).into_iter().fold(f64::NAN, f64::max);
        for failure in row["failures"].as_array().into_iter().flatten() {
            let reason = plain_text(failure.as_str().unwrap_or_default());
            failures.push(format!("\nNot measured: a run of {name}: {reason}.\n"));
        }
        if runs.is_empty() {
            continue;
        }
        let peaks = row["peak_bytes"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        let _ = writeln!(
            page,
            "| {name} | {:.2} s | {:.1} ms | {:.2} µs | {:.1} ms | {:.2} s | {} |",
            middle("dump_s"),
            worst("dump_worst_ms"),
            middle("sleeping_us"),
            worst("sleeping_worst_ms"),
            middle("wall_s"),
            peaks.max().map_or_else(|| "-".to_owned(), mebibytes),
        );
    }
    page.push_str(&failures.concat());
    let bytes = |field: &str| mebibytes(forks[field].as_u64().unwrap_or(0));
    let _ = writeln!(
        page,
        "\nA store of {} with {} local forks a child that reads all of it, as redis does to write itself down, and writes random pages \
         meanwhile; then it forks one that sleeps, and writes for 2 s, which are among all. What zram had beyond its limit counts as local. Medians and, of waits, the longest of {} runs. The child checks that it \
         finds what was there at the fork, and the parent what it has written.",
        bytes("bytes"),
        bytes("local_bytes"),
        forks["rounds"],
    );
}

fn targets_section(page: &mut String, found: &Found) {
    let _ = writeln!(page, "| compared | measured | target | |\n| --- | ---: | ---: | --- |");
    for target in targets::all(found) {
        let _ = writeln!(page, "{}", target.row());
    }
}

fn curve_section(page: &mut String, curve: &Curve) {
    let _ = writeln!(page, "\n#### {}\n\n![slowdown of {}]({}.svg)\n", curve.title, curve.name, curve.name);
    let _ = writeln!(
        page,
        "Working set {}, beside it {}; a plain run costs {} (CPU {}), with huge pages for every program {}. Within its limit it gets its \
         fresh pages by {:.3} faults a page.\n",
        mebibytes(curve.working_set_bytes),
        mebibytes(curve.base_bytes),
        curve.unit.show(curve.plain.wall),
        curve.unit.show(curve.plain.cpu),
        match &curve.huge {
            Ok(huge) => format!("{} (CPU {})", curve.unit.show(huge.wall), curve.unit.show(huge.cpu)),
            Err(error) => format!("not measured ({})", plain_text(error)),
        },
        curve.faults_a_page.unwrap_or(0.0)
    );
    let _ =
        writeln!(page, "| local | Tombolo, shm | slowdown | CPU | kernel swap on zram | slowdown | CPU |");
    let _ = writeln!(page, "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let cells = |cost: &Result<Cost, String>| match cost {
        Ok(cost) => format!(
            "{} | {:.2} | {}",
            curve.unit.show(cost.wall),
            cost.wall / curve.plain.wall,
            curve.unit.show(cost.cpu)
        ),
        Err(error) => format!("{} | - | -", plain_text(error)),
    };
    let _ = writeln!(page, "| within the limit | {} | - | - | - |", cells(&curve.within));
    for point in &curve.points {
        let _ =
            writeln!(page, "| {} % | {} | {} |", point.percent, cells(&point.tombolo), cells(&point.kernel));
    }
    let retries: u32 = curve.points.iter().map(|point| point.kernel_retries).sum();
    if retries > 0 {
        let _ = writeln!(
            page,
            "\nIn {retries} run(s) in the cgroup the kernel found nothing to reclaim for too long; they were made again."
        );
    }
    for point in curve.points.iter().filter(|point| point.kernel_relieved.most_bytes > 0) {
        let _ = writeln!(
            page,
            "\nAt {} % zram's runs that count had at most {:.1} % more than the limit, and at most {:.1} % on average.",
            point.percent,
            point.kernel_relieved.most_bytes as f64 * 100.0 / point.kernel_limit_bytes as f64,
            point.kernel_relieved.mean_bytes as f64 * 100.0 / point.kernel_limit_bytes as f64
        );
    }
    let verdict = match curve.to_kernel(50) {
        Some(ratio) if ratio < 1.0 => format!("yes ({ratio:.2} of its cost)"),
        Some(ratio) => format!("no ({ratio:.2} of its cost)"),
        None => "not measured".to_owned(),
    };
    let _ = writeln!(page, "\nFaster than zram at 50 % local: **{verdict}**.");
}

/// Shows a part, or says why it is not there.
fn part(page: &mut String, title: &str, found: &Result<Value, String>, show: fn(&mut String, &Value)) {
    let _ = writeln!(page, "\n### {title}\n");
    match found {
        Ok(value) => show(page, value),
        Err(reason) => {
            let _ = writeln!(page, "Not measured: {}.", plain_text(reason));
        }
    }
}

/// The page. `no_swap`: why there is no kernel swap to compare with.
pub fn page(found: &Found, no_swap: Option<&str>) -> String {
    let mut page = String::from(HEADING);
    let (faults, nothing) = (found.faults.as_ref(), Value::Null);
    let algorithm = faults.map_or(&nothing, |faults| &faults["zram_algorithm"]).as_str();
    let _ = writeln!(
        page,
        "A virtual machine with {} processors, Linux {}; zram compresses with {}.\n",
        std::thread::available_parallelism().map_or(1, usize::from),
        rustix::system::uname().release().to_string_lossy(),
        algorithm.unwrap_or("nothing known: it was not measured"),
    );
    targets_section(&mut page, found);
    part(&mut page, "Faults and random reads", &found.faults, faults_section);
    part(&mut page, "Random reads, not pinned", &found.reads, reads_section);
    part(&mut page, "Starting", &found.start, start_section);
    part(&mut page, "Forking", &found.forks, forks_section);
    page.push_str("\n### Slowdown curves\n");
    if let Some(reason) = no_swap {
        let _ = writeln!(page, "\nKernel swap on zram was not measured: {reason}.");
    }
    for curve in &found.curves {
        match curve {
            Ok(curve) => curve_section(&mut page, curve),
            Err(reason) => {
                let _ = writeln!(page, "\nNot measured: {}.", plain_text(reason));
            }
        }
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
- *Reads and writes*: as before, but half of the accesses write one word, so that pages are dirty when they go.
- *Pages written and evicted*: 256 MiB of fresh pages written one after the other with 64 MiB local, so that each write
  makes one page leave; two copies go to two lenders, which share the last processor.
- *Machine CPU*: what all processors spent meanwhile, on whatever it was, by the number of accesses: user, nice, system,
  irq and softirq time of `/proc/stat`; not idle, iowait or stolen time.
";

const HOW_READS: &str = "
A program with some threads that read one word of uniformly random pages, and are not pinned. The CPU time is that of
the whole machine during the loop, so it has in it the handlers, the evictor, the agent, the kernel's threads, and
whatever else ran. The *bare pager* is the least that a pager in user space can do: handlers in a process of their own
that read a fault and copy the page, write-protected; the oldest pages are dropped, 128 in a call. It has no table,
serves clean pages only, and survives nothing. With a thread a processor or fewer it has a pinned handler on each
processor, with more threads a single one that reads 16 events in a call: the fastest each time. Pages are half
incompressible words and half zeros. With 16 fault handlers Tombolo runs as on a machine of 16 processors: how often they are woken for
a fault shows here what it costs there.
";

const WHAT_STOPS_READS: &str = "
What Tombolo takes beyond the bare pager, by `perf` with two threads, in µs a read. A page that leaves is moved
(`UFFDIO_MOVE`: a call and an interrupt of the other processor for each page, 1.5; freeing where it was moved to, 0.7);
the bare pager drops 128 pages in a call (1.1). Tombolo has the kernel report what the program drops, else a raw
`madvise` would lose what is written afterwards, and then each page that it drops itself costs an event. A handler that
reads events waits for the page that is just being moved (0.7 to 1.2): what is unmapped must not be moved meanwhile.
Threads are woken in a call of its own, when the page table is unlocked (0.3). The lock of the table: 0.4 to 0.8.
Tried without gain: one handler for two threads, edge-triggered polling and `EPOLLEXCLUSIVE`, handlers with real-time
priority or nice -20, or with the shortest slices that the scheduler gives (2 and 8 threads: 5 % slower), shorter and
longer spins for the mover, a mover that gives way to handlers.
";

const HOW_CURVES: &str = "
### How the curves are made

The *working set* is the most that a program's heap and large mappings take with plenty of local memory. Tombolo gets a
part of it as `--local`. Kernel swap gets the same bytes as its cgroup's limit and, so that neither side is favoured,
what the program uses beside its heap in addition (its peak in a cgroup with plenty of memory, less the working set).
Both keep the rest in this machine's memory outside of the limit: a lender's over shm, or zram's. *Within the limit*:
`--local` is twice the working set, so nothing is evicted. CPU is that of the whole machine. Costs are medians of
the runs; ways of running take turns; a run of more than 20 s is not repeated. Now and then the kernel finds nothing to
reclaim in the cgroup, although swap is free, and would kill the program. Here it waits instead, and the limit is raised
by 4 to 256 KiB at a time, and lowered again as soon as the kernel can. A run that had more than 1 % beyond its
limit on average is repeated, and counts only where there is no other.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_weighed_by_the_reads_that_are_far() {
        let mut faults = json!({
            "rows": { "floor": { "mean_ns": 8000.0 }, "reads_zram": { "mean_ns": 4000.0 } },
            "reads_area_bytes": 400, "reads_local_bytes": 100,
        });
        assert_eq!(floor_by_swap(&faults), Some(1.5));
        faults["rows"]["reads_zram"] = Value::Null;
        assert_eq!(floor_by_swap(&faults), None);
    }

    #[test]
    fn a_part_that_failed_is_a_line_and_the_others_stay() {
        let cost = |wall| Cost { wall, cpu: wall * 2.0 };
        let curve = Curve {
            name: "chase",
            title: "a walk",
            unit: super::super::workload::Unit::Seconds,
            working_set_bytes: 1 << 20,
            base_bytes: 0,
            plain: cost(1.0),
            huge: Ok(cost(0.75)),
            within: Ok(cost(1.5)),
            faults_a_page: Some(0.02),
            points: Vec::new(),
        };
        let rows = json!([
            { "racer": "tombolo", "threads": 2, "wall_us": [5.0, 7.0], "cpu_us": [9.0, 11.0], "failures": [] },
            { "racer": "zram", "threads": 2, "wall_us": [], "cpu_us": [], "failures": ["needs root"] },
        ]);
        let found = Found {
            faults: Err("it | crashed".into()),
            reads: Ok(
                json!({ "rows": rows, "rounds": 2, "seconds": 4.0, "bytes": 1 << 20, "local_bytes": 1 << 20 }),
            ),
            start: Ok(json!({ "beyond_connecting_s": 0.02, "rounds": 3 })),
            forks: Ok(json!({
                "bytes": 1 << 28, "local_bytes": 1 << 27, "rounds": 1,
                "rows": [
                    { "racer": "zram", "runs": [], "failures": ["needs root"] },
                    { "racer": "tombolo", "runs": [{ "dump_s": 0.5, "dump_worst_ms": 3.0 }], "peak_bytes": [1 << 27] },
                ],
            })),
            curves: vec![Err("redis: there is no redis-server".into()), Ok(curve)],
        };
        let page = page(&found, Some("no root"));
        for part in [
            "Not measured: it / crashed.",
            "| Tombolo, shm | 6.00 / 10.00 |",
            "Not measured: a run of kernel swap on zram, threads 2: needs root.",
            "| bare pager | - |",
            "20.0 ms beyond connecting",
            "Not measured: a run of zram: needs root.",
            "| tombolo | 0.50 s | 3.0 ms |",
            "| 128 MiB |",
            "Not measured: redis: there is no redis-server.",
            "#### a walk",
            "| within the limit | 1.50 s | 1.50 | 3.00 s |",
            "Kernel swap on zram was not measured: no root.",
        ] {
            assert!(page.contains(part), "{part} is missing in\n{page}");
        }
        let json = json(&found);
        assert_eq!(json["paging"]["error"], "it | crashed");
        assert_eq!(json["curves"][1]["within_limit"]["wall"], 1.5);
    }
}
