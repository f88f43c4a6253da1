//! What the machine does at best: a cache line to another processor and back, a copy, and bare UDP.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde::Serialize;
use tombolo_host::process;
use tombolo_host::shared::SharedMemory;
use tombolo_host::udp::{MAX_BATCH_BYTES, RECEIVE_BUFFER_BYTES, UdpSocket};

use super::{AREA, BYTES, LONG, PATIENCE, Places, WARM_UP};
use crate::bench::children;
use crate::size::Size;
use crate::{Failure, output};

/// What the machine does at best.
#[derive(Debug, Serialize)]
pub struct Floor {
    /// A cache line to another processor and back, both polling.
    pub cache_line_round_trip_ns: f64,
    /// One copy of so many bytes, within the area that the transfers use.
    pub copies: Vec<Rate>,
    /// Bare UDP on loopback with segmentation offload both ways, so many bytes acknowledged at a time.
    pub udp: Vec<Rate>,
}

/// How fast bytes of that size go.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    pub size_bytes: u64,
    pub bytes_per_s: f64,
}

impl Floor {
    /// Measures it.
    pub fn measure(first: usize, last: usize, sizes: &[Size]) -> Result<Self, Failure> {
        Ok(Self {
            cache_line_round_trip_ns: cache_line(first, last)?,
            copies: copies(sizes)?,
            udp: udp([first, last], sizes)?,
        })
    }
}

/// Two processors that hand a line to each other.
fn cache_line(first: usize, last: usize) -> Result<f64, Failure> {
    const ROUNDS: u64 = 200_000;
    let (ball, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = process::pin_thread(last);
            while !stop.load(Ordering::Relaxed) {
                let seen = ball.load(Ordering::Acquire);
                if seen % 2 == 1 {
                    ball.store(seen + 1, Ordering::Release);
                }
            }
        });
        let asked = scope.spawn(|| {
            process::pin_thread(first)?;
            let mut since = Instant::now();
            for round in 0..ROUNDS + ROUNDS / 10 {
                if round == ROUNDS / 10 {
                    since = Instant::now();
                }
                ball.store(2 * round + 1, Ordering::Release);
                while ball.load(Ordering::Acquire) != 2 * round + 2 {
                    if since.elapsed() > PATIENCE {
                        return Err(Failure::new("the other processor does not answer"));
                    }
                }
            }
            Ok(since.elapsed().as_nanos() as f64 / ROUNDS as f64)
        });
        let found = asked.join();
        stop.store(true, Ordering::Relaxed);
        found.map_err(|_| Failure::new("a thread failed"))?
    })
}

/// Copies between two halves of shared memory, as the node does, walking through them as the transfers do.
fn copies(sizes: &[Size]) -> Result<Vec<Rate>, Failure> {
    let [from, to] = [SharedMemory::create("bench-from", AREA)?, SharedMemory::create("bench-to", AREA)?];
    from.populate(0, AREA);
    to.populate(0, AREA);
    let mut found = Vec::new();
    for &Size(size_bytes) in sizes {
        let size = size_bytes as usize;
        let mut places = Places::new(size);
        let (mut done, mut since) = (0, Instant::now());
        for round in 0.. {
            if round == WARM_UP {
                (done, since) = (0, Instant::now());
            }
            let at = places.next();
            to.span_mut(at, size)?.copy_from(from.span(at, size)?);
            done += size_bytes;
            if round > WARM_UP && (done >= 4 * BYTES || (round % 16 == 0 && since.elapsed() >= LONG)) {
                break;
            }
        }
        found.push(Rate { size_bytes, bytes_per_s: done as f64 / since.elapsed().as_secs_f64() });
    }
    Ok(found)
}

/// Bytes under way of bare UDP: less than a socket's buffer.
const UDP_WINDOW_BYTES: usize = 2 << 20;
const UDP_BUFFER_BYTES: usize = 8 << 20;
/// Datagrams that are tried; the best counts.
const UDP_SEGMENTS: [usize; 3] = [4 * 1024, 16 * 1024, 32 * 1024];
/// Asks the other end to stop.
const GOODBYE: [u8; 1] = [0];

