//! QOS ch. 3: classes of service, several links, and the mailbox that locks up.

use super::qos::{KIND, mean_us, number, transfer};
use super::{Claim, Document, Figure, Report, Role, named};
use crate::boards::qfdb::{PEER, Setup, board};
use crate::hosts::{EngineHost, Program, Requests};
use crate::kernel::Span;
use crate::platform::{Platform, PlatformError};
use tombolo_core::rdma::{Class, Direction, Transfer};

/// Figures of the service that transfers get.
pub const FIGURES: [Figure; 3] = [
    Figure { id: "Q-CLASS", document: Document::Qos, run: classes },
    Figure { id: "Q-MULTI", document: Document::Qos, run: links },
    Figure { id: "Q-DEAD", document: Document::Qos, run: mailboxes },
];

fn write(size: u32, count: u64, outstanding: u64) -> Program {
    Program { peer: PEER, transfer: transfer(Direction::Write, size), count, outstanding, gap: Span::ZERO }
}

/// Writes of 4 KiB, alone or beside large ones of so many bytes: how long one takes, in microseconds.
fn small_us(platform: &Platform, setup: &Setup, large: &[u32]) -> Result<f64, PlatformError> {
    let mut board = board(platform, setup)?;
    for size in large {
        board.program(write(*size, 1, 1));
    }
    let small = board.program(write(4 << 10, 50, 1));
    Ok(mean_us(&board.run(platform, small)?))
}

/// A write of 600 KB beside one of 16 MiB, both of the lowest class at first: how long it takes, in microseconds.
fn beside_larger_us(platform: &Platform, class: Option<Class>) -> Result<f64, PlatformError> {
    let mut board = board(platform, &Setup::default())?;
    board.program(write(16 << 20, 1, 1));
    let large = write(600_000, 1, 1);
    let ours = board.program(Program { transfer: Transfer { class, ..large.transfer }, ..large });
    Ok(mean_us(&board.run(platform, ours)?))
}

fn classes() -> Result<Report, PlatformError> {
    let platform = named(super::qos::PLATFORM);
    let mut report = KIND.report(
        "Q-CLASS",
        "Small transfers beside large ones",
        "QOS §3.2.3",
        "three classes by what is left of a transfer, in strict order; without them, transfers take turns",
    );
    let alone = small_us(&platform, &Setup::default(), &[])?;
    let one = small_us(&platform, &Setup::default(), &[16 << 20])?;
    let eight = small_us(&platform, &Setup::default(), &[4 << 20; 8])?;
    let without = small_us(&platform, &Setup { has_classes: false, ..Setup::default() }, &[16 << 20])?;
    // Two blocks on the line, as the window of the large transfer has them, and what a processor does meanwhile.
    let block_us = (platform.count("block")? * 8) as f64 / 8_000.0;
    report.claims.push(Claim {
        what: "a single block goes before others: beside 16 MiB it waits for the two blocks that are under way, and no longer".into(),
        found: format!(
            "4 KiB take {alone:.1} us alone, {one:.1} beside one transfer of 16 MiB ({without:.1} without classes), \
             {eight:.1} beside eight of 4 MiB, whose blocks are all with the send block already"
        ),
        holds: one <= alone + 2.5 * block_us,
        note: None,
    });
    let (dynamic, fixed) =
        (beside_larger_us(&platform, None)?, beside_larger_us(&platform, Some(Class::Low))?);
    report.claims.push(Claim {
        what: "a class by what is left of a transfer ends larger ones sooner (QOS §3.3)".into(),
        found: format!(
            "600 KB beside 16 MiB take {dynamic:.0} us; {fixed:.0} if they stay in the class that they began in"
        ),
        holds: dynamic < 0.99 * fixed,
        note: Some(
            "each transfer has two blocks under way, whatever its class, and the send block takes those in turn: the processor has time to spare, \
             so that nothing waits in its queues",
        ),
    });
    Ok(report)
}

fn links() -> Result<Report, PlatformError> {
    const BYTES: u32 = 4 << 20;
    let platform = named(super::qos::PLATFORM);
    let mut report = KIND.report(
        "Q-MULTI",
        "Several links to a node",
        "QOS abstract, ch. 6",
        "each block goes by one of the links",
    );
    // A link has two blocks, as one alone.
    let rate = |links: u8| {
        let platform = platform.with("outstanding", f64::from(2 * links))?;
        let mut board = board(&platform, &Setup { links, ..Setup::default() })?;
        let program = board.program(write(BYTES, 1, 1));
        Ok::<_, PlatformError>(f64::from(BYTES) * 8.0 / 1e3 / mean_us(&board.run(&platform, program)?))
    };
    let (one, two) = (rate(1)?, rate(2)?);
    report.numbers.push(number("times one link's throughput by two", 2.0, two / one, "x", Role::Shown));
    Ok(report)
}

/// So many reads at once: how many end.
fn ending(platform: &Platform, setup: &Setup, reads: u64) -> Result<u64, PlatformError> {
    let mut board = board(platform, setup)?;
    let read = Program {
        peer: PEER,
        transfer: transfer(Direction::Read, 64 << 10),
        count: reads,
        outstanding: reads,
        gap: Span::ZERO,
    };
    let program = board.program(read);
    // A hundred timeouts: what has not ended by then never does.
    board.world.run_within(Span::from_ns(2_000_000_000));
    let host = board.world.part::<EngineHost>(board.nodes[0]).expect("a node");
    Ok(host.ended(program).iter().filter(|ended| ended.status == Ok(())).count() as u64)
}

fn mailboxes() -> Result<Report, PlatformError> {
    let platform = named(super::qos::PLATFORM);
    let mut report = KIND.report(
        "Q-DEAD",
        "A mailbox for requests and acknowledgements",
        "QOS §3.6.2, Fig 3.10-3.12",
        "a request for which no channel is free stays at the front; the acknowledgements that would free one wait behind it",
    );
    let held = Setup { requests: Requests::HeldInMailbox, has_buffer: false, ..Setup::default() };
    let apart = Setup { requests: Requests::HeldApart, ..held };
    let buffered = Setup { has_buffer: true, ..held };
    let channels = platform.count("read_channels")?;
    let (few, full) = (channels + 1, channels + platform.count("pending_reads")? + 4);
    for (what, setup, reads, is_to_end) in [
        ("one mailbox and no buffer locks up when all channels are busy", &held, few, false),
        ("a mailbox of its own for requests does not", &apart, full, true),
        ("a buffer for requests does not", &buffered, few, true),
        ("until that is full", &buffered, full, false),
    ] {
        let count = ending(&platform, setup, reads)?;
        report.claims.push(Claim {
            what: what.into(),
            found: format!("{count} of {reads} reads end"),
            holds: (count == reads) == is_to_end,
            note: None,
        });
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_document_says_of_its_service_holds() {
        for report in [classes(), links(), mailboxes()] {
            let report = report.expect("a board");
            let is_explained = |claim: &Claim| claim.holds || claim.note.is_some();
            assert!(report.claims.iter().all(is_explained), "{:?}", report.claims);
            assert!(
                report.numbers.iter().all(|number| number.error_percent().abs() < 10.0),
                "{:?}",
                report.numbers
            );
        }
    }
}
