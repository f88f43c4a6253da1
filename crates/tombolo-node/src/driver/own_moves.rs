//! Blocks from and to programs' own memory. The bytes are copied by the program itself or a thread of the node
//! ([`crate::driver::own_accesses`]), and the engine's loop goes on when that is done: so all that
//! follows from a copy happens on one thread, in order, and no late copy can be taken for another.
//!
//! ```text
//!  packet ── bytes ─────────────► write ──► placed
//!  block out ──────► read ──► bytes ──► packets
//!  block at home ──► read ──► bytes ──► write ──► words ──► answer
//!                    (where an end is memory of the node, that step is done at once)
//! ```
//!
//! The engine's timers go on meanwhile. A block to a peer that it sends again while a copy of it is
//! being made is not copied twice: the copy counts for the newest attempt, and the block waits
//! as for an absent page, which takes it out of the congestion window of the others. One that stays
//! here comes again only when it was refused, and it is answered when its copy is over: so the engine tells the
//! failure of its transfer when no copy for it is being made.

use std::collections::HashMap;
use std::sync::Arc;

use tombolo_core::rdma::{Block, BlockNotification, NotificationWrite, PeerId, Placement};
use tombolo_host::shared::SharedSpan;
use tombolo_wire::{Ack, Attempt, Generation, NackCode, Notification, Packet, Refusal};

use crate::driver::address_space::{Access, Place, Range};
use crate::driver::loopback::{NOTIFICATION_BYTES, RefusedHere, write_words};
use crate::driver::node::Node;
use crate::driver::own_accesses::{Context, Purpose, Work};
use crate::fabric::connection::Connection;
use crate::fabric::table::ITSELF;
use crate::programs::access::Staged;
use crate::programs::own::{OwnPlace, is_own};
use crate::programs::user::Poster;

/// What is being copied of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Reading,
    Writing,
    Words,
    /// Its words are still to come.
    Acknowledged,
}

/// An end of a block that stays here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Source,
    Destination,
    /// The words of its notification, at that address.
    Words(u64),
}

/// A block of which a copy is being made.
#[derive(Debug)]
struct Underway {
    /// As the engine said it last.
    block: Block,
    stage: Stage,
    /// Where it goes; `None` if it stays here.
    connection: Option<Arc<Connection>>,
}

/// All copies under way. Numbers are never used again, so a late copy is never taken for another's.
#[derive(Debug, Default)]
pub(crate) struct OwnMoves {
    blocks: HashMap<u64, Underway>,
    /// The number of the newest copy for a slot of the engine towards a peer.
    slots: HashMap<(PeerId, u16), u64>,
    next: u64,
}

impl OwnMoves {
    /// The block of a slot, if that is the one meant.
    fn of(&mut self, peer: PeerId, slot: u16, generation: Generation) -> Option<(u64, &mut Underway)> {
        let number = *self.slots.get(&(peer, slot))?;
        let underway = self.blocks.get_mut(&number)?;
        (underway.block.generation == generation).then_some((number, underway))
    }

    /// Whether a copy of that block is being made. It then counts for this attempt of it, and goes by the
    /// link that the engine has chosen now.
    fn take_over(&mut self, block: &Block, connection: Option<&Arc<Connection>>) -> bool {
        let Some((_, underway)) = self.of(block.peer, block.transaction.0, block.generation) else {
            return false;
        };
        // A peer that is gone may have had the same number.
        let is_same = match (&underway.connection, connection) {
            (Some(known), Some(other)) => Arc::ptr_eq(known.neighbour(), other.neighbour()),
            (known, other) => known.is_none() && other.is_none(),
        };
        if !is_same || underway.stage == Stage::Acknowledged {
            return false;
        }
        underway.block = *block;
        underway.connection = connection.cloned();
        true
    }

    fn add(&mut self, underway: Underway) -> u64 {
        let slot = (underway.block.peer, underway.block.transaction.0);
        self.next += 1;
        self.blocks.insert(self.next, underway);
        if let Some(before) = self.slots.insert(slot, self.next)
            && self.blocks.get(&before).is_some_and(|block| block.stage == Stage::Acknowledged)
        {
            self.blocks.remove(&before);
        }
        self.next
    }

    fn remove(&mut self, number: u64) -> Option<Underway> {
        let underway = self.blocks.remove(&number)?;
        let slot = (underway.block.peer, underway.block.transaction.0);
        if self.slots.get(&slot) == Some(&number) {
            self.slots.remove(&slot);
        }
        Some(underway)
    }
}

