//! A node with an engine: programs, a processor, a mailbox, a send block, a receive block and a memory.

use super::faults::{FaultConfig, FaultCounts, Faults};
use super::processor::{Mail, Prices, Processor, STEPS, Task, TaskKind};
use super::program::{Ended, Failure, Program, Running};
use super::sender::{Outgoing, Sender};
use crate::kernel::{PartId, Rate, Span, Time};
use crate::parts::{Cargo, Here, Mailbox, Message, Part, RouteId};
use std::collections::VecDeque;
use tombolo_core::rdma::{
    Action, Block, Completion, Config, Counters, Engine, NotificationWrite, PathId, PeerId, PostError,
    Transfer,
};
use tombolo_wire::{Checksums, MAX_BARE_PACKET_BYTES, NackCode, Packet, Payload};

/// What becomes of the bytes of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// They are read, sent as packets with checksums, and written.
    Bytes,
    /// They are only named: packets are headers. What damages one damages its payload, never its header.
    Names,
}

/// What becomes of a read request for which there is no channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// The engine has it: it waits in the engine's buffer, or is refused.
    Taken,
    /// It stays where it is, at the front of the mailbox, and everything behind it waits (QOS §3.6.2, Fig 3.10).
    HeldInMailbox,
    /// It stays at the front of a mailbox that is for requests only (QOS §3.6.3, Fig 3.12).
    HeldApart,
}

/// The constants of a node.
#[derive(Clone, Copy, Debug)]
pub struct EngineHostConfig {
    /// The engine's.
    pub engine: Config,
    /// The processor's.
    pub prices: Prices,
    /// Bytes of a packet.
    pub packet_bytes: u32,
    /// Bytes beside those, for the pace of the send block.
    pub beside_bytes: u32,
    /// How fast the send block reads and sends; `None`: as fast as it is told.
    pub send: Option<Rate>,
    /// Blocks of which the send block sends packets in turn.
    pub interleaved: usize,
    /// Messages that the mailbox holds, and the one for requests, if there is one.
    pub mailbox: usize,
    /// What becomes of requests that cannot be served now.
    pub requests: Requests,
    /// Whether pages may be absent, and what becomes of it then.
    pub faults: Option<FaultConfig>,
    /// What becomes of bytes.
    pub carried: Carried,
    /// Bytes of the memory, which begins at address 0, if bytes are carried.
    pub memory_bytes: usize,
}

impl Default for EngineHostConfig {
    fn default() -> Self {
        Self {
            engine: Config::default(),
            prices: Prices::default(),
            packet_bytes: 256,
            beside_bytes: 0,
            send: None,
            interleaved: 2,
            mailbox: usize::MAX,
            requests: Requests::Taken,
            faults: None,
            carried: Carried::Names,
            memory_bytes: 0,
        }
    }
}

/// A node.
#[derive(Debug)]
pub struct EngineHost {
    pub(super) config: EngineHostConfig,
    pub(super) engine: Engine,
    /// The ways to each peer, by its paths.
    ways: Vec<Vec<Option<RouteId>>>,
    /// Who sends by a route.
    senders: Vec<Option<(PeerId, PathId)>>,
    processor: Processor,
    pub(super) mailbox: Mailbox<Mail>,
    /// Of requests only, where they wait apart.
    pub(super) requests: Mailbox<Mail>,
    sender: Sender,
    /// Rings, in the order in which the processor sees them: when, the program, and the number of its transfer.
    rings: VecDeque<(Time, usize, u64)>,
    programs: Vec<Running>,
    pub(super) memory: Vec<u8>,
    pub(super) faults: Option<Box<Faults>>,
    /// Packets that could not be read.
    pub(super) unreadable: u64,
}

/// Programs are numbered in the upper half of `Transfer::user`, their transfers in the lower.
const PROGRAM_SHIFT: u32 = 32;

/// How a transfer of a program is known to its engine.
fn user_of(program: usize, number: u64) -> u64 {
    (program as u64) << PROGRAM_SHIFT | number
}

