//! The stages of blocks that are copied from programs' own memory, or between two programs of one node.
//!
//! ```text
//!  block out ──────► read ──► bytes ──► packets
//!  block at home ──► read ──► bytes ──► write ──► words ──► answer
//!                    (where an end is memory of the node, the caller does that step at once)
//! ```
//!
//! The timer of a block to a peer starts when its bytes are read, so that its path is not blamed for an absent
//! page. If the engine hands the block out again meanwhile, because its path is lost, it is not copied twice. The
//! copy counts for the newest attempt. The block then waits as for an absent page, which takes it out of the
//! congestion window that it shares with other blocks.
//!
//! A block that stays at this node is handed out again only after it was refused, and it is answered when its copy
//! is over. So the engine reports the failure of a transfer only when no copy for it is being made.

use crate::lookup::Lookup;

use super::{Purpose, Step, source_refused};
use crate::iommu::End;
use crate::rdma::{Block, BlockNotification, Engine, PeerId, Time};
use tombolo_wire::{Attempt, Domain, Generation, Notification, Refusal};

/// Identifies one copying of a block. Never reused, so a late copy is never taken for that of another block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MoveId(u64);

/// What to do next for a block that stays at this node.
#[derive(Debug)]
pub enum Part<B> {
    /// Read its bytes and, if that takes no access, write them. Check first that they could be written.
    Copy,
    /// Write its bytes. They are in what was left with the access that has read them.
    Write(B),
    /// Write the words of its notification.
    Words(Notification),
}

/// The part of a block that has been carried out. The block stays at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Went {
    /// Its bytes are written.
    Written,
    /// The words of its notification are written.
    Said,
}

/// Why a transfer between programs of one node cannot go on, and in whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The domain of that memory.
    pub domain: Domain,
    /// Why, and where.
    pub refusal: Refusal,
}

impl Refused {
    /// Returns a function that turns a refusal in the memory of this domain into a [`Refused`].
    pub fn of(domain: Domain) -> impl Fn(Refusal) -> Self {
        move |refusal| Self { domain, refusal }
    }

    /// Whether the refusal is final and concerns the memory of the program whose transfer it is (`asker`).
    #[must_use]
    pub fn is_of(&self, asker: Option<Domain>) -> bool {
        !self.refusal.code.is_transient() && asker == Some(self.domain)
    }
}

/// The words of a notification that come apart from their block, which stays at this node.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// The node itself, as the engine knows it.
    pub peer: PeerId,
    /// The block's transaction slot.
    pub slot: u16,
    /// Distinguishes successive blocks in that slot.
    pub generation: Generation,
    /// The attempt at the block that the words belong to.
    pub attempt: Attempt,
    /// The words and their address.
    pub words: Notification,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The block goes to a peer: its bytes are being read, and are sent then.
    Sent,
    /// The block stays at this node: its bytes are being read.
    Reading,
    Writing,
    Words,
    /// Its bytes are written and acknowledged. Its words are still to come.
    Acknowledged,
}

#[derive(Debug)]
struct Underway {
    /// The block as the engine handed it out last.
    block: Block,
    stage: Stage,
    /// If the block stays at this node: the domain of the program whose transfer it is, if any.
    asker: Option<Domain>,
}

/// All blocks that are being copied.
#[derive(Debug, Default)]
pub(super) struct Moves {
    blocks: Lookup<MoveId, Underway>,
    /// The newest copy for each transaction slot towards a peer.
    slots: Lookup<(PeerId, u16), MoveId>,
    last: u64,
}

impl Moves {
    pub(super) fn block(&self, id: MoveId) -> Option<Block> {
        self.blocks.get(&id).map(|underway| underway.block)
    }

    /// Whether this block is being copied already. If so, the copy counts for this attempt of the block from now
    /// on, and goes by the path that the engine has chosen for it.
    pub(super) fn take_over(&mut self, block: &Block) -> bool {
        let Some(id) = self.slots.get(&(block.peer, block.transaction.0)) else { return false };
        let Some(underway) = self.blocks.get_mut(id) else { return false };
        // An earlier life of the peer may have had a block with the same number.
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

    /// Records that an access for a block has begun.
    pub(super) fn begun(&mut self, purpose: &Purpose) {
        let Purpose::Move { id, end, .. } = purpose else { return };
        let Some(underway) = self.blocks.get_mut(id) else { return };
        match end {
            End::Source => {}
            End::Destination => underway.stage = Stage::Writing,
            End::Notification | End::Atomic => underway.stage = Stage::Words,
        }
    }

    /// Goes on with a block after an access for it. `result`: what was left with the access, or why it was refused.
    /// Returns the next step, if any.
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

    /// Goes on with a block that stays at this node, after a part of it was carried out or refused. Returns what to
    /// do next, if the block is not over.
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
            // The engine ignores this for a block that it has set aside: it hands the block out again, and the
            // block is refused then.
            (Err(refused), _) if refused.is_of(asker) => {
                source_refused(now, engine, &block, refused.refusal);
            }
            (Err(refused), _) => engine.refused_here(now, &block, refused.refusal),
        }
        // Removed only now: until the block is answered, the engine may hand it out again.
        self.remove(id);
        None
    }

    /// Takes words that come apart from their block. `None`: the block is not known. `Some(None)`: the words are
    /// written after the block's bytes. Otherwise the caller writes them now.
    pub(super) fn words(&mut self, words: &Words) -> Option<Option<(MoveId, Block)>> {
        let id = *self.slots.get(&(words.peer, words.slot))?;
        let underway = self.blocks.get_mut(&id)?;
        if underway.block.generation != words.generation || underway.stage == Stage::Sent {
            return None;
        }
        underway.block.attempt = words.attempt;
        // If the bytes are not written yet, the words are written right after them.
        underway.block.notification = BlockNotification::Now(words.words);
        if underway.stage != Stage::Acknowledged {
            return Some(None);
        }
        underway.stage = Stage::Words;
        Some(Some((id, underway.block)))
    }

    /// Whether no block is being copied.
    pub(super) fn is_idle(&self) -> bool {
        !self.blocks.any(|_, underway| underway.stage != Stage::Acknowledged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::{Action, Config, Direction, PathId, Transfer};

    /// A block is handed out again for another path while it is being copied: it is copied once, and goes by the
    /// new path.
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

    /// The bytes of a block from before a peer's restart are not sent, and the copy is not taken for one of a block
    /// to the peer's new life.
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
