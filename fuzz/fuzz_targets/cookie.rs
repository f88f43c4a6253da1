//! The numbers that say where a stranger is.
//!
//! `cargo +nightly fuzz run cookie fuzz/corpus/cookie crates/tombolo-link/tests/corpus/cookie`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_link::fuzzing::cookie(bytes));
