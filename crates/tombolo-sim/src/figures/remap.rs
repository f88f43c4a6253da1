//! REMAP §V and VII: transactions in databeats, and memory behind them.

use super::{Claim, Class, Curve, Document, Figure, Kind, Number, Plot, Report, Role, Target, named};
use crate::boards::zcu102::{LINE_BYTES, Place, Setup, machine};
use crate::kernel::Span;
use crate::parts::AccessKind;
use crate::platform::{Platform, PlatformError};
use tombolo_core::packetise::{Egress, Pacing};
use tombolo_wire::{BEAT_BYTES, BusAddress, BusTransaction};

const PLATFORM: &str = "remap-zcu102";
/// What figures of this file have in common.
const KIND: Kind = Kind { document: Document::Remap, class: Class::Protocol, platform: PLATFORM };
/// The longest burst of the bus.
const MOST_BEATS: u64 = 256;

const fn target(
    id: &'static str,
    section: &'static str,
    stated: f64,
    unit: &'static str,
    measure: fn(&Platform) -> Result<f64, PlatformError>,
) -> Target {
    Target { id, section, stated, unit, measure }
}

/// The points that constants of `remap-zcu102` are fitted to.
pub const TARGETS: [Target; 4] = [
    target("R-LAT.loop", "REMAP §VII, Fig 13", 323.0, "ns", |platform| latency_ns(platform, true)),
    target("R-LAT.remote", "REMAP §VII, Fig 13", 748.0, "ns", |platform| latency_ns(platform, false)),
    target("R-STREAM.pl_ddr", "REMAP §VII, Fig 12", 2_000.0, "MB/s", |platform| {
        stream(platform, [Place::Local; 4], false)
    }),
    target("R-STREAM.remote", "REMAP §VII, Fig 12", 1_000.0, "MB/s", |platform| {
        stream(platform, [Place::Remote; 4], false)
    }),
];

/// Figures of the packetiser, and of memory behind it.
pub const FIGURES: [Figure; 5] = [
    Figure { id: "R-TAB1", document: Document::Remap, run: table },
    Figure { id: "R-FIG7", document: Document::Remap, run: utilisation },
    Figure { id: "R-LAT", document: Document::Remap, run: latency },
    Figure { id: "R-STREAM", document: Document::Remap, run: throughput },
    Figure { id: "R-MANY", document: Document::Remap, run: many },
];

/// Lines of which the mean latency is taken.
const LINES: u64 = 500;
/// How long cores read to find a rate.
const WHILE: Span = Span::from_ns(300_000);

/// One core that reads lines of remote memory, one after the other.
const ONE_CORE: Setup<'static> = Setup {
    cores: &[Place::Remote],
    kind: AccessKind::Read,
    count: LINES,
    length_bytes: LINE_BYTES,
    outstanding_thousandths: 1_000,
    is_loop_back: false,
    interfaces: 1,
    links: 1,
    controllers: 1,
    service: None,
};

/// What an access takes that is alone, in nanoseconds.
fn alone_ns(platform: &Platform, setup: &Setup<'_>) -> Result<f64, PlatformError> {
    let mut machine = machine(platform, setup)?;
    machine.start();
    machine.world.run();
    let latency = machine.latency().filter(|_| machine.answered() == setup.count);
    latency
        .map(|latency| latency.picos() as f64 / 1e3)
        .ok_or_else(|| PlatformError::Endless { platform: platform.name().into() })
}

fn latency_ns(platform: &Platform, is_loop_back: bool) -> Result<f64, PlatformError> {
    alone_ns(platform, &Setup { is_loop_back, ..ONE_CORE })
}

/// What four cores read, in MB/s, with the lines of the platform under way.
fn stream(platform: &Platform, cores: [Place; 4], is_loop_back: bool) -> Result<f64, PlatformError> {
    let lines: u32 = platform.number("lines")?;
    let (outstanding_thousandths, count) = (lines / cores.len() as u32, u64::from(u32::MAX));
    let setup = Setup { cores: &cores, count, outstanding_thousandths, is_loop_back, ..ONE_CORE };
    let mut machine = machine(platform, &setup)?;
    machine.start();
    Ok(machine.rate_for(WHILE))
}

