//! A scenario of a seed, against the oracle.
//!
//! Safety: every byte right, nothing else touched, each notification once and after its bytes, each transfer completes once.
//! Liveness: when the faults end, everything completes and all tables are empty.

use super::{Bench, Faults, OwnFaults, Plant, Wire};
use crate::kernel::Trace;
use tombolo_core::iommu;
use tombolo_core::rdma::congestion::CongestionConfig;
use tombolo_core::rdma::{
    Class, Config, Direction, PostError, Retransmission, Time, Transfer, TransferError,
};
use tombolo_random::Random;
use tombolo_wire::{NackCode, Refusal};

/// What a seed draws, for a message.
#[derive(Debug)]
pub struct Options {
    config: Config,
    faults: Faults,
    payload_bytes: u32,
    posts: u64,
    largest_bytes: u64,
    /// Chance of a pause between two posts.
    pause: u64,
    /// Chance that the link breaks or a node restarts after a post.
    reset: u64,
    /// Delays of the wires beside the first, and what they lose.
    wires: Vec<(u64, u64)>,
    /// Chance that a wire is cut, left or healed after a post.
    cuts: u64,
    /// Chance that all paths are lost after a post, for up to eight seconds.
    outages: u64,
    /// Chance of a pause of up to half a minute after a post, with all that is open over, and then a burst.
    idle: u64,
    /// Chance that the machine is stopped after a post, for up to twenty seconds.
    stops: u64,
    /// Chance that a link is full for a block.
    full_links: u64,
    /// A long read and many short ones beside it, at the start.
    short_reads: u64,
    /// All memory is programs' own, whose pages may be absent.
    own: Option<OwnFaults>,
}

/// A chance, of half of all seeds.
fn sometimes_of(random: &mut Random, most: u64) -> u64 {
    if random.per_million(500_000) { random.below(most) } else { 0 }
}

/// What programs and their pages do.
fn own_faults(random: &mut Random) -> OwnFaults {
    let [going, touch_ns, lying] = [20_000, 5_000_000, 100_000].map(|most| sometimes_of(random, most));
    // Of these, transfers fail.
    let deadly = |random: &mut Random, most| {
        if random.per_million(150_000) { random.below(most) } else { 0 }
    };
    OwnFaults {
        going,
        touch_ns,
        lying,
        hanging: deadly(random, 20_000),
        freezing: deadly(random, 500),
        vanishing: deadly(random, 5_000),
        dying: deadly(random, 1_000),
        releasing: deadly(random, 5_000),
        full: deadly(random, 50_000),
        of_node: sometimes_of(random, 400_000),
        policy: if random.one_in(2) {
            iommu::FaultPolicy::default()
        } else {
            iommu::FaultPolicy {
                touch: random.among(&[
                    iommu::TouchPolicy::Page,
                    iommu::TouchPolicy::Ahead(4),
                    iommu::TouchPolicy::Adaptive,
                ]),
                mode: random.among(&[iommu::FaultMode::Stall, iommu::FaultMode::Terminate]),
            }
        },
        iommu: iommu::Config {
            max_accesses: random.among(&[16, 256]),
            max_touches: random.among(&[4, 64]),
            running_touches: random.among(&[1, 4]),
            max_held_bytes: random.among(&[0, 20_000, 2 << 20]),
            max_bringing_bytes: random.among(&[0, 20_000, 1 << 20]),
            max_attempts: random.among(&[2, 32]),
            ..iommu::Config::default()
        },
    }
}

