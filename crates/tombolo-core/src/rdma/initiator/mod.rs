//! The controller and send side: transfers become blocks, blocks become
//! transactions, and every transaction ends in an acknowledgement, a refusal or
//! a peer that is given up (QOS §3.2, 3.3, ch. 4).
//!
//! ```text
//!  transfer:  queued in its class ──► all it may have is under way ──► queued ...
//!                                                                  └─► done
//!  transaction: see `State`; in at most one list: its path's timeouts (by time
//!  of sending), its peer's resends, the bypass, or one of the delays
//! ```
//!
//! Nothing is lost on the way to the node itself, to which no packets go: the caller carries out each block
//! that it is handed and answers it once. Such a block is not sent again before it is answered.
//!
//! The end of a transfer is reported when none of its bytes may still come: see `ending`.
//!
//! All lists are over table indices. Every step is O(1), or O(log n) in the number of peers where timers and
//! slots decide which peer is next. There are two exceptions: the loss of a peer visits all its transfers, and
//! the loss of a path visits all slots.

mod answers;
mod ending;
mod giving_up;
mod issue;
mod paths;
mod reads;
mod tables;
mod timers;

pub use reads::ReadGrant;

use super::action::{Action, Completion};
use super::config::{Config, MAX_LOOPBACK_BLOCK_BYTES, power_of_two};
use super::counters::Counters;
use super::scheduler::{ASK, ClassPicker, RESEND, Rings, ring_of};
use super::time::{AttendedClock, Time};
use super::transaction::{Event, State};
use super::transfer::{Class, Direction, PeerId, PostError, Transfer, TransferError, TransferId};
use crate::list::List;
use crate::wakes::{Wake, Wakes};
use tables::{Held, Place, Queue, SendPeer, Transactions, Transfers};
use timers::Timers;
use tombolo_wire::{ATOMIC_BYTES, Asker, READ_SPAN, RequestId};

/// The send side of an engine.
#[derive(Debug)]
pub struct Initiator {
    config: Config,
    counters: Counters,
    transfers: Transfers,
    table: Transactions,
    peers: Vec<Option<Box<SendPeer>>>,
    /// Number of peers added so far, which distinguishes a peer from earlier ones of its number.
    sessions: u32,
    rings: Rings,
    picker: ClassPicker,
    bypass: List,
    /// Packets and blocks sent before blocks that wait to be sent again.
    resends_passed_over: u32,
    delay_full: List,
    delay_full_for_long: List,
    delay_fault: List,
    delay_placing: List,
    delayed_reads: List,
    notify: List,
    done: List,
    served_ended: List,
    /// Time until which small transfers are expected.
    small_until: Time,
    /// Entries in a list with a timer.
    armed: u32,
    held: Held,
    wakes: Wakes<Timers>,
    /// Lower bound of the timers of delayed blocks and reads.
    delays_wake: Wake,
    /// Buffer for the timers that are due. Empty between two calls.
    due: Vec<Timers>,
    /// For tests: peers whose timers were looked at, or whose turn was decided anew.
    visits: u64,
    /// The clock by which peers are given up.
    attended: AttendedClock,
}

/// Divisor of [`Config::give_up_ns`]. Of a time in which the engine was not run, at most the quotient counts as
/// silence of a peer. So a peer is given up after at least this many runs of the engine, between which there
/// was time to read what the peer sent.
const MIN_RUNS_BEFORE_GIVE_UP: u64 = 4;

/// The end of a write-back, which answers a peer's read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedEnd {
    /// The peer that reads.
    pub peer: PeerId,
    /// Its read.
    pub request: RequestId,
    /// The write that answered it.
    pub transfer: Transfer,
    /// How it ended.
    pub status: Result<(), TransferError>,
}

