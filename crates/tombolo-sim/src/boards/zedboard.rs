//! The first prototype of MICRO: a processor that loads and stores words of a remote memory, and a DMA engine that copies.

use crate::kernel::{PartId, Rate, Span};
use crate::parts::{
    AccessKind, Dma, DmaConfig, DmaPath, INWARD, INWARD_ANSWER, Input, Link, LinkConfig, Memory,
    MemoryConfig, OUTWARD, OUTWARD_ANSWER, Probe, Requester, RequesterConfig, RouteId, Snoop, SnoopSlots,
    World,
};
use crate::platform::{Platform, PlatformError};

/// Words are of 4 bytes.
pub const WORD_BYTES: u32 = 4;

/// A processor that reads or writes remote words.
#[derive(Debug)]
pub struct Words {
    world: World,
    processor: PartId,
    /// There and back.
    ways: (RouteId, RouteId),
    /// What lies between, by name.
    stages: Vec<(PartId, &'static str)>,
}

/// The time that a request takes one way, of a constant that counts half cycles there and back.
fn one_way(platform: &Platform, half_cycles: u64) -> Result<Span, PlatformError> {
    Ok(Span::from_picos(platform.span("cycle")?.times(half_cycles).picos() / 4))
}

/// A processor that reads or writes `count` words of the other node's memory, one behind the other.
///
/// # Errors
/// [`PlatformError`], if the platform lacks a constant.
pub fn words(
    platform: &Platform,
    kind: AccessKind,
    count: u64,
    spacing: Span,
    outstanding_thousandths: Option<u32>,
) -> Result<Words, PlatformError> {
    let mut world = World::new(1);
    let (seen, cable) = (
        platform.count(if kind == AccessKind::Read { "read_cycles" } else { "write_cycles" })?,
        platform.count("cable_half_cycles")?,
    );
    let mut stages = Vec::new();
    let mut stage = |name, latency| {
        let part = world.add(Link::new(LinkConfig { latency, ..LinkConfig::default() }));
        stages.push((part, name));
        Input::of(part)
    };
    // The processor's cycles are those of a read and a write together: half of them are of one.
    let processor_side = one_way(platform, platform.count("processor_cycles")?)?;
    let cable_side = one_way(platform, cable)?;
    // What is neither the processor's side nor the cable: conversion of protocols, and the port of the memory.
    let rest = one_way(platform, seen.saturating_mul(2).saturating_sub(cable))?;
    // How much of it is on which side of the cable is not stated.
    let conversion = Span::from_picos(rest.picos() / 2);
    let port = Span::from_picos(rest.picos() - conversion.picos());
    let mut way =
        [("processor", processor_side), ("conversion", conversion), ("cable", cable_side), ("port", port)];
    let there = way.map(|(name, latency)| stage(name, latency));
    way.reverse();
    let back = way.map(|(name, latency)| stage(name, latency));
    let memory = Input::of(world.add(Memory::new(MemoryConfig::default())));
    let config = RequesterConfig {
        kind,
        count,
        address: 0,
        length_bytes: WORD_BYTES,
        spacing,
        outstanding_thousandths,
    };
    let processor = world.add(Requester::new(config));
    let there = world.add_route(&[&there[..], &[memory]].concat()).expect("lines and a memory");
    let back =
        world.add_route(&[&back[..], &[Input::of(processor)]].concat()).expect("lines and a processor");
    Ok(Words { world, processor, ways: (there, back), stages })
}

impl Words {
    /// All of the accesses: how long they take.
    pub fn run(&mut self) -> Span {
        let (there, back) = self.ways;
        self.world.with(self.processor, |part: &mut Requester, here| part.start(here, there, back));
        self.world.run();
        self.world.part::<Requester>(self.processor).expect("a processor").took()
    }

    /// The same, and what is passed meanwhile, in order, and how long each takes.
    pub fn run_in_stages(&mut self) -> (Span, Vec<(&'static str, Span)>) {
        self.world.keep_timeline();
        let took = self.run();
        let name_of = |part| self.stages.iter().find(|(stage, _)| *stage == part).map(|(_, name)| *name);
        let passed = self.world.timeline().iter();
        let passed = passed.filter_map(|slice| Some((name_of(slice.part)?, slice.to.since(slice.from))));
        (took, passed.collect())
    }
}

/// A port of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Coherent.
    Acp,
    /// High-performance.
    Hp,
}

/// Whose memory it is, seen from the node of the DMA engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The engine's node's.
    Local,
    /// The other's.
    Remote,
}

impl Port {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Acp => "ACP",
            Self::Hp => "HP",
        }
    }
}

