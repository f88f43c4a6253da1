//! Where bytes from a node go: a file that is complete before it has its name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use super::Interruptible;

/// Names that are tried for the temporary file: others may have been left by processes that were killed.
const NAMES: u32 = 100;

/// A file that is being written.
pub(super) enum Target {
    /// Beside what it will replace.
    Temporary {
        file: File,
        path: PathBuf,
        /// What it will be called.
        meant: PathBuf,
    },
    /// Straight into standard output, a pipe or a device.
    Direct(Interruptible<File>),
}

impl Target {
    /// Makes room for this many bytes.
    pub(super) fn open(path: &Path, length_bytes: u64) -> io::Result<Self> {
        if path == Path::new("-") {
            let copy = rustix::io::dup(rustix::stdio::stdout())?;
            return Ok(Self::Direct(Interruptible(File::from(copy))));
        }
        let found = match fs::metadata(path) {
            Ok(found) if !found.is_file() => {
                return Ok(Self::Direct(Interruptible(super::open(path, OFlags::WRONLY)?)));
            }
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        // What a symbolic link leads to is replaced, and not the link.
        let meant = if found.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
        let (file, path) = temporary(&meant)?;
        let target = Self::Temporary { file, path, meant };
        let Self::Temporary { file, .. } = &target else { return Ok(target) };
        if let Some(found) = found {
            file.set_permissions(found.permissions())?;
        }
        if length_bytes > 0 {
            let allocated = rustix::io::retry_on_intr(|| {
                rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length_bytes)
            });
            match allocated {
                // Some file systems cannot, and find out later.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(target)
    }

    /// All bytes are there, and right: the file gets its name.
    pub(super) fn keep(self) -> io::Result<()> {
        match &self {
            Self::Temporary { file, path, meant } => {
                // After a crash the name must not lead to a file whose bytes were still to be written.
                file.sync_all()?;
                fs::rename(path, meant)?;
                sync_directory(meant)
            }
            Self::Direct(_) => Ok(()),
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Temporary { file, .. } => file.write(bytes),
            Self::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Self::Temporary { path, .. } = self {
            // It is gone when it has its name.
            let _ = fs::remove_file(path);
        }
    }
}

/// Has the name of a file outlast a crash, too.
fn sync_directory(of: &Path) -> io::Result<()> {
    match File::open(directory(of)).and_then(|directory| directory.sync_all()) {
        // Some file systems cannot, and some directories may not be read.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied) =>
        {
            Ok(())
        }
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("the file is complete, but its name may not outlast a crash: {error}"),
        )),
        Ok(()) => Ok(()),
    }
}

/// The directory that a file is in.
fn directory(of: &Path) -> &Path {
    of.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file in the directory of another.
fn temporary(beside: &Path) -> io::Result<(File, PathBuf)> {
    let folder = directory(beside);
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in 0..NAMES {
        let path = folder.join(format!(".tombolo-cp-{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}
