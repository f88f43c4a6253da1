//! Two domains write a word to each other in turn, and poll for the answer.
//!
//! `cargo run --release -p tombolo-client --example ping_pong -- SOCKET`, that of
//! `tombolo node --programs SOCKET`.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Grant, Memory, Spec, Target, Who};

const ROUNDS: u64 = 2000;

/// Writes the rounds' numbers to the other, before it or after.
fn play(domain: &Domain, own: &Memory, other: u16, there: u64, serves: bool) -> Result<(), String> {
    let text = |error: &dyn Error| error.to_string();
    let [heard, said] = [0, 8].map(|offset| own.word(offset).map_err(|error| text(&error)));
    let (heard, said) = (heard?, said?);
    for round in 1..=ROUNDS {
        for turn in [true, false] {
            if turn == serves {
                said.store(round, Ordering::Release);
                let transfer = domain
                    .write(Target { node: 0, domain: other }, Spec::new(own.address() + 8, there, 8))
                    .map_err(|error| text(&error))?;
                transfer.wait(Duration::from_secs(10)).map_err(|error| text(&error))?;
            } else {
                while heard.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
            }
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let socket = PathBuf::from(std::env::args().nth(1).ok_or("usage: ping_pong SOCKET")?);
    let domains = [Domain::open(&socket, None)?, Domain::open(&socket, None)?];
    // Each lets the other write, and nobody else.
    let for_program = |number| [Grant::write(Who::Program(number))];
    let one = domains[0].allocate(4096, &for_program(domains[1].number()))?;
    let other = domains[1].allocate(4096, &for_program(domains[0].number()))?;
    let since = Instant::now();
    std::thread::scope(|scope| {
        let pong = scope.spawn(|| play(&domains[1], &other, domains[0].number(), one.address(), false));
        play(&domains[0], &one, domains[1].number(), other.address(), true)?;
        pong.join().map_err(|_| "the other side failed".to_owned())?
    })?;
    println!("{ROUNDS} rounds, {:.2} µs each", since.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64);
    Ok(())
}