/// What a seed draws.
pub fn options(seed: u64) -> Options {
    let random = &mut Random::new(seed);
    let mut sometimes = |most| sometimes_of(random, most);
    let slow_ns = [2_000_000, 30_000_000, 300_000_000][sometimes(3) as usize];
    let faults = Faults {
        loss: sometimes(100_000),
        duplication: sometimes(100_000),
        corruption: sometimes(50_000),
        jitter_ns: sometimes(300_000),
        stall: sometimes(2_000),
        slow_copy: sometimes(200_000),
        slow_ns,
        absent_page: sometimes(20_000),
        full: sometimes(20_000),
        absent_source: sometimes(50_000),
        buffer_bytes: None,
        byte_picos: sometimes(2_000),
    };
    let retransmission = match random.below(8) {
        0 => Retransmission::Fixed { timeout_ns: 20_000_000 },
        1 => Retransmission::Ticks { tick_ns: 1_000_000, ticks: 20 },
        _ => Config::default().retransmission,
    };
    let config = Config {
        transactions: random.range(2, 64) as u16,
        peer_transactions: 64,
        transfers: random.range(2, 64) as u32,
        block_bytes: 256 << random.range(2, 6),
        outstanding_blocks: random.range(1, 6) as u32,
        throttled_outstanding_blocks: random.range(1, 3) as u32,
        throttled_block_bytes: 256 << random.range(0, 6),
        throttled_block_ns: random.below(3) * 5_000,
        small_transfer_memory_ns: random.below(3) * 100_000,
        turn_blocks: random.range(1, 4) as u32,
        starvation_blocks: random.range(1, 20) as u32,
        bypass: random.per_million(700_000),
        retransmission,
        early_notification: random.per_million(800_000),
        fast_retransmit: random.per_million(800_000),
        congestion: random.per_million(700_000).then(CongestionConfig::default),
        outstanding_reads: random.range(1, 64) as u32,
        read_channels: random.range(1, 8) as u32,
        served_reads: random.range(1, 32) as u32,
        pending_reads: random.below(16) as u32,
        ..Config::default()
    };
    let wires = if random.per_million(500_000) { random.range(1, 7) } else { 0 };
    let wires = (0..wires).map(|_| (random.range(5_000, 400_000), random.below(30_000))).collect();
    let largest_bytes = [1, 300, 5_000, 40_000, 200_000, 1 << 20][random.below(6) as usize];
    Options {
        config,
        faults,
        payload_bytes: [256, 1024, 1400, 4096, 8192, 16384][random.below(6) as usize],
        posts: random.range(1, if largest_bytes > 100_000 { 12 } else { 120 }),
        largest_bytes,
        pause: [0, 100_000, 900_000][random.below(3) as usize],
        reset: if random.per_million(250_000) { 50_000 } else { 0 },
        wires,
        cuts: if random.per_million(700_000) { 100_000 } else { 0 },
        outages: if random.per_million(150_000) { 30_000 } else { 0 },
        idle: if random.per_million(150_000) { 100_000 } else { 0 },
        stops: if random.per_million(150_000) { 20_000 } else { 0 },
        full_links: if random.per_million(250_000) { random.below(200_000) } else { 0 },
        short_reads: if random.per_million(100_000) { random.range(10, 300) } else { 0 },
        own: random.per_million(300_000).then(|| own_faults(random)),
    }
}

fn size(random: &mut Random, largest: u64) -> u32 {
    match random.below(20) {
        0 => 0,
        1..4 => random.range(1, 300.min(largest)) as u32,
        4..6 => (random.range(1, largest.div_ceil(4096)) * 4096).min(largest) as u32,
        _ => random.range(1, largest) as u32,
    }
}

/// Post if there is room; make room if there is none.
fn post_when_possible(bench: &mut Bench, poster: usize, direction: Direction, size_bytes: u32) {
    loop {
        let unused = bench.unused;
        let Some(Err(error)) = bench.post(poster, direction, size_bytes, false, None) else { return };
        assert_eq!(error, PostError::Full);
        bench.unused = unused;
        let open = bench.open;
        assert!(bench.step() || bench.open < open, "full and nothing happens");
    }
}

/// A long read, and short ones after it in both directions.
fn long_read_beside_short_ones(bench: &mut Bench, short_reads: u64) {
    post_when_possible(bench, 0, Direction::Read, 256 * 1024);
    for number in 0..short_reads {
        post_when_possible(bench, (number % 2) as usize, Direction::Read, 64);
    }
}

