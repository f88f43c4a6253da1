//! The reasons of a negative acknowledgement (QOS Table 3.2).

use crate::WireError;

/// Why a block was not placed or a read not served (QOS Table 3.2; 6 is
/// reserved there and invalid here).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NackCode {
    /// 1, AXI slave error: the memory did not take the bytes, which is how an
    /// absent page shows (FAULT §3.2.3). Transient: the sender pauses the block
    /// until a `Resume` arrives or the pause is over. No node sends a `Resume` yet.
    SlaveError = 1,
    /// 2, AXI decode error: no memory at this address. Final.
    DecodeError = 2,
    /// 3, no context: the receiver does not know the domain, the transaction
    /// slot or the read. Final.
    NoContext = 3,
    /// 4, packet corrupted: header intact, payload not. Sent again at once.
    PacketCorrupted = 4,
    /// 5, protection-domain mismatch: the memory is another domain's, or may
    /// not be accessed this way. Final.
    DomainMismatch = 5,
    /// 7, destination buffer full: no room now. Sent again after a delay.
    BufferFull = 7,
}

impl NackCode {
    /// Every code, in the order of the table.
    pub const ALL: [Self; 6] = [
        Self::SlaveError,
        Self::DecodeError,
        Self::NoContext,
        Self::PacketCorrupted,
        Self::DomainMismatch,
        Self::BufferFull,
    ];

    /// The name of the code in QOS Table 3.2, for counters and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SlaveError => "slave_error",
            Self::DecodeError => "decode_error",
            Self::NoContext => "no_context",
            Self::PacketCorrupted => "packet_corrupted",
            Self::DomainMismatch => "domain_mismatch",
            Self::BufferFull => "buffer_full",
        }
    }

    /// Whether the same block may succeed later (1, 4, 7) or never will (2, 3, 5).
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(self, Self::SlaveError | Self::PacketCorrupted | Self::BufferFull)
    }
}

impl TryFrom<u8> for NackCode {
    type Error = WireError;

    fn try_from(code: u8) -> Result<Self, WireError> {
        Self::ALL.into_iter().find(|known| *known as u8 == code).ok_or(WireError::Code(code))
    }
}
