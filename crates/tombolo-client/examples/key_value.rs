//! A table of records in one program's own memory, looked up from another domain with one-sided reads, while its owner
//! changes records: no lock, and no message.
//!
//! The bytes of a transfer come in any order, but an aligned word is copied whole. So each word of a record carries
//! the record's version: where two differ, the read met a change in the middle, and is made again.
//!
//! `cargo run --release -p tombolo-client --example key_value -- SOCKET`, that of
//! `tombolo node --programs SOCKET`.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tombolo_client::{Domain, Grant, OwnMemory, Spec, Target, Who};

const RECORDS: u64 = 1000;
/// The key, and the value: six bytes and a version each.
const WORDS: usize = 8;
const RECORD_BYTES: usize = WORDS * 8;
const LOOKUPS: u64 = 3000;

/// A record in that version; key 0 is none.
fn record(key: u64, version: u16) -> [u64; WORDS] {
    let text = format!("version {version} of the value of {key}");
    let mut words = [key; WORDS];
    for (word, part) in words[1..].iter_mut().zip(text.as_bytes().chunks(6)) {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        *word = u64::from_le_bytes(bytes);
    }
    words.map(|word| word << 16 | u64::from(version))
}

fn place(key: u64) -> u64 {
    key.wrapping_mul(2_654_435_761) % RECORDS
}

/// Puts a record to a place, a word at a time.
fn put(table: &OwnMemory, at: u64, words: [u64; WORDS]) -> Result<(), Box<dyn Error + Send + Sync>> {
    for (index, word) in words.into_iter().enumerate() {
        table.word(at as usize * RECORD_BYTES + index * 8)?.store(word, Ordering::Relaxed);
    }
    Ok(())
}

/// Half of the keys, by open addressing; where each went.
fn fill(table: &OwnMemory) -> Result<Vec<(u64, u64)>, Box<dyn Error + Send + Sync>> {
    let mut places = Vec::new();
    for key in 1..=RECORDS / 2 {
        let mut at = place(key);
        while table.word(at as usize * RECORD_BYTES)?.load(Ordering::Relaxed) != 0 {
            at = (at + 1) % RECORDS;
        }
        put(table, at, record(key, 1))?;
        places.push((key, at));
    }
    Ok(places)
}

/// Reads what is at a place; `None`: the read met a change in the middle.
fn read(
    reader: &Domain,
    own: &OwnMemory,
    (target, table): (Target, u64),
    at: u64,
) -> Result<Option<[u64; WORDS]>, Box<dyn Error + Send + Sync>> {
    let spec = Spec::new(table + at * RECORD_BYTES as u64, own.address(), RECORD_BYTES as u32);
    reader.read(target, spec)?.wait(Duration::from_secs(10))?;
    let mut words = [0; WORDS];
    for (index, word) in words.iter_mut().enumerate() {
        *word = own.word(index * 8)?.load(Ordering::Relaxed);
    }
    Ok(words.iter().all(|word| *word as u16 == words[0] as u16).then_some(words))
}

/// Looks a key up: whether it is there, and how many reads met a change in the middle.
fn look_up(
    reader: &Domain,
    own: &OwnMemory,
    there: (Target, u64),
    key: u64,
) -> Result<(bool, u64), Box<dyn Error + Send + Sync>> {
    let (mut at, mut torn) = (place(key), 0);
    loop {
        let Some(words) = read(reader, own, there, at)? else {
            torn += 1;
            continue;
        };
        match words[0] >> 16 {
            0 => return Ok((false, torn)),
            found if found == key => {
                let is_whole = words == record(key, words[0] as u16);
                return if is_whole { Ok((true, torn)) } else { Err("a record of two versions".into()) };
            }
            _ => at = (at + 1) % RECORDS,
        }
    }
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let socket = PathBuf::from(std::env::args().nth(1).ok_or("usage: key_value SOCKET")?);
    let owner = Domain::open(&socket, None)?;
    let table =
        owner.register(OwnMemory::map(RECORDS as usize * RECORD_BYTES)?, &[Grant::read(Who::Anyone)])?;
    let places = fill(&table)?;

    let reader = Domain::open(&socket, None)?;
    let own = reader.register(OwnMemory::map(4096)?, &[])?;
    let target = Target { node: 0, domain: owner.number() };
    let is_over = AtomicBool::new(false);
    let (found, torn) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut version = 1_u16;
            while !is_over.load(Ordering::Relaxed) {
                version = version.wrapping_add(1);
                for (key, at) in &places {
                    put(&table, *at, record(*key, version))?;
                }
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
        let looked = (0..LOOKUPS).try_fold((0, 0), |(found, torn), lookup| {
            let key = lookup % RECORDS + 1;
            let (is_there, more) = look_up(&reader, &own, (target, table.address()), key)?;
            Ok::<_, Box<dyn Error + Send + Sync>>((found + u64::from(is_there), torn + more))
        });
        is_over.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| "the writer failed")??;
        looked
    })?;
    eprintln!("{torn} reads met a change in the middle");
    // A change that stops in the middle is seen as one, however often it is read.
    let (key, at) = places[0];
    let there = (target, table.address());
    let (old, new) = (record(key, 1), record(key, 2));
    put(&table, at, std::array::from_fn(|index| if index < WORDS / 2 { new[index] } else { old[index] }))?;
    let half = read(&reader, &own, there, at)?;
    put(&table, at, new)?;
    if half.is_some() || read(&reader, &own, there, at)? != Some(new) {
        return Err("half a change was taken for a record".into());
    }
    println!("{LOOKUPS} lookups, {found} found");
    Ok(())
}
