//! Metrics by HTTP, as Prometheus reads them (OpenMetrics text).

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tombolo_host::timing::command as timing;
use tombolo_net::protocol::{PortStatus, UPLINK, UplinkStatus};
use tombolo_node::{FarStatus, NodeStatus};
use tombolo_pager::{Monitor, PauseSummary};

use crate::Failure;

mod catalogue;

use catalogue::Kind;

type Labels = Vec<(String, String)>;

/// Of a counter that the catalogue lacks: tests find it.
const UNKNOWN: &str = "Not described";

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

/// Metrics of `tombolo net serve`.
pub fn of_net(uplink: &UplinkStatus, ports: &[PortStatus]) -> String {
    let mut metrics = Metrics::default();
    let interface = [("uplink", uplink.interface.as_str())];
    for (name, help, value) in [
        (
            "tombolo_net_carrier",
            "1 if the uplink has a carrier, else 0",
            f64::from(u8::from(uplink.has_carrier)),
        ),
        ("tombolo_net_mtu_bytes", "Largest payload of a frame of the uplink", f64::from(uplink.mtu)),
        (
            "tombolo_net_rate_bits_per_second",
            "Rate to which the uplink is shaped; 0 if it is not",
            uplink.rate_bits as f64,
        ),
        ("tombolo_net_ports", "Ports attached", ports.len() as f64),
    ] {
        metrics.gauge(name, help, &interface, value);
    }
    for status in ports {
        let of = [interface[0], ("port", status.port.name.as_str())];
        for (name, help, value) in [
            ("tombolo_net_port_weight", "Weight of the port among all ports", u64::from(status.port.weight)),
            (
                "tombolo_net_port_rate_bits_per_second",
                "Most that the port may send; 0 if there is no limit",
                status.port.rate_bits,
            ),
            (
                "tombolo_net_port_guarantee_bits_per_second",
                "Rate of the uplink that the port gets before others",
                status.port.guaranteed_bits,
            ),
            (
                "tombolo_net_port_waiting",
                "1 while a frame of the port waits for the uplink, else 0",
                u64::from(status.is_waiting),
            ),
            (
                "tombolo_net_port_written_aside",
                "1 if a thread of its own writes to the port, since it is slow or of another user, else 0",
                u64::from(status.is_written_aside),
            ),
        ] {
            metrics.gauge(name, help, &of, value as f64);
        }
    }
    let all = ports.iter().map(|status| (status.port.name.as_str(), &status.counters));
    for (port, counters) in all.chain([(UPLINK, &uplink.counters)]) {
        for (direction, traffic) in [("sent", &counters.sent), ("received", &counters.received)] {
            let of = [interface[0], ("port", port), ("direction", direction)];
            for (name, help, value) in [
                ("tombolo_net_frames", "Frames on the wire", traffic.frames),
                ("tombolo_net_bytes", "Bytes of frames on the wire, with checksums", traffic.bytes),
                ("tombolo_net_segments", "Segments and single frames", traffic.segments),
                ("tombolo_net_broadcasts", "Broadcast frames", traffic.broadcasts),
                ("tombolo_net_multicasts", "Multicast frames", traffic.multicasts),
            ] {
                metrics.counter(name, help, &of, value);
            }
        }
        for (reason, count) in &counters.refused {
            let of = [interface[0], ("port", port), ("reason", reason.as_str())];
            metrics.counter(
                "tombolo_net_refused",
                "Frames from the port that its rules forbid, by reason",
                &of,
                *count,
            );
        }
        let of = [interface[0], ("port", port)];
        metrics.counter(
            "tombolo_net_undelivered",
            "Frames for the port that it could not take",
            &of,
            counters.undelivered,
        );
        let help = "Frames from the port that were dropped before they were read";
        metrics.counter("tombolo_net_overflowed", help, &of, counters.overflowed);
    }
    metrics.text()
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
        ("tombolo_run_far_bytes", "Memory of the program at lenders", pages(far.used_pages)),
        ("tombolo_run_borrowed_bytes", "Memory borrowed from lenders", pages(far.borrowed_pages)),
        ("tombolo_run_copies", "Copies wanted of each far page", f64::from(far.copies)),
        ("tombolo_run_one_copy_pages", "Far pages with fewer copies than wanted", far.degraded_pages as f64),
        ("tombolo_run_copies_waiting", "Copies being made or waiting to be made", far.copies_waiting as f64),
    ] {
        metrics.gauge(metric, help, &run, value);
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

/// Metrics of `tombolo node`.
pub fn of_node(status: &NodeStatus) -> String {
    let mut metrics = Metrics::default();
    let (node, name) = ([("node", status.name.as_str())], status.name.as_str());
    for (metric, help, value) in [
        ("tombolo_node_lend_bytes", "Memory that this node may lend", status.lend_bytes),
        ("tombolo_node_lent_bytes", "Memory lent to borrowers, or in named segments", status.lent_bytes),
        ("tombolo_node_uptime_seconds", "Time since the node started", status.uptime_s),
    ] {
        metrics.gauge(metric, help, &node, value as f64);
    }
    // Those that cannot be told apart count together.
    let mut borrowers: BTreeMap<[&str; 3], [u64; 2]> = BTreeMap::new();
    for borrower in &status.borrowers {
        let address = borrower.address.as_deref().unwrap_or_default();
        let key = borrower.key.as_deref().unwrap_or_default();
        let [bytes, segments] = borrowers.entry([&borrower.name, address, key]).or_default();
        *bytes += borrower.bytes;
        *segments += u64::from(borrower.segments);
    }
    for ([borrower, address, key], [bytes, segments]) in borrowers {
        let of = [("node", name), ("borrower", borrower), ("address", address), ("key", key)];
        metrics.gauge("tombolo_node_borrower_bytes", "Memory lent to a borrower", &of, bytes as f64);
        let help = "Segments lent to a borrower";
        metrics.gauge("tombolo_node_borrower_segments", help, &of, segments as f64);
    }
    for (counter, value) in &status.counters {
        let metric = catalogue::of_node(counter).unwrap_or_else(|| catalogue::Metric {
            name: counter.clone(),
            labels: Labels::new(),
            kind: Kind::Counter,
            help: UNKNOWN,
        });
        let labels = metric.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let labels: Vec<(&str, &str)> = labels.chain(node).collect();
        let (full_name, value) = (format!("tombolo_node_{}", metric.name), *value);
        match metric.kind {
            Kind::Counter => metrics.counter(&full_name, metric.help, &labels, value),
            Kind::Gauge => metrics.gauge(&full_name, metric.help, &labels, value as f64),
            Kind::Seconds(parts) => {
                metrics.gauge(&full_name, metric.help, &labels, value as f64 / f64::from(parts));
            }
        }
    }
    metrics.text()
}

/// The longest head of a request.
const HEAD_BYTES: usize = 8192;

/// Serves what `text` gives, at this address, as long as the process lives. Returns where that is.
///
/// One client at a time, for a bounded time, of whom a bounded number of bytes is read: whoever reaches the address must
/// not be able to harm the process that it belongs to.
pub fn serve(address: SocketAddr, text: impl Fn() -> String + Send + 'static) -> Result<SocketAddr, Failure> {
    let failed = |error: io::Error| Failure::new(format!("cannot serve metrics at {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    let serving = std::thread::Builder::new().name("metrics".into()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                // Whoever asked has gone, if it does not get the answer.
                Ok(stream) => drop(answer(&stream, &text)),
                // No descriptor is left, for instance.
                Err(_) => std::thread::sleep(timing::CLIENT_ERROR_PAUSE),
            }
        }
    });
    serving.map_err(failed)?;
    Ok(at)
}

