//! A node of MICRO §6.1 with its port of the shared interface: a program, a driver, descriptor rings and their DMA engine. The rings and
//! the coalescing of interrupts are the core's; what processors do is work for two servers.

use tombolo_core::nic::ring::{Bounds, Descriptor, Device, Fragment, Software};
use tombolo_core::nic::{Coalescer, Coalescing, Mac};

use crate::kernel::{Span, Time};
use crate::parts::{Cargo, Here, Input, Message, Part, RouteId, Server, Work};

/// Bytes of a frame before its payload, which is not carried.
const HEADER_BYTES: usize = 14;

/// The header of a frame.
pub(super) fn header(to: Mac, from: Mac) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..6].copy_from_slice(&to.0);
    bytes[6..12].copy_from_slice(&from.0);
    // IPv4.
    bytes[12] = 8;
    bytes
}

/// What the processors of a node do for a frame, in the order of the operations of its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// The program and the protocol, of a frame that is sent.
    ProtocolOut,
    /// The program and the protocol, of a received frame.
    ProtocolIn,
    /// The part of the kernel that no two frames are in at once.
    KernelOut,
    /// That part of the kernel, of a received frame.
    KernelIn,
    /// An interrupt.
    Interrupt,
}

impl Job {
    /// All of them, by number.
    pub const ALL: [Self; 5] =
        [Self::ProtocolOut, Self::ProtocolIn, Self::KernelOut, Self::KernelIn, Self::Interrupt];

    fn name(self) -> &'static str {
        match self {
            Self::ProtocolOut => "protocol, out",
            Self::ProtocolIn => "protocol, in",
            Self::KernelOut => "kernel, out",
            Self::KernelIn => "kernel, in",
            Self::Interrupt => "interrupt",
        }
    }

    /// A server for such jobs: interrupts, frames that go out and frames that come take turns.
    pub fn server(price: impl Fn(Self) -> Span) -> Server {
        let operations = Self::ALL.map(|job| (job.name(), price(job)));
        Server::new(&operations).with_queues(3, crate::parts::Order::Turns)
    }
}

/// The constants of a node.
#[derive(Clone, Copy, Debug)]
pub struct NicConfig {
    /// Its address.
    pub own: Mac,
    /// To whom it sends.
    pub peer: Mac,
    /// Bytes of each frame, without what goes beside on the wire.
    pub frame_bytes: u32,
    /// Descriptors for sending and for receiving.
    pub descriptors: [u32; 2],
    /// When the driver is told of frames, sent or come.
    pub coalescing: Coalescing,
    /// Frames that the interface takes from it at once.
    pub room: u32,
    /// Whether it sends all it can.
    pub sends: bool,
}

/// Directions, as places of arrays.
const OUT: usize = 0;
const IN: usize = 1;

/// Inputs of a node.
const FRAME: u8 = 0;
const DONE: u8 = 1;
const CREDIT: u8 = 2;

/// A ring, with both of its sides.
#[derive(Debug)]
struct Ring {
    memory: Vec<Descriptor>,
    software: Software,
    device: Device,
    coalescer: Coalescer,
}

impl Ring {
    fn new(descriptors: u32, coalescing: Coalescing) -> Self {
        let mut memory = vec![Descriptor::default(); descriptors.max(1) as usize];
        let software = Software::new(memory.as_mut_slice(), 0);
        Self { memory, software, device: Device::default(), coalescer: Coalescer::new(coalescing) }
    }

    fn used(&self) -> u32 {
        self.memory.len() as u32 - self.software.free(self.memory.as_slice())
    }
}

/// A node. Frames come at its input 0.
#[derive(Debug)]
pub struct NicNode {
    config: NicConfig,
    rings: [Ring; 2],
    /// Who does the protocol, and who the kernel's part.
    servers: [Input; 2],
    /// The way of its frames, and who is told that one has come: by which number.
    way: Option<RouteId>,
    teller: Option<(Input, u64)>,
    /// Frames between the program and the ring.
    made: u32,
    credits: u32,
    fragments: Vec<Fragment>,
    received: u64,
    dropped: u64,
    sent: u64,
}

