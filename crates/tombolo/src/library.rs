//! The preloaded library: inside this binary, and where a package installs it.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use tombolo_node::Hasher;
use tombolo_pager::Library;

use crate::failure::Failure;

use crate::{output, sockets};

/// Built beside this binary.
static LIBRARY: &[u8] = include_bytes!(env!("TOMBOLO_PRELOAD"));

/// Where packages install it.
pub const INSTALLED: &str = "/usr/lib/tombolo";

/// Arguments of `tombolo library`.
#[derive(Args)]
pub struct Arguments {
    /// Where to write it; it is made if it is not there.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes the libraries under the names by which they are found where they are installed.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let directory = &arguments.directory;
    for (name, library) in [(name(), LIBRARY), sockets::library()] {
        let path = directory.join(name);
        fs::create_dir_all(directory).and_then(|()| fs::write(&path, library)).map_err(|error| {
            Failure::new(format!("cannot write a library to {}: {error}", directory.display()))
        })?;
        output::line(&path.display().to_string());
    }
    Ok(0)
}

/// For the pager.
pub fn library() -> Library {
    // Its checksum takes milliseconds.
    let installed = Path::new(INSTALLED).is_dir().then(|| Path::new(INSTALLED).join(name()));
    Library { bytes: LIBRARY, installed }
}

fn name() -> String {
    name_of("libtombolo", LIBRARY)
}

/// A name that no other library has: a package of another version installs its library beside this one.
pub fn name_of(kind: &str, library: &[u8]) -> String {
    let mut hasher = Hasher::default();
    hasher.update(library);
    let checksum = hasher.finish().to_string();
    format!("{kind}-{}.so", checksum.get(..16).unwrap_or(&checksum))
}
