//! A pipe: one direction of frames between two nodes, through a ring of bytes in the receiver's memory, which the sender
//! fills by transfers.
//!
//! ```text
//!   Outlet (sender)                                        Inlet (receiver)
//!   reserve ─► record in the mirror ─► batch ─ transfer ─► the same place in the ring
//!                                        └──── message ──► came ─► next (in order) ─► consumed
//!   credit ◄───────────────────────────────── message ────────────────────────────── credit
//! ```
//!
//! A *place* counts bytes since the pipe began. Modulo the ring's length, it is an offset in the ring. A *record* is a frame
//! with its length before it. Records do not cross the ring's end, so some bytes before the end may be passed over. A *batch*
//! is the records between two places. Several batches are under way at the same time and arrive in any order. Each says where
//! the batch before it ends. A batch may travel within its message, and occupies its place in the ring all the same.
//!
//! A receiver takes a frame when its scheduler says so, and only then returns the room to the sender. So a flood of frames
//! stays at the sender.

use std::collections::{BTreeMap, VecDeque};

/// Bytes before each frame in a ring: its length and its kind.
pub const RECORD_HEAD_BYTES: u32 = 8;
/// Most batches under way at once: enough that some transfer is always on its way.
pub const BATCHES_UNDER_WAY: u32 = 4;
/// Most batches whose room the receiver has not returned. Further records wait, and make larger batches.
pub const BATCHES_MAX: usize = 256;
/// The longest record, which fits a ring several times.
pub const RECORD_BYTES_MAX: u32 = 80 << 10;
/// The smallest ring. Even while a quarter of it is consumed and not returned yet, it has room for a record and for the bytes
/// that are passed over.
pub const RING_BYTES_MIN: u32 = 512 << 10;
/// The largest ring.
pub const RING_BYTES_MAX: u32 = 64 << 20;

/// A batch of records, as the sender announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The place where the batch before it ends.
    pub from: u64,
    /// The place where this batch begins: `from`, or the next place that is the ring's start.
    pub start: u64,
    /// Its length in bytes.
    pub length: u32,
}

impl Batch {
    /// The place where the batch ends.
    pub fn end(&self) -> u64 {
        self.start.wrapping_add(u64::from(self.length))
    }
}

