//! `tombolo-bench paging`: what an access to far memory costs, beside what it could cost. Every
//! measurement runs in turn, several times over, so that a change of the machine's speed meets all of
//! them alike.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tombolo_app::child::{STOP, interrupted};
use tombolo_app::scratch::Scratch;
use tombolo_app::size::Size;
use tombolo_host::uffd::Userfaultfd;
use tombolo_host::{process, stops};

use crate::summary::Summary;
use crate::{Failure, print_json, result};
use lender::Lender;
use zram::KernelSwap;

mod contents;
pub mod echo;
pub mod floor;
mod lender;
pub mod probe;
mod table;
mod zram;

/// Arguments of `tombolo-bench paging`.
#[derive(Args)]
pub struct Arguments {
    /// The `tombolo` to measure.
    #[arg(long)]
    binary: PathBuf,
    /// Only this link; both unless given.
    #[arg(long)]
    link: Option<LinkKind>,
    /// Passes over all measurements.
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Which link to the lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LinkKind {
    /// Shared memory.
    Shm,
    /// UDP over loopback.
    Udp,
}

const MIB: u64 = 1 << 20;
/// The longest that one run of the measured program may take: many times what it takes on a slow machine.
const PROBE_LIMIT: Duration = Duration::from_secs(300);
/// Resident limit while faults are measured; the area is twice that.
const FAULTS_LOCAL: u64 = 64 * MIB;
const FAULTS: usize = 24_000;
const READS_LOCAL: u64 = 64 * MIB;
const READS_AREA: u64 = 256 * MIB;
const READS: usize = 200_000;

/// Rows of the table, in its order. The serialized names are those of the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Row {
    /// Bare userfaultfd.
    Floor,
    /// A fault with the page in a lender's shared memory.
    FaultShm,
    /// A fault with the page at a lender over UDP.
    FaultUdp,
    /// A bare UDP round trip.
    RoundTrip,
    /// Random reads over shm.
    ReadsShm,
    /// Random reads with swap on zram.
    ReadsZram,
    /// As `ReadsShm`, half-compressible pages.
    ReadsShmHalf,
    /// As `ReadsZram`, half-compressible pages.
    ReadsZramHalf,
    /// As `ReadsShm`, half of the accesses write.
    MixedShm,
    /// As `ReadsZram`, half of the accesses write.
    MixedZram,
    /// As `FaultShm`, each page at two lenders.
    FaultShmTwice,
    /// As `FaultUdp`, each page at two lenders.
    FaultUdpTwice,
    /// Pages written one after the other, of which most are evicted, over shm.
    WritesShm,
    /// As `WritesShm`, each page at two lenders.
    WritesShmTwice,
    /// As `WritesShm`, over UDP.
    WritesUdp,
    /// As `WritesUdp`, each page at two lenders.
    WritesUdpTwice,
}

impl Row {
    /// What a reader of the table needs to know.
    pub fn title(self) -> &'static str {
        match self {
            Self::Floor => "floor: bare userfaultfd, 4 KiB copied",
            Self::FaultShm => "Tombolo fault, shm",
            Self::FaultUdp => "Tombolo fault, UDP",
            Self::RoundTrip => "bare UDP round trip, 4 KiB back",
            Self::ReadsShm => "random reads, Tombolo shm",
            Self::ReadsZram => "random reads, kernel swap on zram",
            Self::ReadsShmHalf => "  half-compressible, Tombolo shm",
            Self::ReadsZramHalf => "  half-compressible, swap on zram",
            Self::MixedShm => "random reads and writes, Tombolo shm",
            Self::MixedZram => "random reads and writes, swap on zram",
            Self::FaultShmTwice => "Tombolo fault, shm, two copies",
            Self::FaultUdpTwice => "Tombolo fault, UDP, two copies",
            Self::WritesShm => "pages written and evicted, shm",
            Self::WritesShmTwice => "pages written and evicted, shm, two copies",
            Self::WritesUdp => "pages written and evicted, UDP",
            Self::WritesUdpTwice => "pages written and evicted, UDP, two copies",
        }
    }
}

