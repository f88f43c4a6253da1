//! How a command fails.

use std::process::ExitCode;

use crate::output;

/// A command's own failure, told to the user in one line.
#[derive(Debug)]
pub struct Failure {
    /// What failed, why, and what to do. Empty: the exit code says enough.
    pub text: String,
    /// The exit code.
    pub code: u8,
}

impl Failure {
    /// A failure of Tombolo itself, as other wrappers of programs report theirs (125).
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: 125 }
    }

    /// Tells the user, and returns the exit code.
    pub fn print(&self) -> ExitCode {
        if !self.text.is_empty() {
            output::say(&self.text);
        }
        ExitCode::from(self.code)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}
