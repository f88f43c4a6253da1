//! `tombolo ping`: round trips of the engine to a node.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tombolo_node::{Address, MAX_PING_BYTES, Pinger};

use crate::security::SecurityArguments;
use crate::size::Size;
use crate::{Failure, output};

/// Arguments of `tombolo ping`.
#[derive(Args)]
pub struct Arguments {
    /// Where the node listens: shm:PATH or udp:HOST:PORT.
    address: Address,
    /// How many; until interrupted unless given.
    #[arg(long, short)]
    count: Option<u64>,
    /// How many bytes each writes, at most 4K.
    #[arg(long, default_value = "64")]
    size: Size,
    /// Milliseconds between two; 0: one after the other.
    #[arg(long, default_value_t = 1000)]
    interval: u64,
    /// Print one JSON object at the end, and nothing else.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    security: SecurityArguments,
}

/// What all of them come to.
#[derive(Debug, Serialize)]
struct Outcome {
    address: String,
    size_bytes: u64,
    sent: u64,
    answered: u64,
    min_us: f64,
    median_us: f64,
    p99_us: f64,
    max_us: f64,
}

static STOP: AtomicBool = AtomicBool::new(false);
const PATIENCE: Duration = Duration::from_secs(3);
/// The first finds caches and processors cold, and is not counted.
const WARM_UP: u64 = 1;

/// Pings until the count is reached or an interrupt comes. Fails when none was answered.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let size = u32::try_from(arguments.size.0).ok().filter(|size| *size <= MAX_PING_BYTES);
    let Some(size) = size else {
        return Err(Failure::new(format!(
            "--size {} is more than {}",
            arguments.size,
            Size(MAX_PING_BYTES.into())
        )));
    };
    tombolo_host::process::stop_on_signals(&STOP);
    let security = arguments.security.of(std::slice::from_ref(&arguments.address))?;
    let mut pinger = Pinger::new(&arguments.address, &security, PATIENCE)?;
    for _ in 0..WARM_UP {
        pinger.ping(size, PATIENCE)?;
    }
    let (mut sent, mut times) = (0, Vec::new());
    while !STOP.load(Ordering::Relaxed) && arguments.count.is_none_or(|count| sent < count) {
        if sent > 0 && arguments.interval > 0 {
            std::thread::sleep(Duration::from_millis(arguments.interval));
            if STOP.load(Ordering::Relaxed) {
                break;
            }
        }
        sent += 1;
        match pinger.ping(size, PATIENCE) {
            Ok(time) => {
                let microseconds = time.as_nanos() as f64 / 1000.0;
                times.push(microseconds);
                if !arguments.json {
                    output::line(&format!(
                        "{size} bytes to {}: {sent}: {microseconds:.1} µs",
                        arguments.address
                    ));
                }
            }
            Err(error) => {
                eprintln!("tombolo: {sent}: {error}");
                break;
            }
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times.get((times.len().saturating_sub(1) as f64 * part).round() as usize).copied();
    let [min_us, median_us, p99_us, max_us] = [0.0, 0.5, 0.99, 1.0].map(|part| at(part).unwrap_or(0.0));
    let (address, answered) = (arguments.address.to_string(), times.len() as u64);
    let outcome =
        Outcome { address, size_bytes: size.into(), sent, answered, min_us, median_us, p99_us, max_us };
    if arguments.json {
        output::json(&outcome)?;
    } else if answered > 0 {
        output::line(&format!(
            "{sent} sent, {answered} answered; least {min_us:.1}, median {median_us:.1}, 99 % {p99_us:.1}, most {max_us:.1} µs"
        ));
    }
    Ok(u8::from(answered < sent || answered == 0))
}
