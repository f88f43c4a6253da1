//! What `tombolo node` tells: what it lends and to whom, its neighbours and programs, and the counters of its engine.

use std::collections::BTreeMap;

use tombolo_node::{Borrower, NeighbourState, NeighbourStatus, NodeStatus};

use super::catalogue::{self, Kind};
use super::{Labels, Metrics, UNKNOWN};

/// Metrics of `tombolo node`.
pub fn of_node(status: &NodeStatus) -> String {
    let mut metrics = Metrics::default();
    let node = [("node", status.name.as_str())];
    for (metric, help, value) in [
        ("lend_bytes", "Memory that this node may lend", status.lend_bytes),
        ("lent_bytes", "Memory lent to borrowers, or in named segments", status.lent_bytes),
        ("lend_free_bytes", "Memory that could be lent now", status.free_bytes),
        ("lend_being_freed_bytes", "Memory given back that is not free yet", status.being_freed_bytes),
        ("uptime_seconds", "Time since the node started", status.uptime_s),
        (
            "ending",
            "1 while the node waits for its borrowers before it ends, else 0",
            u64::from(status.ending_within_s.is_some()),
        ),
        ("borrowers", "Borrowers that have memory of this node", status.borrowers.len() as u64),
        ("named_segments", "Named segments at this node", status.named.segments),
        ("named_bytes", "Bytes of named segments", status.named.bytes),
        ("limit_domains", "Processes of programs that may have a domain open", status.limits.domains),
        (
            "limit_program_memory_bytes",
            "Memory that may be allocated for programs",
            status.limits.memory_bytes,
        ),
        ("limit_transactions", "Blocks that may be under way at once", status.limits.transactions),
    ] {
        metrics.gauge(&format!("tombolo_node_{metric}"), help, &node, value as f64);
    }
    if let Some((open, most)) = descriptors() {
        let help = "Descriptors that the node has open";
        metrics.gauge("tombolo_node_open_descriptors", help, &node, open as f64);
        let help = "Descriptors that the node may have open; 0 if there is no limit";
        metrics.gauge("tombolo_node_open_descriptors_max", help, &node, most as f64);
    }
    of_borrowers(&mut metrics, node[0], &status.borrowers);
    for neighbour in status.neighbours.iter().filter(|neighbour| neighbour.is_wanted) {
        of_neighbour(&mut metrics, node[0], neighbour);
    }
    // Links are told by the names of their neighbours, not by the engine's numbers.
    for (counter, value) in status.counters.iter().filter(|(name, _)| !name.starts_with("peer_")) {
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

/// How many descriptors this process has open, and how many it may have.
fn descriptors() -> Option<(u64, u64)> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    // One of them reads the directory.
    Some((open.saturating_sub(1), most.unwrap_or(0)))
}

type Label<'a> = (&'a str, &'a str);

/// Those that cannot be told apart count together. What has gone by their links is not told: a counter must not fall when one of them goes.
fn of_borrowers(metrics: &mut Metrics, node: Label<'_>, borrowers: &[Borrower]) {
    let mut all: BTreeMap<[&str; 3], [u64; 2]> = BTreeMap::new();
    for borrower in borrowers {
        let key = borrower.key.as_deref().unwrap_or_default();
        let host = host(borrower.address.as_deref().unwrap_or_default());
        let [bytes, segments] = all.entry([&borrower.name, host, key]).or_default();
        *bytes += borrower.bytes;
        *segments += u64::from(borrower.segments);
    }
    for ([borrower, host, key], [bytes, segments]) in all {
        let of = [node, ("borrower", borrower), ("host", host), ("key", key)];
        metrics.gauge("tombolo_node_borrower_bytes", "Memory lent to a borrower", &of, bytes as f64);
        let help = "Segments lent to a borrower";
        metrics.gauge("tombolo_node_borrower_segments", help, &of, segments as f64);
    }
}

/// An address without its port, which is another one for each run.
fn host(address: &str) -> &str {
    match address.strip_prefix("udp:") {
        Some(rest) => rest.rsplit_once(':').map_or(rest, |(host, _)| host),
        None => address,
    }
}

/// A neighbour given by --peer. Others come and go under addresses that are never the same.
fn of_neighbour(metrics: &mut Metrics, node: Label<'_>, neighbour: &NeighbourStatus) {
    // Its name is not known while it is not there: alerts find it by its address.
    let address = neighbour.addresses.first().map_or("", String::as_str);
    let of = [node, ("address", address)];
    let is_up = neighbour.state == NeighbourState::Joined;
    let links = neighbour.links.iter().filter(|link| link.answers).count();
    let gauges = [
        ("up", "1 if a neighbour given by --peer is joined and answers, else 0", u64::from(is_up)),
        (
            "state_seconds",
            "Time for which a neighbour given by --peer has been joined, silent or absent",
            neighbour.since_s,
        ),
        ("links", "Links to a neighbour given by --peer by which something is heard", links as u64),
        (
            "links_wanted",
            "Addresses by which a neighbour is to be joined (--peer)",
            neighbour.addresses.len() as u64,
        ),
    ];
    for (metric, help, value) in gauges {
        metrics.gauge(&format!("tombolo_node_neighbour_{metric}"), help, &of, value as f64);
    }
    for link in &neighbour.links {
        let path = link.path.to_string();
        let end = link.address.as_deref().unwrap_or_default();
        let name = neighbour.name.as_str();
        let of = [node, ("neighbour", name), ("address", address), ("path", path.as_str()), ("link", end)];
        let counters = [
            ("sent_bytes", "Bytes of packets sent by a link to a neighbour", link.sent_bytes),
            ("received_bytes", "Bytes of packets received by a link to a neighbour", link.received_bytes),
            ("blocks_sent", "Blocks sent by a link to a neighbour, repeats included", link.blocks_sent),
        ];
        for (metric, help, value) in counters {
            metrics.counter(&format!("tombolo_node_neighbour_link_{metric}"), help, &of, value);
        }
        let gauges = [
            (
                "up",
                "1 if something is heard by a link to a neighbour, else 0",
                f64::from(u8::from(link.answers)),
            ),
            ("packet_bytes", "Largest packet that a link takes", link.packet_bytes as f64),
            (
                "window_bytes",
                "Bytes that congestion control allows under way on a link",
                link.window_bytes as f64,
            ),
            (
                "round_trip_seconds",
                "Smoothed round-trip time of a link; 0 if none was measured",
                link.round_trip_ns.unwrap_or(0) as f64 / 1e9,
            ),
        ];
        for (metric, help, value) in gauges {
            metrics.gauge(&format!("tombolo_node_neighbour_link_{metric}"), help, &of, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use tombolo_node::LinkStatus;

    use super::*;

    #[test]
    fn neighbours_are_told_by_their_addresses_whether_they_are_there_or_not() {
        let neighbour = |address: &str, state| NeighbourStatus {
            addresses: vec![address.into()],
            is_wanted: true,
            state,
            since_s: 7,
            ..NeighbourStatus::default()
        };
        let mut joined = neighbour("udp:a:1", NeighbourState::Joined);
        joined.name = "east".into();
        joined.links = vec![LinkStatus { path: 1, sent_bytes: 9, ..LinkStatus::default() }];
        let status = NodeStatus {
            name: "n".into(),
            neighbours: vec![joined, neighbour("udp:b:1", NeighbourState::Silent)],
            ..NodeStatus::default()
        };
        let text = of_node(&status);
        for line in [
            "tombolo_node_neighbour_up{node=\"n\",address=\"udp:a:1\"} 1.0",
            "tombolo_node_neighbour_up{node=\"n\",address=\"udp:b:1\"} 0.0",
            "tombolo_node_neighbour_state_seconds{node=\"n\",address=\"udp:b:1\"} 7.0",
            "tombolo_node_neighbour_link_sent_bytes_total{node=\"n\",neighbour=\"east\",address=\"udp:a:1\",path=\"1\",link=\"\"} 9",
        ] {
            assert!(text.lines().any(|known| known == line), "no {line} in {text}");
        }
        assert!(
            text.contains("# HELP tombolo_node_lend_free_bytes Memory that could be lent now."),
            "{text}"
        );
    }

    #[test]
    fn borrowers_that_cannot_be_told_apart_count_together() {
        let borrower = |bytes, port: u16| Borrower {
            name: "b".into(),
            address: Some(format!("udp:[::1]:{port}")),
            bytes,
            segments: 1,
            ..Borrower::default()
        };
        let status = NodeStatus { borrowers: vec![borrower(1, 5), borrower(2, 6)], ..NodeStatus::default() };
        let text = of_node(&status);
        let of = "{node=\"\",borrower=\"b\",host=\"[::1]\",key=\"\"}";
        assert!(text.contains(&format!("tombolo_node_borrower_bytes{of} 3.0")), "{text}");
        assert!(text.contains(&format!("tombolo_node_borrower_segments{of} 2.0")), "{text}");
        assert_eq!(host("shm:/a:b"), "shm:/a:b");
    }
}
