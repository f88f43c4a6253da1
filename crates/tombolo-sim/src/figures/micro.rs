//! MICRO, chapter 5: words and copies. Only modelled hardware takes part.

use super::{Claim, Class, Curve, Document, Figure, Kind, Number, Plot, Report, Role, Target, named};
use crate::boards::zedboard::{End, Port, Side, WORD_BYTES, copier, words};
use crate::kernel::Span;
use crate::parts::{AccessKind, DmaRequest, Input, Message, Probe};
use crate::platform::{Platform, PlatformError};

/// Words that are copied to find a rate.
const WORDS: u64 = 10_000;
/// Bytes of a large copy (MICRO §5.1.3: 8 MBytes, of which 1 MiB shows as much).
const LARGE_BYTES: u32 = 1 << 20;

const fn target(
    id: &'static str,
    section: &'static str,
    stated: f64,
    measure: fn(&Platform) -> Result<f64, PlatformError>,
) -> Target {
    Target { id, section, stated, unit: "MB/s", measure }
}

/// The points that constants of `zedboard-gen1` are fitted to.
pub const TARGETS: [Target; 10] = [
    target("M-LS.1", "MICRO Table 5.3, row 1", 110.0, stores),
    target("M-LS.3", "MICRO Table 5.3, row 3", 45.0, loads),
    target("M-DMA.1", "MICRO Table 5.5, row 1", 310.0, row::<1>),
    target("M-DMA.3", "MICRO Table 5.5, row 3", 610.0, row::<3>),
    target("M-DMA.4", "MICRO Table 5.5, row 4", 507.0, row::<4>),
    target("M-DMA.6", "MICRO Table 5.5, row 6", 280.0, row::<6>),
    target("M-DMA.8", "MICRO Table 5.5, row 8", 701.0, row::<8>),
    target("M-DMA.9", "MICRO Table 5.5, row 9", 250.0, row::<9>),
    target("M-DMA.12", "MICRO Table 5.5, row 12", 716.0, row::<12>),
    target("M-DMASIZE.512", "MICRO §5.2.5, Fig 5.5", 122.0, small_copy),
];

/// The sixteen copies of Table 5.5: from, to, and MB/s.
pub const COPIES: [(End, End, f64); 16] = {
    use Port::{Acp, Hp};
    use Side::{Local, Remote};
    [
        ((Local, Acp), (Remote, Acp), 310.0),
        ((Local, Acp), (Remote, Hp), 305.0),
        ((Local, Hp), (Remote, Acp), 610.0),
        ((Local, Hp), (Remote, Hp), 507.0),
        ((Remote, Acp), (Local, Acp), 264.0),
        ((Remote, Acp), (Local, Hp), 280.0),
        ((Remote, Hp), (Local, Acp), 280.0),
        ((Remote, Hp), (Local, Hp), 701.0),
        ((Local, Acp), (Local, Acp), 250.0),
        ((Local, Acp), (Local, Hp), 241.0),
        ((Local, Hp), (Local, Acp), 715.0),
        ((Local, Hp), (Local, Hp), 716.0),
        ((Remote, Acp), (Remote, Acp), 213.0),
        ((Remote, Acp), (Remote, Hp), 230.0),
        ((Remote, Hp), (Remote, Acp), 605.0),
        ((Remote, Hp), (Remote, Hp), 501.0),
    ]
};

fn megabytes_per_s(bytes: u64, span: Span) -> f64 {
    bytes as f64 * 1e6 / span.picos() as f64
}

/// A loop over words: what it moves.
fn rate_of_words(
    platform: &Platform,
    kind: AccessKind,
    spacing: Span,
    outstanding_thousandths: Option<u32>,
) -> Result<f64, PlatformError> {
    let took = words(platform, kind, WORDS, spacing, outstanding_thousandths)?.run();
    Ok(megabytes_per_s(WORDS * u64::from(WORD_BYTES), took))
}

