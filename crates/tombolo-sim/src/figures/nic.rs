//! MICRO, chapter 6: one interface for many nodes.

use super::{Claim, Class, Curve, Document, Figure, Kind, Number, Plot, Report, Role, Target, named};
use crate::boards::microzed::{Setup, Traffic, run};
use crate::platform::{Platform, PlatformError};
use tombolo_core::nic::Coalescing;

const PLATFORM: &str = "microzed-gen2";
/// What figures of this file have in common.
const KIND: Kind = Kind { document: Document::Micro, class: Class::Protocol, platform: PLATFORM };
const SECTION: &str = "MICRO §6.2.1, 6.2.3, Fig 6.10";

const BARE: Setup = Setup {
    nodes: 1,
    traffic: Traffic::BareMetal,
    sends: true,
    receives: false,
    flows: 1,
    coalescing: Coalescing { frames: 1, after_ns: 0, is_adaptive: false },
};
const RAW_OUT: Setup = Setup { traffic: Traffic::Raw, ..BARE };
const RAW_IN: Setup = Setup { sends: false, receives: true, ..RAW_OUT };
const TCP_OUT: Setup = Setup { traffic: Traffic::Tcp, ..BARE };
const TCP_IN: Setup = Setup { sends: false, receives: true, ..TCP_OUT };

/// The points that constants of `microzed-gen2` are fitted to.
pub const TARGETS: [Target; 4] = [
    Target {
        id: "N-RAW.bare",
        section: SECTION,
        stated: 3.2,
        unit: "Gb/s",
        measure: |platform| raw(platform, &BARE),
    },
    Target {
        id: "N-RAW.out",
        section: SECTION,
        stated: 3.0,
        unit: "Gb/s",
        measure: |platform| raw(platform, &RAW_OUT),
    },
    Target {
        id: "N-RAW.in",
        section: SECTION,
        stated: 2.8,
        unit: "Gb/s",
        measure: |platform| raw(platform, &RAW_IN),
    },
    Target {
        id: "N-TCP.cpu",
        section: "MICRO §6.2.2",
        stated: 150.0,
        unit: "%",
        measure: |platform| Ok(run(platform, &TCP_OUT)?.busy * 100.0),
    },
];

/// Figures of chapter 6.
pub const FIGURES: [Figure; 3] = [
    Figure { id: "N-RAW", document: Document::Micro, run: frames },
    Figure { id: "N-TCP", document: Document::Micro, run: connections },
    Figure { id: "N-COAL", document: Document::Micro, run: coalescing },
];

/// All nodes together, in both directions, in Gb/s of so many bytes a frame.
fn rate(platform: &Platform, setup: &Setup, bytes: &str) -> Result<f64, PlatformError> {
    let rates = run(platform, setup)?;
    let frames: f64 = rates.sent.iter().chain(&rates.received).sum();
    Ok(frames * platform.count(bytes)? as f64 * 8.0 / 1e9)
}

fn raw(platform: &Platform, setup: &Setup) -> Result<f64, PlatformError> {
    rate(platform, setup, "frame")
}

fn tcp(platform: &Platform, setup: &Setup) -> Result<f64, PlatformError> {
    rate(platform, setup, "payload")
}

const NODES: [u8; 4] = [1, 2, 3, 4];

fn by_nodes(
    platform: &Platform,
    setup: &Setup,
    rate: fn(&Platform, &Setup) -> Result<f64, PlatformError>,
) -> Result<Vec<f64>, PlatformError> {
    NODES.iter().map(|nodes| rate(platform, &Setup { nodes: *nodes, ..*setup })).collect()
}

fn points(rates: &[f64]) -> Vec<(f64, f64)> {
    NODES.iter().map(|nodes| f64::from(*nodes)).zip(rates.iter().copied()).collect()
}

/// Jain's index of fairness: 1 if all have as much.
fn fairness(rates: &[f64]) -> f64 {
    let (sum, squares) =
        rates.iter().fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
    sum * sum / (squares * rates.len() as f64)
}

