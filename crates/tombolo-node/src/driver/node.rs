//! The node: its links to other nodes, the memory that it lends to them, its programs, and the engine that moves bytes
//! between them.
//!
//! A [`Node`] both lends and borrows, over the same links. It drives its links with no thread of its own: a thread that
//! waits for something drives the engine ([`Node::drive`]), under one lock, and copies bytes outside the lock where it
//! can.

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

/// An event for an owner of the node's own transfers. Each owner has a queue of its own. It takes the events after it
/// has driven the node, or when the queue's descriptor is readable.
#[derive(Clone, Copy, Debug)]
pub enum NodeEvent {
    /// A transfer of this owner has ended.
    Completed {
        /// Its user number.
        user: u64,
        /// How it ended.
        result: Result<(), TransferError>,
    },
    /// A peer is lost. Transfers with it end after this event.
    Lost {
        /// The peer.
        peer: PeerId,
        /// The reason.
        reason: LossReason,
    },
}

/// The events of one owner.
pub type NodeEvents = Arc<EventQueue<NodeEvent>>;

/// One node: its links, the memory that it lends, its programs, and its engine.
pub struct Node {
    pub(crate) fabric: Fabric,
    pub(crate) lending: Lending,
    pub(crate) programs: Arc<Programs>,
    pub(crate) gone_links: GoneLinks,
    pub(crate) listener_stats: ListenerStats,
    /// Source of this node's own writes, and destination of its own reads.
    buffers: SharedMemory,
    /// Queues of the owners, by the owner's number. An owner that is gone keeps its place.
    owners: RwLock<Vec<Weak<EventQueue<NodeEvent>>>>,
    pub(crate) packets_dropped: AtomicU64,
    /// Messages to mailboxes of which only some parts have arrived.
    pub(crate) gatherer: Mutex<Gatherer>,
    /// Held by the thread that carries out the steps of the machine for programs' own memory, so that they are done in
    /// order.
    pub(crate) accesses_in_order: Mutex<()>,
    /// Counts the calls of [`Node::turn`], by which a program drives this node itself.
    pub(crate) driven: AtomicU32,
    /// Addresses at which this node listens for links, after [`Node::listens_at`].
    pub(crate) listens: OnceLock<Vec<String>>,
    /// Number of times that the serving thread has looked at the timers.
    pub(crate) rounds: AtomicU64,
    /// The last call of [`Node::pump`] stopped before the engine had no more actions.
    pub(crate) unfinished: AtomicBool,
    /// This node, set when it is served: for tasks that other threads do for its peers.
    pub(crate) served: OnceLock<Weak<Node>>,
}

