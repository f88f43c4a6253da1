//! Help: commands by what one wants, and the command that was meant where there is none of that name.

use std::ffi::OsString;
use std::fmt::Write;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Command, CommandFactory};

use crate::{Cli, nearest};

/// What one wants, and the commands for it. Each command that is shown is in one group.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Memory of other machines", &["demo", "run", "node", "lenders"]),
    ("What runs here", &["ps", "top", "status", "ping"]),
    ("Files in the memory of a node", &["cp", "ls", "rm"]),
    ("Networks", &["net", "sockets"]),
    ("Models of hardware", &["sim", "reproduce"]),
    ("Setting up", &["doctor", "keygen", "man", "completions"]),
];

/// Words that other programs use for it, and what it is here.
const OTHER_WORDS: [(&str, &str); 16] = [
    ("attach", "net attach"),
    ("bench", "ping"),
    ("borrow", "run"),
    ("copy", "cp"),
    ("delete", "rm"),
    ("exec", "run"),
    ("genkey", "keygen"),
    ("info", "status"),
    ("lend", "node"),
    ("list", "ls"),
    ("manual", "man"),
    ("network", "net"),
    ("remove", "rm"),
    ("serve", "net serve"),
    ("show", "status"),
    ("simulate", "sim"),
];

/// All commands, with those that are shown in groups.
pub fn command() -> Command {
    let command = Cli::command();
    let listing = listing(&command);
    let template =
        format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{listing}\nOptions:\n{{options}}");
    command.help_template(template)
}

/// The commands that people use: without those that commands start themselves.
pub fn shown() -> Command {
    let command = Cli::command();
    let mut shown = Command::new("tombolo").version(env!("CARGO_PKG_VERSION"));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        shown = shown.long_about(about.clone());
    }
    shown.subcommands(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned())
}

fn listing(command: &Command) -> String {
    let mut listing = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(listing, "\n{title}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(listing, "  {name:<12} {about}");
        }
    }
    listing
}

/// Says which command may have been meant by one that there is not.
pub fn with_suggestion(mut error: Error, words: &[OsString]) -> Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand).cloned() else {
        return error;
    };
    // Commands of a command have clap's own suggestions.
    if words.get(1).is_some_and(|first| *first == *word) {
        let meant = meant_by(&word).map(|name| ContextValue::Strings(vec![name.to_owned()]));
        error.insert(ContextKind::SuggestedSubcommand, meant.unwrap_or(ContextValue::None));
    }
    error
}

fn meant_by(word: &str) -> Option<&'static str> {
    let other = OTHER_WORDS.iter().find(|(other, _)| *other == word).map(|(_, command)| *command);
    let names = || GROUPS.iter().flat_map(|(_, names)| names.iter().copied());
    other.or_else(|| nearest::nearest(word, names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_that_is_shown_is_in_one_group() {
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        grouped.sort_unstable();
        let shown = shown();
        let mut names: Vec<_> = shown.get_subcommands().map(Command::get_name).collect();
        names.sort_unstable();
        assert_eq!(grouped, names);
        for line in command().render_help().to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn what_was_meant_is_found() {
        let command = Cli::command();
        for (_, meant) in OTHER_WORDS {
            let found = meant.split(' ').try_fold(&command, |command, name| command.find_subcommand(name));
            assert!(found.is_some(), "{meant}");
        }
        for (word, meant) in [
            ("staus", Some("status")),
            ("rnu", Some("run")),
            ("tpo", Some("top")),
            ("doctr", Some("doctor")),
            ("copy", Some("cp")),
            ("serve", Some("net serve")),
            ("lend", Some("node")),
            // `keep` and the parts of the demo are for commands alone.
            ("kep", None),
            ("demo-stor", None),
            ("something", None),
            ("", None),
        ] {
            assert_eq!(meant_by(word), meant, "{word}");
        }
    }

    #[test]
    fn a_mistyped_command_is_told_what_was_meant() {
        let words = |words: &[&str]| -> Vec<OsString> { words.iter().map(OsString::from).collect() };
        let said = |given: &[&str]| {
            let error = command().try_get_matches_from(given).unwrap_err();
            with_suggestion(error, &words(given)).to_string()
        };
        assert!(said(&["tombolo", "rnu"]).contains("'run'"));
        assert!(said(&["tombolo", "attach"]).contains("'net attach'"));
        assert!(said(&["tombolo", "net", "serv"]).contains("'serve'"));
        assert!(!said(&["tombolo", "demo-stor"]).contains("demo-store'"));
    }
}
