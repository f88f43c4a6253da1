//! The tables of the initiator: transfers, transactions and peers.

use super::paths::Path;
use crate::list::{Chain, List, NONE};
use crate::rdma::config::Config;
use crate::rdma::round_trip::RoundTrip;
use crate::rdma::scheduler::{ClassPicker, Shares};
use crate::rdma::time::Time;
use crate::rdma::transaction::State;
use crate::rdma::transfer::{Class, PeerId, Transfer, TransferError, TransferId};
use crate::wakes::Wake;
use std::collections::{BTreeSet, VecDeque};
use tombolo_wire::{Asker, Attempt, Generation, READ_WINDOW, Refusal, RequestId};

/// The list a transfer is in. It is in one at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// In no list: the transfer is free, or has as many blocks under way as it may have.
    None,
    /// A write with blocks to issue, at its peer.
    Class(Class),
    /// A write of which only the notification is left to be sent.
    Notify,
    /// A read to be asked for, at its peer.
    Ask(Class),
    /// A read that was asked for, in its peer's list of read timeouts.
    Asked,
    /// A read to be asked for again at once, at its peer.
    Again,
    /// A read that the target turned away, until it is asked for again.
    Delayed,
    /// In no list of these: the transfer is over, but bytes of it may still be placed.
    Ending,
    /// A transfer that is over, and whose completion is to be reported.
    Done,
}

#[derive(Debug)]
pub(super) struct TransferState {
    pub serial: u32,
    pub live: bool,
    pub peer: PeerId,
    pub spec: Transfer,
    /// The peer's read that this write answers.
    pub served: Option<RequestId>,
    /// The node on whose behalf it writes.
    pub asker: Asker,
    pub queue: Queue,
    pub status: Result<(), TransferError>,
    // Writes.
    pub cursor_bytes: u32,
    pub issued: u32,
    pub outstanding: u32,
    pub acked: u32,
    /// The word as it was before an atomic operation.
    pub before: u64,
    pub turn: u32,
    pub slots: List,
    /// The slot of the last block, while it has one.
    pub last_slot: Option<u32>,
    // Reads.
    pub request: Option<RequestId>,
    pub attempt: Attempt,
    pub received_bytes: u64,
    pub placing: u32,
    pub asked_at: Time,
    /// When the read last showed that a block of its answer had been placed, by the attended clock. When this
    /// read ends, the next one inherits the time.
    pub progress_at: Time,
    /// Whether a block of the answer was placed after `progress_at`. The next read inherits this, too.
    pub has_progressed: bool,
    /// Whether anything of the answer has come.
    pub heard: bool,
    /// The path of the latest request.
    pub asked_by: u8,
    /// Position among its peer's requests.
    pub ask_order: u64,
    /// When the read was first asked for, by the attended clock.
    pub first_asked_at: Time,
    pub unanswered: u32,
    /// This node's own refusal of a block of the answer: the first one for good, or else the latest one for
    /// now.
    pub own_refusal: Option<Refusal>,
}

impl TransferState {
    fn free() -> Self {
        Self {
            serial: 0,
            live: false,
            peer: PeerId(0),
            spec: Transfer {
                direction: crate::rdma::Direction::Write,
                domain: tombolo_wire::Domain(0),
                own_domain: tombolo_wire::Domain(0),
                source_address: 0,
                destination_address: 0,
                size_bytes: 0,
                notification: None,
                class: None,
                user: 0,
            },
            served: None,
            asker: Asker::SENDER,
            queue: Queue::None,
            status: Ok(()),
            cursor_bytes: 0,
            issued: 0,
            outstanding: 0,
            acked: 0,
            before: 0,
            turn: 0,
            slots: List::default(),
            last_slot: None,
            request: None,
            attempt: Attempt(0),
            received_bytes: 0,
            placing: 0,
            asked_at: Time(0),
            progress_at: Time(0),
            has_progressed: false,
            heard: false,
            asked_by: 0,
            ask_order: 0,
            first_asked_at: Time(0),
            unanswered: 0,
            own_refusal: None,
        }
    }

    /// The error of a read that ends with a refusal by the peer, `answer`. The answer does not say whose memory
    /// refused. If this node's own memory has refused for good, that is the error, whatever the source may have
    /// refused, too. If it has refused for now only, that is the error if `answer` is transient, too.
    pub fn refused_by(&self, answer: Refusal) -> TransferError {
        let own = self.own_refusal.filter(|own| !own.code.is_transient() || answer.code.is_transient());
        own.map_or(TransferError::Refused(answer), TransferError::Local)
    }

