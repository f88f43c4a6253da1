//! The first words on the socket of a shared-memory link.
//!
//! `cargo +nightly fuzz run shm_handshake fuzz/corpus/shm_handshake crates/tombolo-link/tests/corpus/shm_handshake`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_link::fuzzing::shm_handshake(bytes));
