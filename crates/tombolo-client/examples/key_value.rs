//! A table of records in one domain, looked up from another with one-sided reads: the owner does nothing.
//!
//! `cargo run --release -p tombolo-client --example key_value -- SOCKET`, that of
//! `tombolo node --programs SOCKET`.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use tombolo_client::{Domain, Grant, Memory, Spec, Target, Who};

const RECORDS: u64 = 1000;
const RECORD_BYTES: usize = 64;
const LOOKUPS: u64 = 3000;

/// A record: the key (0: none), then text and zeroes.
fn record(key: u64) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    let text = format!("the value of {key}");
    bytes[8..8 + text.len()].copy_from_slice(text.as_bytes());
    bytes
}

fn place(key: u64) -> u64 {
    key.wrapping_mul(2_654_435_761) % RECORDS
}

/// Half of the keys, by open addressing.
fn fill(table: &Memory) -> Result<(), Box<dyn Error>> {
    for key in 1..=RECORDS / 2 {
        let mut at = place(key) as usize;
        let mut found = [0; 8];
        loop {
            table.read(at * RECORD_BYTES, &mut found)?;
            if found == [0; 8] {
                break;
            }
            at = (at + 1) % RECORDS as usize;
        }
        table.write(at * RECORD_BYTES, &record(key))?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let socket = PathBuf::from(std::env::args().nth(1).ok_or("usage: key_value SOCKET")?);
    let owner = Domain::open(&socket, None)?;
    let table =
        owner.allocate(RECORDS as usize * RECORD_BYTES / 4096 * 4096 + 4096, &[Grant::read(Who::Anyone)])?;
    fill(&table)?;

    let reader = Domain::open(&socket, None)?;
    let own = reader.allocate(4096, &[])?;
    let target = Target { node: 0, domain: owner.number() };
    let mut found = 0;
    for lookup in 0..LOOKUPS {
        let key = lookup % RECORDS + 1;
        let mut at = place(key);
        loop {
            let source = table.address() + at * RECORD_BYTES as u64;
            let spec = Spec::new(source, own.address(), RECORD_BYTES as u32);
            reader.read(target, spec)?.wait(Duration::from_secs(10))?;
            let mut bytes = [0; RECORD_BYTES];
            own.read(0, &mut bytes)?;
            if bytes == record(key) {
                found += 1;
                break;
            }
            if bytes[..8] == [0; 8] {
                break;
            }
            at = (at + 1) % RECORDS;
        }
    }
    println!("{LOOKUPS} lookups, {found} found");
    Ok(())
}