    /// Whether the last block has a notification. A write-back always has one, because its end completes
    /// the read.
    pub fn owes_notification(&self) -> bool {
        self.spec.notification.is_some() || self.served.is_some()
    }

    /// Whether all blocks have been issued. Even a transfer of no bytes has one block.
    pub fn all_issued(&self) -> bool {
        self.issued > 0 && self.cursor_bytes == self.spec.size_bytes
    }

    /// Whether every block but the last is acknowledged (QOS §3.2.6), and the last is not.
    pub fn may_notify(&self) -> bool {
        self.owes_notification()
            && self.all_issued()
            && self.acked + 1 == self.issued
            && self.last_slot.is_some()
    }

    /// The class now: the user's, or by what is still to be issued (QOS §3.3).
    pub fn class(&self, config: &Config) -> Class {
        self.spec.class.unwrap_or_else(|| config.class_of(self.spec.size_bytes - self.cursor_bytes))
    }
}

/// The transfer table: slots are used again, serial numbers are not.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    pub entries: Vec<TransferState>,
    pub chain: Chain,
    /// Reads with a request, in the order of their ids.
    pub read_chain: Chain,
    /// The transfers of each peer that have not ended, and those whose end waits for answers.
    pub open_chain: Chain,
    free: Vec<u32>,
    allowed: usize,
    /// Open transfers that this node's programs have posted.
    pub posted: u32,
    /// Open write-backs of peers' reads.
    pub served: u32,
}

impl Transfers {
    /// Gives the table room for this many transfers. Memory for a place is allocated at its first use.
    pub fn allow(&mut self, entries: usize) {
        self.allowed = self.allowed.max(entries);
    }

    /// Returns the place that was given back last, or a new one. Reuse in this order keeps a table that is
    /// mostly empty in the cache.
    fn place(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = self.entries.len();
        if index == self.allowed {
            return None;
        }
        self.entries.push(TransferState::free());
        for chain in [&mut self.chain, &mut self.read_chain, &mut self.open_chain] {
            chain.grow(index + 1);
        }
        Some(index as u32)
    }

    pub fn take(&mut self, peer: PeerId, spec: Transfer, served: Option<RequestId>) -> Option<u32> {
        let index = self.place()?;
        let serial = self.entries[index as usize].serial.wrapping_add(1);
        self.entries[index as usize] =
            TransferState { serial, live: true, peer, spec, served, ..TransferState::free() };
        match served {
            Some(_) => self.served += 1,
            None => self.posted += 1,
        }
        Some(index)
    }

    pub fn give_back(&mut self, index: u32) {
        let transfer = &mut self.entries[index as usize];
        transfer.live = false;
        transfer.queue = Queue::None;
        match transfer.served {
            Some(_) => self.served -= 1,
            None => self.posted -= 1,
        }
        self.free.push(index);
    }

    pub fn id(&self, index: u32) -> TransferId {
        TransferId { index, serial: self.entries[index as usize].serial }
    }

    pub fn find(&mut self, id: TransferId) -> Option<&mut TransferState> {
        let transfer = self.entries.get_mut(id.index as usize)?;
        (transfer.live && transfer.serial == id.serial).then_some(transfer)
    }
}

/// The list a transaction is in. It is in one at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    None,
    /// The timeouts of the block's path, in the order of sending (QOS §4.1).
    Timeout,
    /// In no list: the caller has been reading the block's bytes, or carrying out a block to this node itself,
    /// for longer than a timeout. The caller always reports when it is done.
    Late,
    /// Its peer's blocks to be sent again. A block sits here once, however often
    /// it is lost: this is the "retransmission bit" (QOS §3.3).
    Resend,
    /// Small transfers that skip the queue.
    Bypass,
    /// Blocks that were refused for lack of room.
    DelayFull,
    /// Blocks that have been refused for lack of room for long.
    DelayFullForLong,
    /// Blocks that were refused for an absent page.
    DelayFault,
    /// Blocks that the receiver is placing.
    DelayPlacing,
}

