//! Random GETs at a redis server, by a small client of its own: a benchmark
//! client would pick keys and pipelines as it likes, and check nothing.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tombolo_host::cpu::Stopwatch;

use super::surroundings::{Guard, Place, Surroundings};
use super::workload::{Cost, Random, Unit, Workload};

/// About 150 MB with what redis needs beside the values.
const KEYS: u64 = 130_000;
const VALUE_BYTES: usize = 1000;
const WARM_UP: u64 = 30_000;
const GETS: u64 = 100_000;
/// Requests under way at once.
const PIPELINE: u64 = 16;
/// For a server that starts or ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// The workload.
pub struct Redis {
    socket: PathBuf,
    folder: PathBuf,
}

impl Redis {
    /// None without a server to run.
    pub fn new(surroundings: &Surroundings) -> Option<Self> {
        let asked = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
        asked
            .is_ok_and(|status| status.success())
            .then(|| Self { socket: surroundings.file("redis.sock"), folder: surroundings.file("") })
    }

    fn connect(&self, server: &mut Guard) -> Result<Client, String> {
        let since = Instant::now();
        loop {
            match UnixStream::connect(&self.socket) {
                Ok(stream) => return Client::new(stream).map_err(|error| format!("redis: {error}")),
                Err(error) if since.elapsed() > PATIENCE => {
                    return Err(format!("redis does not answer: {error}"));
                }
                Err(_) => {}
            }
            if let Ok(Some(status)) = server.0.try_wait() {
                return Err(format!("redis ended: {status}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The value of a key: hexadecimal digits, so half-compressible.
fn value(key: u64, value: &mut Vec<u8>) {
    value.clear();
    let mut random = Random(key);
    while value.len() < VALUE_BYTES {
        // By hand, because checking must not take longer than answering.
        let number = random.next();
        value.extend((0..16).map(|digit| b"0123456789abcdef"[(number >> (4 * digit)) as usize & 15]));
    }
    value.truncate(VALUE_BYTES);
}

struct Client {
    requests: UnixStream,
    answers: BufReader<UnixStream>,
    outgoing: Vec<u8>,
    line: Vec<u8>,
}

impl Client {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let answers = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        Ok(Self { requests: stream, answers, outgoing: Vec::new(), line: Vec::new() })
    }

    /// Appends a request, in redis's protocol: an array of strings with their lengths.
    fn request(&mut self, words: &[&[u8]]) {
        let _ = write!(self.outgoing, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.outgoing, "${}\r\n", word.len());
            self.outgoing.extend_from_slice(word);
            self.outgoing.extend_from_slice(b"\r\n");
        }
    }

    fn send(&mut self) -> io::Result<()> {
        self.requests.write_all(&self.outgoing)?;
        self.outgoing.clear();
        Ok(())
    }

    /// Reads one line of an answer.
    fn line(&mut self) -> io::Result<&[u8]> {
        self.line.clear();
        if self.answers.read_until(b'\n', &mut self.line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.line.trim_ascii_end())
    }

    fn load(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        for first in (0..KEYS).step_by(PIPELINE as usize) {
            let keys = first..(first + PIPELINE).min(KEYS);
            for key in keys.clone() {
                value(key, &mut bytes);
                self.request(&[b"SET", key.to_string().as_bytes(), &bytes]);
            }
            self.send()?;
            for _ in keys {
                let answer = self.line()?;
                if answer != b"+OK" {
                    return Err(io::Error::other(String::from_utf8_lossy(answer).into_owned()));
                }
            }
        }
        Ok(())
    }

    /// Reads the values of random keys, and checks them.
    fn get(&mut self, count: u64, random: &mut Random) -> io::Result<()> {
        let (mut found, mut expected) = (vec![0; VALUE_BYTES + 2], Vec::new());
        let header = format!("${VALUE_BYTES}");
        for _ in 0..count / PIPELINE {
            let keys: Vec<u64> = (0..PIPELINE).map(|_| random.next() % KEYS).collect();
            for key in &keys {
                self.request(&[b"GET", key.to_string().as_bytes()]);
            }
            self.send()?;
            for &key in &keys {
                let answer = self.line()?;
                if answer != header.as_bytes() {
                    return Err(io::Error::other(format!("key {key}: {}", String::from_utf8_lossy(answer))));
                }
                self.answers.read_exact(&mut found)?;
                value(key, &mut expected);
                if found[..VALUE_BYTES] != expected {
                    return Err(io::Error::other(format!("key {key} has a wrong value")));
                }
            }
        }
        Ok(())
    }
}

impl Workload for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn title(&self) -> &'static str {
        "redis, uniformly random GETs of 1000-byte values, 16 under way"
    }

    fn unit(&self) -> Unit {
        Unit::Nanoseconds
    }

    fn run(&self, place: &Place<'_>) -> Result<Cost, String> {
        let _ = std::fs::remove_file(&self.socket);
        let mut command = place.command("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&self.socket);
        command.arg("--dir").arg(&self.folder).stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = Guard(command.spawn().map_err(|error| format!("redis-server: {error}"))?);
        let mut client = self.connect(&mut server)?;
        let mut work = || -> io::Result<Cost> {
            client.load()?;
            let mut random = Random(99);
            client.get(WARM_UP, &mut random)?;
            let watch = Stopwatch::start()?;
            client.get(GETS, &mut random)?;
            let (wall_s, cpu_s) = watch.elapsed()?;
            client.request(&[b"SHUTDOWN", b"NOSAVE"]);
            client.send()?;
            let each_ns = |seconds: f64| seconds * 1e9 / GETS as f64;
            Ok(Cost { wall: each_ns(wall_s), cpu: each_ns(cpu_s) })
        };
        let cost = work().map_err(|error| format!("redis: {error}"))?;
        let since = Instant::now();
        while server.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            if since.elapsed() > PATIENCE {
                return Err("redis does not end".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_the_server_wants_it() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut client = Client::new(near).unwrap();
        client.request(&[b"GET", b"17"]);
        client.send().unwrap();
        let mut sent = [0; 21];
        far.read_exact(&mut sent).unwrap();
        assert_eq!(&sent, b"*2\r\n$3\r\nGET\r\n$2\r\n17\r\n");
    }
}
