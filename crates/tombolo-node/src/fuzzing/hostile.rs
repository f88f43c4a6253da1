//! A neighbour that is linked to a node, knows the protocol and is hostile.
//!
//! ```text
//!   hostile ══ two links ══╗
//!                         node ── lends to, borrows from ── honest
//!   program ── domain ─────╝ └─ a named segment, a draft
//! ```
//!
//! The node must not panic or hang, must send the hostile neighbour no byte and let it change no byte that is
//! not granted to it, must serve the honest one, and must keep nothing of the hostile one when its links are gone.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_channel::{Grant, MAX_MESSAGE_BYTES, Who};
use tombolo_core::rdma::{Direction, Transfer};
use tombolo_host::event::{self, EventFd};
use tombolo_host::shared::{SharedMemory, SharedSpan};
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket};
use tombolo_link::identity::{Permission, Permissions};
use tombolo_link::testing::memory_pair;
use tombolo_link::{Link, LossReason};
use tombolo_wire::{Checksums, Domain, Packet};

use super::{Message, MessageV1, Reply, Request};
use crate::driver::address_space::BUFFERS;
use crate::driver::node::{Node, NodeEvent, NodeEvents};
use crate::driver::serve::receive_programs;
use crate::fabric::connection::Connection;
use crate::fabric::messages::Checksum;
use crate::lending::ledger::{Ledger, Published};
use crate::lending::named::SegmentName;
use crate::memory::allocation::allocate as allocate_memory;
use crate::memory::blocking::Owner;
use crate::memory::reclaim::Segment;

/// After so long without an end the node hangs.
const TIMEOUT: Duration = Duration::from_secs(20);
/// A neighbour that takes no answers takes them all the same after so long, so that a run stays short.
const UNREAD_TIMEOUT: Duration = Duration::from_millis(1);

/// What fills memory that the hostile neighbour may neither read nor write.
const SECRET: [u8; 8] = [0xA7, 0x31, 0xC4, 0x0E, 0x5B, 0xF2, 0x96, 0x6D];
/// What fills memory that it may read with a permission, and not write.
const NAMED: [u8; 8] = [0x4A, 0xD9, 0x13, 0xBE, 0x72, 0x85, 0xEC, 0x38];
/// What fills memory that it may always read, and not write.
const PUBLIC: [u8; 8] = [0x2C, 0x97, 0xF1, 0x68, 0x0B, 0xD3, 0x5E, 0xA4];
const GUARD_BYTES: u64 = 8 * 1024;
const LEND_BYTES: u64 = 128 * 1024;
/// The name of the segment that the node has from the beginning.
const NAME: &str = "kept";
/// Number of the segment that the node lends to its honest neighbour, and also of the one that this neighbour lends
/// to the node: each is the first that its lender gives out.
const SEGMENT: u16 = 1;
/// The program's domain.
const DOMAIN: u16 = 1;
const WORDS: [(Permission, u8); 6] = [
    (Permission::Borrow, 1),
    (Permission::Read, 2),
    (Permission::Write, 4),
    (Permission::List, 8),
    (Permission::Status, 16),
    (Permission::Port, 32),
];

/// Whether some bytes are of a pattern, at any place of it.
fn holds(bytes: &[u8], pattern: [u8; 8]) -> bool {
    let pattern = u64::from_le_bytes(pattern);
    let rotated: [u64; 8] = std::array::from_fn(|places| pattern.rotate_left(8 * places as u32));
    bytes.windows(8).any(|window| {
        let window = window.try_into().map_or(0, u64::from_le_bytes);
        rotated.contains(&window)
    })
}

fn fill(memory: &SharedMemory, pattern: [u8; 8]) {
    let bytes = pattern.repeat(memory.len() / 8);
    memory.span_mut(0, bytes.len()).expect("a span").copy_from(SharedSpan::from(&bytes[..]));
}

