//! What has to be true: of each byte, each notification and each end.

use super::{BASE, Bench, NODES, WORDS_BASE};
use tombolo_core::rdma::{Completion, Direction, Transfer, TransferError};
use tombolo_wire::{AtomicOperation, Domain, Notification};

/// A transfer that the oracle watches.
pub struct Watched {
    /// The node that has posted it.
    pub poster: usize,
    /// It is between two programs of the poster's node.
    pub stays: bool,
    /// Whose transfer it is.
    pub asker: Domain,
    /// What was posted.
    pub spec: Transfer,
    /// The bytes that its destination must have.
    pub source: Vec<u8>,
    /// How often its notification was written.
    pub notified: u32,
    /// How it ended.
    pub status: Option<Result<(), TransferError>>,
}

impl Watched {
    /// The node whose memory is written.
    pub fn destination(&self) -> usize {
        match self.spec.direction {
            _ if self.stays => self.poster,
            Direction::Write | Direction::Atomic(_) => 1 - self.poster,
            Direction::Read => self.poster,
        }
    }
}

impl Bench {
    /// Changes a word; what it was before.
    pub(super) fn change(&mut self, node: usize, address: u64, operation: AtomicOperation) -> u64 {
        let word = &mut self.words[node][((address - WORDS_BASE) / 8) as usize];
        let before = *word;
        *word = operation.apply(before);
        self.operated.push((node, address, operation, before));
        before
    }

    /// An atomic operation that has succeeded was carried out, and once: operations are unique.
    pub(super) fn check_operated(&mut self, which: usize, before: u64) {
        let watched = &self.watched[which];
        let Direction::Atomic(operation) = watched.spec.direction else { return };
        let told = (watched.destination(), watched.spec.destination_address, operation, before);
        let place = self.operated.iter().position(|known| *known == told);
        self.operated
            .swap_remove(place.unwrap_or_else(|| panic!("operation {which} was not carried out so")));
        assert!(!self.operated.contains(&told), "operation {which} was carried out twice");
    }

    /// The transfer whose notification these words are.
    pub(super) fn notified_by(&self, node: usize, words: &Notification) -> usize {
        self.by_notification[&(node, words.address)]
    }

    pub(super) fn write_words_of(&mut self, node: usize, which: usize, words: &Notification) {
        let watched = &mut self.watched[which];
        watched.notified += 1;
        assert_eq!(watched.notified, 1, "transfer {which} notified twice");
        let watched = &self.watched[which];
        let at = (watched.spec.destination_address - BASE) as usize;
        let there = &self.memory[node][at..at + watched.source.len()];
        let is_right = there == watched.source
            || self.is_free(node, watched.spec.destination_address)
            || self.is_written_again(which, there);
        assert!(is_right, "transfer {which} notified before its bytes");
        let at = (words.address - BASE) as usize;
        for memory in [&mut self.memory[node], &mut self.expected[node]] {
            memory[at..at + 8].copy_from_slice(&words.first.to_le_bytes());
            memory[at + 8..at + 16].copy_from_slice(&words.last.to_le_bytes());
        }
    }

    /// Whether a failed write, whose notification comes late, has its bytes but for those that were written again since.
    pub(super) fn is_written_again(&self, which: usize, there: &[u8]) -> bool {
        let watched = &self.watched[which];
        let is_newer = |address: u64| {
            self.watched[which + 1..].iter().any(|newer| {
                let start = newer.spec.destination_address;
                newer.destination() == watched.destination()
                    && (start..start + u64::from(newer.spec.size_bytes)).contains(&address)
            })
        };
        let mut bytes = there.iter().zip(&watched.source).zip(watched.spec.destination_address..);
        matches!(watched.status, Some(Err(_)))
            && bytes.all(|((found, expected), address)| found == expected || is_newer(address))
    }

    pub(super) fn complete(&mut self, node: usize, completion: Completion) {
        self.ended(node, completion.user as usize, completion.status, completion.before);
    }

    pub(super) fn ended(
        &mut self,
        node: usize,
        which: usize,
        status: Result<(), TransferError>,
        before: u64,
    ) {
        let (user, is_good) = (which as u64, u64::from(status.is_ok()));
        self.kernel.note(NODES[node], &[user, is_good, before]);
        let watched = &mut self.watched[which];
        assert_eq!(watched.poster, node);
        assert_eq!(watched.status, None, "transfer {which} completed twice");
        watched.status = Some(status);
        self.open -= 1;
        if status.is_err() {
            self.forget(which);
            return;
        }
        if matches!(watched.spec.direction, Direction::Atomic(_)) {
            return self.check_operated(which, before);
        }
        let owed = u32::from(watched.spec.notification.is_some());
        assert_eq!(watched.notified, owed, "transfer {which} complete, notification not");
        let to = watched.destination();
        let watched = &self.watched[which];
        if self.is_free(to, watched.spec.destination_address) {
            return;
        }
        let at = (watched.spec.destination_address - BASE) as usize;
        let range = at..at + watched.source.len();
        assert!(self.memory[to][range.clone()] == watched.source, "transfer {which}: wrong bytes");
        self.expected[to][range.clone()].copy_from_slice(&watched.source);
        self.is_as_written(to, &range);
        if self.scribble {
            let value = self.random.next() as u8;
            self.memory[to][range.clone()].fill(value);
            self.expected[to][range].fill(value);
        }
    }

    /// What a write that failed before may have left there is written over.
    pub(super) fn is_as_written(&mut self, node: usize, range: &std::ops::Range<usize>) {
        let before = std::mem::take(&mut self.anything);
        for (at, left) in before {
            if at != node || left.end <= range.start || range.end <= left.start {
                self.anything.push((at, left));
                continue;
            }
            let parts = [left.start..range.start.max(left.start), range.end.min(left.end)..left.end];
            self.anything.extend(parts.into_iter().filter(|part| !part.is_empty()).map(|part| (at, part)));
        }
    }

    /// Every byte of both memories is what it must be.
    pub fn check_memory(&mut self) {
        for (node, range) in &self.anything {
            if self.is_free(*node, BASE + range.start as u64) {
                continue;
            }
            let bytes = self.memory[*node][range.clone()].to_vec();
            self.expected[*node][range.clone()].copy_from_slice(&bytes);
        }
        for node in 0..2 {
            if self.memory[node] != self.expected[node] {
                let at = (0..self.memory[node].len())
                    .find(|at| self.memory[node][*at] != self.expected[node][*at]);
                panic!("memory of node {node} differs at {at:?}");
            }
        }
    }
}