impl Drop for Node {
    /// Flushes all links first, so that peers get their answers before the links close.
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

/// The lowest bit of the owner's number in the user number of a node's own transfer. The bits above mark transfers of
/// programs and peers.
const OWNER_SHIFT: u32 = 56;
/// Maximum number of owners in a node's life. The number of an owner that is gone is not reused, since one of its
/// transfers may end late.
const MAX_OWNERS: usize = 1 << (NODE_BITS - OWNER_SHIFT);

/// The number of a party that posts transfers of the node's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u64);

impl Owner {
    /// The user number for a transfer whose end is reported to the owner as `word`, which is below 2⁵⁶.
    pub fn user(self, word: u64) -> u64 {
        self.0 << OWNER_SHIFT | word
    }
}

/// Maximum number of transfers posted and not yet ended, however many channels there are.
const MAX_TRANSFERS: u32 = 1 << 16;

/// Maximum size of a block between two programs of this node.
const LOOPBACK_BLOCK_BYTES: u32 = 64 * 1024;

/// The engine's configuration for a node on an ordinary machine.
fn configuration(limits: &Limits) -> Config {
    Config {
        transactions: limits.transactions.min(MAX_TRANSACTIONS),
        // Peers may have other limits.
        peer_transactions: MAX_TRANSACTIONS,
        // Transfers that peers ask for have room of their own.
        transfers: (u32::from(limits.domains) * SLOTS as u32).clamp(1024, MAX_TRANSFERS) + MAX_MADE as u32,
        // The two blocks per transfer of the documents keep a wire of some hundred nanoseconds busy. Between processes,
        // a lone transfer needs more blocks to keep both ends at work.
        outstanding_blocks: MAX_EARLIER_BLOCKS as u32 + 1,
        throttled_outstanding_blocks: 1,
        throttled_block_bytes: 4096,
        // One gigabyte per second.
        throttled_block_ns: 4000,
        // Between programs of this node, consecutive blocks are copied together. Over links, too, both ends are faster
        // with consecutive blocks.
        turn_blocks: 64,
        small_transfer_memory_ns: 1_000_000,
        // A peer may have to wait for a processor before it sends an answer, for as long as the time slice of the
        // thread that has the processor.
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
    /// Number of times that the serving thread has looked at the timers: grows several times a second while that thread
    /// works.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// A node that lends up to `lend_bytes` and has `buffer_bytes` of buffers for borrowing.
    pub fn new(name: &str, lend_bytes: u64, buffer_bytes: usize) -> Result<Self, LendError> {
        Self::with_limits(name, lend_bytes, buffer_bytes, Limits::default())
    }

    /// As [`Self::new`], with these limits for programs.
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

    /// The node's name.
    pub fn name(&self) -> &str {
        self.fabric.name()
    }

    /// The node's life.
    pub fn life(&self) -> Life {
        self.fabric.life()
    }

    /// Sets how long a peer may be silent before its link is lost, for links that begin from now on. It counts only for
    /// links whose end shows by silence alone. At least [`SUSPECT_AFTER`](tombolo_link::udp::SUSPECT_AFTER).
    pub fn set_outage(&self, outage: Duration) {
        self.fabric.set_outage(outage);
    }

    /// Limits the requests of each peer to those that the list of keys allows its key. To be called once, before there
    /// are any peers. Peers whose links have no keys may make all requests: other rules decide which of them can
    /// connect.
    pub fn permit_by_list(&self, security: &Security) {
        self.fabric.permit_by_list(security);
    }

    /// Sets the addresses at which this node listens for links, for its status. Only the first call counts.
    pub fn listens_at(&self, addresses: Vec<String>) {
        let _ = self.listens.set(addresses);
    }

    /// Announces that this node ends at `time` at the latest. From now on it lends memory only to peers that have some
    /// of its memory already.
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

    /// The current time on the engine's clock.
    pub fn now(&self) -> Time {
        self.fabric.now()
    }

    /// Adds an owner of transfers, and returns its queue of events. The first owner may use plain user numbers. Each
    /// further owner gets its user numbers from [`Owner::user`].
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

    /// Tells the owner that one of its transfers has ended. False: the owner is gone.
    pub(crate) fn completed(&self, user: u64, result: Result<(), TransferError>) -> bool {
        let owners = self.owners.read_recursive();
        let events = owners.get((user >> OWNER_SHIFT) as usize).and_then(Weak::upgrade);
        let user = user & ((1 << OWNER_SHIFT) - 1);
        events.map(|events| events.push(NodeEvent::Completed { user, result })).is_some()
    }

    /// Sets the command for helpers: processes that make the accesses to the memory of programs that cannot have
    /// threads. Only the first call counts. Without a command, threads of this process make those accesses.
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

    /// The key that the peer with this number has proved.
    pub fn key_of(&self, node: u32) -> Option<PublicKey> {
        self.fabric.connection(PeerId(node))?.key()
    }

    /// Starts a transfer; [`Node::pump`] sends it.
    pub fn post(&self, peer: PeerId, transfer: Transfer) -> Result<(), PostError> {
        self.fabric.post(peer, transfer)
    }

    /// Connects to another node and introduces this node to it.
    pub fn join(
        &self,
        address: &Address,
        security: &Security,
        timeout: Duration,
    ) -> Result<Arc<Connection>, JoinError> {
        self.join_over(tombolo_link::connect(address, security, timeout)?, address, timeout)
    }

    /// As [`Node::join`], over a link that is up. The address appears in messages only.
    pub fn join_over(
        &self,
        link: Arc<dyn Link>,
        address: &Address,
        timeout: Duration,
    ) -> Result<Arc<Connection>, JoinError> {
        joining::join_over(self, link, address, timeout)
    }

    /// Joins a node by several of its addresses: by the first as [`Node::join`] does, by the rest as further paths.
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

    /// Joins a node by further paths, after it was joined by the first of these addresses.
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
