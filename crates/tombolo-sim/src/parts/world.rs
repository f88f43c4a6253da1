//! The clock, the parts and the routes between them.

use super::{
    Cargo, Dma, DmaRequest, Link, Memory, Probe, Requester, RouteId, Server, Slice, Snoop, Timeline,
    Traveller, Work,
};
use crate::hosts::{ComputeBlock, EngineHost, MemoryBlock, NicNode, SdpNode, SharedMac, Station};
use crate::kernel::{Due, Headers, Kernel, Packets, PartId, Span, Time, Trace};
use tombolo_random::Random;

/// An input of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// Whose.
    pub part: PartId,
    /// Which of its inputs.
    pub port: u8,
}

impl Input {
    /// The only input of a part, or its first.
    pub const fn of(part: PartId) -> Self {
        Self { part, port: 0 }
    }
}

/// What parts send each other.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    /// Something that moves along a route.
    Traveller(Traveller),
    /// Work for a server.
    Work(Work),
    /// The work is done.
    Done(Work),
    /// A copy for a DMA engine.
    Copy(DmaRequest),
    /// The copy is made.
    Copied(DmaRequest),
}

/// A message, and the input that it is for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    port: u8,
    message: Message,
}

/// What every part can do.
pub trait Part {
    /// Something has come.
    fn receive(&mut self, here: &mut Here<'_>, port: u8, message: Message);

    /// The moment has come for which it had set its alarm.
    fn wake(&mut self, _here: &mut Here<'_>) {}

    /// What it has begun and not ended: at the end of a run this is a lock-up.
    fn open(&self) -> u64;

    /// Whether what comes along a route goes on from here.
    fn forwards(&self) -> bool;

    /// As any part.
    fn as_part(&self) -> &dyn Part
    where
        Self: Sized,
    {
        self
    }

    /// As any part, to be changed.
    fn as_part_mut(&mut self) -> &mut dyn Part
    where
        Self: Sized,
    {
        self
    }
}

/// The parts that there are.
#[derive(Debug)]
pub enum PartKind {
    /// A line.
    Link(Link),
    /// Who does work in time.
    Server(Server),
    /// What is read and written.
    Memory(Memory),
    /// Who reads and writes it, word by word or line by line.
    Requester(Requester),
    /// Who copies from one memory to another.
    Dma(Dma),
    /// What keeps caches and accesses from outside together.
    Snoop(Snoop),
    /// What writes down what comes.
    Probe(Probe),
    /// A node with an engine.
    EngineHost(Box<EngineHost>),
    /// What sends a processor's accesses to memory of others.
    ComputeBlock(Box<ComputeBlock>),
    /// What makes them there.
    MemoryBlock(Box<MemoryBlock>),
    /// A node with a port of a shared interface.
    NicNode(Box<NicNode>),
    /// The shared interface.
    SharedMac(Box<SharedMac>),
    /// A node with connections of Sockets Direct.
    SdpNode(Box<SdpNode>),
    /// Who is at the other end of its wire.
    Station(Station),
}

/// A type that is a part.
pub trait IsPart: Into<PartKind> {
    /// This part, if it is of the type.
    fn of(part: &PartKind) -> Option<&Self>;
    /// This part, to be changed.
    fn of_mut(part: &mut PartKind) -> Option<&mut Self>;
}

macro_rules! parts {
    ($($kind:ident),*) => {
        impl PartKind {
            fn part(&self) -> &dyn Part {
                match self {
                    $(Self::$kind(part) => part.as_part(),)*
                }
            }

            fn part_mut(&mut self) -> &mut dyn Part {
                match self {
                    $(Self::$kind(part) => part.as_part_mut(),)*
                }
            }

            /// What kind of part it is.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$kind(_) => stringify!($kind),)*
                }
            }
        }
        $(
            impl From<$kind> for PartKind {
                fn from(part: $kind) -> Self {
                    Self::$kind(part.into())
                }
            }

            impl IsPart for $kind {
                fn of(part: &PartKind) -> Option<&Self> {
                    if let PartKind::$kind(part) = part { Some(part) } else { None }
                }

                fn of_mut(part: &mut PartKind) -> Option<&mut Self> {
                    if let PartKind::$kind(part) = part { Some(part) } else { None }
                }
            }
        )*
    };
}

