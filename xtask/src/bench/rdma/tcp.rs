//! A TCP ping-pong of the kernel: two threads, each pinned, that poll sockets and
//! send each other messages in turn. The least that a library over TCP can cost.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use tombolo_host::process;

use super::figures::{Figures, What, under};
use super::pair::Pair;
use super::{SIZES, median};
use crate::bench::interrupted;

/// Its name in tables.
pub const WHO: &str = "kernel TCP ping-pong";
/// The longest that one race may take, so that neither end waits for the other for ever.
const RACE_LIMIT: Duration = Duration::from_secs(30);

/// What a ping-pong found, in nanoseconds of half a round trip.
#[derive(Debug)]
struct Found {
    median_ns: f64,
    mean_ns: f64,
}

/// One end. Whichever ends first ends the other.
struct End<'a> {
    stream: TcpStream,
    processor: usize,
    over: &'a AtomicBool,
    deadline: Instant,
}

impl End<'_> {
    /// Tries until it is possible.
    fn persist(&self, mut attempt: impl FnMut(&TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        for round in 0u64.. {
            match attempt(&self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                done => return done,
            }
            // Looking costs, so it is done now and then.
            if round % 1024 == 1023 {
                if self.over.load(Ordering::Relaxed) || interrupted() {
                    return Err(io::Error::other("the other end is over"));
                }
                if Instant::now() > self.deadline {
                    return Err(ErrorKind::TimedOut.into());
                }
            }
        }
        Err(ErrorKind::TimedOut.into())
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.persist(|mut stream| stream.write(bytes.get(sent..).unwrap_or_default()))?;
        }
        Ok(())
    }

    fn receive(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut received = 0;
        while received < bytes.len() {
            received +=
                self.persist(|mut stream| stream.read(bytes.get_mut(received..).unwrap_or_default()))?;
        }
        Ok(())
    }

    fn prepare(&self, control: &str) -> io::Result<()> {
        process::pin_thread(self.processor)?;
        self.stream.set_nodelay(true)?;
        self.stream.set_nonblocking(true)?;
        set_tcp_congestion(&self.stream, control)?;
        let used = tcp_congestion(&self.stream)?;
        if used == control { Ok(()) } else { Err(io::Error::other(format!("TCP uses {used}"))) }
    }

    /// Sends messages and awaits each one's answer; latencies of half a round trip.
    fn ask(&self, control: &str, size: usize, warm_up: usize, count: usize) -> io::Result<Vec<f64>> {
        self.prepare(control)?;
        let (mut question, mut answer) = (vec![0; size], vec![0; size]);
        let mut latencies = Vec::with_capacity(count);
        for round in 0..warm_up + count {
            question.fill(round as u8);
            let since = Instant::now();
            self.send(&question)?;
            self.receive(&mut answer)?;
            let elapsed = since.elapsed();
            if answer != question {
                return Err(io::Error::other("another answer than was sent"));
            }
            if round >= warm_up {
                latencies.push(elapsed.as_nanos() as f64 / 2.0);
            }
        }
        Ok(latencies)
    }

    /// Sends everything back.
    fn answer(&self, control: &str, size: usize, count: usize) -> io::Result<()> {
        self.prepare(control)?;
        let mut bytes = vec![0; size];
        for _ in 0..count {
            self.receive(&mut bytes)?;
            self.send(&bytes)?;
        }
        Ok(())
    }
}

fn ping_pong(first: usize, last: usize, control: &str, size: usize, count: usize) -> io::Result<Found> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    let (over, deadline) = (AtomicBool::new(false), Instant::now() + RACE_LIMIT);
    let near = End { stream: near, processor: first, over: &over, deadline };
    let far = End { stream: far, processor: last, over: &over, deadline };
    let warm_up = count / 10;
    let (latencies, answered) = std::thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let answered = far.answer(control, size, warm_up + count);
            if answered.is_err() {
                over.store(true, Ordering::Relaxed);
            }
            answered
        });
        // A thread of its own: its pin is its own, too.
        let asking = scope.spawn(|| {
            let latencies = near.ask(control, size, warm_up, count);
            if latencies.is_err() {
                over.store(true, Ordering::Relaxed);
            }
            latencies
        });
        (asking.join(), answering.join())
    });
    let failed = |_| io::Error::other("a thread failed");
    let (latencies, answered) = (latencies.map_err(failed)?, answered.map_err(failed)?);
    let latencies = latencies.and_then(|latencies| answered.map(|()| latencies))?;
    let mean_ns = latencies.iter().sum::<f64>() / latencies.len().max(1) as f64;
    let median_ns = median(&latencies).ok_or_else(|| io::Error::other("nothing was measured"))?;
    Ok(Found { median_ns, mean_ns })
}

/// Measures it under a congestion control at every size.
pub fn race(pair: &Pair<'_>, control: &str, figures: &mut Figures) -> Result<(), String> {
    let who = under(WHO, Some(control));
    for size in SIZES {
        let count = ((256 << 20) / size).clamp(300, 10_000) as usize;
        match ping_pong(pair.first, pair.last, control, size as usize, count) {
            Ok(found) => {
                figures.note(&who, What::MedianNs, size, found.median_ns);
                figures.note(&who, What::MeanNs, size, found.mean_ns);
            }
            Err(_) if interrupted() => return Err("interrupted".into()),
            Err(error) => figures.fail(&who, size, &error.to_string()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_it(control: &str, size: usize) -> io::Result<Found> {
        let processors = process::processors();
        ping_pong(processors[0], processors[processors.len() - 1], control, size, 20)
    }

    #[test]
    fn messages_go_to_and_fro_whatever_their_size() {
        // Linux always has it.
        for size in [1, 64, 1 << 20] {
            let found = try_it("reno", size).unwrap();
            assert!(found.median_ns > 0.0 && found.mean_ns > 0.0);
        }
    }

    #[test]
    fn an_unknown_congestion_control_is_an_error_at_once() {
        assert!(try_it("none-of-them", 64).is_err());
    }
}
