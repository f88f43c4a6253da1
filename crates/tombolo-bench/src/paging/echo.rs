//! A bare round trip over UDP: a small request out, 4 KiB back, on loopback.
//!
//! Both sides wait as Tombolo's do: the one that asked polls, the one that
//! answers polls for a short while after the last packet and sleeps then.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tombolo_app::child;
use tombolo_host::udp::{RECEIVE_BUFFER_BYTES, UdpSocket};
use tombolo_host::{event, process};

use crate::summary::{Samples, Summary};
use crate::{Failure, this_binary};

/// How long the asking side polls: as long as a fault handler polls for an answer.
const ASKER_POLLS: Duration = Duration::from_micros(150);
/// How long the answering side polls: as long as a lender polls after the last packet.
const RESPONDER_POLLS: Duration = Duration::from_micros(60);
/// About the size of a read request on the wire.
const REQUEST_BYTES: usize = 48;
const ANSWER_BYTES: usize = 4096;
const WARM_UP: usize = 1_000;
const ROUND_TRIPS: usize = 20_000;
/// A datagram that has not come after this time was lost.
const LOSS_TIMEOUT: Duration = Duration::from_millis(200);

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// The next datagram's length: polled for, then slept for. None: nothing came in time.
fn next(
    socket: &UdpSocket,
    buffer: &mut [u8],
    polls: Duration,
    sleep: Duration,
) -> Result<Option<usize>, Failure> {
    let since = Instant::now();
    loop {
        match socket.receive(buffer) {
            Ok(batch) => return Ok(Some(batch.length_bytes)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if since.elapsed() >= polls {
            if since.elapsed() >= polls + sleep {
                return Ok(None);
            }
            event::wait_readable(&[socket.as_fd()], Some(sleep))?;
        }
        std::hint::spin_loop();
    }
}

/// Measures it: asks from a thread on `processor`, is answered by a process elsewhere.
pub fn measure(processor: usize) -> Result<Summary, Failure> {
    let (_responder, line) = child::serve(Command::new(this_binary()?).arg("echo"))?;
    let address: SocketAddr = line
        .parse()
        .map_err(|_| Failure::new(format!("the responder said `{line}` instead of its address")))?;
    let asked = std::thread::spawn(move || {
        process::pin_thread(processor)?;
        ask(&UdpSocket::connect(address)?)
    });
    asked.join().map_err(|_| Failure::new("the asking thread failed"))?
}

fn ask(socket: &UdpSocket) -> Result<Summary, Failure> {
    let mut samples = Samples::new(ROUND_TRIPS)?;
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    let mut lost = 0;
    for number in 0..WARM_UP + ROUND_TRIPS {
        let since = Instant::now();
        socket.send(&[7; REQUEST_BYTES])?;
        match next(socket, &mut buffer, ASKER_POLLS, LOSS_TIMEOUT)? {
            Some(_) if number < WARM_UP => {}
            Some(ANSWER_BYTES) => samples.note(since.elapsed().as_nanos() as u64),
            Some(length) => return Err(Failure::new(format!("an answer of {length} bytes came"))),
            None => lost += 1,
        }
        if lost > 20 {
            return Err(Failure::new("loopback loses datagrams"));
        }
    }
    samples.summary()
}

/// The far end: on the last processor, while the asker is on the first.
pub fn respond() -> Result<(), Failure> {
    if let Some(&processor) = process::processors().last() {
        process::pin_thread(processor)?;
    }
    let socket = UdpSocket::bind(loopback())?;
    println!("{}", socket.local_address()?);
    let answer = [9; ANSWER_BYTES];
    let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
    // The bench ends this process; if the bench is gone, nothing comes any more.
    loop {
        let Some(_) = receive_from(&socket, &mut buffer, &answer)? else { return Ok(()) };
    }
}

fn receive_from(socket: &UdpSocket, buffer: &mut [u8], answer: &[u8]) -> Result<Option<()>, Failure> {
    let since = Instant::now();
    loop {
        match socket.receive_from(buffer) {
            Ok((_, from)) => {
                if let Some(from) = from {
                    socket.send_to(answer, from)?;
                }
                return Ok(Some(()));
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if since.elapsed() >= RESPONDER_POLLS
            && !event::wait_readable(&[socket.as_fd()], Some(Duration::from_secs(10)))?
        {
            return Ok(None);
        }
        std::hint::spin_loop();
    }
}
