//! Sending of blocks: by the scheduler's turn, by the bypass, and again.

use super::Initiator;
use super::tables::{Place, Queue};
use crate::rdma::action::{Action, Block, BlockNotification};
use crate::rdma::scheduler::{RESEND, ring_of};
use crate::rdma::segmentation::block_length;
use crate::rdma::time::Time;
use crate::rdma::transaction::{Event, State};
use crate::rdma::transfer::{Class, Direction, PathId, PeerId};
use tombolo_wire::{
    Atomic, Attempt, DataHeader, EarlierBlocks, NotificationMark, NotifyHeader, Packet, Payload,
    TransactionId,
};

impl Initiator {
    /// The next thing to send. `None` if there is nothing now: ask again after the next event (post, packet,
    /// expiry).
    pub(crate) fn poll_send(&mut self, now: Time) -> Option<Action> {
        self.attended.look(now, self.deadline());
        let resends_wait = self.rings.front(RESEND).is_some();
        if !resends_wait {
            self.resends_passed_over = 0;
        }
        if self.resends_passed_over < self.config.starvation_blocks
            && let Some(action) = self.poll_before_resends(now)
        {
            self.resends_passed_over += u32::from(resends_wait);
            return Some(action);
        }
        if let Some(peer) = self.rings.front(RESEND) {
            self.resends_passed_over = 0;
            self.rings.rotate(RESEND, peer);
            let slot = self.peers[peer as usize].as_ref()?.resend.front()?;
            return self.hand_out(now, slot);
        }
        self.poll_schedule(now)
    }

    /// Returns what is sent before blocks that are sent again, within the bound on starvation: small transfers
    /// that skip the queue, notifications, requests.
    fn poll_before_resends(&mut self, now: Time) -> Option<Action> {
        if let Some(slot) = self.bypass.front() {
            return self.hand_out(now, slot);
        }
        while let Some(index) = self.notify.pop_front(&mut self.transfers.chain) {
            self.transfers.entries[index as usize].queue = Queue::None;
            if let Some(action) = self.notify_apart(now, index) {
                return Some(action);
            }
        }
        self.poll_read(now)
    }

    /// One block of the transfer whose turn it is (QOS §3.2.3, 3.2.5).
    fn poll_schedule(&mut self, now: Time) -> Option<Action> {
        if self.table.tickets.is_empty() {
            return None;
        }
        let (class, id) = loop {
            self.let_held_in();
            let (class, relief) = self.picker.pick(self.rings.has_work())?;
            self.counters.starvation_relief += u64::from(relief);
            let id = self.rings.front(ring_of(class))?;
            if self.may_take_slot(PeerId(id)) {
                break (class, id);
            }
            // Other peers have taken slots since this peer came into the ring: hold it back.
            self.refresh(PeerId(id));
        };
        let ring = ring_of(class);
        let index = self.peers[id as usize].as_ref()?.queues[class as usize].front()?;
        let slot = self.issue(now, index)?;
        let most = self.most_outstanding(now, index);
        let transfer = &mut self.transfers.entries[index as usize];
        let blocks = self.table.entries[slot as usize].length_bytes.div_ceil(self.config.block_bytes);
        transfer.turn = transfer.turn.saturating_add(blocks.max(1));
        let all_issued = transfer.all_issued();
        let full = transfer.outstanding >= most;
        let class_now = transfer.class(&self.config);
        if all_issued || full {
            // The transfer is queued again at the next acknowledgement, if blocks are left.
            self.leave_queue(index);
            self.rings.rotate(ring, id);
        } else if transfer.turn >= self.config.turn_blocks || class_now != class {
            self.leave_queue(index);
            self.enqueue(index, class_now);
            self.rings.rotate(ring, id);
        }
        self.hand_out(now, slot)
    }

