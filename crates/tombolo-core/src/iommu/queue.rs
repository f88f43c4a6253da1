//! The queue of fault records between the data path and the handler (FAULT §3.2.3, Table 3.2).

use std::collections::VecDeque;

use crate::lookup::Lookup;

use super::job::{AccessId, ContextId, End, FaultSource};

/// Most records that wait for the handler (FAULT §3.2.3: a FIFO of 512).
pub const FAULT_RECORDS: usize = 512;
/// Most nodes whose last records are remembered. When one more node faults, all are forgotten, so that a repeat is
/// not recognised.
const MAX_NODES: usize = 1024;

/// One fault record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRecord {
    /// Source node, transaction and sequence number.
    pub by: FaultSource,
    /// Which end of the block: incoming and outgoing blocks use the same numbers.
    pub end: End,
    /// The domain.
    pub context: ContextId,
    /// The number of the page that faulted first.
    pub page: u64,
    /// The access that waits. The record in FAULT Table 3.2 has no such field.
    pub access: AccessId,
}

impl FaultRecord {
    fn is_repeat_of(&self, other: &Self) -> bool {
        (self.by, self.end, self.context, self.page) == (other.by, other.end, other.context, other.page)
    }
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    Queued,
    /// One of the remembered records of its node says the same.
    Repeat,
    /// The queue had no room.
    Lost,
}

/// How many records of each source node are remembered, so that repeats of them are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RememberedRecords {
    /// The last record, as in the FIFO in hardware.
    Last,
    /// The last two records, as in the driver of that FIFO: two concurrent blocks may fault in turn.
    #[default]
    LastTwo,
}

/// The records that wait, and the last records of each source node.
#[derive(Debug, Default)]
pub(super) struct FaultQueue {
    remembered: RememberedRecords,
    records: VecDeque<FaultRecord>,
    last: Lookup<u32, [Option<FaultRecord>; 2]>,
}

impl FaultQueue {
    pub(super) fn new(remembered: RememberedRecords) -> Self {
        Self { remembered, ..Self::default() }
    }

    /// Queues the record of a fault. `is_needed`: even if it repeats a remembered record.
    pub(super) fn note(&mut self, record: FaultRecord, is_needed: bool) -> Noted {
        if self.last.len() >= MAX_NODES && !self.last.contains_key(&record.by.node) {
            self.last.clear();
        }
        let last = self.last.get_or_insert(record.by.node, [None; 2]);
        if !is_needed && last.iter().flatten().any(|known| record.is_repeat_of(known)) {
            return Noted::Repeat;
        }
        if self.records.len() >= FAULT_RECORDS {
            return Noted::Lost;
        }
        *last = match self.remembered {
            RememberedRecords::Last => [Some(record), None],
            RememberedRecords::LastTwo => [Some(record), last[0]],
        };
        self.records.push_back(record);
        Noted::Queued
    }

    pub(super) fn take(&mut self) -> Option<FaultRecord> {
        self.records.pop_front()
    }

    /// Forgets the records of an access that is over: a later record that looks the same is a new fault.
    pub(super) fn settled(&mut self, by: FaultSource, access: AccessId) {
        if let Some(last) = self.last.get_mut(&by.node) {
            for record in last {
                record.take_if(|known| known.access == access);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_of_the_last_two_are_dropped_and_a_full_queue_takes_none() {
        let record = |transaction, page| FaultRecord {
            by: FaultSource { node: 1, transaction, sequence: 0 },
            end: End::Destination,
            context: ContextId(1),
            page,
            access: AccessId(page),
        };
        let mut queue = FaultQueue::default();
        let mut note = |transaction, page| queue.note(record(transaction, page), false);
        assert_eq!([note(1, 5), note(1, 5), note(2, 5)], [Noted::Queued, Noted::Repeat, Noted::Queued]);
        assert_eq!([note(1, 5), note(3, 5), note(1, 5)], [Noted::Repeat, Noted::Queued, Noted::Queued]);
        assert_eq!(queue.note(record(1, 5), true), Noted::Queued);
        queue.settled(record(1, 5).by, AccessId(5));
        assert_eq!(queue.note(record(1, 5), false), Noted::Queued);
        for page in 0..FAULT_RECORDS as u64 {
            let _ = queue.note(record(9, page), true);
        }
        assert_eq!(queue.note(record(9, 1 << 20), true), Noted::Lost);
        assert_eq!(std::iter::from_fn(|| queue.take()).count(), FAULT_RECORDS);
        assert!(queue.is_empty());

        // The queue in hardware remembers the last record only.
        let mut queue = FaultQueue::new(RememberedRecords::Last);
        let mut note = |transaction, page| queue.note(record(transaction, page), false);
        assert_eq!([note(1, 5), note(1, 5), note(2, 5)], [Noted::Queued, Noted::Repeat, Noted::Queued]);
        assert_eq!(note(1, 5), Noted::Queued);
        assert_eq!(queue.len(), 3);
    }
}
