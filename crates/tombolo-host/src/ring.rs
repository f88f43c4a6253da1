//! A ring of packets in shared memory: one producer, one consumer, two processes.
//!
//! The producer copies a packet in, header and payload side by side, and publishes it by moving
//! `tail`; the consumer hands it out in place and gives the room back by moving `head`. Neither
//! makes a system call while the other is awake. The protocol of the indexes and of going to sleep
//! is in `ring::index`, where loom can try every interleaving; this file moves the bytes.
//!
//! ```text
//! offset 0     tail │ head │ sleeping, waiting flags        each on its own pair of cache lines
//! offset 4096  [length u32, unused u32][bytes, padded to 8] [length…][…] … [WRAP]
//! ```
//!
//! A record never wraps: when it does not fit before the end, a WRAP mark sends the consumer back
//! to the beginning. The other process may scribble over all of it, so every index and length is
//! read once, validated, and an impossible one ends the ring with [`RingError`]; no access leaves
//! the mapping.

use std::sync::Arc;

use crate::shared::{SharedMemory, SharedMemoryError, SharedSpan};

mod index;

use index::{ConsumerIndex, Indexes, ProducerIndex};

/// Room before the data, for the indexes.
const DATA_OFFSET_BYTES: usize = 4096;
/// Room before each packet, for its length.
const RECORD_HEADER_BYTES: usize = 8;
/// Records begin at multiples of this, so that a record header is never cut by the end.
const RECORD_ALIGN_BYTES: usize = 8;
/// In place of a length: the rest up to the end of the ring is unused.
const WRAP: u32 = u32::MAX;
/// The consumer gives room back at least this often within one batch.
const RELEASE_SHARE: u64 = 8;

/// Within one batch, the producer shows what it has written at least this often.
const PUBLISH_SHARE: u64 = 64;

/// The smallest and largest capacity of a ring.
pub const CAPACITY_BYTES: std::ops::RangeInclusive<usize> = 4096..=1 << 30;

/// Why a ring cannot be used, or no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Its capacity is no power of two, or not within [`CAPACITY_BYTES`].
    #[error("a ring of {0} bytes is no power of two from 4 KiB to 1 GiB")]
    Capacity(usize),
    /// It does not lie inside the memory.
    #[error("the ring does not lie inside the shared memory")]
    Placement,
    /// The peer has written an index that cannot be.
    #[error("the peer wrote an impossible index into the ring")]
    BadIndex,
    /// The peer has written a length that cannot be.
    #[error("the peer wrote an impossible packet length into the ring")]
    BadLength,
}

/// Why a packet was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// No room now; nothing was written.
    #[error("the ring is full")]
    Full,
    /// The packet is larger than the ring can ever take.
    #[error("the packet is larger than the ring takes")]
    TooLarge,
    /// The ring is broken.
    #[error(transparent)]
    Broken(#[from] RingError),
}

/// How much shared memory a ring of this capacity occupies; a multiple of the page size.
pub const fn footprint_bytes(capacity_bytes: usize) -> usize {
    DATA_OFFSET_BYTES + capacity_bytes
}

/// Where a ring lies.
#[derive(Debug, Clone)]
struct Placement {
    memory: Arc<SharedMemory>,
    offset_bytes: usize,
    capacity_bytes: usize,
}

impl Placement {
    fn new(memory: Arc<SharedMemory>, offset_bytes: usize, capacity_bytes: usize) -> Result<Self, RingError> {
        if !capacity_bytes.is_power_of_two() || !CAPACITY_BYTES.contains(&capacity_bytes) {
            return Err(RingError::Capacity(capacity_bytes));
        }
        let outside = |_: SharedMemoryError| RingError::Placement;
        memory.span(offset_bytes, footprint_bytes(capacity_bytes)).map_err(outside)?;
        if !offset_bytes.is_multiple_of(align_of::<Indexes>()) {
            return Err(RingError::Placement);
        }
        Ok(Self { memory, offset_bytes, capacity_bytes })
    }

    fn indexes(&self) -> &Indexes {
        // SAFETY: `new` checked that the footprint lies inside the mapping, which lives as long as
        // `memory`, and that the offset keeps the alignment (mappings are page-aligned). Indexes
        // holds nothing but atomics, so another process may change it under this reference.
        unsafe { &*self.memory.as_mut_ptr().add(self.offset_bytes).cast::<Indexes>() }
    }

