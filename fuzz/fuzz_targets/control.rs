//! Control messages between nodes.
//!
//! `cargo +nightly fuzz run control fuzz/corpus/control crates/tombolo-node/tests/corpus/control`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_node::fuzzing::control(bytes));
