//! Datagrams of UDP links.
//!
//! `cargo +nightly fuzz run datagram fuzz/corpus/datagram crates/tombolo-link/tests/corpus/datagram`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_link::fuzzing::datagram(bytes));
