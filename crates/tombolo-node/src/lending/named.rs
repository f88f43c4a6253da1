//! Named segments: their names, and the checksums that show that all bytes have arrived.
//!
//! A segment is published under a name with the checksum of its bytes, and from then on its bytes never change. New
//! bytes under the same name are another segment, which replaces the first.

use std::fmt;
use std::str::FromStr;

use ring::digest::{Context, SHA256};
use tombolo_host::shared::SharedSpan;

use crate::fabric::label;
use crate::fabric::messages::Checksum;

/// The longest name of a segment, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Bytes that a hasher copies out of shared memory at once.
const COPY_BYTES: usize = 64 * 1024;

/// The name of a segment: 1 to 255 bytes. It has no `/`, no `:`, and no character that is invisible or changes the
/// order of visible ones (control characters, for instance). It is neither `.` nor `..`. So it is a valid file name and
/// can follow an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName(String);

/// Why parsing a segment's name failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("the name of the segment is empty")]
    Empty,
    /// The name is too long.
    #[error("the name of a segment has {0} bytes, and may have {MAX_NAME_BYTES}")]
    TooLong(usize),
    /// The name has a character that is not allowed.
    #[error("a segment cannot be called {0:?}: its name may not have {1:?}")]
    Character(String, char),
    /// The name is `.` or `..`, which mean directories.
    #[error("a segment cannot be called `{0}`")]
    Directory(String),
}

impl SegmentName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SegmentName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text {
            "" => Err(NameError::Empty),
            _ if text.len() > MAX_NAME_BYTES => Err(NameError::TooLong(text.len())),
            "." | ".." => Err(NameError::Directory(text.to_owned())),
            _ => {
                match text.chars().find(|letter| label::is_harmful(*letter) || matches!(letter, '/' | ':')) {
                    Some(letter) => Err(NameError::Character(text.to_owned(), letter)),
                    None => Ok(Self(text.to_owned())),
                }
            }
        }
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Computes a [`Checksum`] of bytes that come piece by piece.
#[derive(Clone)]
pub struct Hasher(Context);

impl Default for Hasher {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Hasher").finish_non_exhaustive()
    }
}

impl Hasher {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds the next bytes, from memory that other threads or processes may change.
    pub fn update_shared(&mut self, span: SharedSpan<'_>) {
        let mut copy = Vec::with_capacity(COPY_BYTES.min(span.len()));
        let mut offset = 0;
        while let Some(part) = span.part(offset, COPY_BYTES.min(span.len().saturating_sub(offset)))
            && !part.is_empty()
        {
            copy.clear();
            part.append_to(&mut copy);
            self.update(&copy);
            offset += part.len();
        }
    }

    /// Returns the checksum of all bytes.
    pub fn finish(self) -> Checksum {
        let mut checksum = Checksum([0; 32]);
        for (target, byte) in checksum.0.iter_mut().zip(self.0.finish().as_ref()) {
            *target = *byte;
        }
        checksum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files_without_colons() {
        let longest = "x".repeat(MAX_NAME_BYTES);
        for name in ["a", "results.csv", "with space", "Größe", ".hidden", "-", "...", &longest] {
            assert_eq!(name.parse::<SegmentName>().unwrap().as_str(), name);
        }
        let too_long = "x".repeat(MAX_NAME_BYTES + 1);
        for (name, hint) in [
            ("", "empty"),
            (".", "`.`"),
            ("..", "`..`"),
            ("a/b", "'/'"),
            ("a:b", "':'"),
            ("a\nb", r"'\n'"),
            ("a\u{1b}[2J", r"'\u{1b}'"),
            ("a\u{85}", r"'\u{85}'"),
            // When displayed, this name seems to end in `.txt`.
            ("a\u{202e}txt.exe", r"'\u{202e}'"),
            ("a\u{200b}", r"'\u{200b}'"),
            (&too_long, "256 bytes"),
        ] {
            let error = name.parse::<SegmentName>().unwrap_err().to_string();
            assert!(error.contains(hint), "{error}");
            assert!(!error.contains(label::is_harmful), "{error:?}");
        }
    }

    #[test]
    fn checksums_are_those_of_sha256sum() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Hasher::default().finish().to_string(), empty);
        let mut hasher = Hasher::default();
        hasher.update(b"a");
        hasher.update(b"bc");
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hasher.finish().to_string(), abc);
    }

    #[test]
    fn shared_memory_is_hashed_like_any_other() {
        let bytes: Vec<u8> = (0..3 * COPY_BYTES + 7).map(|index| (index * 31 % 251) as u8).collect();
        for length in [0, 1, COPY_BYTES, bytes.len()] {
            let (mut plain, mut shared) = (Hasher::default(), Hasher::default());
            plain.update(&bytes[..length]);
            shared.update_shared(SharedSpan::from(&bytes[..length]));
            assert_eq!(plain.finish(), shared.finish());
        }
    }
}