fn frames() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "N-RAW",
        "Frames by nodes",
        SECTION,
        "a processor's time for each frame, and a wire on which each frame has 24 bytes more; nodes take turns by frames",
    );
    let stated = [3.2, 6.4, 9.6, 9.8];
    let found = by_nodes(&platform, &BARE, raw)?;
    for (nodes, (stated, found)) in NODES.iter().zip(stated.into_iter().zip(&found)) {
        let role = if *nodes == 1 { Role::Fitted } else { Role::Predicted };
        report.numbers.push(Number::of(
            format!("without an operating system, {nodes} {}", if *nodes == 1 { "node" } else { "nodes" }),
            stated,
            *found,
            "Gb/s",
            role,
            None,
        ));
    }
    for (what, stated, setup) in [("sent by the kernel", 3.0, RAW_OUT), ("got by the kernel", 2.8, RAW_IN)] {
        let found = raw(&platform, &setup)?;
        report.numbers.push(Number::of(what, stated, found, "Gb/s", Role::Fitted, None));
    }
    let all = run(&platform, &Setup { nodes: 4, ..BARE })?.sent;
    report.claims.push(Claim {
        what: "four nodes share the wire equally".into(),
        found: format!(
            "index of fairness {:.4}; the document says 2.2 of 9.8 Gb/s each, which is no quarter",
            fairness(&all)
        ),
        holds: fairness(&all) > 0.999,
        note: None,
    });
    report.plots.push(Plot {
        title: "Frames of nodes without an operating system".into(),
        axes: ("nodes", "Gb/s"),
        is_logarithmic: (false, false),
        curves: vec![Curve { name: "model".into(), points: points(&found) }],
        marks: points(&stated),
    });
    Ok(report)
}

fn connections() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "N-TCP",
        "TCP by nodes",
        "MICRO §6.2.2, Fig 6.10",
        "each frame's checksum takes 9000 cycles; that no two frames are in that part of the kernel at once, and that received frames have it as well, is assumed. The rest of TCP, and interrupts, run on the other core",
    );
    let (out, inward) = (by_nodes(&platform, &TCP_OUT, tcp)?, by_nodes(&platform, &TCP_IN, tcp)?);
    report.numbers.push(Number::of("one node sends", 0.96, out[0], "Gb/s", Role::Predicted, None));
    for (nodes, found) in NODES.iter().zip(&inward) {
        let what = format!("{nodes} {} by TCP", if *nodes == 1 { "node gets" } else { "nodes get" });
        // All nodes have as much as one.
        let role = if *nodes == 1 { Role::Predicted } else { Role::Shown };
        report.numbers.push(Number::of(what, 0.88 * f64::from(*nodes), *found, "Gb/s", role, None));
    }
    let both = Setup { receives: true, ..TCP_OUT };
    report.numbers.push(Number::of(
        "both directions at once, in all",
        0.88,
        tcp(&platform, &both)?,
        "Gb/s",
        Role::Predicted,
        None,
    ));
    let busy = [TCP_OUT, TCP_IN].map(|setup| Ok(run(&platform, &setup)?.busy * 100.0));
    let [sending, receiving] = busy;
    let (sending, receiving): (f64, f64) = (sending?, receiving?);
    report.numbers.push(Number::of("processors while sending", 150.0, sending, "%", Role::Fitted, None));
    report.numbers.push(Number::of(
        "processors while receiving",
        150.0,
        receiving,
        "%",
        Role::Predicted,
        None,
    ));
    let way = run(&platform, &both)?;
    let (sent, received) = (way.sent.iter().sum::<f64>(), way.received.iter().sum::<f64>());
    report.claims.push(Claim {
        what: "the two directions have nearly as much each".into(),
        found: format!(
            "{:.0} and {:.0} %",
            sent * 100.0 / (sent + received),
            received * 100.0 / (sent + received)
        ),
        holds: (sent / received - 1.0).abs() < 0.1,
        note: None,
    });
    let [two, two_in] = [TCP_OUT, TCP_IN].map(|setup| tcp(&platform, &Setup { flows: 2, ..setup }));
    let (two, two_in) = (two?, two_in?);
    for (what, stated, found) in
        [("one node sends by two connections", 0.98, two), ("one node gets by two connections", 0.90, two_in)]
    {
        // 20 Mb/s more than by one.
        report.numbers.push(Number::of(what, stated, found, "Gb/s", Role::Shown, None));
    }
    report.claims.push(Claim {
        what: "a second connection adds 2 % at most".into(),
        found: format!(
            "{:+.1} %; that both cores are then wholly busy, as the document says, has no reason here",
            (two / out[0] - 1.0) * 100.0
        ),
        holds: two / out[0] < 1.021,
        note: None,
    });
    report.plots.push(Plot {
        title: "TCP".into(),
        axes: ("nodes", "Gb/s"),
        is_logarithmic: (false, false),
        curves: vec![
            Curve { name: "nodes send".into(), points: points(&out) },
            Curve { name: "nodes get".into(), points: points(&inward) },
        ],
        marks: points(&NODES.map(|nodes| 0.88 * f64::from(nodes))),
    });
    Ok(report)
}

