//! SDP, chapter 5: sockets over a bridge between two machines' memories.

use super::{Claim, Class, Curve, Document, Figure, Kind, Number, Plot, Report, Role, Target, named};
use crate::boards::pcie::machines;
use crate::hosts::SdpProgram;
use crate::kernel::{Span, Time};
use crate::platform::{Platform, PlatformError};

const PLATFORM: &str = "pcie-ntb";
/// What figures of this file have in common.
const KIND: Kind = Kind { document: Document::Sdp, class: Class::Protocol, platform: PLATFORM };
/// The peak of the document's InfiniBand, in MB/s (SDP §5.3.1).
const OTHER_PEAK: f64 = 1_731.0;
/// What a file of 1 GB takes there, in seconds (SDP §5.3.3).
const OTHER_FILE_S: f64 = 2.45;
const GIGABYTE: f64 = 1_073_741_824.0;
/// Bytes of the messages with which rates are measured: many to a buffer.
const MESSAGE_BYTES: u32 = 65_536;
/// The receiving program's buffer (SDP §5.2.3).
const RECEIVE_BYTES: u32 = 32 << 10;

const fn target(
    id: &'static str,
    section: &'static str,
    stated: f64,
    unit: &'static str,
    measure: fn(&Platform) -> Result<f64, PlatformError>,
) -> Target {
    Target { id, section, stated, unit, measure }
}

/// The points that constants of `pcie-ntb` are fitted to.
pub const TARGETS: [Target; 5] = [
    target("S-LAT.512", "SDP Table 5.1", 200.29, "us", |platform| latency_us(platform, 512)),
    target("S-LAT.4", "SDP Table 5.1", 18.34, "us", |platform| latency_us(platform, 4)),
    target("S-RATE.1", "SDP §5.2.1, Fig 5.3", 872.0, "MB/s", |platform| {
        rate(platform, 1, MESSAGE_BYTES, LONG)
    }),
    target("S-FILE.64K", "SDP Table 5.2", 6.0, "ms", |platform| file_ms(platform, 65_536.0)),
    target("S-FILE.1G", "SDP §5.3.3", 3_400.0, "ms", |platform| file_ms(platform, GIGABYTE)),
];

/// Figures of chapter 5.
pub const FIGURES: [Figure; 3] = [
    Figure { id: "S-LAT", document: Document::Sdp, run: latency },
    Figure { id: "S-RATE", document: Document::Sdp, run: throughput },
    Figure { id: "S-FILE", document: Document::Sdp, run: files },
];

/// Half of what a message takes there and back, in microseconds.
fn latency_us(platform: &Platform, bytes: u32) -> Result<f64, PlatformError> {
    let programs = [true, false].map(|leads| SdpProgram::Bounces { bytes, leads });
    let mut machines = machines(platform, &[programs])?;
    // Long enough for many of the slowest.
    let end = Time::ZERO.after(Span::from_ns(400_000_000));
    machines.world.run_until(end);
    let messages = machines.node(0).messages() + machines.node(1).messages();
    if messages == 0 {
        return Err(PlatformError::Endless { platform: platform.name().into() });
    }
    Ok(end.picos() as f64 / 1e6 / messages as f64)
}

/// How long rates are measured: for a number, and for the point of a curve.
const LONG: Span = Span::from_ns(300_000_000);
const SHORT: Span = Span::from_ns(30_000_000);

/// What so many connections give, in MB/s.
fn rate(
    platform: &Platform,
    connections: usize,
    message_bytes: u32,
    span: Span,
) -> Result<f64, PlatformError> {
    let pair = [SdpProgram::Sends(message_bytes), SdpProgram::Receives(RECEIVE_BYTES)];
    let mut machines = machines(platform, &vec![pair; connections])?;
    let rate = machines.rate(span);
    debug_assert_eq!(machines.node(0).errors() + machines.node(1).errors(), 0);
    Ok(rate)
}

fn file_ms(platform: &Platform, bytes: f64) -> Result<f64, PlatformError> {
    let (fixed, rate) = (platform.span("web_fixed")?, platform.rate("web_rate")?);
    Ok(fixed.plus(rate.span_of(bytes as u64)).picos() as f64 / 1e9)
}

fn latency() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "S-LAT",
        "A message one way",
        "SDP Table 5.1, Fig 5.6",
        "up to 512 bytes are loaded over the bridge, 4 at a time; beyond that the DMA engine copies, for which the receiver sleeps once more",
    );
    let at = |bytes| latency_us(&platform, bytes);
    let (least, eight, most) = (at(4)?, at(8)?, at(512)?);
    report.numbers = vec![
        Number::of("4 bytes", 18.34, least, "us", Role::Fitted, None),
        Number::of("1 byte", 18.34, at(1)?, "us", Role::Shown, None),
        Number::of("8 bytes, \"around 18\"", 18.0, eight, "us", Role::Predicted, None),
        Number::of("512 bytes", 200.29, most, "us", Role::Fitted, None),
    ];
    let by_byte = [(8, 16), (16, 64)].map(|(from, to)| Ok((at(to)? - at(from)?) / f64::from(to - from)));
    let [before, after] = by_byte;
    let (before, after): (f64, f64) = (before?, after?);
    report.claims.push(Claim {
        what: "beyond 16 bytes it grows more steeply".into(),
        found: format!("{before:.2} us for each byte from 8 to 16, {after:.2} from 16 to 64"),
        holds: after > 1.1 * before,
        note: Some("the model has one load for each 4 bytes, whatever their number. The document's reason, a sender that sleeps until its buffer is released, is in no message that goes back and forth"),
    });
    let next = at(1_024)?;
    report.claims.push(Claim {
        what: "beyond 512 bytes it is far more".into(),
        found: format!("{next:.0} us for 1024 bytes: less, as a sleep and a copy by the engine take less than 128 loads"),
        holds: next > most,
        note: Some("the document says that it increases dramatically, and that a DMA is expensive; its rate with one connection leaves 90 us for all that a buffer of 256 KiB takes beside its bytes, of which starting the engine is a part. With a whole buffer of 1 MB for one connection (§4.2.5; §4.2.1 has a quarter, whatever their number) 360 us would be left"),
    });
    let sizes = (0..=20).map(|shift| 1_u32 << shift);
    let points = sizes.map(|bytes| Ok((f64::from(bytes), at(bytes)?)));
    report.plots.push(Plot {
        title: "Latency of a message".into(),
        axes: ("bytes", "us"),
        is_logarithmic: (true, true),
        curves: vec![Curve { name: "model".into(), points: points.collect::<Result<_, PlatformError>>()? }],
        marks: vec![(4.0, 18.34), (512.0, 200.29)],
    });
    Ok(report)
}

