//! Frames of ports and from outside, with their offload headers.
//!
//! `cargo +nightly fuzz run frame`, in the top directory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_core::nic::fuzzing::frame(bytes));