/// How a transfer of a node is known in a timeline.
fn flow_of(node: PartId, user: u64) -> u32 {
    // Any number that others hardly have, and not 0.
    tombolo_random::mix(u64::from(node.0) << 48 ^ user) as u32 | 1
}

impl EngineHost {
    /// A node without peers.
    pub fn new(config: EngineHostConfig) -> Self {
        let memory_bytes = if config.carried == Carried::Bytes { config.memory_bytes } else { 0 };
        Self {
            engine: Engine::new(config.engine),
            ways: Vec::new(),
            senders: Vec::new(),
            processor: Processor::default(),
            mailbox: Mailbox::new(config.mailbox),
            requests: Mailbox::new(config.mailbox),
            sender: Sender::new(config.packet_bytes, config.interleaved, config.send, config.beside_bytes),
            rings: VecDeque::new(),
            programs: Vec::new(),
            memory: vec![0; memory_bytes],
            faults: config.faults.map(|config| Box::new(Faults::new(config))),
            unreadable: 0,
            config,
        }
    }

    /// Another node can be reached: by `there`, and what it sends comes by `back`, which ends here. A second way to a peer is another
    /// path.
    pub fn add_way(&mut self, now: Time, peer: PeerId, path: PathId, there: RouteId, back: RouteId) {
        let (index, place) = (peer.index(), usize::from(path.0));
        if self.ways.len() <= index {
            self.ways.resize(index + 1, Vec::new());
        }
        if self.ways[index].is_empty() {
            self.engine.add_peer(now.of_core(), peer);
        }
        if path != PathId(0) {
            self.engine.add_path(now.of_core(), peer, path);
        }
        if self.ways[index].len() <= place {
            self.ways[index].resize(place + 1, None);
        }
        self.ways[index][place] = Some(there);
        if self.senders.len() <= back.0 as usize {
            self.senders.resize(back.0 as usize + 1, None);
        }
        self.senders[back.0 as usize] = Some((peer, path));
    }

    /// A program begins; its number.
    pub fn run(&mut self, here: &mut Here<'_>, program: Program) -> usize {
        self.programs.push(Running::new(program));
        let number = self.programs.len() - 1;
        self.ring(here.now(), number);
        self.go_on(here);
        number
    }

    /// The transfers of a program that have ended.
    pub fn ended(&self, program: usize) -> &[Ended] {
        self.programs.get(program).map_or(&[], |running| &running.ended)
    }

    /// Whether a program has transfers that have not ended.
    pub fn is_open(&self, program: usize) -> bool {
        self.programs.get(program).is_some_and(|running| running.open() > 0)
    }

    /// The memory, if bytes are carried.
    pub fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// These bytes of the memory are absent from now on, if pages may be.
    pub fn take_away(&mut self, address: u64, length_bytes: u64) {
        if let Some(faults) = &mut self.faults {
            faults.take_away(address, length_bytes);
        }
    }

    /// A program of this node has touched these pages.
    pub fn bring(&mut self, address: u64, length_bytes: u64) {
        if let Some(faults) = &mut self.faults {
            faults.bring(address, length_bytes);
        }
    }

    /// A program has given these pages up: who touches them is refused.
    pub fn unmap(&mut self, address: u64, length_bytes: u64) {
        if let Some(faults) = &mut self.faults {
            faults.unmap(address, length_bytes);
        }
    }

    /// What faults have cost, if pages may be absent.
    pub fn faults(&self) -> Option<FaultCounts> {
        self.faults.as_ref().map(|faults| faults.counts())
    }

    /// The engine's counters.
    pub fn counters(&self) -> Counters {
        self.engine.counters()
    }

    /// How long the processor was busy.
    pub fn processor_busy(&self) -> Span {
        self.processor.busy()
    }

    /// How often the processor has done this.
    pub fn tasks(&self, kind: TaskKind) -> u64 {
        self.processor.count(kind)
    }

    /// How long the send block was busy.
    pub fn sender_busy(&self) -> Span {
        self.sender.busy()
    }

    /// Messages that the mailbox had no room for, and packets that could not be read.
    pub fn dropped(&self) -> (u64, u64) {
        (self.mailbox.refused() + self.requests.refused(), self.unreadable)
    }

