//! CRC32C over headers and payloads.

use crate::MAX_HEADER_BYTES;

/// Whether a link checks its packets. Both ends must agree, once per link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksums {
    /// Compute and verify. The default.
    #[default]
    On,
    /// The fields are zero and nobody looks: for links that cannot damage
    /// bytes (shared memory) or that authenticate them themselves.
    Off,
}

/// Where the header's own checksum lies.
pub(crate) const HEADER_CRC_AT: usize = 4;
/// Where the fields behind the header's checksum begin.
pub(crate) const FIELDS_AT: usize = 8;

/// The checksum of a header, over all of it but the checksum itself.
pub(crate) fn of_header(header: &[u8]) -> u32 {
    // Side by side it is one short computation instead of two.
    let mut covered = [0; MAX_HEADER_BYTES];
    let others = header.iter().take(HEADER_CRC_AT).chain(header.iter().skip(FIELDS_AT));
    let count = covered.iter_mut().zip(others).map(|(to, from)| *to = *from).count();
    of_payload(&covered[..count])
}

/// The checksum of a payload: CRC32C, which is that of iSCSI.
pub(crate) fn of_payload(payload: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(payload)
}
