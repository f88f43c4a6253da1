//! The directory of a run: the supervisor's socket, and the preloaded library.
//!
//! The library is contained in the binary, and is written to this directory. If a package has installed the very same file,
//! a link to that is made instead: all runs share the file in memory, and nothing executable is written. The installed
//! file's name contains its checksum, so a package of another version does not replace it. If the file is removed while a
//! program runs, a copy takes the place of the link ([`RunDirectory::keep_library`]).

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use tombolo_host::process;

/// The preloaded library.
#[derive(Clone, Debug)]
pub struct Library {
    /// What its file contains.
    pub bytes: &'static [u8],
    /// Where a package may have installed the same file.
    pub installed: Option<PathBuf>,
}

/// Identifies a file and its last change: device, inode, change time in seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64, i64, i64);

impl FileId {
    fn of(file: &fs::Metadata) -> Self {
        Self(file.dev(), file.ino(), file.ctime(), file.ctime_nsec())
    }
}

impl Library {
    /// Finds the installed file, if every program may load it, only root can change it, and its contents are those of this
    /// library.
    fn find_installed(&self) -> Option<FileId> {
        let path = self.installed.as_ref()?;
        let folder = path.parent()?;
        is_loadable(folder).and_then(|()| is_executable(folder)).ok()?;
        let is_roots = |file: &fs::Metadata| file.uid() == 0 && file.mode() & 0o022 == 0;
        let folders = path.ancestors().skip(1);
        if !folders.map(fs::symlink_metadata).all(|folder| folder.is_ok_and(|folder| is_roots(&folder))) {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut file = fs::File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
        let found = file.metadata().ok()?;
        let is_for_all = found.is_file() && is_roots(&found) && found.mode() & 0o444 == 0o444;
        if !is_for_all || found.len() != self.bytes.len() as u64 {
            return None;
        }
        let mut bytes = Vec::with_capacity(self.bytes.len());
        file.read_to_end(&mut bytes).ok()?;
        (bytes == self.bytes).then(|| FileId::of(&found))
    }
}

/// A directory with the socket and the library, removed on drop. A program of the run may change its user and still load
/// the library, so all users may pass through the directory then.
pub(crate) struct RunDirectory {
    path: PathBuf,
    library: Library,
    /// The installed file to which the link in this directory leads.
    installed: Option<FileId>,
    /// Lock on the directory as long as the run lasts: a directory without a lock belongs to a supervisor that was killed.
    _lock: OwnedFd,
}

impl RunDirectory {
    pub(crate) fn new(library: Library) -> io::Result<Self> {
        let installed = library.find_installed();
        // A link also works in a file system where nothing may be executed.
        in_some_place(installed.is_none(), |place| {
            let (path, lock) = make_directory(place)?;
            let directory = Self { path, library: library.clone(), installed, _lock: lock };
            match (installed, &library.installed) {
                (Some(_), Some(at)) => std::os::unix::fs::symlink(at, directory.library())?,
                _ => directory.write_library()?,
            }
            let mode = if process::may_change_user() { 0o711 } else { 0o700 };
            fs::set_permissions(&directory.path, fs::Permissions::from_mode(mode))?;
            Ok(directory)
        })
    }

    /// Where the program finds the library.
    pub(crate) fn library(&self) -> PathBuf {
        self.path.join("libtombolo.so")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("pager")
    }

    /// Replaces the link by a copy of the library if the installed file has gone or has changed. To be called now and then.
    pub(crate) fn keep_library(&self) -> io::Result<()> {
        let Some(installed) = self.installed else { return Ok(()) };
        let link = match fs::symlink_metadata(self.library()) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let is_copied = link.as_ref().is_some_and(|link| !link.file_type().is_symlink());
        let is_current = || fs::metadata(self.library()).is_ok_and(|found| FileId::of(&found) == installed);
        if is_copied || link.is_some() && is_current() {
            return Ok(());
        }
        is_executable(&self.path)?;
        self.write_library()
    }

