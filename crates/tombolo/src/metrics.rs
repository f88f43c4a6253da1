//! Metrics by HTTP, as Prometheus reads them (OpenMetrics text).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tiny_http::{Header, Response, Server};
use tombolo_node::{FarStatus, NodeStatus};
use tombolo_pager::{Monitor, PauseSummary};

use crate::Failure;

type Labels = Vec<(String, String)>;

/// Metrics as they are now.
#[derive(Default)]
struct Metrics {
    registry: Registry,
    gauges: BTreeMap<String, Family<Labels, Gauge<f64, AtomicU64>>>,
    counters: BTreeMap<String, Family<Labels, Counter>>,
}

impl Metrics {
    fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        if !self.gauges.contains_key(name) {
            let family = Family::default();
            self.registry.register(name, help, family.clone());
            self.gauges.insert(name.to_owned(), family);
        }
        if let Some(family) = self.gauges.get(name) {
            family.get_or_create(&owned(labels)).set(value);
        }
    }

    /// Its name ends in `_total` when it is read.
    fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        if !self.counters.contains_key(name) {
            let family = Family::default();
            self.registry.register(name, help, family.clone());
            self.counters.insert(name.to_owned(), family);
        }
        if let Some(family) = self.counters.get(name) {
            family.get_or_create(&owned(labels)).inc_by(value);
        }
    }

    fn text(self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

fn owned(labels: &[(&str, &str)]) -> Labels {
    labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The histogram of pauses, whose counts are made elsewhere.
#[derive(Debug)]
struct Pauses(PauseSummary);

impl Collector for Pauses {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut metric = encoder.encode_descriptor(
            "tombolo_run_pause_seconds",
            "How long threads of the program waited for pages",
            None,
            MetricType::Histogram,
        )?;
        let count = self.0.by_length.iter().map(|(_, count)| count).sum();
        let last = self.0.by_length.len().saturating_sub(1);
        let bound = |at: usize, most_us: u64| if at == last { f64::MAX } else { most_us as f64 / 1e6 };
        let buckets: Vec<(f64, u64)> = self
            .0
            .by_length
            .iter()
            .enumerate()
            .map(|(at, (most_us, count))| (bound(at, *most_us), *count))
            .collect();
        metric.encode_histogram::<NoLabelSet>(self.0.total_ns as f64 / 1e9, count, &buckets, None)
    }
}

/// Metrics of `tombolo run`.
pub fn of_run(name: &str, monitor: Option<&Monitor>, far: &FarStatus) -> String {
    let mut metrics = Metrics::default();
    let run = [("run", name)];
    let pages = |pages: u64| (pages * 4096) as f64;
    let resident = monitor.map_or(0, Monitor::resident_pages);
    for (metric, help, value) in [
        ("tombolo_run_resident_bytes", "Memory of the program that is here and may be far", pages(resident)),
        ("tombolo_run_far_bytes", "Memory of the program that is far", pages(far.used_pages)),
        ("tombolo_run_borrowed_bytes", "Memory borrowed of lenders", pages(far.borrowed_pages)),
        ("tombolo_run_copies", "Copies wanted of each far page", f64::from(far.copies)),
        ("tombolo_run_one_copy_pages", "Far pages with fewer copies than wanted", far.degraded_pages as f64),
        ("tombolo_run_copies_waiting", "Copies being made or waiting to be", far.copies_waiting as f64),
    ] {
        metrics.gauge(metric, help, &run, value);
    }
    for (counter, value) in monitor.map(Monitor::counters).unwrap_or_default() {
        metrics.counter(&format!("tombolo_run_{counter}"), "A counter of the pager", &run, value);
    }
    let counters = far.counters;
    for (counter, help, value) in [
        ("stored_with_one_copy", "Pages stored with fewer copies than wanted", counters.stored_with_one),
        ("copies_restored", "Copies made in place of lost ones", counters.copies_restored),
        ("copies_moved", "Copies moved away from lenders", counters.copies_moved),
        ("writes_moved", "Writes that went to another lender instead", counters.writes_moved),
        ("reads_doubled", "Reads for which the other copy was read, too", counters.reads_doubled),
        ("reads_by_the_other_copy", "Reads that the second copy answered", counters.reads_by_other),
        ("corrupt_pages", "Pages read that were not what was written", counters.corrupt_pages),
    ] {
        metrics.counter(&format!("tombolo_run_{counter}"), help, &run, value);
    }
    for lender in &far.lenders {
        let of = [("run", name), ("lender", lender.name.as_str()), ("address", lender.address.as_str())];
        let of_state = [of[0], of[1], of[2], ("state", lender.state)];
        metrics.gauge("tombolo_run_lender", "A lender and how it is", &of_state, 1.0);
        // One that came again has the labels of its last life.
        if lender.state == "gone" {
            continue;
        }
        let traffic = lender.traffic;
        let (borrowed, used) = (pages(lender.borrowed_pages), pages(lender.used_pages));
        metrics.gauge("tombolo_run_lender_borrowed_bytes", "Memory borrowed of a lender", &of, borrowed);
        metrics.gauge("tombolo_run_lender_used_bytes", "Memory of a lender that is in use", &of, used);
        let (read, written) = (traffic.pages_read * 4096, traffic.pages_written * 4096);
        metrics.counter("tombolo_run_lender_read_bytes", "What has come from a lender", &of, read);
        metrics.counter("tombolo_run_lender_written_bytes", "What has gone to a lender", &of, written);
    }
    let pauses = monitor.map(Monitor::pauses).unwrap_or_default();
    metrics.gauge(
        "tombolo_run_longest_pause_seconds",
        "The longest time that a thread waited for a page",
        &run,
        pauses.longest_ns as f64 / 1e9,
    );
    metrics.registry.register_collector(Box::new(Pauses(pauses)));
    metrics.text()
}

/// Metrics of `tombolo node`.
pub fn of_node(status: &NodeStatus) -> String {
    let mut metrics = Metrics::default();
    let (node, name) = ([("node", status.name.as_str())], status.name.as_str());
    for (metric, help, value) in [
        ("tombolo_node_lend_bytes", "How much memory may be lent", status.lend_bytes),
        ("tombolo_node_lent_bytes", "How much memory is lent", status.lent_bytes),
        ("tombolo_node_uptime_seconds", "How long the node has been up", status.uptime_s),
    ] {
        metrics.gauge(metric, help, &node, value as f64);
    }
    for borrower in &status.borrowers {
        let process = borrower.process_id.map(|process| process.to_string()).unwrap_or_default();
        let address = borrower.address.as_deref().unwrap_or_default();
        let labels = [
            ("node", name),
            ("borrower", borrower.name.as_str()),
            ("process", &process),
            ("address", address),
        ];
        metrics.gauge("tombolo_node_borrower_bytes", "What a borrower has", &labels, borrower.bytes as f64);
    }
    for (counter, value) in &status.counters {
        let (counter, labels) = split_numbers(counter);
        let labels: Vec<(&str, &str)> =
            labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).chain(node).collect();
        let help = "As `tombolo status --json` says";
        metrics.gauge(&format!("tombolo_node_{counter}"), help, &labels, *value as f64);
    }
    metrics.text()
}