fn is_full_of(memory: &SharedMemory, pattern: [u8; 8]) -> bool {
    memory.span(0, memory.len()).expect("a span").to_vec() == pattern.repeat(memory.len() / 8)
}

fn guarded(pattern: [u8; 8]) -> Arc<SharedMemory> {
    let memory = allocate_memory(GUARD_BYTES).expect("memory");
    fill(&memory, pattern);
    Arc::new(memory)
}

/// Waits for what must happen.
fn wait_for(what: &str, mut has_happened: impl FnMut() -> bool) {
    let since = Instant::now();
    while !has_happened() {
        assert!(since.elapsed() < TIMEOUT, "{what}: not within {} s", TIMEOUT.as_secs());
        std::thread::yield_now();
    }
}

/// A program of the node: one that others may not reach, but for some of its memory, which they may read.
struct Program {
    _socket: SeqpacketSocket,
    /// Where its memory begins.
    address: u64,
    secret: Arc<SharedMemory>,
    public: Arc<SharedMemory>,
}

impl Program {
    fn ask(socket: &SeqpacketSocket, request: tombolo_channel::Request) -> tombolo_channel::Reply {
        let question = tombolo_channel::Message::AskV2 { number: 1, request };
        socket.send(&[&tombolo_channel::encode(&question)], &[]).expect("a question");
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        assert_eq!(event::wait_readable(&[socket.as_fd()], Some(TIMEOUT)), Ok(true), "no answer");
        let received = socket.receive(&mut buffer).expect("an answer");
        match tombolo_channel::decode(&buffer[..received.length_bytes]) {
            Some(tombolo_channel::Message::AnswerV2 { reply, .. }) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn new(node: &Arc<Node>, honest: u32) -> Self {
        let path = std::env::temp_dir().join(format!("tombolo-hostile-{}", std::process::id()));
        let listener = SeqpacketListener::bind(&path).expect("a socket");
        let served = node.clone();
        std::thread::spawn(move || receive_programs(&served, &listener, &AtomicBool::new(false)));
        let socket = SeqpacketSocket::connect(&path).expect("the node's socket");
        let _ = std::fs::remove_file(&path);
        Self::ask(&socket, tombolo_channel::Request::Open { domain: Some(DOMAIN) });
        let allocate = |grants, pattern| {
            let request = tombolo_channel::Request::Allocate { bytes: GUARD_BYTES, grants };
            let tombolo_channel::Reply::Allocated { address } = Self::ask(&socket, request) else {
                panic!("no memory")
            };
            let found = node.programs.find(DOMAIN, None, address, 1, |_| true);
            let memory = found.expect("its memory").0;
            fill(&memory, pattern);
            (address, memory)
        };
        let (address, secret) = allocate(vec![Grant::all(Who::Node(honest))], SECRET);
        let readable = Grant { who: Who::Anyone, read: true, write: false };
        let (_, public) = allocate(vec![readable], PUBLIC);
        let senders = vec![Who::Node(honest)];
        Self::ask(&socket, tombolo_channel::Request::OpenMailbox { messages: 4, senders });
        Self { _socket: socket, address, secret, public }
    }
}

/// The node that is attacked, and those that rely on it.
struct Victim {
    node: Arc<Node>,
    program: Program,
    /// The honest neighbour as the node has it.
    neighbour: Arc<Connection>,
    honest: Node,
    /// The node as the honest neighbour has it.
    at_honest: Arc<Connection>,
    /// Memory of the honest neighbour that the node borrowed.
    borrowed: Arc<SharedMemory>,
    events: NodeEvents,
    reads: u64,
}

/// What is made anew for each run, so that the numbers of segments are the same in each.
struct Lent {
    lent: Arc<SharedMemory>,
    draft: Arc<SharedMemory>,
    named: Arc<SharedMemory>,
}

impl Victim {
    fn new() -> Self {
        let node = Arc::new(Node::new("victim", LEND_BYTES, GUARD_BYTES as usize).expect("a node"));
        let honest = Node::new("honest", LEND_BYTES, GUARD_BYTES as usize).expect("a node");
        fill(node.buffers(), SECRET);
        let (near, far) = memory_pair().expect("a link");
        let (neighbour, at_honest) = (node.add_peer(near), honest.add_peer(far));
        node.fabric.introduced(&neighbour, "honest", honest.life()).expect("a neighbour");
        honest.fabric.introduced(&at_honest, "victim", node.life()).expect("a neighbour");
        let borrowed = guarded(SECRET);
        {
            let mut ledger = honest.lending.ledger.lock();
            let room = ledger.reserve(GUARD_BYTES).expect("room");
            let segment =
                Segment::new(borrowed.clone(), room, honest.lending.reclaimer(Owner::Peer(at_honest.id)));
            assert_eq!(ledger.enter(at_honest.id, segment).expect("a number"), SEGMENT);
        }
        let (_, events) = honest.add_owner().expect("a descriptor");
        let program = Program::new(&node, node.fabric.numbers.number(neighbour.id));
        Self { node, program, neighbour, honest, at_honest, borrowed, events, reads: 0 }
    }

    fn lend(&self) -> Lent {
        let made = Lent { lent: guarded(SECRET), draft: guarded(SECRET), named: guarded(NAMED) };
        let mut ledger = self.node.lending.ledger.lock();
        *ledger = Ledger::new(LEND_BYTES);
        let mut segment = |memory: &Arc<SharedMemory>| {
            let room = ledger.reserve(GUARD_BYTES).expect("room");
            Segment::new(memory.clone(), room, self.node.lending.reclaimer(Owner::Peer(self.neighbour.id)))
        };
        let [lent, draft, named] = [&made.lent, &made.draft, &made.named].map(&mut segment);
        assert_eq!(ledger.enter(self.neighbour.id, lent).expect("a number"), SEGMENT);
        ledger.enter_draft(self.neighbour.id, draft, GUARD_BYTES).expect("a number");
        let published = Published {
            segment: Arc::new(named),
            length_bytes: GUARD_BYTES,
            checksum: Checksum([0; 32]),
            since: Instant::now(),
        };
        assert!(ledger.publish(NAME.parse().expect("a name"), published).is_none());
        made
    }

    fn drive(&self) {
        self.node.drive(&self.neighbour);
        self.honest.drive(&self.at_honest);
    }

    /// The honest neighbour reads what it has borrowed.
    fn serve_honest(&mut self) {
        self.reads += 1;
        let bytes = 4096;
        self.honest.buffers().span_mut(0, bytes as usize).expect("a span").fill(0);
        let read = Transfer {
            direction: Direction::Read,
            domain: Domain(SEGMENT),
            own_domain: BUFFERS,
            source_address: 0,
            destination_address: 0,
            size_bytes: bytes,
            notification: None,
            class: None,
            user: self.reads,
        };
        self.honest.post(self.at_honest.id, read).expect("room for a read");
        self.honest.pump();
        wait_for("the honest neighbour's read", || {
            self.drive();
            for node in [&*self.node, &self.honest] {
                node.expire();
                node.tick();
            }
            match self.events.take() {
                Some(NodeEvent::Completed { user, result }) => {
                    assert_eq!(result, Ok(()), "the honest neighbour reads what it has borrowed");
                    user == self.reads
                }
                _ => false,
            }
        });
        let read = self.honest.buffers().span(0, bytes as usize).expect("a span").to_vec();
        assert!(read == SECRET.repeat(bytes as usize / 8), "the honest neighbour read something else");
    }

    /// Nothing has changed that nobody may change.
    fn check(&self, lent: &Lent) {
        for (what, memory, pattern) in [
            ("the node's buffers", self.node.buffers(), SECRET),
            ("what is lent to another", &*lent.lent, SECRET),
            ("another's draft", &*lent.draft, SECRET),
            ("a named segment", &*lent.named, NAMED),
            ("a program's memory", &*self.program.secret, SECRET),
            ("a program's memory that all may read", &*self.program.public, PUBLIC),
            ("what is borrowed from another", &*self.borrowed, SECRET),
        ] {
            assert!(is_full_of(memory, pattern), "{what} was written");
        }
        let mails = self.node.programs.counters().into_iter().find(|(name, _)| name == "programs_mails");
        assert_eq!(mails.map(|(_, count)| count), Some(0), "a message was delivered");
    }
}

/// One of the hostile neighbour's links.
struct HostileLink {
    peer: Arc<Connection>,
    far: Arc<dyn Link>,
}

/// A run.
struct Attack<'a> {
    victim: &'a Victim,
    links: [HostileLink; 2],
    permissions: Permissions,
    /// The last token of its links that it heard.
    token: [u8; 16],
    is_deaf: bool,
}

impl<'a> Attack<'a> {
    fn new(victim: &'a Victim, permitted: u8) -> Self {
        let words = WORDS.iter().filter(|(_, bit)| permitted & bit != 0);
        let text = words.map(|(permission, _)| permission.word()).collect::<Vec<_>>().join(",");
        let permissions = if text.is_empty() { Permissions::NONE } else { text.parse().expect("words") };
        let links = [(); 2].map(|()| {
            let (near, far) = memory_pair().expect("a link");
            let peer = victim.node.add_peer(near);
            *peer.permissions.lock() = permissions;
            HostileLink { peer, far }
        });
        Self { victim, links, permissions, token: [0; 16], is_deaf: false }
    }