    /// Writes the library to where the program finds it, in one atomic step.
    fn write_library(&self) -> io::Result<()> {
        let new = self.path.join("libtombolo.so.new");
        let _ = fs::remove_file(&new);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o555).open(&new)?;
        file.write_all(self.library.bytes)?;
        // Whatever permissions the umask of this process removes.
        fs::set_permissions(&new, fs::Permissions::from_mode(0o555))?;
        fs::rename(&new, self.library())
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

const DIRECTORY_PREFIX: &str = "tombolo-pager-";

/// Calls `make` with the first suitable directory: the one for temporary files, then those that are usual elsewhere.
fn in_some_place<T>(has_library: bool, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    let mut reason = None;
    for place in [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into(), "/run".into()] {
        let may_load = || if has_library { is_executable(&place) } else { Ok(()) };
        let made = is_fit(&place).and_then(|()| may_load()).and_then(|()| {
            remove_stale(&place);
            make(&place)
        });
        match made {
            Ok(made) => return Ok(made),
            // The first error is returned: it concerns the directory that was meant.
            Err(error) => {
                reason.get_or_insert_with(|| {
                    io::Error::new(error.kind(), format!("{}: {error}", place.display()))
                });
            }
        }
    }
    Err(reason.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// Whether the directory of a run can be there.
fn is_fit(place: &Path) -> io::Result<()> {
    /// Most bytes of the directory's path: with a run's name, the socket's name and a final zero it has to fit a socket
    /// address.
    const MOST_BYTES: usize = 108 - "/tombolo-pager-4294967295.999/pager".len() - 1;
    if place.as_os_str().len() > MOST_BYTES || place.to_str().is_none() {
        return Err(io::Error::other("its name is too long, or no text"));
    }
    is_loadable(place)
}

/// Whether programs find a library in a directory: the dynamic linker takes a path apart at spaces and colons.
fn is_loadable(place: &Path) -> io::Result<()> {
    let is_special = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b':' | b'$');
    if !place.is_absolute() || place.as_os_str().as_bytes().iter().any(is_special) {
        return Err(io::Error::other("the dynamic linker cannot take such a path"));
    }
    // A program that changes its user loads the library, too.
    let is_closed =
        |folder: &Path| fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & 0o001 == 0);
    if process::may_change_user() && place.ancestors().any(is_closed) {
        return Err(io::Error::other("other users may not pass through it"));
    }
    Ok(())
}

/// Whether the file system of a directory lets its files be executed.
fn is_executable(place: &Path) -> io::Result<()> {
    let system = rustix::fs::statvfs(place)?;
    if system.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::other("nothing may be executed there (noexec)"));
    }
    Ok(())
}

/// Names tried for a directory. Earlier names may belong to supervisors with the same process number in other pid
/// namespaces, for instance the first processes of containers.
const NAMES_MAX: u32 = 1000;

/// Makes a directory and locks it. Another supervisor may take it for stale before it is locked; then the next name is
/// tried.
fn make_directory(parent: &Path) -> io::Result<(PathBuf, OwnedFd)> {
    for attempt in 0..NAMES_MAX {
        let path = parent.join(format!("{DIRECTORY_PREFIX}{}.{attempt}", std::process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        // Another supervisor may have removed the directory before it was locked.
        match lock_directory(&path) {
            Ok(lock) if path.exists() => return Ok((path, lock)),
            Err(error)
                if error.kind() != io::ErrorKind::NotFound && error.kind() != io::ErrorKind::WouldBlock =>
            {
                return Err(error);
            }
            _ => {}
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Locks a directory of this user, unless another process has locked it. Other users may make anything under such a name.
fn lock_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    if rustix::fs::fstat(&directory)?.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

/// Removes the directories of supervisors that were killed.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_directory_of_run =
            entry.file_name().to_str().is_some_and(|name| name.starts_with(DIRECTORY_PREFIX));
        if is_directory_of_run && let Ok(_lock) = lock_directory(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_at(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    /// A file that all users can write to is never loaded, whatever it contains.
    #[test]
    fn a_library_that_others_can_change_is_not_used() {
        let folder = std::env::temp_dir().join(format!("tombolo-library-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("libtombolo.so");
        fs::write(&path, "library").unwrap();
        let library = Library { bytes: b"library", installed: Some(path) };
        assert_eq!(library.find_installed(), None, "the directory for temporary files is everybody's");
        let directory = RunDirectory::new(library).unwrap();
        assert!(fs::symlink_metadata(directory.library()).unwrap().is_file());
        assert_eq!(text_at(&directory.library()), "library");
        fs::remove_dir_all(&folder).unwrap();
    }

    /// A link to a file that has gone or was replaced is itself replaced by the library.
    #[test]
    fn the_copy_takes_the_place_of_an_installed_library_that_has_gone() {
        let folder = std::env::temp_dir().join(format!("tombolo-installed-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for is_replaced in [false, true] {
            let path = folder.join("libtombolo.so");
            fs::write(&path, "library").unwrap();
            let mut directory = RunDirectory::new(Library { bytes: b"library", installed: None }).unwrap();
            fs::remove_file(directory.library()).unwrap();
            std::os::unix::fs::symlink(&path, directory.library()).unwrap();
            directory.installed = Some(FileId::of(&fs::metadata(&path).unwrap()));
            directory.keep_library().unwrap();
            assert!(fs::symlink_metadata(directory.library()).unwrap().is_symlink(), "it is there still");
            if is_replaced {
                fs::write(folder.join("new"), "another").unwrap();
                fs::rename(folder.join("new"), &path).unwrap();
            } else {
                fs::remove_file(&path).unwrap();
            }
            directory.keep_library().unwrap();
            assert!(fs::symlink_metadata(directory.library()).unwrap().is_file());
            assert_eq!(text_at(&directory.library()), "library");
            directory.keep_library().unwrap();
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