/// All paths are lost, and come back after a while: what is open waits.
fn outage(bench: &mut Bench, pause_ns: u64) {
    let up: Vec<usize> = (0..bench.wires.len()).filter(|wire| !bench.wires[*wire].left).collect();
    let was_cut: Vec<bool> = up.iter().map(|wire| bench.wires[*wire].cut).collect();
    up.iter().for_each(|wire| bench.leave_wire(*wire));
    // A read that failed with a lost peer ends when no byte of it is being copied any more.
    let failed = |bench: &Bench| {
        let ends = bench.watched.iter().filter_map(|watched| watched.status);
        let has_own = bench.own_faults.is_some();
        let is_of_path = |error| match error {
            TransferError::PeerLost => false,
            TransferError::Refused(_) | TransferError::Local(_) => !has_own,
            _ => true,
        };
        ends.filter(|end| end.is_err_and(is_of_path)).count()
    };
    bench.drain();
    let before = failed(bench);
    let end = bench.now().after_ns(pause_ns);
    while bench.now() < end && bench.step() {}
    bench.skip_to(bench.now().max(end));
    bench.expire_all();
    bench.drain();
    assert_eq!(failed(bench), before, "something failed for want of a path");
    for (wire, was_cut) in up.into_iter().zip(was_cut) {
        bench.heal_wire(wire);
        bench.wires[wire].cut = was_cut;
    }
}

/// The machine is stopped for a while. When it goes on, timers come first, and no transfer may fail for that.
fn stop(bench: &mut Bench, pause_ns: u64) {
    bench.skip_to(bench.now().after_ns(pause_ns));
    bench.expire_all();
    for _ in 0..100 {
        bench.step();
    }
}

/// When all is over, whatever goes on: programs may be stopped for a minute, again and again.
fn settled_ns(bench: &Bench) -> u64 {
    if bench.own_faults.is_some() { 600_000_000_000 } else { 60_000_000_000 }
}

/// All that is open ends, nothing happens for a while, and then much is posted at once: of that no more is sent
/// at once than a window, and after a long pause no more than at the start.
fn idle_and_burst(bench: &mut Bench, random: &mut Random) {
    // What is cut and not left keeps its transfers waiting for long.
    (0..bench.wires.len()).for_each(|wire| bench.heal_wire(wire));
    let faults = std::mem::take(&mut bench.faults);
    bench.settle(settled_ns(bench));
    let pause_ns = random.below(30_000_000_000);
    bench.skip_to(bench.now().after_ns(pause_ns));
    bench.expire_all();
    let poster = random.below(2) as usize;
    let before = bench.report()[poster].block_bytes_sent;
    for _ in 0..random.range(1, 12) {
        if !matches!(bench.post(poster, Direction::Write, 64 * 1024, false, None), Some(Ok(_))) {
            break;
        }
    }
    bench.drain();
    bench.faults = faults;
    let congestion = CongestionConfig::default();
    let sent_bytes = bench.report()[poster].block_bytes_sent - before;
    let most_bytes = (congestion.initial_bytes + 16 * 1024) * bench.wires.len() as u64;
    // Blocks whose source is absent are counted, and not sent.
    if bench.limits_windows() && bench.own_faults.is_none() && pause_ns > congestion.memory_ns {
        assert!(sent_bytes <= most_bytes, "{sent_bytes} bytes at once after {pause_ns} ns");
    }
}

/// Runs the scenario of a seed.
///
/// # Panics
///
/// If an engine does anything wrong.
pub fn run(seed: u64, options: &Options) -> Trace {
    run_with(seed, options, None)
}

