//! The header for programs in C, made from the code and kept in the repository.

use std::path::{Path, PathBuf};

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/tombolo-c")
}

fn generate() -> Result<Vec<u8>, String> {
    let package = package();
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml"))?;
    let builder = cbindgen::Builder::new().with_src(package.join("src/lib.rs")).with_config(config);
    let mut header = Vec::new();
    builder.generate().map_err(|error| format!("the header for C: {error}"))?.write(&mut header);
    Ok(header)
}

/// Writes it.
pub fn write() -> Result<(), String> {
    let path = package().join("include/tombolo.h");
    std::fs::write(&path, generate()?).map_err(|error| format!("{}: {error}", path.display()))
}

/// Whether the one in the repository is that of the code.
pub fn check() -> Result<(), String> {
    let path = package().join("include/tombolo.h");
    if std::fs::read(&path).ok() == Some(generate()?) {
        return Ok(());
    }
    Err("crates/tombolo-c/include/tombolo.h is not that of the code: run `cargo xtask headers`".into())
}
