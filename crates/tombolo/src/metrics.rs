//! Metrics by HTTP, as Prometheus reads them (OpenMetrics text).

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

mod catalogue;
mod http;
mod net;
mod node;
mod run;

pub use http::serve;
pub use net::of_net;
pub use node::of_node;
pub use run::of_run;

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tombolo_net::protocol::{Counters, PortStatus, UplinkStatus};
    use tombolo_node::{Borrower, FarLender, FarStatus, LinkStatus, NeighbourStatus, Node, NodeStatus};

    use super::*;

    /// The words of a text that may be names of metrics.
    fn names(text: &str) -> BTreeSet<String> {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let kinds = ["tombolo_node_", "tombolo_run_", "tombolo_net_"];
        words.filter(|word| kinds.iter().any(|kind| word.starts_with(kind))).map(str::to_owned).collect()
    }

    fn everything() -> BTreeSet<String> {
        let links = vec![LinkStatus::default()];
        let borrower = Borrower { links: links.clone(), ..Borrower::default() };
        let neighbour = NeighbourStatus { is_wanted: true, links, ..NeighbourStatus::default() };
        let status = Node::new("n", 1 << 20, 0).unwrap().status();
        let node = of_node(&NodeStatus { borrowers: vec![borrower], neighbours: vec![neighbour], ..status });
        let lender = FarLender {
            name: "l".into(),
            address: "a".into(),
            state: "active",
            borrowed_pages: 0,
            used_pages: 0,
            traffic: Default::default(),
        };
        let run = of_run("r", None, &FarStatus { lenders: vec![lender], ..FarStatus::default() });
        let counters = Counters { refused: [("unknown".to_owned(), 1)].into(), ..Counters::default() };
        let counters = serde_json::to_string(&counters).unwrap();
        let port: PortStatus = serde_json::from_str(&format!(
            r#"{{"port": {{"name": "p", "tap": "p", "mac": "02:00:00:00:00:01", "mtu": 1500, "weight": 1, "rate_bits": 0,
                "guaranteed_bits": 0, "vlans": "untagged", "is_promiscuous": false}}, "driver": {{"link_detected": true,
                "rings": "", "coalescing": "off", "offloads": []}}, "queues": 1, "is_waiting": false, "is_written_aside": false,
                "counters": {counters}}}"#
        ))
        .unwrap();
        let uplink: UplinkStatus = serde_json::from_str(&format!(
            r#"{{"interface": "u", "kind": "k", "mtu": 1500, "has_carrier": true, "rate_bits": 0, "scheduler": "drr",
                "mode": "bridge", "registers": [], "counters": {counters}}}"#
        ))
        .unwrap();
        let net = of_net(&uplink, &[port]);
        let of_runs = catalogue::names_of_runs().map(|name| format!("tombolo_run_{name}_total"));
        names(&[node, run, net].concat()).into_iter().chain(of_runs).collect()
    }

    /// Alerts and the dashboard name what is served.
    #[test]
    fn what_packages_name_is_served() {
        let served = everything();
        for (file, text) in [
            ("tombolo.rules.yml", include_str!("../../../packaging/prometheus/tombolo.rules.yml")),
            ("tombolo.json", include_str!("../../../packaging/grafana/tombolo.json")),
        ] {
            for name in names(text) {
                let family = name.strip_suffix("_bucket").unwrap_or(&name);
                let is_served = served.contains(family) || served.contains(&format!("{name}_total"));
                assert!(is_served, "{file} names {name}, which nobody serves");
            }
        }
    }
}
