//! The least of the Redis protocol that the tests speak.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

/// A connection to a Redis server.
pub struct Resp {
    reader: BufReader<UnixStream>,
    writer: BufWriter<UnixStream>,
}

impl Resp {
    /// Connects once the server accepts and has loaded its data.
    pub fn connect(path: &str, limit: Duration) -> Self {
        let since = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(path) {
                stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a socket");
                let reader = BufReader::new(stream.try_clone().expect("a socket"));
                let mut connection = Self { reader, writer: BufWriter::new(stream) };
                if connection.call(&[b"PING"]).is_ok_and(|answer| answer == b"PONG") {
                    return connection;
                }
            }
            assert!(since.elapsed() < limit, "no Redis at {path} after {limit:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a command without waiting for its answer.
    pub fn send(&mut self, words: &[&[u8]]) -> io::Result<()> {
        write!(self.writer, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.writer, "${}\r\n", word.len())?;
            self.writer.write_all(word)?;
            self.writer.write_all(b"\r\n")?;
        }
        Ok(())
    }

    /// The answer to the oldest command unanswered; an error answer is an error.
    pub fn answer(&mut self) -> io::Result<Vec<u8>> {
        self.writer.flush()?;
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::UnexpectedEof)?;
        match kind {
            "+" | ":" => Ok(rest.as_bytes().to_vec()),
            "$" => {
                let length = rest.parse::<usize>().map_err(|_| io::Error::other("no such value"))?;
                let mut bytes = vec![0; length + 2];
                self.reader.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(bytes)
            }
            _ => Err(io::Error::other(line.to_owned())),
        }
    }

    /// One command and its answer.
    pub fn call(&mut self, words: &[&[u8]]) -> io::Result<Vec<u8>> {
        self.send(words)?;
        self.answer()
    }
}
