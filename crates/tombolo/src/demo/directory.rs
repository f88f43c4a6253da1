//! The demo's private directory.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "tombolo-demo-";

/// A directory that only this user can enter, removed when dropped.
pub struct Directory(PathBuf);

impl Directory {
    /// Makes one, and removes those of demos that were killed.
    pub fn new() -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let parent = std::env::temp_dir();
        remove_stale(&parent);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let suffix = if number == 0 { String::new() } else { format!(".{number}") };
        let path = parent.join(format!("{PREFIX}{}{suffix}", std::process::id()));
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

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next());
        if let Some(process) = process.and_then(|process| process.parse::<u32>().ok())
            && !Path::new("/proc").join(process.to_string()).exists()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
