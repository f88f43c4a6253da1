//! Acknowledgements of several blocks in one packet.
//!
//! ```text
//!  0       1      2       3      4            8      10        11      12           16
//!  +-------+------+-------+------+------------+------+---------+-------+------------+-----
//!  | magic | kind | count | zero | header CRC | slot | attempt | flags | generation | ...
//!  +-------+------+-------+------+------------+------+---------+-------+------------+-----
//! ```
//!
//! Each means what it would mean alone ([`Ack`]). A receiver of many small blocks at once answers them
//! at once: to write, check and take a packet costs more than what one acknowledgement says.

use core::fmt;

use crate::checksum::{Checksums, FIELDS_AT};
use crate::packet::{Ack, FLAG_BYTES_ONLY};
use crate::view::{Draft, Kind, View};
use crate::{Attempt, Generation, MAX_HEADER_BYTES, TransactionId, WireError};

pub(crate) const ENTRY_BYTES: usize = 8;
/// The most acknowledgements in one packet.
pub const MAX_ACKS: usize = (MAX_HEADER_BYTES - FIELDS_AT) / ENTRY_BYTES;

/// Acknowledgements of several blocks.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Acks {
    count: u8,
    acks: [Ack; MAX_ACKS],
}

impl Acks {
    /// These; of more than [`MAX_ACKS`], the first.
    #[must_use]
    pub fn of(acks: &[Ack]) -> Self {
        let mut all = Self::default();
        for (place, ack) in all.acks.iter_mut().zip(acks) {
            *place = *ack;
            all.count += 1;
        }
        all
    }

    /// All acknowledgements of the packet.
    pub fn iter(&self) -> impl Iterator<Item = Ack> {
        self.acks.iter().copied().take(self.count.into())
    }

    pub(crate) fn emit(&self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        if self.count == 0 {
            return Err(WireError::Range);
        }
        let mut draft = Draft::new(Kind::Acks, self.count, 0);
        for (ack, entry) in self.iter().zip(draft.entries::<ENTRY_BYTES>()) {
            let ([s0, s1], [g0, g1, g2, g3]) =
                (ack.transaction.0.to_le_bytes(), ack.generation.0.to_le_bytes());
            let flags = if ack.bytes_only { FLAG_BYTES_ONLY } else { 0 };
            *entry = [s0, s1, ack.attempt.0, flags, g0, g1, g2, g3];
        }
        draft.finish(out, checksums)
    }

    pub(crate) fn interpret(view: &View<'_>) -> Result<Self, WireError> {
        view.ends_here()?;
        let count = usize::from(view.flags());
        if !(1..=MAX_ACKS).contains(&count) {
            return Err(WireError::Range);
        }
        if view.attempt() != 0 {
            return Err(WireError::Reserved);
        }
        let mut acks = Self { count: view.flags(), ..Self::default() };
        for (ack, entry) in acks.acks.iter_mut().zip(view.entries::<ENTRY_BYTES>()).take(count) {
            let [s0, s1, attempt, flags, g0, g1, g2, g3] = *entry;
            if flags & !FLAG_BYTES_ONLY != 0 {
                return Err(WireError::Reserved);
            }
            *ack = Ack {
                transaction: TransactionId(u16::from_le_bytes([s0, s1])),
                generation: Generation(u32::from_le_bytes([g0, g1, g2, g3])),
                attempt: Attempt(attempt),
                bytes_only: flags & FLAG_BYTES_ONLY != 0,
            };
        }
        Ok(acks)
    }
}

impl fmt::Debug for Acks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}
