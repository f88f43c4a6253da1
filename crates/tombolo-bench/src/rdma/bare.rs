//! Bare UDP on loopback, with segmentation offload both ways: what the kernel does at best, and what is
//! left of it when the bytes are copied into packets with checksums, checked, and copied to where they
//! belong. There is no engine in it: nothing is repeated, ordered or held back.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rustix::io::Errno;
use serde::Serialize;
use tombolo_app::child::{self, Guard};
use tombolo_app::size::Size;
use tombolo_host::process;
use tombolo_host::shared::SharedMemory;
use tombolo_host::udp::{MAX_BATCH_BYTES, RECEIVE_BUFFER_BYTES, UdpSocket};
use tombolo_wire::{
    Asker, Attempt, Checksums, DataHeader, Domain, Generation, MAX_BLOCK_BYTES, NotificationMark, Packet,
    Payload, TransactionId,
};

use super::floor::Rate;
use super::{ANSWER_TIMEOUT, AREA, BYTES, Places, SAMPLES, WARM_UP, WINDOW, long};
use crate::summary::{Samples, Summary};
use crate::{Failure, this_binary};

/// The most bytes under way, and the part of a socket's buffer that they may take: the kernel counts its own
/// bookkeeping, too.
const WINDOW_BYTES: usize = 2 << 20;
const BUFFER_SHARE: usize = 4;
const BUFFER_BYTES: usize = 8 << 20;
/// Datagrams of bytes that are tried; the best counts.
const SEGMENTS: [usize; 3] = [4 * 1024, 16 * 1024, 32 * 1024];
/// The other end stops when nothing has come for this long.
const SILENCE: Duration = Duration::from_secs(5);
/// Says hello; no datagram of a measurement is as long.
const HELLO: [u8; 3] = [0; 3];
const ANSWER: [u8; 2] = [1; 2];

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// Plain bytes, from one buffer and into one.
    Bytes,
    /// Blocks from their place in memory, in packets with checksums, to their place in memory.
    Packets,
}

/// The latency of a round trip with `size_bytes` each way: half of its time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Trip {
    pub size_bytes: u64,
    pub latency: Summary,
}

/// Arguments of the hidden `tombolo-bench udp-sink`.
#[derive(Args)]
pub struct Arguments {
    /// Bytes that are answered together.
    #[arg(long)]
    size: usize,
    /// Bytes of a datagram of a load of bytes.
    #[arg(long)]
    segment: usize,
    /// What comes.
    #[arg(long)]
    load: Load,
    /// The answer is as much.
    #[arg(long)]
    back: bool,
}