    /// Takes what was sent to it.
    fn hear(&mut self) {
        let is_secret = |bytes: &[u8]| {
            holds(bytes, SECRET) || (!self.permissions.include(Permission::Read) && holds(bytes, NAMED))
        };
        let mut token = None;
        for link in &self.links {
            let _ = link.far.receive(usize::MAX, &mut |packet| {
                assert!(!is_secret(&packet.to_vec()), "memory of others was sent");
            });
            while let Ok(Some(message)) = link.far.receive_control() {
                assert!(!is_secret(&message.bytes), "memory of others was told");
                if let Ok(Message::V1(MessageV1::Answer { reply: Reply::PathToken(heard), .. })) =
                    Message::decode(&message.bytes)
                {
                    token = Some(heard);
                }
            }
        }
        self.token = token.unwrap_or(self.token);
    }

    /// The node does what follows from what was sent, in its pool, too.
    fn settle(&mut self) {
        let since = Instant::now();
        wait_for("what the hostile neighbour asked for", || {
            self.links.iter().for_each(|link| _ = self.victim.node.drive(&link.peer));
            self.victim.drive();
            if !self.is_deaf || since.elapsed() > UNREAD_TIMEOUT {
                self.hear();
            }
            self.links.iter().all(|link| link.peer.own().open_tasks.load(Ordering::Acquire) == 0)
        });
    }