/// Whether an end of a block that stays here is in a program's own memory.
pub(crate) fn touches_own(block: &Block) -> bool {
    let words = match block.notification {
        BlockNotification::Now(words) => is_own(block.domain, words.address),
        BlockNotification::None => false,
        // Somebody has to remember whose it is until the words come.
        BlockNotification::Later => true,
    };
    words || is_own(block.own_domain, block.source_address) || is_own(block.domain, block.destination_address)
}

impl Node {
    /// Bytes from a peer go to a program's own memory.
    pub(crate) fn place_own(
        &self,
        placement: &Placement,
        payload: SharedSpan<'_>,
        place: &OwnPlace,
    ) -> Result<(), Refusal> {
        let purpose = Purpose::Place(*placement);
        let (by, asker) = (placement.fault_source(), Poster::of(placement.user));
        let context = Context { by, block: placement.block, purpose, asker };
        self.begin_access(place, placement.address, Work::Write(payload), context)
    }

    /// Words that a peer asked for go there.
    pub(crate) fn notify_own(&self, write: NotificationWrite, place: &OwnPlace) -> Result<(), Refusal> {
        let (by, words) = (write.fault_source(), write.words);
        let (purpose, asker) = (Purpose::Notify(write), Poster::of(write.user));
        let context = Context { by, block: (words.address, NOTIFICATION_BYTES), purpose, asker };
        self.begin_access(place, words.address, Work::Words([words.first, words.last]), context)
    }

    /// A block to a peer comes from there.
    pub(crate) fn send_own(&self, connection: &Arc<Connection>, block: &Block, place: &OwnPlace) {
        let Some(number) = self.begin_copy(block, Some(connection)) else { return };
        if let Err(refusal) =
            self.access_own(number, block, block.source_address, Work::Read(block.length_bytes), place)
        {
            self.own_moves.lock().remove(number);
            self.source_refused(block, refusal);
        }
    }

    /// Begins an access for a block.
    fn access_own(
        &self,
        number: u64,
        block: &Block,
        address: u64,
        work: Work<'_>,
        place: &OwnPlace,
    ) -> Result<(), Refusal> {
        let length = if matches!(work, Work::Words(_)) { NOTIFICATION_BYTES } else { block.length_bytes };
        let purpose = Purpose::Block(number);
        let (by, asker) = (block.fault_source(), Poster::of(block.user));
        let context = Context { by, block: (address, length), purpose, asker };
        self.begin_access(place, address, work, context)
    }

    /// The block of a move.
    pub(crate) fn block_of_move(&self, number: u64) -> Option<Block> {
        self.own_moves.lock().blocks.get(&number).map(|underway| underway.block)
    }

    pub(crate) fn source_refused(&self, block: &Block, mut refusal: Refusal) {
        // Here, what passes is an absent page.
        if refusal.code.is_transient() {
            refusal.code = NackCode::SlaveError;
        }
        self.fabric.engine.lock().source_refused(self.now(), block, refusal);
    }

    /// The number for the copy of a block that begins now. `None`: one is being made already, and counts for
    /// this attempt of it. Looked at and begun at once: of two threads that have the block, one copies.
    fn begin_copy(&self, block: &Block, connection: Option<&Arc<Connection>>) -> Option<u64> {
        let mut moves = self.own_moves.lock();
        if moves.take_over(block, connection) {
            drop(moves);
            self.source_refused(block, NackCode::SlaveError.into());
            return None;
        }
        let connection = connection.cloned();
        Some(moves.add(Underway { block: *block, stage: Stage::Reading, connection }))
    }

    /// Whether a copy of that block is being made. It then counts for this attempt of it.
    pub(crate) fn is_underway(&self, block: &Block, connection: &Arc<Connection>) -> bool {
        let is_underway = self.own_moves.lock().take_over(block, Some(connection));
        if is_underway {
            self.source_refused(block, NackCode::SlaveError.into());
        }
        is_underway
    }

