//! CRC32C over headers and payloads.

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
    let (before, rest) = header.split_at(HEADER_CRC_AT.min(header.len()));
    let skip = (FIELDS_AT - HEADER_CRC_AT).min(rest.len());
    crc32c::crc32c_append(crc32c::crc32c(before), &rest[skip..])
}

/// The checksum of a payload.
pub(crate) fn of_payload(payload: &[u8]) -> u32 {
    crc32c::crc32c(payload)
}
