//! `cargo xtask lint`: what must be clean before a commit is taken.

use crate::command::{cargo, installed, run};

/// Runs every check; the first that fails is the error.
pub fn main() -> Result<(), String> {
    run(cargo().args(["fmt", "--all", "--check"]))?;
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))?;
    run(cargo()
        .args(["doc", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "--deny warnings"))?;
    crate::headers::check()?;
    let home =
        std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")));
    let beside = home.is_ok_and(|home| std::path::Path::new(&home).join("bin/cargo-deny").is_file());
    if beside || installed("cargo-deny") {
        // Advisories need the network; what can be checked without it always is.
        run(cargo().args(["deny", "check", "licenses", "bans", "sources"]))?;
        if let Err(error) = run(cargo().args(["deny", "check", "advisories"])) {
            if std::env::var_os("CI").is_some() {
                return Err(error);
            }
            eprintln!("advisories were not checked, or there are some: {error}");
        }
    } else {
        eprintln!(
            "cargo-deny is not installed: licences and advisories are not checked (cargo install cargo-deny)"
        );
    }
    Ok(())
}
