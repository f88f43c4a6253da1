//! The first prototype of MICRO: a processor that loads and stores words of a remote memory, and a DMA engine that copies.

use crate::kernel::{PartId, Rate, Span};
use crate::parts::{
    AccessKind, Dma, DmaConfig, DmaPath, Input, Link, LinkConfig, Memory, MemoryConfig, Probe, Requester,
    RequesterConfig, RouteId, World,
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
    let mut stage =
        |latency| Input::of(world.add(Link::new(LinkConfig { latency, ..LinkConfig::default() })));
    // The processor's cycles are those of a read and a write together: half of them are of one.
    let processor_side = one_way(platform, platform.count("processor_cycles")?)?;
    let cable_side = one_way(platform, cable)?;
    // What is neither the processor's side nor the cable: conversion of protocols, and the port of the memory.
    let rest = one_way(platform, seen.saturating_mul(2).saturating_sub(cable))?;
    let there = [stage(processor_side), stage(rest), stage(cable_side)];
    let back = [stage(cable_side), stage(rest), stage(processor_side)];
    let memory = Input::of(world.add(Memory::new(MemoryConfig::default())));
    let config = RequesterConfig { kind, count, length_bytes: WORD_BYTES, spacing, outstanding_thousandths };
    let processor = world.add(Requester::new(config));
    let there = world.add_route(&[&there[..], &[memory]].concat()).expect("lines and a memory");
    let back =
        world.add_route(&[&back[..], &[Input::of(processor)]].concat()).expect("lines and a processor");
    Ok(Words { world, processor, ways: (there, back) })
}

impl Words {
    /// All of the accesses: how long they take.
    pub fn run(&mut self) -> Span {
        let (there, back) = self.ways;
        self.world.with(self.processor, |part: &mut Requester, here| part.start(here, there, back));
        self.world.run();
        self.world.part::<Requester>(self.processor).expect("a processor").took()
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
