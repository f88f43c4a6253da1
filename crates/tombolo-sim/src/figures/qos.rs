//! QOS: the engine's own times.

use super::{Claim, Class, Curve, Document, Figure, Kind, Number, Plot, Report, Role, Target, named};
use crate::boards::qfdb::{Optimisations, PEER, Setup, Wiring, board};
use crate::hosts::{Ended, EngineHost, Program};
use crate::kernel::Span;
use crate::parts::{Link, LinkFaults};
use crate::platform::{Platform, PlatformError};
use tombolo_core::rdma::{Direction, Transfer};
use tombolo_wire::{Domain, Notification};

/// A write of 16 bytes takes 4 µs (FAULT ch. 4, Fig 4.1).
pub const SMALL_WRITE: Target =
    Target { id: "Q-16B", section: "FAULT ch. 4, Fig 4.1", stated: 4.0, unit: "us", measure: small_write_us };

/// How often a transfer is repeated. All of a run are alike where nothing is lost: ten show as much as the 10,000 of FAULT ch. 4, and of large
/// ones two.
fn iterations(size_bytes: u32) -> u64 {
    const SMALL: u32 = 64 << 10;
    if size_bytes <= SMALL { 10 } else { 2 }
}

/// A transfer with a notification, as the documents' programs wait for one.
pub fn transfer(direction: Direction, size_bytes: u32) -> Transfer {
    Transfer {
        direction,
        domain: Domain(1),
        own_domain: Domain(1),
        source_address: 0,
        destination_address: 0,
        size_bytes,
        notification: Some(Notification { address: 1 << 32, first: 1, last: 2 }),
        class: None,
        user: 0,
    }
}

/// The same transfer again and again: when each began and ended.
///
/// # Errors
/// [`PlatformError`], if the platform lacks a constant.
pub fn iterate(platform: &Platform, setup: &Setup, transfer: Transfer) -> Result<Vec<Ended>, PlatformError> {
    let mut board = board(platform, setup)?;
    let count = iterations(transfer.size_bytes);
    let program = board.program(Program { peer: PEER, transfer, count, outstanding: 1, gap: Span::ZERO });
    board.run(platform, program)
}

/// How long one takes, in microseconds.
pub fn mean_us(ended: &[Ended]) -> f64 {
    let sum = ended.iter().fold(Span::ZERO, |sum, ended| sum.plus(ended.took()));
    sum.picos() as f64 / 1e6 / ended.len() as f64
}

fn small_write_us(platform: &Platform) -> Result<f64, PlatformError> {
    let write = transfer(Direction::Write, 16);
    Ok(mean_us(&iterate(platform, &Setup { wiring: Wiring::LoopBack, ..Setup::default() }, write)?))
}

pub(super) const PLATFORM: &str = "exanest-qfdb";
/// What figures of this file have in common.
pub(super) const KIND: Kind = Kind { document: Document::Qos, class: Class::Protocol, platform: PLATFORM };

/// Figures of the engine's own times.
pub const FIGURES: [Figure; 6] = [
    Figure { id: "Q-16B", document: Document::Fault, run: small_write },
    Figure { id: "Q-READ", document: Document::Qos, run: reads },
    Figure { id: "Q-OPT", document: Document::Qos, run: optimisations },
    Figure { id: "Q-TIMEOUT", document: Document::Qos, run: timeout },
    Figure { id: "Q-N2", document: Document::Qos, run: outstanding },
    Figure { id: "Q-LIVE", document: Document::Qos, run: livelock },
];

pub(super) fn number(what: &str, stated: f64, found: f64, unit: &'static str, role: Role) -> Number {
    Number::of(what, stated, found, unit, role, None)
}

/// Sizes of transfers, from 16 bytes to 4 MiB.
pub(super) fn sizes() -> impl Iterator<Item = u32> {
    (4..=22).map(|shift| 1 << shift)
}

/// The times of transfers by size, in microseconds.
pub(super) fn times(
    platform: &Platform,
    direction: Direction,
    optimisations: Optimisations,
) -> Result<Vec<(u32, f64)>, PlatformError> {
    let time = |size| {
        let ended =
            iterate(platform, &Setup { optimisations, ..Setup::default() }, transfer(direction, size))?;
        Ok((size, mean_us(&ended)))
    };
    sizes().map(time).collect()
}

