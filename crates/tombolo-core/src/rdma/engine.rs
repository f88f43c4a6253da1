//! The initiator, the responder and the read server combined into one type.

use super::action::{
    Action, Block, BlockId, DropReason, NotificationWrite, Operation, PathStatus, Placement, Verdict,
};
use super::config::Config;
use super::counters::Counters;
use super::initiator::Initiator;
use super::read_server::{ReadServer, Start};
use super::responder::{BlockEnd, Responder};
use super::time::Time;
use super::transfer::{PathId, PeerId, PostError, Transfer, TransferError, TransferId};
use tombolo_wire::{
    Ack, Asker, EarlierBlocks, Nack, NackCode, NotifyHeader, Packet, Payload, ReadRequest, Refusal,
};

/// An RDMA engine: one node's half of every transfer it takes part in.
///
/// The caller serialises access (one lock around it) and may call from any
/// thread. No method blocks, allocates in steady state, or panics on what a peer
/// sends. Copies of bytes happen outside: between `handle` and `placed` the lock
/// may be dropped.
///
/// Example: a write of four bytes, with the link and both memories simulated by hand.
///
/// ```
/// use tombolo_core::rdma::{Action, Config, Direction, Engine, PeerId, Time, Transfer, Verdict};
/// use tombolo_wire::{Checksums, Domain, Packet, Payload};
///
/// let (now, peer) = (Time(0), PeerId(0));
/// let [mut here, mut there] = [Engine::new(Config::default()), Engine::new(Config::default())];
/// here.add_peer(now, peer);
/// there.add_peer(now, peer);
/// let (source, mut destination) = (*b"abcd", [0; 4]);
///
/// let transfer = Transfer {
///     direction: Direction::Write,
///     domain: Domain(1),
///     own_domain: Domain(2),
///     source_address: 0,
///     destination_address: 0,
///     size_bytes: 4,
///     notification: None,
///     class: None,
///     user: 7,
/// };
/// here.post(now, peer, transfer)?;
///
/// let Some(Action::SendBlock(block)) = here.poll(now) else { unreachable!() };
/// for header in block.packets(1400) {
///     // Sending: the payload behind the header, then the header.
///     let mut datagram = [0; 1500];
///     let from = (block.source_address + u64::from(header.offset_bytes)) as usize;
///     let payload = &source[from..from + header.payload_bytes as usize];
///     let start = header.header_bytes();
///     datagram[start..start + payload.len()].copy_from_slice(payload);
///     let length = header.seal(&mut datagram, Checksums::On)?;
///
///     // Receiving.
///     let packet = Packet::parse(&datagram[..length], Checksums::On)?;
///     let Verdict::Place(placement) = there.handle(now, peer, &packet) else { unreachable!() };
///     let Packet::Data(_, Payload::Intact(bytes)) = packet else { unreachable!() };
///     let at = placement.address as usize;
///     destination[at..at + bytes.len()].copy_from_slice(bytes);
///     there.placed(placement);
/// }
/// let Some(Action::Send { packet: ack, .. }) = there.poll(now) else { unreachable!() };
/// let _ = here.handle(now, peer, &ack);
///
/// let Some(Action::Complete(completion)) = here.poll(now) else { unreachable!() };
/// assert_eq!((completion.user, completion.status), (7, Ok(())));
/// assert_eq!(destination, source);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    initiator: Initiator,
    responder: Responder,
    server: ReadServer,
    peers_lost: u64,
}

