//! The world of the engine: two nodes with an engine and a memory each, and wires between them that lose, repeat, reorder, damage and
//! delay, all from one seed.
//!
//! Everything that crosses is bytes: emitted and parsed by `tombolo-wire`. The world plays the runtime: it copies, writes
//! notifications, and may take its time, or refuse, as a runtime with absent pages would. Its oracle knows each byte of both memories:
//! what the engines do wrong is a panic that says it.
//!
//! Tests drive a [`Bench`] by hand; [`scenario`] draws one from a seed.

mod breaks;
mod faults;
mod oracle;
mod own_memory;
mod plants;
mod posting;
pub mod scenario;
mod stops;
mod transport;
mod wires;

use crate::kernel;
use crate::kernel::{Due, Kernel, PacketId, Packets, PartId, Trace};
pub use faults::Faults;
pub use oracle::Watched;
pub use own_memory::OwnFaults;
pub use plants::Plant;
use std::collections::BTreeMap;
use tombolo_core::iommu::{AccessId, ContextId, Right, TouchId};
use tombolo_core::rdma::{
    Action, Block, Config, Engine, NotificationWrite, Operation, PathId, PeerId, Placement, Time,
};
use tombolo_random::Random;
use tombolo_wire::{AtomicOperation, Checksums, Domain, MAX_BARE_PACKET_BYTES, NackCode};
pub use wires::{Wire, path_of, wire_of};

/// What happens at a node.
enum Event {
    /// A packet comes from a wire.
    Arrive {
        wire: usize,
        packet: PacketId,
    },
    /// A slow copy has ended. What is large is not moved about with the queue.
    Copied {
        placement: Box<Placement>,
        bytes: PacketId,
    },
    Written {
        write: Box<NotificationWrite>,
    },
    Operated {
        operation: Box<Operation>,
    },
    PageReady {
        placement: Box<Placement>,
    },
    SourceReady {
        block: Box<Block>,
    },
    /// A link has room again.
    Room {
        path: PathId,
    },
    /// The rest is of programs' own memory.
    Attempt {
        context: ContextId,
        access: AccessId,
        how: own_memory::Attempt,
    },
    Withdraw {
        context: ContextId,
        access: AccessId,
    },
    Touch {
        context: ContextId,
        touch: TouchId,
        range: (u64, u32),
        right: Right,
    },
    Mapped,
    Release {
        start: u64,
    },
    Change {
        which: usize,
    },
}

/// The parts of the world: the nodes, who posts transfers, and the wires.
const NODES: [PartId; 2] = [PartId(0), PartId(1)];
const PROGRAMS_PART: PartId = PartId(2);

fn wire_part(wire: usize) -> PartId {
    PartId(3 + wire as u32)
}

/// The other node, as a node's engine knows it.
pub const OTHER: PeerId = PeerId(0);
/// A node itself, as its engine knows it.
pub const HERE: PeerId = PeerId(1);
/// The domain of the first node's memory; the others follow.
pub const DOMAIN: Domain = Domain(5);
/// Programs of a node, where memory is programs' own.
pub const PROGRAMS: usize = 2;
/// Each node calls its own memory by another name.
pub fn domain_of(node: usize) -> Domain {
    Domain(DOMAIN.0 + node as u16)
}

/// The domain of one of its programs.
fn domain_of_program(node: usize, program: usize) -> Domain {
    Domain(domain_of(node).0 + 2 * program as u16)
}

/// The program of a domain.
fn program_of(domain: Domain) -> usize {
    usize::from((domain.0 - DOMAIN.0) / 2)
}

/// The node of a domain.
fn node_of(domain: Domain) -> usize {
    usize::from((domain.0 - DOMAIN.0) % 2)
}

/// Where the words for atomic operations begin, and how many there are.
pub const WORDS_BASE: u64 = 0x8_0000_0000;
/// How many words there are.
pub const WORDS: usize = 3;

/// Where the memory of each node begins.
pub const BASE: u64 = 0x4_0000_0000;

/// When a world begins.
const START: Time = Time(1_000);

