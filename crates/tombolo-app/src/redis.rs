//! A small client of redis: it sets values, and gets random ones and checks them. A benchmark client
//! would pick keys and pipelines as it likes, and check nothing.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use tombolo_host::timing::command::{REDIS_ANSWER_TIMEOUT, REDIS_CONNECT_INTERVAL};
use tombolo_random::Random;

/// Length of every value.
pub const VALUE_BYTES: usize = 1000;
/// Requests under way at once.
const PIPELINE: u64 = 16;

/// Whether there is a redis-server to run.
pub fn is_installed() -> bool {
    let mut version = Command::new("redis-server");
    version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// Adds the options of a server that keeps nothing on disk, listens at this socket only, and has its
/// current directory in this one.
pub fn add_options(command: &mut Command, socket: &Path, directory: &Path) {
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--logfile", "/dev/null"]);
    command.arg("--unixsocket").arg(socket).arg("--dir").arg(directory);
}

/// A connection to a server.
pub struct Client {
    requests: UnixStream,
    answers: BufReader<UnixStream>,
    outgoing: Vec<u8>,
    line: Vec<u8>,
}

/// The value of a key: hexadecimal digits, so half-compressible.
fn value(key: u64, value: &mut Vec<u8>) {
    value.clear();
    let mut random = Random::new(key);
    while value.len() < VALUE_BYTES {
        // By hand, because checking must not take longer than answering.
        let number = random.next();
        value.extend((0..16).map(|digit| b"0123456789abcdef"[(number >> (4 * digit)) as usize & 15]));
    }
    value.truncate(VALUE_BYTES);
}

impl Client {
    /// Connects to a server that may still be starting; an error of `check` ends the attempt.
    pub fn connect(socket: &Path, mut check: impl FnMut() -> io::Result<()>) -> io::Result<Self> {
        let since = Instant::now();
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => return Self::new(stream),
                Err(error) if since.elapsed() > REDIS_ANSWER_TIMEOUT => return Err(error),
                Err(_) => {}
            }
            check()?;
            std::thread::sleep(REDIS_CONNECT_INTERVAL);
        }
    }

    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(REDIS_ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(REDIS_ANSWER_TIMEOUT))?;
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

    /// Sets the values of keys 0 to `keys` - 1; an error of `check` ends it.
    pub fn load(&mut self, keys: u64, mut check: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        let mut bytes = Vec::new();
        for first in (0..keys).step_by(PIPELINE as usize) {
            check()?;
            let batch = first..(first + PIPELINE).min(keys);
            for key in batch.clone() {
                value(key, &mut bytes);
                self.request(&[b"SET", key.to_string().as_bytes(), &bytes]);
            }
            self.send()?;
            for _ in batch {
                self.expect(b"+OK")?;
            }
        }
        Ok(())
    }

    /// Gets `count` values of random keys below `keys`, and checks them; an error of `check` ends it.
    pub fn get(
        &mut self,
        keys: u64,
        count: u64,
        random: &mut Random,
        mut check: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut found, mut expected) = (vec![0; VALUE_BYTES + 2], Vec::new());
        let header = format!("${VALUE_BYTES}");
        for _ in 0..count / PIPELINE {
            check()?;
            let batch: Vec<u64> = (0..PIPELINE).map(|_| random.below(keys)).collect();
            for key in &batch {
                self.request(&[b"GET", key.to_string().as_bytes()]);
            }
            self.send()?;
            for &key in &batch {
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

    /// Asks the server to end.
    pub fn shut_down(&mut self) -> io::Result<()> {
        self.request(&[b"SHUTDOWN", b"NOSAVE"]);
        self.send()
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

    #[test]
    fn a_server_that_does_not_come_is_waited_for_until_the_check_fails() {
        let mut checks = 0;
        let outcome = Client::connect(Path::new("/no/such/socket"), || {
            checks += 1;
            if checks < 3 { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
        });
        assert_eq!(outcome.err().map(|error| error.kind()), Some(io::ErrorKind::Interrupted));
        assert_eq!(checks, 3);
    }
}
