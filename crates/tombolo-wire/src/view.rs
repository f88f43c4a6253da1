//! The checked view: bytes known to be a whole header of a known kind.
//!
//! Checking costs one copy of at most 64 bytes into a fixed array; after that
//! every field sits at a constant place, so reading it can neither panic nor
//! need a bounds check.

use crate::acks::{ENTRY_BYTES, MAX_ACKS};
use crate::checksum::{self, Checksums, FIELDS_AT, HEADER_CRC_AT};
use crate::nack::{FLAG_ADDRESS, LONG_REFUSAL_BYTES};
use crate::{MAGIC, MAX_HEADER_BYTES, WireError};

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Bytes of a block.
    Data = 1,
    /// The completion notification of a block, apart from its bytes.
    Notify = 2,
    /// A block arrived.
    Ack = 3,
    /// A block was refused.
    Nack = 4,
    /// A block that was refused for an absent page may go again.
    Resume = 5,
    /// Please write a range of yours to me.
    ReadRequest = 6,
    /// A read will not be served, or not now.
    ReadReject = 7,
    /// A read is known and will be served.
    ReadAccept = 8,
    /// A word is to be changed.
    Atomic = 9,
    /// A word was changed.
    AtomicAck = 10,
    /// The completion notification of a block, to be written when other blocks are there, too.
    NotifyAfter = 11,
    /// Several blocks arrived.
    Acks = 12,
    /// The bytes of a block arrived, and are still being placed.
    Receipt = 13,
}

/// The flag of [`Kind::Data`] that says the header carries a notification.
pub(crate) const FLAG_CARRIES_NOTIFICATION: u8 = 1 << 2;
/// Where the notification of a data header lies, and so the length without it.
pub(crate) const DATA_HEADER_BYTES: usize = 40;
/// The length of the short headers.
pub(crate) const SHORT_HEADER_BYTES: usize = 16;

impl Kind {
    fn from_byte(byte: u8) -> Result<Self, WireError> {
        Ok(match byte {
            1 => Self::Data,
            2 => Self::Notify,
            3 => Self::Ack,
            4 => Self::Nack,
            5 => Self::Resume,
            6 => Self::ReadRequest,
            7 => Self::ReadReject,
            8 => Self::ReadAccept,
            9 => Self::Atomic,
            10 => Self::AtomicAck,
            11 => Self::NotifyAfter,
            12 => Self::Acks,
            13 => Self::Receipt,
            other => return Err(WireError::Kind(other)),
        })
    }

    /// The length of this kind's header, in bytes.
    pub(crate) fn header_bytes(self, flags: u8) -> usize {
        match self {
            Self::Data if flags & FLAG_CARRIES_NOTIFICATION == 0 => DATA_HEADER_BYTES,
            Self::Data | Self::Notify | Self::NotifyAfter | Self::ReadRequest => MAX_HEADER_BYTES,
            Self::Atomic => DATA_HEADER_BYTES,
            Self::AtomicAck => SHORT_HEADER_BYTES + 8,
            // Their number is where others have flags.
            Self::Acks => FIELDS_AT + ENTRY_BYTES * usize::from(flags).min(MAX_ACKS),
            Self::Nack | Self::ReadReject if flags & FLAG_ADDRESS != 0 => LONG_REFUSAL_BYTES,
            Self::Ack | Self::Nack | Self::Resume | Self::ReadReject | Self::ReadAccept | Self::Receipt => {
                SHORT_HEADER_BYTES
            }
        }
    }
}

/// A header that is whole, of this version and, if the link checks, undamaged.
/// Its fields are not yet known to make sense: that is [`crate::Packet::parse`].
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    kind: Kind,
    header: [u8; MAX_HEADER_BYTES],
    rest: &'a [u8],
}

impl<'a> View<'a> {
    /// Check `bytes`, one datagram.
    ///
    /// # Errors
    /// Every reason for which the bytes are not a header of this version.
    pub fn check(bytes: &'a [u8], checksums: Checksums) -> Result<Self, WireError> {
        let &[magic, kind, flags, ..] = bytes else {
            return Err(WireError::TooShort { have: bytes.len(), need: SHORT_HEADER_BYTES });
        };
        if magic != MAGIC {
            return Err(WireError::Magic(magic));
        }
        let kind = Kind::from_byte(kind)?;
        let need = kind.header_bytes(flags);
        let Some((front, rest)) = bytes.split_at_checked(need) else {
            return Err(WireError::TooShort { have: bytes.len(), need });
        };
        let mut header = [0; MAX_HEADER_BYTES];
        header[..need].copy_from_slice(front);
        let view = Self { kind, header, rest };
        if checksums == Checksums::On && view.u32_at::<HEADER_CRC_AT>() != checksum::of_header(front) {
            return Err(WireError::HeaderChecksum);
        }
        Ok(view)
    }

