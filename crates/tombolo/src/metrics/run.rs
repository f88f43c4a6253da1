//! What `tombolo run` tells: the program's memory, its pauses, the lenders.

use std::collections::BTreeMap;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use tombolo_node::FarStatus;
use tombolo_pager::{Monitor, PauseSummary};

use super::{Metrics, UNKNOWN, catalogue};

/// The histogram of pauses, whose counts are made elsewhere.
#[derive(Debug)]
struct Pauses(PauseSummary, String);

impl Collector for Pauses {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut metric = encoder.encode_descriptor(
            "tombolo_run_pause_seconds",
            "Time that threads of the program waited for pages.",
            None,
            MetricType::Histogram,
        )?;
        let count = self.0.by_length.iter().map(|(_, count)| count).sum();
        let last = self.0.by_length.len().saturating_sub(1);
        let bound = |at: usize, most_us: u64| if at == last { f64::INFINITY } else { most_us as f64 / 1e6 };
        let buckets: Vec<(f64, u64)> = self
            .0
            .by_length
            .iter()
            .enumerate()
            .map(|(at, (most_us, count))| (bound(at, *most_us), *count))
            .collect();
        let run = [("run", self.1.as_str())];
        metric.encode_family(&run)?.encode_histogram::<NoLabelSet>(
            self.0.total_ns as f64 / 1e9,
            count,
            &buckets,
            None,
        )
    }
}

