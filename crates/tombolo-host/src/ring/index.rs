//! The protocol of a ring's indexes and of going to sleep, apart from the bytes.
//!
//! `tail` and `head` count bytes ever written and taken; they only grow, and wrap only at 2^64.
//! Each side keeps its own count privately, publishes it, and caches the other's, which it reads
//! again only when the cached value says "full" or "empty": so in a steady stream the cache lines
//! of the two sides rarely meet.
//!
//! Sleeping is Dekker's pattern: the sleeper writes its flag, then looks at the index; the waker
//! writes the index, then looks at the flag; a sequentially consistent fence between the two steps
//! on both sides lets at least one see the other. So either the sleeper finds the packet or the
//! waker finds the sleeper, and a side that is awake costs the other one load.
//!
//! This file uses atomics only through [`atomics`], which loom replaces.

use super::RingError;

/// The only atomics of the ring; loom's own when it explores the interleavings.
mod atomics {
    #[cfg(all(test, loom))]
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    #[cfg(not(all(test, loom)))]
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use atomics::{AtomicU32, AtomicU64, Ordering, fence};

/// Alone on its cache line, and on the neighbour that the CPU fetches along.
#[repr(C, align(128))]
#[derive(Debug, Default)]
struct Line<T>(T);

/// What the two sides share. All zero is an empty ring with both sides awake.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Indexes {
    tail: Line<AtomicU64>,
    head: Line<AtomicU64>,
    sleeping: Line<AtomicU32>,
    waiting: Line<AtomicU32>,
}

impl Indexes {
    /// The producer's half of the sleep protocol, after `publish`.
    pub(super) fn take_sleeping(&self) -> bool {
        take(&self.sleeping.0)
    }

    /// The consumer's half of the protocol of a producer that waits for room, after `release`.
    pub(super) fn take_waiting(&self) -> bool {
        take(&self.waiting.0)
    }
}

/// Orders what we published before the look at the flag, then clears the flag if it is set.
fn take(flag: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    // The plain load first keeps the line shared while nobody sleeps.
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::AcqRel) != 0
}

/// Sets the flag and orders that before the last look at the index.
fn announce(flag: &AtomicU32) {
    // A swap, though the old value does not matter: all writes of a flag being read-modify-writes,
    // each side's comes before or after the other's with nothing to argue about.
    flag.swap(1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
}

/// The producer's private view.
#[derive(Debug)]
pub(super) struct ProducerIndex {
    capacity_bytes: u64,
    tail: u64,
    cached_head: u64,
}

impl ProducerIndex {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, tail: 0, cached_head: 0 }
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// Whether this many bytes can be written at `tail`.
    pub(super) fn has_room(&mut self, shared: &Indexes, bytes: u64) -> Result<bool, RingError> {
        if self.free() >= bytes {
            return Ok(true);
        }
        // Acquire: the consumer's reads of the room are over before we write into it.
        let head = shared.head.0.load(Ordering::Acquire);
        // A head that went back, or past the tail, makes this difference huge.
        if self.tail.wrapping_sub(head) > self.tail.wrapping_sub(self.cached_head) {
            return Err(RingError::BadIndex);
        }
        self.cached_head = head;
        Ok(self.free() >= bytes)
    }

    fn free(&self) -> u64 {
        self.capacity_bytes - self.tail.wrapping_sub(self.cached_head)
    }

    /// Steps over what was written, privately.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.tail = self.tail.wrapping_add(bytes);
    }

    /// Shows the consumer everything stepped over.
    pub(super) fn publish(&mut self, shared: &Indexes) {
        // Release: the bytes are written before the index that shows them.
        shared.tail.0.store(self.tail, Ordering::Release);
    }

    /// Announces that we shall sleep for room; true when there is room after all.
    pub(super) fn arm_for_room(&mut self, shared: &Indexes, bytes: u64) -> Result<bool, RingError> {
        announce(&shared.waiting.0);
        let room = self.has_room(shared, bytes)?;
        if room {
            shared.waiting.0.swap(0, Ordering::AcqRel);
        }
        Ok(room)
    }
}

/// The consumer's private view.
#[derive(Debug)]
pub(super) struct ConsumerIndex {
    capacity_bytes: u64,
    head: u64,
    cached_tail: u64,
    armed: bool,
}

impl ConsumerIndex {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, head: 0, cached_tail: 0, armed: false }
    }

    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// How many bytes of records are there.
    pub(super) fn available(&mut self, shared: &Indexes) -> Result<u64, RingError> {
        let cached = self.cached_tail.wrapping_sub(self.head);
        if cached > 0 {
            return Ok(cached);
        }
        // Acquire: we read the bytes after the index that shows them.
        let tail = shared.tail.0.load(Ordering::Acquire);
        let available = tail.wrapping_sub(self.head);
        if available > self.capacity_bytes || !available.is_multiple_of(8) {
            return Err(RingError::BadIndex);
        }
        self.cached_tail = tail;
        Ok(available)
    }

    /// Steps over a record, privately.
    pub(super) fn advance(&mut self, bytes: u64) {
        self.head = self.head.wrapping_add(bytes);
    }

    /// Gives everything stepped over back to the producer.
    pub(super) fn release(&mut self, shared: &Indexes) {
        // Release: our reads of the bytes are over before the producer may write over them.
        shared.head.0.store(self.head, Ordering::Release);
    }

    /// Announces that we shall sleep; true when packets are there after all.
    pub(super) fn arm(&mut self, shared: &Indexes) -> Result<bool, RingError> {
        announce(&shared.sleeping.0);
        self.armed = true;
        let ready = self.available(shared)? > 0;
        if ready {
            self.disarm(shared);
        }
        Ok(ready)
    }

    /// Takes the announcement back, at no cost when there is none.
    pub(super) fn disarm(&mut self, shared: &Indexes) {
        if self.armed {
            self.armed = false;
            shared.sleeping.0.swap(0, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
