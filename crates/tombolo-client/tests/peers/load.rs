//! What the protocol must survive: the deadlock of QOS §3.6.2, and classes that starve others.

use std::collections::VecDeque;

use tombolo_client::{Domain, Grant, Memory, Spec, Status, Target, Transfer, Who};

use crate::harness::{Host, PATIENCE, pair, pattern, shm, udp};
use tombolo_random::Random;

const CHANNELS: usize = 32;
/// Room of one channel: what it writes or reads is checked there.
const ROOM: usize = 96 * 1024;
const ROUNDS: usize = 24;

/// One program of the two: its memory, and that of the other.
struct Side<'a> {
    domain: &'a Domain,
    mine: &'a Memory,
    theirs: &'a Memory,
    target: Target,
    random: Random,
}

/// Where the rooms of a domain's memory are: what others read from it, what others write to it, and
/// what its own reads bring.
fn room(part: usize, channel: usize) -> usize {
    (part * CHANNELS + channel) * ROOM
}

const SOURCE: usize = 0;
const WRITTEN: usize = 1;
const BROUGHT: usize = 2;

impl Side<'_> {
    /// Keeps all channels busy both ways: what ends is checked, and begins again at once.
    fn work(&mut self, source_of_both: &[u8]) {
        let mut lengths = [[0_usize; CHANNELS]; 2];
        let mut begun = [[1_usize; CHANNELS]; 2];
        let mut open: VecDeque<(usize, usize, Transfer)> = VecDeque::new();
        for reads in [0, 1] {
            for channel in 0..CHANNELS {
                open.push_back((reads, channel, self.begin(reads, channel, &mut lengths)));
            }
        }
        while let Some((reads, channel, transfer)) = open.pop_front() {
            let outcome = transfer.wait(PATIENCE);
            if matches!(outcome, Err(tombolo_client::WaitError::Paused)) {
                drop(transfer);
                open.push_back((reads, channel, self.begin(reads, channel, &mut lengths)));
                continue;
            }
            outcome.unwrap_or_else(|error| panic!("reads: {reads}, channel {channel}: {error}"));
            drop(transfer);
            let length = lengths[reads][channel];
            let mut found = vec![0; length];
            let (memory, part) = [(self.theirs, WRITTEN), (self.mine, BROUGHT)][reads];
            memory.read(room(part, channel), &mut found).unwrap();
            let from = room(SOURCE, channel);
            assert!(found == source_of_both[from..from + length], "reads: {reads}, channel {channel}");
            if begun[reads][channel] < ROUNDS {
                begun[reads][channel] += 1;
                open.push_back((reads, channel, self.begin(reads, channel, &mut lengths)));
            }
        }
    }

    fn begin(&mut self, reads: usize, channel: usize, lengths: &mut [[usize; CHANNELS]; 2]) -> Transfer {
        let length = 1 + self.random.below(ROOM as u64 - 1) as usize;
        lengths[reads][channel] = length;
        let (from, to) = [(self.mine, self.theirs), (self.theirs, self.mine)][reads];
        let part = [WRITTEN, BROUGHT][reads];
        let source = from.address() + room(SOURCE, channel) as u64;
        let mut spec = Spec::new(source, to.address() + room(part, channel) as u64, length as u32);
        spec.class = self.random.among(&[None, Some(0), Some(1), Some(2)]);
        let begun = if reads == 1 {
            self.domain.read(self.target, spec)
        } else {
            self.domain.write(self.target, spec)
        };
        begun.unwrap()
    }
}

/// Two programs at each of two nodes: with one alone the channels of a domain would never all be
/// busy and more wanted.
fn all_channels_both_ways(hosts: &[Host; 2]) {
    let bytes = pattern(17, CHANNELS * ROOM);
    std::thread::scope(|scope| {
        for pair in [0, 1_u16] {
            let bytes = &bytes;
            scope.spawn(move || {
                let domains = [hosts[0].domain(1 + pair), hosts[1].domain(1 + pair)];
                let memories = domains.each_ref().map(|domain| {
                    let memory = domain.allocate(3 * CHANNELS * ROOM, &[Grant::all(Who::Node(1))]).unwrap();
                    memory.write(room(SOURCE, 0), bytes).unwrap();
                    memory
                });
                std::thread::scope(|scope| {
                    for side in [0, 1] {
                        let mut side = Side {
                            domain: &domains[side],
                            mine: &memories[side],
                            theirs: &memories[1 - side],
                            target: Target { node: 1, domain: 1 + pair },
                            random: Random::for_test(u64::from(pair) * 2 + side as u64 + 1),
                        };
                        scope.spawn(move || side.work(bytes));
                    }
                });
            });
        }
    });
    for host in hosts {
        assert_eq!(host.counter("programs_transfers_failed"), 0);
    }
}

#[test]
fn all_channels_busy_both_ways_over_shared_memory() {
    all_channels_both_ways(&pair(&shm()));
}

#[test]
fn all_channels_busy_both_ways_over_udp() {
    all_channels_both_ways(&pair(&udp()));
}

/// A large transfer of the low class, while the window is never without small ones of the high class.
fn low_class_is_not_starved(hosts: &[Host; 2]) {
    const SMALL: usize = 16 * 1024;
    const LARGE: usize = 4 << 20;
    /// The scheduler serves a class that waits after 16 blocks of higher ones, and two of its blocks
    /// may be unanswered: with room for retransmissions.
    const MOST: usize = 4 * 17 * (LARGE / SMALL);
    let (near, far) = (hosts[0].domain(1), hosts[1].domain(2));
    let mine = near.allocate(LARGE + SMALL, &[]).unwrap();
    let theirs = far.allocate(LARGE + 32 * SMALL, &[Grant::all(Who::Anyone)]).unwrap();
    let target = Target { node: 1, domain: 2 };
    let bytes = pattern(23, LARGE);
    mine.write(0, &bytes).unwrap();
    let high = |count: usize| {
        let to = theirs.address() + (LARGE + count % 31 * SMALL) as u64;
        let spec = Spec { class: Some(0), ..Spec::new(mine.address(), to, SMALL as u32) };
        near.write(target, spec).unwrap()
    };
    let mut small: VecDeque<Transfer> = (0..31).map(high).collect();
    let spec = Spec { class: Some(2), ..Spec::new(mine.address(), theirs.address(), LARGE as u32) };
    let large = near.write(target, spec).unwrap();
    let mut count = 0;
    while large.status() == Status::Ongoing {
        count += 1;
        assert!(count < MOST, "the low class starves: {count} small transfers have passed a large one");
        small.pop_front().unwrap().wait(PATIENCE).unwrap();
        small.push_back(high(count));
    }
    assert_eq!(large.status(), Status::Finished);
    eprintln!("{count} small transfers beside a large one of {} blocks", LARGE / SMALL);
    for transfer in small {
        transfer.wait(PATIENCE).unwrap();
    }
    let mut found = vec![0; LARGE];
    theirs.read(0, &mut found).unwrap();
    assert!(found == bytes);
}

#[test]
fn low_class_is_not_starved_over_shared_memory() {
    low_class_is_not_starved(&pair(&shm()));
}

#[test]
fn low_class_is_not_starved_over_udp() {
    low_class_is_not_starved(&pair(&udp()));
}
