//! The meaning of a packet, and the short answers about a block.

use crate::acks::Acks;
use crate::atomic::{Atomic, AtomicAck};
use crate::checksum::Checksums;
use crate::data::{DataHeader, NotifyHeader, Payload};
use crate::earlier::{self, EarlierBlocks};
use crate::reading::{ReadAccept, ReadReject, ReadRequest};
use crate::view::{Draft, Kind, View};
use crate::{Attempt, Domain, Generation, Refusal, TransactionId, WireError};

/// Everything that crosses a link between two engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// Bytes of a block.
    Data(DataHeader, Payload<'a>),
    /// A notification without bytes.
    Notify(NotifyHeader),
    /// A block arrived.
    Ack(Ack),
    /// A block was refused.
    Nack(Nack),
    /// A block refused for an absent page may go again.
    Resume(Resume),
    /// A read is asked for.
    ReadRequest(ReadRequest),
    /// A read is refused.
    ReadReject(ReadReject),
    /// A read is known.
    ReadAccept(ReadAccept),
    /// A word is to be changed.
    Atomic(Atomic),
    /// A word was changed.
    AtomicAck(AtomicAck),
    /// A notification without bytes, to be written when these blocks are there, too.
    NotifyAfter(NotifyHeader, EarlierBlocks),
    /// Several blocks arrived.
    Acks(Acks),
    /// The bytes of a block arrived, and are still being placed.
    Receipt(Receipt),
}

impl<'a> Packet<'a> {
    /// Check one datagram and say what it means.
    ///
    /// # Errors
    /// Any [`WireError`]: drop the packet. A damaged payload under an intact
    /// header is not an error but [`Payload::Damaged`], because it has an answer.
    pub fn parse(bytes: &'a [u8], checksums: Checksums) -> Result<Self, WireError> {
        let view = View::check(bytes, checksums)?;
        Ok(match view.kind() {
            Kind::Data => {
                let (header, payload) = DataHeader::interpret(&view, checksums)?;
                Self::Data(header, payload)
            }
            Kind::Notify => Self::Notify(NotifyHeader::interpret(&view)?),
            Kind::Ack => Self::Ack(Ack::interpret(&view)?),
            Kind::Nack => Self::Nack(Nack::interpret(&view)?),
            Kind::Resume => Self::Resume(Resume::interpret(&view)?),
            Kind::ReadRequest => Self::ReadRequest(ReadRequest::interpret(&view)?),
            Kind::ReadReject => Self::ReadReject(ReadReject::interpret(&view)?),
            Kind::ReadAccept => Self::ReadAccept(ReadAccept::interpret(&view)?),
            Kind::Atomic => Self::Atomic(Atomic::interpret(&view)?),
            Kind::AtomicAck => Self::AtomicAck(AtomicAck::interpret(&view)?),
            Kind::NotifyAfter => {
                let (header, earlier) = earlier::interpret(&view, checksums)?;
                Self::NotifyAfter(header, earlier)
            }
            Kind::Acks => Self::Acks(Acks::interpret(&view)?),
            Kind::Receipt => Self::Receipt(Receipt::interpret(&view)?),
        })
    }

    /// Write the packet to the front of `out`; returns its length in bytes. No
    /// packet without payload is longer than [`crate::MAX_BARE_PACKET_BYTES`].
    ///
    /// # Errors
    /// [`WireError::TooShort`] if `out` does not hold it; range errors if its
    /// fields could not be parsed again; [`WireError::PayloadLength`] for a
    /// damaged payload.
    pub fn emit(&self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        match self {
            Self::Data(header, payload) => {
                let payload = match payload {
                    Payload::Intact(bytes) => *bytes,
                    Payload::Damaged => &[],
                };
                let start = header.emit_apart(payload, out, checksums)?;
                let need = start + payload.len();
                let have = out.len();
                out.get_mut(start..need).ok_or(WireError::TooShort { have, need })?.copy_from_slice(payload);
                Ok(need)
            }
            Self::Notify(notify) => notify.emit(out, checksums),
            Self::Ack(ack) => ack.emit(out, checksums),
            Self::Nack(nack) => nack.emit(out, checksums),
            Self::Resume(resume) => resume.emit(out, checksums),
            Self::ReadRequest(request) => request.emit(out, checksums),
            Self::ReadReject(reject) => reject.emit(out, checksums),
            Self::ReadAccept(accept) => accept.emit(out, checksums),
            Self::Atomic(atomic) => atomic.emit(out, checksums),
            Self::AtomicAck(ack) => ack.emit(out, checksums),
            Self::NotifyAfter(header, earlier) => earlier::emit(header, earlier, out, checksums),
            Self::Acks(acks) => acks.emit(out, checksums),
            Self::Receipt(receipt) => receipt.emit(out, checksums),
        }
    }
}

pub(crate) const FLAG_BYTES_ONLY: u8 = 1 << 0;

