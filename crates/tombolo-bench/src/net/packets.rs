//! Small UDP packets: there and back, and as many as go through. 18 bytes are 64 on the wire, with all headers and the
//! checksum.

use std::io::Write;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::json;

use crate::summary::Summary;
use crate::{Failure, print_json};

/// Which end.
#[derive(Subcommand)]
pub enum End {
    /// Answers: a packet with the number of those that came since the last question, or the packet itself.
    Echo,
    /// Asks again and again, and prints how long it took.
    Ask {
        /// Who answers.
        address: String,
    },
    /// Sends as much as it can, and prints how much came.
    Flood {
        /// Who counts.
        address: String,
        /// How long.
        #[arg(long, default_value_t = 1)]
        seconds: u64,
    },
}

const PORT: u16 = 7007;
const PACKET_BYTES: usize = 18;
/// First byte of a packet: it is to be sent back, counted, or answered with the count.
const BACK: u8 = 1;
const COUNTED: u8 = 2;
const HOW_MANY: u8 = 3;
const ROUND_TRIPS: usize = 8000;
const TIMEOUT: Duration = Duration::from_millis(200);

fn echo() -> Result<(), Failure> {
    let socket = UdpSocket::bind(("0.0.0.0", PORT))?;
    println!("listening");
    std::io::stdout().flush()?;
    let mut packet = [0; PACKET_BYTES];
    let mut count = 0u64;
    loop {
        let (_, from) = socket.recv_from(&mut packet)?;
        match packet[0] {
            COUNTED => count += 1,
            HOW_MANY => {
                packet[1..9].copy_from_slice(&count.to_le_bytes());
                socket.send_to(&packet, from)?;
            }
            _ => drop(socket.send_to(&packet, from)?),
        }
    }
}

fn connect(address: &str) -> Result<UdpSocket, Failure> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect((address, PORT))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

fn ask(address: &str) -> Result<(), Failure> {
    let socket = connect(address)?;
    let mut packet = [BACK; PACKET_BYTES];
    let mut latencies = Vec::with_capacity(ROUND_TRIPS);
    for round in 0..ROUND_TRIPS + ROUND_TRIPS / 10 {
        let number = (round as u64).to_le_bytes();
        packet[1..9].copy_from_slice(&number);
        let since = Instant::now();
        socket.send(&packet)?;
        // The late answer to an earlier question is none; a lost one is no latency.
        let is_answered = loop {
            match socket.recv(&mut packet) {
                Ok(_) if packet[1..9] == number => break true,
                Ok(_) => {}
                Err(_) => break false,
            }
        };
        if !is_answered {
            continue;
        }
        if round >= ROUND_TRIPS / 10 {
            latencies.push(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
    }
    print_json(&Summary::of(latencies).ok_or_else(|| Failure::new("nothing was measured"))?)
}

fn how_many(socket: &UdpSocket) -> Result<u64, Failure> {
    let mut packet = [HOW_MANY; PACKET_BYTES];
    for _ in 0..50 {
        // A question that is lost in what is still under way is asked again.
        socket.send(&packet)?;
        if socket.recv(&mut packet).is_ok()
            && packet[0] == HOW_MANY
            && let Some(count) = packet[1..].first_chunk()
        {
            return Ok(u64::from_le_bytes(*count));
        }
        packet = [HOW_MANY; PACKET_BYTES];
    }
    Err(Failure::new("the other end does not answer"))
}

fn flood(address: &str, seconds: u64) -> Result<(), Failure> {
    let socket = connect(address)?;
    let before = how_many(&socket)?;
    // A late answer to a question that was asked twice must not be taken for the next one.
    std::thread::sleep(TIMEOUT);
    let mut late = [0; PACKET_BYTES];
    socket.set_nonblocking(true)?;
    while socket.recv(&mut late).is_ok() {}
    socket.set_nonblocking(false)?;
    let packet = [COUNTED; PACKET_BYTES];
    let since = Instant::now();
    let mut sent = 0u64;
    while since.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..64 {
            sent += u64::from(socket.send(&packet).is_ok());
        }
    }
    let elapsed_s = since.elapsed().as_secs_f64();
    let came = how_many(&socket)? - before;
    print_json(&json!({ "packets_per_s": came as f64 / elapsed_s, "sent_per_s": sent as f64 / elapsed_s }))
}

/// Runs one end.
pub fn main(end: &End) -> Result<(), Failure> {
    match end {
        End::Echo => echo(),
        End::Ask { address } => ask(address),
        End::Flood { address, seconds } => flood(address, *seconds),
    }
}
