//! Letters between nodes with network ports.
//!
//! `cargo +nightly fuzz run letter`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_net::fuzzing::letter(bytes));