impl NicNode {
    /// An idle node. `protocol`, `kernel`: the servers of its processors, by their first inputs.
    pub fn new(config: NicConfig, protocol: Input, kernel: Input) -> Self {
        let [out, inward] = config.descriptors;
        Self {
            config,
            rings: [Ring::new(out, config.coalescing), Ring::new(inward, config.coalescing)],
            servers: [protocol, kernel],
            way: None,
            teller: None,
            made: 0,
            credits: config.room,
            fragments: Vec::new(),
            received: 0,
            dropped: 0,
            sent: 0,
        }
    }

    /// Where the interface tells that it has room for another frame.
    pub fn credit_input(part: crate::kernel::PartId) -> Input {
        Input { part, port: CREDIT }
    }

    /// Frames leave by this way. Of each that its program has got, this one is told, by the number.
    pub fn connect(&mut self, way: RouteId, teller: Input, number: u64) {
        (self.way, self.teller) = (Some(way), Some((teller, number)));
    }

    /// Frames that the program has got.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Frames that found no buffer.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Frames that were sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Interrupts.
    pub fn interrupts(&self) -> u64 {
        self.rings.iter().map(|ring| ring.coalescer.told()).sum()
    }

    /// It begins: buffers are offered, and the program sends.
    pub fn start(&mut self, here: &mut Here<'_>) {
        while self.offer() {}
        self.make(here);
    }

    /// Memory that frames may be in, of which nothing is simulated.
    fn bounds(&self) -> Bounds {
        Bounds {
            start: 0,
            length_bytes: self.config.frame_bytes.into(),
            frame_bytes_max: self.config.frame_bytes,
        }
    }

    fn fragment(&self) -> Fragment {
        Fragment { address: 0, length_bytes: self.config.frame_bytes }
    }

    fn offer(&mut self) -> bool {
        let buffer = self.fragment();
        let ring = &mut self.rings[IN];
        ring.software.offer(ring.memory.as_mut_slice(), buffer, 0).is_ok()
    }

    fn order(&self, here: &mut Here<'_>, job: Job, tag: u64) {
        let (server, queue) = match job {
            Job::ProtocolOut => (0, OUT),
            Job::ProtocolIn => (0, IN),
            Job::KernelOut => (1, OUT),
            Job::KernelIn => (1, IN),
            // By the core that does the protocol: the other one has no time for it (`boards::microzed`).
            Job::Interrupt => (0, 2),
        };
        let to = Input { port: queue as u8, ..self.servers[server] };
        let work = Work { operation: job as u16, tag, reply_to: Input { part: here.part(), port: DONE } };
        here.send(to, here.now(), Message::Work(work));
    }

    /// The program makes frames as long as there are descriptors for them.
    fn make(&mut self, here: &mut Here<'_>) {
        while self.config.sends && self.made + self.rings[OUT].used() < self.rings[OUT].memory.len() as u32 {
            self.made += 1;
            self.order(here, Job::ProtocolOut, 0);
        }
    }

    /// The DMA engine sends what it was given, as long as the interface has room.
    fn pump(&mut self, here: &mut Here<'_>) {
        let (bounds, Some(way)) = (self.bounds(), self.way) else { return };
        while self.credits > 0 {
            let Ring { memory, software, device, .. } = &mut self.rings[OUT];
            let tail = software.tail();
            if device.next_frame(memory.as_mut_slice(), tail, &bounds, &mut self.fragments) != Ok(true)
                || device.sent(memory.as_mut_slice(), &self.fragments, true).is_err()
            {
                return;
            }
            let NicConfig { own, peer, frame_bytes, .. } = self.config;
            let packet = here.packets.add(|bytes| bytes.extend(header(peer, own)));
            here.start(here.now(), way, Cargo::Packet(packet), frame_bytes);
            self.credits -= 1;
            self.sent += 1;
            self.tell(here, OUT);
        }
    }

