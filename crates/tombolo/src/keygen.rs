//! `tombolo keygen`: make this machine's key.

use std::path::PathBuf;

use clap::Args;
use tombolo_node::identity::{KeyPair, read_key_file, write_key_file};

use crate::failure::Failure;

use crate::{output, security};

/// Arguments of `tombolo keygen`.
#[derive(Args)]
pub struct Arguments {
    /// Where to keep the secret key; ~/.config/tombolo/key unless given.
    #[arg(long, value_name = "FILE", env = "TOMBOLO_KEY", hide_env_values = true)]
    out: Option<PathBuf>,
    /// Make no key: print the public one of the key that is there.
    #[arg(long)]
    show: bool,
}

/// Writes a new secret key, or reads the one that is there, and prints the public one.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let Some(path) = arguments.out.clone().or_else(security::default_key) else {
        return Err(Failure::new("no directory for the key: HOME is not set; name a file with --out"));
    };
    if arguments.show {
        output::line(&read_key_file(&path)?.public().to_string());
        return Ok(0);
    }
    let keys = KeyPair::generate()?;
    write_key_file(&path, &keys)?;
    let path = path.display();
    output::say(&format!("the secret key is in {path}; put this line on the lists of other nodes:"));
    output::line(&keys.public().to_string());
    Ok(0)
}
