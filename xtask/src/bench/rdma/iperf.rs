//! A TCP stream of the kernel, by `iperf3`.

use serde_json::Value;

use super::figures::What;
use super::pair::{Peer, Role, Task};

/// Seconds that a stream lasts.
const SECONDS: u64 = 1;
/// Its name in tables.
pub const WHO: &str = "kernel TCP stream";

/// The stream; a size is that of each write.
pub struct Stream;

impl Peer for Stream {
    fn who(&self) -> String {
        WHO.into()
    }

    fn over_tcp(&self) -> bool {
        true
    }

    fn words(&self, task: Task<'_>) -> Vec<String> {
        let (port, size, seconds) = (task.port.to_string(), task.size_bytes.to_string(), SECONDS.to_string());
        let mut words = vec!["iperf3", "-p", &port];
        match task.role {
            Role::Server => words.extend(["-s", "-1"]),
            Role::Client => {
                words.extend(["-c", "127.0.0.1", "-J", "-t", &seconds, "-l", &size]);
                words.extend(task.control.iter().flat_map(|control| ["-C", control]));
            }
        }
        words.into_iter().map(str::to_owned).collect()
    }

    fn read(&self, output: &str, _size: u64, control: Option<&str>) -> Result<Vec<(What, f64)>, String> {
        Ok(vec![(What::BytesPerS, bytes_per_s(output, control)?)])
    }
}

/// What arrived, if it was sent under this congestion control.
fn bytes_per_s(output: &str, control: Option<&str>) -> Result<f64, String> {
    let found: Value =
        serde_json::from_str(output).map_err(|error| format!("iperf3 printed no JSON: {error}"))?;
    // A failure does not show in its exit status.
    if let Some(error) = found["error"].as_str() {
        return Err(format!("iperf3: {error}"));
    }
    let used = found["end"]["sender_tcp_congestion"].as_str();
    if control.is_some() && used != control {
        return Err(format!("iperf3 used {}", used.unwrap_or("nobody knows which congestion control")));
    }
    let bits = found["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.map(|bits| bits / 8.0).ok_or_else(|| "iperf3 told no rate".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shortened.
    const OUTPUT: &str = r#"{
	"start":	{ "version": "iperf 3.12", "test_start": { "protocol": "TCP", "num_streams": 1, "blksize": 65536 } },
	"intervals":	[],
	"end":	{
		"sum_sent":	{ "start": 0, "end": 1.000018, "seconds": 1.000018, "bytes": 4413194240,
			"bits_per_second": 35304918431.468231, "retransmits": 2, "sender": true },
		"sum_received":	{ "start": 0, "end": 1.000051, "seconds": 1.000051, "bytes": 4402118656,
			"bits_per_second": 35215153275.182968, "sender": true },
		"sender_tcp_congestion":	"cubic",
		"receiver_tcp_congestion":	"cubic"
	}
}"#;

    #[test]
    fn what_arrived_counts() {
        let rate = bytes_per_s(OUTPUT, Some("cubic")).unwrap();
        assert!((rate - 35_215_153_275.0 / 8.0).abs() < 1.0);
        assert!(bytes_per_s(OUTPUT, None).is_ok());
    }

    #[test]
    fn another_congestion_control_does_not_count() {
        assert_eq!(bytes_per_s(OUTPUT, Some("bbr")), Err("iperf3 used cubic".into()));
    }

    #[test]
    fn failures_are_told() {
        let refused = r#"{ "start": { "connected": [], "version": "iperf 3.12" }, "intervals": [], "end": { },
            "error": "unable to connect to server: Connection refused" }"#;
        let told = Err("iperf3: unable to connect to server: Connection refused".into());
        assert_eq!(bytes_per_s(refused, Some("cubic")), told);
        for wrong in ["", "{}", "[]", r#"{"end":{"sender_tcp_congestion":"cubic"}}"#] {
            assert!(bytes_per_s(wrong, Some("cubic")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_the_client_chooses() {
        let task = |role| Task { role, size_bytes: 64, port: 20_001, control: Some("bbr") };
        assert_eq!(Stream.words(task(Role::Server)).join(" "), "iperf3 -p 20001 -s -1");
        let client = "iperf3 -p 20001 -c 127.0.0.1 -J -t 1 -l 64 -C bbr";
        assert_eq!(Stream.words(task(Role::Client)).join(" "), client);
    }
}