/// A ratio and what it should be.
#[derive(Debug, Serialize)]
pub struct Target {
    /// What is divided by what.
    pub name: &'static str,
    /// The ratio measured.
    pub ratio: f64,
    /// The most it should be.
    pub target: f64,
    /// Whether it is.
    pub reached: bool,
}

/// Everything that was found out.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Version of the kernel.
    pub kernel: String,
    /// Processors of the machine.
    pub processors: usize,
    /// Passes of each measurement.
    pub passes: usize,
    /// Resident limit of the random reads, in bytes.
    pub reads_local_bytes: u64,
    /// Size of that area, in bytes.
    pub reads_area_bytes: u64,
    /// How zram compresses.
    pub zram_algorithm: Option<String>,
    /// What the cgroup's limit allows beside the area, in bytes.
    pub cgroup_base_bytes: Option<u64>,
    /// The figures.
    pub rows: BTreeMap<Row, Summary>,
    /// The targets.
    pub targets: Vec<Target>,
    /// What could not be measured, and why.
    pub not_measured: Vec<String>,
}

/// The measurements in progress.
struct Bench {
    binary: PathBuf,
    scratch: Scratch,
    pass_number: usize,
    passes_wanted: usize,
    processor: usize,
    links: Vec<LinkKind>,
    swap: Option<KernelSwap>,
    passes: BTreeMap<Row, Vec<Summary>>,
    /// Why passes have no figure, the first reason of each row.
    failures: BTreeMap<Row, (usize, String)>,
}

fn probe_arguments(kind: &str, area: u64, local: u64, count: usize, half: bool) -> Vec<String> {
    let mut arguments = vec![kind.to_owned()];
    for (name, value) in [("--area", area), ("--local", local), ("--count", count as u64)] {
        arguments.extend([name.to_owned(), value.to_string()]);
    }
    if half {
        arguments.push("--half".to_owned());
    }
    arguments
}

/// Random accesses: how the probe calls them, whether pages are half-compressible, and their rows.
const ACCESSES: [(&str, bool, Row, Row); 3] = [
    ("reads", false, Row::ReadsShm, Row::ReadsZram),
    ("reads", true, Row::ReadsShmHalf, Row::ReadsZramHalf),
    ("mixed", false, Row::MixedShm, Row::MixedZram),
];

impl Bench {
    fn note(
        &mut self,
        row: Row,
        measure: impl FnOnce(&Self) -> Result<Summary, Failure>,
    ) -> Result<(), Failure> {
        // An interrupt ends the bench between two measurements, and zram is taken down.
        if interrupted() {
            return Err(Failure::new("interrupted"));
        }
        eprintln!("pass {} of {}: {}", self.pass_number, self.passes_wanted, row.title().trim());
        match measure(self) {
            Ok(summary) => self.passes.entry(row).or_default().push(summary),
            // The figures of the other rows are as good as before.
            Err(Failure(reason)) => self.failures.entry(row).or_insert((0, reason)).0 += 1,
        }
        Ok(())
    }

    /// Lines for the rows that failed.
    fn failures(&self) -> impl Iterator<Item = String> {
        self.failures.iter().map(|(row, (count, reason))| {
            format!("{}: {count} of {} passes failed: {reason}", row.title().trim(), self.passes_wanted)
        })
    }

    fn tombolo(
        &self,
        link: LinkKind,
        local: u64,
        area: u64,
        arguments: &[String],
    ) -> Result<Summary, Failure> {
        self.copied(1, link, local, area, arguments)
    }

    /// `tombolo run` of the probe with `copies` copies of each page, at as many lenders.
    fn copied(
        &self,
        copies: usize,
        link: LinkKind,
        local: u64,
        area: u64,
        arguments: &[String],
    ) -> Result<Summary, Failure> {
        // A quarter more than the area, for what else the program allocates.
        let remote = area + area / 4;
        let names = ["lender", "second"];
        let lenders: Vec<Lender> = names
            .iter()
            .take(copies)
            .map(|name| Lender::start(&self.binary, link, &self.scratch.file(name), remote + 64 * MIB))
            .collect::<Result<_, _>>()?;
        result(&mut lender::probe(&lenders, local, remote, arguments)?, PROBE_LIMIT)
    }