    /// Whether a transfer is throttled, because it is a large one while small ones come. A small transfer waits
    /// for what a large one has on the wire, whatever their classes, so a throttled transfer has less there.
    fn is_throttled(&self, now: Time, index: u32) -> bool {
        now < self.small_until && self.transfers.entries[index as usize].class(&self.config) != Class::High
    }

    /// The most blocks that a transfer may have under way.
    pub(super) fn most_outstanding(&self, now: Time, index: u32) -> u32 {
        let config = &self.config;
        if !self.is_throttled(now, index) {
            return config.outstanding_blocks;
        }
        let peer = self.transfers.entries[index as usize].peer;
        let trip_ns: u64 =
            self.peers[peer.index()].as_ref().and_then(|peer| peer.shortest_trip_ns()).unwrap_or(0);
        let on_the_way = trip_ns.checked_div(config.throttled_block_ns).unwrap_or(0);
        // No more bytes in smaller blocks than without throttling.
        let most = u64::from(config.outstanding_blocks)
            * u64::from(config.block_bytes / config.throttled_block_bytes);
        u32::try_from(on_the_way.clamp(config.throttled_outstanding_blocks.into(), most)).unwrap_or(u32::MAX)
    }

    /// Issues the blocks of a small transfer at once. If a block gets no slot, the transfer is queued after
    /// all.
    pub(super) fn issue_past_queue(&mut self, now: Time, index: u32) {
        loop {
            let transfer = &self.transfers.entries[index as usize];
            if transfer.all_issued() {
                return;
            }
            if transfer.outstanding >= self.config.outstanding_blocks {
                return;
            }
            let Some(slot) = self.issue(now, index) else {
                break;
            };
            self.table.entries[slot as usize].place = Place::Bypass;
            self.bypass.push_back(&mut self.table.chain, slot);
        }
        let class = self.transfers.entries[index as usize].class(&self.config);
        self.enqueue(index, class);
    }

    /// Issues the next block of a transfer, which takes a free transaction slot. Returns the slot's index, or `None`
    /// if the peer is gone or may take no further slot, or no slot is free.
    fn issue(&mut self, now: Time, index: u32) -> Option<u32> {
        let is_throttled = self.is_throttled(now, index);
        let transfer = &mut self.transfers.entries[index as usize];
        let peer = self.peers[transfer.peer.index()].as_mut()?;
        let block_bytes = if is_throttled { self.config.throttled_block_bytes } else { peer.block_bytes };
        if !peer.may_take_slot(self.table.tickets.len()) {
            return None;
        }
        let slot = u32::from(self.table.tickets.pop_front()?);
        let class = transfer.class(&self.config);
        let spec = &transfer.spec;
        let offset_bytes = transfer.cursor_bytes;
        let length_bytes = block_length(spec.destination_address, spec.size_bytes, offset_bytes, block_bytes);
        transfer.cursor_bytes += length_bytes;
        transfer.issued += 1;
        transfer.outstanding += 1;
        transfer.slots.push_back(&mut self.table.siblings, slot);
        let last = transfer.all_issued();
        if last {
            transfer.last_slot = Some(slot);
        }
        peer.slots += 1;
        let generation = peer.generations[slot as usize].next();
        peer.generations[slot as usize] = generation;
        let path = peer.path_for_block(now, None);
        peer.paths[usize::from(path)].count(now, length_bytes.into());
        let id = transfer.peer;
        let transaction = &mut self.table.entries[slot as usize];
        transaction.place = Place::None;
        transaction.peer = id;
        transaction.transfer = index;
        transaction.generation = generation;
        transaction.attempt = Attempt(0);
        transaction.offset_bytes = offset_bytes;
        transaction.length_bytes = length_bytes;
        transaction.last = last;
        transaction.sent = false;
        (transaction.unsent, transaction.reading) = (false, false);
        transaction.carried = false;
        transaction.counted = true;
        transaction.path = path;
        transaction.avoid = None;
        transaction.issued_at = self.attended.at(now);
        transaction.absent_at = transaction.issued_at;
        transaction.sent_before_at = None;
        transaction.unanswered = 0;
        transaction.overtaken = 0;
        transaction.lost = None;
        self.counters.blocks_by_class[class as usize] += 1;
        self.step(slot, Event::Issue);
        self.refresh(id);
        Some(slot)
    }

