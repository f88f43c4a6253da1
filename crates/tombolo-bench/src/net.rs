//! `tombolo-bench net`: two network namespaces joined by `tombolo net`, beside a veth pair, a bridge between two of those,
//! macvlan, and a bare relay between two TAP devices.
//!
//! Each is measured in turn, several times: a TCP stream (iperf3) by two congestion controls, small UDP packets there and
//! back, and as many small UDP packets as go through.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use tombolo_app::child::{self, Guard};
use tombolo_app::median;
use tombolo_host::cpu::Stopwatch;

use crate::{Failure, print_json, result, this_binary};

pub mod packets;
pub mod relay;

/// Arguments of `tombolo-bench net`.
#[derive(Args)]
pub struct Arguments {
    /// The `tombolo` that is measured.
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
    /// How often each is measured.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// How long each stream lasts.
    #[arg(long, value_name = "S", default_value_t = 2)]
    seconds: u32,
    /// Only these, separated by commas; all of them unless given.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(WAYS))]
    way: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What joins the two namespaces.
const WAYS: [&str; 5] = ["veth", "bridge", "macvlan", "relay", "tombolo"];
const CONTROLS: [&str; 2] = ["cubic", "bbr"];
const LIMIT: Duration = Duration::from_secs(60);
const ADDRESS: &str = "10.81.0.2";

fn ip(words: &str) -> Result<(), Failure> {
    let output = Command::new("ip").args(words.split_whitespace()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Two namespaces, `eth0` in each, and what joins them, as long as this lives.
struct Pair {
    prefix: String,
    /// What moves frames, if processes do.
    _processes: Vec<Guard>,
}

impl Pair {
    fn namespace(&self, which: &str) -> String {
        format!("{}-{which}", self.prefix)
    }

    fn open(way: &str, arguments: &Arguments) -> Result<Self, Failure> {
        let prefix = format!("tbn{}", std::process::id());
        let mut pair = Self { prefix, _processes: Vec::new() };
        for which in ["a", "b", "m"] {
            let _ = ip(&format!("netns delete {}", pair.namespace(which)));
            ip(&format!("netns add {}", pair.namespace(which)))?;
        }
        let [a, b, middle] = ["a", "b", "m"].map(|which| pair.namespace(which));
        let ends = [&a, &b];
        match way {
            "veth" => ip(&format!("link add eth0 netns {a} type veth peer name eth0 netns {b}"))?,
            "bridge" => {
                ip(&format!("-n {middle} link add joint type bridge"))?;
                ip(&format!("-n {middle} link set joint up"))?;
                for (number, end) in ends.iter().enumerate() {
                    ip(&format!("link add eth0 netns {end} type veth peer name end{number} netns {middle}"))?;
                    ip(&format!("-n {middle} link set end{number} master joint up"))?;
                }
            }
            "macvlan" => {
                ip(&format!("-n {middle} link add under type veth peer name other"))?;
                for device in ["under", "other"] {
                    ip(&format!("-n {middle} link set {device} up"))?;
                }
                for end in ends {
                    ip(&format!("-n {middle} link add link under name end type macvlan mode bridge"))?;
                    ip(&format!("-n {middle} link set end netns {end} name eth0"))?;
                }
            }
            "relay" => {
                let mut command = Command::new(this_binary()?);
                command.args(["net-relay", &a, &b]);
                pair._processes.push(child::serve(&mut command)?.0);
            }
            _ => pair.start_tombolo(arguments, &ends.map(String::as_str), &middle)?,
        }
        for (number, end) in ends.iter().enumerate() {
            ip(&format!("-n {end} link set lo up"))?;
            ip(&format!("-n {end} address add 10.81.0.{}/24 dev eth0", number + 1))?;
            ip(&format!("-n {end} link set eth0 up"))?;
        }
        // Until both know each other.
        for attempt in 0.. {
            let mut ping = pair.command("a", "ping");
            let ping = ping.args(["-q", "-c", "1", "-W", "1", ADDRESS]).stdout(Stdio::null()).status()?;
            match ping.success() {
                true => break,
                false if attempt > 20 => {
                    return Err(Failure::new(format!("{way}: the two do not reach each other")));
                }
                false => {}
            }
        }
        Ok(pair)
    }

    fn start_tombolo(&mut self, arguments: &Arguments, ends: &[&str], middle: &str) -> Result<(), Failure> {
        ip(&format!("-n {middle} link add name outward type veth peer name far"))?;
        ip(&format!("-n {middle} link set far up"))?;
        let address = format!("shm:{}/{}.net", std::env::temp_dir().display(), self.prefix);
        let mut serve = Command::new("ip");
        serve.args(["netns", "exec", middle]).arg(&arguments.binary);
        serve.args(["net", "serve", "--uplink", "outward", "--listen", &address]);
        self._processes.push(child::serve(&mut serve)?.0);
        for end in ends {
            let mut attach = Command::new(&arguments.binary);
            attach.args(["net", "attach", "--from", &address, "--tap", "eth0", "--netns", end]);
            self._processes.push(child::serve(&mut attach)?.0);
        }
        Ok(())
    }

    /// A command in one of the two.
    fn command(&self, which: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(which), program]);
        command
    }

    fn own(&self, which: &str) -> Result<Command, Failure> {
        Ok(self.command(which, &this_binary()?.to_string_lossy()))
    }

    /// Bytes a second of a TCP stream from one to the other, and the machine's CPU seconds for a GB.
    fn stream(&self, control: &str, seconds: u32) -> Result<(f64, f64), Failure> {
        let mut server = self.command("b", "iperf3");
        let (_server, _) = child::serve(server.args(["-s", "-1", "--forceflush"]))?;
        // It prints its first line a moment before it listens.
        std::thread::sleep(Duration::from_millis(200));
        let mut client = self.command("a", "iperf3");
        client.args(["-J", "-C", control, "-t", &seconds.to_string(), "-c", ADDRESS]);
        let watch = Stopwatch::start()?;
        let found: Value = result(&mut client, LIMIT)?;
        let (_, cpu_s) = watch.elapsed()?;
        let received = &found["end"]["sum_received"];
        let figure = |name: &str| received[name].as_f64().filter(|figure| *figure > 0.0);
        let (rate, bytes) = figure("bits_per_second")
            .zip(figure("bytes"))
            .ok_or_else(|| Failure::new("iperf3 measured nothing"))?;
        Ok((rate / 8.0, cpu_s / (bytes / 1e9)))
    }

    /// Half a round trip of 64 bytes on the wire, in nanoseconds: median and 99th percentile.
    fn latency(&self) -> Result<(f64, f64), Failure> {
        let mut echo = self.own("b")?;
        let (_echo, _) = child::serve(echo.args(["net-packets", "echo"]))?;
        let found: Value = result(self.own("a")?.args(["net-packets", "ask", ADDRESS]), LIMIT)?;
        let figure = |name: &str| found[name].as_f64().ok_or_else(|| Failure::new("no latency was measured"));
        Ok((figure("median_ns")? / 2.0, figure("p99_ns")? / 2.0))
    }

    /// Packets a second, of 64 bytes on the wire, that come through.
    fn packets(&self) -> Result<f64, Failure> {
        let mut count = self.own("b")?;
        let (count, _) = child::serve(count.args(["net-packets", "echo"]))?;
        let found: Value = result(self.own("a")?.args(["net-packets", "flood", ADDRESS]), LIMIT)?;
        drop(count);
        found["packets_per_s"].as_f64().ok_or_else(|| Failure::new("no packets came through"))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self._processes.clear();
        for which in ["a", "b", "m"] {
            let _ = ip(&format!("netns delete {}", self.namespace(which)));
        }
    }
}

fn measure(way: &str, arguments: &Arguments) -> Result<Value, Failure> {
    let pair = Pair::open(way, arguments)?;
    let mut figures = Map::new();
    for control in CONTROLS {
        let (bytes_per_s, cpu_s_per_gb) = pair.stream(control, arguments.seconds)?;
        figures.insert(format!("{control}_bytes_per_s"), json!(bytes_per_s));
        figures.insert(format!("{control}_cpu_s_per_gb"), json!(cpu_s_per_gb));
    }
    let (median_ns, p99_ns) = pair.latency()?;
    figures.insert("one_way_ns".into(), json!(median_ns));
    figures.insert("one_way_p99_ns".into(), json!(p99_ns));
    figures.insert("packets_per_s".into(), json!(pair.packets()?));
    Ok(figures.into())
}

/// Measures all.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    let is_asked_for =
        |way: &&str| arguments.way.is_empty() || arguments.way.iter().any(|asked| asked == way);
    let ways: Vec<&str> = WAYS.into_iter().filter(is_asked_for).collect();
    let mut found: Map<String, Value> = ways.iter().map(|way| ((*way).to_owned(), json!([]))).collect();
    for round in 1..=arguments.rounds {
        for way in &ways {
            eprintln!("net: {way}, round {round} of {}", arguments.rounds);
            let figures = measure(way, arguments).map_err(|failure| failure.during(way))?;
            if let Some(rounds) = found.get_mut(*way).and_then(Value::as_array_mut) {
                rounds.push(figures);
            }
        }
    }
    if arguments.json {
        return print_json(&found);
    }
    for way in ways {
        let of = |name: &str| {
            let rounds = found[way].as_array().cloned().unwrap_or_default();
            median(&rounds.iter().filter_map(|round| round[name].as_f64()).collect::<Vec<_>>())
                .unwrap_or(f64::NAN)
        };
        println!(
            "{way:<8} cubic {:6.2} Gb/s ({:.2} CPU s/GB), bbr {:6.2} Gb/s ({:.2}), one way {:6.1} us (99 %: {:6.1}), {:7.0} packets/s",
            of("cubic_bytes_per_s") * 8e-9,
            of("cubic_cpu_s_per_gb"),
            of("bbr_bytes_per_s") * 8e-9,
            of("bbr_cpu_s_per_gb"),
            of("one_way_ns") / 1000.0,
            of("one_way_p99_ns") / 1000.0,
            of("packets_per_s"),
        );
    }
    Ok(())
}