/// Frames that an interrupt waits for.
const GATHERED: [u32; 4] = [1, 4, 16, 64];
/// The longest that it waits.
const WAIT_NS: u64 = 200_000;

fn coalescing() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "N-COAL",
        "Coalescing of interrupts",
        "MICRO §6.1.7, 6.2.2",
        "interrupts are taken by the core that has time: the other one computes checksums",
    );
    let in_hardware = platform.with("checksum_cycles", 0.0)?;
    let gathered =
        |platform: &Platform, setup: &Setup, rate: fn(&Platform, &Setup) -> Result<f64, PlatformError>| {
            let at = |frames| Coalescing {
                frames,
                after_ns: if frames > 1 { WAIT_NS } else { 0 },
                is_adaptive: false,
            };
            let rates =
                GATHERED.iter().map(|frames| rate(platform, &Setup { coalescing: at(*frames), ..*setup }));
            rates.collect::<Result<Vec<_>, _>>()
        };
    let gain = |rates: &[f64]| {
        let best = rates.iter().copied().fold(0.0, f64::max);
        (best / rates[0] - 1.0) * 100.0
    };
    let mut curves = Vec::new();
    let mut gains = Vec::new();
    for (name, setup, rate) in [
        ("TCP, out", TCP_OUT, tcp as fn(&Platform, &Setup) -> Result<f64, PlatformError>),
        ("TCP, in", TCP_IN, tcp),
        ("TCP, out, checksum in hardware", TCP_OUT, tcp),
    ] {
        let platform = if name.contains("hardware") { &in_hardware } else { &platform };
        let rates = gathered(platform, &setup, rate)?;
        gains.push(gain(&rates));
        let points = GATHERED.iter().map(|frames| f64::from(*frames)).zip(rates.iter().copied()).collect();
        curves.push(Curve { name: name.into(), points });
    }
    report.claims.push(Claim {
        what: "with TCP it gains almost nothing".into(),
        found: format!("{:+.1} % out, {:+.1} % in", gains[0], gains[1]),
        holds: gains[0] < 3.0 && gains[1] < 3.0,
        note: None,
    });
    report.claims.push(Claim {
        what: "with the checksum in hardware it would gain".into(),
        found: format!("{:+.1} % out", gains[2]),
        holds: gains[2] > 5.0,
        note: None,
    });
    report.plots.push(Plot {
        title: "Frames to an interrupt".into(),
        axes: ("frames", "Gb/s"),
        is_logarithmic: (true, false),
        curves,
        marks: Vec::new(),
    });
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The anchors of N-RAW and N-TCP.
    #[test]
    fn nodes_share_the_wire_and_tcp_is_bound_by_checksums() {
        let [raw, tcp] = [frames(), connections()].map(|report| report.expect("constants"));
        for number in &raw.numbers {
            assert!(number.error_percent().abs() < 1.0, "{number:?}");
        }
        for number in &tcp.numbers {
            assert!(number.error_percent().abs() < 12.0, "{number:?}");
        }
        assert!(raw.claims.iter().chain(&tcp.claims).all(|claim| claim.holds), "{:?}", tcp.claims);
    }

    #[test]
    fn coalescing_gains_nothing_with_checksums() {
        let report = coalescing().expect("constants");
        assert!(report.claims.iter().all(|claim| claim.holds), "{:?}", report.claims);
    }

    #[test]
    fn shares_that_are_equal_are_fair() {
        assert!((fairness(&[2.0, 2.0, 2.0]) - 1.0).abs() < 1e-9 && fairness(&[1.0, 3.0]) < 0.81);
    }
}
