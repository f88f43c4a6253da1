//! A ring of messages: each is written to a place of the receiver's own memory, with a notification that says that it is
//! there and how long it is. The receiver says now and then how many it has taken.
//!
//! `cargo run --release -p tombolo-client --example messages -- SOCKET`, that of
//! `tombolo node --programs SOCKET`.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Grant, Notification, OwnMemory, Spec, Target, Who};

const MESSAGES: u64 = 3000;
const PLACES: u64 = 16;
/// Of a place: two words (how long the message is, and which it is), then its bytes.
const PLACE_BYTES: u64 = 1024;
const WORDS_BYTES: u64 = 16;
const TIMEOUT: Duration = Duration::from_secs(10);

type Failure = Box<dyn Error + Send + Sync>;

fn message(number: u64) -> String {
    format!("message {number}: {}", "-".repeat(number as usize % 900))
}

/// Waits until a word is at least this.
fn await_word(memory: &OwnMemory, offset: u64, least: u64) -> Result<u64, Failure> {
    let (word, since) = (memory.word(offset as usize)?, Instant::now());
    loop {
        let found = word.load(Ordering::Acquire);
        if found >= least {
            return Ok(found);
        }
        if since.elapsed() > TIMEOUT {
            return Err("the other side is silent".into());
        }
        std::thread::yield_now();
    }
}

/// Sends them all: as many at once as there are places.
fn send(domain: &Domain, own: &OwnMemory, ring: (Target, u64)) -> Result<(), Failure> {
    let mut under_way = std::collections::VecDeque::new();
    for number in 1..=MESSAGES {
        // Its place is free when the one before in it was taken.
        await_word(own, 0, number.saturating_sub(PLACES))?;
        if under_way.len() as u64 == PLACES
            && let Some(oldest) = under_way.pop_front()
        {
            let oldest: tombolo_client::Transfer = oldest;
            oldest.wait(TIMEOUT)?;
        }
        let (place, text) = (number % PLACES * PLACE_BYTES, message(number));
        let from = PLACE_BYTES + place;
        own.write(from as usize, text.as_bytes())?;
        let address = ring.1 + place;
        let words = Notification { address, first: text.len() as u64, last: number };
        let spec = Spec::new(own.address() + from, address + WORDS_BYTES, text.len() as u32).notify(words);
        under_way.push_back(domain.write(ring.0, spec)?);
    }
    under_way.into_iter().try_for_each(|transfer| transfer.wait(TIMEOUT).map_err(Failure::from))
}

/// Takes them all.
fn receive(domain: &Domain, ring: &OwnMemory, taken: (Target, u64)) -> Result<(), Failure> {
    let own = domain.register(OwnMemory::map(4096)?, &[])?;
    for number in 1..=MESSAGES {
        let place = number % PLACES * PLACE_BYTES;
        // The second word is written last: the message is there, and the first word.
        await_word(ring, place + 8, number)?;
        let length = ring.word(place as usize)?.load(Ordering::Relaxed) as usize;
        let mut bytes = vec![0; length.min((PLACE_BYTES - WORDS_BYTES) as usize)];
        ring.read((place + WORDS_BYTES) as usize, &mut bytes)?;
        if bytes != message(number).as_bytes() {
            return Err(format!("message {number} is {:?}", String::from_utf8_lossy(&bytes)).into());
        }
        if number % (PLACES / 2) == 0 || number == MESSAGES {
            own.word(0)?.store(number, Ordering::Relaxed);
            domain.write(taken.0, Spec::new(own.address(), taken.1, 8))?.wait(TIMEOUT)?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let socket = PathBuf::from(std::env::args().nth(1).ok_or("usage: messages SOCKET")?);
    let (sender, receiver) = (Domain::open(&socket, None)?, Domain::open(&socket, None)?);
    let target = |domain: &Domain| Target { node: 0, domain: domain.number() };
    let grant = |domain: &Domain| [Grant::write(Who::Program(domain.number()))];
    let own = sender.register(OwnMemory::map(((PLACES + 1) * PLACE_BYTES) as usize)?, &grant(&receiver))?;
    let ring = receiver.register(OwnMemory::map((PLACES * PLACE_BYTES) as usize)?, &grant(&sender))?;
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver, &ring, (target(&sender), own.address())));
        send(&sender, &own, (target(&receiver), ring.address()))?;
        receiving.join().map_err(|_| "the receiver failed")?
    })?;
    println!("{MESSAGES} messages, each in its turn");
    Ok(())
}