/// The rate of a loop of stores to remote memory; the processor does not wait for their answers.
pub(super) fn stores(platform: &Platform) -> Result<f64, PlatformError> {
    rate_of_words(platform, AccessKind::Write, platform.span("store_spacing")?, None)
}

/// Loads from remote memory, some of which are without an answer at any time.
pub(super) fn loads(platform: &Platform) -> Result<f64, PlatformError> {
    let outstanding = platform.count("loads_outstanding")?;
    rate_of_words(platform, AccessKind::Read, Span::ZERO, Some(outstanding as u32))
}

/// One word after the other: how long each takes, in nanoseconds.
///
/// # Errors
/// [`PlatformError`], if the platform lacks a constant.
pub fn word_ns(platform: &Platform, kind: AccessKind) -> Result<f64, PlatformError> {
    let rate = rate_of_words(platform, kind, Span::ZERO, Some(1_000))?;
    Ok(f64::from(WORD_BYTES) * 1e3 / rate)
}

/// A copy: its rate, set-up and end included.
///
/// # Errors
/// [`PlatformError`], if the platform lacks a constant.
pub fn copy_rate(platform: &Platform, from: End, to: End, length_bytes: u32) -> Result<f64, PlatformError> {
    let mut copier = copier(platform, from, to)?;
    let reply_to = Input::of(copier.asker);
    let request = DmaRequest { path: 0, source: 0, destination: 0, length_bytes, tag: 0, reply_to };
    copier.world.send(copier.asker, Input::of(copier.dma), Message::Copy(request));
    copier.world.run();
    let told = copier.world.part::<Probe>(copier.asker).expect("a probe").seen[0].time;
    Ok(megabytes_per_s(length_bytes.into(), told.since(crate::kernel::Time::ZERO)))
}

fn row<const ROW: usize>(platform: &Platform) -> Result<f64, PlatformError> {
    let (from, to, _) = COPIES[ROW - 1];
    copy_rate(platform, from, to, LARGE_BYTES)
}

fn small_copy(platform: &Platform) -> Result<f64, PlatformError> {
    copy_rate(platform, (Side::Local, Port::Hp), (Side::Remote, Port::Acp), 512)
}

const PLATFORM: &str = "zedboard-gen1";
/// What figures of this file have in common.
const KIND: Kind = Kind { document: Document::Micro, class: Class::Hardware, platform: PLATFORM };

/// Figures of chapter 5.
pub const FIGURES: [Figure; 4] = [
    Figure { id: "M-LAT", document: Document::Micro, run: latency },
    Figure { id: "M-LS", document: Document::Micro, run: loops },
    Figure { id: "M-DMA", document: Document::Micro, run: copies },
    Figure { id: "M-DMASIZE", document: Document::Micro, run: sizes },
];

fn latency() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "M-LAT",
        "One word of remote memory",
        "MICRO §5.1.1, 5.2.1, Fig 5.1, 5.2",
        "one request at a time through the conversion of protocols, the cable and the other node's port, and back. That what is neither processor nor cable is half before and half behind the cable is assumed",
    );
    let [read, write] = [word_ns(&platform, AccessKind::Read)?, word_ns(&platform, AccessKind::Write)?];
    for (what, stated, found) in [
        ("a store and a load", 1_450.0, read + write),
        ("one of them, on average", 725.0, (read + write) / 2.0),
    ] {
        report.numbers.push(Number {
            what: what.into(),
            stated,
            found,
            unit: "ns",
            role: Role::Shown,
            note: None,
        });
    }
    let cycle = platform.span("cycle")?.picos() as f64 / 1e3;
    for (name, kind, probed) in [("load", AccessKind::Read, 73.0), ("store", AccessKind::Write, 65.0)] {
        let (_, stages) = words(&platform, kind, 1, Span::ZERO, Some(1_000))?.run_in_stages();
        let of = |wanted: &[&str]| {
            let picos =
                stages.iter().filter(|(stage, _)| wanted.contains(stage)).map(|(_, span)| span.picos());
            picos.sum::<u64>() as f64 / 1e3
        };
        for (what, stated, found) in [
            ("in axi2axi and the cable, there and back", 39.5, of(&["cable"])),
            ("at the analyser", probed, of(&["conversion", "cable", "port"])),
        ] {
            let (what, found) = (format!("a {name} {what}"), found / cycle);
            report.numbers.push(Number::of(what, stated, found, "cycles", Role::Shown, None));
        }
    }
    Ok(report)
}