    /// A program posts what it may.
    fn ring(&mut self, at: Time, program: usize) {
        while let Some(number) = self.programs[program].begin(at) {
            let seen_at = at.after(self.config.prices.seen);
            // Those of one moment are seen in the order of ringing.
            let place = self.rings.partition_point(|(time, ..)| *time <= seen_at);
            self.rings.insert(place, (seen_at, program, number));
        }
    }

    /// Whatever can go on now goes on: what one does may give another something to do.
    fn go_on(&mut self, here: &mut Here<'_>) {
        let now = here.now();
        loop {
            self.answer(here);
            let mut has_moved = false;
            if let Some(task) = self.processor.take_done(now) {
                self.finish(here, task);
                has_moved = true;
            } else if self.processor.running.is_none() {
                has_moved = self.begin(here);
            }
            while let Some(outgoing) = self.sender.next(now) {
                self.send_packet(here, &outgoing);
                has_moved = true;
            }
            let ready = self.faults.as_mut().map_or_else(Vec::new, |faults| faults.go_on(now));
            for placement in &ready {
                self.engine.page_ready(placement);
                has_moved = true;
            }
            if !has_moved {
                break;
            }
        }
        self.set_alarm(here);
    }

    fn set_alarm(&self, here: &mut Here<'_>) {
        let now = here.now();
        let processor = match &self.processor.running {
            Some((done_at, _)) => Some(*done_at),
            None => {
                let ring = self.rings.front().map(|(seen_at, ..)| *seen_at);
                ring.into_iter().chain(self.engine.deadline().map(Time::from)).min()
            }
        };
        let handler = self.faults.as_ref().and_then(|faults| faults.done_at());
        here.set_alarm(processor.into_iter().chain(self.sender.next_at(now)).chain(handler).min());
    }

    /// The processor's next task, in the order of its loop. `false`: there is none now.
    fn begin(&mut self, here: &mut Here<'_>) -> bool {
        let now = here.now();
        let prices = self.config.prices;
        for _ in 0..STEPS {
            let step = self.processor.step;
            self.processor.step = (step + 1) % STEPS;
            let begun = match step {
                0 => self.rings.pop_front_if(|(seen_at, ..)| *seen_at <= now).map(|(_, program, number)| {
                    let bypasses = self.engine.counters().bypasses;
                    let status = self.post(now, program, number);
                    let passes_by = self.engine.counters().bypasses > bypasses;
                    let price = if passes_by { Span::ZERO } else { prices.queue };
                    (price, TaskKind::Doorbell, Task::Posted { program, number, status })
                }),
                1 => self.engine.poll_send(now.of_core()).map(|action| {
                    let (price, kind) = match &action {
                        Action::SendBlock(block) => {
                            let notification = match block.notification {
                                tombolo_core::rdma::BlockNotification::Now(_) => prices.message,
                                _ => Span::ZERO,
                            };
                            (prices.block.plus(notification), TaskKind::Block)
                        }
                        Action::Send { .. } | Action::WriteNotification(_) => {
                            (prices.message, TaskKind::Message)
                        }
                        Action::Complete(_) => (prices.completion, TaskKind::Completion),
                    };
                    (price, kind, Task::Act(action))
                }),
                2 => self.next_mail(here).map(|mail| {
                    let (price, kind) = match mail.is_request {
                        true => (prices.request, TaskKind::Request),
                        false => (prices.answer, TaskKind::Answer),
                    };
                    (price, kind, Task::Read(mail))
                }),
                _ => {
                    let is_due = self.engine.deadline().is_some_and(|due| due <= now.of_core());
                    is_due.then_some((prices.timeout, TaskKind::Timeout, Task::Expire))
                }
            };
            if let Some((price, kind, task)) = begun {
                here.slice("processor", kind.name(), now, now.after(price), 0);
                self.processor.begin(now, price, kind, task);
                return true;
            }
        }
        false
    }

    /// Gives the engine a transfer of a program.
    fn post(&mut self, now: Time, program: usize, number: u64) -> Result<(), PostError> {
        let Program { peer, transfer, .. } = self.programs[program].program;
        let user = user_of(program, number);
        self.engine.post(now.of_core(), peer, Transfer { user, ..transfer }).map(|_| ())
    }

