//! GNU sort: it touches all of its memory again and again, in no order.

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_app::scratch::Scratch;
use tombolo_random::Random;

use super::{Ran, Workload, disk};
use crate::demo::compare::{Demo, Place};
use crate::demo::{Child, STOP};
use crate::failure::Failure;

/// Lines of the input.
const LINES: u64 = 170_000;
/// Bytes of a line, with its end.
const LINE_BYTES: usize = 350;
/// Bytes of the input.
pub const INPUT_BYTES: u64 = LINES * LINE_BYTES as u64;
/// Room for all of the input and its table of lines at once, so that it sorts in one go.
const BUFFER: &str = "--buffer-size=200M";

/// The workload.
pub struct Sort {
    input: PathBuf,
}

impl Sort {
    /// Other sorts know neither `--parallel` nor `--buffer-size`. The error: why it is left out.
    pub fn find() -> Result<(), String> {
        let version =
            Command::new("sort").arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
        match version {
            Ok(answer) if String::from_utf8_lossy(&answer.stdout).contains("GNU") => Ok(()),
            Ok(_) => Err("sort: this one is not GNU sort (coreutils)".into()),
            Err(error) => Err(format!("sort: {error}")),
        }
    }

    /// Writes the input: lines in no order, the same at every call.
    pub fn prepare(directory: &Scratch) -> Result<Self, Failure> {
        let input = directory.file("input");
        write_input(&input).map_err(disk)?;
        Ok(Self { input })
    }
}

impl Workload for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn about(&self) -> &'static str {
        "GNU sort, which touches all of its memory again and again"
    }

    fn has_other_output_in_group(&self) -> bool {
        true
    }

    fn run(&self, demo: &Demo<'_>, place: &Place<'_>) -> Result<Ran, Failure> {
        // It writes no file, whose cached pages would be charged to its cgroup; and in a full one a pipe has no room.
        let is_kept = !matches!(place, Place::Group(_) | Place::PlainBesideGroup);
        let mut command = demo.command(place, "sort".as_ref())?;
        // In C order every byte counts; with one thread the times can be compared.
        command.env("LC_ALL", "C").args([BUFFER, "--parallel=1", "--temporary-directory"]);
        command.arg(demo.directory.path()).arg(&self.input);
        if !is_kept {
            command.args(["--output", "/dev/null"]);
        }
        let since = Instant::now();
        let child = Child::start(&mut command, "sort", demo.directory)?;
        let output = child.output(&STOP, || demo.progress.tick(), digest_of)?;
        Ok(Ran { seconds: since.elapsed().as_secs_f64(), output: is_kept.then_some(output) })
    }
}

fn write_input(path: &Path) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = Random::new(1);
    let mut line = [0; LINE_BYTES];
    for number in 0..LINES {
        if number % 50_000 == 0 && STOP.load(Ordering::Acquire) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        fill(&mut line, &mut random);
        file.write_all(&line)?;
    }
    file.flush()
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

/// The length of what can be read, and a number that differs if any byte does.
fn digest_of(mut file: impl Read) -> io::Result<String> {
    let (mut hasher, mut length) = (DefaultHasher::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(format!("{length} {:016x}", hasher.finish())),
            count => {
                hasher.write(&buffer[..count]);
                length += count;
            }
        }
    }
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

    #[test]
    fn outputs_are_the_same_only_if_every_byte_is() {
        let digest = |bytes: &[u8]| digest_of(bytes).unwrap();
        let long = vec![7; (1 << 20) + 5];
        let mut other = long.clone();
        other[1 << 20] = 8;
        let first = digest(&long);
        assert_eq!(first, digest(&long));
        for different in [&other[..], &long[1..], b""] {
            assert_ne!(first, digest(different));
        }
    }
}