/// Bare UDP, the best of several sizes of datagrams.
fn udp(processors: [usize; 2], sizes: &[Size]) -> Result<Vec<Rate>, Failure> {
    let mut found: Vec<Rate> = Vec::new();
    for &Size(size_bytes) in sizes {
        let mut best = 0.0_f64;
        for segment in UDP_SEGMENTS {
            best = best.max(udp_rate(processors, size_bytes as usize, segment)?);
        }
        found.push(Rate { size_bytes, bytes_per_s: best });
    }
    Ok(found)
}

fn udp_rate([first, last]: [usize; 2], size: usize, segment: usize) -> Result<f64, Failure> {
    // The sink inherits the pin.
    process::pin_thread(last)?;
    let mut command = children::itself()?;
    command.args(["bench", "udp-sink", "--size", &size.to_string()]);
    let (_sink, line) = children::start(&mut command)?;
    process::pin_thread(first)?;
    let address: SocketAddr =
        line.parse().map_err(|_| Failure::new(format!("the sink said `{line}` instead of its address")))?;
    let socket = UdpSocket::connect(address)?;
    socket.set_buffer_bytes(UDP_BUFFER_BYTES);
    let (bytes, mut answers) = (vec![7; size.max(MAX_BATCH_BYTES)], vec![0; RECEIVE_BUFFER_BYTES]);
    let batch_bytes = MAX_BATCH_BYTES / segment * segment;
    // As many under way as Tombolo has, but no more than fit into the buffers.
    let most = (UDP_WINDOW_BYTES / size.max(1)).clamp(1, super::WINDOW);
    let (mut under_way, mut done, mut rounds, mut since) = (0, 0_u64, 0, Instant::now());
    loop {
        while under_way < most {
            let mut sent = 0;
            while sent < size {
                let part = batch_bytes.min(size - sent);
                match socket.send_batch(&bytes[..part], segment) {
                    Ok(count) => sent += count,
                    Err(Errno::AGAIN) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            under_way += 1;
        }
        let asked = Instant::now();
        let count = loop {
            match socket.receive(&mut answers) {
                Ok(batch) => break batch.length_bytes.div_ceil(batch.segment_bytes.max(1)),
                Err(Errno::AGAIN | Errno::INTR) if asked.elapsed() < PATIENCE => std::hint::spin_loop(),
                Err(error) => return Err(Failure::new(format!("bare UDP lost something: {error}"))),
            }
        };
        under_way -= count.min(under_way);
        done += (count * size) as u64;
        rounds += 1;
        if rounds == WARM_UP.min(64) {
            (done, since) = (0, Instant::now());
        } else if rounds > 64 && (done >= BYTES || since.elapsed() >= LONG) {
            break;
        }
    }
    let rate = done as f64 / since.elapsed().as_secs_f64();
    let _ = socket.send(&GOODBYE);
    Ok(rate)
}

/// The other end of bare UDP: answers each so many bytes with one.
pub fn sink(size: usize) -> Result<u8, Failure> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into())?;
    socket.set_buffer_bytes(UDP_BUFFER_BYTES);
    output::line(&socket.local_address()?.to_string());
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    let (mut had, mut heard) = (0, Instant::now());
    loop {
        match socket.receive_from(&mut buffer) {
            Ok(batch) if batch.length_bytes == GOODBYE.len() && size != GOODBYE.len() => return Ok(0),
            Ok(batch) => {
                had += batch.length_bytes;
                heard = Instant::now();
                while had >= size {
                    had -= size;
                    if let Some(from) = batch.from {
                        socket.send_to(&[1, 1], from)?;
                    }
                }
            }
            Err(Errno::AGAIN | Errno::INTR) if heard.elapsed() < Duration::from_secs(5) => {
                std::hint::spin_loop();
            }
            Err(_) => return Ok(0),
        }
    }
}
