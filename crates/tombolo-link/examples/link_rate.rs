//! How fast the links are on this machine, beside what the kernel's UDP does without a link.
//!
//! `cargo run --release -p tombolo-link --example link_rate [seconds per row] [sealing]`
//!
//! With `sealing`: only what sealing costs, as medians of streams that take turns.
//!
//! Round trips are between two threads, both polling and both sleeping; streams are one way, and
//! count what arrived. The two threads are kept on CPUs 0 and 1. On UDP the stream is given a window
//! of 1 MiB, as the engine would, since nothing else holds the sender back. A link's stream reads 16 MiB of source and fills 16 MiB of
//! destination; the raw one sends one small buffer again and again and looks at nothing, so it is
//! the ceiling of the kernel, not of a program.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tombolo_host::event::wait_readable;
use tombolo_host::udp::{RECEIVE_BUFFER_BYTES, UdpSocket};
use tombolo_link::{Address, AllowList, KeyPair, Link, LinkError, Security, SendError, connect, listen};

use std::os::fd::AsFd;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Bytes that may be under way in a stream over a link that can lose.
const WINDOW_BYTES: u64 = 1 << 20;

fn main() -> Result<(), Failure> {
    let seconds: f64 = std::env::args().nth(1).map_or(Ok(1.0), |text| text.parse())?;
    let duration = Duration::from_secs_f64(seconds);
    let path = std::env::temp_dir().join(format!("tombolo-link-rate-{}", std::process::id()));
    let udp: Address = "udp:127.0.0.1:0".parse()?;
    pin(0);
    if std::env::args().nth(2).is_some_and(|mode| mode == "sealing") {
        return sealing(&udp, duration);
    }
    println!("{:<34} {:>12} {:>12} {:>12}", "", "median us", "p99 us", "GB/s");
    for (name, address, security) in [
        ("shm", &Address::Shm(path), Security::Insecure),
        ("udp", &udp, Security::Insecure),
        ("secure udp", &udp, own_friend()?),
    ] {
        let pair = |address| pair(address, &security);
        for bytes in [64, 4096] {
            for sleeping in [false, true] {
                let pair = pair(address)?;
                let how = if sleeping { "asleep" } else { "polling" };
                let times = round_trips(&pair, bytes, sleeping, duration)?;
                row(&format!("{name} round trip {bytes} B, {how}"), Some(times), None);
            }
        }
        for bytes in [4096, 16_384] {
            let pair = pair(address)?;
            if bytes + 64 <= pair.0.max_packet_bytes() {
                let lossless = name == "shm";
                let rate = stream(&pair, bytes, lossless, duration)?;
                row(&format!("{name} stream of {bytes} B"), None, Some(rate));
            }
        }
    }
    for bytes in [64, 4096] {
        let times = raw_round_trips(bytes, duration)?;
        row(&format!("raw UDP round trip {bytes} B, asleep"), Some(times), None);
    }
    for segmentation in [true, false] {
        let rate = raw_stream(4096, segmentation, duration)?;
        let how = if segmentation { "GSO/GRO" } else { "one by one" };
        row(&format!("raw UDP stream of 4096 B, {how}"), None, Some(rate));
    }
    Ok(())
}

/// Keeps a thread on one CPU: two that poll for each other must not share one.
fn pin(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    // On a machine with one CPU the polling rows show its time slices, which is the truth.
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
}

fn row(name: &str, times: Option<Vec<Duration>>, rate: Option<f64>) {
    let microseconds = |times: &[Duration], share: f64| {
        let index = ((times.len() - 1) as f64 * share) as usize;
        format!("{:.2}", times[index].as_secs_f64() * 1e6)
    };
    let (median, high) = match times {
        Some(mut times) if !times.is_empty() => {
            times.sort_unstable();
            (microseconds(&times, 0.5), microseconds(&times, 0.99))
        }
        _ => (String::new(), String::new()),
    };
    let rate = rate.map_or(String::new(), |rate| format!("{rate:.2}"));
    println!("{name:<34} {median:>12} {high:>12} {rate:>12}");
}

type Pair = (Arc<dyn Link>, Arc<dyn Link>);

