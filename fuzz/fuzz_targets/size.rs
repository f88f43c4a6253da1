//! Sizes, as people write them.
//!
//! `cargo +nightly fuzz run size`, in the top directory.

#![no_main]
#![allow(dead_code, reason = "the binary uses more of the file than parsing")]

#[path = "../../crates/tombolo/src/size.rs"]
mod size;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(size) = text.parse::<size::Size>() {
        assert!(size.0 <= 1 << 62, "{text}");
        let _ = size.to_string();
    }
});