    /// What the packet is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The bytes behind the header.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn flags(&self) -> u8 {
        self.header[2]
    }

    pub(crate) fn attempt(&self) -> u8 {
        self.header[3]
    }

    pub(crate) fn u8_at<const AT: usize>(&self) -> u8 {
        const { assert!(AT < MAX_HEADER_BYTES) };
        self.header[AT]
    }

    pub(crate) fn u16_at<const AT: usize>(&self) -> u16 {
        const { assert!(AT + 2 <= MAX_HEADER_BYTES) };
        u16::from_le_bytes([self.header[AT], self.header[AT + 1]])
    }

    pub(crate) fn u32_at<const AT: usize>(&self) -> u32 {
        const { assert!(AT + 4 <= MAX_HEADER_BYTES) };
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.header[AT..AT + 4]);
        u32::from_le_bytes(bytes)
    }

    pub(crate) fn u64_at<const AT: usize>(&self) -> u64 {
        const { assert!(AT + 8 <= MAX_HEADER_BYTES) };
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.header[AT..AT + 8]);
        u64::from_le_bytes(bytes)
    }

    /// The fields, cut into parts of that size; those behind the header are zero.
    pub(crate) fn entries<const BYTES: usize>(&self) -> &[[u8; BYTES]] {
        self.header[FIELDS_AT..].as_chunks().0
    }

    /// The bytes behind the header must be none.
    pub(crate) fn ends_here(&self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(WireError::TrailingBytes { extra }),
        }
    }

    /// Only these flags may be set.
    pub(crate) fn only_flags(&self, known: u8) -> Result<(), WireError> {
        if self.flags() & !known == 0 { Ok(()) } else { Err(WireError::Reserved) }
    }
}

/// A header being written: the same constant places, the other way.
pub(crate) struct Draft {
    header: [u8; MAX_HEADER_BYTES],
    bytes: usize,
}

impl Draft {
    pub(crate) fn new(kind: Kind, flags: u8, attempt: u8) -> Self {
        let mut header = [0; MAX_HEADER_BYTES];
        header[0] = MAGIC;
        header[1] = kind as u8;
        header[2] = flags;
        header[3] = attempt;
        Self { header, bytes: kind.header_bytes(flags) }
    }

    pub(crate) fn u8_at<const AT: usize>(&mut self, value: u8) {
        const { assert!(AT >= FIELDS_AT && AT < MAX_HEADER_BYTES) };
        self.header[AT] = value;
    }

    pub(crate) fn u16_at<const AT: usize>(&mut self, value: u16) {
        const { assert!(AT >= FIELDS_AT && AT + 2 <= MAX_HEADER_BYTES) };
        self.header[AT..AT + 2].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u32_at<const AT: usize>(&mut self, value: u32) {
        const { assert!(AT >= FIELDS_AT && AT + 4 <= MAX_HEADER_BYTES) };
        self.header[AT..AT + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64_at<const AT: usize>(&mut self, value: u64) {
        const { assert!(AT >= FIELDS_AT && AT + 8 <= MAX_HEADER_BYTES) };
        self.header[AT..AT + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// The fields, cut into parts of that size.
    pub(crate) fn entries<const BYTES: usize>(&mut self) -> &mut [[u8; BYTES]] {
        self.header[FIELDS_AT..].as_chunks_mut().0
    }

    /// Close the header with its checksum and put it at the front of `out`.
    /// Returns its length in bytes.
    pub(crate) fn finish(mut self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        if checksums == Checksums::On {
            let crc = checksum::of_header(&self.header[..self.bytes]);
            self.header[HEADER_CRC_AT..FIELDS_AT].copy_from_slice(&crc.to_le_bytes());
        }
        let have = out.len();
        let front = out.get_mut(..self.bytes).ok_or(WireError::TooShort { have, need: self.bytes })?;
        front.copy_from_slice(&self.header[..self.bytes]);
        Ok(self.bytes)
    }
}