    /// A frame was sent or has come.
    fn tell(&mut self, here: &mut Here<'_>, way: usize) {
        if self.rings[way].coalescer.came(here.now().of_core().0) {
            self.order(here, Job::Interrupt, way as u64);
        }
    }

    fn set_alarm(&self, here: &mut Here<'_>) {
        let due = self.rings.iter().filter_map(|ring| ring.coalescer.next_deadline()).min();
        here.set_alarm(due.map(|due_ns| Time::from(tombolo_core::rdma::Time(due_ns))));
    }

    /// A frame has come.
    fn take(&mut self, here: &mut Here<'_>) {
        let bounds = self.bounds();
        let Ring { memory, software, device, .. } = &mut self.rings[IN];
        let (tail, bytes) = (software.tail(), self.config.frame_bytes);
        let has_room = device.buffers(memory.as_mut_slice(), tail, &bounds, bytes, &mut self.fragments);
        if has_room == Ok(true) && device.received(memory.as_mut_slice(), &self.fragments, true).is_ok() {
            self.tell(here, IN);
        } else {
            self.dropped += 1;
            self.answer(here);
        }
    }

    /// Its sender is told of a frame that is here, or lost.
    fn answer(&self, here: &mut Here<'_>) {
        if let Some((to, tag)) = self.teller {
            let told = Work { operation: 0, tag, reply_to: Input::of(here.part()) };
            here.send(to, here.now(), Message::Done(told));
        }
    }

    /// The driver takes descriptors back: how many.
    fn take_back(&mut self, way: usize) -> usize {
        let Ring { memory, software, .. } = &mut self.rings[way];
        std::iter::from_fn(|| software.take_back(memory.as_slice())).count()
    }

    fn done(&mut self, here: &mut Here<'_>, work: Work) {
        let Some(job) = Job::ALL.get(usize::from(work.operation)) else { return };
        match job {
            Job::ProtocolOut => self.order(here, Job::KernelOut, 0),
            Job::KernelOut => {
                self.made = self.made.saturating_sub(1);
                let frame = [self.fragment()];
                let Ring { memory, software, .. } = &mut self.rings[OUT];
                // There is a descriptor: no more frames are made than those.
                let _room = software.send(memory.as_mut_slice(), &frame, 0);
                self.pump(here);
            }
            Job::Interrupt if work.tag == OUT as u64 => {
                self.take_back(OUT);
                self.make(here);
            }
            Job::Interrupt => {
                for _ in 0..self.take_back(IN) {
                    self.offer();
                    self.order(here, Job::KernelIn, 0);
                }
            }
            Job::KernelIn => self.order(here, Job::ProtocolIn, 0),
            Job::ProtocolIn => {
                self.received += 1;
                self.answer(here);
            }
        }
    }
}

impl Part for NicNode {
    fn receive(&mut self, here: &mut Here<'_>, port: u8, message: Message) {
        match (message, port) {
            (Message::Traveller(traveller), _) => {
                here.discard(traveller.cargo);
                if port == FRAME {
                    self.take(here);
                }
            }
            (Message::Done(_), CREDIT) => {
                self.credits += 1;
                self.pump(here);
            }
            (Message::Done(work), _) => self.done(here, work),
            (Message::Work(_) | Message::Copy(_) | Message::Copied(_), _) => {}
        }
        self.set_alarm(here);
    }

    fn wake(&mut self, here: &mut Here<'_>) {
        for way in [OUT, IN] {
            if self.rings[way].coalescer.elapsed(here.now().of_core().0) {
                self.order(here, Job::Interrupt, way as u64);
            }
        }
        self.set_alarm(here);
    }

    /// It sends for ever, or waits for frames.
    fn open(&self) -> u64 {
        0
    }

    fn forwards(&self) -> bool {
        false
    }
}