parts!(
    Link,
    Server,
    Memory,
    Requester,
    Dma,
    Snoop,
    Probe,
    EngineHost,
    ComputeBlock,
    MemoryBlock,
    NicNode,
    SharedMac,
    SdpNode,
    Station
);

/// Why a route is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// It has no inputs.
    #[error("a route without an end")]
    Empty,
    /// There is no such part.
    #[error("a route by part {0:?}, which is not there")]
    NoPart(PartId),
    /// What comes there goes no further, and the route does.
    #[error("a route that goes on after part {0:?}, which keeps what comes")]
    Ends(PartId),
    /// What comes there goes on, and the route does not.
    #[error("a route that ends at part {0:?}, which keeps nothing")]
    GoesOn(PartId),
}

/// What a part sees of its world while it handles an event.
pub struct Here<'a> {
    kernel: &'a mut Kernel<Envelope>,
    routes: &'a [Box<[Input]>],
    /// The bytes of packets.
    pub packets: &'a mut Packets,
    /// The headers of packets whose bytes are only named.
    pub headers: &'a mut Headers,
    timeline: Option<&'a mut Timeline>,
    part: PartId,
}

impl Here<'_> {
    /// The present.
    pub fn now(&self) -> Time {
        self.kernel.now()
    }

    /// Which part handles the event.
    pub fn part(&self) -> PartId {
        self.part
    }

    /// The part's random numbers.
    pub fn random(&mut self) -> &mut Random {
        self.kernel.random(self.part)
    }

    /// Sets the part's alarm.
    pub fn set_alarm(&mut self, alarm: Option<Time>) {
        self.kernel.set_alarm(self.part, alarm);
    }

    /// Sends a message, which arrives at this moment.
    pub fn send(&mut self, to: Input, time: Time, message: Message) {
        self.kernel.send_at(self.part, to.part, time, Envelope { port: to.port, message });
    }

    /// The traveller arrives at the next input of its route at this moment.
    pub fn forward(&mut self, time: Time, mut traveller: Traveller) {
        // `World::add_route` has seen to it that a part which forwards is not the last one.
        let to = self.routes[traveller.route.0 as usize][usize::from(traveller.hop)];
        traveller.hop += 1;
        self.send(to, time, Message::Traveller(traveller));
    }

    /// Something sets off along a route.
    pub fn start(&mut self, time: Time, route: RouteId, cargo: Cargo, bytes: u32) {
        self.start_of(0, time, route, cargo, bytes);
    }

    /// The same, of something that belongs to a flow.
    pub fn start_of(&mut self, flow: u32, time: Time, route: RouteId, cargo: Cargo, bytes: u32) {
        self.forward(time, Traveller { cargo, bytes, route, hop: 0, flow, is_damaged: false });
    }

    /// The part does something for a while, on one of its tracks.
    pub fn slice(&mut self, track: &'static str, name: &'static str, from: Time, to: Time, flow: u32) {
        if let Some(timeline) = &mut self.timeline {
            timeline.add(Slice { part: self.part, track, name, from, to, flow });
        }
    }

    /// Something goes no further: its place in an arena is free again.
    pub fn discard(&mut self, cargo: Cargo) {
        match cargo {
            Cargo::Packet(packet) => self.packets.discard(packet),
            Cargo::Header(header) => drop(self.headers.take(header)),
            Cargo::Blank(_) | Cargo::Access(_) => {}
        }
    }
}