    /// The place in the data where a running index points.
    fn place(&self, index: u64) -> usize {
        // The capacity is at most 1 GiB, so the masked value fits.
        (index & (self.capacity_bytes as u64 - 1)) as usize
    }

    /// Bytes of the data area; the caller has derived the range from validated indexes.
    fn span(&self, place: usize, length_bytes: usize) -> Result<SharedSpan<'_>, RingError> {
        if place + length_bytes > self.capacity_bytes {
            return Err(RingError::BadLength);
        }
        self.memory
            .span(self.offset_bytes + DATA_OFFSET_BYTES + place, length_bytes)
            .map_err(|_| RingError::Placement)
    }

    fn write(&self, place: usize, bytes: SharedSpan<'_>) -> Result<(), RingError> {
        if place + bytes.len() > self.capacity_bytes {
            return Err(RingError::BadLength);
        }
        self.memory
            .span_mut(self.offset_bytes + DATA_OFFSET_BYTES + place, bytes.len())
            .map_err(|_| RingError::Placement)?
            .take_from(bytes);
        Ok(())
    }
}

/// The size of a packet's record, or None when no ring takes it.
fn record_bytes(packet_bytes: usize) -> Option<u64> {
    let end = packet_bytes.checked_add(RECORD_HEADER_BYTES)?;
    Some(end.checked_next_multiple_of(RECORD_ALIGN_BYTES)? as u64)
}

/// The sending end. One at a time; to share it, put it behind a mutex.
#[derive(Debug)]
pub struct Producer {
    ring: Placement,
    index: ProducerIndex,
    /// Written but not yet shown to the consumer.
    unpublished_bytes: u64,
}

impl Producer {
    /// The sending end of a ring whose memory is still zeroed.
    pub fn new(
        memory: Arc<SharedMemory>,
        offset_bytes: usize,
        capacity_bytes: usize,
    ) -> Result<Self, RingError> {
        let ring = Placement::new(memory, offset_bytes, capacity_bytes)?;
        Ok(Self { ring, index: ProducerIndex::new(capacity_bytes as u64), unpublished_bytes: 0 })
    }

    /// The largest packet. Half of the ring, so that one always fits once the ring is empty,
    /// wherever the indexes stand.
    pub fn max_packet_bytes(&self) -> usize {
        self.ring.capacity_bytes / 2 - RECORD_HEADER_BYTES - RECORD_ALIGN_BYTES
    }

    /// Puts one packet, two parts side by side.
    ///
    /// Call [`Producer::publish`] after the last of a batch: until then the consumer may not see
    /// it. (Each publication takes a cache line away from a consumer that polls it.)
    pub fn push(&mut self, header: &[u8], payload: SharedSpan<'_>) -> Result<(), PushError> {
        let packet_bytes = header.len().saturating_add(payload.len());
        if packet_bytes > self.max_packet_bytes() {
            return Err(PushError::TooLarge);
        }
        let record = record_bytes(packet_bytes).ok_or(PushError::TooLarge)?;
        let length = u32::try_from(packet_bytes).map_err(|_| PushError::TooLarge)?;
        let place = self.ring.place(self.index.tail());
        let to_end = (self.ring.capacity_bytes - place) as u64;
        let skip = if record > to_end { to_end } else { 0 };
        if !self.index.has_room(self.ring.indexes(), skip + record)? {
            self.publish();
            return Err(PushError::Full);
        }
        let mut place = place;
        if skip > 0 {
            self.ring.write(place, WRAP.to_ne_bytes().as_slice().into())?;
            place = 0;
        }
        self.ring.write(place, length.to_ne_bytes().as_slice().into())?;
        self.ring.write(place + RECORD_HEADER_BYTES, header.into())?;
        self.ring.write(place + RECORD_HEADER_BYTES + header.len(), payload)?;
        self.index.advance(skip + record);
        self.unpublished_bytes += skip + record;
        if self.unpublished_bytes >= self.ring.capacity_bytes as u64 / PUBLISH_SHARE {
            self.publish();
        }
        Ok(())
    }

    /// Shows a consumer that is awake all packets so far. One that may not be: `take_wake`.
    pub fn publish(&mut self) {
        if self.unpublished_bytes > 0 {
            self.unpublished_bytes = 0;
            self.index.publish(self.ring.indexes());
        }
    }

    /// True when the consumer sleeps and has to be woken, now and by the caller.
    ///
    /// To be asked after [`Producer::publish`]. Taking it clears it: one wake per sleep.
    pub fn take_wake(&self) -> bool {
        self.ring.indexes().take_sleeping()
    }

