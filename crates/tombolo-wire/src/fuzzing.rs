//! For tests and fuzzers alone.

use crate::{Checksums, MAX_BLOCK_BYTES, MAX_HEADER_BYTES, Packet, Payload};

/// Any bytes as a packet: no panic, and what parses survives being written again.
#[allow(clippy::missing_panics_doc, reason = "that is what it is for")]
pub fn packet(bytes: &[u8]) {
    let _ = Packet::parse(bytes, Checksums::On);
    let Ok(packet) = Packet::parse(bytes, Checksums::Off) else { return };
    if matches!(packet, Packet::Data(_, Payload::Damaged)) {
        return;
    }
    let mut again = [0; MAX_HEADER_BYTES + MAX_BLOCK_BYTES as usize];
    for checksums in [Checksums::Off, Checksums::On] {
        let length = packet.emit(&mut again, checksums).unwrap_or_default();
        assert_eq!(Packet::parse(&again[..length], checksums), Ok(packet));
    }
}
