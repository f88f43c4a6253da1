//! QOS §1.2 and §3.2.6: when the destination's program hears that all bytes are there.

use super::qos::{KIND, PLATFORM, number, transfer};
use super::{Claim, Document, Figure, Report, Role, named};
use crate::boards::qfdb::{PEER, Setup, board};
use crate::hosts::Program;
use crate::kernel::Span;
use crate::platform::{Platform, PlatformError};
use tombolo_core::rdma::Direction;

/// Figures of these sections.
pub const FIGURES: [Figure; 2] = [
    Figure { id: "Q-BRK", document: Document::Qos, run: breakdown },
    Figure { id: "Q-NOTIFY", document: Document::Qos, run: notifications },
];

/// A write over one hop: when its notification was written, and what the processor did.
struct Written {
    /// From the last byte on the line to the notification.
    after_last_byte: Span,
    /// The processor's tasks, and what each took.
    tasks: Vec<(&'static str, Span)>,
}

fn written(platform: &Platform, size_bytes: u32) -> Result<Written, PlatformError> {
    let mut board = board(platform, &Setup::default())?;
    board.world.keep_timeline();
    let transfer = transfer(Direction::Write, size_bytes);
    let program = board.program(Program { peer: PEER, transfer, count: 1, outstanding: 1, gap: Span::ZERO });
    board.run(platform, program)?;
    let (from, to) = (board.nodes[0], board.nodes[1]);
    let line = board.links[0];
    let slices = board.world.timeline();
    // Packets of blocks carry a flow; acknowledgements and notifications apart have none.
    let last = slices.iter().rfind(|slice| slice.part == line && slice.flow != 0);
    let notified = slices.iter().find(|slice| slice.part == to && slice.track == "notifications");
    let endless = || PlatformError::Endless { platform: platform.name().into() };
    let (last, notified) = (last.ok_or_else(endless)?, notified.ok_or_else(endless)?);
    let tasks = slices.iter().filter(|slice| slice.part == from && slice.track == "processor");
    Ok(Written {
        after_last_byte: notified.from.since(last.to),
        tasks: tasks.map(|slice| (slice.name, slice.to.since(slice.from))).collect(),
    })
}

fn us(span: Span) -> f64 {
    span.picos() as f64 / 1e6
}

fn breakdown() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "Q-BRK",
        "What the processor does for a write of 16 bytes",
        "QOS §3.5, Fig 3.8",
        "its accesses to its own memory, to that on the chip, and to logic, one behind the other",
    );
    let tasks = written(&platform, 16)?.tasks;
    let ring = us(platform.span("seen")?);
    let sum: f64 = tasks.iter().map(|(_, span)| us(*span)).sum::<f64>() + ring;
    report.numbers.push(number(
        "the processor: the ring, and all of its tasks",
        2.27,
        sum,
        "us",
        Role::Shown,
    ));
    let each = tasks.iter().map(|(name, span)| format!("{name} {:.2} us", us(*span))).collect::<Vec<_>>();
    report.claims.push(Claim {
        what: "it sees the ring, starts one block with its notification, and reads one acknowledgement"
            .into(),
        found: format!("ring {ring:.2} us, {}", each.join(", ")),
        holds: tasks.iter().filter(|(name, _)| *name == "block").count() == 1
            && tasks.iter().filter(|(name, _)| *name == "answer").count() == 1,
        note: None,
    });
    Ok(report)
}

fn notifications() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "Q-NOTIFY",
        "When a transfer is told of at its destination",
        "QOS §1.2, 3.2.6",
        "with its only block, or with the last one, which waits for the acknowledgements of all others",
    );
    let block: u32 = platform.number("block")?;
    let (one, many) = (written(&platform, block)?, written(&platform, 8 * block)?);
    // One way: out of the logic, over the hop, into the other's.
    let way = Span::from_picos(platform.span("logic")?.picos() / 2).plus(platform.span("hop")?);
    let trip = us(way) * 2.0;
    for (what, trips, found) in [
        ("a single block is told of half a round trip after its last byte", 0.5, &one),
        ("several are a whole one after it", 1.0, &many),
    ] {
        let found = us(found.after_last_byte) / trip;
        report.claims.push(Claim {
            what: what.into(),
            found: format!("{found:.2} round trips of {trip:.2} us"),
            holds: (found - trips).abs() < 0.1,
            note: None,
        });
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sentence_holds() {
        for report in [breakdown(), notifications()].map(|report| report.expect("constants")) {
            assert!(report.claims.iter().all(|claim| claim.holds), "{:?}", report.claims);
            assert!(
                report.numbers.iter().all(|number| number.error_percent().abs() < 5.0),
                "{:?}",
                report.numbers
            );
        }
    }
}
