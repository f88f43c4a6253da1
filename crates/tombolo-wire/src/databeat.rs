//! Databeats: transactions of a memory bus, in parts of 64 bits (REMAP §V, Fig 5).
//!
//! ```text
//!  63        56 55   53 52  51 50                                          0
//!  │ interface │ kind  │ part │ content of the part                        │
//! ```
//!
//! The content of a transaction is cut into 51 bits, the lowest first: two parts of an address (81 bits), three of data that are
//! written (145) or read (147), one of the answer to a write (18). What is left over in the last part is zero.

/// Bits of a transaction in one part.
const CONTENT_BITS: u32 = 51;
const CONTENT_MASK: u64 = (1 << CONTENT_BITS) - 1;
const PART_AT: u32 = CONTENT_BITS;
const KIND_AT: u32 = PART_AT + 2;
const INTERFACE_AT: u32 = KIND_AT + 3;
/// The most parts of a transaction.
pub const MAX_PARTS: usize = 3;
/// Bytes of data in one transaction.
pub const BEAT_BYTES: usize = 16;

/// Why 64 bits are no part of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabeatError {
    /// There is no such kind.
    #[error("unknown kind of transaction {0}")]
    Kind(u8),
    /// A transaction of that kind has no such part.
    #[error("part {part} of a {kind:?}")]
    Part {
        /// The kind.
        kind: TransactionKind,
        /// The part.
        part: u8,
    },
    /// Bits behind the end of the transaction are set.
    #[error("bits behind the end of a transaction are set")]
    Reserved,
}

/// What a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransactionKind {
    /// An address that is written from.
    WriteAddress = 0,
    /// An address that is read from.
    ReadAddress = 1,
    /// Data that are written.
    WriteData = 2,
    /// Data that were read.
    ReadData = 3,
    /// The answer to a write.
    WriteAnswer = 4,
}

impl TransactionKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::WriteAddress, Self::ReadAddress, Self::WriteData, Self::ReadData, Self::WriteAnswer];

    /// The bits of its content.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Self::WriteAddress | Self::ReadAddress => 81,
            Self::WriteData => 145,
            Self::ReadData => 147,
            Self::WriteAnswer => 18,
        }
    }

    /// The parts of 64 bits that it is sent in.
    #[must_use]
    pub fn parts(self) -> usize {
        self.bits().div_ceil(CONTENT_BITS) as usize
    }

    fn of(number: u64) -> Result<Self, DatabeatError> {
        let known = Self::ALL.into_iter().find(|kind| *kind as u64 == number);
        known.ok_or(DatabeatError::Kind(number as u8))
    }
}

/// Where a burst begins, and its shape: the fields of the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BusAddress {
    /// The number of the burst at its interface.
    pub id: u16,
    /// The address: 40 bits.
    pub address: u64,
    /// Transfers of the burst, less one.
    pub length: u8,
    /// Bytes of a transfer, as a power of two: 3 bits.
    pub size: u8,
    /// How addresses follow each other: 2 bits.
    pub burst: u8,
    /// Whether the access is exclusive.
    pub lock: bool,
    /// Attributes: 4 bits.
    pub cache: u8,
    /// Privileges: 3 bits.
    pub protection: u8,
    /// Quality of service: 4 bits.
    pub service: u8,
}

/// A transaction of the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BusTransaction {
    /// A burst that is written begins.
    WriteAddress(BusAddress),
    /// A burst is asked for.
    ReadAddress(BusAddress),
    /// Data of a burst that is written.
    WriteData {
        /// 16 bytes.
        data: u128,
        /// Which of them count.
        strobe: u16,
        /// Whether they are the last of the burst.
        is_last: bool,
    },
    /// Data of a burst that was asked for.
    ReadData {
        /// The number of the burst.
        id: u16,
        /// 16 bytes.
        data: u128,
        /// How the access went: 2 bits.
        response: u8,
        /// Whether they are the last of the burst.
        is_last: bool,
    },
    /// A burst was written.
    WriteAnswer {
        /// Its number.
        id: u16,
        /// How that went: 2 bits.
        response: u8,
    },
}

/// Bits that are put together from the lowest on.
#[derive(Default)]
struct Bits {
    low: u128,
    high: u128,
    length: u32,
}

impl Bits {
    fn put(&mut self, value: u128, bits: u32) -> &mut Self {
        let value = if bits < 128 { value & ((1 << bits) - 1) } else { value };
        if self.length < 128 {
            self.low |= value << self.length;
            let rest = self.length + bits;
            if rest > 128 {
                self.high |= value >> (128 - self.length);
            }
        } else {
            self.high |= value << (self.length - 128);
        }
        self.length += bits;
        self
    }

