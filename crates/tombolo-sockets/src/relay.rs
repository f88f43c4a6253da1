//! Bytes between an end of a pair and a socket of TCP, where one side of a connection was handed over and the other is a program without the library.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::sockets::set_option;

/// Bytes that are read at once.
pub const BUFFER_BYTES: usize = 64 << 10;
/// How often it is read from one side in one turn. Others wait meanwhile.
const READS_MAX: usize = 16;

/// Both directions.
#[derive(Debug)]
pub struct Relay {
    /// The server's end of the pair.
    pub end: PassedDescriptor,
    /// The client's socket. The client may have it, too, and set it to wait or not: each call here says that it does not.
    pub tcp: PassedDescriptor,
    to_server: Direction,
    to_client: Direction,
}

/// What has come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flowing {
    /// It goes on when something is heard of it.
    Open,
    /// More can be carried at once.
    More,
    /// Both directions have ended, or one side is gone.
    Over,
}

#[derive(Debug, Default)]
struct Direction {
    /// What was read and could not be written.
    waiting: Vec<u8>,
    /// How much of that was written.
    written: usize,
    /// Nothing more comes.
    is_at_end: bool,
    /// And that was passed on.
    is_over: bool,
}

impl Relay {
    /// Between these.
    pub fn new(end: PassedDescriptor, tcp: PassedDescriptor) -> Self {
        Self { end, tcp, to_server: Direction::default(), to_client: Direction::default() }
    }

    /// Carries what can be carried now, by `buffer`.
    pub fn go_on(&mut self, buffer: &mut [u8]) -> Flowing {
        let there = self.to_server.go_on(self.end.as_fd(), self.tcp.as_fd(), buffer);
        let back = self.to_client.go_on(self.tcp.as_fd(), self.end.as_fd(), buffer);
        let (Ok(there), Ok(back)) = (there, back) else {
            // The other side sees that, too: a reset, not the end of a stream.
            let now = [1i32.to_ne_bytes(), [0; 4]].concat();
            let _ = set_option(self.tcp.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &now);
            return Flowing::Over;
        };
        match (self.to_server.is_over && self.to_client.is_over, there || back) {
            (true, _) => Flowing::Over,
            (false, true) => Flowing::More,
            (false, false) => Flowing::Open,
        }
    }
}

impl Direction {
    /// Writes what waits; whether all of it was written.
    fn write(&mut self, to: BorrowedFd<'_>) -> Result<bool, Errno> {
        while self.written < self.waiting.len() {
            let rest = self.waiting.get(self.written..).unwrap_or(&[]);
            match rustix::net::send(to, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => self.written += count,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        (self.waiting, self.written) = (Vec::new(), 0);
        Ok(true)
    }

    /// Whether it could go on at once.
    fn go_on(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<bool, Errno> {
        for _ in 0..READS_MAX {
            if self.is_over || !self.write(to)? {
                return Ok(false);
            }
            if self.is_at_end {
                self.is_over = true;
                // Where the other side is gone, its own direction says so.
                let _ = rustix::net::shutdown(to, Shutdown::Write);
                return Ok(false);
            }
            match rustix::net::recv(from, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.is_at_end = true,
                Ok((count, _)) => {
                    let read = buffer.get(..count).unwrap_or(&[]);
                    let sent = match rustix::net::send(to, read, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                        Ok(sent) => sent,
                        Err(Errno::AGAIN | Errno::INTR) => 0,
                        Err(error) => return Err(error),
                    };
                    self.waiting = read.get(sent..).unwrap_or(&[]).to_vec();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, Shutdown as Half, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    fn passed(socket: impl Into<OwnedFd>) -> PassedDescriptor {
        socket.into().into()
    }

    fn sides() -> (UnixStream, TcpStream, Relay) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        (one, server, Relay::new(passed(other), passed(client)))
    }

    fn until_over(relay: &mut Relay) {
        let since = Instant::now();
        while relay.go_on(&mut vec![0; BUFFER_BYTES]) != Flowing::Over {
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
        assert_eq!(relay.go_on(&mut vec![0; BUFFER_BYTES]), Flowing::Open);
        // With bytes that it has not read.
        drop(client);
        until_over(&mut relay);
        drop(relay);
        // Another thread closes its sockets.
        server.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let error = (&server).read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
    }
}
