//! Retransmission timers: a block without an answer goes again, or its transfer is given up (QOS ch. 4).
//!
//! A path's unanswered blocks are a list in the order they were sent (QOS §4.1). The timeout is the path's, not
//! the block's, so the head always expires first. Each peer has a wake, a lower bound of its timers
//! ([`crate::wakes`]). Arming a timer lowers the wake, and so does whatever makes the peer's timeouts shorter.
//! When the wake has passed, the peer is visited, and the wake is computed anew. Blocks and reads that were put
//! off have one wake together, for all peers.

use super::Initiator;
use super::tables::{Place, Queue, SendPeer, Transaction, Transactions, request_place};
use crate::list::List;
use crate::rdma::time::Time;
use crate::rdma::transfer::{PeerId, TransferError};
use crate::wakes::NEVER;
use tombolo_wire::Attempt;

/// A block that was overtaken this many times in a row waits for the timeout. A block that is lost so often is
/// not lost by chance, and sending it again each round trip would leave no room for other blocks.
const FAST_RETRANSMITS: u32 = 8;

/// Number of lists of blocks that wait for a delay to be over.
const DELAYS: usize = 4;

impl Transactions {
    /// The first unanswered block of a path, in the order of sending, that a later answer shows to be lost.
    /// Blocks that were overtaken too often are passed over: they wait for the timeout. Blocks whose bytes are
    /// still being read are passed over, too, because they were not sent yet.
    fn first_overtaken(&self, timeouts: List, answered_order: u64) -> Option<u32> {
        let mut earlier = timeouts
            .iter(&self.chain)
            .map(|slot| (slot, &self.entries[slot as usize]))
            .take_while(|(_, transaction)| transaction.order < answered_order);
        let may_be_lost =
            |transaction: &Transaction| transaction.overtaken < FAST_RETRANSMITS && !transaction.reading;
        earlier.find(|(_, transaction)| may_be_lost(transaction)).map(|(slot, _)| slot)
    }
}

/// Whose timers are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timers {
    /// Those of the blocks and reads that were put off.
    Delays,
    /// Those of a peer, by its index.
    Peer(u32),
}

/// Why a block is sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    Timeout,
    Overtaken,
    /// A probe: nothing shows that it is lost.
    Probe,
}

impl Initiator {
    /// Arms a timer of a peer: an entry was put into a list with a timer.
    pub(super) fn arm(&mut self, id: PeerId, due: Time) {
        self.forget_past_wakes();
        self.armed += 1;
        self.lower_wake_to(id, due);
    }

    /// Removes old wakes if nothing is armed: all of them are of timers that are gone, and after a pause they
    /// would cause a visit to every peer. One wake is left, because a visit costs less than filing the wake
    /// anew each time.
    fn forget_past_wakes(&mut self) {
        while self.armed == 0
            && self.wakes.len() > 1
            && let Some(owner) = self.wakes.take_due(NEVER)
        {
            match owner {
                Timers::Delays => self.delays_wake.fired(),
                Timers::Peer(index) => {
                    if let Some(Some(peer)) = self.peers.get_mut(index as usize) {
                        peer.wake.fired();
                    }
                }
            }
        }
    }

    /// Arms the timer of a block or a read that was put off until `due`.
    pub(super) fn arm_delay(&mut self, due: Time) {
        self.forget_past_wakes();
        self.armed += 1;
        self.wakes.lower(Timers::Delays, &mut self.delays_wake, due);
    }

