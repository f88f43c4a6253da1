//! What a program writes into a channel.
//!
//! `cargo +nightly fuzz run descriptor fuzz/corpus/descriptor crates/tombolo-channel/tests/corpus/descriptor`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_channel::fuzzing::descriptor(bytes));