    /// The next message that can be read.
    fn next_mail(&mut self, here: &Here<'_>) -> Option<Mail> {
        let has_room = |mail: &Mail| match &mail.cargo {
            Cargo::Header(header) => match here.headers.get(header) {
                Packet::ReadRequest(request) => self.engine.has_read_room(mail.from.0, request),
                _ => true,
            },
            Cargo::Packet(packet) => match Packet::parse(here.packets.bytes(packet), Checksums::On) {
                Ok(Packet::ReadRequest(request)) => self.engine.has_read_room(mail.from.0, &request),
                _ => true,
            },
            Cargo::Blank(_) | Cargo::Access(_) => true,
        };
        let is_held = |mailbox: &Mailbox<Mail>| mailbox.front().is_some_and(|mail| !has_room(mail));
        match self.config.requests {
            Requests::Taken => self.mailbox.pop(),
            Requests::HeldInMailbox if is_held(&self.mailbox) => None,
            Requests::HeldInMailbox => self.mailbox.pop(),
            Requests::HeldApart if !self.mailbox.is_empty() || is_held(&self.requests) => self.mailbox.pop(),
            Requests::HeldApart => self.requests.pop(),
        }
    }

    fn finish(&mut self, here: &mut Here<'_>, task: Task) {
        let now = here.now();
        match task {
            Task::Posted { status: Ok(()), .. } => {}
            // The program learns of it at once.
            Task::Posted { program, number, status: Err(error) } => {
                self.told(here, program, number, Err(error.into()));
            }
            Task::Act(Action::SendBlock(block)) => {
                self.engine.source_begun(&block);
                if let Some(faults) = &mut self.faults {
                    faults.begun(&block);
                }
                self.sender.push(block);
            }
            Task::Act(Action::Send { peer, path, packet }) => self.send_message(here, (peer, path), packet),
            Task::Act(Action::WriteNotification(write)) => self.notify(here, write),
            Task::Act(Action::Complete(Completion { user, status, .. })) => {
                let (program, number) = ((user >> PROGRAM_SHIFT) as usize, user & u64::from(u32::MAX));
                self.told(here, program, number, status.map_err(Failure::from));
            }
            Task::Read(mail) => {
                let Mail { from, cargo, .. } = mail;
                self.take(here, from, cargo, false);
            }
            Task::Expire => self.engine.expire(now.of_core()),
        }
    }

    /// A program sees the end of a transfer, and posts the next one.
    fn told(&mut self, here: &mut Here<'_>, program: usize, number: u64, status: Result<(), Failure>) {
        let Some(running) = self.programs.get_mut(program) else { return };
        if let Some(ended) = running.end(number, here.now(), status) {
            let flow = flow_of(here.part(), user_of(program, number));
            here.slice("transfers", "transfer", ended.begun_at, ended.ended_at, flow);
        }
        let gap = running.program.gap;
        self.ring(here.now().after(gap), program);
    }

    /// The receive block sends what it has to say; no processor takes part.
    fn answer(&mut self, here: &mut Here<'_>) {
        while let Some(action) = self.engine.poll_answer(here.now().of_core()) {
            match action {
                Action::Send { peer, path, packet } => self.send_message(here, (peer, path), packet),
                Action::WriteNotification(write) => self.notify(here, write),
                Action::SendBlock(_) | Action::Complete(_) => {}
            }
        }
    }

    fn notify(&mut self, here: &mut Here<'_>, write: NotificationWrite) {
        here.slice("notifications", "notification", here.now(), here.now(), 0);
        let words = write.words;
        let bytes = [words.first.to_le_bytes(), words.last.to_le_bytes()].concat();
        if self.write(words.address, &bytes, 16) {
            self.engine.notified(write);
        } else {
            self.engine.notification_refused(write, NackCode::DecodeError);
        }
    }

    fn way(&self, (peer, path): (PeerId, PathId)) -> Option<RouteId> {
        *self.ways.get(peer.index())?.get(usize::from(path.0))?
    }

