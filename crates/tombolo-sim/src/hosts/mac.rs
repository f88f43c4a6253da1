//! The shared interface of MICRO §3.2 and §6.1: the block in logic that takes frames of several nodes in turn and sends them on one wire,
//! and gives those that come to the node that they are for. Queues, turns and switch are the core's. And the machine at the other end of
//! the wire.

use tombolo_core::nic::{
    Fifo, Mac, Mode, Next, Origin, PortId, Refusal, Rules, Scheduler, Sent, Share, Switch, Targets, Turns,
};

use super::nic::header;
use crate::kernel::{PacketId, Rate, Time};
use crate::parts::{Cargo, Here, Input, Message, Part, RouteId, Work};

/// The input where frames come from the wire; those of nodes come at the input of their number.
pub const WIRE: u8 = u8::MAX;

/// The constants of the shared interface.
#[derive(Clone, Copy, Debug)]
pub struct SharedMacConfig {
    /// How fast bytes follow each other on the wire.
    pub wire: Rate,
    /// Bytes that go with each frame beside its own: preamble, check sequence, gap.
    pub beside_bytes: u32,
    /// Bytes of the queue of each node.
    pub queue_bytes: u64,
}

#[derive(Debug)]
struct Port {
    queue: Fifo<PacketId>,
    /// Who is told that there is room again.
    credit: Input,
    /// The way of frames that are for the node.
    way: RouteId,
}

/// The shared interface.
#[derive(Debug)]
pub struct SharedMac {
    config: SharedMacConfig,
    switch: Switch,
    scheduler: Scheduler,
    ports: Vec<Port>,
    /// The way of frames to the wire's other end.
    way: Option<RouteId>,
    /// When the wire is free.
    free_at: Time,
    targets: Targets,
    refused: u64,
}

impl SharedMac {
    /// Without nodes.
    pub fn new(config: SharedMacConfig) -> Self {
        Self {
            config,
            switch: Switch::new(Mode::Bridge),
            // It is never late, and reads one frame at once.
            scheduler: Scheduler::new(Turns::Frames, 0, 0),
            ports: Vec::new(),
            way: None,
            free_at: Time::ZERO,
            targets: Targets::default(),
            refused: 0,
        }
    }

    /// Adds a node with an address; its frames come at the input of this number, and those for it leave by `way`. `false`: another one
    /// has the address, or it is none.
    pub fn add(&mut self, address: Mac, credit: Input, way: RouteId) -> bool {
        let id = PortId(self.ports.len() as u16);
        let is_right = self.switch.set(id, Rules::new(address)).is_ok();
        self.scheduler.set(0, id, Share::default());
        self.ports.push(Port { queue: Fifo::new(self.config.queue_bytes), credit, way });
        is_right
    }

    /// Frames leave the wire by this way.
    pub fn set_way(&mut self, way: RouteId) {
        self.way = Some(way);
    }

    /// Frames that went nowhere: there was no room, or nobody whom they are for.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Where a frame goes.
    fn look(&mut self, here: &Here<'_>, from: Origin, packet: &PacketId) -> Result<(), Refusal> {
        self.switch.forward(from, here.packets.bytes(packet), &mut self.targets)
    }

    fn take(&mut self, here: &mut Here<'_>, from: Origin, packet: PacketId, bytes: u32) {
        if self.look(here, from, &packet).is_err() {
            self.refused += 1;
            here.packets.discard(packet);
            return self.give_room(here, from);
        }
        for id in &self.targets.ports {
            let Some(port) = self.ports.get(usize::from(id.0)) else { continue };
            let copy = here.packets.copy(&packet);
            here.start(here.now(), port.way, Cargo::Packet(copy), bytes);
        }
        let left = match from {
            Origin::Port(id) if self.targets.uplink => match self.ports.get_mut(usize::from(id.0)) {
                Some(port) => port.queue.push(bytes, packet).map(|()| self.scheduler.has_frames(id)),
                None => Err(packet),
            },
            // It went to nodes alone.
            Origin::Port(_) | Origin::Uplink => {
                here.packets.discard(packet);
                return self.give_room(here, from);
            }
        };
        if let Err(packet) = left {
            self.refused += 1;
            here.packets.discard(packet);
            self.give_room(here, from);
        }
    }

