//! The node: one engine, its peers, and the memory that their transfers reach.
//!
//! The same object lends and borrows, over the same links. Nothing in here has
//! a thread of its own: whoever waits for something drives the engine
//! ([`Node::drive`]), under one lock, and copies bytes outside of it where it can.
//!
//! **Whose memory.** A transfer's domain is the number of a lent segment. Blocks
//! that a peer writes, and blocks that answer its reads, are of the segment that
//! *it* borrowed from us under that number. Blocks that answer *our* reads, and
//! blocks that we write, are of our buffer memory. So both directions share a
//! link without sharing numbers.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tombolo_channel::{PeerStatus, SLOTS};
use tombolo_core::rdma::{
    Config, Engine, PathId, PeerId, PostError, Retransmission, Time, Transfer, TransferError,
};
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::pool::Pool;
use tombolo_host::shared::SharedMemory;
use tombolo_link::identity::{AllowList, KeyFileError, Permissions};
use tombolo_link::udp::DEFAULT_OUTAGE;
use tombolo_link::{Address, Link, LinkState, LossReason, OpenError, Security, SendError};
use tombolo_wire::{Ack, Checksums, Domain, MAX_EARLIER_BLOCKS, MAX_HEADER_BYTES};

use crate::driver::counters::{AtTheDoor, GoneLinks};
use crate::driver::own_moves::OwnMoves;
use crate::driver::questions::Answered;
use crate::driver::third_party::{Carriages, SEND_PAUSE};
use crate::fabric::label::{self, PeerLabel};
use crate::fabric::life::{Life, NodeIdentity};
use crate::fabric::messages::{Reply, Request};
use crate::fabric::neighbourhood::Told;
use crate::fabric::paths::Token;
use crate::lending::ledger::{self, Ledger, LendError};
use crate::memory::blocking::{self, Owner};
use crate::memory::reclaim::Reclaimer;
use crate::programs::Programs;

/// The domain of the node's own buffers. No peer can reach it.
pub(crate) const BUFFERS: Domain = Domain(0);

/// This node as its own peer: transfers between its programs.
pub(crate) const ITSELF: PeerId = PeerId(0);
/// A reply, and the descriptors that came with it.
pub(crate) type Answer = (Reply, Vec<PassedDescriptor>);

/// A node at the other end of a link.
#[derive(Debug)]
pub struct Peer {
    /// Its number in the engine.
    pub id: PeerId,
    /// The way to it.
    pub link: Arc<dyn Link>,
    pub(crate) checksums: Checksums,
    /// What it may ask for.
    pub(crate) permissions: Mutex<Permissions>,
    /// How many packets are taken at once of a stream.
    pub(crate) receive_budget: usize,
    /// Packets come one after the other.
    pub(crate) streaming: AtomicBool,
    /// The last look found none.
    pub(crate) drained: AtomicBool,
    /// What it is told when something is sent to it, or nothing else is left to do.
    pub(crate) waiting_acks: Mutex<Vec<Ack>>,
    /// Its link did not take all: this is tried again when the peer is driven. Set after the rest is noted.
    pub(crate) is_full: AtomicBool,
    /// Short packets that the link did not take, in the order in which they go.
    pub(crate) unsent: Mutex<VecDeque<Vec<u8>>>,
    /// What it is called, for people: any node can choose any name.
    pub(crate) name: Mutex<String>,
    /// Which life of which node it is, once it has introduced itself.
    pub(crate) life: OnceLock<Life>,
    /// Questions that are open, with their answers once they are there.
    pub(crate) answers: Mutex<HashMap<u32, Option<Answer>>>,
    pub(crate) next_number: AtomicU32,
    /// What is being done for it in the pool, with an answer at the end.
    pub(crate) open_tasks: AtomicU32,
    /// Why it is gone, once it is.
    pub(crate) lost: OnceLock<LossReason>,
    /// The peer that this is only another link to, and which.
    pub(crate) part_of: OnceLock<(Arc<Peer>, PathId)>,
    /// Its other links.
    pub(crate) paths: RwLock<Vec<Arc<Peer>>>,
    /// Why this link is gone, while others are not.
    pub(crate) link_lost: OnceLock<LossReason>,
    /// What other links must show to be its own.
    pub(crate) token: OnceLock<Token>,
    /// Neighbours are told of by what looks after them, not by who serves the node.
    pub(crate) is_neighbour: AtomicBool,
    /// Its link is suspect: the engine does without it until something is heard again.
    pub(crate) is_paused: AtomicBool,
}

