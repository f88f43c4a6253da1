//! The boards of REMAP: a processor whose cores read lines of memory of its own logic, of that behind blocks on the same chip, or of
//! another board.

use std::collections::BTreeMap;

use tombolo_core::packetise::Pacing;
use tombolo_core::segment::{LenderId, Segment, SegmentId, SegmentTable};

use crate::hosts::{BlockConfig, ComputeBlock, Controller, MemoryBlock, link_input};
use crate::kernel::{PartId, Span, Time};
use crate::parts::{
    AccessKind, Input, Link, LinkConfig, Memory, MemoryConfig, Requester, RequesterConfig, RouteId,
    Variation, World,
};
use crate::platform::{Platform, PlatformError};

/// A line of the processor's cache.
pub const LINE_BYTES: u32 = 64;
/// Where remote segments begin (REMAP §VII).
const BASE: u64 = 0x5_0000_0000;
const SEGMENT_BYTES: u64 = 256 << 20;
const LENDER: LenderId = LenderId(0);

/// Which memory a core reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// That of its own logic.
    Local,
    /// The one behind the blocks.
    Remote,
}

/// What is put together.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Where each core reads.
    pub cores: &'a [Place],
    /// Reads or writes.
    pub kind: AccessKind,
    /// Accesses of each.
    pub count: u64,
    /// Bytes of each.
    pub length_bytes: u32,
    /// Lines of a core without an answer at most, in thousandths.
    pub outstanding_thousandths: u32,
    /// Whether the memory block is on the same chip.
    pub is_loop_back: bool,
    /// Interfaces of the compute block: cores take them in turn.
    pub interfaces: u8,
    /// Links between the blocks.
    pub links: u8,
    /// Memories behind the memory block, each with a share of the addresses.
    pub controllers: u8,
    /// What an access takes of a memory, if not what the platform says.
    pub service: Option<Span>,
}

/// Boards that were put together.
#[derive(Debug)]
pub struct Machine {
    /// The world that they are in.
    pub world: World,
    /// The cores.
    pub cores: Vec<PartId>,
    /// The compute block.
    pub compute: PartId,
    /// The memory block.
    pub memory: PartId,
    /// To the memory and back, by core.
    ways: Vec<(RouteId, RouteId)>,
    length_bytes: u32,
}

fn line(world: &mut World, latency: Span) -> Input {
    Input::of(world.add(Link::new(LinkConfig { latency, ..LinkConfig::default() })))
}

/// Puts the two blocks together, and the memories behind them.
fn blocks(
    world: &mut World,
    platform: &Platform,
    setup: &Setup<'_>,
    memory: MemoryConfig,
) -> Result<(PartId, PartId), PlatformError> {
    // Of the four passages of a block there and back.
    let logic = Span::from_picos(platform.span("logic")?.picos() / 4);
    let (links, controllers) = (setup.links.max(1), u64::from(setup.controllers.max(1)));
    let cycle = platform.span("cycle")?;
    let (cycle, between) = if setup.is_loop_back {
        (cycle, Span::ZERO)
    } else {
        let line = platform.coded(platform.rate("link")?, "coding_data", platform.number("coding_line")?)?;
        let bytes = platform.count("stream_beats")? * 8;
        (cycle.max(line.span_of(bytes)), Span::from_picos(platform.span("between")?.picos() / 2))
    };
    let interfaces = usize::from(setup.interfaces.max(1));
    let config = BlockConfig { pacing: Pacing::Pipelined, cycle, interfaces };
    let segments = [SegmentId(0), SegmentId(1)].map(|segment| Segment {
        lender: LENDER,
        segment,
        length_bytes: SEGMENT_BYTES,
    });
    let table = SegmentTable::new(&segments, SEGMENT_BYTES).expect("whole segments");
    let all_links = BTreeMap::from([(LENDER, (0..links).collect())]);
    let compute = world.add(ComputeBlock::new(config, BASE, table, all_links));
    let remote = world.add(MemoryBlock::new(config, links.into()));
    for link in 0..links {
        let (there, back) = (line(world, logic.plus(between)), line(world, logic.plus(between)));
        let there = world.add_route(&[there, link_input(remote, link)]).expect("a line and a block");
        let back = world.add_route(&[back, link_input(compute, link)]).expect("a line and a block");
        world.with(compute, |part: &mut ComputeBlock, _| part.set_way(link, there));
        world.with(remote, |part: &mut MemoryBlock, _| part.set_way(link, back));
    }
    for number in 1..=controllers {
        let (there, back) = (line(world, logic), line(world, logic));
        let memory = Input::of(world.add(Memory::new(memory)));
        let way = world.add_route(&[there, memory]).expect("a line and a memory");
        let back = world.add_route(&[back, Input::of(remote)]).expect("a line and a block");
        let end = if number == controllers { u64::MAX } else { SEGMENT_BYTES / controllers * number };
        world.with(remote, |part: &mut MemoryBlock, _| part.add_controller(Controller { end, way, back }));
    }
    Ok((compute, remote))
}

