//! FAULT: page faults during transfers.

use super::{Claim, Class, Curve, Document, Figure, Kind, Number, Plot, Report, Role, Target, named, qos};
use crate::boards::qfdb::{FaultSetup, PEER, Setup, Wiring, board};
use crate::hosts::{EngineHost, FaultCounts, Hypotheses, Program};
use crate::kernel::Span;
use crate::platform::{Platform, PlatformError};
use tombolo_core::iommu::TouchPolicy;
use tombolo_core::rdma::{Direction, Transfer};

pub(super) const PLATFORM: &str = "exanest-qfdb";
/// What figures of this file have in common.
pub(super) const KIND: Kind = Kind { document: Document::Fault, class: Class::Protocol, platform: PLATFORM };

/// The calls of Table 4.1 whose cost grows with the pages, and what they take for 1, 4, 8 and 16 of them, in microseconds.
const CALLS: [(&str, [f64; 4]); 4] = [
    ("munmap", [7.0, 10.0, 12.0, 19.0]),
    ("pin", [6.0, 15.0, 27.0, 49.0]),
    ("unpin", [2.0, 5.0, 8.0, 14.0]),
    ("touch", [3.0, 10.0, 19.0, 40.0]),
];
const PAGES: [u64; 4] = [1, 4, 8, 16];
/// Of those, the ones that constants are fitted to.
const FITTED: [u64; 2] = [1, 16];

const fn target(
    id: &'static str,
    stated: f64,
    measure: fn(&Platform) -> Result<f64, PlatformError>,
) -> Target {
    Target { id, section: "FAULT Table 4.1", stated, unit: "us", measure }
}

/// The points that the calls' costs are fitted to.
pub const TARGETS: [Target; 8] = [
    target("F-TAB.munmap.1", CALLS[0].1[0], call_us::<0, 1>),
    target("F-TAB.munmap.16", CALLS[0].1[3], call_us::<0, 16>),
    target("F-TAB.pin.1", CALLS[1].1[0], call_us::<1, 1>),
    target("F-TAB.pin.16", CALLS[1].1[3], call_us::<1, 16>),
    target("F-TAB.unpin.1", CALLS[2].1[0], call_us::<2, 1>),
    target("F-TAB.unpin.16", CALLS[2].1[3], call_us::<2, 16>),
    target("F-TAB.touch.1", CALLS[3].1[0], call_us::<3, 1>),
    target("F-TAB.touch.16", CALLS[3].1[3], call_us::<3, 16>),
];

/// Figures of chapter 4.
pub const FIGURES: [Figure; 5] = [
    Figure { id: "F-TAB", document: Document::Fault, run: calls },
    Figure { id: "F-SRC", document: Document::Fault, run: source },
    Figure { id: "F-DST", document: Document::Fault, run: destination },
    Figure { id: "F-BOTH", document: Document::Fault, run: both },
    Figure { id: "F-HUPCF", document: Document::Fault, run: hits_under_fault },
];

/// What a call of the kernel takes for `pages` pages, in microseconds.
fn cost_us(platform: &Platform, call: &str, pages: u64) -> Result<f64, PlatformError> {
    let (fixed, page) = (platform.span(&format!("{call}_fixed"))?, platform.span(&format!("{call}_page"))?);
    Ok(fixed.plus(page.times(pages)).picos() as f64 / 1e6)
}

fn call_us<const CALL: usize, const COUNT: u64>(platform: &Platform) -> Result<f64, PlatformError> {
    cost_us(platform, CALLS[CALL].0, COUNT)
}

