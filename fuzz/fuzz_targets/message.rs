//! Messages between a program and its node.
//!
//! `cargo +nightly fuzz run message fuzz/corpus/message crates/tombolo-channel/tests/corpus/message`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_channel::fuzzing::message(bytes));
