//! Transfers between two programs of this node: the engine is its own peer. Each block is one copy, answered at once,
//! and there are no packets.

use std::sync::atomic::Ordering;

use tombolo_channel::{Failure, on_the_wire};
use tombolo_core::iommu::FaultSource;
use tombolo_core::own::{Purpose, Refused};
use tombolo_core::rdma::{Block, BlockNotification, Direction, Time, Transfer};
use tombolo_host::shared::SharedSpan;
use tombolo_wire::{Atomic, Domain, Nack, NackCode, Notification, NotifyHeader, Packet, Refusal};

use crate::driver::address_space::{Access, Memory, Range};
use crate::driver::node::Node;
use crate::driver::own_moves::touches_own;
use crate::fabric::table::ITSELF;
use crate::programs::user::{Poster, SMALL_LOOPBACK};

/// Bytes of a large transfer that are copied before tiny transfers get their turn: memcpy takes a tenth of a
/// microsecond for them. A bound, not a measurement.
const PART_BYTES: usize = 1024;

/// Whether `next` begins where `block` ends, as consecutive blocks of one transfer do.
fn follows(block: &Block, next: &Block) -> bool {
    let length = u64::from(block.length_bytes);
    (block.user, block.own_domain, block.domain) == (next.user, next.own_domain, next.domain)
        && block.source_address.checked_add(length) == Some(next.source_address)
        && block.destination_address.checked_add(length) == Some(next.destination_address)
        && block.notification == BlockNotification::None
        && !touches_own(block)
        && !touches_own(next)
}

/// The domain of the program of this node that posted the transfer with this user number. `None`: no program posted it.
pub(crate) fn asker_of(user: u64) -> Option<Domain> {
    match Poster::of(user) {
        Poster::Program(number, _) => Some(on_the_wire(number)),
        Poster::Node | Poster::Peer(_) => None,
    }
}

/// The failure that a program is told when its transfer was refused.
pub(crate) fn failure(refused: &Refused, user: u64) -> Failure {
    if refused.is_of(asker_of(user)) {
        Failure::local(refused.refusal)
    } else {
        Failure::refused(refused.refusal)
    }
}

/// Size of what a notification writes: two words.
pub(crate) const NOTIFICATION_BYTES: u32 = 16;

/// Writes the two words of a notification, the first before the last.
pub(crate) fn write_words(memory: &Memory<'_>, offset: usize, words: &Notification) -> Result<(), Refusal> {
    // Check both words first: both are written, or none.
    let refusal = |_| Refusal::at(NackCode::DecodeError, words.address);
    memory.get().span_mut(offset, 16).map_err(refusal)?;
    for (at, word) in [(offset, words.first), (offset + 8, words.last)] {
        if let Ok(place) = memory.get().atomic_u64(at) {
            place.store(word, Ordering::Release);
            continue;
        }
        let target = memory.get().span_mut(at, 8).map_err(refusal)?;
        target.copy_from(SharedSpan::from(word.to_le_bytes().as_slice()));
    }
    Ok(())
}

impl Node {
    /// Carries out blocks between two programs of this node. Adjacent blocks are one copy, answered at once.
    pub(crate) fn loop_back(&self, now: Time, blocks: &[Block]) {
        for run in blocks.chunk_by(follows) {
            match run {
                [alone] if touches_own(alone) => self.loop_back_own(alone),
                _ => self.loop_back_run(now, run),
            }
        }
    }

    fn loop_back_run(&self, now: Time, run: &[Block]) {
        let Some((first, last)) = run.first().zip(run.last()) else { return };
        let notification = match last.notification {
            BlockNotification::Now(words) => Some(words),
            BlockNotification::None | BlockNotification::Later => None,
        };
        let part = Transfer {
            direction: Direction::Write,
            domain: first.domain,
            own_domain: first.own_domain,
            source_address: first.source_address,
            destination_address: first.destination_address,
            size_bytes: run.iter().map(|block| block.length_bytes).sum(),
            notification,
            class: None,
            user: first.user,
        };
        let outcome = self.copy_here(&part, self.expects_tiny());
        for block in run {
            self.serve_expected_tiny_doorbells();
            let mut engine = self.fabric.engine.lock();
            match outcome {
                Ok(()) => engine.placed_here(now, block, block.notification == BlockNotification::Later),
                Err(refused) if refused.is_of(asker_of(block.user)) => {
                    engine.source_refused(now, block, refused.refusal);
                }
                Err(refused) => engine.refused_here(now, block, refused.refusal),
            }
        }
    }