fn calls() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = Kind { class: Class::Hardware, ..KIND }.report(
        "F-TAB",
        "Calls by the pages that they are for",
        "FAULT Table 4.1",
        "a call, and the same for each page. To map memory takes 2 us whatever its size, and no other figure uses it",
    );
    let (mut curves, mut marks) = (Vec::new(), Vec::new());
    let what = "munmap, less than a page";
    let found = cost_us(&platform, "munmap", 1)?;
    let note = Some("a part of a page costs as much as all of it here");
    report.numbers.push(Number::of(what, 6.0, found, "us", Role::Shown, note));
    for (call, stated) in CALLS {
        let mut points = Vec::new();
        for (pages, stated) in PAGES.into_iter().zip(stated) {
            let found = cost_us(&platform, call, pages)?;
            let role = if FITTED.contains(&pages) { Role::Fitted } else { Role::Predicted };
            let what = format!("{call}, {pages} pages");
            report.numbers.push(Number { what, stated, found, unit: "us", role, note: None });
            points.push((pages as f64, found));
            marks.push((pages as f64, stated));
        }
        curves.push(Curve { name: call.into(), points });
    }
    report.plots.push(Plot {
        title: "Calls by pages".into(),
        axes: ("pages", "us"),
        is_logarithmic: (true, false),
        curves,
        marks,
    });
    Ok(report)
}

/// Timeouts with which the document measures, in microseconds.
const TIMEOUTS_US: [u64; 3] = [25_000, 2_500, 1_000];
/// Where the destination begins: source and destination are in one node's memory.
pub(super) const DESTINATION: u64 = 1 << 30;

/// Which pages of a transfer are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    Source,
    Destination,
    Both,
}

/// What a transfer with absent pages took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faulted {
    pub(super) us: f64,
    /// Blocks that only their own time has brought again.
    pub(super) timeouts: f64,
    /// What the faults of all iterations have cost.
    pub(super) faults: FaultCounts,
}

/// The document's driver with this policy and this timeout.
pub(super) fn driver(touch: TouchPolicy, timeout_us: u64) -> FaultSetup {
    let (timeout, hypotheses) = (Span::from_ns(timeout_us * 1_000), Hypotheses::default());
    FaultSetup { touch, timeout, hits_under_fault: true, hypotheses }
}

/// Writes of this size in loop-back, whose pages are taken away before each.
pub(super) fn faulted(
    platform: &Platform,
    size: u32,
    absent: Absent,
    faults: FaultSetup,
) -> Result<Faulted, PlatformError> {
    // Each is like another one: the document's 500 show no more.
    const ITERATIONS: u64 = 4;
    let setup = Setup { wiring: Wiring::LoopBack, faults: Some(faults), ..Setup::default() };
    let mut board = board(platform, &setup)?;
    let transfer = Transfer {
        destination_address: DESTINATION,
        notification: None,
        ..qos::transfer(Direction::Write, size)
    };
    let mut us = 0.0;
    for _ in 0..ITERATIONS {
        board.world.with(board.nodes[0], |host: &mut EngineHost, _| {
            if absent != Absent::Destination {
                host.take_away(0, size.into());
            }
            if absent != Absent::Source {
                host.take_away(DESTINATION, size.into());
            }
        });
        let program = Program { peer: PEER, transfer, count: 1, outstanding: 1, gap: Span::ZERO };
        let program = board.program(program);
        us += qos::mean_us(&board.run(platform, program)?);
    }
    let host = board.world.part::<EngineHost>(board.nodes[0]).expect("a node");
    let counters = host.counters();
    let Some(faults) = host.faults() else {
        return Err(PlatformError::Endless { platform: platform.name().into() });
    };
    // A block that was refused or stopped and not asked for came by its own time.
    let waits = counters.blocks_retransmitted.saturating_sub(counters.resumes);
    Ok(Faulted { us: us / ITERATIONS as f64, timeouts: waits as f64 / ITERATIONS as f64, faults })
}

/// Touch-a-page and touch-ahead of four.
pub(super) const TOUCHES: [TouchPolicy; 2] = [TouchPolicy::Page, TouchPolicy::Ahead(4)];

fn by_size(name: &str, points: &[(u32, Faulted)]) -> Curve {
    Curve {
        name: name.into(),
        points: points.iter().map(|(size, faulted)| (f64::from(*size), faulted.us)).collect(),
    }
}

fn all_sizes(
    platform: &Platform,
    absent: Absent,
    touch: TouchPolicy,
    timeout_us: u64,
) -> Result<Vec<(u32, Faulted)>, PlatformError> {
    let one = |size| Ok((size, faulted(platform, size, absent, driver(touch, timeout_us))?));
    (4..=16).map(|shift| one(1 << shift)).collect()
}

