//! Names of segments.
//!
//! `cargo +nightly fuzz run segment_name fuzz/corpus/segment_name crates/tombolo-node/tests/corpus/segment_name`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_node::fuzzing::segment_name(bytes));
