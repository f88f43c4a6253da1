//! Sizes, as people write them.
//!
//! `cargo +nightly fuzz run size`, in the top directory.

#![no_main]

use tombolo_app::size::Size;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(size) = text.parse::<Size>() {
        assert!(size.0 <= 1 << 62, "{text}");
        let _ = size.to_string();
    }
});