    /// A frame of a node is here no more: the node may send another one.
    fn give_room(&self, here: &mut Here<'_>, from: Origin) {
        let Origin::Port(id) = from else { return };
        let Some(port) = self.ports.get(usize::from(id.0)) else { return };
        let room = Work { operation: 0, tag: id.0.into(), reply_to: port.credit };
        here.send(port.credit, here.now(), Message::Done(room));
    }

    /// Sends the next frame, if the wire is free.
    fn send(&mut self, here: &mut Here<'_>) {
        let (now, Some(way)) = (here.now(), self.way) else { return };
        while self.free_at <= now
            && let Next::Read(id) = self.scheduler.next(now.of_core().0)
        {
            let port = &mut self.ports[usize::from(id.0)];
            let Some((bytes, packet)) = port.queue.pop() else {
                self.scheduler.was_empty(id);
                continue;
            };
            self.give_room(here, Origin::Port(id));
            let on_wire = u64::from(bytes) + u64::from(self.config.beside_bytes);
            self.scheduler.charge(now.of_core().0, id, Sent { frames: 1, bytes: on_wire });
            self.free_at = now.after(self.config.wire.span_of(on_wire));
            here.start(self.free_at, way, Cargo::Packet(packet), bytes);
        }
        let waits = self.ports.iter().any(|port| !port.queue.is_empty());
        here.set_alarm(waits.then_some(self.free_at));
    }
}

impl Part for SharedMac {
    fn receive(&mut self, here: &mut Here<'_>, port: u8, message: Message) {
        let Message::Traveller(traveller) = message else { return };
        match traveller.cargo {
            Cargo::Packet(packet) => {
                let from = if port == WIRE { Origin::Uplink } else { Origin::Port(PortId(port.into())) };
                self.take(here, from, packet, traveller.bytes);
            }
            cargo => here.discard(cargo),
        }
        self.send(here);
    }

    fn wake(&mut self, here: &mut Here<'_>) {
        self.send(here);
    }

    fn open(&self) -> u64 {
        self.ports.iter().filter(|port| !port.queue.is_empty()).count() as u64
    }

    fn forwards(&self) -> bool {
        false
    }
}

/// A machine at the other end of a wire, faster than all of it: it takes every frame, and sends to each of some nodes as many frames as may
/// be on their way to it. It is told of frames that came there at its input 1, by the node's number.
#[derive(Debug)]
pub struct Station {
    own: Mac,
    nodes: Vec<Mac>,
    window: u32,
    frame_bytes: u32,
    way: Option<RouteId>,
    /// Frames that came, by who sent them.
    received: Vec<u64>,
}

impl Station {
    /// One that knows these nodes.
    pub fn new(own: Mac, nodes: Vec<Mac>, window: u32, frame_bytes: u32) -> Self {
        let received = vec![0; nodes.len()];
        Self { own, nodes, window, frame_bytes, way: None, received }
    }

    /// It begins to send by this way.
    pub fn start(&mut self, here: &mut Here<'_>, way: RouteId) {
        self.way = Some(way);
        for node in 0..self.nodes.len() {
            (0..self.window).for_each(|_| self.send(here, node));
        }
    }

    /// Frames that came, by node.
    pub fn received(&self) -> &[u64] {
        &self.received
    }

    fn send(&self, here: &mut Here<'_>, node: usize) {
        let (Some(way), Some(to)) = (self.way, self.nodes.get(node)) else { return };
        let packet = here.packets.add(|bytes| bytes.extend(header(*to, self.own)));
        here.start(here.now(), way, Cargo::Packet(packet), self.frame_bytes);
    }
}

impl Part for Station {
    fn receive(&mut self, here: &mut Here<'_>, _port: u8, message: Message) {
        match message {
            Message::Traveller(traveller) => {
                if let Cargo::Packet(packet) = &traveller.cargo {
                    let source = here.packets.bytes(packet).get(6..12);
                    let node = self.nodes.iter().position(|node| Some(&node.0[..]) == source);
                    if let Some(received) = node.and_then(|node| self.received.get_mut(node)) {
                        *received += 1;
                    }
                }
                here.discard(traveller.cargo);
            }
            Message::Done(Work { tag, .. }) => self.send(here, tag as usize),
            Message::Work(_) | Message::Copy(_) | Message::Copied(_) => {}
        }
    }

    fn open(&self) -> u64 {
        0
    }

    fn forwards(&self) -> bool {
        false
    }
}
