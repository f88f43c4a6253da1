//! What `tombolo-bench rdma --json` found. Whatever it leaves out is not measured.

use serde_json::Value;

use super::figures::{Figures, What};

/// Its links, in the order of tables.
pub const LINKS: [&str; 5] = ["loopback", "shm", "udp", "udp_sealed", "udp_loss"];
/// The engine in the program, or in a process of its own.
pub const HOWS: [&str; 2] = ["embedded", "node"];
/// The ways in which a link is measured: programs of one node have no link between them, and
/// encryption and loss are properties of the link, wherever its engine is.
pub fn hows(link: &str) -> &'static [&'static str] {
    match link {
        "loopback" => &["node"],
        "udp_sealed" | "udp_loss" => &["embedded"],
        _ => &HOWS,
    }
}

/// What is done in turn, to be compared with other libraries' latencies.
pub const PING_PONG: &str = "ping_pong";
/// The other operations: from posting to done.
pub const OPERATIONS: [&str; 4] = ["write", "read", "atomic", "mailbox"];

/// What the machine does at best.
pub const CACHE_LINE: &str = "cache line round trip";
pub const MEMCPY: &str = "memcpy";
pub const MEMCPY_HUGE: &str = "memcpy in huge pages";
pub const RAW_UDP: &str = "raw UDP, GSO and GRO";
/// The same, with what packets cost in memory, and without an engine.
pub const RAW_PACKETS: &str = "raw UDP with packets";
/// For figures that have no size.
pub const NO_SIZE: u64 = 0;

/// An operation over a link.
pub fn who(link: &str, how: &str, operation: &str) -> String {
    format!("Tombolo {link} {how} {operation}")
}

/// Small writes over a link, alone or beside large transfers.
pub fn interference(link: &str, how: &str, busy: bool) -> String {
    who(link, how, if busy { "beside large transfers" } else { "alone" })
}

/// Notes what of a latency's summary is there.
fn summary(figures: &mut Figures, who: &str, size_bytes: u64, found: &Value) {
    for (field, what) in [("median_ns", What::MedianNs), ("mean_ns", What::MeanNs), ("p99_ns", What::P99Ns)] {
        if let Some(value) = found[field].as_f64() {
            figures.note(who, what, size_bytes, value);
        }
    }
}

fn throughput(figures: &mut Figures, who: &str, found: &Value) {
    if let (Some(size_bytes), Some(value)) = (found["size_bytes"].as_u64(), found["bytes_per_s"].as_f64()) {
        figures.note(who, What::BytesPerS, size_bytes, value);
    }
}

/// A row's link and how: a bench that does not say how has nodes.
fn place(found: &Value) -> Option<(&str, &str)> {
    let how = &found["how"];
    Some((found["link"].as_str()?, if how.is_null() { "node" } else { how.as_str()? }))
}

fn list(found: &Value) -> impl Iterator<Item = &Value> {
    found.as_array().into_iter().flatten()
}