/// One end.
struct End {
    socket: UdpSocket,
    load: Load,
    segment: usize,
    memory: SharedMemory,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl End {
    fn new(socket: UdpSocket, load: Load, size: usize, segment: usize) -> Result<Self, Failure> {
        socket.set_buffer_bytes(BUFFER_BYTES);
        let places = match load {
            // All from one buffer and into one.
            Load::Bytes => 0,
            Load::Packets => size.next_multiple_of(64).saturating_mul(WINDOW),
        };
        let memory = SharedMemory::create("bench-udp", places.clamp(4096, AREA))?;
        memory.populate_huge(0, memory.len());
        let (outgoing, incoming) = (vec![7; MAX_BATCH_BYTES], vec![0; RECEIVE_BUFFER_BYTES]);
        Ok(Self { socket, load, segment, memory, outgoing, incoming })
    }

    /// Sends `size` bytes of memory from `at` on.
    fn send(&mut self, at: usize, size: usize) -> Result<(), Failure> {
        let mut sent = 0;
        while sent < size {
            let (part, length, segment) = match self.load {
                Load::Bytes => {
                    let part = (MAX_BATCH_BYTES / self.segment * self.segment).min(size - sent);
                    (part, part, self.segment)
                }
                Load::Packets => self.pack(at + sent, size - sent)?,
            };
            self.send_batch(length, segment)?;
            sent += part;
        }
        Ok(())
    }

    /// Packets of blocks, as many as go in one call: bytes of them, length of the batch, and of a datagram.
    fn pack(&mut self, at: usize, left: usize) -> Result<(usize, usize, usize), Failure> {
        let block = left.min(MAX_BLOCK_BYTES as usize);
        let (mut part, mut length, mut segment) = (0, 0, 0);
        while part < left {
            let bytes = block.min(left - part);
            let header = DataHeader {
                domain: Domain(1),
                transaction: TransactionId(0),
                generation: Generation(0),
                attempt: Attempt(0),
                block_address: (at + part) as u64,
                block_bytes: bytes as u32,
                offset_bytes: 0,
                payload_bytes: bytes as u32,
                in_reply_to: None,
                asker: Asker::SENDER,
                notification: NotificationMark::None,
            };
            segment = segment.max(header.header_bytes() + bytes);
            let end = length + header.header_bytes() + bytes;
            let Some(packet) = self.outgoing.get_mut(length..end) else { break };
            self.memory.span(at + part, bytes)?.copy_to(&mut packet[header.header_bytes()..]);
            header.seal(packet, Checksums::On).map_err(|error| Failure::new(error.to_string()))?;
            (part, length) = (part + bytes, end);
        }
        Ok((part, length, segment))
    }

    fn send_batch(&self, length: usize, segment: usize) -> Result<(), Failure> {
        let mut sent = 0;
        while sent < length {
            match self.socket.send_batch(&self.outgoing[sent..length], segment) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Receives what has come, copies it to its place, and returns how many bytes it was.
    fn receive(&mut self) -> Result<usize, Failure> {
        let batch = match self.socket.receive(&mut self.incoming) {
            Ok(batch) => batch,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        if self.load == Load::Bytes {
            return Ok(batch.length_bytes);
        }
        let mut count = 0;
        for datagram in self.incoming[..batch.length_bytes].chunks(batch.segment_bytes.max(1)) {
            if let Ok(Packet::Data(header, Payload::Intact(bytes))) = Packet::parse(datagram, Checksums::On) {
                self.memory.span_mut(header.block_address as usize, bytes.len())?.copy_from(bytes.into());
                count += bytes.len();
            }
        }
        Ok(count)
    }

    /// Bytes that may be under way, so that none are lost.
    fn window_bytes(&self) -> Result<usize, Failure> {
        Ok(WINDOW_BYTES.min(self.socket.receive_buffer_bytes()? / BUFFER_SHARE))
    }

    /// How many answers have come.
    fn answers(&mut self) -> Result<usize, Failure> {
        let asked = Instant::now();
        loop {
            match self.socket.receive(&mut self.incoming) {
                Ok(batch) => return Ok(batch.length_bytes.div_ceil(batch.segment_bytes.max(1))),
                Err(Errno::AGAIN | Errno::INTR) if asked.elapsed() < ANSWER_TIMEOUT => std::hint::spin_loop(),
                Err(error) => return Err(Failure::new(format!("bare UDP lost something: {error}"))),
            }
        }
    }

    /// Receives `size` bytes.
    fn take(&mut self, size: usize) -> Result<(), Failure> {
        let (mut had, asked) = (0, Instant::now());
        while had < size {
            match self.receive()? {
                0 if asked.elapsed() > ANSWER_TIMEOUT => return Err(Failure::new("bare UDP lost something")),
                count => had += count,
            }
        }
        Ok(())
    }
}

/// The near end, and the other as a process of its own.
fn start(
    [first, last]: [usize; 2],
    load: Load,
    size: usize,
    segment: usize,
    back: bool,
) -> Result<(End, Guard), Failure> {
    // The sink inherits the pin.
    process::pin_thread(last)?;
    let mut command = Command::new(this_binary()?);
    let load_name = crate::name(&load);
    command.args(["udp-sink", "--size", &size.to_string(), "--segment", &segment.to_string()]);
    command.args(["--load", &load_name]).args(back.then_some("--back"));
    let (sink, line) = child::serve(&mut command)?;
    process::pin_thread(first)?;
    let address: SocketAddr =
        line.parse().map_err(|_| Failure::new(format!("the sink said `{line}` instead of its address")))?;
    let mut end = End::new(UdpSocket::connect(address)?, load, size, segment)?;
    end.socket.send(&HELLO)?;
    end.answers()?;
    Ok((end, sink))
}

fn segments(load: Load) -> &'static [usize] {
    match load {
        Load::Bytes => &SEGMENTS,
        // Blocks make them.
        Load::Packets => &SEGMENTS[..1],
    }
}

/// How fast transfers of these sizes go, several under way: the best of several sizes of datagrams.
pub fn rates(processors: [usize; 2], load: Load, sizes: &[Size]) -> Result<Vec<Rate>, Failure> {
    let mut found = Vec::new();
    for &Size(size_bytes) in sizes {
        let mut best = None;
        for &segment in segments(load) {
            let found = rate(processors, load, size_bytes as usize, segment)?;
            best = found.into_iter().chain(best).reduce(f64::max);
        }
        found.extend(best.map(|bytes_per_s| Rate { size_bytes, bytes_per_s }));
    }
    Ok(found)
}

/// `None` if the buffers are too small for this size.
fn rate(processors: [usize; 2], load: Load, size: usize, segment: usize) -> Result<Option<f64>, Failure> {
    let (mut end, _sink) = start(processors, load, size, segment, false)?;
    // As many under way as Tombolo has, but no more than fit into the buffers.
    let most = (end.window_bytes()? / size.max(1)).min(WINDOW);
    if most == 0 {
        return Ok(None);
    }
    let mut places = Places::new(size);
    let (mut under_way, mut done, mut rounds, mut since) = (0, 0_u64, 0, Instant::now());
    loop {
        while under_way < most {
            end.send(places.next(), size)?;
            under_way += 1;
        }
        let count = end.answers()?;
        under_way -= count.min(under_way);
        done += (count * size) as u64;
        rounds += 1;
        if rounds == WARM_UP.min(64) {
            (done, since) = (0, Instant::now());
        } else if rounds > 64 && (done >= BYTES || since.elapsed() >= long()) {
            return Ok(Some(done as f64 / since.elapsed().as_secs_f64()));
        }
    }
}

/// How long transfers of these sizes take, one at a time: the best of several sizes of datagrams.
pub fn trips(processors: [usize; 2], load: Load, sizes: &[Size]) -> Result<Vec<Trip>, Failure> {
    let mut found = Vec::new();
    for &Size(size_bytes) in sizes {
        let mut best: Option<Summary> = None;
        for &segment in segments(load) {
            let Some(latency) = trip(processors, load, size_bytes as usize, segment)? else { continue };
            best = best.filter(|best| best.median_ns <= latency.median_ns).or(Some(latency));
        }
        found.extend(best.map(|latency| Trip { size_bytes, latency }));
    }
    Ok(found)
}

/// `None` if the buffers are too small for this size.
fn trip(processors: [usize; 2], load: Load, size: usize, segment: usize) -> Result<Option<Summary>, Failure> {
    let (mut end, _sink) = start(processors, load, size, segment, true)?;
    if size > end.window_bytes()? {
        return Ok(None);
    }
    let mut samples = Samples::new(SAMPLES)?;
    let mut begin = Instant::now();
    for number in 0..WARM_UP + SAMPLES {
        if number == WARM_UP {
            begin = Instant::now();
        }
        let since = Instant::now();
        // As the ping-pong of the transfers: from one place to one place.
        end.send(0, size)?;
        end.take(size)?;
        if number >= WARM_UP {
            samples.note(since.elapsed().as_nanos() as u64 / 2);
        }
        if number > WARM_UP && begin.elapsed() > long() / 2 {
            break;
        }
    }
    samples.summary().map(Some)
}

/// The other end: answers every `size` bytes with a few bytes, or with as many.
pub fn sink(arguments: &Arguments) -> Result<(), Failure> {
    let &Arguments { size, segment, load, back } = arguments;
    let door = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into())?;
    println!("{}", door.local_address()?);
    let (mut buffer, began) = (vec![0; RECEIVE_BUFFER_BYTES], Instant::now());
    let near = loop {
        match door.receive_from(&mut buffer) {
            Ok((batch, Some(from))) if batch.length_bytes == HELLO.len() => break from,
            _ if began.elapsed() > SILENCE => return Ok(()),
            _ => std::hint::spin_loop(),
        }
    };
    let mut end = End::new(door.bind_beside(near)?, load, size, segment)?;
    end.socket.send(&ANSWER)?;
    let (mut had, mut heard) = (0, Instant::now());
    loop {
        match end.receive() {
            Ok(0) if heard.elapsed() < SILENCE => continue,
            Ok(0) | Err(_) => return Ok(()),
            Ok(count) => had += count,
        }
        heard = Instant::now();
        while had >= size {
            had -= size;
            if back {
                end.send(0, size)?;
            } else {
                end.socket.send(&ANSWER)?;
            }
        }
    }
}