    /// A packet with its addresses moved to where the program's memory is, which is elsewhere each time.
    fn aimed(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let base = self.victim.program.address;
        let move_to = |address: &mut u64| *address = address.wrapping_add(base);
        let mut packet = Packet::parse(bytes, Checksums::Off).ok()?;
        match &mut packet {
            Packet::Data(header, _) => move_to(&mut header.block_address),
            Packet::Notify(header) | Packet::NotifyAfter(header, _) => {
                move_to(&mut header.block_address);
                move_to(&mut header.notification.address);
            }
            Packet::ReadRequest(request) => move_to(&mut request.source_address),
            Packet::Atomic(atomic) => move_to(&mut atomic.address),
            _ => {}
        }
        let mut out = vec![0; bytes.len() + 128];
        let length = packet.emit(&mut out, Checksums::Off).ok()?;
        out.truncate(length);
        Some(out)
    }

    /// A carriage whose addresses are moved in the same way, or any other message as it is.
    fn aimed_message(&self, bytes: &[u8]) -> Vec<u8> {
        match Message::decode(bytes) {
            Ok(Message::V1(MessageV1::Ask { number, request: Request::Carry(mut carriage) })) => {
                let base = self.victim.program.address;
                carriage.source_address = carriage.source_address.wrapping_add(base);
                carriage.destination_address = carriage.destination_address.wrapping_add(base);
                Message::V1(MessageV1::Ask { number, request: Request::Carry(carriage) }).encode()
            }
            _ => bytes.to_vec(),
        }
    }

