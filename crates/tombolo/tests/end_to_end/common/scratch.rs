//! Scratch directories and compiled test programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory of one test, removed with everything in it.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one; its path is short, since Unix sockets go there.
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tombolo-test-{}-{number}-{name}", std::process::id()));
        // One that was left behind by a killed test, whose process had this number.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `tests/programs/NAME.c`, compiled once per test run with these extra flags.
pub fn compiled(name: &str, flags: &[&str]) -> String {
    static DONE: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let key = format!("{name}{}", flags.concat()).replace('/', "-");
    let mut done = DONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(path) = done.get(&key) {
        return path.display().to_string();
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.c"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{key}-{}", std::process::id()));
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&target)
        .arg(&source)
        .args(flags)
        .output()
        .expect("the C compiler starts");
    assert!(output.status.success(), "{name}.c: {}", String::from_utf8_lossy(&output.stderr));
    let text = target.display().to_string();
    done.insert(key, target);
    text
}