impl Peer {
    /// It says what it is called and which life of a node it is: once, or the same again.
    fn introduce(&self, name: &str, life: Life) -> Result<(), String> {
        let name = label::name(name);
        let mut known = self.name.lock();
        let known_life = *self.life.get_or_init(|| {
            known.clone_from(&name);
            life
        });
        if (known_life, &*known) == (life, &name) {
            return Ok(());
        }
        Err(format!("you have introduced yourself as `{known}`: a node stays who it is while it is linked"))
    }

    /// Which node it is, once it has said so.
    pub fn identity(&self) -> Option<NodeIdentity> {
        Some(NodeIdentity::new(self.link.peer_key(), *self.life.get()?))
    }

    /// The most bytes of a block that one packet to it holds now.
    pub(crate) fn max_payload_bytes(&self) -> u32 {
        self.link.max_packet_bytes().saturating_sub(MAX_HEADER_BYTES).min(16 * 1024) as u32
    }

    /// Why it is gone, if it is.
    pub fn loss(&self) -> Option<LossReason> {
        self.lost.get().copied()
    }
}

/// Memory here, held as long as it is used.
pub(crate) enum Memory<'a> {
    Buffers(&'a SharedMemory),
    Shared(Arc<SharedMemory>),
}

impl Memory<'_> {
    pub(crate) fn get(&self) -> &SharedMemory {
        match self {
            Self::Buffers(memory) => memory,
            Self::Shared(memory) => memory,
        }
    }
}

/// Told of completed transfers: user number and result.
pub type CompletionSink = Box<dyn Fn(u64, Result<(), TransferError>) + Send + Sync>;

/// Told of a peer that is gone, before its transfers fail.
pub type LossSink = Box<dyn Fn(PeerId, LossReason) + Send + Sync>;

/// Asking a peer for something failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The peer is gone.
    #[error("{0}")]
    Lost(LossReason),
    /// It does not answer.
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The link did not take the question.
    #[error("cannot ask: {0}")]
    Send(SendError),
    /// Nobody knows whether the question has arrived, and it must not be asked twice.
    #[error("the link that it was asked by is gone, others are left")]
    PathLost,
}

/// Another node was not joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No node there.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// It does not answer.
    #[error("node {0}: {1}")]
    Ask(Address, AskError),
    /// It refused.
    #[error("node {0} refused: {1}")]
    Refused(Address, String),
}

/// A place for a peer.
#[derive(Debug, Default)]
struct Place {
    peer: Option<Arc<Peer>>,
    /// How many have had it. The number of each is another, so that nothing that was granted to one, or is
    /// still under way to it, is taken for the next one's.
    given: u32,
}

impl Place {
    fn can_be_given(&self) -> bool {
        self.peer.is_none() && self.given < PeerId::PEERS_OF_A_PLACE
    }
}