    /// What two copies cost, beside one.
    fn copies(&mut self, faults: &[String]) -> Result<(), Failure> {
        let writes = probe_arguments("writes", READS_AREA, READS_LOCAL, 0, false);
        for (link, once, twice, fault) in [
            (LinkKind::Shm, Row::WritesShm, Row::WritesShmTwice, Row::FaultShmTwice),
            (LinkKind::Udp, Row::WritesUdp, Row::WritesUdpTwice, Row::FaultUdpTwice),
        ] {
            if self.links.contains(&link) {
                self.note(fault, |bench| bench.copied(2, link, FAULTS_LOCAL, FAULTS_LOCAL * 2, faults))?;
                self.note(once, |bench| bench.copied(1, link, READS_LOCAL, READS_AREA, &writes))?;
                self.note(twice, |bench| bench.copied(2, link, READS_LOCAL, READS_AREA, &writes))?;
            }
        }
        Ok(())
    }

    fn pass(&mut self) -> Result<(), Failure> {
        let faults = probe_arguments("faults", FAULTS_LOCAL * 2, FAULTS_LOCAL, FAULTS, false);
        let (shm, udp) = (self.links.contains(&LinkKind::Shm), self.links.contains(&LinkKind::Udp));
        self.note(Row::Floor, |bench| floor::measure(&bench.scratch.file("floor"), bench.processor))?;
        if shm {
            self.note(Row::FaultShm, |bench| {
                bench.tombolo(LinkKind::Shm, FAULTS_LOCAL, FAULTS_LOCAL * 2, &faults)
            })?;
        }
        if udp {
            self.note(Row::RoundTrip, |bench| echo::measure(bench.processor))?;
            self.note(Row::FaultUdp, |bench| {
                bench.tombolo(LinkKind::Udp, FAULTS_LOCAL, FAULTS_LOCAL * 2, &faults)
            })?;
        }
        for (kind, half, ours, theirs) in ACCESSES {
            let arguments = probe_arguments(kind, READS_AREA, READS_LOCAL, READS, half);
            if shm {
                self.note(ours, |bench| bench.tombolo(LinkKind::Shm, READS_LOCAL, READS_AREA, &arguments))?;
            }
            if shm && self.swap.is_some() {
                self.note(theirs, |bench| match &bench.swap {
                    Some(swap) => swap.probe(READS_LOCAL, &arguments),
                    None => Err(Failure::new("no swap")),
                })?;
            }
        }
        self.copies(&faults)
    }
}

/// Ratios of what was measured. Faults compare medians; whole reads compare
/// means, because part of them are hits and a program waits for the sum.
fn targets(rows: &BTreeMap<Row, Summary>) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut add = |name, above: Option<f64>, below: Option<f64>, target: f64| {
        if let (Some(above), Some(below)) = (above, below) {
            let ratio = above / below;
            targets.push(Target { name, ratio, target, reached: ratio <= target });
        }
    };
    let median = |row| rows.get(&row).map(|summary| summary.median_ns);
    let mean = |row| rows.get(&row).map(|summary| summary.mean_ns);
    let over_udp = median(Row::Floor).zip(median(Row::RoundTrip)).map(|(floor, trip)| floor + trip);
    add("fault over shm / floor", median(Row::FaultShm), median(Row::Floor), 1.1);
    add("fault over UDP / (floor + round trip)", median(Row::FaultUdp), over_udp, 1.5);
    add("random reads over shm / zram", mean(Row::ReadsShm), mean(Row::ReadsZram), 0.72);
    add("  half-compressible pages", mean(Row::ReadsShmHalf), mean(Row::ReadsZramHalf), 0.72);
    add("random reads and writes over shm / zram", mean(Row::MixedShm), mean(Row::MixedZram), 0.9);
    add("fault over shm, two copies / one", median(Row::FaultShmTwice), median(Row::FaultShm), 1.05);
    add("fault over UDP, two copies / one", median(Row::FaultUdpTwice), median(Row::FaultUdp), 1.05);
    add("evictions over shm, two copies / one", mean(Row::WritesShmTwice), mean(Row::WritesShm), 1.3);
    add("evictions over UDP, two copies / one", mean(Row::WritesUdpTwice), mean(Row::WritesUdp), 2.1);
    targets
}