/// The two nodes, and what is between them.
pub struct Bench {
    config: Config,
    kernel: Kernel<Event>,
    packets: Packets,
    /// The engine of each node.
    pub engines: [Engine; 2],
    /// The memory of each node.
    pub memory: [Vec<u8>; 2],
    /// What each memory must hold.
    pub expected: [Vec<u8>; 2],
    /// First byte of each memory not given to a transfer yet.
    pub unused: [usize; 2],
    /// What goes wrong.
    pub faults: Faults,
    /// Chance that a link is full for a block, for up to three milliseconds.
    pub full_links: u64,
    /// For how long a wire may be silent before both ends leave it.
    pub outage_ns: Option<u64>,
    /// Random numbers of what is posted. Nodes and wires have their own.
    pub random: Random,
    /// Payload of a packet, at most.
    pub payload_bytes: u32,
    /// The transfers, by the number that each was posted with.
    pub watched: Vec<Watched>,
    /// Words that atomic operations change, a few of each node.
    pub words: [[u64; WORDS]; 2],
    /// Operations carried out and not told to their posters yet: where, what, and the word before.
    pub operated: Vec<(usize, u64, AtomicOperation, u64)>,
    /// Transfers by where their notification is written: node and address.
    pub by_notification: BTreeMap<(usize, u64), usize>,
    /// Transfers that have not ended.
    pub open: usize,
    /// Every action that was handed out, if that is to be kept.
    pub log: Option<Vec<(usize, Action)>>,
    /// Scribble over the destination of what is complete: a late write shows.
    pub scribble: bool,
    /// Packets that wires have lost.
    pub dropped: u64,
    /// Where failed writes may have left anything.
    pub anything: Vec<(usize, std::ops::Range<usize>)>,
    /// Writes between nodes that have failed, and whose destination no other transfer has had since.
    failed_writes: Vec<usize>,
    /// The wires; each is a path.
    pub wires: Vec<Wire>,
    stop: Option<stops::Stop>,
    /// What programs do, where all memory is programs' own.
    pub own_faults: Option<OwnFaults>,
    /// Where all memory is programs' own.
    hosts: Option<[own_memory::Host; 2]>,
    /// Programs may be stopped in the middle of a copy.
    programs_stop: bool,
    planted: plants::Planted,
}

impl Bench {
    /// Two nodes with engines of this configuration and random memory, and a wire without faults.
    pub fn new(config: Config, seed: u64, memory_bytes: usize) -> Self {
        let mut kernel = Kernel::new(seed);
        for part in [NODES[0], NODES[1], PROGRAMS_PART, wire_part(0)] {
            assert_eq!(kernel.add_part(), part);
        }
        kernel.advance(kernel::Time::from(START));
        let mut random = kernel.random(PROGRAMS_PART).clone();
        let mut fill = || {
            let mut bytes = vec![0; memory_bytes];
            for word in bytes.chunks_mut(8) {
                let random = random.next().to_le_bytes();
                word.copy_from_slice(&random[..word.len()]);
            }
            bytes
        };
        let memory = [fill(), fill()];
        let mut engines = [Engine::new(config), Engine::new(config)];
        for engine in &mut engines {
            engine.add_peer(START, OTHER);
        }
        Self {
            config,
            kernel,
            packets: Packets::default(),
            engines,
            expected: memory.clone(),
            memory,
            unused: [0; 2],
            faults: Faults::default(),
            full_links: 0,
            outage_ns: None,
            random,
            payload_bytes: 1024,
            watched: Vec::new(),
            words: [[0; WORDS]; 2],
            operated: Vec::new(),
            by_notification: BTreeMap::new(),
            open: 0,
            log: None,
            scribble: true,
            dropped: 0,
            anything: Vec::new(),
            failed_writes: Vec::new(),
            wires: vec![Wire::new(10_000)],
            stop: None,
            own_faults: None,
            hosts: None,
            programs_stop: false,
            planted: plants::Planted::default(),
        }
    }

    /// The present, as the engines are told it.
    pub fn now(&self) -> Time {
        self.kernel.now().of_core()
    }

    /// The machine is stopped until then: what was due meanwhile comes late.
    pub fn skip_to(&mut self, time: Time) {
        self.kernel.advance(time.into());
    }

    /// Both engines look at the clock, as after a stop.
    pub fn expire_all(&mut self) {
        let now = self.now();
        self.engines.iter_mut().for_each(|engine| engine.expire(now));
    }

    /// What has happened so far, as one number.
    pub fn trace(&self) -> Trace {
        self.kernel.trace()
    }

    /// Whether the engines have congestion control.
    pub fn limits_windows(&self) -> bool {
        self.config.congestion.is_some()
    }

    /// Something is to happen at a node, by itself.
    fn at(&mut self, node: usize, time: Time, event: Event) {
        self.kernel.send_at(NODES[node], NODES[node], time.into(), event);
    }

    /// Do everything both engines ask for now.
    pub fn drain(&mut self) {
        for node in 0..2 {
            while !self.is_stopped(node) {
                match self.engines[node].poll(self.now()) {
                    Some(action) => self.perform(node, action),
                    None if self.drain_own(node) => {}
                    None => break,
                }
            }
        }
    }