impl Initiator {
    pub(crate) fn new(config: Config) -> Self {
        let mut transfers = Transfers::default();
        transfers.allow(config.transfers as usize);
        Self {
            config,
            counters: Counters::default(),
            transfers,
            table: Transactions::new(config.transactions),
            peers: Vec::new(),
            sessions: 0,
            rings: Rings::default(),
            picker: ClassPicker::new(config.starvation_blocks),
            bypass: List::default(),
            resends_passed_over: 0,
            delay_full: List::default(),
            delay_full_for_long: List::default(),
            delay_fault: List::default(),
            delay_placing: List::default(),
            delayed_reads: List::default(),
            notify: List::default(),
            done: List::default(),
            served_ended: List::default(),
            small_until: Time(0),
            armed: 0,
            held: Held::default(),
            wakes: Wakes::default(),
            delays_wake: Wake::default(),
            due: Vec::new(),
            visits: 0,
            attended: AttendedClock::new(config.give_up_ns / MIN_RUNS_BEFORE_GIVE_UP),
        }
    }

    /// Adds a peer. The caller has ended everything open with an earlier peer of this number.
    pub(crate) fn add_peer(&mut self, now: Time, peer: PeerId) {
        if self.peers.len() <= peer.index() {
            self.peers.resize_with(peer.index() + 1, || None);
            self.rings.grow(self.peers.len());
        }
        self.sessions = self.sessions.wrapping_add(1);
        let heard_at = self.attended.at(now);
        self.peers[peer.index()] = Some(Box::new(SendPeer::new(peer, &self.config, heard_at, self.sessions)));
        // Room for what this peer's reads may need, apart from our own posts: a
        // full table here must not keep the other side waiting (the deadlock of MICRO §4.10).
        let peers = self.peers.iter().flatten().count();
        let served = peers * self.config.served_reads as usize;
        self.transfers.allow(self.config.transfers as usize + served);
    }

    /// Marks a peer as this node itself, to which no packets go. Its blocks may be longer, and the driver that
    /// copies them remembers what they belong to.
    pub(crate) fn set_loopback(&mut self, peer: PeerId, block_bytes: u32) {
        if let Some(Some(peer)) = self.peers.get_mut(peer.index()) {
            peer.block_bytes = power_of_two(block_bytes, MAX_LOOPBACK_BLOCK_BYTES);
            peer.early_notification = false;
            peer.is_loopback = true;
        }
    }

    /// Whether this peer is the one that has its place now.
    pub(crate) fn knows(&self, peer: PeerId) -> bool {
        matches!(self.peers.get(peer.index()), Some(Some(known)) if known.id == peer)
    }

    /// The peer that has this place of the table.
    pub(crate) fn peer_at(&self, index: usize) -> Option<PeerId> {
        self.peers.get(index)?.as_ref().map(|peer| peer.id)
    }

    /// Ends all transfers with a peer at once, and removes it.
    pub(crate) fn mark_peer_lost(&mut self, peer: PeerId) {
        if !self.knows(peer) {
            return;
        }
        if let Some(Some(lost)) = self.peers.get_mut(peer.index()) {
            // Blocks that the caller still carries out are not waited for.
            lost.is_loopback = false;
        }
        self.end_all(peer, TransferError::PeerLost);
        self.clear_stuck(peer);
        if let Some(mut lost) = self.peers[peer.index()].take() {
            self.held.set(&mut lost, [None; Class::COUNT]);
            self.wakes.forget(Timers::Peer(peer.index() as u32), &mut lost.wake);
        }
        self.refresh(peer);
    }

    pub(crate) fn heard(&mut self, now: Time, peer: PeerId) -> bool {
        self.attended.look(now, self.deadline());
        match self.peers.get_mut(peer.index()) {
            Some(Some(known)) if known.id == peer => {
                known.heard_at = self.attended.at(now);
                let was_silent = std::mem::take(&mut known.is_silent);
                if known.stuck.is_some() && known.has_room() {
                    self.clear_stuck(peer);
                }
                if was_silent {
                    self.refresh(peer);
                }
                true
            }
            _ => false,
        }
    }

