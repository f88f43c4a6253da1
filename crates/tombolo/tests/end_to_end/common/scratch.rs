//! Scratch directories and compiled test programs.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

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

/// `tests/programs/NAME.c`, compiled with these extra flags, unless some test has done that since a program was changed.
pub fn compiled(name: &str, flags: &[&str]) -> String {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let version = version_of(&programs, flags);
    let key = format!("{name}-{version:016x}");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&key);
    if !target.exists() {
        // Other tests, each a process, may compile the same. The first one's stays: where a program that runs lost its
        // name, a debugger would not find its symbols.
        let own = target.with_file_name(format!("{key}.{}", std::process::id()));
        let mut command = Command::new("cc");
        command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&own);
        let output = command.arg(programs.join(format!("{name}.c"))).args(flags).output();
        let output = output.expect("the C compiler starts");
        assert!(output.status.success(), "{name}.c: {}", String::from_utf8_lossy(&output.stderr));
        match renameat_with(CWD, &own, CWD, &target, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => fs::remove_file(&own).expect("a file of our own"),
            renamed => renamed.expect("a name for the program"),
        }
    }
    target.display().to_string()
}

/// A number that changes when the flags do, or a file in a directory from which a program may include parts.
fn version_of(programs: &Path, flags: &[&str]) -> u64 {
    let mut hasher = DefaultHasher::new();
    flags.hash(&mut hasher);
    let included = flags.iter().filter_map(|flag| flag.strip_prefix("-I")).map(Path::new);
    for directory in [programs].into_iter().chain(included) {
        let entries = fs::read_dir(directory).expect("a directory of programs").flatten();
        let mut paths: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        paths.sort();
        for path in paths {
            fs::read(&path).expect("a program").hash(&mut hasher);
        }
    }
    hasher.finish()
}
