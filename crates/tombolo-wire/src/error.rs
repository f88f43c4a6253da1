//! Why bytes are not a packet, or a packet does not fit into bytes.

/// What is wrong with a packet's bytes. The receiver drops the packet and
/// counts it: nothing in a packet that failed can be trusted, not even whom to
/// complain to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end before the header of their kind does, or the buffer to
    /// write into is shorter than the packet.
    #[error("{have} bytes where at least {need} are needed")]
    TooShort {
        /// Bytes there are.
        have: usize,
        /// Bytes there should be.
        need: usize,
    },
    /// More bytes than the header accounts for.
    #[error("{extra} bytes behind the end of the packet")]
    TrailingBytes {
        /// Bytes too many.
        extra: usize,
    },
    /// Another protocol, or another version of this one.
    #[error("first byte {0:#04x} is not this protocol and version")]
    Magic(u8),
    /// A kind of packet this version does not have.
    #[error("unknown kind of packet {0}")]
    Kind(u8),
    /// The header's checksum does not match its bytes.
    #[error("header checksum does not match")]
    HeaderChecksum,
    /// The checksum of a list behind a header does not match its bytes.
    #[error("the checksum of a list does not match")]
    ListChecksum,
    /// A flag or a reserved field that must be zero is not.
    #[error("reserved bits are set")]
    Reserved,
    /// A block longer than [`crate::MAX_BLOCK_BYTES`], a packet outside its
    /// block, or one that does not start and end on a granule.
    #[error("the packet does not lie in its block")]
    Range,
    /// An address plus a length passes the end of the address space.
    #[error("the range passes the end of the address space")]
    AddressOverflow,
    /// A negative acknowledgement with a code that QOS Table 3.2 does not have.
    #[error("unknown code of a negative acknowledgement: {0}")]
    Code(u8),
    /// A class of service that does not exist.
    #[error("unknown class of service {0}")]
    Class(u8),
    /// The payload given does not have the length the header says.
    #[error("payload of {have} bytes where the header says {need}")]
    PayloadLength {
        /// Bytes given.
        have: usize,
        /// Bytes the header names.
        need: usize,
    },
}
