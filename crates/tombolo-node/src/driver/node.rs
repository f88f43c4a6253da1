//! The node: links to others, what is lent to them, the programs, and the engine between.
//!
//! The same object lends and borrows, over the same links. Nothing in here has
//! a thread of its own: whoever waits for something drives the engine
//! ([`Node::drive`]), under one lock, and copies bytes outside of it where it can.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tombolo_channel::SLOTS;
use tombolo_core::rdma::{Config, Engine, PeerId, PostError, Retransmission, Time, Transfer, TransferError};
use tombolo_host::event_queue::EventQueue;
use tombolo_host::shared::SharedMemory;
use tombolo_link::{Address, Link, LossReason, PublicKey, Security};
use tombolo_wire::MAX_EARLIER_BLOCKS;

use crate::driver::counters::{GoneLinks, ListenerStats};
use crate::driver::gather::Gatherer;
use crate::fabric::connection::Connection;
use crate::fabric::joining::{self, Paths};
use crate::fabric::life::Life;
use crate::fabric::link_driver::JoinError;
use crate::fabric::status::Borrower;
use crate::fabric::stirred::Stirred;
use crate::fabric::table::Fabric;
use crate::fabric::third_party::MAX_MADE;
use crate::lending::Lending;
use crate::lending::ledger::LendError;
use crate::memory::allocation::allocate;
use crate::memory::blocking::Pools;
use crate::programs::domain::ProgramAtWork;
use crate::programs::domains::{Programs, SetUpError};
use crate::programs::helper::HelperCommand;
use crate::programs::user::NODE_BITS;
use crate::programs::{Limits, MAX_TRANSACTIONS};

/// What a node tells the owners of its own transfers. Each has a queue of its own, and takes the events after it has driven
/// the node, or where the queue's descriptor is readable.
#[derive(Clone, Copy, Debug)]
pub enum NodeEvent {
    /// A transfer of this owner's is over.
    Completed {
        /// Its user number.
        user: u64,
        /// How it ended.
        result: Result<(), TransferError>,
    },
    /// A peer is gone. Its transfers end afterwards.
    Lost {
        /// Which.
        peer: PeerId,
        /// Why.
        reason: LossReason,
    },
}

/// The events of one owner.
pub type NodeEvents = Arc<EventQueue<NodeEvent>>;

/// A node.
pub struct Node {
    pub(crate) fabric: Fabric,
    pub(crate) lending: Lending,
    pub(crate) programs: Arc<Programs>,
    pub(crate) gone_links: GoneLinks,
    pub(crate) listener_stats: ListenerStats,
    /// Where our own writes come from and the answers to our reads go.
    buffers: SharedMemory,
    /// Those that are gone keep their places.
    owners: RwLock<Vec<Weak<EventQueue<NodeEvent>>>>,
    pub(crate) packets_dropped: AtomicU64,
    /// Messages of which parts have come.
    pub(crate) gatherer: Mutex<Gatherer>,
    /// Held by the thread that carries out what the machine of programs' own memory wants.
    pub(crate) accesses_in_order: Mutex<()>,
    /// Grows while a program drives this node by itself.
    pub(crate) driven: AtomicU32,
    /// Where it listens for links, once that was said.
    pub(crate) listens: OnceLock<Vec<String>>,
    /// Counts the rounds of the thread that serves in which it has looked at timers.
    pub(crate) rounds: AtomicU64,
    /// The engine has more to be done than was done in one go.
    pub(crate) unfinished: AtomicBool,
    /// This node, once it is served: for what other threads do for its peers.
    pub(crate) served: OnceLock<Weak<Node>>,
}

