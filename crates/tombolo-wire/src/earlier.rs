//! A notification that may be written as soon as other blocks are there, too.
//!
//! ```text
//!  0                 28          30     32         36            40 ..... 64
//!  +-----------------+-----------+------+----------+-------------+---------+
//!  | as NotifyHeader | list len  | zero | list CRC | in reply to | words   |
//!  +-----------------+-----------+------+----------+-------------+---------+
//!  64       66             70
//!  +--------+--------------+-----
//!  | slot   | generation   | ...      one for each block of the list
//!  +--------+--------------+-----
//! ```
//!
//! The notification of a transfer is written after all its bytes (QOS §3.2.6). Its sender knows that they
//! are there when it has all acknowledgements, a round trip after the last block has left. The receiver
//! knows half a round trip earlier, if it is told which blocks to look at: this packet tells it, behind the
//! last block. Where one of them is missing, the sender finds out by the acknowledgements, as ever.

use core::fmt;

use crate::checksum::{self, Checksums};
use crate::data::NotifyHeader;
use crate::view::{Kind, View};
use crate::{Generation, MAX_HEADER_BYTES, TransactionId, WireError};

/// The most blocks that a notification can wait for at its receiver: an engine that has more of a transfer
/// under way beside its last block sends none before their acknowledgements.
pub const MAX_EARLIER_BLOCKS: usize = 15;

const ENTRY_BYTES: usize = 6;
/// The length of the longest list, in bytes.
pub(crate) const MAX_LIST_BYTES: usize = MAX_EARLIER_BLOCKS * ENTRY_BYTES;

/// The blocks of a transfer that its sender does not know to be there yet, but the last.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct EarlierBlocks {
    count: u8,
    slots: [TransactionId; MAX_EARLIER_BLOCKS],
    generations: [Generation; MAX_EARLIER_BLOCKS],
}

impl EarlierBlocks {
    /// Adds one. False: there are too many.
    #[must_use]
    pub fn push(&mut self, slot: TransactionId, generation: Generation) -> bool {
        let at = usize::from(self.count);
        let (Some(slots), Some(generations)) = (self.slots.get_mut(at), self.generations.get_mut(at)) else {
            return false;
        };
        (*slots, *generations) = (slot, generation);
        self.count += 1;
        true
    }

    /// All blocks of the list.
    pub fn iter(&self) -> impl Iterator<Item = (TransactionId, Generation)> {
        let all = self.slots.iter().copied().zip(self.generations.iter().copied());
        all.take(self.count.into())
    }
}

impl fmt::Debug for EarlierBlocks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

pub(crate) fn emit(
    header: &NotifyHeader,
    earlier: &EarlierBlocks,
    out: &mut [u8],
    checksums: Checksums,
) -> Result<usize, WireError> {
    let mut list = [0; MAX_LIST_BYTES];
    let mut length = 0;
    for ((slot, generation), entry) in earlier.iter().zip(list.chunks_exact_mut(ENTRY_BYTES)) {
        entry[..2].copy_from_slice(&slot.0.to_le_bytes());
        entry[2..].copy_from_slice(&generation.0.to_le_bytes());
        length += ENTRY_BYTES;
    }
    let list = &list[..length];
    let crc = match checksums {
        Checksums::On => checksum::of_payload(list),
        Checksums::Off => 0,
    };
    let begin = header.emit_as(Kind::NotifyAfter, length as u16, crc, out, checksums)?;
    let (have, need) = (out.len(), begin + length);
    out.get_mut(begin..need).ok_or(WireError::TooShort { have, need })?.copy_from_slice(list);
    Ok(need)
}

pub(crate) fn interpret(
    view: &View<'_>,
    checksums: Checksums,
) -> Result<(NotifyHeader, EarlierBlocks), WireError> {
    let (header, length, crc) = NotifyHeader::fields(view)?;
    let (list, length) = (view.rest(), usize::from(length));
    if list.len() < length {
        let (have, need) = (MAX_HEADER_BYTES + list.len(), MAX_HEADER_BYTES + length);
        return Err(WireError::TooShort { have, need });
    }
    if list.len() > length {
        return Err(WireError::TrailingBytes { extra: list.len() - length });
    }
    if !length.is_multiple_of(ENTRY_BYTES) || length > MAX_LIST_BYTES {
        return Err(WireError::Range);
    }
    let expected = match checksums {
        Checksums::On => checksum::of_payload(list),
        // Whatever it is, nobody has computed it.
        Checksums::Off => crc,
    };
    if crc != expected {
        return Err(WireError::ListChecksum);
    }
    let mut earlier = EarlierBlocks::default();
    for entry in list.chunks_exact(ENTRY_BYTES) {
        let [slot_low, slot_high, generation @ ..] = entry else { continue };
        let Ok(generation) = generation.try_into() else { continue };
        let slot = TransactionId(u16::from_le_bytes([*slot_low, *slot_high]));
        let _ = earlier.push(slot, Generation(u32::from_le_bytes(generation)));
    }
    Ok((header, earlier))
}
