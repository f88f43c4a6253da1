//! Sealed datagrams.
//!
//! `cargo +nightly fuzz run sealed fuzz/corpus/sealed crates/tombolo-link/tests/corpus/sealed`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_link::fuzzing::sealed(bytes));