/// The other side has sent something impossible, and is not to be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side has said what cannot be: {0}")]
pub struct Broken(&'static str);

impl Broken {
    /// A batch does not consist of records.
    pub const RECORD: Self = Self("a batch that is not of records");
}

/// Whether a ring may have this size.
pub fn is_ring(bytes: u32) -> bool {
    bytes.is_power_of_two() && (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes)
}

/// The sender's side.
#[derive(Debug)]
pub struct Outlet {
    ring_bytes: u32,
    /// The place after the last record.
    tail: u64,
    /// The place after the last batch.
    batched: u64,
    /// The bytes from the first place to the second are passed over.
    passed: Option<(u64, u64)>,
    /// The place up to which the receiver has returned the room.
    head: u64,
    under_way: u32,
    /// Ends of the batches whose room the receiver has not returned.
    ends: VecDeque<u64>,
}

impl Outlet {
    /// The sender's side of an empty ring.
    pub fn new(ring_bytes: u32) -> Self {
        Self { ring_bytes, tail: 0, batched: 0, passed: None, head: 0, under_way: 0, ends: VecDeque::new() }
    }

    /// Reserves room for a record with its head, and returns its offset in the ring. `None`: the ring is full at present, or the
    /// record is too long.
    pub fn reserve(&mut self, bytes: u32) -> Option<u32> {
        let bytes =
            bytes.checked_next_multiple_of(RECORD_HEAD_BYTES).filter(|all| *all <= RECORD_BYTES_MAX)?;
        let offset = (self.tail % u64::from(self.ring_bytes)) as u32;
        let left = self.ring_bytes - offset;
        let passed = if bytes > left { left } else { 0 };
        let used = self.tail - self.head;
        if used + u64::from(passed) + u64::from(bytes) > u64::from(self.ring_bytes) {
            return None;
        }
        if passed > 0 {
            self.passed = Some((self.tail, self.tail + u64::from(passed)));
            self.tail += u64::from(passed);
        }
        let offset = (self.tail % u64::from(self.ring_bytes)) as u32;
        self.tail += u64::from(bytes);
        Some(offset)
    }

    /// The next batch to send. The bytes of all reserved records must be in place.
    pub fn next_batch(&mut self) -> Option<Batch> {
        if self.under_way >= BATCHES_UNDER_WAY || self.ends.len() >= BATCHES_MAX {
            return None;
        }
        let from = self.batched;
        let (start, most) = match self.passed {
            Some((place, end)) if from == place => (end, self.tail),
            Some((place, _)) if from < place => (from, place),
            _ => (from, self.tail),
        };
        let ring = u64::from(self.ring_bytes);
        let length = (most - start).min(ring - start % ring) as u32;
        if length == 0 {
            return None;
        }
        self.batched = start + u64::from(length);
        self.ends.push_back(self.batched);
        self.under_way += 1;
        Some(Batch { from, start, length })
    }

    /// Records that a batch and its message have arrived.
    pub fn arrived(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Records that the receiver has returned the room before this place.
    ///
    /// # Errors
    /// [`Broken`]: not everything before this place was sent yet.
    pub fn credit(&mut self, head: u64) -> Result<(), Broken> {
        if head > self.batched {
            return Err(Broken("more was taken than sent"));
        }
        // Messages overtake each other.
        self.head = self.head.max(head);
        while self.ends.front().is_some_and(|end| *end <= self.head) {
            self.ends.pop_front();
        }
        Ok(())
    }

    /// Whether there may be no room for the longest record.
    pub fn is_crowded(&self) -> bool {
        self.tail - self.head + 2 * u64::from(RECORD_BYTES_MAX) > u64::from(self.ring_bytes)
    }

    /// Whether records wait for a batch.
    pub fn has_records(&self) -> bool {
        self.batched != self.tail
    }
}

/// The receiver's side. `T` is the type of what comes with a batch.
#[derive(Debug)]
pub struct Inlet<T> {
    ring_bytes: u32,
    /// The place after the last batch that was handed out.
    tail: u64,
    /// The place up to which records were consumed: the sender may write over what is before it.
    head: u64,
    /// The value of `head` that the sender was told last.
    told: u64,
    /// The value that the sender was told before `told`.
    told_before: u64,
    /// Batches that were not handed out yet, by [`Batch::from`].
    waiting: BTreeMap<u64, (Batch, T)>,
    /// Batches that were handed out since the sender was told.
    untold: usize,
}

impl<T> Inlet<T> {
    /// The receiver's side of an empty ring.
    pub fn new(ring_bytes: u32) -> Self {
        Self { ring_bytes, tail: 0, head: 0, told: 0, told_before: 0, waiting: BTreeMap::new(), untold: 0 }
    }

    /// Records that a batch has come.
    ///
    /// # Errors
    /// [`Broken`]: the batch is impossible.
    pub fn came(&mut self, batch: Batch, with: T) -> Result<(), Broken> {
        let ring = u64::from(self.ring_bytes);
        let fits = batch.from >= self.tail
            && batch.start >= batch.from
            && batch.end() > batch.start
            && batch.end() - self.head <= ring;
        if !fits {
            return Err(Broken("a batch outside of the ring"));
        }
        let is_whole = batch.start % ring + u64::from(batch.length) <= ring
            && (batch.start == batch.from || batch.start.is_multiple_of(ring))
            && batch.start.is_multiple_of(u64::from(RECORD_HEAD_BYTES))
            && batch.length.is_multiple_of(RECORD_HEAD_BYTES);
        if !is_whole {
            return Err(Broken("a batch over the end of the ring, or of parts of records"));
        }
        if self.waiting.len() >= BATCHES_MAX || self.waiting.insert(batch.from, (batch, with)).is_some() {
            return Err(Broken("more batches than may be, or one twice"));
        }
        Ok(())
    }

    /// The next batch in the sender's order, if it has come.
    pub fn next_batch(&mut self) -> Option<(Batch, T)> {
        let found = self.waiting.remove(&self.tail)?;
        self.tail = found.0.end();
        self.untold += 1;
        Some(found)
    }

    /// Records that everything before `place`, which lies in the batch that was handed out last, was consumed and may be written
    /// over.
    pub fn consumed(&mut self, place: u64) {
        self.head = self.head.max(place.min(self.tail));
    }

    /// The place to tell the sender, if enough was consumed since it was told last.
    pub fn credit_due(&self) -> Option<u64> {
        let is_due = self.head - self.told >= u64::from(self.ring_bytes / 4)
            || (self.untold >= BATCHES_MAX / 4 && self.head > self.told);
        is_due.then_some(self.head)
    }

    /// The place to put into a message to the sender. It counts as told from then on.
    pub fn credit(&mut self) -> u64 {
        self.told_before = self.told;
        (self.told, self.untold) = (self.head, 0);
        self.head
    }

    /// Records that the message with the last [`Inlet::credit`] was not sent after all: telling the sender is due again.
    pub fn was_not_told(&mut self) {
        (self.told, self.untold) = (self.told_before, BATCHES_MAX);
    }
}