pub(super) fn at(points: &[(u32, Faulted)], size: u32) -> Faulted {
    points
        .iter()
        .find(|(known, _)| *known == size)
        .map(|(_, faulted)| *faulted)
        .expect("a size that was measured")
}

/// Why ratios of faults at the destination are as they are.
const RACE: &str = "the driver, the program's thread and the blocks that come again race. The document states no cost of the first two, so none is fitted. With an interrupt for each record, 1.5 and 1.4 would come out at 16 and 32 KiB (F-HYP)";
/// Why the ratios with both ends absent are too small.
const BOTH: &str =
    "as at the destination alone; with an interrupt for each record 1.6 would come out at 32 KiB (F-HYP)";

fn source() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "F-SRC",
        "Absent pages at the source",
        "FAULT ch. 4, Fig 4.3",
        "a block stops at the absent page, which is brought in, alone or with three others; only the timeout sends the block again",
    );
    let [page, ahead] = TOUCHES.map(|touch| all_sizes(&platform, Absent::Source, touch, 1_000));
    let (page, ahead) = (page?, ahead?);
    for (size, stated, note) in [
        (16 << 10, 3.9, None),
        (32 << 10, 3.9, None),
        (64 << 10, 4.7, Some("the document: it is uncertain why")),
    ] {
        let found = at(&page, size).us / at(&ahead, size).us;
        let what = format!("touch-a-page, times touch-ahead at {} KiB", size >> 10);
        report.numbers.push(Number { what, stated, found, unit: "x", role: Role::Predicted, note });
    }
    let small = page.iter().zip(&ahead).filter(|((size, _), _)| *size <= 4 << 10);
    let most =
        small.map(|((_, page), (_, ahead))| (page.us / ahead.us - 1.0).abs() * 100.0).fold(0.0, f64::max);
    report.claims.push(Claim {
        what: "up to 4 KiB they are equal".into(),
        found: format!("within {most:.1} %"),
        holds: most < 5.0,
        note: None,
    });
    let by_timeout =
        TIMEOUTS_US.map(|us| faulted(&platform, 16 << 10, Absent::Source, driver(TouchPolicy::Page, us)));
    let [long, middle, short] = by_timeout;
    let (long, middle, short) = (long?.us, middle?.us, short?.us);
    report.claims.push(Claim {
        what: "of timeouts of 25, 2.5 and 1 ms the shortest is best, and the timeout is most of the time"
            .into(),
        found: format!("{long:.0}, {middle:.0} and {short:.0} us at 16 KiB"),
        holds: long > middle && middle > short && short < 1.25 * 4.0 * 1_000.0,
        note: None,
    });
    let axes = ("bytes", "us");
    let curves = vec![by_size("touch-a-page", &page), by_size("touch-ahead", &ahead)];
    let title = "Absent source pages, timeout of 1 ms".into();
    report.plots.push(Plot { title, axes, is_logarithmic: (true, true), curves, marks: Vec::new() });
    Ok(report)
}

fn destination() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "F-DST",
        "Absent pages at the destination",
        "FAULT ch. 4, Fig 4.2",
        "each packet to an absent page is refused and noted; two interleaved blocks note repeats, which the handler takes as often; when a page is there, the sender is asked for the block again",
    );
    let [page, ahead] = TOUCHES.map(|touch| all_sizes(&platform, Absent::Destination, touch, 1_000));
    let (page, ahead) = (page?, ahead?);
    for (size, stated) in [(16 << 10, 1.7), (32 << 10, 1.2), (64 << 10, 1.2)] {
        let found = at(&page, size).us / at(&ahead, size).us;
        let what = format!("touch-a-page, times touch-ahead at {} KiB", size >> 10);
        report.numbers.push(Number {
            what,
            stated,
            found,
            unit: "x",
            role: Role::Predicted,
            note: Some(RACE),
        });
    }
    let grows = [&page, &ahead].map(|points| (at(points, 4 << 10).us / at(points, 16).us - 1.0) * 100.0);
    report.claims.push(Claim {
        what: "up to a page the size makes little difference".into(),
        found: format!(
            "{:.0} and {:.0} % from 16 B to 4 KiB, most of it the bytes' own time",
            grows[0], grows[1]
        ),
        holds: grows.iter().all(|percent| *percent < 25.0),
        note: None,
    });
    let apart = (at(&page, 16).us / at(&ahead, 16).us - 1.0) * 100.0;
    report.claims.push(Claim {
        what: "up to a page both ways to bring it in take as long".into(),
        found: format!("touch-a-page {apart:+.0} % at 16 B"),
        holds: apart.abs() < 10.0,
        note: Some("by Table 4.1 to pin a page takes twice what to touch it takes, and the driver has to tell the thread either way"),
    });
    let axes = ("bytes", "us");
    let curves = vec![by_size("touch-a-page", &page), by_size("touch-ahead", &ahead)];
    let title = "Absent destination pages".into();
    report.plots.push(Plot { title, axes, is_logarithmic: (true, true), curves, marks: Vec::new() });
    Ok(report)
}