/// A node.
pub struct Node {
    pub(crate) name: String,
    pub(crate) life: Life,
    pub(crate) started: Instant,
    /// How long nothing may be heard of a peer before its link is lost.
    pub(crate) outage: Mutex<Duration>,
    pub(crate) engine: Mutex<Engine>,
    peers: RwLock<Vec<Place>>,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    /// Where everything is done that takes long or blocks.
    pub(crate) pool: Pool<Owner>,
    pub(crate) gone_links: GoneLinks,
    pub(crate) at_the_door: AtTheDoor,
    /// Where our own writes come from and the answers to our reads go.
    pub(crate) buffers: SharedMemory,
    pub(crate) completions: OnceLock<CompletionSink>,
    pub(crate) losses: OnceLock<LossSink>,
    pub(crate) packets_dropped: AtomicU64,
    pub(crate) programs: Arc<Programs>,
    pub(crate) own_moves: Mutex<OwnMoves>,
    pub(crate) carriages: Carriages,
    pub(crate) answered: Answered,
    /// Grows with each peer that comes.
    pub(crate) arrivals: AtomicU32,
    /// Grows while a program drives this node by itself.
    pub(crate) driven: AtomicU32,
    /// Where what happens to links is told, where this node has neighbours that it wants.
    pub(crate) neighbourhood: OnceLock<Told>,
    /// What peers may ask for, by their keys.
    pub(crate) list: OnceLock<AllowList>,
    /// It lends to nobody new.
    pub(crate) is_ending: AtomicBool,
    /// The engine has more to be done than was done in one go.
    pub(crate) unfinished: AtomicBool,
}

impl Drop for Node {
    /// Whoever waits for an answer has it before the links say goodbye.
    fn drop(&mut self) {
        for peer in self.peers() {
            self.flush(&peer);
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Node").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The most blocks that an engine may have under way.
pub const MAX_TRANSACTIONS: u16 = 1 << 15;
/// The most transfers posted and not over, however many channels there are.
const MAX_TRANSFERS: u32 = 1 << 16;

/// What a node has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Programs' domains open at once (QOS §3.2.1: 16), with 64 channels each.
    pub domains: u16,
    /// Memory allocated for all of them, in bytes.
    pub program_memory_bytes: u64,
    /// Blocks under way (QOS §3.2.4: 1024), at most [`MAX_TRANSACTIONS`].
    pub transactions: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self { domains: 16, program_memory_bytes: 1 << 30, transactions: 1024 }
    }
}

/// What is copied at once between programs here.
const HOME_BLOCK_BYTES: u32 = 64 * 1024;

/// The engine as a node on ordinary machines uses it.
fn configuration(limits: &Limits) -> Config {
    Config {
        transactions: limits.transactions.min(MAX_TRANSACTIONS),
        // Others may have other limits.
        peer_transactions: MAX_TRANSACTIONS,
        transfers: (u32::from(limits.domains) * SLOTS as u32).clamp(1024, MAX_TRANSFERS),
        // The documents' two blocks of a transfer under way fill a wire of some hundred nanoseconds;
        // between processes a lone transfer needs more to keep both ends at work.
        outstanding_blocks: MAX_EARLIER_BLOCKS as u32 + 1,
        outstanding_beside: 1,
        block_bytes_beside: 4096,
        // A gigabyte a second.
        beside_block_ns: 4000,
        // Blocks that follow each other are copied together between programs here; elsewhere, too, both
        // ends are faster with them.
        turn_blocks: 64,
        beside_ns: 1_000_000,
        // Answers may be sent only when their sender gets the processor again,
        // which takes as long as the time slice of whoever has it.
        retransmission: Retransmission::Measured {
            initial_ns: 20_000_000,
            min_ns: 6_000_000,
            max_ns: 1_000_000_000,
        },
        ..Config::default()
    }
}

impl Node {
    /// A node that lends up to `lend_bytes` and has `buffer_bytes` of buffers for borrowing.
    pub fn new(name: &str, lend_bytes: u64, buffer_bytes: usize) -> Result<Self, LendError> {
        Self::with_limits(name, lend_bytes, buffer_bytes, Limits::default())
    }

