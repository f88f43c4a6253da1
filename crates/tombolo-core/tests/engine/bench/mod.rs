//! The test bench: a virtual clock, two engines with a memory each, and wires
//! that lose, repeat, reorder, damage and delay, all from one seed.
//!
//! Everything that crosses is bytes: emitted and parsed by `tombolo-wire`. The
//! bench plays the runtime: it copies, writes notifications, and may take its
//! time, or refuse, as a runtime with absent pages would.

mod breaks;
mod faults;
mod own_memory;
mod stops;
mod wires;

pub use faults::Faults;
pub use own_memory::OwnFaults;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use tombolo_core::iommu::{AccessId, ContextId, Right, TouchId};
use tombolo_core::rdma::{
    Action, Block, Completion, Config, Direction, Engine, NotificationWrite, Operation, PathId, PeerId,
    Placement, PostError, Time, Transfer, TransferError, TransferId, Verdict,
};
use tombolo_random::Random;
use tombolo_wire::{
    AtomicOperation, Checksums, Domain, MAX_BARE_PACKET_BYTES, NackCode, Notification, Packet, Payload,
};
pub use wires::{Wire, path_of, wire_of};

enum Event {
    Arrive { to: usize, wire: usize, bytes: Vec<u8> },
    Copied { at: usize, placement: Placement, bytes: Vec<u8> },
    Written { at: usize, write: NotificationWrite },
    Operated { at: usize, operation: Operation },
    PageReady { at: usize, placement: Placement },
    SourceReady { at: usize, block: Block },
    Room { at: usize, path: PathId },
    Attempt { at: usize, context: ContextId, access: AccessId, how: own_memory::Attempt },
    Withdraw { at: usize, context: ContextId, access: AccessId },
    Touch { at: usize, context: ContextId, touch: TouchId, range: (u64, u32), right: Right },
    Mapped { at: usize },
    Release { at: usize, start: u64 },
    Change { at: usize, which: usize },
}

/// A transfer the bench keeps an eye on.
pub struct Watched {
    pub poster: usize,
    /// It is between two programs of the poster's node.
    pub stays: bool,
    /// Whose transfer it is.
    pub asker: Domain,
    pub spec: Transfer,
    pub source: Vec<u8>,
    pub notified: u32,
    pub status: Option<Result<(), TransferError>>,
}

impl Watched {
    /// The node whose memory is written.
    pub fn destination(&self) -> usize {
        match self.spec.direction {
            _ if self.stays => self.poster,
            Direction::Write | Direction::Atomic(_) => 1 - self.poster,
            Direction::Read => self.poster,
        }
    }
}

pub const OTHER: PeerId = PeerId(0);
/// A node itself, as its engine knows it.
pub const HERE: PeerId = PeerId(1);
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
pub const WORDS: usize = 3;

pub const BASE: u64 = 0x4_0000_0000;

pub struct Bench {
    config: Config,
    pub now: Time,
    pub engines: [Engine; 2],
    pub memory: [Vec<u8>; 2],
    /// What each memory must hold.
    pub expected: [Vec<u8>; 2],
    /// First byte of each memory not given to a transfer yet.
    pub unused: [usize; 2],
    pub faults: Faults,
    /// Chance that a link is full for a block, for up to three milliseconds.
    pub full_links: u64,
    /// For how long a wire may be silent before both ends leave it.
    pub outage_ns: Option<u64>,
    pub random: Random,
    pub payload_bytes: u32,
    pub watched: Vec<Watched>,
    /// Words that atomic operations change, a few of each node.
    pub words: [[u64; WORDS]; 2],
    /// Operations carried out and not told to their posters yet: where, what, and the word before.
    pub operated: Vec<(usize, u64, AtomicOperation, u64)>,
    pub by_notification: BTreeMap<(usize, u64), usize>,
    pub open: usize,
    /// Every action handed out, if somebody wants to see.
    pub log: Option<Vec<(usize, Action)>>,
    /// Scribble over the destination of what is complete: a late write shows.
    pub scribble: bool,
    pub dropped: u64,
    /// Where failed writes may have left anything.
    pub anything: Vec<(usize, std::ops::Range<usize>)>,
    /// Writes between nodes that have failed, and whose destination no other transfer has had since.
    failed_writes: Vec<usize>,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    events: BTreeMap<u64, Event>,
    sequence: u64,
    pub wires: Vec<Wire>,
    stop: Option<stops::Stop>,
    pub own_faults: Option<OwnFaults>,
    /// Where all memory is programs' own.
    hosts: Option<[own_memory::Host; 2]>,
    /// Programs may be stopped in the middle of a copy.
    programs_stop: bool,
}