/// Which way data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Write,
    Read,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Write => "writes",
            Self::Read => "reads",
        }
    }
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

const BY_CYCLES: &str = "addresses are two databeats, data three, an answer one; two leave in a cycle, counted as the packetiser sends them";
const BY_BLOCKS: &str = "lines go as databeats through both blocks to a memory with one queue; four cores have a bounded number of lines under way, and a line's time in the memory is exponentially distributed, as only its mean is known. The cores read: the benchmark of the document writes as well";

const KINDS: [(&str, Pacing); 2] = [("pipelined", Pacing::Pipelined), ("back to back", Pacing::BackToBack)];

fn table() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report("R-TAB1", "Cycles of a burst", "REMAP Table I, Fig 5, 6", BY_CYCLES);
    for (name, pacing) in KINDS {
        for way in [Way::Write, Way::Read] {
            let mut same = 0;
            for beats in 1..=MOST_BEATS {
                same += u64::from(cycles(&platform, pacing, way, beats)? == stated(pacing, way, beats));
            }
            report.claims.push(Claim {
                what: format!(
                    "{name} {} take the cycles of Table I for each burst of 1 to {MOST_BEATS} transfers",
                    way.name()
                ),
                found: format!("{same} of {MOST_BEATS}"),
                holds: same == MOST_BEATS,
                note: None,
            });
        }
    }
    // Fig 6: an address and eight transfers, without the answer.
    const BEATS: u64 = 8;
    for ((name, pacing), (cycles_stated, percent_stated)) in
        KINDS.into_iter().zip([(14.0, 57.1), (17.0, 47.0)])
    {
        let found = cycles(&platform, pacing, Way::Write, BEATS)? - 1;
        let payload = (BEATS * BEAT_BYTES as u64) as f64 * 100.0;
        let percent = payload / (found * platform.count("stream_beats")? * 8) as f64;
        let what = format!("{name}: an address and {BEATS} transfers");
        report.numbers.push(Number::of(&what, cycles_stated, found as f64, "cycles", Role::Shown, None));
        report.numbers.push(Number::of(
            format!("{what}, payload"),
            percent_stated,
            percent,
            "%",
            Role::Shown,
            None,
        ));
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
    let mut report = KIND.report("R-FIG7", "How much of a stream is payload", "REMAP §V, Fig 7", BY_CYCLES);
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

fn latency() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report =
        KIND.report("R-LAT", "A line of remote memory", "REMAP §VII, Fig 13, Table II", BY_BLOCKS);
    let (near, far) = (latency_ns(&platform, true)?, latency_ns(&platform, false)?);
    report.numbers = vec![
        Number::of("blocks on one chip", 323.0, near, "ns", Role::Fitted, None),
        Number::of("two boards", 748.0, far, "ns", Role::Fitted, None),
        Number::of(
            "blocks on one chip, and 50 ns between nodes",
            373.0,
            near + 50.0,
            "ns",
            Role::Shown,
            None,
        ),
    ];
    let mut curves = Vec::new();
    for (name, is_loop_back) in [("one chip", true), ("two boards", false)] {
        for kind in [AccessKind::Read, AccessKind::Write] {
            let points = (6..=12).map(|shift| {
                let length_bytes = 1_u32 << shift;
                let setup = Setup { is_loop_back, kind, length_bytes, ..ONE_CORE };
                Ok((f64::from(length_bytes), alone_ns(&platform, &setup)?))
            });
            let points = points.collect::<Result<_, PlatformError>>()?;
            curves.push(Curve {
                name: format!("{name}, {}", if kind == AccessKind::Read { "read" } else { "written" }),
                points,
            });
        }
    }
    report.plots.push(Plot {
        title: "Bursts by size".into(),
        axes: ("bytes", "ns"),
        is_logarithmic: (true, false),
        curves,
        marks: vec![(64.0, 323.0), (64.0, 748.0)],
    });
    Ok(report)
}

