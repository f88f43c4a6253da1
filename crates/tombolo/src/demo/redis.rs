//! redis under load: random GETs of values that are checked, some of them under way at once.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::children::{self, Child};
use super::compare::{Place, Workload};
use super::directory::Directory;
use super::{Demo, STOP};
use crate::Failure;

/// About 130 MB with what redis needs beside the values.
const KEYS: u64 = 110_000;
const VALUE_BYTES: usize = 1000;
const WARM_UP: u64 = 20_000;
const GETS: u64 = 80_000;
/// Requests under way at once.
const PIPELINE: u64 = 16;
/// For a server that starts, or does not answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// Between the end of a server's connections and its own.
const ENDING: Duration = Duration::from_millis(200);

/// The workload.
pub struct Redis {
    socket: PathBuf,
}

impl Redis {
    /// None without a server to run.
    pub fn find(directory: &Directory) -> Option<Self> {
        let mut version = Command::new("redis-server");
        version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let found = version.status().is_ok_and(|status| status.success());
        found.then(|| Self { socket: directory.file("redis.sock") })
    }

    fn connect(&self, server: &mut Child) -> Result<Client, Failure> {
        let since = Instant::now();
        loop {
            match UnixStream::connect(&self.socket) {
                Ok(stream) => return Ok(Client::new(stream)?),
                Err(error) if since.elapsed() > ANSWER_LIMIT => {
                    return Err(Failure::new(format!("redis-server does not listen: {error}")));
                }
                Err(_) => {}
            }
            if STOP.load(Ordering::Acquire) {
                return Err(children::interrupted());
            }
            if let Some(failure) = server.ended() {
                return Err(failure);
            }
            thread::sleep(POLL);
        }
    }
}

impl Workload for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn run(&self, demo: &Demo<'_>, place: &Place<'_>) -> Result<f64, Failure> {
        let _ = std::fs::remove_file(&self.socket);
        let mut command = demo.command(place, "redis-server".as_ref())?;
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--logfile", "/dev/null"]);
        command.arg("--unixsocket").arg(&self.socket).arg("--dir").arg(demo.directory.path());
        let mut server = Child::start(command, "redis-server", demo.directory)?;
        let mut client = self.connect(&mut server)?;
        let mut work = || -> io::Result<f64> {
            let tick = || {
                demo.bar.tick();
                if STOP.load(Ordering::Acquire) { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
            };
            client.load(tick)?;
            let mut random = Random(99);
            client.get(WARM_UP, &mut random, tick)?;
            let since = Instant::now();
            client.get(GETS, &mut random, tick)?;
            let elapsed = since.elapsed();
            client.request(&[b"SHUTDOWN", b"NOSAVE"]);
            client.send()?;
            Ok(elapsed.as_secs_f64())
        };
        let elapsed_s = work().map_err(|error| {
            if error.kind() == io::ErrorKind::Interrupted {
                return children::interrupted();
            }
            // If it has ended, that says more than what the client saw of it.
            thread::sleep(ENDING);
            server.ended().unwrap_or_else(|| Failure::new(format!("redis: {error}")))
        })?;
        server.finish(&STOP, || demo.bar.tick())?;
        Ok(elapsed_s)
    }
}

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }
}

/// The value of a key: hexadecimal digits, so half-compressible.
fn value(key: u64, value: &mut Vec<u8>) {
    value.clear();
    let mut random = Random(key);
    while value.len() < VALUE_BYTES {
        let number = random.next();
        value.extend((0..16).map(|digit| b"0123456789abcdef"[(number >> (4 * digit)) as usize & 15]));
    }
    value.truncate(VALUE_BYTES);
}

/// A connection that speaks redis's protocol.
struct Client {
    requests: UnixStream,
    answers: BufReader<UnixStream>,
    outgoing: Vec<u8>,
    line: Vec<u8>,
}

impl Client {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_write_timeout(Some(ANSWER_LIMIT))?;
        let answers = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        Ok(Self { requests: stream, answers, outgoing: Vec::new(), line: Vec::new() })
    }

    /// Appends a request: an array of strings with their lengths.
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

    /// Reads one line of an answer, which has to be this one.
    fn expect(&mut self, expected: &[u8]) -> io::Result<()> {
        self.line.clear();
        if self.answers.read_until(b'\n', &mut self.line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match self.line.trim_ascii_end() {
            line if line == expected => Ok(()),
            line => Err(io::Error::other(format!("it answered `{}`", String::from_utf8_lossy(line)))),
        }
    }

    fn load(&mut self, tick: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut bytes = Vec::new();
        for first in (0..KEYS).step_by(PIPELINE as usize) {
            tick()?;
            let keys = first..(first + PIPELINE).min(KEYS);
            for key in keys.clone() {
                value(key, &mut bytes);
                self.request(&[b"SET", key.to_string().as_bytes(), &bytes]);
            }
            self.send()?;
            for _ in keys {
                self.expect(b"+OK")?;
            }
        }
        Ok(())
    }

    /// Reads the values of random keys, and checks them.
    fn get(&mut self, count: u64, random: &mut Random, tick: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let (mut found, mut expected) = (vec![0; VALUE_BYTES + 2], Vec::new());
        let header = format!("${VALUE_BYTES}");
        for _ in 0..count / PIPELINE {
            tick()?;
            let keys: Vec<u64> = (0..PIPELINE).map(|_| random.next() % KEYS).collect();
            for key in &keys {
                self.request(&[b"GET", key.to_string().as_bytes()]);
            }
            self.send()?;
            for &key in &keys {
                self.expect(header.as_bytes())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_answer_is_an_error() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut client = Client::new(near).unwrap();
        client.request(&[b"GET", b"17"]);
        client.send().unwrap();
        let mut sent = [0; 21];
        far.read_exact(&mut sent).unwrap();
        assert_eq!(&sent, b"*2\r\n$3\r\nGET\r\n$2\r\n17\r\n");
        far.write_all(b"+OK\r\n-LOADING\r\n").unwrap();
        client.expect(b"+OK").unwrap();
        assert!(client.expect(b"+OK").unwrap_err().to_string().contains("-LOADING"));
        drop(far);
        assert!(client.expect(b"+OK").is_err());
    }
}