/// Metrics of `tombolo run`.
pub fn of_run(name: &str, monitor: Option<&Monitor>, far: &FarStatus) -> String {
    let mut metrics = Metrics::default();
    let run = [("run", name)];
    let pages = |pages: u64| (pages * 4096) as f64;
    let resident = monitor.map_or(0, Monitor::resident_pages);
    for (metric, help, value) in [
        (
            "tombolo_run_resident_bytes",
            "Memory of the program that is local and can be moved to lenders",
            pages(resident),
        ),
        (
            "tombolo_run_local_limit_bytes",
            "Memory of the program that stays local at most (--local)",
            pages(monitor.map_or(0, Monitor::limit_pages)),
        ),
        ("tombolo_run_far_bytes", "Memory of the program at lenders", pages(far.used_pages)),
        (
            "tombolo_run_far_max_bytes",
            "Memory of the program that can be at lenders, by --remote and by what they lend",
            pages(far.most_pages),
        ),
        ("tombolo_run_borrowed_bytes", "Memory borrowed from lenders", pages(far.borrowed_pages)),
        ("tombolo_run_copies", "Copies wanted of each far page", f64::from(far.copies)),
        ("tombolo_run_one_copy_pages", "Far pages with fewer copies than wanted", far.degraded_pages as f64),
        ("tombolo_run_copies_waiting", "Copies being made or waiting to be made", far.copies_waiting as f64),
    ] {
        metrics.gauge(metric, help, &run, value);
    }
    for (reason, executed) in monitor.map(Monitor::unserved).unwrap_or_default().executed {
        let of = [run[0], ("reason", reason.name())];
        let help = "Programs executed whose memory could not be served, by reason";
        metrics.counter("tombolo_run_unserved", help, &of, executed.count);
    }
    for (counter, value) in monitor.map(Monitor::counters).unwrap_or_default() {
        let help = catalogue::of_run(counter).unwrap_or(UNKNOWN);
        metrics.counter(&format!("tombolo_run_{counter}"), help, &run, value);
    }
    let counters = far.counters;
    for (counter, help, value) in [
        ("stored_with_one_copy", "Pages stored with fewer copies than wanted", counters.stored_with_one),
        ("copies_restored", "Copies made in place of lost ones", counters.copies_restored),
        ("copies_moved", "Copies moved away from lenders", counters.copies_moved),
        ("writes_moved", "Writes that went to another lender instead", counters.writes_moved),
        ("reads_doubled", "Reads for which the other copy was asked, too", counters.reads_doubled),
        ("reads_by_the_other_copy", "Reads that the second copy answered", counters.reads_by_other),
        (
            "corrupt_pages",
            "Pages read whose checksum was not that of what was written",
            counters.corrupt_pages,
        ),
        ("both_copies_on_one_host", "Pages with both copies on one machine", counters.same_host),
    ] {
        metrics.counter(&format!("tombolo_run_{counter}"), help, &run, value);
    }
    // One that came again has the name and address of its last life: what it has is that of all lives, so that no
    // counter falls.
    let mut all: BTreeMap<(&str, &str), [u64; 4]> = BTreeMap::new();
    for lender in &far.lenders {
        let sums = all.entry((lender.name.as_str(), lender.address.as_str())).or_default();
        let traffic = lender.traffic;
        let figures = [lender.borrowed_pages, lender.used_pages, traffic.pages_read, traffic.pages_written];
        for (sum, pages) in sums.iter_mut().zip(figures) {
            *sum += pages * 4096;
        }
        let (lender, address, state) = (lender.name.as_str(), lender.address.as_str(), lender.state);
        let labels = [("run", name), ("lender", lender), ("address", address), ("state", state)];
        metrics.gauge("tombolo_run_lender", "1 for the state in which a lender is", &labels, 1.0);
    }
    for ((lender, address), [borrowed, used, read, written]) in all {
        let of = [("run", name), ("lender", lender), ("address", address)];
        let (gauges, counters) = ([borrowed as f64, used as f64], [read, written]);
        metrics.gauge("tombolo_run_lender_borrowed_bytes", "Memory borrowed from a lender", &of, gauges[0]);
        metrics.gauge("tombolo_run_lender_used_bytes", "Memory of a lender that is in use", &of, gauges[1]);
        metrics.counter("tombolo_run_lender_read_bytes", "Bytes read from a lender", &of, counters[0]);
        metrics.counter("tombolo_run_lender_written_bytes", "Bytes written to a lender", &of, counters[1]);
    }
    let pauses = monitor.map(Monitor::pauses).unwrap_or_default();
    metrics.gauge(
        "tombolo_run_longest_pause_seconds",
        "Longest time that a thread of the program waited for a page",
        &run,
        pauses.longest_ns as f64 / 1e9,
    );
    metrics.registry.register_collector(Box::new(Pauses(pauses, name.to_owned())));
    metrics.text()
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use tombolo_node::{FarLender, Traffic};

    use super::*;

    #[test]
    fn a_run_is_told_in_the_words_of_prometheus() {
        let far = FarStatus { used_pages: 3, copies: 2, ..FarStatus::default() };
        let text = of_run("sort", None, &far);
        assert!(text.contains("tombolo_run_far_bytes{run=\"sort\"} 12288.0\n"), "{text}");
        assert!(text.contains("tombolo_run_copies_restored_total{run=\"sort\"} 0\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn lives_of_a_lender_are_added_up() {
        let life = |state, pages_written| FarLender {
            name: "a".into(),
            address: "shm:a".into(),
            state,
            borrowed_pages: 0,
            used_pages: 1,
            traffic: Traffic { pages_read: 0, pages_written },
        };
        let far = FarStatus { lenders: vec![life("dead", 2), life("active", 3)], ..FarStatus::default() };
        let text = of_run("sort", None, &far);
        let of = "{run=\"sort\",lender=\"a\",address=\"shm:a\"}";
        assert!(text.contains(&format!("tombolo_run_lender_used_bytes{of} 8192.0\n")), "{text}");
        assert!(text.contains(&format!("tombolo_run_lender_written_bytes_total{of} 20480\n")), "{text}");
    }

    #[test]
    fn pauses_are_a_histogram() {
        let pauses =
            PauseSummary { longest_ns: 3000, total_ns: 4500, by_length: vec![(1, 0), (2, 1), (4, 1)] };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Pauses(pauses, "sort".into())));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "_bucket{le=\"0.000002\",run=\"sort\"} 1",
            "_bucket{le=\"+Inf\",run=\"sort\"} 2",
            "_count{run=\"sort\"} 2",
            "_sum{run=\"sort\"} 0.0000045",
        ] {
            assert!(text.contains(&format!("tombolo_run_pause_seconds{line}\n")), "{line} in {text}");
        }
    }
}
