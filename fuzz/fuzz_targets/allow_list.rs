//! Lists of peers.
//!
//! `cargo +nightly fuzz run allow_list fuzz/corpus/allow_list crates/tombolo-link/tests/corpus/allow_list`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_link::fuzzing::allow_list(bytes));
