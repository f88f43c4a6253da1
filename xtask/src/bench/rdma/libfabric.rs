//! libfabric's `fi_pingpong`: two programs that send each other messages in turn.

use super::figures::What;
use super::pair::{Peer, Role, Task};

/// A provider.
struct Provider {
    name: &'static str,
    endpoint: &'static str,
    over_tcp: bool,
}

/// All providers that are raced.
pub fn all() -> Vec<Box<dyn Peer>> {
    let provider =
        |name, endpoint, over_tcp| -> Box<dyn Peer> { Box::new(Provider { name, endpoint, over_tcp }) };
    vec![
        provider("shm", "rdm", false),
        provider("tcp", "msg", true),
        provider("tcp;ofi_rxm", "rdm", true),
        provider("udp;ofi_rxd", "rdm", false),
    ]
}

/// As many messages as make 128 MiB, within reason.
fn iterations(size_bytes: u64) -> u64 {
    ((128 << 20) / size_bytes.max(1)).clamp(500, 10_000)
}

impl Peer for Provider {
    fn who(&self) -> String {
        format!("libfabric {}", self.name)
    }

    fn over_tcp(&self) -> bool {
        self.over_tcp
    }

    fn words(&self, task: Task<'_>) -> Vec<String> {
        let (port, size) = (task.port.to_string(), task.size_bytes.to_string());
        let iterations = iterations(task.size_bytes).to_string();
        let mut words =
            vec!["fi_pingpong", "-p", self.name, "-e", self.endpoint, "-S", &size, "-I", &iterations];
        match task.role {
            Role::Server => words.extend(["-B", &port]),
            Role::Client => words.extend(["-P", &port, "127.0.0.1"]),
        }
        words.into_iter().map(str::to_owned).collect()
    }

    fn read(&self, output: &str, _size: u64, _control: Option<&str>) -> Result<Vec<(What, f64)>, String> {
        Ok(vec![(What::MeanNs, half_round_trip_us(output)? * 1000.0)])
    }
}

/// Half of a round trip, from the only row of the table.
fn half_round_trip_us(output: &str) -> Result<f64, String> {
    const COLUMN: &str = "usec/xfer";
    let mut lines = output.lines().skip_while(|line| !line.contains(COLUMN));
    let column = lines.next().and_then(|titles| titles.split_whitespace().position(|title| title == COLUMN));
    let row = lines.next().map(|row| row.split_whitespace().collect::<Vec<_>>());
    column
        .zip(row)
        .and_then(|(column, row)| row.get(column)?.parse().ok())
        .ok_or_else(|| format!("fi_pingpong told no {COLUMN}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
1m      500     =500     1000m       0.18s   5876.55     178.43       0.01
";

    #[test]
    fn the_table_of_the_tool_is_understood() {
        assert_eq!(half_round_trip_us(OUTPUT), Ok(178.43));
        let small = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                     64      10k     =10k     1.2m        3.40s      0.38     169.85       0.01\n";
        assert_eq!(half_round_trip_us(small), Ok(169.85));
    }

    #[test]
    fn other_output_is_an_error() {
        let titles = OUTPUT.lines().next().unwrap();
        let error = "[error] util/pingpong.c:568 : ctrl/read: no data or remote connection closed";
        for wrong in
            ["", error, titles, &format!("{titles}\n64 10k\n"), &format!("{titles}\n1 2 3 4 5 6 x 8\n")]
        {
            assert!(half_round_trip_us(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn server_and_client_agree() {
        let peers = all();
        let rxm = peers.iter().find(|peer| peer.who() == "libfabric tcp;ofi_rxm").unwrap();
        let task = |role| Task { role, size_bytes: 65536, port: 20_001, control: None };
        assert_eq!(
            rxm.words(task(Role::Server)).join(" "),
            "fi_pingpong -p tcp;ofi_rxm -e rdm -S 65536 -I 2048 -B 20001"
        );
        assert_eq!(
            rxm.words(task(Role::Client)).join(" "),
            "fi_pingpong -p tcp;ofi_rxm -e rdm -S 65536 -I 2048 -P 20001 127.0.0.1"
        );
    }
}
