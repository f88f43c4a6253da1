//! Bytes between an end of a pair and a socket of TCP, where one side of a connection was handed over and the other is a program without the library.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tombolo_host::sockets::set_option;

/// Most bytes that wait in one direction.
const BUFFER_BYTES: usize = 256 << 10;

/// Both directions.
#[derive(Debug)]
pub struct Relay {
    /// The server's end of the pair.
    pub end: OwnedFd,
    /// The client's socket.
    pub tcp: OwnedFd,
    to_server: Direction,
    to_client: Direction,
}

/// What has come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flowing {
    /// It goes on.
    Open,
    /// Both directions have ended, or one side is gone.
    Over,
}

#[derive(Debug, Default)]
struct Direction {
    waiting: Vec<u8>,
    /// How much of that was written.
    written: usize,
    /// Nothing more comes.
    is_at_end: bool,
    /// And that was passed on.
    is_over: bool,
}

impl Relay {
    /// Sockets that do not wait.
    pub fn new(end: OwnedFd, tcp: OwnedFd) -> Result<Self, Errno> {
        for socket in [&end, &tcp] {
            rustix::io::ioctl_fionbio(socket, true)?;
        }
        Ok(Self { end, tcp, to_server: Direction::default(), to_client: Direction::default() })
    }

    /// Carries what can be carried now.
    pub fn go_on(&mut self) -> Flowing {
        let there = self.to_server.go_on(&self.end, &self.tcp);
        let back = self.to_client.go_on(&self.tcp, &self.end);
        if there.is_err() || back.is_err() {
            // The other side sees that, too: a reset, not the end of a stream.
            let now = [1i32.to_ne_bytes(), [0; 4]].concat();
            let _ = set_option(self.tcp.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &now);
            return Flowing::Over;
        }
        if self.to_server.is_over && self.to_client.is_over { Flowing::Over } else { Flowing::Open }
    }
}

impl Direction {
    fn go_on(&mut self, from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
        loop {
            while self.written < self.waiting.len() {
                let rest = self.waiting.get(self.written..).unwrap_or(&[]);
                match rustix::net::send(to, rest, SendFlags::NOSIGNAL) {
                    Ok(count) => self.written += count,
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            self.waiting.clear();
            self.written = 0;
            if self.is_over {
                return Ok(());
            }
            if self.is_at_end {
                self.is_over = true;
                // Where the other side is gone, its own direction says so.
                let _ = rustix::net::shutdown(to, Shutdown::Write);
                return Ok(());
            }
            self.waiting.resize(BUFFER_BYTES, 0);
            let received = rustix::net::recv(from, &mut *self.waiting, RecvFlags::empty());
            let count = received.as_ref().map_or(0, |(count, _)| *count);
            self.waiting.truncate(count);
            match received {
                Ok((0, _)) => self.is_at_end = true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, Shutdown as Half, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    fn sides() -> (UnixStream, TcpStream, Relay) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        (one, server, Relay::new(other.into(), client.into()).unwrap())
    }

    fn until_over(relay: &mut Relay) {
        let since = Instant::now();
        while relay.go_on() == Flowing::Open {
            assert!(since.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    #[test]
    fn all_bytes_arrive_in_both_directions_and_each_ends_for_itself() {
        let (client, server, mut relay) = sides();
        let text = |seed: u8| (0..3_000_000u32).map(|at| (at / 3) as u8 ^ seed).collect::<Vec<u8>>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&client).write_all(&text(1)).unwrap();
                client.shutdown(Half::Write).unwrap();
            });
            let answered = scope.spawn(|| {
                let mut read = Vec::new();
                (&server).read_to_end(&mut read).unwrap();
                assert!(read == text(1));
                (&server).write_all(&text(2)).unwrap();
                server.shutdown(Half::Write).unwrap();
            });
            let read = scope.spawn(|| {
                let mut read = Vec::new();
                (&client).read_to_end(&mut read).unwrap();
                assert!(read == text(2));
            });
            until_over(&mut relay);
            answered.join().unwrap();
            read.join().unwrap();
        });
    }

    #[test]
    fn a_side_that_is_gone_is_a_reset_for_the_other() {
        let (client, server, mut relay) = sides();
        (&server).write_all(b"unread").unwrap();
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(relay.go_on(), Flowing::Open);
        // With bytes that it has not read.
        drop(client);
        until_over(&mut relay);
        drop(relay);
        let error = (&server).read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
    }
}
