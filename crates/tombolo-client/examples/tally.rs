//! Workers draw tickets from a counter in another domain until they run out, and report by mail.
//!
//! `cargo run --release -p tombolo-client --example tally -- SOCKET`, that of
//! `tombolo node --programs SOCKET`.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use tombolo_client::{Domain, Grant, Target, Who};

const WORKERS: u64 = 3;
const TICKETS: u64 = 3000;
const PATIENCE: Duration = Duration::from_secs(10);

fn work(domain: &Domain, office: Target, counter: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut drawn = 0_u64;
    while domain.fetch_add(office, counter, 1)?.wait(PATIENCE)? < TICKETS {
        drawn += 1;
    }
    domain.send(office, &drawn.to_le_bytes())?.wait(PATIENCE)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let socket = PathBuf::from(std::env::args().nth(1).ok_or("usage: tally SOCKET")?);
    let domain = Domain::open(&socket, None)?;
    let memory = domain.allocate(4096, &[Grant::all(Who::Anyone)])?;
    let mailbox = domain.open_mailbox(16, &[Who::Anyone])?;
    let office = Target { node: 0, domain: domain.number() };
    let counter = memory.address();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let socket = &socket;
                scope.spawn(move || work(&Domain::open(socket, None)?, office, counter))
            })
            .collect();
        let mut drawn = 0;
        for _ in 0..WORKERS {
            let report = mailbox.receive(PATIENCE)?;
            drawn += u64::from_le_bytes(report.bytes.as_slice().try_into()?);
        }
        println!("{drawn} tickets drawn by {WORKERS} workers");
        for worker in workers {
            worker.join().map_err(|_| "a worker failed")??;
        }
        Ok(())
    })
}
