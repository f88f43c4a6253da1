//! The second prototype of MICRO: nodes that share one interface of 10 Gb/s, and a machine at the other end of the wire.

use tombolo_core::nic::{Coalescing, Mac};

use crate::hosts::{Job, NicConfig, NicNode, SharedMac, SharedMacConfig, Station, WIRE};
use crate::kernel::{PartId, Rate, Span, Time, Trace};
use crate::parts::{Input, Link, LinkConfig, RouteId, Server, World};
use crate::platform::{Platform, PlatformError};

/// What nodes send and get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Frames that a program without an operating system puts into its ring.
    BareMetal,
    /// Frames of a module of the kernel.
    Raw,
    /// One connection of a program.
    Tcp,
}

/// What is put together.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Nodes that take part.
    pub nodes: u8,
    /// What they send and get.
    pub traffic: Traffic,
    /// Whether they send.
    pub sends: bool,
    /// Whether they get.
    pub receives: bool,
    /// Connections of each: as many cores do the protocol.
    pub flows: usize,
    /// When drivers are told of frames.
    pub coalescing: Coalescing,
}

impl Default for Setup {
    fn default() -> Self {
        let coalescing = Coalescing::default();
        Self { nodes: 1, traffic: Traffic::Tcp, sends: true, receives: false, flows: 1, coalescing }
    }
}

/// What a run gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Frames a second that each node has sent, as they came at the wire's other end.
    pub sent: Vec<f64>,
    /// Frames a second that each node's program has got.
    pub received: Vec<f64>,
    /// Of one core's time, how much the processors of the first node were busy.
    pub busy: f64,
    /// Interrupts of the first node, a second.
    pub interrupts: f64,
    /// A hash of all that has happened.
    pub trace: Trace,
}

#[derive(Debug)]
struct Machines {
    world: World,
    nodes: Vec<PartId>,
    servers: Vec<PartId>,
    station: PartId,
    out: RouteId,
}

/// What a frame costs the processors.
fn price(platform: &Platform, traffic: Traffic, job: Job) -> Result<Span, PlatformError> {
    match (traffic, job) {
        (Traffic::BareMetal, Job::KernelOut | Job::KernelIn) => platform.span("bare_metal"),
        (Traffic::Raw, Job::KernelOut) => platform.span("raw_out"),
        (Traffic::Raw, Job::KernelIn) => platform.span("raw_in"),
        (Traffic::Tcp, Job::KernelOut | Job::KernelIn) => {
            Ok(platform.span("cycle")?.times(platform.count("checksum_cycles")?))
        }
        (Traffic::Tcp, Job::ProtocolOut | Job::ProtocolIn) => platform.span("tcp_rest"),
        (Traffic::Raw | Traffic::Tcp, Job::Interrupt) => platform.span("interrupt"),
        (Traffic::BareMetal, Job::Interrupt) => Ok(Span::ZERO),
        (Traffic::BareMetal | Traffic::Raw, Job::ProtocolOut | Job::ProtocolIn) => Ok(Span::ZERO),
    }
}

fn server(platform: &Platform, traffic: Traffic, cores: usize) -> Result<Server, PlatformError> {
    let mut prices = [Span::ZERO; Job::ALL.len()];
    for job in Job::ALL {
        prices[job as usize] = price(platform, traffic, job)?;
    }
    Ok(Job::server(|job| prices[job as usize]).with_cores(cores))
}