    pub(crate) fn post(
        &mut self,
        now: Time,
        peer: PeerId,
        spec: Transfer,
        asker: Asker,
    ) -> Result<TransferId, PostError> {
        if !self.knows(peer) {
            return Err(PostError::UnknownPeer(peer));
        }
        let fits = |address: u64, bytes: u64| address.checked_add(bytes).is_some();
        let size = u64::from(spec.size_bytes);
        if !fits(spec.source_address, size)
            || !fits(spec.destination_address, size)
            || spec.notification.is_some_and(|words| !fits(words.address, 16))
        {
            return Err(PostError::AddressOverflow);
        }
        if matches!(spec.direction, Direction::Atomic(_))
            && !(spec.size_bytes == ATOMIC_BYTES
                && spec.destination_address.is_multiple_of(ATOMIC_BYTES.into())
                && spec.notification.is_none())
        {
            return Err(PostError::NotAWord);
        }
        if self.transfers.posted >= self.config.transfers {
            return Err(PostError::Full);
        }
        let index = self.open_transfer(peer, spec, None).ok_or(PostError::Full)?;
        self.transfers.entries[index as usize].asker = asker;
        self.counters.transfers_posted += 1;
        if self.transfers.entries[index as usize].class(&self.config) == Class::High {
            self.small_until = now.after_ns(self.config.small_transfer_memory_ns);
        }
        match spec.direction {
            Direction::Write | Direction::Atomic(_) => self.start_write(now, index),
            Direction::Read => self.start_read(index),
        }
        Ok(self.transfers.id(index))
    }

    /// Starts the write-back that answers a peer's read. The caller has checked that there is room.
    pub(crate) fn serve(&mut self, now: Time, peer: PeerId, spec: Transfer, request: RequestId) -> bool {
        if !self.knows(peer) {
            return false;
        }
        let Some(index) = self.open_transfer(peer, spec, Some(request)) else {
            return false;
        };
        self.start_write(now, index);
        true
    }

    fn open_transfer(&mut self, id: PeerId, spec: Transfer, served: Option<RequestId>) -> Option<u32> {
        let peer = self.peers[id.index()].as_mut()?;
        let index = self.transfers.take(id, spec, served)?;
        peer.open.push_back(&mut self.transfers.open_chain, index);
        Some(index)
    }

    fn start_write(&mut self, now: Time, index: u32) {
        let class = self.transfers.entries[index as usize].class(&self.config);
        if class == Class::High && self.may_bypass(transfer_peer(&self.transfers, index)) {
            self.counters.bypasses += 1;
            self.issue_past_queue(now, index);
        } else {
            self.enqueue(index, class);
        }
    }

    /// Whether a small transfer may skip the queue: nothing of its class waits (QOS §3.3), a block can be sent
    /// to its peer now, and no lower class has been passed over for too long.
    fn may_bypass(&mut self, peer: PeerId) -> bool {
        let has_work = self.rings.has_work();
        self.config.bypass
            && !has_work[0]
            && self.peers[peer.index()].as_ref().is_some_and(|peer| peer.is_open())
            && self.may_take_slot(peer)
            && self.picker.pass_over_lower(has_work)
    }

    /// Whether a block for that peer may have a slot.
    fn may_take_slot(&self, peer: PeerId) -> bool {
        let free = self.table.tickets.len();
        self.peers[peer.index()].as_ref().is_some_and(|peer| peer.may_take_slot(free))
    }

    fn enqueue(&mut self, index: u32, class: Class) {
        let transfer = &mut self.transfers.entries[index as usize];
        let id = transfer.peer;
        let Some(peer) = self.peers[id.index()].as_mut() else {
            return;
        };
        transfer.queue = Queue::Class(class);
        transfer.turn = 0;
        peer.queues[class as usize].push_back(&mut self.transfers.chain, index);
        self.refresh(id);
    }

