//! The two machines of SDP: memory of each is seen by the other over a bridge between their buses, and each has a DMA engine that reads it.

use tombolo_core::sdp::Config;

use crate::hosts::{SdpNode, SdpPrices, SdpProgram};
use crate::kernel::{PartId, Span, Time};
use crate::parts::{Dma, DmaConfig, DmaPath, Input, Link, LinkConfig, Memory, MemoryConfig, World};
use crate::platform::{Platform, PlatformError};

/// Two machines.
#[derive(Debug)]
pub struct Machines {
    /// The world that they are in.
    pub world: World,
    /// Both.
    pub nodes: [PartId; 2],
}

/// An engine that reads the other machine's memory at the rate of the bridge.
fn engine(world: &mut World, platform: &Platform) -> Result<PartId, PlatformError> {
    let rates = [None, Some(platform.rate("peak")?), None, None];
    let [ask, read, write, told] =
        rates.map(|line| Input::of(world.add(Link::new(LinkConfig { line, ..LinkConfig::default() }))));
    let [source, destination] = [(); 2].map(|()| Input::of(world.add(Memory::new(MemoryConfig::default()))));
    let dma = world.add(Dma::new(DmaConfig {
        setup: platform.span("dma_setup")?,
        burst_bytes: platform.number("dma_burst")?,
        outstanding: platform.number("dma_outstanding")?,
        channels: platform.number("dma_channels")?,
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
    Ok(dma)
}

/// Two machines with a process each for every pair of programs, all of which have begun.
///
/// # Errors
/// [`PlatformError`], if the platform lacks a constant.
pub fn machines(platform: &Platform, programs: &[[SdpProgram; 2]]) -> Result<Machines, PlatformError> {
    let mut world = World::new(1);
    let load = platform.span("load")?;
    let prices = SdpPrices {
        call: platform.span("call")?,
        copy: platform.rate("copy")?,
        wake: platform.span("wake")?,
        load,
        post: Span::from_picos(load.picos() / 2),
    };
    let parts: u32 = platform.number("buffer_parts")?;
    let config = Config {
        buffer_bytes: platform.number::<u32>("buffer")? / parts,
        small_bytes: platform.number("small")?,
    };
    let node = |world: &mut World, side: usize| {
        let programs: Vec<_> = programs.iter().map(|pair| pair[side]).collect();
        world.add(SdpNode::new(prices, config, &programs))
    };
    let nodes = [node(&mut world, 0), node(&mut world, 1)];
    for (own, peer) in [(0, 1), (1, 0)] {
        let dma = Input::of(engine(&mut world, platform)?);
        world.with(nodes[own], |part: &mut SdpNode, _| part.connect(nodes[peer], dma));
    }
    for node in nodes {
        world.with(node, |part: &mut SdpNode, here| part.start(here));
    }
    Ok(Machines { world, nodes })
}

impl Machines {
    /// One of the machines.
    pub fn node(&self, number: usize) -> &SdpNode {
        self.world.part::<SdpNode>(self.nodes[number]).expect("a node")
    }

    /// Bytes that the second machine's programs have received in so long, after as long a while before, in MB/s.
    pub fn rate(&mut self, span: Span) -> f64 {
        self.world.run_until(Time::ZERO.after(span));
        let before = self.node(1).received();
        self.world.run_until(Time::ZERO.after(span.times(2)));
        (self.node(1).received() - before) as f64 * 1e6 / span.picos() as f64
    }
}