fn both() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "F-BOTH",
        "Absent pages at both ends",
        "FAULT ch. 4, Fig 4.4-4.6",
        "what was sent before the absent source page meets an absent destination, whose answer brings the block again before the timeout does",
    );
    let [page, ahead] = TOUCHES.map(|touch| all_sizes(&platform, Absent::Both, touch, 1_000));
    let (page, ahead) = (page?, ahead?);
    let source = all_sizes(&platform, Absent::Source, TouchPolicy::Page, 1_000)?;
    for (size, stated) in [(32 << 10, 1.5), (64 << 10, 1.4)] {
        let found = at(&page, size).us / at(&ahead, size).us;
        let what = format!("touch-a-page, times touch-ahead at {} KiB", size >> 10);
        let (unit, role, note) = ("x", Role::Predicted, Some(BOTH));
        report.numbers.push(Number { what, stated, found, unit, role, note });
    }
    let [small, middle] = [16 << 10, 32 << 10].map(|size| at(&page, size).us / at(&ahead, size).us);
    report.claims.push(Claim {
        what: "touch-ahead gains less at 16 KiB than at 32 KiB".into(),
        found: format!("{small:.2} and {middle:.2} times"),
        holds: small < middle,
        note: Some(BOTH),
    });
    let large = [16 << 10, 32 << 10, 64 << 10].map(|size| (at(&page, size), at(&source, size)));
    report.claims.push(Claim {
        what: "from 16 KiB on both ends take less time than the source alone, because of fewer timeouts"
            .into(),
        found: large
            .iter()
            .map(|(both, source)| {
                format!(
                    "{:.0} against {:.0} us, {} against {} timeouts",
                    both.us, source.us, both.timeouts, source.timeouts
                )
            })
            .collect::<Vec<_>>()
            .join("; "),
        holds: large.iter().all(|(both, source)| both.us < source.us && both.timeouts < source.timeouts),
        note: None,
    });
    let axes = ("bytes", "us");
    let curves = vec![by_size("touch-a-page", &page), by_size("touch-ahead", &ahead)];
    let title = "Absent pages at both ends, timeout of 1 ms".into();
    report.plots.push(Plot { title, axes, is_logarithmic: (true, true), curves, marks: Vec::new() });
    Ok(report)
}

fn hits_under_fault() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "F-HUPCF",
        "Hits under a previous fault",
        "FAULT §3.2.1",
        "a context of the SMMU that terminates everything until its fault is cleared, or goes on where pages are present",
    );
    for (hits, what) in [
        (false, "without it, faults are seen at destination pages that are present"),
        (true, "with it, only at the source"),
    ] {
        let found = faulted(
            &platform,
            64 << 10,
            Absent::Source,
            FaultSetup { hits_under_fault: hits, ..driver(TouchPolicy::Page, 1_000) },
        )?;
        report.claims.push(Claim {
            what: what.into(),
            found: format!("{} accesses to present pages were terminated", found.faults.after_faults),
            holds: (found.faults.after_faults == 0) == hits,
            note: None,
        });
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_for_4_and_8_pages_are_predicted_within_15_percent() {
        let report = calls().expect("constants");
        for number in report.numbers.iter().filter(|number| number.role != Role::Shown) {
            let most = if number.role == Role::Fitted { 1.0 } else { 15.0 };
            assert!(number.error_percent().abs() <= most, "{number:?}");
        }
    }
}
