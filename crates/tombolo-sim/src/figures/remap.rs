//! REMAP §V: transactions in databeats.

use super::{Claim, Class, Curve, Document, Figure, Header, Number, Plot, Report, Role, named};
use crate::platform::{Platform, PlatformError};
use tombolo_core::packetise::{Egress, Pacing};
use tombolo_wire::{BEAT_BYTES, BusAddress, BusTransaction};

const PLATFORM: &str = "remap-zcu102";
/// The longest burst of the bus.
const MOST_BEATS: u64 = 256;

/// Figures of the packetiser.
pub const FIGURES: [Figure; 2] = [
    Figure { id: "R-TAB1", document: Document::Remap, run: table },
    Figure { id: "R-FIG7", document: Document::Remap, run: utilisation },
];

/// Which way data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Write,
    Read,
}

/// Cycles of a burst, its address, its answer and the filling of the pipeline included, as the packetiser sends it.
fn cycles(platform: &Platform, pacing: Pacing, way: Way, beats: u64) -> Result<u64, PlatformError> {
    let sent = |burst: Vec<BusTransaction>| {
        let mut egress = Egress::new(1, 1, pacing);
        egress.push(0, &[0], burst);
        std::iter::from_fn(|| egress.poll(0)).count() as u64
    };
    let address = BusAddress::default();
    let data = |transaction: BusTransaction| (0..beats).map(move |_| transaction);
    let cycles = match way {
        Way::Write => {
            let written = BusTransaction::WriteData { data: 0, strobe: 0, is_last: false };
            let burst = std::iter::once(BusTransaction::WriteAddress(address)).chain(data(written));
            sent(burst.collect()) + sent(vec![BusTransaction::WriteAnswer { id: 0, response: 0 }])
        }
        Way::Read => {
            let read = BusTransaction::ReadData { id: 0, data: 0, response: 0, is_last: false };
            sent(vec![BusTransaction::ReadAddress(address)]) + sent(data(read).collect())
        }
    };
    let fill = match pacing {
        Pacing::Pipelined => platform.count("fill")?,
        Pacing::BackToBack => 0,
    };
    Ok(cycles + fill)
}

/// What Table I states.
fn stated(pacing: Pacing, way: Way, beats: u64) -> u64 {
    let answer = u64::from(way == Way::Write);
    match pacing {
        Pacing::BackToBack => 2 * beats + 1 + answer,
        Pacing::Pipelined if beats % 2 == 1 => 3 * beats.div_ceil(2) + 1 + answer,
        Pacing::Pipelined => 3 * beats / 2 + 2 + answer,
    }
}

fn report(id: &'static str, title: &'static str, section: &'static str) -> Report {
    Report::new(Header {
        id,
        document: Document::Remap,
        title,
        section,
        class: Class::Protocol,
        platform: PLATFORM,
        mechanism: "addresses are two databeats, data three, an answer one; two leave in a cycle, counted as the packetiser sends them",
    })
}

const KINDS: [(&str, Pacing); 2] = [("pipelined", Pacing::Pipelined), ("back to back", Pacing::BackToBack)];

fn table() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = report("R-TAB1", "Cycles of a burst", "REMAP Table I, Fig 5, 6");
    for (name, pacing) in KINDS {
        for way in [Way::Write, Way::Read] {
            let mut same = 0;
            for beats in 1..=MOST_BEATS {
                same += u64::from(cycles(&platform, pacing, way, beats)? == stated(pacing, way, beats));
            }
            report.claims.push(Claim {
                what: format!(
                    "{name} {way:?}s take the cycles of Table I for each burst of 1 to {MOST_BEATS} transfers"
                ),
                found: format!("{same} of {MOST_BEATS}"),
                holds: same == MOST_BEATS,
                note: None,
            });
        }
    }
    Ok(report)
}

/// Payload in a cycle of a stream, in percent of what it could carry: the mean of writes and reads.
fn percent(platform: &Platform, pacing: Pacing, beats: u64) -> Result<f64, PlatformError> {
    let stream_bytes = platform.count("stream_beats")? * 8;
    let of = |way| {
        let cycles = cycles(platform, pacing, way, beats)?;
        Ok::<_, PlatformError>((beats * BEAT_BYTES as u64) as f64 * 100.0 / (cycles * stream_bytes) as f64)
    };
    Ok(f64::midpoint(of(Way::Write)?, of(Way::Read)?))
}

fn utilisation() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = report("R-FIG7", "How much of a stream is payload", "REMAP §V, Fig 7");
    let [pipelined, apart] = [Pacing::Pipelined, Pacing::BackToBack];
    for (what, stated, found) in [
        ("pipelined, bursts of 1", 23.0, percent(&platform, pipelined, 1)?),
        ("back to back, bursts of 1", 29.0, percent(&platform, apart, 1)?),
        ("pipelined, bursts of 256", 66.0, percent(&platform, pipelined, 256)?),
        ("back to back, bursts of 256", 50.0, percent(&platform, apart, 256)?),
    ] {
        report.numbers.push(Number {
            what: what.into(),
            stated,
            found,
            unit: "%",
            role: Role::Predicted,
            note: None,
        });
    }
    let better = |beats| {
        Ok::<_, PlatformError>(
            (percent(&platform, pipelined, beats)? / percent(&platform, apart, beats)? - 1.0) * 100.0,
        )
    };
    report.numbers.push(Number {
        what: "pipelined is better, for a line of a cache".into(),
        stated: 12.0,
        found: better(4)?,
        unit: "%",
        role: Role::Predicted,
        note: None,
    });
    let few = [better(1)?, better(2)?, better(3)?];
    report.claims.push(Claim {
        what: "pipelining loses for one transfer, and gains from four on".into(),
        found: format!("{:+.1}, {:+.1}, {:+.1} % for 1 to 3", few[0], few[1], few[2]),
        holds: few[0] < 0.0 && better(4)? > 0.0 && better(MOST_BEATS)? > 0.0,
        note: None,
    });
    let bursts = (0..=8).map(|shift| 1_u64 << shift);
    let curves = KINDS.map(|(name, pacing)| {
        let points =
            bursts.clone().map(|beats| Ok((beats as f64 * 16.0, percent(&platform, pacing, beats)?)));
        Ok(Curve { name: name.into(), points: points.collect::<Result<_, PlatformError>>()? })
    });
    report.plots.push(Plot {
        title: "Payload in a stream of 128 bits".into(),
        axes: ("bytes", "%"),
        is_logarithmic: (true, false),
        curves: curves.into_iter().collect::<Result<_, PlatformError>>()?,
        marks: vec![(16.0, 23.0), (16.0, 29.0), (4_096.0, 66.0), (4_096.0, 50.0)],
    });
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_1_comes_out_exactly_and_figure_7_within_3_percent() {
        let [table, figure] = [table(), utilisation()].map(|report| report.expect("constants"));
        assert!(table.claims.iter().chain(&figure.claims).all(|claim| claim.holds), "{:?}", table.claims);
        assert!(
            figure.numbers.iter().all(|number| number.error_percent().abs() < 3.0),
            "{:?}",
            figure.numbers
        );
    }
}