impl Bench {
    pub fn new(config: Config, seed: u64, memory_bytes: usize) -> Self {
        let mut random = Random::new(seed);
        let mut fill = || {
            let mut bytes = vec![0; memory_bytes];
            for word in bytes.chunks_mut(8) {
                let random = random.next().to_le_bytes();
                word.copy_from_slice(&random[..word.len()]);
            }
            bytes
        };
        let memory = [fill(), fill()];
        let now = Time(1_000);
        let mut engines = [Engine::new(config), Engine::new(config)];
        for engine in &mut engines {
            engine.add_peer(now, OTHER);
        }
        Self {
            config,
            now,
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
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            wires: vec![Wire::new(10_000)],
            stop: None,
            own_faults: None,
            hosts: None,
            programs_stop: false,
        }
    }

    /// Whether the engines have congestion control.
    pub fn limits_windows(&self) -> bool {
        self.config.congestion.is_some()
    }

    /// A fresh range of a node's memory, at some alignment; `None` if used up.
    pub fn allocate(&mut self, node: usize, size: usize) -> Option<u64> {
        let start = self.unused[node] + self.random.below(600) as usize;
        // Ranges of programs' own memory begin at different addresses.
        let end = start + size.max(usize::from(self.hosts.is_some()));
        (end + 64 <= self.memory[node].len()).then(|| {
            self.unused[node] = end;
            BASE + start as u64
        })
    }

    /// Post a transfer between fresh ranges and watch it.
    pub fn post(
        &mut self,
        poster: usize,
        direction: Direction,
        size_bytes: u32,
        with_notification: bool,
        class: Option<tombolo_core::rdma::Class>,
    ) -> Option<Result<TransferId, PostError>> {
        let (from, to) = match direction {
            Direction::Write | Direction::Atomic(_) => (poster, 1 - poster),
            Direction::Read => (1 - poster, poster),
        };
        let domains = [self.some_domain(poster), self.some_domain(1 - poster)];
        let ends = [(from, domains[from ^ poster]), (to, domains[to ^ poster])];
        let spec = self.spec(ends, size_bytes, with_notification)?;
        let spec = Transfer { direction, own_domain: domains[0], domain: domains[1], class, ..spec };
        Some(self.post_to(OTHER, (poster, from, to), domains[0], spec))
    }

    /// Post a transfer between two programs of a node and watch it: for the one that has the source, or the other one.
    pub fn post_here(
        &mut self,
        node: usize,
        size_bytes: u32,
        with_notification: bool,
    ) -> Option<Result<TransferId, PostError>> {
        let domains = [self.some_domain(node), self.some_domain(node)];
        let spec = self.spec(domains.map(|domain| (node, domain)), size_bytes, with_notification)?;
        let spec = Transfer { own_domain: domains[0], domain: domains[1], ..spec };
        let asker = self.random.among(&domains);
        Some(self.post_to(HERE, (node, node, node), asker, spec))
    }

    /// A domain of a node.
    fn some_domain(&mut self, node: usize) -> Domain {
        match self.hosts {
            Some(_) => domain_of_program(node, self.random.below(PROGRAMS as u64) as usize),
            None => domain_of(node),
        }
    }