/// One slot of the table of pending transactions (QOS §3.2.4).
#[derive(Debug)]
pub(super) struct Transaction {
    pub state: State,
    pub place: Place,
    pub peer: PeerId,
    pub transfer: u32,
    pub generation: Generation,
    pub attempt: Attempt,
    pub offset_bytes: u32,
    pub length_bytes: u32,
    pub last: bool,
    /// Whether the block was handed out at least once.
    pub sent: bool,
    /// Whether the latest attempt was handed out and did not fit into the link.
    pub unsent: bool,
    /// Whether the caller is reading the block's bytes: nothing of this attempt was sent yet.
    pub reading: bool,
    /// Whether the notification is under way, with this transmission or behind it.
    pub carried: bool,
    /// Whether the block's bytes count as under way.
    pub counted: bool,
    /// When the block, or its separate notification, was first to be sent, by the attended clock.
    pub issued_at: Time,
    /// When the block's bytes were last not ready to be sent, by the attended clock: before that, the peer was
    /// not asked for an answer. For an empty block that closes another: when the peer last said that it is not
    /// done with that other block.
    pub absent_at: Time,
    pub sent_at: Time,
    pub sent_before_at: Option<Time>,
    /// Position among its path's transmissions, of this transmission and of the one before.
    pub order: u64,
    pub order_before: u64,
    /// The path of this transmission, by which its bytes count as under way, and the path of the one before.
    pub path: u8,
    pub path_before: u8,
    /// The path that lost the transmission before. The next transmission avoids it.
    pub avoid: Option<u8>,
    pub due: Time,
    /// Transmissions in a row without an answer, and how many of them were overtaken.
    pub unanswered: u32,
    pub overtaken: u32,
    /// The path and the time of the latest transmission that was taken for lost.
    pub lost: Option<(u8, Time)>,
    /// Whether the block was sent again as a probe and has not been answered since.
    pub is_probed: bool,
}

/// The table of pending transactions with its ticket queue (QOS §3.3).
#[derive(Debug)]
pub(super) struct Transactions {
    pub entries: Vec<Transaction>,
    pub tickets: VecDeque<u16>,
    pub chain: Chain,
    /// The slots of each transfer.
    pub siblings: Chain,
}

impl Transactions {
    pub fn new(slots: u16) -> Self {
        let entries = (0..slots)
            .map(|_| Transaction {
                state: State::Free,
                place: Place::None,
                peer: PeerId(0),
                transfer: NONE,
                generation: Generation(0),
                attempt: Attempt(0),
                offset_bytes: 0,
                length_bytes: 0,
                last: false,
                sent: false,
                unsent: false,
                reading: false,
                carried: false,
                counted: false,
                issued_at: Time(0),
                absent_at: Time(0),
                sent_at: Time(0),
                sent_before_at: None,
                order: 0,
                order_before: 0,
                path: 0,
                path_before: 0,
                avoid: None,
                due: Time(0),
                unanswered: 0,
                overtaken: 0,
                lost: None,
                is_probed: false,
            })
            .collect();
        Self {
            entries,
            tickets: (0..slots).collect(),
            chain: Chain::new(slots.into()),
            siblings: Chain::new(slots.into()),
        }
    }
}

/// Peers that are held back because they hold more slots than are free: for each class, ordered by the number
/// of slots that they hold.
#[derive(Debug, Default)]
pub(super) struct Held {
    by_slots: [BTreeSet<(usize, u32)>; Class::COUNT],
}

impl Held {
    /// Files a peer in each class under its number of slots in `held`, or takes it out where that is `None`.
    pub fn set(&mut self, peer: &mut SendPeer, held: [Option<usize>; Class::COUNT]) {
        if peer.held == held {
            return;
        }
        for ((peers, before), after) in self.by_slots.iter_mut().zip(peer.held).zip(held) {
            if let Some(slots) = before.filter(|_| before != after) {
                peers.remove(&(slots, peer.id.index() as u32));
            }
            if let Some(slots) = after.filter(|_| before != after) {
                peers.insert((slots, peer.id.index() as u32));
            }
        }
        peer.held = held;
    }

    /// The peer of a class that holds the fewest slots, if no more than are free.
    pub fn first(&self, class: Class, free: usize) -> Option<PeerId> {
        let (slots, peer) = self.by_slots[class as usize].first()?;
        (*slots <= free).then_some(PeerId(*peer))
    }
}

/// State of a peer with a full link. Blocks that wait for room in a link have no timer of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stuck {
    /// When the peer became stuck, by the attended clock.
    pub since: Time,
    /// When to check the peer again.
    pub look_at: Time,
}