    /// Hands a block to the caller and starts its timer.
    fn hand_out(&mut self, now: Time, slot: u32) -> Option<Action> {
        self.unplace(slot);
        if self.has_ended(self.table.entries[slot as usize].transfer) {
            return self.send_closing(now, slot);
        }
        let transaction = &mut self.table.entries[slot as usize];
        let resend = transaction.sent && !std::mem::take(&mut transaction.unsent);
        let is_placing = transaction.state == State::Placing;
        if resend {
            if !self.step(slot, Event::Resend) {
                return None;
            }
            if self.table.entries[slot as usize].state == State::Notifying {
                return self.send_notify(now, slot);
            }
            if is_placing && let Some(probe) = self.send_probe(now, slot) {
                return Some(probe);
            }
            self.counters.blocks_retransmitted += 1;
        }
        let transaction = &mut self.table.entries[slot as usize];
        let transfer = &self.transfers.entries[transaction.transfer as usize];
        let owes = transaction.last && transfer.owes_notification();
        transaction.carried = owes && transfer.may_notify();
        let notification = match (owes, transaction.carried) {
            (false, _) => BlockNotification::None,
            (true, false) => BlockNotification::Later,
            (true, true) => BlockNotification::Now(transfer.spec.notification.unwrap_or_default()),
        };
        if resend {
            transaction.attempt = transaction.attempt.next();
        }
        if let Direction::Atomic(operation) = transfer.spec.direction {
            let packet = Packet::Atomic(Atomic {
                domain: transfer.spec.domain,
                transaction: TransactionId(slot as u16),
                generation: transaction.generation,
                attempt: transaction.attempt,
                address: transfer.spec.destination_address,
                operation,
            });
            let peer = transaction.peer;
            self.counters.atomics_sent += 1;
            let path = self.start_timer(now, slot, true);
            return Some(Action::Send { peer, path, packet });
        }
        let mut block = Block {
            peer: transaction.peer,
            path: PathId(transaction.path),
            domain: transfer.spec.domain,
            own_domain: transfer.spec.own_domain,
            source_address: transfer.spec.source_address + u64::from(transaction.offset_bytes),
            destination_address: transfer.spec.destination_address + u64::from(transaction.offset_bytes),
            length_bytes: transaction.length_bytes,
            transaction: TransactionId(slot as u16),
            generation: transaction.generation,
            attempt: transaction.attempt,
            in_reply_to: transfer.served,
            asker: transfer.asker,
            user: transfer.spec.user,
            notification,
            session: self.peers[transaction.peer.index()].as_ref().map_or(0, |peer| peer.session),
        };
        self.counters.blocks_sent += 1;
        self.counters.block_bytes_sent += u64::from(block.length_bytes);
        block.path = self.start_timer(now, slot, true);
        let index = self.table.entries[slot as usize].transfer;
        if notification == BlockNotification::Later
            && self.peers[block.peer.index()].as_ref().is_some_and(|peer| peer.early_notification)
            && self.transfers.entries[index as usize].queue == Queue::None
        {
            self.queue_notify(index);
        }
        Some(Action::SendBlock(block))
    }

