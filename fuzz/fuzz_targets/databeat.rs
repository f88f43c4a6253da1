//! Databeats of a memory bus.
//!
//! `cargo +nightly fuzz run databeat fuzz/corpus/databeat`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_core::packetise::fuzzing(bytes));
