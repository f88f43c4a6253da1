//! Builds the preloaded library, which the binary carries inside itself: one
//! file is all that has to be installed.
//!
//! Cargo cannot yet hand one package's `cdylib` to another, so this calls Cargo
//! again, with a target directory of its own (the outer one is locked).

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let library = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../tombolo-preload");
    for part in ["src", "Cargo.toml", "build.rs"] {
        println!("cargo::rerun-if-changed={}", library.join(part).display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    // `TARGET-DIRECTORY/PROFILE/build/PACKAGE/out`. Builds of several profiles, and those that only check, share one
    // directory, so that the library is built once for all of them that want the same.
    let out = PathBuf::from(variable("OUT_DIR"));
    let target = out.ancestors().nth(4).expect("cargo's layout of directories").join("preload");
    let triple = env::var("TARGET").expect("cargo sets it");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--release", "--manifest-path"]).arg(library.join("Cargo.toml"));
    cargo.args(["--target", &triple]);
    // What the outer build checks while it runs, the library checks, too.
    let profile = if variable("PROFILE") == "debug" { "checked" } else { "release" };
    if profile == "checked" {
        for check in ["debug-assertions", "overflow-checks"] {
            cargo.args(["--config", &format!("profile.release.{check}=true")]);
        }
    }
    let target = target.join(profile);
    cargo.arg("--target-dir").arg(&target);
    // A lint or coverage run of the outer build must not leak into the library.
    for variable in
        ["RUSTC_WORKSPACE_WRAPPER", "RUSTC_WRAPPER", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET_DIR"]
    {
        cargo.env_remove(variable);
    }
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "the preloaded library did not build");
    let built = out.join("libtombolo_preload.so");
    std::fs::copy(target.join(triple).join("release/libtombolo_preload.so"), &built).expect("it was built");
    println!("cargo::rustc-env=TOMBOLO_PRELOAD={}", built.display());
}
