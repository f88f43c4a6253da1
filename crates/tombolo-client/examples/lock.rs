//! Workers share a lock that is a word of another domain, taken by compare-and-swap, and change what it protects by a read
//! and a write.
//!
//! `cargo run --release -p tombolo-client --example lock -- SOCKET`, that of
//! `tombolo node --programs SOCKET`.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Grant, Spec, Target, Who};

const WORKERS: u64 = 3;
const TURNS: u64 = 300;
const TIMEOUT: Duration = Duration::from_secs(10);
const FREE: u64 = 0;

/// Adds one to the word behind the lock, so many times.
fn work(domain: &Domain, there: Target, lock: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
    let own = domain.allocate(4096, &[])?;
    let count = own.word(0)?;
    let holder = u64::from(domain.number());
    for _ in 0..TURNS {
        let since = Instant::now();
        while domain.compare_swap(there, lock, FREE, holder)?.wait(TIMEOUT)? != FREE {
            if since.elapsed() > TIMEOUT {
                return Err("nobody gives the lock back: whoever dies with it keeps it".into());
            }
            std::thread::yield_now();
        }
        domain.read(there, Spec::new(lock + 8, own.address(), 8))?.wait(TIMEOUT)?;
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        domain.write(there, Spec::new(own.address(), lock + 8, 8))?.wait(TIMEOUT)?;
        // The write has ended, so whoever takes the lock now reads what it wrote.
        if domain.compare_swap(there, lock, holder, FREE)?.wait(TIMEOUT)? != holder {
            return Err("somebody else has the lock".into());
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let socket = PathBuf::from(std::env::args().nth(1).ok_or("usage: lock SOCKET")?);
    let domain = Domain::open(&socket, None)?;
    let memory = domain.allocate(4096, &[Grant::all(Who::Anyone)])?;
    let there = Target { node: 0, domain: domain.number() };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let (socket, lock) = (&socket, memory.address());
                scope.spawn(move || work(&Domain::open(socket, None)?, there, lock))
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker failed")?)
    })?;
    println!("{} turns of {WORKERS} workers, each alone", memory.word(8)?.load(Ordering::Relaxed));
    Ok(())
}