fn throughput() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report("R-STREAM", "What four cores read", "REMAP §VII, Fig 12", BY_BLOCKS);
    let (local, remote) = (Place::Local, Place::Remote);
    let direct = stream(&platform, [local; 4], false)?;
    let near = stream(&platform, [remote; 4], true)?;
    let far = stream(&platform, [remote; 4], false)?;
    // Two instances of the benchmark in each memory: cores are there half of their time.
    let both = stream(&platform, [local, remote, local, remote], false)?;
    // 47 % of a link of 20 Gb/s with its coding.
    let (line, of_line) = (platform.count("coding_line")? as f64, platform.count("coding_data")? as f64);
    let estimate = 20_000.0 / 8.0 * of_line / line * 0.47;
    let varies = "how much a line's time in the memory varies is assumed, and is all that makes this slower than the memory itself: 1980 if it did not";
    report.numbers = vec![
        Number::of("pl_ddr", 2_000.0, direct, "MB/s", Role::Fitted, None),
        Number::of("128b_p_l", 1_663.0, near, "MB/s", Role::Predicted, Some(varies)),
        Number::of("128b_p_r", 1_000.0, far, "MB/s", Role::Fitted, None),
        Number::of("128b_p_l_r", 2_400.0, both, "MB/s", Role::Predicted, None),
        Number::of("the document's estimate for 128b_p_r", 1_139.0, estimate, "MB/s", Role::Shown, None),
    ];
    report.claims.push(Claim {
        what: "both memories together give more than the local one alone, and the blocks without a link less"
            .into(),
        found: format!("{both:.0}, {direct:.0} and {near:.0} MB/s"),
        holds: both > direct && direct > near,
        note: None,
    });
    let names = ["pl_ddr", "128b_p_l", "128b_p_r", "128b_p_l_r"];
    let found = [direct, near, far, both];
    report.plots.push(Plot {
        title: names.join(", "),
        axes: ("configuration", "MB/s"),
        is_logarithmic: (false, false),
        curves: vec![Curve { name: "model".into(), points: (1..).map(f64::from).zip(found).collect() }],
        marks: (1..).map(f64::from).zip([2_000.0, 1_663.0, 1_000.0, 2_400.0]).collect(),
    });
    Ok(report)
}

/// The rate of a link, or of several: nothing else bounds it.
fn rate_of_links(platform: &Platform, links: u8) -> Result<f64, PlatformError> {
    let setup = Setup {
        cores: &[Place::Remote; 4],
        count: u32::MAX.into(),
        outstanding_thousandths: 64_000,
        links,
        interfaces: 2,
        controllers: 2,
        service: Some(Span::from_ns(1)),
        ..ONE_CORE
    };
    let mut machine = machine(platform, &setup)?;
    machine.start();
    Ok(machine.rate_for(WHILE))
}

fn many() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "R-MANY",
        "Several interfaces, links and memories",
        "REMAP §III, Fig 2 to 4",
        "bursts of each interface in turn, on the links to a memory block in turn",
    );
    let (mut whole, mut all) = (0, 0);
    for (interfaces, links, controllers) in
        [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2), (3, 4, 2), (4, 3, 4)]
    {
        for kind in [AccessKind::Read, AccessKind::Write] {
            let cores = [Place::Remote; 4];
            let setup = Setup {
                cores: &cores,
                kind,
                outstanding_thousandths: 8_000,
                interfaces,
                links,
                controllers,
                ..ONE_CORE
            };
            let mut machine = machine(&platform, &setup)?;
            machine.start();
            machine.world.run();
            let is_whole = machine.answered() == 4 * LINES && machine.world.stuck().is_empty();
            (whole, all) = (whole + usize::from(is_whole), all + 1);
        }
    }
    report.claims.push(Claim {
        what: "every access is made and answered, whatever the numbers of interfaces, links and memories"
            .into(),
        found: format!("in {whole} of {all} arrangements"),
        holds: whole == all,
        note: None,
    });
    let rates = [1, 2, 4].map(|links| rate_of_links(&platform, links));
    let [one, two, four] = rates;
    let (one, two, four) = (one?, two?, four?);
    report.claims.push(Claim {
        what: "two links to one memory block give twice one".into(),
        found: format!("{:.2} times", two / one),
        holds: (two / one - 2.0).abs() < 0.1,
        note: None,
    });
    report.plots.push(Plot {
        title: "Lines by links".into(),
        axes: ("links", "MB/s"),
        is_logarithmic: (false, false),
        curves: vec![Curve { name: "reads".into(), points: vec![(1.0, one), (2.0, two), (4.0, four)] }],
        marks: Vec::new(),
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
