//! Hundreds of domains at once.

use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tombolo_client::{Domain, Grant, Memory, OwnMemory, Registered, Spec, Target, Who};
use tombolo_node::Limits;

use crate::harness::{Host, PATIENCE, pattern, shm};

const DOMAINS: usize = 300;
const BYTES: usize = 20_000;

struct Program {
    domain: Domain,
    memory: Memory,
    own: Option<Registered>,
}

impl Program {
    fn new(host: &Host, index: usize) -> Self {
        let domain = host.any_domain();
        let memory = domain.allocate(64 << 10, &[Grant::all(Who::Anyone)]).unwrap();
        // Some have threads of their own at the node.
        let own = index.is_multiple_of(10).then(|| domain.register(OwnMemory::map(64 << 10).unwrap(), &[]));
        Self { domain, memory, own: own.map(Result::unwrap) }
    }

    /// Where it has bytes to send, and puts them.
    fn fill(&self, bytes: &[u8]) -> u64 {
        match &self.own {
            Some(own) => own.write(0, bytes).map(|()| own.address()).unwrap(),
            None => self.memory.write(0, bytes).map(|()| self.memory.address()).unwrap(),
        }
    }
}

/// Each of these writes to the next of those, all at once.
fn all_write(from: &[Program], to: &[Program], node: u32, seed: usize) {
    let mut transfers = Vec::new();
    for (index, program) in from.iter().enumerate() {
        let next = &to[(index + 1) % to.len()];
        let source = program.fill(&pattern((seed + index) as u64, BYTES));
        let target = Target { node, domain: next.domain.number() };
        let spec = Spec::new(source, next.memory.address() + (32 << 10), BYTES as u32);
        transfers.push(program.domain.write(target, spec).unwrap());
    }
    for transfer in transfers {
        transfer.wait(PATIENCE).unwrap();
    }
    for index in 0..from.len() {
        let mut found = vec![0; BYTES];
        to[(index + 1) % to.len()].memory.read(32 << 10, &mut found).unwrap();
        assert!(found == pattern((seed + index) as u64, BYTES), "program {index}");
    }
}

#[test]
fn all_domains_move_at_once() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    assert!(maximum.is_none_or(|maximum| maximum > 16 * DOMAINS as u64), "the test needs more descriptors");
    let limits =
        Limits { domains: 600, program_memory_bytes: 64 << 20, transactions: 1 << 15, ..Limits::default() };
    let (one, address) = Host::start_with("one", &shm(), &[], limits);
    // The other has fewer slots: each node's limits are its own.
    let (other, _) =
        Host::start_with("other", &shm(), &[&address], Limits { domains: 400, ..Limits::default() });
    let programs: Vec<_> = (0..DOMAINS).map(|index| Program::new(&one, index)).collect();
    let others: Vec<_> = (0..DOMAINS).map(|index| Program::new(&other, index)).collect();
    for round in 0..3 {
        all_write(&programs, &programs, 0, round);
        all_write(&programs, &others, 1, 1000 + round);
        all_write(&others, &programs, 1, 2000 + round);
        // Those that are quiet are not looked at any more, and come back with their next bell.
        let since = Instant::now();
        while one.counter("programs_awake") > 64 {
            assert!(since.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
    }
    assert_eq!(one.node.status().limits.transactions, 1 << 15);
    drop(programs);
    let since = Instant::now();
    while one.counter("programs_domains") > 0 {
        assert!(since.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    assert_eq!(one.counter("programs_memory_bytes"), 0);
}