/// The address of a machine.
fn address(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

fn line(world: &mut World, line: Option<Rate>, overhead_bytes: u32) -> Input {
    Input::of(world.add(Link::new(LinkConfig { line, overhead_bytes, ..LinkConfig::default() })))
}

fn machines(platform: &Platform, setup: &Setup) -> Result<Machines, PlatformError> {
    let mut world = World::new(1);
    let (wire, beside_bytes) = (platform.rate("wire")?, platform.number("beside")?);
    let (to_node, frame_bytes) = (platform.rate("node_link")?, platform.number::<u32>("frame")?);
    let room: u32 = platform.number("queue_frames")?;
    let queue_bytes = u64::from(room) * u64::from(frame_bytes);
    let mac = world.add(SharedMac::new(SharedMacConfig { wire, beside_bytes, queue_bytes }));
    let station_address = address(u8::MAX);
    let addresses: Vec<_> = (1..=setup.nodes).map(address).collect();
    let window: u32 = platform.number("window")?;
    let station = world.add(Station::new(station_address, addresses.clone(), window, frame_bytes));
    let up = world.add_route(&[Input::of(station)]).expect("a part that keeps what comes");
    world.with(mac, |part: &mut SharedMac, _| part.set_way(up));
    let down = line(&mut world, Some(wire), beside_bytes);
    let out = world.add_route(&[down, Input { part: mac, port: WIRE }]).expect("a line and an interface");
    let (mut nodes, mut servers) = (Vec::new(), Vec::new());
    for (number, own) in addresses.iter().enumerate() {
        let protocol = world.add(server(platform, setup.traffic, setup.flows)?);
        let kernel = world.add(server(platform, setup.traffic, 1)?);
        let config = NicConfig {
            own: *own,
            peer: station_address,
            frame_bytes,
            descriptors: [platform.number("tx_descriptors")?, platform.number("rx_descriptors")?],
            coalescing: setup.coalescing,
            room,
            sends: setup.sends,
        };
        let node = world.add(NicNode::new(config, Input::of(protocol), Input::of(kernel)));
        let (up, down) = (line(&mut world, Some(to_node), 0), line(&mut world, Some(to_node), 0));
        let port = Input { part: mac, port: number as u8 };
        let up = world.add_route(&[up, port]).expect("a line and an interface");
        let down = world.add_route(&[down, Input::of(node)]).expect("a line and a node");
        let teller = Input { part: station, port: 1 };
        world.with(node, |part: &mut NicNode, _| part.connect(up, teller, number as u64));
        let credit = NicNode::credit_input(node);
        let is_added = world.with(mac, |part: &mut SharedMac, _| part.add(*own, credit, down));
        debug_assert_eq!(is_added, Some(true));
        nodes.push(node);
        servers.extend([protocol, kernel]);
    }
    Ok(Machines { world, nodes, servers, station, out })
}

/// Until rates are what they stay.
const WARM: Span = Span::from_ns(5_000_000);
/// For so long they are measured after that.
const MEASURED: Span = Span::from_ns(20_000_000);

impl Machines {
    /// Frames sent and received by each node, time of the first node's processors, and its interrupts.
    fn counts(&self) -> (Vec<u64>, Vec<u64>, Span, u64) {
        let station = self.world.part::<Station>(self.station).expect("a station");
        let node = |id: &PartId| self.world.part::<NicNode>(*id).expect("a node");
        let received = self.nodes.iter().map(|id| node(id).received()).collect();
        let server = |id: &PartId| self.world.part::<Server>(*id).expect("a server").busy();
        let busy = self.servers.iter().take(2).map(server).fold(Span::ZERO, Span::plus);
        (
            station.received().to_vec(),
            received,
            busy,
            self.nodes.first().map_or(0, |id| node(id).interrupts()),
        )
    }
}

/// Lets nodes send and get for a while.
///
/// # Errors
/// [`PlatformError`], if the platform lacks a constant.
pub fn run(platform: &Platform, setup: &Setup) -> Result<Rates, PlatformError> {
    let mut machines = machines(platform, setup)?;
    let (station, out) = (machines.station, machines.out);
    for node in &machines.nodes {
        machines.world.with(*node, |part: &mut NicNode, here| part.start(here));
    }
    if setup.receives {
        machines.world.with(station, |part: &mut Station, here| part.start(here, out));
    }
    machines.world.run_until(Time::ZERO.after(WARM));
    let before = machines.counts();
    machines.world.run_until(Time::ZERO.after(WARM.plus(MEASURED)));
    let after = machines.counts();
    let seconds = MEASURED.picos() as f64 / 1e12;
    let rates = |before: &[u64], after: &[u64]| {
        before.iter().zip(after).map(|(before, after)| (after - before) as f64 / seconds).collect()
    };
    Ok(Rates {
        sent: rates(&before.0, &after.0),
        received: rates(&before.1, &after.1),
        busy: (after.2.picos() - before.2.picos()) as f64 / MEASURED.picos() as f64,
        interrupts: (after.3 - before.3) as f64 / seconds,
        trace: machines.world.trace(),
    })
}
