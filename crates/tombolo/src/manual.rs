//! `tombolo man` and `tombolo completions`: what packages install beside the program.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::failure::Failure;

use crate::{help, output};

/// Arguments of `tombolo man`.
#[derive(Args)]
pub struct ManArguments {
    /// Where to write them; it is made if it is not there.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Arguments of `tombolo completions`.
#[derive(Args)]
pub struct CompletionArguments {
    /// For which shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Writes a manual page for each command.
pub fn man(arguments: &ManArguments) -> Result<u8, Failure> {
    let directory = &arguments.directory;
    let written = fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(help::shown().disable_help_subcommand(true), directory));
    written.map_err(|error| {
        Failure::new(format!("cannot write manual pages to {}: {error}", directory.display()))
    })?;
    Ok(0)
}

/// Prints a shell's completions.
pub fn completions(arguments: &CompletionArguments) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut help::shown(), "tombolo", &mut text);
    output::line(String::from_utf8_lossy(&text).trim_end());
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_and_completions_and_those_for_commands_alone_have_none() {
        let directory = std::env::temp_dir().join(format!("tombolo-man-{}", std::process::id()));
        man(&ManArguments { directory: directory.clone() }).unwrap();
        let page = |name: &str| fs::read_to_string(directory.join(format!("{name}.1")));
        for command in help::shown().get_subcommands() {
            assert!(page(&format!("tombolo-{}", command.get_name())).is_ok(), "{}", command.get_name());
        }
        assert!(page("tombolo").unwrap().contains("tombolo\\-run(1)"));
        assert!(page("tombolo-net-serve").unwrap().contains("\\-\\-uplink"));
        assert!(page("tombolo-demo-store").is_err() && page("tombolo-keep").is_err());
        fs::remove_dir_all(&directory).unwrap();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut help::shown(), "tombolo", &mut text);
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains("keygen") && !text.contains("demo-store"), "{shell}");
        }
    }
}
