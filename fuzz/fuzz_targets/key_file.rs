//! Files of secret keys.
//!
//! `cargo +nightly fuzz run key_file fuzz/corpus/key_file crates/tombolo-link/tests/corpus/key_file`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_link::fuzzing::key_file(bytes));
