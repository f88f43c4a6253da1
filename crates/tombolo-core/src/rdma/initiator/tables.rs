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
    /// On whose behalf it writes.
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
    /// When the timers last saw that a block of the answer had been placed; the next read inherits it. By the
    /// attended clock.
    pub progress_at: Time,
    /// Whether a block of the answer was placed since; the next read inherits it.
    pub has_progressed: bool,
    /// A sign of the read's life has come.
    pub heard: bool,
    /// The path of the latest request.
    pub asked_by: u8,
    /// Position among its peer's requests.
    pub ask_order: u64,
    /// By the attended clock.
    pub first_asked_at: Time,
    pub unanswered: u32,
    /// Why this side's own memory has first refused a block of the answer for good, and where; or else has last put one off.
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

    /// Why a read fails that the peer has turned away. Its answer does not say whose memory has refused. If the own one has, the read cannot
    /// succeed, whatever the source may have refused, too; and if it has put off what took too long, that is why.
    pub fn refused_by(&self, answer: Refusal) -> TransferError {
        let own = self.own_refusal.filter(|own| !own.code.is_transient() || answer.code.is_transient());
        own.map_or(TransferError::Refused(answer), TransferError::Local)
    }

    /// Whether the last block has a notification. A write-back always has one, because its end completes
    /// the read.
    pub fn owes_notification(&self) -> bool {
        self.spec.notification.is_some() || self.served.is_some()
    }

    /// Whether no block is left: even a transfer of no bytes has one.
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
    /// From now on the table has room for this many transfers. A place has memory from its first use on.
    pub fn allow(&mut self, entries: usize) {
        self.allowed = self.allowed.max(entries);
    }

    /// The place that was given back last, so that a table that is mostly empty stays in the cache; or a new one.
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
    /// Being carried out by the caller for longer than a timeout: its bytes are read, or it goes to a peer that no packets go to. In no
    /// list. That the caller is done comes without fail.
    Late,
    /// Its peer's blocks to be sent again. A block sits here once, however often
    /// it is lost: this is the "retransmission bit" (QOS §3.3).
    Resend,
    /// Small transfers that skip the queue.
    Bypass,
    /// Blocks that were refused for lack of room.
    DelayFull,
    /// It was refused for lack of room for long.
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
    /// The caller reads its bytes: nothing of this attempt was sent.
    pub reading: bool,
    /// The notification is under way: with this transmission, or behind it.
    pub carried: bool,
    /// Whether the block's bytes count as under way.
    pub counted: bool,
    /// When it, or its notification apart from it, was first to go; by the attended clock.
    pub issued_at: Time,
    /// When its bytes were last not there to be sent: until then its peer was not asked for an answer. Of an empty block that closes
    /// another: when the peer last said that it is not done with that. By the attended clock.
    pub absent_at: Time,
    pub sent_at: Time,
    pub sent_before_at: Option<Time>,
    /// Position among its path's transmissions, of this one and the one before.
    pub order: u64,
    pub order_before: u64,
    /// The path of this transmission, where its bytes count, and of the one before.
    pub path: u8,
    pub path_before: u8,
    /// The path that lost the transmission before: the next goes by another.
    pub avoid: Option<u8>,
    pub due: Time,
    /// Transmissions without an answer in a row, and those of them that were overtaken.
    pub unanswered: u32,
    pub overtaken: u32,
    /// The path and the time of the latest transmission that was taken for lost.
    pub lost: Option<(u8, Time)>,
    /// It was sent again as a probe, and was not answered since.
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

/// The peers that wait, each class apart, because they hold more slots than are free; by the slots they hold.
#[derive(Debug, Default)]
pub(super) struct Held {
    by_slots: [BTreeSet<(usize, u32)>; Class::COUNT],
}

impl Held {
    /// Sets by how many slots the peer is held back in each class.
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

/// A peer with a link that is full. What waits for room has no timer of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stuck {
    /// By the attended clock.
    pub since: Time,
    /// When to look again.
    pub look_at: Time,
}

/// What the initiator knows of one peer.
#[derive(Debug)]
pub(super) struct SendPeer {
    pub id: PeerId,
    /// Which of the peers that had this number it is.
    pub session: u32,
    /// The paths to it. There is always one; the first is there from the start.
    pub paths: Vec<Path>,
    /// From a read request to the first sign of its answer. Apart from the paths',
    /// because it has the target's waiting in it.
    pub read_trip: RoundTrip,
    /// By the attended clock.
    pub heard_at: Time,
    /// It was given up, and nothing was heard of it since.
    pub is_silent: bool,
    /// By the attended clock, since when it has no path, if it has none.
    pub pathless_since: Option<Time>,
    /// Length of a block.
    pub block_bytes: u32,
    /// Whether notifications are sent before earlier blocks are answered, with a list of those blocks.
    pub early_notification: bool,
    /// No packets go to it: the caller carries out and answers each block that it is handed, so none is
    /// ever sent again unless it was refused.
    pub is_loopback: bool,
    /// Occurrences of each slot towards this peer. Per peer, so that the peer
    /// sees every one of them and a wrap-around cannot fool it.
    pub generations: Box<[Generation]>,
    /// Slots that this peer's blocks have.
    pub slots: usize,
    /// By class, if the peer is in [`Held`]: the number of slots under which it is filed there.
    pub held: [Option<usize>; Class::COUNT],
    /// Lower bound of its timers.
    pub wake: Wake,
    /// Transfers that have not ended.
    pub open: List,
    /// Transfers that have ended, which is told when their blocks are answered.
    pub ending: List,
    /// A link of it took nothing the last time: that is looked at from time to time.
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
    /// The read that was asked for last; its place may be another one's by now.
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

    /// Whether a block for this peer may have one of this many free slots. A peer may hold at most as many slots
    /// as are free: the first that answers slowly leaves half of the table, the next one half of the rest. A
    /// silent one gets one slot, for a block that finds out whether it answers.
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