impl Drop for Node {
    /// Whoever waits for an answer has it before the links say goodbye.
    fn drop(&mut self) {
        for connection in self.peers() {
            self.flush(&connection);
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Node").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Where the owner stands in the user number of a node's own transfer: below the marks of programs and peers.
const OWNER_SHIFT: u32 = 56;
/// Owners that a node has in its life, at most: the number of one that is gone is not given again, since a transfer of its may end late.
const MAX_OWNERS: usize = 1 << (NODE_BITS - OWNER_SHIFT);

/// One of those who post transfers of a node's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    /// The user number of a transfer, of which the owner is told as `word`, below 2⁵⁶.
    pub fn user(self, word: u64) -> u64 {
        self.0 << OWNER_SHIFT | word
    }
}

/// The most transfers posted and not over, however many channels there are.
const MAX_TRANSFERS: u32 = 1 << 16;

/// What is copied at once between programs here.
const LOOPBACK_BLOCK_BYTES: u32 = 64 * 1024;

/// The engine as a node on ordinary machines uses it.
fn configuration(limits: &Limits) -> Config {
    Config {
        transactions: limits.transactions.min(MAX_TRANSACTIONS),
        // Others may have other limits.
        peer_transactions: MAX_TRANSACTIONS,
        // What peers ask for has room of its own.
        transfers: (u32::from(limits.domains) * SLOTS as u32).clamp(1024, MAX_TRANSFERS) + MAX_MADE as u32,
        // The documents' two blocks of a transfer under way fill a wire of some hundred nanoseconds;
        // between processes a lone transfer needs more to keep both ends at work.
        outstanding_blocks: MAX_EARLIER_BLOCKS as u32 + 1,
        throttled_outstanding_blocks: 1,
        throttled_block_bytes: 4096,
        // A gigabyte a second.
        throttled_block_ns: 4000,
        // Blocks that follow each other are copied together between programs here; elsewhere, too, both
        // ends are faster with them.
        turn_blocks: 64,
        small_transfer_memory_ns: 1_000_000,
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

impl From<SetUpError> for LendError {
    fn from(error: SetUpError) -> Self {
        Self::System(error.to_string())
    }
}

impl Node {
    /// Grows several times a second while the thread that serves does what it is for.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// A node that lends up to `lend_bytes` and has `buffer_bytes` of buffers for borrowing.
    pub fn new(name: &str, lend_bytes: u64, buffer_bytes: usize) -> Result<Self, LendError> {
        Self::with_limits(name, lend_bytes, buffer_bytes, Limits::default())
    }

    /// As [`Self::new`], with these limits of programs.
    pub fn with_limits(
        name: &str,
        lend_bytes: u64,
        buffer_bytes: usize,
        limits: Limits,
    ) -> Result<Self, LendError> {
        let buffers = allocate((buffer_bytes.max(4096) as u64).next_multiple_of(4096))?;
        let life = Life::new()?;
        let engine = Engine::new(configuration(&limits));
        let stirred = Stirred::new().map_err(|error| LendError::System(error.to_string()))?;
        let fabric = Fabric::new(name, life, engine, LOOPBACK_BLOCK_BYTES, stirred);
        let pools = Pools::new();
        Ok(Self {
            lending: Lending::new(lend_bytes, pools.clone(), fabric.answered.clone()),
            programs: Arc::new(Programs::new(limits, pools)?),
            fabric,
            gone_links: GoneLinks::default(),
            listener_stats: ListenerStats::default(),
            buffers,
            owners: RwLock::default(),
            packets_dropped: AtomicU64::new(0),
            gatherer: Mutex::default(),
            accesses_in_order: Mutex::default(),
            driven: AtomicU32::new(0),
            listens: OnceLock::new(),
            rounds: AtomicU64::new(0),
            unfinished: AtomicBool::new(false),
            served: OnceLock::new(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.fabric.name()
    }

    /// Which life of it this is.
    pub fn life(&self) -> Life {
        self.fabric.life()
    }

    /// How long nothing may be heard of a peer before a link that begins from now on is lost, where silence
    /// is all that shows its end: at least [`SUSPECT_AFTER`](tombolo_link::udp::SUSPECT_AFTER).
    pub fn set_outage(&self, outage: Duration) {
        self.fabric.set_outage(outage);
    }

    /// From now on peers may ask for what the list says of their keys; said once, before there are any. Those
    /// whose links have no keys may ask for all: it is others who decide who can link.
    pub fn permit_by_list(&self, security: &Security) {
        self.fabric.permit_by_list(security);
    }

    /// Where this node listens for links, for whoever asks how it is; said once.
    pub fn listens_at(&self, addresses: Vec<String>) {
        let _ = self.listens.set(addresses);
    }

    /// This node is about to end, at that time at the latest: from now on only a peer that has some of its memory already gets more.
    pub fn ends_at(&self, time: Instant) {
        self.fabric.ends_at(time);
    }

    /// The peers that have memory of this node.
    pub fn borrowers(&self) -> Vec<Borrower> {
        self.peers().iter().filter_map(|connection| self.lending.borrower(connection)).collect()
    }

    /// The programs that have transfers under way.
    pub fn programs_at_work(&self) -> Vec<ProgramAtWork> {
        self.programs.open_domains().values().filter_map(|domain| domain.at_work()).collect()
    }

    /// Now, on the engine's clock.
    pub fn now(&self) -> Time {
        self.fabric.now()
    }

    /// Adds an owner of transfers, and the events of its own. The first one's user numbers are
    /// those of its transfers; those of others come from [`Owner::user`].
    pub fn add_owner(&self) -> io::Result<(Owner, NodeEvents)> {
        let events = Arc::new(EventQueue::new()?);
        let mut owners = self.owners.write();
        if owners.len() >= MAX_OWNERS {
            return Err(io::Error::other(format!(
                "a node has {MAX_OWNERS} owners of transfers in its life, and no more"
            )));
        }
        owners.push(Arc::downgrade(&events));
        Ok((Owner(owners.len() as u64 - 1), events))
    }

    /// A transfer of this node's own has completed.
    pub(crate) fn completed(&self, user: u64, result: Result<(), TransferError>) -> bool {
        let owners = self.owners.read_recursive();
        let events = owners.get((user >> OWNER_SHIFT) as usize).and_then(Weak::upgrade);
        let user = user & ((1 << OWNER_SHIFT) - 1);
        events.map(|events| events.push(NodeEvent::Completed { user, result })).is_some()
    }

    /// How to start processes that make the accesses to memory of programs that cannot have threads; said once. Without it,
    /// threads of this process make them.
    pub fn help_accesses_by(&self, command: HelperCommand) {
        let _ = self.programs.helper.set(command);
    }

    pub(crate) fn lost(&self, peer: PeerId, reason: LossReason) {
        for events in self.owners.read_recursive().iter().filter_map(Weak::upgrade) {
            events.push(NodeEvent::Lost { peer, reason });
        }
    }

    /// The buffer memory.
    pub fn buffers(&self) -> &SharedMemory {
        &self.buffers
    }

    /// Adds a link that is up. Returns its connection.
    pub fn add_peer(&self, link: Arc<dyn Link>) -> Arc<Connection> {
        self.fabric.add_peer(link)
    }

    /// The connections of all links.
    pub fn peers(&self) -> Vec<Arc<Connection>> {
        self.fabric.connections()
    }

    /// The key that the node of this number has proved.
    pub fn key_of(&self, node: u32) -> Option<PublicKey> {
        self.fabric.connection(PeerId(node))?.key()
    }

    /// Starts a transfer; [`Node::pump`] sends it.
    pub fn post(&self, peer: PeerId, transfer: Transfer) -> Result<(), PostError> {
        self.fabric.post(peer, transfer)
    }

    /// Connects to another node and says which node this is.
    pub fn join(
        &self,
        address: &Address,
        security: &Security,
        timeout: Duration,
    ) -> Result<Arc<Connection>, JoinError> {
        self.join_over(tombolo_link::connect(address, security, timeout)?, address, timeout)
    }

    /// As [`Node::join`], over a link that is up; the address is for messages.
    pub fn join_over(
        &self,
        link: Arc<dyn Link>,
        address: &Address,
        timeout: Duration,
    ) -> Result<Arc<Connection>, JoinError> {
        joining::join_over(self, link, address, timeout)
    }

    /// Joins a node by several addresses of it: the first as [`Node::join`] does, the others as
    /// further paths.
    pub fn join_by(
        &self,
        addresses: &[Address],
        security: &Security,
        timeout: Duration,
    ) -> Result<Option<Paths>, JoinError> {
        let Some(first) = addresses.first() else { return Ok(None) };
        let connection = self.join(first, security, timeout)?;
        if addresses.len() == 1 {
            return Ok(None);
        }
        self.join_again(&connection, addresses, security, timeout).map(Some)
    }

    /// Joins a node that was joined by the first of these addresses by the others, too.
    pub fn join_again(
        &self,
        first: &Arc<Connection>,
        addresses: &[Address],
        security: &Security,
        timeout: Duration,
    ) -> Result<Paths, JoinError> {
        joining::join_again(self, first, addresses, security, timeout)
    }
}