/// As [`run`], with a planted defect.
///
/// # Panics
///
/// If an engine does anything wrong, or the defect shows.
pub fn run_with(seed: u64, options: &Options, plant: Option<Plant>) -> Trace {
    let mut random = Random::new(seed ^ 0x5eed);
    let mut bench = Bench::new(options.config, seed, 3 << 20);
    if let Some(plant) = plant {
        bench.plant(plant);
    }
    bench.faults = options.faults;
    bench.payload_bytes = options.payload_bytes;
    bench.full_links = options.full_links;
    bench.outage_ns = Some(10_000_000_000);
    if let Some(own) = options.own {
        bench.use_own_memory(own);
    }
    for (delay_ns, loss) in &options.wires {
        bench.add_wire(Wire { loss: *loss, ..Wire::new(*delay_ns) });
    }
    if options.short_reads > 0 {
        long_read_beside_short_ones(&mut bench, options.short_reads);
    }
    let (mut posted, mut lost_paths, mut stops) = (0, 0, 0);
    'posting: while posted < options.posts {
        // Both ends at once, both ways (the deadlock of MICRO §4.10).
        let poster = random.below(2) as usize;
        let direction = if random.per_million(500_000) { Direction::Write } else { Direction::Read };
        let class = random.per_million(200_000).then(|| random.among(&Class::ALL));
        let size = size(&mut random, options.largest_bytes);
        let words = random.per_million(500_000);
        let stays = options.own.is_some() && random.per_million(300_000);
        let outcome = if random.one_in(4) && bench.has_failed_writes() {
            bench.post_again()
        } else if random.per_million(150_000) {
            if stays {
                bench.begin_atomic_here(poster);
                posted += 1;
                continue;
            }
            Some(bench.post_atomic(poster))
        } else if stays {
            bench.post_here(poster, size, words)
        } else {
            bench.post(poster, direction, size, words, class)
        };
        match outcome {
            None => break 'posting,
            Some(Ok(_)) => posted += 1,
            Some(Err(PostError::Full)) => {
                let open = bench.open;
                assert!(bench.step() || bench.open < open, "full and nothing happens");
            }
            Some(Err(error)) => panic!("{error}"),
        }
        while random.per_million(options.pause) {
            bench.step();
        }
        if random.per_million(options.reset) {
            match random.below(3) {
                2 => bench.reset_link(),
                node => bench.restart(node as usize),
            }
        }
        if bench.wires.len() > 1 && random.per_million(options.cuts) {
            let wire = random.below(bench.wires.len() as u64) as usize;
            let others_work = (0..bench.wires.len()).any(|other| other != wire && !bench.wires[other].cut);
            match random.below(4) {
                0 if others_work => bench.cut_wire(wire),
                1 if others_work => {
                    lost_paths += 1;
                    bench.leave_wire(wire);
                }
                _ => bench.heal_wire(wire),
            }
        }
        if random.per_million(options.outages) {
            lost_paths += bench.wires.len();
            outage(&mut bench, random.below(8_000_000_000));
        }
        if random.per_million(options.stops) {
            stops += 1;
            stop(&mut bench, random.below(20_000_000_000));
        }
        if random.per_million(options.idle) {
            idle_and_burst(&mut bench, &mut random);
        }
        if random.per_million(100_000) {
            // Packets get cut for another path from now on.
            bench.payload_bytes = [256, 1400, 16384][random.below(3) as usize];
        }
    }
    for _ in 0..random.below(2_000) {
        bench.step();
    }
    bench.faults = Faults::default();
    bench.full_links = 0;
    bench.calm_programs();
    // One wire heals; the others stay as they are.
    bench.heal_wire(random.below(bench.wires.len() as u64) as usize);
    bench.settle(settled_ns(&bench));
    bench.check_memory();
    // What was carried out and not told is of a transfer that has failed, and of another one each time.
    let mut failed: Vec<_> = bench.watched.iter().filter(|watched| watched.status != Some(Ok(()))).collect();
    for (node, address, operation, before) in &bench.operated {
        let of = failed.iter().position(|watched| {
            watched.destination() == *node
                && watched.spec.destination_address == *address
                && watched.spec.direction == Direction::Atomic(*operation)
        });
        let of = of.unwrap_or_else(|| {
            panic!("at node {node}, {operation:?} was carried out more than once at {address:#x}: {before}")
        });
        failed.swap_remove(of);
    }
    for (which, watched) in bench.watched.iter().enumerate() {
        match watched.status {
            Some(Ok(())) => {}
            Some(Err(TransferError::PeerLost)) if options.reset > 0 => {}
            // Each path that is lost with a request counts as an attempt of it.
            Some(Err(TransferError::Undeliverable)) if lost_paths >= options.config.max_attempts as usize => {
            }
            // A machine that is stopped again and again answers for longer than its sender bears that it has no room.
            Some(Err(TransferError::Refused(refusal) | TransferError::Local(refusal)))
                if options.stops > 0
                    && refusal.code == NackCode::BufferFull
                    && bench.now().0 > options.config.refused_give_up_ns => {}
            // Memory that was not there in time, or not at all, or whose program was gone: it is said where.
            Some(Err(error @ (TransferError::Refused(refusal) | TransferError::Local(refusal))))
                if is_of_own_memory(options, (stops, bench.now()), &watched.spec, &refusal)
                    && (watched.stays || is_of_that_side(&watched.spec, error, &refusal)) => {}
            other => panic!("transfer {which} ended as {other:?}: {:?}", watched.spec),
        }
    }
    bench.trace()
}

