//! Files that say what network ports have.
//!
//! `cargo +nightly fuzz run ports_file`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_net::fuzzing::ports_file(bytes));