    /// Carries an action out, as a runtime does.
    pub fn perform(&mut self, node: usize, action: Action) {
        if let Some(log) = &mut self.log {
            log.push((node, action));
        }
        match action {
            Action::SendBlock(block) if block.peer == HERE => self.stay_own(node, &block),
            Action::Send { peer: HERE, packet, .. } => self.words_own(node, &packet),
            Action::SendBlock(block) => self.send_block(node, &block),
            Action::Send { packet, path, .. } => {
                let mut bytes = [0; MAX_BARE_PACKET_BYTES];
                let length = packet.emit(&mut bytes, Checksums::On).expect("a packet of the engine");
                self.transmit(node, path, &bytes[..length]);
            }
            Action::WriteNotification(write) if self.hosts.is_some() => self.notify_own(node, write),
            Action::WriteNotification(write) => {
                if self.kernel.random(NODES[node]).per_million(self.faults.slow_copy) {
                    let delay_ns = self.kernel.random(NODES[node]).below(self.faults.slow_ns);
                    self.at(node, self.now().after_ns(delay_ns), Event::Written { write: Box::new(write) });
                } else if self.kernel.random(NODES[node]).per_million(self.faults.absent_page) {
                    self.engines[node].notification_refused(write, NackCode::SlaveError);
                } else {
                    self.write_notification(node, write);
                }
            }
            Action::Complete(completion) => self.complete(node, completion),
        }
    }

    /// The next moment at which anything happens; false if none.
    pub fn step(&mut self) -> bool {
        self.disturb_programs();
        self.drain();
        for (node, part) in NODES.into_iter().enumerate() {
            let deadline = self.engines[node].deadline().into_iter().chain(self.own_deadline(node)).min();
            // A node that is stopped looks at no clock.
            let deadline = deadline.filter(|_| !self.is_stopped(node) && self.wakes(node));
            self.kernel.set_alarm(part, deadline.map(kernel::Time::from));
        }
        if self.kernel.next_time().is_none() {
            return false;
        }
        while let Some(event) = self.kernel.next_event() {
            let node = event.to.0 as usize;
            match event.what {
                Due::Alarm => {
                    let now = self.now();
                    self.engines[node].expire(now);
                    self.expire_own(node);
                }
                Due::Message(message) => self.handle(node, message),
            }
            let now = self.kernel.now();
            if self.kernel.next_time().is_none_or(|next| next > now) {
                break;
            }
        }
        self.leave_silent_wires();
        self.drain();
        true
    }

    fn handle(&mut self, node: usize, event: Event) {
        match event {
            Event::Arrive { wire, packet } if self.is_stopped(node) => self.hold(wire, packet),
            Event::Arrive { wire, packet } => self.arrive_packet(node, wire, packet),
            Event::Copied { placement, bytes } => {
                let copied = self.packets.consume(bytes, <[u8]>::to_vec);
                self.copy(node, *placement, &copied);
            }
            Event::Written { write } => self.write_notification(node, *write),
            Event::Operated { operation } => self.operate(node, *operation),
            Event::PageReady { placement } => self.engines[node].page_ready(&placement),
            Event::SourceReady { block } => self.engines[node].source_ready(&block),
            Event::Room { path } => self.engines[node].link_has_room(OTHER, path),
            Event::Attempt { context, access, how } => self.attempt(node, context, access, how),
            Event::Withdraw { context, access } => self.withdraw(node, context, access),
            Event::Touch { context, touch, range, right } => {
                self.touched(node, context, touch, range, right);
            }
            Event::Mapped => self.map_again(node),
            Event::Release { start } => self.release(node, start),
            Event::Change { which } => self.change_here(node, which),
        }
    }

    /// Run until nothing is open and nothing is under way. Panics if that takes
    /// longer than `limit_ns` of virtual time: something hangs.
    pub fn settle(&mut self, limit_ns: u64) {
        let limit = self.now().after_ns(limit_ns);
        while self.step() {
            assert!(self.now() < limit, "hangs: {} transfers open, {:#?}", self.open, self.report());
        }
        assert_eq!(self.open, 0, "silent with transfers open: {:#?}", self.report());
        for engine in &self.engines {
            assert!(engine.is_idle(), "a table is not empty: {:#?}", self.report());
            assert_eq!(engine.counters().illegal_transitions, 0);
        }
        self.check_programs();
    }

    /// What both engines have counted.
    pub fn report(&self) -> [tombolo_core::rdma::Counters; 2] {
        [self.engines[0].counters(), self.engines[1].counters()]
    }
}
