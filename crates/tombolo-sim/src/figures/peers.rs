//! QOS §5.1, 5.2: the engine beside the maker's DMA engine, and beside transfers that the kernel starts.

use super::qos::{KIND, iterate, mean_us, number, plot, sizes, times, transfer};
use super::{Claim, Curve, Document, Figure, Report, Role, Target, named};
use crate::boards::qfdb::{Optimisations, Setup, Starter, Wiring};
use crate::kernel::Span;
use crate::parts::{AccessKind, Input, Memory, MemoryConfig, Requester, RequesterConfig, World};
use crate::platform::{Platform, PlatformError};
use tombolo_core::rdma::Direction;

/// What is large enough that only its rate counts.
const LARGE_BYTES: u32 = 1 << 20;

/// The points that constants are fitted to.
pub const TARGETS: [Target; 5] = [
    Target {
        id: "Q-KERNEL.user",
        section: "QOS §5.2, Fig 5.8",
        stated: 8.4,
        unit: "Gb/s",
        measure: user_rate,
    },
    Target {
        id: "Q-KERNEL.small",
        section: "QOS §5.2, Fig 5.7",
        stated: 11.0,
        unit: "us",
        measure: kernel_us,
    },
    Target {
        id: "Q-KERNEL.large",
        section: "QOS §5.2, Fig 5.8",
        stated: 3.0,
        unit: "Gb/s",
        measure: kernel_rate,
    },
    Target {
        id: "Q-ZDMA.loop",
        section: "QOS §5.1, Fig 5.2",
        stated: 2.0,
        unit: "x",
        measure: ratio_in_loop_back,
    },
    Target {
        id: "Q-ZDMA.hop",
        section: "QOS §5.1, Fig 5.3",
        stated: 10.0,
        unit: "x",
        measure: ratio_over_hop,
    },
];

/// Figures of the engine beside others.
pub const FIGURES: [Figure; 2] = [
    Figure { id: "Q-ZDMA", document: Document::Qos, run: zdma },
    Figure { id: "Q-KERNEL", document: Document::Qos, run: kernel },
];

fn of(starter: Starter, wiring: Wiring) -> Setup {
    Setup { starter, wiring, ..Setup::default() }
}

fn write_us(platform: &Platform, setup: &Setup, size: u32) -> Result<f64, PlatformError> {
    Ok(mean_us(&iterate(platform, setup, transfer(Direction::Write, size))?))
}

fn rate(size: u32, us: f64) -> f64 {
    f64::from(size) * 8.0 / 1e3 / us
}

fn user_rate(platform: &Platform) -> Result<f64, PlatformError> {
    Ok(rate(LARGE_BYTES, write_us(platform, &Setup::default(), LARGE_BYTES)?))
}

fn kernel_us(platform: &Platform) -> Result<f64, PlatformError> {
    write_us(platform, &of(Starter::Kernel, Wiring::OneHop), 16)
}

fn kernel_rate(platform: &Platform) -> Result<f64, PlatformError> {
    Ok(rate(LARGE_BYTES, write_us(platform, &of(Starter::Kernel, Wiring::OneHop), LARGE_BYTES)?))
}

/// A copy by the maker's engine: packets that are read and written one by one, a few of them under way. In microseconds.
fn zdma_us(platform: &Platform, wiring: Wiring, size: u32) -> Result<f64, PlatformError> {
    let trip = platform.span(match wiring {
        Wiring::LoopBack => "zdma_loop",
        Wiring::OneHop => "zdma_hop",
    })?;
    let line_bytes: u32 = platform.number("zdma_line")?;
    let outstanding: u32 = platform.number("zdma_outstanding")?;
    let mut world = World::new(1);
    let memory = world.add(Memory::new(MemoryConfig { latency: trip, ..MemoryConfig::default() }));
    let engine = world.add(Requester::new(RequesterConfig {
        kind: AccessKind::Write,
        count: u64::from(size.div_ceil(line_bytes).max(1)),
        address: 0,
        length_bytes: line_bytes,
        spacing: Span::ZERO,
        outstanding_thousandths: Some(outstanding.saturating_mul(1_000)),
    }));
    let [there, back] = [memory, engine]
        .map(|part| world.add_route(&[Input::of(part)]).expect("a part that keeps what comes"));
    world.with(engine, |part: &mut Requester, here| part.start(here, there, back));
    world.run();
    let took = world.part::<Requester>(engine).expect("an engine").took().plus(platform.span("zdma_start")?);
    Ok(took.picos() as f64 / 1e6)
}

fn ratio_in_loop_back(platform: &Platform) -> Result<f64, PlatformError> {
    let ours = write_us(platform, &of(Starter::User, Wiring::LoopBack), LARGE_BYTES)?;
    Ok(zdma_us(platform, Wiring::LoopBack, LARGE_BYTES)? / ours)
}

fn ratio_over_hop(platform: &Platform) -> Result<f64, PlatformError> {
    Ok(zdma_us(platform, Wiring::OneHop, LARGE_BYTES)? / write_us(platform, &Setup::default(), LARGE_BYTES)?)
}

