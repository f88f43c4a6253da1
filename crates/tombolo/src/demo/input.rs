//! The file to sort: lines in no order, the same at every call.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_random::Random;

/// Lines of the input.
const LINES: u64 = 400_000;
/// Bytes of a line, with its end.
const LINE_BYTES: u64 = 350;
/// Bytes of the input.
pub const BYTES: u64 = LINES * LINE_BYTES;

/// Writes the input; returns its size.
pub fn write(path: &Path, stop: &AtomicBool, mut tick: impl FnMut()) -> io::Result<u64> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = Random::new(1);
    let mut line = [0; LINE_BYTES as usize];
    for number in 0..LINES {
        if number % 50_000 == 0 {
            if stop.load(Ordering::Acquire) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            tick();
        }
        fill(&mut line, &mut random);
        file.write_all(&line)?;
    }
    file.flush()?;
    Ok(BYTES)
}

/// Random letters, four bits each.
fn fill(line: &mut [u8], random: &mut Random) {
    let last = line.len() - 1;
    for group in line[..last].chunks_mut(16) {
        let bits = random.next();
        for (index, letter) in group.iter_mut().enumerate() {
            *letter = b'a' + (bits >> (index * 4) & 15) as u8;
        }
    }
    line[last] = b'\n';
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_letters_and_differ() {
        let mut random = Random::new(1);
        let (mut first, mut second) = ([0; 64], [0; 64]);
        fill(&mut first, &mut random);
        fill(&mut second, &mut random);
        assert_ne!(first, second);
        assert_eq!(first[63], b'\n');
        assert!(first[..63].iter().all(u8::is_ascii_lowercase));
    }
}