    /// The same, with other limits.
    pub fn with_limits(
        name: &str,
        lend_bytes: u64,
        buffer_bytes: usize,
        limits: Limits,
    ) -> Result<Self, LendError> {
        let buffers = ledger::allocate((buffer_bytes.max(4096) as u64).next_multiple_of(4096))?;
        let mut engine = Engine::new(configuration(&limits));
        engine.add_peer_here(Time(0), ITSELF, HOME_BLOCK_BYTES);
        let pool = blocking::pool();
        Ok(Self {
            name: label::name(name),
            life: Life::new()?,
            started: Instant::now(),
            outage: Mutex::new(DEFAULT_OUTAGE),
            engine: Mutex::new(engine),
            // The first place is this node's own.
            peers: RwLock::new(vec![Place { peer: None, given: PeerId::PEERS_OF_A_PLACE }]),
            ledger: Arc::new(Mutex::new(Ledger::new(lend_bytes))),
            programs: Arc::new(Programs::new(limits, pool.clone())?),
            pool,
            gone_links: GoneLinks::default(),
            at_the_door: AtTheDoor::default(),
            buffers,
            completions: OnceLock::new(),
            losses: OnceLock::new(),
            packets_dropped: AtomicU64::new(0),
            own_moves: Mutex::default(),
            carriages: Carriages::default(),
            answered: Answered::default(),
            arrivals: AtomicU32::new(0),
            driven: AtomicU32::new(0),
            neighbourhood: OnceLock::new(),
            list: OnceLock::new(),
            is_ending: AtomicBool::new(false),
            unfinished: AtomicBool::new(false),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which life of it this is.
    pub fn life(&self) -> Life {
        self.life
    }

    /// How long nothing may be heard of a peer before a link that begins from now on is lost, where silence
    /// is all that shows its end: at least [`SUSPECT_AFTER`](tombolo_link::udp::SUSPECT_AFTER).
    pub fn set_outage(&self, outage: Duration) {
        *self.outage.lock() = outage;
    }

    /// Now, on the engine's clock.
    pub fn now(&self) -> Time {
        Time(self.started.elapsed().as_nanos() as u64)
    }

    /// Where completed transfers are told; said once, before anything is posted.
    pub fn on_completion(&self, sink: CompletionSink) {
        let _ = self.completions.set(sink);
    }

    /// Where lost peers are told; said once.
    pub fn on_loss(&self, sink: LossSink) {
        let _ = self.losses.set(sink);
    }

    /// The buffer memory.
    pub fn buffers(&self) -> &SharedMemory {
        &self.buffers
    }

    /// Keeps the first numbers for neighbours. False: there are peers already, or too many neighbours.
    pub(crate) fn keep_numbers(&self, count: usize) -> bool {
        let mut peers = self.peers.write();
        let has_room = (count as u64) < u64::from(PeerId::PLACES) / 2;
        if peers.len() > 1 || !has_room || !self.programs.numbers.keep(count as u32) {
            return false;
        }
        peers.extend((0..count).map(|_| Place { peer: None, given: PeerId::PEERS_OF_A_PLACE }));
        true
    }

    /// A link to a peer is up.
    pub fn add_peer(&self, link: Arc<dyn Link>) -> Arc<Peer> {
        self.add_link(link, |peer| self.engine.lock().add_peer(self.now(), peer.id))
    }

    /// A link is up; `prepare` says what it is, before anybody else sees it.
    pub(crate) fn add_link(&self, link: Arc<dyn Link>, prepare: impl FnOnce(&Arc<Peer>)) -> Arc<Peer> {
        let permissions = self.permissions_of(&*link);
        let mut peers = self.peers.write();
        let free = peers.iter().position(Place::can_be_given);
        let index = free.unwrap_or_else(|| {
            peers.push(Place::default());
            peers.len() - 1
        });
        let has_place = (index as u64) < u64::from(PeerId::PLACES);
        let id = PeerId::at(index as u32, peers[index].given);
        let peer = Arc::new(Peer {
            id,
            permissions: Mutex::new(permissions),
            checksums: if link.protects_integrity() { Checksums::Off } else { Checksums::On },
            receive_budget: crate::driver::arrive::receive_budget(&*link),
            link,
            streaming: AtomicBool::new(false),
            drained: AtomicBool::new(true),
            waiting_acks: Mutex::default(),
            is_full: AtomicBool::new(false),
            unsent: Mutex::default(),
            name: Mutex::new(String::new()),
            life: OnceLock::new(),
            answers: Mutex::new(HashMap::new()),
            next_number: AtomicU32::new(1),
            open_tasks: AtomicU32::new(0),
            lost: OnceLock::new(),
            part_of: OnceLock::new(),
            paths: RwLock::default(),
            link_lost: OnceLock::new(),
            token: OnceLock::new(),
            is_neighbour: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
        });
        peer.link.set_outage(*self.outage.lock());
        if !has_place {
            // The engine does not know it, and whoever has it sees that it is lost.
            let _ = peer.lost.set(LossReason::TooManyLinks);
            peer.link.close(LossReason::TooManyLinks);
            peers.pop();
            return peer;
        }
        prepare(&peer);
        peers[index].peer = Some(peer.clone());
        peers[index].given += 1;
        self.arrivals.fetch_add(1, Ordering::Release);
        peer
    }

    /// Connects to another node and says who this is.
    pub fn join(
        &self,
        address: &Address,
        security: &Security,
        timeout: Duration,
    ) -> Result<Arc<Peer>, JoinError> {
        self.join_over(tombolo_link::connect(address, security, timeout)?, address, timeout)
    }

    /// The same over a link that is up; the address is for messages.
    pub fn join_over(
        &self,
        link: Arc<dyn Link>,
        address: &Address,
        timeout: Duration,
    ) -> Result<Arc<Peer>, JoinError> {
        let peer = self.add_peer(link);
        match self.ask(&peer, self.introduction(), timeout) {
            Ok((Reply::Introduced { name, life }, _)) => {
                self.introduced(&peer, &name, life)
                    .map_err(|why| JoinError::Refused(address.clone(), why))?;
                Ok(peer)
            }
            Ok((Reply::Failed(why), _)) => Err(JoinError::Refused(address.clone(), why)),
            Ok((other, _)) => Err(JoinError::Refused(address.clone(), format!("{other:?}"))),
            Err(error) => Err(JoinError::Ask(address.clone(), error)),
        }
    }

    /// A peer has introduced itself.
    pub(crate) fn introduced(&self, peer: &Peer, name: &str, life: Life) -> Result<(), String> {
        let is_new = peer.identity().is_none();
        peer.introduce(name, life)?;
        if is_new {
            let PeerLabel { name, key, process_id, address } = peer.label();
            let (peer_name, key, address) = (name.as_deref(), key.as_deref(), address.as_deref());
            tracing::info!(peer = peer_name, key, process = process_id, address, "a neighbour is there");
        }
        self.programs.numbers.introduced(peer.id, &*peer.link, life, |before| {
            self.peer(before).is_none_or(|before| before.loss().is_some())
        });
        Ok(())
    }

    /// What frees the memory that an owner has had.
    pub(crate) fn reclaimer(&self, owner: Owner) -> Reclaimer {
        Reclaimer::new(self.pool.clone(), owner)
    }

    /// How this node introduces itself.
    pub(crate) fn introduction(&self) -> Request {
        Request::Introduce { name: self.name.clone(), life: self.life }
    }

    /// All peers.
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.read().iter().filter_map(|place| place.peer.clone()).collect()
    }

    pub(crate) fn peer(&self, id: PeerId) -> Option<Arc<Peer>> {
        let peers = self.peers.read();
        peers.get(id.index())?.peer.as_ref().filter(|peer| peer.id == id).cloned()
    }

    /// Starts a transfer; [`Node::pump`] sends it.
    pub fn post(&self, peer: PeerId, transfer: Transfer) -> Result<(), PostError> {
        self.post_at(self.now(), peer, transfer)
    }

    pub(crate) fn post_at(&self, now: Time, peer: PeerId, transfer: Transfer) -> Result<(), PostError> {
        self.engine.lock().post(now, peer, transfer).map(|_| ())
    }

    /// The nodes that programs can name.
    pub(crate) fn peer_statuses(&self) -> Vec<PeerStatus> {
        let itself = PeerStatus { node: ITSELF.0, name: self.name.clone() };
        // One that is only being dialed is no neighbour yet.
        let is_dial = |peer: &Peer| peer.is_neighbour.load(Ordering::Relaxed) && peer.life.get().is_none();
        let peers = self.peers().into_iter().filter(|peer| !peer.is_part() && !is_dial(peer));
        let others = peers.map(|peer| {
            let name = peer.name.lock().clone();
            PeerStatus { node: self.programs.numbers.number(peer.id), name }
        });
        std::iter::once(itself).chain(others).collect()
    }

    /// Runs the timers that are due. Returns how long until the next, if any.
    pub fn expire(&self) -> Option<Duration> {
        let now = self.now();
        let mut engine = self.engine.lock();
        let deadline = engine.deadline()?;
        if deadline.0 > now.0 {
            return Some(Duration::from_nanos(deadline.0 - now.0));
        }
        engine.expire(now);
        drop(engine);
        self.pump();
        let deadline = self.engine.lock().deadline()?;
        Some(Duration::from_nanos(deadline.0.saturating_sub(self.now().0)))
    }

    /// Runs the timers of the links; returns when to come back.
    pub fn tick(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for peer in self.peers() {
            if let Some(time) = peer.link.tick(now) {
                next = Some(next.map_or(time, |next| next.min(time)));
            }
            if let LinkState::Lost(reason) = peer.link.state() {
                self.lose(&peer, reason);
            } else if peer.link.is_suspect() != peer.is_paused.load(Ordering::Relaxed) {
                self.pause_or_resume(&peer);
            }
        }
        if self.send_carriages() {
            let again = now + SEND_PAUSE;
            next = Some(next.map_or(again, |next| next.min(again)));
        }
        next
    }

    /// A link to a peer is gone, and if it was the last, the peer: its transfers fail, what it
    /// borrowed comes back.
    pub(crate) fn lose(&self, peer: &Arc<Peer>, reason: LossReason) {
        if !peer.has_link() {
            return;
        }
        let Some(peer) = self.leave_path(peer, reason) else { return };
        if peer.lost.set(reason).is_err() {
            return;
        }
        if let Some(sink) = self.losses.get() {
            sink(peer.id, reason);
        }
        self.engine.lock().peer_lost(self.now(), peer.id);
        if let Some(told) = self.neighbourhood.get() {
            told.lost(peer.id);
        }
        self.carrier_lost(peer.id);
        self.answered.forget(peer.id);
        self.pump();
    }

    /// Forgets a lost peer: its place may be given to another. Returns the bytes that it had borrowed.
    pub fn forget(&self, peer: &Peer) -> u64 {
        let mut peers = self.peers.write();
        let place = peers.get_mut(peer.id.index());
        // Whoever forgets second must not hit the next peer of that place.
        let Some(place) = place.filter(|place| place.peer.as_ref().is_some_and(|known| known.id == peer.id))
        else {
            return 0;
        };
        place.peer = None;
        // Who asks for numbers looks at peers.
        drop(peers);
        self.programs.numbers.forget(peer.id);
        self.gone_links.add(&*peer.link);
        self.ledger.lock().release_all(peer.id)
    }

    /// Says goodbye to all peers, after the answers that they wait for: whoever else holds this node, such as a
    /// thread that dials, they need not find out by its silence.
    pub fn leave(&self) {
        for peer in self.peers() {
            self.flush(&peer);
            peer.link.close(LossReason::ClosedByPeer);
        }
    }

    /// Compares the keys of all links with the list again, and ends those whose key is not on it any more.
    /// Returns whose links they were. The others may ask for what it says now.
    pub fn close_disallowed(&self, security: &Security) -> Result<Vec<String>, KeyFileError> {
        let Security::Secure(identity) = security else { return Ok(Vec::new()) };
        let permissions = identity.allowed.permissions()?;
        let mut closed = Vec::new();
        for peer in self.peers() {
            let Some(key) = peer.link.peer_key().filter(|_| peer.has_link()) else { continue };
            if let Some(permissions) = permissions(&key) {
                *peer.permissions.lock() = permissions;
                continue;
            }
            peer.link.close(LossReason::KeyRemoved);
            self.lose(&peer, LossReason::KeyRemoved);
            let name = peer.whole().name.lock().clone();
            closed.push(if name.is_empty() { key.to_string() } else { format!("`{name}`, {key}") });
        }
        Ok(closed)
    }
}
