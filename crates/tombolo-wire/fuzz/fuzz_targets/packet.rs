//! Any bytes: no panic, and what parses survives being written again.
//!
//! `cargo +nightly fuzz run packet ../tests/corpus`

#![no_main]

use libfuzzer_sys::fuzz_target;
use tombolo_wire::{Checksums, Packet, Payload};

fuzz_target!(|bytes: &[u8]| {
    let _ = Packet::parse(bytes, Checksums::On);
    let Ok(packet) = Packet::parse(bytes, Checksums::Off) else { return };
    if matches!(packet, Packet::Data(_, Payload::Damaged)) {
        return;
    }
    let mut again = [0; 64 + 16 * 1024];
    for checksums in [Checksums::Off, Checksums::On] {
        let length = packet.emit(&mut again, checksums).expect("what parses can be written");
        assert_eq!(Packet::parse(&again[..length], checksums), Ok(packet));
    }
});