fn loops() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "M-LS",
        "Loops of loads and stores",
        "MICRO Table 5.1, 5.3, Fig 5.3",
        "stores are posted; of loads a bounded number is without an answer",
    );
    let (stores, loads) = (stores(&platform)?, loads(&platform)?);
    let alone = rate_of_words(&platform, AccessKind::Read, Span::ZERO, Some(1_000))?;
    let mean = "a read takes 765 of the 1450 ns of a pair; 4 bytes in the mean of 725 would be 5.5";
    let same = "the loop bounds it and not the port: the model has one rate for both";
    for (what, stated, found, role, note) in [
        ("stores to a remote coherent port", 110.0, stores, Role::Fitted, None),
        ("stores to a remote high-performance port", 112.0, stores, Role::Predicted, Some(same)),
        ("loads from a remote coherent port", 45.0, loads, Role::Fitted, None),
        ("loads from a remote high-performance port", 40.0, loads, Role::Predicted, Some(same)),
        ("loads without read buffers", 5.2, alone, Role::Predicted, Some(mean)),
    ] {
        report.numbers.push(Number { what: what.into(), stated, found, unit: "MB/s", role, note });
    }
    Ok(report)
}

/// Rows of Table 5.5 that constants are fitted to.
const FITTED_ROWS: [usize; 7] = [1, 3, 4, 6, 8, 9, 12];

fn copies() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "M-DMA",
        "Copies between any two memories, by any two ports",
        "MICRO Table 5.2, 5.5, Fig 5.4",
        "the slower of the port that is read and the port that is written; reading by the coherent port is slower while the same node is written. Sixteen rows come of nine constants",
    );
    let mut rates = Vec::new();
    for (number, (from, to, stated)) in (1..).zip(COPIES) {
        let found = copy_rate(&platform, from, to, LARGE_BYTES)?;
        let role = match number {
            7 => Role::Shown,
            number if FITTED_ROWS.contains(&number) => Role::Fitted,
            _ => Role::Predicted,
        };
        let note =
            (number == 7).then_some("this row repeats row 6, and contradicts rows 8 and 11 and the text");
        let what =
            format!("row {number}: {} {} to {} {}", from.0.name(), from.1.name(), to.0.name(), to.1.name());
        report.numbers.push(Number { what, stated, found, unit: "MB/s", role, note });
        rates.push((number, from, to, stated, found));
    }
    let hp_is_faster = |(_, from, to, _, found): &(usize, End, End, f64, f64)| {
        let other =
            rates.iter().find(|(_, other, there, ..)| (other.0, other.1, there) == (from.0, Port::Hp, to));
        from.1 == Port::Hp || other.is_some_and(|(.., faster)| faster > found)
    };
    report.claims.push(Claim {
        what: "reading by a high-performance port is faster than by the coherent one".into(),
        found: format!(
            "in {} of 8 pairs of rows",
            rates.iter().filter(|row| row.1.1 == Port::Acp && hp_is_faster(row)).count()
        ),
        holds: rates.iter().all(hp_is_faster),
        note: None,
    });
    report.plots.push(Plot {
        title: "Copies by row of Table 5.5".into(),
        axes: ("row", "MB/s"),
        is_logarithmic: (false, false),
        curves: vec![Curve {
            name: "model".into(),
            points: rates.iter().map(|(number, .., found)| (*number as f64, *found)).collect(),
        }],
        marks: rates.iter().map(|(number, _, _, stated, _)| (*number as f64, *stated)).collect(),
    });
    Ok(report)
}

/// Sizes of copies, from 4 bytes to 1 MiB.
fn all_sizes() -> impl Iterator<Item = u32> {
    (2..=20).map(|shift| 1 << shift)
}