/// Measures and prints. Fails in the end if a measurement failed that was not left out from the start.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.passes == 0 {
        return Err(Failure::new("at least one pass is needed"));
    }
    // Without it there is nothing to measure.
    Userfaultfd::for_this_process().map_err(|error| {
        Failure::new(format!("no userfaultfd ({error}); `tombolo doctor` says what to do"))
    })?;
    stops::stop_on_signals(&STOP);
    let links = arguments.link.map_or_else(|| vec![LinkKind::Shm, LinkKind::Udp], |link| vec![link]);
    let processors = process::processors();
    let processor = *processors.first().ok_or_else(|| Failure::new("no processor to run on"))?;
    let mut not_measured = Vec::new();
    let mut swap = None;
    if links.contains(&LinkKind::Shm) {
        match KernelSwap::new(READS_AREA, &probe_arguments("reads", READS_AREA, READS_AREA, READS, false)) {
            Ok(made) => swap = Some(made),
            Err(failure) => not_measured.push(format!("kernel swap on zram: {}", failure.0)),
        }
    } else {
        not_measured
            .push("shm, and random reads beside kernel swap on zram: only --link udp was asked for".into());
    }
    if !links.contains(&LinkKind::Udp) {
        not_measured.push("UDP: only --link shm was asked for".into());
    }
    if processors.len() < 2 {
        not_measured.push("nothing ran on a second processor: there is none".into());
    }
    let mut bench = Bench {
        scratch: Scratch::new("bench-paging")?,
        binary: arguments.binary.clone(),
        pass_number: 0,
        passes_wanted: arguments.passes,
        processor,
        links,
        swap,
        passes: BTreeMap::new(),
        failures: BTreeMap::new(),
    };
    for pass in 1..=arguments.passes {
        bench.pass_number = pass;
        bench.pass()?;
    }
    not_measured.extend(bench.failures());

    let rows: BTreeMap<Row, Summary> =
        bench.passes.iter().filter_map(|(&row, passes)| Some((row, Summary::of_passes(passes)?))).collect();
    let outcome = Outcome {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        processors: processors.len(),
        passes: arguments.passes,
        reads_local_bytes: READS_LOCAL,
        reads_area_bytes: READS_AREA,
        zram_algorithm: bench.swap.as_ref().map(KernelSwap::algorithm),
        cgroup_base_bytes: bench.swap.as_ref().map(KernelSwap::base_bytes),
        targets: targets(&rows),
        rows,
        not_measured,
    };
    if arguments.json {
        print_json(&outcome)?;
    } else {
        table::lines(&outcome).iter().for_each(|line| println!("{line}"));
    }
    match bench.failures.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} measurements failed"))),
    }
}

impl Outcome {
    /// What was measured, in a line.
    pub fn heading(&self) -> String {
        format!(
            "paging in pages of 4 KiB: {} processors, Linux {}, medians of {} passes; random reads in {} with {} local",
            self.processors,
            self.kernel,
            self.passes,
            Size(self.reads_area_bytes),
            Size(self.reads_local_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_measurement_leaves_the_others_their_figures() {
        let mut bench = Bench {
            binary: PathBuf::new(),
            scratch: Scratch::new("bench-test").unwrap(),
            pass_number: 1,
            passes_wanted: 3,
            processor: 0,
            links: Vec::new(),
            swap: None,
            passes: BTreeMap::new(),
            failures: BTreeMap::new(),
        };
        let summary = Summary::of(vec![1, 2, 3]).unwrap();
        bench.note(Row::Floor, |_| Ok(summary)).unwrap();
        bench.note(Row::ReadsZram, |_| Err(Failure::new("killed"))).unwrap();
        bench.note(Row::ReadsZram, |_| Ok(summary)).unwrap();
        bench.note(Row::ReadsShm, |_| Ok(summary)).unwrap();
        assert_eq!(bench.passes.len(), 3);
        let lines: Vec<String> = bench.failures().collect();
        assert_eq!(lines, ["random reads, kernel swap on zram: 1 of 3 passes failed: killed"]);
    }
}