    /// Sends the notification of a transfer behind its last block, unless it is on its way already or will go
    /// with a retransmission. If other blocks of the transfer are not acknowledged yet, the packet lists those
    /// that the notification has to be written after. If they are too many to list, nothing is sent.
    fn notify_apart(&mut self, now: Time, index: u32) -> Option<Action> {
        let transfer = &self.transfers.entries[index as usize];
        let (slot, may_notify) = (transfer.last_slot?, transfer.may_notify());
        let transaction = &self.table.entries[slot as usize];
        match (transaction.state, transaction.place) {
            (State::Acked, _) if may_notify => {
                self.step(slot, Event::Notify);
                // The time that the other blocks took does not count.
                self.table.entries[slot as usize].issued_at = self.attended.at(now);
                self.send_notify(now, slot)
            }
            // The block's bytes are still unanswered: their timer goes on.
            (State::Issued | State::Retransmitted, Place::Timeout | Place::Late) if !transaction.carried => {
                let packet = if may_notify {
                    Packet::Notify(self.notify_header(slot))
                } else {
                    Packet::NotifyAfter(self.notify_header(slot), self.unacknowledged_before(index, slot)?)
                };
                let transaction = &mut self.table.entries[slot as usize];
                transaction.carried = true;
                self.counters.notifies_sent += 1;
                Some(Action::Send { peer: transaction.peer, path: PathId(transaction.path), packet })
            }
            _ => None,
        }
    }

    /// The blocks of a transfer that are not acknowledged, except the last one. `None` if they are too many to
    /// list.
    fn unacknowledged_before(&self, index: u32, last: u32) -> Option<EarlierBlocks> {
        let mut earlier = EarlierBlocks::default();
        let slots = self.transfers.entries[index as usize].slots.iter(&self.table.siblings);
        for slot in slots.filter(|slot| *slot != last) {
            let generation = self.table.entries[slot as usize].generation;
            if !earlier.push(TransactionId(slot as u16), generation) {
                return None;
            }
        }
        Some(earlier)
    }

    /// Asks, with a packet without bytes, whether a block that the receiver has is placed. `None` for an atomic
    /// operation, which is sent again itself because it is as short.
    fn send_probe(&mut self, now: Time, slot: u32) -> Option<Action> {
        let transaction = &mut self.table.entries[slot as usize];
        let transfer = &self.transfers.entries[transaction.transfer as usize];
        if matches!(transfer.spec.direction, Direction::Atomic(_)) {
            return None;
        }
        self.counters.probes_sent += 1;
        transaction.attempt = transaction.attempt.next();
        let has_notification = transaction.last && transfer.owes_notification();
        let header = DataHeader {
            domain: transfer.spec.domain,
            transaction: TransactionId(slot as u16),
            generation: transaction.generation,
            attempt: transaction.attempt,
            block_address: transfer.spec.destination_address + u64::from(transaction.offset_bytes),
            block_bytes: transaction.length_bytes,
            offset_bytes: 0,
            payload_bytes: 0,
            in_reply_to: transfer.served,
            asker: transfer.asker,
            notification: match has_notification {
                true => NotificationMark::Elsewhere,
                false => NotificationMark::None,
            },
        };
        let peer = transaction.peer;
        let path = self.start_timer(now, slot, false);
        Some(Action::Send { peer, path, packet: Packet::Data(header, Payload::Intact(&[])) })
    }

    /// Sends the notification alone and waits for its answer.
    fn send_notify(&mut self, now: Time, slot: u32) -> Option<Action> {
        self.counters.notifies_sent += 1;
        let transaction = &mut self.table.entries[slot as usize];
        transaction.attempt = transaction.attempt.next();
        transaction.carried = true;
        let peer = transaction.peer;
        let path = self.start_timer(now, slot, false);
        Some(Action::Send { peer, path, packet: Packet::Notify(self.notify_header(slot)) })
    }

    fn notify_header(&self, slot: u32) -> NotifyHeader {
        let transaction = &self.table.entries[slot as usize];
        let transfer = &self.transfers.entries[transaction.transfer as usize];
        let offset_bytes = u64::from(transaction.offset_bytes);
        NotifyHeader {
            domain: transfer.spec.domain,
            transaction: TransactionId(slot as u16),
            generation: transaction.generation,
            attempt: transaction.attempt,
            block_address: transfer.spec.destination_address + offset_bytes,
            block_bytes: transaction.length_bytes,
            in_reply_to: transfer.served,
            asker: transfer.asker,
            notification: transfer.spec.notification.unwrap_or_default(),
        }
    }