fn sizes() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "M-DMASIZE",
        "Copies by size, beside loops",
        "MICRO §5.2.5, Fig 5.5, 5.6",
        "a copy costs its set-up and end once, and then goes at its rate",
    );
    let (here, there) = ((Side::Local, Port::Hp), (Side::Remote, Port::Acp));
    report.numbers.push(Number {
        what: "512 bytes from local memory to remote".into(),
        stated: 122.0,
        found: small_copy(&platform)?,
        unit: "MB/s",
        role: Role::Fitted,
        note: None,
    });
    for (title, from, to, loop_rate, stated_limit, crossing) in [
        ("From local memory to remote", here, there, stores(&platform)?, 610.0, 512),
        ("From remote memory to local", there, here, loads(&platform)?, 280.0, 256),
    ] {
        let rates: Vec<_> = all_sizes()
            .map(|bytes| Ok((bytes, copy_rate(&platform, from, to, bytes)?)))
            .collect::<Result<_, PlatformError>>()?;
        let limit = copy_rate(&platform, from, to, 8 * LARGE_BYTES)?;
        report.numbers.push(Number {
            what: format!("{title}, large copies"),
            stated: stated_limit,
            found: limit,
            unit: "MB/s",
            role: Role::Shown,
            note: None,
        });
        let first = rates.iter().find(|(_, rate)| *rate > loop_rate).map(|(bytes, _)| *bytes);
        report.claims.push(Claim {
            what: format!("{title}: copies overtake the loop at {crossing} bytes"),
            found: first.map_or_else(|| "never".into(), |bytes| format!("at {bytes} bytes")),
            holds: first == Some(crossing),
            note: None,
        });
        let points = |rate: &dyn Fn(f64) -> f64| {
            rates.iter().map(|(bytes, copy)| (f64::from(*bytes), rate(*copy))).collect()
        };
        report.plots.push(Plot {
            title: title.into(),
            axes: ("bytes", "MB/s"),
            is_logarithmic: (true, true),
            curves: vec![
                Curve { name: "copy".into(), points: points(&|copy| copy) },
                Curve { name: "loop".into(), points: points(&|_| loop_rate) },
            ],
            marks: if crossing == 512 { vec![(512.0, 122.0)] } else { Vec::new() },
        });
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform() -> Platform {
        Platform::named("zedboard-gen1").expect("it is listed")
    }

    /// M-LAT: 1450 ns a pair, 725 each.
    #[test]
    fn a_store_and_a_load_take_1450_ns() {
        let [read, write] =
            [AccessKind::Read, AccessKind::Write].map(|kind| word_ns(&platform(), kind).expect("a board"));
        assert!((read + write - 1_450.0).abs() < 0.5, "{read} {write}");
    }

    /// M-LS: without read buffers a load waits for the one before.
    #[test]
    fn loads_without_buffers_give_5_2_megabytes_a_second() {
        let rate = rate_of_words(&platform(), AccessKind::Read, Span::ZERO, Some(1_000)).expect("a board");
        assert!((rate - 5.2).abs() < 0.1, "{rate}");
    }

    /// M-DMA: rows that no constant is fitted to are within 7 %. Row 7 contradicts the text, which says that reading through HP
    /// is faster.
    #[test]
    fn copies_between_any_two_ports_come_out() {
        let report = copies().expect("a board");
        for (number, row) in (1..).zip(&report.numbers) {
            let most = if row.role == Role::Fitted { 1.0 } else { 7.0 };
            assert!((row.error_percent().abs() <= most) != (number == 7), "{row:?}");
        }
        assert!(report.claims[0].holds);
    }

    /// M-DMASIZE: a copy overtakes a loop of stores at 512 bytes, and a loop of loads at 256.
    #[test]
    fn copies_overtake_loops_where_the_document_says() {
        let report = sizes().expect("a board");
        assert!(report.claims.iter().all(|claim| claim.holds), "{:?}", report.claims);
    }
}
