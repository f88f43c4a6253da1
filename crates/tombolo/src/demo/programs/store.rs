//! A key-value store: one thread serves requests at a socket, another one asks for keys, of which some are asked for far
//! more often than others (Zipf), and changes one value in twenty.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;

use rustix::io::Errno;
use tombolo_random::{Random, mix};

use super::{Ran, Workload, run_own};
use crate::demo::compare::{Demo, Place};
use crate::failure::Failure;
use crate::output;

const KEYS: u64 = 56_000;
/// As in a cache of small objects.
const VALUE_BYTES: usize = 1024;
const REQUESTS: u64 = 160_000;
/// Requests under way at once, as of a client that does not wait for each answer.
const BATCH: u64 = 16;
/// The exponent of the usual benchmarks of key-value stores (YCSB).
const EXPONENT: f64 = 0.99;

/// The workload: this binary once more.
pub struct Store;

impl Workload for Store {
    fn name(&self) -> &'static str {
        "store"
    }

    fn about(&self) -> &'static str {
        "a key-value store under Zipf-distributed load"
    }

    fn run(&self, demo: &Demo<'_>, place: &Place<'_>) -> Result<Ran, Failure> {
        run_own(demo, place, "demo-store")
    }
}

/// Draws ranks: rank r comes `r^-EXPONENT` as often as rank 1.
struct Zipf {
    /// For each rank, how often it or one before it comes.
    sums: Vec<f64>,
}

impl Zipf {
    fn new(count: u64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=count).map(|rank| (rank as f64).powf(-EXPONENT));
        Self {
            sums: weights
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect(),
        }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let last = self.sums.last().copied().unwrap_or(0.0);
        let at = random.below(1 << 53) as f64 / (1u64 << 53) as f64 * last;
        self.sums.partition_point(|sum| *sum <= at) as u64
    }
}

/// The bytes that version `version` of a key holds.
fn value(key: u64, version: u64) -> Vec<u8> {
    let words = (0..VALUE_BYTES as u64 / 8).map(|index| mix(key << 32 ^ version << 16 ^ index));
    words.flat_map(u64::to_le_bytes).collect()
}

/// A key, and whether its value is to be changed, in a request of eight bytes.
fn request(key: u64, changes: bool) -> [u8; 8] {
    (key << 1 | u64::from(changes)).to_le_bytes()
}

/// Writes all of it. Where the memory of a cgroup is used up, as under the kernel's swap, a socket has no room now and
/// then: it has again when something has been swapped out.
fn send(socket: &mut UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Answers each request with the value that there was, until the client has gone.
fn serve(mut socket: UnixStream, values: &mut HashMap<u64, (u64, Vec<u8>)>) -> io::Result<()> {
    let mut requests = [0; 8 * BATCH as usize];
    let mut answers = Vec::with_capacity(BATCH as usize * VALUE_BYTES);
    while socket.read_exact(&mut requests).is_ok() {
        answers.clear();
        for bytes in requests.as_chunks::<8>().0 {
            let word = u64::from_le_bytes(*bytes);
            let key = word >> 1;
            let (version, stored) = values.get_mut(&key).ok_or(io::ErrorKind::InvalidData)?;
            answers.extend_from_slice(stored);
            if word & 1 == 1 {
                *version += 1;
                *stored = value(key, *version);
            }
        }
        send(&mut socket, &answers)?;
    }
    Ok(())
}

/// Asks, and checks each answer; a sum of all answers.
fn ask(mut socket: UnixStream) -> io::Result<u64> {
    let (zipf, mut random) = (Zipf::new(KEYS), Random::new(7));
    let mut versions: HashMap<u64, u64> = HashMap::new();
    let mut answers = vec![0; BATCH as usize * VALUE_BYTES];
    let mut sum = 0u64;
    for _ in 0..REQUESTS / BATCH {
        let mut requests = Vec::with_capacity(8 * BATCH as usize);
        let mut expected = Vec::with_capacity(BATCH as usize);
        for _ in 0..BATCH {
            // Ranks lie among the keys in no order, as popular keys do.
            let key = zipf.draw(&mut random) * 35_317 % KEYS;
            let changes = random.below(20) == 0;
            requests.extend(request(key, changes));
            let version = versions.entry(key).or_default();
            expected.push((key, *version));
            *version += u64::from(changes);
        }
        send(&mut socket, &requests)?;
        socket.read_exact(&mut answers)?;
        for (answer, (key, version)) in answers.as_chunks::<VALUE_BYTES>().0.iter().zip(expected) {
            if answer[..] != value(key, version)[..] {
                return Err(io::Error::other(format!("key {key} has another value than was written")));
            }
            sum = mix(sum ^ u64::from_le_bytes(*answer.first_chunk().unwrap_or(&[0; 8])));
        }
    }
    Ok(sum)
}

/// The program: fills the store, is asked, and prints how long that took and a sum of what was read.
pub fn store() -> Result<u8, Failure> {
    let mut values: HashMap<u64, (u64, Vec<u8>)> = (0..KEYS).map(|key| (key, (0, value(key, 0)))).collect();
    let (near, far) = UnixStream::pair()?;
    let since = Instant::now();
    let sum = thread::scope(|scope| {
        let serving = scope.spawn(|| serve(far, &mut values));
        let sum = ask(near);
        let served = serving.join().unwrap_or_else(|_| Err(io::Error::other("the server has panicked")));
        // Where the server has failed, it says why.
        served.and(sum)
    })?;
    output::line(&format!("{} {sum:016x}", since.elapsed().as_secs_f64()));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ranks_come_most_often() {
        let (zipf, mut random) = (Zipf::new(1000), Random::new(1));
        let mut counts = vec![0u32; 1000];
        for _ in 0..100_000 {
            counts[zipf.draw(&mut random) as usize] += 1;
        }
        assert!(counts[0] > 8 * counts[9] && counts[0] < 12 * counts[9], "{} {}", counts[0], counts[9]);
        let first: u32 = counts[..100].iter().sum();
        assert!((60_000..75_000).contains(&first), "{first}");
    }

    #[test]
    fn each_rank_has_a_key_of_its_own() {
        let keys: std::collections::HashSet<u64> = (0..KEYS).map(|rank| rank * 35_317 % KEYS).collect();
        assert_eq!(keys.len() as u64, KEYS);
    }
}
