//! The reasons of a negative acknowledgement (QOS Table 3.2), and where memory was refused.

use crate::WireError;
use crate::view::{Draft, SHORT_HEADER_BYTES, View};

/// A refusal says where: sixteen bytes more.
pub(crate) const FLAG_ADDRESS: u8 = 1 << 0;
/// How many bytes of header that makes.
pub(crate) const LONG_REFUSAL_BYTES: usize = SHORT_HEADER_BYTES + 16;

/// Why a block was not placed or a read not served (QOS Table 3.2; 6 is
/// reserved there and invalid here).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NackCode {
    /// 1, AXI slave error: the memory did not take the bytes, which is how an
    /// absent page shows (FAULT §3.2.3). Transient: the sender pauses the block
    /// until a `Resume` arrives or the pause is over.
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

/// Refusals name pages of this size.
const PAGE_BYTES: u64 = 4096;

/// Why an access was refused, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub code: NackCode,
    /// The first address that could not be reached, or that of the access, in the memory of whoever refuses; `None`: not
    /// known.
    pub address: Option<u64>,
    /// Of an absent page: all that are absent. Bit `i`: the page `i` behind that of the address.
    pub missing: u32,
}

impl Refusal {
    /// With an address.
    #[must_use]
    pub fn at(code: NackCode, address: u64) -> Self {
        Self { code, address: Some(address), missing: 0 }
    }

    /// Whether the page that was refused overlaps a range. Where the page is not known: true.
    #[must_use]
    pub fn may_lie_in(self, start: u64, length_bytes: u64) -> bool {
        let page = |address: u64| address / PAGE_BYTES;
        let last = start.saturating_add(length_bytes.saturating_sub(1));
        self.address.is_none_or(|address| (page(start)..=page(last)).contains(&page(address)))
    }

    pub(crate) fn flags(self) -> u8 {
        if self.address.is_some() { FLAG_ADDRESS } else { 0 }
    }

    pub(crate) fn emit_address(self, draft: &mut Draft) {
        if let Some(address) = self.address {
            draft.u64_at::<16>(address);
            draft.u32_at::<24>(self.missing);
        }
    }

    /// Reads what [`Self::emit_address`] has written; the fields behind a short header are zero.
    pub(crate) fn interpret(view: &View<'_>, code: u8) -> Result<Self, WireError> {
        view.only_flags(FLAG_ADDRESS)?;
        if view.u32_at::<28>() != 0 {
            return Err(WireError::Reserved);
        }
        let address = (view.flags() & FLAG_ADDRESS != 0).then(|| view.u64_at::<16>());
        Ok(Self { code: NackCode::try_from(code)?, address, missing: view.u32_at::<24>() })
    }
}

impl From<NackCode> for Refusal {
    fn from(code: NackCode) -> Self {
        Self { code, address: None, missing: 0 }
    }
}
