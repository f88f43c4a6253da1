//! What goes to standard output, and what is said on standard error.
//!
//! The first failure to write is kept, nothing is written after it, and it becomes the command's own
//! failure in the end ([`finish`]). Commands that write for as long as they run look for it meanwhile.

use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use serde::Serialize;

use crate::failure::Failure;

static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line.
pub fn line(text: &str) {
    if !failed() {
        note(writeln!(io::stdout(), "{text}"));
    }
}

/// Prints a text in lines of at most 80 columns, where its words allow that.
pub fn paragraph(text: &str) {
    indented("", text);
}

/// Prints a paragraph behind the first line's beginning: the other lines are indented as far.
pub fn indented(beginning: &str, text: &str) {
    let indent = " ".repeat(beginning.chars().count());
    for (number, text) in folded(text, 80 - indent.len()).iter().enumerate() {
        line(&format!("{}{text}", if number == 0 { beginning } else { &indent }));
    }
}

fn folded(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Prints a value as JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Says something on standard error. Where that cannot be written, there is nobody to tell: the command goes on.
pub fn say(text: &str) {
    say_to(&mut io::stderr(), text);
}

/// In one call: other processes have the same standard error, and their lines would come between parts of this one.
fn say_to(file: &mut impl Write, text: &str) {
    let _ = file.write_all(format!("tombolo: {text}\n").as_bytes());
}

fn note(written: io::Result<()>) {
    if let Err(error) = written {
        // The first error is kept: later ones follow from it.
        let _ = FAILED.set(error);
    }
}

/// Has what was printed so far written, also where that is no terminal.
pub fn flush() {
    if !failed() {
        note(io::stdout().flush());
    }
}

/// Whether something could not be written.
pub fn failed() -> bool {
    FAILED.get().is_some()
}

/// Writes what is still to be written. Fails if anything could not be.
pub fn finish() -> Result<(), Failure> {
    if !failed() {
        note(io::stdout().flush());
    }
    FAILED.get().map_or(Ok(()), |error| Err(failure(error)))
}

/// The failure that follows from one to write to standard output. Where the reader has gone away there is no
/// message: the exit code is the one that a shell shows for a process that SIGPIPE has ended.
pub fn failure(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure { text: String::new(), code: 141 },
        _ => Failure::new(format!("cannot write to standard output: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts calls.
    #[derive(Default)]
    struct Calls(Vec<Vec<u8>>);

    impl Write for Calls {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_written_by_one_call() {
        let mut calls = Calls::default();
        say_to(&mut calls, "two\nlines");
        assert_eq!(calls.0, [b"tombolo: two\nlines\n".to_vec()]);
    }

    #[test]
    fn a_paragraph_keeps_all_words_in_lines_that_fit() {
        let text = ["word"; 40].join(" ");
        let lines = folded(&text, 80);
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [79, 79, 39]);
        assert_eq!(lines.join(" "), text);
        let long = "x".repeat(100);
        assert_eq!(folded(&format!("a {long} b"), 80), ["a", &long, "b"]);
        assert_eq!(folded("", 80), Vec::<String>::new());
    }
}
