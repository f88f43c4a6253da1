//! Where bytes from a node go: a file that is complete before it has its name.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
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
        // What replaces a file is nobody else's until it has that file's permissions: who opens it before
        // goes on reading.
        let (file, path) = temporary(&meant, if found.is_some() { 0o600 } else { 0o666 })?;
        let target = Self::Temporary { file, path, meant };
        let Self::Temporary { file, .. } = &target else { return Ok(target) };
        if let Some(found) = found {
            // Without set-user-id and set-group-id: the file has other contents now.
            file.set_permissions(Permissions::from_mode(found.mode() & 0o777))?;
        }
        if length_bytes > 0 {
            let allocated = rustix::io::retry_on_intr(|| {
                rustix::fs::fallocate(file, FallocateFlags::empty(), 0, length_bytes)
            });
            match allocated {
                // Some file systems cannot reserve space; then a full disk shows later.
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
            // If the file was renamed, it is no longer there, and this fails.
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

/// A new file in the directory of another, of this mode but for what the umask takes away.
fn temporary(beside: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
    let folder = directory(beside);
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in 0..NAMES {
        let path = folder.join(format!(".tombolo-cp-{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(mode).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_replaces_a_file_has_its_permissions_and_no_other_rights() {
        let folder = std::env::temp_dir().join(format!("tombolo-target-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("tool");
        for (before, after) in [(0o4755, 0o755), (0o2755, 0o755), (0o600, 0o600), (0o640, 0o640)] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            let mut target = Target::open(&path, 3).unwrap();
            target.write_all(b"new").unwrap();
            target.keep().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, after, "from {before:o}");
            assert_eq!(fs::read(&path).unwrap(), b"new");
        }
        let (file, _) = temporary(&path, 0o600).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        fs::remove_dir_all(&folder).unwrap();
    }
}