pub(super) fn curve(name: &str, points: &[(u32, f64)]) -> Curve {
    Curve {
        name: name.into(),
        points: points.iter().map(|(size, value)| (f64::from(*size), *value)).collect(),
    }
}

/// A plot by size.
pub(super) fn plot(title: &str, unit: &'static str, curves: Vec<Curve>, marks: Vec<(f64, f64)>) -> Plot {
    Plot { title: title.into(), axes: ("bytes", unit), is_logarithmic: (true, true), curves, marks }
}

fn small_write() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = Kind { document: Document::Fault, ..KIND }.report(
        "Q-16B",
        "A write of 16 bytes",
        SMALL_WRITE.section,
        "the processor's accesses for one block, and the way of a packet and of its acknowledgement through logic",
    );
    report.numbers.push(number(
        "a write of 16 bytes in loop-back",
        4.0,
        small_write_us(&platform)?,
        "us",
        Role::Fitted,
    ));
    let mut board = board(&platform, &Setup { wiring: Wiring::LoopBack, ..Setup::default() })?;
    let write = transfer(Direction::Write, 16);
    let program = Program { peer: PEER, transfer: write, count: 1, outstanding: 1, gap: Span::ZERO };
    let program = board.program(program);
    board.run(&platform, program)?;
    let busy = board.world.part::<EngineHost>(board.nodes[0]).expect("a node").processor_busy();
    let processor = busy.plus(platform.span("seen")?).picos() as f64 / 1e6;
    report.numbers.push(number(
        "of these, the ring and the processor's accesses, added up (Q-BRK)",
        2.27,
        processor,
        "us",
        Role::Shown,
    ));
    let writes = times(&platform, Direction::Write, Optimisations::ALL)?;
    report.plots.push(plot("Writes over one hop", "us", vec![curve("model", &writes)], Vec::new()));
    Ok(report)
}

fn reads() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "Q-READ",
        "Reads and writes over one hop",
        "QOS §5.1, Fig 5.5, 5.6",
        "a request of twelve words, which the other node's processor reads from its mailbox, and then a write back",
    );
    let [reads, writes] = [
        times(&platform, Direction::Read, Optimisations::ALL)?,
        times(&platform, Direction::Write, Optimisations::ALL)?,
    ];
    let pairs = || reads.iter().zip(&writes).map(|((size, read), (_, write))| (*size, *read, *write));
    let small = pairs().filter(|(size, ..)| *size <= 16 << 10);
    report.claims.push(Claim {
        what: "a read is slower than a write up to 16 KiB".into(),
        found: pairs()
            .take(1)
            .map(|(size, read, write)| format!("by {:.2} us at {size} bytes", read - write))
            .collect(),
        holds: small.clone().all(|(_, read, write)| read > write),
        note: None,
    });
    let most =
        pairs().filter(|(size, ..)| *size > 16 << 10).map(|(_, read, write)| (read / write - 1.0) * 100.0);
    let most = most.fold(0.0, f64::max);
    report.claims.push(Claim {
        what: "above 16 KiB they are equal".into(),
        found: format!("within {most:.1} %"),
        holds: most < 10.0,
        note: None,
    });
    report.plots.push(plot(
        "Completion time over one hop",
        "us",
        vec![curve("read", &reads), curve("write", &writes)],
        Vec::new(),
    ));
    Ok(report)
}

fn optimisations() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "Q-OPT",
        "What the optimisations save",
        "QOS §3.3, §5.3, Fig 5.9, 5.10",
        "the mailbox in logic in place of the scratchpad, the scheduler's queue, and a search in place of tickets",
    );
    let [with, without] = [
        times(&platform, Direction::Write, Optimisations::ALL)?,
        times(&platform, Direction::Write, Optimisations::NONE)?,
    ];
    let more = |size: u32| {
        let at =
            |times: &[(u32, f64)]| times.iter().find(|(known, _)| *known == size).map_or(0.0, |(_, us)| *us);
        (at(&without) - at(&with), at(&without) / at(&with))
    };
    report.numbers.push(number("more for a write of 16 bytes, added up", 0.7, more(16).0, "us", Role::Shown));
    report.claims.push(Claim {
        what: "optimised is better below 16 KiB".into(),
        found: format!("{:.2} times as long at 16 bytes without", more(16).1),
        holds: with
            .iter()
            .zip(&without)
            .filter(|((size, _), _)| *size < 16 << 10)
            .all(|((_, with), (_, without))| with < without),
        note: None,
    });
    let large = (more(64 << 10).1 - 1.0) * 100.0;
    report.claims.push(Claim {
        what: "of 64 KiB nobody sees it".into(),
        found: format!("{large:.1} %"),
        holds: large < 2.0,
        note: None,
    });
    report.plots.push(plot(
        "Completion time with and without optimisations",
        "us",
        vec![curve("with", &with), curve("without", &without)],
        Vec::new(),
    ));
    Ok(report)
}

