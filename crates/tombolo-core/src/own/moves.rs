//! Blocks from programs' own memory, and between programs of one node.
//!
//! ```text
//!  block out ──────► read ──► bytes ──► packets
//!  block at home ──► read ──► bytes ──► write ──► words ──► answer
//!                    (where an end is memory of the node, the caller does that step at once)
//! ```
//!
//! The timer of a block to a peer starts when its bytes are read: no path is to blame for a page that is absent. If it comes again
//! meanwhile, as its path is lost, it is not copied twice: the copy counts for the newest attempt, and the block waits
//! as for an absent page, which takes it out of the congestion window of the others. One that stays
//! here comes again only when it was refused, and it is answered when its copy is over: so the engine tells the
//! failure of its transfer when no copy for it is being made.

use crate::lookup::Lookup;

use super::{Purpose, Step, source_refused};
use crate::iommu::End;
use crate::rdma::{Block, BlockNotification, Engine, PeerId, Time};
use tombolo_wire::{Attempt, Domain, Generation, Notification, Refusal};

/// A block of which a copy is being made. Numbers are never given twice, so a late copy is never taken for another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MoveId(u64);

/// The next part of a block that stays here.
#[derive(Debug)]
pub enum Part<B> {
    /// Read its bytes; if that is done at once, write them, too. Nothing is read that could not be written.
    Copy,
    /// Write its bytes, which are with what was left with the access that has read them.
    Write(B),
    /// Write the words of its notification.
    Words(Notification),
}

/// A part of a block that stays here, carried out at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Went {
    /// Its bytes are written.
    Written,
    /// Its words are.
    Said,
}

/// Why something between programs of one node cannot be done, and in whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Whose memory.
    pub domain: Domain,
    /// Why, and where.
    pub refusal: Refusal,
}

impl Refused {
    /// Makes one of refusals in the memory of a domain.
    pub fn of(domain: Domain) -> impl Fn(Refusal) -> Self {
        move |refusal| Self { domain, refusal }
    }

    /// Whether that is the memory of the program whose transfer it is (`asker`), and not only for now.
    #[must_use]
    pub fn is_of(&self, asker: Option<Domain>) -> bool {
        !self.refusal.code.is_transient() && asker == Some(self.domain)
    }
}

/// The words of a block that stays here, which come apart from it.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// The node itself, as the engine knows it.
    pub peer: PeerId,
    /// The slot of the block.
    pub slot: u16,
    /// Which block in that slot.
    pub generation: Generation,
    /// Which attempt they are of.
    pub attempt: Attempt,
    /// Where, and what.
    pub words: Notification,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its bytes are read, and sent then.
    Sent,
    /// It stays here.
    Reading,
    Writing,
    Words,
    /// Its words are still to come.
    Acknowledged,
}

#[derive(Debug)]
struct Underway {
    /// As the engine said it last.
    block: Block,
    stage: Stage,
    /// Of one that stays here: whose transfer it is, if a program's.
    asker: Option<Domain>,
}

/// All blocks of which copies are being made.
#[derive(Debug, Default)]
pub(super) struct Moves {
    blocks: Lookup<MoveId, Underway>,
    /// The newest copy for a slot of the engine towards a peer.
    slots: Lookup<(PeerId, u16), MoveId>,
    last: u64,
}

impl Moves {
    pub(super) fn block(&self, id: MoveId) -> Option<Block> {
        self.blocks.get(&id).map(|underway| underway.block)
    }

    /// Whether a copy of that block is being made. It then counts for this attempt of it, and goes by the path that the engine
    /// has chosen now.
    pub(super) fn take_over(&mut self, block: &Block) -> bool {
        let Some(id) = self.slots.get(&(block.peer, block.transaction.0)) else { return false };
        let Some(underway) = self.blocks.get_mut(id) else { return false };
        // A peer that is gone may have had the same number.
        let is_same =
            (underway.block.generation, underway.block.session) == (block.generation, block.session);
        if !is_same || underway.stage == Stage::Acknowledged {
            return false;
        }
        underway.block = *block;
        true
    }

    pub(super) fn add(&mut self, block: Block, stage: Stage, asker: Option<Domain>) -> MoveId {
        self.last += 1;
        let id = MoveId(self.last);
        self.blocks.insert(id, Underway { block, stage, asker });
        if let Some(before) = self.slots.insert((block.peer, block.transaction.0), id)
            && self.blocks.get(&before).is_some_and(|underway| underway.stage == Stage::Acknowledged)
        {
            self.blocks.remove(&before);
        }
        id
    }

    pub(super) fn remove(&mut self, id: MoveId) -> Option<Block> {
        let block = self.blocks.remove(&id)?.block;
        let slot = (block.peer, block.transaction.0);
        if self.slots.get(&slot) == Some(&id) {
            self.slots.remove(&slot);
        }
        Some(block)
    }

    /// An access for a block has begun.
    pub(super) fn begun(&mut self, purpose: &Purpose) {
        let Purpose::Move { id, end, .. } = purpose else { return };
        let Some(underway) = self.blocks.get_mut(id) else { return };
        match end {
            End::Source => {}
            End::Destination => underway.stage = Stage::Writing,
            End::Notification | End::Atomic => underway.stage = Stage::Words,
        }
    }

