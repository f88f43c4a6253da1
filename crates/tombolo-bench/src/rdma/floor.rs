//! What the machine does at best: a cache line to another processor and back, a copy, and bare UDP.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;
use tombolo_app::size::Size;
use tombolo_host::process;
use tombolo_host::shared::SharedMemory;

use super::bare::{self, Load, Trip};
use super::{ANSWER_TIMEOUT, AREA, BYTES, Places, WARM_UP, long};
use crate::Failure;

/// What the machine does at best.
#[derive(Debug, Serialize)]
pub struct Floor {
    /// A cache line to another processor and back, both polling.
    pub cache_line_round_trip_ns: f64,
    /// Copies of each size, within an area of ordinary pages as large as that of the transfers.
    pub copies: Vec<Rate>,
    /// As `copies`, in huge pages, where the kernel has them.
    pub copies_huge: Vec<Rate>,
    /// Bare UDP on loopback with segmentation offload both ways; the bytes of each size are acknowledged together.
    pub udp: Vec<Rate>,
    /// Round trips of each size over bare UDP.
    pub udp_ping_pong: Vec<Trip>,
    /// As `udp`, but of blocks in packets: copied there, checksummed, checked, and copied to their place.
    pub udp_packets: Vec<Rate>,
    /// As `udp_ping_pong`, of the same.
    pub udp_packets_ping_pong: Vec<Trip>,
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
            copies: copies(sizes, SharedMemory::populate)?,
            copies_huge: copies(sizes, SharedMemory::populate_huge)?,
            udp: bare::rates([first, last], Load::Bytes, sizes)?,
            udp_ping_pong: bare::trips([first, last], Load::Bytes, sizes)?,
            udp_packets: bare::rates([first, last], Load::Packets, sizes)?,
            udp_packets_ping_pong: bare::trips([first, last], Load::Packets, sizes)?,
        })
    }
}

/// Stores a word that the other end polls, and polls the word in which that end echoes it: nanoseconds there and back.
pub fn serve_ball(ball: &AtomicU64, back: &AtomicU64) -> Result<f64, Failure> {
    const ROUNDS: u64 = 200_000;
    let mut since = Instant::now();
    for round in 0..ROUNDS + ROUNDS / 10 {
        if round == ROUNDS / 10 {
            since = Instant::now();
        }
        ball.store(2 * round + 1, Ordering::Release);
        while back.load(Ordering::Acquire) != 2 * round + 2 {
            if since.elapsed() > ANSWER_TIMEOUT {
                return Err(Failure::new("the other processor does not answer"));
            }
        }
    }
    Ok(since.elapsed().as_nanos() as f64 / ROUNDS as f64)
}

/// Two processors that hand a line to each other.
pub fn cache_line(first: usize, last: usize) -> Result<f64, Failure> {
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
            serve_ball(&ball, &ball)
        });
        let found = asked.join();
        stop.store(true, Ordering::Relaxed);
        found.map_err(|_| Failure::new("a thread failed"))?
    })
}

/// Copies between two halves of shared memory, as the node does, walking through them as the transfers do.
fn copies(sizes: &[Size], populate: fn(&SharedMemory, usize, usize)) -> Result<Vec<Rate>, Failure> {
    let [from, to] = [SharedMemory::create("bench-from", AREA)?, SharedMemory::create("bench-to", AREA)?];
    populate(&from, 0, AREA);
    populate(&to, 0, AREA);
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
            if round > WARM_UP && (done >= 4 * BYTES || (round % 16 == 0 && since.elapsed() >= long())) {
                break;
            }
        }
        found.push(Rate { size_bytes, bytes_per_s: done as f64 / since.elapsed().as_secs_f64() });
    }
    Ok(found)
}
