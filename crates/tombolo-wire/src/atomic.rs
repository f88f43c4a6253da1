//! A word changed where it is, and the answer with what it was before.
//!
//! ```text
//!  8           10       12           16         24        32        40
//!  +-----------+--------+------------+----------+---------+---------+
//!  | slot      | domain | generation | address  | operand | compare |   Atomic
//!  +-----------+--------+------------+----------+---------+---------+
//!  | slot      | zero   | generation | before   |                       AtomicAck
//!  +-----------+--------+------------+----------+
//! ```
//!
//! An atomic operation is a block of eight bytes with a slot and a generation
//! of its own, so a receiver carries it out once however often it comes, and
//! remembers the answer as long as the slot is not used again.

use crate::checksum::Checksums;
use crate::view::{Draft, Kind, View};
use crate::{Attempt, Domain, Generation, TransactionId, WireError};

const FLAG_COMPARE: u8 = 1 << 0;

/// The size and the alignment of the word.
pub const ATOMIC_BYTES: u32 = 8;

/// What is done to a word of eight bytes, little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOperation {
    /// Add; overflow wraps.
    FetchAdd(u64),
    /// Put `swap` there, if `compare` is there.
    CompareSwap {
        /// What must be there.
        compare: u64,
        /// What is put there.
        swap: u64,
    },
}

impl AtomicOperation {
    /// What the word is after it.
    #[must_use]
    pub fn apply(self, before: u64) -> u64 {
        match self {
            Self::FetchAdd(more) => before.wrapping_add(more),
            Self::CompareSwap { compare, swap } if compare == before => swap,
            Self::CompareSwap { .. } => before,
        }
    }
}

/// A request to change a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// The memory the address is of.
    pub domain: Domain,
    /// The transaction: the block's place in the sender's table.
    pub transaction: TransactionId,
    /// Which of the blocks that have had that place.
    pub generation: Generation,
    /// Which transmission of it.
    pub attempt: Attempt,
    /// Where the word is; a multiple of [`ATOMIC_BYTES`].
    pub address: u64,
    /// What is done to it.
    pub operation: AtomicOperation,
}

impl Atomic {
    pub(crate) fn emit(self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        check_alignment(self.address)?;
        let (flags, operand, compare) = match self.operation {
            AtomicOperation::FetchAdd(operand) => (0, operand, 0),
            AtomicOperation::CompareSwap { compare, swap } => (FLAG_COMPARE, swap, compare),
        };
        let mut draft = Draft::new(Kind::Atomic, flags, self.attempt.0);
        draft.u16_at::<8>(self.transaction.0);
        draft.u16_at::<10>(self.domain.0);
        draft.u32_at::<12>(self.generation.0);
        draft.u64_at::<16>(self.address);
        draft.u64_at::<24>(operand);
        draft.u64_at::<32>(compare);
        draft.finish(out, checksums)
    }

    pub(crate) fn interpret(view: &View<'_>) -> Result<Self, WireError> {
        view.ends_here()?;
        view.only_flags(FLAG_COMPARE)?;
        let (operand, compare) = (view.u64_at::<24>(), view.u64_at::<32>());
        let operation = match view.flags() & FLAG_COMPARE != 0 {
            true => AtomicOperation::CompareSwap { compare, swap: operand },
            false if compare == 0 => AtomicOperation::FetchAdd(operand),
            false => return Err(WireError::Reserved),
        };
        let address = view.u64_at::<16>();
        check_alignment(address)?;
        Ok(Self {
            domain: Domain(view.u16_at::<10>()),
            transaction: TransactionId(view.u16_at::<8>()),
            generation: Generation(view.u32_at::<12>()),
            attempt: Attempt(view.attempt()),
            address,
            operation,
        })
    }
}

/// An aligned word cannot pass the end of the address space.
fn check_alignment(address: u64) -> Result<(), WireError> {
    if address.is_multiple_of(ATOMIC_BYTES.into()) { Ok(()) } else { Err(WireError::Range) }
}

/// The operation was carried out, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAck {
    /// The transaction: the block's place in the sender's table.
    pub transaction: TransactionId,
    /// Which of the blocks that have had that place.
    pub generation: Generation,
    /// The transmission that was answered.
    pub attempt: Attempt,
    /// The word before.
    pub before: u64,
}

impl AtomicAck {
    pub(crate) fn emit(self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        let mut draft = Draft::new(Kind::AtomicAck, 0, self.attempt.0);
        draft.u16_at::<8>(self.transaction.0);
        draft.u32_at::<12>(self.generation.0);
        draft.u64_at::<16>(self.before);
        draft.finish(out, checksums)
    }

    pub(crate) fn interpret(view: &View<'_>) -> Result<Self, WireError> {
        view.ends_here()?;
        view.only_flags(0)?;
        if view.u16_at::<10>() != 0 {
            return Err(WireError::Reserved);
        }
        Ok(Self {
            transaction: TransactionId(view.u16_at::<8>()),
            generation: Generation(view.u32_at::<12>()),
            attempt: Attempt(view.attempt()),
            before: view.u64_at::<16>(),
        })
    }
}
