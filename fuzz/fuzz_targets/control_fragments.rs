//! The control channel of a UDP link, as its datagrams say.
//!
//! `cargo +nightly fuzz run control_fragments fuzz/corpus/control_fragments crates/tombolo-link/tests/corpus/control_fragments`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_link::fuzzing::control_fragments(bytes));