    /// A transfer between fresh ranges of these domains, which are registered there.
    fn spec(
        &mut self,
        [from, to]: [(usize, Domain); 2],
        size_bytes: u32,
        with_notification: bool,
    ) -> Option<Transfer> {
        let source_address = self.allocate(from.0, size_bytes as usize)?;
        let destination_address = self.allocate(to.0, size_bytes as usize)?;
        let notification = match with_notification {
            true => Some(Notification {
                address: self.allocate(to.0, 16)?,
                first: self.random.next(),
                last: self.random.next(),
            }),
            false => None,
        };
        Some(Transfer {
            direction: Direction::Write,
            domain: to.1,
            own_domain: from.1,
            source_address,
            destination_address,
            size_bytes,
            notification,
            class: None,
            user: self.watched.len() as u64,
        })
    }

    /// Whether there are destinations of writes that have failed, to be written again.
    pub fn has_failed_writes(&self) -> bool {
        !self.failed_writes.is_empty()
    }

    /// Post a write of other bytes to a part of the destination of one that has failed, and watch it. Nothing of the earlier one
    /// comes there after its end. `None`: there is no memory left for the source.
    pub fn post_again(&mut self) -> Option<Result<TransferId, PostError>> {
        let which = self.failed_writes.swap_remove(self.random.index(self.failed_writes.len()));
        let (poster, before) = (self.watched[which].poster, self.watched[which].spec);
        let start = self.random.below(u64::from(before.size_bytes));
        let size_bytes = self.random.range(1, u64::from(before.size_bytes) - start) as u32;
        let source_address = self.allocate(poster, size_bytes as usize)?;
        let spec = Transfer {
            source_address,
            destination_address: before.destination_address + start,
            size_bytes,
            notification: None,
            user: self.watched.len() as u64,
            ..before
        };
        let posted = match self.engines[poster].post(self.now, OTHER, spec) {
            Ok(posted) => posted,
            Err(error) => {
                self.failed_writes.push(which);
                return Some(Err(error));
            }
        };
        let at = (source_address - BASE) as usize;
        let source = self.memory[poster][at..at + size_bytes as usize].to_vec();
        self.register(poster, spec.own_domain, source_address, size_bytes);
        let (asker, stays) = (spec.own_domain, false);
        self.watched.push(Watched { poster, stays, asker, spec, source, notified: 0, status: None });
        self.open += 1;
        Some(Ok(posted))
    }

    fn post_to(
        &mut self,
        peer: PeerId,
        (poster, from, to): (usize, usize, usize),
        asker: Domain,
        spec: Transfer,
    ) -> Result<TransferId, PostError> {
        let posted = self.engines[poster].post(self.now, peer, spec)?;
        let domain_at = |node| match (peer == HERE, node == poster) {
            (false, true) => spec.own_domain,
            (false, false) => spec.domain,
            (true, _) => panic!("both are here"),
        };
        let (at_source, at_target) =
            if peer == HERE { (spec.own_domain, spec.domain) } else { (domain_at(from), domain_at(to)) };
        let size = spec.size_bytes as usize;
        let at = (spec.source_address - BASE) as usize;
        let source = self.memory[from][at..at + size].to_vec();
        self.register(from, at_source, spec.source_address, spec.size_bytes);
        self.register(to, at_target, spec.destination_address, spec.size_bytes);
        if let Some(words) = spec.notification {
            self.register(to, at_target, words.address, 16);
            self.by_notification.insert((to, words.address), self.watched.len());
        }
        let stays = peer == HERE;
        self.watched.push(Watched { poster, stays, asker, spec, source, notified: 0, status: None });
        self.open += 1;
        Ok(posted)
    }

    /// An atomic operation on a word of a node, for a program of another one, or the same.
    fn some_atomic(&mut self, poster: usize, at: usize) -> Transfer {
        let word = self.random.below(WORDS as u64);
        let operation = if self.random.per_million(500_000) {
            AtomicOperation::FetchAdd(self.random.next())
        } else {
            // Often what is there by then, often not.
            let compare = self.words[at][word as usize];
            AtomicOperation::CompareSwap { compare, swap: self.random.next() }
        };
        Transfer {
            direction: Direction::Atomic(operation),
            domain: domain_of(at),
            own_domain: self.some_domain(poster),
            source_address: 0,
            destination_address: WORDS_BASE + 8 * word,
            size_bytes: 8,
            notification: None,
            class: None,
            user: self.watched.len() as u64,
        }
    }

