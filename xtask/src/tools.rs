//! Tools that are installed from crates.io, at a pinned version, below `~/.cache/tombolo`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{cargo, root, run};

/// A program that Cargo calls as a task of its own.
pub struct Tool {
    /// The program and its package.
    name: &'static str,
    version: &'static str,
    /// What `cargo install` is told besides.
    options: &'static [&'static str],
}

/// Runs the tests.
pub const NEXTEST: Tool = Tool {
    name: "cargo-nextest",
    version: "0.9.140",
    // Optimised, it takes more than twice as long to build, and starts tests no faster.
    options: &["--no-default-features", "--profile", "dev", "--config", "profile.dev.debug=false"],
};

/// Runs the fuzz targets.
pub const FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2", options: &[] };

/// Makes Debian packages.
pub const DEB: Tool = Tool {
    name: "cargo-deb",
    version: "3.8.0",
    options: &["--no-default-features", "--profile", "dev", "--config", "profile.dev.debug=false"],
};

/// Where the tool of that version is: one that is installed, or it is installed where all clones find it.
pub fn find(tool: &Tool) -> Result<PathBuf, String> {
    let tools = cache().join(format!("{}-{}", tool.name, tool.version));
    let own = tools.join("bin").join(tool.name);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&paths).map(|folder| folder.join(tool.name));
    if let Some(found) = [own.clone()].into_iter().chain(installed).find(|path| is_version(path, tool)) {
        return Ok(found);
    }
    let package = format!("{}@{}", tool.name, tool.version);
    run(cargo().args(["install", &package, "--locked", "--force", "--root"]).arg(&tools).args(tool.options))?;
    Ok(own)
}

/// Where this user's programs keep what can be made again.
fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.map_or_else(|| root().join("target"), |cache| cache.join("tombolo")).join("tools")
}

fn is_version(program: &Path, tool: &Tool) -> bool {
    let task = tool.name.strip_prefix("cargo-").unwrap_or(tool.name);
    let output = Command::new(program).args([task, "--version"]).output();
    output.is_ok_and(|output| {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success() && said.split_whitespace().any(|word| word == tool.version)
    })
}