/// A node that has itself on its list.
fn own_friend() -> Result<Security, Failure> {
    let keys = KeyPair::generate()?;
    let allowed = AllowList::Keys(vec![keys.public()]);
    Ok(Security::secure(keys, allowed))
}

/// Streams with and without seals, in turns: medians, and the share that is left with them. Packets
/// of 4096 bytes are what transfers are cut into on UDP, whatever their size; those of 1300 are the
/// same on Ethernet.
fn sealing(address: &Address, duration: Duration) -> Result<(), Failure> {
    const TURNS: usize = 9;
    println!("{:<22} {:>14} {:>14} {:>8}", "medians of 9 turns", "insecure GB/s", "secure GB/s", "share");
    let secure = own_friend()?;
    for bytes in [1300, 4096] {
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..TURNS {
            for (rates, security) in rates.iter_mut().zip([&Security::Insecure, &secure]) {
                rates.push(stream(&pair(address, security)?, bytes, false, duration)?);
            }
        }
        let [insecure, secure] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[TURNS / 2]
        });
        let name = format!("packets of {bytes} B");
        println!("{name:<22} {insecure:>14.2} {secure:>14.2} {:>8.2}", secure / insecure);
    }
    Ok(())
}

fn pair(address: &Address, security: &Security) -> Result<Pair, Failure> {
    let listener = listen(address, security)?;
    let target = listener.address();
    let security = security.clone();
    let connector = std::thread::spawn(move || connect(&target, &security, Duration::from_secs(5)));
    let accepted = listener.accept_within(Duration::from_secs(5))?.ok_or("nobody connected")?;
    let connected = connector.join().map_err(|_| "the connector failed")??;
    Ok((accepted, connected))
}

