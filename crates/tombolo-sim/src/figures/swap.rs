//! MICRO §5.2.3 and §5.2.6 to 8: remote memory as a swap device, beside others; and copies in local memory.

use super::{Claim, Class, Curve, Document, Figure, Kind, Number, Plot, Report, Role, Target, micro, named};
use crate::boards::zedboard::{Port, Side, blocks};
use crate::kernel::Rate;
use crate::parts::AccessKind;
use crate::platform::{Platform, PlatformError};

const PLATFORM: &str = "zedboard-gen1";
/// What figures of this file have in common.
const KIND: Kind = Kind { document: Document::Micro, class: Class::Hardware, platform: PLATFORM };
const PAGE_BYTES: u32 = 4_096;
const LARGE_BYTES: u32 = 1 << 20;
/// Requests to remote memory under way: one is copied, one is prepared.
const UNDER_WAY: u32 = 2;

/// The point that a request of the network block device is fitted to: a third of what remote memory gives.
pub const TARGET: Target = Target {
    id: "M-SWAP.nbd",
    section: "MICRO §5.2.8",
    stated: 15.0,
    unit: "MB/s",
    measure: |platform| nbd(platform, AccessKind::Read, PAGE_BYTES),
};

/// Figures of these sections.
pub const FIGURES: [Figure; 2] = [
    Figure { id: "M-SWAP", document: Document::Micro, run: swap },
    Figure { id: "M-LOCAL", document: Document::Micro, run: local },
];

/// A swap device of which a processor copies the blocks word by word.
fn remote(platform: &Platform, kind: AccessKind, block_bytes: u32) -> Result<f64, PlatformError> {
    let of_words = match kind {
        AccessKind::Read => micro::loads(platform)?,
        AccessKind::Write => micro::stores(platform)?,
    };
    let endless = || PlatformError::Endless { platform: platform.name().into() };
    let rate = Rate::from_bits_per_s((of_words * 8e6) as u64).ok_or_else(endless)?;
    Ok(blocks(kind, block_bytes, rate, platform.span("block_layer")?, UNDER_WAY))
}

fn nbd(platform: &Platform, kind: AccessKind, block_bytes: u32) -> Result<f64, PlatformError> {
    let under_way = match kind {
        // Each read is waited for.
        AccessKind::Read => 1,
        AccessKind::Write => platform.number("nbd_behind")?,
    };
    Ok(blocks(kind, block_bytes, platform.rate("nbd")?, platform.span("nbd_request")?, under_way))
}

fn sizes() -> impl Iterator<Item = u32> {
    (12..=20).map(|shift| 1 << shift)
}

type Device = fn(&Platform, AccessKind, u32) -> Result<f64, PlatformError>;

fn swap() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "M-SWAP",
        "Remote memory as a swap device",
        "MICRO §5.2.6 to 5.2.8, Fig 5.7, 5.8",
        "the block layer works while the request before is copied; a network block device reads one request at a time, and writes behind",
    );
    let [reads, writes] = [AccessKind::Read, AccessKind::Write];
    for (what, kind, stated) in [("written", writes, 110.0), ("read", reads, 45.0)] {
        for (size, bytes) in [("4 KB", PAGE_BYTES), ("1 MB", LARGE_BYTES)] {
            let found = remote(&platform, kind, bytes)?;
            report.numbers.push(Number::of(
                format!("{what} in blocks of {size}"),
                stated,
                found,
                "MB/s",
                Role::Shown,
                None,
            ));
        }
    }
    let page = nbd(&platform, reads, PAGE_BYTES)?;
    let twice = remote(&platform, writes, PAGE_BYTES)? / nbd(&platform, writes, PAGE_BYTES)?;
    report.numbers.push(Number::of(
        "nbd reads, in blocks of 4 KB: a third",
        15.0,
        page,
        "MB/s",
        Role::Fitted,
        None,
    ));
    report.numbers.push(Number::of(
        "remote memory, times what nbd writes",
        2.0,
        twice,
        "times",
        Role::Predicted,
        None,
    ));
    let best = "if the driver used the best ports, which the document does not name";
    for (what, from, to, stated) in [
        ("written by DMA", (Side::Local, Port::Hp), (Side::Remote, Port::Acp), 610.0),
        ("read by DMA", (Side::Remote, Port::Hp), (Side::Local, Port::Hp), 701.0),
    ] {
        let found = micro::copy_rate(&platform, from, to, LARGE_BYTES)?;
        report.numbers.push(Number::of(what, stated, found, "MB/s", Role::Shown, Some(best)));
    }
    let mut first = None;
    for bytes in sizes() {
        if first.is_none() && nbd(&platform, reads, bytes)? > remote(&platform, reads, bytes)? {
            first = Some(bytes);
        }
    }
    report.claims.push(Claim {
        what: "nbd reads faster in large blocks, and slower in blocks of 4 KB".into(),
        found: first.map_or_else(|| "never".into(), |bytes| format!("from {} KiB on", bytes >> 10)),
        holds: first.is_some_and(|bytes| bytes > PAGE_BYTES),
        note: None,
    });
    for (title, kind, stated, card) in
        [("Written, by block", writes, 110.0, [6.25, 6.25]), ("Read, by block", reads, 45.0, [6.25, 12.5])]
    {
        let curve = |name: &str, device: Device| {
            let points = sizes().map(|bytes| Ok((f64::from(bytes), device(&platform, kind, bytes)?)));
            Ok::<_, PlatformError>(Curve { name: name.into(), points: points.collect::<Result<_, _>>()? })
        };
        report.plots.push(Plot {
            title: title.into(),
            axes: ("bytes", "MB/s"),
            is_logarithmic: (true, true),
            curves: vec![curve("remote memory", remote)?, curve("nbd", nbd)?],
            // Remote memory at both ends, and the card, whose rate at which size is not stated.
            marks: vec![
                (PAGE_BYTES.into(), stated),
                (LARGE_BYTES.into(), stated),
                (PAGE_BYTES.into(), card[0]),
                (LARGE_BYTES.into(), card[1]),
            ],
        });
    }
    Ok(report)
}

/// Table 5.4: six ways to copy, in MB/s.
const COPIES: [f64; 6] = [950.0, 687.5, 250.0, 650.0, 762.5, 937.5];

fn local() -> Result<Report, PlatformError> {
    let mut report = KIND.report(
        "M-LOCAL",
        "Copies in local memory: memcpy, bcopy, and loops that move more and more at once",
        "MICRO Table 5.4",
        "the processor's own, for which no part stands: the table is shown, and nothing is compared",
    );
    report.plots.push(Plot {
        title: "Copies by row of Table 5.4".into(),
        axes: ("row", "MB/s"),
        is_logarithmic: (false, false),
        curves: Vec::new(),
        marks: (1..).map(f64::from).zip(COPIES).collect(),
    });
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The anchors of M-SWAP.
    #[test]
    fn swap_goes_at_the_rate_of_copies_and_nbd_overtakes_at_64_kib() {
        let report = swap().expect("constants");
        assert!(
            report.numbers.iter().all(|number| number.error_percent().abs() < 3.0),
            "{:?}",
            report.numbers
        );
        assert_eq!(report.claims[0].found, "from 64 KiB on");
    }
}