/// Whether a transfer to another node was refused by memory of the side of which the error says so.
fn is_of_that_side(spec: &Transfer, error: TransferError, refusal: &Refusal) -> bool {
    let source = (spec.source_address, u64::from(spec.size_bytes));
    let destination = (spec.destination_address, u64::from(spec.size_bytes));
    let words = spec.notification.map(|words| (words.address, 16));
    let is_own_source = spec.direction != Direction::Read;
    let is_source = matches!(error, TransferError::Local(_)) == is_own_source;
    let lies_in = |(start, length_bytes)| refusal.may_lie_in(start, length_bytes);
    if is_source { lies_in(source) } else { lies_in(destination) || words.is_some_and(lies_in) }
}

/// Whether programs that do not bring their memory explain that a transfer was refused.
fn is_of_own_memory(
    options: &Options,
    (stops, now): (u32, Time),
    spec: &Transfer,
    refusal: &Refusal,
) -> bool {
    let Some(own) = options.own else { return false };
    // What was under way at each of several stops was, as far as anybody knows, given time again and again.
    let is_stopped_again = stops > 1;
    let is_expected = match refusal.code {
        NackCode::DomainMismatch => own.vanishing > 0,
        NackCode::DecodeError => {
            is_stopped_again || own.vanishing + own.hanging + own.freezing + own.dying + own.releasing > 0
        }
        // Also pages that go faster than they come.
        NackCode::BufferFull | NackCode::SlaveError => {
            own.hanging + own.freezing + own.going > 0 && now.0 > options.config.refused_give_up_ns
        }
        _ => false,
    };
    // A read that its program does not take for so long is over at its source.
    let is_forgotten = refusal.code == NackCode::NoContext
        && spec.direction == Direction::Read
        && own.hanging + own.freezing > 0
        && now.0 > options.config.refused_give_up_ns;
    if is_forgotten {
        return true;
    }
    let is_somewhere = refusal.address.is_some() || refusal.code.is_transient();
    let ends = [
        (spec.source_address, spec.size_bytes),
        (spec.destination_address, spec.size_bytes),
        spec.notification.map_or((0, 0), |words| (words.address, 16)),
    ];
    let is_inside = |address: u64| {
        ends.iter().any(|(start, bytes)| {
            let first_page = start & !(iommu::PAGE_BYTES - 1);
            first_page <= address && address < start + u64::from(*bytes).max(1)
        })
    };
    is_expected && is_somewhere && refusal.address.is_none_or(is_inside)
}