fn throughput() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "S-RATE",
        "What connections give",
        "SDP §5.2.1, Fig 5.3, 5.5",
        "a buffer is filled only when the receiver has taken it; several connections overlap, and share one bridge",
    );
    let rates = [1, 2, 3, 4].map(|connections| rate(&platform, connections, MESSAGE_BYTES, LONG));
    let [one, two, three, four] = rates;
    let (one, two, three, four) = (one?, two?, three?, four?);
    report.numbers = vec![
        Number::of("one connection", 872.0, one, "MB/s", Role::Fitted, None),
        Number::of("three connections", 1_220.0, three, "MB/s", Role::Predicted, None),
    ];
    report.claims.push(Claim {
        what: "two are between one and three".into(),
        found: format!("{one:.0}, {two:.0}, {three:.0} MB/s"),
        holds: one < two && two < three,
        note: None,
    });
    report.claims.push(Claim {
        what: "four give less than three".into(),
        found: format!("{four:.0} and {three:.0} MB/s"),
        holds: four < three,
        note: Some("the document guesses at contention for the link or for memory; nothing here contends"),
    });
    let small = [1, 4].map(|connections| rate(&platform, connections, 1_024, LONG));
    let [alone, shared] = small;
    let (alone, shared) = (alone?, shared?);
    report.plots.push(Plot {
        title: "Rate by message".into(),
        axes: ("bytes", "MB/s"),
        is_logarithmic: (true, true),
        curves: (1..=4)
            .map(|connections| {
                let sizes = (7..=20).map(|shift| 1_u32 << shift);
                let points =
                    sizes.map(|bytes| Ok((f64::from(bytes), rate(&platform, connections, bytes, SHORT)?)));
                let name = format!("{connections} connections");
                Ok(Curve { name, points: points.collect::<Result<_, PlatformError>>()? })
            })
            .collect::<Result<_, PlatformError>>()?,
        marks: vec![(1_048_576.0, 872.0), (1_048_576.0, 1_220.0)],
    });
    report.claims.push(Claim {
        what: "with small messages several connections gain little".into(),
        found: format!("{alone:.0} MB/s with one, {shared:.0} with four, of 1024 bytes"),
        holds: shared < 1.3 * alone,
        note: Some(
            "here each connection has a processor of its own, which copies and makes calls beside the others",
        ),
    });
    Ok(report)
}

fn files() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = Kind { class: Class::Hardware, ..KIND }.report(
        "S-FILE",
        "Files from a web server",
        "SDP Table 5.2, Fig 5.7, 5.8",
        "what a request takes, and a rate of server and client: nothing is predicted",
    );
    let (small, large) = (file_ms(&platform, 65_536.0)?, file_ms(&platform, GIGABYTE)?);
    let peak = platform.rate("peak")?.span_of(1_000_000).picos() as f64;
    let of_peak = GIGABYTE / 1e6 / (large / 1e3) * 100.0 * peak / 1e12;
    report.numbers = vec![
        Number::of("64 KiB", 6.0, small, "ms", Role::Fitted, None),
        Number::of("1 GB", 3_400.0, large, "ms", Role::Fitted, None),
        Number::of(
            "of the peak, beside InfiniBand's",
            GIGABYTE / 1e6 / OTHER_FILE_S * 100.0 / OTHER_PEAK,
            of_peak,
            "%",
            Role::Shown,
            Some(
                "the document says up to 11 % better for some size; at 1 GB both have the same part of their peak",
            ),
        ),
    ];
    let sizes = (4..=30).map(|shift| f64::from(1_u32 << shift));
    let points = sizes.map(|bytes| Ok((bytes, file_ms(&platform, bytes)?)));
    report.plots.push(Plot {
        title: "A file by its size".into(),
        axes: ("bytes", "ms"),
        is_logarithmic: (true, true),
        curves: vec![Curve { name: "model".into(), points: points.collect::<Result<_, PlatformError>>()? }],
        marks: vec![(65_536.0, 6.0), (GIGABYTE, 3_400.0)],
    });
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The anchor of S-RATE: 1220 of 1247 MB/s with three connections.
    #[test]
    fn three_connections_fill_the_bridge_and_one_does_not() {
        let report = throughput().expect("constants");
        assert!(
            report.numbers.iter().all(|number| number.error_percent().abs() < 3.0),
            "{:?}",
            report.numbers
        );
        assert!(report.claims[0].holds, "{:?}", report.claims);
    }

    #[test]
    fn few_bytes_are_loaded() {
        let report = latency().expect("constants");
        assert!(
            report.numbers.iter().all(|number| number.error_percent().abs() < 12.0),
            "{:?}",
            report.numbers
        );
    }
}