fn zdma() -> Result<Report, PlatformError> {
    let platform = named(super::qos::PLATFORM);
    let mut report = KIND.report(
        "Q-ZDMA",
        "Beside the maker's DMA engine",
        "QOS §5.1, Fig 5.1-5.4",
        "packets of 64 bytes, six of them without an answer, against blocks that fill the line",
    );
    for (title, wiring) in [("In loop-back", Wiring::LoopBack), ("Over one hop", Wiring::OneHop)] {
        let pairs: Vec<_> = sizes()
            .map(|size| {
                let ours = write_us(&platform, &of(Starter::User, wiring), size)?;
                Ok((size, ours, zdma_us(&platform, wiring, size)?))
            })
            .collect::<Result<_, PlatformError>>()?;
        match wiring {
            Wiring::LoopBack => {
                let first = pairs.iter().find(|(_, ours, theirs)| ours < theirs).map(|(size, ..)| *size);
                report.claims.push(Claim {
                    what: "in loop-back it is faster below about 16 KiB, and slower from there on".into(),
                    found: first.map_or_else(
                        || "never".into(),
                        |size| format!("the engine overtakes it at {size} bytes"),
                    ),
                    holds: first.is_some_and(|size| (8 << 10..=32 << 10).contains(&size)),
                    note: Some("the document's engine has eight channels, and what starting it takes is assumed: here one copy at a time is as quick up to 4 KiB only"),
                });
                let ratio = ratio_in_loop_back(&platform)?;
                report.numbers.push(number(
                    "engine's throughput in loop-back, times the other's",
                    2.0,
                    ratio,
                    "x",
                    Role::Fitted,
                ));
            }
            Wiring::OneHop => {
                let least =
                    pairs.iter().filter(|(size, ..)| *size > 1_024).map(|(_, ours, theirs)| theirs / ours);
                let least = least.fold(f64::INFINITY, f64::min);
                report.claims.push(Claim {
                    what: "over one hop its completion time is an order of magnitude longer beyond 1 KiB"
                        .into(),
                    found: format!("{least:.1} times as long at least"),
                    holds: least > 8.0,
                    note: Some("it is from 16 KiB on: below, a start and a round trip are most of what the engine takes"),
                });
                let ratio = ratio_over_hop(&platform)?;
                report.numbers.push(number(
                    "engine's throughput over one hop, times the other's: \"an order of magnitude\"",
                    10.0,
                    ratio,
                    "x",
                    Role::Fitted,
                ));
            }
        }
        let curve = |name: &str, of: &dyn Fn(&(u32, f64, f64)) -> f64| Curve {
            name: name.into(),
            points: pairs.iter().map(|pair| (f64::from(pair.0), of(pair))).collect(),
        };
        report.plots.push(plot(
            &format!("{title}: completion time"),
            "us",
            vec![curve("engine", &|pair| pair.1), curve("maker's DMA", &|pair| pair.2)],
            Vec::new(),
        ));
        report.plots.push(plot(
            &format!("{title}: throughput"),
            "Gb/s",
            vec![
                curve("engine", &|pair| rate(pair.0, pair.1)),
                curve("maker's DMA", &|pair| rate(pair.0, pair.2)),
            ],
            Vec::new(),
        ));
    }
    Ok(report)
}

fn kernel() -> Result<Report, PlatformError> {
    let platform = named(super::qos::PLATFORM);
    let mut report = KIND.report(
        "Q-KERNEL",
        "Beside transfers that the kernel starts",
        "QOS §5.2, Fig 5.7, 5.8",
        "a system call before each transfer; why its rate is bounded is not stated, so that is a constant",
    );
    for (what, stated, found, unit) in [
        ("a small write that the kernel starts", 11.0, kernel_us(&platform)?, "us"),
        ("large writes that the kernel starts", 3.0, kernel_rate(&platform)?, "Gb/s"),
        ("large writes that a program starts (over 8)", 8.4, user_rate(&platform)?, "Gb/s"),
    ] {
        report.numbers.push(number(what, stated, found, unit, Role::Fitted));
    }
    let user = times(&platform, Direction::Write, Optimisations::ALL)?;
    let kernel = user
        .iter()
        .map(|(size, _)| Ok((*size, write_us(&platform, &of(Starter::Kernel, Wiring::OneHop), *size)?)))
        .collect::<Result<Vec<_>, PlatformError>>()?;
    report.claims.push(Claim {
        what: "what a program starts takes less time at all sizes".into(),
        found: format!("{:.1} against {:.1} us at 16 bytes", user[0].1, kernel[0].1),
        holds: user.iter().zip(&kernel).all(|((_, user), (_, kernel))| user < kernel),
        note: None,
    });
    let curves = |of: &dyn Fn(u32, f64) -> f64| {
        [("program", &user), ("kernel", &kernel)].map(|(name, times)| Curve {
            name: name.into(),
            points: times.iter().map(|(size, us)| (f64::from(*size), of(*size, *us))).collect(),
        })
    };
    report.plots.push(plot("Completion time", "us", curves(&|_, us| us).into(), vec![(16.0, 11.0)]));
    report.plots.push(plot("Throughput", "Gb/s", curves(&rate).into(), Vec::new()));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_document_says_of_others_holds_or_is_explained() {
        for report in [zdma(), kernel()] {
            let report = report.expect("a board");
            let is_explained = |claim: &Claim| claim.holds || claim.note.is_some();
            assert!(report.claims.iter().all(is_explained), "{:?}", report.claims);
            assert!(
                report.numbers.iter().all(|number| number.error_percent().abs() < 1.0),
                "{:?}",
                report.numbers
            );
        }
    }
}