/// A block arrived (QOS §3.2.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// The transaction: the block's place in the sender's table.
    pub transaction: TransactionId,
    /// Which of the blocks that have had that place.
    pub generation: Generation,
    /// The transmission that was answered.
    pub attempt: Attempt,
    /// The bytes are placed, but the notification the block announced has not
    /// come yet: the block is not over.
    pub bytes_only: bool,
}

impl Ack {
    fn emit(self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        let flags = if self.bytes_only { FLAG_BYTES_ONLY } else { 0 };
        let mut draft = Draft::new(Kind::Ack, flags, self.attempt.0);
        draft.u16_at::<8>(self.transaction.0);
        draft.u32_at::<12>(self.generation.0);
        draft.finish(out, checksums)
    }

    fn interpret(view: &View<'_>) -> Result<Self, WireError> {
        view.ends_here()?;
        view.only_flags(FLAG_BYTES_ONLY)?;
        if view.u16_at::<10>() != 0 {
            return Err(WireError::Reserved);
        }
        Ok(Self {
            transaction: TransactionId(view.u16_at::<8>()),
            generation: Generation(view.u32_at::<12>()),
            attempt: Attempt(view.attempt()),
            bytes_only: view.flags() & FLAG_BYTES_ONLY != 0,
        })
    }
}

/// All bytes of a block arrived before it was sent again, but it takes time to place them:
/// nothing was lost, and the acknowledgement follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The transaction: the block's place in the sender's table.
    pub transaction: TransactionId,
    /// Which of the blocks that have had that place.
    pub generation: Generation,
    /// The transmission that was answered; one before it brought the bytes.
    pub attempt: Attempt,
}

impl Receipt {
    fn emit(self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        let mut draft = Draft::new(Kind::Receipt, 0, self.attempt.0);
        draft.u16_at::<8>(self.transaction.0);
        draft.u32_at::<12>(self.generation.0);
        draft.finish(out, checksums)
    }

    fn interpret(view: &View<'_>) -> Result<Self, WireError> {
        view.ends_here()?;
        view.only_flags(0)?;
        if view.u16_at::<10>() != 0 {
            return Err(WireError::Reserved);
        }
        Ok(Self {
            transaction: TransactionId(view.u16_at::<8>()),
            generation: Generation(view.u32_at::<12>()),
            attempt: Attempt(view.attempt()),
        })
    }
}

/// A block was refused (QOS Table 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nack {
    /// The transaction: the block's place in the sender's table.
    pub transaction: TransactionId,
    /// Which of the blocks that have had that place.
    pub generation: Generation,
    /// The transmission that was answered.
    pub attempt: Attempt,
    /// Why, and where.
    pub refusal: Refusal,
}

impl Nack {
    fn emit(self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        let mut draft = Draft::new(Kind::Nack, self.refusal.flags(), self.attempt.0);
        draft.u16_at::<8>(self.transaction.0);
        draft.u8_at::<10>(self.refusal.code as u8);
        draft.u32_at::<12>(self.generation.0);
        self.refusal.emit_address(&mut draft);
        draft.finish(out, checksums)
    }

    fn interpret(view: &View<'_>) -> Result<Self, WireError> {
        view.ends_here()?;
        if view.u8_at::<11>() != 0 {
            return Err(WireError::Reserved);
        }
        Ok(Self {
            transaction: TransactionId(view.u16_at::<8>()),
            generation: Generation(view.u32_at::<12>()),
            attempt: Attempt(view.attempt()),
            refusal: Refusal::interpret(view, view.u8_at::<10>())?,
        })
    }
}

/// The page a block was refused for is there: send the block again (FAULT
/// §3.2.3, *retransmit-after-page-fault*). Obeyed only for the current
/// generation and the block's own domain, and not if another attempt is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The transaction: the block's place in the sender's table.
    pub transaction: TransactionId,
    /// Which of the blocks that have had that place.
    pub generation: Generation,
    /// The newest transmission of it that has come. A block that is on its way again is not sent once more.
    pub attempt: Attempt,
    /// The domain the page belongs to; must be the block's.
    pub domain: Domain,
}

impl Resume {
    fn emit(self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        let mut draft = Draft::new(Kind::Resume, 0, self.attempt.0);
        draft.u16_at::<8>(self.transaction.0);
        draft.u16_at::<10>(self.domain.0);
        draft.u32_at::<12>(self.generation.0);
        draft.finish(out, checksums)
    }

    fn interpret(view: &View<'_>) -> Result<Self, WireError> {
        view.ends_here()?;
        view.only_flags(0)?;
        Ok(Self {
            transaction: TransactionId(view.u16_at::<8>()),
            generation: Generation(view.u32_at::<12>()),
            attempt: Attempt(view.attempt()),
            domain: Domain(view.u16_at::<10>()),
        })
    }
}