    /// Before sleeping for room for such a packet: true when there is room, so don't sleep.
    ///
    /// Otherwise the consumer will find [`Consumer::take_room_wake`] set when it has freed some.
    pub fn arm_for_room(&mut self, packet_bytes: usize) -> Result<bool, RingError> {
        // With the skip before the end of the ring that it may need.
        let wanted = record_bytes(packet_bytes)
            .map_or(u64::MAX, |record| record.saturating_mul(2))
            .min(self.ring.capacity_bytes as u64);
        self.index.arm_for_room(self.ring.indexes(), wanted)
    }
}

/// The receiving end. One at a time; to share it, put it behind a mutex.
#[derive(Debug)]
pub struct Consumer {
    ring: Placement,
    index: ConsumerIndex,
    /// Taken but not yet given back to the producer.
    unreleased_bytes: u64,
}

impl Consumer {
    /// The receiving end of a ring whose memory is still zeroed.
    pub fn new(
        memory: Arc<SharedMemory>,
        offset_bytes: usize,
        capacity_bytes: usize,
    ) -> Result<Self, RingError> {
        let ring = Placement::new(memory, offset_bytes, capacity_bytes)?;
        let index = ConsumerIndex::new(capacity_bytes as u64);
        Ok(Self { ring, index, unreleased_bytes: 0 })
    }

    /// Hands the next packet to `sink`, in place; false when there is none.
    ///
    /// The bytes may change while the sink looks at them: copy what is to be interpreted. The room
    /// goes back to the producer with [`Consumer::release`], at the end of a batch.
    pub fn pop(&mut self, sink: impl FnOnce(SharedSpan<'_>)) -> Result<bool, RingError> {
        let Some((place, packet_bytes, advance)) = self.peek()? else {
            return Ok(false);
        };
        sink(self.ring.span(place + RECORD_HEADER_BYTES, packet_bytes)?);
        self.index.advance(advance);
        self.unreleased_bytes += advance;
        if self.unreleased_bytes >= self.ring.capacity_bytes as u64 / RELEASE_SHARE {
            self.release();
        }
        Ok(true)
    }

    /// The next packet's record, its length, and how far the index moves past it.
    fn peek(&mut self) -> Result<Option<(usize, usize, u64)>, RingError> {
        let available = self.index.available(self.ring.indexes())?;
        if available == 0 {
            return Ok(None);
        }
        let place = self.ring.place(self.index.head());
        let to_end = (self.ring.capacity_bytes - place) as u64;
        match self.read_length(place)? {
            WRAP => {
                // Half of the ring is the largest packet, so something always follows the mark.
                let left = available.checked_sub(to_end).filter(|left| *left > 0);
                let left = left.ok_or(RingError::BadLength)?;
                let length = self.read_length(0)?;
                let (packet_bytes, record) = self.check_length(length, left)?;
                Ok(Some((0, packet_bytes, to_end + record)))
            }
            length => {
                let (packet_bytes, record) = self.check_length(length, available.min(to_end))?;
                Ok(Some((place, packet_bytes, record)))
            }
        }
    }

    fn read_length(&self, place: usize) -> Result<u32, RingError> {
        let mut length = [0_u8; 4];
        self.ring.span(place, RECORD_HEADER_BYTES)?.copy_to(&mut length);
        Ok(u32::from_ne_bytes(length))
    }

    fn check_length(&self, length: u32, room: u64) -> Result<(usize, u64), RingError> {
        let packet_bytes = length as usize;
        match record_bytes(packet_bytes) {
            Some(record) if record <= room => Ok((packet_bytes, record)),
            _ => Err(RingError::BadLength),
        }
    }

    /// Gives the room of the packets taken so far back to the producer.
    pub fn release(&mut self) {
        if self.unreleased_bytes > 0 {
            self.unreleased_bytes = 0;
            self.index.release(self.ring.indexes());
        }
    }

    /// True when the producer sleeps for room and has to be woken, now and by the caller.
    ///
    /// To be asked after [`Consumer::release`]; taking it clears it.
    pub fn take_room_wake(&self) -> bool {
        self.ring.indexes().take_waiting()
    }

    /// Before sleeping: true when packets are there, so don't sleep.
    pub fn arm(&mut self) -> Result<bool, RingError> {
        self.index.arm(self.ring.indexes())
    }

    /// After sleeping: no wakes are needed for now.
    pub fn disarm(&mut self) {
        self.index.disarm(self.ring.indexes());
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