/// Reads the head of a request and answers it. What follows the head is not read.
fn answer(stream: &TcpStream, text: &impl Fn() -> String) -> io::Result<()> {
    let deadline = Instant::now() + timing::CLIENT_TIMEOUT;
    let head = read_head(stream, deadline)?;
    let request = head.lines().next().unwrap_or_default();
    let words: Vec<&str> = request.split_whitespace().collect();
    let (status, kind, body) = match words.as_slice() {
        ["GET", "/metrics", _] => {
            ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text())
        }
        ["GET", ..] => ("404 Not Found", "text/plain", "/metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "GET\n".to_owned()),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    send(stream, answer.as_bytes(), Instant::now() + timing::CLIENT_TIMEOUT)
}

/// The time that is left.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads up to the empty line after the head of a request.
fn read_head(mut stream: &TcpStream, deadline: Instant) -> io::Result<String> {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if head.len() > HEAD_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&piece[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn send(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        let count = stream.write(bytes)?;
        bytes = &bytes[count..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
    fn clients_of_any_kind_are_answered_or_left() {
        let at = serve("127.0.0.1:0".parse().unwrap(), || "x".repeat(1 << 20)).unwrap();
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(at).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            // It may be closed before all of it is sent.
            let _ = stream.write_all(request.as_bytes());
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        };
        // Those that say nothing, and one that does not read.
        let _idle: Vec<_> = (0..2).map(|_| TcpStream::connect(at).unwrap()).collect();
        let mut deaf = TcpStream::connect(at).unwrap();
        deaf.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let huge = "GET /metrics HTTP/1.1\r\nContent-Length: 1000000000000000\r\n\r\n";
        assert!(ask(huge).starts_with("HTTP/1.1 200"));
        ask(&"endless".repeat(10_000));
        assert!(ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        let whole = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(whole.ends_with("xxx") && whole.len() > 1 << 20);
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
