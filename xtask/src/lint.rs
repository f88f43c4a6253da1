//! `cargo xtask lint`: what must be clean before a commit is taken.

use crate::command::{cargo, run};
use crate::licences;

/// Runs every check; the first that fails is the error.
pub fn main() -> Result<(), String> {
    run(cargo().args(["fmt", "--all", "--check"]))?;
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))?;
    // Built alone, each has only the features that it asks for.
    for package in ["tombolo", "tombolo-bench"] {
        run(cargo().args(["clippy", "--package", package, "--", "--deny", "warnings"]))?;
    }
    run(cargo()
        .args(["doc", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "--deny warnings"))?;
    crate::headers::check()?;
    licences::check()?;
    // What is known of dependencies' defects is on GitHub.
    let succeeds = |words: &[&str]| cargo().args(words).output().is_ok_and(|output| output.status.success());
    let without = if !succeeds(&["deny", "--version"]) {
        "cargo-deny is not installed (cargo install cargo-deny)"
    } else if !succeeds(&["deny", "fetch"]) {
        "there is no network"
    } else {
        return run(cargo().args(["deny", "check"]));
    };
    eprintln!("LEFT OUT, {without}: known defects of dependencies, and which may not be");
    Ok(())
}
