//! Messages between an owner of an uplink and its ports.
//!
//! `cargo +nightly fuzz run request`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_net::fuzzing::request(bytes));