/// A world of parts.
#[derive(Debug)]
pub struct World {
    kernel: Kernel<Envelope>,
    parts: Vec<PartKind>,
    routes: Vec<Box<[Input]>>,
    packets: Packets,
    headers: Headers,
    timeline: Option<Timeline>,
}

impl World {
    /// Without parts.
    pub fn new(seed: u64) -> Self {
        Self {
            kernel: Kernel::new(seed),
            parts: Vec::new(),
            routes: Vec::new(),
            packets: Packets::default(),
            headers: Headers::default(),
            timeline: None,
        }
    }

    /// From now on it is noted what parts do when.
    pub fn keep_timeline(&mut self) {
        self.timeline.get_or_insert_default();
    }

    /// What was noted.
    pub fn timeline(&self) -> &[Slice] {
        self.timeline.as_ref().map_or(&[], Timeline::slices)
    }

    /// What was noted, which is forgotten here.
    pub fn take_timeline(&mut self) -> Vec<Slice> {
        self.timeline.as_mut().map_or_else(Vec::new, Timeline::take)
    }

    /// From when on slices were left out, if there were more than are kept.
    pub fn timeline_cut_at(&self) -> Option<Time> {
        self.timeline.as_ref().and_then(Timeline::cut_at)
    }

    /// What kind of part each is.
    pub fn kinds(&self) -> impl Iterator<Item = (PartId, &'static str)> {
        self.parts.iter().enumerate().map(|(number, part)| (PartId(number as u32), part.name()))
    }

    /// Adds a part.
    pub fn add(&mut self, part: impl Into<PartKind>) -> PartId {
        self.parts.push(part.into());
        self.kernel.add_part()
    }

    /// Adds a route by these inputs: all parts but the last forward what comes.
    ///
    /// # Errors
    /// [`RouteError`], if something would get stuck on it, or lost.
    pub fn add_route(&mut self, inputs: &[Input]) -> Result<RouteId, RouteError> {
        let (last, before) = inputs.split_last().ok_or(RouteError::Empty)?;
        let forwards = |input: &Input| {
            let part = self.parts.get(input.part.0 as usize).ok_or(RouteError::NoPart(input.part))?;
            Ok(part.part().forwards())
        };
        for input in before {
            if !forwards(input)? {
                return Err(RouteError::Ends(input.part));
            }
        }
        if forwards(last)? {
            return Err(RouteError::GoesOn(last.part));
        }
        self.routes.push(inputs.into());
        Ok(RouteId(u32::try_from(self.routes.len() - 1).expect("routes are numbered by 32 bits")))
    }

    /// A part, if it is of this type.
    pub fn part<P: IsPart>(&self, part: PartId) -> Option<&P> {
        P::of(self.parts.get(part.0 as usize)?)
    }