    fn step(&mut self, kind: u8, bytes: &[u8]) {
        let link = &self.links[usize::from(kind >> 3 & 1)];
        // What is too large, or comes after the node has closed the link, is not sent.
        match kind & 7 {
            0 => _ = link.far.send(bytes, SharedSpan::empty()),
            1 => {
                if let Some(packet) = self.aimed(bytes) {
                    let _ = link.far.send(&packet, SharedSpan::empty());
                }
            }
            2 => _ = link.far.send_control(bytes, &[]),
            3 => {
                let message = self.aimed_message(bytes);
                // With a descriptor, which nobody has asked for.
                if let Ok(event) = EventFd::new() {
                    let _ = link.far.send_control(&message, &[event.as_fd()]);
                }
            }
            4 => {
                let request = Request::BePath { token: self.token };
                let message = Message::V1(MessageV1::Ask { number: u32::MAX, request }).encode();
                let _ = link.far.send_control(&message, &[]);
            }
            5 => _ = self.victim.node.expire(),
            6 => _ = self.victim.node.tick(),
            _ => self.is_deaf = !self.is_deaf,
        }
        self.settle();
    }

    /// Its links go, and the node keeps nothing of it.
    fn end(self, lent: Lent) {
        let Self { victim, links, permissions, .. } = self;
        let node = &victim.node;
        let has_written = permissions.include(Permission::Write);
        let peers = links.map(|HostileLink { peer, far }| {
            far.close(LossReason::ClosedByPeer);
            peer
        });
        wait_for("the end of the hostile neighbour", || {
            peers.iter().for_each(|peer| _ = node.drive(peer));
            node.tick();
            peers.iter().all(|peer| peer.loss().is_some() || peer.is_part())
        });
        for peer in peers {
            node.forget(&peer);
        }
        assert_eq!(node.peers().len(), 1, "it is forgotten");
        victim.check(&lent);
        let name: SegmentName = NAME.parse().expect("a name");
        assert!(has_written || node.lending.ledger.lock().named(&name).is_some(), "a name was removed");
        drop(lent.named);
        wait_for("freeing what it had", || node.lending.ledger.lock().account().being_freed_bytes() == 0);
        let ledger = node.lending.ledger.lock();
        let named_bytes: u64 =
            ledger.named_after(None).map(|(_, published)| published.segment.memory().len() as u64).sum();
        assert!(has_written || named_bytes == GUARD_BYTES, "it has published something");
        assert_eq!(ledger.lent_bytes(), 2 * GUARD_BYTES + named_bytes, "it has memory still");
    }
}

static VICTIM: LazyLock<Mutex<Victim>> = LazyLock::new(|| Mutex::new(Victim::new()));

/// What a neighbour may do on its links: a byte of permissions, then steps, each a kind, a length in two bytes, and
/// bytes. No step panics or hangs, and none reaches what is not granted.
pub fn hostile(bytes: &[u8]) {
    let Some((permitted, mut rest)) = bytes.split_first() else { return };
    // What it knows by itself proves nothing.
    if holds(bytes, SECRET) || holds(bytes, NAMED) {
        return;
    }
    let mut victim = VICTIM.lock();
    let lent = victim.lend();
    let mut attack = Attack::new(&victim, *permitted);
    while let [kind, low, high, after @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let (said, left) = after.split_at(length);
        rest = left;
        attack.step(*kind, said);
    }
    attack.is_deaf = false;
    attack.settle();
    attack.end(lent);
    victim.serve_honest();
}
