//! A file sent in pieces: the sender writes into the receiver's memory and notifies it, the receiver
//! stores the piece and gives the place back.
//!
//! `cargo run --release -p tombolo-client --example send_file -- SOCKET FROM TO`, the socket that of
//! `tombolo node --programs SOCKET`.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_client::{Domain, Grant, Memory, Notification, Spec, Target, Who};

const PIECE: usize = 256 << 10;
const PLACES: u64 = 4;
/// Behind the pieces: for each place its length and its number, from 1 on.
const NOTES: usize = PLACES as usize * PIECE;
const PATIENCE: Duration = Duration::from_secs(10);

fn receive(
    domain: &Domain,
    memory: &Memory,
    sender: Target,
    window: u64,
    mut file: File,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let credit = domain.allocate(4096, &[])?;
    let mut piece = vec![0; PIECE];
    for number in 1.. {
        let place = (number % PLACES) as usize;
        let [length, arrived] = [0, 8].map(|offset| memory.word(NOTES + place * 16 + offset));
        let (length, arrived) = (length?, arrived?);
        while arrived.load(Ordering::Acquire) != number {
            std::hint::spin_loop();
        }
        let length = length.load(Ordering::Acquire) as usize;
        if length == 0 {
            break;
        }
        memory.read(place * PIECE, &mut piece[..length])?;
        file.write_all(&piece[..length])?;
        credit.write(0, &number.to_le_bytes())?;
        domain.write(sender, Spec::new(credit.address(), window, 8))?.wait(PATIENCE)?;
    }
    Ok(())
}

fn send(
    domain: &Domain,
    window: &Memory,
    receiver: Target,
    there: u64,
    mut file: File,
) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let memory = domain.allocate(NOTES, &[])?;
    let stored = window.word(0)?;
    let mut piece = vec![0; PIECE];
    let mut sent = 0;
    for number in 1.. {
        while stored.load(Ordering::Acquire) + PLACES < number {
            std::hint::spin_loop();
        }
        let place = (number % PLACES) as usize;
        let length = file.read(&mut piece)?;
        memory.write(place * PIECE, &piece[..length])?;
        let offset = (place * PIECE) as u64;
        let address = there + (NOTES + place * 16) as u64;
        let note = Notification { address, first: length as u64, last: number };
        let spec = Spec::new(memory.address() + offset, there + offset, length as u32).notify(note);
        domain.write(receiver, spec)?.wait(PATIENCE)?;
        sent += length as u64;
        if length == 0 {
            break;
        }
    }
    Ok(sent)
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [socket, from, to] = arguments.as_slice() else {
        return Err("usage: send_file SOCKET FROM TO".into());
    };
    let (from, to) = (File::open(from)?, File::create(to)?);
    let [one, other] = [Domain::open(socket, None)?, Domain::open(socket, None)?];
    let target = |domain: &Domain| Target { node: 0, domain: domain.number() };
    let memory = other.allocate(NOTES + 4096, &[Grant::write(Who::Program(one.number()))])?;
    let window = one.allocate(4096, &[Grant::write(Who::Program(other.number()))])?;
    let sent = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&other, &memory, target(&one), window.address(), to));
        let sent = send(&one, &window, target(&other), memory.address(), from)?;
        receiver.join().map_err(|_| "the receiver failed")??;
        Ok::<_, Box<dyn Error + Send + Sync>>(sent)
    })?;
    println!("{sent} bytes sent");
    Ok(())
}