    /// Lets this act for a part, as if an event had come to it.
    pub fn with<P: IsPart, R>(
        &mut self,
        part: PartId,
        act: impl FnOnce(&mut P, &mut Here<'_>) -> R,
    ) -> Option<R> {
        let Self { kernel, parts, routes, packets, headers, timeline } = self;
        let timeline = timeline.as_mut();
        let kind = parts.get_mut(part.0 as usize)?;
        Some(act(P::of_mut(kind)?, &mut Here { kernel, routes, packets, headers, timeline, part }))
    }

    /// Sends a message in the name of a part; it arrives now.
    pub fn send(&mut self, from: PartId, to: Input, message: Message) {
        let Input { part, port } = to;
        self.kernel.send_at(from, part, self.kernel.now(), Envelope { port, message });
    }

    /// Something sets off along a route now, in the name of a part.
    pub fn start(&mut self, from: PartId, route: RouteId, cargo: Cargo, bytes: u32) {
        let first = self.routes[route.0 as usize][0];
        let traveller = Traveller { cargo, bytes, route, hop: 1, flow: 0, is_damaged: false };
        self.send(from, first, Message::Traveller(traveller));
    }

    /// The present.
    pub fn now(&self) -> Time {
        self.kernel.now()
    }

    /// Packets that are under way.
    pub fn packets(&mut self) -> &mut Packets {
        &mut self.packets
    }

    /// Handles the next event. `false`: there was none.
    pub fn step(&mut self) -> bool {
        let Self { kernel, parts, routes, packets, headers, timeline } = self;
        let Some(event) = kernel.next_event() else { return false };
        let handler = parts[event.to.0 as usize].part_mut();
        let timeline = timeline.as_mut();
        let mut here = Here { kernel, routes, packets, headers, timeline, part: event.to };
        match event.what {
            Due::Alarm => handler.wake(&mut here),
            Due::Message(Envelope { port, message }) => handler.receive(&mut here, port, message),
        }
        true
    }

    /// Handles events until none is left.
    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Handles events for so long at most. Whether none is left.
    pub fn run_within(&mut self, span: Span) -> bool {
        let end = self.now().after(span);
        while let Some(next) = self.kernel.next_time() {
            if next > end {
                return false;
            }
            self.step();
        }
        true
    }

    /// Handles the events up to this moment.
    pub fn run_until(&mut self, time: Time) {
        while self.kernel.next_time().is_some_and(|next| next <= time) {
            self.step();
        }
        self.kernel.advance(time);
    }

    /// The parts that have begun something which no event will end: nothing waits in the queue, and they wait for each other.
    pub fn stuck(&mut self) -> Vec<(PartId, &'static str, u64)> {
        if self.kernel.next_time().is_some() {
            return Vec::new();
        }
        let parts = self.parts.iter().enumerate();
        let open = parts.map(|(number, part)| (PartId(number as u32), part.name(), part.part().open()));
        open.filter(|(.., open)| *open > 0).collect()
    }

    /// What has happened so far, as one number.
    pub fn trace(&self) -> Trace {
        self.kernel.trace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Rate;
    use crate::parts::LinkConfig;

    #[test]
    fn a_message_is_small() {
        assert!(size_of::<Envelope>() <= 64, "{}", size_of::<Envelope>());
    }

    #[test]
    fn a_route_on_which_something_would_get_lost_is_none() {
        let mut world = World::new(1);
        let link = Input::of(world.add(Link::new(LinkConfig::default())));
        let probe = Input::of(world.add(Probe::default()));
        let nobody = PartId(7);
        assert_eq!(world.add_route(&[]), Err(RouteError::Empty));
        assert_eq!(world.add_route(&[link]), Err(RouteError::GoesOn(link.part)));
        assert_eq!(world.add_route(&[probe, link]), Err(RouteError::Ends(probe.part)));
        assert_eq!(world.add_route(&[Input::of(nobody)]), Err(RouteError::NoPart(nobody)));
        assert!(world.add_route(&[link, link, probe]).is_ok());
    }

    #[test]
    fn what_passes_several_lines_takes_the_sum_of_their_times() {
        let mut world = World::new(1);
        let end = world.add(Probe::default());
        let mut inputs: Vec<_> = (1..=5)
            .map(|number| {
                let line = Rate::from_bits_per_s(number * 1_000_000_000);
                let config = LinkConfig { line, latency: Span::from_ns(number), ..LinkConfig::default() };
                Input::of(world.add(Link::new(config)))
            })
            .collect();
        inputs.push(Input::of(end));
        let route = world.add_route(&inputs).expect("a route");
        world.start(end, route, Cargo::Blank(1), 7_500);
        world.run();
        // 60,000 bits at 1 to 5 Gb/s, and 15 ns.
        let nanos = 60_000 + 30_000 + 20_000 + 15_000 + 12_000 + 15;
        let seen = &world.part::<Probe>(end).expect("a probe").seen;
        assert_eq!(seen[0].time.picos(), nanos * 1_000);
        assert_eq!(world.stuck(), []);
    }
}
