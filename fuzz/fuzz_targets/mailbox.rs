//! A mailbox's memory, written by whoever shares it.
//!
//! `cargo +nightly fuzz run mailbox fuzz/corpus/mailbox crates/tombolo-channel/tests/corpus/mailbox`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_channel::fuzzing::mailbox(bytes));