    fn take(&mut self, bits: u32) -> u128 {
        let mask = if bits < 128 { (1 << bits) - 1 } else { u128::MAX };
        let value = self.low & mask;
        match bits {
            128 => (self.low, self.high) = (self.high, 0),
            bits => {
                self.low = self.low >> bits | self.high << (128 - bits);
                self.high >>= bits;
            }
        }
        value
    }
}

impl BusTransaction {
    /// What it is.
    #[must_use]
    pub fn kind(&self) -> TransactionKind {
        match self {
            Self::WriteAddress(_) => TransactionKind::WriteAddress,
            Self::ReadAddress(_) => TransactionKind::ReadAddress,
            Self::WriteData { .. } => TransactionKind::WriteData,
            Self::ReadData { .. } => TransactionKind::ReadData,
            Self::WriteAnswer { .. } => TransactionKind::WriteAnswer,
        }
    }

    /// Its parts, in order, as an interface sends them; as many as its kind has.
    pub fn parts(&self, interface: u8) -> impl Iterator<Item = Databeat> + use<> {
        let mut bits = Bits::default();
        match self {
            Self::WriteAddress(at) | Self::ReadAddress(at) => {
                bits.put(at.id.into(), 16).put(at.address.into(), 40).put(at.length.into(), 8);
                bits.put(at.size.into(), 3).put(at.burst.into(), 2).put(at.lock.into(), 1);
                bits.put(at.cache.into(), 4).put(at.protection.into(), 3).put(at.service.into(), 4);
            }
            Self::WriteData { data, strobe, is_last } => {
                bits.put(*data, 128).put((*strobe).into(), 16).put((*is_last).into(), 1);
            }
            Self::ReadData { id, data, response, is_last } => {
                bits.put((*id).into(), 16)
                    .put(*data, 128)
                    .put((*response).into(), 2)
                    .put((*is_last).into(), 1);
            }
            Self::WriteAnswer { id, response } => {
                bits.put((*id).into(), 16).put((*response).into(), 2);
            }
        }
        let kind = self.kind();
        (0..kind.parts()).map(move |part| Databeat {
            interface,
            kind,
            part: part as u8,
            content: bits.take(CONTENT_BITS) as u64,
        })
    }

    /// The transaction of these parts' contents.
    #[must_use]
    pub fn of(kind: TransactionKind, contents: &[u64; MAX_PARTS]) -> Self {
        let mut bits = Bits::default();
        for content in contents {
            bits.put((*content).into(), CONTENT_BITS);
        }
        let mut at = || BusAddress {
            id: bits.take(16) as u16,
            address: bits.take(40) as u64,
            length: bits.take(8) as u8,
            size: bits.take(3) as u8,
            burst: bits.take(2) as u8,
            lock: bits.take(1) == 1,
            cache: bits.take(4) as u8,
            protection: bits.take(3) as u8,
            service: bits.take(4) as u8,
        };
        match kind {
            TransactionKind::WriteAddress => Self::WriteAddress(at()),
            TransactionKind::ReadAddress => Self::ReadAddress(at()),
            TransactionKind::WriteData => Self::WriteData {
                data: bits.take(128),
                strobe: bits.take(16) as u16,
                is_last: bits.take(1) == 1,
            },
            TransactionKind::ReadData => Self::ReadData {
                id: bits.take(16) as u16,
                data: bits.take(128),
                response: bits.take(2) as u8,
                is_last: bits.take(1) == 1,
            },
            TransactionKind::WriteAnswer => {
                Self::WriteAnswer { id: bits.take(16) as u16, response: bits.take(2) as u8 }
            }
        }
    }
}

/// A part of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Databeat {
    /// The interface that the transaction is of.
    pub interface: u8,
    /// What the transaction is.
    pub kind: TransactionKind,
    /// Which of its parts: 0 is the first.
    pub part: u8,
    /// The part's bits.
    pub content: u64,
}