    fn watch_atomic(&mut self, poster: usize, stays: bool, spec: Transfer) {
        let (asker, source) = (spec.own_domain, Vec::new());
        self.watched.push(Watched { poster, stays, asker, spec, source, notified: 0, status: None });
        self.open += 1;
    }

    /// Post an atomic operation on a word of the other node and watch it.
    pub fn post_atomic(&mut self, poster: usize) -> Result<TransferId, PostError> {
        let spec = self.some_atomic(poster, 1 - poster);
        let posted = self.engines[poster].post(self.now, OTHER, spec)?;
        self.watch_atomic(poster, false, spec);
        Ok(posted)
    }

    /// Begin an atomic operation on a word of a program of the same node, and watch it.
    pub fn begin_atomic_here(&mut self, node: usize) {
        let spec = self.some_atomic(node, node);
        self.watch_atomic(node, true, spec);
        self.change_here(node, self.watched.len() - 1);
    }

    fn operate(&mut self, node: usize, operation: Operation) {
        let Placement { address, domain, length_bytes, .. } = operation.placement;
        assert_eq!((domain, length_bytes), (domain_of(node), 8));
        let before = self.change(node, address, operation.operation);
        self.engines[node].operated(operation, before);
    }

    /// Changes a word; what it was before.
    fn change(&mut self, node: usize, address: u64, operation: AtomicOperation) -> u64 {
        let word = &mut self.words[node][((address - WORDS_BASE) / 8) as usize];
        let before = *word;
        match operation {
            AtomicOperation::FetchAdd(more) => *word = word.wrapping_add(more),
            AtomicOperation::CompareSwap { compare, swap } if compare == before => *word = swap,
            AtomicOperation::CompareSwap { .. } => {}
        }
        self.operated.push((node, address, operation, before));
        before
    }

    /// An atomic operation that has succeeded was carried out, and once: operations are unique.
    fn check_operated(&mut self, which: usize, before: u64) {
        let watched = &self.watched[which];
        let Direction::Atomic(operation) = watched.spec.direction else { return };
        let told = (watched.destination(), watched.spec.destination_address, operation, before);
        let place = self.operated.iter().position(|known| *known == told);
        self.operated
            .swap_remove(place.unwrap_or_else(|| panic!("operation {which} was not carried out so")));
        assert!(!self.operated.contains(&told), "operation {which} was carried out twice");
    }

