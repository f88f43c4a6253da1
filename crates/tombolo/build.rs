//! Builds the preloaded library, which the binary carries inside itself: one
//! file is all that has to be installed.
//!
//! Cargo cannot yet hand one package's `cdylib` to another, so this calls Cargo
//! again, with a target directory of its own (the outer one is locked).

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let library = manifest.join("../tombolo-preload");
    println!("cargo::rerun-if-changed={}", library.join("src").display());
    println!("cargo::rerun-if-changed={}", library.join("Cargo.toml").display());
    println!("cargo::rerun-if-changed={}", library.join("build.rs").display());
    println!("cargo::rerun-if-changed=build.rs");
    let target = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("preload");
    let triple = env::var("TARGET").expect("cargo sets it");
    let status = Command::new(env::var_os("CARGO").expect("cargo sets it"))
        .args(["build", "--release", "--manifest-path"])
        .arg(library.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .args(["--target", &triple])
        // A lint or coverage run of the outer build must not leak into the library.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET_DIR")
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "the preloaded library did not build");
    let built = target.join(triple).join("release/libtombolo_preload.so");
    println!("cargo::rustc-env=TOMBOLO_PRELOAD={}", built.display());
}
