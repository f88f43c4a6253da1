//! A program keeps a record that changes all the time in a window; others map it and read it by loads, with no transfer and no
//! node in between. A version says whether what was read is of one piece. In the end the window is revoked.
//!
//! `cargo run --release -p tombolo-client --example window -- SOCKET`, that of
//! `tombolo node --programs SOCKET`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use tombolo_client::{Domain, Grant, Memory, Target, Who, WindowError};

const READERS: usize = 2;
const CHANGES: u64 = 20_000;
/// The words of the record, behind its version.
const FIELDS: usize = 8;

/// Changes the record: its version is odd meanwhile.
fn change(memory: &Memory, number: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
    let version = memory.word(0)?;
    version.store(2 * number - 1, Ordering::Relaxed);
    fence(Ordering::Release);
    for field in 1..=FIELDS {
        memory.word(8 * field)?.store(number * field as u64, Ordering::Relaxed);
    }
    version.store(2 * number, Ordering::Release);
    Ok(())
}

/// Reads the record until the window is revoked: how many versions of it were seen.
fn follow(
    socket: &Path,
    owner: Target,
    address: u64,
    mapped: &AtomicUsize,
) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let domain = Domain::open(socket, None)?;
    let window = domain.map_window(owner, address)?;
    mapped.fetch_add(1, Ordering::Release);
    let (mut last, mut seen) = (0, 0);
    loop {
        let mut fields = [0; FIELDS];
        let read = || {
            let before = window.load(0)?;
            for (place, field) in fields.iter_mut().enumerate() {
                *field = window.load(8 * (place + 1))?;
            }
            Ok((before, window.load(0)?))
        };
        match { read }() {
            Ok((before, after)) if before == after && before % 2 == 0 => {
                let number = before / 2;
                if (1..).zip(&fields).any(|(place, field)| *field != number * place) {
                    return Err("a record that is torn".into());
                }
                seen += u64::from(number > last);
                last = number;
            }
            // It was being changed.
            Ok(_) => std::thread::yield_now(),
            Err(WindowError::Ended(_)) => return Ok(seen),
            Err(error) => return Err(error.into()),
        }
    }
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let socket = PathBuf::from(std::env::args().nth(1).ok_or("usage: window SOCKET")?);
    let domain = Domain::open(&socket, None)?;
    let memory = domain.allocate_window(4096, &[Grant::read(Who::Anyone)])?;
    let owner = Target { node: 0, domain: domain.number() };
    let mapped = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let (socket, address) = (&socket, memory.address());
                let mapped = &mapped;
                scope.spawn(move || follow(socket, owner, address, mapped))
            })
            .collect();
        // A window that is revoked before they have mapped it is none.
        while mapped.load(Ordering::Acquire) < READERS && !readers.iter().any(|reader| reader.is_finished()) {
            std::thread::yield_now();
        }
        for number in 1..=CHANGES {
            change(&memory, number)?;
            if number % 100 == 0 {
                std::thread::yield_now();
            }
        }
        if let Err(error) = domain.revoke_window(&memory) {
            // The readers would wait for its end.
            eprintln!("{error}");
            std::process::exit(1);
        }
        readers.into_iter().try_for_each(|reader| reader.join().map_err(|_| "a reader failed")?.map(drop))
    })?;
    println!("{} changes, read by {READERS}, none torn", memory.word(0)?.load(Ordering::Relaxed) / 2);
    Ok(())
}