    fn at(&mut self, time: Time, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse((time, self.sequence)));
        self.events.insert(self.sequence, event);
    }

    /// Bytes leave for the other node.
    pub fn transmit(&mut self, from: usize, path: PathId, bytes: &[u8]) {
        let faults = self.faults;
        let wire = wire_of(from, path);
        let line = self.wires[wire];
        self.wires[wire].carried += 1;
        if line.cut
            || self.random.per_million(faults.loss)
            || (line.loss > 0 && self.random.per_million(line.loss))
        {
            self.dropped += 1;
            return;
        }
        let copies = 1 + u64::from(self.random.per_million(faults.duplication));
        for _ in 0..copies {
            let mut bytes = bytes.to_vec();
            if self.random.per_million(faults.corruption) {
                let at = self.random.below(bytes.len() as u64 * 8) as usize;
                bytes[at / 8] ^= 1 << (at % 8);
                if self.random.per_million(100_000) {
                    bytes.truncate(at / 8);
                }
            }
            let mut leaves = self.now;
            let byte_picos = faults.byte_picos.max(line.byte_picos);
            let buffer_bytes = faults.buffer_bytes.unwrap_or(u64::MAX).min(line.buffer_bytes);
            let waits_ns = self.wires[wire].free[from].since_ns(self.now);
            if let Some(waiting_bytes) = (waits_ns * 1000).checked_div(byte_picos) {
                if waiting_bytes > buffer_bytes {
                    self.dropped += 1;
                    continue;
                }
                leaves = self.now.max(self.wires[wire].free[from]);
                leaves = leaves.after_ns(bytes.len() as u64 * byte_picos / 1000);
                self.wires[wire].free[from] = leaves;
            }
            let mut delay_ns = line.delay_ns + self.random.below(faults.jitter_ns);
            if self.random.per_million(faults.stall) {
                delay_ns += self.random.below(50_000_000);
            }
            self.at(leaves.after_ns(delay_ns), Event::Arrive { to: 1 - from, wire, bytes });
        }
    }

    /// Do everything both engines ask for now.
    pub fn drain(&mut self) {
        for node in 0..2 {
            while !self.is_stopped(node) {
                match self.engines[node].poll(self.now) {
                    Some(action) => self.perform(node, action),
                    None if self.drain_own(node) => {}
                    None => break,
                }
            }
        }
    }

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
                if self.random.per_million(self.faults.slow_copy) {
                    let delay_ns = self.random.below(self.faults.slow_ns);
                    self.at(self.now.after_ns(delay_ns), Event::Written { at: node, write });
                } else if self.random.per_million(self.faults.absent_page) {
                    self.engines[node].notification_refused(write, NackCode::SlaveError);
                } else {
                    self.write_notification(node, write);
                }
            }
            Action::Complete(completion) => self.complete(node, completion),
        }
    }

    fn send_block(&mut self, node: usize, block: &Block) {
        assert_eq!(node_of(block.own_domain), node);
        if self.hosts.is_some() {
            return self.send_own(node, block);
        }
        if self.random.per_million(self.faults.absent_source) {
            self.engines[node].source_refused(self.now, block, NackCode::SlaveError);
            let delay_ns = self.random.below(3_000_000);
            self.at(self.now.after_ns(delay_ns), Event::SourceReady { at: node, block: *block });
            return;
        }
        let start = (block.source_address - BASE) as usize;
        let bytes = self.memory[node][start..start + block.length_bytes as usize].to_vec();
        self.send_packets(node, block, &bytes);
    }

    /// The bytes of a block go, if its link has room.
    fn send_packets(&mut self, node: usize, block: &Block, bytes: &[u8]) {
        if self.is_link_to_stopped_full(node) {
            return self.engines[node].link_full(self.now, block);
        }
        if self.full_links > 0 && self.random.per_million(self.full_links) {
            self.engines[node].link_full(self.now, block);
            let delay_ns = self.random.below(3_000_000);
            self.at(self.now.after_ns(delay_ns), Event::Room { at: node, path: block.path });
            return;
        }
        for header in block.packets(self.payload_bytes) {
            let from = header.offset_bytes as usize;
            let payload = &bytes[from..from + header.payload_bytes as usize];
            let mut bytes = vec![0; header.header_bytes() + payload.len()];
            bytes[header.header_bytes()..].copy_from_slice(payload);
            header.seal(&mut bytes, Checksums::On).expect("a packet of the engine");
            self.transmit(node, block.path, &bytes);
        }
    }

    fn copy(&mut self, node: usize, placement: Placement, bytes: &[u8]) {
        assert_eq!(node_of(placement.domain), node);
        let at = (placement.address - BASE) as usize;
        self.memory[node][at..at + bytes.len()].copy_from_slice(bytes);
        self.engines[node].placed(placement);
    }

    fn write_notification(&mut self, node: usize, write: NotificationWrite) {
        assert_eq!(node_of(write.domain), node);
        self.write_words_of(node, self.notified_by(node, &write.words), &write.words);
        self.engines[node].notified(write);
    }

    /// The transfer whose notification these words are.
    fn notified_by(&self, node: usize, words: &Notification) -> usize {
        self.by_notification[&(node, words.address)]
    }

    fn write_words_of(&mut self, node: usize, which: usize, words: &Notification) {
        let watched = &mut self.watched[which];
        watched.notified += 1;
        assert_eq!(watched.notified, 1, "transfer {which} notified twice");
        let watched = &self.watched[which];
        let at = (watched.spec.destination_address - BASE) as usize;
        let there = &self.memory[node][at..at + watched.source.len()];
        let is_right = there == watched.source
            || self.is_free(node, watched.spec.destination_address)
            || self.is_written_again(which, there);
        assert!(is_right, "transfer {which} notified before its bytes");
        let at = (words.address - BASE) as usize;
        for memory in [&mut self.memory[node], &mut self.expected[node]] {
            memory[at..at + 8].copy_from_slice(&words.first.to_le_bytes());
            memory[at + 8..at + 16].copy_from_slice(&words.last.to_le_bytes());
        }
    }

    /// Whether a failed write, whose notification comes late, has its bytes but for those that were written again since.
    fn is_written_again(&self, which: usize, there: &[u8]) -> bool {
        let watched = &self.watched[which];
        let is_newer = |address: u64| {
            self.watched[which + 1..].iter().any(|newer| {
                let start = newer.spec.destination_address;
                newer.destination() == watched.destination()
                    && (start..start + u64::from(newer.spec.size_bytes)).contains(&address)
            })
        };
        let mut bytes = there.iter().zip(&watched.source).zip(watched.spec.destination_address..);
        matches!(watched.status, Some(Err(_)))
            && bytes.all(|((found, expected), address)| found == expected || is_newer(address))
    }

    fn complete(&mut self, node: usize, completion: Completion) {
        self.ended(node, completion.user as usize, completion.status, completion.before);
    }

    fn ended(&mut self, node: usize, which: usize, status: Result<(), TransferError>, before: u64) {
        let watched = &mut self.watched[which];
        assert_eq!(watched.poster, node);
        assert_eq!(watched.status, None, "transfer {which} completed twice");
        watched.status = Some(status);
        self.open -= 1;
        if status.is_err() {
            self.forget(which);
            return;
        }
        if matches!(watched.spec.direction, Direction::Atomic(_)) {
            return self.check_operated(which, before);
        }
        let owed = u32::from(watched.spec.notification.is_some());
        assert_eq!(watched.notified, owed, "transfer {which} complete, notification not");
        let to = watched.destination();
        let watched = &self.watched[which];
        if self.is_free(to, watched.spec.destination_address) {
            return;
        }
        let at = (watched.spec.destination_address - BASE) as usize;
        let range = at..at + watched.source.len();
        assert!(self.memory[to][range.clone()] == watched.source, "transfer {which}: wrong bytes");
        self.expected[to][range.clone()].copy_from_slice(&watched.source);
        self.is_as_written(to, &range);
        if self.scribble {
            let value = self.random.next() as u8;
            self.memory[to][range.clone()].fill(value);
            self.expected[to][range].fill(value);
        }
    }

    /// What a write that failed before may have left there is written over.
    fn is_as_written(&mut self, node: usize, range: &std::ops::Range<usize>) {
        let before = std::mem::take(&mut self.anything);
        for (at, left) in before {
            if at != node || left.end <= range.start || range.end <= left.start {
                self.anything.push((at, left));
                continue;
            }
            let parts = [left.start..range.start.max(left.start), range.end.min(left.end)..left.end];
            self.anything.extend(parts.into_iter().filter(|part| !part.is_empty()).map(|part| (at, part)));
        }
    }

    pub fn arrive(&mut self, node: usize, wire: usize, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes, Checksums::On) else {
            return;
        };
        let verdict = self.engines[node].handle_from(self.now, OTHER, path_of(node, wire), &packet);
        if let Verdict::Operate(operation) = verdict {
            if self.hosts.is_some() {
                self.operate_own(node, operation);
            } else if self.random.per_million(self.faults.full) {
                self.engines[node].refused(operation.placement, NackCode::BufferFull);
            } else if self.random.per_million(self.faults.slow_copy) {
                let delay_ns = self.random.below(self.faults.slow_ns);
                self.at(self.now.after_ns(delay_ns), Event::Operated { at: node, operation });
            } else {
                self.operate(node, operation);
            }
            return;
        }
        let (Verdict::Place(placement), Packet::Data(_, Payload::Intact(payload))) = (verdict, packet) else {
            return;
        };
        if self.hosts.is_some() {
            self.place_own(node, placement, payload);
        } else if self.random.per_million(self.faults.absent_page) {
            self.engines[node].refused(placement, NackCode::SlaveError);
            let delay_ns = self.random.below(3_000_000);
            self.at(self.now.after_ns(delay_ns), Event::PageReady { at: node, placement });
        } else if self.random.per_million(self.faults.full) {
            self.engines[node].refused(placement, NackCode::BufferFull);
        } else if self.random.per_million(self.faults.slow_copy) {
            let delay_ns = self.random.below(self.faults.slow_ns);
            let bytes = payload.to_vec();
            self.at(self.now.after_ns(delay_ns), Event::Copied { at: node, placement, bytes });
        } else {
            self.copy(node, placement, payload);
        }
    }

    /// The next moment at which anything happens; false if none.
    pub fn step(&mut self) -> bool {
        self.disturb_programs();
        self.drain();
        let event = self.queue.peek().map(|Reverse((time, _))| *time);
        let timers = (0..2).filter(|node| !self.is_stopped(*node));
        let timers = timers.flat_map(|node| [self.engines[node].deadline(), self.own_deadline(node)]);
        let timers = timers.flatten().min();
        let Some(next) = event.into_iter().chain(timers).min() else {
            return false;
        };
        self.now = self.now.max(next);
        self.leave_silent_wires();
        for node in 0..2 {
            if !self.is_stopped(node) {
                self.engines[node].expire(self.now);
                self.expire_own(node);
            }
        }
        while let Some(Reverse((time, sequence))) = self.queue.peek().copied() {
            if time > self.now {
                break;
            }
            self.queue.pop();
            match self.events.remove(&sequence).expect("each event is queued once") {
                Event::Arrive { to, wire, bytes } if self.is_stopped(to) => self.hold(wire, bytes),
                Event::Arrive { to, wire, bytes } => self.arrive(to, wire, &bytes),
                Event::Copied { at, placement, bytes } => self.copy(at, placement, &bytes),
                Event::Written { at, write } => self.write_notification(at, write),
                Event::Operated { at, operation } => self.operate(at, operation),
                Event::PageReady { at, placement } => self.engines[at].page_ready(&placement),
                Event::SourceReady { at, block } => self.engines[at].source_ready(&block),
                Event::Room { at, path } => self.engines[at].link_has_room(OTHER, path),
                Event::Attempt { at, context, access, how } => self.attempt(at, context, access, how),
                Event::Withdraw { at, context, access } => self.withdraw(at, context, access),
                Event::Touch { at, context, touch, range, right } => {
                    self.touched(at, context, touch, range, right);
                }
                Event::Mapped { at } => self.map_again(at),
                Event::Release { at, start } => self.release(at, start),
                Event::Change { at, which } => self.change_here(at, which),
            }
        }
        self.drain();
        true
    }

    /// Run until nothing is open and nothing is under way. Panics if that takes
    /// longer than `limit_ns` of virtual time: something hangs.
    pub fn settle(&mut self, limit_ns: u64) {
        let limit = self.now.after_ns(limit_ns);
        while self.step() {
            assert!(self.now < limit, "hangs: {} transfers open, {:#?}", self.open, self.report());
        }
        assert_eq!(self.open, 0, "silent with transfers open: {:#?}", self.report());
        for engine in &self.engines {
            assert!(engine.is_idle(), "a table is not empty: {:#?}", self.report());
            assert_eq!(engine.counters().illegal_transitions, 0);
        }
        self.check_programs();
    }

    pub fn report(&self) -> [tombolo_core::rdma::Counters; 2] {
        [self.engines[0].counters(), self.engines[1].counters()]
    }

    /// Every byte of both memories is what it must be.
    pub fn check_memory(&mut self) {
        for (node, range) in &self.anything {
            if self.is_free(*node, BASE + range.start as u64) {
                continue;
            }
            let bytes = self.memory[*node][range.clone()].to_vec();
            self.expected[*node][range.clone()].copy_from_slice(&bytes);
        }
        for node in 0..2 {
            if self.memory[node] != self.expected[node] {
                let at = (0..self.memory[node].len())
                    .find(|at| self.memory[node][*at] != self.expected[node][*at]);
                panic!("memory of node {node} differs at {at:?}");
            }
        }
    }
}
