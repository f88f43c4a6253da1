//! The library that is loaded into programs: inside this binary, and in a file for the dynamic linker.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::library;

/// Built beside this binary.
static LIBRARY: &[u8] = include_bytes!(env!("TOMBOLO_SOCKETS_PRELOAD"));

/// Its name and its content.
pub fn library() -> (String, &'static [u8]) {
    (library::name_of("libtombolo-sockets", LIBRARY), LIBRARY)
}

/// Where the library lies: where a package has installed it, or in a directory of this user's. There it stays: programs that run load it again
/// when they execute others.
pub fn path() -> Result<PathBuf, Failure> {
    let (name, _) = library();
    let installed = Path::new(library::INSTALLED).join(&name);
    let is_ours = |path: &Path| fs::read(path).is_ok_and(|found| found == LIBRARY);
    if is_ours(&installed) {
        return Ok(installed);
    }
    let user = rustix::process::geteuid().as_raw();
    let directory = std::env::temp_dir().join(format!("tombolo-sockets-{user}"));
    let failed = |error: std::io::Error| Failure::new(format!("cannot use {}: {error}", directory.display()));
    match DirBuilder::new().mode(0o755).create(&directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let found = fs::symlink_metadata(&directory).map_err(failed)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        let directory = directory.display();
        return Err(Failure::new(format!(
            "{directory} must be a directory of this user that nobody else can write to"
        )));
    }
    let path = directory.join(&name);
    if !is_ours(&path) {
        // Another command may be at it, too.
        let partial = directory.join(format!(".{name}.{}", std::process::id()));
        let written = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o644)
            .open(&partial)
            .and_then(|mut file| file.write_all(LIBRARY))
            .and_then(|()| fs::rename(&partial, &path));
        written.map_err(failed)?;
    }
    Ok(path)
}
