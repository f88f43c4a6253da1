//! An all-to-all of 64 domains: each writes a part of its memory to each, and then adds to a counter there, behind a
//! fence. Who has counted 64 has all parts.
//!
//! `cargo run --release -p tombolo-client --example all_to_all -- SOCKET`, that of
//! `tombolo node --programs SOCKET --domains 64`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Grant, Memory, Order, Queue, Spec, Target, Who};

const DOMAINS: usize = 64;
const PART_BYTES: usize = 4096;
/// Behind the parts that are sent and those that come.
const COUNTER: usize = 2 * DOMAINS * PART_BYTES;
const PATIENCE: Duration = Duration::from_secs(10);

struct Member {
    domain: Domain,
    memory: Memory,
    queue: Queue,
}

impl Member {
    fn new(socket: &Path) -> Result<Self, Box<dyn Error>> {
        let domain = Domain::open(socket, None)?;
        let memory = domain.allocate(COUNTER + 4096, &[Grant::all(Who::Anyone)])?;
        let queue = domain.queue(2 * DOMAINS);
        Ok(Self { domain, memory, queue })
    }

    fn target(&self) -> Target {
        Target { node: 0, domain: self.domain.number() }
    }
}

/// What one member sends to another.
fn part(from: usize, to: usize) -> [u8; PART_BYTES] {
    std::array::from_fn(|at| (from * 31 + to * 7 + at) as u8)
}

fn main() -> Result<(), Box<dyn Error>> {
    let socket = PathBuf::from(
        std::env::args()
            .nth(1)
            .ok_or("usage: all_to_all SOCKET, that of `tombolo node --programs SOCKET --domains 64`")?,
    );
    let mut members: Vec<Member> = (0..DOMAINS).map(|_| Member::new(&socket)).collect::<Result<_, _>>()?;
    let places: Vec<(Target, u64)> =
        members.iter().map(|member| (member.target(), member.memory.address())).collect();
    for (from, member) in members.iter_mut().enumerate() {
        for to in 0..DOMAINS {
            member.memory.write(to * PART_BYTES, &part(from, to))?;
        }
        let there = (DOMAINS + from) * PART_BYTES;
        let writes = places.iter().enumerate().map(|(to, &(target, address))| {
            let source = member.memory.address() + (to * PART_BYTES) as u64;
            Order::write(target, Spec::new(source, address + there as u64, PART_BYTES as u32))
        });
        // What is posted behind the one with the fence begins after it.
        let counts = places.iter().enumerate().map(|(to, &(target, address))| {
            let count = Order::fetch_add(target, address + COUNTER as u64, 1);
            if to == 0 { count.fenced() } else { count }
        });
        member.queue.post_all(writes.chain(counts).map(|order| (order, 0)));
    }
    for member in &mut members {
        while let Some(end) = member.queue.wait_any(PATIENCE)? {
            end.outcome?;
        }
    }
    let since = Instant::now();
    for (to, member) in members.iter().enumerate() {
        let counter = member.memory.word(COUNTER)?;
        while counter.load(std::sync::atomic::Ordering::Acquire) < DOMAINS as u64 {
            if since.elapsed() > PATIENCE {
                return Err("parts are missing".into());
            }
            std::thread::yield_now();
        }
        for from in 0..DOMAINS {
            let mut found = [0; PART_BYTES];
            member.memory.read((DOMAINS + from) * PART_BYTES, &mut found)?;
            if found != part(from, to) {
                return Err(format!("other bytes from {from} to {to}").into());
            }
        }
    }
    println!("{} parts exchanged by {DOMAINS} domains", DOMAINS * DOMAINS);
    Ok(())
}