/// Puts boards together.
///
/// # Errors
/// [`PlatformError`], if the platform lacks a constant.
pub fn machine(platform: &Platform, setup: &Setup<'_>) -> Result<Machine, PlatformError> {
    let mut world = World::new(1);
    let service = setup.service.map_or_else(|| platform.span("service"), Ok)?;
    let memory = MemoryConfig { service, variation: Variation::Exponential, ..MemoryConfig::default() };
    let (compute, remote) = blocks(&mut world, platform, setup, memory)?;
    let local = Input::of(world.add(Memory::new(memory)));
    // What is left of the latency beside the access itself, each way.
    let rest = platform.span("local")?.picos().saturating_sub(service.picos());
    let port = Span::from_picos(rest / 2);
    let (mut cores, mut ways) = (Vec::new(), Vec::new());
    for (number, place) in setup.cores.iter().enumerate() {
        let Setup { kind, count, length_bytes, .. } = *setup;
        // Each core has memory of its own.
        let offset = SEGMENT_BYTES / setup.cores.len() as u64 * number as u64;
        let core = world.add(Requester::new(RequesterConfig {
            kind,
            count,
            address: offset + if *place == Place::Remote { BASE } else { 0 },
            length_bytes,
            spacing: Span::ZERO,
            outstanding_thousandths: Some(setup.outstanding_thousandths),
        }));
        let interface = (number % usize::from(setup.interfaces.max(1))) as u8;
        let latency = if *place == Place::Local { port } else { Span::ZERO };
        let target = match place {
            Place::Local => local,
            Place::Remote => Input { part: compute, port: interface },
        };
        let (there, back) = (line(&mut world, latency), line(&mut world, latency));
        let there = world.add_route(&[there, target]).expect("a line and a memory");
        let back = world.add_route(&[back, Input::of(core)]).expect("a line and a core");
        cores.push(core);
        ways.push((there, back));
    }
    Ok(Machine { world, cores, compute, memory: remote, ways, length_bytes: setup.length_bytes })
}

impl Machine {
    /// All cores begin.
    pub fn start(&mut self) {
        for (core, (there, back)) in self.cores.iter().zip(&self.ways) {
            self.world.with(*core, |part: &mut Requester, here| part.start(here, *there, *back));
        }
    }

    /// What the cores read or write in so long, from the start, in MB/s.
    pub fn rate_for(&mut self, span: Span) -> f64 {
        self.world.run_until(Time::ZERO.after(span));
        let bytes = self.answered() * u64::from(self.length_bytes);
        bytes as f64 * 1e6 / span.picos() as f64
    }

    /// Accesses of all cores that were answered.
    pub fn answered(&self) -> u64 {
        self.requesters().map(Requester::answered).sum()
    }

    fn requesters(&self) -> impl Iterator<Item = &Requester> {
        self.cores.iter().map(|core| self.world.part::<Requester>(*core).expect("a core"))
    }

    /// From a request of the first core to its answer, on average.
    pub fn latency(&self) -> Option<Span> {
        self.requesters().next().and_then(Requester::latency)
    }
}
