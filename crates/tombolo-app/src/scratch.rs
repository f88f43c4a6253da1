//! Private directories for sockets and files of a while.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that only this user can enter, removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one for this purpose, a word, and removes those that killed processes left behind.
    pub fn new(purpose: &str) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let parent = std::env::temp_dir();
        let prefix = format!("tombolo-{purpose}-");
        remove_stale(&parent, &prefix);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let suffix = if number == 0 { String::new() } else { format!(".{number}") };
        let path = parent.join(format!("{prefix}{}{suffix}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes the directories with this prefix whose process has ended.
fn remove_stale(parent: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(prefix)?.split('.').next());
        if let Some(process) = process.and_then(|process| process.parse::<u32>().ok())
            && !Path::new("/proc").join(process.to_string()).exists()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_ends_with_its_owner_or_is_removed_by_the_next() {
        let one = Scratch::new("scratch-test").unwrap();
        let other = Scratch::new("scratch-test").unwrap();
        assert_ne!(one.path(), other.path());
        fs::write(one.file("kept"), "").unwrap();
        // No process has this number: it is beyond pid_max.
        let stale = std::env::temp_dir().join("tombolo-scratch-test-4194999");
        fs::create_dir_all(&stale).unwrap();
        let third = Scratch::new("scratch-test").unwrap();
        assert!(!stale.exists() && one.file("kept").exists() && third.path().exists());
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists());
    }
}
