//! Network namespaces of a measurement, and what is started in them.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tombolo_app::child::{self, Guard};
use tombolo_host::cpu::Stopwatch;

use crate::{Failure, result, this_binary};

/// How long a client may take.
const LIMIT: Duration = Duration::from_secs(60);

fn ip(words: &str) -> Result<(), Failure> {
    let output = Command::new("ip").args(words.split_whitespace()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Namespaces, and what joins them, as long as this lives. Words of commands name them in braces.
pub struct Room {
    prefix: String,
    names: Vec<&'static str>,
    /// What moves frames, if processes do.
    processes: Vec<Guard>,
    directory: std::path::PathBuf,
}

impl Room {
    /// Makes the namespaces.
    pub fn new(names: &[&'static str]) -> Result<Self, Failure> {
        let prefix = format!("tbn{}", std::process::id());
        let directory = std::env::temp_dir().join(&prefix);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir(&directory)?;
        let room = Self { prefix, names: names.to_vec(), processes: Vec::new(), directory };
        for name in names {
            let _ = ip(&format!("netns delete {}", room.namespace(name)));
            ip(&format!("netns add {}", room.namespace(name)))?;
            room.ip(&format!("-n {{{name}}} link set lo up"))?;
        }
        Ok(room)
    }

    /// What a namespace is called.
    pub fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// A file that goes with this.
    pub fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Runs `ip`.
    pub fn ip(&self, words: &str) -> Result<(), Failure> {
        let named = |words: String, name: &&str| words.replace(&format!("{{{name}}}"), &self.namespace(name));
        ip(&self.names.iter().fold(words.to_owned(), named))
    }

    /// A command in a namespace; on one processor, if so wanted.
    pub fn command(&self, name: &str, processor: Option<usize>, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(name)]);
        if let Some(processor) = processor {
            command.args(["taskset", "-c", &processor.to_string()]);
        }
        command.arg(program);
        command
    }

    /// This program in a namespace.
    pub fn own(&self, name: &str, processor: Option<usize>) -> Result<Command, Failure> {
        Ok(self.command(name, processor, &this_binary()?.to_string_lossy()))
    }

    /// Starts what moves frames.
    pub fn serve(&mut self, command: &mut Command) -> Result<(), Failure> {
        self.processes.push(child::serve(command)?.0);
        Ok(())
    }

    /// Gives `eth0` in a namespace its address, and switches it on.
    pub fn address(&self, name: &str, number: usize) -> Result<(), Failure> {
        self.ip(&format!("-n {{{name}}} address add 10.81.0.{number}/24 dev eth0"))?;
        self.ip(&format!("-n {{{name}}} link set eth0 up"))
    }

    /// Waits until one reaches the other.
    pub fn await_reach(&self, from: &str, to: &str) -> Result<(), Failure> {
        for _ in 0..20 {
            let mut ping = self.command(from, None, "ping");
            if ping.args(["-q", "-c", "1", "-W", "1", to]).stdout(Stdio::null()).status()?.success() {
                return Ok(());
            }
        }
        Err(Failure::new("the two do not reach each other"))
    }

    /// Bytes a second of a TCP stream from one to the other, and the machine's CPU seconds for a GB.
    pub fn stream(
        &self,
        [from, to]: [&str; 2],
        address: &str,
        control: &str,
        seconds: u32,
    ) -> Result<(f64, f64), Failure> {
        let mut server = self.command(to, None, "iperf3");
        let (_server, _) = child::serve(server.args(["-s", "-1", "--forceflush"]))?;
        // It prints its first line a moment before it listens.
        std::thread::sleep(Duration::from_millis(200));
        let mut client = self.command(from, None, "iperf3");
        client.args(["-J", "-C", control, "-t", &seconds.to_string(), "-c", address]);
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
    pub fn latency(
        &self,
        [from, to]: [&str; 2],
        address: &str,
        processor: Option<usize>,
    ) -> Result<(f64, f64), Failure> {
        let mut echo = self.own(to, processor)?;
        let (_echo, _) = child::serve(echo.args(["net-packets", "echo"]))?;
        let found: Value = result(self.own(from, processor)?.args(["net-packets", "ask", address]), LIMIT)?;
        let figure = |name: &str| found[name].as_f64().ok_or_else(|| Failure::new("no latency was measured"));
        Ok((figure("median_ns")? / 2.0, figure("p99_ns")? / 2.0))
    }

    /// Packets a second, of 64 bytes on the wire, that come through.
    pub fn packets(&self, [from, to]: [&str; 2], address: &str) -> Result<f64, Failure> {
        let mut count = self.own(to, None)?;
        let (_count, _) = child::serve(count.args(["net-packets", "echo"]))?;
        let found: Value = result(self.own(from, None)?.args(["net-packets", "flood", address]), LIMIT)?;
        found["packets_per_s"].as_f64().ok_or_else(|| Failure::new("no packets came through"))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.processes.clear();
        for name in &self.names {
            let _ = ip(&format!("netns delete {}", self.namespace(name)));
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