impl Side {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

/// One end of a copy.
pub type End = (Side, Port);

/// A DMA engine that copies between two ends.
#[derive(Debug)]
pub struct Copier {
    /// The world that it is in.
    pub world: World,
    /// The engine.
    pub dma: PartId,
    /// Who asks for copies, and is told.
    pub asker: PartId,
}

/// How fast an end is read while another is written.
fn read_rate(platform: &Platform, (side, port): End, to: Side) -> Result<Rate, PlatformError> {
    let rate = platform.rate(match (side, port) {
        (Side::Local, Port::Acp) => "read_local_acp",
        (Side::Local, Port::Hp) => "read_local_hp",
        (Side::Remote, Port::Acp) => "read_remote_acp",
        (Side::Remote, Port::Hp) => "read_remote_hp",
    })?;
    if port == Port::Hp || side != to {
        return Ok(rate);
    }
    platform.coded(rate, "snoop_share", 1_000)
}

fn write_rate(platform: &Platform, (side, port): End) -> Result<Rate, PlatformError> {
    platform.rate(match (side, port) {
        (Side::Local, _) => "write_local",
        (Side::Remote, Port::Acp) => "write_remote_acp",
        (Side::Remote, Port::Hp) => "write_remote_hp",
    })
}

/// A DMA engine between two ends.
///
/// # Errors
/// [`PlatformError`], if the platform lacks a constant.
pub fn copier(platform: &Platform, from: End, to: End) -> Result<Copier, PlatformError> {
    let mut world = World::new(1);
    let asker = world.add(Probe::default());
    let rates = [None, Some(read_rate(platform, from, to.0)?), Some(write_rate(platform, to)?), None];
    let [ask, read, write, told] =
        rates.map(|line| Input::of(world.add(Link::new(LinkConfig { line, ..LinkConfig::default() }))));
    let [source, destination] = [(); 2].map(|()| Input::of(world.add(Memory::new(MemoryConfig::default()))));
    let dma = world.add(Dma::new(DmaConfig {
        setup: platform.span("dma_setup")?,
        burst_bytes: platform.number("dma_burst")?,
        outstanding: platform.number("dma_outstanding")?,
        channels: 1,
    }));
    let mut route =
        |inputs: &[Input]| world.add_route(inputs).expect("lines, and a part that keeps what comes");
    let path = DmaPath {
        read: route(&[ask, source]),
        read_back: route(&[read, Input { part: dma, port: 0 }]),
        write: route(&[write, destination]),
        write_back: route(&[told, Input { part: dma, port: 1 }]),
    };
    world.with(dma, |part: &mut Dma, _| part.add_path(path));
    Ok(Copier { world, dma, asker })
}

/// Accesses of each node of a [`Pair`].
pub const STORES: u64 = 10;

/// Two nodes with a processor, a snoop unit and a memory each, and a line each way between them.
#[derive(Debug)]
pub struct Pair {
    world: World,
    processors: [PartId; 2],
    /// There and back.
    ways: Vec<[RouteId; 2]>,
}

/// How accesses of two nodes ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairEnd {
    /// How many were answered, by node.
    pub answered: [u64; 2],
    /// The parts that wait for ever.
    pub stuck: Vec<&'static str>,
}

/// Two nodes that access each other's memory through their snoop units, as MICRO §4.10 does.
pub fn pair(slots: SnoopSlots, kind: AccessKind) -> Pair {
    let mut world = World::new(1);
    // How long the line is makes no difference.
    let link = LinkConfig { latency: Span::from_ns(100), ..LinkConfig::default() };
    let [snoops, memories, links] = [
        [(); 2].map(|()| world.add(Snoop::new(slots))),
        [(); 2].map(|()| world.add(Memory::new(MemoryConfig::default()))),
        [(); 2].map(|()| world.add(Link::new(link))),
    ];
    let config = RequesterConfig {
        kind,
        count: STORES,
        address: 0,
        length_bytes: WORD_BYTES,
        spacing: Span::ZERO,
        outstanding_thousandths: Some(1_000),
    };
    let processors = [(); 2].map(|()| world.add(Requester::new(config)));
    let mut ways = Vec::new();
    for (here, there) in [(0, 1), (1, 0)] {
        let at = |part, port| Input { part, port };
        let route = [
            at(snoops[here], OUTWARD),
            Input::of(links[here]),
            at(snoops[there], INWARD),
            Input::of(memories[there]),
        ];
        let back = [
            at(snoops[there], INWARD_ANSWER),
            Input::of(links[there]),
            at(snoops[here], OUTWARD_ANSWER),
            Input::of(processors[here]),
        ];
        ways.push(
            [&route, &back].map(|inputs| world.add_route(inputs).expect("the last part keeps what comes")),
        );
    }
    Pair { world, processors, ways }
}

impl Pair {
    /// These nodes access the other's memory at once.
    pub fn run(mut self, nodes: &[usize]) -> PairEnd {
        for node in nodes {
            let [route, back] = self.ways[*node];
            self.world
                .with(self.processors[*node], |part: &mut Requester, here| part.start(here, route, back));
        }
        self.world.run();
        let answered =
            self.processors.map(|part| self.world.part::<Requester>(part).expect("a processor").answered());
        PairEnd { answered, stuck: self.world.stuck().into_iter().map(|(_, name, _)| name).collect() }
    }
}

/// A device that reads and writes blocks, one behind the other, of which some are under way: the rate in MB/s.
///
/// `rate`: of the device; `request`: what a block takes beside that, which no other block's overlaps if only one is under way.
pub fn blocks(kind: AccessKind, block_bytes: u32, rate: Rate, request: Span, under_way: u32) -> f64 {
    let mut world = World::new(1);
    let memory =
        MemoryConfig { read: Some(rate), write: Some(rate), latency: request, ..MemoryConfig::default() };
    let device = Input::of(world.add(Memory::new(memory)));
    let program = world.add(Requester::new(RequesterConfig {
        kind,
        count: BLOCKS,
        address: 0,
        length_bytes: block_bytes,
        spacing: Span::ZERO,
        outstanding_thousandths: Some(under_way.saturating_mul(1_000)),
    }));
    let [there, back] = [device, Input::of(program)]
        .map(|input| world.add_route(&[input]).expect("a part that keeps what comes"));
    world.with(program, |part: &mut Requester, here| part.start(here, there, back));
    world.run();
    let took = world.part::<Requester>(program).expect("a program").took();
    (BLOCKS * u64::from(block_bytes)) as f64 * 1e6 / took.picos() as f64
}

/// Blocks of which a rate is taken.
const BLOCKS: u64 = 200;