/// One transfer whose first packet is lost, or none is: how long it takes, in microseconds.
fn with_loss_us(
    platform: &Platform,
    size: u32,
    is_lost: bool,
    ticks: Option<u32>,
) -> Result<f64, PlatformError> {
    let mut board = board(platform, &Setup { ticks, ..Setup::default() })?;
    if is_lost {
        board.world.with(board.links[0], |link: &mut Link, _| link.lose_after(0));
    }
    let write = transfer(Direction::Write, size);
    let program = Program { peer: PEER, transfer: write, count: 1, outstanding: 1, gap: Span::ZERO };
    let program = board.program(program);
    Ok(mean_us(&board.run(platform, program)?))
}

fn timeout() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "Q-TIMEOUT",
        "One packet is lost",
        "QOS §4.2, §5.3, Fig 5.11, 5.12",
        "a fixed timeout; where nothing else waits, the line is idle meanwhile",
    );
    let pairs: Vec<_> = sizes()
        .map(|size| {
            let of = |is_lost| with_loss_us(&platform, size, is_lost, None);
            Ok((size, of(false)?, of(true)?))
        })
        .collect::<Result<_, PlatformError>>()?;
    let more = |size: u32| {
        pairs.iter().find(|(known, ..)| *known == size).map_or(0.0, |(_, good, lossy)| (lossy - good) / 1e3)
    };
    let least = pairs.iter().map(|(size, ..)| more(*size)).fold(f64::INFINITY, f64::min);
    let small = pairs[0].2 - pairs[0].1;
    report.numbers.push(number("more for 16 bytes", 20.0, small / 1e3, "ms", Role::Shown));
    report.claims.push(Claim {
        what: "it costs 20 ms at least at every size".into(),
        found: format!("{:.2} ms at 16 KiB, {:.2} at 256 KiB, {least:.2} at least", more(16 << 10), more(256 << 10)),
        holds: least >= 20.0,
        note: Some(
            "of a large transfer the other block without an answer goes on during the timeout, so that much less is lost; \
             the document says that the link is idle",
        ),
    });
    // Of a clock with ticks of 1 ms, which runs by itself.
    let of = |is_lost| with_loss_us(&platform, 16, is_lost, Some(20));
    let ticked = (of(true)? - of(false)?) / 1e3;
    report.claims.push(Claim {
        what: "counted in ticks of 1 ms it costs 19 to 21 ms".into(),
        found: format!("{ticked:.2} ms at 16 bytes"),
        holds: (19.0..=21.0).contains(&ticked),
        note: None,
    });
    let kilobyte = pairs
        .iter()
        .find(|(size, ..)| *size == 1_024)
        .map_or(0.0, |(size, _, lossy)| f64::from(*size) * 8.0 / lossy);
    report.claims.push(Claim {
        what: "1 KiB moves far below 1 Gb/s".into(),
        found: format!("{kilobyte:.2} Mb/s"),
        holds: kilobyte < 100.0,
        note: None,
    });
    let curve = |name: &str, of: &dyn Fn(&(u32, f64, f64)) -> f64| {
        curve(name, &pairs.iter().map(|pair| (pair.0, of(pair))).collect::<Vec<_>>())
    };
    report.plots.push(plot(
        "Completion time with one packet lost",
        "us",
        vec![curve("none lost", &|pair| pair.1), curve("one lost", &|pair| pair.2)],
        Vec::new(),
    ));
    Ok(report)
}

