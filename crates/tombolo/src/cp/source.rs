//! What is copied to a node: its length must be known before the first byte is sent.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use super::{Interruptible, interrupted_or};
use crate::failure::Failure;

/// Bytes, and how many.
pub(super) struct Source {
    pub(super) file: File,
    pub(super) length_bytes: u64,
}

impl Source {
    /// A file as it is, or what standard input (`-`), a pipe or the like gives, collected in a
    /// temporary file.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| interrupted_or(Failure::new(format!("{}: {error}", path.display())));
        if path == Path::new("-") {
            return collected(io::stdin().lock());
        }
        let file = super::open(path, OFlags::RDONLY).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if found.is_dir() {
            return Err(Failure::new(format!(
                "{} is a directory: copy its files, or an archive of it",
                path.display()
            )));
        }
        // Files of /proc have a length of 0 and contents all the same.
        if found.is_file() && found.len() > 0 {
            return Ok(Self { file, length_bytes: found.len() });
        }
        collected(file)
    }
}

/// All bytes, in a file without a name.
fn collected(source: impl Read) -> Result<Source, Failure> {
    let folder = std::env::temp_dir();
    let path = folder.join(format!(".tombolo-cp-{}", std::process::id()));
    let failed = |error: io::Error| {
        Failure::new(format!("{}: {error} (TMPDIR names another place)", folder.display()))
    };
    // Only this user can open it before it is unlinked.
    let opened = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
    let mut file = opened.map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)?;
    let (mut source, mut length_bytes) = (Interruptible(source), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = source.read(&mut buffer);
        let count = count.map_err(|error| interrupted_or(Failure::new(format!("cannot read: {error}"))))?;
        if count == 0 {
            break;
        }
        file.write_all(&buffer[..count]).map_err(failed)?;
        length_bytes += count as u64;
    }
    file.rewind().map_err(failed)?;
    Ok(Source { file, length_bytes })
}
