//! The three machines behind one door.

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
/// A write of four bytes, the link and both memories played by hand:
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

    /// A link to `peer` is up, and both ends start afresh. If there is a peer of this
    /// number, it has restarted: what is open with its earlier life ends as with
    /// [`Self::peer_lost`], before anything of the new one begins; and what the caller
    /// still holds of the earlier one (blocks, placements) means nothing to the new one.
    pub fn add_peer(&mut self, now: Time, peer: PeerId) {
        if let Some(before) = self.initiator.peer_at(peer.index()) {
            self.peer_lost(now, before);
        }
        self.initiator.add_peer(now, peer);
        self.responder.add_peer(peer);
        self.server.add_peer(peer);
    }

    /// As [`Self::add_peer`], for the node itself, to which no packets go: its blocks may be
    /// longer than those of packets (a power of two from 256 to 1 MiB; others are rounded down). While
    /// small transfers come they are as short as others. The notification of several is never sent before
    /// all others are answered.
    ///
    /// Nothing is lost on the way to it, so the caller answers everything that it is handed, once and however
    /// late, with an acknowledgement, a refusal or [`Self::source_refused`]. A block comes again only
    /// if it was refused for now. A transfer that fails completes when the last of its blocks is answered:
    /// until then the caller may still copy.
    pub fn add_loopback_peer(&mut self, now: Time, peer: PeerId, block_bytes: u32) {
        self.add_peer(now, peer);
        self.initiator.set_loopback(peer, block_bytes);
    }

    /// Another link to a peer is up, or a lost one again, under a number of the
    /// caller's choice; [`Self::add_peer`] has brought path 0. Nothing is known
    /// of how fast it is. `false`: there is no such peer, or
    /// the number is not below [`crate::rdma::MAX_PATHS`]. Poll afterwards.
    pub fn add_path(&mut self, now: Time, peer: PeerId, path: PathId) -> bool {
        self.initiator.knows(peer) && self.initiator.add_path(now, peer, path)
    }

    /// Whether this path of a peer loses nothing while its link is up, so that an unanswered block means a busy peer. That stays so when the path
    /// is added again.
    pub fn set_reliable(&mut self, peer: PeerId, path: PathId, is_reliable: bool) {
        if self.initiator.knows(peer) {
            self.initiator.set_reliable(peer, path, is_reliable);
        }
    }

    /// A link to a peer is gone: what is under way there goes again at once by
    /// others. Without any path left a peer's transfers wait for one, or for
    /// [`Self::peer_lost`]; only what was under way on [`Config::max_attempts`] paths that were lost ends. Poll
    /// afterwards.
    pub fn path_lost(&mut self, now: Time, peer: PeerId, path: PathId) {
        if self.initiator.knows(peer) {
            self.initiator.path_lost(now, peer, path);
            self.collect(now);
        }
    }

    /// How a link to a peer is; `None` if it never was.
    #[must_use]
    pub fn path_status(&self, peer: PeerId, path: PathId) -> Option<PathStatus> {
        if self.initiator.knows(peer) { self.initiator.path_status(peer, path) } else { None }
    }

    /// The link to `peer` is gone for good: every transfer with it completes
    /// with [`TransferError::PeerLost`] (a read with bytes still being copied as
    /// soon as they are handed back), and its packets are dropped from now on.
    /// Poll afterwards.
    pub fn peer_lost(&mut self, now: Time, peer: PeerId) {
        if !self.initiator.knows(peer) {
            // Lost already, and its place may be another's.
            return;
        }
        self.peers_lost += 1;
        self.initiator.mark_peer_lost(peer);
        self.responder.mark_peer_lost(peer);
        self.server.mark_peer_lost(peer);
        self.collect(now);
    }

    /// How often a peer was lost.
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

    /// As [`Self::post`], on behalf of another node: a write, under the number that the peer has given for that.
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

    /// A packet arrived from `peer` by its first link. Carry out the verdict, then
    /// poll.
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

    /// A packet arrived from `peer` by `path`: its answer will go there, too.
    /// Carry out the verdict, then poll.
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

    /// The bytes of a placement are in memory. Poll afterwards.
    pub fn placed(&mut self, placement: Placement) {
        let end = self.responder.placed(&placement);
        self.block_end(end);
        if let Some(read) = placement.read {
            self.initiator.read_placed(read);
        }
    }

    /// The word of an operation is changed; what it was before. Poll afterwards.
    pub fn operated(&mut self, operation: Operation, before: u64) {
        self.responder.operated(&operation.placement, before);
    }

    /// The memory refused a placement: the sender is told why, and where. For an absent
    /// page say [`NackCode::SlaveError`], and `page_ready` when it is there, if that is known
    /// before the sender's pause is over; for
    /// no memory at all [`NackCode::DecodeError`]; for another's memory
    /// [`NackCode::DomainMismatch`]; for an unknown domain
    /// [`NackCode::NoContext`]. A read whose answer is refused so ends with [`TransferError::Local`]. Poll afterwards.
    pub fn refused(&mut self, placement: Placement, refusal: impl Into<Refusal>) {
        let (refusal, is_held) = (refusal.into(), self.is_held(&placement));
        let end = self.responder.refused(&placement, refusal);
        self.block_end(end);
        if let Some(read) = placement.read {
            // What nobody wants any more is handed back as refused, too.
            if is_held {
                self.initiator.read_refused_here(read, refusal);
            }
            self.initiator.read_placed(read);
        }
    }

    /// Whether the bytes of a placement that waits are still to be copied. If not, its sender is gone, or has given
    /// them up: they would come over those that it has sent since. Hand it back to `refused` then.
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

    /// Whether other parts of a placement's block have been placed: they do not come again.
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

    /// The page for which `placement` was refused is there: the sender is told
    /// to send the block again (FAULT §3.2.3). Poll afterwards.
    pub fn page_ready(&mut self, placement: &Placement) {
        self.responder.page_ready(placement);
    }

    /// The words of a notification are in memory. Poll afterwards.
    pub fn notified(&mut self, write: NotificationWrite) {
        let end = self.responder.notified(&write);
        self.block_end(end);
        if let Some(read) = write.read {
            self.initiator.read_placed(read);
        }
    }

    /// The memory refused a notification; codes as for [`Self::refused`]. An
    /// absent page is tried again when the sender's pause is over.
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

    /// The source of a block cannot be read, and the block was not sent. With
    /// [`NackCode::SlaveError`] (absent page) the block waits for `source_ready`
    /// or the pause's end (FAULT §3.2.2); with any other code its transfer fails,
    /// and if it answered a read, the read's. Poll afterwards.
    pub fn source_refused(&mut self, now: Time, block: &Block, refusal: impl Into<Refusal>) {
        self.initiator.source_refused(now, block, refusal.into());
        self.collect(now);
    }

    /// The bytes of a block are being read, which may take long: its timer stands still until [`Self::source_read`] or
    /// [`Self::source_refused`], one of which has to come.
    pub fn source_begun(&mut self, block: &Block) {
        self.initiator.source_begun(block);
    }

    /// They are read. True: they are to be sent now. False: nobody waits for them, or the block comes again. Poll afterwards.
    #[must_use]
    pub fn source_read(&mut self, now: Time, block: &Block) -> bool {
        self.initiator.source_read(now, block)
    }

    /// A block to the node itself is in memory; only its bytes, if its words are to come apart. Poll afterwards.
    pub fn placed_here(&mut self, now: Time, block: &Block, bytes_only: bool) {
        let (transaction, generation, attempt) = (block.transaction, block.generation, block.attempt);
        let ack = Ack { transaction, generation, attempt, bytes_only };
        let _ = self.handle(now, block.peer, &Packet::Ack(ack));
    }

    /// The memory refused a block to the node itself, at its destination or, if that is another program's, at its source;
    /// codes as for [`Self::refused`]. Poll afterwards.
    pub fn refused_here(&mut self, now: Time, block: &Block, refusal: Refusal) {
        let (transaction, generation, attempt) = (block.transaction, block.generation, block.attempt);
        let nack = Nack { transaction, generation, attempt, refusal };
        let _ = self.handle(now, block.peer, &Packet::Nack(nack));
    }

    /// The link of the block's path is full, and the block was not sent, or not all of it. It comes again,
    /// as the same attempt, once [`Self::link_has_room`] says so; until then nothing more is handed out for
    /// that path, and others go on. A peer whose links take nothing for [`Config::give_up_ns`], and of which
    /// nothing is heard meanwhile, does not answer.
    pub fn link_full(&mut self, now: Time, block: &Block) {
        self.initiator.link_full(now, block);
    }

    /// The link of a path may take something again. Poll afterwards.
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

    /// The source page of a block is there. Poll afterwards.
    pub fn source_ready(&mut self, block: &Block) {
        self.initiator.source_ready(block);
    }

    /// Time has passed; harmless if called early. Poll afterwards.
    pub fn expire(&mut self, now: Time) {
        self.initiator.expire(now);
        self.collect(now);
    }

    /// When `expire` is to be called at the latest; `None` if nothing waits for
    /// time. Ask again after each round of polling. It may name a moment at which
    /// nothing turns out to be due, at most once per timeout.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.initiator.deadline()
    }

    /// The next thing to do. Call until `None`; then again after any other call
    /// on this engine. The timer of a block starts when it is polled; what its link
    /// does not take, the caller gives back ([`Self::link_full`]).
    ///
    /// Order: what others wait for first (answers, notifications, completions),
    /// then notifications and requests of our own, what goes again, and blocks by
    /// class.
    #[must_use = "an action that is not carried out is lost"]
    pub fn poll(&mut self, now: Time) -> Option<Action> {
        self.poll_answer(now).or_else(|| self.poll_send(now))
    }

    /// The next thing to do for others: answers and notifications. In the documents' hardware the receive block does it without the
    /// processor (QOS §3.2.6). It may make work for [`Self::poll_send`] (a read has ended), never the other way round.
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

    /// The next thing to do for the node's own transfers: completions, notifications and requests, and blocks. In the documents'
    /// hardware a processor does it, one action at a time (QOS §3.5).
    #[must_use = "an action that is not carried out is lost"]
    pub fn poll_send(&mut self, now: Time) -> Option<Action> {
        self.initiator.poll_complete().or_else(|| self.initiator.poll_send(now))
    }

    /// Whether a read request would be taken now. For models of the document's queues (QOS §3.6.3);
    /// a node does without, and loses a round trip where a request is refused.
    #[must_use]
    pub fn has_read_room(&self, peer: PeerId, request: &ReadRequest) -> bool {
        self.initiator.knows(peer) && self.server.has_room(peer, request)
    }

    /// Bytes that may be under way to a peer (congestion).
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

    /// Whether every table is empty: nothing open, nothing to be told or
    /// answered, no timer. O(everything); for tests and for shutting down.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.initiator.is_idle() && self.responder.is_idle() && self.server.is_idle()
    }

    fn block_end(&mut self, end: Option<BlockEnd>) {
        if let Some(BlockEnd { peer, request: Some(request), length_bytes, last }) = end {
            self.initiator.read_block(peer, request, length_bytes, last);
        }
    }

    /// Write-backs that ended free their channels for the reads that wait.
    fn collect(&mut self, now: Time) {
        while let Some(end) = self.initiator.take_served_end() {
            if !self.initiator.knows(end.peer) {
                // Nobody waits for it, and the place may be another peer's.
                continue;
            }
            let failure = end.status.err().map(|error| match error {
                // Not a transient one: part of the read may be there, and
                // beginning it anew would count that part twice.
                TransferError::Refused(refusal) | TransferError::Local(refusal)
                    if !refusal.code.is_transient() =>
                {
                    refusal
                }
                // The requester hears nothing or is gone; if it asks again, it is told to
                // give up.
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

    /// Ids wrap around in the middle of this, on both sides.
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
