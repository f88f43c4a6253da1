//! A server's loop: epoll over a pipe with work and over a domain with transfers, which move the
//! program's own memory.
//!
//! `cargo run --release -p tombolo-client --example event_loop -- SOCKET`, that of
//! `tombolo node --programs SOCKET`.

use std::error::Error;
use std::io::{Read, Write};
use std::path::PathBuf;

use rustix::event::epoll;
use tombolo_client::{Domain, Grant, OwnMemory, Spec, Status, Target, Transfer, Who};

/// Parts of the memory, each moved by a transfer of its own.
const PARTS: u8 = 200;
const PART_BYTES: usize = 10_000;

/// A domain's for writes.
const CHANNELS: usize = 32;

const WORK: u64 = 0;
const TRANSFERS: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let socket = PathBuf::from(std::env::args().nth(1).ok_or("usage: event_loop SOCKET")?);
    let [domain, other] = [Domain::open(&socket, None)?, Domain::open(&socket, None)?];
    let bytes = PART_BYTES * usize::from(PARTS);
    // A domain's own transfers need no grant.
    let from = domain.register(OwnMemory::map(bytes)?, &[])?;
    let to = other.register(OwnMemory::map(bytes)?, &[Grant::write(Who::Program(domain.number()))])?;

    let (mut work, mut worker) = std::io::pipe()?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &work, epoll::EventData::new_u64(WORK), epoll::EventFlags::IN)?;
    epoll::add(&epoll, &domain, epoll::EventData::new_u64(TRANSFERS), epoll::EventFlags::IN)?;
    let thread = std::thread::spawn(move || {
        let written = worker.write_all(&(0..PARTS).collect::<Vec<_>>());
        // Kept: the end of a pipe would be readable for ever.
        written.map(|()| worker)
    });

    let (mut underway, mut moved, mut sleeps): (Vec<Transfer>, u8, u32) = (Vec::new(), 0, 0);
    let mut events = Vec::with_capacity(4);
    while moved < PARTS {
        // Arm, look, wait, drain: an end before the look is seen there, one after it wakes the wait.
        domain.arm();
        let mut still = Vec::new();
        for transfer in underway.drain(..) {
            match transfer.status() {
                Status::Ongoing => still.push(transfer),
                Status::Finished => moved += 1,
                other => return Err(format!("{other:?}").into()),
            }
        }
        underway = still;
        if moved == PARTS {
            break;
        }
        // With all channels in use, more work has to wait.
        let interest =
            if underway.len() < CHANNELS { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::modify(&epoll, &work, epoll::EventData::new_u64(WORK), interest)?;
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        sleeps += 1;
        for event in &events {
            if event.data.u64() == TRANSFERS {
                domain.drain()?;
                continue;
            }
            let mut parts = [0; CHANNELS];
            let room = CHANNELS - underway.len();
            let count = work.read(&mut parts[..room])?;
            for part in &parts[..count] {
                let offset = usize::from(*part) * PART_BYTES;
                from.write(offset, &[*part + 1; PART_BYTES])?;
                let [source, destination] =
                    [from.address(), to.address()].map(|address| address + offset as u64);
                let target = Target { node: 0, domain: other.number() };
                underway.push(domain.write(target, Spec::new(source, destination, PART_BYTES as u32))?);
            }
        }
    }
    drop(thread.join().map_err(|_| "the worker failed")??);
    let mut found = vec![0; bytes];
    to.read(0, &mut found)?;
    let right =
        found.chunks(PART_BYTES).zip(1..).all(|(part, number)| part.iter().all(|byte| *byte == number));
    if !right || sleeps == 0 {
        return Err("other bytes than were sent".into());
    }
    domain.deregister(from)?;
    other.deregister(to)?;
    println!("{PARTS} parts moved");
    Ok(())
}