fn outstanding() -> Result<Report, PlatformError> {
    const BYTES: u32 = 4 << 20;
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "Q-N2",
        "Blocks without an answer",
        "QOS §3.2.3",
        "a window of blocks: the next one begins when one is answered",
    );
    let rate = |outstanding: u32| {
        let platform = platform.with("outstanding", outstanding.into())?;
        let ended = iterate(&platform, &Setup::default(), transfer(Direction::Write, BYTES))?;
        Ok::<_, PlatformError>((outstanding, f64::from(BYTES) * 8.0 / 1e3 / mean_us(&ended)))
    };
    let rates = [1, 2, 4, 8].into_iter().map(rate).collect::<Result<Vec<_>, _>>()?;
    report.claims.push(Claim {
        what: "two are usual: they fill the line over one hop".into(),
        found: rates.iter().map(|(outstanding, rate)| format!("{outstanding}: {rate:.2} Gb/s ")).collect(),
        holds: rates[1].1 > 0.99 * rates[3].1 && rates[0].1 < 0.95 * rates[1].1,
        note: None,
    });
    report.plots.push(Plot {
        title: "4 MiB over one hop".into(),
        axes: ("blocks without an answer", "Gb/s"),
        is_logarithmic: (true, false),
        curves: vec![curve("model", &rates)],
        marks: Vec::new(),
    });
    Ok(report)
}

/// What damage on the line does to writes, one behind the other.
struct Damaged {
    /// Attempts that were refused, for each block.
    refused: f64,
    /// Bytes of packets on the line, for each byte of the writes.
    bytes: f64,
    /// How long a write takes, in microseconds.
    us: f64,
}

/// So many writes of this size, where so many packets of a million are damaged.
fn damaged(platform: &Platform, writes: u64, bytes: u32, per_million: u32) -> Result<Damaged, PlatformError> {
    let mut board = board(platform, &Setup { seed: 7, ..Setup::default() })?;
    let faults = LinkFaults { corruption: per_million, ..LinkFaults::default() };
    board.world.with(board.links[0], |link: &mut Link, _| link.set_faults(faults));
    // Without a notification, all of a block is its packets.
    let write = Transfer { notification: None, ..transfer(Direction::Write, bytes) };
    let program = Program { peer: PEER, transfer: write, count: writes, outstanding: 1, gap: Span::ZERO };
    let program = board.program(program);
    let us = mean_us(&board.run(platform, program)?);
    let host = board.world.part::<EngineHost>(board.nodes[0]).expect("a node");
    let refused: u64 = host.counters().nacks_received.iter().sum();
    let blocks = writes * u64::from(bytes.div_ceil(platform.number("block")?));
    let line = board.world.part::<Link>(board.links[0]).expect("a line");
    Ok(Damaged {
        // The next attempt needs the damaged packet only, and so fails once in a thousand times.
        refused: refused as f64 / blocks as f64,
        bytes: line.counters().bytes as f64 / (writes * u64::from(bytes)) as f64,
        us,
    })
}

/// How many packets of a million are damaged, run by run.
const DAMAGE: [u32; 8] = [0, 32, 125, 500, 1_000, 2_000, 4_000, 8_000];
/// Bytes of a message, and messages of each run.
const MESSAGE_BYTES: u32 = 1 << 20;
const MESSAGES: u64 = 100;

