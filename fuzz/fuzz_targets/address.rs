//! Addresses, as people write them.
//!
//! `cargo +nightly fuzz run address fuzz/corpus/address crates/tombolo-link/tests/corpus/address`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_link::fuzzing::address(bytes));