    /// Sends a packet without payload.
    fn send_message(&mut self, here: &mut Here<'_>, to: (PeerId, PathId), packet: Packet<'static>) {
        let Some(way) = self.way(to) else { return };
        let cargo = match self.config.carried {
            Carried::Names => Cargo::Header(here.headers.add(packet)),
            Carried::Bytes => Cargo::Packet(here.packets.add(|bytes| {
                bytes.resize(MAX_BARE_PACKET_BYTES, 0);
                // What an engine says can be written.
                let length = packet.emit(bytes, Checksums::On).unwrap_or_default();
                bytes.truncate(length);
            })),
        };
        here.start(here.now(), way, cargo, 0);
    }

    /// Sends a packet of a block.
    fn send_packet(&mut self, here: &mut Here<'_>, outgoing: &Outgoing) {
        let Outgoing { block, header, is_last, .. } = outgoing;
        let now = here.now();
        if let Some(faults) = &mut self.faults
            && let Err(refusal) = faults.read(now, block, header.offset_bytes, header.payload_bytes)
        {
            // What went before has left; the rest comes with the next transmission.
            self.sender.abort(block);
            return self.engine.source_refused(now.of_core(), block, refusal);
        }
        let payload = match self.config.carried {
            Carried::Names => Some(&[][..]),
            Carried::Bytes => Self::read(&self.memory, block, header.offset_bytes, header.payload_bytes),
        };
        let Some(payload) = payload else {
            self.sender.abort(block);
            return self.engine.source_refused(now.of_core(), block, NackCode::DecodeError);
        };
        let Some(way) = self.way((block.peer, block.path)) else { return };
        let cargo = match self.config.carried {
            Carried::Names => Cargo::Header(here.headers.add(Packet::Data(*header, Payload::Intact(&[])))),
            Carried::Bytes => Cargo::Packet(here.packets.add(|bytes| {
                bytes.resize(header.header_bytes(), 0);
                bytes.extend_from_slice(payload);
                // A header of the engine's own block lies in it.
                let _ = header.seal(bytes, Checksums::On);
            })),
        };
        if *is_last {
            // What it says of nobody who waits comes too late: the packets before have left.
            let _ = self.engine.source_read(now.of_core(), block);
        }
        // What answers a read belongs to the reader's transfer, whose number is not known here.
        let flow = if block.in_reply_to.is_none() { flow_of(here.part(), block.user) } else { 0 };
        here.start_of(flow, now, way, cargo, header.payload_bytes);
    }

    fn read<'a>(memory: &'a [u8], block: &Block, offset_bytes: u32, length_bytes: u32) -> Option<&'a [u8]> {
        let from = usize::try_from(block.source_address).ok()?.checked_add(offset_bytes as usize)?;
        memory.get(from..from.checked_add(length_bytes as usize)?)
    }

    /// Whether so many bytes could be written: where they are only named, all can.
    pub(super) fn write(&mut self, address: u64, bytes: &[u8], length_bytes: u32) -> bool {
        if self.config.carried == Carried::Names {
            return true;
        }
        let range = usize::try_from(address)
            .ok()
            .and_then(|from| Some(from..from.checked_add(length_bytes as usize)?));
        match range.and_then(|range| self.memory.get_mut(range)) {
            Some(place) if place.len() == bytes.len() => {
                place.copy_from_slice(bytes);
                true
            }
            Some(_) | None => false,
        }
    }
}

impl Part for EngineHost {
    fn receive(&mut self, here: &mut Here<'_>, _port: u8, message: Message) {
        let Message::Traveller(traveller) = message else { return };
        match self.senders.get(traveller.route.0 as usize).copied().flatten() {
            Some(from) => self.arrive(here, from, traveller.cargo, traveller.is_damaged),
            None => here.discard(traveller.cargo),
        }
        self.go_on(here);
    }

    fn wake(&mut self, here: &mut Here<'_>) {
        self.go_on(here);
    }

    fn open(&self) -> u64 {
        self.programs.iter().map(Running::open).sum()
    }

    fn forwards(&self) -> bool {
        false
    }
}