/// What the initiator knows of one peer.
#[derive(Debug)]
pub(super) struct SendPeer {
    pub id: PeerId,
    /// Distinguishes successive peers of this number.
    pub session: u32,
    /// The paths to it. There is always one; the first is there from the start.
    pub paths: Vec<Path>,
    /// Round trip from a read request to the first sign of its answer. Kept apart from the paths' round trips,
    /// because it includes waiting at the target.
    pub read_trip: RoundTrip,
    /// When something was last heard of the peer, by the attended clock.
    pub heard_at: Time,
    /// Whether the peer was given up and nothing was heard of it since.
    pub is_silent: bool,
    /// Since when the peer has had no path, by the attended clock. `None` if it has one.
    pub pathless_since: Option<Time>,
    /// Length of a block.
    pub block_bytes: u32,
    /// Whether notifications are sent before earlier blocks are answered, with a list of those blocks.
    pub early_notification: bool,
    /// Whether the peer is this node itself, to which no packets go. The caller carries out and answers each
    /// block that it is handed, so a block is sent again only if it was refused.
    pub is_loopback: bool,
    /// The latest generation of each slot towards this peer. Counted per peer, so that the peer sees every
    /// generation and a wrap-around cannot mislead it.
    pub generations: Box<[Generation]>,
    /// Number of slots that blocks to this peer hold.
    pub slots: usize,
    /// By class, if the peer is in [`Held`]: the number of slots under which it is filed there.
    pub held: [Option<usize>; Class::COUNT],
    /// Lower bound of its timers.
    pub wake: Wake,
    /// Transfers that have not ended.
    pub open: List,
    /// Transfers that have ended, and are reported when their blocks are answered.
    pub ending: List,
    /// Set after a link of the peer took nothing. The peer is then checked from time to time.
    pub stuck: Option<Stuck>,
    pub resend: List,
    pub queues: [List; Class::COUNT],
    pub reads: [List; Class::COUNT],
    pub read_picker: ClassPicker,
    pub asked: List,
    /// Reads to be asked for again.
    pub again: List,
    /// Open reads by id, modulo the window.
    pub requests: Box<[u32]>,
    pub next_request: RequestId,
    /// Open reads in the order of their ids, and by class.
    pub open_reads: List,
    pub open_shares: Shares,
    /// Requests so far, and the latest one that was answered.
    pub ask_order: u64,
    pub answered_ask_order: u64,
    /// The read that was asked for last. Another transfer may have its place by now.
    pub latest_asked: Option<u32>,
}

impl SendPeer {
    pub fn new(id: PeerId, config: &Config, heard_at: Time, session: u32) -> Self {
        Self {
            id,
            session,
            paths: vec![Path::new(config, true)],
            read_trip: RoundTrip::new(),
            heard_at,
            is_silent: false,
            pathless_since: None,
            block_bytes: config.block_bytes,
            early_notification: config.early_notification,
            is_loopback: false,
            generations: vec![Generation(0); config.transactions.into()].into(),
            slots: 0,
            held: [None; Class::COUNT],
            wake: Wake::default(),
            open: List::default(),
            ending: List::default(),
            stuck: None,
            resend: List::default(),
            queues: Default::default(),
            reads: Default::default(),
            read_picker: ClassPicker::new(config.starvation_blocks),
            asked: List::default(),
            again: List::default(),
            requests: vec![NONE; READ_WINDOW as usize].into(),
            next_request: RequestId(0),
            open_reads: List::default(),
            open_shares: Shares::default(),
            ask_order: 0,
            answered_ask_order: 0,
            latest_asked: None,
        }
    }

    /// Whether a block to this peer may take one of `free` free slots. A peer may hold at most as many slots as
    /// are free: the first peer that answers slowly leaves half of the table, the next one half of the rest. A
    /// silent peer gets one slot, for a block that finds out whether it answers.
    pub fn may_take_slot(&self, free: usize) -> bool {
        self.slots <= free && !(self.is_silent && self.slots > 0)
    }

    /// The classes of which a new read may be asked for.
    pub fn may_ask(&self, config: &Config) -> [bool; Class::COUNT] {
        Class::ALL.map(|class| {
            !self.reads[class as usize].is_empty() && self.open_shares.admits(config.outstanding_reads, class)
        })
    }

    /// An id for the next read. An id whose place an open read holds is skipped, so that any number of
    /// reads can follow a long one. There is a free place, because no more reads may be open than there
    /// are places.
    pub fn take_request(&mut self) -> RequestId {
        while self.requests[request_place(self.next_request)] != NONE {
            self.next_request = self.next_request.next();
        }
        let request = self.next_request;
        self.next_request = request.next();
        request
    }

    /// How long a read request waits for anything of its answer.
    pub fn read_timeout_ns(&self, config: &Config) -> u64 {
        let paths = self.paths.iter().filter(|path| path.up).count() as u32;
        self.read_trip.timeout_by_turns_ns(config.retransmission, paths).max(config.read_retry_ns)
    }
}

/// The place of a request id in a window-sized table.
pub(super) fn request_place(request: RequestId) -> usize {
    (request.0 % READ_WINDOW) as usize
}