    /// An access for a block is over: what was left with it, or why it was refused.
    pub(super) fn copied<B>(
        &mut self,
        now: Time,
        engine: &mut Engine,
        id: MoveId,
        result: Result<B, Refusal>,
    ) -> Option<Step<B>> {
        let underway = self.blocks.get(&id)?;
        let block = underway.block;
        let went = match (underway.stage, result) {
            (Stage::Sent, result) => {
                self.remove(id);
                return match result {
                    Ok(left) => engine.source_read(now, &block).then_some(Step::Send(block, left)),
                    Err(refusal) => {
                        source_refused(now, engine, &block, refusal);
                        None
                    }
                };
            }
            (Stage::Reading, Ok(left)) => return Some(Step::Go(id, block, Part::Write(left))),
            (Stage::Reading, Err(refusal)) => Err(Refused { domain: block.own_domain, refusal }),
            (_, Err(refusal)) => Err(Refused { domain: block.domain, refusal }),
            (Stage::Writing, Ok(_)) => Ok(Went::Written),
            (Stage::Words, Ok(_)) => Ok(Went::Said),
            (Stage::Acknowledged, Ok(_)) => return None,
        };
        self.went(now, engine, id, went).map(|(block, part)| Step::Go(id, block, part))
    }

    /// A part of a block that stays here is over. What to do next, if the block is not.
    pub(super) fn went<B>(
        &mut self,
        now: Time,
        engine: &mut Engine,
        id: MoveId,
        went: Result<Went, Refused>,
    ) -> Option<(Block, Part<B>)> {
        let underway = self.blocks.get_mut(&id)?;
        let (block, asker) = (underway.block, underway.asker);
        match (went, block.notification) {
            (Ok(Went::Written), BlockNotification::Now(words)) => {
                underway.stage = Stage::Words;
                return Some((block, Part::Words(words)));
            }
            (Ok(Went::Written), BlockNotification::Later) => {
                underway.stage = Stage::Acknowledged;
                engine.placed_here(now, &block, true);
                return None;
            }
            (Ok(_), _) => engine.placed_here(now, &block, false),
            // One that is set aside hears no refusal; it comes again, and is refused then.
            (Err(refused), _) if refused.is_of(asker) => {
                source_refused(now, engine, &block, refused.refusal);
            }
            (Err(refused), _) => engine.refused_here(now, &block, refused.refusal),
        }
        // Only now: until it is answered it may be handed out again.
        self.remove(id);
        None
    }

    /// The words of a block come apart from it. `None`: nobody remembers that block.
    pub(super) fn words(&mut self, words: &Words) -> Option<Option<(MoveId, Block)>> {
        let id = *self.slots.get(&(words.peer, words.slot))?;
        let underway = self.blocks.get_mut(&id)?;
        if underway.block.generation != words.generation || underway.stage == Stage::Sent {
            return None;
        }
        underway.block.attempt = words.attempt;
        // If the bytes are not written yet, these are written when they are.
        underway.block.notification = BlockNotification::Now(words.words);
        if underway.stage != Stage::Acknowledged {
            return Some(None);
        }
        underway.stage = Stage::Words;
        Some(Some((id, underway.block)))
    }

    /// Whether no copy is being made.
    pub(super) fn is_idle(&self) -> bool {
        !self.blocks.any(|_, underway| underway.stage != Stage::Acknowledged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::{Action, Config, Direction, PathId, Transfer};

    /// A block goes again by another path while a copy of it is being made: the copy goes by that one, and there is one.
    #[test]
    fn a_copy_goes_by_the_path_of_the_newest_attempt() {
        let (now, peer) = (Time(1), PeerId(3));
        let mut engine = Engine::new(Config::default());
        engine.add_peer(now, peer);
        let transfer = Transfer {
            direction: Direction::Write,
            domain: Domain(1),
            own_domain: Domain(1),
            source_address: 0,
            destination_address: 0,
            size_bytes: 4096,
            notification: None,
            class: None,
            user: 0,
        };
        engine.post(now, peer, transfer).expect("there is room");
        let Some(Action::SendBlock(first)) = engine.poll(now) else { panic!("a block") };
        let mut moves = Moves::default();
        let id = moves.add(first, Stage::Sent, None);
        let again = Block { path: PathId(1), attempt: Attempt(1), ..first };
        assert!(moves.take_over(&again));
        let Some(Step::Send(block, ())) = moves.copied(now, &mut engine, id, Ok(())) else {
            panic!("its bytes are read")
        };
        assert_eq!(block, again);
        assert!(moves.is_idle());
    }

    /// Nothing is sent of a block that is over, and a block of another life of the peer is another one.
    #[test]
    fn a_copy_for_a_peer_that_restarted_is_not_sent() {
        let (now, peer) = (Time(1), PeerId(3));
        let mut engine = Engine::new(Config::default());
        engine.add_peer(now, peer);
        let transfer = Transfer {
            direction: Direction::Write,
            domain: Domain(1),
            own_domain: Domain(1),
            source_address: 0,
            destination_address: 0,
            size_bytes: 4096,
            notification: None,
            class: None,
            user: 0,
        };
        engine.post(now, peer, transfer).expect("there is room");
        let Some(Action::SendBlock(before)) = engine.poll(now) else { panic!("a block") };
        let mut moves = Moves::default();
        let id = moves.add(before, Stage::Sent, None);
        engine.add_peer(now, peer);
        while engine.poll(now).is_some() {}
        engine.post(now, peer, transfer).expect("there is room");
        let Some(Action::SendBlock(after)) = engine.poll(now) else { panic!("a block") };
        assert!(!moves.take_over(&Block { generation: before.generation, ..after }));
        assert!(moves.copied(now, &mut engine, id, Ok(())).is_none(), "the bytes of the life before");
        assert!(moves.is_idle());
    }
}