    /// Puts the peer into the rings where it has work and may send, and takes it out of the others.
    fn refresh(&mut self, id: PeerId) {
        let index = id.index() as u32;
        let mut work = 0;
        self.visits += 1;
        if let Some(peer) = self.peers[id.index()].as_mut() {
            let mut held = [None; Class::COUNT];
            if peer.is_open() {
                work |= u8::from(!peer.resend.is_empty()) << RESEND;
                let free = self.table.tickets.len();
                let may_take = peer.may_take_slot(free);
                for class in Class::ALL {
                    let waits = !peer.queues[class as usize].is_empty();
                    work |= u8::from(waits && may_take) << ring_of(class);
                    // A silent peer waits for the answer to its one block, not for free slots.
                    let is_held = waits && peer.slots > free && !peer.is_silent;
                    held[class as usize] = is_held.then_some(peer.slots);
                }
            }
            self.held.set(peer, held);
        }
        if let Some(peer) = self.peers[id.index()].as_ref() {
            let asks = (!peer.again.is_empty() || self.may_ask(peer)) && peer.has_path();
            work |= u8::from(asks) << ASK;
        }
        self.rings.set(index, work);
    }

    /// Whether a new read may be asked for.
    fn may_ask(&self, peer: &SendPeer) -> bool {
        if !peer.may_ask(&self.config).contains(&true) {
            return false;
        }
        let oldest = peer.open_reads.front();
        let oldest = oldest.and_then(|index| self.transfers.entries[index as usize].request);
        // Ids are compared by their distance, which must not wrap.
        oldest.is_none_or(|oldest| peer.next_request.after(oldest).is_some_and(|span| span < READ_SPAN))
    }

    /// Take the transfer out of whatever list it is in.
    fn leave_queue(&mut self, index: u32) {
        let transfer = &mut self.transfers.entries[index as usize];
        let queue = std::mem::replace(&mut transfer.queue, Queue::None);
        let chain = &mut self.transfers.chain;
        let peer = self.peers[transfer.peer.index()].as_mut();
        match (queue, peer) {
            (Queue::Class(class), Some(peer)) => peer.queues[class as usize].remove(chain, index),
            (Queue::Ask(class), Some(peer)) => peer.reads[class as usize].remove(chain, index),
            (Queue::Asked, Some(peer)) => {
                peer.asked.remove(chain, index);
                self.armed -= 1;
            }
            (Queue::Notify, _) => self.notify.remove(chain, index),
            (Queue::Again, Some(peer)) => peer.again.remove(chain, index),
            (Queue::Delayed, _) => {
                self.delayed_reads.remove(chain, index);
                self.armed -= 1;
            }
            (Queue::Done, _) => self.done.remove(chain, index),
            _ => {}
        }
    }

    /// Free a slot: out of its lists, into the ticket queue.
    fn release(&mut self, slot: u32) {
        self.unplace(slot);
        let transaction = &mut self.table.entries[slot as usize];
        let (index, id) = (transaction.transfer, transaction.peer);
        let transfer = &mut self.transfers.entries[index as usize];
        transfer.slots.remove(&mut self.table.siblings, slot);
        transfer.outstanding -= 1;
        if transfer.last_slot == Some(slot) {
            transfer.last_slot = None;
        }
        self.uncount(slot);
        self.step(slot, Event::Release);
        if let Some(peer) = self.peers[id.index()].as_mut() {
            peer.slots -= 1;
        }
        self.table.tickets.push_back(slot as u16);
    }

    /// Lets peers in that were held back for lack of slots, before a block's turn is decided. In each class,
    /// the held peer with the fewest slots joins the ring if at least that many slots are free now. Other held
    /// peers follow at the next turns.
    fn let_held_in(&mut self) {
        let free = self.table.tickets.len();
        for class in Class::ALL {
            // A peer that cannot send for another reason is no longer held either: try the next one.
            while let Some(id) = self.held.first(class, free) {
                self.refresh(id);
                if self.rings.is_in(ring_of(class), id.index() as u32) {
                    break;
                }
            }
        }
    }

