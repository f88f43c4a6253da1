//! `tombolo keygen`: make this machine's key.

use std::path::PathBuf;

use clap::Args;
use tombolo_node::identity::{KeyPair, write_key_file};

use crate::{Failure, output, security};

/// Arguments of `tombolo keygen`.
#[derive(Args)]
pub struct Arguments {
    /// Where to keep the secret key; ~/.config/tombolo/key unless given.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Writes a new secret key and prints the public one.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let Some(path) = arguments.out.clone().or_else(security::default_key) else {
        return Err(Failure::new("no directory for the key: HOME is not set; name a file with --out"));
    };
    let keys = KeyPair::generate()?;
    write_key_file(&path, &keys)?;
    let path = path.display();
    output::say(&format!("the secret key is in {path}; put this line on the lists of other nodes:"));
    output::line(&keys.public().to_string());
    Ok(0)
}
