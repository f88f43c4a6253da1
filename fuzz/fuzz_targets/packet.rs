//! Packets of the engine.
//!
//! `cargo +nightly fuzz run packet fuzz/corpus/packet crates/tombolo-wire/tests/corpus`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_wire::fuzzing::packet(bytes));
