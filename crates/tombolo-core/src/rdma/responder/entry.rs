//! What the receiver remembers of one slot of a sender.

use crate::rdma::initiator::ReadGrant;
use crate::rdma::transfer::PathId;
use tombolo_wire::{
    Asker, Attempt, Domain, EarlierBlocks, GRANULE_BYTES, Generation, Notification, Refusal, RequestId,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing has come in this slot yet.
    Empty,
    Receiving,
    /// The caller writes the notification.
    Writing,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Ack { bytes_only: bool },
    Nack(Refusal),
    Resume(Domain),
    Receipt,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub phase: Phase,
    pub generation: Generation,
    pub attempt: Attempt,
    /// The path by which the newest packet came: answers go by it, too.
    pub path: PathId,
    pub domain: Domain,
    pub address: u64,
    pub length_bytes: u32,
    pub request: Option<RequestId>,
    pub asker: Asker,
    /// The read of this node that the block answers.
    pub own: Option<ReadGrant>,
    pub expects_notification: bool,
    pub notification: Option<Notification>,
    /// The notification is written when these blocks are there, too.
    pub after: Option<Box<EarlierBlocks>>,
    pub claimed: u64,
    pub placed: u64,
    pub placing: u16,
    /// The word as it was before an atomic operation, which is the operation's answer.
    pub before: Option<u64>,
    pub reply: Option<(Reply, Generation, Attempt)>,
    /// The transmission that was answered with a refusal for absent pages, and its granules that were refused
    /// so. One such answer per transmission is enough, unless a granule is refused again.
    pub paused: Option<(Attempt, u64)>,
    /// The refusal, if the memory refused the block for good. The block is not placed again, even if its sender
    /// has not received the refusal, because a copy that was given up may still be made.
    pub refused: Option<Refusal>,
    /// The transmission that was answered with a receipt. No more of its bytes are placed.
    pub receipted: Option<Attempt>,
}

impl Entry {
    pub fn empty() -> Self {
        Self {
            phase: Phase::Empty,
            generation: Generation(0),
            attempt: Attempt(0),
            path: PathId(0),
            domain: Domain(0),
            address: 0,
            length_bytes: 0,
            request: None,
            asker: Asker::SENDER,
            own: None,
            expects_notification: false,
            notification: None,
            after: None,
            claimed: 0,
            placed: 0,
            placing: 0,
            before: None,
            reply: None,
            paused: None,
            refused: None,
            receipted: None,
        }
    }

    pub fn whole(&self) -> u64 {
        granules(0, self.length_bytes)
    }

    pub fn is_whole(&self) -> bool {
        self.placing == 0 && self.placed == self.whole()
    }

    /// Whether all bytes of the block are here, and some are still being placed.
    pub fn is_placing(&self) -> bool {
        self.placing > 0 && self.claimed == self.whole()
    }

    /// Whether the next block in the slot has to wait for this one. Late bytes of a block that its sender has
    /// given up must not overwrite those of the next block. A block that answers a read of this node does not
    /// hold its slot while it is being placed: its program may be stopped for any time and is told of none of
    /// its bytes before the read ends, and other blocks use the slot meanwhile.
    pub fn holds_slot(&self) -> bool {
        match self.own {
            Some(_) if self.placing > 0 => false,
            _ => self.placing > 0 || self.phase == Phase::Writing,
        }
    }

    /// Records that the block's notification is here. If it comes without a list of earlier blocks, the wait
    /// for those blocks ends.
    pub fn announce(&mut self, words: Option<Notification>, after: Option<&EarlierBlocks>) {
        match after {
            None => self.after = None,
            // The newest list is the shortest, and any of the lists is sufficient.
            Some(after) if self.after.is_some() || self.notification.is_none() => {
                self.after = Some(Box::new(*after));
            }
            Some(_) => {}
        }
        self.notification = self.notification.or(words);
    }

    /// The words that complete the block, if it has any to write.
    pub fn words(&self) -> Option<Notification> {
        let words = match self.own {
            // The words that the reader chose, and not what the target of the read sends.
            Some(grant) => grant.notification,
            None => self.notification,
        };
        words.filter(|_| self.expects_notification)
    }
}

/// The bits of the granules that a range of a block touches.
pub(super) fn granules(offset_bytes: u32, length_bytes: u32) -> u64 {
    let first = offset_bytes / GRANULE_BYTES;
    let count = length_bytes.div_ceil(GRANULE_BYTES);
    let ones = match count {
        64.. => u64::MAX,
        count => (1 << count) - 1,
    };
    ones.checked_shl(first).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::granules;

    #[test]
    fn granules_of_a_range() {
        assert_eq!(granules(0, 0), 0);
        assert_eq!(granules(0, 1), 1);
        assert_eq!(granules(256, 512), 0b110);
        assert_eq!(granules(0, 16384), u64::MAX);
        assert_eq!(granules(16128, 256), 1 << 63);
        assert_eq!(granules(512, 300), 0b1100);
    }
}
