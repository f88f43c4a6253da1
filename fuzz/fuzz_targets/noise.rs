//! The three messages that lead to keys.
//!
//! `cargo +nightly fuzz run noise fuzz/corpus/noise crates/tombolo-link/tests/corpus/noise`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_link::fuzzing::noise(bytes));