/// Receives one packet, polling or sleeping; false when the peer has gone.
fn receive_one(link: &dyn Link, sleeping: bool) -> Result<bool, Failure> {
    loop {
        let received = link.receive(1, &mut |packet| {
            black_box(packet.head());
        });
        match received {
            Ok(0) if sleeping => drop(link.wait(Duration::from_secs(1))),
            // One thread a core, or the other side is waiting for this one's time slice.
            Ok(0) => std::hint::spin_loop(),
            Ok(_) => return Ok(true),
            Err(LinkError::Lost(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

fn round_trips(
    pair: &Pair,
    bytes: usize,
    sleeping: bool,
    duration: Duration,
) -> Result<Vec<Duration>, Failure> {
    let stop = AtomicBool::new(false);
    let payload = vec![7_u8; bytes];
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<(), Failure> {
            pin(1);
            while !stop.load(Ordering::Relaxed) && receive_one(&*pair.1, sleeping)? {
                pair.1.send(b"header", payload.as_slice().into())?;
                pair.1.flush()?;
            }
            Ok(())
        });
        let mut times = Vec::new();
        let started = Instant::now();
        while started.elapsed() < duration {
            let sent = Instant::now();
            pair.0.send(b"header", payload.as_slice().into())?;
            pair.0.flush()?;
            receive_one(&*pair.0, sleeping)?;
            times.push(sent.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        // One more, so that the echo looks at the flag.
        pair.0.send(b"header", payload.as_slice().into())?;
        pair.0.flush()?;
        echo.join().map_err(|_| "the echo failed")??;
        Ok(times)
    })
}

/// Payload bytes that arrive and are copied to memory, in GB/s.
fn stream(pair: &Pair, bytes: usize, lossless: bool, duration: Duration) -> Result<f64, Failure> {
    let (taken, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let source = vec![7_u8; 16 << 20];
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| -> Result<(), Failure> {
            pin(1);
            let (mut sent, mut place) = (0_u64, 0);
            let mut progress = (Instant::now(), 0);
            while !stop.load(Ordering::Relaxed) {
                let arrived = taken.load(Ordering::Relaxed);
                if !lossless && sent - arrived.min(sent) >= WINDOW_BYTES {
                    if arrived != progress.1 {
                        progress = (Instant::now(), arrived);
                    } else if progress.0.elapsed() > Duration::from_millis(5) {
                        // What is missing was lost: start the window anew.
                        sent = arrived;
                    }
                    pair.0.flush()?;
                    std::thread::yield_now();
                    continue;
                }
                for _ in 0..15 {
                    match pair.0.send(&[1; 32], (&source[place..place + bytes]).into()) {
                        Ok(()) => sent += bytes as u64,
                        Err(SendError::Full) => {
                            std::thread::yield_now();
                            break;
                        }
                        Err(error) => return Err(error.into()),
                    }
                    place = (place + bytes) % (source.len() - bytes);
                }
                pair.0.flush()?;
            }
            Ok(())
        });
        let mut destination = vec![0_u8; 16 << 20];
        let mut place = 0;
        let started = Instant::now();
        while started.elapsed() < duration {
            let mut batch = 0;
            let count = pair.1.receive(64, &mut |packet| {
                if let Some(payload) = packet.payload(32) {
                    batch += payload.copy_to(&mut destination[place..]) as u64;
                    place = (place + bytes) % (16 << 20);
                }
            })?;
            taken.fetch_add(batch, Ordering::Relaxed);
            if count == 0 {
                std::thread::yield_now();
            }
        }
        let rate = taken.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64() / 1e9;
        stop.store(true, Ordering::Relaxed);
        // Make room, in case the sender waits for it.
        while !sender.is_finished() {
            pair.1.receive(64, &mut |_| {})?;
        }
        sender.join().map_err(|_| "the sender failed")??;
        Ok(rate)
    })
}

fn raw_pair() -> Result<(UdpSocket, UdpSocket), Failure> {
    let listener = UdpSocket::bind(([127, 0, 0, 1], 0).into())?;
    let one = UdpSocket::connect(listener.local_address()?)?;
    let other = listener.bind_beside(one.local_address()?)?;
    one.set_buffer_bytes(8 << 20);
    other.set_buffer_bytes(8 << 20);
    Ok((one, other))
}

fn raw_receive(socket: &UdpSocket, buffer: &mut [u8], patience: Duration) -> Result<usize, Failure> {
    loop {
        match socket.receive(buffer) {
            Ok(batch) => return Ok(batch.length_bytes),
            Err(_) => {
                if !wait_readable(&[socket.as_fd()], Some(patience))? {
                    return Ok(0);
                }
            }
        }
    }
}

fn raw_round_trips(bytes: usize, duration: Duration) -> Result<Vec<Duration>, Failure> {
    let (one, other) = raw_pair()?;
    let payload = vec![7_u8; bytes];
    let patience = Duration::from_millis(300);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<(), Failure> {
            pin(1);
            let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
            while raw_receive(&other, &mut buffer, patience)? > 0 {
                other.send(&buffer[..bytes])?;
            }
            Ok(())
        });
        let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
        let mut times = Vec::new();
        let started = Instant::now();
        while started.elapsed() < duration {
            let sent = Instant::now();
            one.send(&payload)?;
            raw_receive(&one, &mut buffer, patience)?;
            times.push(sent.elapsed());
        }
        echo.join().map_err(|_| "the echo failed")??;
        Ok(times)
    })
}

fn raw_stream(bytes: usize, segmentation: bool, duration: Duration) -> Result<f64, Failure> {
    let (one, other) = raw_pair()?;
    if !segmentation {
        one.disable_segmentation();
    }
    let batch = vec![7_u8; bytes * 15];
    let (taken, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| -> Result<(), Failure> {
            pin(1);
            let mut sent = 0_u64;
            let mut progress = (Instant::now(), 0);
            while !stop.load(Ordering::Relaxed) {
                let arrived = taken.load(Ordering::Relaxed);
                if sent - arrived.min(sent) < WINDOW_BYTES {
                    sent += one.send_batch(&batch, bytes)? as u64;
                } else if arrived != progress.1 {
                    progress = (Instant::now(), arrived);
                    std::thread::yield_now();
                } else if progress.0.elapsed() > Duration::from_millis(5) {
                    sent = arrived;
                } else {
                    std::thread::yield_now();
                }
            }
            Ok(())
        });
        let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
        let started = Instant::now();
        while started.elapsed() < duration {
            match other.receive(&mut buffer) {
                Ok(batch) => drop(taken.fetch_add(batch.length_bytes as u64, Ordering::Relaxed)),
                Err(_) => std::thread::yield_now(),
            }
        }
        let rate = taken.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64() / 1e9;
        stop.store(true, Ordering::Relaxed);
        sender.join().map_err(|_| "the sender failed")??;
        Ok(rate)
    })
}
