//! UCX's `ucx_perftest`: messages and puts in turn, and puts one after another.

use super::figures::What;
use super::pair::{Peer, Role, Task};

/// A test over a transport.
struct Test {
    transport: &'static str,
    /// As the tool calls it.
    name: &'static str,
    /// As it is called in tables.
    title: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// In turn: half of a round trip.
    Latency,
    /// One after another.
    Throughput,
}

/// All tests that are raced.
pub fn all() -> Vec<Box<dyn Peer>> {
    let tests = [
        ("tag_lat", "tag_lat", Kind::Latency),
        ("ucp_put_lat", "put_lat", Kind::Latency),
        ("ucp_put_bw", "put_bw", Kind::Throughput),
    ];
    let mut peers: Vec<Box<dyn Peer>> = Vec::new();
    for transport in ["posix", "tcp"] {
        for (name, title, kind) in tests {
            peers.push(Box::new(Test { transport, name, title, kind }));
        }
    }
    peers
}

impl Test {
    fn iterations(&self, size_bytes: u64) -> u64 {
        let size = size_bytes.max(1);
        match self.kind {
            Kind::Latency => ((512 << 20) / size).clamp(500, 10_000),
            Kind::Throughput => ((1 << 30) / size).clamp(1000, 200_000),
        }
    }
}

impl Peer for Test {
    fn who(&self) -> String {
        format!("UCX {} {}", self.transport, self.title)
    }

    fn over_tcp(&self) -> bool {
        self.transport == "tcp"
    }

    fn words(&self, task: Task<'_>) -> Vec<String> {
        let iterations = self.iterations(task.size_bytes);
        let [port, size, warm_up, iterations] =
            [task.port.into(), task.size_bytes, iterations / 10, iterations].map(|number| number.to_string());
        let mut words = vec!["ucx_perftest", "-t", self.name, "-s", &size, "-n", &iterations, "-w", &warm_up];
        words.extend(["-f", "-p", &port]);
        if task.role == Role::Client {
            words.push("127.0.0.1");
        }
        words.into_iter().map(str::to_owned).collect()
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        vec![("UCX_TLS", self.transport.into()), ("UCX_NET_DEVICES", "lo".into())]
    }

    fn read(&self, output: &str, _size: u64, _control: Option<&str>) -> Result<Vec<(What, f64)>, String> {
        let row = Row::of(output)?;
        Ok(match self.kind {
            Kind::Latency => {
                vec![(What::MedianNs, row.median_us * 1000.0), (What::MeanNs, row.mean_us * 1000.0)]
            }
            Kind::Throughput => vec![(What::BytesPerS, row.mebibytes_per_s * f64::from(1 << 20))],
        })
    }
}

/// What is used of the final numbers.
#[derive(Debug, PartialEq)]
struct Row {
    median_us: f64,
    mean_us: f64,
    /// The tool's MB are MiB.
    mebibytes_per_s: f64,
}

impl Row {
    /// The only line of eight numbers: iterations; latency: median, average of the last part, of all;
    /// bandwidth and message rate: of the last part, of all.
    fn of(output: &str) -> Result<Self, String> {
        let numbers =
            |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
        output
            .lines()
            .filter_map(numbers)
            .find_map(|row| match row[..] {
                [_, median_us, _, mean_us, _, mebibytes_per_s, _, _] => {
                    Some(Self { median_us, mean_us, mebibytes_per_s })
                }
                _ => None,
            })
            .ok_or_else(|| "ucx_perftest printed no final numbers".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |        latency (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
                        1000    502.195   519.747   509.946     1924.01    1960.99        1924        1961
";

    fn test(name: &str) -> Box<dyn Peer> {
        all().into_iter().find(|peer| peer.who() == name).unwrap()
    }

    #[test]
    fn the_final_numbers_of_the_tool_are_understood() {
        let row = Row { median_us: 502.195, mean_us: 509.946, mebibytes_per_s: 1960.99 };
        assert_eq!(Row::of(OUTPUT), Ok(row));
        let latency = test("UCX tcp put_lat").read(OUTPUT, 1 << 20, None).unwrap();
        assert_eq!(latency[0].0, What::MedianNs);
        assert!((latency[0].1 - 502_195.0).abs() < 0.001);
        let throughput = test("UCX tcp put_bw").read(OUTPUT, 1 << 20, None).unwrap();
        // One a time: the size by the mean, in MiB.
        let expected = f64::from(1 << 20) / 509.946e-6;
        assert!((throughput[0].1 / expected - 1.0).abs() < 0.001);
    }

    #[test]
    fn other_output_is_an_error() {
        let without = OUTPUT.lines().take(5).collect::<Vec<_>>().join("\n");
        let error = format!(
            "{without}\n[1795259318.575332] [vm:18865:0] perftest_run.c:334  UCX  ERROR Failed to run test: No such \
             device\n"
        );
        for wrong in ["", &without, &error, "1 2 3\n", "1 2 3 4 x 6 7 8\n"] {
            assert!(Row::of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn server_and_client_agree() {
        let task = |role| Task { role, size_bytes: 64, port: 20_001, control: None };
        let put = test("UCX posix put_bw");
        let server = "ucx_perftest -t ucp_put_bw -s 64 -n 200000 -w 20000 -f -p 20001";
        assert_eq!(put.words(task(Role::Server)).join(" "), server);
        assert_eq!(put.words(task(Role::Client)).join(" "), format!("{server} 127.0.0.1"));
        assert_eq!(put.variables()[0], ("UCX_TLS", "posix".to_owned()));
    }
}
