//! What goes to standard output.

use std::io::Write;

use serde::Serialize;

use crate::Failure;

/// Prints a line; a reader that has gone away is no error.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints a value as JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(&serde_json::to_string_pretty(value)?);
    Ok(())
}