impl Engine {
    /// An engine without peers.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let config = config.clamped();
        Self {
            initiator: Initiator::new(config),
            responder: Responder::new(&config),
            server: ReadServer::new(config),
            peers_lost: 0,
        }
    }

    /// Adds a peer whose first link is up. Both ends start afresh. If the engine has a peer at the same place
    /// already, that peer has restarted or is replaced: everything open with it ends first, as with
    /// [`Self::peer_lost`]. What the caller still holds of the earlier peer (blocks, placements) has no effect
    /// on the new one.
    pub fn add_peer(&mut self, now: Time, peer: PeerId) {
        if let Some(before) = self.initiator.peer_at(peer.index()) {
            self.peer_lost(now, before);
        }
        self.initiator.add_peer(now, peer);
        self.responder.add_peer(peer);
        self.server.add_peer(peer);
    }

    /// As [`Self::add_peer`], for the node itself, to which no packets go. Its blocks may be longer than blocks
    /// that go in packets: `block_bytes` is a power of two from 256 to 1 MiB, and other values are rounded
    /// down. While small transfers come, its blocks are as short as those to other peers. The notification of a
    /// transfer of several blocks is never sent before all its other blocks are answered.
    ///
    /// Nothing is lost on the way to the node itself. So the caller answers each block exactly once, however
    /// late, with an acknowledgement, a refusal or [`Self::source_refused`]. A block is handed out again only
    /// if it was refused for now. A transfer that fails completes when the last of its blocks is answered,
    /// because until then the caller may still copy.
    pub fn add_loopback_peer(&mut self, now: Time, peer: PeerId, block_bytes: u32) {
        self.add_peer(now, peer);
        self.initiator.set_loopback(peer, block_bytes);
    }

    /// Adds a path: another link to a peer is up, or a lost one is up again. The caller chooses the path's
    /// number. [`Self::add_peer`] has added path 0. The engine starts without knowledge of the path's speed.
    /// Returns `false` if there is no such peer, or if the number is not below [`crate::rdma::MAX_PATHS`]. Poll
    /// afterwards.
    pub fn add_path(&mut self, now: Time, peer: PeerId, path: PathId) -> bool {
        self.initiator.knows(peer) && self.initiator.add_path(now, peer, path)
    }

    /// Sets whether a path loses nothing while its link is up, so that a missing answer means that the peer is
    /// busy. The setting stays when the path is added again.
    pub fn set_reliable(&mut self, peer: PeerId, path: PathId, is_reliable: bool) {
        if self.initiator.knows(peer) {
            self.initiator.set_reliable(peer, path, is_reliable);
        }
    }

    /// Marks a path as lost, because its link is gone. What is under way by it is sent again at once by other
    /// paths. If no path is left, the peer's transfers wait for a new path or for [`Self::peer_lost`]. The loss
    /// counts as an unanswered attempt for each block and read request that was under way by the path. A
    /// transfer ends only when that makes [`Config::max_attempts`] in a row. Poll afterwards.
    pub fn path_lost(&mut self, now: Time, peer: PeerId, path: PathId) {
        if self.initiator.knows(peer) {
            self.initiator.path_lost(now, peer, path);
            self.collect(now);
        }
    }

    /// State of a path, also of one that is lost. `None` if the path was never added, or its peer is lost.
    #[must_use]
    pub fn path_status(&self, peer: PeerId, path: PathId) -> Option<PathStatus> {
        if self.initiator.knows(peer) { self.initiator.path_status(peer, path) } else { None }
    }

    /// Removes a peer whose links are gone for good. Every transfer with it completes with
    /// [`TransferError::PeerLost`]. A read whose bytes are still being copied completes as soon as they are
    /// handed back. Packets of the peer are dropped from now on. Poll afterwards.
    pub fn peer_lost(&mut self, now: Time, peer: PeerId) {
        if !self.initiator.knows(peer) {
            // Lost already. Another peer may have its place by now.
            return;
        }
        self.peers_lost += 1;
        self.initiator.mark_peer_lost(peer);
        self.responder.mark_peer_lost(peer);
        self.server.mark_peer_lost(peer);
        self.collect(now);
    }

    /// Number of peers lost so far.
    #[must_use]
    pub fn peers_lost(&self) -> u64 {
        self.peers_lost
    }

    /// As [`Self::peer_lost`], for a peer that says goodbye.
    pub fn remove_peer(&mut self, now: Time, peer: PeerId) {
        self.peer_lost(now, peer);
    }

    /// Start a transfer. Poll afterwards.
    ///
    /// # Errors
    /// [`PostError`]; nothing was started.
    pub fn post(&mut self, now: Time, peer: PeerId, transfer: Transfer) -> Result<TransferId, PostError> {
        self.initiator.post(now, peer, transfer, Asker::SENDER)
    }

    /// As [`Self::post`], for a write on behalf of a third node. `asker` is the number that the peer has given
    /// for that node.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub fn post_for(
        &mut self,
        now: Time,
        peer: PeerId,
        transfer: Transfer,
        asker: Asker,
    ) -> Result<TransferId, PostError> {
        self.initiator.post(now, peer, transfer, asker)
    }

    /// Handles a packet that arrived from `peer` by its first path. Carry out the verdict, then poll.
    pub fn handle(&mut self, now: Time, peer: PeerId, packet: &Packet<'_>) -> Verdict {
        self.handle_from(now, peer, PathId(0), packet)
    }

    fn notify(
        &mut self,
        from: (PeerId, PathId),
        header: &NotifyHeader,
        after: Option<&EarlierBlocks>,
    ) -> Verdict {
        let initiator = &self.initiator;
        let (verdict, end) = self.responder.notify(from, header, after, |request| {
            initiator.admit(from.0, request, header.domain, header.block_address, header.block_bytes)
        });
        self.block_end(end);
        verdict
    }

    /// Handles a packet that arrived from `peer` by `path`. Its answer goes by the same path. Carry out the
    /// verdict, then poll.
    pub fn handle_from(&mut self, now: Time, peer: PeerId, path: PathId, packet: &Packet<'_>) -> Verdict {
        if !self.initiator.heard(now, peer) {
            return Verdict::Dropped(DropReason::UnknownPeer);
        }
        match packet {
            Packet::Data(header, payload) => {
                let initiator = &self.initiator;
                let intact = matches!(payload, Payload::Intact(_));
                let (verdict, end) = self.responder.data((peer, path), header, intact, |request| {
                    initiator.admit(peer, request, header.domain, header.block_address, header.block_bytes)
                });
                if let Verdict::Place(Placement { read: Some(read), .. }) = verdict {
                    self.initiator.read_placing(now, read);
                }
                self.block_end(end);
                return verdict;
            }
            Packet::Notify(header) => return self.notify((peer, path), header, None),
            Packet::NotifyAfter(header, after) => return self.notify((peer, path), header, Some(after)),
            Packet::Atomic(atomic) => return self.responder.atomic((peer, path), atomic),
            Packet::AtomicAck(ack) => self.initiator.operated(now, peer, ack),
            Packet::Ack(ack) => self.initiator.acknowledge(now, peer, ack),
            Packet::Acks(acks) => {
                for ack in acks.iter() {
                    self.initiator.acknowledge(now, peer, &ack);
                }
            }
            Packet::Receipt(receipt) => self.initiator.received(now, peer, receipt),
            Packet::Nack(nack) => self.initiator.refused(now, peer, nack),
            Packet::Resume(resume) => self.initiator.resume(now, peer, resume),
            Packet::ReadRequest(request) => {
                if let Some(start) = self.server.request(peer, path, request) {
                    self.start(now, &start);
                }
            }
            Packet::ReadReject(reject) => {
                self.initiator.read_rejected(now, (peer, path), reject.request, reject.refusal);
            }
            Packet::ReadAccept(accept) => self.initiator.read_accepted(now, (peer, path), accept.request),
        }
        self.collect(now);
        Verdict::Taken
    }

    /// Takes back a placement whose bytes are in memory. Poll afterwards.
    pub fn placed(&mut self, placement: Placement) {
        let end = self.responder.placed(&placement);
        self.block_end(end);
        if let Some(read) = placement.read {
            self.initiator.read_placed(read);
        }
    }

    /// Takes back an operation that was carried out. `before` is the word's previous value. Poll afterwards.
    pub fn operated(&mut self, operation: Operation, before: u64) {
        self.responder.operated(&operation.placement, before);
    }

    /// Takes back a placement that the memory refused. The sender is told why, and where. Use
    /// [`NackCode::SlaveError`] for an absent page, and call `page_ready` when the page is there, if that is
    /// known before the sender's pause is over. Use [`NackCode::DecodeError`] if there is no memory at the
    /// address, [`NackCode::DomainMismatch`] for memory of another domain, and [`NackCode::NoContext`] for an
    /// unknown domain. A read that fails because its answer is refused here ends with [`TransferError::Local`].
    /// Poll afterwards.
    pub fn refused(&mut self, placement: Placement, refusal: impl Into<Refusal>) {
        let (refusal, is_held) = (refusal.into(), self.is_held(&placement));
        let end = self.responder.refused(&placement, refusal);
        self.block_end(end);
        if let Some(read) = placement.read {
            // A placement that is no longer held is handed back as refused, too.
            if is_held {
                self.initiator.read_refused_here(read, refusal);
            }
            self.initiator.read_placed(read);
        }
    }

    /// Whether the bytes of a waiting placement are still to be copied. If not, its peer is lost, its slot has
    /// a newer block, or its block was refused for good: the bytes might overwrite newer ones. Hand the
    /// placement back to `refused` then.
    #[must_use]
    pub fn is_held(&self, placement: &Placement) -> bool {
        let Placement { peer, epoch, slot, generation, .. } = *placement;
        self.responder.is_held(peer, epoch, slot, generation)
    }

    /// Whether the bytes of a block are still coming in.
    #[must_use]
    pub fn is_receiving(&self, peer: PeerId, block: BlockId) -> bool {
        self.responder.is_receiving(peer, block)
    }

    /// Whether other parts of a placement's block have been placed. Those are not handed out again.
    #[must_use]
    pub fn has_other_parts(&self, placement: &Placement) -> bool {
        self.responder.has_placed(placement)
    }

    /// Whether the words of a notification that waits for its page are still to be written. If not, hand them back to
    /// `notification_refused`.
    #[must_use]
    pub fn are_held(&self, write: &NotificationWrite) -> bool {
        self.responder.is_held(write.peer, write.epoch, write.slot, write.generation)
    }

    /// Tells the sender of a block to send it again, because the page for which `placement` was refused is
    /// there (FAULT §3.2.3). Poll afterwards.
    pub fn page_ready(&mut self, placement: &Placement) {
        self.responder.page_ready(placement);
    }

    /// Takes back a notification whose words are in memory. Poll afterwards.
    pub fn notified(&mut self, write: NotificationWrite) {
        let end = self.responder.notified(&write);
        self.block_end(end);
        if let Some(read) = write.read {
            self.initiator.read_placed(read);
        }
    }

    /// Takes back a notification that the memory refused, with codes as for [`Self::refused`]. If the page is
    /// absent, the sender tries again when its pause is over.
    pub fn notification_refused(&mut self, write: NotificationWrite, refusal: impl Into<Refusal>) {
        let (refusal, is_held) = (refusal.into(), self.are_held(&write));
        self.responder.notification_refused(&write, refusal);
        if let Some(read) = write.read {
            if is_held {
                self.initiator.read_refused_here(read, refusal);
            }
            self.initiator.read_placed(read);
        }
    }

    /// Takes back a block that was not sent because its source cannot be read. With [`NackCode::SlaveError`]
    /// (absent page) the block waits for `source_ready` or for the end of the pause (FAULT §3.2.2). With any
    /// other code its transfer fails. If the block answers a peer's read, that read fails too. Poll afterwards.
    pub fn source_refused(&mut self, now: Time, block: &Block, refusal: impl Into<Refusal>) {
        self.initiator.source_refused(now, block, refusal.into());
        self.collect(now);
    }

    /// Records that the caller has begun to read the bytes of a block, which may take long. The block's timer
    /// stands still until [`Self::source_read`] or [`Self::source_refused`], one of which has to follow.
    pub fn source_begun(&mut self, block: &Block) {
        self.initiator.source_begun(block);
    }

    /// Records that the bytes of a block are read. Returns `true` if they are to be sent now, `false` if no
    /// answer to the block is awaited any more. Poll afterwards.
    #[must_use]
    pub fn source_read(&mut self, now: Time, block: &Block) -> bool {
        self.initiator.source_read(now, block)
    }

    /// Acknowledges a block to the node itself that is in memory. With `bytes_only`, its notification is still
    /// to be written. Poll afterwards.
    pub fn placed_here(&mut self, now: Time, block: &Block, bytes_only: bool) {
        let (transaction, generation, attempt) = (block.transaction, block.generation, block.attempt);
        let ack = Ack { transaction, generation, attempt, bytes_only };
        let _ = self.handle(now, block.peer, &Packet::Ack(ack));
    }

    /// Answers a block to the node itself that the memory refused, at its destination or, if the source is
    /// another program's memory, at its source. Codes as for [`Self::refused`]. Poll afterwards.
    pub fn refused_here(&mut self, now: Time, block: &Block, refusal: Refusal) {
        let (transaction, generation, attempt) = (block.transaction, block.generation, block.attempt);
        let nack = Nack { transaction, generation, attempt, refusal };
        let _ = self.handle(now, block.peer, &Packet::Nack(nack));
    }

    /// Takes back a block that was not sent, or only in part, because the link of its path is full. The block
    /// is handed out again as the same attempt, by another path or after [`Self::link_has_room`]. Until then
    /// nothing more is handed out for the full path, and other paths go on. A peer is given up if its links
    /// take nothing for [`Config::give_up_ns`] and nothing is heard of it meanwhile.
    pub fn link_full(&mut self, now: Time, block: &Block) {
        self.initiator.link_full(now, block);
    }

    /// Records that the link of a path has room again. Poll afterwards.
    pub fn link_has_room(&mut self, peer: PeerId, path: PathId) {
        if self.initiator.knows(peer) {
            self.initiator.link_has_room(peer, path);
        }
    }

    /// Whether a block still waits for an answer.
    #[must_use]
    pub fn is_open(&self, block: &Block) -> bool {
        self.initiator.is_open(block)
    }

    /// Sends a block again whose absent source page is there now. Poll afterwards.
    pub fn source_ready(&mut self, block: &Block) {
        self.initiator.source_ready(block);
    }

    /// Lets timers that are due fire. Harmless if called early. Poll afterwards.
    pub fn expire(&mut self, now: Time) {
        self.initiator.expire(now);
        self.collect(now);
    }

    /// The latest time at which to call `expire`. `None` if no timer runs. Ask again after each round of
    /// polling. At most once per timeout, nothing turns out to be due at that time.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.initiator.deadline()
    }

    /// Returns the next action. Call this until it returns `None`, and again after any other call on this
    /// engine. The timer of a block starts when the block is returned here. The caller hands back a block that
    /// its link does not take ([`Self::link_full`]).
    ///
    /// Order: answers to peers, notifications to be written, completions, small transfers that skip the queue,
    /// notifications and read requests of this node, blocks to be sent again, and new blocks by class.
    #[must_use = "an action that is not carried out is lost"]
    pub fn poll(&mut self, now: Time) -> Option<Action> {
        self.poll_answer(now).or_else(|| self.poll_send(now))
    }

    /// Returns the next action for peers: an answer, or a notification to be written. In the documents'
    /// hardware the receive block does this without the processor (QOS §3.2.6). This call may make work for
    /// [`Self::poll_send`] (when a read has ended), but not the other way round.
    #[must_use = "an action that is not carried out is lost"]
    pub fn poll_answer(&mut self, now: Time) -> Option<Action> {
        loop {
            if let Some(Action::Send { peer, path, packet }) = self.responder.poll_reply() {
                let path = self.initiator.path_for_answer(peer, path);
                return Some(Action::Send { peer, path, packet });
            }
            let Some(write) = self.responder.poll_write() else { break };
            // The words of a read that failed meanwhile must not be written: the
            // program may use that memory for something else.
            if write.read.is_none_or(|read| self.initiator.read_placing(now, read)) {
                return Some(Action::WriteNotification(write));
            }
            self.responder.notification_refused(&write, NackCode::NoContext.into());
        }
        let (peer, path, packet) = self.server.poll_reply()?;
        let path = match path {
            Some(path) => self.initiator.path_for_answer(peer, path),
            None => self.initiator.best_path(peer),
        };
        Some(Action::Send { peer, path, packet })
    }

    /// Returns the next action for the node's own transfers: a completion, a notification or request, or a
    /// block. In the documents' hardware a processor does this, one action at a time (QOS §3.5).
    #[must_use = "an action that is not carried out is lost"]
    pub fn poll_send(&mut self, now: Time) -> Option<Action> {
        self.initiator.poll_complete().or_else(|| self.initiator.poll_send(now))
    }

    /// Whether a read request would be accepted now. For models of the document's queues (QOS §3.6.3). A node
    /// does not ask, so a request that is refused costs it a round trip.
    #[must_use]
    pub fn has_read_room(&self, peer: PeerId, request: &ReadRequest) -> bool {
        self.initiator.knows(peer) && self.server.has_room(peer, request)
    }

    /// Bytes that congestion control allows under way to a peer, by all its paths together.
    #[must_use]
    pub fn window_bytes(&self, peer: PeerId) -> Option<u64> {
        if self.initiator.knows(peer) { self.initiator.window_bytes(peer) } else { None }
    }

    /// What the engine has done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = *self.initiator.counters();
        let (received, served) = (self.responder.counters(), self.server.counters());
        sum.nacks_sent = received.nacks_sent;
        sum.nacks_spared = received.nacks_spared;
        sum.receipts_sent = received.receipts_sent;
        sum.atomics = received.atomics;
        sum.packets_placed = received.packets_placed;
        sum.duplicates = received.duplicates;
        sum.stale_packets = received.stale_packets + served.stale_packets;
        sum.busy_packets = received.busy_packets;
        sum.damaged_packets = received.damaged_packets;
        sum.bad_packets = received.bad_packets;
        sum.blocks_received = received.blocks_received;
        sum.notifications = received.notifications;
        sum.reads_served = served.reads_served;
        sum.reads_queued = served.reads_queued;
        sum.reads_turned_away = served.reads_turned_away;
        sum.read_duplicates = served.read_duplicates;
        sum
    }

    /// Whether every table is empty: nothing is open, to be reported or to be answered, and no timer runs. This
    /// looks at every entry, so it is for tests and for shutting down.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.initiator.is_idle() && self.responder.is_idle() && self.server.is_idle()
    }

    fn block_end(&mut self, end: Option<BlockEnd>) {
        if let Some(BlockEnd { peer, request: Some(request), length_bytes, last }) = end {
            self.initiator.read_block(peer, request, length_bytes, last);
        }
    }

    /// Frees the channels of write-backs that have ended, and starts reads that wait for a channel.
    fn collect(&mut self, now: Time) {
        while let Some(end) = self.initiator.take_served_end() {
            if !self.initiator.knows(end.peer) {
                // The peer that asked is gone, and another peer may have its place.
                continue;
            }
            let failure = end.status.err().map(|error| match error {
                // A transient refusal is not passed on: part of the read may have been placed, and a second
                // start would count that part twice.
                TransferError::Refused(refusal) | TransferError::Local(refusal)
                    if !refusal.code.is_transient() =>
                {
                    refusal
                }
                // For all other failures the read is over: a requester that still asks is told to give up.
                TransferError::Refused(_)
                | TransferError::Local(_)
                | TransferError::PeerUnreachable
                | TransferError::Undeliverable
                | TransferError::PeerLost
                | TransferError::Incomplete => NackCode::NoContext.into(),
            });
            self.server.ended(end.peer, end.request, &end.transfer, failure);
            while let Some(start) = self.server.next_start(end.peer) {
                self.start(now, &start);
            }
        }
    }

    fn start(&mut self, now: Time, start: &Start) {
        let Start { peer, request, transfer } = *start;
        if !self.initiator.serve(now, peer, transfer, request) {
            self.server.ended(peer, request, &transfer, Some(NackCode::BufferFull.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::Direction;
    use tombolo_wire::Domain;

    /// Ids wrap around in the middle of this test, on both sides.
    #[test]
    fn ids_wrap() {
        let config = Config { transactions: 1, ..Config::default() };
        let (now, peer) = (Time(0), PeerId(0));
        let mut engines = [Engine::new(config), Engine::new(config)];
        for engine in &mut engines {
            engine.add_peer(now, peer);
            engine.initiator.age(peer);
            engine.server.age(peer);
        }
        for number in 0..20u64 {
            for direction in [Direction::Write, Direction::Read] {
                let transfer = Transfer {
                    direction,
                    own_domain: Domain(2),
                    domain: Domain(0),
                    source_address: 0,
                    destination_address: 0,
                    size_bytes: 40_000,
                    notification: None,
                    class: None,
                    user: number,
                };
                engines[0].post(now, peer, transfer).expect("room");
            }
            let mut completed = 0;
            while completed < 2 {
                for node in 0..2 {
                    while let Some(action) = engines[node].poll(now) {
                        let other = &mut engines[1 - node];
                        match action {
                            Action::SendBlock(block) => {
                                for header in block.packets(16384) {
                                    let packet = Packet::Data(header, Payload::Intact(&[]));
                                    match other.handle(now, peer, &packet) {
                                        Verdict::Place(placement) => other.placed(placement),
                                        verdict => panic!("{verdict:?}"),
                                    }
                                }
                            }
                            Action::Send { packet, .. } => {
                                assert_eq!(other.handle(now, peer, &packet), Verdict::Taken);
                            }
                            Action::Complete(completion) => {
                                assert_eq!(completion.status, Ok(()));
                                completed += 1;
                            }
                            Action::WriteNotification(write) => panic!("{write:?}"),
                        }
                    }
                }
            }
        }
        assert!(engines.iter().all(Engine::is_idle));
        assert_eq!(engines.each_ref().map(|engine| engine.counters().stale_answers), [0, 0]);
    }
}