    /// Carries out a transfer between two programs of this node. Returns the previous value of the word for an atomic
    /// operation, otherwise 0. `None`: the word is in a program's own memory, and the transfer ends later.
    pub(crate) fn carry_out(&self, transfer: &Transfer) -> Result<Option<u64>, Refused> {
        if let Direction::Atomic(operation) = transfer.direction {
            let at = (transfer.domain, transfer.destination_address);
            let purpose = Purpose::Change {
                user: transfer.user & !SMALL_LOOPBACK,
                domain: transfer.domain,
                // An atomic operation is no block and has no slot.
                by: FaultSource { node: ITSELF.0, transaction: u16::MAX, sequence: transfer.user as u32 },
            };
            let changed = self.change_word(ITSELF, at, operation, purpose, Poster::of(transfer.user));
            return changed.map_err(Refused::of(transfer.domain));
        }
        self.copy_here(transfer, false).map(|()| Some(0))
    }

    /// Copies bytes between two programs of this node, if both ends allow it, and then writes the notification. With
    /// `in_parts`, tiny transfers get their turn between two parts.
    fn copy_here(&self, part: &Transfer, in_parts: bool) -> Result<(), Refused> {
        let by = Poster::of(part.user);
        let (read, write) = (Access::reading(by), Access::writing(by));
        let range = |domain, address, length_bytes| Range { holder: ITSELF, domain, address, length_bytes };
        let length = part.size_bytes;
        let (at_source, at_target) = (Refused::of(part.own_domain), Refused::of(part.domain));
        let refusal = |address| Refusal::at(NackCode::DecodeError, address);
        let (from, source) = self
            .resolve_here(range(part.own_domain, part.source_address, length), read)
            .map_err(&at_source)?;
        let source = from.get().span(source, length as usize);
        let source = source.map_err(|_| at_source(refusal(part.source_address)))?;
        if let Some(sender) = tombolo_channel::mail_sender(part.destination_address) {
            return self.deliver(part.domain, ITSELF, sender, source).map_err(at_target);
        }
        let (to, target) = self
            .resolve_here(range(part.domain, part.destination_address, length), write)
            .map_err(&at_target)?;
        let target = to.get().span_mut(target, length as usize);
        let target = target.map_err(|_| at_target(refusal(part.destination_address)))?;
        let length = target.len();
        let awake = in_parts.then(|| self.programs.awake.domains());
        let step = if in_parts { PART_BYTES } else { length.max(1) };
        for start in (0..length).step_by(step) {
            if let Some(awake) = &awake
                && start > 0
            {
                self.serve_tiny_doorbells(awake);
            }
            let size = step.min(length - start);
            if let (Some(to), Some(from)) = (target.part(start, size), source.part(start, size)) {
                to.copy_from(from);
            }
        }
        let Some(words) = part.notification else { return Ok(()) };
        let (memory, offset) = self
            .resolve_here(range(part.domain, words.address, NOTIFICATION_BYTES), write)
            .map_err(&at_target)?;
        write_words(&memory, offset, &words).map_err(at_target)
    }

    /// Writes the notification of a loopback block that came apart from the block. The block must be remembered,
    /// because the packet does not name its poster.
    pub(crate) fn notify_here(&self, packet: &Packet<'_>) {
        let (transaction, generation, attempt, is_written) = match packet {
            Packet::Notify(NotifyHeader { transaction, generation, attempt, notification, .. }) => {
                let is_written = self.notify_here_own(transaction.0, *generation, *attempt, *notification);
                (*transaction, *generation, *attempt, is_written)
            }
            // Atomic operations complete in the doorbell's loop. One that arrives here is refused, since every
            // packet must be answered.
            Packet::Atomic(Atomic { transaction, generation, attempt, .. }) => {
                (*transaction, *generation, *attempt, false)
            }
            _ => return,
        };
        if !is_written {
            let nack = Nack { transaction, generation, attempt, refusal: NackCode::NoContext.into() };
            let _ = self.fabric.engine.lock().handle(self.now(), ITSELF, &Packet::Nack(nack));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::address_space::{BUFFERS, Place};

    #[test]
    fn two_words_are_written_both_or_not_at_all() {
        let node = Node::new("node", 0, 4096).unwrap();
        let write = |address| {
            let words = Notification { address, first: 1, last: 2 };
            let range = Range { holder: ITSELF, domain: BUFFERS, address, length_bytes: NOTIFICATION_BYTES };
            match node.resolve(range, Access::writing(Poster::Node)) {
                Ok(Place::Node(memory, offset)) => write_words(&memory, offset, &words),
                Ok(Place::Own(_)) => panic!("no program's memory"),
                Err(denied) => Err(denied.at(address)),
            }
        };
        let word = |at| node.buffers().atomic_u64(at).unwrap().load(Ordering::Relaxed);
        for address in [4088, 4096, u64::MAX, u64::MAX - 7, u64::MAX - 15] {
            assert_eq!(write(address), Err(Refusal::at(NackCode::DecodeError, address)));
        }
        assert_eq!(word(4088), 0);
        assert_eq!(write(4080), Ok(()));
        assert_eq!((word(4080), word(4088)), (1, 2));
    }
}