    /// Records that the caller is reading the bytes of a block, which may take long and says nothing about the
    /// path. The bytes count as under way until a timeout has passed: after that, other blocks need not wait
    /// for them.
    pub(crate) fn source_begun(&mut self, block: &Block) {
        let Some(slot) = self.slot_of(block) else { return };
        let transaction = &mut self.table.entries[slot as usize];
        transaction.reading = transaction.place == Place::Timeout && transaction.attempt == block.attempt;
    }

    /// Records that the bytes of a block are read. Returns `true` if they are to be sent, and starts the timer.
    /// Returns `false` if no answer to the block is awaited any more.
    pub(crate) fn source_read(&mut self, now: Time, block: &Block) -> bool {
        let Some(slot) = self.slot_of(block) else { return false };
        let transaction = &mut self.table.entries[slot as usize];
        let was_reading = std::mem::take(&mut transaction.reading);
        // An earlier attempt of it may have been answered meanwhile.
        if !was_reading || !matches!(transaction.place, Place::Timeout | Place::Late) {
            return transaction.state.is_open();
        }
        transaction.absent_at = self.attended.at(now);
        self.unplace(slot);
        let transaction = &mut self.table.entries[slot as usize];
        let (place, bytes) = (usize::from(transaction.path), u64::from(transaction.length_bytes));
        let Some(peer) = self.peers[block.peer.index()].as_mut() else { return false };
        let path = &mut peer.paths[place];
        path.order += 1;
        (transaction.sent_at, transaction.order) = (now, path.order);
        if !transaction.counted {
            transaction.counted = true;
            path.count(now, bytes);
        }
        transaction.place = Place::Timeout;
        path.timeouts.push_back(&mut self.table.chain, slot);
        let timeout_ns = peer.timeout_ns(place, &self.config);
        self.arm(block.peer, self.config.retransmission.due(now, timeout_ns));
        self.arm_probe(block.peer, place);
        self.refresh(block.peer);
        true
    }

    /// Begins a transmission of a block: chooses the path, which is returned, and puts the block at the rear of
    /// the path's timeouts.
    pub(super) fn start_timer(&mut self, now: Time, slot: u32, with_bytes: bool) -> PathId {
        let transaction = &mut self.table.entries[slot as usize];
        let id = transaction.peer;
        let Some(peer) = self.peers[id.index()].as_mut() else {
            return PathId(transaction.path);
        };
        transaction.sent_before_at = transaction.sent.then_some(transaction.sent_at);
        transaction.order_before = transaction.order;
        transaction.path_before = transaction.path;
        let bytes = u64::from(transaction.length_bytes);
        if !transaction.counted {
            let avoid = transaction.avoid.take();
            transaction.path =
                if with_bytes { peer.path_for_block(now, avoid) } else { peer.best_path(avoid) };
        }
        let place = usize::from(transaction.path);
        transaction.sent = true;
        transaction.reading = false;
        transaction.sent_at = now;
        let path = &mut peer.paths[place];
        path.order += 1;
        transaction.order = path.order;
        if with_bytes {
            path.blocks_sent += 1;
            path.bytes_sent += bytes;
            if !transaction.counted {
                transaction.counted = true;
                path.count(now, bytes);
            }
        }
        transaction.place = Place::Timeout;
        path.timeouts.push_back(&mut self.table.chain, slot);
        let timeout_ns = peer.timeout_ns(place, &self.config);
        let path = PathId(transaction.path);
        self.arm(id, self.config.retransmission.due(now, timeout_ns));
        self.arm_probe(id, place);
        self.refresh(id);
        path
    }
}