    /// Take the transaction out of whatever list it is in.
    fn unplace(&mut self, slot: u32) {
        let transaction = &mut self.table.entries[slot as usize];
        let place = std::mem::replace(&mut transaction.place, Place::None);
        let chain = &mut self.table.chain;
        let peer = self.peers[transaction.peer.index()].as_mut();
        match (place, peer) {
            (Place::Timeout, Some(peer)) => {
                peer.paths[usize::from(transaction.path)].timeouts.remove(chain, slot);
            }
            (Place::Resend, Some(peer)) => peer.resend.remove(chain, slot),
            (Place::Bypass, _) => self.bypass.remove(chain, slot),
            (Place::DelayFull, _) => self.delay_full.remove(chain, slot),
            (Place::DelayFullForLong, _) => self.delay_full_for_long.remove(chain, slot),
            (Place::DelayFault, _) => self.delay_fault.remove(chain, slot),
            (Place::DelayPlacing, _) => self.delay_placing.remove(chain, slot),
            _ => {}
        }
        if matches!(
            place,
            Place::Timeout
                | Place::DelayFull
                | Place::DelayFullForLong
                | Place::DelayFault
                | Place::DelayPlacing
        ) {
            self.armed -= 1;
        }
    }

    /// Move a transaction along its table; an impossible event is counted and
    /// changes nothing.
    fn step(&mut self, slot: u32, event: Event) -> bool {
        let transaction = &mut self.table.entries[slot as usize];
        match transaction.state.after(event) {
            Ok(state) => {
                transaction.state = state;
                true
            }
            Err(_) => {
                self.counters.illegal_transitions += 1;
                if event == Event::Release {
                    transaction.state = State::Free;
                }
                false
            }
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The next completion to report, if there is one.
    pub(crate) fn poll_complete(&mut self) -> Option<Action> {
        let index = self.done.pop_front(&mut self.transfers.chain)?;
        let transfer = &self.transfers.entries[index as usize];
        let completion = Completion {
            transfer: self.transfers.id(index),
            user: transfer.spec.user,
            peer: transfer.peer,
            status: transfer.status,
            before: transfer.before,
        };
        match completion.status {
            Ok(()) => self.counters.transfers_done += 1,
            Err(_) => self.counters.transfers_failed += 1,
        }
        self.transfers.give_back(index);
        Some(Action::Complete(completion))
    }

    /// The next write-back that is over, for the read server.
    pub(crate) fn take_served_end(&mut self) -> Option<ServedEnd> {
        let index = self.served_ended.pop_front(&mut self.transfers.chain)?;
        let transfer = &self.transfers.entries[index as usize];
        let end = transfer.served.map(|request| ServedEnd {
            peer: transfer.peer,
            request,
            transfer: transfer.spec,
            status: transfer.status,
        });
        self.transfers.give_back(index);
        end
    }

    /// Whether nothing is open and nothing waits to be reported.
    pub(crate) fn is_idle(&self) -> bool {
        self.transfers.posted == 0
            && self.transfers.served == 0
            && self.table.tickets.len() == self.table.entries.len()
            && self.armed == 0
            && self.peers.iter().flatten().all(|peer| {
                peer.paths.iter().all(|path| path.in_flight_bytes == 0)
                    && peer.open_reads.is_empty()
                    && peer.resend.is_empty()
            })
    }

    /// Sets the ids and generations as they are shortly before 2³² reads and blocks.
    #[cfg(test)]
    pub(crate) fn age(&mut self, id: PeerId) {
        let Some(peer) = self.peers[id.index()].as_mut() else {
            return;
        };
        peer.next_request = RequestId(u32::MAX - 5);
        peer.generations.fill(tombolo_wire::Generation(u32::MAX - 5));
    }

    pub(crate) fn window_bytes(&self, peer: PeerId) -> Option<u64> {
        let peer = self.peers.get(peer.index())?.as_ref()?;
        let up = peer.paths.iter().filter(|path| path.up);
        Some(up.fold(0, |sum, path| path.congestion.window_bytes().saturating_add(sum)))
    }
}

fn transfer_peer(transfers: &Transfers, index: u32) -> PeerId {
    transfers.entries[index as usize].peer
}
