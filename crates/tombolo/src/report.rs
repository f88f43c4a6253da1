//! How a run is and how it was, in JSON: for `--report`, `ps` and `top`.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tombolo_node::FarStatus;
use tombolo_pager::{Finished, Monitor, PauseSummary, UnservedSummary};

/// What has happened, for `tombolo run --report`.
pub fn of_finished(finished: &Finished, connecting: Duration) -> Value {
    let [median, high, longest] = finished.far_fault_ns;
    json!({
        "exit_code": finished.exit_code(),
        "elapsed_s": finished.elapsed.as_secs_f64(),
        // Before the program starts. Memory is borrowed as it is needed.
        "connecting_s": connecting.as_secs_f64(),
        "local_bytes": finished.limit_pages * 4096,
        // The most at once.
        "borrowed_bytes": finished.far.borrowed_peak_pages * 4096,
        "far": of_far(&finished.far),
        "beyond_local_peak_bytes": finished.counter("overdraft_pages") * 4096,
        "mapped_behind_libc_peak_bytes": finished.counter("foreign_pages") * 4096,
        // Of one process, as seen once a second.
        "shared_memory_peak_bytes": finished.counter("shared_memory_pages") * 4096,
        "locked_peak_bytes": finished.counter("locked_pages") * 4096,
        "resident_peak_bytes": finished.counter("resident_peak") * 4096,
        "unserved": unserved(&finished.unserved),
        "bytes_in": finished.counter("pages_in") * 4096,
        "bytes_out": finished.counter("pages_out") * 4096,
        "pauses": pauses(&finished.pauses),
        "far_fault_ns": { "median": median, "p99": high, "max": longest },
        "counters": by_name(&finished.counters),
    })
}

/// What has happened, in a line.
pub fn summary(name: &str, finished: &Finished) -> String {
    let mib = |pages: u64| (pages * 4096).div_ceil(1 << 20);
    let [out, back] = ["pages_out", "pages_in"].map(|counter| finished.counter(counter));
    let left = out + finished.counter("zero_drops") + finished.counter("clean_drops");
    let mut text = if left == 0 {
        format!("{name}: no page had to leave local memory")
    } else {
        format!(
            "{name}: {} MiB out and {} MiB in, {} MiB borrowed at most; {} far faults, longest pause {:.1} ms",
            mib(out),
            mib(back),
            mib(finished.far.borrowed_peak_pages),
            finished.counter("far_faults"),
            finished.pauses.longest_ns as f64 / 1e6
        )
    };
    let beyond = finished.counter("overdraft_pages");
    if beyond > 0 {
        let _ = write!(text, "; {} MiB beyond --local", mib(beyond));
    }
    let lost = finished.counter("lost_pages");
    if lost > 0 {
        let _ = write!(text, "; {} KiB lost", lost * 4);
    }
    let UnservedSummary { executed, processes, bytes } = &finished.unserved;
    let parts: Vec<String> =
        executed.iter().map(|(reason, executed)| format!("{} {}", executed.count, reason.name())).collect();
    if !parts.is_empty() {
        let _ = write!(text, "; executed and not served: {}", parts.join(", "));
    }
    // As seen once a second. Less is in every program.
    const LEAST_PAGES: u64 = 16 << 8;
    let kinds = [
        ("shared_memory_pages", "shared memory"),
        ("foreign_pages", "behind libc or in small pieces"),
        ("locked_pages", "locked"),
    ];
    let besides: Vec<String> = kinds
        .into_iter()
        .map(|(counter, kind)| (finished.counter(counter), kind))
        .filter(|(pages, _)| *pages >= LEAST_PAGES)
        .map(|(pages, kind)| format!("{} MiB {kind}", mib(pages)))
        .collect();
    if !besides.is_empty() {
        let _ = write!(text, "; not served, at most: {}", besides.join(", "));
    }
    if processes[1] > 0 {
        let mib = bytes[1].div_ceil(1 << 20);
        let _ = write!(text, "; without far memory at once: {} process(es) with {mib} MiB", processes[1]);
    }
    text
}

/// How a run is, for `ps`, `top` and `lenders`. A program that has not started has no monitor.
pub fn of_running(name: &str, run_pid: u32, monitor: Option<&Monitor>, far: &FarStatus) -> Value {
    json!({
        "name": name,
        "pid": monitor.map(Monitor::pid),
        "run_pid": run_pid,
        "supervisor_pid": std::process::id(),
        "resident_bytes": monitor.map_or(0, Monitor::resident_pages) * 4096,
        "far": of_far(far),
        "unserved": unserved(&monitor.map(Monitor::unserved).unwrap_or_default()),
        "pauses": pauses(&monitor.map(Monitor::pauses).unwrap_or_default()),
        "counters": by_name(&monitor.map(Monitor::counters).unwrap_or_default()),
    })
}

fn by_name(counters: &[(&'static str, u64)]) -> Map<String, Value> {
    counters.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
}

/// Programs that were not served.
fn unserved(summary: &UnservedSummary) -> Value {
    let executed: Map<String, Value> = summary
        .executed
        .iter()
        .map(|(reason, executed)| {
            (reason.name().to_owned(), json!({ "count": executed.count, "first": executed.first }))
        })
        .collect();
    let ([processes, processes_peak], [bytes, bytes_peak]) = (summary.processes, summary.bytes);
    json!({
        // By why they cannot have the library.
        "executed": executed,
        // As seen once a second.
        "processes": processes,
        "processes_peak": processes_peak,
        "bytes": bytes,
        "bytes_peak": bytes_peak,
    })
}

/// How long threads waited for pages.
fn pauses(pauses: &PauseSummary) -> Value {
    let some = pauses.by_length.iter().filter(|(_, count)| *count > 0);
    let histogram: Vec<Value> =
        some.map(|(most_us, count)| json!({ "up_to_us": most_us, "count": count })).collect();
    json!({ "longest_ns": pauses.longest_ns, "total_ns": pauses.total_ns, "histogram": histogram })
}

/// How far memory is.
fn of_far(far: &FarStatus) -> Value {
    let counters = far.counters;
    let lenders: Vec<Value> = far
        .lenders
        .iter()
        .map(|lender| {
            json!({
                "name": lender.name,
                "address": lender.address,
                "state": lender.state,
                "borrowed_bytes": lender.borrowed_pages * 4096,
                "used_bytes": lender.used_pages * 4096,
                "read_bytes": lender.traffic.pages_read * 4096,
                "written_bytes": lender.traffic.pages_written * 4096,
            })
        })
        .collect();
    json!({
        "copies": far.copies,
        "used_bytes": far.used_pages * 4096,
        "borrowed_bytes": far.borrowed_pages * 4096,
        "one_copy_pages": far.degraded_pages,
        "copies_waiting": far.copies_waiting,
        "stored_with_one_copy": counters.stored_with_one,
        "copies_restored": counters.copies_restored,
        "copies_moved": counters.copies_moved,
        "writes_moved": counters.writes_moved,
        "reads_doubled": counters.reads_doubled,
        "reads_by_the_other_copy": counters.reads_by_other,
        "corrupt_pages": counters.corrupt_pages,
        "both_copies_on_one_host": counters.same_host,
        "lender_lives": far.lives,
        "lenders": lenders,
    })
}
