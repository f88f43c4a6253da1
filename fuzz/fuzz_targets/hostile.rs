//! A neighbour that is linked to a node and hostile.
//!
//! `cargo +nightly fuzz run hostile fuzz/corpus/hostile crates/tombolo-node/tests/corpus/hostile`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_node::fuzzing::hostile(bytes));