    /// Where an end of a block that stays here is.
    fn end_of(&self, block: &Block, end: End) -> Result<Place<'_>, RefusedHere> {
        let by = Poster::of(block.user);
        let (domain, address, length_bytes, access) = match end {
            End::Source => (block.own_domain, block.source_address, block.length_bytes, Access::reading(by)),
            End::Destination => {
                (block.domain, block.destination_address, block.length_bytes, Access::writing(by))
            }
            End::Words(address) => (block.domain, address, NOTIFICATION_BYTES, Access::writing(by)),
        };
        let range = Range { holder: ITSELF, domain, address, length_bytes };
        self.resolve(range, access).map_err(|denied| RefusedHere { domain, refusal: denied.at(address) })
    }

    /// A block between two programs here, with own memory at an end of it.
    pub(crate) fn loop_back_own(&self, block: &Block) {
        let Some(number) = self.begin_copy(block, None) else { return };
        let begun = self.begin_here(number, block);
        self.settle_here(number, begun);
    }

    /// Returns whether it is over already.
    fn begin_here(&self, number: u64, block: &Block) -> Result<bool, RefusedHere> {
        // Nothing is read that could not be written.
        self.end_of(block, End::Destination).map(drop)?;
        match self.end_of(block, End::Source)? {
            Place::Own(place) => {
                let work = Work::Read(block.length_bytes);
                let begun = self.access_own(number, block, block.source_address, work, &place);
                begun.map(|()| false).map_err(RefusedHere::of(block.own_domain))
            }
            Place::Node(memory, offset) => {
                let source = memory.get().span(offset, block.length_bytes as usize);
                let refusal = |_| RefusedHere {
                    domain: block.own_domain,
                    refusal: Refusal::at(NackCode::DecodeError, block.source_address),
                };
                self.write_here(number, block, Work::Write(source.map_err(refusal)?))
            }
        }
    }

    /// The bytes of a block are there to be written.
    fn write_here(&self, number: u64, block: &Block, work: Work<'_>) -> Result<bool, RefusedHere> {
        match self.end_of(block, End::Destination)? {
            Place::Own(place) => {
                self.set_stage(number, Stage::Writing);
                let begun = self.access_own(number, block, block.destination_address, work, &place);
                begun.map(|()| false).map_err(RefusedHere::of(block.domain))
            }
            Place::Node(memory, offset) => {
                let target = memory.get().span_mut(offset, block.length_bytes as usize);
                let refusal = |_| RefusedHere {
                    domain: block.domain,
                    refusal: Refusal::at(NackCode::DecodeError, block.destination_address),
                };
                let target = target.map_err(refusal)?;
                match &work {
                    Work::Write(bytes) => target.copy_from(*bytes),
                    Work::WriteStaged(staged) => target.copy_from(staged.bytes()),
                    Work::Read(_) | Work::Words(_) | Work::Change(_) => 0,
                };
                self.end_here(number, block)
            }
        }
    }

    /// The bytes of a block are written.
    fn end_here(&self, number: u64, block: &Block) -> Result<bool, RefusedHere> {
        match block.notification {
            BlockNotification::Now(words) => self.say_here(number, block, &words),
            BlockNotification::None | BlockNotification::Later => Ok(true),
        }
    }

    fn say_here(&self, number: u64, block: &Block, words: &Notification) -> Result<bool, RefusedHere> {
        match self.end_of(block, End::Words(words.address))? {
            Place::Own(place) => {
                self.set_stage(number, Stage::Words);
                let work = Work::Words([words.first, words.last]);
                let begun = self.access_own(number, block, words.address, work, &place);
                begun.map(|()| false).map_err(RefusedHere::of(block.domain))
            }
            Place::Node(memory, offset) => {
                write_words(&memory, offset, words).map(|()| true).map_err(RefusedHere::of(block.domain))
            }
        }
    }

    fn set_stage(&self, number: u64, stage: Stage) {
        if let Some(underway) = self.own_moves.lock().blocks.get_mut(&number) {
            underway.stage = stage;
        }
    }

    /// Answers a block that is over.
    fn settle_here(&self, number: u64, over: Result<bool, RefusedHere>) {
        if over == Ok(false) {
            return;
        }
        let mut moves = self.own_moves.lock();
        let Some(underway) = moves.blocks.get_mut(&number) else { return };
        let block = underway.block;
        let bytes_only = block.notification == BlockNotification::Later && over.is_ok();
        if bytes_only {
            underway.stage = Stage::Acknowledged;
        }
        drop(moves);
        let (transaction, generation, attempt) = (block.transaction, block.generation, block.attempt);
        match over {
            Ok(_) => {
                let ack = Packet::Ack(Ack { transaction, generation, attempt, bytes_only });
                let _ = self.fabric.engine.lock().handle(self.now(), ITSELF, &ack);
            }
            // One that is set aside hears no refusal; it comes again, and is refused then.
            Err(refused) => self.refuse_here(&block, refused),
        }
        if !bytes_only {
            // Only now: until it is answered it may be handed out again.
            self.own_moves.lock().remove(number);
        }
    }

    /// The words of a block that stays here, apart from it. False: nobody remembers that block.
    pub(crate) fn notify_here_own(
        &self,
        slot: u16,
        generation: Generation,
        attempt: Attempt,
        words: Notification,
    ) -> bool {
        let mut moves = self.own_moves.lock();
        let Some((number, underway)) = moves.of(ITSELF, slot, generation) else { return false };
        let is_alone = underway.stage == Stage::Acknowledged;
        underway.block.attempt = attempt;
        // Otherwise they are written when the bytes are.
        underway.block.notification = BlockNotification::Now(words);
        let block = underway.block;
        if is_alone {
            underway.stage = Stage::Words;
        }
        drop(moves);
        if is_alone {
            let said = self.say_here(number, &block, &words);
            self.settle_here(number, said);
        }
        true
    }

    /// An access for a block is over: the bytes, if it was a read.
    pub(crate) fn copied(&self, number: u64, result: Result<Option<Staged>, Refusal>) {
        let mut moves = self.own_moves.lock();
        let Some(underway) = moves.blocks.get_mut(&number) else { return };
        let (block, stage) = (underway.block, underway.stage);
        if let Some(connection) = underway.connection.clone() {
            moves.remove(number);
            drop(moves);
            match result {
                Ok(Some(staged)) => self.send_packets(&connection, &block, staged.bytes(), None),
                Ok(None) => self.source_refused(&block, NackCode::DecodeError.into()),
                Err(refusal) => self.source_refused(&block, refusal),
            }
            self.flush(&connection);
            return;
        }
        drop(moves);
        let over = match (result, stage) {
            (Err(refusal), Stage::Reading) => Err(RefusedHere { domain: block.own_domain, refusal }),
            (Err(refusal), _) => Err(RefusedHere { domain: block.domain, refusal }),
            (Ok(Some(staged)), Stage::Reading) => self.write_here(number, &block, Work::WriteStaged(staged)),
            (Ok(None), Stage::Reading) => {
                Err(RefusedHere { domain: block.own_domain, refusal: NackCode::DecodeError.into() })
            }
            (Ok(_), Stage::Writing) => self.end_here(number, &block),
            (Ok(_), Stage::Words | Stage::Acknowledged) => Ok(true),
        };
        self.settle_here(number, over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::rdma::{Action, Direction, PathId, Transfer};
    use tombolo_link::testing::memory_pair;
    use tombolo_wire::Domain;

    /// A block goes again by another path while a copy of it is being made: the copy goes by that one. Where it
    /// still goes by the link of the first, which is full, the other path is not taken for full.
    #[test]
    fn a_copy_goes_by_the_path_of_the_newest_attempt() {
        let node = Node::new("node", 0, 0).unwrap();
        let (near, _far) = memory_pair().unwrap();
        let whole = node.fabric.add_peer(near);
        let (near, _other_far) = memory_pair().unwrap();
        let part = node.fabric.add_further(whole.neighbour(), near).unwrap();
        node.fabric.open_path(&part).unwrap();
        while whole.link.send(&[0; 64], SharedSpan::empty()).is_ok() {}
        let transfer = Transfer {
            direction: Direction::Write,
            domain: Domain(1),
            own_domain: Domain(1),
            source_address: 0,
            destination_address: 0,
            size_bytes: 16 << 20,
            notification: None,
            class: None,
            user: 0,
        };
        let now = node.fabric.now();
        let next_by = |path: &Arc<Connection>| {
            let mut engine = node.fabric.engine.lock();
            std::iter::from_fn(|| engine.poll(now)).find_map(|action| match action {
                Action::SendBlock(block) if block.path == path.place().1 => Some(block),
                _ => None,
            })
        };
        for _ in 0..4 {
            node.fabric.engine.lock().post(now, whole.id, transfer).unwrap();
        }
        let block = next_by(&part).expect("a block by the second path");
        let mut first = block;
        first.path = PathId(0);
        let number = node.begin_copy(&first, Some(&whole)).expect("no copy is being made");
        assert_eq!(node.begin_copy(&block, Some(&part)), None);
        let by = node.own_moves.lock().blocks[&number].connection.clone();
        assert!(by.is_some_and(|by| Arc::ptr_eq(&by, &part)));

        let block = next_by(&part).expect("its window is not used up");
        let bytes = vec![0; block.length_bytes as usize];
        node.send_packets(&whole, &block, SharedSpan::from(&bytes), None);
        assert!(next_by(&part).is_some(), "the second path is taken for full");
        // The first one is.
        let block = next_by(&whole).expect("its window is not used up");
        node.send_packets(&whole, &block, SharedSpan::from(&bytes), None);
        assert_eq!(next_by(&whole), None);
    }
}