fn livelock() -> Result<Report, PlatformError> {
    const BLOCKS: u64 = 100_000;
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "Q-LIVE",
        "Blocks in which a packet is damaged",
        "QOS §4.4, Fig 4.2",
        "a block fails if one of its packets does, and all of it goes again; of the next attempt, the receiver takes what it lacks",
    );
    let found = damaged(&platform, BLOCKS, 16 << 10, 1_000)?.refused;
    let stated = 0.062_025;
    report.numbers.push(number(
        "a block of 64 packets fails, one of 1000 being damaged",
        stated,
        found,
        "",
        Role::Shown,
    ));
    // A message that goes again as a whole fails if one of its 64 blocks does.
    let whole = 1.0 - (1.0 - found).powi(64);
    report.numbers.push(number("a message of 4096 packets would", 0.983_39, whole, "", Role::Shown));
    // Three standard deviations of a share of so many.
    let bound = 3.0 * (stated * (1.0 - stated) / BLOCKS as f64).sqrt();
    report.claims.push(Claim {
        what: "as often as 1 - 0.999^64 says, within three standard deviations".into(),
        found: format!("{found:.5} of {BLOCKS} blocks, {stated} is expected, {bound:.5} allowed"),
        holds: (found - stated).abs() <= bound,
        note: None,
    });
    // Where a receiver keeps nothing of an attempt that fails, as the document has it, so often does a unit of so many packets go.
    let attempts = |packets: u32, per_million: u32| {
        (1.0 - f64::from(per_million) / 1e6).powi(-i32::try_from(packets).unwrap_or(i32::MAX))
    };
    let packet: u32 = platform.number("packet")?;
    let (of_block, of_message) = (platform.number::<u32>("block")? / packet, MESSAGE_BYTES / packet);
    let of = |per_million| Ok((per_million, damaged(&platform, MESSAGES, MESSAGE_BYTES, per_million)?));
    let by_damage = DAMAGE.into_iter().map(of).collect::<Result<Vec<_>, PlatformError>>()?;
    let at = |wanted: u32| by_damage.iter().find(|(known, _)| *known == wanted).expect("it was measured");
    let ((_, none), (_, usual)) = (at(0), at(1_000));
    report.claims.push(Claim {
        what: "repeating the failing blocks alone reduces the bytes that go again, and how long a livelock lasts".into(),
        found: format!(
            "1 MiB with one damaged packet in 1000 takes {:.3} times its bytes and {:.2} times as long as without damage, with a \
             receiver that keeps what came whole. With one that keeps nothing of a failed attempt, blocks would take {:.3} times \
             the bytes, and the message as one unit {:.0} times",
            usual.bytes,
            usual.us / none.us,
            attempts(of_block, 1_000),
            attempts(of_message, 1_000),
        ),
        // The receiver that keeps more needs no more.
        holds: usual.bytes <= attempts(of_block, 1_000) && usual.bytes > 1.0 && usual.us < attempts(of_message, 1_000) * none.us,
        note: None,
    });
    let curve = |name: &str, of: &dyn Fn(u32, &Damaged) -> f64| Curve {
        name: name.into(),
        points: by_damage
            .iter()
            .filter(|(per_million, _)| *per_million > 0)
            .map(|(per_million, damaged)| (f64::from(*per_million), of(*per_million, damaged)))
            .collect(),
    };
    report.plots.push(Plot {
        title: "A write of 1 MiB by damage".into(),
        axes: ("damaged packets of a million", "bytes on the line, for each of the write"),
        is_logarithmic: (true, false),
        curves: vec![
            curve("blocks", &|_, damaged| damaged.bytes),
            curve("if the receiver kept nothing", &|per_million, _| attempts(of_block, per_million)),
        ],
        marks: Vec::new(),
    });
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform() -> Platform {
        Platform::named("exanest-qfdb").expect("it is listed")
    }

    fn write_us(size_bytes: u32, wiring: Wiring, optimisations: Optimisations) -> f64 {
        let setup = Setup { wiring, optimisations, ..Setup::default() };
        let ended = iterate(&platform(), &setup, transfer(Direction::Write, size_bytes));
        mean_us(&ended.expect("a board"))
    }

    /// Q-16B, and Q-BRK: 2.27 µs of that are the processor's.
    #[test]
    fn a_write_of_16_bytes_takes_4_microseconds() {
        let us = small_write_us(&platform()).expect("a board");
        assert!((us - 4.0).abs() < 0.04, "{us}");
    }

    /// Q-OPT: without optimisations 0.7 µs more, which nobody sees of a large transfer.
    #[test]
    fn without_optimisations_a_small_write_takes_0_7_microseconds_more() {
        let more = |size, wiring| {
            let [with, without] = [Optimisations::ALL, Optimisations::NONE]
                .map(|optimisations| write_us(size, wiring, optimisations));
            (without - with, without / with)
        };
        let (small, _) = more(16, Wiring::OneHop);
        assert!((small - 0.7).abs() < 0.001, "{small}");
        let (_, large) = more(64 << 10, Wiring::OneHop);
        assert!(large < 1.02, "{large}");
    }

    /// Q-READ: a read is slower by its request, and half a way; of large ones nobody sees it.
    #[test]
    fn a_small_read_is_slower_than_a_write_and_a_large_one_is_not() {
        let read_us = |size| {
            let read = transfer(Direction::Read, size);
            mean_us(&iterate(&platform(), &Setup::default(), read).expect("a board"))
        };
        let write_us = |size| write_us(size, Wiring::OneHop, Optimisations::ALL);
        for size in [16, 256, 4_096, 16_384] {
            assert!(read_us(size) > write_us(size) + 1.0, "{size}: {} {}", read_us(size), write_us(size));
        }
        for size in [64 << 10, 1 << 20] {
            assert!(read_us(size) < write_us(size) * 1.05, "{size}: {} {}", read_us(size), write_us(size));
        }
    }
}