impl Databeat {
    /// Its 64 bits.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.interface) << INTERFACE_AT
            | (self.kind as u64) << KIND_AT
            | u64::from(self.part) << PART_AT
            | self.content & CONTENT_MASK
    }

    /// The part that these bits are.
    ///
    /// # Errors
    /// [`DatabeatError`]
    pub fn from_bits(bits: u64) -> Result<Self, DatabeatError> {
        let kind = TransactionKind::of(bits >> KIND_AT & 7)?;
        let part = bits >> PART_AT & 3;
        let content = bits & CONTENT_MASK;
        let parts = kind.parts() as u64;
        if part >= parts {
            return Err(DatabeatError::Part { kind, part: part as u8 });
        }
        let used = kind.bits() - CONTENT_BITS * (parts as u32 - 1);
        if part + 1 == parts && content >> used != 0 {
            return Err(DatabeatError::Reserved);
        }
        Ok(Self { interface: (bits >> INTERFACE_AT) as u8, kind, part: part as u8, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn address() -> impl Strategy<Value = BusAddress> {
        let fields = (any::<u16>(), 0..1_u64 << 40, any::<u8>(), 0..8_u8, 0..4_u8);
        let more = (any::<bool>(), 0..16_u8, 0..8_u8, 0..16_u8);
        (fields, more).prop_map(|((id, address, length, size, burst), (lock, cache, protection, service))| {
            BusAddress { id, address, length, size, burst, lock, cache, protection, service }
        })
    }

    fn transaction() -> impl Strategy<Value = BusTransaction> {
        prop_oneof![
            address().prop_map(BusTransaction::WriteAddress),
            address().prop_map(BusTransaction::ReadAddress),
            (any::<u128>(), any::<u16>(), any::<bool>())
                .prop_map(|(data, strobe, is_last)| BusTransaction::WriteData { data, strobe, is_last }),
            (any::<u16>(), any::<u128>(), 0..4_u8, any::<bool>()).prop_map(
                |(id, data, response, is_last)| { BusTransaction::ReadData { id, data, response, is_last } }
            ),
            (any::<u16>(), 0..4_u8).prop_map(|(id, response)| BusTransaction::WriteAnswer { id, response }),
        ]
    }

    proptest! {
        #[test]
        fn a_transaction_is_what_its_parts_say(transaction in transaction(), interface in any::<u8>()) {
            let parts: Vec<_> = transaction.parts(interface).collect();
            prop_assert_eq!(parts.len(), transaction.kind().parts());
            let mut contents = [0; MAX_PARTS];
            for (number, part) in parts.iter().enumerate() {
                prop_assert_eq!((usize::from(part.part), part.interface), (number, interface));
                prop_assert_eq!(Databeat::from_bits(part.to_bits()), Ok(*part));
                contents[number] = part.content;
            }
            prop_assert_eq!(BusTransaction::of(transaction.kind(), &contents), transaction);
        }

        #[test]
        fn what_is_read_is_written_again(bits in any::<u64>()) {
            if let Ok(part) = Databeat::from_bits(bits) {
                prop_assert_eq!(part.to_bits(), bits);
            }
        }
    }

    /// REMAP §V: 81 bits are two parts, 145 and 147 three, 18 one.
    #[test]
    fn a_transaction_has_as_many_parts_as_the_document_says() {
        assert_eq!(TransactionKind::ALL.map(TransactionKind::parts), [2, 2, 3, 3, 1]);
    }

    /// Bit for bit, so that a change of the format is seen.
    #[test]
    fn the_format_is_the_declared_one() {
        let data = BusTransaction::WriteData { data: 0x0123_4567_89AB_CDEF, strobe: 0xFFFF, is_last: true };
        let bits: Vec<_> = data.parts(5).map(Databeat::to_bits).collect();
        assert_eq!(bits, [0x0543_4567_89AB_CDEF, 0x0548_0000_0000_0024, 0x0550_07FF_FC00_0000]);
        let answer = BusTransaction::WriteAnswer { id: 0xABCD, response: 2 };
        assert_eq!(answer.parts(0).map(Databeat::to_bits).collect::<Vec<_>>(), [0x0080_0000_0002_ABCD]);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        let part = |kind: u64, part: u64, content: u64| {
            Databeat::from_bits(kind << KIND_AT | part << PART_AT | content)
        };
        assert_eq!(part(5, 0, 0), Err(DatabeatError::Kind(5)));
        let beyond = |kind, part| Err(DatabeatError::Part { kind, part });
        assert_eq!(part(0, 2, 0), beyond(TransactionKind::WriteAddress, 2));
        assert_eq!(part(4, 1, 0), beyond(TransactionKind::WriteAnswer, 1));
        assert_eq!(part(4, 0, 1 << 18), Err(DatabeatError::Reserved));
        assert_eq!(part(0, 1, 1 << 30), Err(DatabeatError::Reserved));
        assert!(part(0, 1, (1 << 30) - 1).is_ok() && part(3, 2, (1 << 45) - 1).is_ok());
    }
}