    fn lower_wake_to(&mut self, id: PeerId, due: Time) {
        if let Some(Some(peer)) = self.peers.get_mut(id.index()) {
            self.wakes.lower(Timers::Peer(id.index() as u32), &mut peer.wake, due);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.wakes.first().filter(|_| self.armed > 0)
    }

    /// Lets every timer that is due fire.
    pub(crate) fn expire(&mut self, now: Time) {
        self.attended.look(now, self.deadline());
        let mut due = std::mem::take(&mut self.due);
        due.extend(std::iter::from_fn(|| self.wakes.take_due(now)));
        for timers in due.drain(..) {
            match timers {
                Timers::Delays => {
                    self.delays_wake.fired();
                    self.expire_delays(now);
                    let wake = self.next_delay();
                    self.wakes.lower(timers, &mut self.delays_wake, wake);
                }
                Timers::Peer(index) => self.expire_peer(now, PeerId(index)),
            }
        }
        self.due = due;
    }

    fn expire_peer(&mut self, now: Time, id: PeerId) {
        let Some(Some(peer)) = self.peers.get_mut(id.index()) else { return };
        peer.wake.fired();
        let id = peer.id;
        let paths = peer.paths.len();
        self.visits += 1;
        for path in 0..paths {
            self.expire_blocks(now, id, path);
        }
        self.expire_reads(now, id);
        self.look_at_stuck(now, id);
        self.lower_wake(id);
    }

    /// For each list of delayed blocks, the block whose delay is over first.
    fn delays(&self) -> [Option<u32>; DELAYS] {
        let lists = [&self.delay_full, &self.delay_full_for_long, &self.delay_fault, &self.delay_placing];
        lists.map(List::front)
    }

    fn expire_delays(&mut self, now: Time) {
        // Each list has one constant delay, so it is in the order of its due times.
        for list in 0..DELAYS {
            while let Some(slot) = self.delays()[list] {
                if self.table.entries[slot as usize].due > now {
                    break;
                }
                self.unplace(slot);
                self.queue_resend(slot);
            }
        }
        while let Some(index) = self.delayed_reads.front() {
            if self.transfers.entries[index as usize].asked_at.after_ns(self.config.full_delay_ns) > now {
                break;
            }
            self.ask_again(index);
        }
    }

    fn expire_blocks(&mut self, now: Time, id: PeerId, place: usize) {
        // The timeout as it is before this visit doubles it: what was sent
        // together expires together.
        let Some(peer) = self.peers[id.index()].as_ref() else {
            return;
        };
        let timeout_ns = peer.timeout_ns(place, &self.config);
        let mut doubled = false;
        while let Some(peer) = self.peers[id.index()].as_mut() {
            let path = &mut peer.paths[place];
            let Some(slot) = path.timeouts.front() else {
                break;
            };
            let sent_at = self.table.entries[slot as usize].sent_at;
            if self.config.retransmission.due(sent_at, timeout_ns) > now {
                break;
            }
            if peer.is_loopback || self.table.entries[slot as usize].reading {
                self.mark_late(slot);
                continue;
            }
            path.congestion.timed_out(now, sent_at);
            if !doubled && peer.is_news(place, sent_at) {
                peer.paths[place].trip.back_off();
                doubled = true;
                peer.mark_path_suspect(now, place, &self.config);
            }
            self.counters.timeouts += 1;
            self.mark_lost(now, slot, Loss::Timeout);
        }
        self.find_overtaken(now, id, place);
        if let Some((due, slot)) =
            self.peers[id.index()].as_ref().and_then(|peer| self.probe_due(peer, place))
            && due <= now
            && let Some(peer) = self.peers[id.index()].as_mut()
        {
            let path = &mut peer.paths[place];
            path.probed_order = path.order + 1;
            self.counters.tail_probes += 1;
            self.table.entries[slot as usize].is_probed = true;
            self.mark_lost(now, slot, Loss::Probe);
        }
    }

    /// The last block sent by a path, and when it is sent again as a probe.
    fn probe_due(&self, peer: &SendPeer, place: usize) -> Option<(Time, u32)> {
        let path = &peer.paths[place];
        let slot = path.timeouts.back()?;
        let transaction = &self.table.entries[slot as usize];
        let may_go = self.config.tail_probe
            && !peer.is_loopback
            && !transaction.reading
            && !transaction.is_probed
            && !path.is_reliable
            && !path.suspect
            && path.answered_order >= path.probed_order;
        let patience_ns = path.trip.probe_ns(self.config.retransmission, self.config.reorder_ns)?;
        may_go.then(|| (transaction.sent_at.after_ns(patience_ns), slot))
    }

    /// Arms the probe timer of a path, after something was sent by it or answered.
    pub(super) fn arm_probe(&mut self, id: PeerId, place: usize) {
        let peer = self.peers.get(id.index()).and_then(Option::as_ref);
        if let Some((due, _)) = peer.and_then(|peer| self.probe_due(peer, place)) {
            self.lower_wake_to(id, due);
        }
    }

    /// The latest read request, and when it is sent again as a probe. It is sent again once, and not if its
    /// target has answered.
    fn read_probe_due(&self, peer: &SendPeer) -> Option<(Time, u32)> {
        let index = peer.latest_asked?;
        let transfer = &self.transfers.entries[index as usize];
        let is_its = transfer.request.is_some_and(|request| peer.requests[request_place(request)] == index);
        let is_it = is_its && transfer.queue == Queue::Asked && transfer.ask_order == peer.ask_order;
        let is_reliable = peer.paths.get(usize::from(transfer.asked_by)).is_some_and(|path| path.is_reliable);
        let may_go = is_it
            && self.config.tail_probe
            && !is_reliable
            && !transfer.heard
            && transfer.attempt == Attempt(0);
        let patience_ns = peer.read_trip.probe_ns(self.config.retransmission, self.config.reorder_ns)?;
        may_go.then(|| (transfer.asked_at.after_ns(patience_ns), index))
    }

    pub(super) fn arm_read_probe(&mut self, id: PeerId) {
        let peer = self.peers.get(id.index()).and_then(Option::as_ref);
        if let Some((due, _)) = peer.and_then(|peer| self.read_probe_due(peer)) {
            self.lower_wake_to(id, due);
        }
    }

    /// Stops counting a block as under way that the caller has been carrying out or reading for longer than a
    /// timeout, so that other blocks have room meanwhile. The block is not lost.
    fn mark_late(&mut self, slot: u32) {
        self.unplace(slot);
        self.uncount(slot);
        let transaction = &mut self.table.entries[slot as usize];
        transaction.place = Place::Late;
        let id = transaction.peer;
        self.refresh(id);
    }

    /// Marks overtaken blocks as lost: those sent by the path before a block that is answered, at least one and
    /// a quarter round trips ago. Waiting for the timeout would cost many round trips.
    pub(super) fn find_overtaken(&mut self, now: Time, id: PeerId, place: usize) {
        if !self.config.fast_retransmit {
            return;
        }
        while let Some(peer) = self.peers[id.index()].as_mut().filter(|peer| !peer.is_loopback) {
            let path = &mut peer.paths[place];
            let Some(slot) = self.table.first_overtaken(path.timeouts, path.answered_order) else {
                break;
            };
            let transaction = &self.table.entries[slot as usize];
            let Some(patience_ns) = path.trip.overtaken_ns(self.config.reorder_ns) else {
                break;
            };
            let due = transaction.sent_at.after_ns(patience_ns);
            if due > now {
                self.lower_wake_to(id, due);
                break;
            }
            path.congestion.lost(now, transaction.sent_at);
            self.counters.fast_retransmits += 1;
            self.mark_lost(now, slot, Loss::Overtaken);
        }
    }

    /// Handles a block that got no answer: it is sent again, or its transfer ends.
    fn mark_lost(&mut self, now: Time, slot: u32, loss: Loss) {
        self.unplace(slot);
        self.uncount(slot);
        let transaction = &mut self.table.entries[slot as usize];
        let (index, id) = (transaction.transfer, transaction.peer);
        let asked_at = transaction.issued_at.max(transaction.absent_at);
        transaction.avoid = Some(transaction.path);
        if loss != Loss::Probe {
            transaction.lost = Some((transaction.path, transaction.sent_at));
            transaction.unanswered += 1;
        }
        transaction.overtaken += u32::from(loss == Loss::Overtaken);
        let unanswered = transaction.unanswered;
        let error = match self.is_closed_in_vain(now, slot) {
            true => Some(TransferError::Undeliverable),
            false => self.give_up(now, id, asked_at, unanswered),
        };
        if error.is_none_or(|error| self.end_given_up(now, index, error)) {
            self.queue_resend(slot);
        }
    }

    fn expire_reads(&mut self, now: Time, id: PeerId) {
        let Some(peer) = self.peers[id.index()].as_ref() else {
            return;
        };
        let timeout_ns = peer.read_timeout_ns(&self.config);
        let mut doubled = false;
        while let Some(peer) = self.peers[id.index()].as_mut() {
            let Some(index) = peer.asked.front() else {
                break;
            };
            let transfer = &mut self.transfers.entries[index as usize];
            if self.config.retransmission.due(transfer.asked_at, timeout_ns) > now {
                break;
            }
            if !doubled {
                peer.read_trip.back_off();
                doubled = true;
            }
            let by = usize::from(transfer.asked_by);
            // A target that has answered the request may be busy with other reads, so its first silence says
            // nothing about the path. Asked again, the target answers.
            let no_answer = !transfer.heard || transfer.unanswered > 0;
            if no_answer && peer.paths.len() > 1 && peer.is_news(by, transfer.asked_at) {
                peer.paths[by].trip.back_off();
                peer.mark_path_suspect(now, by, &self.config);
            }
            transfer.unanswered += 1;
            let (first_asked_at, unanswered) = (transfer.first_asked_at, transfer.unanswered);
            let error = self.give_up(now, id, first_asked_at, unanswered);
            if error.is_none_or(|error| self.end_given_up(now, index, error)) {
                self.ask_again(index);
            }
        }
        self.find_overtaken_reads(now, id);
        let probe = self.peers[id.index()].as_ref().and_then(|peer| self.read_probe_due(peer));
        if let Some((_, index)) = probe.filter(|(due, _)| *due <= now) {
            self.counters.tail_probes += 1;
            self.ask_again(index);
        }
    }

    /// Repeats overtaken read requests: those sent before a request that is answered, at least one and a
    /// quarter answer times ago. Each is repeated only once, because a target may serve another class first,
    /// and then says so.
    pub(super) fn find_overtaken_reads(&mut self, now: Time, id: PeerId) {
        while let Some(peer) = self.peers[id.index()].as_ref() {
            let Some(index) = peer.asked.front() else {
                break;
            };
            let Some(due) = self.overtaken_read_due(peer, index) else {
                break;
            };
            if due > now {
                self.lower_wake_to(id, due);
                break;
            }
            self.ask_again(index);
        }
    }

    fn overtaken_read_due(&self, peer: &SendPeer, index: u32) -> Option<Time> {
        let transfer = &self.transfers.entries[index as usize];
        let overtaken = self.config.fast_retransmit
            && !transfer.heard
            && transfer.attempt == Attempt(0)
            && transfer.ask_order < peer.answered_ask_order;
        let patience_ns = peer.read_trip.overtaken_ns(self.config.reorder_ns)?;
        overtaken.then(|| transfer.asked_at.after_ns(patience_ns))
    }

    pub(super) fn ask_again(&mut self, index: u32) {
        self.leave_queue(index);
        let transfer = &mut self.transfers.entries[index as usize];
        let id = transfer.peer;
        let Some(peer) = self.peers[id.index()].as_mut() else {
            return;
        };
        transfer.queue = Queue::Again;
        peer.again.push_back(&mut self.transfers.chain, index);
        self.refresh(id);
    }

    /// When the first of the delays is over.
    fn next_delay(&self) -> Time {
        let mut wake = NEVER;
        for slot in self.delays().into_iter().flatten() {
            wake = wake.min(self.table.entries[slot as usize].due);
        }
        if let Some(index) = self.delayed_reads.front() {
            let asked_at = self.transfers.entries[index as usize].asked_at;
            wake = wake.min(asked_at.after_ns(self.config.full_delay_ns));
        }
        wake
    }

    /// The first timer of a peer.
    fn peer_wake(&self, peer: &SendPeer) -> Time {
        let mut wake = NEVER;
        for (place, path) in peer.paths.iter().enumerate() {
            let Some(slot) = path.timeouts.front() else { continue };
            let transaction = &self.table.entries[slot as usize];
            debug_assert!(transaction.place == Place::Timeout);
            let timeout_ns = peer.timeout_ns(place, &self.config);
            wake = wake.min(self.config.retransmission.due(transaction.sent_at, timeout_ns));
            if self.config.fast_retransmit
                && !peer.is_loopback
                && let Some(slot) = self.table.first_overtaken(path.timeouts, path.answered_order)
                && let Some(patience_ns) = path.trip.overtaken_ns(self.config.reorder_ns)
            {
                wake = wake.min(self.table.entries[slot as usize].sent_at.after_ns(patience_ns));
            }
            if let Some((due, _)) = self.probe_due(peer, place) {
                wake = wake.min(due);
            }
        }
        if let Some(stuck) = &peer.stuck {
            wake = wake.min(stuck.look_at);
        }
        if let Some(index) = peer.asked.front() {
            let asked_at = self.transfers.entries[index as usize].asked_at;
            let timeout_ns = peer.read_timeout_ns(&self.config);
            wake = wake.min(self.config.retransmission.due(asked_at, timeout_ns));
            if let Some(due) = self.overtaken_read_due(peer, index) {
                wake = wake.min(due);
            }
            if let Some((due, _)) = self.read_probe_due(peer) {
                wake = wake.min(due);
            }
        }
        wake
    }

    /// Lowers the wake of a peer whose timeouts may have become shorter since its timers were armed: an answer
    /// ended a back-off or measured a shorter round trip, or a path was added.
    pub(super) fn lower_wake(&mut self, id: PeerId) {
        if let Some(Some(peer)) = self.peers.get(id.index()) {
            let due = self.peer_wake(peer);
            self.lower_wake_to(id, due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::transfer::{Direction, Transfer};
    use crate::rdma::{Action, Block, Config};
    use tombolo_wire::{Ack, Asker, Domain};

    fn with_peers(peers: u32) -> Initiator {
        let mut initiator = Initiator::new(Config {
            transactions: 1024,
            transfers: 8192,
            congestion: None,
            ..Config::default()
        });
        for peer in 0..peers {
            initiator.add_peer(Time(0), PeerId(peer));
        }
        initiator
    }

    fn post(initiator: &mut Initiator, now: Time, peer: u32, size_bytes: u32) {
        let write = Transfer {
            direction: Direction::Write,
            domain: Domain(1),
            own_domain: Domain(1),
            source_address: 0,
            destination_address: 0,
            size_bytes,
            notification: None,
            class: None,
            user: 0,
        };
        initiator.post(now, PeerId(peer), write, Asker::SENDER).expect("room");
    }

    fn blocks(initiator: &mut Initiator, now: Time) -> Vec<Block> {
        let actions = std::iter::from_fn(|| initiator.poll_send(now));
        actions
            .filter_map(|action| if let Action::SendBlock(block) = action { Some(block) } else { None })
            .collect()
    }

    /// A timer that fires causes visits to its own peer only, however many peers there are.
    #[test]
    fn a_timer_looks_at_one_peer() {
        let mut initiator = with_peers(1000);
        for peer in 0..100 {
            let now = Time(u64::from(peer) * 1_000_000);
            post(&mut initiator, now, peer, 64);
            assert_eq!(blocks(&mut initiator, now).len(), 1);
        }
        let (mut fired, before) = (0, initiator.visits);
        let mut now = Time(99_000_000);
        while fired < 100 {
            now = now.max(initiator.deadline().expect("a timer"));
            initiator.expire(now);
            fired += blocks(&mut initiator, now).len();
        }
        // Visits are for the peer's timers, its retransmission, and wakes that come early.
        let visits = (initiator.visits - before) / 100;
        assert!(visits < 12, "{visits} peers a timer");
    }

    /// A slot that becomes free causes visits to few peers, however many wait.
    #[test]
    fn a_free_slot_looks_at_few_peers() {
        let mut initiator = with_peers(400);
        let now = Time(0);
        for peer in (0..400).cycle().take(1600) {
            post(&mut initiator, now, peer, 1 << 20);
        }
        let mut under_way = std::collections::VecDeque::from(blocks(&mut initiator, now));
        let is_held = |initiator: &Initiator| {
            let peers = initiator.peers.iter().flatten();
            peers.filter(|peer| peer.held.iter().any(Option::is_some)).count()
        };
        let (mut most_held, before) = (0, initiator.visits);
        for _ in 0..100 {
            for block in under_way.drain(..10).collect::<Vec<_>>() {
                let Block { peer, transaction, generation, attempt, .. } = block;
                let ack = Ack { transaction, generation, attempt, bytes_only: false };
                initiator.acknowledge(now, peer, &ack);
            }
            under_way.extend(blocks(&mut initiator, now));
            most_held = is_held(&initiator).max(most_held);
        }
        assert!(most_held > 100, "{most_held} peers are held back");
        let visits = (initiator.visits - before) / 1000;
        assert!(visits < 20, "{visits} peers a slot");
    }
}