/// Notes all that is there.
pub fn read(found: &Value, figures: &mut Figures) -> Result<(), String> {
    let floor = &found["floor"];
    if let Some(value) = floor["cache_line_round_trip_ns"].as_f64() {
        figures.note(CACHE_LINE, What::MeanNs, NO_SIZE, value);
    }
    list(&floor["copies"]).for_each(|copy| throughput(figures, MEMCPY, copy));
    list(&floor["copies_huge"]).for_each(|copy| throughput(figures, MEMCPY_HUGE, copy));
    for (who, rates, trips) in
        [(RAW_UDP, "udp", "udp_ping_pong"), (RAW_PACKETS, "udp_packets", "udp_packets_ping_pong")]
    {
        list(&floor[rates]).for_each(|rate| throughput(figures, who, rate));
        for trip in list(&floor[trips]) {
            if let Some(size_bytes) = trip["size_bytes"].as_u64() {
                summary(figures, who, size_bytes, &trip["latency"]);
            }
        }
    }
    let mut rows = 0;
    for row in list(&found["rows"]) {
        let (Some((link, how)), Some(operation), Some(size_bytes)) =
            (place(row), row["op"].as_str(), row["size_bytes"].as_u64())
        else {
            continue;
        };
        let who = who(link, how, operation);
        summary(figures, &who, size_bytes, &row["latency"]);
        throughput(figures, &who, row);
        rows += 1;
    }
    for row in list(&found["interference"]) {
        if let Some((link, how)) = place(row) {
            summary(figures, &interference(link, how, false), NO_SIZE, &row["idle"]);
            summary(figures, &interference(link, how, true), NO_SIZE, &row["busy"]);
        }
    }
    if rows == 0 { Err("`tombolo-bench rdma` reported no transfers".into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn latency(median: f64) -> Value {
        json!({ "count": 10, "median_ns": median, "p99_ns": 2.0 * median, "mean_ns": median + 1.0 })
    }

    #[test]
    fn everything_that_is_told_is_noted() {
        let found = json!({
            "processors": 2,
            "floor": {
                "cache_line_round_trip_ns": 100.0,
                "copies": [{ "size_bytes": 65536, "bytes_per_s": 9e9 }],
                "copies_huge": [{ "size_bytes": 65536, "bytes_per_s": 10e9 }],
                "udp": [{ "size_bytes": 65536, "bytes_per_s": 5e9 }],
                "udp_ping_pong": [{ "size_bytes": 65536, "latency": latency(4000.0) }],
                "udp_packets": [{ "size_bytes": 65536, "bytes_per_s": 4e9 }],
                "udp_packets_ping_pong": [{ "size_bytes": 65536, "latency": latency(6000.0) }],
            },
            "rows": [
                { "link": "udp", "how": "embedded", "op": "ping_pong", "size_bytes": 64, "latency": latency(3000.0),
                  "bytes_per_s": 1e7 },
                { "link": "shm", "how": "node", "op": "write", "size_bytes": 65536, "latency": latency(8000.0),
                  "bytes_per_s": 4e9 },
            ],
            "interference": [{ "link": "shm", "how": "node", "idle": latency(500.0), "busy": latency(900.0) }],
        });
        let mut figures = Figures::default();
        read(&found, &mut figures).unwrap();
        assert_eq!(figures.get(CACHE_LINE, What::MeanNs, NO_SIZE), Some(100.0));
        assert_eq!(figures.get(MEMCPY, What::BytesPerS, 65536), Some(9e9));
        assert_eq!(figures.get(MEMCPY_HUGE, What::BytesPerS, 65536), Some(10e9));
        assert_eq!(figures.get(RAW_UDP, What::BytesPerS, 65536), Some(5e9));
        assert_eq!(figures.get(RAW_UDP, What::MedianNs, 65536), Some(4000.0));
        assert_eq!(figures.get(RAW_PACKETS, What::BytesPerS, 65536), Some(4e9));
        assert_eq!(figures.get(RAW_PACKETS, What::MedianNs, 65536), Some(6000.0));
        assert_eq!(figures.get(&who("udp", "embedded", PING_PONG), What::MedianNs, 64), Some(3000.0));
        assert_eq!(figures.get(&who("shm", "node", "write"), What::BytesPerS, 65536), Some(4e9));
        assert_eq!(figures.get(&interference("shm", "node", true), What::P99Ns, NO_SIZE), Some(1800.0));
        assert_eq!(figures.get(&interference("shm", "embedded", true), What::P99Ns, NO_SIZE), None);
    }

    #[test]
    fn a_bench_without_ways_has_nodes() {
        let row = json!({ "link": "shm", "op": "write", "size_bytes": 64, "latency": latency(8.0), "bytes_per_s": 4.0 });
        let mut figures = Figures::default();
        read(&json!({ "rows": [row] }), &mut figures).unwrap();
        assert_eq!(figures.get(&who("shm", "node", "write"), What::MedianNs, 64), Some(8.0));
        assert_eq!(figures.get(CACHE_LINE, What::MeanNs, NO_SIZE), None);
    }

    #[test]
    fn no_transfers_are_an_error_and_nonsense_is_no_figure() {
        let nonsense = json!({ "rows": [{ "link": 1, "op": "write" }, 17, { "link": "shm", "how": 3 }] });
        for wrong in [json!({}), json!([]), json!({ "rows": [] }), json!({ "rows": 5 }), nonsense] {
            assert!(read(&wrong, &mut Figures::default()).is_err(), "{wrong}");
        }
        let mut figures = Figures::default();
        let row =
            json!({ "link": "shm", "op": "write", "size_bytes": 64, "latency": "soon", "bytes_per_s": null });
        read(&json!({ "rows": [row] }), &mut figures).unwrap();
        assert_eq!(figures.get(&who("shm", "node", "write"), What::MedianNs, 64), None);
    }
}