/// `peer_3_path_0_lost` is the lost ones of path 0 to peer 3.
fn split_numbers(counter: &str) -> (String, Labels) {
    let mut words: Vec<&str> = Vec::new();
    let mut labels = Labels::new();
    for word in counter.split('_') {
        match words.last() {
            Some(what) if word.bytes().all(|byte| byte.is_ascii_digit()) && !word.is_empty() => {
                labels.push(((*what).to_owned(), word.to_owned()));
            }
            _ => words.push(word),
        }
    }
    (words.join("_"), labels)
}

/// Serves what `text` gives, at this address, as long as the process lives. Returns where that is.
pub fn serve(address: SocketAddr, text: impl Fn() -> String + Send + 'static) -> Result<SocketAddr, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(format!("cannot serve metrics at {address}: {error}"));
    let server = Server::http(address).map_err(|error| failed(&error))?;
    let at = server.server_addr().to_ip().unwrap_or(address);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let kind = Header::from_bytes("Content-Type", kind).map_err(|()| failed(&"the header is refused"))?;
    let serving = std::thread::Builder::new().name("metrics".into()).spawn(move || {
        for request in server.incoming_requests() {
            // Whoever asked has gone, if it does not get the answer.
            let _ = if request.url() == "/metrics" {
                request.respond(Response::from_string(text()).with_header(kind.clone()))
            } else {
                request.respond(Response::from_string("/metrics\n").with_status_code(404))
            };
        }
    });
    serving.map_err(|error| failed(&error))?;
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_labels() {
        let labels = owned(&[("peer", "3"), ("path", "0")]);
        assert_eq!(split_numbers("peer_3_path_0_lost"), ("peer_path_lost".into(), labels));
        assert_eq!(split_numbers("blocks_sent"), ("blocks_sent".into(), Labels::new()));
    }

    #[test]
    fn a_run_is_told_in_the_words_of_prometheus() {
        let far = FarStatus { used_pages: 3, copies: 2, ..FarStatus::default() };
        let text = of_run("sort", None, &far);
        assert!(text.contains("tombolo_run_far_bytes{run=\"sort\"} 12288.0\n"), "{text}");
        assert!(text.contains("tombolo_run_copies_restored_total{run=\"sort\"} 0\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn pauses_are_a_histogram() {
        let pauses =
            PauseSummary { longest_ns: 3000, total_ns: 4500, by_length: vec![(1, 0), (2, 1), (4, 1)] };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Pauses(pauses)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in ["_bucket{le=\"2e-6\"} 1", "_bucket{le=\"+Inf\"} 2", "_count 2", "_sum 4.5e-6"] {
            assert!(text.contains(&format!("tombolo_run_pause_seconds{line}\n")), "{line} in {text}");
        }
    }
}
