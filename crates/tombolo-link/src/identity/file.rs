//! The files that keys are kept in.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::key::{KeyError, KeyPair};
use super::permissions::PermissionsError;

/// The longest file of keys that is read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Unwritable {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The file exists already.
    #[error("{} exists already, and a key that is overwritten is lost: choose another file", path.display())]
    Exists {
        /// Which.
        path: PathBuf,
    },
    /// Others than its owner can read a secret.
    #[error(
        "{} holds a secret key and others can read it (mode {mode:04o}): run `chmod 600 {}`, or make a new key if somebody may have",
        path.display(),
        path.display()
    )]
    TooOpen {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A line cannot be understood.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: KeyError,
    },
    /// What a line permits cannot be understood.
    #[error("{}:{line}: {reason}", path.display())]
    Permissions {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: PermissionsError,
    },
    /// The file should hold a secret key, and holds none.
    #[error("{} holds no secret key: make one with `tombolo keygen`", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// The file is not a text, or far too long.
    #[error("{} is no file of keys: it is not a text of less than 1 MiB", path.display())]
    NoText {
        /// Which.
        path: PathBuf,
    },
}

impl Clone for KeyFileError {
    fn clone(&self) -> Self {
        let same = |reason: &io::Error| match reason.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(reason.kind(), reason.to_string()),
        };
        match self {
            Self::Unreadable { path, reason } => {
                Self::Unreadable { path: path.clone(), reason: same(reason) }
            }
            Self::Unwritable { path, reason } => {
                Self::Unwritable { path: path.clone(), reason: same(reason) }
            }
            Self::Exists { path } => Self::Exists { path: path.clone() },
            Self::TooOpen { path, mode } => Self::TooOpen { path: path.clone(), mode: *mode },
            Self::Line { path, line, reason } => {
                Self::Line { path: path.clone(), line: *line, reason: *reason }
            }
            Self::Permissions { path, line, reason } => {
                Self::Permissions { path: path.clone(), line: *line, reason: reason.clone() }
            }
            Self::Empty { path } => Self::Empty { path: path.clone() },
            Self::NoText { path } => Self::NoText { path: path.clone() },
        }
    }
}

/// The whole text of a file of keys.
pub(super) fn read_text(file: File, path: &Path) -> Result<Zeroizing<String>, KeyFileError> {
    // Room for all of it at once: a buffer that grows leaves copies of secrets behind.
    let length_bytes = file.metadata().map_or(0, |metadata| metadata.len().min(MAX_FILE_BYTES));
    let mut text = Zeroizing::new(String::with_capacity(length_bytes as usize + 1));
    let no_text = || KeyFileError::NoText { path: path.to_owned() };
    match file.take(MAX_FILE_BYTES).read_to_string(&mut text) {
        Ok(bytes) if bytes as u64 == MAX_FILE_BYTES => Err(no_text()),
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(no_text()),
        Err(reason) => Err(KeyFileError::Unreadable { path: path.to_owned(), reason }),
    }
}

pub(super) fn open(path: &Path) -> Result<File, KeyFileError> {
    File::open(path).map_err(|reason| KeyFileError::Unreadable { path: path.to_owned(), reason })
}

/// The lines that are not empty, numbered from 1: without comments, and without space around.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(index, line)| {
        let said = line.split_once('#').map_or(line, |(said, _)| said);
        (index + 1, said.trim())
    });
    lines.filter(|(_, said)| !said.is_empty())
}

/// Reads a secret key's file, which nobody but its owner may be able to read.
pub fn read_key_file(path: &Path) -> Result<KeyPair, KeyFileError> {
    let file = open(path)?;
    let mode =
        file.metadata().map_err(|reason| KeyFileError::Unreadable { path: path.to_owned(), reason })?.mode();
    if mode & 0o077 != 0 {
        return Err(KeyFileError::TooOpen { path: path.to_owned(), mode: mode & 0o7777 });
    }
    let text = read_text(file, path)?;
    secret_in(&text, path)
}

/// The secret key in a text.
pub(crate) fn secret_in(text: &str, path: &Path) -> Result<KeyPair, KeyFileError> {
    let Some((line, said)) = lines(text).next() else {
        return Err(KeyFileError::Empty { path: path.to_owned() });
    };
    KeyPair::parse_secret(said).map_err(|reason| KeyFileError::Line { path: path.to_owned(), line, reason })
}

/// Writes a secret key to a new file that only its owner can read, and makes the directories on the
/// way to it.
pub fn write_key_file(path: &Path, keys: &KeyPair) -> Result<(), KeyFileError> {
    let failed = |reason: io::Error| match reason.kind() {
        io::ErrorKind::AlreadyExists => KeyFileError::Exists { path: path.to_owned() },
        _ => KeyFileError::Unwritable { path: path.to_owned(), reason },
    };
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let mut text = Zeroizing::new(String::with_capacity(512));
    text.push_str("# The public key, for the lists of other nodes:\n# ");
    text.push_str(&keys.public().to_string());
    text.push_str("\n# The secret key, for nobody else:\n");
    text.push_str(&keys.secret_text());
    text.push('\n');
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|reason| {
        // A file with half a key would make the next attempt fail.
        let _ = fs::remove_file(path);
        KeyFileError::Unwritable { path: path.to_owned(), reason }
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A directory that goes with the test.
    pub struct Scratch(pub PathBuf);

    impl Scratch {
        pub fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("tombolo-keys-{}-{number}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_key_file_reads_back_and_is_never_overwritten() {
        let scratch = Scratch::new();
        let path = scratch.0.join("a/b/key");
        let keys = KeyPair::generate().unwrap();
        write_key_file(&path, &keys).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(read_key_file(&path).unwrap().public(), keys.public());
        let other = KeyPair::generate().unwrap();
        assert!(matches!(write_key_file(&path, &other), Err(KeyFileError::Exists { .. })));
        assert_eq!(read_key_file(&path).unwrap().public(), keys.public());
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let scratch = Scratch::new();
        let path = scratch.0.join("key");
        write_key_file(&path, &KeyPair::generate().unwrap()).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o601] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read_key_file(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("(mode {mode:04o})")) && error.contains("chmod 600"), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        read_key_file(&path).unwrap();
    }

    #[test]
    fn mistakes_name_the_file_and_the_line() {
        let scratch = Scratch::new();
        let path = scratch.0.join("key");
        assert!(matches!(read_key_file(&path), Err(KeyFileError::Unreadable { .. })));
        for (text, expected) in [
            (b"# nothing\n\n".as_slice(), "holds no secret key"),
            (b"# one\n\n  tombolo-public:00 # two\n", "key:3: a key begins with `tombolo-secret:`"),
            (b"tombolo-secret:12", "key:1: a key has 64 hexadecimal digits"),
            (b"\xFF\xFE", "is not a text"),
        ] {
            let _ = fs::remove_file(&path);
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
            file.write_all(text).unwrap();
            let error = read_key_file(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
